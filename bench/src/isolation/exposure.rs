//! Whether a run was exposed to what it claims: pure, from what was recorded on both sides.
//!
//! What was recorded and is not what was declared is *rejected*. What was not recorded is *unknown*, and counts as
//! little. Times are nanoseconds of one monotonic clock.

use serde::{Deserialize, Serialize};

use super::plan::{BURST_CHANGES, BURST_PERIOD, SAMPLE_PERIOD};

/// How far the rate of changes may be from the declared one.
const RATE_TOLERANCE: f64 = 0.05;
/// Longest time without changes, and without a look.
const GAP_NS_MAX: u64 = 100_000_000;
/// A burst that follows another one sooner makes up for a late one: that is another pressure.
const CATCH_UP_NS: u64 = BURST_PERIOD.as_nanos() as u64 / 2;
/// Share of the declared changes that each quarter of the window must have shown on both sides.
const QUARTER_SHARE_MIN: f64 = 0.5;
/// Share of the looks that must have been taken.
const LOOKS_SHARE_MIN: f64 = 0.9;

/// When the rounds that count were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Intended start of the first.
    pub began_ns: u64,
    /// End of the last.
    pub ended_ns: u64,
}

impl Window {
    fn seconds(&self) -> f64 {
        (self.ended_ns - self.began_ns) as f64 / 1e9
    }

    fn has(&self, at_ns: u64) -> bool {
        (self.began_ns..=self.ended_ns).contains(&at_ns)
    }

    fn quarter(&self, number: u64) -> Window {
        let edge = |number| self.began_ns + (self.ended_ns - self.began_ns) * number / 4;
        Window { began_ns: edge(number), ended_ns: edge(number + 1) }
    }
}

/// One burst of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "[u64; 4]", from = "[u64; 4]")]
pub struct Burst {
    /// When it should have begun.
    pub intended_ns: u64,
    /// When it began.
    pub began_ns: u64,
    /// When its last change was answered.
    pub ended_ns: u64,
    /// Changes made by all bursts so far.
    pub changes: u64,
}

impl Burst {
    /// What its numbers are, in order.
    pub const COLUMNS: [&str; 4] = ["intended_ns", "began_ns", "ended_ns", "changes"];
}

impl From<Burst> for [u64; 4] {
    fn from(burst: Burst) -> [u64; 4] {
        [burst.intended_ns, burst.began_ns, burst.ended_ns, burst.changes]
    }
}

impl From<[u64; 4]> for Burst {
    fn from([intended_ns, began_ns, ended_ns, changes]: [u64; 4]) -> Burst {
        Burst { intended_ns, began_ns, ended_ns, changes }
    }
}

/// One look at both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "[u64; 5]", from = "[u64; 5]")]
pub struct Look {
    /// When it was due.
    pub intended_ns: u64,
    /// When the pressure node's answer was there.
    pub source_ns: u64,
    /// Head of its journal.
    pub source_head: u64,
    /// When the foreground node's answer was there.
    pub observer_ns: u64,
    /// What that node had applied of it.
    pub observer_applied: u64,
}

impl Look {
    /// What its numbers are, in order.
    pub const COLUMNS: [&str; 5] =
        ["intended_ns", "source_ns", "source_head", "observer_ns", "observer_applied"];
}

impl From<Look> for [u64; 5] {
    fn from(look: Look) -> [u64; 5] {
        [look.intended_ns, look.source_ns, look.source_head, look.observer_ns, look.observer_applied]
    }
}

impl From<[u64; 5]> for Look {
    fn from([intended_ns, source_ns, source_head, observer_ns, observer_applied]: [u64; 5]) -> Look {
        Look { intended_ns, source_ns, source_head, observer_ns, observer_applied }
    }
}

/// What a run was exposed to, in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Changes a second that were declared; 0 in a quiet run.
    pub declared_per_second: f64,
    /// As the bursts were answered.
    pub made_per_second: f64,
    /// As the pressure node's journal grew.
    pub source_per_second: f64,
    /// As the foreground's node applied them.
    pub observer_per_second: f64,
    /// Longest time between two bursts' ends in the window, its edges included, in milliseconds.
    pub burst_gap_ms_max: f64,
    /// Longest time between two looks that saw more applied.
    pub observer_gap_ms_max: f64,
    /// Longest time between two looks.
    pub look_gap_ms_max: f64,
    /// Shortest time between two bursts' starts.
    pub burst_interval_ms_min: f64,
    /// Looks in the window.
    pub looks: usize,
    /// Share of the declared changes that was seen in each quarter, on the side that saw less.
    pub quarters: [f64; 4],
}

/// What is said of a run's exposure.
#[derive(Clone, Debug, PartialEq)]
pub enum Exposure {
    /// As declared, and seen to be.
    Proved(Figures),
    /// Seen to be otherwise.
    Rejected(Figures, String),
    /// Not seen.
    Unknown(Figures, String),
}

impl Exposure {
    /// The figures, whatever is said.
    pub fn figures(&self) -> &Figures {
        match self {
            Exposure::Proved(figures) | Exposure::Rejected(figures, _) | Exposure::Unknown(figures, _) => {
                figures
            }
        }
    }

    /// Why it does not count.
    pub fn why_not(&self) -> Option<String> {
        match self {
            Exposure::Proved(_) => None,
            Exposure::Rejected(_, why) => Some(format!("exposure rejected: {why}")),
            Exposure::Unknown(_, why) => Some(format!("exposure unknown: {why}")),
        }
    }
}

/// The declared changes a second.
pub fn declared_per_second() -> f64 {
    BURST_CHANGES as f64 / BURST_PERIOD.as_secs_f64()
}

/// Judges a run under pressure, if `bursts` are wanted, or a quiet one, in which nothing may change.
pub fn judge(window: Window, under_pressure: bool, bursts: &[Burst], looks: &[Look]) -> Exposure {
    let inside: Vec<Look> = looks.iter().copied().filter(|look| window.has(look.observer_ns)).collect();
    let figures = figures(window, under_pressure, bursts, &inside);
    if let Some(why) = unseen(window, &inside, &figures) {
        return Exposure::Unknown(figures, why);
    }
    let wrong = match under_pressure {
        true => wrong_pressure(&figures),
        false => wrong_quiet(bursts, &inside),
    };
    match wrong {
        Some(why) => Exposure::Rejected(figures, why),
        None => Exposure::Proved(figures),
    }
}

fn figures(window: Window, under_pressure: bool, bursts: &[Burst], looks: &[Look]) -> Figures {
    let ends: Vec<u64> = bursts.iter().map(|burst| burst.ended_ns).filter(|&at| window.has(at)).collect();
    let starts: Vec<u64> = bursts.iter().map(|burst| burst.began_ns).filter(|&at| window.has(at)).collect();
    let intervals = starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    let advances = looks.windows(2).filter(|pair| pair[1].observer_applied > pair[0].observer_applied);
    let advanced: Vec<u64> = advances.map(|pair| pair[1].observer_ns).collect();
    let looked: Vec<u64> = looks.iter().map(|look| look.observer_ns).collect();
    let milliseconds = |ns: u64| ns as f64 / 1e6;
    let (source, observer) = (of_source(looks), of_observer(looks));
    let declared = if under_pressure { declared_per_second() } else { 0.0 };
    Figures {
        declared_per_second: declared,
        made_per_second: ends.len() as f64 * BURST_CHANGES as f64 / window.seconds(),
        source_per_second: rate(&source),
        observer_per_second: rate(&observer),
        burst_gap_ms_max: milliseconds(gap_max(window, &ends)),
        observer_gap_ms_max: milliseconds(gap_max(window, &advanced)),
        look_gap_ms_max: milliseconds(gap_max(window, &looked)),
        burst_interval_ms_min: milliseconds(intervals.min().unwrap_or(0)),
        looks: looks.len(),
        quarters: [0, 1, 2, 3].map(|number| {
            let quarter = window.quarter(number);
            let share = |points: &[(u64, u64)]| {
                grown_in(quarter, points) / (declared_per_second() * quarter.seconds())
            };
            share(&source).min(share(&observer))
        }),
    }
}

/// When what was seen of the pressure node.
fn of_source(looks: &[Look]) -> Vec<(u64, u64)> {
    looks.iter().map(|look| (look.source_ns, look.source_head)).collect()
}

/// When what was seen of the foreground's node.
fn of_observer(looks: &[Look]) -> Vec<(u64, u64)> {
    looks.iter().map(|look| (look.observer_ns, look.observer_applied)).collect()
}

/// Growth a second between the first and the last point.
fn rate(points: &[(u64, u64)]) -> f64 {
    match (points.first(), points.last()) {
        (Some(first), Some(last)) if last.0 > first.0 => {
            last.1.saturating_sub(first.1) as f64 / ((last.0 - first.0) as f64 / 1e9)
        }
        _ => 0.0,
    }
}

/// Growth between the first and the last point within a window.
fn grown_in(window: Window, points: &[(u64, u64)]) -> f64 {
    let mut inside = points.iter().filter(|point| window.has(point.0));
    match (inside.next(), inside.next_back()) {
        (Some(first), Some(last)) => last.1.saturating_sub(first.1) as f64,
        _ => 0.0,
    }
}

/// Longest time between two moments, the edges of the window included.
fn gap_max(window: Window, moments: &[u64]) -> u64 {
    let mut longest = 0;
    let mut before = window.began_ns;
    for &moment in moments.iter().chain([&window.ended_ns]) {
        longest = longest.max(moment.saturating_sub(before));
        before = moment;
    }
    longest
}

/// Why nothing can be said, if so.
fn unseen(window: Window, looks: &[Look], figures: &Figures) -> Option<String> {
    let wanted = window.seconds() / SAMPLE_PERIOD.as_secs_f64();
    if figures.look_gap_ms_max * 1e6 > GAP_NS_MAX as f64 {
        return Some(format!("nobody looked for {:.0} ms", figures.look_gap_ms_max));
    }
    ((looks.len() as f64) < wanted * LOOKS_SHARE_MIN)
        .then(|| format!("{} of {wanted:.0} looks were taken", looks.len()))
}

fn wrong_pressure(figures: &Figures) -> Option<String> {
    let rates = [
        ("the bursts", figures.made_per_second),
        ("the pressure node's journal", figures.source_per_second),
        ("the foreground's node", figures.observer_per_second),
    ];
    for (whose, rate) in rates {
        let ratio = rate / figures.declared_per_second;
        if (ratio - 1.0).abs() > RATE_TOLERANCE {
            return Some(format!("by {whose} the rate is {ratio:.3} of the declared one"));
        }
    }
    let gaps = [("burst", figures.burst_gap_ms_max), ("applied change", figures.observer_gap_ms_max)];
    for (what, gap_ms) in gaps {
        if gap_ms * 1e6 > GAP_NS_MAX as f64 {
            return Some(format!("no {what} for {gap_ms:.0} ms"));
        }
    }
    if figures.burst_interval_ms_min * 1e6 < CATCH_UP_NS as f64 {
        return Some(format!("two bursts began {:.2} ms apart", figures.burst_interval_ms_min));
    }
    let thin = (1..).zip(figures.quarters).find(|(_, share)| *share < QUARTER_SHARE_MIN);
    thin.map(|(number, share)| format!("quarter {number} shows {share:.2} of the declared changes"))
}

fn wrong_quiet(bursts: &[Burst], looks: &[Look]) -> Option<String> {
    let grown = |points: Vec<(u64, u64)>| points.windows(2).any(|pair| pair[0].1 != pair[1].1);
    (!bursts.is_empty() || grown(of_source(looks)) || grown(of_observer(looks)))
        .then(|| "something changed in a quiet run".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BEGAN: u64 = 5_000 * MS;

    /// A window of 6.8 s, which is 400 bursts of 64 changes, and a burst each 17 ms that takes 1 ms.
    fn window() -> Window {
        Window { began_ns: BEGAN, ended_ns: BEGAN + 6_800 * MS }
    }

    fn bursts() -> Vec<Burst> {
        let burst = |number: u64| {
            let began_ns = BEGAN - 170 * MS + number * 17 * MS;
            Burst { intended_ns: began_ns, began_ns, ended_ns: began_ns + MS, changes: (number + 1) * 64 }
        };
        (0..420).map(burst).collect()
    }

    /// Looks each 25 ms that see at the source what has been made, and at the observer what was 2 ms before.
    fn looks(bursts: &[Burst]) -> Vec<Look> {
        let made =
            |at: u64| bursts.iter().rev().find(|burst| burst.ended_ns <= at).map_or(0, |burst| burst.changes);
        let look = |number: u64| {
            let at = BEGAN - 100 * MS + number * 25 * MS;
            Look {
                intended_ns: at,
                source_ns: at + MS,
                source_head: 1_000 + made(at + MS),
                observer_ns: at + 2 * MS,
                observer_applied: 1_000 + made(at),
            }
        };
        (0..280).map(look).collect()
    }

    fn rejected(bursts: &[Burst], looks: &[Look], words: &str) {
        match judge(window(), true, bursts, looks) {
            Exposure::Rejected(_, why) if why.contains(words) => {}
            other => panic!("{words:?} was expected: {other:?}"),
        }
    }

    #[test]
    fn what_was_declared_and_seen_is_proved() {
        let bursts = bursts();
        let exposure = judge(window(), true, &bursts, &looks(&bursts));
        let Exposure::Proved(figures) = exposure else { panic!("{exposure:?}") };
        assert!((figures.declared_per_second - 3_764.7).abs() < 0.1);
        // 400 bursts end in 6.8 s: exactly the declared rate.
        assert_eq!(figures.made_per_second.round(), 3_765.0);
        assert_eq!((figures.burst_gap_ms_max, figures.burst_interval_ms_min), (17.0, 17.0));
        assert!(figures.observer_gap_ms_max <= 50.0 && figures.look_gap_ms_max <= 25.0, "{figures:?}");
        assert!(figures.quarters.iter().all(|share| (0.9..1.05).contains(share)), "{figures:?}");
    }

    #[test]
    fn another_rate_is_rejected() {
        let mut slow = bursts();
        let mut fewer = 0;
        // Each 17th burst is left out: 5.9 % less, and no gap of more than 34 ms.
        slow.retain(|burst| burst.changes / 64 % 17 != 0);
        for burst in &mut slow {
            fewer += 64;
            burst.changes = fewer;
        }
        rejected(&slow, &looks(&slow), "the rate is 0.94");
        // What was made did not arrive.
        let bursts = bursts();
        let mut lost = looks(&bursts);
        lost.iter_mut().for_each(|look| look.observer_applied = look.observer_applied * 9 / 10);
        rejected(&bursts, &lost, "by the foreground's node the rate is 0.90");
    }

    #[test]
    fn gaps_are_rejected() {
        let mut bursts = bursts();
        // Nothing for 102 ms (five bursts left out), which is 1.3 % of the rate.
        bursts.drain(100..105);
        rejected(&bursts, &looks(&bursts), "no burst for 102 ms");
        let steady = self::bursts();
        let mut stuck = looks(&steady);
        let stands = stuck[100].observer_applied;
        stuck[100..105].iter_mut().for_each(|look| look.observer_applied = stands);
        rejected(&steady, &stuck, "no applied change for 125 ms");
    }

    #[test]
    fn making_up_for_late_bursts_is_rejected_below_half_a_period() {
        let late = |by: u64| {
            let mut bursts = bursts();
            bursts[100].began_ns += by;
            bursts
        };
        let just = late(8 * MS + MS / 2);
        assert!(matches!(judge(window(), true, &just, &looks(&just)), Exposure::Proved(_)));
        let beyond = late(8 * MS + MS / 2 + 10_000);
        rejected(&beyond, &looks(&beyond), "two bursts began 8.49 ms apart");
    }

    #[test]
    fn a_quarter_without_pressure_is_rejected() {
        let bursts = bursts();
        let mut thin = looks(&bursts);
        // In the third quarter the observer is at first far ahead of what it should be, and grows little.
        let ends =
            thin.iter().find(|look| look.observer_ns > BEGAN + 5_100 * MS).expect("a look").observer_applied;
        let from = thin.iter().position(|look| look.observer_ns >= BEGAN + 3_400 * MS).expect("a look");
        for look in thin[from..].iter_mut().filter(|look| look.observer_applied < ends) {
            look.observer_applied = ends - (ends - look.observer_applied) / 4;
        }
        rejected(&bursts, &thin, "quarter 3 shows 0.2");
    }

    #[test]
    fn what_nobody_looked_at_is_unknown() {
        let bursts = bursts();
        let mut blind = looks(&bursts);
        blind.drain(100..104);
        let exposure = judge(window(), true, &bursts, &blind);
        assert!(
            matches!(&exposure, Exposure::Unknown(_, why) if why == "nobody looked for 125 ms"),
            "{exposure:?}"
        );
        let mut rare = looks(&bursts);
        let mut number = 0;
        rare.retain(|_| {
            number += 1;
            number % 6 != 0
        });
        let exposure = judge(window(), true, &bursts, &rare);
        assert!(
            matches!(&exposure, Exposure::Unknown(_, why) if why.contains("looks were taken")),
            "{exposure:?}"
        );
        assert!(matches!(judge(window(), true, &bursts, &[]), Exposure::Unknown(..)));
        // The last look before the end was too early.
        let mut early = looks(&bursts);
        early.truncate(270);
        assert!(matches!(judge(window(), true, &bursts, &early), Exposure::Unknown(..)));
    }

    #[test]
    fn a_quiet_run_is_quiet_and_seen_to_be() {
        let quiet = looks(&[]);
        let exposure = judge(window(), false, &[], &quiet);
        assert!(matches!(exposure, Exposure::Proved(figures) if figures.source_per_second == 0.0));
        assert!(matches!(judge(window(), false, &[], &[]), Exposure::Unknown(..)));
        for side in 0..2 {
            let mut stirred = quiet.clone();
            if side == 0 {
                stirred[120].source_head += 1
            } else {
                stirred[120].observer_applied += 1
            }
            assert!(matches!(judge(window(), false, &[], &stirred), Exposure::Rejected(..)));
        }
        assert!(matches!(judge(window(), false, &bursts(), &quiet), Exposure::Rejected(..)));
    }
}
