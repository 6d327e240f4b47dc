//! Who gets how much memory, decided before any of it is taken.

use std::fmt;
use std::sync::Arc;

use kimi_kernels::{Kernels, LANES};
use kimi_paging::{Backend, Ring, RingBuilder, Slots, Source, Tape, current_rss_bytes, memory_limit};

use crate::config::Config;
use crate::engine::EngineOptions;
use crate::error::Error;
use crate::layer::{self, Routing};
use crate::layout::{Layout, MAX_PARTS};
use crate::model::Model;
use crate::operand::OperandSizes;
use crate::session::{KV_BLOCK, KvCache, LOG_COLUMNS, SessionSizes};
use crate::weights::BytesRead;

const MIB: u64 = 1 << 20;

/// Tiles and depth of the ring where memory allows, and where it is short.
const RING: [(u64, usize); 4] = [(4 * MIB, 8), (4 * MIB, 4), (MIB, 4), (256 << 10, 4)];

/// The widest pass that is ever planned, so that the sizes of its buffers stay in range.
const MAX_COLUMNS: usize = 1 << 16;

/// Expert slots where memory allows, and where it is short.
const SLOTS: [usize; 2] = [4, 2];

/// What the process takes beside the ledger once it runs: stacks, the allocator's slack, code paged in later.
const GROWTH: u64 = 8 * MIB;
const GROWTH_PER_THREAD: u64 = MIB / 4;

/// One line of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanItem {
    /// What the memory is for.
    pub what: &'static str,
    /// Bytes.
    pub bytes: u64,
}

/// The split of a memory limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The ceiling.
    pub limit_bytes: u64,
    /// What goes where; the sum is at most the ceiling.
    pub items: Vec<PlanItem>,
    /// Columns of the widest pass.
    pub columns: usize,
    /// Tokens that a session can hold.
    pub positions: usize,
    /// Bytes of a tile.
    pub tile_bytes: usize,
    /// Tiles in the ring.
    pub ring_depth: usize,
    /// Slots for experts.
    pub expert_slots: usize,
    /// Memory for the beginning of the tape, which stays once it has been read.
    pub pinned_bytes: u64,
    /// The whole tape stays in memory.
    pub all_pinned: bool,
    /// Bytes of the whole tape.
    pub tape_bytes: u64,
    /// Bytes that a token reads once what stays in memory is there; of experts those of a token that finds none of its own in
    /// the slots, or none at all where all have slots.
    pub reads: BytesRead,
}

impl Plan {
    /// Bytes of all items.
    pub fn total_bytes(&self) -> u64 {
        self.items.iter().map(|item| item.bytes).fold(0, u64::saturating_add)
    }
}

impl Plan {
    /// Splits the memory that `options` allow for a model, without taking any of it.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] with the table of what is needed when the limit is below the floor,
    /// [`Error::UnsupportedIsa`].
    pub fn new(model: &Model, options: &EngineOptions) -> Result<Self, Error> {
        let tape = Tape::new(model.layout.entries.clone())?;
        Planner::new(model, &tape, options)?.plan()
    }

    /// The least memory that a model runs in with these options, whatever they allow.
    ///
    /// # Errors
    /// As [`new`](Self::new), the limit aside.
    pub fn floor(model: &Model, options: &EngineOptions) -> Result<Self, Error> {
        let tape = Tape::new(model.layout.entries.clone())?;
        Planner::new(model, &tape, options)?.floor()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for item in &self.items {
            writeln!(f, "{:>12.1} MB  {}", item.bytes as f64 / 1e6, item.what)?;
        }
        write!(
            f,
            "{:>12.1} MB  in all, of {:.1} MB allowed",
            self.total_bytes() as f64 / 1e6,
            self.limit_bytes as f64 / 1e6
        )
    }
}

/// Everything that a plan depends on.
pub(crate) struct Planner<'a> {
    pub(crate) config: &'a Config,
    pub(crate) layout: &'a Layout,
    pub(crate) sources: &'a [Arc<dyn Source>],
    pub(crate) tape: &'a Tape,
    pub(crate) kernels: Kernels,
    pub(crate) threads: usize,
    pub(crate) options: &'a EngineOptions,
    /// The ceiling of the process.
    pub(crate) limit_bytes: u64,
    /// What the process takes already.
    pub(crate) process_bytes: u64,
}

/// The names of the items that no lease of its own stands for.
pub(crate) const PROCESS_ITEMS: [&str; 4] =
    ["process, index and small vectors", "stacks and allocator", "embedded weights", "beside the engine"];

/// What a process takes that only plans for a model on another machine.
const BARE_PROCESS: u64 = 8 * MIB;

/// The share of the machine's memory limit that is used when nobody says how much: 7/8.
const DEFAULT_SHARE: (u64, u64) = (7, 8);

impl<'a> Planner<'a> {
    pub(crate) fn new(model: &'a Model, tape: &'a Tape, options: &'a EngineOptions) -> Result<Self, Error> {
        let kernels = match options.isa {
            Some(isa) => Kernels::with_isa(isa).ok_or(Error::UnsupportedIsa { isa })?,
            None => Kernels::detect(),
        };
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let checkpoint = &model.checkpoint;
        let known = model.layout.vector_bytes() + checkpoint.index().heap_bytes() as u64;
        Ok(Self {
            config: &model.config,
            layout: &model.layout,
            sources: checkpoint.index().sources(),
            tape,
            kernels,
            threads: options.threads.unwrap_or_else(available).max(1),
            options,
            limit_bytes: options.ram_bytes.or_else(default_limit).unwrap_or(u64::MAX),
            process_bytes: match current_rss_bytes() {
                // An outline takes memory for headers that a model has on its drive.
                _ if model.is_outline() => known + BARE_PROCESS,
                Some(bytes) => bytes,
                // Where the system does not tell, what is known to be there.
                None => known,
            },
        })
    }

    /// The least that runs.
    pub(crate) fn floor(&self) -> Result<Plan, Error> {
        let mut floor = self.split(1, RING[RING.len() - 1], SLOTS[SLOTS.len() - 1])?;
        floor.reads = self.reads(&floor)?;
        Ok(floor)
    }

    /// What a token reads with a plan.
    fn reads(&self, plan: &Plan) -> Result<BytesRead, Error> {
        let ring = ring(self.sources, self.tape, plan.tile_bytes, plan.ring_depth, plan.pinned_bytes);
        let resident = ring.resident_bytes()?;
        let head = self.layout.matrices[self.layout.lm_head.0].bytes;
        let trunk = self.layout.tape_bytes() - head;
        let per_token = self.config.moe.as_ref().map_or(0, |moe| moe.num_experts_per_token as u64);
        let all_experts = plan.expert_slots >= self.layout.expert_count();
        Ok(BytesRead {
            trunk: trunk.saturating_sub(resident),
            experts: if all_experts { 0 } else { per_token * self.layout.expert_bytes_of_one_each() },
            head: head - resident.saturating_sub(trunk).min(head),
            kv: 0,
            other: self.layout.embedding.row_bytes(),
        })
    }
}

fn default_limit() -> Option<u64> {
    memory_limit().bytes().map(|bytes| bytes / DEFAULT_SHARE.1 * DEFAULT_SHARE.0)
}

impl Planner<'_> {
    /// Finds the split: first what must be there, then the width of passes, the ring, and with the rest pinned trunk and
    /// more expert slots.
    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        let floor = self.floor()?;
        if floor.total_bytes() > self.limit_bytes {
            return Err(Error::DoesNotFit { needed: floor.total_bytes(), plan: Box::new(floor) });
        }
        let fits = |plan: &Plan| plan.total_bytes() <= self.limit_bytes;
        let base = self.split(1, RING[0], SLOTS[0])?;
        let mut columns = self.options.columns.min(self.options.positions).clamp(1, MAX_COLUMNS);
        while columns > 1 {
            let plan = self.split(columns, RING[0], SLOTS[0])?;
            // Wide passes save reads of a prompt; memory beyond this share saves more as pinned trunk.
            let modest = plan.total_bytes().saturating_sub(base.total_bytes()) <= self.limit_bytes / 4;
            if fits(&plan) && (modest || columns <= LOG_COLUMNS) {
                break;
            }
            columns = if columns > LOG_COLUMNS { (columns / 2).max(LOG_COLUMNS) } else { columns / 2 };
        }
        for ring in RING {
            for slots in SLOTS {
                let mut plan = self.split(columns, ring, slots)?;
                if fits(&plan) {
                    self.spend_rest(&mut plan)?;
                    plan.reads = self.reads(&plan)?;
                    return Ok(plan);
                }
            }
        }
        Ok(floor)
    }

    /// Pins trunk, then adds expert slots, with what is left.
    fn spend_rest(&self, plan: &mut Plan) -> Result<(), Error> {
        let ring =
            |pinned| ring(self.sources, self.tape, plan.tile_bytes, plan.ring_depth, pinned).leased_bytes();
        let (unpinned, everything) = (ring(0)?, ring(u64::MAX)?);
        let rest = self.limit_bytes - plan.total_bytes();
        plan.all_pinned = everything <= rest + unpinned;
        plan.pinned_bytes = if plan.all_pinned { everything } else { rest };
        let all = ring(plan.pinned_bytes)?;
        let kept = if plan.all_pinned {
            plan.items.retain(|item| item.what != "ring");
            all
        } else {
            all - unpinned
        };
        plan.items.extend((kept > 0).then_some(PlanItem { what: "trunk kept in memory", bytes: kept }));

        let experts = self.layout.expert_count();
        if plan.all_pinned && experts > plan.expert_slots {
            let slot = self.slot_bytes(1);
            let rest = self.limit_bytes - plan.total_bytes();
            let more = (rest / slot).min((experts - plan.expert_slots) as u64);
            plan.expert_slots += more as usize;
            plan.items
                .extend((more > 0).then_some(PlanItem { what: "more expert slots", bytes: more * slot }));
        }
        Ok(())
    }

    /// What so many slots for experts take.
    fn slot_bytes(&self, slots: usize) -> u64 {
        match slots {
            0 => 0,
            _ => Slots::leased_bytes(self.sources, slots, self.layout.slot_bytes(), MAX_PARTS),
        }
    }

    /// A plan without pinned trunk.
    fn split(
        &self,
        columns: usize,
        (tile_bytes, ring_depth): (u64, usize),
        slots: usize,
    ) -> Result<Plan, Error> {
        let sizes = SessionSizes::new(self.config, columns, self.options.positions, self.options.kv);
        let matrices = &self.layout.matrices;
        let longest_row = matrices.iter().map(|matrix| matrix.row_bytes).max().unwrap_or(0);
        // No tile is smaller than a row.
        let tile_bytes = tile_bytes.max(longest_row) as usize;
        let expert_slots = slots.min(self.layout.expert_count());
        let work = WorkSizes::new(self.config, self.kernels, columns, self.options);
        let embedded = self.sources.iter().filter(|source| source.backend() == Backend::Memory);
        let [process, stacks, weights, beside] = PROCESS_ITEMS;
        let items = [
            (process, self.process_bytes),
            (stacks, GROWTH + self.threads as u64 * GROWTH_PER_THREAD),
            (weights, embedded.map(|source| source.len()).sum()),
            (beside, self.options.beside_bytes),
            ("recurrent state", sizes.state_bytes()),
            ("update log", sizes.log_bytes()),
            ("shadow state", sizes.shadow_bytes()),
            ("latents", sizes.kv_bytes()),
            (
                "activations",
                work.bytes()
                    + self.layout.embedding.row_bytes()
                    + Routing::bytes(self.config.moe.as_ref(), columns),
            ),
            ("scratch of threads", work.scratch as u64 * 4 * self.threads as u64),
            ("ring", ring(self.sources, self.tape, tile_bytes, ring_depth, 0).leased_bytes()?),
            ("expert slots", self.slot_bytes(expert_slots)),
        ];
        let items = items.into_iter().filter(|&(_, bytes)| bytes > 0);
        Ok(Plan {
            limit_bytes: self.limit_bytes,
            items: items.map(|(what, bytes)| PlanItem { what, bytes }).collect(),
            columns,
            positions: self.options.positions,
            tile_bytes,
            ring_depth,
            expert_slots,
            pinned_bytes: 0,
            all_pinned: false,
            tape_bytes: self.layout.tape_bytes(),
            reads: BytesRead::default(),
        })
    }
}

/// The ring of a plan.
pub(crate) fn ring(
    sources: &[Arc<dyn Source>],
    tape: &Tape,
    tile_bytes: usize,
    depth: usize,
    pinned_bytes: u64,
) -> RingBuilder {
    Ring::builder(sources, tape.clone()).tile_bytes(tile_bytes).depth(depth).pinned_bytes(pinned_bytes)
}

/// Floats of the buffers that a pass works in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkSizes {
    /// One of the four streams of `columns x hidden`.
    pub(crate) stream: usize,
    pub(crate) blocks: usize,
    pub(crate) phase: usize,
    pub(crate) operands: [OperandSizes; 2],
    pub(crate) tile: usize,
    pub(crate) logits: usize,
    /// Per thread.
    pub(crate) scratch: usize,
}

/// Rows that a wide product hands over at once.
const TILE_ROWS: usize = 192;

impl WorkSizes {
    pub(crate) fn new(config: &Config, kernels: Kernels, columns: usize, options: &EngineOptions) -> Self {
        let stream = columns * config.hidden_size;
        let blocks = config.attn_res_block_size.map_or(0, |size| config.layers.len().div_ceil(size));
        let [inner, longest] = layer::longest_columns(config);
        let tile = columns * TILE_ROWS;
        let state = config.kda.as_ref().map_or(0, |kda| kda.head_dim * (kda.head_dim + 1 + LOG_COLUMNS));
        let attention = KV_BLOCK + config.mla.kv_lora_rank + KvCache::scratch(config.mla.row(), options.kv);
        // The packing of a long column does not grow with K beyond its own length, so the longest one bounds all.
        let operands =
            [config.hidden_size, inner].map(|k| OperandSizes::new(kernels, options.arith, k, columns));
        Self {
            stream,
            blocks: blocks * stream,
            phase: layer::phase_floats(config, columns).max(tile),
            operands,
            tile,
            logits: config.vocab_size,
            scratch: kernels
                .matmul_scratch(longest.next_multiple_of(LANES), columns)
                .max(state)
                .max(attention),
        }
    }

    fn bytes(&self) -> u64 {
        let operands: u64 = self.operands.iter().map(OperandSizes::bytes).sum();
        (4 * self.stream + self.blocks + self.phase + self.tile + self.logits) as u64 * 4 + operands
    }
}
