//! How fresh a view is, by receipt on this node's own clock (chapter 2.8).
//!
//! Every frame says the source's head when it was built. A view is as fresh as the newest frame whose
//! head it has reached, so a source that still beats but no longer sends what it has grows old. One
//! frame whose head is not reached yet is remembered: the first one, because a view that is always a
//! little behind would never reach the newest.

use orbitkv_wire::identity::Sequence;

use crate::time::Moment;

/// Freshness of one owner stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freshness {
    fresh_at: Option<Moment>,
    pending: Option<(Sequence, Moment)>,
}

impl Freshness {
    /// A frame with this head was received at `receipt`; by now the view is applied through `applied`.
    pub fn on_frame(&mut self, head: Sequence, receipt: Moment, applied: Sequence) {
        if let Some((_, then)) = self.pending.take_if(|(head, _)| *head <= applied) {
            self.fresh_at = self.fresh_at.max(Some(then));
        }
        if head <= applied {
            self.fresh_at = self.fresh_at.max(Some(receipt));
        } else if self.pending.is_none() {
            self.pending = Some((head, receipt));
        }
    }

    /// Receipt of the newest frame that is known to be reached.
    pub fn fresh_at(&self) -> Option<Moment> {
        self.fresh_at
    }
}
