//! Matrix products: every encoding, tier and number of columns, out of the cache and out of memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kimi_kernels::{IntegerBuffers, Isa, Kernels, Scratch, Threads};
use kimi_paging::memory_limit;
use kimi_quant::{Encoding, MatrixView};
use serde::Serialize;

use super::stored::{Stored, normals};
use super::stream::Stream;
use super::{BenchError, Spread, name, names};
use crate::doctor::Processor;
use crate::{Arith, Error};

/// Rows that one thread takes at once, in whole register blocks of every back end.
const TASK_ROWS: usize = 48;

/// About the bytes of a tile, as a ring has them.
const TILE_BYTES: usize = 4 << 20;

/// The hidden width of K3: rows of a matrix in memory.
const MEMORY_COLS: usize = 7168;

/// The width of its experts: rows of a matrix in the cache.
const CACHE_COLS: usize = 3584;

/// Multiplications of one call with many columns, at most about: a call is not interrupted.
const CALL_WORK: usize = 1 << 29;

/// Wider products are no faster; more threads would need matrices that fit no cache.
const MAX_COLUMNS: usize = 4096;
const MAX_THREADS: usize = 1024;

/// How often every row is measured.
const ROUNDS: usize = 5;

/// Matrices in memory take so many times the last level of caches, within limits.
const BEYOND_CACHE: u64 = 4;
const MEMORY_BYTES: [u64; 2] = [64 << 20, 1 << 30];

/// The share of the machine's memory that they take at most.
const MEMORY_SHARE: u64 = 8;

/// Where the weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Place {
    /// A matrix of 96 rows for each thread, used again and again.
    Cache,
    /// Tiles of which no cache holds more than a part, one after another.
    Memory,
}

impl Place {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Cache, Self::Memory];

    /// The name that options and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Memory => "memory",
        }
    }
}

/// What to measure.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct KernelOptions {
    /// One instruction set; `None` takes every one that this processor has.
    pub isa: Option<Isa>,
    /// Compute threads; `None` takes what affinity and CPU quota allow.
    pub threads: Option<usize>,
    /// Encodings of the weights.
    pub encodings: Vec<Encoding>,
    /// Tiers of arithmetic. Encodings without small integers have no fast one.
    pub tiers: Vec<Arith>,
    /// Numbers of columns.
    pub columns: Vec<usize>,
    /// Where the weights are.
    pub places: Vec<Place>,
    /// How long each row is measured, all rounds together.
    pub time: Duration,
    /// Bytes of the matrices in memory; `None` takes four times the last level of caches, between 64 MiB and 1 GiB and at most an
    /// eighth of the memory.
    pub memory_bytes: Option<u64>,
}

impl Default for KernelOptions {
    fn default() -> Self {
        Self {
            isa: None,
            threads: None,
            encodings: encodings(),
            tiers: Arith::ALL.to_vec(),
            columns: vec![1, 4, 8, 512],
            places: Place::ALL.to_vec(),
            time: Duration::from_millis(200),
            memory_bytes: None,
        }
    }
}

/// Every encoding, integers in the groups that `pack` gives them.
pub fn encodings() -> Vec<Encoding> {
    const NAMES: [&str; 13] =
        ["f32", "bf16", "bf12", "i8", "i6", "i4", "i4:cb", "i3", "i2", "mxfp4", "mxfp4:bands", "int4", "fp8"];
    NAMES.iter().map(|name| name.parse().expect("the name of an encoding")).collect()
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct KernelReport {
    /// Compute threads.
    pub threads: usize,
    /// Instruction sets measured.
    #[serde(serialize_with = "names")]
    pub isas: Vec<Isa>,
    /// Instruction sets that this processor lacks.
    #[serde(serialize_with = "names")]
    pub absent_isas: Vec<Isa>,
    /// Bytes of the last level of caches, where the system tells.
    pub cache_bytes: Option<u64>,
    /// Bytes of matrices in memory, and of the buffer that is added up beside them.
    pub memory_bytes: u64,
    /// How often each row was measured.
    pub rounds: usize,
    /// Encodings in the fast tier that is theirs, and those whose fast tier is the exact one.
    #[serde(serialize_with = "names")]
    pub exact_only: Vec<Encoding>,
    /// The rows, by encoding.
    pub rows: Vec<KernelRow>,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct KernelRow {
    /// How the weights are stored.
    #[serde(serialize_with = "name")]
    pub encoding: Encoding,
    /// The instruction set.
    #[serde(serialize_with = "name")]
    pub isa: Isa,
    /// The tier.
    #[serde(serialize_with = "name")]
    pub arith: Arith,
    /// Columns multiplied at once.
    pub columns: usize,
    /// Where the weights were.
    pub place: Place,
    /// Rows and columns of a matrix.
    pub shape: [usize; 2],
    /// Bytes of all matrices that the row goes through.
    pub bytes: u64,
    /// Weights a second, whatever the number of columns.
    pub weights_per_second: Spread,
    /// Stored bytes a second.
    pub bytes_per_second: Spread,
    /// Multiplications and additions a second: of floats in the exact tier, of integers in the fast one.
    pub operations_per_second: Spread,
    /// What a loop that adds up memory with the same threads read, between the samples of this row.
    pub stream_bytes_per_second: Spread,
    /// The medians of stored bytes and of the loop, one by the other; of weights in memory only.
    pub share_of_stream: Option<f64>,
}

/// Measures. Rows of one encoding take turns with each other and with the loop over memory; `finished` is given them when all of
/// their rounds are over.
///
/// Activations are packed and quantized beforehand: only the product is timed.
///
/// # Errors
/// [`BenchError::Setting`] for nothing to measure; [`Error::UnsupportedIsa`], [`Error::Threads`] and [`Error::Paging`].
pub fn measure(
    options: &KernelOptions,
    finished: &mut dyn FnMut(&[KernelRow]),
) -> Result<KernelReport, BenchError> {
    if options.columns.is_empty()
        || !options.columns.iter().all(|columns| (1..=MAX_COLUMNS).contains(columns))
    {
        return Err(BenchError::Setting { what: "columns", expected: "1 to 4096" });
    }
    if options.threads.is_some_and(|threads| threads > MAX_THREADS) {
        return Err(BenchError::Setting { what: "threads", expected: "at most 1024" });
    }
    let kernels: Vec<Kernels> = match options.isa {
        Some(isa) => vec![Kernels::with_isa(isa).ok_or(Error::UnsupportedIsa { isa })?],
        None => Kernels::available().collect(),
    };
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = Threads::new(options.threads.unwrap_or_else(available)).map_err(Error::from)?;
    let cache_bytes = Processor::here().cache_bytes;
    let memory_bytes = options.memory_bytes.unwrap_or_else(|| beyond(cache_bytes));
    let mut bench = Bench::new(&threads, &kernels, options, memory_bytes);
    let mut rows = Vec::new();
    for &encoding in &options.encodings {
        let measured = bench.measure(encoding)?;
        finished(&measured);
        rows.extend(measured);
    }
    let fast = |encoding: &&Encoding| !has_fast(**encoding);
    Ok(KernelReport {
        threads: threads.count(),
        isas: kernels.iter().map(|kernels| kernels.isa()).collect(),
        absent_isas: Isa::ALL.into_iter().filter(|&isa| Kernels::with_isa(isa).is_none()).collect(),
        cache_bytes,
        memory_bytes,
        rounds: ROUNDS,
        exact_only: options.encodings.iter().filter(fast).copied().collect(),
        rows,
    })
}

/// Whether an encoding has a fast tier of its own.
fn has_fast(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::Int(_) | Encoding::Mxfp4Bands)
}

/// Bytes that lie beyond a cache.
fn beyond(cache_bytes: Option<u64>) -> u64 {
    let [least, most] = MEMORY_BYTES;
    let wanted = cache_bytes.unwrap_or(0).saturating_mul(BEYOND_CACHE).clamp(least, most);
    wanted.min(memory_limit().bytes().unwrap_or(u64::MAX) / MEMORY_SHARE)
}

/// What all measurements share.
struct Bench<'a> {
    threads: &'a Threads,
    kernels: &'a [Kernels],
    options: &'a KernelOptions,
    memory_bytes: u64,
    stream: Stream,
    x: Vec<f32>,
    packed: Vec<f32>,
    integers: IntegerBuffers,
    y: Vec<f32>,
    scratch: Scratch,
}

/// One product with a matrix.
type Multiply<'a> = dyn FnMut(MatrixView<'_>) -> Result<(), Error> + Send + 'a;

/// A row under way.
struct Row<'a> {
    kernels: Kernels,
    arith: Arith,
    columns: usize,
    place: Place,
    stored: &'a Stored,
    /// The matrix and the row in it that come next.
    next: (usize, usize),
    /// Weights a second.
    samples: Vec<f64>,
}

impl<'a> Bench<'a> {
    fn new(
        threads: &'a Threads,
        kernels: &'a [Kernels],
        options: &'a KernelOptions,
        memory_bytes: u64,
    ) -> Self {
        let most = options.columns.iter().copied().max().unwrap_or(1);
        let needs = kernels.iter().map(|kernels| {
            [kernels.packed_len(MEMORY_COLS, most), kernels.matmul_scratch(MEMORY_COLS, most)]
        });
        let [packed, scratch] = needs.fold([0, 0], |a, b| [a[0].max(b[0]), a[1].max(b[1])]);
        Self {
            threads,
            kernels,
            options,
            memory_bytes,
            stream: Stream::new(threads, memory_bytes),
            x: normals(MEMORY_COLS * most, 1.0),
            packed: vec![0.0; packed],
            integers: IntegerBuffers::with_capacity(MEMORY_COLS, most),
            y: Vec::new(),
            scratch: Scratch::new(threads, scratch),
        }
    }

    /// All rows of one encoding.
    fn measure(&mut self, encoding: Encoding) -> Result<Vec<KernelRow>, Error> {
        let unit = TASK_ROWS * self.threads.count();
        let shape = |place| match place {
            Place::Cache => Ok([2 * unit, CACHE_COLS]),
            Place::Memory => {
                let unit_bytes = encoding.matrix_bytes([unit, MEMORY_COLS])?;
                Ok::<_, Error>([unit * (TILE_BYTES / unit_bytes).max(1), MEMORY_COLS])
            }
        };
        let mut matrices = Vec::new();
        for &place in &self.options.places {
            let bytes = if place == Place::Memory { self.memory_bytes } else { 0 };
            matrices.push((place, Stored::new(self.threads, encoding, shape(place)?, bytes)?));
        }
        let mut rows = Vec::new();
        for &kernels in self.kernels {
            for &arith in &self.options.tiers {
                if arith == Arith::Fast && !has_fast(encoding) {
                    continue;
                }
                for &columns in &self.options.columns {
                    for &(place, ref stored) in &matrices {
                        rows.push(Row {
                            kernels,
                            arith,
                            columns,
                            place,
                            stored,
                            next: (0, 0),
                            samples: vec![],
                        });
                    }
                }
            }
        }
        let time = self.options.time / ROUNDS as u32;
        let mut streams = Vec::new();
        for _ in 0..ROUNDS {
            streams.push(self.stream.sample(self.threads, time));
            for row in &mut rows {
                let sample = self.sample(row, time)?;
                row.samples.push(sample);
            }
        }
        let stream = Spread::new(&streams).expect("there are rounds");
        Ok(rows.iter().map(|row| row.report(stream)).collect())
    }

    /// Weights a second: calls one after another until `time` is over, at least one.
    fn sample(&mut self, row: &mut Row<'_>, time: Duration) -> Result<f64, Error> {
        let Self { x, packed, integers, y, scratch, .. } = self;
        let threads = self.threads;
        let [rows, cols] = row.stored.shape();
        let unit = TASK_ROWS * threads.count();
        // Whole units, so that every thread has as much to do in every call.
        let step = (CALL_WORK / (unit * cols * row.columns)).clamp(1, rows / unit) * unit;
        y.resize(y.len().max(step * row.columns), 0.0);
        let (x, kernels) = (&x[..cols * row.columns], row.kernels);
        let mut multiply: Box<Multiply<'_>> = match row.arith {
            Arith::Fast => {
                let group = row.stored.view(0).integer_group().expect("asked for where there is a fast tier");
                let columns = integers.quantize(threads, x, cols, group)?;
                Box::new(move |w| {
                    Ok(kernels.matmul_integer(threads, w, columns, &mut y[..w.rows() * columns.count()])?)
                })
            }
            Arith::Exact => {
                let columns = kernels.columns(threads, x, cols, packed)?;
                Box::new(move |w| {
                    Ok(kernels.matmul(threads, scratch, w, columns, &mut y[..w.rows() * columns.count()])?)
                })
            }
        };
        let (stored, next) = (row.stored, &mut row.next);
        let mut call = || {
            let (tile, first) = *next;
            let count = step.min(rows - first);
            multiply(black_box(stored.view(tile)).slice_rows(first..first + count))?;
            *next =
                if first + count < rows { (tile, first + count) } else { ((tile + 1) % stored.count(), 0) };
            Ok::<_, Error>(count * cols)
        };
        threads.run(|| {
            if row.place == Place::Cache {
                // Fetch the matrix.
                for _ in 0..rows.div_ceil(step) {
                    call()?;
                }
            }
            let start = Instant::now();
            let mut weights = 0;
            loop {
                weights += call()?;
                let elapsed = start.elapsed();
                if elapsed >= time {
                    return Ok(weights as f64 / elapsed.as_secs_f64());
                }
            }
        })
    }
}

impl Row<'_> {
    fn report(&self, stream: Spread) -> KernelRow {
        let shape = self.stored.shape();
        let weights = Spread::new(&self.samples).expect("there are rounds");
        let bytes = weights.scaled(self.stored.tile_bytes() as f64 / (shape[0] * shape[1]) as f64);
        KernelRow {
            encoding: self.stored.encoding(),
            isa: self.kernels.isa(),
            arith: self.arith,
            columns: self.columns,
            place: self.place,
            shape,
            bytes: self.stored.bytes(),
            weights_per_second: weights,
            bytes_per_second: bytes,
            operations_per_second: weights.scaled(2.0 * self.columns as f64),
            stream_bytes_per_second: stream,
            share_of_stream: (self.place == Place::Memory).then(|| bytes.median / stream.median),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_beyond_the_cache_within_limits() {
        let [least, most] = MEMORY_BYTES;
        let share = memory_limit().bytes().map_or(u64::MAX, |bytes| bytes / MEMORY_SHARE);
        for (cache, expected) in
            [(None, least), (Some(1), least), (Some(32 << 20), 128 << 20), (Some(1 << 40), most)]
        {
            assert_eq!(beyond(cache), expected.min(share));
        }
    }

    #[test]
    fn rows_are_complete_and_agree_with_each_other() {
        let mut options = KernelOptions::default();
        (options.threads, options.time, options.memory_bytes) = (Some(2), Duration::ZERO, Some(1 << 20));
        options.encodings = vec![Encoding::Bf16, "i4".parse().unwrap(), Encoding::Mxfp4Bands];
        options.columns = vec![1, 9];
        options.isa = Some(Kernels::detect().isa());
        let mut groups = Vec::new();
        let report = measure(&options, &mut |rows| groups.push(rows.len())).unwrap();
        // Two places and two numbers of columns, in one tier or in two.
        assert_eq!(groups, [4, 8, 8]);
        assert_eq!(report.exact_only, [Encoding::Bf16]);
        assert_eq!(report.absent_isas.len() + Kernels::available().count(), Isa::ALL.len());
        for row in &report.rows {
            let (weights, bytes) = (row.weights_per_second, row.bytes_per_second);
            assert!(0.0 < weights.min && weights.min <= weights.median && weights.median <= weights.max);
            let bits = bytes.median * 8.0 / weights.median;
            let expected = match row.encoding {
                Encoding::Bf16 => 16.0,
                Encoding::Mxfp4Bands => 4.25,
                _ => 4.5,
            };
            assert!((bits - expected).abs() < 0.01, "{}: {bits} bits a weight", row.encoding);
            assert_eq!(row.operations_per_second.median, weights.median * 2.0 * row.columns as f64);
            assert_eq!(row.share_of_stream.is_some(), row.place == Place::Memory);
            assert!(row.shape[0].is_multiple_of(96), "{:?}", row.shape);
        }
    }

    #[test]
    fn nothing_to_measure_is_an_error() {
        let error = |options: &KernelOptions| measure(options, &mut |_| ()).unwrap_err().to_string();
        for columns in [vec![], vec![4, 0], vec![usize::MAX]] {
            let options = KernelOptions { columns, ..KernelOptions::default() };
            assert_eq!(error(&options), "columns must be 1 to 4096");
        }
        let options = KernelOptions { threads: Some(1 << 20), ..KernelOptions::default() };
        assert_eq!(error(&options), "threads must be at most 1024");
        let absent =
            Isa::ALL.into_iter().find(|&isa| Kernels::with_isa(isa).is_none()).expect("no processor has all");
        let options = KernelOptions { isa: Some(absent), ..KernelOptions::default() };
        let error = measure(&options, &mut |_| ()).unwrap_err();
        assert!(matches!(error, BenchError::Run(Error::UnsupportedIsa { .. })), "{error}");
    }
}
