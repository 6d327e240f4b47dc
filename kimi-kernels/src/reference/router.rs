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
    /// The experts are so many groups of neighbours, of which [`kept_groups`](Self::kept_groups) take part.
    pub groups: usize,
    /// Groups that experts are chosen from.
    pub kept_groups: usize,
}

/// Chooses experts for one column from the router's logits.
///
/// `score = sigmoid(logit)`. The `top_k` experts of largest `score + bias` are chosen; of equal ones the lower id wins,
/// and a NaN counts as larger than every number, so that it is never lost from sight. The bias takes part in the choice
/// only. With groups, the sum of its two largest `score + bias` ranks a group, of equal ones the first wins, and experts are chosen
/// from the `kept_groups` groups of highest rank (DeepSeek-V3's `noaux_tc`). Writes the chosen ids in ascending order with their weights. `order` is scratch with one entry per expert.
///
/// # Panics
/// If the lengths do not fit, `top_k` exceeds the number of experts in the groups that are kept, or the groups do not share out
/// the experts.
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
    let mut order = order;
    if route.kept_groups < route.groups {
        let kept = keep_groups(order, route.groups, route.kept_groups, rank);
        order = &mut order[..kept];
        assert!(top_k <= order.len(), "top_k experts in the kept groups");
    }
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

/// Moves the experts of the best groups to the front and returns how many they are.
fn keep_groups<F: Real>(
    order: &mut [(F, u32)],
    groups: usize,
    kept_groups: usize,
    rank: impl Fn(F) -> F,
) -> usize {
    assert!(order.len().is_multiple_of(groups), "groups of one size");
    let size = order.len() / groups;
    for done in 0..kept_groups {
        // The best of the groups that are left: those before `done` are kept already, the others stand in their order.
        let mut best: Option<(usize, F)> = None;
        for group in done..groups {
            let (mut first, mut second) = (-F::infinity(), -F::infinity());
            for &(value, _) in &order[group * size..][..size] {
                let value = rank(value);
                if value > first {
                    (first, second) = (value, first);
                } else if value > second {
                    second = value;
                }
            }
            let sum = if size > 1 { first + second } else { first };
            if best.is_none_or(|(_, best)| sum > best) {
                best = Some((group, sum));
            }
        }
        let (group, _) = best.expect("there are more groups than are kept");
        // The groups that it overtakes keep their order.
        order[done * size..(group + 1) * size].rotate_right(size);
    }
    kept_groups * size
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(logits: &[f32], bias: &[f32], top_k: usize) -> (Vec<u32>, Vec<f32>) {
        grouped(logits, bias, top_k, [1, 1])
    }

    fn grouped(
        logits: &[f32],
        bias: &[f32],
        top_k: usize,
        [groups, kept_groups]: [usize; 2],
    ) -> (Vec<u32>, Vec<f32>) {
        let (mut order, mut ids, mut weights) =
            (vec![(0.0, 0); logits.len()], vec![0; top_k], vec![0.0; top_k]);
        route(
            logits,
            bias,
            Route { top_k, renormalize: true, scale: 2.0, groups, kept_groups },
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
    fn experts_come_from_the_groups_whose_two_best_are_largest() {
        // The best expert of all is alone in its group.
        let logits = [3.0, -9.0, -9.0, 1.0, 1.1, -9.0, 0.9, 1.0, 0.8, -9.0, -9.0, -9.0];
        let flat = [0.0; 12];
        assert_eq!(grouped(&logits, &flat, 2, [4, 4]).0, [0, 4]);
        assert_eq!(grouped(&logits, &flat, 2, [4, 1]).0, [3, 4]);
        assert_eq!(grouped(&logits, &flat, 3, [4, 2]).0, [3, 4, 7]);
        // The bias counts in the choice of groups.
        let mut bias = flat;
        bias[9] = 5.0;
        assert_eq!(grouped(&logits, &bias, 2, [4, 1]).0, [9, 10]);
        // Of equal groups the first ones are kept.
        assert_eq!(grouped(&[1.0; 8], &[0.0; 8], 3, [4, 2]).0, [0, 1, 2]);
    }

    #[test]
    fn a_nan_is_chosen_and_shows_in_its_weight() {
        let (ids, weights) = chosen(&[5.0, f32::NAN, 4.0], &[0.0; 3], 2);
        assert_eq!(ids, [0, 1]);
        assert!(weights.iter().all(|weight| weight.is_nan()));
    }
}
