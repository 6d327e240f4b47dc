//! A model made ready to run inside a memory limit.

use std::sync::Arc;

use kimi_kernels::{Isa, Scratch, Threads};
use kimi_paging::{Backend, Budget, Lease, LeasedVec, ReadSettings, ReadStats, Readers, Slots, Tape};

use crate::config::MAX_BLOCKS;
use crate::error::Error;
use crate::kv::KvFormat;
use crate::layer::Routing;
use crate::layout::MAX_PARTS;
use crate::model::Model;
use crate::operand::{Arith, OperandBuffers};
use crate::plan::{PROCESS_ITEMS, Plan, Planner, WorkSizes, ring};
use crate::session::{LOG_COLUMNS, Session, SessionSizes};
use crate::weights::{BytesRead, Check, Checker, ReadCounter, Weights};

/// Sources that a mix of Attention Residuals can have: the kept blocks and the running sum.
pub(crate) const MAX_SOURCES: usize = MAX_BLOCKS + 1;

/// How to run a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Ceiling of the process's memory in bytes; `None` takes seven eighths of what the machine or its cgroup allows.
    pub ram_bytes: Option<u64>,
    /// Tokens that a session must be able to hold.
    pub positions: usize,
    /// Columns of the widest pass; not more than `positions`, and less where memory is short.
    pub columns: usize,
    /// Compute threads; `None` takes what affinity and CPU quota allow.
    pub threads: Option<usize>,
    /// Instruction set; `None` takes the fastest of this processor.
    pub isa: Option<Isa>,
    /// Number format of the latents.
    pub kv: KvFormat,
    /// How weights and activations are multiplied.
    pub arith: Arith,
    /// Which tiles of a packed model are checked when they are read.
    pub check: Check,
    /// Who reads, and how many reads are under way at once.
    pub read: ReadSettings,
    /// Bytes of the ceiling that are left to the caller.
    pub beside_bytes: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            ram_bytes: None,
            positions: 4096,
            columns: 512,
            threads: None,
            isa: None,
            kv: KvFormat::F32,
            arith: Arith::Exact,
            check: Check::Sampled,
            read: ReadSettings::threads(Readers::DEFAULT_THREADS),
            beside_bytes: 0,
        }
    }
}

/// A model with its pager, threads and working memory: everything that sessions share. It runs one pass at a time.
#[derive(Debug)]
pub struct Engine {
    pub(crate) model: Arc<Model>,
    pub(crate) weights: Weights,
    pub(crate) work: Workspace,
    /// The trunk of the next pass has been announced already.
    pub(crate) announced: bool,
    budget: Budget,
    plan: Plan,
    sizes: SessionSizes,
    readers: Readers,
    /// What the process takes beside the ledger's buffers.
    _process: Lease,
}

/// The buffers of a pass.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The residual sum, the mixed and the normed input of a sublayer and its output: `columns x hidden` each.
    pub(crate) sums: LeasedVec<f32>,
    pub(crate) mixed: LeasedVec<f32>,
    pub(crate) normed: LeasedVec<f32>,
    pub(crate) output: LeasedVec<f32>,
    /// The kept blocks of Attention Residuals.
    pub(crate) blocks: LeasedVec<f32>,
    pub(crate) blocks_kept: usize,
    pub(crate) phase: LeasedVec<f32>,
    pub(crate) operands: [OperandBuffers; 2],
    pub(crate) routing: Routing,
    pub(crate) logits: LeasedVec<f32>,
    pub(crate) embedding_row: LeasedVec<u8>,
}

impl Workspace {
    fn new(model: &Model, sizes: &WorkSizes, columns: usize, budget: &Budget) -> Result<Self, Error> {
        let floats = |count| budget.zeroed(count, "activations");
        Ok(Self {
            sums: floats(sizes.stream)?,
            mixed: floats(sizes.stream)?,
            normed: floats(sizes.stream)?,
            output: floats(sizes.stream)?,
            blocks: floats(sizes.blocks)?,
            blocks_kept: 0,
            phase: floats(sizes.phase)?,
            operands: [
                OperandBuffers::new(&sizes.operands[0], budget)?,
                OperandBuffers::new(&sizes.operands[1], budget)?,
            ],
            routing: Routing::new(model.config.moe.as_ref(), columns, budget)?,
            logits: floats(sizes.logits)?,
            embedding_row: {
                let row = model.layout.embedding.row_bytes();
                budget.zeroed(row as usize, "activations")?
            },
        })
    }
}

impl Engine {
    /// Plans the memory and takes it. Nothing of the big matrices is read before the plan fits.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] with the table of what is needed when the limit is below the floor,
    /// [`Error::UnsupportedIsa`] for an instruction set that this processor lacks, and errors of the system.
    pub fn new(model: Arc<Model>, options: &EngineOptions) -> Result<Self, Error> {
        let tape = Tape::new(model.layout.entries.clone())?;
        let planner = Planner::new(&model, &tape, options)?;
        let (kernels, limit_bytes) = (planner.kernels, planner.limit_bytes);
        let threads = Threads::new(planner.threads)?;
        let sources = model.checkpoint.index().sources();
        let plan = planner.plan()?;
        let budget = Budget::new(limit_bytes);
        let beside =
            plan.items.iter().filter(|item| PROCESS_ITEMS.contains(&item.what)).map(|item| item.bytes).sum();
        let process = budget.lease(beside, "process")?;

        let readers = Readers::with_settings(&options.read)?;
        let ring = ring(sources, &tape, plan.tile_bytes, plan.ring_depth, plan.pinned_bytes)
            .build(&budget, &readers)?;
        let slots = match plan.expert_slots {
            0 => None,
            count => {
                let slots =
                    Slots::new(sources, &budget, &readers, count, model.layout.slot_bytes(), MAX_PARTS)?;
                let slots = slots.keep_mapped(plan.all_pinned && count == model.layout.expert_count());
                // Layers take turns, so each gets its share as soon as a token's experts fit one.
                let (layers, per_token) = model.layout.experts_per_round(&model.config);
                let in_shares = count >= layers * per_token;
                Some(if in_shares { slots.per_class(layers, model.layout.layer_of_key()) } else { slots })
            }
        };
        let sizes = WorkSizes::new(&model.config, kernels, plan.columns, options);
        let scratch_lease =
            budget.lease(sizes.scratch as u64 * 4 * threads.count() as u64, "scratch of threads")?;
        let weights = Weights {
            kernels,
            arith: options.arith,
            checker: Checker::new(options.check),
            dir: model.checkpoint.dir().to_path_buf(),
            scratch: Scratch::new(&threads, sizes.scratch),
            _scratch_lease: scratch_lease,
            threads,
            ring,
            slots,
            matrices: model.layout.matrices.clone(),
            lm_head: model.layout.lm_head,
            tile: budget.zeroed(sizes.tile, "activations")?,
            counter: ReadCounter::default(),
            moments: None,
        };
        let work = Workspace::new(&model, &sizes, plan.columns, &budget)?;
        let sizes = SessionSizes::new(&model.config, plan.columns, plan.positions, options.kv);
        Ok(Self { model, weights, work, announced: false, budget, plan, sizes, readers, _process: process })
    }

    /// A new, empty session.
    ///
    /// # Errors
    /// [`Error::Paging`] when the budget has no room for another.
    pub fn session(&self) -> Result<Session, Error> {
        Session::new(&self.model.config, &self.sizes, &self.budget)
    }

    /// What its sessions consist of.
    pub(crate) fn session_sizes(&self) -> &SessionSizes {
        &self.sizes
    }

    /// Bytes that a session takes when it is full.
    pub fn session_bytes(&self) -> u64 {
        self.sizes.bytes()
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The memory plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The ledger.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The most tokens of one pass.
    pub fn max_columns(&self) -> usize {
        self.plan.columns
    }

    /// The most tokens of a pass any prefix of which can be committed.
    pub fn max_logged_columns(&self) -> usize {
        self.plan.columns.min(LOG_COLUMNS)
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.weights.kernels.isa()
    }

    /// The tier of arithmetic in use.
    pub fn arith(&self) -> Arith {
        self.weights.arith
    }

    /// Compute threads in use.
    pub fn threads(&self) -> usize {
        self.weights.threads.count()
    }

    /// Bytes read since the engine was made.
    pub fn bytes_read(&self) -> BytesRead {
        self.weights.counter.bytes()
    }

    /// The counter behind [`bytes_read`](Self::bytes_read), to be watched while a pass runs.
    pub fn read_counter(&self) -> ReadCounter {
        self.weights.counter.clone()
    }

    /// Counts of the readers.
    pub fn read_stats(&self) -> ReadStats {
        self.readers.stats()
    }

    /// Who reads, as it came out: settings that the system refuses fall back to threads.
    pub fn read_settings(&self) -> ReadSettings {
        self.readers.settings()
    }

    /// Why something is read in another way than was asked for, one line each, the same reason only once.
    pub fn read_fallbacks(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self.readers.fallback().map(ToString::to_string).into_iter().collect();
        for source in self.model.checkpoint.index().sources() {
            let reason = source.fallback().map(ToString::to_string);
            reasons.extend(reason.filter(|reason| !reasons.contains(reason)));
        }
        reasons
    }

    /// How files are read; the first shard stands for all.
    pub fn backend(&self) -> Backend {
        self.model.checkpoint.index().sources().first().map_or(Backend::Memory, |source| source.backend())
    }
}
