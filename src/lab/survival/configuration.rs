//! Lesson 19, `config`: replicas that poll their settings, a wrong value among them, and a store that is away.

use std::time::Duration;

use orbitkv_shards::resilience::configuration::{
    FetchFault, PollingPlan, Published, Refresh, Rollout, SettingsCache, first,
};
use orbitkv_shards::time::Moment;
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::base_rates::FAILURE_SHARE_MIN;
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

/// The model.
pub struct Configuration;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    replicas: u32,
    replica_rate: f64,
    edge_peak: f64,
    #[serde(rename = "refresh_s_DD16")]
    refresh_s: u32,
    #[serde(rename = "detection_s_DD17")]
    detection_s: u32,
    duration_s: u32,
    wrong_at: u32,
    staggers: Vec<u32>,
    outage: Outage,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Outage {
    down_at: u32,
    up_at: u32,
    restart_at: u32,
    stagger: u32,
}

/// Whether a setting has the value that was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Right,
    Wrong,
}

/// The record of the store in a second: a first one, the one with the wrong value, and the one that takes it
/// back.
fn published(parameters: &Parameters, rollout: Rollout, second: u32) -> Published<Value> {
    let taken_back = parameters.wrong_at + parameters.detection_s;
    match second {
        _ if second < parameters.wrong_at => Published::settled(1, Value::Right),
        _ if second < taken_back => {
            Published { version: 2, stable: Value::Right, candidate: Some((Value::Wrong, rollout)) }
        }
        _ => Published::settled(3, Value::Right),
    }
}

fn caches(parameters: &Parameters, stagger: u32) -> Vec<SettingsCache<Value>> {
    let refresh = Duration::from_nanos(u64::from(parameters.refresh_s));
    let cache = |replica| {
        let due = Moment(u64::from(replica) * u64::from(stagger));
        SettingsCache::new(Published::settled(1, Value::Right), replica, refresh, due)
    };
    (0..parameters.replicas).map(cache).collect()
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    first_seen: Option<u32>,
    last_seen: Option<u32>,
    mixed_s: u32,
    propagation_s: Option<u32>,
    faulty: f64,
    affected: usize,
}

fn roll_out(parameters: &Parameters, rollout: Rollout, stagger: u32) -> Counts {
    let mut caches = caches(parameters, stagger);
    let mut counts = Counts::default();
    let mut has_seen = vec![false; caches.len()];
    for second in 0..parameters.duration_s {
        let record = published(parameters, rollout, second);
        for cache in &mut caches {
            cache.tick(Moment(u64::from(second)), || Ok(record.clone()));
        }
        let wrong: Vec<bool> = caches.iter().map(|cache| *cache.value() == Value::Wrong).collect();
        for (seen, is_wrong) in has_seen.iter_mut().zip(&wrong) {
            *seen |= is_wrong;
            // Added up replica by replica: that order is part of the figure.
            counts.faulty += if *is_wrong { parameters.replica_rate } else { 0.0 };
        }
        let holding = wrong.iter().filter(|is_wrong| **is_wrong).count();
        let expected =
            (0..parameters.replicas).filter(|replica| *record.target(*replica) == Value::Wrong).count();
        if holding > 0 {
            counts.first_seen.get_or_insert(second);
            counts.last_seen = Some(second);
            counts.mixed_s += u32::from(holding < caches.len());
        }
        if expected > 0 && holding == expected {
            counts.propagation_s.get_or_insert(second - parameters.wrong_at);
        }
    }
    counts.affected = has_seen.iter().filter(|seen| **seen).count();
    counts
}

/// What a replica that starts while the store is away does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behavior {
    LastKnownGood,
    StoreRequired,
}

/// Failed readings and requests that were dropped.
fn outage(parameters: &Parameters, behavior: Behavior) -> (u64, f64) {
    let Outage { down_at, up_at, restart_at, stagger } = parameters.outage;
    let mut caches = caches(parameters, stagger);
    let (mut failed_reads, mut dropped) = (0, 0.0);
    let restarted = caches.len() - 1;
    let mut is_up = true;
    for second in 0..parameters.duration_s {
        let store = || {
            let is_away = (down_at..up_at).contains(&second);
            if is_away { Err(FetchFault::Unreachable) } else { Ok(Published::settled(1, Value::Right)) }
        };
        if second == restart_at || !is_up {
            let disk = (behavior == Behavior::LastKnownGood).then(|| caches[restarted].record().clone());
            is_up = first(store(), disk).is_ok();
        }
        for (replica, cache) in caches.iter_mut().enumerate() {
            // A replica that is down goes on trying.
            let refresh = cache.tick(Moment(u64::from(second)), store);
            failed_reads += u64::from(matches!(refresh, Refresh::Kept(_)));
            dropped += if replica == restarted && !is_up { parameters.replica_rate } else { 0.0 };
        }
    }
    (failed_reads, dropped)
}

/// A shorter and a longer time between two readings, beside the chosen one.
const SHORT_S: u32 = 5;
const LONG_S: u32 = 300;

impl Model for Configuration {
    type Parameters = Parameters;

    const LESSON: u8 = 19;
    const TITLE: &'static str = "External Configuration Store";
    const NAME: &'static str = "config";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "replicas": 3, "replica_rate": 171.3, "edge_peak": 513.89, "refresh_s_DD16": 30,
        "detection_s_DD17": 120, "duration_s": 600, "wrong_at": 65, "staggers": [0, 10],
        "outage": {"down_at": 200, "up_at": 380, "restart_at": 260, "stagger": 10}
    }"#;

    fn settle(parameters: &mut Parameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("replicas", parameters.replicas, 1..=1_000)?;
        within("replica_rate", parameters.replica_rate, 0.0..=1e9)?;
        within("edge_peak", parameters.edge_peak, 0.001..=1e9)?;
        within("refresh_s_DD16", parameters.refresh_s, 1..=1_000_000)?;
        within("detection_s_DD17", parameters.detection_s, 0..=1_000_000)?;
        within("duration_s", parameters.duration_s, 1..=100_000)?;
        within("wrong_at", parameters.wrong_at, 0..=1_000_000)?;
        within("staggers (entries)", parameters.staggers.len(), 0..=16)?;
        let staggers = parameters.staggers.iter().chain([&parameters.outage.stagger]);
        staggers.copied().try_for_each(|stagger| within("staggers", stagger, 0..=1_000_000))?;
        let Outage { down_at, up_at, .. } = parameters.outage;
        holds(down_at <= up_at, "outage", "ends after it begins", "swap down_at and up_at")
    }

    fn run(parameters: &Parameters, _seed: u64) -> Outcome {
        let mut rows = Vec::new();
        let one = Rollout::Staged { admitted: 1, of: parameters.replicas };
        for (name, rollout) in [("all-at-once", Rollout::AllAtOnce), ("staged", one)] {
            for stagger in &parameters.staggers {
                let counts = roll_out(parameters, rollout, *stagger);
                rows.push(
                    Row::of("rollout")
                        .with("rollout", name)
                        .with("stagger_s", *stagger)
                        .with("propagation_s", counts.propagation_s)
                        .with("first_seen", counts.first_seen)
                        .with("last_seen", counts.last_seen)
                        .with("mixed_s", counts.mixed_s)
                        .rounded("faulty_replies", counts.faulty, 0)
                        .with("affected_replicas", counts.affected),
                );
            }
        }
        let behaviors =
            [("last known good value", Behavior::LastKnownGood), ("store required", Behavior::StoreRequired)];
        for (name, behavior) in behaviors {
            let (failed_reads, dropped) = outage(parameters, behavior);
            let outage_s = dropped / parameters.edge_peak;
            rows.push(
                Row::of("store_outage")
                    .with("behavior", name)
                    .with("failed_reads", failed_reads)
                    .rounded("dropped_requests", dropped, 0)
                    .rounded("equiv_outage_s", outage_s, 2)
                    .rounded("failure_share_pct", outage_s * 100.0 / (FAILURE_SHARE_MIN * 60.0), 2),
            );
        }
        let plan = |refresh_s: u32| PollingPlan {
            nodes: f64::from(parameters.replicas),
            refresh_s: f64::from(refresh_s),
        };
        for interval_s in [SHORT_S, parameters.refresh_s, LONG_S] {
            let plan = plan(interval_s);
            let ceiling = plan.faulty_max(parameters.edge_peak, f64::from(parameters.detection_s));
            rows.push(
                Row::of("interval_DD16")
                    .with("interval_s", interval_s)
                    .rounded("store_reads_per_s", plan.reads_per_s(), 4)
                    .number("worst_propagation_s", plan.propagation_s_max())
                    .rounded("faulty_reply_ceiling", ceiling, 0),
            );
        }
        rows.push(
            Row::of("uncached")
                .number("store_reads_per_s", parameters.edge_peak)
                .with("interval_s", parameters.refresh_s)
                .rounded("fewer_factor", parameters.edge_peak / plan(parameters.refresh_s).reads_per_s(), 0),
        );
        Outcome { rows, generator: Fields::new() }
    }
}
