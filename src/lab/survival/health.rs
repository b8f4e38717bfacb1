//! Lesson 10: what a health check asks, `health` round by round and `health-budget` over a month.

use std::time::Duration;

use orbitkv_shards::resilience::health::{
    CheckLoad, CheckTimer, HealthContent, HealthFacts, PoolChange, PoolView, eviction_load,
};
use orbitkv_shards::time::Moment;
use serde::{Deserialize, Serialize};

use super::rounds::{ROUNDS_MAX, Rounds};
use crate::lab::Model;
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};
use crate::lab::rounding::whole;

/// The model `health`.
pub struct Endpoint;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointParameters {
    rounds: u32,
    replicas: usize,
    reads: u32,
    writes: u32,
    batch: u32,
    k3_stop_round: u32,
    schedule: Faults,
    intervals: Vec<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Faults {
    k1_half_failed: Rounds,
    k2_warming: Rounds,
    k3_brief: Rounds,
    k3_stopped: Rounds,
    state_store_down: Rounds,
    billing_store_down: Rounds,
}

impl Faults {
    /// What a check of a replica finds, replicas being counted from 0.
    fn facts(&self, replica: usize, round: u32) -> HealthFacts {
        let (brief, stopped) = (self.k3_brief.contain(round), self.k3_stopped.contain(round));
        HealthFacts {
            answers: !(replica == 2 && (brief || stopped)),
            warm: !(replica == 1 && self.k2_warming.contain(round)),
            own_path: !(replica == 0 && self.k1_half_failed.contain(round)),
            shared_dependency: !self.state_store_down.contain(round),
            distant_dependency: !self.billing_store_down.contain(round),
        }
    }
}

fn name(content: HealthContent) -> &'static str {
    match content {
        HealthContent::Shallow => "shallow",
        HealthContent::Readiness => "readiness",
        HealthContent::DeepLocal => "deepLocal",
        HealthContent::DeepShared => "deepShared",
        HealthContent::DeepAll => "deepAll",
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    checks: u64,
    out_of_pool: u64,
    dropped_reads: u64,
    dropped_writes: u64,
    dropped_batch: u64,
    silent: u64,
    wasted: u64,
    false_evictions: u64,
    detection_delay: Option<u32>,
}

fn simulate(parameters: &EndpointParameters, content: HealthContent, interval: u32) -> Counts {
    let schedule = &parameters.schedule;
    let mut pool = PoolView::new(parameters.replicas);
    let mut timer = CheckTimer::new(Duration::from_nanos(u64::from(interval)), Moment(1));
    let mut counts = Counts::default();
    for round in 1..=parameters.rounds {
        let facts: Vec<HealthFacts> =
            (0..parameters.replicas).map(|replica| schedule.facts(replica, round)).collect();
        if timer.take_due(Moment(u64::from(round))) {
            for (replica, facts) in facts.iter().enumerate() {
                let change = pool.on_check(replica, content.evaluate(facts));
                let is_third = replica == 2;
                if is_third && change == PoolChange::Evicted && schedule.k3_brief.contain(round) {
                    counts.false_evictions += 1;
                }
                if is_third && !pool.contains(replica) && schedule.k3_stopped.contain(round) {
                    let delay = round.saturating_sub(parameters.k3_stop_round);
                    counts.detection_delay.get_or_insert(delay);
                }
            }
        }
        counts.out_of_pool += (parameters.replicas - pool.size()) as u64;
        serve(parameters, &mut pool, &facts, &mut counts);
    }
    counts.checks = pool.checks();
    counts
}

/// A round's requests, over whoever is in the pool.
fn serve(parameters: &EndpointParameters, pool: &mut PoolView, facts: &[HealthFacts], counts: &mut Counts) {
    for _ in 0..parameters.reads {
        match pool.route() {
            None => {
                counts.dropped_reads += 1;
                counts.wasted += u64::from(facts.iter().any(HealthFacts::is_ready));
            }
            Some(replica) => counts.dropped_reads += u64::from(!facts[replica].is_ready()),
        }
    }
    for _ in 0..parameters.writes {
        match pool.route().map(|replica| facts[replica]) {
            None => counts.dropped_writes += 1,
            Some(facts) if !facts.is_ready() => counts.dropped_writes += 1,
            Some(facts) if !facts.own_path => counts.silent += 1,
            Some(facts) => counts.dropped_writes += u64::from(!facts.shared_dependency),
        }
    }
    for _ in 0..parameters.batch {
        // Without its store nobody is asked, so nobody's turn is used up.
        let has_store = facts.iter().all(|facts| facts.distant_dependency);
        let is_served = has_store && pool.route().is_some();
        counts.dropped_batch += u64::from(!is_served);
    }
}

impl Model for Endpoint {
    type Parameters = EndpointParameters;

    const LESSON: u8 = 10;
    const TITLE: &'static str = "Health Endpoint Monitoring";
    const NAME: &'static str = "health";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "rounds": 130, "replicas": 3, "reads": 8, "writes": 2, "batch": 1, "k3_stop_round": 82,
        "schedule": {
            "k1_half_failed": [[20, 45]], "k2_warming": [[1, 8], [60, 66]],
            "k3_brief": [[50, 50], [58, 59]], "k3_stopped": [[82, 95]],
            "state_store_down": [[100, 110]], "billing_store_down": [[115, 125]]
        },
        "intervals": [1, 2, 4, 8]
    }"#;

    fn settle(parameters: &mut EndpointParameters, given: &Given<'_>) -> Result<(), Refusal> {
        within("rounds", parameters.rounds, 1..=ROUNDS_MAX)?;
        within("replicas", parameters.replicas, 1..=64)?;
        within("reads", parameters.reads, 0..=1_000)?;
        within("writes", parameters.writes, 0..=1_000)?;
        within("batch", parameters.batch, 0..=1_000)?;
        let schedule = &parameters.schedule;
        schedule.k1_half_failed.check("schedule.k1_half_failed")?;
        schedule.k2_warming.check("schedule.k2_warming")?;
        schedule.k3_brief.check("schedule.k3_brief")?;
        schedule.k3_stopped.check("schedule.k3_stopped")?;
        schedule.state_store_down.check("schedule.state_store_down")?;
        schedule.billing_store_down.check("schedule.billing_store_down")?;
        let stops = schedule.k3_stopped.first().filter(|_| !given.names("k3_stop_round"));
        parameters.k3_stop_round = stops.unwrap_or(parameters.k3_stop_round);
        within("intervals (entries)", parameters.intervals.len(), 0..=64)?;
        parameters.intervals.iter().try_for_each(|interval| within("intervals", *interval, 1..=ROUNDS_MAX))
    }

    fn run(parameters: &EndpointParameters, _seed: u64) -> Outcome {
        let mut rows = Vec::new();
        for content in HealthContent::ALL {
            let counts = simulate(parameters, content, 1);
            rows.push(
                Row::of("endpoint")
                    .with("content", name(content))
                    .with("out_of_pool", counts.out_of_pool)
                    .with("dropped_reads", counts.dropped_reads)
                    .with("dropped_writes", counts.dropped_writes)
                    .with("dropped_batch", counts.dropped_batch)
                    .with("silent_lost_update", counts.silent)
                    .with("wasted_reject", counts.wasted),
            );
        }
        for interval in &parameters.intervals {
            let counts = simulate(parameters, HealthContent::DeepLocal, *interval);
            rows.push(
                Row::of("interval")
                    .with("interval", *interval)
                    .with("checks", counts.checks)
                    .with("detection_delay", counts.detection_delay)
                    .with("false_eviction", counts.false_evictions)
                    .with("dropped_reads", counts.dropped_reads)
                    .with("silent_lost_update", counts.silent),
            );
        }
        Outcome { rows, generator: Fields::new() }
    }
}

/// The model `health-budget`.
pub struct Budget;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetParameters {
    #[serde(rename = "round_s_KU1")]
    round_s: f64,
    store_req_per_s: f64,
    edge_peak: f64,
    #[serde(rename = "brief_month_KU3")]
    brief_month: f64,
}

/// Replicas, and rounds between two checks of one, that are compared by their load.
const REPLICAS: [u32; 3] = [3, 12, 48];
const LOAD_INTERVALS: [u32; 2] = [1, 4];

/// Intervals at which false evictions are counted, and the replicas of which one is evicted.
const EVICTION_INTERVALS: [u32; 2] = [1, 2];
const EVICTED_OF: f64 = 3.0;

impl Model for Budget {
    type Parameters = BudgetParameters;

    const LESSON: u8 = 10;
    const TITLE: &'static str = "Health Endpoint Monitoring";
    const NAME: &'static str = "health-budget";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str =
        r#"{"round_s_KU1": 2, "store_req_per_s": 138.89, "edge_peak": 513.89, "brief_month_KU3": 20}"#;

    fn settle(parameters: &mut BudgetParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("round_s_KU1", parameters.round_s, 0.001..=86_400.0)?;
        within("store_req_per_s", parameters.store_req_per_s, 0.001..=1e9)?;
        within("edge_peak", parameters.edge_peak, 0.001..=1e9)?;
        within("brief_month_KU3", parameters.brief_month, 0.0..=1e9)
    }

    fn run(parameters: &BudgetParameters, _seed: u64) -> Outcome {
        let mut rows = Vec::new();
        for replicas in REPLICAS {
            for interval in LOAD_INTERVALS {
                let interval_s = parameters.round_s * f64::from(interval);
                let load = CheckLoad { replicas: f64::from(replicas), interval_s };
                rows.push(
                    Row::of("check_load")
                        .with("replicas", replicas)
                        .number("interval_s", interval_s)
                        .rounded("checks_per_s", load.per_second(), 2)
                        .rounded("store_load_pct", load.store_load_pct(parameters.store_req_per_s), 2)
                        .with("checks_per_day", whole(load.per_second() * 86_400.0)),
                );
            }
        }
        let (before, after) = eviction_load(parameters.edge_peak, EVICTED_OF);
        rows.push(
            Row::of("false_eviction_load")
                .number("of_replicas", EVICTED_OF)
                .rounded("after", after, 2)
                .rounded("before", before, 2)
                .rounded("factor", after / before, 2),
        );
        // How many of the brief pauses evict is what the other model found.
        let schedule: EndpointParameters =
            serde_json::from_str(Endpoint::PARAMETERS).expect("the published parameters");
        let paused_rounds = schedule.schedule.k3_brief.count(schedule.rounds) as f64;
        for interval in EVICTION_INTERVALS {
            let evictions = simulate(&schedule, HealthContent::DeepLocal, interval).false_evictions as f64;
            rows.push(
                Row::of("false_evictions_month")
                    .with("interval", interval)
                    .rounded("per_month", parameters.brief_month * (evictions / paused_rounds), 1)
                    .rounded("capacity_cut_pct", 100.0 / EVICTED_OF, 1)
                    .number("up_to_s", f64::from(interval) * parameters.round_s),
            );
        }
        Outcome { rows, generator: Fields::new() }
    }
}
