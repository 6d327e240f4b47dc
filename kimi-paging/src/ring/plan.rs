//! How a tape is cut into tiles, and where each of them goes.

use std::ops::Range;
use std::sync::Arc;

use super::tape::Tape;
use crate::readers::{Cell, Job, Piece};
use crate::{Backend, Budget, Buffer, Error, Lease, Source, TapeProblem};

/// A tile: the entry, and its number in the entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TileAt {
    pub(super) entry: usize,
    pub(super) tile: usize,
}

/// A tile that stays in memory.
#[derive(Debug)]
pub(super) enum Resident {
    /// In a buffer of its own.
    Copied(Arc<Cell>),
    /// In the pages of a mapped file, which the lease pays for.
    Mapped(#[expect(dead_code, reason = "held for its bytes")] Option<Lease>),
}

/// Memory for the tiles of a plan.
#[derive(Debug)]
pub(super) struct Allocated {
    pub(super) slots: Vec<Arc<Cell>>,
    pub(super) resident: Vec<Resident>,
    pub(super) window: Option<Lease>,
}

/// The cut of a tape.
#[derive(Debug)]
pub(super) struct Plan {
    entries: Vec<Cut>,
    depth: usize,
    /// Tiles from the beginning of the tape that stay in memory, and their sizes.
    resident: Vec<Kept>,
    resident_bytes: u64,
    /// What the largest tile takes that is copied to a slot, and the largest that is looked at in a mapped file; 0 if there is none.
    slot_bytes: usize,
    window_bytes: usize,
    max_pieces: usize,
}

#[derive(Debug)]
struct Cut {
    row_bytes: u64,
    rows: usize,
    tile_rows: usize,
    /// The number of the first tile, counted over the whole tape.
    first_tile: usize,
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    kind: Kind,
    /// What it takes where it stays: its length, with the aligned bytes around it where they are read too.
    space: usize,
}

/// How the bytes of a tile come into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Copied,
    Mapped,
    /// They are there anyway, and not ours to pay for.
    InMemory,
}

impl Kind {
    /// What the tile takes from a budget if it stays.
    fn cost(self, space: usize) -> u64 {
        match self {
            Self::Copied => Buffer::footprint(space),
            Self::Mapped => space as u64,
            Self::InMemory => 0,
        }
    }
}

impl Plan {
    /// Cuts a tape that fits its sources. All settings are at least 1, except `pinned_bytes`.
    pub(super) fn new(
        tape: &Tape,
        sources: &[Arc<dyn Source>],
        tile_bytes: usize,
        depth: usize,
        pinned_bytes: u64,
        row_multiple: u64,
    ) -> Result<Self, Error> {
        let entries = Vec::with_capacity(tape.len());
        let (resident, resident_bytes) = (Vec::new(), 0);
        let (slot_bytes, window_bytes, max_pieces) = (0, 0, 0);
        let mut plan =
            Self { entries, depth, resident, resident_bytes, slot_bytes, window_bytes, max_pieces };
        let (mut first_tile, mut pieces, mut job) = (0, Vec::new(), Job::default());
        // What is left for tiles that stay; `None` behind the first that did not fit.
        let mut pinnable = Some(pinned_bytes);
        for entry in 0..tape.len() {
            let cut = cut(tape, entry, tile_bytes, row_multiple, first_tile)
                .map_err(|problem| Error::Tape { entry, problem })?;
            let tiles = cut.rows.div_ceil(cut.tile_rows);
            first_tile += tiles;
            plan.entries.push(cut);
            for tile in 0..tiles {
                let (from, len) = plan.range(TileAt { entry, tile });
                tape.entry(entry).pieces(from, len, &mut pieces);
                plan.max_pieces = plan.max_pieces.max(pieces.len());
                let kind = kind(&pieces, sources);
                let space = if kind == Kind::Copied { job.assemble(&pieces, sources) } else { len };
                pinnable = pinnable.and_then(|left| left.checked_sub(kind.cost(space)));
                match kind {
                    kind if pinnable.is_some() => {
                        plan.resident.push(Kept { kind, space });
                        plan.resident_bytes += len as u64;
                    }
                    Kind::Copied => plan.slot_bytes = plan.slot_bytes.max(space),
                    Kind::Mapped => plan.window_bytes = plan.window_bytes.max(len),
                    Kind::InMemory => {}
                }
            }
        }
        Ok(plan)
    }

    /// What [`allocate`](Self::allocate) will lease.
    pub(super) fn leased_bytes(&self) -> u64 {
        let resident: u64 = self.resident.iter().map(|kept| kept.kind.cost(kept.space)).sum();
        let slots = if self.slot_bytes > 0 { Buffer::footprint(self.slot_bytes) } else { 0 };
        let window = self.window_bytes as u64;
        (slots.saturating_add(window)).saturating_mul(self.depth as u64).saturating_add(resident)
    }

    pub(super) fn allocate(
        &self,
        sources: &Arc<[Arc<dyn Source>]>,
        budget: &Budget,
    ) -> Result<Allocated, Error> {
        let cell = |len, what| {
            let buffer = budget.buffer(len, what)?;
            Ok(Arc::new(Cell::new(Arc::clone(sources), buffer, self.max_pieces, None)))
        };
        let slots = if self.slot_bytes > 0 { self.depth } else { 0 };
        let slots = (0..slots).map(|_| cell(self.slot_bytes, "ring")).collect::<Result<_, Error>>()?;
        let window_bytes = (self.window_bytes as u64).saturating_mul(self.depth as u64);
        let window = if window_bytes > 0 { Some(budget.lease(window_bytes, "ring")?) } else { None };
        let keep = |kept: &Kept| match kept.kind {
            Kind::Copied => cell(kept.space, "resident tiles").map(Resident::Copied),
            Kind::Mapped => {
                budget.lease(kept.space as u64, "resident tiles").map(|lease| Resident::Mapped(Some(lease)))
            }
            Kind::InMemory => Ok(Resident::Mapped(None)),
        };
        let resident = self.resident.iter().map(keep).collect::<Result<_, Error>>()?;
        Ok(Allocated { slots, resident, window })
    }

    /// The number of a tile among those that stay in memory.
    pub(super) fn resident(&self, at: TileAt) -> Option<usize> {
        let tile = self.entries[at.entry].first_tile + at.tile;
        (tile < self.resident.len()).then_some(tile)
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// How many tiles an entry has.
    pub(super) fn tiles(&self, entry: usize) -> usize {
        let cut = &self.entries[entry];
        cut.rows.div_ceil(cut.tile_rows)
    }

    /// The rows of a tile.
    pub(super) fn rows(&self, at: TileAt) -> Range<usize> {
        let cut = &self.entries[at.entry];
        let first = at.tile * cut.tile_rows;
        first..cut.rows.min(first + cut.tile_rows)
    }

    /// Where a tile begins in its entry, and its length in bytes.
    pub(super) fn range(&self, at: TileAt) -> (u64, usize) {
        let row_bytes = self.entries[at.entry].row_bytes;
        let rows = self.rows(at);
        // At most `tile_bytes`, which is a usize.
        (rows.start as u64 * row_bytes, (rows.len() as u64 * row_bytes) as usize)
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// The most separate ranges that a tile is read from.
    pub(super) fn max_pieces(&self) -> usize {
        self.max_pieces
    }
}

/// The piece that a tile consists of, if it can be looked at where it lies.
pub(super) fn view<'a>(pieces: &'a [Piece], sources: &[Arc<dyn Source>]) -> Option<&'a Piece> {
    match (pieces, kind(pieces, sources)) {
        ([piece], Kind::Mapped | Kind::InMemory) => Some(piece),
        _ => None,
    }
}

fn kind(pieces: &[Piece], sources: &[Arc<dyn Source>]) -> Kind {
    match pieces {
        [piece] => match sources[piece.source.index()].backend() {
            Backend::Pread | Backend::Direct => Kind::Copied,
            Backend::Mmap => Kind::Mapped,
            Backend::Memory => Kind::InMemory,
        },
        _ => Kind::Copied,
    }
}

fn cut(
    tape: &Tape,
    entry: usize,
    tile_bytes: usize,
    row_multiple: u64,
    first_tile: usize,
) -> Result<Cut, TapeProblem> {
    let (row_bytes, rows) = (tape.row_bytes(entry), tape.entry_rows(entry));
    let tile_bytes = tile_bytes as u64;
    let fitting = tile_bytes / row_bytes;
    let tile_rows = if fitting >= rows { rows } else { fitting / row_multiple * row_multiple };
    if tile_rows == 0 {
        let needed = row_bytes.saturating_mul(row_multiple.min(rows));
        return Err(TapeProblem::TileTooSmall { needed, tile_bytes });
    }
    // A matrix of more rows than a usize counts lies in no address space, but may well be streamed by 64-bit machines only.
    let rows = usize::try_from(rows).map_err(|_| TapeProblem::Overflow)?;
    Ok(Cut { row_bytes, rows, tile_rows: tile_rows as usize, first_tile })
}
