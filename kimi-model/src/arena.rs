//! One buffer, cut into the pieces that a phase of a pass needs.

/// Hands out disjoint pieces of a slice, front to back.
#[derive(Debug)]
pub(crate) struct Arena<'a>(&'a mut [f32]);

impl<'a> Arena<'a> {
    pub(crate) fn new(floats: &'a mut [f32]) -> Self {
        Self(floats)
    }

    /// The next `count` values. Their contents are whatever the last phase left.
    ///
    /// # Panics
    /// If fewer are left: the phase's size was computed wrong.
    pub(crate) fn take(&mut self, count: usize) -> &'a mut [f32] {
        let (piece, rest) = std::mem::take(&mut self.0).split_at_mut(count);
        self.0 = rest;
        piece
    }
}
