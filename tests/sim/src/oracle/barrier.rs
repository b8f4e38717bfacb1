//! The oracle of barriers: the single instant at which all matching views had come far enough.

use orbitkv_shards::fence::Fence;
use orbitkv_shards::time::Moment;

use super::{Oracle, Verdict, hold};

/// What was seen of one barrier, from the outside and without asking for readings.
#[derive(Clone, Debug)]
pub struct Watched {
    /// What is awaited.
    pub fence: Fence,
    /// Since when.
    pub since: Moment,
    /// When every matching view had come far enough at once, last.
    pub reached: Option<Moment>,
}

impl Watched {
    /// A barrier that begins.
    #[must_use]
    pub fn new(fence: Fence, since: Moment) -> Watched {
        Watched { fence, since, reached: None }
    }

    /// A moment has been looked at; `far_enough` says whether all views satisfy the fence in it.
    pub fn look(&mut self, far_enough: bool, now: Moment) {
        if far_enough {
            self.reached = Some(now);
        }
    }

    /// The barrier is said to be reached.
    ///
    /// # Errors
    /// [`Oracle::Await`] if there was no such moment since it began.
    pub fn judge(&self) -> Verdict {
        let there_was = self.reached.is_some_and(|reached| reached >= self.since);
        hold(Oracle::Await, there_was, || {
            format!("a barrier is reached that at no moment since {:?} was: {:?}", self.since, self.fence)
        })
    }
}
