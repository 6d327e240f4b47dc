//! A tape of matrices, played ahead of the compute through a few buffers.
//!
//! A ring walks its play list with two cursors. The *fetch* cursor has every tile that needs I/O read into a free slot, or
//! announces it to a mapped source, at most `depth` tiles ahead of the *play* cursor, which hands tiles out in order. Tiles
//! that stay in memory (the beginning of the tape) are passed over by the fetch cursor once they have been read.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use self::plan::{Plan, TileAt};
use self::play::{Data, Play, Stage};
use crate::{Budget, Error, Readers, Source};

mod plan;
mod play;
mod tape;

pub use tape::{Entry, Run, Tape};

/// Settings of a [`Ring`], made by [`Ring::builder`].
#[derive(Debug)]
#[must_use]
pub struct RingBuilder {
    sources: Arc<[Arc<dyn Source>]>,
    tape: Tape,
    tile_bytes: usize,
    depth: usize,
    pinned_bytes: u64,
    row_multiple: u64,
}

impl RingBuilder {
    /// The largest tile, 4 MiB unless set. A tile holds as many whole rows as fit.
    pub fn tile_bytes(mut self, tile_bytes: usize) -> Self {
        self.tile_bytes = tile_bytes;
        self
    }

    /// How many tiles are read ahead, the one in use included; 8 unless set.
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// Memory for tiles that stay once they have been read, from the beginning of the tape; none unless set.
    pub fn pinned_bytes(mut self, pinned_bytes: u64) -> Self {
        self.pinned_bytes = pinned_bytes;
        self
    }

    /// Rows that must stay together in a tile, from the first on; 1 unless set. The last tile of a matrix holds what is left.
    pub fn row_multiple(mut self, rows: u64) -> Self {
        self.row_multiple = rows;
        self
    }

    /// The bytes that [`build`](Self::build) will lease.
    ///
    /// # Errors
    /// As [`build`](Self::build), the budget aside.
    pub fn leased_bytes(&self) -> Result<u64, Error> {
        Ok(self.plan()?.leased_bytes())
    }

    /// How many bytes of the tape would stay in memory once they have been read.
    ///
    /// # Errors
    /// As [`build`](Self::build), the budget aside.
    pub fn resident_bytes(&self) -> Result<u64, Error> {
        Ok(self.plan()?.resident_bytes())
    }

    /// Leases all memory and makes the ring. Nothing is read yet.
    ///
    /// # Errors
    /// [`Error::Tape`] when the tape does not fit its sources or a row does not fit a tile, [`Error::Setting`] for no tiles at
    /// all, [`Error::OverBudget`].
    pub fn build(self, budget: &Budget, readers: &Readers) -> Result<Ring, Error> {
        let plan = self.plan()?;
        let stage = Stage::new(self.sources, self.tape, plan, budget, readers.handle())?;
        let play = Play::new(&stage);
        Ok(Ring { stage, play })
    }

    fn plan(&self) -> Result<Plan, Error> {
        for (what, found) in [
            ("tile_bytes", self.tile_bytes as u64),
            ("depth", self.depth as u64),
            ("row_multiple", self.row_multiple),
        ] {
            if found == 0 {
                return Err(Error::Setting { what, expected: "at least 1", found });
            }
        }
        self.tape.check(&self.sources)?;
        Plan::new(
            &self.tape,
            &self.sources,
            self.tile_bytes,
            self.depth,
            self.pinned_bytes,
            self.row_multiple,
        )
    }
}

/// Plays a [`Tape`]: tiles in order, read ahead of their use, in a fixed amount of memory.
///
/// ```
/// use std::sync::Arc;
/// use kimi_paging::{Budget, Entry, Extent, MemorySource, Readers, Ring, Source, SourceId, Tape};
///
/// let file: Arc<dyn Source> = Arc::new(MemorySource::new("weights", (0..64).collect::<Vec<u8>>()));
/// let tape = Tape::new(vec![Entry::new(Extent { source: SourceId::new(0), offset: 4, len: 48 }, 8)])?;
/// let (budget, readers) = (Budget::new(1 << 20), Readers::new(1)?);
///
/// let mut ring = Ring::builder(&[file], tape).tile_bytes(20).depth(2).build(&budget, &readers)?;
/// ring.push(0..1);
/// let mut seen = Vec::new();
/// while let Some(tile) = ring.next()? {
///     assert_eq!((tile.entry(), tile.rows()), (0, 2)); // two rows of eight bytes fit twenty
///     seen.extend_from_slice(&tile);
/// }
/// assert_eq!(seen, (4..52).collect::<Vec<u8>>());
/// # Ok::<(), kimi_paging::Error>(())
/// ```
pub struct Ring {
    stage: Stage,
    play: Play,
}

impl Ring {
    /// Begins a ring that plays `tape`, whose [`SourceId`](crate::SourceId)s are places in `sources`.
    pub fn builder(sources: &[Arc<dyn Source>], tape: Tape) -> RingBuilder {
        let (tile_bytes, depth, pinned_bytes, row_multiple) = (4 << 20, 8, 0, 1);
        RingBuilder { sources: sources.into(), tape, tile_bytes, depth, pinned_bytes, row_multiple }
    }

    /// Appends entries to the play list. Reading begins at once, as far as slots are free; what was pushed before need not
    /// have been consumed, so reading ahead crosses from one pass into the next.
    ///
    /// # Panics
    /// If the tape has no such entries.
    pub fn push(&mut self, entries: Range<usize>) {
        assert!(
            entries.end <= self.stage.tape.len(),
            "the tape has {} entries, not {entries:?}",
            self.stage.tape.len()
        );
        if !entries.is_empty() {
            self.play.push(entries);
            self.play.fetch(&self.stage);
        }
    }

    /// The next tile of the play list, waiting for it if need be; `None` at the end of what was pushed.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::ShortRead`] and the like when the bytes of this tile could not be read, after a second try. The
    /// ring stays where it is: calling again reads this tile again, [`clear`](Self::clear) gives up.
    #[expect(
        clippy::should_implement_trait,
        reason = "a tile borrows the ring, which `Iterator` cannot express"
    )]
    pub fn next(&mut self) -> Result<Option<Tile<'_>>, Error> {
        let Self { stage, play } = self;
        let Some((at, data, bytes_read)) = play.next(stage)? else { return Ok(None) };
        Ok(Some(Tile { stage, play, at, data, bytes_read }))
    }

    /// Forgets what was pushed and not yet handed out. Reads that have begun are waited for, others do not happen.
    pub fn clear(&mut self) {
        self.play.clear(&self.stage);
    }

    /// Entries that were pushed and not yet wholly handed out: 0 when nothing is ahead, more than the entries of a pass when
    /// the next pass has been pushed as well.
    pub fn queued(&self) -> usize {
        self.play.queued
    }

    /// The tape.
    pub fn tape(&self) -> &Tape {
        &self.stage.tape
    }

    /// How many bytes of the tape stay in memory once they have been read.
    pub fn resident_bytes(&self) -> u64 {
        self.stage.plan.resident_bytes()
    }

    /// Bytes of the tiles handed out so far that were read, or looked at in mapped files. What stays in memory counts once, what
    /// was in memory anyway ([`Backend::Memory`](crate::Backend::Memory)) does not count.
    pub fn bytes_read(&self) -> u64 {
        self.play.bytes_read
    }
}

impl Drop for Ring {
    /// Ends all reading before the buffers go.
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("entries", &self.stage.tape.len())
            .field("depth", &self.stage.plan.depth())
            .field("resident_bytes", &self.resident_bytes())
            .field("queued", &self.play.queued)
            .finish_non_exhaustive()
    }
}

/// Whole rows of one entry, in memory until dropped.
///
/// Derefs to the bytes. Dropping it frees its slot for the next read, or its pages of a mapped file.
pub struct Tile<'a> {
    stage: &'a Stage,
    play: &'a mut Play,
    at: TileAt,
    data: Data<'a>,
    bytes_read: u64,
}

impl Tile<'_> {
    /// The entry of the tape that the rows belong to.
    pub fn entry(&self) -> usize {
        self.at.entry
    }

    /// The first row.
    pub fn first_row(&self) -> usize {
        self.stage.plan.rows(self.at).start
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.stage.plan.rows(self.at).len()
    }

    /// What this tile added to [`Ring::bytes_read`]: mostly its length, or 0 when it was in memory from an earlier lap.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }
}

impl Deref for Tile<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.stage.bytes(self.at, &self.data)
    }
}

impl Drop for Tile<'_> {
    fn drop(&mut self) {
        self.play.give_back(self.stage, std::mem::replace(&mut self.data, Data::Gone));
    }
}

impl fmt::Debug for Tile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tile")
            .field("entry", &self.entry())
            .field("first_row", &self.first_row())
            .field("rows", &self.rows())
            .finish_non_exhaustive()
    }
}
