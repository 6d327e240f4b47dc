//! What the matrices of a model see: second moments of their inputs on a text, with which `pack` loses less.
//!
//! Matrices that multiply the same activations share their moments. The halves of `kv_b` and the embedding have none: the one are
//! multiplied head by head with inputs of their own, of the other rows are looked up.

mod file;
mod moments;

use std::sync::atomic::AtomicBool;

use crate::engine::Engine;
use crate::error::Error;
use crate::pass::PassOptions;

pub use file::Calibration;
pub use moments::{CalibrateOptions, Moments};

/// Adds what the matrices see of `window`, read after `bos` in a session of its own; every weight is read once per pass.
///
/// The sums are float64 in the order of the tokens: they do not depend on threads, passes or memory.
///
/// # Errors
/// Those of a pass; [`Error::Cancelled`] soon after `cancel` became true. The moments are lost then, as they hold a part of the
/// window: go on from those that were [saved](Moments::save).
///
/// # Panics
/// If the moments were made for another model than the engine's.
pub fn gather(
    engine: &mut Engine,
    moments: Moments,
    window: &[u32],
    bos: u32,
    cancel: &AtomicBool,
) -> Result<Moments, Error> {
    assert_eq!(
        moments.matrices(),
        engine.model.layout.matrices.len(),
        "moments belong to the model they were made for"
    );
    engine.weights.moments = Some(Box::new(moments));
    let done = read(engine, window, bos, cancel);
    let mut moments = engine.weights.moments.take().expect("a pass leaves them where they are");
    done?;
    moments.count(window.len());
    Ok(*moments)
}

fn read(engine: &mut Engine, window: &[u32], bos: u32, cancel: &AtomicBool) -> Result<(), Error> {
    let mut session = engine.session()?;
    let inputs: Vec<u32> = std::iter::once(bos).chain(window.iter().copied()).take(window.len()).collect();
    for inputs in inputs.chunks(engine.max_columns()) {
        let options = PassOptions { more: true, cancel: Some(cancel), ..PassOptions::default() };
        engine.forward(&mut session, inputs, options)?.commit(inputs.len())?;
    }
    Ok(())
}
