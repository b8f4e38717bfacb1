//! Lesson 8, `degradation`: an answer of several fields whose sources fail, or have a moment of weakness.

use std::time::Duration;

use orbitkv_shards::resilience::degradation::{Degrader, Grade, Have, Part, Policy, Served};
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::base_rates::{FAILURE_SHARE_MIN, READ_PEAK};
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

/// Minutes of a month that the failure rounds stand for.
const OUTAGE_MIN: f64 = 15.0;
const BYTES_PER_KIB: f64 = 1_024.0;
const BYTES_PER_MIB: f64 = 1_048_576.0;
/// The policies under their published names.
const POLICIES: [(&str, Policy); 3] = [
    ("all or nothing", Policy::AllOrNothing),
    ("field skip", Policy::Skip),
    ("+ stale fallback", Policy::Fallback),
];
const ALL_OR_NOTHING: usize = 0;
const FALLBACK: usize = 2;
/// Sources that fail in the two scenarios.
const BILLING: &str = "billing";
const PROJECTION: &str = "projection";

/// The model.
pub struct Degradation;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    warmup_rounds: u32,
    failure_rounds: u32,
    #[serde(rename = "staleness_bound_AY14")]
    staleness_bound: u32,
    transient_period: u32,
    transient_phase_per_field: u32,
    marker_bytes: u64,
    fallback_records: u64,
    fields: Vec<Field>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Field {
    name: String,
    source: String,
    core: bool,
    bytes: u64,
}

/// What is counted in a run.
#[derive(Clone, Debug, Default)]
struct Counts {
    full: u64,
    reduced: u64,
    dropped: u64,
    /// Fields of answered requests: fresh, stale, missing.
    fields: [u64; 3],
    bytes: u64,
    last_response: u32,
    /// Stale fields whose source was well but for a moment.
    false_degradation: u64,
}

impl Counts {
    const fn responses(&self) -> u64 {
        self.full + self.reduced
    }

    fn bytes_mean(&self) -> f64 {
        match self.responses() {
            0 => 0.0,
            responses => self.bytes as f64 / responses as f64,
        }
    }
}

impl Parameters {
    fn simulate(&self, policy: Policy, failed: Option<&str>) -> Counts {
        let degrader = Degrader { policy, bound: Duration::from_nanos(u64::from(self.staleness_bound)) };
        let mut remembered: Vec<Option<u32>> = vec![None; self.fields.len()];
        let mut counts = Counts::default();
        for round in 1..=self.warmup_rounds + self.failure_rounds {
            let failing = round > self.warmup_rounds;
            let is_out = |field: &Field| failing && failed == Some(field.source.as_str());
            let mut parts = Vec::with_capacity(self.fields.len());
            for (index, field) in self.fields.iter().enumerate() {
                let phase = u64::from(self.transient_phase_per_field) * index as u64;
                let blips = (u64::from(round) + phase).is_multiple_of(u64::from(self.transient_period));
                let have = if !is_out(field) && !blips {
                    remembered[index] = Some(round);
                    Have::Fresh
                } else {
                    let age = |since| Have::Remembered(Duration::from_nanos(u64::from(round - since)));
                    remembered[index].map_or(Have::Nothing, age)
                };
                parts.push(Part { core: field.core, bytes: false, have });
            }
            if !failing {
                continue;
            }
            let answer = degrader.assemble(&parts);
            let served = self.fields.iter().zip(&answer.parts);
            counts.false_degradation +=
                served.clone().filter(|(field, served)| **served == Served::Stale && !is_out(field)).count()
                    as u64;
            match answer.grade {
                Grade::Dropped => {
                    counts.dropped += 1;
                    continue;
                }
                Grade::Full => counts.full += 1,
                Grade::Reduced => counts.reduced += 1,
            }
            counts.last_response = round - self.warmup_rounds;
            for (field, served) in served {
                counts.fields[*served as usize] += 1;
                counts.bytes += if *served == Served::Missing { 0 } else { field.bytes + self.marker_bytes };
            }
        }
        counts
    }
}

fn run_row(day: &str, policy: &str, counts: &Counts) -> Row {
    let extra =
        Fields::new().with("false_degradation", counts.false_degradation).with("total_bytes", counts.bytes);
    Row::of("runs")
        .with("day", day)
        .with("policy", policy)
        .with("responses", counts.responses())
        .with("full", counts.full)
        .with("reduced", counts.reduced)
        .with("dropped", counts.dropped)
        .with("fields_fresh_stale_missing", counts.fields.to_vec())
        .rounded("avg_bytes", counts.bytes_mean(), 1)
        .with("last_response_round", counts.last_response)
        .apart("_extra", extra)
}

impl Model for Degradation {
    type Parameters = Parameters;

    const LESSON: u8 = 8;
    const TITLE: &'static str = "Graceful Degradation";
    const NAME: &'static str = "degradation";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "warmup_rounds": 120, "failure_rounds": 900, "staleness_bound_AY14": 60,
        "transient_period": 40, "transient_phase_per_field": 10, "marker_bytes": 6, "fallback_records": 5000,
        "fields": [
            {"name": "state", "source": "projection", "core": true, "bytes": 180},
            {"name": "route", "source": "projection", "core": true, "bytes": 120},
            {"name": "estimate", "source": "estimate", "core": false, "bytes": 90},
            {"name": "fee", "source": "billing", "core": false, "bytes": 90}
        ]
    }"#;

    fn settle(parameters: &mut Parameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("warmup_rounds", parameters.warmup_rounds, 0..=1_000_000)?;
        within("failure_rounds", parameters.failure_rounds, 1..=1_000_000)?;
        within("transient_period", parameters.transient_period, 1..=1_000_000)?;
        within("marker_bytes", parameters.marker_bytes, 0..=1_000_000)?;
        within("fallback_records", parameters.fallback_records, 0..=1_000_000_000)?;
        within("fields (entries)", parameters.fields.len(), 1..=64)?;
        for (index, field) in parameters.fields.iter().enumerate() {
            within(&format!("fields.{index}.bytes"), field.bytes, 1..=1_000_000_000)?;
        }
        for source in [BILLING, PROJECTION] {
            let known = parameters.fields.iter().any(|field| field.source == source);
            holds(known, format_args!("source {source}"), "is the one that fails", "give it to a field")?;
        }
        Ok(())
    }

    fn run(parameters: &Parameters, _seed: u64) -> Outcome {
        let runs = |failed| POLICIES.map(|(_, policy)| parameters.simulate(policy, failed));
        let (free, without_billing, without_projection) =
            (runs(None), runs(Some(BILLING)), runs(Some(PROJECTION)));
        let mut rows = Vec::new();
        for (day, runs) in
            [("failure-free", &free), ("AY14a", &without_billing), ("AY14b", &without_projection)]
        {
            rows.extend(POLICIES.iter().zip(runs).map(|((policy, _), counts)| run_row(day, policy, counts)));
        }
        let fields = parameters.fields.len() as u64;
        let record: u64 = parameters.fields.iter().map(|field| field.bytes).sum();
        let marker = parameters.marker_bytes * fields;
        rows.push(
            Row::of("marker_cost")
                .with("marker_bytes", parameters.marker_bytes)
                .with("fields", fields)
                .with("bytes_per_response", marker)
                .rounded("pct", marker as f64 * 100.0 / record as f64, 1)
                .rounded("kib_per_s", marker as f64 * READ_PEAK / BYTES_PER_KIB, 2),
        );
        rows.push(
            Row::of("fallback_store_cost")
                .with("records", parameters.fallback_records)
                .with("record_bytes", record)
                .rounded("mib", (parameters.fallback_records * record) as f64 / BYTES_PER_MIB, 2)
                .rounded("writes_per_s", READ_PEAK * fields as f64, 2),
        );
        let rounds = f64::from(parameters.failure_rounds);
        let strict = &free[ALL_OR_NOTHING];
        rows.push(
            Row::of("strict_policy_loss")
                .with("dropped", strict.dropped)
                .with("of", parameters.failure_rounds)
                .rounded("req_per_s", READ_PEAK * strict.dropped as f64 / rounds, 2),
        );
        let fallback = &free[FALLBACK];
        rows.push(
            Row::of("stale_served")
                .with("dropped", fallback.dropped)
                .with("stale_fields", fallback.fields[Served::Stale as usize])
                .rounded(
                    "pct",
                    fallback.fields[Served::Stale as usize] as f64 * 100.0 / (rounds * fields as f64),
                    2,
                ),
        );
        for (scenario, runs) in [("AY14a", &without_billing), ("AY14b", &without_projection)] {
            for ((policy, _), counts) in POLICIES.iter().zip(runs) {
                let minutes = OUTAGE_MIN * (counts.dropped as f64 / rounds);
                rows.push(
                    Row::of("budget")
                        .with("scenario", scenario)
                        .with("policy", *policy)
                        .with("answered", counts.responses())
                        .rounded("outage_min", minutes, 2)
                        .rounded("failure_share_pct", minutes / FAILURE_SHARE_MIN * 100.0, 1),
                );
            }
        }
        let mut sources: Vec<&str> = parameters.fields.iter().map(|field| field.source.as_str()).collect();
        sources.sort_unstable();
        sources.dedup();
        for source in sources {
            let counts = parameters.simulate(Policy::Fallback, Some(source));
            let core = parameters.fields.iter().any(|field| field.source == source && field.core);
            rows.push(
                Row::of("isolation_limit")
                    .with("failed_source", source)
                    .with("core", core)
                    .with("responses", counts.responses())
                    .rounded("avg_bytes", counts.bytes_mean(), 1)
                    .with("last_response_round", counts.last_response),
            );
        }
        Outcome { rows, generator: Fields::new() }
    }
}
