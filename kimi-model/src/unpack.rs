//! From a packed model back to a checkpoint in the released layout.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kimi_paging::{FileSource, Source, TensorIndex, TensorInfo};
use kimi_quant::{Bf16, Encoding, MatrixView, bf12, int4};
use serde::Serialize;
use twox_hash::XxHash3_64;

use crate::config::Config;
use crate::error::Error;
use crate::files::ModelFiles;
use crate::layout::{KEY_PART, VALUE_PART};
use crate::pack::{TensorFile, io_error, keeps, refused, write_whole};
use crate::packed::{BankInfo, MANIFEST_FILE, Manifest, MatrixInfo, RecordLayout, Tile, seed};
use crate::verify::VerifyProgress;
use crate::weights::damaged;

/// What was unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct UnpackReport {
    /// Files with tensors.
    pub files: usize,
    /// Tensors.
    pub tensors: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Matrices, and layers of experts, whose hash is that of the source.
    pub verified: u64,
    /// Matrices, and layers of experts, that hold the nearest BF16 of low-bit weights.
    pub lossy: u64,
}

/// Writes the model of the packed folder `source` into the folder `target`, in the released layout: the tensors of the
/// checkpoint that it was packed from, with the same bytes where nothing was lost. With `lossy`, low-bit weights become the
/// nearest BF16; without, they are refused.
///
/// # Errors
/// [`Error::Pack`] for a source that is not packed or was packed with loss, and a target that is not empty; [`Error::Tile`] for
/// damaged tiles; [`Error::Tensor`] where the bytes are not those of the original; errors of the system;
/// [`Error::Cancelled`].
pub fn unpack(
    source: &Path,
    target: &Path,
    lossy: bool,
    progress: &dyn Fn(VerifyProgress),
    cancel: &AtomicBool,
) -> Result<UnpackReport, Error> {
    let files = ModelFiles::open(source)?;
    if files.is_single() {
        let reason = "is a single file; unpack the folder that it was made from";
        return Err(refused(source, reason.to_owned()));
    }
    let manifest = Manifest::read(&files)?;
    let manifest =
        manifest.ok_or_else(|| refused(source, format!("is not packed: it has no {MANIFEST_FILE}")))?;
    if !manifest.lossless && !lossy {
        let reason = "was packed with loss; `--lossy` writes the nearest BF16 of its weights";
        return Err(refused(source, reason.to_owned()));
    }
    let config = Config::parse(&files.config_json()?, &source.join("config.json"))?;
    std::fs::create_dir_all(target).map_err(io_error("create", target))?;
    if let Some(entry) = std::fs::read_dir(target).map_err(io_error("list", target))?.next() {
        let name = entry.map_err(io_error("list", target))?.file_name();
        return Err(refused(target, format!("is not empty: it holds `{}`", name.display())));
    }

    let total_bytes = manifest.files.iter().map(|file| file.bytes).sum();
    let mut unpacker = Unpacker {
        dir: source,
        manifest: &manifest,
        heads: config.mla.num_heads,
        cancel,
        report: UnpackReport::default(),
        weight_map: BTreeMap::new(),
    };
    let mut done_bytes = 0;
    for file in &manifest.files {
        progress(VerifyProgress { done_bytes, total_bytes });
        unpacker.file(&file.name, target)?;
        done_bytes += file.bytes;
    }
    let Unpacker { report, weight_map, .. } = unpacker;
    let index = serde_json::json!({ "metadata": { "total_size": report.bytes }, "weight_map": weight_map });
    write_whole(&target.join("model.safetensors.index.json"), index.to_string().as_bytes())?;
    files.copy_others(target)?;
    Ok(report)
}

struct Unpacker<'a> {
    dir: &'a Path,
    manifest: &'a Manifest,
    /// Heads of the attention whose `kv_b` is in two parts.
    heads: usize,
    cancel: &'a AtomicBool,
    report: UnpackReport,
    weight_map: BTreeMap<String, String>,
}

/// A tensor of a packed file.
struct Packed<'a> {
    source: &'a dyn Source,
    name: &'a str,
    info: TensorInfo<'a>,
}

impl Unpacker<'_> {
    fn file(&mut self, file: &str, target: &Path) -> Result<(), Error> {
        let source: Arc<dyn Source> = Arc::new(FileSource::open(self.dir.join(file))?);
        let index = TensorIndex::from_sources(vec![(file.to_owned(), Arc::clone(&source))], None)?;
        let names = index.iter().flat_map(|(name, _)| self.names(&name)).collect::<Vec<_>>();
        let mut out = TensorFile::create(target.join(file), names.iter().map(String::as_str))?;
        let (mut tensors, before) = (0, self.report.bytes);
        for (name, info) in index.iter() {
            let packed = Packed { source: &*source, name: &name, info };
            match (self.manifest.matrices.get(&name), self.manifest.experts.get(&name)) {
                (Some(listed), _) => self.matrix(&packed, listed, &index, &mut out)?,
                (None, Some(listed)) => self.bank(&packed, listed, &mut out)?,
                (None, None) => self.copy(&packed, &mut out)?,
            }
        }
        for name in names {
            tensors += 1;
            self.weight_map.insert(name, file.to_owned());
        }
        let size = out.finish()?;
        debug_assert!(size >= self.report.bytes - before, "the file holds what was counted");
        self.report.files += 1;
        self.report.tensors += tensors;
        Ok(())
    }

    /// The tensors that one of a packed file becomes.
    fn names(&self, name: &str) -> Vec<String> {
        if let Some(listed) = self.manifest.experts.get(name) {
            let planes = planes(listed);
            let experts = (0..listed.count).flat_map(|expert| {
                listed.names.iter().flat_map(move |matrix| {
                    planes.iter().map(move |plane| format!("{name}.{expert}.{matrix}.{plane}"))
                })
            });
            return experts.collect();
        }
        let is_matrix = self.manifest.matrices.contains_key(name);
        match name.rsplit_once('.') {
            Some((whole, KEY_PART)) if is_matrix => vec![whole.to_owned()],
            Some((_, VALUE_PART)) if is_matrix => Vec::new(),
            _ => vec![name.to_owned()],
        }
    }

    fn copy(&mut self, packed: &Packed<'_>, out: &mut TensorFile) -> Result<(), Error> {
        const PIECE: u64 = 4 << 20;
        let info = packed.info;
        out.tensor(packed.name, &info.dtype.to_string(), info.shape, info.bytes);
        let mut at = 0;
        while at < info.bytes {
            crate::weights::check(self.cancel)?;
            let mut bytes = vec![0; PIECE.min(info.bytes - at) as usize];
            packed.source.read_once(info.offset + at, &mut bytes)?;
            out.write(&bytes)?;
            at += bytes.len() as u64;
        }
        self.report.bytes += info.bytes;
        Ok(())
    }

    fn matrix(
        &mut self,
        packed: &Packed<'_>,
        listed: &MatrixInfo,
        index: &TensorIndex,
        out: &mut TensorFile,
    ) -> Result<(), Error> {
        match packed.name.rsplit_once('.') {
            Some((whole, KEY_PART)) => self.joined(packed, listed, whole, index, out),
            Some((_, VALUE_PART)) => Ok(()),
            _ => {
                let bytes = (listed.rows * listed.cols * value_bytes(listed)) as u64;
                out.tensor(packed.name, &listed.dtype, &[listed.rows as u64, listed.cols as u64], bytes);
                self.report.bytes += bytes;
                self.rows(packed, listed, |bytes| out.write(bytes))
            }
        }
    }

    /// The two parts of `kv_b`, the rows of a head in one after those in the other.
    fn joined(
        &mut self,
        keys: &Packed<'_>,
        key_info: &MatrixInfo,
        whole: &str,
        index: &TensorIndex,
        out: &mut TensorFile,
    ) -> Result<(), Error> {
        let name = format!("{whole}.{VALUE_PART}");
        let missing = || Error::MissingTensor { dir: self.dir.to_path_buf(), tensor: name.clone() };
        let (value_info, info) =
            self.manifest.matrices.get(&name).zip(index.find(&name)).ok_or_else(missing)?;
        let values = Packed { source: keys.source, name: &name, info };
        let mut halves = [Vec::new(), Vec::new()];
        for (half, (packed, listed)) in halves.iter_mut().zip([(keys, key_info), (&values, value_info)]) {
            self.rows(packed, listed, |bytes| {
                half.extend_from_slice(bytes);
                Ok(())
            })?;
        }
        let [key_bytes, value_bytes] = halves;
        let rows = key_info.rows + value_info.rows;
        let bytes = (key_bytes.len() + value_bytes.len()) as u64;
        out.tensor(whole, &key_info.dtype, &[rows as u64, key_info.cols as u64], bytes);
        self.report.bytes += bytes;
        let per_head = |bytes: &[u8]| (bytes.len() / self.heads).max(1);
        for (key, value) in
            key_bytes.chunks(per_head(&key_bytes)).zip(value_bytes.chunks(per_head(&value_bytes)))
        {
            out.write(key)?;
            out.write(value)?;
        }
        Ok(())
    }

    /// Hands the rows of a matrix, as the source had them, to `take`, tile after tile, and checks their hash.
    fn rows(
        &mut self,
        packed: &Packed<'_>,
        listed: &MatrixInfo,
        mut take: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Packed { source, name, info } = packed;
        let encoding = self.encoding(name, &listed.encoding)?;
        let [tiles, stride] = self.shape(name, info)?;
        let (seed, mut hash, mut buffer) = (seed(name), XxHash3_64::new(), vec![0; stride]);
        for number in 0..tiles {
            crate::weights::check(self.cancel)?;
            source.read_once(info.offset + (number * stride) as u64, &mut buffer)?;
            let first = number * listed.tile_rows;
            let rows = listed.tile_rows.min(listed.rows.saturating_sub(first));
            let tile = Tile { encoding, rows, cols: listed.cols, first };
            let view =
                tile.view(&buffer, Some(seed)).map_err(|problem| damaged(self.dir, name, number, problem))?;
            let bytes = plain(view, value_bytes(listed) == 4);
            hash.write(&bytes);
            take(&bytes)?;
        }
        self.compare(name, hash, listed.source_xxh3.as_deref())
    }

    fn bank(&mut self, packed: &Packed<'_>, listed: &BankInfo, out: &mut TensorFile) -> Result<(), Error> {
        let Packed { source, name, info } = packed;
        let encoding = self.encoding(name, &listed.encoding)?;
        let layout = RecordLayout::new(encoding, listed.inner, listed.width)?;
        let [experts, stride] = self.shape(name, info)?;
        let (seed, mut hash, mut buffer) = (seed(name), XxHash3_64::new(), vec![0; stride]);
        for expert in 0..experts {
            crate::weights::check(self.cancel)?;
            source.read_once(info.offset + (expert * stride) as u64, &mut buffer)?;
            let views = layout
                .views(expert as u32, &buffer, Some(seed))
                .map_err(|problem| damaged(self.dir, name, expert, problem))?;
            for (view, matrix) in views.into_iter().zip(&listed.names) {
                let [rows, cols] = [view.rows() as u64, view.cols() as u64];
                let name = |plane: &str| format!("{name}.{expert}.{matrix}.{plane}");
                let mut put = |plane: &str, dtype: &str, shape: &[u64], bytes: &[u8]| {
                    out.tensor(&name(plane), dtype, shape, bytes.len() as u64);
                    self.report.bytes += bytes.len() as u64;
                    hash.write(bytes);
                    out.write(bytes)
                };
                match (view, &listed.dtypes[..]) {
                    (MatrixView::Mxfp4Bands(view), [codes_type, scales_type]) => {
                        let (codes, scales) = view.to_planes();
                        put("weight_packed", codes_type, &[rows, cols / 2], &codes)?;
                        put("weight_scale", scales_type, &[rows, cols / 32], &scales)?;
                    }
                    (MatrixView::Int(view), [codes_type, scales_type, shape_type @ ..])
                        if listed.is_int4() =>
                    {
                        let (codes, scales) = int4::to_planes(&view);
                        put("weight_packed", codes_type, &[rows, cols / 8], &codes)?;
                        put("weight_scale", scales_type, &[rows, cols / 32], &scales)?;
                        if let Some(dtype) = shape_type.first() {
                            let shape: Vec<u8> = match dtype.as_str() {
                                "I32" => {
                                    [rows as i32, cols as i32].iter().flat_map(|n| n.to_le_bytes()).collect()
                                }
                                _ => {
                                    [rows as i64, cols as i64].iter().flat_map(|n| n.to_le_bytes()).collect()
                                }
                            };
                            out.tensor(&name("weight_shape"), dtype, &[2], shape.len() as u64);
                            self.report.bytes += shape.len() as u64;
                            out.write(&shape)?;
                        }
                    }
                    (view, [dtype]) => put("weight", dtype, &[rows, cols], &plain(view, dtype == "F32"))?,
                    (view, _) => put("weight", "BF16", &[rows, cols], &plain(view, false))?,
                }
            }
        }
        self.compare(name, hash, listed.source_xxh3.as_deref())
    }

    fn compare(&mut self, name: &str, hash: XxHash3_64, expected: Option<&str>) -> Result<(), Error> {
        let Some(expected) = expected else {
            self.report.lossy += 1;
            return Ok(());
        };
        let found = format!("{:016x}", hash.finish());
        if found != expected {
            let reason = format!("its hash is {found}, that of the source was {expected}");
            return Err(Error::Tensor { dir: self.dir.to_path_buf(), tensor: name.to_owned(), reason });
        }
        self.report.verified += 1;
        Ok(())
    }

    fn encoding(&self, name: &str, encoding: &str) -> Result<Encoding, Error> {
        encoding.parse::<Encoding>().map_err(|error| Error::Tensor {
            dir: self.dir.to_path_buf(),
            tensor: name.to_owned(),
            reason: error.to_string(),
        })
    }

    fn shape(&self, name: &str, info: &TensorInfo<'_>) -> Result<[usize; 2], Error> {
        match *info.shape {
            // Checked against the file when it was indexed.
            [tiles, stride] => Ok([tiles as usize, stride as usize]),
            _ => Err(Error::Tensor {
                dir: self.dir.to_path_buf(),
                tensor: name.to_owned(),
                reason: format!("expected tiles, found shape {:?}", info.shape),
            }),
        }
    }
}

/// The names of the tensors of an expert's matrix.
fn planes(listed: &BankInfo) -> &'static [&'static str] {
    const PLANES: [&str; 3] = ["weight_packed", "weight_scale", "weight_shape"];
    let mxfp4 = listed.encoding.parse().is_ok_and(|encoding| keeps(Encoding::Mxfp4, encoding));
    match listed.dtypes.len() {
        2 if mxfp4 => &PLANES[..2],
        count @ 2..=3 if listed.is_int4() => &PLANES[..count],
        _ => &["weight"],
    }
}

fn value_bytes(listed: &MatrixInfo) -> usize {
    if listed.dtype == "F32" { 4 } else { 2 }
}

/// Row-major float32, or BF16: exact where the weights came from that type, else the nearest.
fn plain(view: MatrixView<'_>, float32: bool) -> Vec<u8> {
    if let (MatrixView::Bf12(view), false) = (view, float32) {
        return bf12::decode(view);
    }
    let mut row = vec![0.0; view.cols()];
    let mut bytes = Vec::with_capacity(view.rows() * view.cols() * if float32 { 4 } else { 2 });
    for r in 0..view.rows() {
        view.decode_row(r, &mut row);
        if float32 {
            bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
        } else {
            bytes.extend(row.iter().flat_map(|&value| Bf16::from_f32(value).0.to_le_bytes()));
        }
    }
    bytes
}
