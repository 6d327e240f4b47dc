//! One tensor of a synthetic model: what it is called, what it looks like and what its bytes are.

use std::ops::Range;

use kimi_paging::Dtype;
use kimi_quant::Bf16;

use super::random::{LANES, Stream, Tables};

/// Bytes that a code plane or a scale plane of a sparse model holds, from its beginning: a page of the file system.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Rows that a matrix of a sparse model holds at least.
pub(super) const SPARSE_ROWS: usize = 16;

/// Ranges of bytes that are written on their own begin and end on multiples of this, which every element size and every
/// group of lanes divides.
pub(super) const GRAIN: u64 = 64;

/// A tensor of a synthetic model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Tensor {
    /// The full name.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// The shape.
    pub shape: Vec<u64>,
    pub(super) fill: Fill,
    /// The bytes that are written; the others are zero. Ascending and apart.
    pub(super) written: Vec<Range<u64>>,
}

/// The values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fill {
    /// Normal values; from element `count` on there is zero padding.
    Normal { mean: f32, std: f32, count: u64 },
    /// Pairs of normal E2M1 codes.
    Codes,
    /// Pairs of normal four-bit integers.
    Integers,
    /// Normal E4M3 codes.
    E4m3,
    /// Two integers.
    Pair([i32; 2]),
    /// E8M0 scales: half of them `byte`, a quarter each one less and one more.
    Scales { byte: u8 },
}

impl Tensor {
    /// A tensor that is written in full.
    pub(super) fn new(name: String, dtype: Dtype, shape: &[usize], fill: Fill) -> Self {
        let shape = shape.iter().map(|&n| n as u64).collect();
        let mut tensor = Self { name, dtype, shape, fill, written: Vec::new() };
        tensor.written.push(0..tensor.bytes());
        tensor
    }

    /// Bytes of the tensor.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * u64::from(self.dtype.bits().unwrap_or(0)) / 8
    }

    /// Leaves holes everywhere but in these ranges, widened to whole grains.
    pub(super) fn keep(&mut self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let bytes = self.bytes();
        self.written.clear();
        for range in ranges {
            let (start, end) = (range.start / GRAIN * GRAIN, range.end.next_multiple_of(GRAIN).min(bytes));
            match self.written.last_mut() {
                Some(last) if last.end >= start => last.end = last.end.max(end),
                _ => self.written.push(start..end),
            }
        }
    }

    /// Computes the bytes from `first` on; `first` is a multiple of [`GRAIN`].
    pub(super) fn compute(&self, stream: Stream, tables: &Tables, first: u64, out: &mut [u8]) {
        debug_assert!(first.is_multiple_of(GRAIN) && GRAIN.is_multiple_of(4 * LANES));
        match self.fill {
            Fill::Codes => stream.fill(first, out, |lane| [tables.codes(lane)]),
            Fill::Integers => stream.fill(first, out, |lane| [tables.integers(lane)]),
            Fill::E4m3 => stream.fill(first, out, |lane| [tables.e4m3(lane)]),
            Fill::Pair(pair) => out.copy_from_slice(pair.map(i32::to_le_bytes).as_flattened()),
            Fill::Scales { byte } => {
                // In the order of the two upper bits of a lane.
                let scales = [byte - 1, byte, byte, byte + 1];
                stream.fill(first, out, |lane| [scales[usize::from(lane >> 14)]]);
            }
            Fill::Normal { mean, std, count } => {
                let value = |lane| mean + std * tables.normal(lane);
                let size = match self.dtype {
                    Dtype::F32 => {
                        stream.fill(first / 4, out, |lane| value(lane).to_le_bytes());
                        4
                    }
                    _ => {
                        stream.fill(first / 2, out, |lane| Bf16::from_f32(value(lane)).0.to_le_bytes());
                        2
                    }
                };
                let kept = (count * size).saturating_sub(first).min(out.len() as u64);
                out[kept as usize..].fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(dtype: Dtype, shape: &[usize], count: u64) -> Tensor {
        Tensor::new("t".to_owned(), dtype, shape, Fill::Normal { mean: 1.0, std: 0.5, count })
    }

    #[test]
    fn parts_are_those_of_the_whole() {
        let (tables, stream) = (Tables::new(), Stream::new(3, "t"));
        let codes = Tensor::new("t".to_owned(), Dtype::U8, &[5, 77], Fill::Codes);
        let scales = Tensor::new("t".to_owned(), Dtype::U8, &[385], Fill::Scales { byte: 120 });
        let words = Tensor::new("t".to_owned(), Dtype::I32, &[5, 7], Fill::Integers);
        let e4m3 = Tensor::new("t".to_owned(), Dtype::F8E4M3, &[5, 77], Fill::E4m3);
        let plain = [normal(Dtype::F32, &[99], 90), normal(Dtype::Bf16, &[11, 17], 187)];
        for tensor in plain.into_iter().chain([codes, scales, words, e4m3]) {
            let mut whole = vec![0; tensor.bytes() as usize];
            tensor.compute(stream, &tables, 0, &mut whole);
            for first in (0..whole.len()).step_by(GRAIN as usize) {
                let mut part = vec![0xaa; whole.len() - first];
                tensor.compute(stream, &tables, first as u64, &mut part);
                assert_eq!(part, whole[first..], "{} {first}", tensor.dtype);
            }
        }
    }

    #[test]
    fn padding_is_zero_and_values_have_their_mean_and_spread() {
        let (tables, tensor) = (Tables::new(), normal(Dtype::F32, &[8192], 6000));
        let mut bytes = vec![0; 4 * 8192];
        tensor.compute(Stream::new(0, "t"), &tables, 0, &mut bytes);
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let (values, padding) = values.split_at(6000);
        assert!(padding.iter().all(|value| value.to_bits() == 0));
        let mean = values.iter().sum::<f32>() / 6000.0;
        let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f32>() / 6000.0;
        // Six standard errors of each.
        assert!((mean - 1.0).abs() < 6.0 * 0.5 / 6000f32.sqrt(), "{mean}");
        assert!((variance.sqrt() - 0.5).abs() < 6.0 * 0.5 / 12000f32.sqrt(), "{variance}");
    }

    #[test]
    fn scales_stay_within_one_of_their_middle() {
        let tensor = Tensor::new("t".to_owned(), Dtype::U8, &[4096], Fill::Scales { byte: 120 });
        let mut bytes = vec![0; 4096];
        tensor.compute(Stream::new(0, "t"), &Tables::new(), 0, &mut bytes);
        let count = |byte| bytes.iter().filter(|&&found| found == byte).count();
        assert!(count(120) > count(119) && count(120) > count(121));
        assert_eq!(count(119) + count(120) + count(121), 4096);
    }

    #[test]
    fn kept_ranges_are_widened_and_joined() {
        let mut tensor = normal(Dtype::Bf16, &[1000], 1000);
        tensor.keep([0..10, 60..100, 300..301, 1990..2000]);
        assert_eq!(tensor.written, [0..128, 256..320, 1984..2000]);
    }
}
