//! Threads that each read one buffer at a time, with calls that block.

use std::time::Instant;

use super::queue::Shared;
use crate::source::prepare_thread;

/// What a reader thread does.
pub(super) fn serve(shared: &Shared) {
    prepare_thread();
    while let Some((class, cell)) = shared.next_job() {
        if let Some(mut work) = cell.begin() {
            let start = Instant::now();
            let (done, result) = cell.read(&mut work);
            shared.count(class, done, start.elapsed());
            cell.finish(work, result);
        }
        shared.ended();
    }
}
