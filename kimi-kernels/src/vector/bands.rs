//! Matrices in bands of eight rows: a register holds four columns of all rows, so rows run along the lanes and no sum crosses
//! them.

use kimi_quant::int::{BAND_ROWS, BLOCK_COLUMNS, Bits, Levels, REGISTER_BYTES, ScaleType};
use kimi_quant::mxfp4::{BAND_GROUP_BYTES, E2M1_DOUBLED, Mxfp4BandsView};
use kimi_quant::{E8m0, IntView, MatrixView};

use super::tiles::{self, Tiles};
use super::{REGISTERS, Vector};
use crate::Columns;
use crate::integer::IntegerColumns;
use crate::reference::LANES;

/// A matrix in bands, its kind of code known at compile time.
pub(super) trait Bands: Copy {
    /// Levels come as signed bytes, which need no zero point unless there is one.
    const SIGNED: bool;

    fn cols(&self) -> usize;
    fn group_size(&self) -> usize;
    fn band(&self, band: usize) -> &[u8];
    /// Bytes before the codes of a group, and bytes of the codes of a block.
    fn group_layout(&self) -> [usize; 2];
    /// The scale and zero point of each row; `None` where levels need no correction.
    fn header(&self, header: &[u8]) -> ([f32; BAND_ROWS], Option<[i32; BAND_ROWS]>);
    /// The levels of a block, or its codes where there are zero points: four columns to a register.
    fn unpack<V: Vector>(&self, v: V, block: &[u8]) -> [V::I; REGISTERS];
}

/// Group-wise integers of one width, or with a [`CODEBOOK`].
#[derive(Clone, Copy)]
struct Integers<'a, const BITS: usize>(IntView<'a>);

/// Stands for four bits that select from a codebook.
const CODEBOOK: usize = 0;

/// MXFP4.
#[derive(Clone, Copy)]
struct Mxfp4<'a>(Mxfp4BandsView<'a>);

#[inline(always)]
fn register<V: Vector>(v: V, plane: &[u8], t: usize) -> V::I {
    v.load_bytes(&plane.as_chunks::<REGISTER_BYTES>().0[t])
}

/// Eight registers of nibbles.
#[inline(always)]
fn nibbles<V: Vector>(v: V, plane: &[u8]) -> [V::I; REGISTERS] {
    let mut out = [v.int_zero(); REGISTERS];
    for t in 0..4 {
        let register = register(v, plane, t);
        out[2 * t] = v.field::<0>(register, 15);
        out[2 * t + 1] = v.field::<4>(register, 15);
    }
    out
}

/// Eight registers of two bits.
#[inline(always)]
fn pairs<V: Vector>(v: V, plane: &[u8]) -> [V::I; REGISTERS] {
    let mut out = [v.int_zero(); REGISTERS];
    for t in 0..2 {
        let register = register(v, plane, t);
        out[4 * t] = v.field::<0>(register, 3);
        out[4 * t + 1] = v.field::<2>(register, 3);
        out[4 * t + 2] = v.field::<4>(register, 3);
        out[4 * t + 3] = v.field::<6>(register, 3);
    }
    out
}

/// Eight registers of single bits.
#[inline(always)]
fn bits<V: Vector>(v: V, plane: &[u8]) -> [V::I; REGISTERS] {
    let r = register(v, plane, 0);
    [
        v.field::<0>(r, 1),
        v.field::<1>(r, 1),
        v.field::<2>(r, 1),
        v.field::<3>(r, 1),
        v.field::<4>(r, 1),
        v.field::<5>(r, 1),
        v.field::<6>(r, 1),
        v.field::<7>(r, 1),
    ]
}

impl<const BITS: usize> Bands for Integers<'_, BITS> {
    const SIGNED: bool = BITS == 8 || BITS == CODEBOOK;

    #[inline(always)]
    fn cols(&self) -> usize {
        self.0.cols()
    }

    #[inline(always)]
    fn group_size(&self) -> usize {
        self.0.format().group_size()
    }

    #[inline(always)]
    fn band(&self, band: usize) -> &[u8] {
        self.0.band(band)
    }

    #[inline(always)]
    fn group_layout(&self) -> [usize; 2] {
        [self.0.format().group_header(), self.0.format().block_bytes()]
    }

    #[inline(always)]
    fn header(&self, header: &[u8]) -> ([f32; BAND_ROWS], Option<[i32; BAND_ROWS]>) {
        let format = self.0.format();
        let zeros = match format.levels() {
            Levels::ZeroPoint => {
                let mut zeros = [0; BAND_ROWS];
                for (r, zero) in zeros.iter_mut().enumerate() {
                    *zero = self.0.zero(header, r);
                }
                Some(zeros)
            }
            _ if Self::SIGNED => None,
            _ => Some([format.bits().middle(); BAND_ROWS]),
        };
        (scales(format.scale(), header), zeros)
    }

    #[inline(always)]
    fn unpack<V: Vector>(&self, v: V, block: &[u8]) -> [V::I; REGISTERS] {
        let mut out = [v.int_zero(); REGISTERS];
        match BITS {
            8 => {
                for (t, out) in out.iter_mut().enumerate() {
                    *out = register(v, block, t);
                }
            }
            6 => {
                let (low, high) = (nibbles(v, block), pairs(v, &block[4 * REGISTER_BYTES..]));
                for t in 0..REGISTERS {
                    out[t] = v.join::<4>(low[t], high[t]);
                }
            }
            4 => out = nibbles(v, block),
            CODEBOOK => {
                for (out, codes) in out.iter_mut().zip(nibbles(v, block)) {
                    *out = v.lookup(self.0.codebook(), codes);
                }
            }
            3 => {
                let (low, high) = (pairs(v, block), bits(v, &block[2 * REGISTER_BYTES..]));
                for t in 0..REGISTERS {
                    out[t] = v.join::<2>(low[t], high[t]);
                }
            }
            _ => out = pairs(v, block),
        }
        out
    }
}

impl Bands for Mxfp4<'_> {
    const SIGNED: bool = true;

    #[inline(always)]
    fn cols(&self) -> usize {
        self.0.cols()
    }

    #[inline(always)]
    fn group_size(&self) -> usize {
        BLOCK_COLUMNS
    }

    #[inline(always)]
    fn band(&self, band: usize) -> &[u8] {
        self.0.band(band)
    }

    #[inline(always)]
    fn group_layout(&self) -> [usize; 2] {
        [BAND_ROWS, BAND_GROUP_BYTES - BAND_ROWS]
    }

    #[inline(always)]
    fn header(&self, header: &[u8]) -> ([f32; BAND_ROWS], Option<[i32; BAND_ROWS]>) {
        let mut halves = [0.0; BAND_ROWS];
        for (half, &byte) in halves.iter_mut().zip(header) {
            *half = E8m0(byte).to_f32() * 0.5;
        }
        (halves, None)
    }

    #[inline(always)]
    fn unpack<V: Vector>(&self, v: V, block: &[u8]) -> [V::I; REGISTERS] {
        let mut out = nibbles(v, block);
        for out in &mut out {
            *out = v.lookup(&E2M1_DOUBLED, *out);
        }
        out
    }
}

#[inline(always)]
fn scales(kind: ScaleType, header: &[u8]) -> [f32; BAND_ROWS] {
    let mut scales = [0.0; BAND_ROWS];
    for (scale, &bytes) in scales.iter_mut().zip(header.as_chunks::<2>().0) {
        *scale = kind.decode(bytes);
    }
    scales
}

/// Evaluates `$body` with `$bands` bound to the matrix as a [`Bands`]; `$other` for encodings that are no bands.
macro_rules! with_bands {
    ($w:expr, $bands:ident => $body:expr, else $other:expr) => {
        match $w {
            MatrixView::Mxfp4Bands(view) => {
                let $bands = Mxfp4(view);
                $body
            }
            MatrixView::Int(view) => match (view.format().levels(), view.format().bits()) {
                (Levels::Codebook, _) => {
                    let $bands = Integers::<CODEBOOK>(view);
                    $body
                }
                (_, Bits::I8) => {
                    let $bands = Integers::<8>(view);
                    $body
                }
                (_, Bits::I6) => {
                    let $bands = Integers::<6>(view);
                    $body
                }
                (_, Bits::I4) => {
                    let $bands = Integers::<4>(view);
                    $body
                }
                (_, Bits::I3) => {
                    let $bands = Integers::<3>(view);
                    $body
                }
                (_, Bits::I2) => {
                    let $bands = Integers::<2>(view);
                    $body
                }
            },
            _ => $other,
        }
    };
}

/// Values of scratch that [`exact`] needs for matrices of `k` columns.
pub(crate) fn panel_floats(k: usize) -> usize {
    k.next_multiple_of(BLOCK_COLUMNS) * BAND_ROWS
}

/// The product with few columns in float32; false where the matrix is not in bands.
#[inline(always)]
pub(super) fn exact<V: Vector>(
    v: V,
    w: MatrixView<'_>,
    x: Columns<'_>,
    y: &mut [f32],
    scratch: &mut [f32],
) -> bool {
    with_bands!(w, bands => exact_bands(v, bands, x, y, scratch), else return false);
    true
}

/// Writes the values of a band to `panel`, column after column.
#[inline(always)]
pub(super) fn decode_band<V: Vector>(v: V, w: MatrixView<'_>, band: usize, panel: &mut [f32]) {
    let panel = panel.as_chunks_mut::<BAND_ROWS>().0;
    with_bands!(w, bands => decode_into(v, bands, band, panel), else unreachable!("the encoding has bands"));
}

/// The integer product with columns of int8 activations, as many as possible in tiles.
#[inline(always)]
pub(super) fn integer<V: Vector, T: Tiles>(
    v: V,
    tiles: Option<T>,
    w: MatrixView<'_>,
    x: IntegerColumns<'_>,
    y: &mut [f32],
) {
    with_bands!(w, bands => integer_bands(v, tiles, bands, x, y), else unreachable!("the shape check asks for a group"));
}

#[inline(always)]
fn exact_bands<V: Vector, B: Bands>(v: V, w: B, x: Columns<'_>, y: &mut [f32], scratch: &mut [f32]) {
    let count = x.count;
    let panel = scratch[..panel_floats(w.cols())].as_chunks_mut::<BAND_ROWS>().0;
    for (band, y) in y.chunks_mut(BAND_ROWS * count).enumerate() {
        decode_into(v, w, band, panel);
        for c in 0..count {
            let mut lanes = [v.zero(); LANES];
            let (x, tail) = x.column(c).as_chunks::<LANES>();
            let (steps, _) = panel.as_chunks::<LANES>();
            for (weights, x) in steps.iter().zip(x) {
                for j in 0..LANES {
                    lanes[j] = v.fma(v.load(&weights[j]), v.splat(x[j]), lanes[j]);
                }
            }
            // The missing columns would add products with zero, which change nothing.
            for (j, &x) in tail.iter().enumerate() {
                let weights = v.load(&panel[w.cols() / LANES * LANES + j]);
                lanes[j] = v.fma(weights, v.splat(x), lanes[j]);
            }
            let mut width = LANES;
            while width > 1 {
                width /= 2;
                for j in 0..width {
                    lanes[j] = v.add(lanes[j], lanes[j + width]);
                }
            }
            for (y, sum) in y.chunks_exact_mut(count).zip(v.store(lanes[0])) {
                y[c] = sum;
            }
        }
    }
}

/// The values of a band: for each column, those of the eight rows.
#[inline(always)]
fn decode_into<V: Vector, B: Bands>(v: V, w: B, band: usize, panel: &mut [[f32; BAND_ROWS]]) {
    let ([header_bytes, block_bytes], group_blocks) = (w.group_layout(), w.group_size() / BLOCK_COLUMNS);
    let mut rest = w.band(band);
    let mut panel = panel[..w.cols().next_multiple_of(BLOCK_COLUMNS)].as_chunks_mut::<BLOCK_COLUMNS>().0;
    while !panel.is_empty() {
        let (header, after) = rest.split_at(header_bytes);
        let (scales, zeros) = w.header(header);
        let scales = v.load(&scales);
        let (group, later) = panel.split_at_mut(group_blocks.min(panel.len()));
        let (blocks, after) = after.split_at(group.len() * block_bytes);
        (rest, panel) = (after, later);
        for (columns, block) in group.iter_mut().zip(blocks.chunks_exact(block_bytes)) {
            let registers = w.unpack(v, block);
            for (columns, register) in columns.as_chunks_mut::<4>().0.iter_mut().zip(registers) {
                let bytes = [
                    v.byte::<0>(register),
                    v.byte::<1>(register),
                    v.byte::<2>(register),
                    v.byte::<3>(register),
                ];
                for (column, level) in columns.iter_mut().zip(bytes) {
                    let level = if let Some(zeros) = zeros { v.subtract(level, zeros) } else { level };
                    *column = v.store(v.mul(v.to_f32(level), scales));
                }
            }
        }
    }
}

#[inline(always)]
fn integer_bands<V: Vector, B: Bands, T: Tiles>(
    v: V,
    tiles: Option<T>,
    w: B,
    x: IntegerColumns<'_>,
    y: &mut [f32],
) {
    let mut c = tiles.map_or(0, |mut tiles| tiles::integer(v, &mut tiles, w, x, y));
    while c < x.count {
        match x.count - c {
            1 => integer_columns::<V, B, 1>(v, w, x, c, y),
            2 => integer_columns::<V, B, 2>(v, w, x, c, y),
            3 => integer_columns::<V, B, 3>(v, w, x, c, y),
            _ => integer_columns::<V, B, 4>(v, w, x, c, y),
        }
        c += 4;
    }
}

/// The product of all bands with `C` columns from the first one on.
#[inline(always)]
fn integer_columns<V: Vector, B: Bands, const C: usize>(
    v: V,
    w: B,
    x: IntegerColumns<'_>,
    first: usize,
    y: &mut [f32],
) {
    let ([header_bytes, block_bytes], group_blocks) = (w.group_layout(), w.group_size() / BLOCK_COLUMNS);
    let blocks = w.cols().div_ceil(BLOCK_COLUMNS);
    let mut codes = [&[][..]; C];
    let mut scales = [&[][..]; C];
    let mut sums = [&[][..]; C];
    for c in 0..C {
        let column;
        (column, scales[c], sums[c]) = x.column(first + c);
        codes[c] = column.as_chunks::<REGISTERS>().0;
    }
    for (band, y) in y.chunks_mut(BAND_ROWS * x.count).enumerate() {
        let mut rest = w.band(band);
        let mut totals = [v.zero(); C];
        for (group, start) in (0..blocks).step_by(group_blocks).enumerate() {
            let (header, after) = rest.split_at(header_bytes);
            let (weight_scales, zeros) = w.header(header);
            let width = group_blocks.min(blocks - start);
            let (bytes, after) = after.split_at(width * block_bytes);
            rest = after;
            let mut dots = [v.int_zero(); C];
            for (block, bytes) in bytes.chunks_exact(block_bytes).enumerate() {
                let registers = w.unpack(v, bytes);
                let x = codes.map(|codes| &codes[start + block]);
                dots = if B::SIGNED {
                    v.dots::<true, C>(dots, &registers, x)
                } else {
                    v.dots::<false, C>(dots, &registers, x)
                };
            }
            let weight_scales = v.load(&weight_scales);
            for c in 0..C {
                if let Some(zeros) = zeros {
                    dots[c] = v.subtract_product(dots[c], zeros, sums[c][group]);
                }
                let factors = v.mul(weight_scales, v.splat(scales[c][group]));
                totals[c] = v.fma(v.to_f32(dots[c]), factors, totals[c]);
            }
        }
        for c in 0..C {
            for (y, total) in y.chunks_exact_mut(x.count).zip(v.store(totals[c])) {
                y[first + c] = total;
            }
        }
    }
}
