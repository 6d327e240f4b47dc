//! Products of bands with sixteen columns at once, for processors that multiply tiles of bytes.
//!
//! A tile of weights has four columns of K of sixteen rows in a line: what two bands hold side by side. A tile of activations is
//! sixteen columns as they lie in memory, and one instruction multiplies them over 32 or 64 of K. The sums of a group
//! come back as integers and meet their scales as everywhere else.

use bytemuck::must_cast_ref;
use kimi_quant::int::{BAND_ROWS, BLOCK_COLUMNS, REGISTER_BYTES};

use super::bands::Bands;
use super::{REGISTERS, Vector};
use crate::integer::IntegerColumns;

/// Columns of activations in a tile.
pub(crate) const TILE_COLUMNS: usize = 16;

/// Bands in a tile.
const TILE_BANDS: usize = 2;

/// Columns that share one unpacking of weights.
const SHARING: usize = 4 * TILE_COLUMNS;

/// Blocks of the largest group.
const GROUP_BLOCKS: usize = 4;

/// Four columns of K of the rows of two bands.
pub(crate) type Line = [[u8; REGISTER_BYTES]; TILE_BANDS];

/// A sum for each row of two bands, for each column of activations.
pub(crate) type Sums = [[[i32; BAND_ROWS]; TILE_BANDS]; TILE_COLUMNS];

/// Tile registers: one of sums, and a pair of operands for one block and for two blocks at once.
#[cfg(any(test, target_arch = "x86_64"))]
pub(crate) mod registers {
    use super::{Line, REGISTERS, TILE_COLUMNS};

    pub(crate) const SUMS: usize = 0;
    /// Activations and weights of one block.
    pub(crate) const BLOCK: [usize; 2] = [1, 2];
    /// Those of two blocks.
    pub(crate) const PAIR: [usize; 2] = [3, 4];

    /// What `ldtilecfg` reads (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18): palette 1, the
    /// bytes of a line of each tile as 16 bits from byte 16 on, their lines from byte 48 on.
    pub(crate) const CONFIG: [u8; 64] = {
        let mut config = [0; 64];
        config[0] = 1;
        let line = size_of::<Line>() as u8;
        let shapes = [
            (SUMS, line, TILE_COLUMNS),
            (BLOCK[0], line / 2, TILE_COLUMNS),
            (BLOCK[1], line, REGISTERS),
            (PAIR[0], line, TILE_COLUMNS),
            (PAIR[1], line, 2 * REGISTERS),
        ];
        let mut i = 0;
        while i < shapes.len() {
            let (tile, bytes, lines) = shapes[i];
            config[16 + 2 * tile] = bytes;
            config[48 + tile] = lines as u8;
            i += 1;
        }
        config
    };
}

/// The tile registers of a processor, configured.
pub(crate) trait Tiles {
    /// Sets the sums to zero.
    fn zero(&mut self);
    /// Adds the products of one block with sixteen columns that lie `stride` bytes apart in `x`.
    fn block(&mut self, x: &[i8], stride: usize, w: &[Line; REGISTERS]);
    /// The same for two blocks.
    fn pair(&mut self, x: &[i8], stride: usize, w: &[Line; 2 * REGISTERS]);
    /// Reads the sums.
    fn store(&mut self, sums: &mut Sums);
}

/// What a processor without tiles has; there is no value of it.
#[derive(Debug)]
pub(crate) enum NoTiles {}

impl Tiles for NoTiles {
    fn zero(&mut self) {
        match *self {}
    }

    fn block(&mut self, _: &[i8], _: usize, _: &[Line; REGISTERS]) {
        match *self {}
    }

    fn pair(&mut self, _: &[i8], _: usize, _: &[Line; 2 * REGISTERS]) {
        match *self {}
    }

    fn store(&mut self, _: &mut Sums) {
        match *self {}
    }
}

/// The products of all bands with the columns that fill tiles; returns how many these are.
#[inline(always)]
pub(super) fn integer<V: Vector, B: Bands, T: Tiles>(
    v: V,
    tiles: &mut T,
    w: B,
    x: IntegerColumns<'_>,
    y: &mut [f32],
) -> usize {
    let whole = x.count() / TILE_COLUMNS * TILE_COLUMNS;
    for first in (0..whole).step_by(SHARING) {
        let columns = SHARING.min(whole - first);
        for (index, y) in y.chunks_mut(TILE_BANDS * BAND_ROWS * x.count()).enumerate() {
            let mut totals = [[v.zero(); TILE_BANDS]; SHARING];
            let bands = y.len().div_ceil(BAND_ROWS * x.count());
            sum_groups(v, tiles, w, [TILE_BANDS * index, bands], x, first, &mut totals[..columns]);
            for (side, y) in y.chunks_mut(BAND_ROWS * x.count()).enumerate() {
                for (c, totals) in totals[..columns].iter().enumerate() {
                    for (y, total) in y.chunks_exact_mut(x.count()).zip(v.store(totals[side])) {
                        y[first + c] = total;
                    }
                }
            }
        }
    }
    whole
}

/// The totals of one or two bands (the first, and how many) for columns from the first one on.
#[inline(always)]
fn sum_groups<V: Vector, B: Bands, T: Tiles>(
    v: V,
    tiles: &mut T,
    w: B,
    [band, bands]: [usize; 2],
    x: IntegerColumns<'_>,
    first: usize,
    totals: &mut [[V::F; TILE_BANDS]],
) {
    let ([header_bytes, block_bytes], group_blocks) = (w.group_layout(), w.group_size() / BLOCK_COLUMNS);
    let blocks = w.cols().div_ceil(BLOCK_COLUMNS);
    let mut rest = [&[][..]; TILE_BANDS];
    for (side, rest) in rest[..bands].iter_mut().enumerate() {
        *rest = w.band(band + side);
    }
    // The side of a missing band stays zero.
    let mut lines: [Line; GROUP_BLOCKS * REGISTERS] = [[[0; REGISTER_BYTES]; TILE_BANDS]; _];
    let mut sums: Sums = [[[0; BAND_ROWS]; TILE_BANDS]; TILE_COLUMNS];
    for (group, start) in (0..blocks).step_by(group_blocks).enumerate() {
        let width = group_blocks.min(blocks - start);
        let mut weight_scales = [v.zero(); TILE_BANDS];
        let mut zeros = [None; TILE_BANDS];
        for (side, rest) in rest[..bands].iter_mut().enumerate() {
            let (header, after) = rest.split_at(header_bytes);
            let scales;
            (scales, zeros[side]) = w.header(header);
            weight_scales[side] = v.load(&scales);
            let (bytes, after) = after.split_at(width * block_bytes);
            *rest = after;
            for (bytes, lines) in bytes.chunks_exact(block_bytes).zip(lines.as_chunks_mut::<REGISTERS>().0) {
                for (line, register) in lines.iter_mut().zip(w.unpack(v, bytes)) {
                    line[side] = v.store_bytes(register);
                }
            }
        }
        for (tile, totals) in totals.chunks_exact_mut(TILE_COLUMNS).enumerate() {
            let column = first + tile * TILE_COLUMNS;
            tiles.zero();
            let (pairs, last) = lines[..width * REGISTERS].as_chunks::<{ 2 * REGISTERS }>();
            for (i, pair) in pairs.iter().enumerate() {
                let (codes, stride) = x.codes_from(column, start + 2 * i);
                tiles.pair(codes, stride, pair);
            }
            if let Some(block) = last.first_chunk() {
                let (codes, stride) = x.codes_from(column, start + width - 1);
                tiles.block(codes, stride, block);
            }
            tiles.store(&mut sums);
            for (c, (totals, sums)) in totals.iter_mut().zip(&sums).enumerate() {
                let (_, scales, code_sums) = x.column(column + c);
                for side in 0..bands {
                    let mut dots = v.load_bytes(must_cast_ref(&sums[side]));
                    if let Some(zeros) = zeros[side] {
                        dots = v.subtract_product(dots, zeros, code_sums[group]);
                    }
                    let factors = v.mul(weight_scales[side], v.splat(scales[group]));
                    totals[side] = v.fma(v.to_f32(dots), factors, totals[side]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::must_cast;
    use kimi_quant::mxfp4::{Mxfp4BandsView, Mxfp4View, to_bands};
    use kimi_quant::quantize::Quantizer;
    use kimi_quant::{IntFormat, IntView, MatrixView};
    use kimi_testing::{Seeded, same_bits};

    use super::*;
    use crate::dispatch::dispatch;
    use crate::vector::bands;
    use crate::{IntegerBuffers, Kernels, Threads, reference};

    /// The instructions in plain loops: eight registers of sixteen lines of 64 bytes, shaped by the configuration.
    struct Model {
        tiles: [[[i8; 64]; 16]; 8],
        multiplied: usize,
    }

    fn shape(tile: usize) -> [usize; 2] {
        let config = &registers::CONFIG;
        let [lines, bytes] = [
            config[48 + tile].into(),
            u16::from_le_bytes([config[16 + 2 * tile], config[17 + 2 * tile]]).into(),
        ];
        assert!((1..=16).contains(&lines) && (1..=64).contains(&bytes) && bytes % 4 == 0);
        [lines, bytes]
    }

    impl Model {
        fn new() -> Self {
            assert_eq!(registers::CONFIG[0], 1, "the palette");
            assert!(registers::CONFIG[1..16].iter().all(|&byte| byte == 0), "reserved");
            Self { tiles: [[[0; 64]; 16]; 8], multiplied: 0 }
        }

        fn tileloadd(&mut self, tile: usize, memory: &[i8], stride: usize) {
            let [lines, bytes] = shape(tile);
            self.tiles[tile] = [[0; 64]; 16];
            for (r, line) in self.tiles[tile][..lines].iter_mut().enumerate() {
                line[..bytes].copy_from_slice(&memory[r * stride..][..bytes]);
            }
        }

        fn tdpbssd(&mut self, c: usize, a: usize, b: usize) {
            let ([m, n], [a_lines, a_bytes], [b_lines, b_bytes]) = (shape(c), shape(a), shape(b));
            assert_eq!([a_lines, b_lines, b_bytes], [m, a_bytes / 4, n], "a general protection fault");
            for row in 0..m {
                let mut sums: [i32; 16] = must_cast(self.tiles[c][row]);
                for (k, x) in self.tiles[a][row][..a_bytes].as_chunks::<4>().0.iter().enumerate() {
                    for (sum, w) in sums[..n / 4].iter_mut().zip(self.tiles[b][k].as_chunks::<4>().0) {
                        *sum += x.iter().zip(w).map(|(&x, &w)| i32::from(x) * i32::from(w)).sum::<i32>();
                    }
                }
                self.tiles[c][row] = must_cast(sums);
            }
            self.multiplied += 1;
        }

        fn product(&mut self, [a, b]: [usize; 2], x: &[i8], stride: usize, w: &[Line]) {
            self.tileloadd(a, x, stride);
            self.tileloadd(b, bytemuck::cast_slice(w), size_of::<Line>());
            self.tdpbssd(registers::SUMS, a, b);
        }
    }

    impl Tiles for &mut Model {
        fn zero(&mut self) {
            self.tiles[registers::SUMS] = [[0; 64]; 16];
        }

        fn block(&mut self, x: &[i8], stride: usize, w: &[Line; REGISTERS]) {
            self.product(registers::BLOCK, x, stride, w);
        }

        fn pair(&mut self, x: &[i8], stride: usize, w: &[Line; 2 * REGISTERS]) {
            self.product(registers::PAIR, x, stride, w);
        }

        fn store(&mut self, sums: &mut Sums) {
            assert_eq!(shape(registers::SUMS), [16, 64]);
            *sums = must_cast(self.tiles[registers::SUMS]);
        }
    }

    /// The product through the model, and how often it multiplied tiles, against the reference.
    fn check(w: MatrixView<'_>, count: usize, seeded: &mut Seeded) -> usize {
        let (rows, cols) = (w.rows(), w.cols());
        let x = seeded.normals(count * cols, 1.0);
        let (threads, mut buffers) = (Threads::new(1).unwrap(), IntegerBuffers::default());
        let columns = buffers.quantize(&threads, &x, cols, w.integer_group().unwrap()).unwrap();
        let mut expected = vec![f32::NAN; rows * count];
        for c in 0..count {
            let (codes, scales, _) = columns.column(c);
            let mut column = vec![f32::NAN; rows];
            reference::gemv_integer(w, &codes.as_flattened()[..cols], scales, &mut column);
            expected.iter_mut().skip(c).step_by(count).zip(column).for_each(|(y, value)| *y = value);
        }
        let (mut model, mut y) = (Model::new(), vec![f32::NAN; rows * count]);
        dispatch!(
            Kernels::detect().backend,
            scalar => panic!("the registers around the tiles need AVX2 or NEON"),
            token => bands::integer(token, Some(&mut model), w, columns, &mut y)
        );
        assert!(same_bits(&y, &expected), "{rows}x{cols} x{count}");
        model.multiplied
    }

    #[test]
    fn products_through_a_model_of_the_tiles_equal_the_reference() {
        let mut seeded = Seeded::new(5);
        let names = [
            "i8:g128",
            "i8:g64:zp",
            "i6:g32:zp:f16",
            "i4:g32",
            "i4:g128:zp",
            "i4:g64:cb:f16",
            "i3:g32",
            "i2:g64",
        ];
        for name in names {
            let format: IntFormat = name.parse().unwrap();
            // Whole and broken pairs of bands; whole, broken and odd groups; none, some and more than `SHARING` columns in tiles.
            for [rows, cols, count] in [[16, 256, 16], [5, 31, 17], [27, 161, 35], [9, 320, 83], [16, 96, 15]]
            {
                let weights = seeded.normals(rows * cols, 1.0);
                let bytes = Quantizer::new(format).quantize([rows, cols], &weights).unwrap();
                let w = IntView::new([rows, cols], format, &bytes).unwrap().into();
                let multiplied = check(w, count, &mut seeded);
                let blocks = cols.div_ceil(32);
                let group = format.group_size() / 32;
                let steps: usize =
                    (0..blocks).step_by(group).map(|start| group.min(blocks - start).div_ceil(2)).sum();
                assert_eq!(multiplied, rows.div_ceil(16) * (count / 16) * steps, "{name}: tiles multiplied");
            }
        }
    }

    #[test]
    fn products_of_mxfp4_through_the_model_equal_the_reference() {
        let mut seeded = Seeded::new(6);
        for [rows, cols, count] in [[16, 64, 16], [13, 160, 33]] {
            let codes = seeded.bytes(rows * cols / 2);
            let scales: Vec<u8> = (0..rows * cols / 32).map(|_| seeded.below(160) as u8).collect();
            let bytes = to_bands(Mxfp4View::new([rows, cols], &codes, &scales).unwrap());
            let w = Mxfp4BandsView::new([rows, cols], &bytes).unwrap().into();
            assert_eq!(check(w, count, &mut seeded), rows.div_ceil(16) * (count / 16) * (cols / 32));
        }
    }
}
