//! The tiny checkpoints against their expected outputs, and every way of running them against each other.

mod support;

use std::path::PathBuf;

use kimi_kernels::Kernels;
use kimi_model::Observer;
use kimi_testing::same_bits;
use support::{FAMILIES, difference, engine, family, feed, feed_observed, golden, greedy, ids};

/// The bound of the fixtures' description is 2e-4; this is what the exact tier is held to.
const LOGIT_TOLERANCE: f32 = 5e-5;

/// Every family, and the variant of K3 that leaves all optional fields out.
fn fixtures() -> impl Iterator<Item = PathBuf> {
    ["kimi_k3", "kimi_k3_defaults"].into_iter().chain(FAMILIES).map(family)
}

#[test]
fn logits_and_greedy_ids_are_the_expected_ones() {
    for dir in fixtures() {
        let golden = golden(&dir);
        let prompt = ids(&golden["input_ids"]);
        let mut engine = engine(&dir, |_| {});
        let mut session = engine.session().unwrap();
        let logits = feed(&mut engine, &mut session, &prompt, 32);
        let worst = difference(&logits, &golden["logits"]);
        let expected = ids(&golden["greedy_ids"]);
        let (found, rows) = greedy(&mut engine, &mut session, logits.last().unwrap(), expected.len());
        let worst_greedy = difference(&rows, &golden["greedy_logits"]);
        println!("{}: logits {worst:.1e}, greedy {worst_greedy:.1e}", dir.display());
        assert_eq!(found, expected);
        assert!(worst <= LOGIT_TOLERANCE && worst_greedy <= LOGIT_TOLERANCE, "{worst} {worst_greedy}");
    }
}

#[test]
fn every_way_to_feed_a_prompt_gives_the_same_bits() {
    for dir in fixtures() {
        let prompt = ids(&golden(&dir)["input_ids"]);
        let mut expected: Option<Vec<f32>> = None;
        for kernels in Kernels::available() {
            for threads in [1, 2] {
                let mut engine = engine(&dir, |options| {
                    options.isa = Some(kernels.isa());
                    options.threads = Some(threads);
                });
                for chunk in [32, 1, 3, 7, 12] {
                    let mut session = engine.session().unwrap();
                    let logits = feed(&mut engine, &mut session, &prompt, chunk).concat();
                    let expected = expected.get_or_insert_with(|| logits.clone());
                    assert!(
                        same_bits(&logits, expected),
                        "{}, {threads} threads, chunks of {chunk}",
                        kernels.isa()
                    );
                }
            }
        }
    }
}

/// Collects what the layers did, layer after layer, columns appended.
#[derive(Default)]
struct Trace {
    hidden: Vec<Vec<f32>>,
    experts: Vec<(usize, Vec<u32>, Vec<f32>)>,
}

impl Observer for Trace {
    fn layer(&mut self, layer: usize, layers: usize, sums: &[f32]) {
        self.hidden.resize(layers, Vec::new());
        self.hidden[layer].extend_from_slice(sums);
    }

    fn experts(&mut self, layer: usize, ids: &[u32], weights: &[f32]) {
        self.experts.push((layer, ids.to_vec(), weights.to_vec()));
    }
}

#[test]
fn every_layer_gives_the_expected_hidden_state_and_experts() {
    for dir in fixtures() {
        let golden = golden(&dir);
        let prompt = ids(&golden["input_ids"]);
        let mut engine = engine(&dir, |_| {});
        let mut session = engine.session().unwrap();
        let mut trace = Trace::default();
        feed_observed(&mut engine, &mut session, &prompt, 32, &mut trace);
        for (layer, found) in trace.hidden.into_iter().enumerate() {
            let worst = difference(&[found], &golden[&format!("hidden.{}", layer + 1)]);
            // The sums of the K3 fixture reach 70.
            assert!(worst <= 1e-3, "layer {layer}: {worst}");
        }
        for (layer, found, weights) in trace.experts {
            let Some(expected) = golden.get(&format!("layer.{layer}.topk_idx")) else { continue };
            assert_eq!(found, ids(expected), "layer {layer}");
            assert!(difference(&[weights], &golden[&format!("layer.{layer}.topk_weight")]) <= 1e-5);
        }
    }
}
