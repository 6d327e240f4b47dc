//! What the tests and benches of this workspace share: seeded data, error bounds, fixture paths.
//!
//! Nothing here ships. Data come from a seed, so that a failure prints one number and repeats.

mod bounds;
mod fixtures;
mod isas;
mod seeded;
mod threads;

pub use bounds::{gamma, same_bits};
pub use fixtures::{demo_model, kimi_k3_oracle, shared_data};
pub use isas::report_isas;
pub use seeded::Seeded;
pub use threads::max_threads;
