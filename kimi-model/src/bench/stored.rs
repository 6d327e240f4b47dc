//! Random matrices as they are stored: one for the cache, or many equal ones that no cache holds.

use kimi_kernels::Threads;
use kimi_paging::{Budget, Buffer, PAGE_BYTES};
use kimi_quant::quantize::{Method, Quantizer};
use kimi_quant::{Bf16, Encoding, MatrixView, bf12, fp8, mxfp4};

use crate::Error;
use crate::synth::random::{Stream, Tables};

/// The standard deviation of weights in a trained model, about.
const STD: f32 = 0.02;

/// Equal matrices one behind the other, as tiles lie in a ring.
#[derive(Debug)]
pub(super) struct Stored {
    encoding: Encoding,
    shape: [usize; 2],
    bytes: Buffer,
    /// Bytes of a matrix.
    tile_bytes: usize,
    /// From one matrix to the next.
    stride: usize,
}

impl Stored {
    /// As many `rows x cols` matrices as take `bytes`, at least one.
    ///
    /// # Errors
    /// [`Error::Layout`] for a shape that the encoding does not hold, [`Error::Paging`] where memory is short.
    pub(super) fn new(
        threads: &Threads,
        encoding: Encoding,
        shape: [usize; 2],
        bytes: u64,
    ) -> Result<Self, Error> {
        let tile = encode(encoding, shape)?;
        let stride = tile.len().next_multiple_of(PAGE_BYTES);
        let count = bytes.div_ceil(stride as u64).max(1) as usize;
        let mut bytes = Budget::unlimited().buffer(count * stride, "matrices")?;
        // By the threads that will read them, which is where the system then puts them.
        threads.chunks(&mut bytes, stride, |_, copy| copy[..tile.len()].copy_from_slice(&tile));
        Ok(Self { encoding, shape, bytes, tile_bytes: tile.len(), stride })
    }

    pub(super) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    pub(super) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// How many matrices there are.
    pub(super) fn count(&self) -> usize {
        self.bytes.len() / self.stride
    }

    /// Bytes of one matrix.
    pub(super) fn tile_bytes(&self) -> usize {
        self.tile_bytes
    }

    /// Bytes of all matrices.
    pub(super) fn bytes(&self) -> u64 {
        (self.count() * self.tile_bytes) as u64
    }

    pub(super) fn view(&self, tile: usize) -> MatrixView<'_> {
        let bytes = &self.bytes[tile * self.stride..][..self.tile_bytes];
        MatrixView::new(self.encoding, self.shape, bytes).expect("every copy has the length of the first")
    }
}

/// Random weights, quantized in the cheapest way: how well they are kept does not matter here.
fn encode(encoding: Encoding, shape: [usize; 2]) -> Result<Vec<u8>, Error> {
    let weights = normals(shape[0] * shape[1], STD);
    let halves =
        || weights.iter().flat_map(|&weight| Bf16::from_f32(weight).0.to_le_bytes()).collect::<Vec<_>>();
    let invariant = "random weights are finite";
    Ok(match encoding {
        Encoding::Bf16 => halves(),
        Encoding::Bf12 => bf12::encode(shape, &halves())?,
        Encoding::Int(format) => {
            encoding.matrix_bytes(shape)?;
            Quantizer::new(format).method(Method::AbsMax).quantize(shape, &weights).expect(invariant)
        }
        Encoding::Mxfp4 | Encoding::Mxfp4Bands => {
            encoding.matrix_bytes(shape)?;
            let matrix = mxfp4::quantize(shape, &weights).expect(invariant);
            match encoding {
                Encoding::Mxfp4 => [matrix.codes(), matrix.scales()].concat(),
                _ => mxfp4::to_bands(matrix.view()),
            }
        }
        Encoding::Int4 => {
            // Three standard deviations at the ends.
            const STEP: f32 = 3.0 * STD / 7.0;
            let code = |weight: f32| ((weight / STEP).round_ties_even().clamp(-8.0, 7.0) + 8.0) as u8;
            let codes = weights.as_chunks().0.iter().map(|&[even, odd]| code(even) | code(odd) << 4);
            let scales = encoding.matrix_bytes(shape)? - weights.len() / 2;
            codes.chain(Bf16::from_f32(STEP).0.to_le_bytes().into_iter().cycle().take(scales)).collect()
        }
        Encoding::Fp8 => {
            /// A power of two brings a standard deviation into the normal numbers of E4M3.
            const STEP: f32 = 1.0 / 64.0;
            let positive = &fp8::E4M3[..0x7f];
            let code = |weight: f32| {
                let above = positive.partition_point(|&value| value < weight.abs() / STEP).min(0x7e) as u8;
                above | u8::from(weight < 0.0) << 7
            };
            let scales = encoding.matrix_bytes(shape)? - weights.len();
            let codes = weights.iter().map(|&weight| code(weight));
            codes.chain(STEP.to_le_bytes().into_iter().cycle().take(scales)).collect()
        }
        // F32 remains.
        _ => weights.iter().flat_map(|weight| weight.to_le_bytes()).collect(),
    })
}

/// Normal values, the same on every machine.
pub(super) fn normals(count: usize, std: f32) -> Vec<f32> {
    let tables = Tables::new();
    let mut bytes = vec![0; count * 4];
    Stream::new(0, "bench").fill(0, &mut bytes, |lane| (std * tables.normal(lane)).to_le_bytes());
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::kernels::encodings;

    #[test]
    fn every_encoding_holds_the_same_weights() {
        let threads = Threads::new(2).unwrap();
        let shape = [16, 256];
        let expected = normals(shape[0] * shape[1], STD);
        for encoding in encodings() {
            let stored = Stored::new(&threads, encoding, shape, 20_000).unwrap();
            assert!(stored.count() > 1 && stored.bytes() <= (stored.count() * stored.stride) as u64);
            let (mut first, mut last) = (vec![0.0; 256], vec![0.0; 256]);
            stored.view(0).decode_row(5, &mut first);
            stored.view(stored.count() - 1).decode_row(5, &mut last);
            assert_eq!(first, last, "{encoding}");
            // Two bits over the whole range keep little more than the signs of large weights.
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let expected = &expected[5 * 256..6 * 256];
            let cosine = dot(&first, expected) / (dot(&first, &first) * dot(expected, expected)).sqrt();
            assert!(cosine > 0.5, "{encoding}: {cosine}");
        }
    }

    #[test]
    fn a_shape_that_does_not_fit_is_an_error() {
        let threads = Threads::new(1).unwrap();
        assert!(matches!(Stored::new(&threads, Encoding::Mxfp4, [8, 33], 1), Err(Error::Layout(_))));
    }
}
