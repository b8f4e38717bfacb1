//! What repeated runs say about a choice that was made: how much better what is built is than what it is held against,
//! how far that may be off, and what a rule that was fixed before says to it. Pure.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::resampling::{Mean, mean_of};

/// Of either bound, so that 95 % of all resamples lie between them.
const CONFIDENCE: f64 = 0.975;
/// What is built stays unless the other is at least so many times better.
pub const UNLESS_BETTER: f64 = 1.05;

/// What one side came to in one run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Trial {
    /// By name.
    pub figures: BTreeMap<&'static str, f64>,
    /// Blocks, keys or rows that were wrong, and writes of those that must make none.
    pub wrong: u64,
    /// Why it does not count.
    pub fault: Option<String>,
    /// Everything else.
    pub details: Value,
}

impl Trial {
    /// One of these figures.
    pub fn of(figures: impl IntoIterator<Item = (&'static str, f64)>) -> Trial {
        Trial { figures: figures.into_iter().collect(), ..Trial::default() }
    }

    /// One that failed.
    pub fn failed(why: &str) -> Trial {
        Trial { fault: Some(why.to_owned()), ..Trial::default() }
    }
}

/// Which way a figure is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    /// A rate.
    Higher,
    /// A time, or what something costs.
    Lower,
}

/// What is asked of two sides of one ablation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    /// Its stable name.
    pub gate: &'static str,
    /// The side that is built.
    pub built: usize,
    /// The side that it is held against.
    pub other: usize,
    /// Which figure.
    pub figure: &'static str,
    /// Which way it is good.
    pub sense: Sense,
    /// How many times better what is built must be at least. Below 1, so much worse it may be.
    pub least: f64,
}

/// What the rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// Even the lower bound is enough: what is built stays.
    Keep,
    /// Not even the upper bound is enough: the other is better.
    Drop,
    /// The rule lies between the bounds: what is built stays, and is not proved.
    Open,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// How many times better what is built was, run by run.
    pub ratios: Vec<f64>,
    /// Of these.
    pub mean: Mean,
    /// What follows.
    pub decision: Decision,
}

impl Question {
    /// What so many runs say, each of which has a trial of every side.
    ///
    /// # Errors
    /// In words, if a trial of either side does not count or lacks the figure.
    pub fn judge(&self, runs: &[Vec<Trial>]) -> Result<Judgement, String> {
        let figure = |number: usize, trial: &Trial| -> Result<f64, String> {
            if let Some(why) = &trial.fault {
                return Err(format!("run {}: {why}", number + 1));
            }
            let value = trial.figures.get(self.figure).copied();
            let is_measured = |value: &f64| *value > 0.0 && value.is_finite();
            value
                .filter(is_measured)
                .ok_or_else(|| format!("run {}: {} is {value:?}", number + 1, self.figure))
        };
        let mut ratios = Vec::with_capacity(runs.len());
        for (number, trials) in runs.iter().enumerate() {
            let (built, other) = (figure(number, &trials[self.built])?, figure(number, &trials[self.other])?);
            ratios.push(match self.sense {
                Sense::Higher => built / other,
                Sense::Lower => other / built,
            });
        }
        if ratios.is_empty() {
            return Err("nothing was measured".to_owned());
        }
        let mean = mean_of(&ratios, CONFIDENCE);
        let decision = if mean.lower >= self.least {
            Decision::Keep
        } else if mean.upper < self.least {
            Decision::Drop
        } else {
            Decision::Open
        };
        Ok(Judgement { ratios, mean, decision })
    }

    /// The rule in words, with the names of all sides.
    pub fn rule(&self, sides: &[&str]) -> String {
        let (built, other) = (sides[self.built], sides[self.other]);
        match self.least < 1.0 {
            true => format!("{built} stays unless {other} is {:.2} × better", 1.0 / self.least),
            false => format!("{built} stays if it is {:.2} × better than {other}", self.least),
        }
    }
}

impl Judgement {
    /// All of it.
    pub fn json(&self) -> Value {
        let (min, max) = (
            self.ratios.iter().copied().fold(f64::INFINITY, f64::min),
            self.ratios.iter().copied().fold(0.0, f64::max),
        );
        json!({
            "ratios": { "geometric_mean": self.mean.mean, "min": min, "max": max, "raw": self.ratios },
            "interval_95": [self.mean.lower, self.mean.upper],
            "decision": self.decision,
        })
    }
}

impl Decision {
    /// What to do, in words.
    pub fn words(self, built: &str, other: &str) -> String {
        match self {
            Decision::Keep => format!("keep {built}"),
            Decision::Drop => format!("take {other}"),
            Decision::Open => format!("open: keep {built}, measure more"),
        }
    }
}

/// In which order the sides of a run are measured: each goes first in turn.
pub fn order(sides: usize, run: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sides).collect();
    order.rotate_left(run % sides);
    order
}

/// The trials of all sides in their own order, measured in the order of the run.
///
/// # Errors
/// Of the first side that fails.
pub fn in_turn<E>(
    sides: usize,
    run: usize,
    mut measure: impl FnMut(usize) -> Result<Trial, E>,
) -> Result<Vec<Trial>, E> {
    let mut trials: Vec<Option<Trial>> = vec![None; sides];
    for side in order(sides, run) {
        trials[side] = Some(measure(side)?);
    }
    Ok(trials.into_iter().map(|trial| trial.expect("every side has its turn")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(sense: Sense, least: f64) -> Question {
        Question { gate: "g", built: 0, other: 1, figure: "f", sense, least }
    }

    fn runs(pairs: &[(f64, f64)]) -> Vec<Vec<Trial>> {
        let trial = |value| Trial::of([("f", value)]);
        pairs.iter().map(|(built, other)| vec![trial(*built), trial(*other)]).collect()
    }

    #[test]
    fn the_ratio_says_how_many_times_better_what_is_built_is() {
        // A rate of 4 against 2 is twice as good, a time of 4 against 2 half as good; so is 8 against 4.
        let pairs = runs(&[(4.0, 2.0), (8.0, 4.0)]);
        let higher = question(Sense::Higher, 1.0).judge(&pairs).expect("measured");
        assert_eq!((higher.ratios, higher.decision), (vec![2.0, 2.0], Decision::Keep));
        assert!((higher.mean.mean - 2.0).abs() < 1e-12);
        let lower = question(Sense::Lower, 1.0).judge(&pairs).expect("measured");
        assert_eq!((lower.ratios, lower.decision), (vec![0.5, 0.5], Decision::Drop));
        // Sides are told apart by their places.
        let turned = Question { built: 1, other: 0, ..question(Sense::Higher, 1.0) };
        assert_eq!(turned.judge(&pairs).expect("measured").ratios, [0.5, 0.5]);
    }

    #[test]
    fn a_rule_between_the_bounds_is_open_and_both_bounds_decide() {
        // One of five is 32 times better: a drawing of five has it up to five times. 97.5 % of all drawings have it up
        // to three times (99.3 %; up to twice 94.2 %), so the upper bound is 32^(3/5) = 8, the lower 1, the mean 2.
        let pairs = runs(&[(1.0, 1.0), (1.0, 1.0), (32.0, 1.0), (1.0, 1.0), (1.0, 1.0)]);
        let decided = |least| question(Sense::Higher, least).judge(&pairs).expect("measured");
        let judged = decided(1.0);
        for (value, right) in [(judged.mean.mean, 2.0), (judged.mean.lower, 1.0), (judged.mean.upper, 8.0)] {
            assert!((value - right).abs() < 1e-9, "{judged:?}");
        }
        let decisions = [0.999, 1.001, 7.999, 8.001].map(|least| decided(least).decision);
        assert_eq!(decisions, [Decision::Keep, Decision::Open, Decision::Open, Decision::Drop]);
    }

    #[test]
    fn a_run_that_does_not_count_answers_nothing() {
        let mut broken = runs(&[(1.0, 1.0), (2.0, 1.0)]);
        broken[1][1] = Trial::failed("it rained");
        let why = question(Sense::Higher, 1.0).judge(&broken).expect_err("one is no trial");
        assert_eq!(why, "run 2: it rained");
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let why = question(Sense::Lower, 1.0).judge(&runs(&[(1.0, odd)])).expect_err("no figure");
            assert!(why.starts_with("run 1: f is "), "{why}");
        }
        let other = Question { figure: "g", ..question(Sense::Lower, 1.0) };
        assert_eq!(other.judge(&runs(&[(1.0, 1.0)])), Err("run 1: g is None".to_owned()));
        assert!(question(Sense::Higher, 1.0).judge(&[]).is_err());
    }

    #[test]
    fn rules_and_decisions_name_the_sides() {
        let sides = ["ring", "glommio"];
        let unless = question(Sense::Higher, 1.0 / UNLESS_BETTER);
        assert_eq!(unless.rule(&sides), "ring stays unless glommio is 1.05 × better");
        let earns = question(Sense::Higher, 5.0);
        assert_eq!(earns.rule(&sides), "ring stays if it is 5.00 × better than glommio");
        assert_eq!(Decision::Keep.words("ring", "glommio"), "keep ring");
        assert_eq!(Decision::Drop.words("ring", "glommio"), "take glommio");
        assert_eq!(Decision::Open.words("ring", "glommio"), "open: keep ring, measure more");
    }

    #[test]
    fn every_side_goes_first_in_turn_and_trials_keep_their_places() {
        assert_eq!([order(2, 0), order(2, 1), order(2, 2)], [[0, 1], [1, 0], [0, 1]]);
        let first: Vec<usize> = (0..4).map(|run| order(4, run)[0]).collect();
        assert_eq!(first, [0, 1, 2, 3]);
        let mut measured = Vec::new();
        let trials = in_turn(3, 1, |side| {
            measured.push(side);
            Ok::<_, ()>(Trial::of([("f", side as f64)]))
        });
        let places: Vec<f64> = trials.expect("none fails").iter().map(|trial| trial.figures["f"]).collect();
        assert_eq!((measured, places), (vec![1, 2, 0], vec![0.0, 1.0, 2.0]));
        assert!(in_turn(2, 0, |side| if side == 1 { Err("no") } else { Ok(Trial::default()) }).is_err());
    }
}
