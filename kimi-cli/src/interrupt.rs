//! Ctrl-C: the first one ends the generation, the second one the program.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Exit;

/// Set while something is running that can end by itself.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Set from the moment a message is read until the answer has ended: what is said between generations must not be lost.
static TURN: AtomicBool = AtomicBool::new(false);

/// Asks for the end.
static CANCEL: AtomicBool = AtomicBool::new(false);

/// Watches for Ctrl-C and termination. Outside of a generation they end the program at once.
pub(crate) fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        let at_rest = !RUNNING.load(Ordering::SeqCst) && !TURN.load(Ordering::SeqCst);
        if at_rest || CANCEL.swap(true, Ordering::SeqCst) {
            std::process::exit(Exit::Interrupted as i32);
        }
    })?;
    Ok(())
}

/// Asks for the end of what is running, as the first Ctrl-C does; nothing happens when nothing is.
pub(crate) fn request() {
    if RUNNING.load(Ordering::SeqCst) {
        CANCEL.store(true, Ordering::SeqCst);
    }
}

/// Runs something that ends soon after the flag it is given becomes true.
pub(crate) fn cancellable<R>(work: impl FnOnce(&'static AtomicBool) -> R) -> R {
    if !TURN.load(Ordering::SeqCst) {
        // An earlier request has had its effect.
        CANCEL.store(false, Ordering::SeqCst);
    }
    RUNNING.store(true, Ordering::SeqCst);
    let result = work(&CANCEL);
    RUNNING.store(false, Ordering::SeqCst);
    result
}

/// Runs a turn of a conversation: a first Ctrl-C ends what is running or about to run in it, and never the program.
pub(crate) fn turn<R>(work: impl FnOnce() -> R) -> R {
    CANCEL.store(false, Ordering::SeqCst);
    TURN.store(true, Ordering::SeqCst);
    let result = work();
    TURN.store(false, Ordering::SeqCst);
    result
}
