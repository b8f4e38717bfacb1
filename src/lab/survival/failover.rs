//! Lesson 9: when a stand-by takes over, `failover` round by round and `failover-budget` over a month.

use std::time::Duration;

use orbitkv_shards::resilience::failover::{
    Cause, Failback, Failover, FailoverAction, FailoverMonth, FailoverSettings,
};
use orbitkv_shards::resilience::objectives::at_risk;
use orbitkv_shards::time::Moment;
use serde::{Deserialize, Serialize};

use super::rounds::{ROUNDS_MAX, Rounds};
use crate::lab::Model;
use crate::lab::base_rates::{EDGE_PEAK, WRITE_PEAK};
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

/// Thresholds that are compared.
const THRESHOLDS: [u32; 4] = [1, 2, 3, 4];

/// The threshold at which ways of going back are compared: the node's own.
const THRESHOLD: u32 = orbitkv_shards::resilience::failover::THRESHOLD;

/// The model `failover`.
pub struct Schedule;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleParameters {
    rounds: u32,
    brief: Rounds,
    stopped: Rounds,
    half_failed: Rounds,
    promotion_rounds: u32,
    failback_healthy_checks: u32,
}

impl ScheduleParameters {
    /// Whether the preferred replica answers a check.
    fn answers(&self, round: u32) -> bool {
        !self.brief.contain(round) && !self.stopped.contain(round)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    failovers: u64,
    false_failovers: u64,
    failbacks: u64,
    transition_rounds: u64,
    dropped: u64,
    silent: u64,
    changes: u64,
}

fn simulate(parameters: &ScheduleParameters, threshold: u32, failback: Failback) -> Counts {
    let transition = Duration::from_nanos(u64::from(parameters.promotion_rounds));
    let mut failover = Failover::new(FailoverSettings { threshold, failback, transition }, 2);
    let mut counts = Counts::default();
    for round in 1..=parameters.rounds {
        // The stand-by always answers.
        let answers = [parameters.answers(round), true];
        match failover.tick(&answers, Moment(u64::from(round))) {
            FailoverAction::Use(0) if parameters.half_failed.contain(round) => counts.silent += 1,
            FailoverAction::Use(_) => {}
            FailoverAction::Missed(_) => counts.dropped += 1,
            FailoverAction::Begun(change) => match change.cause {
                Cause::Failover => {
                    counts.failovers += 1;
                    counts.dropped += 1;
                }
                Cause::Failback => counts.failbacks += 1,
            },
            FailoverAction::Switching(_) => {
                counts.transition_rounds += 1;
                counts.dropped += 1;
            }
            FailoverAction::Switched(change) => {
                counts.transition_rounds += 1;
                counts.dropped += 1;
                // Nothing needed the change if who was left answers again as soon as it is made.
                let is_false = change.cause == Cause::Failover && parameters.answers(round + 1);
                counts.false_failovers += u64::from(is_false);
            }
        }
    }
    counts.changes = failover.changes();
    counts
}

fn without_failover(parameters: &ScheduleParameters) -> Row {
    let (mut accepted, mut dropped, mut silent) = (0, 0, 0);
    for round in 1..=parameters.rounds {
        match (parameters.answers(round), parameters.half_failed.contain(round)) {
            (false, _) => dropped += 1,
            (true, true) => silent += 1,
            (true, false) => accepted += 1,
        }
    }
    Row::of("no_failover")
        .with("accepted", accepted)
        .with("dropped", dropped)
        .with("silent_lost_update", silent)
}

fn failback_row(policy: &str, counts: Counts) -> Row {
    Row::of("failback")
        .with("policy", policy)
        .with("threshold", THRESHOLD)
        .with("failovers", counts.failovers)
        .with("failbacks", counts.failbacks)
        .with("transition_rounds", counts.transition_rounds)
        .with("dropped", counts.dropped)
        .with("active_replica_changes", counts.changes)
        .apart("_extra", Fields::new().with("silent_lost_update", counts.silent))
}

impl Model for Schedule {
    type Parameters = ScheduleParameters;

    const LESSON: u8 = 9;
    const TITLE: &'static str = "Failover Design";
    const NAME: &'static str = "failover";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "rounds": 130, "brief": [[12, 12], [20, 21]], "stopped": [[30, 75], [90, 96]],
        "half_failed": [[100, 120]], "promotion_rounds": 1, "failback_healthy_checks": 3
    }"#;

    fn settle(parameters: &mut ScheduleParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("rounds", parameters.rounds, 1..=ROUNDS_MAX)?;
        parameters.brief.check("brief")?;
        parameters.stopped.check("stopped")?;
        parameters.half_failed.check("half_failed")?;
        within("promotion_rounds", parameters.promotion_rounds, 1..=ROUNDS_MAX)?;
        within("failback_healthy_checks", parameters.failback_healthy_checks, 1..=ROUNDS_MAX)
    }

    fn run(parameters: &ScheduleParameters, _seed: u64) -> Outcome {
        let automatic = Failback::After { healthy_checks: parameters.failback_healthy_checks };
        let rounds = parameters.rounds;
        let mut rows = vec![
            Row::of("schedule")
                .with("rounds", rounds)
                .with("brief", parameters.brief.count(rounds))
                .with("stopped", parameters.stopped.count(rounds))
                .with("half_failed", parameters.half_failed.count(rounds)),
            without_failover(parameters),
        ];
        for threshold in THRESHOLDS {
            let counts = simulate(parameters, threshold, automatic);
            rows.push(
                Row::of("threshold")
                    .with("threshold", threshold)
                    .with("failovers", counts.failovers)
                    .with("false_failovers", counts.false_failovers)
                    .with("failbacks", counts.failbacks)
                    .with("transition_rounds", counts.transition_rounds)
                    .with("dropped", counts.dropped)
                    .with("silent_lost_update", counts.silent),
            );
        }
        rows.push(failback_row("automatic", simulate(parameters, THRESHOLD, automatic)));
        rows.push(failback_row("permanent", simulate(parameters, THRESHOLD, Failback::Never)));
        Outcome { rows, generator: Fields::new() }
    }
}

/// The model `failover-budget`.
pub struct Budget;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetParameters {
    #[serde(rename = "round_s_KU1")]
    round_s: f64,
    #[serde(rename = "real_stops_month_KU2")]
    real_stops_month: f64,
    #[serde(rename = "brief_month_KU3")]
    brief_month: f64,
    recovery_s: f64,
    failure_share_min: f64,
    silent_rounds: u32,
    promotion_rounds: u32,
}

/// Checks in a row that a brief pause misses at most: the longest one of the schedule.
const BRIEF_CHECKS_MAX: u32 = 2;

/// Replicas of which one stops, if all are active.
const ACTIVE_REPLICAS: [u32; 2] = [2, 3];

impl Model for Budget {
    type Parameters = BudgetParameters;

    const LESSON: u8 = 9;
    const TITLE: &'static str = "Failover Design";
    const NAME: &'static str = "failover-budget";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "round_s_KU1": 2, "real_stops_month_KU2": 2, "brief_month_KU3": 20, "recovery_s": 600,
        "failure_share_min": 28.2, "silent_rounds": 20, "promotion_rounds": 1
    }"#;

    fn settle(parameters: &mut BudgetParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("round_s_KU1", parameters.round_s, 0.001..=86_400.0)?;
        within("real_stops_month_KU2", parameters.real_stops_month, 0.001..=1_000_000.0)?;
        within("brief_month_KU3", parameters.brief_month, 0.0..=1_000_000.0)?;
        within("recovery_s", parameters.recovery_s, 0.0..=1e9)?;
        within("failure_share_min", parameters.failure_share_min, 0.001..=1e6)?;
        within("silent_rounds", parameters.silent_rounds, 0..=1_000_000)?;
        within("promotion_rounds", parameters.promotion_rounds, 0..=1_000_000)
    }

    fn run(parameters: &BudgetParameters, _seed: u64) -> Outcome {
        let round = Duration::from_secs_f64(parameters.round_s);
        let month = FailoverMonth {
            stops: parameters.real_stops_month,
            brief_pauses: parameters.brief_month,
            brief_checks_max: BRIEF_CHECKS_MAX,
        };
        let outage = |threshold| {
            let transition = round * parameters.promotion_rounds;
            FailoverSettings { threshold, transition, ..Default::default() }.month(round, month)
        };
        let share_pct = |seconds: f64| seconds * 100.0 / 60.0 / parameters.failure_share_min;
        let mut rows = Vec::new();
        for threshold in THRESHOLDS {
            let outage = outage(threshold);
            rows.push(
                Row::of("threshold")
                    .with("threshold", threshold)
                    .number("window_s", outage.window_s)
                    .rounded("real_stops_s", outage.stops_s, 1)
                    .rounded("false_failovers_s", outage.brief_pauses_s, 1)
                    .rounded("total_outage_min", outage.total_s() / 60.0, 2)
                    .rounded("failure_share_pct", share_pct(outage.total_s()), 2),
            );
        }
        let chosen = outage(THRESHOLD);
        let unaided_s = parameters.real_stops_month * parameters.recovery_s;
        rows.push(
            Row::of("no_failover")
                .number("stops", parameters.real_stops_month)
                .number("recovery_s", parameters.recovery_s)
                .rounded("minutes", unaided_s / 60.0, 1)
                .rounded("failure_share_pct", share_pct(unaided_s), 1),
        );
        rows.push(
            Row::of("threshold3").with("threshold", THRESHOLD).number("seconds", chosen.total_s()).rounded(
                "times_shorter",
                unaided_s / chosen.total_s(),
                1,
            ),
        );
        let window_writes = at_risk(WRITE_PEAK, chosen.window_s);
        rows.push(Row::of("window_drop").rounded("writes", window_writes, 2).rounded(
            "edge_requests",
            at_risk(EDGE_PEAK, chosen.window_s),
            2,
        ));
        let silent_s = f64::from(parameters.silent_rounds) * parameters.round_s;
        let silent_writes = at_risk(WRITE_PEAK, silent_s);
        rows.push(
            Row::of("half_failed")
                .with("rounds", parameters.silent_rounds)
                .number("round_s", parameters.round_s)
                .number("seconds", silent_s)
                .rounded("writes_lost", silent_writes, 2),
        );
        for replicas in ACTIVE_REPLICAS {
            rows.push(
                Row::of("active_active")
                    .with("replicas", replicas)
                    .rounded("window_writes_dropped", window_writes / f64::from(replicas), 2)
                    .rounded("silently_lost", silent_writes / f64::from(replicas), 2),
            );
        }
        Outcome { rows, generator: Fields::new() }
    }
}
