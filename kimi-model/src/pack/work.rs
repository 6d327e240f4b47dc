//! What there is to do: the files of a packed model and what goes into each.

use std::collections::HashSet;

use kimi_paging::{Entry, TensorInfo};
use kimi_quant::Encoding;

use super::patched;
use super::recipe::{Recipe, Role, keeps};
use crate::checkpoint::FP8_SCALES;
use crate::error::Error;
use crate::files::is_file_tensor;
use crate::layout::{BlockScales, ExpertBank, FeedForward, KEY_PART, VALUE_PART};
use crate::model::Model;
use crate::packed::{BLOCK, BankInfo, HEADER_BYTES, MAX_TILE_BYTES, MatrixInfo, ROW_MULTIPLE, RecordLayout};

/// A file to be written.
#[derive(Debug)]
pub(crate) struct FileWork<'a> {
    pub(crate) name: String,
    pub(crate) matrices: Vec<MatrixWork<'a>>,
    pub(crate) bank: Option<BankWork<'a>>,
    /// Tensors that are copied as they are.
    pub(crate) copies: Vec<String>,
}

/// A matrix to be cut into tiles.
#[derive(Debug, Clone)]
pub(crate) struct MatrixWork<'a> {
    /// The tensor to be written.
    pub(crate) tensor: String,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) source: Encoding,
    pub(crate) target: Encoding,
    /// Rows of a tile.
    pub(crate) tile_rows: usize,
    pub(crate) entry: &'a Entry,
    /// Bytes of a row in the source.
    pub(crate) row_bytes: u64,
    /// The scales of FP8.
    pub(crate) scales: Option<&'a BlockScales>,
}

/// The experts of a layer to be written as records.
#[derive(Debug, Clone)]
pub(crate) struct BankWork<'a> {
    pub(crate) bank: &'a ExpertBank,
    pub(crate) target: Encoding,
    pub(crate) layout: RecordLayout,
}

impl MatrixWork<'_> {
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(self.tile_rows)
    }

    /// The rows of a tile.
    pub(crate) fn rows_of(&self, tile: usize) -> std::ops::Range<usize> {
        let first = tile * self.tile_rows;
        first..self.rows.min(first + self.tile_rows)
    }

    /// Bytes of the source.
    pub(crate) fn source_bytes(&self) -> u64 {
        self.rows as u64 * self.row_bytes
    }

    /// Bytes from one tile to the next, when no tile is larger than `payload`.
    pub(crate) fn stride(payload: usize) -> usize {
        (HEADER_BYTES + payload).next_multiple_of(BLOCK)
    }

    /// Bytes of the largest tile's weights, patches of BF12 aside.
    pub(crate) fn payload(&self) -> Result<usize, Error> {
        Ok(self.target.matrix_bytes([self.tile_rows.min(self.rows), self.cols])?)
    }
}

impl MatrixWork<'_> {
    /// What a manifest says of the matrix, packed as `target`, with the hash of what was kept without loss.
    pub(crate) fn info(&self, target: Encoding, hash: Option<u64>) -> MatrixInfo {
        MatrixInfo {
            encoding: target.to_string(),
            rows: self.rows,
            cols: self.cols,
            tile_rows: self.tile_rows,
            dtype: if self.source == Encoding::F32 { "F32" } else { "BF16" }.to_owned(),
            source_xxh3: hash.map(|hash| format!("{hash:016x}")),
        }
    }
}

impl BankWork<'_> {
    /// What a manifest says of the experts, with the hash of what was kept without loss.
    pub(crate) fn info(&self, model: &Model, hash: Option<u64>) -> BankInfo {
        let bank = self.bank;
        BankInfo {
            encoding: self.target.to_string(),
            count: bank.count,
            inner: bank.inner,
            width: bank.width,
            dtypes: bank.dtypes(model.checkpoint.index()),
            names: bank.names.map(str::to_owned).to_vec(),
            source_xxh3: hash.map(|hash| format!("{hash:016x}")),
        }
    }
}

impl FileWork<'_> {
    /// Bytes of the source that go into the file.
    pub(crate) fn source_bytes(&self, model: &Model) -> u64 {
        let matrices: u64 = self.matrices.iter().map(MatrixWork::source_bytes).sum();
        let bank = self.bank.as_ref().map_or(0, |work| work.bank.count as u64 * work.bank.expert_bytes());
        let copies = self.copies.iter().filter_map(|name| model.checkpoint.index().find(name));
        matrices + bank + copies.map(|info| info.bytes).sum::<u64>()
    }

    /// The tensors of the file.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let matrices = self.matrices.iter().map(|matrix| matrix.tensor.as_str());
        let bank = self.bank.iter().map(|work| work.bank.name.as_ref());
        matrices.chain(bank).chain(self.copies.iter().map(String::as_str))
    }

    /// Bytes that the file will have, without its header; about, where there is BF12.
    pub(crate) fn target_bytes(&self, model: &Model) -> Result<u64, Error> {
        let mut bytes = 0;
        for matrix in &self.matrices {
            let payload = patched(matrix.target, matrix.payload()?);
            bytes += (matrix.tiles() * MatrixWork::stride(payload)) as u64;
        }
        if let Some(work) = &self.bank {
            bytes += work.bank.count as u64 * work.layout.stride() as u64;
        }
        let copies = self.copies.iter().filter_map(|name| model.checkpoint.index().find(name));
        Ok(bytes + copies.map(|info: TensorInfo<'_>| info.bytes).sum::<u64>())
    }

    /// True when every weight of the file keeps its bits.
    pub(crate) fn is_lossless(&self) -> bool {
        self.matrices.iter().all(|matrix| keeps(matrix.source, matrix.target))
            && self.bank.as_ref().is_none_or(|work| keeps(work.bank.encoding, work.target))
    }
}

/// All files in the order of their use.
pub(crate) fn files<'a>(model: &'a Model, recipe: &Recipe) -> Result<Vec<FileWork<'a>>, Error> {
    let (layout, checkpoint) = (&model.layout, &model.checkpoint);
    let file = |name: String| FileWork { name, matrices: Vec::new(), bank: None, copies: Vec::new() };
    let mut embedding = file("embedding.safetensors".to_owned());
    let mut layers: Vec<_> =
        (0..layout.layers.len()).map(|i| file(format!("layer-{i:05}.safetensors"))).collect();
    let mut experts = Vec::new();
    let mut output = file("output.safetensors".to_owned());
    let mut other = file("other.safetensors".to_owned());

    let mla = &model.config.mla;
    let tied = layout.matrices[layout.lm_head.0].name.as_ref() == layout.embedding.name;
    let (mut seen, mut scales, mut kept) = (HashSet::new(), HashSet::new(), Vec::new());
    for (i, (matrix, entry)) in layout.matrices.iter().zip(&layout.entries).enumerate() {
        let role = if i == layout.lm_head.0 { Role::Head } else { Role::Trunk };
        if role == Role::Head && tied {
            continue;
        }
        // The halves of `kv_b` have one name in the source and come one after the other.
        let again = !seen.insert(matrix.name.as_ref());
        let next_too = layout.matrices.get(i + 1).is_some_and(|next| next.name == matrix.name);
        let (tensor, unit) = match (again, next_too) {
            (false, true) => (format!("{}.{KEY_PART}", matrix.name), mla.qk_nope_head_dim),
            (true, _) => (format!("{}.{VALUE_PART}", matrix.name), mla.v_head_dim),
            _ => (matrix.name.to_string(), ROW_MULTIPLE),
        };
        let mut target = recipe.choose(&tensor, role, matrix.encoding, unit);
        if matrix.encoding == Encoding::Fp8 && (again || next_too) {
            // Both halves stay as they are, or neither does.
            let halves = [(KEY_PART, mla.qk_nope_head_dim), (VALUE_PART, mla.v_head_dim)];
            let stays = |(part, unit)| {
                recipe.choose(&format!("{}.{part}", matrix.name), role, matrix.encoding, unit)
                    == Encoding::Fp8
            };
            target = if halves.into_iter().any(stays) { Encoding::Fp8 } else { target };
        }
        // What is FP8 and stays so is copied, with its scales, like everything that is no matrix.
        if matrix.encoding == Encoding::Fp8 && target == Encoding::Fp8 {
            kept.push(matrix.name.as_ref());
            continue;
        }
        if let Some(base) = matrix.name.strip_suffix("weight").filter(|_| matrix.scales.is_some()) {
            scales.insert(format!("{base}{FP8_SCALES}"));
        }
        let (rows, cols) = (matrix.rows, matrix.cols);
        let work = MatrixWork {
            tile_rows: tile_rows(target, rows, cols)?,
            tensor,
            rows,
            cols,
            source: matrix.encoding,
            target,
            entry,
            row_bytes: matrix.row_bytes,
            scales: matrix.scales.as_ref(),
        };
        match layer_of(&matrix.name, checkpoint.prefix()).and_then(|layer| layers.get_mut(layer)) {
            Some(file) => file.matrices.push(work),
            None => output.matrices.push(work),
        }
    }
    let stored = &layout.embedding;
    let entry = &layout.embedding_entry;
    embedding.matrices.push(MatrixWork {
        tensor: stored.name.clone(),
        rows: stored.rows,
        cols: stored.cols,
        source: stored.encoding,
        target: recipe.choose(&stored.name, Role::Embedding, stored.encoding, ROW_MULTIPLE),
        // A token reads one tile.
        tile_rows: ROW_MULTIPLE,
        entry,
        row_bytes: stored.row_bytes(),
        scales: None,
    });
    seen.insert(&stored.name);
    seen.retain(|name| !kept.contains(name));

    let mut bank_names = Vec::new();
    for (i, layer) in layout.layers.iter().enumerate() {
        let FeedForward::Moe(moe) = &layer.feed_forward else { continue };
        let bank = &moe.experts;
        let target = recipe.choose(&bank.name, Role::Experts, bank.encoding, bank.width.min(bank.inner));
        if bank.encoding == Encoding::Fp8 && target == Encoding::Fp8 {
            continue;
        }
        let layout = RecordLayout::new(target, bank.inner, bank.width)?;
        let mut file = file(format!("layer-{i:05}-experts.safetensors"));
        file.bank = Some(BankWork { bank, target, layout });
        bank_names.push(format!("{}.", bank.name));
        experts.push((i, file));
    }

    for (name, _) in checkpoint.index().iter() {
        let layer = layer_of(&name, checkpoint.prefix());
        // Those are copied as files.
        let packed = is_file_tensor(&name)
            || seen.contains(name.as_str())
            || scales.contains(&name)
            || bank_names.iter().any(|bank| name.starts_with(bank));
        if packed {
            continue;
        }
        match layer.and_then(|layer| layers.get_mut(layer)) {
            Some(file) => file.copies.push(name),
            None if name.starts_with(checkpoint.prefix()) && !checkpoint.prefix().is_empty() => {
                output.copies.push(name);
            }
            None if name.starts_with("model.") => output.copies.push(name),
            None => other.copies.push(name),
        }
    }

    let mut files = vec![embedding];
    let mut experts = experts.into_iter().peekable();
    for (i, layer) in layers.into_iter().enumerate() {
        files.push(layer);
        files.extend(experts.next_if(|(of, _)| *of == i).map(|(_, file)| file));
    }
    files.push(output);
    files.push(other);
    files.retain(|file| !file.matrices.is_empty() || file.bank.is_some() || !file.copies.is_empty());
    Ok(files)
}

/// Rows of the tiles of a matrix: those between half and all that fit a tile with which the matrix takes the fewest bytes.
fn tile_rows(target: Encoding, rows: usize, cols: usize) -> Result<usize, Error> {
    let step = target.matrix_bytes([ROW_MULTIPLE, cols])?;
    // Room for the patches of BF12, which are below a percent of weights that are spread as trained ones are.
    let room = MAX_TILE_BYTES - HEADER_BYTES - if target == Encoding::Bf12 { MAX_TILE_BYTES / 64 } else { 0 };
    let steps = rows.div_ceil(ROW_MULTIPLE).max(1);
    let most = (room / step.max(1)).clamp(1, steps);
    let mut best = (usize::MAX, most);
    for per_tile in (most.div_ceil(2)..=most).rev() {
        let payload = patched(target, target.matrix_bytes([rows.min(per_tile * ROW_MULTIPLE), cols])?);
        let bytes = steps.div_ceil(per_tile) * MatrixWork::stride(payload);
        if bytes < best.0 {
            best = (bytes, per_tile);
        }
    }
    Ok(best.1 * ROW_MULTIPLE)
}

/// The number of the layer that a tensor belongs to, by its name.
pub(crate) fn layer_of(name: &str, prefix: &str) -> Option<usize> {
    name.strip_prefix(prefix)?.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_even_and_of_whole_bands() {
        for (name, rows, cols) in [
            ("i4", 12288, 7168),
            ("bf12", 7168, 12288),
            ("i8", 5, 40),
            ("bf16", 163_840, 7168),
            ("i2", 112, 896),
        ] {
            let target: Encoding = name.parse().unwrap();
            let tile = tile_rows(target, rows, cols).unwrap();
            assert!(tile.is_multiple_of(ROW_MULTIPLE));
            let bytes = target.matrix_bytes([tile.min(rows), cols]).unwrap() + HEADER_BYTES;
            assert!(bytes <= MAX_TILE_BYTES, "{name}: {bytes}");
            let tiles = rows.div_ceil(tile);
            assert!(tiles * bytes <= target.matrix_bytes([rows, cols]).unwrap() * 101 / 100 + 4096, "{name}");
        }
        let wide = tile_rows(Encoding::F32, 64, 1 << 20).unwrap();
        assert_eq!(wide, ROW_MULTIPLE, "a tile has some rows however wide they are");
    }

    #[test]
    fn layers_are_found_by_name() {
        assert_eq!(layer_of("language_model.model.layers.42.mlp.x", "language_model."), Some(42));
        assert_eq!(layer_of("model.layers.0.x", ""), Some(0));
        for name in ["model.norm.weight", "model.layers.x.y", "vision_tower.model.layers.1.x"] {
            assert_eq!(layer_of(name, ""), None);
        }
    }
}
