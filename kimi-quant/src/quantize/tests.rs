use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use kimi_testing::Seeded;
use proptest::prelude::*;

use super::*;
use crate::IntView;
use crate::int::tests::formats;
use crate::int::{Bits, ScaleType};
use crate::metrics::compare;

fn decode(format: IntFormat, [rows, cols]: [usize; 2], bytes: &[u8]) -> Vec<f32> {
    let view = IntView::new([rows, cols], format, bytes).unwrap();
    let mut values = vec![f32::NAN; rows * cols];
    for (row, values) in values.chunks_exact_mut(cols.max(1)).enumerate() {
        view.decode_row(row, values);
    }
    values
}

fn error(format: &str, method: Method, shape: [usize; 2], weights: &[f32]) -> f64 {
    let format = format.parse().unwrap();
    let bytes = Quantizer::new(format).method(method).quantize(shape, weights).unwrap();
    compare(weights, &decode(format, shape, &bytes)).relative_rms
}

#[test]
fn search_beats_absmax_and_stays_below_known_errors() {
    let shape = [32, 1792];
    let weights = Seeded::new(1).normals(shape[0] * shape[1], 0.02);
    for (format, bound) in [
        ("i8:g128", 0.0066),
        ("i6:g64", 0.024),
        ("i4:g128", 0.102),
        ("i4:g64", 0.096),
        ("i4:g32", 0.082),
        ("i4:g32:cb", 0.083),
        ("i3:g32", 0.164),
        ("i2:g32", 0.335),
    ] {
        let (searched, plain) =
            (error(format, Method::Search, shape, &weights), error(format, Method::AbsMax, shape, &weights));
        assert!(searched <= bound && searched <= plain, "{format}: {searched:.4}, absmax {plain:.4}");
    }
}

#[test]
fn zero_points_suit_weights_that_lie_to_one_side() {
    let shape = [8, 256];
    let weights: Vec<f32> =
        Seeded::new(2).normals(8 * 256, 1.0).into_iter().map(|weight| weight + 2.5).collect();
    for method in [Method::AbsMax, Method::Search, Method::Hqq] {
        let (with, without) = (error("i4:zp", method, shape, &weights), error("i4", method, shape, &weights));
        assert!(with < without, "{method:?}: {with} {without}");
    }
}

#[test]
fn half_quadratic_zero_points_forgive_outliers() {
    let mut seeded = Seeded::new(3);
    let shape = [16, 512];
    let mut weights = seeded.normals(16 * 512, 1.0);
    for at in (0..weights.len()).step_by(64) {
        weights[at] = 6.0 + seeded.unit();
    }
    let median = |method| {
        let format: IntFormat = "i3:g64:zp".parse().unwrap();
        let bytes = Quantizer::new(format).method(method).quantize(shape, &weights).unwrap();
        let decoded = decode(format, shape, &bytes);
        let mut errors: Vec<f32> = weights.iter().zip(&decoded).map(|(a, b)| (a - b).abs()).collect();
        errors.sort_by(f32::total_cmp);
        errors[errors.len() / 2]
    };
    assert!(median(Method::Hqq) < median(Method::AbsMax));
}

#[test]
fn important_columns_are_nearer() {
    let shape = [64, 32];
    let weights = Seeded::new(4).normals(64 * 32, 1.0);
    let importance: Vec<f32> = (0..32).map(|c| if c < 4 { 100.0 } else { 1.0 }).collect();
    let format: IntFormat = "i3".parse().unwrap();
    let error = |quantizer: Quantizer<'_>| {
        let decoded = decode(format, shape, &quantizer.quantize(shape, &weights).unwrap());
        let pairs = weights.iter().zip(&decoded).enumerate().filter(|(i, _)| i % 32 < 4);
        pairs.map(|(_, (a, b))| f64::from((a - b) * (a - b))).sum::<f64>()
    };
    let quantizer = Quantizer::new(format);
    assert!(error(quantizer.importance(&importance)) < 0.6 * error(quantizer));
}

/// Samples whose neighbouring columns are alike, and their second moments.
fn correlated(cols: usize, samples: usize, seeded: &mut Seeded) -> (Vec<f32>, Vec<f64>) {
    let (mut inputs, mut hessian) = (Vec::new(), vec![0.0; cols * cols]);
    for _ in 0..samples {
        let mut last = 0.0;
        let sample: Vec<f32> = (0..cols)
            .map(|_| {
                last = 0.9 * last + 0.436 * seeded.normal();
                last
            })
            .collect();
        for i in 0..cols {
            for j in 0..cols {
                hessian[i * cols + j] += f64::from(sample[i]) * f64::from(sample[j]);
            }
        }
        inputs.extend(sample);
    }
    (inputs, hessian)
}

fn gptq(
    format: IntFormat,
    shape: [usize; 2],
    weights: &[f32],
    hessian: &[f64],
) -> Result<Vec<u8>, QuantizeError> {
    Gptq::new(format, shape[1], shape[1], hessian, 0.01)?.quantize(shape, weights)
}

#[test]
fn blocks_of_a_hessian_are_matrices_of_their_own() {
    let mut seeded = Seeded::new(11);
    let (rows, cols, block) = (9, 160, 64);
    let weights = seeded.normals(rows * cols, 0.05);
    let format: IntFormat = "i4".parse().unwrap();
    let (mut hessian, mut expected) = (Vec::new(), Vec::new());
    for first in (0..cols).step_by(block) {
        let n = block.min(cols - first);
        let (_, of_block) = correlated(n, 300, &mut seeded);
        let part: Vec<f32> =
            weights.chunks(cols).flat_map(|row| row[first..first + n].iter().copied()).collect();
        let bytes = gptq(format, [rows, n], &part, &of_block).unwrap();
        expected.push(decode(format, [rows, n], &bytes));
        hessian.extend(of_block);
    }
    assert_eq!(block_values(cols, block), Some(hessian.len()));
    let whole = Gptq::new(format, cols, block, &hessian, 0.01).unwrap();
    let bytes = whole.quantize([rows, cols], &weights).unwrap();
    let decoded = decode(format, [rows, cols], &bytes);
    for (r, row) in decoded.chunks(cols).enumerate() {
        let parts = row.chunks(block).zip(&expected);
        assert!(parts.into_iter().all(|(part, of)| part == &of[r * part.len()..][..part.len()]), "row {r}");
    }
    // Rows do not know of each other.
    let some = whole.quantize([2, cols], &weights[3 * cols..5 * cols]).unwrap();
    assert_eq!(decode(format, [2, cols], &some), decoded[3 * cols..5 * cols]);
    let refused = |block: usize, hessian: &[f64]| Gptq::new(format, cols, block, hessian, 0.01).unwrap_err();
    assert!(matches!(refused(50, &hessian), QuantizeError::Layout(LayoutError::Group { .. })));
    assert!(matches!(refused(64, &hessian[1..]), QuantizeError::Layout(LayoutError::Length { .. })));
    hessian[64 * 64 + 64 * 5 + 5] = -9.0;
    assert_eq!(refused(64, &hessian), QuantizeError::Hessian { col: 69 });
    assert!(whole.quantize([1, 3], &[0.0; 3]).is_err());
}

#[test]
fn gptq_beats_search_in_the_error_of_the_output() {
    let mut seeded = Seeded::new(5);
    let (rows, cols) = (16, 128);
    let weights = seeded.normals(rows * cols, 0.05);
    let (_, hessian) = correlated(cols, 512, &mut seeded);
    let (inputs, _) = correlated(cols, 256, &mut seeded);
    for (name, share) in [("i4", 0.6), ("i3", 0.6), ("i4:zp", 0.6)] {
        let format: IntFormat = name.parse().unwrap();
        let output_error = |bytes: &[u8]| {
            let decoded = decode(format, [rows, cols], bytes);
            let difference: Vec<f32> = weights.iter().zip(&decoded).map(|(a, b)| a - b).collect();
            let outputs = inputs.chunks_exact(cols).flat_map(|x| {
                difference.chunks_exact(cols).map(move |w| w.iter().zip(x).map(|(w, x)| w * x).sum::<f32>())
            });
            outputs.map(|y| f64::from(y * y)).sum::<f64>()
        };
        let searched = output_error(&Quantizer::new(format).quantize([rows, cols], &weights).unwrap());
        let better = output_error(&gptq(format, [rows, cols], &weights, &hessian).unwrap());
        assert!(better < share * searched, "{name}: {better} {searched}");
    }
}

#[test]
fn a_hessian_that_is_none_is_refused() {
    let format: IntFormat = "i4".parse().unwrap();
    let weights = [1.0; 2 * 3];
    let refused = |hessian: &[f64]| gptq(format, [2, 3], &weights, hessian).unwrap_err();
    let mut hessian = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    assert!(gptq(format, [2, 3], &weights, &hessian).is_ok());
    assert!(gptq(format, [2, 3], &weights, &[0.0; 9]).is_ok(), "no input at all");
    assert!(matches!(refused(&hessian[..8]), QuantizeError::Layout(_)));
    hessian[4] = -5.0;
    assert_eq!(refused(&hessian), QuantizeError::Hessian { col: 1 });
    hessian[4] = f64::NAN;
    assert!(matches!(refused(&hessian), QuantizeError::Hessian { .. }));
}

#[test]
fn weights_that_are_not_finite_are_named() {
    let mut weights = [0.5; 3 * 40];
    weights[40 + 7] = f32::NEG_INFINITY;
    let error = Quantizer::new("i4".parse().unwrap()).quantize([3, 40], &weights).unwrap_err();
    assert_eq!(error.to_string(), "the weight at row 1, column 7 is -inf");
    let error = Quantizer::new("i4".parse().unwrap()).quantize([3, 41], &weights).unwrap_err();
    assert!(matches!(error, QuantizeError::Layout(LayoutError::Length { expected: 123, found: 120, .. })));
    let importance = [1.0; 3];
    let error =
        Quantizer::new("i4".parse().unwrap()).importance(&importance).quantize([3, 40], &weights[..0]);
    assert!(error.is_err());
}

#[test]
fn extreme_weights_stay_finite() {
    for format in formats() {
        for size in [f32::MIN_POSITIVE, 1e-42, 1e-20, 1.0, 1e4, 3e38] {
            let weights: Vec<f32> = Seeded::new(7)
                .normals(64, 0.25)
                .into_iter()
                .map(|weight| weight.clamp(-1.0, 1.0) * size)
                .collect();
            for method in [Method::AbsMax, Method::Search, Method::Hqq] {
                let bytes = Quantizer::new(format).method(method).quantize([1, 64], &weights).unwrap();
                let decoded = decode(format, [1, 64], &bytes);
                // F16 scales do not reach everywhere; what they do not reach saturates or is zero.
                let reached = format.scale() == ScaleType::Bf16;
                assert!(
                    !reached || decoded.iter().all(|value| value.is_finite()),
                    "{format} {method:?} {size}"
                );
            }
        }
        let bytes = Quantizer::new(format).quantize([2, 40], &[0.0; 80]).unwrap();
        assert!(decode(format, [2, 40], &bytes).iter().all(|&value| value == 0.0), "{format}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn quantizing_decoded_values_gives_them_back(format in prop::sample::select(formats()), rows in 0usize..11, cols in 1usize..300, seed: u64) {
        let mut seeded = Seeded::new(seed);
        let weights = seeded.normals(rows * cols, 1.0);
        let bytes = Quantizer::new(format).quantize([rows, cols], &weights).unwrap();
        let first = decode(format, [rows, cols], &bytes);
        prop_assert!(first.iter().all(|value| value.is_finite()));
        // Codes of values on the grid are those of the grid again.
        let again = decode(format, [rows, cols], &Quantizer::new(format).quantize([rows, cols], &first).unwrap());
        let error = compare(&first, &again).relative_rms;
        prop_assert!(rows == 0 || error < 0.05 || format.bits() == Bits::I2, "{} {}", format, error);
    }

    #[test]
    fn rows_do_not_see_each_other(format in prop::sample::select(formats()), cols in 1usize..150, seed: u64) {
        let weights = Seeded::new(seed).normals(9 * cols, 1.0);
        let all = decode(format, [9, cols], &Quantizer::new(format).quantize([9, cols], &weights).unwrap());
        let last = Quantizer::new(format).quantize([1, cols], &weights[8 * cols..]).unwrap();
        prop_assert_eq!(&decode(format, [1, cols], &last)[..], &all[8 * cols..]);
    }
}
