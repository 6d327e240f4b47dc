//! Activations on their way into matrix products, in either tier of arithmetic.

use std::fmt;
use std::str::FromStr;

use kimi_kernels::{Columns, IntegerBuffers, IntegerColumns, Kernels, Scratch, ShapeError, Threads};
use kimi_paging::{Budget, Lease, LeasedVec};
use kimi_quant::MatrixView;

use crate::error::Error;

/// How weights and activations are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Arith {
    /// float32 activations times the stored weights.
    #[default]
    Exact,
    /// Activations as int8, one scale to a group of the weights, where weights are integers or MXFP4 in bands; exact elsewhere.
    Fast,
}

impl Arith {
    /// Both, in the order of their names in options.
    pub const ALL: [Self; 2] = [Self::Exact, Self::Fast];

    /// The name that options and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Fast => "fast",
        }
    }
}

impl fmt::Display for Arith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of no tier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown arithmetic `{0}`: exact or fast")]
pub struct UnknownArith(String);

impl FromStr for Arith {
    type Err = UnknownArith;

    fn from_str(text: &str) -> Result<Self, UnknownArith> {
        Self::ALL.into_iter().find(|tier| tier.name() == text).ok_or_else(|| UnknownArith(text.to_owned()))
    }
}

/// Memory for the prepared forms of one operand.
#[derive(Debug)]
pub(crate) struct OperandBuffers {
    packed: LeasedVec<f32>,
    /// Used in the fast tier only.
    integer: IntegerBuffers,
    _integer_lease: Lease,
}

/// What [`OperandBuffers`] must hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperandSizes {
    packed: usize,
    /// The longest column and the number of columns; 0 in the exact tier.
    integer: [usize; 2],
}

impl OperandSizes {
    pub(crate) fn new(kernels: Kernels, arith: Arith, k: usize, columns: usize) -> Self {
        let integer = match arith {
            Arith::Exact => [0, 0],
            Arith::Fast => [k, columns],
        };
        Self { packed: kernels.packed_len(k, columns), integer }
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.packed as u64 * 4).saturating_add(self.integer_bytes())
    }

    fn integer_bytes(&self) -> u64 {
        IntegerBuffers::bytes(self.integer[0], self.integer[1])
    }
}

impl OperandBuffers {
    pub(crate) fn new(sizes: &OperandSizes, budget: &Budget) -> Result<Self, Error> {
        let lease = budget.lease(sizes.integer_bytes(), "activations")?;
        Ok(Self {
            packed: budget.zeroed(sizes.packed, "activations")?,
            integer: IntegerBuffers::with_capacity(sizes.integer[0], sizes.integer[1]),
            _integer_lease: lease,
        })
    }
}

/// Some columns, and their int8 form once somebody asked for it.
#[derive(Debug)]
pub(crate) struct Operand<'a> {
    columns: Columns<'a>,
    values: &'a [f32],
    integer: &'a mut IntegerBuffers,
    /// The group that `integer` holds.
    group: Option<usize>,
}

impl<'a> Operand<'a> {
    /// Columns of length `k`, packed where the kernels want them so.
    pub(crate) fn new(
        kernels: Kernels,
        threads: &Threads,
        values: &'a [f32],
        k: usize,
        buffers: &'a mut OperandBuffers,
    ) -> Result<Self, Error> {
        let OperandBuffers { packed, integer, .. } = buffers;
        let columns = kernels.columns(threads, values, k, packed)?;
        Ok(Self { columns, values, integer, group: None })
    }

    /// The last column alone.
    pub(crate) fn last(values: &'a [f32], k: usize, buffers: &'a mut OperandBuffers) -> Result<Self, Error> {
        let values = &values[values.len() - k..];
        Ok(Self { columns: Columns::new(values, k)?, values, integer: &mut buffers.integer, group: None })
    }

    /// The columns, one after another.
    pub(crate) fn values(&self) -> &[f32] {
        self.values
    }

    pub(crate) fn count(&self) -> usize {
        self.columns.count()
    }

    fn integer(&mut self, threads: &Threads, group: usize) -> Result<IntegerColumns<'_>, ShapeError> {
        if self.group == Some(group) {
            return Ok(self.integer.columns());
        }
        self.group = Some(group);
        self.integer.quantize(threads, self.values, self.columns.k(), group)
    }
}

/// Who multiplies, and with which tier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) kernels: Kernels,
    pub(crate) threads: &'a Threads,
    pub(crate) scratch: &'a Scratch,
    pub(crate) arith: Arith,
}

impl Means<'_> {
    /// `y[r, c] = sum over k of w[r, k] * x[c, k]`; `y` is `w.rows() x x.count()`.
    pub(crate) fn product(
        &self,
        w: MatrixView<'_>,
        x: &mut Operand<'_>,
        y: &mut [f32],
    ) -> Result<(), ShapeError> {
        match w.integer_group().filter(|_| self.arith == Arith::Fast) {
            Some(group) => self.kernels.matmul_integer(self.threads, w, x.integer(self.threads, group)?, y),
            None => self.kernels.matmul(self.threads, self.scratch, w, x.columns, y),
        }
    }
}
