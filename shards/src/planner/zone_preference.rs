//! Which zone's sources are asked first (chapter 5, rows 9 and 12): those of this node's own zone, until it has missed
//! several checks in a row; then those of the next one that answers, and for good.
//!
//! A zone answers a check if anything was heard lately of any member that stands in it. One that comes back is asked again
//! for what only it has, and is no longer preferred: whatever made it silent may do so again, and each way there and back
//! costs what is under way. Only the operator, or a failure of the zone in use, brings a node back.
//!
//! A check that no zone answers counts for nothing: it says more of this node's own network than of any zone. Zones are
//! known by their names, and there are no more of them than members, and the one in use.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::inventory::publisher::LIVENESS_INTERVAL;
use crate::resilience::failover::{Cause, Change, Failover, FailoverAction, FailoverSettings};
use crate::resilience::zones::{Placement, ZoneLabel};
use crate::time::Moment;

/// Pause between two checks: each member is heard about once in it.
pub const CHECK_INTERVAL: Duration = LIVENESS_INTERVAL;

/// Another zone is preferred from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneChange {
    /// Whether the one before had missed its checks, or the operator went back.
    pub cause: Cause,
    /// Which was preferred.
    pub from: String,
    /// Which is.
    pub to: String,
}

/// Where the preference stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneStanding {
    /// This node's own zone; empty if it names none.
    pub own: String,
    /// The preferred zone; none while no other member has ever named this node's zone.
    pub preferred: Option<String>,
    /// Zones from which one is preferred, the nearest first.
    pub zones: Vec<String>,
    /// Checks in a row that the preferred one has missed.
    pub missed: u32,
    /// Changes of it because it had missed its checks.
    pub failovers: u64,
    /// Changes of it because the operator went back.
    pub failbacks: u64,
}

/// The preferred zone of one core.
#[derive(Debug)]
pub struct ZonePreference {
    own: String,
    /// Which of several zones alike is the first: another on each node, so that not all go to one.
    seat: u64,
    settings: FailoverSettings,
    candidates: Option<Candidates>,
    next_check: Moment,
    failbacks: u64,
}

#[derive(Debug)]
struct Candidates {
    /// Names, the nearest first.
    zones: Vec<String>,
    failover: Failover,
}

impl Candidates {
    fn preferred(&self) -> &str {
        &self.zones[self.failover.active()]
    }

    fn change(&self, action: FailoverAction) -> Option<ZoneChange> {
        let FailoverAction::Switched(Change { cause, from, to }) = action else { return None };
        Some(ZoneChange { cause, from: self.zones[from].clone(), to: self.zones[to].clone() })
    }
}

impl ZonePreference {
    /// Of a node in this zone, empty if it names none, that leaves a zone after so many missed checks in a row. `seat` is any
    /// number that is another on each node.
    ///
    /// # Panics
    /// If the zone is left after no missed check.
    #[must_use]
    pub fn new(own: &str, seat: u64, checks: u32) -> ZonePreference {
        assert!(checks > 0, "a zone that answers is not left");
        ZonePreference {
            own: own.to_owned(),
            seat,
            settings: FailoverSettings { threshold: checks, ..FailoverSettings::default() },
            candidates: None,
            next_check: Moment(0),
            failbacks: 0,
        }
    }

    /// The zones that the other members name, in any order; those that name none have an empty name. Nothing is preferred
    /// before one of them stands in this node's zone. The preferred zone stays one when its last member leaves, and misses
    /// checks like one that is silent.
    pub fn on_members<'a>(&mut self, zones: impl IntoIterator<Item = &'a str>) {
        let mut named: BTreeSet<&str> = zones.into_iter().filter(|zone| !zone.is_empty()).collect();
        let before = self.candidates.take();
        if let Some(before) = &before {
            named.insert(before.preferred());
        } else if !named.contains(self.own.as_str()) {
            return;
        }
        let zones = self.nearest_first(&named);
        let failover = match before {
            None => Failover::new(self.settings, zones.len()),
            Some(Candidates { zones: known, mut failover }) => {
                let place = |zone: &String| known.iter().position(|known| known == zone);
                failover.replace(&zones.iter().map(place).collect::<Vec<_>>());
                failover
            }
        };
        self.candidates = Some(Candidates { zones, failover });
    }

    fn nearest_first(&self, named: &BTreeSet<&str>) -> Vec<String> {
        let mut others: Vec<&str> = named.iter().copied().filter(|zone| *zone != self.own).collect();
        let first = self.seat.checked_rem(others.len() as u64).unwrap_or(0);
        others.rotate_left(first as usize);
        let zones = others.into_iter().chain(named.get(self.own.as_str()).copied());
        let placement = Placement::new(zones.map(|zone| ZoneLabel::new("", zone)).collect());
        let order = placement.nearest_first(&ZoneLabel::new("", &self.own));
        order.into_iter().map(|place| placement.labels()[place].zone.clone()).collect()
    }

    /// Checks all zones if it is time: whether each answers. The change, if one comes of it.
    pub fn check(&mut self, answers: impl Fn(&str) -> bool, now: Moment) -> Option<ZoneChange> {
        if self.next_check()? > now {
            return None;
        }
        self.next_check = now + CHECK_INTERVAL;
        let candidates = self.candidates.as_mut()?;
        let answers: Vec<bool> = candidates.zones.iter().map(|zone| answers(zone)).collect();
        if !answers.contains(&true) {
            return None;
        }
        let action = candidates.failover.tick(&answers, now);
        candidates.change(action)
    }

    /// When the next check is due; none while there are no two zones to choose from.
    #[must_use]
    pub fn next_check(&self) -> Option<Moment> {
        let has_choice = self.candidates.as_ref().is_some_and(|candidates| candidates.zones.len() > 1);
        has_choice.then_some(self.next_check)
    }

    /// The operator goes back to this node's own zone. The change; none if that one is preferred, or no other member stands
    /// in it.
    pub fn fail_back(&mut self, now: Moment) -> Option<ZoneChange> {
        let candidates = self.candidates.as_mut().filter(|candidates| candidates.zones[0] == self.own)?;
        let action = candidates.failover.fail_back(now)?;
        let change = candidates.change(action)?;
        self.failbacks += 1;
        Some(change)
    }

    /// The preferred zone.
    #[must_use]
    pub fn preferred(&self) -> Option<&str> {
        self.candidates.as_ref().map(Candidates::preferred)
    }

    /// Where it stands, for an operator.
    #[must_use]
    pub fn standing(&self) -> ZoneStanding {
        let own = self.own.clone();
        let Some(candidates) = &self.candidates else {
            return ZoneStanding { own, ..ZoneStanding::default() };
        };
        let Candidates { zones, failover } = candidates;
        ZoneStanding {
            own,
            preferred: Some(candidates.preferred().to_owned()),
            zones: zones.clone(),
            missed: failover.missed(),
            failovers: failover.changes() - self.failbacks,
            failbacks: self.failbacks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node of zone `east`, and the checks that were made of it.
    struct Rig {
        preference: ZonePreference,
        now: Moment,
    }

    impl Rig {
        fn new(zones: &[&str]) -> Rig {
            Rig::of("east", 0, zones)
        }

        fn of(own: &str, seat: u64, zones: &[&str]) -> Rig {
            let mut preference = ZonePreference::new(own, seat, FailoverSettings::default().threshold);
            preference.on_members(zones.iter().copied());
            Rig { preference, now: Moment(0) }
        }

        /// One check that these zones answer.
        fn check(&mut self, answer: &[&str]) -> Option<ZoneChange> {
            self.now = self.now + CHECK_INTERVAL;
            self.preference.check(|zone| answer.contains(&zone), self.now)
        }

        /// Checks until the preferred zone changes, and what it was changed to.
        fn checks_to_change(&mut self, answer: &[&str]) -> (usize, String) {
            let change = (1..10).find_map(|count| Some((count, self.check(answer)?)));
            let (count, change) = change.expect("it is left in the end");
            assert_eq!(self.preference.preferred(), Some(change.to.as_str()));
            (count, change.to)
        }

        fn preferred(&self) -> Option<&str> {
            self.preference.preferred()
        }
    }

    #[test]
    fn a_zone_that_misses_a_check_now_and_then_stays_preferred() {
        let mut rig = Rig::new(&["west", "east"]);
        assert_eq!(rig.preferred(), Some("east"));
        for answer in [&["west"][..], &["west"], &["east", "west"]].repeat(10) {
            assert_eq!(rig.check(answer), None);
        }
        assert_eq!(rig.preferred(), Some("east"));
    }

    #[test]
    fn after_enough_missed_checks_another_zone_is_preferred_and_stays_so() {
        let mut rig = Rig::new(&["west", "east"]);
        assert_eq!([rig.check(&["west"]), rig.check(&["west"])], [None, None]);
        let change = ZoneChange { cause: Cause::Failover, from: "east".to_owned(), to: "west".to_owned() };
        assert_eq!(rig.check(&["west"]), Some(change));
        for _ in 0..100 {
            assert_eq!(rig.check(&["east", "west"]), None, "it is not gone back to");
        }
        let standing = rig.preference.standing();
        assert_eq!((standing.preferred.as_deref(), standing.failovers), (Some("west"), 1));
        // The zone in use is left like any other.
        assert_eq!(rig.checks_to_change(&["east"]), (3, "east".to_owned()));
    }

    #[test]
    fn the_operator_goes_back() {
        let mut rig = Rig::new(&["west", "east"]);
        assert_eq!(rig.preference.fail_back(rig.now), None, "its own zone is preferred");
        rig.checks_to_change(&["west"]);
        let change = ZoneChange { cause: Cause::Failback, from: "west".to_owned(), to: "east".to_owned() };
        assert_eq!(rig.preference.fail_back(rig.now), Some(change));
        let standing = rig.preference.standing();
        assert_eq!((standing.failovers, standing.failbacks, standing.missed), (1, 1, 0));
        assert_eq!(rig.checks_to_change(&["west"]), (3, "west".to_owned()), "it is still silent");
        // Nobody is there to go back to.
        rig.preference.on_members(["west"]);
        assert_eq!(rig.preference.fail_back(rig.now), None);
    }

    #[test]
    fn checks_that_nobody_answers_and_checks_before_their_time_do_not_count() {
        let mut rig = Rig::new(&["west", "east"]);
        for _ in 0..10 {
            assert_eq!(rig.check(&[]), None);
        }
        rig.check(&["west"]);
        for _ in 0..10 {
            assert_eq!(rig.preference.check(|zone| zone == "west", rig.now), None);
        }
        assert_eq!(rig.checks_to_change(&["west"]), (2, "west".to_owned()));
    }

    #[test]
    fn without_two_zones_to_choose_from_nothing_is_checked() {
        for (own, zones) in [
            ("", &["west", "north"][..]),
            ("", &["", ""]),
            ("east", &["", ""]),
            ("east", &[]),
            // Nobody else stands in this node's zone: none is nearer than another.
            ("east", &["west", "north"]),
            ("east", &["east", "", "east"]),
        ] {
            let mut rig = Rig::of(own, 0, zones);
            let preferred = zones.contains(&"east").then_some("east");
            for _ in 0..10 {
                assert_eq!((rig.check(&["west", "north"]), rig.preferred()), (None, preferred), "{zones:?}");
            }
            assert_eq!(rig.preference.next_check(), None, "no timer runs for {zones:?}");
        }
        let mut rig = Rig::new(&["west"]);
        rig.preference.on_members(["west", "east"]);
        assert_eq!(rig.preferred(), Some("east"), "somebody has come");
    }

    #[test]
    fn members_that_come_and_go_change_what_is_preferred_by_missed_checks_alone() {
        let mut rig = Rig::new(&["west", "east"]);
        rig.check(&["west"]);
        // A zone that comes between the two by name moves nobody.
        rig.preference.on_members(["north", "east", "west"]);
        rig.check(&["north", "west"]);
        assert_eq!((rig.preferred(), rig.preference.standing().missed), (Some("east"), 2));
        // Its last member leaves, and comes back before it has missed enough.
        rig.preference.on_members(["north", "west"]);
        assert_eq!(rig.preferred(), Some("east"));
        rig.preference.on_members(["north", "east", "west"]);
        assert_eq!((rig.check(&["north", "east"]), rig.preference.standing().missed), (None, 0));
        // It leaves for good.
        rig.preference.on_members(["north", "west"]);
        assert_eq!(rig.checks_to_change(&["north", "west"]), (3, "north".to_owned()));
        rig.preference.on_members(["north", "west"]);
        assert_eq!(rig.preference.standing().zones, ["north", "west"]);
        // And is back: it is a candidate, the nearest, and not preferred.
        rig.preference.on_members(["north", "east", "west"]);
        assert_eq!(rig.preference.standing().zones, ["east", "north", "west"]);
        assert_eq!((rig.check(&["north", "east", "west"]), rig.preferred()), (None, Some("north")));
    }

    #[test]
    fn what_was_missed_before_all_others_left_is_forgotten() {
        let mut rig = Rig::new(&["west", "east"]);
        rig.check(&["west"]);
        rig.check(&["west"]);
        rig.preference.on_members(["east"]);
        rig.preference.on_members(["east", "west"]);
        assert_eq!(rig.checks_to_change(&["west"]), (3, "west".to_owned()));
    }

    #[test]
    fn nodes_of_a_lost_zone_do_not_all_go_to_one() {
        let next =
            |seat| Rig::of("east", seat, &["a", "b", "c", "east"]).checks_to_change(&["a", "b", "c"]).1;
        let all: BTreeSet<String> = (7..10).map(next).collect();
        assert_eq!(all.len(), 3, "{all:?}");
        let mut rig = Rig::of("east", 1, &["a", "b", "c", "east"]);
        assert_eq!(rig.checks_to_change(&["a"]).1, "a", "whoever answers");
    }
}
