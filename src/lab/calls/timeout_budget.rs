//! Lesson 5, `timeout-budget`: one deadline over two steps that follow each other, divided in three ways,
//! with work that goes on after it was given up, or does not.

use orbitkv_shards::resilience::deadline::{Aftermath, GivingUp, Split, StepTimer};
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::base_rates::{EDGE_PEAK, FAILURE_SHARE_MIN, READ_PEAK, RESPONSE_BYTES};
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

const MS_PER_S: f64 = 1_000.0;
const BYTES_PER_KIB: f64 = 1_024.0;
/// The splits under their published names.
const SPLITS: [(&str, Split); 3] =
    [("greedy", Split::Greedy), ("equal", Split::Equal), ("weighted", Split::Weighted)];
/// Steps of the billing arm in their timer.
const TARIFF: usize = 0;
const SIZE: usize = 1;

/// The model.
pub struct TimeoutBudget;

/// Parameters, as the vector file names them; milliseconds, where nothing else is said.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    threshold_ms: f64,
    gateway_share_ms: f64,
    arm_share_ms: f64,
    typical_ms: Typical,
    requests: usize,
    cycles: Cycles,
    sub_calls: u32,
    deadline_field_bytes: u32,
    #[serde(rename = "AY10")]
    slowdowns: Slowdowns,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Typical {
    delivery: f64,
    tariff: f64,
    size: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cycles {
    #[serde(rename = "failure-free")]
    failure_free: Durations,
    #[serde(rename = "tariff slowdown")]
    tariff_slowdown: Durations,
}

/// How long calls of each step take, over and over.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Durations {
    delivery: Vec<f64>,
    tariff: Vec<f64>,
    size: Vec<f64>,
}

/// How often and for how many minutes the tariff store is slow in a month.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Slowdowns {
    minutes: f64,
    per_month: f64,
}

/// Walks through the durations of a step.
struct Cycle<'a> {
    durations: &'a [f64],
    next: usize,
}

impl Cycle<'_> {
    fn next(&mut self) -> f64 {
        let duration = self.durations[self.next];
        self.next = (self.next + 1) % self.durations.len();
        duration
    }
}

/// What is counted in a run.
#[derive(Clone, Debug, Default)]
struct Counts {
    answered: usize,
    blame: [usize; 2],
    elapsed_ms: Vec<f64>,
    wasted_ms: f64,
}

/// Makes one call within its limit. One that has no time left is not made and takes no duration.
fn call<const STEPS: usize>(
    timer: &mut StepTimer<f64, STEPS>,
    step: usize,
    cycle: &mut Cycle<'_>,
    wasted_ms: &mut f64,
) -> bool {
    let limit = timer.limit(step);
    if limit <= 0.0 {
        timer.on_limit(step);
        return false;
    }
    let duration = cycle.next();
    if duration <= limit {
        timer.on_done(step, duration);
        return true;
    }
    if timer.on_limit(step) == Aftermath::Nothing {
        *wasted_ms += duration - limit;
    }
    false
}

fn simulate(parameters: &Parameters, durations: &Durations, split: Split, giving_up: GivingUp) -> Counts {
    let arm = parameters.arm_share_ms;
    let weights = [parameters.typical_ms.tariff, parameters.typical_ms.size];
    let cycle = |durations| Cycle { durations, next: 0 };
    let (mut deliveries, mut tariffs, mut sizes) =
        (cycle(&durations.delivery), cycle(&durations.tariff), cycle(&durations.size));
    let mut counts = Counts::default();
    for _ in 0..parameters.requests {
        let wasted = &mut counts.wasted_ms;
        let mut delivery = StepTimer::new(arm, &[1.0], Split::Greedy, giving_up);
        let mut billing = StepTimer::new(arm, &weights, split, giving_up);
        // Every step is tried, also after one that failed.
        let ok = [
            call(&mut delivery, 0, &mut deliveries, wasted),
            call(&mut billing, TARIFF, &mut tariffs, wasted),
            call(&mut billing, SIZE, &mut sizes, wasted),
        ];
        let elapsed = parameters.gateway_share_ms + delivery.elapsed().max(billing.elapsed());
        let answered = ok.into_iter().all(|ok| ok) && elapsed <= parameters.threshold_ms;
        counts.answered += usize::from(answered);
        for step in [TARIFF, SIZE] {
            counts.blame[step] += usize::from(billing.is_ended_by_limit(step));
        }
        counts.elapsed_ms.push(elapsed);
    }
    counts
}

impl Counts {
    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.elapsed_ms.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    fn mean_ms(&self) -> f64 {
        self.elapsed_ms.iter().fold(0.0, |sum, elapsed| sum + elapsed) / self.elapsed_ms.len() as f64
    }

    fn held_slots(&self) -> f64 {
        READ_PEAK * self.mean_ms() / MS_PER_S
    }

    fn abandoned_slots(&self) -> f64 {
        READ_PEAK * (self.wasted_ms / self.elapsed_ms.len() as f64) / MS_PER_S
    }
}

fn run_row(regime: &str, policy: &str, counts: &Counts) -> Row {
    let sorted = counts.sorted();
    Row::of("runs")
        .with("regime", regime)
        .with("policy", policy)
        .with("answered", counts.answered)
        .with("dropped", sorted.len() - counts.answered)
        .with("blame_tariff", counts.blame[TARIFF])
        .with("blame_size", counts.blame[SIZE])
        .number("median_ms", sorted[sorted.len() / 2])
        .number("worst_ms", sorted[sorted.len() - 1])
        .rounded("avg_ms", counts.mean_ms(), 1)
        .rounded("held_slots", counts.held_slots(), 1)
        .number("wasted_work_ms", counts.wasted_ms)
}

fn share_row(minutes: f64, per_month: f64) -> Row {
    let total = minutes * per_month;
    Row::of("sensitivity_AY10")
        .number("minutes", minutes)
        .number("per_month", per_month)
        .number("minutes_per_month", total)
        .rounded("share_pct", total / FAILURE_SHARE_MIN * 100.0, 1)
}

impl Model for TimeoutBudget {
    type Parameters = Parameters;

    const LESSON: u8 = 5;
    const TITLE: &'static str = "Timeout Budgets";
    const NAME: &'static str = "timeout-budget";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "threshold_ms": 200, "gateway_share_ms": 20, "arm_share_ms": 180,
        "typical_ms": {"delivery": 8, "tariff": 6, "size": 12}, "requests": 48,
        "cycles": {
            "failure-free": {
                "delivery": [8, 9, 8, 10, 8, 9, 8, 10, 8, 9, 8, 10, 8, 9, 8, 10, 40],
                "tariff": [6, 7, 6, 8, 6, 7, 6, 8, 6, 7, 6, 8, 6, 7, 6, 8, 80],
                "size": [12, 13, 12, 14, 12, 13, 12, 14, 12, 13, 12, 14, 12, 13, 12, 14, 100]
            },
            "tariff slowdown": {
                "delivery": [8, 9, 8, 10, 8, 9, 8, 10, 8, 9, 8, 10, 8, 9, 8, 10, 40],
                "tariff": [150, 400, 220, 400, 180, 300, 260, 400, 150, 400, 220, 400, 180, 300, 260, 400, 400],
                "size": [12, 13, 12, 14, 12, 13, 12, 14, 12, 13, 12, 14, 12, 13, 12, 14, 100]
            }
        },
        "sub_calls": 5, "deadline_field_bytes": 8, "AY10": {"minutes": 12, "per_month": 1}
    }"#;

    fn settle(parameters: &mut Parameters, given: &Given<'_>) -> Result<(), Refusal> {
        within("threshold_ms", parameters.threshold_ms, 0.001..=1e9)?;
        within("gateway_share_ms", parameters.gateway_share_ms, 0.0..=parameters.threshold_ms)?;
        if !given.names("arm_share_ms") {
            parameters.arm_share_ms = parameters.threshold_ms - parameters.gateway_share_ms;
        }
        within("arm_share_ms", parameters.arm_share_ms, 0.0..=parameters.threshold_ms)?;
        let Typical { delivery, tariff, size } = parameters.typical_ms;
        for (name, typical) in [("delivery", delivery), ("tariff", tariff), ("size", size)] {
            within(&format!("typical_ms.{name}"), typical, 0.001..=1e9)?;
        }
        within("requests", parameters.requests, 1..=1_000_000)?;
        let Cycles { failure_free, tariff_slowdown } = &parameters.cycles;
        for (regime, durations) in [("failure-free", failure_free), ("tariff slowdown", tariff_slowdown)] {
            for (step, cycle) in
                [("delivery", &durations.delivery), ("tariff", &durations.tariff), ("size", &durations.size)]
            {
                let name = format!("cycles.{regime}.{step}");
                within(&format!("{name} (entries)"), cycle.len(), 1..=10_000)?;
                for (index, duration) in cycle.iter().enumerate() {
                    within(&format!("{name}.{index}"), *duration, 0.0..=1e9)?;
                }
            }
        }
        within("AY10.minutes", parameters.slowdowns.minutes, 0.0..=1e6)?;
        within("AY10.per_month", parameters.slowdowns.per_month, 0.0..=1e6)?;
        holds(
            parameters.sub_calls <= 1_000_000 && parameters.deadline_field_bytes <= 1_000_000,
            "sub_calls, deadline_field_bytes",
            "must be at most 1000000",
            "lower them",
        )
    }

    fn run(parameters: &Parameters, _seed: u64) -> Outcome {
        let weights = [parameters.typical_ms.tariff, parameters.typical_ms.size];
        let mut rows = Vec::new();
        for (name, split) in SPLITS {
            let shares = split.shares(parameters.arm_share_ms, &weights);
            rows.push(
                Row::of("shares").with("policy", name).rounded("tariff_ms", shares[TARIFF], 1).rounded(
                    "size_ms",
                    shares[SIZE],
                    1,
                ),
            );
        }
        let cycles = &parameters.cycles;
        let runs = |durations: &Durations, giving_up| {
            SPLITS.map(|(name, split)| (name, simulate(parameters, durations, split, giving_up)))
        };
        let free = runs(&cycles.failure_free, GivingUp::Abandons);
        let slow = runs(&cycles.tariff_slowdown, GivingUp::Abandons);
        let cancelled = runs(&cycles.tariff_slowdown, GivingUp::Cancels);
        for (regime, runs) in [("failure-free", &free), ("tariff slowdown", &slow)] {
            rows.extend(runs.iter().map(|(policy, counts)| run_row(regime, policy, counts)));
        }
        for ((policy, counts), (_, cancelled)) in slow.iter().zip(&cancelled) {
            rows.push(
                Row::of("busy_slots")
                    .with("policy", *policy)
                    .rounded("caller", counts.held_slots(), 1)
                    .rounded("abandoned", counts.abandoned_slots(), 1)
                    .rounded("total_no_cancel", counts.held_slots() + counts.abandoned_slots(), 1)
                    .rounded("total_cancel", cancelled.held_slots() + cancelled.abandoned_slots(), 1),
            );
        }
        let bytes = u64::from(parameters.deadline_field_bytes) * u64::from(parameters.sub_calls);
        rows.push(
            Row::of("deadline_field_cost")
                .with("field_bytes", parameters.deadline_field_bytes)
                .with("sub_calls", parameters.sub_calls)
                .with("bytes_per_request", bytes)
                .rounded("pct_of_response", bytes as f64 / f64::from(RESPONSE_BYTES) * 100.0, 1)
                .with("response_bytes", RESPONSE_BYTES),
        );
        let bytes_per_s = bytes as f64 * EDGE_PEAK;
        rows.push(
            Row::of("deadline_field_rate")
                .number("edge_req_per_s", EDGE_PEAK)
                .rounded("bytes_per_s", bytes_per_s, 2)
                .rounded("kib_per_s", bytes_per_s / BYTES_PER_KIB, 2),
        );
        let greedy = &free[0].1;
        for (policy, counts) in &free[1..] {
            let lost = greedy.answered as f64 - counts.answered as f64;
            let share = lost / parameters.requests as f64;
            rows.push(
                Row::of("tight_split_cost")
                    .with("policy", *policy)
                    .with("extra_dropped", lost as i64)
                    .with("of", parameters.requests)
                    .rounded("pct", share * 100.0, 2)
                    .rounded("req_per_s", READ_PEAK * lost / parameters.requests as f64, 2),
            );
        }
        let Slowdowns { minutes, per_month } = parameters.slowdowns;
        rows.push(share_row(minutes, per_month));
        rows.push(share_row(minutes, 2.0 * per_month));
        rows.push(share_row(2.0 * minutes, per_month));
        Outcome { rows, generator: Fields::new() }
    }
}
