//! Products with MXFP4 weights by value: what a code and a scale mean, on every instruction set.

use kimi_kernels::{Columns, Kernels, Scratch, Threads};
use kimi_quant::mxfp4::{E2M1, GROUP_SIZE, Mxfp4BandsView, to_bands};
use kimi_quant::{MatrixView, Mxfp4View};

/// Nine rows: a band of eight and the beginning of another.
const ROWS: usize = 9;

/// Code `i % 16` in column `i`, in every row.
fn codes() -> Vec<u8> {
    (0..ROWS * GROUP_SIZE / 2).map(|i| ((2 * i % 16) | (((2 * i + 1) % 16) << 4)) as u8).collect()
}

fn products(kernels: Kernels, w: MatrixView<'_>, x: &[f32]) -> Vec<f32> {
    let threads = Threads::new(1).unwrap();
    let columns = Columns::new(x, GROUP_SIZE).unwrap();
    let scratch = Scratch::new(&threads, kernels.matmul_scratch(GROUP_SIZE, columns.count()));
    let mut y = vec![f32::NAN; ROWS * columns.count()];
    kernels.matmul(&threads, &scratch, w, columns, &mut y).unwrap();
    y
}

/// Scales from the smallest up to the largest with which every code is a finite float32. The small ones make subnormal
/// products, which must not be flushed to zero; a table of doubled codes must not double them.
#[test]
fn every_code_and_scale_is_exact_in_products() {
    let codes = codes();
    // Column `i` picks the weight `i` of each row.
    let mut picks = vec![0.0; GROUP_SIZE * GROUP_SIZE];
    (0..GROUP_SIZE).for_each(|i| picks[i * GROUP_SIZE + i] = 1.0);
    for scale in 0..=252u8 {
        let scales = [scale; ROWS];
        let rows = Mxfp4View::new([ROWS, GROUP_SIZE], &codes, &scales).unwrap();
        let bands = to_bands(rows);
        let bands = Mxfp4BandsView::new([ROWS, GROUP_SIZE], &bands).unwrap();
        let exact = |i: usize| f64::from(E2M1[i % 16]) * (f64::from(scale) - 127.0).exp2();
        for kernels in Kernels::available() {
            for (layout, w) in [("rows", MatrixView::from(rows)), ("bands", bands.into())] {
                let y = products(kernels, w, &picks);
                for (row, y) in y.chunks_exact(GROUP_SIZE).enumerate() {
                    for (i, &y) in y.iter().enumerate() {
                        let place =
                            format!("{} {layout}, scale {scale}, row {row}, code {}", kernels.isa(), i % 16);
                        assert_eq!(f64::from(y), exact(i), "{place}");
                    }
                }
                // One column alone takes another path.
                let y = products(kernels, w, &picks[GROUP_SIZE * 7..][..GROUP_SIZE]);
                assert!(
                    y.iter().all(|&y| f64::from(y) == exact(7)),
                    "{} {layout}, scale {scale}",
                    kernels.isa()
                );
            }
        }
    }
}

#[test]
fn a_scale_that_is_no_number_makes_its_rows_no_number() {
    let codes = codes();
    let mut scales = [127; ROWS];
    scales[4] = 255;
    let rows = Mxfp4View::new([ROWS, GROUP_SIZE], &codes, &scales).unwrap();
    let bands = to_bands(rows);
    let bands = Mxfp4BandsView::new([ROWS, GROUP_SIZE], &bands).unwrap();
    for kernels in Kernels::available() {
        for w in [MatrixView::from(rows), bands.into()] {
            for count in [1, 3, 17] {
                let y = products(kernels, w, &vec![1.0; count * GROUP_SIZE]);
                for (row, y) in y.chunks_exact(count).enumerate() {
                    assert!(y.iter().all(|y| y.is_nan() == (row == 4)), "{} row {row}: {y:?}", kernels.isa());
                }
            }
        }
    }
}
