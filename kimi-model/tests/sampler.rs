//! Sampling against a plain reference, and at its edges.

#[path = "support/sampling.rs"]
mod sampling;

use kimi_model::{MAX_LOGPROBS, Sampler, SamplerError, SamplerOptions};
use kimi_testing::Seeded;
use proptest::prelude::*;
use sampling::{Reference, logits_of};

type Change = fn(&mut SamplerOptions);

fn options(temperature: f32) -> SamplerOptions {
    with(temperature, |_| {})
}

fn with(temperature: f32, change: impl FnOnce(&mut SamplerOptions)) -> SamplerOptions {
    let mut options = SamplerOptions::default();
    (options.temperature, options.seed) = (temperature, 7);
    change(&mut options);
    options
}

fn sampler(options: &SamplerOptions, vocab_size: usize) -> Sampler {
    Sampler::new(options, vocab_size).unwrap()
}

/// One token from a new sampler.
fn one(options: &SamplerOptions, logits: &[f32]) -> u32 {
    sampler(options, logits.len()).sample(logits).unwrap().id
}

/// How often each token comes out.
fn counts(options: &SamplerOptions, logits: &[f32], draws: usize) -> Vec<usize> {
    let mut sampler = sampler(options, logits.len());
    let mut counts = vec![0; logits.len()];
    for _ in 0..draws {
        counts[sampler.sample(logits).unwrap().id as usize] += 1;
    }
    counts
}

/// The ids that come out.
fn support(options: &SamplerOptions, logits: &[f32]) -> Vec<usize> {
    let counts = counts(options, logits, 2000);
    (0..logits.len()).filter(|&id| counts[id] > 0).collect()
}

/// Pearson's statistic against its value that one in 10,000 samples of the distribution exceeds (Wilson and Hilferty's
/// approximation). What is expected less than five times is counted together.
fn fits(counts: &[usize], probabilities: &[f64]) -> bool {
    let draws = counts.iter().sum::<usize>() as f64;
    let (mut statistic, mut bins, mut rare) = (0.0, 0, (0.0, 0.0));
    let mut add = |count: f64, expected: f64| {
        statistic += (count - expected).powi(2) / expected;
        bins += 1;
    };
    for (&count, &probability) in counts.iter().zip(probabilities) {
        let (count, expected) = (count as f64, probability * draws);
        if expected >= 5.0 {
            add(count, expected);
        } else if expected > 0.0 {
            rare = (rare.0 + count, rare.1 + expected);
        } else if count > 0.0 {
            return false;
        }
    }
    if rare.1 > 0.0 {
        add(rare.0, rare.1);
    }
    let freedom = f64::from(bins - 1);
    let spread = 2.0 / (9.0 * freedom.max(1.0));
    statistic <= freedom.max(1.0) * (1.0 - spread + 3.719 * spread.sqrt()).powi(3)
}

/// Holds counts against the reference, which must tell them from those of a temperature a tenth higher.
fn assert_fits(counts: &[usize], options: &SamplerOptions, prompt: &[u32], logits: &[f32]) {
    let probabilities = |options: &SamplerOptions| {
        let mut reference = Reference::new(options);
        reference.prompt(prompt);
        reference.probabilities(logits)
    };
    assert!(fits(counts, &probabilities(options)), "{options:?}: {counts:?}");
    let mut warmer = options.clone();
    warmer.temperature *= 1.1;
    assert!(!fits(counts, &probabilities(&warmer)), "{options:?}: {counts:?}");
}

#[test]
fn frequencies_are_those_of_the_reference() {
    let mut random = Seeded::new(3);
    let changes: [Change; 8] = [
        |_| {},
        |options| options.temperature = 0.5,
        |options| options.temperature = 3.0,
        |options| options.top_k = 5,
        |options| options.top_p = 0.7,
        |options| options.min_p = 0.1,
        |options| options.logit_bias = vec![(3, 2.0), (9, -4.0)],
        |options| (options.top_k, options.top_p, options.min_p) = (12, 0.9, 0.03),
    ];
    for change in changes {
        for seed in [1, 2, u64::MAX] {
            let (mut options, logits) = (with(1.0, change), random.normals(40, 1.5));
            options.seed = seed;
            assert_fits(&counts(&options, &logits, 40_000), &options, &[], &logits);
        }
    }
}

#[test]
fn frequencies_after_a_prompt_are_those_of_the_reference() {
    let (mut random, prompt) = (Seeded::new(4), [5, 6, 5, 39]);
    for penalty in [0.7, 1.3, 2.0] {
        let logits = random.normals(40, 1.5);
        let mut options = with(1.0, |options| options.repetition_penalty = penalty);
        let mut counts = vec![0; logits.len()];
        // What is sampled joins the context, so every draw has a sampler of its own.
        for _ in 0..40_000 {
            options.seed = random.bits();
            let mut sampler = sampler(&options, logits.len());
            sampler.prompt(&prompt);
            counts[sampler.sample(&logits).unwrap().id as usize] += 1;
        }
        assert_fits(&counts, &options, &prompt, &logits);
    }
}

/// Options of every kind, for a vocabulary.
fn any_options(vocab_size: usize) -> impl Strategy<Value = SamplerOptions> {
    let limit = || prop_oneof![Just(0.0f32), Just(1.0), 0.0f32..1.0, 0.9f32..1.0];
    let filters = (
        prop_oneof![Just(0.0f32), Just(1.0), 0.01f32..3.0],
        prop_oneof![0usize..5, 0..vocab_size + 2],
        prop_oneof![Just(1.0f32), limit()],
        prop_oneof![Just(0.0f32), limit(), 0.0f32..0.1],
    );
    let penalties = (
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
        prop_oneof![Just(0usize), 1usize..6],
    );
    let bias = proptest::collection::btree_map(0..vocab_size as u32, -5.0f32..5.0, 0..4);
    (filters, penalties, bias, any::<u64>()).prop_map(|(filters, penalties, bias, seed)| {
        let mut options = SamplerOptions::default();
        (options.temperature, options.top_k, options.top_p, options.min_p) = filters;
        (
            options.repetition_penalty,
            options.presence_penalty,
            options.frequency_penalty,
            options.penalty_window,
        ) = penalties;
        options.logit_bias = bias.into_iter().collect();
        options.seed = seed;
        options
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_token_is_that_of_the_reference(
        (options, vocab_size) in prop_oneof![1usize..40, 250usize..2000]
            .prop_flat_map(|vocab_size| (any_options(vocab_size), Just(vocab_size))),
        (seed, values) in (any::<u64>(), prop_oneof![2usize..10, Just(1usize << 20)]),
    ) {
        let (mut random, mut reference) = (Seeded::new(seed), Reference::new(&options));
        let mut sampler = sampler(&options, vocab_size);
        let prompt: Vec<u32> = (0..random.below(9)).map(|_| random.below(vocab_size + 2) as u32).collect();
        sampler.prompt(&prompt);
        reference.prompt(&prompt);
        for _ in 0..12 {
            // Few values make many equal logits.
            let mut logits: Vec<f32> =
                (0..vocab_size).map(|_| random.below(values) as f32 / values as f32 * 12.0 - 6.0).collect();
            let forbidden = random.below(vocab_size);
            if vocab_size > 1 {
                logits[forbidden] = f32::NEG_INFINITY;
            }
            prop_assert_eq!(sampler.sample(&logits).unwrap().id, reference.sample(&logits));
        }
    }
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_the_sum() {
    let logits = logits_of(&[0.15, 0.5, 0.05, 0.3]);
    for (top_p, kept) in [
        (0.0, &[1][..]),
        (f32::MIN_POSITIVE, &[1]),
        (1e-9, &[1]),
        (0.5, &[1]),
        (0.6, &[1, 3]),
        (0.8, &[1, 3]),
        (0.81, &[0, 1, 3]),
        (0.95, &[0, 1, 3]),
        (0.96, &[0, 1, 2, 3]),
        (1.0, &[0, 1, 2, 3]),
    ] {
        assert_eq!(support(&with(1.0, |options| options.top_p = top_p), &logits), kept, "{top_p}");
    }
}

#[test]
fn zero_and_tiny_temperatures_take_the_largest_logit() {
    let logits = [1.0f32, 3.0, 3.0, -200.0];
    for temperature in [0.0, -0.0] {
        assert_eq!(one(&options(temperature), &logits), 1, "of equal logits the lower id wins");
    }
    for temperature in [1e-45, f32::MIN_POSITIVE, 1e-9] {
        assert_eq!(support(&options(temperature), &logits), [1, 2], "{temperature}");
    }
    // Nothing is left of the differences, nothing of the tail is lost.
    assert_eq!(support(&options(f32::MAX), &logits), [0, 1, 2, 3]);
}

#[test]
fn top_k_and_min_p_cut_the_tail() {
    let logits = logits_of(&[0.05, 0.3, 0.5, 0.15]);
    for (top_k, kept) in [
        (1, &[2][..]),
        (2, &[1, 2]),
        (3, &[1, 2, 3]),
        (4, &[0, 1, 2, 3]),
        (0, &[0, 1, 2, 3]),
        (usize::MAX, &[0, 1, 2, 3]),
    ] {
        assert_eq!(support(&with(1.0, |options| options.top_k = top_k), &logits), kept, "{top_k}");
    }
    for (min_p, kept) in [
        (0.0, &[0, 1, 2, 3][..]),
        (0.09, &[0, 1, 2, 3]),
        (0.11, &[1, 2, 3]),
        (0.4, &[1, 2]),
        (0.61, &[2]),
        (1.0, &[2]),
    ] {
        assert_eq!(support(&with(1.0, |options| options.min_p = min_p), &logits), kept, "{min_p}");
    }
    assert_eq!(support(&with(9.0, |options| options.min_p = 1.0), &[0.0, 1.0, 1.0]), [1, 2]);
}

#[test]
fn filters_act_one_after_the_other() {
    let logits = logits_of(&[0.4, 0.3, 0.2, 0.1]);
    // Of the three kept, the first two have 0.78 of the weight.
    let both = |top_p| with(1.0, |options| (options.top_k, options.top_p) = (3, top_p));
    assert_eq!(support(&both(0.75), &logits), [0, 1]);
    assert_eq!(support(&both(0.8), &logits), [0, 1, 2]);
    // A temperature of 2 makes the probabilities 0.33, 0.28, 0.23 and 0.16.
    assert_eq!(support(&with(2.0, |options| options.top_p = 0.6), &logits), [0, 1]);
    assert_eq!(support(&with(2.0, |options| options.top_p = 0.7), &logits), [0, 1, 2]);
}

#[test]
fn of_equal_logits_the_lower_ids_are_kept() {
    for logits in [[1.0f32; 6], [0.0, -0.0, 0.0, -0.0, 0.0, 0.0], [-0.0, 0.0, 0.0, -0.0, 0.0, 0.0]] {
        assert_eq!(one(&options(0.0), &logits), 0);
        assert_eq!(support(&with(1.0, |options| options.top_k = 2), &logits), [0, 1]);
        assert_eq!(support(&with(1.0, |options| options.top_p = 0.5), &logits), [0, 1, 2]);
    }
}

#[test]
fn the_stream_is_fixed_by_the_seed() {
    let logits: Vec<f32> = (0..50).map(|i| (i * 37 % 50) as f32 / 20.0).collect();
    let draw = |seed, change: Change| {
        let mut options = with(1.0, change);
        options.seed = seed;
        let mut sampler = sampler(&options, logits.len());
        [(); 8].map(|()| sampler.sample(&logits).unwrap().id)
    };
    // These numbers are part of the interface: a change would alter what users see for a given seed.
    assert_eq!(draw(42, |_| {}), [21, 8, 12, 16, 27, 14, 35, 29]);
    assert_eq!(draw(0, |_| {}), [18, 47, 27, 15, 31, 16, 8, 25]);
    assert_eq!(draw(u64::MAX, |_| {}), [45, 49, 35, 20, 17, 33, 7, 12]);
    assert_eq!(draw(42, |options| options.top_k = 20), [1, 31, 8, 35, 27, 32, 31, 5]);
    assert_eq!(draw(42, |options| options.top_p = 0.6), [24, 4, 8, 35, 27, 28, 31, 1]);
    assert_eq!(draw(42, |options| options.frequency_penalty = 1.0), [21, 8, 39, 20, 27, 45, 16, 10]);
}

#[test]
fn greedy_choice_draws_no_number() {
    let logits = logits_of(&[0.2, 0.5, 0.3]);
    let changes: [Change; 2] = [|options| options.top_k = 1, |options| options.top_p = 0.0];
    for change in changes {
        let options = with(1.0, change);
        let mut sampler = sampler(&options, 3);
        for _ in 0..50 {
            assert_eq!(sampler.sample(&logits).unwrap().id, 1);
        }
    }
}

#[test]
fn the_repetition_penalty_counts_the_prompt_and_the_others_what_was_sampled() {
    let logits = [2.0f32, 1.9, -1.0];
    let choices = |change: Change, prompt: &[u32]| {
        let options = with(0.0, change);
        let mut sampler = sampler(&options, 3);
        sampler.prompt(prompt);
        [(); 4].map(|()| sampler.sample(&logits).unwrap().id)
    };
    // 2 becomes 1 and stays so however often the token comes up; then 1.9 becomes 0.95.
    let repetition: Change = |options| options.repetition_penalty = 2.0;
    assert_eq!(choices(repetition, &[]), [0, 1, 0, 0]);
    assert_eq!(choices(repetition, &[0]), [1, 0, 0, 0]);
    // Below 1 what came up is encouraged.
    assert_eq!(choices(|options| options.repetition_penalty = 0.5, &[1, 2]), [1, 1, 1, 1]);
    // A prompt does not count, and presence is counted once.
    let presence: Change = |options| options.presence_penalty = 0.5;
    assert_eq!(choices(presence, &[0, 0, 0]), [0, 1, 0, 0]);
    let frequency: Change = |options| options.frequency_penalty = 0.5;
    assert_eq!(choices(frequency, &[0, 0, 0]), [0, 1, 0, 1]);
    // Both together, negative ones encourage.
    assert_eq!(
        choices(|options| (options.presence_penalty, options.frequency_penalty) = (2.5, 0.4), &[]),
        [0, 1, 0, 1]
    );
    assert_eq!(
        choices(|options| (options.presence_penalty, options.frequency_penalty) = (3.5, 0.4), &[]),
        [0, 1, 2, 0]
    );
    assert_eq!(
        choices(|options| (options.frequency_penalty, options.logit_bias) = (-1.0, vec![(2, 5.0)]), &[]),
        [2; 4]
    );
    // Negative logits are multiplied.
    let negative = with(0.0, |options| options.repetition_penalty = 3.0);
    let mut sampler = sampler(&negative, 2);
    sampler.prompt(&[0]);
    assert_eq!(sampler.sample(&[-1.0, -2.0]).unwrap().id, 1);
}

#[test]
fn the_window_forgets() {
    let logits = [2.0f32, 1.9, 1.8];
    let choices = |window, prompt: &[u32]| {
        let options = with(0.0, |options| (options.presence_penalty, options.penalty_window) = (1.0, window));
        let mut sampler = sampler(&options, 3);
        sampler.prompt(prompt);
        [(); 6].map(|()| sampler.sample(&logits).unwrap().id)
    };
    assert_eq!(choices(0, &[]), [0, 1, 2, 0, 0, 0]);
    assert_eq!(choices(1, &[]), [0, 1, 0, 1, 0, 1]);
    assert_eq!(choices(2, &[0, 1]), [0, 1, 2, 0, 1, 2]);
    assert_eq!(choices(usize::MAX, &[]), choices(0, &[]));
    // Ids outside the vocabulary take their place in the window and nothing else.
    let options = with(0.0, |options| (options.repetition_penalty, options.penalty_window) = (2.0, 2));
    let mut sampler = sampler(&options, 3);
    sampler.prompt(&[0, 3, u32::MAX]);
    assert_eq!(sampler.sample(&logits).unwrap().id, 0);
}

#[test]
fn a_bias_moves_a_token() {
    let logits = logits_of(&[0.7, 0.1, 0.2]);
    let biased = |bias: &[(u32, f32)]| with(1.0, |options| options.logit_bias = bias.to_vec());
    assert_eq!(support(&biased(&[(0, -1e9)]), &logits), [1, 2]);
    assert_eq!(support(&biased(&[(1, 1e9)]), &logits), [1]);
    // Beyond the range of float32 the largest numbers stand, and equal ones are equally probable.
    assert_eq!(support(&biased(&[(1, f32::MAX), (2, f32::MAX)]), &[1e38, 2e38, 3e38]), [1, 2]);
    assert_eq!(support(&biased(&[(0, -f32::MAX), (1, -f32::MAX)]), &[-1e38, -3e38, -f32::MAX]), [0, 1, 2]);
    // What is forbidden stays so.
    assert_eq!(support(&biased(&[(0, f32::MAX)]), &[f32::NEG_INFINITY, 0.0]), [1]);
}

#[test]
fn huge_penalties_stay_within_the_numbers() {
    let extreme = [f32::MAX, f32::MIN, 1e-45, 0.0, -0.0, f32::NEG_INFINITY, 1.0];
    for repetition in [f32::MIN_POSITIVE, 1e-45, 1.0, f32::MAX] {
        for presence in [f32::MIN, 0.0, f32::MAX] {
            for frequency in [f32::MIN, 0.0, f32::MAX] {
                let options = with(1.0, |options| {
                    (options.repetition_penalty, options.presence_penalty, options.frequency_penalty) =
                        (repetition, presence, frequency);
                });
                let mut sampler = sampler(&options, extreme.len());
                sampler.prompt(&[0, 1, 2, 3, 4, 5, 6]);
                for _ in 0..20 {
                    assert_ne!(sampler.sample(&extreme).unwrap().id, 5, "{options:?}");
                }
            }
        }
    }
}

#[test]
fn logits_that_are_none_are_an_error_and_leave_the_sampler_as_it_was() {
    let good: Vec<f32> = (0..40).map(|i| (i % 7) as f32).collect();
    for options in [
        options(0.0),
        options(1.0),
        with(1.0, |options| (options.top_k, options.presence_penalty) = (3, 1.0)),
    ] {
        let (mut tried, mut untried) = (sampler(&options, 40), sampler(&options, 40));
        for value in [f32::NAN, f32::INFINITY] {
            let mut bad = good.clone();
            (bad[17], bad[39]) = (value, f32::NAN);
            let error = tried.sample(&bad).unwrap_err();
            assert!(matches!(error, SamplerError::Logit { id: 17, .. }), "{error}");
        }
        assert_eq!(tried.sample(&[f32::NEG_INFINITY; 40]).unwrap_err(), SamplerError::NothingLeft);
        for _ in 0..20 {
            assert_eq!(tried.sample(&good).unwrap(), untried.sample(&good).unwrap());
        }
    }
    // One that is allowed is enough, and weights never overflow.
    let mut last = [f32::NEG_INFINITY; 40];
    last[39] = f32::MIN;
    assert_eq!(one(&options(1.0), &last), 39);
    assert_eq!(support(&options(1.0), &[f32::MAX, f32::MIN, f32::MAX]), [0, 2]);
    assert_eq!(Sampler::new(&options(1.0), 0).unwrap().sample(&[]).unwrap_err(), SamplerError::NothingLeft);
}

#[test]
fn logprobs_are_those_of_the_model_whatever_is_sampled() {
    let probabilities = [0.1f32, 0.4, 0.3, 0.2];
    let logits: Vec<f32> = logits_of(&probabilities).iter().map(|logit| logit + 50.0).collect();
    let close = |found: f32, p: f32| (found - p.ln()).abs() < 2e-5;
    for (temperature, count) in [(0.0, 0), (0.0, 3), (1.5, 2), (1.5, 20)] {
        let options = with(temperature, |options| {
            (options.logprobs, options.logit_bias) = (Some(count), vec![(0, 10.0)]);
            (options.top_p, options.frequency_penalty) = (0.9, 0.5);
        });
        let mut sampler = sampler(&options, 4);
        for _ in 0..20 {
            let sampled = sampler.sample(&logits).unwrap();
            assert!(close(sampled.logprob.unwrap(), probabilities[sampled.id as usize]));
            let ids: Vec<u32> = sampled.top.iter().map(|top| top.id).collect();
            assert_eq!(ids, [1, 2, 3, 0][..count.min(4)]);
            assert!(sampled.top.iter().all(|top| close(top.logprob, probabilities[top.id as usize])));
        }
    }
    let without =
        sampler(&options(1.0), 4).sample(&logits).map(|sampled| (sampled.logprob, sampled.top.len()));
    assert_eq!(without, Ok((None, 0)));
}

#[test]
fn logprobs_have_edges_too() {
    let options = with(0.0, |options| options.logprobs = Some(4));
    let mut sampler = sampler(&options, 4);
    let mut top = |logits: [f32; 4]| {
        let sampled = sampler.sample(&logits).unwrap();
        (sampled.logprob.unwrap(), sampled.top.iter().map(|top| (top.id, top.logprob)).collect::<Vec<_>>())
    };
    // Equal ones in order of their ids, forbidden ones nowhere.
    let third = -(3f32.ln());
    assert_eq!(top([5.0, f32::NEG_INFINITY, 5.0, 5.0]), (third, vec![(0, third), (2, third), (3, third)]));
    assert_eq!(top([f32::NEG_INFINITY, f32::NEG_INFINITY, -7.0, f32::NEG_INFINITY]), (0.0, vec![(2, 0.0)]));
    let (_, far) = top([f32::MAX, f32::MIN, 0.0, f32::MAX]);
    assert_eq!(far[2..], [(2, f32::MIN), (1, f32::MIN)]);
}

#[test]
fn options_out_of_range_are_refused() {
    type Set = fn(&mut SamplerOptions, f32);
    let sets: [(&str, Set, &[f32]); 6] = [
        ("temperature", |options, value| options.temperature = value, &[-1.0, -1e-45, f32::INFINITY]),
        ("top_p", |options, value| options.top_p = value, &[-0.1, 1.0001, f32::INFINITY]),
        ("min_p", |options, value| options.min_p = value, &[-0.1, 1.5]),
        (
            "repetition_penalty",
            |options, value| options.repetition_penalty = value,
            &[0.0, -0.0, -1.0, f32::INFINITY],
        ),
        (
            "presence_penalty",
            |options, value| options.presence_penalty = value,
            &[f32::INFINITY, f32::NEG_INFINITY],
        ),
        (
            "frequency_penalty",
            |options, value| options.frequency_penalty = value,
            &[f32::INFINITY, f32::NEG_INFINITY],
        ),
    ];
    for (name, set, values) in sets {
        for &value in values.iter().chain(&[f32::NAN]) {
            let error = Sampler::new(&with(1.0, |options| set(options, value)), 9).unwrap_err();
            assert!(matches!(error, SamplerError::Range { option, .. } if option == name), "{error}");
        }
    }
    for (change, expected) in [
        (
            (|options| options.temperature = -1.0) as Change,
            "temperature is -1, it must be 0 or a positive number",
        ),
        (
            |options| options.logit_bias = vec![(9, 1.0)],
            "logit_bias of token id 9: the vocabulary has 9 entries",
        ),
        (
            |options| options.logit_bias = vec![(1, f32::NAN)],
            "logit_bias of token id 1: NaN is not a finite number",
        ),
        (
            |options| options.logit_bias = vec![(1, f32::NEG_INFINITY)],
            "logit_bias of token id 1: -inf is not a finite number",
        ),
        (
            |options| options.logit_bias = vec![(8, 1.0), (0, 1.0), (8, 1.0)],
            "logit_bias of token id 8: the token has one already",
        ),
        (|options| options.logprobs = Some(21), "logprobs is 21, it must be 20 or less"),
    ] {
        assert_eq!(with(1.0, change).check(9).unwrap_err().to_string(), expected);
    }
    assert!(with(1.0, |options| options.logprobs = Some(MAX_LOGPROBS)).check(9).is_ok());
}
