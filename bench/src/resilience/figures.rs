//! Figures of patterns, and what they are worth: one that would be met though nothing was tried proves nothing.

use std::time::Duration;

use orbitkv_shards::fetcher::EXTRA_BURST;
use serde_json::{Value, json};

use crate::profile::Profile;
use crate::report::Gate;

/// What a pattern may cost, as a ratio of latencies: a shared machine's own noise is twice that.
pub const COST_MAX: f64 = 1.10;
/// What all asks of blocks may be with a retry budget, over those for the first time.
const AMPLIFICATION_MAX: f64 = 1.1;
/// Longest time after a deadline until nothing is pinned, in milliseconds.
const PINS_MS_MAX: f64 = 100.0;
/// How long pins are waited for at most: beyond their limit, and less than the grant's own 10 s.
pub const PINS_WAIT: Duration = Duration::from_secs(1);
/// Recoveries that are given up, if the machine is no faster than their deadlines.
pub const ROUNDS: u64 = 20;
/// Recoveries of what is here, on the quiet day and again beside a stopped source.
pub const LOCAL_ASKS: u64 = 400;

/// One figure of a pattern, which is a gate.
pub struct Figure {
    /// Name of the gate.
    pub name: &'static str,
    pub value: f64,
    pub target: f64,
    /// Whether the target is an upper limit.
    pub at_most: bool,
    pub against: &'static str,
    /// All of it for people.
    pub words: String,
    pub details: Value,
    /// Why it proves nothing.
    pub why_invalid: Option<String>,
}

impl Figure {
    pub fn gate(self, profile: Profile) -> Gate {
        let gate = Gate::new(self.name, profile, 0);
        let gate = if self.at_most { gate.at_most(self.target) } else { gate.at_least(self.target) };
        let gate = gate.against(self.against, None).value(self.value).details(self.details);
        match self.why_invalid {
            Some(why) => gate.invalid(why),
            None => gate,
        }
    }

    /// Says why what was seen proves nothing, if it does not. What is missed is missed all the same.
    pub fn proves_nothing(self, why: Option<String>) -> Figure {
        let is_met = if self.at_most { self.value <= self.target } else { self.value >= self.target };
        Figure { why_invalid: why.filter(|_| is_met), ..self }
    }
}

fn mean(figures: [f64; 2]) -> f64 {
    f64::midpoint(figures[0], figures[1])
}

/// What both ways of a switch showed: the median of a recovery on a quiet day, and a figure of a failing one.
pub struct Days {
    pub quiet_us: [Vec<f64>; 2],
    pub failing: [Vec<f64>; 2],
}

impl Days {
    /// Means with it and without.
    pub fn means(of: &[Vec<f64>; 2]) -> [f64; 2] {
        [0, 1].map(|way| mean([of[way][0], of[way][1]]))
    }

    /// What it costs while nothing fails.
    pub fn cost(&self, name: &'static str) -> Figure {
        let [on, off] = Days::means(&self.quiet_us);
        Figure {
            name,
            value: on / off,
            target: COST_MAX,
            at_most: true,
            against: "median recovery of a block without it",
            words: format!("a block in {on:.0} us with it, {off:.0} us without: {:.3}", on / off),
            details: json!({ "on_us": self.quiet_us[0], "off_us": self.quiet_us[1] }),
            why_invalid: None,
        }
    }
}

/// First asks from which on a window holds no more than its share: ten times the burst, of which ten in a hundred are it.
const WINDOW_FIRST_ASKS: u64 = 10 * EXTRA_BURST as u64;

/// What had been asked for by each look, one after the other.
#[derive(Default)]
pub struct Series(Vec<(u64, u64)>);

impl Series {
    /// Notes first and extra asks, counted from the beginning.
    pub fn note(&mut self, first_asks: u64, extra_asks: u64) {
        self.0.push((first_asks, extra_asks));
    }

    /// The most that was asked between any two looks, over what was asked for the first time. In a window of few first
    /// asks the burst counts as the share of [`WINDOW_FIRST_ASKS`] of them.
    pub fn worst_window(&self) -> f64 {
        let windows =
            self.0.iter().enumerate().flat_map(|(at, from)| self.0[at..].iter().map(move |to| (from, to)));
        let of = |(from, to): (&(u64, u64), &(u64, u64))| {
            1.0 + (to.1 - from.1) as f64 / (to.0 - from.0).max(WINDOW_FIRST_ASKS) as f64
        };
        windows.map(of).fold(1.0, f64::max)
    }
}

/// What was asked for while a source was stopped.
pub struct Outage {
    pub first_asks: u64,
    pub extra_asks: u64,
    /// Extra ones that the budget did not let out.
    pub refused: u64,
}

impl Outage {
    fn amplification(&self) -> f64 {
        1.0 + self.extra_asks as f64 / self.first_asks.max(1) as f64
    }
}

/// How much was asked in all; it proves nothing unless calls failed, and unless it is more without a budget.
pub fn amplification(days: &Days, outages: &[Outage], first_asks_max: usize) -> Figure {
    let [on, off] = Days::means(&days.failing);
    let without_failure = outages.iter().filter(|outage| outage.extra_asks + outage.refused == 0).count();
    let why = if without_failure > 0 {
        Some(format!(
            "in {without_failure} of {} outages no block had to be asked for again: the stopped source was not asked",
            outages.len()
        ))
    } else if off <= AMPLIFICATION_MAX {
        Some(format!(
            "without a budget there were only {off:.3} asks a block: there was nothing to hold back"
        ))
    } else {
        None
    };
    let figure = Figure {
        name: "retry_budget_amplification",
        value: on,
        target: AMPLIFICATION_MAX,
        at_most: true,
        against: "asks over first asks, at least 640, in the worst of all windows of a second without the source asked first",
        words: format!("{on:.3} asks a block with it in the worst window, {off:.3} without"),
        details: json!({
            "on": days.failing[0],
            "off": days.failing[1],
            "outage_alone_on_off_off_on": outages.iter().map(Outage::amplification).collect::<Vec<_>>(),
            "outage_refused_on_off_off_on": outages.iter().map(|outage| outage.refused).collect::<Vec<_>>(),
            "first_asks_max": first_asks_max,
        }),
        why_invalid: None,
    };
    figure.proves_nothing(why)
}

/// What became of recoveries with a deadline that is too short.
#[derive(Default)]
pub struct GivenUp {
    rounds: u64,
    given_up: u64,
    /// Operations that the source was told to end.
    pub cancelled: u64,
    /// Longest time after a deadline with pins.
    longest: Duration,
}

impl GivenUp {
    /// Notes a round: whether all came, how long after the deadline the last pin was back, and how long that was waited
    /// for. Whether there may be another: not while this one's pins are there.
    pub fn note(&mut self, all_came: bool, late: Duration, waited: Duration) -> bool {
        let is_stuck = waited > PINS_WAIT;
        self.rounds += 1;
        self.given_up += u64::from(!all_came);
        if !all_came || is_stuck {
            self.longest = self.longest.max(late);
        }
        !is_stuck
    }

    pub fn figure(&self) -> Figure {
        let GivenUp { rounds, given_up, cancelled, longest } = *self;
        let longest_ms = longest.as_secs_f64() * 1e3;
        let why = if given_up == 0 {
            Some(format!("all of {rounds} recoveries came before their deadlines: none was given up"))
        } else if cancelled == 0 {
            Some(format!(
                "{given_up} of {rounds} were given up before their source had begun: none was cancelled"
            ))
        } else {
            None
        };
        let figure = Figure {
            name: "cancel_pins_ms",
            value: longest_ms,
            target: PINS_MS_MAX,
            at_most: true,
            against: "pins after the deadline, ms; a grant lasts 10,000",
            words: format!(
                "pins are back within {longest_ms:.1} ms of the deadline, in place of 10,000 ({given_up} of {rounds} given up, {cancelled} calls cancelled)"
            ),
            details: json!({ "rounds": rounds, "given_up": given_up, "cancelled": cancelled }),
            why_invalid: None,
        };
        figure.proves_nothing(why)
    }
}

/// An engine beside one that has used up its share.
pub struct Neighbour {
    /// Blocks that were refused to it, on both days.
    pub refused: u64,
    /// Blocks that the node refused to anybody.
    pub busy: u64,
    pub quiet_us: f64,
    pub amid_us: f64,
    /// How long the other engine waited.
    pub waited: Duration,
}

impl Neighbour {
    pub fn figure(&self) -> Figure {
        let Neighbour { refused, busy, quiet_us, amid_us, waited } = *self;
        let why = (busy == 0)
            .then(|| "nothing was refused to the engine that asks for more than its share".to_owned());
        let figure = Figure {
            name: "bulkhead_refused",
            value: refused as f64,
            target: 0.0,
            at_most: true,
            against: "recoveries of what is here, refused while a source is stopped",
            words: format!(
                "{refused} of {} refused to the neighbour of who had {busy} refused; a block here in {amid_us:.0} us meanwhile ({} \
                 ms), {quiet_us:.0} us else",
                2 * LOCAL_ASKS,
                waited.as_millis()
            ),
            details: json!({ "quiet_us": quiet_us, "amid_us": amid_us, "acquires_busy": busy }),
            why_invalid: None,
        };
        figure.proves_nothing(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Met, missed, or why it proves nothing.
    fn judged(figure: Figure) -> String {
        let why = figure.why_invalid.clone();
        match (why, figure.gate(Profile::Full).is_met()) {
            (Some(why), false) => why,
            (Some(why), true) => panic!("met though {why}"),
            (None, true) => "met".to_owned(),
            (None, false) => "missed".to_owned(),
        }
    }

    #[test]
    fn a_budget_is_judged_only_if_calls_failed_and_it_had_something_to_hold_back() {
        let outage = |extra_asks, refused| Outage { first_asks: 1_000, extra_asks, refused };
        let of = |on: f64, off: f64, tried: [u64; 4]| {
            let days = Days { quiet_us: [vec![1.0; 2], vec![1.0; 2]], failing: [vec![on; 2], vec![off; 2]] };
            judged(amplification(&days, &tried.map(|tried| outage(tried, 0)), 2_048))
        };
        assert_eq!(of(1.09, 1.9, [90, 900, 900, 90]), "met");
        assert_eq!(of(1.11, 1.9, [110, 900, 900, 110]), "missed");
        assert_eq!(of(1.9, 1.0, [900, 0, 0, 900]), "missed", "what is missed stays missed");
        assert!(of(1.0, 1.0, [0; 4]).contains("in 4 of 4 outages"));
        assert!(of(1.0, 1.9, [0, 900, 900, 90]).contains("in 1 of 4 outages"));
        assert!(of(1.05, 1.1, [50, 100, 100, 50]).contains("nothing to hold back"));
        let days = Days { quiet_us: [vec![1.0; 2], vec![1.0; 2]], failing: [vec![1.0; 2], vec![1.9; 2]] };
        let refused = [outage(0, 9), outage(900, 0), outage(900, 0), outage(0, 9)];
        assert_eq!(
            judged(amplification(&days, &refused, 2_048)),
            "met",
            "a budget that lets out nothing at all"
        );
    }

    #[test]
    fn every_window_between_two_looks_counts_and_few_first_asks_have_the_burst() {
        let of = |looks: &[(u64, u64)]| {
            let mut series = Series::default();
            looks.iter().for_each(|(first, extra)| series.note(*first, *extra));
            series.worst_window()
        };
        assert_eq!(of(&[]), 1.0);
        assert_eq!(of(&[(0, 0), (5_000, 0), (5_100, 64)]), 1.1, "the burst");
        assert_eq!(
            of(&[(0, 0), (9_000, 0), (10_000, 200), (20_000, 200)]),
            1.2,
            "busy seconds pay for no others"
        );
        assert_eq!(of(&[(0, 0), (1_000, 100), (2_000, 200)]), 1.1);
    }

    #[test]
    fn pins_are_judged_only_if_something_was_given_up_and_cancelled() {
        let of = |given_up, cancelled, ms| {
            let longest = Duration::from_millis(ms);
            judged(GivenUp { rounds: ROUNDS, given_up, cancelled, longest }.figure())
        };
        assert_eq!(of(20, 7, 30), "met");
        assert_eq!(of(20, 7, 101), "missed");
        assert_eq!(of(20, 0, 101), "missed", "cancels that never come are no excuse");
        assert!(of(0, 0, 0).contains("none was given up"));
        assert!(of(5, 0, 3).contains("none was cancelled"));
    }

    #[test]
    fn a_round_whose_pins_stay_misses_the_gate_and_is_the_last() {
        let (short, stuck) = (Duration::from_millis(3), PINS_WAIT + Duration::from_millis(1));
        for all_came in [true, false] {
            let mut seen = GivenUp::default();
            assert!(seen.note(true, short, short));
            assert!(!seen.note(all_came, stuck, stuck), "no more rounds");
            assert_eq!((seen.rounds, judged(seen.figure())), (2, "missed".to_owned()));
        }
    }

    #[test]
    fn a_bulkhead_is_judged_only_if_the_other_engine_was_refused_something() {
        let of = |refused, busy| {
            judged(Neighbour { refused, busy, quiet_us: 1.0, amid_us: 1.0, waited: PINS_WAIT }.figure())
        };
        assert_eq!([of(0, 1_024), of(1, 1_024), of(1, 0)], ["met", "missed", "missed"]);
        assert!(of(0, 0).contains("more than its share"));
    }
}
