//! One tile: some rows of a matrix, or the three matrices of an expert, behind a header of 64 bytes.

use std::io::Write;

use bytemuck::{Pod, Zeroable};
use kimi_quant::{Encoding, LayoutError, MatrixView};
use twox_hash::XxHash3_64;

/// Bytes of the header in front of a tile's weights.
pub(crate) const HEADER_BYTES: usize = size_of::<Header>();

/// What the size of a tile is a multiple of, and where tensors begin: a page, and the block of any drive.
pub(crate) const BLOCK: usize = 4096;

/// The largest tile that a matrix is cut into, the header included.
pub(crate) const MAX_TILE_BYTES: usize = 4 << 20;

/// Rows of a tile are a multiple of this, the last tile aside: bands of every encoding, and the patch groups of BF12.
pub(crate) const ROW_MULTIPLE: usize = 16;

/// Where the matrices of a record begin, counted from the record's header.
const RECORD_ALIGN: usize = 64;

/// The bytes in front of the weights. All numbers are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Header {
    /// XXH3-64 of everything behind this field up to the end of the weights; the seed is [`seed`] of the tensor's name, so
    /// that a tile in the place of another is found out.
    checksum: [u8; 8],
    magic: [u8; 4],
    rows: [u8; 4],
    cols: [u8; 4],
    /// The row of the matrix that the tile begins with, or the number of the expert.
    first: [u8; 4],
    /// Bytes behind the header.
    payload: [u8; 4],
    reserved: [u8; 4],
    /// The name of the encoding, filled up with zeros.
    encoding: [u8; 16],
    reserved_too: [u8; 16],
}

const _: () = assert!(size_of::<Header>() == 64, "the header is as docs/formats.md has it");

const MAGIC: [u8; 4] = *b"KT01";

/// Bytes that the checksum does not cover: itself.
const UNCOVERED: usize = 8;

/// How a matrix is cut into tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TileCut {
    /// Rows of every tile but the last, which may have fewer.
    pub(crate) rows: usize,
    /// Bytes from the beginning of one tile to that of the next.
    pub(crate) stride: usize,
}

/// What is wrong with a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TileProblem {
    #[error("its header is not that of the tile that belongs there")]
    Header,
    #[error("its checksum does not match its bytes")]
    Checksum,
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// What a tile must be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile {
    pub(crate) encoding: Encoding,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The first row, or the number of the expert.
    pub(crate) first: usize,
}

impl Tile {
    fn header(&self, payload: usize) -> Option<Header> {
        let number = |value: usize| Some(u32::try_from(value).ok()?.to_le_bytes());
        let mut encoding = [0; 16];
        write!(&mut encoding[..], "{}", self.encoding).ok()?;
        Some(Header {
            checksum: [0; 8],
            magic: MAGIC,
            rows: number(self.rows)?,
            cols: number(self.cols)?,
            first: number(self.first)?,
            payload: number(payload)?,
            reserved: [0; 4],
            encoding,
            reserved_too: [0; 16],
        })
    }

    /// The weights of a tile whose header is right; with `seed`, whose checksum is right too.
    pub(crate) fn payload<'a>(&self, bytes: &'a [u8], seed: Option<u64>) -> Result<&'a [u8], TileProblem> {
        let (head, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(TileProblem::Header)?;
        let found: Header = bytemuck::pod_read_unaligned(head);
        let len = u32::from_le_bytes(found.payload) as usize;
        let payload = rest.get(..len).ok_or(TileProblem::Header)?;
        let expected = Header { checksum: found.checksum, ..self.header(len).ok_or(TileProblem::Header)? };
        if found != expected {
            return Err(TileProblem::Header);
        }
        if let Some(seed) = seed
            && checksum(seed, &bytes[..HEADER_BYTES + len]) != u64::from_le_bytes(found.checksum)
        {
            return Err(TileProblem::Checksum);
        }
        Ok(payload)
    }

    /// The rows of a tile.
    pub(crate) fn view<'a>(&self, bytes: &'a [u8], seed: Option<u64>) -> Result<MatrixView<'a>, TileProblem> {
        let payload = self.payload(bytes, seed)?;
        Ok(MatrixView::new(self.encoding, [self.rows, self.cols], payload)?)
    }
}

/// The three matrices of an expert behind one header: gate and up `inner x width`, down `width x inner`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordLayout {
    encoding: Encoding,
    inner: usize,
    width: usize,
    /// Bytes of the gate, which the up matrix has too, and of the down matrix.
    gate: usize,
    down: usize,
}

impl RecordLayout {
    pub(crate) fn new(encoding: Encoding, inner: usize, width: usize) -> Result<Self, LayoutError> {
        let gate = encoding.matrix_bytes([inner, width])?;
        let down = encoding.matrix_bytes([width, inner])?;
        Ok(Self { encoding, inner, width, gate, down })
    }

    /// Where each matrix lies in the payload.
    pub(crate) fn ranges(&self) -> [std::ops::Range<usize>; 3] {
        let second = self.gate.next_multiple_of(RECORD_ALIGN);
        let third = 2 * second;
        [0..self.gate, second..second + self.gate, third..third + self.down]
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        self.ranges()[2].end
    }

    /// Bytes from one record to the next.
    pub(crate) fn stride(&self) -> usize {
        (HEADER_BYTES + self.payload_bytes()).next_multiple_of(BLOCK)
    }

    /// The tile that the record of an expert is.
    pub(crate) fn tile(&self, expert: u32) -> Tile {
        Tile { encoding: self.encoding, rows: self.inner, cols: self.width, first: expert as usize }
    }

    /// The three matrices of a record.
    pub(crate) fn views<'a>(
        &self,
        expert: u32,
        bytes: &'a [u8],
        seed: Option<u64>,
    ) -> Result<[MatrixView<'a>; 3], TileProblem> {
        let payload = self.tile(expert).payload(bytes, seed)?;
        if payload.len() != self.payload_bytes() {
            return Err(TileProblem::Header);
        }
        let [gate, up, down] = self.ranges();
        let (inner, width) = (self.inner, self.width);
        Ok([
            MatrixView::new(self.encoding, [inner, width], &payload[gate])?,
            MatrixView::new(self.encoding, [inner, width], &payload[up])?,
            MatrixView::new(self.encoding, [width, inner], &payload[down])?,
        ])
    }
}

/// Writes the header in front of a payload, which begins at [`HEADER_BYTES`]; `None` when a number does not fit its field.
pub(crate) fn seal(tile: &Tile, seed: u64, bytes: &mut [u8]) -> Option<()> {
    let header = tile.header(bytes.len() - HEADER_BYTES)?;
    bytes[..HEADER_BYTES].copy_from_slice(bytemuck::bytes_of(&header));
    let sum = checksum(seed, bytes);
    bytes[..UNCOVERED].copy_from_slice(&sum.to_le_bytes());
    Some(())
}

/// What the checksums of a tensor's tiles start from.
pub(crate) fn seed(tensor: &str) -> u64 {
    XxHash3_64::oneshot(tensor.as_bytes())
}

fn checksum(seed: u64, tile: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, &tile[UNCOVERED..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(tile: &Tile, payload: &[u8], seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.extend_from_slice(payload);
        seal(tile, seed, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn any_flipped_bit_of_a_tile_is_found() {
        let tile = Tile { encoding: Encoding::Bf16, rows: 2, cols: 3, first: 16 };
        let seed = seed("model.norm.weight");
        let bytes = sealed(&tile, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], seed);
        assert!(tile.view(&bytes, Some(seed)).is_ok());
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(tile.view(&bytes, Some(seed)).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_tile_in_the_place_of_another_is_found() {
        let tile = Tile { encoding: Encoding::Bf16, rows: 1, cols: 2, first: 0 };
        let bytes = sealed(&tile, &[0; 4], seed("a"));
        assert_eq!(tile.payload(&bytes, Some(seed("b"))), Err(TileProblem::Checksum));
        for other in [
            Tile { encoding: Encoding::F32, ..tile },
            Tile { rows: 2, ..tile },
            Tile { cols: 1, ..tile },
            Tile { first: 16, ..tile },
        ] {
            assert_eq!(other.payload(&bytes, None), Err(TileProblem::Header));
        }
        for short in 0..bytes.len() {
            assert_eq!(tile.payload(&bytes[..short], None), Err(TileProblem::Header));
        }
    }

    #[test]
    fn the_matrices_of_a_record_begin_on_cache_lines() {
        let layout = RecordLayout::new("i3:g32".parse().unwrap(), 24, 40).unwrap();
        let [gate, up, down] = layout.ranges();
        assert!(gate.start == 0 && gate.end <= up.start && up.end <= down.start);
        assert!(up.start.is_multiple_of(RECORD_ALIGN) && down.start.is_multiple_of(RECORD_ALIGN));
        assert!(layout.stride().is_multiple_of(BLOCK));
        let seed = seed("experts");
        let bytes = sealed(&layout.tile(7), &vec![0; layout.payload_bytes()], seed);
        let views = layout.views(7, &bytes, Some(seed)).unwrap();
        assert_eq!(views.map(|view| [view.rows(), view.cols()]), [[24, 40], [24, 40], [40, 24]]);
        assert_eq!(layout.views(8, &bytes, None).unwrap_err(), TileProblem::Header);
    }
}
