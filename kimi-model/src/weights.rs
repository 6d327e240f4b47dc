//! Where the pager and the graph meet: matrices arrive in tiles and are multiplied as they land.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kimi_kernels::{Columns, Kernels, Scratch, Threads};
use kimi_paging::{Lease, LeasedVec, Ring, Slots, TensorIndex};
use kimi_quant::{Bf16, DenseView, Encoding, MatrixView, Mxfp4View};

use crate::error::Error;
use crate::layout::{ExpertBank, MatrixId, TapeMatrix};

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

/// Streamed weights and the means to multiply them.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) kernels: Kernels,
    pub(crate) threads: Threads,
    pub(crate) scratch: Scratch,
    pub(crate) _scratch_lease: Lease,
    pub(crate) ring: Ring,
    pub(crate) slots: Option<Slots>,
    pub(crate) matrices: Vec<TapeMatrix>,
    pub(crate) lm_head: MatrixId,
    /// Results of one tile before they are dealt out to the columns.
    pub(crate) tile: LeasedVec<f32>,
    pub(crate) counter: ReadCounter,
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
        let mut multiplier = Multiplier {
            kernels: self.kernels,
            threads: &self.threads,
            scratch: &self.scratch,
            tile: &mut self.tile,
        };
        let mut done = 0;
        while done < matrix.rows {
            check(cancel)?;
            let tile = self.ring.next()?.expect("the pass announced its matrices");
            assert_eq!(
                (tile.entry(), tile.first_row()),
                (id.0, done),
                "the graph uses the tape in its order"
            );
            let part = if id == self.lm_head { Part::Head } else { Part::Trunk };
            self.counter.add(part, tile.bytes_read());
            let view = dense_view(matrix.encoding, [tile.rows(), matrix.cols], &tile)?;
            work(&mut multiplier, done, view)?;
            done += view.rows();
        }
        Ok(())
    }

    /// `out[c, r] = sum over k of w[r, k] * x[c, k]` for the next matrix on the tape.
    pub(crate) fn matmul(
        &mut self,
        id: MatrixId,
        x: Columns<'_>,
        out: &mut [f32],
        cancel: &AtomicBool,
    ) -> Result<(), Error> {
        let rows = self.matrices[id.0].rows;
        self.tiles(id, cancel, |multiplier, first, view| multiplier.matmul(view, x, first, rows, out))
    }

    /// Runs `work` on the experts of one layer in the order of `ids`, each as soon as it is there.
    pub(crate) fn experts(
        &mut self,
        bank: &ExpertBank,
        ids: &[u32],
        cancel: &AtomicBool,
        mut work: impl FnMut(&mut Multiplier<'_>, u32, [MatrixView<'_>; 3]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let slots = self.slots.as_mut().expect("a model with experts has slots for them");
        let mut multiplier = Multiplier {
            kernels: self.kernels,
            threads: &self.threads,
            scratch: &self.scratch,
            tile: &mut self.tile,
        };
        for &id in ids {
            check(cancel)?;
            let record = slots.next()?.expect("the router requested its experts");
            assert_eq!(record.key(), bank.key(id), "experts come in the order of the request");
            self.counter.add(Part::Experts, record.bytes_read());
            let shapes = [(bank.inner, bank.width), (bank.inner, bank.width), (bank.width, bank.inner)];
            let mut parts = 0;
            let mut next = || {
                parts += 1;
                record.part(parts - 1)
            };
            let mut views = Vec::with_capacity(3);
            for (rows, cols) in shapes {
                let weights = next();
                views.push(match bank.encoding {
                    Encoding::Mxfp4 => Mxfp4View::new([rows, cols], weights, next())?.into(),
                    Encoding::Bf16 => DenseView::<Bf16>::new([rows, cols], weights)?.into(),
                    _ => MatrixView::from(DenseView::<f32>::new([rows, cols], weights)?),
                });
            }
            work(&mut multiplier, id, [views[0], views[1], views[2]])?;
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
    pub(crate) kernels: Kernels,
    pub(crate) threads: &'a Threads,
    pub(crate) scratch: &'a Scratch,
    tile: &'a mut [f32],
}

impl Multiplier<'_> {
    /// Multiplies the rows from `first` on of a matrix of `rows` rows: `out[c, first + r]`.
    fn matmul(
        &mut self,
        view: MatrixView<'_>,
        x: Columns<'_>,
        first: usize,
        rows: usize,
        out: &mut [f32],
    ) -> Result<(), Error> {
        if x.count() == 1 {
            let out = &mut out[first..first + view.rows()];
            return Ok(self.kernels.matmul(self.threads, self.scratch, view, x, out)?);
        }
        self.pieces(view, x, |threads, start, by_rows| {
            threads.chunks(out, rows, |c, column| {
                for (value, of_columns) in
                    column[first + start..].iter_mut().zip(by_rows.chunks_exact(x.count()))
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
        x: Columns<'_>,
        mut done: impl FnMut(&Threads, usize, &[f32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let rows = self.tile.len() / x.count();
        let piece = rows - rows % PIECE_MULTIPLE;
        for start in (0..view.rows()).step_by(piece) {
            let part = view.slice_rows(start..view.rows().min(start + piece));
            let products = &mut self.tile[..part.rows() * x.count()];
            self.kernels.matmul(self.threads, self.scratch, part, x, products)?;
            done(self.threads, start, products)?;
        }
        Ok(())
    }
}

/// A view of row-major elements.
pub(crate) fn dense_view(
    encoding: Encoding,
    shape: [usize; 2],
    bytes: &[u8],
) -> Result<MatrixView<'_>, Error> {
    Ok(match encoding {
        Encoding::Bf16 => DenseView::<Bf16>::new(shape, bytes)?.into(),
        _ => DenseView::<f32>::new(shape, bytes)?.into(),
    })
}

/// An error once somebody asked for the end.
pub(crate) fn check(cancel: &AtomicBool) -> Result<(), Error> {
    if cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
}
