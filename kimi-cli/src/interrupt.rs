//! Ctrl-C: the first one ends the generation, the second one the program.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Exit;

/// Set while something is running that can end by itself.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Asks for the end.
static CANCEL: AtomicBool = AtomicBool::new(false);

/// Watches for Ctrl-C and termination. Outside of a generation they end the program at once.
pub(crate) fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if !RUNNING.load(Ordering::SeqCst) || CANCEL.swap(true, Ordering::SeqCst) {
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
    // An earlier request has had its effect.
    CANCEL.store(false, Ordering::SeqCst);
    RUNNING.store(true, Ordering::SeqCst);
    let result = work(&CANCEL);
    RUNNING.store(false, Ordering::SeqCst);
    result
}
