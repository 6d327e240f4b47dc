//! Arguments of `pack`, `unpack` and `verify`.

use std::path::PathBuf;

use clap::Args;
use kimi_model::pack::Recipe;
use kimi_quant::Encoding;

use super::parse_size;

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// Model as released; with --single-file also a packed one
    #[arg(value_name = "SRC")]
    pub(crate) source: PathBuf,
    /// Folder, or with --single-file the file, to write the model to; an interrupted run goes on where it stopped
    #[arg(value_name = "DST")]
    pub(crate) target: PathBuf,
    /// Write one file that holds the model's configuration and tokenizer too, whatever its name ends in. A packed SRC is joined as
    /// it is; a released one is packed first, in a folder DST.parts
    #[arg(long)]
    pub(crate) single_file: bool,
    /// With --single-file: join the files of a released SRC as they are, without packing
    #[arg(long, requires = "single_file", conflicts_with_all = ["preset", "trunk", "experts", "lm_head", "embed", "overrides", "reclaim"])]
    pub(crate) as_is: bool,
    /// exact (no loss), near, small or tiny instead of SPECs; docs/quality.md has what each costs
    #[arg(long, value_name = "NAME", value_parser = parse_preset, conflicts_with_all = ["trunk", "experts"])]
    pub(crate) preset: Option<Recipe>,
    /// How the matrices of the layers are stored: bf12 (no loss, a quarter less), bf16, i8, i6, i4, i3, i2 with
    /// `:g32|g64|g128`, `:zp` or `:cb`, and `:f16`, or mxfp4 [default: bf12]
    #[arg(long, value_name = "SPEC")]
    pub(crate) trunk: Option<Encoding>,
    /// How the routed experts are stored: keep (no loss), mxfp4, i4, i3, i2 or any other SPEC of fixed size [default: keep]
    #[arg(long, value_name = "SPEC", value_parser = parse_experts)]
    pub(crate) experts: Option<Experts>,
    /// How the output matrix is stored [default: as a lossless trunk, else i8:g128]
    #[arg(long, value_name = "SPEC")]
    pub(crate) lm_head: Option<Encoding>,
    /// How the embedding is stored [default: as a lossless trunk, else i8:g128]
    #[arg(long, value_name = "SPEC")]
    pub(crate) embed: Option<Encoding>,
    /// Another SPEC for the matrices whose names match a pattern with `*` and `?`; the last that matches wins
    #[arg(long = "set", value_name = "PATTERN=SPEC", value_parser = parse_override)]
    pub(crate) overrides: Vec<(String, Encoding)>,
    /// What the matrices see, gathered by `calibrate`: less loss at the same size, most with --hessian
    #[arg(long, value_name = "STATS")]
    pub(crate) calibration: Option<PathBuf>,
    /// Show what would be written, and stop
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Free the storage of what has been written and verified in the files of SRC, which cannot be used afterwards
    #[arg(long)]
    pub(crate) reclaim: bool,
    /// Most memory that the program may take, like 2GB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) ram: Option<u64>,
    /// Threads [default: what affinity and CPU quota allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl PackArgs {
    /// The encoding of every part.
    pub(crate) fn recipe(&self) -> Recipe {
        let mut recipe = self.preset.clone().unwrap_or_else(|| {
            let mut recipe = Recipe::new(self.trunk.unwrap_or(Encoding::Bf12));
            recipe.experts = self.experts.and_then(|experts| experts.0);
            recipe
        });
        (recipe.head, recipe.embedding) = (self.lm_head, self.embed);
        recipe.overrides = self.overrides.clone();
        recipe
    }

    /// True when somebody asked for an encoding.
    pub(crate) fn chooses(&self) -> bool {
        let parts = [self.trunk, self.lm_head, self.embed].iter().any(Option::is_some);
        self.preset.is_some() || parts || self.experts.is_some() || !self.overrides.is_empty()
    }
}

/// How a model that is not packed would be.
#[derive(Debug, Args)]
pub(crate) struct PackedArgs {
    /// As if the layers had been packed with this SPEC (see `pack`)
    #[arg(long, value_name = "SPEC")]
    pub(crate) trunk: Option<Encoding>,
    /// With --trunk: the same for the experts
    #[arg(long, value_name = "SPEC", default_value = "keep", value_parser = parse_experts, requires = "trunk")]
    pub(crate) experts: Experts,
    /// With --trunk: the same for the output matrix
    #[arg(long, value_name = "SPEC", requires = "trunk")]
    pub(crate) lm_head: Option<Encoding>,
    /// With --trunk: the same for the embedding
    #[arg(long, value_name = "SPEC", requires = "trunk")]
    pub(crate) embed: Option<Encoding>,
    /// With --trunk: the same for matrices by name
    #[arg(long = "set", value_name = "PATTERN=SPEC", value_parser = parse_override, requires = "trunk")]
    pub(crate) overrides: Vec<(String, Encoding)>,
}

impl PackedArgs {
    /// What `pack` would be asked for; `None` for a model as released.
    pub(crate) fn recipe(&self) -> Option<Recipe> {
        let mut recipe = Recipe::new(self.trunk?);
        recipe.experts = self.experts.0;
        (recipe.head, recipe.embedding) = (self.lm_head, self.embed);
        recipe.overrides = self.overrides.clone();
        Some(recipe)
    }
}

#[derive(Debug, Args)]
pub(crate) struct UnpackArgs {
    /// Folder of a packed model
    #[arg(value_name = "SRC")]
    pub(crate) source: PathBuf,
    /// Folder to write the checkpoint to; it must be empty or not exist yet
    #[arg(value_name = "DST")]
    pub(crate) target: PathBuf,
    /// Write the nearest BF16 where weights were packed with loss
    #[arg(long)]
    pub(crate) lossy: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Model: a folder or a single file
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What a long command says.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArgs {
    /// Print a JSON report
    #[arg(long)]
    pub(crate) json: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// How experts are stored; `None` as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Experts(pub(crate) Option<Encoding>);

pub(super) fn parse_experts(text: &str) -> Result<Experts, String> {
    match text {
        "keep" => Ok(Experts(None)),
        _ => Ok(Experts(Some(parse_encoding(text)?))),
    }
}

pub(super) fn parse_override(text: &str) -> Result<(String, Encoding), String> {
    match text.rsplit_once('=') {
        Some((pattern, spec)) if !pattern.is_empty() => Ok((pattern.to_owned(), parse_encoding(spec)?)),
        _ => Err("must be PATTERN=SPEC, like '*.o_proj.weight=i8'".to_owned()),
    }
}

fn parse_preset(text: &str) -> Result<Recipe, String> {
    let names = || Recipe::presets().collect::<Vec<_>>().join(", ");
    Recipe::preset(text).ok_or_else(|| format!("must be one of {}", names()))
}

fn parse_encoding(text: &str) -> Result<Encoding, String> {
    text.parse().map_err(|error| format!("{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_encodings_are_told_apart() {
        assert_eq!(
            parse_override("*.o_proj.weight=i4:g64"),
            Ok(("*.o_proj.weight".to_owned(), "i4:g64".parse().unwrap()))
        );
        for text in ["", "=i4", "*.o_proj", "*=q4_k"] {
            assert!(parse_override(text).is_err(), "{text}");
        }
        assert_eq!(parse_experts("keep"), Ok(Experts(None)));
        assert!(parse_experts("small").is_err());
    }
}
