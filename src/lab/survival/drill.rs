//! Lesson 14: a recovery plan held against a drill, `drill-plan`, and what becomes of work that a failover
//! caught, `drill-work`.

use std::collections::BTreeSet;

use orbitkv_shards::resilience::drill::{DrillReport, RestartAction, RestartPolicy, WorkProgress};
use orbitkv_shards::resilience::objectives::{DowntimeBudget, Objectives, Verdict, at_risk};
use serde::{Deserialize, Serialize};

use super::rounds::ROUNDS_MAX;
use crate::lab::Model;
use crate::lab::base_rates::EDGE_PEAK;
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

/// The model `drill-plan`.
pub struct Plan;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanParameters {
    threshold: u32,
    promotion: u32,
    #[serde(rename = "routing_lifetime_KU8")]
    routing_lifetime: u32,
    warming: u32,
    #[serde(rename = "queue_reconnect_KU9")]
    queue_reconnect: u32,
    validation: u32,
    #[serde(rename = "round_s_KU1")]
    round_s: f64,
    planned_share_min: f64,
    monthly_budget_min: f64,
}

/// Recovery times in seconds that are promised.
const TARGETS_S: [u32; 2] = [30, 60];

/// How often a drill is held, and how many that is a month.
const FREQUENCIES: [(&str, f64); 3] = [("weekly", 4.0), ("monthly", 1.0), ("quarterly", 1.0 / 3.0)];

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Breaks => "breaks",
        Verdict::Unknown => "unknown",
    }
}

impl Model for Plan {
    type Parameters = PlanParameters;

    const LESSON: u8 = 14;
    const TITLE: &'static str = "Disaster Recovery Drill";
    const NAME: &'static str = "drill-plan";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "threshold": 3, "promotion": 1, "routing_lifetime_KU8": 3, "warming": 8, "queue_reconnect_KU9": 2,
        "validation": 2, "round_s_KU1": 2, "planned_share_min": 15, "monthly_budget_min": 43.2
    }"#;

    fn settle(parameters: &mut PlanParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        for (name, rounds) in [
            ("threshold", parameters.threshold),
            ("promotion", parameters.promotion),
            ("routing_lifetime_KU8", parameters.routing_lifetime),
            ("warming", parameters.warming),
            ("queue_reconnect_KU9", parameters.queue_reconnect),
            ("validation", parameters.validation),
        ] {
            within(name, rounds, 0..=1_000_000)?;
        }
        within("round_s_KU1", parameters.round_s, 0.001..=86_400.0)?;
        within("planned_share_min", parameters.planned_share_min, 0.001..=1e6)?;
        within("monthly_budget_min", parameters.monthly_budget_min, 0.001..=1e6)
    }

    fn run(parameters: &PlanParameters, _seed: u64) -> Outcome {
        let mut report = DrillReport::new(parameters.round_s);
        // A plan thinks of one round for what is noticed, and of none for what nobody thought of.
        for (step, planned, measured) in [
            ("detection", 1, parameters.threshold),
            ("promotion", parameters.promotion, parameters.promotion),
            ("routing", 1, parameters.routing_lifetime),
            ("cache-warming", 0, parameters.warming),
            ("queue-reconnect", 1, parameters.queue_reconnect),
            ("validation", parameters.validation, parameters.validation),
        ] {
            report.step(step, f64::from(planned), f64::from(measured));
        }
        let row = |row: Row, planned: f64, measured: f64, deviation: f64| {
            row.number("planned", planned).number("measured", measured).number("deviation", deviation)
        };
        let mut rows = Vec::new();
        for step in report.steps() {
            let name = Row::of("steps").with("step", step.name.as_str());
            rows.push(row(name, step.planned, step.measured, step.deviation()));
        }
        let total = report.total();
        let drill_s = report.measured_s();
        rows.extend([
            row(Row::of("total"), total.planned, total.measured, total.deviation()),
            Row::of("ratio").rounded("ratio", report.ratio(), 2),
            Row::of("seconds").number("plan_s", report.planned_s()).number("drill_s", drill_s),
        ]);
        for target_s in TARGETS_S {
            let promised = Objectives { recovery_s_max: Some(f64::from(target_s)), loss_max: None };
            rows.push(
                Row::of("rto")
                    .with("target_s", target_s)
                    .with("by_plan", word(report.by_plan(&promised)))
                    .with("by_drill", word(report.by_drill(&promised))),
            );
        }
        let minutes = drill_s / 60.0;
        rows.push(Row::of("window_drop").rounded("edge_requests", at_risk(EDGE_PEAK, drill_s), 2));
        rows.push(Row::of("drill_cost").rounded("minutes", minutes, 2));
        let budget = DowntimeBudget {
            month_min: parameters.monthly_budget_min,
            planned_min: parameters.planned_share_min,
            failure_min: parameters.monthly_budget_min - parameters.planned_share_min,
        };
        for (frequency, per_month) in FREQUENCIES {
            let taken = drill_s * per_month / 60.0;
            rows.push(
                Row::of("frequency")
                    .with("frequency", frequency)
                    .rounded("per_month", per_month, 2)
                    .rounded("minutes", taken, 2)
                    .rounded("planned_share_pct", budget.planned_pct(taken), 2)
                    .rounded("monthly_budget_pct", budget.month_pct(taken), 2),
            );
        }
        let (deviating, steps) = (report.deviating().count(), report.steps().len());
        rows.push(Row::of("deviating_steps").with("deviating", deviating).with("of", steps));
        Outcome { rows, generator: Fields::new() }
    }
}

/// The model `drill-work`.
pub struct Work;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkParameters {
    rounds: u32,
    starts_per_round: u32,
    start_until: u32,
    steps: u32,
    side_effect_steps: BTreeSet<u32>,
    failover_round: u32,
    window: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    total: u64,
    completed: u64,
    restarted: u64,
    discarded: u64,
    duplicated: u64,
    orphaned: u64,
}

fn simulate(parameters: &WorkParameters, policy: RestartPolicy) -> Counts {
    let frozen = parameters.failover_round..parameters.failover_round.saturating_add(parameters.window);
    let mut counts = Counts::default();
    // Steps done of each piece of work under way.
    let mut work: Vec<u32> = Vec::new();
    for round in 1..=parameters.rounds {
        if round == parameters.failover_round {
            work.retain_mut(|done| {
                let effects = parameters.side_effect_steps.range(..=*done).count() as u32;
                match policy.on_failover(WorkProgress { done: *done, steps: parameters.steps, effects }) {
                    RestartAction::Keep => true,
                    RestartAction::Restart { duplicated_effects } => {
                        counts.restarted += 1;
                        counts.duplicated += u64::from(duplicated_effects);
                        *done = 0;
                        true
                    }
                    RestartAction::Discard { is_orphan } => {
                        counts.discarded += 1;
                        counts.orphaned += u64::from(is_orphan);
                        false
                    }
                }
            });
        }
        if frozen.contains(&round) {
            continue;
        }
        work.iter_mut().for_each(|done| *done += 1);
        let before = work.len();
        work.retain(|done| *done < parameters.steps);
        counts.completed += (before - work.len()) as u64;
        if round <= parameters.start_until {
            work.extend((0..parameters.starts_per_round).map(|_| 0));
            counts.total += u64::from(parameters.starts_per_round);
        }
    }
    counts
}

impl Model for Work {
    type Parameters = WorkParameters;

    const LESSON: u8 = 14;
    const TITLE: &'static str = "Disaster Recovery Drill";
    const NAME: &'static str = "drill-work";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "rounds": 70, "starts_per_round": 4, "start_until": 40, "steps": 8,
        "side_effect_steps": [4, 5, 6, 7], "failover_round": 20, "window": 19
    }"#;

    fn settle(parameters: &mut WorkParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("rounds", parameters.rounds, 1..=ROUNDS_MAX)?;
        within("starts_per_round", parameters.starts_per_round, 0..=1_000)?;
        within("steps", parameters.steps, 1..=1_000)?;
        let known = parameters.side_effect_steps.iter().all(|step| (1..=parameters.steps).contains(step));
        holds(known, "side_effect_steps", "names steps from 1 to `steps`", "leave the others out")
    }

    fn run(parameters: &WorkParameters, _seed: u64) -> Outcome {
        let mut rows = vec![
            Row::of("setup")
                .with("rounds", parameters.rounds)
                .with("starts_per_round", parameters.starts_per_round)
                .with("steps", parameters.steps)
                .with("side_effect_steps", parameters.side_effect_steps.len())
                .with("failover_round", parameters.failover_round)
                .with("window", parameters.window),
        ];
        let policies =
            [("at-least-once", RestartPolicy::AtLeastOnce), ("at-most-once", RestartPolicy::AtMostOnce)];
        for (name, policy) in policies {
            let counts = simulate(parameters, policy);
            rows.push(
                Row::of("policies")
                    .with("policy", name)
                    .with("total", counts.total)
                    .with("completed", counts.completed)
                    .with("restarted", counts.restarted)
                    .with("discarded", counts.discarded)
                    .with("duplicated_side_effects", counts.duplicated)
                    .with("orphaned", counts.orphaned),
            );
        }
        Outcome { rows, generator: Fields::new() }
    }
}
