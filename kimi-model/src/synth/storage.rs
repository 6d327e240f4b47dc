//! How a release with a given configuration spells and stores its tensors.

use std::path::Path;

use kimi_quant::Encoding;
use serde_json::Value;

use crate::checkpoint::EXPERT_NAMES;
use crate::config::{Activation, Config};
use crate::error::ConfigError;

/// Names and types of the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Storage {
    /// In front of every name.
    pub(super) prefix: &'static str,
    /// The module of a layer's experts, and their gate, up and down matrix.
    pub(super) module: &'static str,
    pub(super) names: [&'static str; 3],
    /// The projections of the layers.
    pub(super) trunk: Encoding,
    pub(super) experts: Encoding,
}

impl Storage {
    /// Reads `quantization_config`. Without one, experts are MXFP4 beside SiTU, as in K3, and BF16 beside SiLU.
    pub(super) fn new(config: &Config, json: &Value, path: &Path) -> Result<Self, ConfigError> {
        let text = json.get("text_config").filter(|text| text.is_object());
        let fields = text.unwrap_or(json);
        let deepseek = usize::from(fields.get("n_routed_experts").is_some_and(|experts| !experts.is_null()));
        let quantization = fields.get("quantization_config").or_else(|| json.get("quantization_config"));
        let field =
            |name: &str| quantization.and_then(|quantization| quantization.get(name)).and_then(Value::as_str);
        let (trunk, experts) = match (field("quant_method"), field("format")) {
            (Some("fp8"), _) => (Encoding::Fp8, Encoding::Fp8),
            (_, Some("pack-quantized")) => (Encoding::Bf16, Encoding::Int4),
            (_, Some("mxfp4-pack-quantized")) => (Encoding::Bf16, Encoding::Mxfp4),
            (None, None) if config.activation == Activation::Silu => (Encoding::Bf16, Encoding::Bf16),
            (None, None) => (Encoding::Bf16, Encoding::Mxfp4),
            (method, format) => {
                let found = format.or(method).unwrap_or_default();
                let reason = format!("`{found}` is not known: fp8, pack-quantized or mxfp4-pack-quantized");
                let (file, field) = (path.to_path_buf(), "quantization_config".to_owned());
                return Err(ConfigError::Invalid { file, field, reason });
            }
        };
        Ok(Self {
            prefix: if text.is_some() { "language_model." } else { "" },
            module: ["block_sparse_moe", "mlp"][deepseek],
            names: EXPERT_NAMES[deepseek],
            trunk,
            experts,
        })
    }
}
