//! The state of a cache: the requests of a round, and what lies in the slots.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::MAX_PARTS;
use super::layout::{self, Layout};
use super::policy::Weights;
use crate::readers::{Cell, Class, Filled, Handle, Landed, Phase};
use crate::source::alignment;
use crate::{Backend, Buffer, Error, Extent, Source};

/// What does not change from round to round.
pub(super) struct Stage {
    sources: Arc<[Arc<dyn Source>]>,
    readers: Handle,
    pub(super) cells: Vec<Arc<Cell>>,
    pub(super) record_bytes: usize,
    max_parts: usize,
    pub(super) keep_mapped: bool,
    pub(super) classes: Classes,
    /// Rings when a record lands.
    landed: Arc<Landed>,
}

/// How keys are grouped, so that each group keeps its share of the slots.
pub(super) struct Classes {
    pub(super) count: usize,
    pub(super) of: Box<dyn Fn(u64) -> usize + Send + Sync>,
}

/// The state of a round, and what earlier ones left.
pub(super) struct Play {
    requests: Vec<Request>,
    /// The parts of all requests.
    extents: Vec<Extent>,
    /// Requests before this have been handed out; of later ones, those that are `taken`.
    served: usize,
    /// Requests before this have a place.
    placed: usize,
    /// Requests that have a place and have not been handed out.
    pending: usize,
    /// Requests that were given a slot and are not yet submitted.
    fresh: Vec<usize>,
    slots: Vec<Slot>,
    /// The slot of each record that is there or on its way.
    keys: HashMap<u64, usize>,
    weights: Weights,
    /// How many slots each class holds.
    held: Vec<usize>,
    /// A record is in use.
    out: bool,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) bytes_read: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) key: u64,
    /// Its parts in `extents`.
    first: usize,
    pub(super) parts: usize,
    place: Place,
    taken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Not yet.
    None,
    Slot {
        slot: usize,
        hit: bool,
    },
    Mapped,
}

#[derive(Debug)]
struct Slot {
    key: Option<u64>,
    class: usize,
    /// The parts that were read under this key.
    parts: Vec<Extent>,
    /// How many requests of this round still want what it holds.
    wanted: usize,
    /// Its buffer is with a record.
    taken: bool,
}

/// The bytes of a record that is in use.
pub(super) enum Data<'a> {
    Slot {
        slot: usize,
        buffer: Buffer,
        layout: Layout,
    },
    Mapped {
        views: [&'a [u8]; MAX_PARTS],
    },
    /// Given back.
    Gone,
}

impl Stage {
    pub(super) fn new(
        sources: Arc<[Arc<dyn Source>]>,
        cells: Vec<Arc<Cell>>,
        record_bytes: usize,
        max_parts: usize,
        readers: Handle,
        landed: Arc<Landed>,
    ) -> Self {
        readers.register(Class::Urgent, cells.len());
        let classes = Classes { count: 1, of: Box::new(|_| 0) };
        Self { sources, readers, cells, record_bytes, max_parts, keep_mapped: false, classes, landed }
    }

    fn all_mapped(&self, parts: &[Extent]) -> bool {
        parts.iter().all(|extent| self.source(extent).backend().has_views())
    }

    fn class(&self, key: u64) -> usize {
        (self.classes.of)(key).min(self.classes.count - 1)
    }

    fn layout(&self, parts: &[Extent]) -> Layout {
        Layout::new(parts, |source| alignment(&*self.sources[source.index()]))
    }

    fn submit(&self, slot: usize, parts: &[Extent]) {
        let layout = self.layout(parts);
        self.readers.submit(Class::Urgent, &self.cells[slot], |job| layout.reads(parts, &self.sources, job));
    }

    /// Waits for a record, which is read again if it failed before.
    fn wait(&self, slot: usize, parts: &[Extent]) -> Result<Filled, Error> {
        let cell = &self.cells[slot];
        if let Some(result) = self.readers.wait(Class::Urgent, cell) {
            return result;
        }
        if !cell.has_buffer() {
            return Err(leaked());
        }
        self.submit(slot, parts);
        self.readers.wait(Class::Urgent, cell).ok_or_else(leaked)?
    }

    fn source(&self, extent: &Extent) -> &dyn Source {
        &*self.sources[extent.source.index()]
    }
}

impl Drop for Stage {
    /// Nothing is being read any more: the round has been cancelled.
    fn drop(&mut self) {
        for cell in &self.cells {
            // A reader may hold on to a cell for a moment; the memory goes now.
            drop(cell.dismantle());
        }
        self.readers.unregister(Class::Urgent, self.cells.len());
    }
}

impl Play {
    pub(super) fn new(stage: &Stage) -> Self {
        let slots = stage.cells.len();
        let empty = |_| Slot {
            key: None,
            class: 0,
            parts: Vec::with_capacity(stage.max_parts),
            wanted: 0,
            taken: false,
        };
        Self {
            requests: Vec::new(),
            extents: Vec::new(),
            served: 0,
            placed: 0,
            pending: 0,
            fresh: Vec::with_capacity(slots),
            slots: (0..slots).map(empty).collect(),
            // Twice the room: removals leave marks, and a table that is at most half full is tidied in place.
            keys: HashMap::with_capacity(2 * slots + 2),
            weights: Weights::new(slots),
            held: vec![0; stage.classes.count],
            out: false,
            hits: 0,
            misses: 0,
            bytes_read: 0,
        }
    }

    /// Replaces what is left of a round by a new one.
    pub(super) fn begin<P: AsRef<[Extent]>>(
        &mut self,
        stage: &Stage,
        requests: impl IntoIterator<Item = (u64, P)>,
    ) -> Result<(), Error> {
        self.cancel(stage);
        for (key, parts) in requests {
            let parts = parts.as_ref();
            let checked = layout::check(parts, &stage.sources, stage.max_parts, stage.record_bytes);
            if let Err(problem) = checked {
                self.forget_requests();
                return Err(Error::Record { key, problem });
            }
            let place = if stage.all_mapped(parts) { Place::Mapped } else { Place::None };
            let first = self.extents.len();
            self.requests.push(Request { key, first, parts: parts.len(), place, taken: false });
            self.extents.extend_from_slice(parts);
        }
        // What is there already and wanted later must not make room for what comes before it.
        for at in 0..self.requests.len() {
            if let Some(slot) = self.found(at) {
                self.slots[slot].wanted += 1;
            }
        }
        self.place(stage);
        Ok(())
    }

    /// Hands out a record: its request, its bytes, and how many of them were read for it. Which one, `choose` says.
    pub(super) fn next<'a>(
        &mut self,
        stage: &'a Stage,
        choose: impl FnOnce(&Self, &Stage) -> usize,
    ) -> Result<Option<(Request, Data<'a>, u64)>, Error> {
        // No record is alive, since it would borrow the slots.
        self.out = false;
        self.place(stage);
        if self.served == self.requests.len() {
            return Ok(None);
        }
        let (at, before) = (choose(self, stage), self.bytes_read);
        let request = self.requests[at];
        let data = self.take(stage, request)?;
        self.requests[at].taken = true;
        self.pending -= 1;
        while self.requests.get(self.served).is_some_and(|request| request.taken) {
            self.served += 1;
        }
        self.out = true;
        self.place(stage);
        Ok(Some((request, data, self.bytes_read - before)))
    }

    /// The first request that has not been handed out.
    pub(super) fn first(&self, _: &Stage) -> usize {
        self.served
    }

    /// The first request whose record is there, or failed to come; waits until there is one.
    pub(super) fn first_landed(&self, stage: &Stage) -> usize {
        loop {
            let seen = stage.landed.count();
            let mut under_way = false;
            for at in self.served..self.placed {
                let request = self.requests[at];
                let Place::Slot { slot, .. } = request.place else {
                    if request.taken { continue } else { return at }
                };
                if request.taken {
                    continue;
                }
                let cell = &stage.cells[slot];
                match cell.phase() {
                    Phase::Queued | Phase::Reading => under_way = true,
                    // It failed before, and is read again.
                    Phase::Idle if cell.has_buffer() => {
                        stage.submit(slot, self.parts(request));
                        under_way = true;
                    }
                    Phase::Ready | Phase::Failed | Phase::Idle => return at,
                }
            }
            if !under_way {
                return self.served;
            }
            stage.readers.wait_for_any(Class::Urgent, &stage.landed, seen);
        }
    }

    /// Takes back the bytes of a record, and uses the room for the next.
    pub(super) fn give_back(&mut self, stage: &Stage, request: Request, data: Data<'_>) {
        match data {
            Data::Slot { slot, buffer, .. } => {
                stage.cells[slot].put_back(buffer, Phase::Ready);
                self.slots[slot].taken = false;
            }
            Data::Mapped { .. } if !stage.keep_mapped => {
                for extent in self.parts(request) {
                    stage.source(extent).release(extent.offset, extent.len);
                }
            }
            Data::Mapped { .. } | Data::Gone => {}
        }
        self.out = false;
        self.place(stage);
    }

    pub(super) fn parts(&self, request: Request) -> &[Extent] {
        &self.extents[request.first..request.first + request.parts]
    }

    /// The slot that holds what request `at` wants, or is about to.
    fn found(&self, at: usize) -> Option<usize> {
        let request = self.requests[at];
        let slot = *self.keys.get(&request.key)?;
        (request.place != Place::Mapped && self.slots[slot].parts == self.parts(request)).then_some(slot)
    }

    /// Gives requests a place, in order, until there is no room, and has those read that are not there.
    fn place(&mut self, stage: &Stage) {
        while self.placed < self.requests.len() && self.place_one(stage, self.placed) {
            self.placed += 1;
            self.pending += 1;
        }
        // In the order of the files, which is what a drive likes; the order of use is kept by who takes them.
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.sort_unstable_by_key(|&at| {
            (stage.layout(self.parts(self.requests[at])).place(self.parts(self.requests[at])), at)
        });
        for at in fresh.drain(..) {
            let request = self.requests[at];
            if let Place::Slot { slot, .. } = request.place {
                stage.submit(slot, self.parts(request));
            }
        }
        self.fresh = fresh;
    }

    /// Gives a request a place; false if there is no room for it yet.
    fn place_one(&mut self, stage: &Stage, at: usize) -> bool {
        let ahead = self.pending + usize::from(self.out);
        if self.requests[at].place == Place::Mapped {
            if ahead >= stage.cells.len() {
                return false;
            }
            for extent in self.parts(self.requests[at]) {
                stage.source(extent).will_need(extent.offset, extent.len);
            }
        } else if let Some(slot) = self.found(at) {
            self.hits += 1;
            self.requests[at].place = Place::Slot { slot, hit: true };
        } else {
            let Some(slot) = self.room(stage, at, ahead == 0) else { return false };
            self.fill(stage, at, slot);
        }
        true
    }

    /// A slot that request `at` may overwrite. `blocked` means that nothing is on its way or in use: one must go then, even if
    /// all hold records that are wanted later.
    fn room(&self, stage: &Stage, at: usize, blocked: bool) -> Option<usize> {
        let slots = &self.slots;
        let unwanted = |&slot: &usize| slots[slot].wanted == 0 && !slots[slot].taken;
        let evictable = |slot: &usize| unwanted(slot) || (blocked && !slots[*slot].taken);
        // The same key with other parts: two slots under one key would be ambiguous.
        let key = self.requests[at].key;
        if let Some(&slot) = self.keys.get(&key) {
            return Some(slot).filter(evictable);
        }
        let lightest = |may: &dyn Fn(&Slot) -> bool| {
            self.weights.lightest((0..slots.len()).filter(unwanted).filter(|&slot| may(&slots[slot])))
        };
        let (class, share) = (stage.class(key), slots.len() / stage.classes.count);
        let own = |slot: &Slot| slot.key.is_some() && slot.class == class;
        let victim = match self.held[class].cmp(&share) {
            // Fewer slots than classes: all compete for all.
            _ if share == 0 => lightest(&|_| true),
            // Some class has more than its share, or a slot is empty.
            Ordering::Less => lightest(&|slot| slot.key.is_none() || self.held[slot.class] > share)
                .or_else(|| lightest(&own)),
            Ordering::Equal => lightest(&|slot| slot.key.is_none() || own(slot)),
            Ordering::Greater => lightest(&own),
        };
        if victim.is_some() || !blocked {
            return victim;
        }
        // The one that is wanted furthest in the future.
        let next_use = |slot: &usize| {
            let key = slots[*slot].key;
            self.requests[at..].iter().position(|request| Some(request.key) == key)
        };
        (0..slots.len()).filter(evictable).max_by_key(next_use)
    }

    /// Gives a slot to request `at`, whose record is not there.
    fn fill(&mut self, stage: &Stage, at: usize, slot: usize) {
        let request = self.requests[at];
        self.empty(stage, slot);
        let parts = &self.extents[request.first..request.first + request.parts];
        let same = |other: &&Request| other.key == request.key && self.parts(**other) == parts;
        let wanted = self.requests[at..].iter().filter(same).count();
        self.keys.insert(request.key, slot);
        let class = stage.class(request.key);
        self.held[class] += 1;
        let filled = &mut self.slots[slot];
        (filled.key, filled.class, filled.wanted) = (Some(request.key), class, wanted);
        filled.parts.extend_from_slice(parts);
        self.misses += 1;
        self.requests[at].place = Place::Slot { slot, hit: false };
        self.fresh.push(at);
    }

    fn empty(&mut self, stage: &Stage, slot: usize) {
        stage.cells[slot].forget();
        self.weights.emptied(slot);
        let emptied = &mut self.slots[slot];
        emptied.parts.clear();
        emptied.wanted = 0;
        if let Some(key) = emptied.key.take() {
            self.keys.remove(&key);
            self.held[emptied.class] -= 1;
        }
    }

    /// Groups keys anew; nothing may have been asked for yet.
    pub(super) fn regroup(&mut self, stage: &Stage) {
        self.held = vec![0; stage.classes.count];
    }

    fn take<'a>(&mut self, stage: &'a Stage, request: Request) -> Result<Data<'a>, Error> {
        let parts = &self.extents[request.first..request.first + request.parts];
        let read = parts.iter().filter(|part| stage.source(part).backend() != Backend::Memory);
        let bytes: u64 = read.map(|part| part.len).sum();
        match request.place {
            // All slots were lost with records that were leaked.
            Place::None => Err(leaked()),
            Place::Mapped => {
                let mut views: [&[u8]; MAX_PARTS] = [&[]; MAX_PARTS];
                for (view, extent) in views.iter_mut().zip(parts) {
                    let source = stage.source(extent);
                    let unmapped =
                        || Error::Unmapped { path: source.name().to_path_buf(), offset: extent.offset };
                    // The length fits: a record is at most `record_bytes` long, a usize.
                    *view = source.mapped(extent.offset, extent.len as usize)?.ok_or_else(unmapped)?;
                }
                self.bytes_read += bytes;
                Ok(Data::Mapped { views })
            }
            Place::Slot { slot, hit } => {
                let (buffer, _) = stage.wait(slot, parts)?;
                let layout = stage.layout(parts);
                self.weights.used(slot);
                let taken = &mut self.slots[slot];
                (taken.wanted, taken.taken) = (taken.wanted - 1, true);
                self.bytes_read += if hit { 0 } else { bytes };
                Ok(Data::Slot { slot, buffer, layout })
            }
        }
    }

    pub(super) fn cancel(&mut self, stage: &Stage) {
        // From the end, so that nothing is begun while a read under way is waited for.
        for at in (self.served..self.placed).rev() {
            let Request { place: Place::Slot { slot, .. }, taken: false, .. } = self.requests[at] else {
                continue;
            };
            if stage.readers.cancel(Class::Urgent, &stage.cells[slot]) != Phase::Ready {
                self.empty(stage, slot);
            }
        }
        self.forget_requests();
    }

    fn forget_requests(&mut self) {
        self.requests.clear();
        self.extents.clear();
        (self.served, self.placed, self.pending) = (0, 0, 0);
        for slot in &mut self.slots {
            slot.wanted = 0;
        }
    }
}

fn leaked() -> Error {
    Error::Leaked { what: "record" }
}
