//! Sessions that go back: the same bits as without, for every format of latents and width of passes.

mod support;

use kimi_model::{Error, KvFormat, Session};
use kimi_testing::{Seeded, kimi_k3_oracle};
use support::{engine, family, feed};

/// The logits after each of the tokens, from a fresh session.
fn fresh(engine: &mut kimi_model::Engine, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut session = engine.session().unwrap();
    feed(engine, &mut session, tokens, chunk)
}

#[test]
fn a_session_goes_on_from_a_checkpoint_as_if_nothing_had_been_between() {
    for model in [kimi_k3_oracle(), family("kimi_linear"), family("deepseek_v3")] {
        for kv in KvFormat::ALL {
            let mut engine = engine(&model, |options| options.kv = kv);
            // Narrow passes are logged, wide ones have a shadow.
            for chunk in [1, 5, 24] {
                let mut random = Seeded::new(chunk as u64);
                let mut session = engine.session().unwrap();
                let mut tokens: Vec<u32> = Vec::new();
                for round in 0..8 {
                    let new: Vec<u32> = (0..1 + random.below(30)).map(|_| random.below(60) as u32).collect();
                    tokens.truncate(session.position());
                    tokens.extend(&new);
                    let found = feed(&mut engine, &mut session, &new, chunk);
                    let expected = fresh(&mut engine, &tokens, chunk);
                    assert!(expected.ends_with(&found), "{} {kv} {chunk} {round}", model.display());
                    session.checkpoint().unwrap();
                    let wanted = random.below(session.position() + 1);
                    let best = session.checkpoints().filter(|&at| at <= wanted).last().unwrap_or(0);
                    assert_eq!(session.rewind(wanted), best);
                    assert_eq!(session.position(), best);
                    assert!(session.checkpoints().all(|at| at <= best));
                }
            }
        }
    }
}

#[test]
fn without_a_checkpoint_it_begins_anew() {
    let mut engine = engine(&kimi_k3_oracle(), |_| ());
    let mut session = engine.session().unwrap();
    feed(&mut engine, &mut session, &[9, 8, 7, 6, 5], 2);
    assert_eq!((session.rewind(9), session.rewind(5), session.position()), (5, 5, 5));
    assert_eq!(session.rewind(4), 0);
    let found = feed(&mut engine, &mut session, &[3, 1, 4], 3);
    assert!(found == fresh(&mut engine, &[3, 1, 4], 3));
}

#[test]
fn checkpoints_are_paid_for_and_given_back() {
    let mut engine = engine(&kimi_k3_oracle(), |_| ());
    let mut session = engine.session().unwrap();
    session.checkpoint().unwrap();
    assert_eq!(session.checkpoints().len(), 0, "the beginning needs none");
    feed(&mut engine, &mut session, &[1, 2, 3], 3);
    let before = engine.budget().used_bytes();
    session.checkpoint().unwrap();
    session.checkpoint().unwrap();
    assert_eq!(session.checkpoints().collect::<Vec<_>>(), [3]);
    assert_eq!(engine.budget().used_bytes() - before, session.checkpoint_bytes());
    session.forget(2);
    session.forget(3);
    assert_eq!((session.checkpoints().len(), engine.budget().used_bytes()), (0, before));

    let rest = engine.budget().available_bytes() - session.checkpoint_bytes() + 1;
    let lease = engine.budget().lease(rest, "everything").unwrap();
    assert!(matches!(session.checkpoint(), Err(Error::Paging(kimi_paging::Error::OverBudget { .. }))));
    drop(lease);
    let positions = |session: &Session| session.checkpoints().len();
    assert_eq!(positions(&session), 0, "one that failed is not there");
    assert!(engine.session_bytes() > session.checkpoint_bytes());
}
