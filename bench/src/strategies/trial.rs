//! One move under one strategy: engines ask without a pause while owners are killed and come back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use orbitkv::control::signals::StopSignals;
use orbitkv_native::clock::monotonic_ns;
use serde::Serialize;

use super::asker::{Ask, Asker};
use super::plan::{Plan, Strategy};
use super::stage::{Counts, Stage};
use crate::Failure;
use crate::streams::{failure, pause};

/// Whole answers in a row after which a reader is warm, and after which an owner that was moved is quiet.
const ROW: usize = 10;
/// Time a reader may take to be warm.
const WARM_WAIT: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// The strategy.
    pub strategy: Strategy,
    /// Owners that moved.
    pub moved: usize,
    /// From their end until the last of them was a member again with its blocks, in milliseconds.
    pub outage_ms: f64,
    /// From when each was back until the last request to it that did not bring all; the longest, in milliseconds.
    pub quiet_ms: f64,
    /// What the reader counted, from the end of the owners to the end of the trial.
    pub counts: Counts,
    /// How long that was, in milliseconds.
    pub observed_ms: f64,
    /// Requests of engines in that time.
    pub asks: u64,
    /// Of these, those that did not bring all.
    pub asks_missed: u64,
    /// Of these, those to owners that did not move.
    pub asks_missed_elsewhere: u64,
    /// Blocks with other bytes than were saved.
    pub wrong: u64,
    /// Why it does not count.
    pub why_invalid: Option<String>,
}

/// Runs it.
///
/// # Errors
/// If a node does not start, does not come back, or a signal comes.
pub fn run(
    stage: &mut Stage,
    plan: &Plan,
    strategy: Strategy,
    moved: usize,
    signals: &StopSignals,
) -> Result<Trial, Failure> {
    let socket = stage.add_reader(strategy, signals)?;
    let askers = (0..stage.len()).map(|at| Asker::connect(&socket, stage.keys(at), plan));
    let mut askers = askers.collect::<Result<Vec<_>, Failure>>()?;
    let stopping = AtomicBool::new(false);
    let all: Vec<Mutex<Vec<Ask>>> = askers.iter().map(|_| Mutex::default()).collect();
    let seen = thread::scope(|scope| {
        let stopping = &stopping;
        let threads: Vec<_> = (askers.iter_mut().zip(&all))
            .map(|(asker, asks)| scope.spawn(move || asker.run(plan.period(), stopping, asks)))
            .collect();
        let seen = watch(stage, plan, moved, &all, signals);
        stopping.store(true, Ordering::Relaxed);
        let joined = threads.into_iter().map(|thread| thread.join().expect("an asker does not panic"));
        // An asker that failed is why the rest was not seen.
        joined.collect::<Result<Vec<()>, String>>().map_err(failure)?;
        seen
    })?;
    drop(askers);
    stage.remove_reader();
    stage.require_alive()?;
    let asks: Vec<Vec<Ask>> = all.into_iter().map(|asks| asks.into_inner().expect("no panics")).collect();
    Ok(judge(strategy, &seen, &asks))
}

/// What was seen from outside.
struct Seen {
    began_ns: u64,
    /// When each moved owner was back.
    back_ns: Vec<u64>,
    ended_ns: u64,
    counts: Counts,
}

fn watch(
    stage: &mut Stage,
    plan: &Plan,
    moved: usize,
    all: &[Mutex<Vec<Ask>>],
    signals: &StopSignals,
) -> Result<Seen, Failure> {
    let is_warm = |asks: &Mutex<Vec<Ask>>| {
        let asks = asks.lock().expect("no panics");
        asks.len() >= ROW && asks[asks.len() - ROW..].iter().all(Ask::is_whole)
    };
    let warming = Instant::now();
    while !all.iter().all(is_warm) {
        if warming.elapsed() > WARM_WAIT {
            let cold = all.iter().position(|asks| !is_warm(asks)).unwrap_or(0);
            return Err(failure(format!("blocks of owner {} do not come though nothing fails", cold + 1)));
        }
        pause(LOOK, signals)?;
    }
    let before = stage.counts()?;
    let began_ns = monotonic_ns();
    let back_ns = stage.move_owners(moved, signals)?;
    pause(plan.settle(), signals)?;
    let counts = stage.counts()?.since(&before);
    Ok(Seen { began_ns, back_ns, ended_ns: monotonic_ns(), counts })
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// How long after an owner was back the last request to it ended that did not bring all; none if that was not followed by
/// a row that did.
fn quiet_ns(asks: &[Ask], back_ns: u64) -> Option<u64> {
    let last = asks.iter().rposition(|ask| !ask.is_whole());
    let since = last.map_or(0, |last| last + 1);
    let after = asks[since..].iter().filter(|ask| ask.began_ns > back_ns).count();
    (after >= ROW).then(|| last.map_or(0, |last| asks[last].ended_ns.saturating_sub(back_ns)))
}

fn judge(strategy: Strategy, seen: &Seen, asks: &[Vec<Ask>]) -> Trial {
    let moved = seen.back_ns.len();
    let observed = seen.began_ns..=seen.ended_ns;
    let in_time: Vec<Vec<Ask>> = (asks.iter())
        .map(|asks| asks.iter().filter(|ask| observed.contains(&ask.ended_ns)).copied().collect())
        .collect();
    let missed = |asks: &[Vec<Ask>]| asks.iter().flatten().filter(|ask| !ask.is_whole()).count() as u64;
    let quiet: Vec<Option<u64>> =
        in_time.iter().zip(&seen.back_ns).map(|(asks, &back_ns)| quiet_ns(asks, back_ns)).collect();
    let loud = quiet.iter().filter(|quiet| quiet.is_none()).count();
    let back_ns = seen.back_ns.iter().copied().max().unwrap_or(seen.began_ns);
    let was_seen = missed(&in_time[..moved]) > 0;
    let why_invalid = match (loud, was_seen) {
        (0, true) => None,
        (0, false) => Some("no request was missed: nobody was asked while the owners were away".to_owned()),
        (loud, _) => Some(format!("{loud} of {moved} moved owners were not quiet in time")),
    };
    Trial {
        strategy,
        moved,
        outage_ms: milliseconds(back_ns - seen.began_ns),
        quiet_ms: milliseconds(quiet.into_iter().flatten().max().unwrap_or(0)),
        counts: seen.counts,
        observed_ms: milliseconds(seen.ended_ns - seen.began_ns),
        asks: in_time.iter().map(|asks| asks.len() as u64).sum(),
        asks_missed: missed(&in_time),
        asks_missed_elsewhere: missed(&in_time[moved..]),
        wrong: asks.iter().flatten().map(|ask| ask.wrong).sum(),
        why_invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Requests of a millisecond, one each ten from the beginning; those numbers miss.
    fn asks(count: u64, missed: &[u64]) -> Vec<Ask> {
        let ask = |number: u64| Ask {
            began_ns: number * 10 * MS,
            ended_ns: (number * 10 + 1) * MS,
            wanted: 8,
            came: if missed.contains(&number) { 7 } else { 8 },
            wrong: 0,
        };
        (0..count).map(ask).collect()
    }

    #[test]
    fn quiet_is_after_the_last_request_that_missed_and_needs_a_row_of_whole_ones() {
        // Back at 100 ms.
        let table: [(&[u64], u64, Option<u64>); 8] = [
            (&[], 40, Some(0)),
            (&[3, 4], 40, Some(0)),
            (&[3, 12], 40, Some(21 * MS)),
            (&[3, 12, 25], 36, Some(151 * MS)),
            (&[3, 12, 25], 35, None),
            (&[3, 39], 40, None),
            // Too few since it is back.
            (&[3], 20, None),
            (&[3], 21, Some(0)),
        ];
        for (missed, count, expected) in table {
            assert_eq!(quiet_ns(&asks(count, missed), 100 * MS), expected, "{missed:?} of {count}");
        }
    }

    #[test]
    fn a_trial_counts_only_if_owners_were_missed_and_all_are_quiet() {
        let seen = |back_ns: &[u64]| Seen {
            began_ns: 20 * MS,
            back_ns: back_ns.to_vec(),
            ended_ns: 390 * MS,
            counts: Counts::default(),
        };
        let trial = judge(
            Strategy::Hybrid,
            &seen(&[100 * MS, 120 * MS]),
            &[asks(40, &[1, 3, 12]), asks(40, &[3, 15]), asks(40, &[5])],
        );
        assert_eq!((trial.moved, trial.outage_ms, trial.quiet_ms), (2, 100.0, 31.0));
        assert_eq!((trial.asks_missed, trial.asks_missed_elsewhere), (5, 1), "one was before it began");
        assert_eq!((trial.asks, trial.why_invalid), (3 * 37, None));
        let loud = judge(Strategy::Hybrid, &seen(&[100 * MS]), &[asks(40, &[3, 38])]);
        assert!(loud.why_invalid.expect("not quiet").contains("1 of 1"));
        let unmoved = judge(Strategy::Hybrid, &seen(&[100 * MS]), &[asks(40, &[]), asks(40, &[5])]);
        assert!(unmoved.why_invalid.expect("nothing happened").contains("no request was missed"));
        let mut wrong = asks(40, &[3]);
        wrong[7].wrong = 2;
        assert_eq!(judge(Strategy::Hybrid, &seen(&[100 * MS]), &[wrong]).wrong, 2);
    }
}
