//! When bursts are made, and whether they were made so: a run that was exposed to something else than it claims is
//! worth nothing. Pure: times are arguments, in nanoseconds.

use std::time::Duration;

use super::owner::Burst;
use crate::payload::splitmix64;

/// Longest time between two bursts.
const GAP_NS_MAX: u64 = 100_000_000;
/// How far the rate may be from the one that was planned.
const RATE_TOLERANCE: f64 = 0.05;
/// Part of a period by which a burst is put off at most: so bursts do not fall on the beat of a timer.
const OFFSET_PART: u64 = 4;

/// A burst that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Whose.
    pub owner: usize,
    /// When, after the beginning.
    pub offset_ns: u64,
}

/// One owner after the other, in a seeded order, each a period after the one before, with seeded offsets.
pub fn rotation(seed: u64, owners: usize, bursts: usize, period: Duration) -> Vec<Planned> {
    let mut state = seed;
    let mut order: Vec<usize> = (0..owners).collect();
    for last in (1..owners).rev() {
        order.swap(last, splitmix64(&mut state) as usize % (last + 1));
    }
    let period_ns = period.as_nanos() as u64;
    let planned = |number: usize| Planned {
        owner: order[number % owners],
        offset_ns: number as u64 * period_ns + splitmix64(&mut state) % (period_ns / OFFSET_PART),
    };
    (0..bursts).map(planned).collect()
}

/// When bursts are to begin, as the run goes. One that is late is told from when it was intended; those behind it keep
/// their distance to it and do not make up for it.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    period: Duration,
    /// Where the beginning would lie if nothing had been late.
    began_ns: u64,
    before_ns: Option<u64>,
}

impl Schedule {
    /// One that begins at a moment.
    pub fn beginning_at(began_ns: u64, period: Duration) -> Schedule {
        Schedule { period, began_ns, before_ns: None }
    }

    /// When a burst is intended to begin, and when it may: then, or as soon after the one before as is no catching up.
    pub fn moments(&self, planned: Planned) -> (u64, u64) {
        let intended_ns = self.began_ns + planned.offset_ns;
        let earliest = self.before_ns.map_or(0, |before| before + catch_up_ns(self.period));
        (intended_ns, intended_ns.max(earliest))
    }

    /// A burst has begun.
    pub fn on_begun(&mut self, planned: Planned, at_ns: u64) {
        let late_ns = at_ns.saturating_sub(self.began_ns + planned.offset_ns);
        if late_ns > catch_up_ns(self.period) {
            self.began_ns += late_ns;
        }
        self.before_ns = Some(at_ns);
    }
}

/// Bursts closer to each other than this make up for a stall, and do not show it.
fn catch_up_ns(period: Duration) -> u64 {
    period.as_nanos() as u64 / 2
}

/// Refuses a row of bursts that was not made at its cadence.
///
/// # Errors
/// What is wrong with it, in words.
pub fn judge(bursts: &[Burst], period: Duration) -> Result<(), String> {
    let (Some(first), Some(last)) = (bursts.first(), bursts.last()) else {
        return Err("no burst was made".to_owned());
    };
    for pair in bursts.windows(2) {
        let (before, after) = (pair[0].began_ns, pair[1].began_ns);
        let gap_ns = after.saturating_sub(before);
        if gap_ns > GAP_NS_MAX {
            return Err(format!("{:.1} ms passed between two bursts, more than 100 ms", gap_ns as f64 / 1e6));
        }
        if gap_ns < catch_up_ns(period) {
            let gap_ms = gap_ns as f64 / 1e6;
            return Err(format!("two bursts are {gap_ms:.1} ms apart, less than half a period: a catch-up"));
        }
    }
    let periods = bursts.len() as f64 - 1.0;
    let planned_ns = periods * period.as_nanos() as f64;
    let taken_ns = (last.began_ns - first.began_ns) as f64;
    if periods > 0.0 && (taken_ns / planned_ns - 1.0).abs() > RATE_TOLERANCE {
        let rate = periods * 1e9 / taken_ns;
        let planned = periods * 1e9 / planned_ns;
        return Err(format!("{rate:.1} bursts a second were made and {planned:.1} were to be"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(17);
    const MS: u64 = 1_000_000;

    fn bursts(began_ms: &[u64]) -> Vec<Burst> {
        let burst = |(number, began_ms): (usize, &u64)| Burst {
            owner: 0,
            intended_ns: number as u64 * 17 * MS,
            began_ns: began_ms * MS,
            ended_ns: began_ms * MS,
            terminal: 0,
        };
        began_ms.iter().enumerate().map(burst).collect()
    }

    #[test]
    fn owners_take_turns_and_offsets_are_seeded() {
        let plan = rotation(5, 4, 40, PERIOD);
        for turn in plan.chunks(4) {
            let mut owners: Vec<_> = turn.iter().map(|planned| planned.owner).collect();
            owners.sort_unstable();
            assert_eq!(owners, [0, 1, 2, 3], "each once in each turn");
        }
        for (number, planned) in plan.iter().enumerate() {
            let late = planned.offset_ns - number as u64 * 17 * MS;
            assert!(late < 17 * MS / 4, "{planned:?}");
        }
        assert_eq!(plan, rotation(5, 4, 40, PERIOD));
        let offsets =
            |seed| rotation(seed, 4, 40, PERIOD).iter().map(|one| one.offset_ns).collect::<Vec<_>>();
        assert_ne!(offsets(5), offsets(6));
    }

    /// Each owner's bursts by themselves: what is published is to be seen before its owner publishes again.
    #[test]
    fn an_owner_rests_for_a_whole_turn_of_all_others() {
        for (owners, seed) in [(2, 1), (4, 5), (16, 7), (64, 9)] {
            let plan = rotation(seed, owners, 5 * owners, PERIOD);
            assert_eq!(plan.len(), 5 * owners);
            for owner in 0..owners {
                let own: Vec<_> =
                    plan.iter().filter(|one| one.owner == owner).map(|one| one.offset_ns).collect();
                assert_eq!(own.len(), 5);
                for pair in own.windows(2) {
                    let turn_ns = (pair[1] - pair[0]).abs_diff(owners as u64 * 17 * MS);
                    assert!(turn_ns < 17 * MS / 4, "owner {owner} of {owners}: {pair:?}");
                }
            }
            let began: Vec<_> = plan.iter().map(|one| one.offset_ns).collect();
            assert!(began.is_sorted(), "one after the other");
        }
    }

    /// A machine that stalls at random, step by step: whatever is made by the schedule either passes the judge or is
    /// refused for a stall, never for a catch-up; and nothing begins before it was intended to.
    #[test]
    fn a_machine_that_stalls_is_never_made_to_catch_up() {
        let mut state = 11;
        for seed in 0..50 {
            let mut schedule = Schedule::beginning_at(MS, PERIOD);
            let mut now_ns = 0;
            let mut made = Vec::new();
            for planned in rotation(seed, 4, 200, PERIOD) {
                let (intended_ns, begin_ns) = schedule.moments(planned);
                assert!(begin_ns >= intended_ns);
                let stall_ns = match splitmix64(&mut state) % 20 {
                    0 => splitmix64(&mut state) % (60 * MS),
                    _ => splitmix64(&mut state) % MS,
                };
                now_ns = begin_ns.max(now_ns) + stall_ns;
                schedule.on_begun(planned, now_ns);
                made.push(Burst {
                    owner: planned.owner,
                    intended_ns,
                    began_ns: now_ns,
                    ended_ns: now_ns,
                    terminal: 0,
                });
            }
            if let Err(why) = judge(&made, PERIOD) {
                assert!(!why.contains("catch-up"), "{why}");
            }
        }
    }

    #[test]
    fn a_late_burst_does_not_hurry_the_next_ones() {
        let planned = |number: u64| Planned { owner: 0, offset_ns: number * 17 * MS };
        let mut schedule = Schedule::beginning_at(100 * MS, PERIOD);
        assert_eq!(schedule.moments(planned(0)), (100 * MS, 100 * MS));
        schedule.on_begun(planned(0), 108 * MS);
        // Half a period late: the next one keeps its moment.
        assert_eq!(schedule.moments(planned(1)), (117 * MS, 117 * MS));
        schedule.on_begun(planned(1), 124 * MS);
        assert_eq!(schedule.moments(planned(2)), (134 * MS, 134 * MS));
        schedule.on_begun(planned(2), 142 * MS);
        assert_eq!(schedule.moments(planned(3)), (151 * MS, 151 * MS));
        // Later than that: the rest is put off.
        schedule.on_begun(planned(3), 201 * MS);
        assert_eq!(schedule.moments(planned(4)), (218 * MS, 218 * MS));
        let soon = Planned { owner: 0, offset_ns: 3 * 17 * MS + MS };
        assert_eq!(schedule.moments(soon), (202 * MS, 201 * MS + 17 * MS / 2), "no catching up");
    }

    #[test]
    fn gaps_catch_ups_and_another_rate_are_refused() {
        assert_eq!(judge(&bursts(&[0, 17, 34, 51]), PERIOD), Ok(()));
        assert_eq!(judge(&bursts(&[1, 20, 36, 52]), PERIOD), Ok(()), "a little late is what machines are");
        for (began, why) in [
            (&[][..], "no burst"),
            (&[0, 17, 118, 130], "101.0 ms passed between two bursts"),
            (&[0, 25, 33, 51], "8.0 ms apart, less than half a period"),
            (&[0, 34, 17, 51], "less than half a period"),
            (&[0, 19, 38, 57], "52.6 bursts a second were made and 58.8 were to be"),
        ] {
            let refused = judge(&bursts(began), PERIOD).expect_err(why);
            assert!(refused.contains(why), "{refused}");
        }
    }
}
