//! The state of a ring: two cursors on a play list, and the tiles between them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::plan::{self, Allocated, Plan, Resident, TileAt};
use super::tape::Tape;
use crate::readers::{Cell, Class, Filled, Handle, Phase, Piece};
use crate::{Backend, Budget, Buffer, Error, Source};

/// What does not change while a ring plays.
pub(super) struct Stage {
    pub(super) tape: Tape,
    sources: Arc<[Arc<dyn Source>]>,
    readers: Handle,
    pub(super) plan: Plan,
    slots: Vec<Arc<Cell>>,
    resident: Vec<Resident>,
    /// Pays for the pages of mapped files that are looked at.
    _window: Option<crate::Lease>,
}

/// How far a ring is.
pub(super) struct Play {
    /// Ranges of entries still to be handed out; the first one may be partly done.
    list: VecDeque<Range<usize>>,
    /// Entries in `list` that are not wholly handed out.
    pub(super) queued: usize,
    fetch: Cursor,
    play: Cursor,
    /// The tiles between the cursors that need I/O, in order.
    window: VecDeque<Fetched>,
    /// Slots that nobody uses.
    free: Vec<u32>,
    /// How far each tile is that stays in memory.
    loaded: Vec<Loaded>,
    /// A tile is in use.
    out: bool,
    pieces: Vec<Piece>,
    pub(super) bytes_read: u64,
}

/// A place in the play list: which range of it, which entry of the tape, which tile of the entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cursor {
    range: usize,
    at: TileAt,
}

#[derive(Debug, Clone, Copy)]
struct Fetched {
    at: TileAt,
    place: Place,
}

/// Where the bytes of a tile arrive.
#[derive(Debug, Clone, Copy)]
enum Place {
    Slot(u32),
    /// In a buffer of its own, where it stays.
    Resident(usize),
    Mapped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loaded {
    No,
    /// In the window for the first time.
    Fetched,
    Yes,
}

/// The bytes of a tile that is in use.
pub(super) enum Data<'a> {
    Slot {
        slot: u32,
        buffer: Buffer,
        /// Where the tile begins in it.
        start: usize,
    },
    Resident {
        tile: usize,
        buffer: Buffer,
        start: usize,
    },
    Mapped {
        bytes: &'a [u8],
        piece: Piece,
        keep: bool,
    },
    /// Given back.
    Gone,
}

impl Stage {
    pub(super) fn new(
        sources: Arc<[Arc<dyn Source>]>,
        tape: Tape,
        plan: Plan,
        budget: &Budget,
        readers: Handle,
    ) -> Result<Self, Error> {
        let Allocated { slots, resident, window } = plan.allocate(&sources, budget)?;
        let stage = Self { tape, sources, readers, plan, slots, resident, _window: window };
        stage.readers.register(Class::Tape, stage.cells().count());
        Ok(stage)
    }

    /// The bytes of a tile that is in use.
    pub(super) fn bytes<'a>(&self, at: TileAt, data: &'a Data<'_>) -> &'a [u8] {
        match data {
            // A slot has room for the largest tile.
            Data::Slot { buffer, start, .. } | Data::Resident { buffer, start, .. } => {
                &buffer[*start..start + self.plan.range(at).1]
            }
            Data::Mapped { bytes, .. } => bytes,
            Data::Gone => &[],
        }
    }

    fn cells(&self) -> impl Iterator<Item = &Arc<Cell>> {
        let resident = self.resident.iter().filter_map(|tile| match tile {
            Resident::Copied(cell) => Some(cell),
            Resident::Mapped(_) => None,
        });
        self.slots.iter().chain(resident)
    }

    /// The place behind `cursor`.
    fn step(&self, list: &VecDeque<Range<usize>>, cursor: Cursor) -> Cursor {
        let Cursor { range, at: TileAt { entry, tile } } = cursor;
        if tile + 1 < self.plan.tiles(entry) {
            return Cursor { range, at: TileAt { entry, tile: tile + 1 } };
        }
        if entry + 1 < list[range].end {
            return Cursor { range, at: TileAt { entry: entry + 1, tile: 0 } };
        }
        let entry = list.get(range + 1).map_or(0, |entries| entries.start);
        Cursor { range: range + 1, at: TileAt { entry, tile: 0 } }
    }

    fn cell(&self, place: Place) -> Option<&Arc<Cell>> {
        match place {
            Place::Slot(slot) => Some(&self.slots[slot as usize]),
            Place::Resident(tile) => match &self.resident[tile] {
                Resident::Copied(cell) => Some(cell),
                Resident::Mapped(_) => None,
            },
            Place::Mapped => None,
        }
    }

    fn submit(&self, place: Place, pieces: &[Piece]) {
        if let Some(cell) = self.cell(place) {
            self.readers.submit(Class::Tape, cell, |job| _ = job.assemble(pieces, &self.sources));
        }
    }

    /// Waits for a tile, which is read again if it failed before.
    fn wait(&self, place: Place, pieces: &[Piece]) -> Result<Filled, Error> {
        let leaked = || Error::Leaked { what: "tile" };
        let cell = self.cell(place).ok_or_else(leaked)?;
        if let Some(result) = self.readers.wait(Class::Tape, cell) {
            return result;
        }
        if !cell.has_buffer() {
            return Err(leaked());
        }
        self.submit(place, pieces);
        self.readers.wait(Class::Tape, cell).ok_or_else(leaked)?
    }

    /// Ends the reading of a tile; true if its bytes are there to stay.
    fn cancel(&self, place: Place) -> bool {
        let Some(cell) = self.cell(place) else { return false };
        let ready = self.readers.cancel(Class::Tape, cell) == Phase::Ready;
        let kept = ready && matches!(place, Place::Resident(_));
        if !kept {
            cell.forget();
        }
        kept
    }

    fn release(&self, at: TileAt, pieces: &mut Vec<Piece>) {
        let (from, len) = self.plan.range(at);
        self.tape.entry(at.entry).pieces(from, len, pieces);
        if let Some(piece) = pieces.first() {
            self.source(piece).release(piece.offset, piece.len as u64);
        }
    }

    fn source(&self, piece: &Piece) -> &dyn Source {
        &*self.sources[piece.source.index()]
    }
}

impl Drop for Stage {
    /// Nothing is being read any more: the ring has been cleared.
    fn drop(&mut self) {
        for cell in self.cells() {
            // A reader may hold on to a cell for a moment; the memory goes now.
            drop(cell.dismantle());
        }
        self.readers.unregister(Class::Tape, self.cells().count());
    }
}

impl Play {
    pub(super) fn new(stage: &Stage) -> Self {
        Self {
            list: VecDeque::with_capacity(16),
            queued: 0,
            fetch: Cursor::default(),
            play: Cursor::default(),
            window: VecDeque::with_capacity(stage.plan.depth().min(1024)),
            free: (0..stage.slots.len() as u32).rev().collect(),
            loaded: vec![Loaded::No; stage.resident.len()],
            out: false,
            pieces: Vec::with_capacity(stage.plan.max_pieces()),
            bytes_read: 0,
        }
    }

    pub(super) fn push(&mut self, entries: Range<usize>) {
        self.queued += entries.len();
        let first = TileAt { entry: entries.start, tile: 0 };
        let last = self.list.len();
        self.list.push_back(entries);
        for cursor in [&mut self.fetch, &mut self.play] {
            if cursor.range == last {
                cursor.at = first;
            }
        }
    }

    /// Moves on to the next tile: its place, its bytes, and how many of them were read for it.
    pub(super) fn next<'a>(&mut self, stage: &'a Stage) -> Result<Option<(TileAt, Data<'a>, u64)>, Error> {
        // No tile is alive, since it would borrow the ring.
        self.out = false;
        self.fetch(stage);
        if self.list.is_empty() {
            return Ok(None);
        }
        let (at, before) = (self.play.at, self.bytes_read);
        let data = self.take(stage, at)?;
        self.advance(stage);
        self.out = true;
        self.fetch(stage);
        Ok(Some((at, data, self.bytes_read - before)))
    }

    /// Has tiles read, in order, until the window is full.
    pub(super) fn fetch(&mut self, stage: &Stage) {
        while self.fetch.range < self.list.len() {
            let at = self.fetch.at;
            let resident = stage.plan.resident(at);
            if resident.is_none_or(|tile| self.loaded[tile] == Loaded::No) {
                if self.window.len() + usize::from(self.out) >= stage.plan.depth() {
                    return;
                }
                let Some(place) = self.begin(stage, at, resident) else { return };
                self.window.push_back(Fetched { at, place });
                if let Some(tile) = resident {
                    self.loaded[tile] = Loaded::Fetched;
                }
            }
            self.fetch = stage.step(&self.list, self.fetch);
        }
    }

    /// Begins to read one tile; `None` when no slot is free.
    fn begin(&mut self, stage: &Stage, at: TileAt, resident: Option<usize>) -> Option<Place> {
        let (from, len) = stage.plan.range(at);
        stage.tape.entry(at.entry).pieces(from, len, &mut self.pieces);
        if let Some(piece) = plan::view(&self.pieces, &stage.sources) {
            stage.source(piece).will_need(piece.offset, piece.len as u64);
            return Some(Place::Mapped);
        }
        let place = match resident {
            Some(tile) => Place::Resident(tile),
            None => Place::Slot(self.free.pop()?),
        };
        stage.submit(place, &self.pieces);
        Some(place)
    }

    /// The bytes of the tile at the play cursor.
    fn take<'a>(&mut self, stage: &'a Stage, at: TileAt) -> Result<Data<'a>, Error> {
        let resident = stage.plan.resident(at);
        let (from, len) = stage.plan.range(at);
        let place = match (resident, self.window.front()) {
            (Some(tile), _) if self.loaded[tile] == Loaded::Yes => match &stage.resident[tile] {
                Resident::Copied(_) => Place::Resident(tile),
                Resident::Mapped(_) => Place::Mapped,
            },
            (_, Some(&Fetched { at: front, place })) if front == at => place,
            // All slots were lost with tiles that were leaked.
            _ => return Err(Error::Leaked { what: "tile" }),
        };
        stage.tape.entry(at.entry).pieces(from, len, &mut self.pieces);
        let data = match place {
            Place::Mapped => {
                let piece = self.pieces[0];
                let source = stage.source(&piece);
                let bytes = source.mapped(piece.offset, piece.len)?;
                let unmapped = || Error::Unmapped { path: source.name().to_path_buf(), offset: piece.offset };
                Data::Mapped { bytes: bytes.ok_or_else(unmapped)?, piece, keep: resident.is_some() }
            }
            Place::Slot(slot) => {
                let (buffer, start) = stage.wait(place, &self.pieces)?;
                Data::Slot { slot, buffer, start }
            }
            Place::Resident(tile) => {
                let (buffer, start) = stage.wait(place, &self.pieces)?;
                Data::Resident { tile, buffer, start }
            }
        };
        if resident.is_none_or(|tile| self.loaded[tile] != Loaded::Yes) {
            self.window.pop_front();
            let read = self.pieces.iter().filter(|piece| stage.source(piece).backend() != Backend::Memory);
            self.bytes_read += read.map(|piece| piece.len as u64).sum::<u64>();
        }
        if let Some(tile) = resident {
            self.loaded[tile] = Loaded::Yes;
        }
        Ok(data)
    }

    /// Moves the play cursor on.
    fn advance(&mut self, stage: &Stage) {
        let next = stage.step(&self.list, self.play);
        if next.at.tile == 0 {
            self.queued -= 1;
        }
        self.play = next;
        if next.range > 0 {
            self.list.pop_front();
            self.play.range -= 1;
            self.fetch.range -= 1;
        }
    }

    /// Takes back the bytes of a tile, and uses the room for the next.
    pub(super) fn give_back(&mut self, stage: &Stage, data: Data<'_>) {
        match data {
            Data::Slot { slot, buffer, .. } => {
                stage.slots[slot as usize].put_back(buffer, Phase::Idle);
                self.free.push(slot);
            }
            Data::Resident { tile, buffer, .. } => {
                if let Some(cell) = stage.cell(Place::Resident(tile)) {
                    cell.put_back(buffer, Phase::Ready);
                }
            }
            Data::Mapped { piece, keep: false, .. } => {
                stage.source(&piece).release(piece.offset, piece.len as u64);
            }
            Data::Mapped { .. } | Data::Gone => {}
        }
        self.out = false;
        self.fetch(stage);
    }

    pub(super) fn clear(&mut self, stage: &Stage) {
        // From the end, so that nothing is begun while a read under way is waited for.
        while let Some(Fetched { at, place }) = self.window.pop_back() {
            let mut kept = false;
            match place {
                Place::Slot(slot) => {
                    stage.cancel(place);
                    self.free.push(slot);
                }
                // Bytes that were to stay anyway may stay.
                Place::Resident(_) => kept = stage.cancel(place),
                Place::Mapped => stage.release(at, &mut self.pieces),
            }
            if let Some(tile) = stage.plan.resident(at) {
                self.loaded[tile] = if kept { Loaded::Yes } else { Loaded::No };
            }
        }
        self.list.clear();
        self.queued = 0;
        (self.fetch, self.play) = (Cursor::default(), Cursor::default());
    }
}
