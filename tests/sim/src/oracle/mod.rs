//! Oracles: what must hold, judged from the truth, from what was seen on the wire and from what nodes
//! claim. None of them asks a room whether it was right.

pub mod answers;
pub mod barrier;
pub mod rows;
pub mod session;

use std::fmt;

/// Which rule was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oracle {
    /// A source may send only what its history says, whole and in order.
    Source,
    /// A row is a residence that its source had.
    Rows,
    /// Nothing of a life that is over is shown.
    Fenced,
    /// A complete view equals the truth at its watermark.
    Complete,
    /// What an answer calls absent was absent at its cuts.
    Absence,
    /// A watermark stands on frames that have arrived.
    Watermark,
    /// Every queue and every frame keeps its bound.
    Bounds,
    /// Credit is what was sent and not yet acknowledged.
    Credits,
    /// The merge of chapter 2.8.
    Merge,
    /// A barrier was reached at one instant.
    Await,
    /// In the end everything is the same everywhere.
    Convergence,
    /// In the end nothing is left over.
    Conservation,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub oracle: Oracle,
    /// How.
    pub what: String,
}

/// `Ok` or what was violated.
pub type Verdict = Result<(), Violation>;

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.oracle, self.what)
    }
}

/// A verdict of `oracle`.
///
/// # Errors
/// What is said, unless it holds.
pub fn hold(oracle: Oracle, holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Violation { oracle, what: what() }) }
}
