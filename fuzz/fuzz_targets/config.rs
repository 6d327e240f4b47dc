//! A `config.json` of arbitrary bytes: a configuration or an error.
#![no_main]

use std::path::Path;

use kimi_model::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(config) = Config::parse(data, Path::new("config.json")) {
        assert!(!config.layers.is_empty() && config.hidden_size > 0);
    }
});
