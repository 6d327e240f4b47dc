//! Names, shapes and types of the tensors in a checkpoint folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kimi_paging::{Dtype, Extent, Source, TensorIndex, TensorInfo};
use kimi_quant::{Encoding, fp8, int4, mxfp4};

use crate::error::Error;
use crate::packed::{BLOCK, BankInfo, Manifest, ROW_MULTIPLE, RecordLayout, TileCut};

/// Where the tensors of a model come from.
///
/// A face (command line, C library, server) hands one to [`Model::open`](crate::Model::open): it decides how files are
/// read, because mapping a file is only sound when nobody changes it meanwhile.
pub type OpenSource<'a> = dyn FnMut(&Path) -> Result<Arc<dyn Source>, kimi_paging::Error> + 'a;

/// Parts of a released checkpoint that belong to its vision tower; a text model skips them.
const VISION: [&str; 2] = ["vision_tower.", "mm_projector."];

/// The prefixes under which releases store a text model.
const PREFIXES: [&str; 2] = ["language_model.", ""];

/// The names of an expert's gate, up and down matrix in releases.
pub(crate) const EXPERT_NAMES: [[&str; 3]; 2] = [["w1", "w3", "w2"], ["gate_proj", "up_proj", "down_proj"]];

/// The scales of FP8, by which values are multiplied despite the name.
pub(crate) const FP8_SCALES: &str = "weight_scale_inv";

/// The tensors of one model.
#[derive(Debug)]
pub struct Checkpoint {
    index: TensorIndex,
    prefix: &'static str,
    dir: PathBuf,
    /// What a packed model is made of.
    manifest: Option<Manifest>,
}

/// A matrix as it lies in the files.
#[derive(Debug, Clone)]
pub(crate) struct StoredMatrix {
    pub(crate) name: String,
    pub(crate) encoding: Encoding,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The weights or codes.
    pub(crate) weights: Extent,
    /// The scales of an encoding that has a plane of them.
    pub(crate) scales: Option<Extent>,
    /// The tiles of a packed matrix; `weights` covers them all.
    pub(crate) tiles: Option<TileCut>,
}

impl StoredMatrix {
    /// Bytes of what is read at least at a time: a row, or a tile.
    pub(crate) fn row_bytes(&self) -> u64 {
        match self.tiles {
            Some(cut) => cut.stride as u64,
            None => self.weights.len / (self.rows as u64).max(1),
        }
    }
}

/// The experts of a layer in a packed model: one record each, one behind the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredBank {
    pub(crate) encoding: Encoding,
    pub(crate) records: Extent,
    pub(crate) layout: RecordLayout,
}

impl Checkpoint {
    /// Wraps an index; `dir` is named in errors.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] when no prefix holds an embedding.
    pub fn new(index: TensorIndex, dir: &Path) -> Result<Self, Error> {
        Self::with_manifest(index, dir, None)
    }

    /// Wraps the index of a model that is packed if there is a manifest.
    pub(crate) fn with_manifest(
        index: TensorIndex,
        dir: &Path,
        manifest: Option<Manifest>,
    ) -> Result<Self, Error> {
        const EMBEDDING: &str = "model.embed_tokens.weight";
        let found = PREFIXES.into_iter().find(|prefix| index.find(&format!("{prefix}{EMBEDDING}")).is_some());
        match found {
            Some(prefix) => Ok(Self { index, prefix, dir: dir.to_path_buf(), manifest }),
            None => Err(Error::MissingTensor { dir: dir.to_path_buf(), tensor: EMBEDDING.to_owned() }),
        }
    }

    /// The manifest of a packed model.
    pub(crate) fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// The index.
    pub fn index(&self) -> &TensorIndex {
        &self.index
    }

    /// The folder, for messages.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `"language_model."` or nothing.
    pub fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// True for a tensor that a text model has no use for.
    pub fn is_vision(name: &str) -> bool {
        VISION.iter().any(|part| name.starts_with(part))
    }

    /// True when the text model has a tensor of this name (without prefix).
    pub(crate) fn has(&self, name: &str) -> bool {
        self.index.find(&self.full(name)).is_some()
    }

    /// What the gate, up and down matrix of `expert` are called: Kimi's names or DeepSeek's.
    pub(crate) fn expert_names(&self, expert: &str) -> [&'static str; 3] {
        let known = |names: &&[&'static str; 3]| {
            let planes = ["weight", "weight_packed"];
            planes.iter().any(|plane| self.has(&format!("{expert}.{}.{plane}", names[0])))
        };
        EXPERT_NAMES.iter().find(known).copied().unwrap_or(EXPERT_NAMES[0])
    }

    pub(crate) fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn tensor(&self, name: &str) -> Result<(String, TensorInfo<'_>), Error> {
        let full = self.full(name);
        match self.index.find(&full) {
            Some(info) => Ok((full, info)),
            None => Err(Error::MissingTensor { dir: self.dir.clone(), tensor: full }),
        }
    }

    /// The matrix `base.weight`, or `base.weight_packed` where experts are MXFP4 or INT4, with its scales.
    pub(crate) fn matrix(&self, base: &str, rows: usize, cols: usize) -> Result<StoredMatrix, Error> {
        // FP8 is kept as it is in packed models too.
        if self.manifest.is_some() && !self.is_fp8(base) {
            return self.tiled(&format!("{base}.weight"), rows, cols);
        }
        if let Some(info) = self.index.find(&self.full(&format!("{base}.weight_packed"))) {
            return match info.dtype {
                Dtype::I32 => self.int4(base, rows, cols),
                _ => self.mxfp4(base, rows, cols),
            };
        }
        let (name, info) = self.tensor(&format!("{base}.weight"))?;
        let encoding = match info.dtype {
            Dtype::F32 => Encoding::F32,
            Dtype::Bf16 => Encoding::Bf16,
            Dtype::F8E4M3 => return self.fp8(base, rows, cols),
            other => return Err(self.wrong_dtype(name, "F32, BF16 or F8_E4M3", other)),
        };
        self.check_shape(&name, &[rows, cols], info)?;
        let weights = extent(info);
        Ok(StoredMatrix { name, encoding, rows, cols, weights, scales: None, tiles: None })
    }

    fn mxfp4(&self, base: &str, rows: usize, cols: usize) -> Result<StoredMatrix, Error> {
        let (name, codes) = self.tensor(&format!("{base}.weight_packed"))?;
        let (scale_name, scales) = self.tensor(&format!("{base}.weight_scale"))?;
        if codes.dtype != Dtype::U8 {
            return Err(self.wrong_dtype(name, "U8 (MXFP4 codes)", codes.dtype));
        }
        // The scales are E8M0 bytes under either name.
        if !matches!(scales.dtype, Dtype::U8 | Dtype::F8E8M0) {
            return Err(self.wrong_dtype(scale_name, "U8 or F8_E8M0", scales.dtype));
        }
        if !cols.is_multiple_of(mxfp4::GROUP_SIZE) {
            let reason = format!("{cols} columns are not a multiple of {}", mxfp4::GROUP_SIZE);
            return Err(Error::Tensor { dir: self.dir.clone(), tensor: name, reason });
        }
        self.check_shape(&name, &[rows, cols / 2], codes)?;
        self.check_shape(&scale_name, &[rows, cols / mxfp4::GROUP_SIZE], scales)?;
        let (weights, scales) = (extent(codes), Some(extent(scales)));
        Ok(StoredMatrix { name, encoding: Encoding::Mxfp4, rows, cols, weights, scales, tiles: None })
    }

    /// True where `base.weight` is FP8 as released.
    pub(crate) fn is_fp8(&self, base: &str) -> bool {
        let info = self.index.find(&self.full(&format!("{base}.weight")));
        info.is_some_and(|info| info.dtype == Dtype::F8E4M3)
    }

    /// Four-bit codes, eight to a 32-bit word, and their scales. Where the shape is stored too, it is held against the others.
    fn int4(&self, base: &str, rows: usize, cols: usize) -> Result<StoredMatrix, Error> {
        let (name, codes) = self.tensor(&format!("{base}.weight_packed"))?;
        let (scale_name, scales) = self.tensor(&format!("{base}.weight_scale"))?;
        if scales.dtype != Dtype::Bf16 {
            return Err(self.wrong_dtype(scale_name, "BF16", scales.dtype));
        }
        if !cols.is_multiple_of(int4::GROUP_SIZE) {
            let reason = format!("{cols} columns are not a multiple of {}", int4::GROUP_SIZE);
            return Err(Error::Tensor { dir: self.dir.clone(), tensor: name, reason });
        }
        self.check_shape(&name, &[rows, cols / 8], codes)?;
        self.check_shape(&scale_name, &[rows, cols / int4::GROUP_SIZE], scales)?;
        let (weights, scales) = (extent(codes), Some(extent(scales)));
        Ok(StoredMatrix { name, encoding: Encoding::Int4, rows, cols, weights, scales, tiles: None })
    }

    /// Holds `base.weight_shape` against the shape that the configuration calls for, where there is one.
    pub(crate) fn check_stored_shape(&self, base: &str, rows: usize, cols: usize) -> Result<(), Error> {
        let tensor = self.full(&format!("{base}.weight_shape"));
        let Some(info) = self.index.find(&tensor) else { return Ok(()) };
        let value_bytes = match info.dtype {
            Dtype::I32 => 4,
            Dtype::I64 => 8,
            other => return Err(self.wrong_dtype(tensor, "I32 or I64", other)),
        };
        self.check_shape(&tensor, &[2], info)?;
        let mut bytes = [0; 16];
        let bytes = &mut bytes[..2 * value_bytes];
        self.index.source(info.source).read_at(info.offset, bytes)?;
        let found: Vec<i64> = match value_bytes {
            4 => bytes.as_chunks().0.iter().map(|value| i64::from(i32::from_le_bytes(*value))).collect(),
            _ => bytes.as_chunks().0.iter().map(|value| i64::from_le_bytes(*value)).collect(),
        };
        if found == [rows as i64, cols as i64] {
            return Ok(());
        }
        let reason = format!("holds {found:?}, the matrix is {:?}", [rows, cols]);
        Err(Error::Tensor { dir: self.dir.clone(), tensor, reason })
    }

    /// E4M3 values and the scales of their blocks.
    fn fp8(&self, base: &str, rows: usize, cols: usize) -> Result<StoredMatrix, Error> {
        let (name, codes) = self.tensor(&format!("{base}.weight"))?;
        let (scale_name, scales) = self.tensor(&format!("{base}.{FP8_SCALES}"))?;
        if scales.dtype != Dtype::F32 {
            return Err(self.wrong_dtype(scale_name, "F32", scales.dtype));
        }
        self.check_shape(&name, &[rows, cols], codes)?;
        self.check_shape(&scale_name, &[rows.div_ceil(fp8::BLOCK), cols.div_ceil(fp8::BLOCK)], scales)?;
        let (weights, scales) = (extent(codes), Some(extent(scales)));
        Ok(StoredMatrix { name, encoding: Encoding::Fp8, rows, cols, weights, scales, tiles: None })
    }

    /// The bytes of a small part of a file.
    pub(crate) fn bytes(&self, extent: Extent) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; extent.len as usize];
        self.index.source(extent.source).read_at(extent.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// A matrix of a packed model.
    pub(crate) fn tiled(&self, name: &str, rows: usize, cols: usize) -> Result<StoredMatrix, Error> {
        let (name, info) = self.tensor(name)?;
        let refuse = |reason| Error::Tensor { dir: self.dir.clone(), tensor: name.clone(), reason };
        let listed = self.manifest.as_ref().and_then(|manifest| manifest.matrices.get(&name));
        let listed = listed.ok_or_else(|| refuse("is not listed in kimi.json".to_owned()))?;
        if [listed.rows, listed.cols] != [rows, cols] {
            let found = [listed.rows, listed.cols];
            return Err(refuse(format!("expected shape {:?}, kimi.json has {found:?}", [rows, cols])));
        }
        let encoding = listed.encoding.parse::<Encoding>().map_err(|error| refuse(error.to_string()))?;
        let (tiles, stride) = self.blob(&name, info)?;
        let cut = TileCut { rows: listed.tile_rows, stride };
        if cut.rows == 0 || !cut.rows.is_multiple_of(ROW_MULTIPLE) || tiles != rows.div_ceil(cut.rows) as u64
        {
            return Err(refuse(format!("{tiles} tiles of {} rows are not {rows} rows", cut.rows)));
        }
        Ok(StoredMatrix { encoding, rows, cols, weights: extent(info), scales: None, tiles: Some(cut), name })
    }

    /// The experts of a layer in a packed model.
    pub(crate) fn bank(
        &self,
        name: &str,
        [count, inner, width]: [usize; 3],
    ) -> Result<(String, StoredBank), Error> {
        let (name, info) = self.tensor(name)?;
        let refuse = |reason| Error::Tensor { dir: self.dir.clone(), tensor: name.clone(), reason };
        let listed = self.manifest.as_ref().and_then(|manifest| manifest.experts.get(&name));
        let BankInfo { encoding, count: experts, inner: rows, width: cols, .. } =
            listed.ok_or_else(|| refuse("is not listed in kimi.json".to_owned()))?;
        if [*experts, *rows, *cols] != [count, inner, width] {
            let (expected, found) = ([count, inner, width], [*experts, *rows, *cols]);
            return Err(refuse(format!("expected experts of {expected:?}, kimi.json has {found:?}")));
        }
        let encoding = encoding.parse::<Encoding>().map_err(|error| refuse(error.to_string()))?;
        if matches!(encoding, Encoding::Bf12 | Encoding::Mxfp4) {
            return Err(refuse(format!("experts are not stored as {encoding}")));
        }
        let layout = RecordLayout::new(encoding, inner, width)?;
        let (records, stride) = self.blob(&name, info)?;
        if records != count as u64 || stride != layout.stride() {
            let expected = layout.stride();
            return Err(refuse(format!(
                "expected {count} records of {expected} bytes, found {records} of {stride}"
            )));
        }
        Ok((name, StoredBank { encoding, records: extent(info), layout }))
    }

    /// The number of tiles of a tensor and their distance.
    fn blob(&self, name: &str, info: TensorInfo<'_>) -> Result<(u64, usize), Error> {
        if info.dtype != Dtype::U8 {
            return Err(self.wrong_dtype(name.to_owned(), "U8 (tiles)", info.dtype));
        }
        match *info.shape {
            [tiles, stride] if stride > 0 && stride.is_multiple_of(BLOCK as u64) => {
                // Checked against the file when it was indexed.
                Ok((tiles, stride as usize))
            }
            _ => {
                let reason = format!("expected tiles of whole blocks, found shape {:?}", info.shape);
                Err(Error::Tensor { dir: self.dir.clone(), tensor: name.to_owned(), reason })
            }
        }
    }

    /// Reads a small tensor of `shape` as float32. Dimensions of 1 may be missing or added.
    pub(crate) fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let (name, info) = self.tensor(name)?;
        self.check_shape(&name, shape, info)?;
        self.read(name, info, shape.iter().product())
    }

    /// Reads the first `len` values of a small tensor that may be padded, with anything.
    pub(crate) fn padded_vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        let (name, info) = self.tensor(name)?;
        self.read(name, info, len)
    }

    fn read(&self, name: String, info: TensorInfo<'_>, len: usize) -> Result<Vec<f32>, Error> {
        let value_bytes = match info.dtype {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
            other => return Err(self.wrong_dtype(name, "F32 or BF16", other)),
        };
        let found = info.bytes / value_bytes as u64;
        if found < len as u64 {
            let reason = format!("expected at least {len} values, found {found}");
            return Err(Error::Tensor { dir: self.dir.clone(), tensor: name, reason });
        }
        let mut bytes = vec![0; len * value_bytes];
        self.index.source(info.source).read_at(info.offset, &mut bytes)?;
        let values: Vec<f32> = if info.dtype == Dtype::F32 {
            bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        } else {
            let halves = bytes.as_chunks().0.iter();
            halves.map(|bytes| kimi_quant::Bf16(u16::from_le_bytes(*bytes)).to_f32()).collect()
        };
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let reason = format!("value {at} is {}", values[at]);
            return Err(Error::Tensor { dir: self.dir.clone(), tensor: name, reason });
        }
        Ok(values)
    }

    fn check_shape(&self, name: &str, expected: &[usize], info: TensorInfo<'_>) -> Result<(), Error> {
        let significant =
            |shape: &mut dyn Iterator<Item = u64>| shape.filter(|&n| n != 1).collect::<Vec<_>>();
        let wanted = significant(&mut expected.iter().map(|&n| n as u64));
        if wanted == significant(&mut info.shape.iter().copied()) {
            return Ok(());
        }
        let reason = format!("expected shape {expected:?}, found {:?}", info.shape);
        Err(Error::Tensor { dir: self.dir.clone(), tensor: name.to_owned(), reason })
    }

    fn wrong_dtype(&self, tensor: String, expected: &str, found: Dtype) -> Error {
        Error::Tensor { dir: self.dir.clone(), tensor, reason: format!("expected {expected}, found {found}") }
    }
}

fn extent(info: TensorInfo<'_>) -> Extent {
    Extent { source: info.source, offset: info.offset, len: info.bytes }
}
