//! Every instruction set of this processor against the reference, to the bit, for every encoding, shape and number
//! of columns.

use kimi_kernels::{Columns, IntegerBuffers, Isa, Kernels, LANES, Scratch, Threads, reference};
use kimi_quant::mxfp4::{Mxfp4BandsView, to_bands};
use kimi_quant::quantize::Quantizer;
use kimi_quant::{
    Bf12View, Bf16, DenseView, Fp8View, Int4View, IntFormat, IntView, MatrixView, Mxfp4View, bf12,
};
use kimi_testing::{Seeded, gamma, max_threads, report_isas, same_bits};
use proptest::prelude::*;

/// The kernels to test: all that are available, and those of AMX where `KIMI_TEST_REQUIRE_ISA` asks for them.
fn exercised() -> impl Iterator<Item = Kernels> {
    let asked = std::env::var("KIMI_TEST_REQUIRE_ISA")
        .is_ok_and(|names| names.split(',').any(|name| name.trim() == Isa::Amx.name()));
    Kernels::available().chain(asked.then(|| Kernels::with_isa(Isa::Amx)).flatten())
}

/// Stored bytes of a random matrix, one byte off any alignment.
struct Stored {
    shape: [usize; 2],
    bytes: Vec<u8>,
    scales: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    F32,
    Bf16,
    Mxfp4,
    Mxfp4Bands,
    Bf12,
    Int4,
    Fp8,
    Int(&'static str),
}

/// The place of the first row in its block, so that blocks end inside the matrix.
const FP8_FIRST: usize = 100;

/// One of every width and kind of level, with different groups and scales.
const INTEGERS: [&str; 9] = [
    "i8:g128",
    "i8:g64:zp",
    "i6:g64",
    "i6:g32:zp:f16",
    "i4:g32",
    "i4:g128:zp",
    "i4:g64:cb:f16",
    "i3:g32",
    "i2:g64:zp",
];

fn format(name: &str) -> IntFormat {
    name.parse().unwrap()
}

impl Stored {
    fn new(kind: Kind, shape: [usize; 2], seeded: &mut Seeded) -> Self {
        let [rows, cols] = shape;
        let mut bytes = vec![0u8];
        let mut scales = vec![0u8];
        match kind {
            Kind::F32 => (0..rows * cols).for_each(|_| bytes.extend(seeded.normal().to_le_bytes())),
            Kind::Bf16 => {
                (0..rows * cols).for_each(|_| bytes.extend(Bf16::from_f32(seeded.normal()).0.to_le_bytes()));
            }
            Kind::Mxfp4 => {
                bytes.extend(seeded.bytes(rows * cols / 2));
                // From subnormal factors up to large ones.
                scales.extend((0..rows * cols / 32).map(|_| seeded.below(160) as u8));
            }
            Kind::Mxfp4Bands => {
                let codes = seeded.bytes(rows * cols / 2);
                let row_scales: Vec<u8> = (0..rows * cols / 32).map(|_| seeded.below(160) as u8).collect();
                bytes.extend(to_bands(Mxfp4View::new(shape, &codes, &row_scales).unwrap()));
            }
            Kind::Bf12 => {
                let halves: Vec<u8> =
                    (0..rows * cols).flat_map(|_| Bf16::from_f32(seeded.normal()).0.to_le_bytes()).collect();
                bytes.extend(bf12::encode(shape, &halves).unwrap());
            }
            Kind::Int4 => {
                bytes.extend(seeded.bytes(rows * cols / 2));
                scales.extend(
                    (0..rows * cols / 32).flat_map(|_| Bf16::from_f32(seeded.normal()).0.to_le_bytes()),
                );
            }
            Kind::Fp8 => {
                // Every code but the two that are no number.
                bytes.extend(
                    seeded
                        .bytes(rows * cols)
                        .into_iter()
                        .map(|code| if code & 0x7f == 0x7f { 0 } else { code }),
                );
                let blocks = (rows + FP8_FIRST).div_ceil(128) * cols.div_ceil(128);
                scales.extend((0..blocks).flat_map(|_| seeded.normal().to_le_bytes()));
            }
            Kind::Int(name) => {
                let weights = seeded.normals(rows * cols, 1.0);
                bytes.extend(Quantizer::new(format(name)).quantize(shape, &weights).unwrap());
            }
        }
        Self { shape, bytes, scales }
    }

    fn view(&self, kind: Kind) -> MatrixView<'_> {
        let bytes = &self.bytes[1..];
        match kind {
            Kind::F32 => DenseView::<f32>::new(self.shape, bytes).unwrap().into(),
            Kind::Bf16 => DenseView::<Bf16>::new(self.shape, bytes).unwrap().into(),
            Kind::Mxfp4 => Mxfp4View::new(self.shape, bytes, &self.scales[1..]).unwrap().into(),
            Kind::Mxfp4Bands => Mxfp4BandsView::new(self.shape, bytes).unwrap().into(),
            Kind::Bf12 => Bf12View::new(self.shape, bytes).unwrap().into(),
            Kind::Int4 => Int4View::new(self.shape, bytes, &self.scales[1..]).unwrap().into(),
            Kind::Fp8 => Fp8View::new(self.shape, FP8_FIRST, bytes, &self.scales[1..]).unwrap().into(),
            Kind::Int(name) => IntView::new(self.shape, format(name), bytes).unwrap().into(),
        }
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    let plain = [Kind::F32, Kind::Bf16, Kind::Mxfp4, Kind::Mxfp4Bands, Kind::Bf12, Kind::Int4, Kind::Fp8];
    prop_oneof![
        prop::sample::select(plain.to_vec()),
        prop::sample::select(INTEGERS.to_vec()).prop_map(Kind::Int)
    ]
}

/// The products of one matrix with one set of columns, by every back end, thread count and packing.
fn check(kind: Kind, [rows, cols]: [usize; 2], count: usize, seed: u64) {
    let mut seeded = Seeded::new(seed);
    let stored = Stored::new(kind, [rows, cols], &mut seeded);
    let w = stored.view(kind);
    let x = seeded.normals(count * cols, 1.0);
    let mut expected = vec![f32::NAN; rows * count];
    reference::gemm(w, &x, count, &mut expected);
    for kernels in exercised() {
        for threads in [1, 2].into_iter().filter(|&count| count <= max_threads()) {
            let threads = Threads::new(threads).unwrap();
            let scratch = Scratch::new(&threads, kernels.matmul_scratch(cols, count));
            let mut buffer = vec![f32::NAN; kernels.packed_len(cols, count)];
            for packed in [false, true] {
                let columns = if packed {
                    kernels.columns(&threads, &x, cols, &mut buffer).unwrap()
                } else {
                    Columns::new(&x, cols).unwrap()
                };
                let mut y = vec![f32::NAN; rows * columns.count()];
                kernels.matmul(&threads, &scratch, w, columns, &mut y).unwrap();
                if cols > 0 {
                    assert!(
                        same_bits(&y, &expected),
                        "{} {kind:?} {rows}x{cols} x{count} packed {packed}",
                        kernels.isa()
                    );
                }
            }
        }
    }
}

#[test]
fn all_instruction_sets_are_reported() {
    let exercised: Vec<_> = exercised().map(|kernels| kernels.isa().name()).collect();
    report_isas(&Isa::ALL.map(Isa::name), &exercised);
}

#[test]
fn products_equal_the_reference_at_the_edges() {
    for kind in [Kind::F32, Kind::Bf16, Kind::Mxfp4, Kind::Mxfp4Bands, Kind::Bf12, Kind::Int("i4:g64:zp")] {
        let edges: &[usize] = match kind {
            Kind::Mxfp4 | Kind::Mxfp4Bands => &[32, 64, 96, 416],
            _ => &[1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 129],
        };
        for &cols in edges {
            for rows in [0, 1, 7, 8, 9, 49] {
                for count in [1, 2, 3, 4, 5, 8, 9, 16, 17] {
                    check(kind, [rows, cols], count, (cols * 64 + rows) as u64);
                }
            }
        }
    }
}

#[test]
fn products_equal_the_reference_at_real_widths() {
    check(Kind::Bf16, [100, 7168], 1, 1);
    check(Kind::Bf16, [61, 7168], 11, 2);
    check(Kind::Mxfp4, [100, 3584], 1, 3);
    check(Kind::Mxfp4, [30, 3072], 20, 4);
    check(Kind::Int("i4:g32"), [61, 3584], 11, 6);
    // Rows so long that a panel holds one group of them.
    check(Kind::Bf16, [13, 70_000], 9, 5);
}

#[test]
fn extreme_scales_and_values_keep_their_bits() {
    let mut seeded = Seeded::new(17);
    for scale in [0u8, 1, 100, 113, 250, 254, 255] {
        let (codes, scales) = (seeded.bytes(16 * 9), [scale; 9]);
        let w = MatrixView::from(Mxfp4View::new([9, 32], &codes, &scales).unwrap());
        for size in [1e-38, 1.0, 1e38, f32::INFINITY] {
            let x: Vec<f32> = (0..32).map(|_| seeded.normal() * size).collect();
            let mut expected = vec![0.0; 9];
            reference::gemv(w, &x, &mut expected);
            for kernels in exercised() {
                let threads = Threads::new(1).unwrap();
                let scratch = Scratch::new(&threads, kernels.matmul_scratch(32, 1));
                let mut y = vec![0.0; 9];
                kernels.matmul(&threads, &scratch, w, Columns::new(&x, 32).unwrap(), &mut y).unwrap();
                assert!(same_bits(&y, &expected), "{} scale {scale} size {size}", kernels.isa());
            }
        }
    }
}

#[test]
fn operands_of_the_wrong_length_are_refused_and_leave_the_output() {
    let bytes = [0u8; 2 * 3 * 5];
    let w = MatrixView::from(DenseView::<Bf16>::new([3, 5], &bytes).unwrap());
    let threads = Threads::new(1).unwrap();
    for kernels in exercised() {
        let scratch = Scratch::new(&threads, kernels.matmul_scratch(5, 1));
        let (x, mut y) = ([1.0; 5], [7.0; 3]);
        let columns = Columns::new(&x, 5).unwrap();
        let short = kernels.matmul(&threads, &scratch, w, columns, &mut y[..2]).unwrap_err();
        assert_eq!(short.to_string(), "y needs 3 values, found 2");
        let narrow =
            kernels.matmul(&threads, &scratch, w, Columns::new(&x[..4], 4).unwrap(), &mut y).unwrap_err();
        assert_eq!((narrow.expected, narrow.found), (5, 4));
        let empty = Scratch::new(&threads, 0);
        assert!(kernels.matmul(&threads, &empty, w, columns, &mut y).is_err());
        assert_eq!(y, [7.0; 3]);
        assert!(kernels.gemv_transposed(&mut [0.0; 4], w, &[0.0; 3], &mut [0.0; 5]).is_err());
    }
}

/// Runs one operation on every instruction set and compares all outputs with those of the scalar one.
fn same_on_all(name: &str, operation: impl Fn(Kernels) -> Vec<f32>) {
    let scalar = operation(Kernels::with_isa(Isa::Scalar).unwrap());
    for kernels in exercised() {
        let other = operation(kernels);
        assert!(same_bits(&scalar, &other), "{name} differs on {}", kernels.isa());
    }
}

#[test]
fn pointwise_operations_are_the_same_bits_everywhere() {
    // All exponents and both signs, NaN and infinities included.
    let x: Vec<f32> = (0..=u16::MAX).map(|bits| f32::from_bits(u32::from(bits) << 16 | 0x1234)).collect();
    let y: Vec<f32> = x.iter().rev().copied().collect();
    let constants = reference::Situ { beta: 4.0, linear_beta: Some(25.0) };
    same_on_all("sigmoid", |kernels| {
        let mut x = x.clone();
        kernels.sigmoid_all(&mut x);
        x
    });
    same_on_all("silu", |kernels| {
        let mut x = x.clone();
        kernels.silu(&mut x);
        x
    });
    same_on_all("gate", |kernels| {
        let mut x = x.clone();
        kernels.gate(&mut x, &y);
        x
    });
    same_on_all("swiglu", |kernels| {
        let mut x = x.clone();
        kernels.swiglu(&mut x, &y);
        x
    });
    same_on_all("rotate", |kernels| {
        let mut x = x.clone();
        kernels.rotate(&mut x, &y[..32], &y[32..64]);
        x
    });
    same_on_all("situ", |kernels| {
        let mut x = x.clone();
        kernels.situ(&mut x, &y, constants);
        x
    });
    for form in [reference::Decay::Softplus, reference::Decay::Bounded { lower_bound: -5.0 }] {
        same_on_all("decay", |kernels| {
            let mut x = x.clone();
            kernels.decay(&mut x, 1.7, form);
            x
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn products_equal_the_reference(kind in kinds(), rows in 0usize..80, groups in 1usize..9, odd in 0usize..32, count in 1usize..40, seed: u64) {
        let whole = matches!(kind, Kind::Mxfp4 | Kind::Mxfp4Bands | Kind::Int4);
        let cols = if whole { groups * 32 } else { groups * 32 - odd };
        check(kind, [rows, cols], count, seed);
    }

    #[test]
    fn a_column_does_not_depend_on_its_neighbours(kind in kinds(), rows in 1usize..40, count in 2usize..20, seed: u64) {
        let mut seeded = Seeded::new(seed);
        let stored = Stored::new(kind, [rows, 96], &mut seeded);
        let x = seeded.normals(count * 96, 1.0);
        let threads = Threads::new(1).unwrap();
        for kernels in exercised() {
            let scratch = Scratch::new(&threads, kernels.matmul_scratch(96, count));
            let mut buffer = vec![0.0; kernels.packed_len(96, count)];
            let all = kernels.columns(&threads, &x, 96, &mut buffer).unwrap();
            let mut y = vec![0.0; rows * count];
            kernels.matmul(&threads, &scratch, stored.view(kind), all, &mut y).unwrap();
            for (c, x) in x.chunks(96).enumerate() {
                let mut alone = vec![0.0; rows];
                kernels.matmul(&threads, &scratch, stored.view(kind), Columns::new(x, 96).unwrap(), &mut alone).unwrap();
                let together: Vec<f32> = y.iter().skip(c).step_by(count).copied().collect();
                prop_assert!(same_bits(&together, &alone));
            }
        }
    }

    #[test]
    fn the_reference_is_within_its_bound_of_float64(kind in kinds(), groups in 1usize..30, seed: u64) {
        let mut seeded = Seeded::new(seed);
        let cols = groups * 32;
        let stored = Stored::new(kind, [3, cols], &mut seeded);
        let w = stored.view(kind);
        let x = seeded.normals(cols, 1.0);
        let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let (mut y, mut exact) = (vec![0.0f32; 3], vec![0.0f64; 3]);
        reference::gemv(w, &x, &mut y);
        reference::gemv(w, &wide, &mut exact);
        let mut weights = vec![0.0f32; cols];
        for (r, (&y, &exact)) in y.iter().zip(&exact).enumerate() {
            w.decode_row(r, &mut weights);
            let size: f64 = weights.iter().zip(&wide).map(|(&w, x)| (f64::from(w) * x).abs()).sum();
            // Beside the rounding errors, each of the K steps may underflow by half the smallest subnormal.
            let bound = gamma(cols + LANES) * size + cols as f64 * f64::from(f32::from_bits(1));
            prop_assert!((f64::from(y) - exact).abs() <= bound);
        }
    }

    #[test]
    fn transposed_products_are_the_same_bits_in_any_pieces(kind in kinds(), rows in 1usize..20, cut in 0usize..20, groups in 1usize..5, seed: u64) {
        let mut seeded = Seeded::new(seed);
        let cols = groups * 32;
        let stored = Stored::new(kind, [rows, cols], &mut seeded);
        let w = stored.view(kind);
        let x = seeded.normals(rows, 1.0);
        let mut expected = vec![0.0f32; cols];
        reference::gemv_transposed(w, &x, &mut expected);
        let multiple = w.encoding().row_multiple();
        let cut = (cut / multiple * multiple).min(rows / multiple * multiple);
        for kernels in exercised() {
            let (mut y, mut scratch) = (vec![0.0; cols], vec![0.0; cols]);
            kernels.gemv_transposed(&mut scratch, w.slice_rows(0..cut), &x[..cut], &mut y).unwrap();
            kernels.gemv_transposed(&mut scratch, w.slice_rows(cut..rows), &x[cut..], &mut y).unwrap();
            prop_assert!(same_bits(&y, &expected));
        }
    }

    #[test]
    fn integer_products_equal_the_reference(name in prop::sample::select(INTEGERS.to_vec()), bands in any::<bool>(), rows in 0usize..40, blocks in 1usize..9, odd in 0usize..32, count in 1usize..36, seed: u64) {
        let kind = if bands { Kind::Mxfp4Bands } else { Kind::Int(name) };
        let cols = if bands { blocks * 32 } else { blocks * 32 - odd };
        let mut seeded = Seeded::new(seed);
        let stored = Stored::new(kind, [rows, cols], &mut seeded);
        let w = stored.view(kind);
        let x = seeded.normals(count * cols, 1.0);
        let group = w.integer_group().unwrap();
        let mut expected = vec![f32::NAN; rows * count];
        for (c, x) in x.chunks_exact(cols).enumerate() {
            let (mut codes, mut scales) = (vec![0; cols], vec![0.0; cols.div_ceil(group)]);
            kimi_quant::activations::quantize_column(x, group, &mut codes, &mut scales);
            let mut column = vec![f32::NAN; rows];
            reference::gemv_integer(w, &codes, &scales, &mut column);
            expected.iter_mut().skip(c).step_by(count).zip(column).for_each(|(y, value)| *y = value);
        }
        for kernels in exercised() {
            for threads in [1, 2].into_iter().filter(|&threads| threads <= max_threads()) {
                let threads = Threads::new(threads).unwrap();
                let mut buffers = IntegerBuffers::default();
                let columns = buffers.quantize(&threads, &x, cols, group).unwrap();
                let mut y = vec![f32::NAN; rows * count];
                kernels.matmul_integer(&threads, w, columns, &mut y).unwrap();
                prop_assert!(same_bits(&y, &expected), "{} {:?}", kernels.isa(), kind);
            }
        }
    }

    #[test]
    fn integer_products_are_near_the_exact_ones(name in prop::sample::select(INTEGERS.to_vec()), seed: u64) {
        let mut seeded = Seeded::new(seed);
        let stored = Stored::new(Kind::Int(name), [8, 512], &mut seeded);
        let w = stored.view(Kind::Int(name));
        let x = seeded.normals(512, 1.0);
        let (threads, kernels, mut buffers) = (Threads::new(1).unwrap(), Kernels::detect(), IntegerBuffers::default());
        let columns = buffers.quantize(&threads, &x, 512, w.integer_group().unwrap()).unwrap();
        let (mut y, mut exact) = (vec![0.0f32; 8], vec![0.0f32; 8]);
        kernels.matmul_integer(&threads, w, columns, &mut y).unwrap();
        reference::gemv(w, &x, &mut exact);
        // Half a step of 127 of the largest activation, on each of 512 products of independent sign.
        prop_assert!(y.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 1.5), "{:?} {:?}", y, exact);
    }

    #[test]
    fn vector_operations_are_the_same_bits_everywhere(n in 1usize..70, columns in 1usize..5, seed: u64) {
        let mut seeded = Seeded::new(seed);
        let x = seeded.normals(n * columns, 2.0);
        let weight = seeded.normals(n, 1.0);
        same_on_all("rms_norm", |kernels| {
            let mut out = vec![f32::NAN; x.len()];
            kernels.rms_norm(&x, &weight, 1e-5, &mut out);
            out
        });
        same_on_all("l2_norm", |kernels| {
            let mut x = x.clone();
            kernels.l2_norm(&mut x, n, 1e-6, 0.25);
            x
        });
        same_on_all("add and accumulate", |kernels| {
            let mut sum = weight.clone();
            kernels.add(&mut sum, &x[..n]);
            kernels.accumulate(&mut sum, 0.3, &x[..n]);
            sum
        });
        same_on_all("mix", |kernels| {
            let sources: Vec<&[f32]> = x.chunks(n).collect();
            let (mut scores, mut out) = (vec![f32::NAN; columns], vec![f32::NAN; n]);
            kernels.mix(&sources, &weight, 1e-5, &mut scores, &mut out);
            out.extend(scores);
            out
        });
        let (taps, tail) = (seeded.normals(4 * n, 0.6), seeded.normals(3 * n, 1.0));
        same_on_all("short_conv", |kernels| {
            let mut y = vec![f32::NAN; x.len()];
            kernels.short_conv(&taps, &tail, &x, n, &mut y);
            y
        });
    }

    #[test]
    fn kda_and_attention_are_the_same_bits_everywhere(keys in 1usize..40, values in 1usize..40, positions in 1usize..30, seed: u64) {
        let mut seeded = Seeded::new(seed);
        let state = seeded.normals(keys * values, 1.0);
        let (q, k, v) = (seeded.normals(keys, 1.0), seeded.normals(keys, 1.0), seeded.normals(values, 1.0));
        let decay: Vec<f32> = (0..keys).map(|_| seeded.unit()).collect();
        same_on_all("kda_step", |kernels| {
            let (mut state, mut u, mut out) = (state.clone(), vec![f32::NAN; values], vec![f32::NAN; values]);
            kernels.kda_step(&mut state, &q, &k, &v, &decay, 0.7, &mut u, &mut out);
            [state, out].concat()
        });
        let rows = seeded.normals(positions * keys, 1.0);
        let width = keys.div_ceil(2);
        same_on_all("attention", |kernels| {
            let half = positions.div_ceil(2);
            let (mut scores, mut context, mut other) = (vec![f32::NAN; half], vec![f32::NAN; width], vec![f32::NAN; width]);
            let mut state = kernels.attend_block(&q, &rows[..half * keys], 0.3, &mut scores, &mut context);
            if half < positions {
                let rest = positions - half;
                let block = kernels.attend_block(&q, &rows[half * keys..], 0.3, &mut scores[..rest], &mut other);
                kernels.merge_blocks(&mut state, &mut context, block, &other);
            }
            kernels.finish_attention(state, &mut context);
            context.extend([state.max, state.total]);
            context
        });
    }
}
