//! Bars for work that is counted in bytes or in tokens.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What the bar shows.
const TEMPLATE: &str =
    "{decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left {wide_bar} {msg}";

/// The same for tokens.
const TOKENS: &str = "{pos} of {len} tokens, {per_sec}, {eta} left {wide_bar}";

/// A bar on the standard error, or none. Without a terminal nothing is drawn.
pub(crate) fn bar(quiet: bool) -> ProgressBar {
    styled(TEMPLATE, None, quiet)
}

/// A bar over so many tokens.
pub(crate) fn tokens(quiet: bool, tokens: usize) -> ProgressBar {
    styled(TOKENS, Some(tokens as u64), quiet)
}

fn styled(template: &str, length: Option<u64>, quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    ProgressBar::with_draw_target(length, target).with_style(style)
}

/// Moves a bar.
pub(crate) fn show(bar: &ProgressBar, done: u64, total: u64) {
    bar.set_length(total);
    bar.set_position(done);
}
