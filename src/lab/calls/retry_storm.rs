//! Lesson 4, `retry-storm`: retries of a dependency that is out or overloaded, with and without a budget.

use orbitkv_shards::resilience::retry::{Allowance, Attempt, Backoff, Retries, RetryBudget, Verdict};
use orbitkv_shards::time::Moment;
use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::lab::Model;
use crate::lab::generators::{Generator, Kind};
use crate::lab::parameters::{ExpBits, Given};
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

const ROUNDS_PER_S: f64 = 100.0;
/// Rounds after which a caller gives up (AY2).
const TIMEOUT_ROUNDS: f64 = 20.0;
/// Layers that the bound is worked out for.
const LAYERS: u32 = 4;

/// The model.
pub struct RetryStorm;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    rounds: u32,
    failure_start: u32,
    #[serde(rename = "usual_capacity_AY6")]
    usual_capacity: usize,
    event_rate: f64,
    backoff_base: u64,
    backoff_cap: u64,
    #[serde(rename = "rare_failure_AY4")]
    rare_failure: f64,
    scenarios: Scenarios,
    configurations: Vec<Configuration>,
    sensitivity_budget: f64,
    exp_neg_lambda: ExpOfRate,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenarios {
    healthy: Scenario,
    outage: Scenario,
    degradation: Scenario,
}

/// For how many rounds the dependency takes how many calls a round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    duration: u32,
    capacity: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    name: String,
    allowed: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget: Option<f64>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpOfRate {
    event: ExpBits,
}

/// What is counted in a run.
#[derive(Clone, Debug, Default)]
struct Counts {
    first: u64,
    extra: u64,
    peak: usize,
    window_calls: u64,
    successful: u64,
    dropped: u64,
    generator: Fields,
}

impl Counts {
    const fn calls(&self) -> u64 {
        self.first + self.extra
    }

    fn multiplier(&self) -> Option<f64> {
        (self.first > 0).then(|| self.calls() as f64 / self.first as f64)
    }

    fn window_rate(&self, scenario: Scenario) -> f64 {
        self.window_calls as f64 / f64::from(scenario.duration)
    }
}

impl Parameters {
    fn retries(&self, allowed: u32, budget: Option<f64>) -> Retries {
        let backoff = self.backoff();
        Retries::new(Allowance(allowed), backoff, budget.map(RetryBudget::whole))
    }

    const fn backoff(&self) -> Backoff {
        Backoff { base: Duration::from_nanos(self.backoff_base), cap: Duration::from_nanos(self.backoff_cap) }
    }

    fn simulate(&self, seed: u64, scenario: Scenario, allowed: u32, budget: Option<f64>) -> Counts {
        let mut generator = Generator::new(Kind::ParkMiller, seed);
        let mut retries = self.retries(allowed, budget);
        let mut scheduled: Vec<Vec<Attempt>> = vec![Vec::new(); self.rounds as usize];
        let mut counts = Counts::default();
        let window = self.failure_start..self.failure_start.saturating_add(scenario.duration);
        for round in 0..self.rounds {
            let in_window = window.contains(&round);
            let capacity = if in_window { scenario.capacity } else { self.usual_capacity };
            let mut calls = std::mem::take(&mut scheduled[round as usize]);
            let new = generator.poisson(self.exp_neg_lambda.event.0) as usize;
            calls.resize(calls.len() + new, Attempt(0));
            counts.peak = counts.peak.max(calls.len());
            counts.window_calls += if in_window { calls.len() as u64 } else { 0 };
            for (place, attempt) in calls.into_iter().enumerate() {
                let now = Moment(u64::from(round));
                retries.on_call(attempt);
                match attempt {
                    Attempt(0) => counts.first += 1,
                    _ => counts.extra += 1,
                }
                // Only a day without a window has rare failures, and only what is served draws one.
                let served = place < capacity;
                if served && (scenario.duration > 0 || !generator.happens(self.rare_failure)) {
                    counts.successful += 1;
                    continue;
                }
                match retries.on_failure(attempt, now) {
                    Verdict::Again(next) => {
                        let pause = retries.pause(attempt, generator.draw()).as_nanos() as usize;
                        if let Some(due) = scheduled.get_mut(round as usize + 1 + pause) {
                            due.push(next);
                        }
                    }
                    Verdict::AllowanceSpent | Verdict::BudgetSpent => counts.dropped += 1,
                }
            }
        }
        counts.generator = Fields::new().with_generator(&generator);
        counts
    }

    /// The configuration without a budget that allows most, and the one before it.
    fn widest(&self) -> [usize; 2] {
        let unbudgeted: Vec<usize> = (0..self.configurations.len())
            .filter(|index| self.configurations[*index].budget.is_none())
            .collect();
        [unbudgeted[unbudgeted.len() - 2], unbudgeted[unbudgeted.len() - 1]]
    }

    fn budgeted(&self) -> usize {
        let with = |configuration: &Configuration| configuration.budget.is_some();
        self.configurations.iter().position(with).expect("a configuration with a budget was required")
    }

    fn usual_rate(&self) -> f64 {
        self.event_rate / ROUNDS_PER_S
    }
}

fn run_row(
    name: &str,
    configuration: &Configuration,
    scenario: Scenario,
    usual: f64,
    counts: &Counts,
) -> Row {
    let row = Row::of("runs")
        .with("scenario", name)
        .with("configuration", configuration.name.as_str())
        .with("allowed", configuration.allowed)
        .with("calls", counts.calls())
        .rounded("multiplier", counts.multiplier(), 2)
        .with("peak_calls_per_round", counts.peak)
        .with("successful", counts.successful)
        .with("dropped", counts.dropped);
    let extra = Fields::new()
        .with("requests", counts.first)
        .with("primary", counts.first)
        .with("extra", counts.extra);
    match scenario.duration {
        0 => row.apart("_extra", extra),
        _ => row
            .rounded("window_calls_per_round", counts.window_rate(scenario), 2)
            .rounded("times_usual_rate", counts.window_rate(scenario) / usual, 1)
            .apart("_extra", extra),
    }
}

fn checkpoint(configuration: &Configuration, scenario: &str, counts: &Counts) -> Fields {
    let mut fields = Fields::new().with("allowed", configuration.allowed);
    if let Some(budget) = configuration.budget {
        fields = fields.with("budget", budget);
    }
    fields = fields.with("scenario", scenario);
    for (name, value) in counts.generator.iter() {
        fields = fields.with(name, value.clone());
    }
    fields
}

impl Model for RetryStorm {
    type Parameters = Parameters;

    const LESSON: u8 = 4;
    const TITLE: &'static str = "Retries and Storm Risk";
    const NAME: &'static str = "retry-storm";
    const SEEDING: Option<Seeding> = Some(Seeding {
        kind: Kind::ParkMiller,
        seed: 20_260_802,
        notes: &[(
            "reseed",
            "at every run; arrivals and jitter share the stream, so configurations see different arrivals",
        )],
    });
    const PARAMETERS: &'static str = r#"{
        "rounds": 4000, "failure_start": 500, "usual_capacity_AY6": 6, "event_rate": 97.22,
        "backoff_base": 2, "backoff_cap": 32, "rare_failure_AY4": 0.025,
        "scenarios": {
            "healthy": {"duration": 0, "capacity": 6},
            "outage": {"duration": 100, "capacity": 0},
            "degradation": {"duration": 1000, "capacity": 1}
        },
        "configurations": [
            {"name": "no retries", "allowed": 1},
            {"name": "gateway only (3)", "allowed": 3},
            {"name": "two layers (3x3)", "allowed": 9},
            {"name": "three layers (3x3x3)", "allowed": 27},
            {"name": "three layers + budget 0.30", "allowed": 27, "budget": 0.3}
        ],
        "sensitivity_budget": 0.1, "exp_neg_lambda": {"event": "0x3fd8353f5f003624"}
    }"#;

    fn settle(parameters: &mut Parameters, given: &Given<'_>) -> Result<(), Refusal> {
        within("rounds", parameters.rounds, 1..=100_000)?;
        within("failure_start", parameters.failure_start, 0..=parameters.rounds)?;
        within("usual_capacity_AY6", parameters.usual_capacity, 0..=100_000)?;
        within("event_rate", parameters.event_rate, 0.001..=20_000.0)?;
        within("backoff_base", parameters.backoff_base, 0..=1_000_000)?;
        within("backoff_cap", parameters.backoff_cap, 0..=1_000_000)?;
        within("rare_failure_AY4", parameters.rare_failure, 0.0..=1.0)?;
        within("sensitivity_budget", parameters.sensitivity_budget, 0.0..=1_000.0)?;
        if !given.names("scenarios.healthy") {
            parameters.scenarios.healthy.capacity = parameters.usual_capacity;
        }
        let Scenarios { healthy, outage, degradation } = parameters.scenarios;
        holds(
            healthy.duration == 0 && healthy.capacity == parameters.usual_capacity,
            format_args!("scenarios.healthy={}, {} rounds", healthy.capacity, healthy.duration),
            "a healthy day has the usual capacity and no window",
            "set usual_capacity_AY6, or outage and degradation",
        )?;
        for (name, scenario) in [("outage", outage), ("degradation", degradation)] {
            within(&format!("scenarios.{name}.duration"), scenario.duration, 1..=parameters.rounds)?;
            within(&format!("scenarios.{name}.capacity"), scenario.capacity, 0..=100_000)?;
        }
        within("configurations (entries)", parameters.configurations.len(), 3..=32)?;
        for (index, configuration) in parameters.configurations.iter().enumerate() {
            within(&format!("configurations.{index}.allowed"), configuration.allowed, 1..=1_000)?;
            let budget = configuration.budget.unwrap_or_default();
            within(&format!("configurations.{index}.budget"), budget, 0.0..=1_000.0)?;
        }
        let budgeted = parameters.configurations.iter().filter(|one| one.budget.is_some()).count();
        holds(
            budgeted >= 1 && parameters.configurations.len() - budgeted >= 2,
            format_args!("configurations: {budgeted} of {} have a budget", parameters.configurations.len()),
            "two without a budget are compared with one that has one",
            "leave a budget out, or give one",
        )?;
        if given.names("event_rate") && !given.names("exp_neg_lambda") {
            parameters.exp_neg_lambda.event = ExpBits::of_rate(parameters.event_rate, ROUNDS_PER_S);
        }
        Ok(())
    }

    fn run(parameters: &Parameters, seed: u64) -> Outcome {
        let all = |scenario: Scenario| -> Vec<Counts> {
            let run = |one: &Configuration| parameters.simulate(seed, scenario, one.allowed, one.budget);
            parameters.configurations.iter().map(run).collect()
        };
        let Scenarios { healthy: healthy_day, outage: outage_day, degradation: degradation_day } =
            parameters.scenarios;
        let (healthy, outage, degradation) = (all(healthy_day), all(outage_day), all(degradation_day));
        let usual = parameters.usual_rate();
        let named =
            |name: &str, day: Scenario| format!("{name} ({} s)", f64::from(day.duration) / ROUNDS_PER_S);
        let mut rows = Vec::new();
        for (name, day, runs) in [
            ("healthy".to_owned(), healthy_day, &healthy),
            (named("outage", outage_day), outage_day, &outage),
            (named("degradation", degradation_day), degradation_day, &degradation),
        ] {
            let of_day = parameters.configurations.iter().zip(runs);
            rows.extend(
                of_day.map(|(configuration, counts)| run_row(&name, configuration, day, usual, counts)),
            );
        }
        let ([nine, widest], budgeted) = (parameters.widest(), parameters.budgeted());
        let seconds = f64::from(parameters.rounds) / ROUNDS_PER_S;
        rows.push(
            Row::of("failure_free_cost")
                .with("calls_no_retry", healthy[0].calls())
                .with("calls_27", healthy[widest].calls())
                .rounded("multiplier", healthy[widest].multiplier(), 2)
                .rounded("req_per_s_no_retry", healthy[0].calls() as f64 / seconds, 2)
                .rounded("req_per_s_27", healthy[widest].calls() as f64 / seconds, 2)
                .number("failure_ratio", parameters.rare_failure),
        );
        let unbudgeted = |runs: &[Counts], of: &dyn Fn(&Counts) -> f64| -> Vec<f64> {
            let pairs = parameters.configurations.iter().zip(runs);
            pairs.filter(|(one, _)| one.budget.is_none()).map(|(_, counts)| of(counts)).collect()
        };
        let dropped: Vec<u64> =
            unbudgeted(&outage, &|counts| counts.dropped as f64).iter().map(|n| *n as u64).collect();
        rows.push(
            Row::of("outage_gain")
                .with("dropped", dropped)
                .with("successful_no_retry", outage[0].successful)
                .with("successful_27", outage[widest].successful),
        );
        let outage_rate = |index: usize| outage[index].window_rate(outage_day);
        rows.push(
            Row::of("outage_growth")
                .rounded_list(
                    "window_calls_per_round",
                    unbudgeted(&outage, &|run| run.window_rate(outage_day)),
                    2,
                )
                .rounded("times_usual", outage_rate(widest) / usual, 1)
                .with("upper_bound", parameters.configurations[widest].allowed),
        );
        rows.push(
            Row::of("degradation_multiplier")
                .with("calls_9", degradation[nine].calls())
                .with("calls_27", degradation[widest].calls())
                .rounded("window_rate", degradation[widest].window_rate(degradation_day), 2),
        );
        rows.push(
            Row::of("budget_030")
                .with("outage_calls", outage[widest].calls())
                .with("outage_calls_budget", outage[budgeted].calls())
                .rounded("window_rate", outage_rate(widest), 2)
                .rounded("window_rate_budget", outage_rate(budgeted), 2)
                .with("outage_dropped", outage[widest].dropped)
                .with("outage_dropped_budget", outage[budgeted].dropped)
                .with("degradation_calls", degradation[widest].calls())
                .with("degradation_calls_budget", degradation[budgeted].calls())
                .with("degradation_dropped_none", degradation[0].dropped)
                .with("degradation_dropped", degradation[widest].dropped)
                .with("degradation_dropped_budget", degradation[budgeted].dropped),
        );
        let tries = parameters.configurations[1].allowed;
        let bounds: Vec<u32> = (1..=LAYERS).map(|layers| Allowance::of_layers(tries, layers).0).collect();
        rows.push(Row::of("upper_bound").with("r", tries).with("by_depth", bounds));
        let retries = parameters.configurations[widest].allowed;
        let backoff = parameters.backoff();
        let waited: u64 = (0..retries).map(|n| 1 + backoff.ceiling(Attempt(n)).as_nanos() as u64).sum();
        rows.push(
            Row::of("worst_wait")
                .with("retries", retries)
                .with("rounds", waited)
                .number("seconds", waited as f64 / ROUNDS_PER_S)
                .rounded("times_threshold", waited as f64 / TIMEOUT_ROUNDS, 1),
        );
        let allowed = parameters.configurations[budgeted].allowed;
        let tight = parameters.simulate(seed, outage_day, allowed, Some(parameters.sensitivity_budget));
        rows.push(
            Row::of("sensitivity_budget_010")
                .with("calls_030", outage[budgeted].calls())
                .with("calls_010", tight.calls())
                .rounded("window_rate_030", outage_rate(budgeted), 2)
                .rounded("window_rate_010", tight.window_rate(outage_day), 2)
                .with("dropped_030", outage[budgeted].dropped)
                .with("dropped_010", tight.dropped),
        );
        let mut checkpoints = vec![checkpoint(&parameters.configurations[0], "healthy", &healthy[0])];
        let of_outage = parameters.configurations.iter().zip(&outage);
        checkpoints.extend(of_outage.map(|(one, counts)| checkpoint(one, "outage", counts)));
        checkpoints.push(checkpoint(&parameters.configurations[widest], "degradation", &degradation[widest]));
        Outcome { rows, generator: Fields::new().with("checkpoints", checkpoints) }
    }
}
