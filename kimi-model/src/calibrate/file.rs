//! Moments in a safetensors file: the sums, and a tensor of JSON that says what they are of.

use std::collections::HashMap;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kimi_paging::{Dtype, FileSource, SourceId, TensorIndex};
use kimi_quant::Encoding;
use kimi_quant::quantize::{Gptq, block_values};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::moments::{CalibrateOptions, Moments};
use crate::error::Error;
use crate::model::Model;
use crate::pack::{Guide, TensorFile};

/// The version of the format.
const FORMAT: u32 = 1;

/// The tensor that says what the others are.
const CONTENTS: &str = "calibration";

/// The largest [`CONTENTS`] that is read: the names of K3's matrices take a tenth.
const MAX_CONTENTS: u64 = 16 << 20;

/// Share of a block's mean diagonal that GPTQ adds to it, as its authors do.
const DAMPING: f64 = 0.01;

/// How many tokens of uniform inputs are added to what was seen: few tokens say little.
const PRIOR_TOKENS: f64 = 8.0;

/// What the file says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Contents {
    format: u32,
    /// Everything that the numbers depend on beside the model.
    question: serde_json::Value,
    finished: bool,
    windows: u64,
    tokens: u64,
    block: usize,
    operands: Vec<OperandContents>,
    experts: Vec<BankContents>,
}

#[derive(Debug, Serialize, Deserialize)]
struct OperandContents {
    cols: usize,
    matrices: Vec<String>,
    xxh3: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct BankContents {
    name: String,
    count: usize,
    width: usize,
    inner: usize,
    /// Of the three tensors.
    xxh3: [String; 3],
}

/// The tensors of a layer's experts, and their types.
const BANK_TENSORS: [(&str, Dtype); 3] =
    [("tokens", Dtype::U64), ("input", Dtype::F32), ("product", Dtype::F32)];

fn operand_name(i: usize) -> String {
    format!("operand.{i:05}")
}

fn bank_name(i: usize, part: &str) -> String {
    format!("experts.{i:05}.{part}")
}

fn xxh3(bytes: &[u8]) -> String {
    format!("{:016x}", XxHash3_64::oneshot(bytes))
}

impl Moments {
    /// Writes the moments to a file, which holds them whole or is what it was before. `question` says what they are of beside the
    /// model, `finished` that nothing is missing.
    ///
    /// # Errors
    /// Those of writing.
    pub fn save(&self, path: &Path, question: &serde_json::Value, finished: bool) -> Result<(), Error> {
        let mut names: Vec<_> = (0..self.operands.len()).map(operand_name).collect();
        names.extend((0..self.experts.len()).flat_map(|i| BANK_TENSORS.map(|(part, _)| bank_name(i, part))));
        names.push(CONTENTS.to_owned());
        let mut file = TensorFile::create(path.to_path_buf(), names.iter().map(String::as_str))?;
        let mut write = |name: &str, dtype: &str, shape: &[u64], bytes: Vec<u8>| {
            file.tensor(name, dtype, shape, bytes.len() as u64);
            file.write(&bytes)?;
            Ok::<_, Error>(xxh3(&bytes))
        };
        let mut operands = Vec::with_capacity(self.operands.len());
        for (i, operand) in self.operands.iter().enumerate() {
            let bytes = operand.values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let xxh3 = write(&operand_name(i), "F64", &[operand.values.len() as u64], bytes)?;
            let matrices = operand.names.iter().map(|name| name.to_string()).collect();
            operands.push(OperandContents { cols: operand.cols, matrices, xxh3 });
        }
        let mut experts = Vec::with_capacity(self.experts.len());
        for (i, bank) in self.experts.iter().enumerate() {
            let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let tokens = bank.tokens.iter().flat_map(|count| count.to_le_bytes()).collect();
            let (count, width, inner) = (bank.tokens.len(), bank.width, bank.inner);
            let parts: [(&[usize], Vec<u8>); 3] = [
                (&[count], tokens),
                (&[count, width], floats(&bank.input)),
                (&[count, inner], floats(&bank.product)),
            ];
            let mut sums = [const { String::new() }; 3];
            for ((sum, (part, dtype)), (shape, bytes)) in sums.iter_mut().zip(BANK_TENSORS).zip(parts) {
                let shape: Vec<_> = shape.iter().map(|&size| size as u64).collect();
                *sum = write(&bank_name(i, part), dtype.as_str(), &shape, bytes)?;
            }
            experts.push(BankContents { name: bank.name.to_string(), count, width, inner, xxh3: sums });
        }
        let contents = Contents {
            format: FORMAT,
            question: question.clone(),
            finished,
            windows: self.windows,
            tokens: self.tokens,
            block: self.block,
            operands,
            experts,
        };
        let json = serde_json::to_vec(&contents).expect("plain data");
        let len = json.len() as u64;
        write(CONTENTS, "U8", &[len], json)?;
        file.finish()?;
        Ok(())
    }

    /// The moments of a file that was made of the same model with the same options.
    ///
    /// # Errors
    /// [`Error::Calibration`] when the file is damaged or of another model.
    pub fn load(model: &Model, options: &CalibrateOptions, file: &Calibration) -> Result<Self, Error> {
        let mut moments = Self::new(model, options);
        let Contents { windows, tokens, block, operands, experts, .. } = &file.contents;
        let same_operands = moments.operands.len() == operands.len()
            && moments.operands.iter().zip(operands).all(|(ours, theirs)| {
                ours.cols == theirs.cols
                    && ours.names.iter().map(AsRef::as_ref).eq(theirs.matrices.iter().map(String::as_str))
            });
        let same_experts = moments.experts.len() == experts.len()
            && moments.experts.iter().zip(experts).all(|(ours, theirs)| {
                (ours.tokens.len(), ours.width, ours.inner) == (theirs.count, theirs.width, theirs.inner)
            });
        if !same_operands || !same_experts || moments.block != *block {
            return Err(file.error("is of another model or of other options; give another file".to_owned()));
        }
        file.verify()?;
        for (i, operand) in moments.operands.iter_mut().enumerate() {
            operand.values = file.operand(i)?;
        }
        for (i, bank) in moments.experts.iter_mut().enumerate() {
            let count = bank.tokens.len();
            bank.tokens = file.expert_tokens(i, 0..count)?;
            bank.input = file.expert_squares(i, 1, 0..count)?;
            bank.product = file.expert_squares(i, 2, 0..count)?;
        }
        (moments.windows, moments.tokens) = (*windows, *tokens);
        Ok(moments)
    }
}

/// A file of moments, opened: what of it is needed is read when it is needed.
#[derive(Debug)]
pub struct Calibration {
    path: PathBuf,
    index: TensorIndex,
    contents: Contents,
    fingerprint: String,
    /// The operand of each matrix, and the bank of each layer's experts.
    operands: HashMap<String, usize>,
    banks: HashMap<String, usize>,
}

impl PartialEq for Calibration {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for Calibration {}

impl Calibration {
    /// Opens a file that [`Moments::save`] wrote.
    ///
    /// # Errors
    /// [`Error::Calibration`] when it is none, or of a newer version; errors of reading.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let source = Arc::new(FileSource::open(path)?);
        let index = TensorIndex::from_sources(vec![(path.display().to_string(), source as _)], None)?;
        let refused = |reason: String| Error::Calibration { path: path.to_path_buf(), reason };
        let Some(info) = index.find(CONTENTS).filter(|info| info.dtype == Dtype::U8) else {
            return Err(refused("is no calibration; `kimi-cli calibrate` makes one".to_owned()));
        };
        if info.bytes > MAX_CONTENTS {
            return Err(refused(format!("its table of contents has {} bytes", info.bytes)));
        }
        let mut json = vec![0; info.bytes as usize];
        index.source(info.source).read_at(info.offset, &mut json)?;
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let damaged =
            |error: serde_json::Error| refused(format!("its table of contents is damaged: {error}"));
        let version: Version = serde_json::from_slice(&json).map_err(damaged)?;
        if version.format != FORMAT {
            let found = version.format;
            return Err(refused(format!("has format {found}, this program reads {FORMAT}; calibrate again")));
        }
        let contents: Contents = serde_json::from_slice(&json).map_err(damaged)?;
        let all = |of: &mut dyn Iterator<Item = (String, usize)>| of.collect::<HashMap<_, _>>();
        let names = contents.operands.iter().enumerate();
        let operands =
            all(&mut names.flat_map(|(i, of)| of.matrices.iter().map(move |name| (name.clone(), i))));
        let banks = all(&mut contents.experts.iter().enumerate().map(|(i, of)| (of.name.clone(), i)));
        Ok(Self { path: path.to_path_buf(), index, contents, fingerprint: xxh3(&json), operands, banks })
    }

    /// Everything that the numbers depend on beside the model, as it was saved.
    pub fn question(&self) -> &serde_json::Value {
        &self.contents.question
    }

    /// True when nothing is missing.
    pub fn is_finished(&self) -> bool {
        self.contents.finished
    }

    /// Tokens that were read.
    pub fn tokens(&self) -> u64 {
        self.contents.tokens
    }

    /// One line for the manifest of what is packed with it.
    pub(crate) fn describe(&self) -> String {
        let Contents { tokens, block, .. } = self.contents;
        let what = if block == 1 { "squares".to_owned() } else { format!("products in blocks of {block}") };
        format!("{what} over {tokens} tokens, {}", self.fingerprint)
    }

    /// Bytes that the guide of one matrix takes at most while it is made.
    pub(crate) fn guide_bytes(&self) -> u64 {
        let values = |of: &OperandContents| block_values(of.cols, self.contents.block).unwrap_or(usize::MAX);
        // The moments as bytes and as numbers, and the factors.
        self.contents.operands.iter().map(values).max().unwrap_or(0) as u64 * 24
    }

    /// Says whether the file can be used for a model.
    ///
    /// # Errors
    /// [`Error::Calibration`] when it is unfinished, or none of its matrices is among the model's.
    pub(crate) fn check(&self, model: &Model) -> Result<(), Error> {
        if !self.contents.finished {
            let reason = "is not finished; the same `calibrate` command goes on with it".to_owned();
            return Err(self.error(reason));
        }
        let matrices = &model.layout.matrices;
        for matrix in matrices {
            if let Some(&i) = self.operands.get(matrix.name.as_ref()) {
                let (expected, found) = (matrix.cols, self.contents.operands[i].cols);
                if expected != found {
                    let name = &matrix.name;
                    return Err(self.error(format!("has {found} columns for `{name}`, which has {expected}")));
                }
            }
        }
        if !matrices.iter().any(|matrix| self.operands.contains_key(matrix.name.as_ref())) {
            return Err(self.error("is of another model: none of its matrices is there".to_owned()));
        }
        let shapes =
            model.layout.banks().filter_map(|bank| Some((bank, *self.banks.get(bank.name.as_ref())?)));
        for (bank, i) in shapes {
            let of = &self.contents.experts[i];
            if (of.count, of.width, of.inner) != (bank.count, bank.width, bank.inner) {
                return Err(self.error(format!("has other experts for `{}`", bank.name)));
            }
        }
        self.verify()
    }

    /// How to quantize a matrix, by its name.
    pub(crate) fn guide(&self, tensor: &str, cols: usize, target: Encoding) -> Result<Guide, Error> {
        let (Some(&i), Encoding::Int(format)) = (self.operands.get(tensor), target) else {
            return Ok(Guide::None);
        };
        let block = self.contents.block;
        if self.contents.operands[i].cols != cols {
            return Err(self.error(format!("has other columns for `{tensor}`")));
        }
        let values = self.operand(i)?;
        if block > 1 {
            // As many tokens of uniform inputs as a block has columns: few tokens leave directions unseen.
            let unseen = block.min(cols) as f64 / self.contents.tokens.max(1) as f64;
            let gptq = Gptq::new(format, cols, block, &values, DAMPING + unseen);
            return Ok(Guide::Gptq(gptq.map_err(|error| self.error(format!("`{tensor}`: {error}")))?));
        }
        Ok(Guide::Importance(importance(&values, self.contents.tokens)))
    }

    /// How to quantize gate, up and down matrix of an expert.
    pub(crate) fn expert_guides(
        &self,
        bank: &str,
        expert: usize,
        target: Encoding,
    ) -> Result<[Guide; 3], Error> {
        let (Some(&i), Encoding::Int(_)) = (self.banks.get(bank), target) else {
            return Ok([Guide::None, Guide::None, Guide::None]);
        };
        let range = expert..expert + 1;
        let tokens = self.expert_tokens(i, range.clone())?[0];
        let [input, product] = [1, 2].map(|part| {
            let squares: Vec<f64> =
                self.expert_squares(i, part, range.clone())?.into_iter().map(f64::from).collect();
            Ok::<_, Error>(importance(&squares, tokens))
        });
        let input = input?;
        Ok([Guide::Importance(input.clone()), Guide::Importance(input), Guide::Importance(product?)])
    }

    /// The sums of an operand.
    fn operand(&self, i: usize) -> Result<Vec<f64>, Error> {
        let of = &self.contents.operands[i];
        let expected = block_values(of.cols, self.contents.block.max(1));
        let name = operand_name(i);
        let len = expected.and_then(|values| values.checked_mul(8));
        let (source, offset) = self.place(&name, Dtype::F64, len)?;
        let mut bytes = vec![0; len.unwrap_or(0)];
        self.index.source(source).read_at(offset, &mut bytes)?;
        let values: Vec<f64> = bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(self.error(format!("`{name}` holds a number that is not finite"))),
        }
    }

    fn expert_tokens(&self, i: usize, experts: std::ops::Range<usize>) -> Result<Vec<u64>, Error> {
        let bytes = self.expert_tensor(i, 0, 8, experts)?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect())
    }

    fn expert_squares(
        &self,
        i: usize,
        part: usize,
        experts: std::ops::Range<usize>,
    ) -> Result<Vec<f32>, Error> {
        let of = &self.contents.experts[i];
        let len = [0, of.width, of.inner][part];
        let bytes = self.expert_tensor(i, part, len.saturating_mul(4), experts)?;
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        match values.iter().all(|value| value.is_finite() && *value >= 0.0) {
            true => Ok(values),
            false => Err(self.error(format!("`{}` holds what is no sum of squares", of.name))),
        }
    }

    /// The bytes of one part of some of a layer's experts, `stride` of each.
    fn expert_tensor(
        &self,
        i: usize,
        part: usize,
        stride: usize,
        experts: std::ops::Range<usize>,
    ) -> Result<Vec<u8>, Error> {
        let of = &self.contents.experts[i];
        let (part, dtype) = BANK_TENSORS[part];
        let name = bank_name(i, part);
        let (source, offset) = self.place(&name, dtype, of.count.checked_mul(stride))?;
        let missing = || self.error(format!("`{name}` has no expert {}", experts.start));
        if experts.end > of.count {
            return Err(missing());
        }
        let mut bytes = vec![0; experts.len() * stride];
        self.index.source(source).read_at(offset + (experts.start * stride) as u64, &mut bytes)?;
        Ok(bytes)
    }

    /// Where a tensor of this type and size lies.
    fn place(&self, name: &str, dtype: Dtype, bytes: Option<usize>) -> Result<(SourceId, u64), Error> {
        match self.index.find(name) {
            Some(info) if info.dtype == dtype && bytes.is_some_and(|bytes| bytes as u64 == info.bytes) => {
                Ok((info.source, info.offset))
            }
            Some(info) => {
                let (found, size) = (info.dtype, info.bytes);
                let expected = bytes.map_or_else(|| "too many".to_owned(), |bytes| bytes.to_string());
                let reason = format!("`{name}` has {size} bytes of {found}, not {expected} of {dtype}");
                Err(self.error(reason))
            }
            None => Err(self.error(format!("`{name}` is missing; calibrate again"))),
        }
    }

    /// Holds all tensors against their checksums, a piece at a time.
    fn verify(&self) -> Result<(), Error> {
        const PIECE: usize = 4 << 20;
        let Contents { operands, experts, block, .. } = &self.contents;
        let size = |count: usize, stride: Option<usize>| stride.and_then(|stride| count.checked_mul(stride));
        let of_operands = operands.iter().enumerate().map(|(i, of)| {
            let bytes = block_values(of.cols, *block).and_then(|values| values.checked_mul(8));
            (operand_name(i), Dtype::F64, bytes, &of.xxh3)
        });
        let of_experts = experts.iter().enumerate().flat_map(|(i, of)| {
            let strides = [Some(8), of.width.checked_mul(4), of.inner.checked_mul(4)];
            let parts = BANK_TENSORS.into_iter().zip(strides).zip(&of.xxh3);
            parts.map(move |(((part, dtype), stride), xxh3)| {
                (bank_name(i, part), dtype, size(of.count, stride), xxh3)
            })
        });
        for (name, dtype, bytes, xxh3) in of_operands.chain(of_experts) {
            let (source, offset) = self.place(&name, dtype, bytes)?;
            let (mut left, mut at, mut hash) = (bytes.unwrap_or(0), offset, XxHash3_64::new());
            while left > 0 {
                let mut piece = vec![0; left.min(PIECE)];
                self.index.source(source).read_at(at, &mut piece)?;
                hash.write(&piece);
                (left, at) = (left - piece.len(), at + piece.len() as u64);
            }
            if format!("{:016x}", hash.finish()) != *xxh3 {
                let reason = format!("`{name}` is damaged: its checksum is another; calibrate again");
                return Err(self.error(reason));
            }
        }
        Ok(())
    }

    fn error(&self, reason: String) -> Error {
        Error::Calibration { path: self.path.clone(), reason }
    }
}

/// The weight of each column's error: its mean square, and a few tokens' worth of the mean over all columns.
fn importance(squares: &[f64], tokens: u64) -> Vec<f32> {
    let cols = squares.len();
    let mean = squares.iter().sum::<f64>() / cols.max(1) as f64;
    if mean <= 0.0 || tokens == 0 {
        return vec![1.0; cols];
    }
    squares.iter().map(|square| (square / mean + PRIOR_TOKENS / tokens as f64) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn importance_is_even_where_nothing_was_seen_and_follows_what_was() {
        assert_eq!(importance(&[0.0; 3], 9), [1.0; 3]);
        assert_eq!(importance(&[5.0, 1.0], 0), [1.0; 2]);
        let few = importance(&[3.0, 1.0], 8);
        assert_eq!(few, [2.5, 1.5]);
        let many = importance(&[3.0, 0.0], 8_000_000);
        assert!(many[0] > 1.9 && many[1] > 0.0 && many[1] < 1e-5);
    }
}
