//! Shared pieces of the benches.

use kimi_quant::mxfp4::{Mxfp4BandsView, to_bands};
use kimi_quant::quantize::{Method, Quantizer};
use kimi_quant::{Bf12View, Bf16, DenseView, Encoding, IntView, MatrixView, Mxfp4View, bf12};
use kimi_testing::Seeded;

/// A stored matrix with ordinary weights: no NaN, no subnormal products.
#[derive(Debug)]
pub struct Stored {
    encoding: Encoding,
    shape: [usize; 2],
    weights: Vec<u8>,
    scales: Vec<u8>,
}

impl Stored {
    /// A random `rows x cols` matrix; a multiple of 32 columns for MXFP4.
    pub fn new(encoding: Encoding, [rows, cols]: [usize; 2]) -> Self {
        let mut seeded = Seeded::new(1);
        let count = rows * cols;
        let (mut weights, mut scales) = (Vec::new(), Vec::new());
        match encoding {
            Encoding::Mxfp4 => {
                weights = seeded.bytes(count / 2);
                scales = seeded.bytes(count / 32).into_iter().map(|byte| 118 + byte % 6).collect();
            }
            Encoding::Bf16 => {
                weights = seeded.bytes(count * 2);
                for half in weights.as_chunks_mut::<2>().0 {
                    half[1] = 0x3c | (half[1] & 0x81);
                }
            }
            Encoding::Mxfp4Bands => {
                let row_major = Self::new(Encoding::Mxfp4, [rows, cols]);
                if let MatrixView::Mxfp4(view) = row_major.view() {
                    weights = to_bands(view);
                }
            }
            Encoding::Bf12 => {
                let normal = seeded.normals(count, 0.02).into_iter();
                let halves: Vec<u8> =
                    normal.flat_map(|weight| Bf16::from_f32(weight).0.to_le_bytes()).collect();
                weights = bf12::encode([rows, cols], &halves).expect("fits");
            }
            Encoding::Int(format) => {
                let quantizer = Quantizer::new(format).method(Method::AbsMax);
                weights = quantizer.quantize([rows, cols], &seeded.normals(count, 0.02)).expect("finite");
            }
            _ => (0..count).for_each(|_| weights.extend(seeded.between(-0.05, 0.05).to_le_bytes())),
        }
        Self { encoding, shape: [rows, cols], weights, scales }
    }

    /// The matrix.
    ///
    /// # Panics
    /// If the shape does not fit the encoding.
    pub fn view(&self) -> MatrixView<'_> {
        let shape = self.shape;
        match self.encoding {
            Encoding::Mxfp4 => {
                Mxfp4View::new(shape, &self.weights, &self.scales).expect("made to fit").into()
            }
            Encoding::Bf16 => DenseView::<Bf16>::new(shape, &self.weights).expect("made to fit").into(),
            Encoding::Mxfp4Bands => Mxfp4BandsView::new(shape, &self.weights).expect("made to fit").into(),
            Encoding::Bf12 => Bf12View::new(shape, &self.weights).expect("made to fit").into(),
            Encoding::Int(format) => IntView::new(shape, format, &self.weights).expect("made to fit").into(),
            _ => DenseView::<f32>::new(shape, &self.weights).expect("made to fit").into(),
        }
    }

    /// Bytes stored.
    pub fn bytes(&self) -> u64 {
        (self.weights.len() + self.scales.len()) as u64
    }
}
