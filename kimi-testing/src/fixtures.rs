//! Where the committed fixtures and the optional data beside the checkout lie.

use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("kimi-testing lies in the workspace").to_path_buf()
}

/// The tiny random-weight checkpoint of the `kimi_k3` family with its expected outputs.
pub fn kimi_k3_oracle() -> PathBuf {
    workspace().join("kimi-model/tests/golden/kimi_k3")
}

/// The demo model: a small trained model of the Kimi K3 architecture.
pub fn demo_model() -> PathBuf {
    workspace().join("kimi-cli/demo/model")
}

/// A file of the data that cannot be part of the project (the released vocabulary and its goldens), or
/// `None` with a printed line when it is absent.
///
/// Looked up below `KIMI_SHARED` when that variable is set, else in `shared/` beside the checkout.
pub fn shared_data(relative: &str) -> Option<PathBuf> {
    let root = std::env::var_os("KIMI_SHARED").map_or_else(|| workspace().join("../shared"), PathBuf::from);
    let path = root.join(relative);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is absent (set KIMI_SHARED to the folder that holds {relative})", path.display());
    None
}
