//! Matrix products.

use kimi_quant::MatrixView;

use super::{Real, dot};

/// Writes the values of row `row` of `w` to `out`, which holds one value per column.
pub fn decode_row<F: Real>(w: MatrixView<'_>, row: usize, out: &mut [F]) {
    let mut values = vec![0.0f32; w.cols()];
    w.decode_row(row, &mut values);
    for (out, value) in out.iter_mut().zip(values) {
        *out = value.into();
    }
}

/// `y[r] = sum over k of w[r, k] * x[k]`: the [`dot`] of each decoded row with `x`.
///
/// # Panics
/// If `x` does not hold one value per column or `y` one per row.
pub fn gemv<F: Real>(w: MatrixView<'_>, x: &[F], y: &mut [F]) {
    assert_eq!((x.len(), y.len()), (w.cols(), w.rows()), "x has the columns of w, y its rows");
    let mut weights = vec![F::zero(); w.cols()];
    for (r, y) in y.iter_mut().enumerate() {
        decode_row(w, r, &mut weights);
        *y = dot(&weights, x);
    }
}

/// `y[r, c] = sum over k of w[r, k] * x[c, k]` for every column `c` of `x`: column by column [`gemv`].
///
/// `x` is `columns x w.cols()` and `y` is `w.rows() x columns`, both row-major.
///
/// # Panics
/// If the lengths do not fit.
pub fn gemm<F: Real>(w: MatrixView<'_>, x: &[F], columns: usize, y: &mut [F]) {
    assert_eq!((x.len(), y.len()), (columns * w.cols(), w.rows() * columns), "x and y fit w and the columns");
    let mut column = vec![F::zero(); w.rows()];
    for c in 0..columns {
        gemv(w, &x[c * w.cols()..][..w.cols()], &mut column);
        for (r, value) in column.iter().enumerate() {
            y[r * columns + c] = *value;
        }
    }
}

/// Adds a product with the transposed matrix: `y[k] += sum over r of w[r, k] * x[r]`, one chain per `k` in ascending
/// `r` that goes on from the value in `y`. So a matrix may come in pieces of rows.
///
/// # Panics
/// If `x` does not hold one value per row or `y` one per column.
pub fn gemv_transposed<F: Real>(w: MatrixView<'_>, x: &[F], y: &mut [F]) {
    assert_eq!((x.len(), y.len()), (w.rows(), w.cols()), "x has the rows of w, y its columns");
    let mut weights = vec![F::zero(); w.cols()];
    for (r, x) in x.iter().enumerate() {
        decode_row(w, r, &mut weights);
        for (y, weight) in y.iter_mut().zip(&weights) {
            *y = weight.mul_add(*x, *y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kimi_quant::{Bf16, DenseView};

    #[test]
    fn a_matrix_in_pieces_gives_the_transposed_product_of_the_whole() {
        let bytes: Vec<u8> = (0..6).flat_map(|i| Bf16::from_f32(i as f32 + 0.5).0.to_le_bytes()).collect();
        let w = MatrixView::from(DenseView::<Bf16>::new([3, 2], &bytes).unwrap());
        let (mut whole, mut pieces) = ([0.0f32; 2], [0.0f32; 2]);
        gemv_transposed(w, &[1.0, -2.0, 0.25], &mut whole);
        gemv_transposed(w.slice_rows(0..1), &[1.0], &mut pieces);
        gemv_transposed(w.slice_rows(1..3), &[-2.0, 0.25], &mut pieces);
        assert_eq!(whole, pieces);
        assert_eq!(whole, [0.5 - 5.0 + 1.125, 1.5 - 7.0 + 1.375]);
    }
}
