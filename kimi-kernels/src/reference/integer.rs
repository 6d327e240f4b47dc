//! The fast tier: integer products of quantized weights with int8 activations.

use kimi_quant::MatrixView;

use super::Real;

/// `y[r] = sum over groups g of dot(levels of w[r] in g, codes of x in g) * (scale of w[r] in g * scale of x in g)`.
///
/// The dot of a group is an exact integer. The sum over groups is one chain in ascending order, each step one fused multiply-add of
/// the integer, as float32, with the rounded product of both scales.
///
/// # Panics
/// If the encoding has no [`integer_group`](MatrixView::integer_group), or the lengths do not fit.
pub fn gemv_integer<F: Real>(w: MatrixView<'_>, codes: &[i8], scales: &[f32], y: &mut [F]) {
    let group = w.integer_group().expect("an encoding of small integers");
    let groups = w.cols().div_ceil(group);
    assert_eq!(
        (codes.len(), scales.len(), y.len()),
        (w.cols(), groups, w.rows()),
        "x has the columns of w, y its rows"
    );
    let (mut levels, mut weight_scales) = (vec![0; w.cols()], vec![0.0; groups]);
    for (r, y) in y.iter_mut().enumerate() {
        w.decode_levels(r, &mut levels, &mut weight_scales);
        *y = F::zero();
        let pairs = levels.chunks(group).zip(codes.chunks(group));
        for ((levels, codes), (&weight_scale, &scale)) in pairs.zip(weight_scales.iter().zip(scales)) {
            let dot: i32 = levels.iter().zip(codes).map(|(&level, &code)| level * i32::from(code)).sum();
            let [dot, weight_scale, scale] = [dot as f32, weight_scale, scale].map(<F as From<f32>>::from);
            *y = dot.mul_add(weight_scale * scale, *y);
        }
    }
}
