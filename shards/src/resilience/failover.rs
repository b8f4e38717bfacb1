//! Failover (chapter 5, row 9): which of several candidates is used, seen from whoever checks them.
//!
//! The candidate in use is left after a number of checks in a row that it missed, and never for one missed
//! check alone unless the operator says so. Going back is a second change with a second window, so by
//! default it does not happen by itself: a candidate that stops and starts, or that answers checks and
//! nothing else, then costs one change and not one each time.

use std::time::Duration;

use crate::time::Moment;

/// When a more preferred candidate that answers again is gone back to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failback {
    /// Never by itself.
    #[default]
    Never,
    /// After this many checks in a row that it answered.
    After {
        /// Checks in a row.
        healthy_checks: u32,
    },
}

/// How a [`Failover`] decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailoverSettings {
    /// Checks in a row that the candidate in use misses before it is left; at least 1.
    pub threshold: u32,
    /// Whether and when it is gone back to.
    pub failback: Failback,
    /// How long a change takes, in which nobody is used. With zero it is made by the check that asks for it.
    pub transition: Duration,
}

/// Checks in a row that may be missed before a candidate is left (chapter 5: 3).
pub const THRESHOLD: u32 = 3;

impl Default for FailoverSettings {
    fn default() -> Self {
        FailoverSettings { threshold: THRESHOLD, failback: Failback::Never, transition: Duration::ZERO }
    }
}

/// Why the candidate in use changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It missed its checks.
    Failover,
    /// A more preferred one answers again, or the operator goes back.
    Failback,
}

/// A change of the candidate in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Why.
    pub cause: Cause,
    /// Who was used, by place in the order of preference.
    pub from: usize,
    /// Who will be.
    pub to: usize,
}

/// What a check means for what is sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverAction {
    /// Use the candidate in use: it answers.
    Use(usize),
    /// It missed this check and is kept: it has not missed enough of them, or nobody else answers.
    Missed(usize),
    /// A change begins with this check and takes its time.
    Begun(Change),
    /// A change runs: nobody is used.
    Switching(Change),
    /// A change is complete: its candidate is used from the next check on.
    Switched(Change),
}

#[derive(Clone, Copy, Debug)]
struct Transition {
    change: Change,
    ends: Moment,
}

/// Candidates in their order of preference, and which of them is used.
#[derive(Clone, Debug)]
pub struct Failover {
    settings: FailoverSettings,
    active: usize,
    /// Checks in a row that the candidate in use has missed.
    missed: u32,
    /// Checks in a row that each more preferred candidate has answered.
    healthy: Vec<u32>,
    transition: Option<Transition>,
    changes: u64,
}

impl Failover {
    /// The most preferred of `candidates` is used.
    ///
    /// # Panics
    /// If there are no candidates, or the threshold or the failback's count is 0.
    #[must_use]
    pub fn new(settings: FailoverSettings, candidates: usize) -> Failover {
        assert!(candidates > 0, "somebody is used");
        assert!(settings.threshold > 0, "a candidate that answers is not left");
        assert!(
            !matches!(settings.failback, Failback::After { healthy_checks: 0 }),
            "a candidate that does not answer is not gone back to"
        );
        Failover {
            settings,
            active: 0,
            missed: 0,
            healthy: vec![0; candidates],
            transition: None,
            changes: 0,
        }
    }

    /// A check of all candidates: who of them answered, in the order of preference.
    ///
    /// # Panics
    /// If there is not one answer for each candidate.
    pub fn tick(&mut self, answers: &[bool], now: Moment) -> FailoverAction {
        assert_eq!(answers.len(), self.healthy.len(), "each candidate is checked");
        if let Some(Transition { change, ends }) = self.transition {
            return if now >= ends { self.complete(change) } else { FailoverAction::Switching(change) };
        }
        if !answers[self.active] {
            self.missed = self.missed.saturating_add(1);
            let next = answers.iter().position(|answer| *answer);
            return match next.filter(|_| self.missed >= self.settings.threshold) {
                Some(to) => self.begin(Cause::Failover, to, now),
                None => FailoverAction::Missed(self.active),
            };
        }
        self.missed = 0;
        if let Failback::After { healthy_checks } = self.settings.failback {
            for (streak, answer) in self.healthy.iter_mut().zip(answers).take(self.active) {
                *streak = if *answer { streak.saturating_add(1) } else { 0 };
            }
            let back = self.healthy[..self.active].iter().position(|streak| *streak >= healthy_checks);
            if let Some(to) = back {
                return self.begin(Cause::Failback, to, now);
            }
        }
        FailoverAction::Use(self.active)
    }

    /// Who is used, by place in the order of preference; during a change, who was.
    #[must_use]
    pub fn active(&self) -> usize {
        self.active
    }

    /// Changes completed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Checks in a row that the candidate in use has missed.
    #[must_use]
    pub fn missed(&self) -> u32 {
        self.missed
    }

    /// Goes back to the most preferred candidate because the operator says so, whether it answers or not: it is left
    /// again after as many missed checks as any other. None if it is used, or a change runs.
    pub fn fail_back(&mut self, now: Moment) -> Option<FailoverAction> {
        let is_due = self.active != 0 && self.transition.is_none();
        is_due.then(|| self.begin(Cause::Failback, 0, now))
    }

    /// From now on there are other candidates, in their order of preference: for each the place that it had, none if it
    /// is new. What was seen of those that stay is kept. A change to somebody who is gone is not made, and a candidate
    /// that is left alone has missed nothing: there was nobody to change to.
    ///
    /// # Panics
    /// If the candidate in use is not among them, or a place is none.
    pub fn replace(&mut self, places_before: &[Option<usize>]) {
        let place = |before| places_before.iter().position(|place| *place == Some(before));
        let active = place(self.active).expect("whoever is used stays a candidate");
        self.transition = self.transition.and_then(|Transition { change, ends }| {
            let to = place(change.to)?;
            Some(Transition { change: Change { from: active, to, ..change }, ends })
        });
        let healthy = |before: &Option<usize>| before.map_or(0, |before| self.healthy[before]);
        self.healthy = places_before.iter().map(healthy).collect();
        self.active = active;
        if places_before.len() == 1 {
            self.missed = 0;
        }
    }

    /// When a change that runs is complete.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.transition.map(|transition| transition.ends)
    }

    fn begin(&mut self, cause: Cause, to: usize, now: Moment) -> FailoverAction {
        assert_ne!(to, self.active, "a change is to somebody else");
        let change = Change { cause, from: self.active, to };
        if self.settings.transition.is_zero() {
            return self.complete(change);
        }
        self.transition = Some(Transition { change, ends: now + self.settings.transition });
        FailoverAction::Begun(change)
    }

    fn complete(&mut self, change: Change) -> FailoverAction {
        self.transition = None;
        self.active = change.to;
        self.missed = 0;
        self.healthy.fill(0);
        self.changes += 1;
        FailoverAction::Switched(change)
    }
}

/// What happens in a month, for [`FailoverSettings::month`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailoverMonth {
    /// Times that the candidate in use really stops.
    pub stops: f64,
    /// Times that it misses a few checks and is well.
    pub brief_pauses: f64,
    /// Checks in a row that such a pause misses at most.
    pub brief_checks_max: u32,
}

/// What a month costs, an upper bound: every brief pause is charged that could reach the threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailoverOutage {
    /// From the first missed check to the end of the change, in seconds.
    pub window_s: f64,
    /// Outage by real stops, in seconds.
    pub stops_s: f64,
    /// Outage by changes that nothing needed, in seconds: there and, once the pause is over, back.
    pub brief_pauses_s: f64,
}

impl FailoverOutage {
    /// All of it, in seconds.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.stops_s + self.brief_pauses_s
    }
}

impl FailoverSettings {
    /// Outage of a month with a check each `interval`, if a change that was not needed is taken back.
    #[must_use]
    pub fn month(&self, interval: Duration, month: FailoverMonth) -> FailoverOutage {
        let transition_s = self.transition.as_secs_f64();
        let window_s = f64::from(self.threshold) * interval.as_secs_f64() + transition_s;
        let false_changes = if self.threshold <= month.brief_checks_max { month.brief_pauses } else { 0.0 };
        FailoverOutage {
            window_s,
            stops_s: month.stops * window_s,
            brief_pauses_s: false_changes * (window_s + transition_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(second: u64) -> Moment {
        Moment(second * 1_000_000_000)
    }

    #[test]
    fn by_default_a_candidate_is_left_after_three_missed_checks_and_for_good() {
        let mut failover = Failover::new(FailoverSettings::default(), 2);
        assert_eq!(failover.tick(&[false, true], at(1)), FailoverAction::Missed(0));
        assert_eq!(failover.tick(&[false, true], at(2)), FailoverAction::Missed(0));
        let change = Change { cause: Cause::Failover, from: 0, to: 1 };
        assert_eq!(failover.tick(&[false, true], at(3)), FailoverAction::Switched(change));
        for second in 4..100 {
            assert_eq!(failover.tick(&[true, true], at(second)), FailoverAction::Use(1));
        }
        assert_eq!(failover.changes(), 1);
    }

    #[test]
    fn a_check_that_is_answered_forgives_the_missed_ones() {
        let mut failover = Failover::new(FailoverSettings::default(), 2);
        for second in 0..30 {
            let action = failover.tick(&[second % 3 == 2, true], at(second));
            assert!(matches!(action, FailoverAction::Missed(0) | FailoverAction::Use(0)), "{action:?}");
        }
    }

    #[test]
    fn nobody_is_used_while_a_change_runs() {
        let settings = FailoverSettings { threshold: 1, transition: SECOND * 2, ..Default::default() };
        let mut failover = Failover::new(settings, 2);
        assert!(matches!(failover.tick(&[false, true], at(1)), FailoverAction::Begun(_)));
        assert_eq!(failover.next_deadline(), Some(at(3)));
        assert!(matches!(failover.tick(&[true, true], at(2)), FailoverAction::Switching(_)));
        assert!(matches!(failover.tick(&[true, true], at(3)), FailoverAction::Switched(_)));
        assert_eq!((failover.active(), failover.next_deadline()), (1, None));
    }

    #[test]
    fn with_failback_it_returns_after_enough_answers_in_a_row() {
        let settings = FailoverSettings {
            threshold: 1,
            failback: Failback::After { healthy_checks: 3 },
            transition: Duration::ZERO,
        };
        let mut failover = Failover::new(settings, 2);
        failover.tick(&[false, true], at(1));
        for (second, answers) in [(2, true), (3, true), (4, false), (5, true), (6, true)] {
            assert_eq!(failover.tick(&[answers, true], at(second)), FailoverAction::Use(1));
        }
        let change = Change { cause: Cause::Failback, from: 1, to: 0 };
        assert_eq!(failover.tick(&[true, true], at(7)), FailoverAction::Switched(change));
    }

    #[test]
    fn nobody_who_is_silent_too_is_changed_to() {
        let mut failover = Failover::new(FailoverSettings::default(), 3);
        for second in 0..10 {
            assert_eq!(failover.tick(&[false; 3], at(second)), FailoverAction::Missed(0));
        }
        let change = Change { cause: Cause::Failover, from: 0, to: 2 };
        assert_eq!(failover.tick(&[false, false, true], at(10)), FailoverAction::Switched(change));
        for second in 11..13 {
            failover.tick(&[false, true, false], at(second));
        }
        assert_eq!(
            failover.tick(&[false, true, false], at(13)),
            FailoverAction::Switched(Change { cause: Cause::Failover, from: 2, to: 1 })
        );
    }

    #[test]
    fn the_operator_goes_back_and_what_does_not_answer_is_left_again() {
        let mut failover = Failover::new(FailoverSettings::default(), 2);
        assert_eq!(failover.fail_back(at(0)), None, "the first is used");
        for second in 1..4 {
            failover.tick(&[false, true], at(second));
        }
        let back = Change { cause: Cause::Failback, from: 1, to: 0 };
        assert_eq!(failover.fail_back(at(4)), Some(FailoverAction::Switched(back)));
        let actions = [5, 6, 7].map(|second| failover.tick(&[false, true], at(second)));
        let change = Change { cause: Cause::Failover, from: 0, to: 1 };
        let missed = FailoverAction::Missed(0);
        assert_eq!(actions, [missed, missed, FailoverAction::Switched(change)]);
        assert_eq!(failover.changes(), 3);
    }

    #[test]
    fn other_candidates_have_what_was_seen_of_them_at_their_new_places() {
        let settings =
            FailoverSettings { failback: Failback::After { healthy_checks: 3 }, ..Default::default() };
        let mut failover = Failover::new(settings, 2);
        for second in 1..4 {
            failover.tick(&[false, true], at(second));
        }
        failover.tick(&[true, true], at(4));
        // A new one between the two: the first has answered a check, and goes on from there.
        failover.replace(&[Some(0), None, Some(1)]);
        assert_eq!(failover.tick(&[true, false, true], at(5)), FailoverAction::Use(2));
        let back = Change { cause: Cause::Failback, from: 2, to: 0 };
        assert_eq!(failover.tick(&[true, false, true], at(6)), FailoverAction::Switched(back));
        assert_eq!(failover.tick(&[false, false, true], at(7)), FailoverAction::Missed(0));
        failover.replace(&[Some(2), Some(0)]);
        assert_eq!((failover.active(), failover.missed()), (1, 1));
        failover.replace(&[Some(1)]);
        assert_eq!((failover.active(), failover.missed()), (0, 0), "nobody is left to change to");
    }

    #[test]
    fn a_change_to_a_candidate_that_goes_is_not_made() {
        let settings = FailoverSettings { threshold: 1, transition: SECOND * 2, ..Default::default() };
        for (places, stays) in [(&[Some(0), None, Some(1)][..], true), (&[Some(0), Some(2)], false)] {
            let mut failover = Failover::new(settings, 3);
            failover.tick(&[false, true, false], at(1));
            failover.replace(places);
            assert_eq!(failover.next_deadline().is_some(), stays);
            failover.tick(&vec![true; places.len()], at(3));
            assert_eq!(failover.active(), if stays { 2 } else { 0 });
        }
    }

    #[test]
    fn a_month_charges_brief_pauses_only_below_the_threshold_that_survives_them() {
        let month = FailoverMonth { stops: 2.0, brief_pauses: 20.0, brief_checks_max: 2 };
        let outage = |threshold| {
            let transition = SECOND * 2;
            FailoverSettings { threshold, transition, ..Default::default() }.month(SECOND * 2, month)
        };
        assert_eq!((outage(2).window_s, outage(2).stops_s, outage(2).brief_pauses_s), (6.0, 12.0, 160.0));
        assert_eq!((outage(3).window_s, outage(3).stops_s, outage(3).brief_pauses_s), (8.0, 16.0, 0.0));
    }
}
