//! Where the routed experts of a layer lie.

use std::sync::Arc;

use kimi_paging::{Extent, Slots, SourceId, TemplateId, TensorIndex};
use kimi_quant::{Encoding, Fp8View, Int4View, LayoutError, MatrixView, Mxfp4View, fp8};

use crate::checkpoint::{Checkpoint, EXPERT_NAMES, FP8_SCALES, StoredBank};
use crate::config::MoeConfig;
use crate::error::Error;

/// The routed experts of one layer. Where each of them lies is looked up in the index when it is needed: a table of
/// all experts of K3 would take more memory than the index itself.
#[derive(Debug)]
pub(crate) struct ExpertBank {
    pub(crate) encoding: Encoding,
    pub(crate) count: usize,
    /// Width that the experts read and write.
    pub(crate) width: usize,
    /// Width between their matrices.
    pub(crate) inner: usize,
    /// The layer's number, as the names spell it.
    pub(crate) layer: u32,
    /// What the source calls the gate, up and down matrix of an expert; of a packed model the manifest knows.
    pub(crate) names: [&'static str; 3],
    /// The tensor of a packed model, or what the names of all experts begin with.
    pub(crate) name: Arc<str>,
    pub(crate) storage: ExpertStorage,
}

/// Where the experts of a layer lie.
#[derive(Debug)]
pub(crate) enum ExpertStorage {
    /// In tensors of their own: name patterns of the parts of one expert, gate, up and down matrix, each with its scales
    /// where it has some.
    Tensors(Vec<TemplateId>),
    /// In the records of one tensor.
    Records(StoredBank),
}

/// Three matrices with two planes each.
pub(crate) const MAX_PARTS: usize = 6;

/// The extents of one expert.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    extents: [Extent; MAX_PARTS],
    count: usize,
}

impl AsRef<[Extent]> for Parts {
    fn as_ref(&self) -> &[Extent] {
        &self.extents[..self.count]
    }
}

impl ExpertBank {
    /// Checks every expert of a layer: all of them have the encoding of the first and the right shapes.
    pub(super) fn new(
        checkpoint: &Checkpoint,
        base: &str,
        layer: usize,
        moe: &MoeConfig,
        width: usize,
    ) -> Result<Self, Error> {
        let inner = moe.intermediate_size;
        let first = format!("{base}.experts.0");
        let names = checkpoint.expert_names(&first);
        if checkpoint.manifest().is_some() && !checkpoint.is_fp8(&format!("{first}.{}", names[0])) {
            let (name, bank) =
                checkpoint.bank(&format!("{base}.experts"), [moe.num_experts, inner, width])?;
            return Ok(Self {
                encoding: bank.encoding,
                count: moe.num_experts,
                width,
                inner,
                layer: layer as u32,
                names: EXPERT_NAMES[0],
                name: name.into(),
                storage: ExpertStorage::Records(bank),
            });
        }
        let [gate, up, down] = names;
        let shapes = [(gate, inner, width), (up, inner, width), (down, width, inner)];
        let mut bank: Option<Self> = None;
        for expert in 0..moe.num_experts {
            for (name, rows, cols) in shapes {
                let stored = checkpoint.matrix(&format!("{base}.experts.{expert}.{name}"), rows, cols)?;
                let bank = bank.get_or_insert_with(|| Self {
                    encoding: stored.encoding,
                    count: moe.num_experts,
                    width,
                    inner,
                    layer: layer as u32,
                    names,
                    name: checkpoint.full(&format!("{base}.experts")).into(),
                    storage: ExpertStorage::Tensors(Vec::new()),
                });
                if stored.encoding != bank.encoding {
                    let reason =
                        format!("is {}, the layer's first expert is {}", stored.encoding, bank.encoding);
                    return Err(Error::Tensor {
                        dir: checkpoint.dir().to_path_buf(),
                        tensor: stored.name,
                        reason,
                    });
                }
            }
        }
        let mut bank = bank.expect("a configuration has at least one expert");
        // An outline has no numbers, not even these.
        if bank.encoding == Encoding::Int4 && checkpoint.dir() != crate::outline::outlined() {
            // One expert stands for all: there are tens of thousands of these tensors, each a read.
            for (name, rows, cols) in shapes {
                checkpoint.check_stored_shape(&format!("{first}.{name}"), rows, cols)?;
            }
        }
        let planes: &[&str] = match bank.encoding {
            Encoding::Mxfp4 | Encoding::Int4 => &["weight_packed", "weight_scale"],
            Encoding::Fp8 => &["weight", FP8_SCALES],
            _ => &["weight"],
        };
        let mut templates = Vec::new();
        for (name, ..) in shapes {
            for plane in planes {
                let pattern = checkpoint.full(&base.replacen(&format!("layers.{layer}"), "layers.{}", 1));
                let pattern = format!("{pattern}.experts.{{}}.{name}.{plane}");
                let template = checkpoint.index().template(&pattern).expect("every expert was found by name");
                templates.push(template);
            }
        }
        bank.storage = ExpertStorage::Tensors(templates);
        Ok(bank)
    }

    /// The extents of one expert's parts: in the order of the templates, or its record.
    pub(crate) fn parts(&self, index: &TensorIndex, expert: u32) -> Parts {
        let nowhere = Extent { source: SourceId::new(0), offset: 0, len: 0 };
        let mut parts = Parts { extents: [nowhere; MAX_PARTS], count: 1 };
        match &self.storage {
            ExpertStorage::Tensors(templates) => {
                parts.count = templates.len();
                for (extent, &template) in parts.extents.iter_mut().zip(templates) {
                    let info =
                        index.at(template, &[self.layer, expert]).expect("every expert was checked at open");
                    *extent = Extent { source: info.source, offset: info.offset, len: info.bytes };
                }
            }
            ExpertStorage::Records(bank) => {
                let stride = bank.layout.stride() as u64;
                let offset = bank.records.offset + u64::from(expert) * stride;
                parts.extents[0] = Extent { source: bank.records.source, offset, len: stride };
            }
        }
        parts
    }

    /// The types of one expert's parts in the source, gate matrix only: all three have the same.
    pub(crate) fn dtypes(&self, index: &TensorIndex) -> Vec<String> {
        let ExpertStorage::Tensors(templates) = &self.storage else { return Vec::new() };
        let planes = templates.iter().take(templates.len() / 3);
        let infos = planes.filter_map(|&template| index.at(template, &[self.layer, 0]));
        // Behind weights and scales, the shape where it is stored.
        let shape = index.find(&format!("{}.0.{}.weight_shape", self.name, self.names[0]));
        infos.chain(shape).map(|info| info.dtype.to_string()).collect()
    }

    /// Rows and columns of the gate, up and down matrix of an expert.
    pub(crate) fn shapes(&self) -> [[usize; 2]; 3] {
        [[self.inner, self.width], [self.inner, self.width], [self.width, self.inner]]
    }

    /// The gate, up and down matrix of an expert, each from its planes.
    pub(crate) fn views<'a>(
        &self,
        plane: impl Fn(usize) -> &'a [u8],
    ) -> Result<[MatrixView<'a>; 3], LayoutError> {
        self.views_of(self.shapes(), plane)
    }

    /// As [`views`](Self::views), of the first rows of each; of FP8, whose scales belong to blocks, of all rows.
    pub(crate) fn views_of<'a>(
        &self,
        shapes: [[usize; 2]; 3],
        plane: impl Fn(usize) -> &'a [u8],
    ) -> Result<[MatrixView<'a>; 3], LayoutError> {
        let mut views = [MatrixView::new(Encoding::F32, [0, 0], &[])?; 3];
        for (i, (view, shape)) in views.iter_mut().zip(shapes).enumerate() {
            *view = match self.encoding {
                Encoding::Mxfp4 => Mxfp4View::new(shape, plane(2 * i), plane(2 * i + 1))?.into(),
                Encoding::Int4 => Int4View::new(shape, plane(2 * i), plane(2 * i + 1))?.into(),
                Encoding::Fp8 => Fp8View::new(shape, 0, plane(2 * i), plane(2 * i + 1))?.into(),
                encoding => MatrixView::new(encoding, shape, plane(i))?,
            };
        }
        Ok(views)
    }

    /// What the pager knows an expert by.
    pub(crate) fn key(&self, expert: u32) -> u64 {
        u64::from(self.layer) << 32 | u64::from(expert)
    }

    /// Bytes of each part of one expert.
    fn part_bytes(&self) -> impl Iterator<Item = usize> {
        let weights = self.width * self.inner;
        let planes = match (&self.storage, self.encoding) {
            (ExpertStorage::Records(bank), _) => return vec![bank.layout.stride()].into_iter(),
            (_, Encoding::Mxfp4) => [weights / 2, weights / 32],
            (_, Encoding::Int4) => [weights / 2, weights / 16],
            (_, Encoding::Fp8) => {
                // Turning a matrix changes nothing in the number of its blocks.
                [weights, fp8::scale_bytes([self.inner, self.width]).expect("the tensors have that size")]
            }
            (_, Encoding::Bf16) => [weights * 2, 0],
            _ => [weights * 4, 0],
        };
        let parts: Vec<_> = [planes; 3].into_iter().flatten().filter(|&bytes| bytes > 0).collect();
        parts.into_iter()
    }

    /// Bytes of one expert.
    pub(crate) fn expert_bytes(&self) -> u64 {
        self.part_bytes().sum::<usize>() as u64
    }

    /// Bytes of a slot for one expert.
    pub(super) fn slot_bytes(&self) -> usize {
        Slots::record_bytes(&self.part_bytes().collect::<Vec<_>>())
    }
}
