//! Views over arbitrary bytes and shapes: an error, or rows that decode.
#![no_main]

use kimi_quant::{Bf16, DenseView, MatrixView, Mxfp4View};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|parts: (usize, u16, &[u8], &[u8])| {
    let (rows, cols, weights, scales) = parts;
    let shape = [rows, usize::from(cols)];
    let views = [
        DenseView::<f32>::new(shape, weights).map(MatrixView::from),
        DenseView::<Bf16>::new(shape, weights).map(MatrixView::from),
        Mxfp4View::new(shape, weights, scales).map(MatrixView::from),
    ];
    let mut row = vec![0.0; usize::from(cols)];
    for view in views.into_iter().flatten() {
        for r in 0..view.rows().min(64) {
            view.decode_row(r, &mut row);
        }
    }
});
