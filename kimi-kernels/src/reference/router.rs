//! The choice of experts.

use super::{Real, sigmoid};

/// How scores become experts and weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Route<F> {
    /// Experts per token.
    pub top_k: usize,
    /// Divide the weights by their sum (plus 1e-20).
    pub renormalize: bool,
    /// Factor on the weights.
    pub scale: F,
}

/// Chooses experts for one column from the router's logits.
///
/// `score = sigmoid(logit)`. The `top_k` experts of largest `score + bias` are chosen; of equal ones the lower id wins,
/// and a NaN counts as larger than every number, so that it is never lost from sight. The bias takes part in the choice
/// only. Writes the chosen ids in ascending order with their weights. `order` is scratch with one entry per expert.
///
/// # Panics
/// If the lengths do not fit or `top_k` exceeds the number of experts.
pub fn route<F: Real>(
    logits: &[F],
    bias: &[F],
    route: Route<F>,
    order: &mut [(F, u32)],
    ids: &mut [u32],
    weights: &mut [F],
) {
    let top_k = route.top_k;
    assert!(bias.len() == logits.len() && order.len() == logits.len(), "a bias and an entry per expert");
    assert!(top_k <= logits.len() && ids.len() == top_k && weights.len() == top_k, "top_k ids and weights");
    for (id, ((entry, &logit), &bias)) in order.iter_mut().zip(logits).zip(bias).enumerate() {
        *entry = (sigmoid(logit) + bias, id as u32);
    }
    let rank = |value: F| if value.is_nan() { F::infinity() } else { value };
    if (1..order.len()).contains(&top_k) {
        order.select_nth_unstable_by(top_k - 1, |(a, a_id), (b, b_id)| {
            rank(*b).partial_cmp(&rank(*a)).expect("ranks are numbers").then(a_id.cmp(b_id))
        });
    }
    for (id, (_, chosen)) in ids.iter_mut().zip(order.iter()) {
        *id = *chosen;
    }
    ids.sort_unstable();
    let mut total = F::zero();
    for (weight, &id) in weights.iter_mut().zip(ids.iter()) {
        *weight = sigmoid(logits[id as usize]);
        total = total + *weight;
    }
    if route.renormalize && top_k > 1 {
        total = total + <F as From<f32>>::from(1e-20);
        for weight in weights.iter_mut() {
            *weight = *weight / total;
        }
    }
    for weight in weights {
        *weight = *weight * route.scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(logits: &[f32], bias: &[f32], top_k: usize) -> (Vec<u32>, Vec<f32>) {
        let (mut order, mut ids, mut weights) =
            (vec![(0.0, 0); logits.len()], vec![0; top_k], vec![0.0; top_k]);
        route(
            logits,
            bias,
            Route { top_k, renormalize: true, scale: 2.0 },
            &mut order,
            &mut ids,
            &mut weights,
        );
        (ids, weights)
    }

    #[test]
    fn the_bias_chooses_but_does_not_weigh() {
        let (ids, weights) = chosen(&[0.0, 0.0, 3.0, -3.0], &[0.0, 0.5, 0.0, 9.0], 2);
        assert_eq!(ids, [1, 3]);
        let (a, b) = (sigmoid(0.0f32), sigmoid(-3.0f32));
        assert_eq!(weights, [a / (a + b) * 2.0, b / (a + b) * 2.0]);
    }

    #[test]
    fn of_equal_experts_the_lower_id_wins() {
        assert_eq!(chosen(&[1.0; 5], &[0.0; 5], 3).0, [0, 1, 2]);
    }

    #[test]
    fn a_nan_is_chosen_and_shows_in_its_weight() {
        let (ids, weights) = chosen(&[5.0, f32::NAN, 4.0], &[0.0; 3], 2);
        assert_eq!(ids, [0, 1]);
        assert!(weights.iter().all(|weight| weight.is_nan()));
    }
}
