//! Which matrix is stored how.

use std::collections::BTreeMap;

use kimi_quant::int::{BAND_ROWS, Bits};
use kimi_quant::{Encoding, IntFormat};
use wildmatch::WildMatch;

/// The encoding of every part of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recipe {
    /// The preset that this came from, for reports.
    pub preset: Option<String>,
    /// The matrices of the layers; what [`KEPT`] and [`EIGHT_BITS`] name is stored better than that.
    pub trunk: Encoding,
    /// The routed experts; `None` keeps the numbers of the source.
    pub experts: Option<Encoding>,
    /// The output matrix; `None` is the trunk's where that is lossless, else 8 bits.
    pub head: Option<Encoding>,
    /// The embedding; `None` as for the head.
    pub embedding: Option<Encoding>,
    /// Encodings for the matrices whose names match a pattern with `*` and `?`; the last that matches wins.
    pub overrides: Vec<(String, Encoding)>,
}

/// Matrices of the layers that keep the numbers of the source: few weights with a wide reach.
pub const KEPT: [&str; 7] = [
    "*.block_sparse_moe.gate.weight",
    "*.mlp.gate.weight",
    "*.self_attn.f_a_proj.weight",
    "*.self_attn.f_b_proj.weight",
    "*.self_attn.g_a_proj.weight",
    "*.self_attn.g_b_proj.weight",
    "*.self_attn.b_proj.weight",
];

/// Matrices of the layers that get 8 bits where the trunk has fewer: the low-rank projections of MLA.
pub const EIGHT_BITS: [&str; 4] = [
    "*.self_attn.q_a_proj.weight",
    "*.self_attn.q_b_proj.weight",
    "*.self_attn.kv_a_proj_with_mqa.weight",
    "*.self_attn.kv_b_proj.weight*",
];

/// What a matrix is to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Trunk,
    Experts,
    Head,
    Embedding,
}

/// Recipes with names, the trunk's and the experts' encoding of each: points on the curve of `docs/quality.md`.
const PRESETS: [(&str, &str, Option<&str>); 4] = [
    // No loss.
    ("exact", "bf12", None),
    // Less than 0.001 nats on the demo model.
    ("near", "i6:g64", None),
    // Less than 0.01 nats.
    ("small", "i4:g32:cb", None),
    // The smallest that was measured to lose less than 0.03 nats.
    ("tiny", "i4:g32:cb", Some("i3:g32")),
];

impl Recipe {
    /// The recipe of a name: `exact`, `near`, `small` or `tiny`.
    pub fn preset(name: &str) -> Option<Self> {
        let (name, trunk, experts) = PRESETS.into_iter().find(|(of, ..)| *of == name)?;
        let encoding = |spec: &str| spec.parse().ok();
        let experts = match experts {
            Some(spec) => Some(encoding(spec)?),
            None => None,
        };
        Some(Self { preset: Some(name.to_owned()), experts, ..Self::new(encoding(trunk)?) })
    }

    /// The names of all presets, from the least loss to the fewest bytes.
    pub fn presets() -> impl Iterator<Item = &'static str> {
        PRESETS.into_iter().map(|(name, ..)| name)
    }

    /// A recipe for the trunk that leaves everything else to the defaults.
    pub fn new(trunk: Encoding) -> Self {
        let (preset, experts, head, embedding, overrides) = (None, None, None, None, Vec::new());
        Self { preset, trunk, experts, head, embedding, overrides }
    }

    /// One line for each choice, as kept with the model.
    pub(crate) fn describe(&self) -> BTreeMap<String, String> {
        let name =
            |encoding: Option<Encoding>| encoding.map_or_else(|| "default".to_owned(), |e| e.to_string());
        let mut lines = BTreeMap::from([
            ("trunk".to_owned(), self.trunk.to_string()),
            ("experts".to_owned(), self.experts.map_or_else(|| "keep".to_owned(), |e| e.to_string())),
            ("head".to_owned(), name(self.head)),
            ("embedding".to_owned(), name(self.embedding)),
        ]);
        for (i, (pattern, encoding)) in self.overrides.iter().enumerate() {
            lines.insert(format!("override {i}"), format!("{pattern}={encoding}"));
        }
        lines
    }

    /// The encoding of a matrix of so many rows, of which `unit` must stay whole, that the source stores as `source`.
    pub(crate) fn choose(&self, name: &str, role: Role, source: Encoding, unit: usize) -> Encoding {
        let eight_bits = || "i8:g128".parse().unwrap_or(source);
        let matches =
            |patterns: &[&str]| patterns.iter().any(|pattern| WildMatch::new(pattern).matches(name));
        let overridden =
            self.overrides.iter().rev().find(|(pattern, _)| WildMatch::new(pattern).matches(name));
        let wanted = match (overridden, role) {
            (Some((_, encoding)), _) => *encoding,
            (None, Role::Experts) => self.experts.unwrap_or(source),
            (None, Role::Head) => self.head.unwrap_or_else(|| self.default_encoding()),
            (None, Role::Embedding) => self.embedding.unwrap_or_else(|| self.default_encoding()),
            (None, Role::Trunk) if is_lossless(self.trunk) => self.trunk,
            (None, Role::Trunk) if matches(&KEPT) => source,
            (None, Role::Trunk) if matches(&EIGHT_BITS) && fewer_than_eight_bits(self.trunk) => eight_bits(),
            (None, Role::Trunk) => self.trunk,
        };
        let wanted = match (wanted, source) {
            // FP8 keeps its numbers as they are.
            (Encoding::Bf16 | Encoding::Bf12 | Encoding::Fp8, Encoding::Fp8) => Encoding::Fp8,
            // So does INT4, in bands.
            (Encoding::Bf16 | Encoding::Bf12, Encoding::Int4) | (Encoding::Int4, _) => {
                Encoding::Int(IntFormat::INT4)
            }

            // What is MXFP4 already is only put in another order; without loss there is nothing else to do with other sources.
            (Encoding::Mxfp4, _) | (Encoding::Bf16 | Encoding::Bf12, Encoding::Mxfp4) => Encoding::Mxfp4Bands,
            (Encoding::Bf12 | Encoding::Bf16, Encoding::F32) => Encoding::F32,
            // Records of experts have one size.
            (Encoding::Bf12, _) if role == Role::Experts => source,
            (wanted, _) => wanted,
        };
        let whole_bands = unit.is_multiple_of(BAND_ROWS);
        if wanted.row_multiple() > 1 && !whole_bands { source } else { wanted }
    }

    fn default_encoding(&self) -> Encoding {
        if is_lossless(self.trunk) { self.trunk } else { "i8:g128".parse().unwrap_or(self.trunk) }
    }
}

/// Encodings that a BF16 source survives bit for bit.
fn is_lossless(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::Bf12 | Encoding::Bf16 | Encoding::F32)
}

fn fewer_than_eight_bits(encoding: Encoding) -> bool {
    match encoding {
        Encoding::Int(format) => format.bits() != Bits::I8,
        Encoding::Mxfp4 | Encoding::Mxfp4Bands => true,
        _ => false,
    }
}

/// True when `target` gives back every bit of `source`.
pub(crate) fn keeps(source: Encoding, target: Encoding) -> bool {
    source == target
        || matches!(
            (source, target),
            (Encoding::Bf16, Encoding::Bf12)
                | (Encoding::Mxfp4, Encoding::Mxfp4Bands)
                | (Encoding::Int4, Encoding::Int(IntFormat::INT4))
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(recipe: &Recipe, name: &str, role: Role, source: &str) -> String {
        recipe.choose(name, role, source.parse().unwrap(), 16).to_string()
    }

    #[test]
    fn a_low_bit_trunk_keeps_what_the_lists_name() {
        let recipe = Recipe::new("i4".parse().unwrap());
        let layer = "language_model.model.layers.3";
        for (name, role, source, expected) in [
            ("self_attn.q_proj.weight", Role::Trunk, "bf16", "i4:g32"),
            ("self_attn.q_proj.weight", Role::Trunk, "f32", "i4:g32"),
            ("self_attn.b_proj.weight", Role::Trunk, "bf16", "bf16"),
            ("block_sparse_moe.gate.weight", Role::Trunk, "f32", "f32"),
            ("block_sparse_moe.shared_experts.gate_proj.weight", Role::Trunk, "bf16", "i4:g32"),
            ("self_attn.kv_b_proj.weight.k", Role::Trunk, "bf16", "i8:g128"),
            ("block_sparse_moe.experts", Role::Experts, "mxfp4", "mxfp4:bands"),
            ("block_sparse_moe.experts", Role::Experts, "bf16", "bf16"),
            ("head", Role::Head, "bf16", "i8:g128"),
            ("embedding", Role::Embedding, "bf16", "i8:g128"),
        ] {
            assert_eq!(
                choose(&recipe, &format!("{layer}.{name}"), role, source),
                expected,
                "{name} {source}"
            );
        }
        let odd = recipe.choose("a.self_attn.kv_b_proj.weight.k", Role::Trunk, Encoding::Bf16, 12);
        assert_eq!(odd, Encoding::Bf16, "rows that do not fill bands stay");
    }

    #[test]
    fn without_loss_every_matrix_is_smaller_or_as_it_was() {
        let recipe = Recipe::new(Encoding::Bf12);
        for (role, source, expected) in [
            (Role::Trunk, "bf16", "bf12"),
            (Role::Trunk, "f32", "f32"),
            (Role::Head, "bf16", "bf12"),
            (Role::Experts, "mxfp4", "mxfp4:bands"),
            (Role::Experts, "bf16", "bf16"),
        ] {
            let target = choose(&recipe, "a.mlp.gate.weight", role, source);
            assert_eq!(target, expected);
            assert!(keeps(source.parse().unwrap(), target.parse().unwrap()));
        }
    }

    #[test]
    fn every_preset_has_a_recipe() {
        for name in Recipe::presets() {
            let recipe = Recipe::preset(name).unwrap();
            assert_eq!(recipe.preset.as_deref(), Some(name));
        }
        assert_eq!(Recipe::preset("exact").unwrap().trunk, Encoding::Bf12);
        assert!(Recipe::preset("huge").is_none());
    }

    #[test]
    fn the_last_pattern_that_matches_wins() {
        let mut recipe = Recipe::new("i4".parse().unwrap());
        recipe.overrides = vec![
            ("*.o_proj.weight".to_owned(), "i8".parse().unwrap()),
            ("*.layers.1.*".to_owned(), Encoding::Bf16),
        ];
        let at = |layer: usize| format!("model.layers.{layer}.self_attn.o_proj.weight");
        assert_eq!(choose(&recipe, &at(0), Role::Trunk, "bf16"), "i8:g128");
        assert_eq!(choose(&recipe, &at(1), Role::Trunk, "bf16"), "bf16");
    }
}
