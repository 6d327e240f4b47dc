//! From the source's rows to a tile or a record.

use kimi_quant::quantize::{Gptq, QuantizeError, Quantizer};
use kimi_quant::{Bf16, Encoding, IntFormat, MatrixView, bf12, int4, mxfp4};

/// Rows that are turned to float32 at once: whole bands.
const STEP_ROWS: usize = 64;

/// What is known of the input of a matrix.
#[derive(Debug)]
pub(crate) enum Guide {
    /// Nothing: all columns are alike.
    None,
    /// How much each column's error weighs.
    Importance(Vec<f32>),
    /// How the columns go together, too.
    Gptq(Gptq),
}

impl Guide {
    fn quantize(
        &self,
        format: IntFormat,
        shape: [usize; 2],
        weights: &[f32],
    ) -> Result<Vec<u8>, QuantizeError> {
        match self {
            Self::None => Quantizer::new(format).quantize(shape, weights),
            Self::Importance(importance) => {
                Quantizer::new(format).importance(importance).quantize(shape, weights)
            }
            Self::Gptq(gptq) => gptq.quantize(shape, weights),
        }
    }
}

/// Why a matrix cannot be stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EncodeError {
    #[error("row {row}, column {col} is {value}")]
    NotFinite { row: usize, col: usize, value: f32 },
    #[error(transparent)]
    Layout(#[from] kimi_quant::LayoutError),
    #[error("cannot be stored as {target}, it is {source_encoding}")]
    Unsupported { source_encoding: Encoding, target: Encoding },
    #[error("did not come back from {0} as it was")]
    NotLossless(Encoding),
}

/// The weights of `source` as `target` stores them, behind `out`; `bytes` is what `source` views, where that is one plane.
/// Integers follow `guide`.
pub(crate) fn encode(
    source: MatrixView<'_>,
    bytes: &[u8],
    target: Encoding,
    guide: &Guide,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let shape = [source.rows(), source.cols()];
    match (target, source) {
        (Encoding::F32 | Encoding::Bf16, _) if target == source.encoding() => out.extend_from_slice(bytes),
        (Encoding::Bf12, MatrixView::Bf16(_)) => {
            let encoded = bf12::encode(shape, bytes)?;
            if bf12::decode(kimi_quant::Bf12View::new(shape, &encoded)?) != bytes {
                return Err(EncodeError::NotLossless(target));
            }
            out.extend_from_slice(&encoded);
        }
        (Encoding::Int(IntFormat::INT4), MatrixView::Int4(view)) => {
            out.extend_from_slice(&int4::to_bands(view));
        }
        (Encoding::Mxfp4Bands, MatrixView::Mxfp4(view)) => out.extend_from_slice(&mxfp4::to_bands(view)),
        (Encoding::Bf16, _) => by_rows(source, |_, _, weights| {
            out.extend(weights.iter().flat_map(|&weight| Bf16::from_f32(weight).0.to_le_bytes()));
            Ok(())
        })?,
        (Encoding::F32, _) => by_rows(source, |_, _, weights| {
            out.extend(weights.iter().flat_map(|weight| weight.to_le_bytes()));
            Ok(())
        })?,
        (Encoding::Mxfp4Bands, _) => by_rows(source, |first, shape, weights| {
            let quantized = mxfp4::quantize(shape, weights).map_err(|error| match error {
                mxfp4::QuantizeError::NotFinite(at) => not_finite(first, at),
                mxfp4::QuantizeError::Layout(error) => error.into(),
                _ => EncodeError::Unsupported { source_encoding: source.encoding(), target },
            })?;
            out.extend_from_slice(&mxfp4::to_bands(quantized.view()));
            Ok(())
        })?,
        (Encoding::Int(format), _) => {
            by_rows(source, |first, shape, weights| {
                let quantized = guide.quantize(format, shape, weights).map_err(|error| match error {
                    QuantizeError::NotFinite(at) => not_finite(first, at),
                    QuantizeError::Layout(error) => error.into(),
                    _ => EncodeError::Unsupported { source_encoding: source.encoding(), target },
                })?;
                // The prefix is the same in every step and stands once in front.
                let prefix = if first == 0 { 0 } else { format.prefix_bytes() };
                out.extend_from_slice(&quantized[prefix..]);
                Ok(())
            })?;
        }
        _ => return Err(EncodeError::Unsupported { source_encoding: source.encoding(), target }),
    }
    Ok(())
}

/// Calls `step(first row, shape, weights)` for a few rows at a time.
fn by_rows(
    source: MatrixView<'_>,
    mut step: impl FnMut(usize, [usize; 2], &[f32]) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let (rows, cols) = (source.rows(), source.cols());
    let mut weights = vec![0.0; STEP_ROWS.min(rows) * cols];
    for first in (0..rows).step_by(STEP_ROWS) {
        let count = STEP_ROWS.min(rows - first);
        for (r, row) in weights.chunks_exact_mut(cols.max(1)).take(count).enumerate() {
            source.decode_row(first + r, row);
        }
        step(first, [count, cols], &weights[..count * cols])?;
    }
    Ok(())
}

fn not_finite(first: usize, at: kimi_quant::NotFinite) -> EncodeError {
    EncodeError::NotFinite { row: first + at.row, col: at.col, value: at.value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kimi_quant::DenseView;

    fn weights(rows: usize, cols: usize) -> Vec<u8> {
        let value = |i: usize| Bf16::from_f32(((i * 37 % 101) as f32 - 50.0) / 64.0);
        (0..rows * cols).flat_map(|i| value(i).0.to_le_bytes()).collect()
    }

    #[test]
    fn steps_of_rows_make_the_same_matrix_as_the_whole() {
        let (rows, cols) = (3 * STEP_ROWS - 5, 96);
        let bytes = weights(rows, cols);
        let source = MatrixView::new(Encoding::Bf16, [rows, cols], &bytes).unwrap();
        let mut values = vec![0.0; rows * cols];
        values.chunks_exact_mut(cols).enumerate().for_each(|(r, row)| source.decode_row(r, row));
        for name in ["i4:g32:cb", "i3:g32", "i8:g128", "mxfp4:bands", "bf12", "bf16", "f32"] {
            let target: Encoding = name.parse().unwrap();
            let mut out = vec![7; 3];
            encode(source, &bytes, target, &Guide::None, &mut out).unwrap();
            let expected = match target {
                Encoding::Int(format) => Quantizer::new(format).quantize([rows, cols], &values).unwrap(),
                Encoding::Mxfp4Bands => {
                    mxfp4::to_bands(mxfp4::quantize([rows, cols], &values).unwrap().view())
                }
                Encoding::Bf12 => bf12::encode([rows, cols], &bytes).unwrap(),
                Encoding::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
                _ => bytes.clone(),
            };
            assert!(out[3..] == expected, "{name}");
        }
    }

    #[test]
    fn a_weight_that_is_no_number_is_found_by_row_and_column() {
        let (rows, cols) = (100, 32);
        let mut bytes = weights(rows, cols);
        let at = 70 * cols + 5;
        bytes[2 * at..][..2].copy_from_slice(&Bf16::from_f32(f32::NAN).0.to_le_bytes());
        let source = MatrixView::from(DenseView::<Bf16>::new([rows, cols], &bytes).unwrap());
        for name in ["i4", "mxfp4:bands"] {
            let error =
                encode(source, &bytes, name.parse().unwrap(), &Guide::None, &mut Vec::new()).unwrap_err();
            assert!(matches!(error, EncodeError::NotFinite { row: 70, col: 5, .. }), "{error}");
        }
    }
}
