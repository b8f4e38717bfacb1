//! What is known of a route's owner beside what came of asking it: how old the word is that it has a block, and how
//! busy it said that it is (chapter 3.6).
//!
//! Neither prices anything. Whether age of metadata says anything of refusals, and age of a summary of errors of
//! prediction, is counted here first, by age.

use std::time::Duration;

use orbitkv_wire::inventory::ResourceSummary;

use super::route::TrialOutcome;
use super::trace::RouteTrace;

/// What a choice's owner has said, by receipt on this node's own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerEvidence {
    /// How long ago the inventory that lists the block was last known to be whole; none if it never was.
    pub metadata_age: Option<Duration>,
    /// How busy it said that it is, and how long ago; none if that is too old, or it has said nothing.
    pub resource: Option<(ResourceSummary, Duration)>,
}

/// Upper bounds of the ages that are told apart; what is older, or of no age, is one more.
pub const AGE_BOUNDS: [Duration; 4] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(5)];

/// Something counted by age.
pub type ByAge = [u64; AGE_BOUNDS.len() + 1];

/// What ages came to, counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgeFigures {
    /// Blocks asked of whom their batch asks first, by age of that owner's metadata.
    pub asked: ByAge,
    /// Of those, refused: busy there, or there no more.
    pub refused: ByAge,
    /// Batches that came whole and whose time had been predicted, by age of the oldest summary of their owners.
    pub judged: ByAge,
    /// By how many thousandths of the prediction those were off, in sum.
    pub error_permille: ByAge,
}

/// Which of [`AGE_BOUNDS`] an age is within.
fn band(age: Option<Duration>) -> usize {
    let within = |age: Duration| AGE_BOUNDS.iter().position(|bound| age <= *bound);
    age.and_then(within).unwrap_or(AGE_BOUNDS.len())
}

impl AgeFigures {
    /// A block was asked of the owner that its batch asks first.
    pub(super) fn on_asked(&mut self, told: &OwnerEvidence, outcome: TrialOutcome) {
        let band = band(told.metadata_age);
        self.asked[band] += 1;
        self.refused[band] += u64::from(matches!(outcome, TrialOutcome::Busy | TrialOutcome::Missing));
    }

    /// A batch came whole that was predicted to take so long.
    pub(super) fn on_judged(&mut self, trace: &RouteTrace, predicted: Duration) {
        let ages = trace.routes.iter().map(|route| route.told.resource.map(|(_, age)| age));
        // The oldest decides, and who has said nothing is older than all.
        let band = ages.map(band).max().unwrap_or(AGE_BOUNDS.len());
        let off = trace.ready.abs_diff(predicted).as_nanos();
        let permille = off * 1_000 / predicted.as_nanos().max(1);
        self.judged[band] += 1;
        self.error_permille[band] =
            self.error_permille[band].saturating_add(u64::try_from(permille).unwrap_or(u64::MAX));
    }
}
