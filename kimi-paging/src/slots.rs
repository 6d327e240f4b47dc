//! Records in any order, known only shortly before their use: the experts of a mixture, for one.
//!
//! A round of requests is placed in slots in the order of use, as many at a time as fit, and read with priority over
//! everything that is read ahead of time. A record that an earlier round left in its slot is a hit and costs nothing. Records
//! are handed out in the order of use or as they arrive.

use std::fmt;
use std::sync::Arc;

use self::round::{Classes, Data, Play, Request, Stage};
use crate::readers::{Cell, Landed};
use crate::{Budget, Buffer, Error, Extent, Readers, Source};

mod layout;
mod policy;
mod round;

/// The most parts a record may have.
pub const MAX_PARTS: usize = 16;

const _: () = assert!(MAX_PARTS == 16, "the text of an error says so");

/// What the start of a part in a slot is a multiple of: a cache line, and the widest vector register.
const PART_ALIGN: usize = 64;

/// A cache of records, each a few ranges of bytes under a key of the caller's choice.
///
/// ```
/// use std::sync::Arc;
/// use kimi_paging::{Budget, Extent, MemorySource, Readers, Slots, Source, SourceId};
///
/// let file: Arc<dyn Source> = Arc::new(MemorySource::new("experts", (0..200).collect::<Vec<u8>>()));
/// let expert = |n: u64| {
///     let extent = |offset, len| Extent { source: SourceId::new(0), offset, len };
///     [extent(n * 20, 16), extent(n * 20 + 16, 4)] // weights and their scales
/// };
/// let (budget, readers) = (Budget::new(1 << 20), Readers::new(1)?);
/// let mut slots = Slots::new(&[file], &budget, &readers, 2, Slots::record_bytes(&[16, 4]), 2)?;
///
/// slots.begin([1, 3, 7].map(|n| (n, expert(n))))?;
/// let mut scales = Vec::new();
/// while let Some(record) = slots.next()? {
///     scales.push((record.key(), record.part(1)[0]));
/// }
/// assert_eq!(scales, [(1, 36), (3, 76), (7, 156)]);
/// # Ok::<(), kimi_paging::Error>(())
/// ```
pub struct Slots {
    stage: Stage,
    play: Play,
}

impl Slots {
    /// Leases `slots` buffers of `record_bytes` bytes for records of at most `parts` parts, whose
    /// [`SourceId`](crate::SourceId)s are places in `sources`. What that takes says [`leased_bytes`](Self::leased_bytes).
    ///
    /// # Errors
    /// [`Error::Setting`] for no slots, no bytes, no parts or more than [`MAX_PARTS`]; [`Error::OverBudget`].
    pub fn new(
        sources: &[Arc<dyn Source>],
        budget: &Budget,
        readers: &Readers,
        slots: usize,
        record_bytes: usize,
        parts: usize,
    ) -> Result<Self, Error> {
        for (what, found) in [("slots", slots), ("record_bytes", record_bytes), ("parts", parts)] {
            if found == 0 {
                return Err(Error::Setting { what, expected: "at least 1", found: 0 });
            }
        }
        if parts > MAX_PARTS {
            return Err(Error::Setting { what: "parts", expected: "at most 16", found: parts as u64 });
        }
        let sources: Arc<[_]> = sources.into();
        let slot_bytes = slot_bytes(&sources, record_bytes, parts);
        let landed = Arc::new(Landed::default());
        let cell = |_| {
            let buffer = budget.buffer(slot_bytes, "slots")?;
            Ok(Arc::new(Cell::new(Arc::clone(&sources), buffer, parts, Some(Arc::clone(&landed)))))
        };
        let cells = (0..slots).map(cell).collect::<Result<Vec<_>, Error>>()?;
        let stage = Stage::new(sources, cells, record_bytes, parts, readers.handle(), landed);
        let play = Play::new(&stage);
        Ok(Self { stage, play })
    }

    /// The size of a slot for records whose parts have these sizes, in whatever order they lie in their files.
    pub fn record_bytes(parts: &[usize]) -> usize {
        parts.iter().map(|len| len.next_multiple_of(PART_ALIGN)).sum()
    }

    /// The bytes that [`new`](Self::new) leases: for sources with an alignment a little more than the records, as the aligned
    /// bytes around their parts are read with them.
    pub fn leased_bytes(sources: &[Arc<dyn Source>], slots: usize, record_bytes: usize, parts: usize) -> u64 {
        (slots as u64).saturating_mul(Buffer::footprint(slot_bytes(sources, record_bytes, parts)))
    }

    /// Groups keys into `classes` classes, such as the layers of a model, and gives each an equal share of the slots: records
    /// make room only for others of their class. `class` tells the class of a key; numbers beyond the last count as the last.
    ///
    /// Where classes take turns a common cache loses every record just before its class comes again. A share of fewer slots
    /// than a round has records makes the rounds come in waves. With fewer slots than classes all compete for all, as unless
    /// set.
    ///
    /// # Panics
    /// If records have been asked for already.
    #[must_use]
    pub fn per_class(mut self, classes: usize, class: impl Fn(u64) -> usize + Send + Sync + 'static) -> Self {
        assert!(self.hits() + self.misses() == 0, "keys are grouped before the first round");
        self.stage.classes = Classes { count: classes.max(1), of: Box::new(class) };
        self.play.regroup(&self.stage);
        self
    }

    /// Whether mapped files keep their pages after use, because everything fits in memory. They do not unless set.
    #[must_use]
    pub fn keep_mapped(mut self, keep: bool) -> Self {
        self.stage.keep_mapped = keep;
        self
    }

    /// Begins a round: the records that are wanted, in the order of their use, each with its parts. Reading begins at once, in
    /// the order of the files. What an earlier round asked for and did not take is forgotten.
    ///
    /// Records whose parts all lie in mapped or embedded files are looked at where they are and take no slot.
    ///
    /// # Errors
    /// [`Error::Record`] for a record that does not fit a slot or its sources; nothing is asked for then.
    pub fn begin<P: AsRef<[Extent]>>(
        &mut self,
        requests: impl IntoIterator<Item = (u64, P)>,
    ) -> Result<(), Error> {
        self.play.begin(&self.stage, requests)
    }

    /// The next record of the round, waiting for it if need be; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::ShortRead`] and the like when a part could not be read, after a second try. The round stays where
    /// it is: calling again reads this record again, [`cancel`](Self::cancel) gives up.
    #[expect(
        clippy::should_implement_trait,
        reason = "a record borrows the slots, which `Iterator` cannot express"
    )]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        self.take(Play::first)
    }

    /// A record of the round that has arrived, waiting for one if need be; `None` at the end. Of several the first in the order
    /// of use. May be mixed with [`next`](Self::next).
    ///
    /// # Errors
    /// As [`next`](Self::next). A record that failed is read again, while others are handed out.
    pub fn next_ready(&mut self) -> Result<Option<Record<'_>>, Error> {
        self.take(Play::first_landed)
    }

    fn take(&mut self, choose: fn(&Play, &Stage) -> usize) -> Result<Option<Record<'_>>, Error> {
        let Self { stage, play } = self;
        let Some((request, data, bytes_read)) = play.next(stage, choose)? else { return Ok(None) };
        Ok(Some(Record { stage, play, request, data, bytes_read }))
    }

    /// Forgets what the round asked for and did not take. Reads that have begun are waited for and kept, others do not happen.
    pub fn cancel(&mut self) {
        self.play.cancel(&self.stage);
    }

    /// Records that were in their slots already when they were asked for.
    pub fn hits(&self) -> u64 {
        self.play.hits
    }

    /// Records that had to be read.
    pub fn misses(&self) -> u64 {
        self.play.misses
    }

    /// Bytes of the records handed out so far that were read, or looked at in mapped files. Hits do not count, nor does what was
    /// in memory anyway ([`Backend::Memory`](crate::Backend::Memory)).
    pub fn bytes_read(&self) -> u64 {
        self.play.bytes_read
    }
}

impl Drop for Slots {
    /// Ends all reading before the buffers go.
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("slots", &self.stage.cells.len())
            .field("record_bytes", &self.stage.record_bytes)
            .field("hits", &self.play.hits)
            .field("misses", &self.play.misses)
            .finish_non_exhaustive()
    }
}

/// The size of one slot.
fn slot_bytes(sources: &[Arc<dyn Source>], record_bytes: usize, parts: usize) -> usize {
    record_bytes.saturating_add(layout::slack_bytes(sources, parts))
}

/// The parts of one record, in memory until dropped.
pub struct Record<'a> {
    stage: &'a Stage,
    play: &'a mut Play,
    request: Request,
    data: Data<'a>,
    bytes_read: u64,
}

impl Record<'_> {
    /// The key of the request.
    pub fn key(&self) -> u64 {
        self.request.key
    }

    /// How many parts it has.
    pub fn parts(&self) -> usize {
        self.request.parts
    }

    /// What this record added to [`Slots::bytes_read`]: mostly the bytes of its parts, or 0 for a hit.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The bytes of one part, in the order of the request.
    ///
    /// # Panics
    /// If the record has no such part.
    pub fn part(&self, part: usize) -> &[u8] {
        let parts = self.play.parts(self.request);
        assert!(part < parts.len(), "the record has {} parts, not {part}", parts.len());
        match &self.data {
            Data::Slot { buffer, layout, .. } => &buffer[layout.range(parts, part)],
            Data::Mapped { views } => views[part],
            Data::Gone => &[],
        }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        let data = std::mem::replace(&mut self.data, Data::Gone);
        self.play.give_back(self.stage, self.request, data);
    }
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("key", &self.key())
            .field("parts", &self.parts())
            .finish_non_exhaustive()
    }
}
