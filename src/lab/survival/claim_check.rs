//! Lesson 17: payload beside its messages, `claim-check` message by message and `claim-check-cost` in sum.

use std::collections::VecDeque;

use orbitkv_shards::resilience::claim_check::{Claim, ClaimStore, MessageBytes, MessageLayout, Retention};
use orbitkv_shards::time::Moment;
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::generators::{Generator, Kind};
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};
use crate::lab::rounding::whole;

const SEEDING: Seeding = Seeding {
    kind: Kind::Mixed,
    seed: 20_260_730,
    notes: &[
        ("reseed", "at every run"),
        (
            "draws",
            "one per produced event, then one per processed delivery (also on second attempts; none for dangling)",
        ),
    ],
};

/// The model `claim-check`.
pub struct ClaimCheck;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    event_bytes: u64,
    #[serde(rename = "payload_bytes_DD8")]
    payload_bytes: u64,
    #[serde(rename = "check_bytes_DD9")]
    check_bytes: u64,
    events: u32,
    #[serde(rename = "producer_crash_DD10")]
    producer_crash: f64,
    #[serde(rename = "unacked_crash_DD10")]
    unacked_crash: f64,
}

const PARAMETERS: &str = r#"{
    "event_bytes": 220, "payload_bytes_DD8": 40000, "check_bytes_DD9": 64, "events": 100000,
    "producer_crash_DD10": 0.005, "unacked_crash_DD10": 0.01
}"#;

impl Parameters {
    fn bytes(&self) -> MessageBytes {
        MessageBytes { event: self.event_bytes, payload: self.payload_bytes, reference: self.check_bytes }
    }
}

/// Where payload travels and when it leaves the store.
#[derive(Clone, Copy)]
struct Run {
    layout: MessageLayout,
    retention: Retention,
}

/// The runs of a day, with the words of the table.
const RUNS: [(&str, &str, MessageLayout); 3] = [
    ("attached", "-", MessageLayout::Attached),
    ("check", "immediate", MessageLayout::Check),
    ("check", "lifetime", MessageLayout::Check),
];

struct Counts {
    deliveries: u64,
    bytes: u64,
    lost: u64,
    orphaned: u64,
    dangling: u64,
    processed: u64,
    in_store: usize,
    generator: Generator,
}

/// How often who ends at the wrong moment.
#[derive(Clone, Copy)]
struct Crashes {
    producer: f64,
    unacked: f64,
}

fn simulate(parameters: &Parameters, seed: u64, run: Run, crashes: Crashes) -> Counts {
    let now = Moment(0);
    let has_store = run.layout == MessageLayout::Check;
    let mut store = ClaimStore::new(run.retention);
    let mut generator = Generator::new(Kind::Mixed, seed);
    let mut queue = VecDeque::new();
    let mut lost = 0;
    for event in 0..parameters.events {
        if has_store {
            store.put(event, parameters.payload_bytes, now);
        }
        if generator.happens(crashes.producer) {
            lost += u64::from(!has_store);
            continue;
        }
        store.on_sent(event);
        queue.push_back((event, false));
    }
    // Who is never sent stays an orphan; what is deleted or kept afterwards does not change that.
    let orphaned = store.orphans();
    let (mut deliveries, mut processed) = (0, 0);
    while let Some((event, is_second)) = queue.pop_front() {
        deliveries += 1;
        if has_store && matches!(store.get(event, now), Claim::Dangling(_)) {
            continue;
        }
        processed += 1;
        store.on_processed(event);
        // A second delivery draws as well, and its end without acknowledgement is not tried a third time.
        if generator.happens(crashes.unacked) && !is_second {
            queue.push_back((event, true));
        }
    }
    let bytes = deliveries * run.layout.message_bytes(parameters.bytes());
    let (dangling, in_store) = (store.counters().claims.dangling(), store.payloads());
    Counts { deliveries, bytes, lost, orphaned, dangling, processed, in_store, generator }
}

impl Model for ClaimCheck {
    type Parameters = Parameters;

    const LESSON: u8 = 17;
    const TITLE: &'static str = "Claim Check Pattern";
    const NAME: &'static str = "claim-check";
    const SEEDING: Option<Seeding> = Some(SEEDING);
    const PARAMETERS: &'static str = PARAMETERS;

    fn settle(parameters: &mut Parameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("event_bytes", parameters.event_bytes, 0..=1 << 30)?;
        within("payload_bytes_DD8", parameters.payload_bytes, 0..=1 << 30)?;
        within("check_bytes_DD9", parameters.check_bytes, 0..=1 << 30)?;
        within("events", parameters.events, 0..=2_000_000)?;
        within("producer_crash_DD10", parameters.producer_crash, 0.0..=1.0)?;
        within("unacked_crash_DD10", parameters.unacked_crash, 0.0..=1.0)
    }

    fn run(parameters: &Parameters, seed: u64) -> Outcome {
        let bytes = parameters.bytes();
        let mut rows = vec![
            Row::of("message_bytes")
                .with("attached", MessageLayout::Attached.message_bytes(bytes))
                .with("check", MessageLayout::Check.message_bytes(bytes)),
        ];
        let failing = Crashes { producer: parameters.producer_crash, unacked: parameters.unacked_crash };
        let mut checkpoints = Vec::new();
        for (day, crashes) in [("failure-free", Crashes { producer: 0.0, unacked: 0.0 }), ("DD10", failing)] {
            rows.push(
                Row::of("condition")
                    .with("day", day)
                    .with("events", parameters.events)
                    .number("producer_crash", crashes.producer)
                    .number("unacked_crash", crashes.unacked),
            );
            for (layout_name, deletion, layout) in RUNS {
                let retention =
                    if deletion == "immediate" { Retention::Immediate } else { Retention::default() };
                let counts = simulate(parameters, seed, Run { layout, retention }, crashes);
                rows.push(
                    Row::of("layouts")
                        .with("day", day)
                        .with("layout", layout_name)
                        .with("deletion", deletion)
                        .with("deliveries", counts.deliveries)
                        .rounded("mb_moved", counts.bytes as f64 / 1e6, 2)
                        .with("lost_events", counts.lost)
                        .with("orphaned", counts.orphaned)
                        .with("dangling", counts.dangling)
                        .with("processed", counts.processed)
                        .with("in_store", counts.in_store),
                );
                let condition = Fields::new().with("condition", day);
                match (day, deletion) {
                    ("failure-free", "-") => checkpoints.push(condition.with_generator(&counts.generator)),
                    ("DD10", "-") => checkpoints.push(
                        condition
                            .with("layout", "attached or check/lifetime")
                            .with_generator(&counts.generator),
                    ),
                    ("DD10", "immediate") => checkpoints
                        .push(condition.with("layout", "check/immediate").with_generator(&counts.generator)),
                    _ => {}
                }
            }
        }
        Outcome { rows, generator: Fields::new().with("checkpoints", checkpoints) }
    }
}

/// The model `claim-check-cost`.
pub struct Cost;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostParameters {
    deliveries_per_day: f64,
    peak_factor: f64,
    write_entry_mbit: f64,
    growth_mb: f64,
    storage_gb: f64,
    backlog_events: f64,
    proof_share: f64,
    #[serde(rename = "lifetime_days_DD11")]
    lifetime_days: f64,
    dangling: f64,
    orphaned: f64,
}

/// A shorter and a longer lifetime, in days, beside the chosen one.
const SHORT_DAYS: f64 = 1.0;
const LONG_DAYS: f64 = 30.0;

impl Model for Cost {
    type Parameters = CostParameters;

    const LESSON: u8 = 17;
    const TITLE: &'static str = "Claim Check Pattern";
    const NAME: &'static str = "claim-check-cost";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "deliveries_per_day": 400000, "peak_factor": 3, "write_entry_mbit": 0.17, "growth_mb": 976,
        "storage_gb": 712.48, "backlog_events": 525000, "proof_share": 7, "lifetime_days_DD11": 7,
        "dangling": 987, "orphaned": 492
    }"#;

    fn settle(parameters: &mut CostParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("deliveries_per_day", parameters.deliveries_per_day, 0.0..=1e12)?;
        within("peak_factor", parameters.peak_factor, 0.0..=1e6)?;
        within("write_entry_mbit", parameters.write_entry_mbit, 0.001..=1e9)?;
        within("growth_mb", parameters.growth_mb, 0.001..=1e9)?;
        within("storage_gb", parameters.storage_gb, 0.001..=1e9)?;
        within("backlog_events", parameters.backlog_events, 0.0..=1e12)?;
        within("proof_share", parameters.proof_share, 0.001..=1e6)?;
        within("lifetime_days_DD11", parameters.lifetime_days, 0.0..=1e6)?;
        within("dangling", parameters.dangling, 0.0..=1e12)?;
        within("orphaned", parameters.orphaned, 0.0..=1e12)
    }

    fn run(parameters: &CostParameters, _seed: u64) -> Outcome {
        let model: Parameters = serde_json::from_str(PARAMETERS).expect("the published parameters");
        let per_s = parameters.deliveries_per_day / 86_400.0 * parameters.peak_factor;
        let backlog = parameters.backlog_events / parameters.proof_share;
        let mut rows = vec![Row::of("peak_deliveries").rounded("per_s", per_s, 4)];
        let layouts = [("attached", MessageLayout::Attached), ("check", MessageLayout::Check)];
        let sizes = layouts.map(|(name, layout)| {
            let bytes = layout.message_bytes(model.bytes());
            let mbit = per_s * bytes as f64 * 8.0 / 1e6;
            rows.push(
                Row::of("queue")
                    .with("layout", name)
                    .with("message_bytes", bytes)
                    .rounded("queue_mbit_per_s", mbit, 4)
                    .rounded("times_write_entry", mbit / parameters.write_entry_mbit, 2)
                    .rounded("backlog_mb", backlog * bytes as f64 / 1e6, 1),
            );
            bytes as f64
        });
        rows.push(
            Row::of("ratio")
                .rounded("queue_byte_ratio", sizes[0] / sizes[1], 1)
                .number("backlog_messages", backlog),
        );
        let payload = model.payload_bytes as f64;
        for days in [SHORT_DAYS, parameters.lifetime_days, LONG_DAYS] {
            let proofs = parameters.deliveries_per_day * days;
            let store_gb = proofs * payload / 1e9;
            rows.push(
                Row::of("lifetime_DD11")
                    .number("days", days)
                    .with("proofs", whole(proofs))
                    .rounded("store_gb", store_gb, 2)
                    .rounded("storage_pct", store_gb * 100.0 / parameters.storage_gb, 2)
                    .rounded("times_daily_growth", store_gb * 1_000.0 / parameters.growth_mb, 2),
            );
        }
        // The model's events are a sample of a day's.
        let scale = parameters.deliveries_per_day / f64::from(model.events);
        let (dangling, orphaned) = (parameters.dangling * scale, parameters.orphaned * scale);
        let orphaned_mb = orphaned * payload / 1e6;
        rows.extend([
            Row::of("failure_window").rounded("dangling_per_day", dangling, 0).rounded(
                "orphaned_per_day",
                orphaned,
                0,
            ),
            Row::of("orphaned_bytes").rounded("mb_per_day", orphaned_mb, 1).rounded(
                "gb_per_year",
                orphaned_mb * 365.0 / 1_000.0,
                2,
            ),
            // Who ends before sending loses with the message what it would have orphaned.
            Row::of("attached_loss").rounded("events", orphaned, 0),
        ]);
        Outcome { rows, generator: Fields::new() }
    }
}
