//! Kernels written once over eight lanes, compiled for every instruction set.
//!
//! [`Vector`] names the register operations that the kernels need; the modules below are generic over it, and every
//! function in them is inlined into one entry per instruction set, where the processor's features are enabled. So an
//! instruction set is one implementation of this trait, and a kernel is one piece of source.

pub(crate) mod bands;
pub(crate) mod dense;
pub(crate) mod gemm;
pub(crate) mod mxfp4;
pub(crate) mod tiles;

use kimi_quant::bf12::{self, Bf12Row};
use kimi_quant::int::{BAND_ROWS, BLOCK_COLUMNS, REGISTER_BYTES};
use kimi_quant::mxfp4::GROUP_SIZE;
use kimi_quant::{Bf16, DenseView, MatrixView};

use crate::Columns;
use crate::integer::IntegerColumns;
use crate::reference::LANES;

/// Eight float32 values in memory: one step of the virtual lanes.
pub(crate) type Vec8 = [f32; LANES];

/// Registers of a block of a band: eight times four columns.
pub(crate) const REGISTERS: usize = BLOCK_COLUMNS / 4;

/// Columns that a [`Vector::Wide`] holds.
pub(crate) const WIDE: usize = 16;

/// Register operations of one instruction set. A value is proof that the processor has it.
///
/// All arithmetic is IEEE 754 in float32, one rounding per operation, so results do not depend on the implementation.
pub(crate) trait Vector: Copy {
    /// Eight float32 values, element `j` being virtual lane `j`.
    type F: Copy;
    /// 32 bytes, or eight 32-bit integers: what eight rows have in common.
    type I: Copy;
    /// Sixteen float32 values.
    type Wide: Copy;
    /// Registers that multiply tiles of bytes.
    type Tiles: tiles::Tiles;

    fn zero(self) -> Self::F;
    fn load(self, values: &Vec8) -> Self::F;
    /// Eight stored float32 values.
    fn load_f32(self, bytes: &[u8; 32]) -> Self::F;
    /// Eight stored BF16 values.
    fn load_bf16(self, bytes: &[u8; 16]) -> Self::F;
    fn store(self, values: Self::F) -> Vec8;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// [`fold`](crate::reference::fold).
    fn fold(self, lanes: Self::F) -> f32;

    fn splat(self, value: f32) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;

    /// A register of a plane: four bytes of each of eight rows.
    fn load_bytes(self, bytes: &[u8; REGISTER_BYTES]) -> Self::I;
    fn store_bytes(self, register: Self::I) -> [u8; REGISTER_BYTES];
    fn int_zero(self) -> Self::I;
    /// Each byte shifted down, and what `mask` leaves of it. The mask must clear what comes from a neighbour.
    fn field<const SHIFT: i32>(self, bytes: Self::I, mask: u8) -> Self::I;
    /// `low | high << SHIFT` in each byte, where no bit leaves its byte.
    fn join<const SHIFT: i32>(self, low: Self::I, high: Self::I) -> Self::I;
    /// Bytes of a table by indices below 16.
    fn lookup(self, table: &[i8; 16], indices: Self::I) -> Self::I;
    /// Adds to each row's sum its four bytes, unsigned and below 64, times four activations above -128.
    fn dot_unsigned(self, sums: Self::I, w: Self::I, x: [i8; 4]) -> Self::I;
    /// The same for signed bytes above -128.
    fn dot_signed(self, sums: Self::I, w: Self::I, x: [i8; 4]) -> Self::I;
    /// Adds to each column's sums the products of a block of a band with its 32 activations: `SIGNED` tells which of the two.
    #[inline(always)]
    fn dots<const SIGNED: bool, const C: usize>(
        self,
        mut sums: [Self::I; C],
        w: &[Self::I; REGISTERS],
        x: [&[[i8; 4]; REGISTERS]; C],
    ) -> [Self::I; C] {
        for (t, &w) in w.iter().enumerate() {
            for c in 0..C {
                sums[c] = if SIGNED {
                    self.dot_signed(sums[c], w, x[c][t])
                } else {
                    self.dot_unsigned(sums[c], w, x[c][t])
                };
            }
        }
        sums
    }
    /// `sums - zeros * factor` as 32-bit integers.
    fn subtract_product(self, sums: Self::I, zeros: [i32; 8], factor: i32) -> Self::I;
    /// 32-bit integers as float32, rounded to nearest.
    fn to_f32(self, values: Self::I) -> Self::F;
    /// Byte `J` of each row as a signed 32-bit integer.
    fn byte<const J: usize>(self, bytes: Self::I) -> Self::I;
    /// The difference of 32-bit integers.
    fn subtract(self, a: Self::I, b: [i32; 8]) -> Self::I;

    fn wide_zero(self) -> Self::Wide;
    fn wide_load(self, values: &[f32; WIDE]) -> Self::Wide;
    fn wide_store(self, values: Self::Wide) -> [f32; WIDE];
    /// `a * b + c` with one value for all columns in `a`.
    fn wide_fma(self, a: f32, b: Self::Wide, c: Self::Wide) -> Self::Wide;

    /// The tile registers, where there are some and so many columns fill them.
    fn tiles(self, count: usize) -> Option<Self::Tiles>;

    /// The 32 weights of a BF12 block before its patches, eight to a register; `table` holds the exponent of each index.
    fn bf12(self, signs: &[u8; 32], exponents: &[u8; 16], table: &[u8; 16]) -> [Self::F; 4];

    /// The 32 weights of an MXFP4 group, whose byte `b` holds column `2b` in its low nibble: eight to a register.
    fn mxfp4(self, codes: &[u8; GROUP_SIZE / 2], scale: f32) -> [Self::F; GROUP_SIZE / LANES];
}

/// The products of a matrix with columns; lengths were checked, `y` is not empty.
#[inline(always)]
pub(crate) fn matmul<V: Vector>(v: V, w: MatrixView<'_>, x: Columns<'_>, y: &mut [f32], scratch: &mut [f32]) {
    match (x.packed, w) {
        (Some(packed), _) => gemm::gemm(v, w, packed, x.count, y, scratch),
        (None, MatrixView::F32(w)) => dense::gemv::<V, dense::F32>(v, w, x, y),
        (None, MatrixView::Bf16(w)) => dense::gemv::<V, dense::Bf16>(v, w, x, y),
        (None, MatrixView::Mxfp4(w)) => mxfp4::gemv(v, w, x, y),
        (None, _) => {
            if !bands::exact(v, w, x, y, scratch) {
                decoded(v, w, x, y, scratch);
            }
        }
    }
}

/// The integer product; shapes and groups were checked, `y` is not empty.
#[inline(always)]
pub(crate) fn integer<V: Vector>(v: V, w: MatrixView<'_>, x: IntegerColumns<'_>, y: &mut [f32]) {
    bands::integer(v, v.tiles(x.count()), w, x, y);
}

/// Any other encoding: a few rows are decoded, and multiplied as plain ones.
#[inline(always)]
fn decoded<V: Vector>(v: V, w: MatrixView<'_>, x: Columns<'_>, y: &mut [f32], scratch: &mut [f32]) {
    let cols = w.cols();
    for (index, y) in y.chunks_mut(BAND_ROWS * x.count).enumerate() {
        let rows = y.len() / x.count;
        let values = &mut scratch[..rows * cols];
        for r in 0..rows {
            decode_row(v, w, index * BAND_ROWS + r, &mut values[r * cols..][..cols]);
        }
        // All processors with kernels here are little-endian.
        let plain = DenseView::new([rows, cols], bytemuck::cast_slice(values)).expect("rows of that length");
        dense::gemv::<V, dense::F32>(v, plain, x, y);
    }
}

/// The values of one row.
#[inline(always)]
pub(crate) fn decode_row<V: Vector>(v: V, w: MatrixView<'_>, row: usize, out: &mut [f32]) {
    match w {
        MatrixView::Mxfp4(w) => mxfp4::decode_row(v, w.row(row), out),
        MatrixView::Bf12(w) => bf12(v, w.row(row), out),
        // The loop over plain elements vectorises as it stands.
        _ => w.decode_row(row, out),
    }
}

/// The values of a BF12 row.
#[inline(always)]
fn bf12<V: Vector>(v: V, row: Bf12Row<'_>, out: &mut [f32]) {
    let table = row.exponent_table();
    let blocks = row.signs.iter().zip(row.exponents);
    for ((signs, exponents), out) in blocks.zip(out.chunks_mut(bf12::BLOCK_COLUMNS)) {
        let weights = v.bf12(signs, exponents, &table);
        let mut block = [[0.0; LANES]; 4];
        for (values, register) in block.iter_mut().zip(weights) {
            *values = v.store(register);
        }
        out.copy_from_slice(&block.as_flattened()[..out.len()]);
    }
    for &patch in row.patches {
        let (_, col, bits) = bf12::patch_parts(patch);
        out[col] = Bf16(bits).to_f32();
    }
}

/// The first values of a column, in whole steps, and the rest padded with zeros.
#[inline(always)]
fn steps(column: &[f32]) -> (&[Vec8], Vec8) {
    let (whole, rest) = column.as_chunks();
    let mut padded = [0.0; LANES];
    padded[..rest.len()].copy_from_slice(rest);
    (whole, padded)
}

/// Walks a product of few columns in register blocks: `block!(R, C, first_row, first_column)` for each.
///
/// Columns go by four, the rest by its number; `$r1` to `$r4` are the rows of a block of one to four columns.
macro_rules! in_blocks {
    ($rows:expr, $columns:expr, [$r1:literal, $r2:literal, $r3:literal, $r4:literal], $block:ident) => {{
        let (rows, columns): (usize, usize) = ($rows, $columns);
        let mut c = 0;
        while c < columns {
            macro_rules! all_rows {
                ($r:literal, $c:literal) => {{
                    let mut r = 0;
                    while r + $r <= rows {
                        $block!($r, $c, r, c);
                        r += $r;
                    }
                    while r < rows {
                        $block!(1, $c, r, c);
                        r += 1;
                    }
                    c += $c;
                }};
            }
            match columns - c {
                1 => all_rows!($r1, 1),
                2 => all_rows!($r2, 2),
                3 => all_rows!($r3, 3),
                _ => all_rows!($r4, 4),
            }
        }
    }};
}
use in_blocks;
