//! Lesson 18: letting readers fetch bytes themselves, `valet-path` round by round, and what a lost key lays
//! open, `valet-scope`.

use std::time::Duration;

use orbitkv_shards::resilience::valet_key::{
    KeyScope, TransferBytes, TransferDesk, TransferOutcome, TransferPath,
};
use orbitkv_shards::time::Moment;
use serde::{Deserialize, Serialize};

use super::rounds::ROUNDS_MAX;
use crate::lab::Model;
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

/// The model `valet-path`.
pub struct Path;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathParameters {
    deliveries_per_day: f64,
    peak_factor: f64,
    #[serde(rename = "view_rate_DD12")]
    view_rate: f64,
    #[serde(rename = "round_s_DD6")]
    round_s: f64,
    rounds: u32,
    #[serde(rename = "pool_DD13")]
    pool: u64,
    normal_rounds: u32,
    slow_rounds: u32,
    /// First slow round, and the first that is not.
    slow_window: [u32; 2],
    payload_bytes: u64,
    key_bytes: u64,
}

impl PathParameters {
    fn bytes(&self) -> TransferBytes {
        TransferBytes { payload: self.payload_bytes, key: self.key_bytes }
    }

    fn uploads_per_s(&self) -> f64 {
        self.deliveries_per_day / 86_400.0 * self.peak_factor
    }

    fn transfers_per_s(&self) -> f64 {
        self.uploads_per_s() + self.uploads_per_s() * self.view_rate
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    accepted: u64,
    rejected: u64,
    peak: u64,
    slot_rounds: u64,
    bytes: u64,
}

fn simulate(parameters: &PathParameters, path: TransferPath, is_slow: bool) -> Counts {
    let mut desk = TransferDesk::new(path, parameters.bytes(), parameters.pool);
    let mut counts = Counts::default();
    let rate = parameters.transfers_per_s() * parameters.round_s;
    let mut due = 0.0_f64;
    let [slow_from, slow_until] = parameters.slow_window;
    for round in 0..parameters.rounds {
        desk.release(Moment(u64::from(round)));
        // The whole units are taken off at once here, unlike in the other models.
        due += rate;
        let arrivals = due.floor();
        due -= arrivals;
        let is_slow = is_slow && (slow_from..slow_until).contains(&round);
        let rounds = if is_slow { parameters.slow_rounds } else { parameters.normal_rounds };
        for _ in 0..arrivals as u64 {
            match desk.begin(Moment(u64::from(round) + u64::from(rounds))) {
                TransferOutcome::Accepted { service_bytes } => {
                    counts.accepted += 1;
                    counts.bytes += service_bytes;
                }
                TransferOutcome::Refused => counts.rejected += 1,
            }
        }
        counts.peak = counts.peak.max(desk.slots_held());
        counts.slot_rounds += desk.slots_held();
    }
    counts
}

impl Model for Path {
    type Parameters = PathParameters;

    const LESSON: u8 = 18;
    const TITLE: &'static str = "Valet Key Pattern";
    const NAME: &'static str = "valet-path";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "deliveries_per_day": 400000, "peak_factor": 3, "view_rate_DD12": 0.02, "round_s_DD6": 0.25,
        "rounds": 320, "pool_DD13": 64, "normal_rounds": 1, "slow_rounds": 20, "slow_window": [80, 160],
        "payload_bytes": 40000, "key_bytes": 512
    }"#;

    fn settle(parameters: &mut PathParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("deliveries_per_day", parameters.deliveries_per_day, 0.0..=1e12)?;
        within("peak_factor", parameters.peak_factor, 0.0..=1e6)?;
        within("view_rate_DD12", parameters.view_rate, 0.0..=1e6)?;
        within("round_s_DD6", parameters.round_s, 0.0..=86_400.0)?;
        within("rounds", parameters.rounds, 1..=ROUNDS_MAX)?;
        let transfers = parameters.transfers_per_s() * parameters.round_s * f64::from(parameters.rounds);
        within("transfers in all rounds", transfers, 0.0..=1e7)?;
        within("pool_DD13", parameters.pool, 0..=1_000_000)?;
        within("normal_rounds", parameters.normal_rounds, 1..=ROUNDS_MAX)?;
        within("slow_rounds", parameters.slow_rounds, 1..=ROUNDS_MAX)?;
        let [from, until] = parameters.slow_window;
        holds(from <= until, "slow_window", "is a first round and the first after it", "swap them")?;
        within("payload_bytes", parameters.payload_bytes, 0..=1 << 30)?;
        within("key_bytes", parameters.key_bytes, 1..=1 << 30)
    }

    fn run(parameters: &PathParameters, _seed: u64) -> Outcome {
        let (uploads, transfers) = (parameters.uploads_per_s(), parameters.transfers_per_s());
        let mut rows = vec![
            Row::of("rates")
                .rounded("transfers_per_s", transfers, 4)
                .rounded("upload", uploads, 4)
                .rounded("read", uploads * parameters.view_rate, 4)
                .number("dd12", parameters.view_rate),
            Row::of("setup")
                .with("rounds", parameters.rounds)
                .number("round_s", parameters.round_s)
                .rounded("seconds", f64::from(parameters.rounds) * parameters.round_s, 0)
                .rounded("transfers_per_round", transfers * parameters.round_s, 4),
        ];
        let paths = [("proxy", TransferPath::Proxy), ("valet", TransferPath::Valet)];
        for (name, path) in paths {
            for (state, is_slow) in [("healthy", false), ("slowdown", true)] {
                let counts = simulate(parameters, path, is_slow);
                rows.push(
                    Row::of("paths")
                        .with("path", name)
                        .with("state", state)
                        .with("accepted", counts.accepted)
                        .with("rejected", counts.rejected)
                        .with("peak_slots", counts.peak)
                        .rounded("avg_slots", counts.slot_rounds as f64 / f64::from(parameters.rounds), 2)
                        .rounded("service_mb", counts.bytes as f64 / 1e6, 3),
                );
            }
        }
        let [proxy, valet] = paths.map(|(_, path)| path.service_bytes(parameters.bytes()));
        rows.push(Row::of("bytes_per_transfer").with("proxy", proxy).with("valet", valet).rounded(
            "ratio",
            proxy as f64 / valet as f64,
            1,
        ));
        Outcome { rows, generator: Fields::new() }
    }
}

/// The model `valet-scope`.
pub struct Scope;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScopeParameters {
    #[serde(rename = "key_duration_s_DD14")]
    key_duration_s: f64,
    #[serde(rename = "leak_probability_DD15")]
    leak_probability: f64,
    sellers: f64,
    proofs_per_day: f64,
    retention_days: f64,
    edge_peak: f64,
}

/// How many times the mean the peak is.
const PEAK_FACTOR: f64 = 3.0;

/// A shorter and a longer time in seconds, beside the chosen one.
const SHORT_S: f64 = 60.0;
const LONG_S: f64 = 3_600.0;

impl ScopeParameters {
    /// Keys to one object, to a seller's day, and to all of a seller's objects.
    fn scopes(&self, duration_s: f64) -> [(&'static str, KeyScope); 3] {
        let lifetime = Duration::from_secs_f64(duration_s);
        let of_day = self.proofs_per_day / self.sellers;
        let scope = |surface, keys_per_day| KeyScope { surface, keys_per_day, lifetime };
        [
            ("single object", scope(1.0, self.proofs_per_day)),
            ("seller-day prefix", scope(of_day, self.sellers)),
            ("seller bucket", scope(of_day * self.retention_days, self.sellers)),
        ]
    }
}

impl Model for Scope {
    type Parameters = ScopeParameters;

    const LESSON: u8 = 18;
    const TITLE: &'static str = "Valet Key Pattern";
    const NAME: &'static str = "valet-scope";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "key_duration_s_DD14": 300, "leak_probability_DD15": 0.000001, "sellers": 4000,
        "proofs_per_day": 400000, "retention_days": 730, "edge_peak": 513.89
    }"#;

    fn settle(parameters: &mut ScopeParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("key_duration_s_DD14", parameters.key_duration_s, 0.001..=1e9)?;
        within("leak_probability_DD15", parameters.leak_probability, 1e-12..=1.0)?;
        within("sellers", parameters.sellers, 0.001..=1e12)?;
        within("proofs_per_day", parameters.proofs_per_day, 0.001..=1e12)?;
        within("retention_days", parameters.retention_days, 0.001..=1e6)?;
        within("edge_peak", parameters.edge_peak, 0.001..=1e9)
    }

    fn run(parameters: &ScopeParameters, _seed: u64) -> Outcome {
        let leak = parameters.leak_probability;
        let chosen_s = parameters.key_duration_s;
        let scopes = parameters.scopes(chosen_s);
        let mut rows = Vec::new();
        for (name, scope) in &scopes {
            let keys_per_s = scope.keys_per_s_peak(PEAK_FACTOR);
            rows.push(
                Row::of("scope")
                    .with("scope", *name)
                    .number("keys_per_day", scope.keys_per_day)
                    .rounded("peak_keys_per_s", keys_per_s, 4)
                    .rounded("edge_pct", keys_per_s * 100.0 / parameters.edge_peak, 3)
                    .rounded("open_window", scope.keys_open_peak(PEAK_FACTOR), 1)
                    .number("surface", scope.surface)
                    .rounded("object_s_per_day", scope.exposure_per_day(leak), 1),
            );
        }
        for duration_s in [SHORT_S, chosen_s, LONG_S] {
            let [(_, single), (_, day), (_, bucket)] = parameters.scopes(duration_s);
            rows.push(
                Row::of("sensitivity_DD14")
                    .number("duration_s", duration_s)
                    .rounded("single_object_open", single.keys_open_peak(PEAK_FACTOR), 1)
                    .rounded("seller_day_open", day.keys_open_peak(PEAK_FACTOR), 1)
                    .rounded("bucket_object_s", bucket.exposure_per_day(leak), 0),
            );
        }
        let [(_, single), (_, day), (_, bucket)] = scopes;
        let factor =
            |wide: KeyScope, narrow: KeyScope| wide.exposure_per_day(leak) / narrow.exposure_per_day(leak);
        rows.extend([
            Row::of("narrowing_bucket_to_day").rounded("exposure_factor", factor(bucket, day), 0),
            Row::of("narrowing_day_to_object").rounded("exposure_factor", factor(day, single), 2).rounded(
                "issuance_factor",
                single.keys_per_day / day.keys_per_day,
                0,
            ),
            Row::of("worst_case")
                .number("single_object", single.surface)
                .number("seller_day", day.surface)
                .number("bucket", bucket.surface),
        ]);
        Outcome { rows, generator: Fields::new() }
    }
}
