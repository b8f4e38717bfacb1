//! What a campaign says about one operation on one medium: pure, from the p99 of its runs.
//!
//! The test is the same for quiet pairs and for those under pressure. Where quiet pairs fail it, the machine's own
//! differences are larger than what is to be seen, and nothing is said about pressure, least of all that it passed.

use serde::Serialize;

use super::plan::RATIO_MAX;
use crate::resampling::{Mean, mean_of};

/// Share of all drawings that lie at or below the upper bound.
const CONFIDENCE: f64 = 0.95;

/// The p99 of both runs of a pair, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Of the run that is compared with.
    pub base: u64,
    /// Of the run that is compared.
    pub compared: u64,
}

impl Pair {
    /// How many times longer.
    pub fn ratio(&self) -> f64 {
        self.compared as f64 / self.base as f64
    }
}

/// What pairs of one kind say.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Ratio of each pair.
    pub ratios: Vec<f64>,
    /// Of all pairs together.
    pub mean: Mean,
}

impl Comparison {
    /// Compares the runs of each pair; none without pairs.
    pub fn of(pairs: &[Pair]) -> Option<Comparison> {
        let ratios: Vec<f64> = pairs.iter().map(Pair::ratio).collect();
        (!ratios.is_empty()).then(|| Comparison { mean: mean_of(&ratios, CONFIDENCE), ratios })
    }

    /// The largest ratio of a pair.
    pub fn largest(&self) -> f64 {
        self.ratios.iter().copied().fold(f64::MIN, f64::max)
    }

    /// The largest ratio of a pair, whichever of its two runs is taken for the base.
    pub fn largest_either_way(&self) -> f64 {
        self.ratios.iter().map(|ratio| ratio.max(ratio.recip())).fold(f64::MIN, f64::max)
    }

    /// The upper bound of the mean, whichever run of each pair is taken for the base.
    pub fn bound_either_way(&self) -> f64 {
        self.mean.upper.max(self.mean.lower.recip())
    }

    /// Whether it passes either way: two quiet runs have no order, and a pair in which the first one happened to be the
    /// slow one says as much of the machine as any other.
    pub fn passes_either_way(&self) -> bool {
        self.largest_either_way() <= RATIO_MAX && self.bound_either_way() <= RATIO_MAX
    }

    /// Whether each pair, and the upper bound of all together, is within the limit.
    pub fn passes(&self) -> bool {
        self.largest() <= RATIO_MAX && self.mean.upper <= RATIO_MAX
    }
}

/// The runs of one kind: all pairs that were wanted, or what is missing.
#[derive(Clone, Debug, PartialEq)]
pub enum Runs {
    /// Every pair has two runs that count.
    Whole(Comparison),
    /// Some have not, by name; what the others say.
    Incomplete {
        /// Runs that are missing, with why.
        missing: Vec<String>,
        /// The pairs that are whole; none if there is none.
        so_far: Option<Comparison>,
    },
}

impl Runs {
    /// The comparison, whole or so far.
    pub fn comparison(&self) -> Option<&Comparison> {
        match self {
            Runs::Whole(comparison) => Some(comparison),
            Runs::Incomplete { so_far, .. } => so_far.as_ref(),
        }
    }
}

/// What is said at last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The machine can tell, and pressure is within the limit.
    Passed,
    /// The machine can tell, and pressure is beyond it.
    Failed,
    /// Quiet pairs fail the same test.
    NotResolvable,
    /// Runs are missing, or what they were exposed to was not seen.
    Unknown(String),
}

impl Verdict {
    /// The verdict of quiet pairs and of pairs under pressure.
    pub fn of(quiet: &Runs, pressure: &Runs) -> Verdict {
        let missing: Vec<&str> = [quiet, pressure]
            .into_iter()
            .filter_map(|runs| match runs {
                Runs::Whole(_) => None,
                Runs::Incomplete { missing, .. } => Some(missing),
            })
            .flatten()
            .map(String::as_str)
            .collect();
        match (quiet, pressure) {
            (Runs::Whole(quiet), _) if !quiet.passes_either_way() => Verdict::NotResolvable,
            (Runs::Whole(_), Runs::Whole(pressure)) if pressure.passes() => Verdict::Passed,
            (Runs::Whole(_), Runs::Whole(_)) => Verdict::Failed,
            _ => Verdict::Unknown(missing.join("; ")),
        }
    }

    /// In words.
    pub fn words(&self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "failed",
            Verdict::NotResolvable => "not resolvable here",
            Verdict::Unknown(_) => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(ratios: &[f64]) -> Runs {
        let pair = |ratio: &f64| Pair { base: 1_000_000, compared: (ratio * 1e6).round() as u64 };
        let pairs: Vec<Pair> = ratios.iter().map(pair).collect();
        Runs::Whole(Comparison::of(&pairs).expect("there are pairs"))
    }

    const STEADY: &[f64] = &[1.00, 0.99, 1.01, 1.02, 0.98];

    #[test]
    fn pressure_passes_only_within_the_limit_by_every_pair_and_by_the_bound() {
        let verdict = |pressure: &[f64]| Verdict::of(&whole(STEADY), &whole(pressure));
        assert_eq!(verdict(&[1.03, 1.02, 1.01, 1.04, 1.05]), Verdict::Passed);
        assert_eq!(verdict(&[1.00, 1.00, 1.00, 1.00, 1.06]), Verdict::Failed, "one pair is beyond it");
        assert_eq!(verdict(&[2.0; 5]), Verdict::Failed);
        assert_eq!(verdict(&[0.5; 5]), Verdict::Passed, "faster is no harm");
    }

    #[test]
    fn the_bound_counts_beside_the_pairs() {
        // With the pairs' own limit it can be exceeded by no bound, so the bound is asked for alone.
        let mut comparison = Comparison::of(&[Pair { base: 100, compared: 100 }]).expect("a pair");
        assert!(comparison.passes());
        comparison.mean.upper = 1.051;
        assert!(!comparison.passes());
    }

    #[test]
    fn a_machine_that_differs_from_itself_resolves_nothing() {
        let noisy = whole(&[1.00, 1.00, 1.20, 1.00, 1.00]);
        assert_eq!(Verdict::of(&noisy, &whole(STEADY)), Verdict::NotResolvable, "never passed");
        assert_eq!(Verdict::of(&noisy, &whole(&[3.0; 5])), Verdict::NotResolvable);
        let other_way = whole(&[1.00, 1.00, 0.80, 1.00, 1.00]);
        assert_eq!(
            Verdict::of(&other_way, &whole(STEADY)),
            Verdict::NotResolvable,
            "quiet runs have no order"
        );
    }

    #[test]
    fn what_is_missing_is_unknown_and_named() {
        let missing = |name: &str| Runs::Incomplete { missing: vec![name.to_owned()], so_far: None };
        assert_eq!(Verdict::of(&missing("a"), &whole(STEADY)), Verdict::Unknown("a".to_owned()));
        assert_eq!(Verdict::of(&whole(STEADY), &missing("b")), Verdict::Unknown("b".to_owned()));
        assert_eq!(Verdict::of(&missing("a"), &missing("b")), Verdict::Unknown("a; b".to_owned()));
        let noisy = whole(&[1.0, 1.0, 1.0, 1.0, 1.2]);
        assert_eq!(Verdict::of(&noisy, &missing("b")), Verdict::NotResolvable);
    }

    #[test]
    fn ratios_are_of_the_compared_run_over_the_other() {
        let comparison =
            Comparison::of(&[Pair { base: 200, compared: 100 }, Pair { base: 100, compared: 300 }]);
        let comparison = comparison.expect("there are pairs");
        assert_eq!((comparison.ratios.as_slice(), comparison.largest()), (&[0.5, 3.0][..], 3.0));
        assert_eq!(Comparison::of(&[]), None);
    }
}
