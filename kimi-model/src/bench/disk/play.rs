//! Reading in the patterns of an engine until the time is over.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use kimi_paging::{
    Budget, Entry, Executor, Extent, PAGE_BYTES, ReadSettings, ReadStats, Readers, Ring, Slots, Source, Tape,
};

use super::area::Area;
use super::{BenchError, Pattern, TILE_BYTES, check};
use crate::synth::random::Stream;

/// Records of a round: the experts of a token in one layer of K3.
const ROUND: usize = 16;

/// Slots, as a plan begins with.
const SLOTS: usize = 4;

/// Bytes of tape to one of records: in K3 a token reads 108.8 GB and 25.8 GB.
const MIX: u64 = 4;

/// One measurement.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// How long each tile, record or row was waited for, in seconds.
    pub(super) waits: Vec<f64>,
}

/// Goes through an area, sample after sample.
#[derive(Debug)]
pub(super) struct Player<'a> {
    area: Area,
    budget: Budget,
    record_bytes: u64,
    row_bytes: u64,
    cancel: &'a AtomicBool,
    /// Where the tape goes on.
    cursor: u64,
    random: Stream,
    /// Random numbers used.
    used: u64,
}

impl<'a> Player<'a> {
    pub(super) fn new(
        area: Area,
        budget: Budget,
        record_bytes: u64,
        row_bytes: u64,
        cancel: &'a AtomicBool,
    ) -> Self {
        let random = Stream::new(0, "places");
        Self { area, budget, record_bytes, row_bytes, cancel, cursor: 0, random, used: 0 }
    }

    /// Reads for about `time`.
    pub(super) fn sample(
        &mut self,
        sources: &[Arc<dyn Source>],
        settings: ReadSettings,
        pattern: Pattern,
        time: Duration,
    ) -> Result<Sample, BenchError> {
        check(self.cancel)?;
        let release = || sources.iter().for_each(|source| source.release(0, source.len()));
        release();
        let sample = match pattern {
            Pattern::Row => self.rows(sources, time),
            _ => self.play(sources, settings, pattern, time),
        };
        // What went through the page cache is of no use to anybody.
        release();
        sample
    }

    /// Tiles, records, or both in turns.
    fn play(
        &mut self,
        sources: &[Arc<dyn Source>],
        settings: ReadSettings,
        pattern: Pattern,
        time: Duration,
    ) -> Result<Sample, BenchError> {
        let readers = Readers::with_settings(&settings)?;
        let mut ring = match pattern {
            Pattern::Experts => None,
            _ => Some(self.ring(sources, &readers, &settings)?),
        };
        let mut slots = match pattern {
            Pattern::Tape => None,
            _ => Some(Slots::new(sources, &self.budget, &readers, SLOTS, self.record_bytes as usize, 1)?),
        };
        // Tiles between two records; without records there is no end to them.
        let run = match slots {
            Some(_) => (self.record_bytes * MIX).div_ceil(TILE_BYTES as u64),
            None => u64::MAX,
        };
        let mut waits = Vec::new();
        let start = Instant::now();
        let is_over = || start.elapsed() >= time;
        'all: loop {
            if let Some(slots) = &mut slots {
                let round: Vec<_> = (0..ROUND).map(|_| self.record()).collect();
                slots.begin(round)?;
            }
            loop {
                if let Some(slots) = &mut slots {
                    let asked = Instant::now();
                    if slots.next_ready()?.is_none() {
                        break;
                    }
                    waits.push(asked.elapsed().as_secs_f64());
                }
                if let Some(ring) = &mut ring {
                    for _ in 0..run {
                        let asked = Instant::now();
                        if ring.next()?.is_none() {
                            ring.push(0..ring.tape().len());
                            continue;
                        }
                        waits.push(asked.elapsed().as_secs_f64());
                        check(self.cancel)?;
                        if is_over() {
                            break 'all;
                        }
                    }
                }
                check(self.cancel)?;
                if is_over() {
                    break 'all;
                }
            }
        }
        // Reads under way are waited for, and count.
        if let Some(ring) = &mut ring {
            ring.clear();
        }
        if let Some(slots) = &mut slots {
            slots.cancel();
        }
        let seconds = start.elapsed().as_secs_f64();
        let ReadStats { tape, urgent, .. } = readers.stats();
        self.cursor = (self.cursor + tape.bytes) % self.area.bytes();
        Ok(Sample { bytes: tape.bytes + urgent.bytes, seconds, waits })
    }

    /// A ring over the whole area, from where the last sample stopped.
    fn ring(
        &self,
        sources: &[Arc<dyn Source>],
        readers: &Readers,
        settings: &ReadSettings,
    ) -> Result<Ring, BenchError> {
        let under_way = settings.depth
            * match settings.executor {
                Executor::Uring => settings.request_bytes,
                _ => TILE_BYTES,
            };
        let extents = self.area.around(self.cursor);
        let tape = Tape::new(extents.into_iter().map(|at| Entry::new(at, PAGE_BYTES as u64)).collect())?;
        // One tile is with the consumer.
        let depth = under_way.div_ceil(TILE_BYTES) + 1;
        let mut ring =
            Ring::builder(sources, tape).tile_bytes(TILE_BYTES).depth(depth).build(&self.budget, readers)?;
        ring.push(0..ring.tape().len());
        Ok(ring)
    }

    fn rows(&mut self, sources: &[Arc<dyn Source>], time: Duration) -> Result<Sample, BenchError> {
        let mut row = vec![0; self.row_bytes as usize];
        let (mut bytes, mut waits) = (0, Vec::new());
        let start = Instant::now();
        loop {
            let Extent { source, offset, len } = self.piece(self.row_bytes);
            let asked = Instant::now();
            sources[source.index()].read_once(offset, &mut row[..len as usize])?;
            waits.push(asked.elapsed().as_secs_f64());
            bytes += len;
            check(self.cancel)?;
            if start.elapsed() >= time {
                return Ok(Sample { bytes, seconds: start.elapsed().as_secs_f64(), waits });
            }
        }
    }

    /// A record that no slot holds.
    fn record(&mut self) -> (u64, [Extent; 1]) {
        let piece = self.piece(self.record_bytes);
        (self.used, [piece])
    }

    fn piece(&mut self, len: u64) -> Extent {
        self.used += 1;
        self.area.piece(self.random.output(self.used), len)
    }
}
