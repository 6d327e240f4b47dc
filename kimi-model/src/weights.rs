//! Where the pager and the graph meet: matrices arrive in tiles and are multiplied as they land.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kimi_kernels::{Kernels, Scratch, Threads};
use kimi_paging::{Lease, LeasedVec, Ring, Slots, TensorIndex};
use kimi_quant::MatrixView;

use crate::calibrate::Moments;
use crate::error::Error;
use crate::layout::{ExpertBank, ExpertStorage, MatrixId, TapeMatrix};
use crate::operand::{Arith, Means, Operand};
use crate::packed::{Tile, TileProblem, seed};

/// Bytes read from the source, by what they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BytesRead {
    /// Matrices of the layers.
    pub trunk: u64,
    /// Routed experts.
    pub experts: u64,
    /// The output matrix.
    pub head: u64,
    /// Spilled latents.
    pub kv: u64,
    /// Rows of the embedding.
    pub other: u64,
}

impl BytesRead {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.trunk + self.experts + self.head + self.kv + self.other
    }
}

/// Counts bytes while a pass runs; its clones count together, so that another thread can watch.
#[derive(Debug, Clone, Default)]
pub struct ReadCounter {
    parts: Arc<[AtomicU64; 5]>,
}

/// The parts of [`BytesRead`] in the order of its fields.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    Trunk,
    Experts,
    Head,
    Other = 4,
}

impl ReadCounter {
    pub(crate) fn add(&self, part: Part, bytes: u64) {
        self.parts[part as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// What has been read so far.
    pub fn bytes(&self) -> BytesRead {
        let [trunk, experts, head, kv, other] =
            [0, 1, 2, 3, 4].map(|part| self.parts[part].load(Ordering::Relaxed));
        BytesRead { trunk, experts, head, kv, other }
    }
}

/// Which tiles of a packed model are held against their checksums when they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Check {
    /// None; their headers always are looked at.
    None,
    /// One in sixteen.
    #[default]
    Sampled,
    /// Every one.
    All,
}

impl Check {
    /// All, in the order of their names in options.
    pub const ALL: [Self; 3] = [Self::None, Self::Sampled, Self::All];

    /// The name that options and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sampled => "sampled",
            Self::All => "all",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of no way to check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown check `{0}`: none, sampled or all")]
pub struct UnknownCheck(String);

impl FromStr for Check {
    type Err = UnknownCheck;

    fn from_str(text: &str) -> Result<Self, UnknownCheck> {
        Self::ALL.into_iter().find(|check| check.name() == text).ok_or_else(|| UnknownCheck(text.to_owned()))
    }
}

/// One tile in so many is checked when checks are sampled.
const SAMPLE: u32 = 16;

/// Decides which tiles are checked.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    check: Check,
    seen: u32,
}

impl Checker {
    pub(crate) fn new(check: Check) -> Self {
        Self { check, seen: 0 }
    }

    /// The seed of a tensor's checksums if the next tile is to be checked.
    pub(crate) fn next(&mut self, tensor: &str) -> Option<u64> {
        self.seen = self.seen.wrapping_add(1);
        let due = match self.check {
            Check::None => false,
            Check::Sampled => self.seen.is_multiple_of(SAMPLE),
            Check::All => true,
        };
        due.then(|| seed(tensor))
    }
}

/// Streamed weights and the means to multiply them.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) kernels: Kernels,
    pub(crate) arith: Arith,
    pub(crate) threads: Threads,
    pub(crate) scratch: Scratch,
    pub(crate) checker: Checker,
    /// The folder, for errors.
    pub(crate) dir: PathBuf,
    pub(crate) _scratch_lease: Lease,
    pub(crate) ring: Ring,
    pub(crate) slots: Option<Slots>,
    pub(crate) matrices: Vec<TapeMatrix>,
    pub(crate) lm_head: MatrixId,
    /// Results of one tile before they are dealt out to the columns.
    pub(crate) tile: LeasedVec<f32>,
    pub(crate) counter: ReadCounter,
    /// What the matrices see, while somebody gathers it.
    pub(crate) moments: Option<Box<Moments>>,
}

/// The means of some weights, borrowing no more of them than that.
macro_rules! means {
    ($weights:expr) => {
        Means {
            kernels: $weights.kernels,
            threads: &$weights.threads,
            scratch: &$weights.scratch,
            arith: $weights.arith,
        }
    };
}

impl Weights {
    /// Announces the matrices that the next pass will use: reading starts at once.
    pub(crate) fn announce(&mut self, matrices: std::ops::Range<usize>) {
        self.ring.push(matrices);
    }

    /// Forgets what was announced and not used.
    pub(crate) fn abandon(&mut self) {
        self.ring.clear();
        if let Some(slots) = &mut self.slots {
            slots.cancel();
        }
    }

    /// Hands the tiles of the next matrix on the tape to `work`, with the number of each tile's first row.
    pub(crate) fn tiles(
        &mut self,
        id: MatrixId,
        cancel: &AtomicBool,
        mut work: impl FnMut(&mut Multiplier<'_>, usize, MatrixView<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let matrix = &self.matrices[id.0];
        let mut multiplier = Multiplier { means: means!(self), tile: &mut self.tile };
        let part = if id == self.lm_head { Part::Head } else { Part::Trunk };
        let mut done = 0;
        while done < matrix.rows {
            check(cancel)?;
            let tile = self.ring.next()?.expect("the pass announced its matrices");
            let unit = matrix.tiles.map_or(1, |cut| cut.rows);
            assert_eq!(
                (tile.entry(), tile.first_row() * unit),
                (id.0, done),
                "the graph uses the tape in its order"
            );
            self.counter.add(part, tile.bytes_read());
            if let Some(scales) = &matrix.scales {
                let end = done + tile.rows();
                let first = done;
                while done < end {
                    let view = scales.view(done, matrix.cols, &tile[(done - first) * matrix.cols..])?;
                    work(&mut multiplier, done, view)?;
                    done += view.rows();
                }
                continue;
            }
            let Some(cut) = matrix.tiles else {
                let view = MatrixView::new(matrix.encoding, [tile.rows(), matrix.cols], &tile)?;
                work(&mut multiplier, done, view)?;
                done += view.rows();
                continue;
            };
            for bytes in tile.chunks_exact(cut.stride) {
                let rows = cut.rows.min(matrix.rows - done);
                let expected = Tile { encoding: matrix.encoding, rows, cols: matrix.cols, first: done };
                // What stays in memory was looked at when it was read.
                let seed = if tile.bytes_read() > 0 { self.checker.next(&matrix.name) } else { None };
                let view = expected
                    .view(bytes, seed)
                    .map_err(|problem| damaged(&self.dir, &matrix.name, done / cut.rows, problem))?;
                work(&mut multiplier, done, view)?;
                done += rows;
            }
        }
        Ok(())
    }

    /// `out[c, r] = sum over k of w[r, k] * x[c, k]` for the next matrix on the tape.
    pub(crate) fn matmul(
        &mut self,
        id: MatrixId,
        x: &mut Operand<'_>,
        out: &mut [f32],
        cancel: &AtomicBool,
    ) -> Result<(), Error> {
        if let Some(moments) = &mut self.moments {
            moments.add(&self.threads, id, x.values());
        }
        let rows = self.matrices[id.0].rows;
        self.tiles(id, cancel, |multiplier, first, view| multiplier.matmul(view, x, first, rows, out))
    }

    /// Runs `work` on the experts of one layer in the order of `ids`, each as soon as it is there.
    pub(crate) fn experts(
        &mut self,
        bank: &ExpertBank,
        ids: &[u32],
        cancel: &AtomicBool,
        mut work: impl FnMut(Means<'_>, u32, [MatrixView<'_>; 3]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let slots = self.slots.as_mut().expect("a model with experts has slots for them");
        let means = means!(self);
        for &id in ids {
            check(cancel)?;
            let record = slots.next()?.expect("the router requested its experts");
            assert_eq!(record.key(), bank.key(id), "experts come in the order of the request");
            self.counter.add(Part::Experts, record.bytes_read());
            let views = match &bank.storage {
                ExpertStorage::Tensors(_) => bank.views(|i| record.part(i))?,
                ExpertStorage::Records(stored) => {
                    let seed = if record.bytes_read() > 0 { self.checker.next(&bank.name) } else { None };
                    let views = stored.layout.views(id, record.part(0), seed);
                    views.map_err(|problem| damaged(&self.dir, &bank.name, id as usize, problem))?
                }
            };
            work(means, id, views)?;
        }
        Ok(())
    }

    /// Asks for experts ahead of their use.
    pub(crate) fn request_experts(
        &mut self,
        index: &TensorIndex,
        bank: &ExpertBank,
        ids: &[u32],
    ) -> Result<(), Error> {
        let slots = self.slots.as_mut().expect("a model with experts has slots for them");
        Ok(slots.begin(ids.iter().map(|&id| (bank.key(id), bank.parts(index, id))))?)
    }
}

/// Pieces of a tile begin at multiples of so many rows: bands of every encoding, and whole register blocks.
const PIECE_MULTIPLE: usize = 48;

/// The means to multiply while a tile is on loan.
pub(crate) struct Multiplier<'a> {
    pub(crate) means: Means<'a>,
    tile: &'a mut [f32],
}

impl Multiplier<'_> {
    /// Multiplies the rows from `first` on of a matrix of `rows` rows: `out[c, first + r]`.
    fn matmul(
        &mut self,
        view: MatrixView<'_>,
        x: &mut Operand<'_>,
        first: usize,
        rows: usize,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let count = x.count();
        if count == 1 {
            return Ok(self.means.product(view, x, &mut out[first..first + view.rows()])?);
        }
        self.pieces(view, x, |threads, start, by_rows| {
            threads.chunks(out, rows, |c, column| {
                for (value, of_columns) in column[first + start..].iter_mut().zip(by_rows.chunks_exact(count))
                {
                    *value = of_columns[c];
                }
            });
            Ok(())
        })
    }

    /// Multiplies a tile in pieces that fit the buffer: `done(threads, first row, products)`, where the products lie row
    /// after row.
    pub(crate) fn pieces(
        &mut self,
        view: MatrixView<'_>,
        x: &mut Operand<'_>,
        mut done: impl FnMut(&Threads, usize, &[f32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let rows = self.tile.len() / x.count();
        let piece = rows - rows % PIECE_MULTIPLE;
        for start in (0..view.rows()).step_by(piece) {
            let part = view.slice_rows(start..view.rows().min(start + piece));
            let products = &mut self.tile[..part.rows() * x.count()];
            self.means.product(part, x, products)?;
            done(self.means.threads, start, products)?;
        }
        Ok(())
    }
}

/// The error for a tile that is not what it should be.
pub(crate) fn damaged(dir: &Path, tensor: &str, tile: usize, problem: TileProblem) -> Error {
    Error::Tile { file: dir.to_path_buf(), tensor: tensor.to_owned(), tile, reason: problem.to_string() }
}

/// An error once somebody asked for the end.
pub(crate) fn check(cancel: &AtomicBool) -> Result<(), Error> {
    if cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
}
