//! `GET /health/deep`: whether this node's own DRAM and SSD give back what is written to them.
//!
//! etcd and peers are not in it: what all nodes share would take all of them out at once when it fails. However many
//! ask, there is one check in each [`CHECK_INTERVAL`]; an answer says how old it is. A check goes on if whoever asked
//! for it has gone.

pub mod answer;
pub mod canary;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use orbitkv_native::clock::monotonic_ns;
use orbitkv_shards::resilience::health::{CHECK_INTERVAL, CheckTimer, HealthContent, HealthFacts};
use orbitkv_shards::time::Moment;
use tokio::sync::{Mutex, OwnedMutexGuard};

use self::answer::{Canary, DeepChecks, DeepHealth, PathFault, ShardPath, Step};
use self::canary::OwnPath;
use super::http::{Api, NodePort, Shared, soon};
use super::metadata::Phase;
use super::report::{ShardReport, SsdReport, SsdState};

/// The deep check of a node: when it is due, what it is made on, and what it found last.
pub(super) struct DeepCheck {
    /// Held while a check is made, so that there is one at a time.
    state: Arc<Mutex<CheckState>>,
    passed: AtomicU64,
    failed: AtomicU64,
}

struct CheckState {
    own_path: Box<dyn OwnPath>,
    timer: CheckTimer,
    found: DeepHealth,
    ended: Moment,
}

impl DeepCheck {
    /// The first check is due when somebody asks.
    pub(super) fn new(own_path: impl OwnPath) -> DeepCheck {
        let state = CheckState {
            own_path: Box::new(own_path),
            timer: CheckTimer::new(CHECK_INTERVAL, now()),
            found: DeepHealth::default(),
            ended: now(),
        };
        DeepCheck { state: Arc::new(Mutex::new(state)), passed: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// How many there were.
    pub(super) fn counts(&self) -> DeepChecks {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeepChecks { passed: count(&self.passed), failed: count(&self.failed) }
    }

    fn count(&self, passes: bool) {
        let counter = if passes { &self.passed } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The last check; if another is due, that one.
pub(super) async fn deep<P: NodePort>(State(api): Shared<P>) -> Response {
    let answer = tokio::spawn(check(api)).await.unwrap_or_else(|_| {
        let fault = not_serving("the node is stopping".to_owned());
        DeepHealth { fault: Some(fault), ..DeepHealth::default() }
    });
    let status = if answer.passes { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(answer)).into_response()
}

async fn check<P: NodePort>(api: Arc<Api<P>>) -> DeepHealth {
    let mut state = Arc::clone(&api.deep_check.state).lock_owned().await;
    let begun = now();
    if !state.timer.take_due(begun) {
        return DeepHealth { age_ms: begun.since(state.ended).as_millis() as u64, ..state.found.clone() };
    }
    let (mut state, facts, fault, shards) = look(&api.port, state).await;
    let passes = HealthContent::DeepLocal.evaluate(&facts);
    api.deep_check.count(passes);
    state.ended = now();
    let took_ms = state.ended.since(begun).as_millis() as u64;
    state.found = DeepHealth { passes, age_ms: 0, took_ms, fault, shards };
    state.found.clone()
}

type Seen = (OwnedMutexGuard<CheckState>, HealthFacts, Option<PathFault>, Vec<ShardPath>);

/// One check: this node's phase, its cores, and a canary through each of them.
async fn look<P: NodePort>(port: &P, mut state: OwnedMutexGuard<CheckState>) -> Seen {
    if port.phase() != Phase::Serving {
        let fault = not_serving("the node is starting or draining".to_owned());
        return untried(state, |facts| facts.warm = false, fault);
    }
    let before = match soon(port.shard_reports()).await {
        Ok(reports) => in_order(reports),
        Err(failure) => {
            let fault = PathFault {
                step: Step::Cores,
                error: failure.reason.into_owned(),
                remedy: "see what else runs on the node's cores, and the log; restart the node if a core stays silent"
                    .to_owned(),
                late: true,
            };
            return untried(state, |facts| facts.answers = false, fault);
        }
    };
    let has_ssd: Vec<bool> = before.iter().map(|report| report.ssd.state != SsdState::Off).collect();
    let tried = tokio::task::spawn_blocking(move || {
        let found = state.own_path.try_out(&has_ssd);
        (state, found)
    });
    let (state, found) = tried.await.expect("a panic ends the process");
    let mut shards = match found {
        Ok(shards) => shards,
        Err(fault) => return untried(state, |_| {}, fault),
    };
    if shards.iter().any(|path| path.ssd.fault().is_some()) {
        let after = soon(port.shard_reports()).await.map(in_order).unwrap_or_default();
        for ((path, before), after) in shards.iter_mut().zip(&before).zip(&after) {
            explain(&mut path.ssd, &before.ssd, &after.ssd);
        }
    }
    let own_path = shards.iter().all(|path| path.dram.fault().is_none() && path.ssd.fault().is_none());
    (state, HealthFacts { own_path, ..HealthFacts::WELL }, None, shards)
}

/// No canary was sent, or none could be.
fn untried(state: OwnedMutexGuard<CheckState>, change: fn(&mut HealthFacts), fault: PathFault) -> Seen {
    let mut facts = HealthFacts { own_path: false, ..HealthFacts::WELL };
    change(&mut facts);
    (state, facts, Some(fault), Vec::new())
}

fn in_order(mut reports: Vec<ShardReport>) -> Vec<ShardReport> {
    reports.sort_by_key(|report| report.shard);
    reports
}

/// Says why the SSD failed a canary, as far as its shard knows; one that was only late on a device that worked off
/// what was before it has found nothing wrong.
fn explain(canary: &mut Canary, before: &SsdReport, after: &SsdReport) {
    let Canary::Failed(fault) = canary else { return };
    let why = match (&after.state, after.breaker.state.as_str()) {
        (SsdState::Degraded { fault, detail }, _) => {
            format!("the SSD tier is degraded: {} ({detail})", fault.in_words())
        }
        (_, "open" | "half-open") => {
            "the SSD is left alone: too many of the last operations failed or were too slow".to_owned()
        }
        _ if fault.late && works_off(fault.step, before, after) => {
            *canary = Canary::Behind;
            return;
        }
        _ => return,
    };
    fault.error = format!("{}; {why}", fault.error);
}

/// Whether a device has come further without a failure.
fn works_off(step: Step, before: &SsdReport, after: &SsdReport) -> bool {
    let failures = |ssd: &SsdReport| {
        ssd.read_errors + ssd.write_backs_failed + ssd.checksum_failures + ssd.breaker.late_reads
    };
    let done = |ssd: &SsdReport| if step == Step::SsdWrite { ssd.write_backs_done } else { ssd.reads };
    failures(after) == failures(before) && done(after) > done(before)
}

fn not_serving(error: String) -> PathFault {
    let remedy = "wait; start it again if the drain was not meant".to_owned();
    PathFault { step: Step::Serve, error, remedy, late: false }
}

fn now() -> Moment {
    Moment(monotonic_ns())
}

#[cfg(test)]
mod tests {
    use super::super::report::SsdFault;
    use super::*;

    fn late(step: Step) -> Canary {
        Canary::Failed(PathFault { step, error: "late".to_owned(), remedy: "wait".to_owned(), late: true })
    }

    fn judged(mut canary: Canary, change: impl FnOnce(&mut SsdReport)) -> Canary {
        let before = SsdReport { state: SsdState::On, write_backs_done: 5, reads: 5, ..SsdReport::default() };
        let mut after = before.clone();
        change(&mut after);
        explain(&mut canary, &before, &after);
        canary
    }

    #[test]
    fn a_canary_that_waits_behind_others_is_no_fault_of_a_device_that_works() {
        type Change = fn(&mut SsdReport);
        let table: [(Step, Change, bool); 7] = [
            (Step::SsdWrite, |_| {}, false),
            (Step::SsdWrite, |ssd| ssd.write_backs_done = 6, true),
            (Step::SsdWrite, |ssd| ssd.reads = 6, false),
            (Step::SsdRead, |ssd| ssd.reads = 6, true),
            (Step::SsdRead, |ssd| (ssd.reads, ssd.read_errors) = (6, 1), false),
            (Step::SsdRead, |ssd| (ssd.reads, ssd.breaker.late_reads) = (6, 1), false),
            (Step::SsdWrite, |ssd| (ssd.write_backs_done, ssd.write_backs_failed) = (6, 1), false),
        ];
        for (step, change, is_behind) in table {
            assert_eq!(judged(late(step), change) == Canary::Behind, is_behind, "{step:?}");
        }
        let broken = PathFault {
            step: Step::SsdRead,
            error: "wrong".to_owned(),
            remedy: "mend".to_owned(),
            late: false,
        };
        assert_eq!(judged(Canary::Failed(broken.clone()), |ssd| ssd.reads = 6), Canary::Failed(broken));
        assert_eq!(judged(Canary::Passed { took_us: 1 }, |_| {}), Canary::Passed { took_us: 1 });
    }

    #[test]
    fn a_tier_that_is_off_or_left_alone_is_named() {
        let words = |canary: &Canary| canary.fault().expect("a fault").error.clone();
        let degraded = judged(late(Step::SsdWrite), |ssd| {
            ssd.write_backs_done = 6;
            ssd.state = SsdState::Degraded { fault: SsdFault::WriteErrors, detail: "64 in a row".to_owned() };
        });
        assert_eq!(words(&degraded), "late; the SSD tier is degraded: writes fail (64 in a row)");
        for state in ["open", "half-open"] {
            let alone = judged(late(Step::SsdWrite), |ssd| ssd.breaker.state = state.to_owned());
            assert!(words(&alone).contains("is left alone"), "{alone:?}");
        }
        assert_eq!(
            words(&judged(late(Step::SsdWrite), |ssd| ssd.breaker.state = "closed".to_owned())),
            "late"
        );
    }
}
