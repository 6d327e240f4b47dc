//! Group-wise integers in bands: `weight = scale * (code - zero)`, or `scale * codebook[code]`.
//!
//! Rows go in *bands* of 8 and columns in *blocks* of 32; a group of 32, 64 or 128 columns of one row shares a scale. The
//! missing rows of the last band and the missing columns of the last block are there, and decode to zero.
//!
//! A band is its groups in ascending order. A group is
//!
//! 1. 8 scales, one per row, BF16 or F16;
//! 2. with zero points, 8 of them: a nibble each for codes of up to 4 bits (4 bytes, the even row low), else a byte each;
//! 3. the codes of its blocks, 32 bytes per bit.
//!
//! The codes of a block are split into *planes* of 8, 4, 2 or 1 bits: I6 is a plane of its lower 4 bits and one of its upper 2,
//! I3 one of its lower 2 and one of its upper bit. A plane is registers of 32 bytes: byte `4 r + j` belongs to row `r` and, field
//! by field from the lowest bits up, to the columns `j`, `j + 4`, `j + 8`, ... of the register's share. So a shift and a mask
//! give four neighbouring columns of all eight rows, in the order in which a dot product of bytes wants them.

use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use crate::{Bf16, F16, LayoutError};

mod planes;

pub(crate) use planes::pack_block;
pub(crate) use planes::unpack;
pub use planes::{BLOCK_COLUMNS, REGISTER_BYTES};

/// Rows of a band.
pub const BAND_ROWS: usize = 8;

/// Values of a codebook.
pub const CODEBOOK_VALUES: usize = 16;

/// The levels that suit weights of a normal distribution, used where nobody gives others: in units of the scale, the levels of
/// least squared error for 16 of them, stretched to int8.
pub const NORMAL_CODEBOOK: [i8; CODEBOOK_VALUES] =
    [-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127];

/// Bits of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "kernels match on all of them")]
pub enum Bits {
    /// Two.
    I2,
    /// Three.
    I3,
    /// Four.
    I4,
    /// Six.
    I6,
    /// Eight, stored as signed bytes from -127 to 127.
    I8,
}

impl Bits {
    /// All widths.
    pub const ALL: [Self; 5] = [Self::I2, Self::I3, Self::I4, Self::I6, Self::I8];

    /// The number of bits.
    pub const fn count(self) -> usize {
        match self {
            Self::I2 => 2,
            Self::I3 => 3,
            Self::I4 => 4,
            Self::I6 => 6,
            Self::I8 => 8,
        }
    }

    /// The lowest and the highest code, as numbers.
    pub const fn range(self) -> [i32; 2] {
        match self {
            Self::I8 => [-127, 127],
            _ => [0, (1 << self.count()) - 1],
        }
    }

    /// The code of zero where there are no zero points.
    pub const fn middle(self) -> i32 {
        match self {
            Self::I8 => 0,
            _ => 1 << (self.count() - 1),
        }
    }
}

/// What a code stands for before the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "kernels match on all of them")]
pub enum Levels {
    /// `code - middle`: from `-2^(bits-1)` to `2^(bits-1) - 1`. The scale may be negative, which turns the longer side.
    Symmetric,
    /// `code - zero` with a zero point per group.
    ZeroPoint,
    /// `codebook[code]`, four bits only. The 16 signed bytes of the codebook stand before the first band.
    Codebook,
}

/// How scales are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "kernels match on all of them")]
pub enum ScaleType {
    /// bfloat16: the range of float32.
    Bf16,
    /// IEEE half precision: three more bits of precision.
    F16,
}

impl ScaleType {
    /// The nearest value that can be stored.
    pub fn round(self, value: f32) -> f32 {
        self.decode(self.encode(value))
    }

    pub(crate) fn encode(self, value: f32) -> [u8; 2] {
        match self {
            Self::Bf16 => Bf16::from_f32(value).0.to_le_bytes(),
            Self::F16 => F16::from_f32(value).0.to_le_bytes(),
        }
    }

    /// The value of two stored bytes, exactly.
    pub fn decode(self, bytes: [u8; 2]) -> f32 {
        let bits = u16::from_le_bytes(bytes);
        match self {
            Self::Bf16 => Bf16(bits).to_f32(),
            Self::F16 => F16(bits).to_f32(),
        }
    }
}

/// A format of group-wise integers.
///
/// As text it is `i4:g32`, then `:zp` or `:cb`, then `:f16` where scales are not BF16; without a group it is g128 for i8, g64 for
/// i6 and g32 for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IntFormat {
    bits: Bits,
    group_size: usize,
    levels: Levels,
    scale: ScaleType,
}

impl IntFormat {
    /// `i4:g32`: what [`int4`](crate::int4) is in bands.
    pub const INT4: Self =
        Self { bits: Bits::I4, group_size: 32, levels: Levels::Symmetric, scale: ScaleType::Bf16 };

    /// A format; `None` for a group other than 32, 64 or 128 columns, or a codebook of other than 4 bits.
    pub fn new(bits: Bits, group_size: usize, levels: Levels, scale: ScaleType) -> Option<Self> {
        let fits = matches!(group_size, 32 | 64 | 128) && (levels != Levels::Codebook || bits == Bits::I4);
        fits.then_some(Self { bits, group_size, levels, scale })
    }

    /// Bits of a code.
    pub const fn bits(self) -> Bits {
        self.bits
    }

    /// Columns that share a scale.
    pub const fn group_size(self) -> usize {
        self.group_size
    }

    /// What codes stand for.
    pub const fn levels(self) -> Levels {
        self.levels
    }

    /// How scales are stored.
    pub const fn scale(self) -> ScaleType {
        self.scale
    }

    /// Bytes of the zero points of one group of a band.
    pub const fn zero_bytes(self) -> usize {
        match (self.levels, self.bits) {
            (Levels::ZeroPoint, Bits::I2 | Bits::I3 | Bits::I4) => BAND_ROWS / 2,
            (Levels::ZeroPoint, Bits::I6 | Bits::I8) => BAND_ROWS,
            _ => 0,
        }
    }

    /// Bytes before the codes of a group of a band: scales and zero points.
    pub const fn group_header(self) -> usize {
        2 * BAND_ROWS + self.zero_bytes()
    }

    /// Bytes of the codes of a block.
    pub const fn block_bytes(self) -> usize {
        REGISTER_BYTES * self.bits.count()
    }

    /// Bytes of a band of `cols` columns; `None` where no address space holds them.
    pub fn band_bytes(self, cols: usize) -> Option<usize> {
        let (groups, blocks) = (cols.div_ceil(self.group_size), cols.div_ceil(BLOCK_COLUMNS));
        groups.checked_mul(self.group_header())?.checked_add(blocks.checked_mul(self.block_bytes())?)
    }

    /// Bytes before the first band.
    pub const fn prefix_bytes(self) -> usize {
        if matches!(self.levels, Levels::Codebook) { CODEBOOK_VALUES } else { 0 }
    }

    /// Bytes of a matrix.
    ///
    /// # Errors
    /// [`LayoutError::TooLarge`].
    pub fn matrix_bytes(self, [rows, cols]: [usize; 2]) -> Result<usize, LayoutError> {
        let bands = self.band_bytes(cols).and_then(|band| band.checked_mul(rows.div_ceil(BAND_ROWS)));
        bands
            .and_then(|bands| bands.checked_add(self.prefix_bytes()))
            .ok_or(LayoutError::TooLarge { rows, cols })
    }

    /// Bits per weight of a large matrix.
    pub fn bits_per_weight(self) -> f64 {
        let header = self.group_header() as f64 * 8.0 / (BAND_ROWS * self.group_size) as f64;
        self.bits.count() as f64 + header
    }
}

impl fmt::Display for IntFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "i{}:g{}", self.bits.count(), self.group_size)?;
        f.write_str(match self.levels {
            Levels::Symmetric => "",
            Levels::ZeroPoint => ":zp",
            Levels::Codebook => ":cb",
        })?;
        f.write_str(if self.scale == ScaleType::F16 { ":f16" } else { "" })
    }
}

/// A text that names no [`IntFormat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownFormat;

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a format is i8, i6, i4, i3 or i2, then :g32, :g64 or :g128, then :zp or (i4 only) :cb, then :f16 for F16 scales")
    }
}

impl core::error::Error for UnknownFormat {}

impl FromStr for IntFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        let mut parts = text.split(':').peekable();
        let (bits, default_group) = match parts.next() {
            Some("i8") => (Bits::I8, 128),
            Some("i6") => (Bits::I6, 64),
            Some("i4") => (Bits::I4, 32),
            Some("i3") => (Bits::I3, 32),
            Some("i2") => (Bits::I2, 32),
            _ => return Err(UnknownFormat),
        };
        let group_size = match parts.next_if(|part| part.starts_with('g')) {
            Some(group) => group[1..].parse().map_err(|_| UnknownFormat)?,
            None => default_group,
        };
        let levels = match parts.next_if(|&part| part == "zp" || part == "cb") {
            Some("zp") => Levels::ZeroPoint,
            Some(_) => Levels::Codebook,
            None => Levels::Symmetric,
        };
        let scale = if parts.next_if_eq(&"f16").is_some() { ScaleType::F16 } else { ScaleType::Bf16 };
        match parts.next() {
            None => Self::new(bits, group_size, levels, scale).ok_or(UnknownFormat),
            Some(_) => Err(UnknownFormat),
        }
    }
}

/// A `rows x cols` matrix of group-wise integers over borrowed bytes.
#[derive(Debug, Clone, Copy)]
pub struct IntView<'a> {
    rows: usize,
    cols: usize,
    format: IntFormat,
    codebook: [i8; CODEBOOK_VALUES],
    bands: &'a [u8],
}

impl<'a> IntView<'a> {
    /// # Errors
    /// [`LayoutError`] when `bytes` is not exactly [`IntFormat::matrix_bytes`] long.
    pub fn new(shape: [usize; 2], format: IntFormat, bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let expected = format.matrix_bytes(shape)?;
        if bytes.len() != expected {
            return Err(LayoutError::Length { plane: "weights", expected, found: bytes.len() });
        }
        let (prefix, bands) = bytes.split_at(format.prefix_bytes());
        let mut codebook = [0; CODEBOOK_VALUES];
        codebook.iter_mut().zip(prefix).for_each(|(level, &byte)| *level = byte as i8);
        Ok(Self { rows: shape[0], cols: shape[1], format, codebook, bands })
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The format.
    pub fn format(&self) -> IntFormat {
        self.format
    }

    /// The levels of a codebook; zeros in other formats.
    pub fn codebook(&self) -> &[i8; CODEBOOK_VALUES] {
        &self.codebook
    }

    fn band_bytes(&self) -> usize {
        self.format.band_bytes(self.cols).expect("checked when the view was made")
    }

    /// The bytes of a band.
    ///
    /// # Panics
    /// If there is no such band.
    pub fn band(&self, band: usize) -> &'a [u8] {
        let bytes = self.band_bytes();
        &self.bands[band * bytes..][..bytes]
    }

    /// The matrix of the given rows, which begin with a band.
    ///
    /// # Panics
    /// If the range ends beyond [`rows`](Self::rows), or begins inside a band, or ends inside one that has more rows.
    #[must_use]
    pub fn slice_rows(&self, rows: Range<usize>) -> Self {
        let whole = |row: usize| row.is_multiple_of(BAND_ROWS) || row == self.rows;
        assert!(rows.end <= self.rows && whole(rows.start) && whole(rows.end), "rows are cut between bands");
        let bytes = self.band_bytes();
        let bands = rows.start.div_ceil(BAND_ROWS) * bytes..rows.end.div_ceil(BAND_ROWS) * bytes;
        Self { rows: rows.len(), bands: self.bands.get(bands).unwrap_or_default(), ..*self }
    }

    /// Writes the values of one row to `out`. Each is the exact product of a small integer and a scale of at most 11 bits.
    ///
    /// # Panics
    /// If `row` is out of range or `out` does not hold [`cols`](Self::cols) values.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "one output per column of a row that exists");
        let (format, r) = (self.format, row % BAND_ROWS);
        let mut rest = self.band(row / BAND_ROWS);
        for out in out.chunks_mut(format.group_size) {
            let (header, after) = rest.split_at(format.group_header());
            let (scale, zero) = (self.scale(header, r), self.zero(header, r));
            rest = after;
            for out in out.chunks_mut(BLOCK_COLUMNS) {
                let (block, after) = rest.split_at(format.block_bytes());
                rest = after;
                for (c, value) in out.iter_mut().enumerate() {
                    *value = self.level(unpack(format.bits, block, r, c), zero) as f32 * scale;
                }
            }
        }
    }

    /// The integers of one row and the scale of each group.
    ///
    /// # Panics
    /// If `row` is out of range or the slices do not hold one level per column and one scale per group.
    pub fn decode_levels(&self, row: usize, levels: &mut [i32], scales: &mut [f32]) {
        let (format, r) = (self.format, row % BAND_ROWS);
        assert!(row < self.rows && levels.len() == self.cols, "one level per column of a row that exists");
        assert_eq!(scales.len(), self.cols.div_ceil(format.group_size), "one scale per group");
        let mut rest = self.band(row / BAND_ROWS);
        for (levels, scale) in levels.chunks_mut(format.group_size).zip(scales) {
            let (header, after) = rest.split_at(format.group_header());
            *scale = self.scale(header, r);
            let zero = self.zero(header, r);
            rest = after;
            for levels in levels.chunks_mut(BLOCK_COLUMNS) {
                let (block, after) = rest.split_at(format.block_bytes());
                rest = after;
                for (c, level) in levels.iter_mut().enumerate() {
                    *level = self.level(unpack(format.bits, block, r, c), zero);
                }
            }
        }
    }

    /// The scale of row `r` of a band, given the header of a group.
    pub fn scale(&self, header: &[u8], r: usize) -> f32 {
        self.format.scale.decode([header[2 * r], header[2 * r + 1]])
    }

    /// The zero point of row `r` of a band, given the header of a group; the middle where there are none.
    pub fn zero(&self, header: &[u8], r: usize) -> i32 {
        let zeros = &header[2 * BAND_ROWS..];
        match (self.format.levels, self.format.bits) {
            (Levels::ZeroPoint, Bits::I8) => i32::from(zeros[r] as i8),
            (Levels::ZeroPoint, Bits::I6) => i32::from(zeros[r]),
            (Levels::ZeroPoint, _) => i32::from(zeros[r / 2] >> (r % 2 * 4) & 15),
            _ => self.format.bits.middle(),
        }
    }

    /// What a code stands for before the scale.
    fn level(&self, code: i32, zero: i32) -> i32 {
        match self.format.levels {
            Levels::Codebook => i32::from(self.codebook[code as usize]),
            _ => code - zero,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
