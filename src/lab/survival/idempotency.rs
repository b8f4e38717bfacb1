//! Lesson 15: deliveries that come twice, `idempotency` event by event and `idempotency-cost` in sum.

use std::collections::BTreeSet;

use orbitkv_shards::resilience::idempotency::{
    Delivery, Identity, KeyScope, LedgerPrice, Processor, StoreLoad, unbounded,
};
use orbitkv_shards::time::Moment;
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::generators::{Generator, Kind};
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};
use crate::lab::rounding::{self, whole};

const SEEDING: Seeding = Seeding {
    kind: Kind::Mixed,
    seed: 20_260_730,
    notes: &[("draws", "3 per distinct event in source order; none on the failure-free day")],
};

/// The model `idempotency`.
pub struct Idempotency;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    peak_write: f64,
    #[serde(rename = "window_s_DD1")]
    window_s: f64,
    events_per_shipment: usize,
    sequence: Vec<String>,
    #[serde(rename = "duplication_DD2")]
    duplication: Vec<Duplication>,
    side_effects: SideEffects,
}

/// Where second deliveries come from, and how often.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Duplication {
    source: String,
    p: f64,
}

impl Duplication {
    /// The source as a name of a column.
    fn column(&self) -> String {
        self.source.trim_start_matches("at-least-once ").replace([' ', '-'], "_")
    }
}

/// What an event sets off: for the last state of a shipment, and for every other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SideEffects {
    delivered: u64,
    other: u64,
}

/// The state that sets off more than the others.
const DELIVERED: &str = "delivered";

const PARAMETERS: &str = r#"{
    "peak_write": 97.22, "window_s_DD1": 90, "events_per_shipment": 7,
    "sequence": [
        "accepted", "transferred", "transferred", "transferred", "out-for-delivery", "delivery-attempt",
        "delivered"
    ],
    "duplication_DD2": [
        {"source": "carrier retry", "p": 0.2}, {"source": "replay on failover", "p": 0.1},
        {"source": "at-least-once redelivery", "p": 0.05}
    ],
    "side_effects": {"delivered": 3, "other": 1}
}"#;

impl Parameters {
    fn shipments(&self) -> u32 {
        (self.peak_write * self.window_s / self.events_per_shipment as f64).round() as u32
    }

    fn effects(&self, event: usize) -> u64 {
        if self.sequence[event] == DELIVERED { self.side_effects.delivered } else { self.side_effects.other }
    }

    /// The identity of an event: its state is named by the first event that brings it.
    fn identity(&self, shipment: u32, event: usize) -> Identity<u32> {
        let state = self.sequence.iter().position(|state| *state == self.sequence[event]).unwrap_or(event);
        Identity { subject: shipment, state: state as u32, occurrence: event as u64 }
    }
}

/// What has come: shipment and event, in order.
struct Stream {
    deliveries: Vec<(u32, usize)>,
    /// Second deliveries by their source.
    copies: Vec<u64>,
    delivered_copies: u64,
    generator: Generator,
}

fn emit(parameters: &Parameters, seed: u64, duplication: &[Duplication]) -> Stream {
    let mut stream = Stream {
        deliveries: Vec::new(),
        copies: vec![0; duplication.len()],
        delivered_copies: 0,
        generator: Generator::new(Kind::Mixed, seed),
    };
    for shipment in 0..parameters.shipments() {
        for event in 0..parameters.sequence.len() {
            stream.deliveries.push((shipment, event));
            for (source, copies) in duplication.iter().zip(&mut stream.copies) {
                if stream.generator.happens(source.p) {
                    stream.deliveries.push((shipment, event));
                    *copies += 1;
                    stream.delivered_copies += u64::from(parameters.sequence[event] == DELIVERED);
                }
            }
        }
    }
    stream
}

fn name(scope: KeyScope) -> &'static str {
    match scope {
        KeyScope::Subject => "tracking",
        KeyScope::State => "tracking+state",
        KeyScope::Occurrence => "tracking+state+event",
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    processed: u64,
    suppressed: u64,
    effects: u64,
    ledger: usize,
}

fn process(parameters: &Parameters, stream: &Stream, scope: KeyScope) -> Counts {
    let mut processor = Processor::new(scope, unbounded());
    let mut counts = Counts::default();
    for &(shipment, event) in &stream.deliveries {
        match processor.on_delivery(parameters.identity(shipment, event), Moment(0)) {
            Delivery::Process => {
                counts.processed += 1;
                counts.effects += parameters.effects(event);
            }
            Delivery::Suppress => counts.suppressed += 1,
        }
    }
    counts.ledger = processor.ledger().answers();
    counts
}

/// Effects if every delivery is processed.
fn unchecked_effects(parameters: &Parameters, stream: &Stream) -> u64 {
    stream.deliveries.iter().map(|(_, event)| parameters.effects(*event)).sum()
}

fn day_rows(parameters: &Parameters, day: &str, stream: &Stream) -> Vec<Row> {
    let unchecked = unchecked_effects(parameters, stream);
    let mut rows = vec![
        Row::of("stream")
            .with("day", day)
            .with("deliveries", stream.deliveries.len())
            .with("side_effects_without_ledger", unchecked),
    ];
    for scope in KeyScope::ALL {
        let counts = process(parameters, stream, scope);
        rows.push(
            Row::of("key_modes")
                .with("day", day)
                .with("key_mode", name(scope))
                .with("processed", counts.processed)
                .with("suppressed", counts.suppressed)
                .with("side_effects", counts.effects)
                .with("prevented", unchecked - counts.effects)
                .with("ledger", counts.ledger),
        );
    }
    rows
}

impl Model for Idempotency {
    type Parameters = Parameters;

    const LESSON: u8 = 15;
    const TITLE: &'static str = "Idempotent Operations";
    const NAME: &'static str = "idempotency";
    const SEEDING: Option<Seeding> = Some(SEEDING);
    const PARAMETERS: &'static str = PARAMETERS;

    fn settle(parameters: &mut Parameters, given: &Given<'_>) -> Result<(), Refusal> {
        within("peak_write", parameters.peak_write, 0.0..=1e6)?;
        within("window_s_DD1", parameters.window_s, 0.0..=1e6)?;
        let events = parameters.sequence.len();
        within("sequence (entries)", events, 1..=100)?;
        if !given.names("events_per_shipment") {
            parameters.events_per_shipment = events;
        }
        let given_events = parameters.events_per_shipment;
        let input = format!("events_per_shipment={given_events}");
        holds(given_events == events, input, "is the length of `sequence`", "leave it out")?;
        within("distinct events", u64::from(parameters.shipments()) * events as u64, 0..=2_000_000)?;
        within("duplication_DD2 (entries)", parameters.duplication.len(), 0..=16)?;
        let columns: BTreeSet<String> = parameters.duplication.iter().map(Duplication::column).collect();
        let differ = columns.len() == parameters.duplication.len();
        holds(differ, "duplication_DD2", "has a source twice", "name each once")?;
        let mut sources = parameters.duplication.iter();
        sources.try_for_each(|source| within("duplication_DD2.p", source.p, 0.0..=1.0))?;
        within("side_effects.delivered", parameters.side_effects.delivered, 0..=1_000_000)?;
        within("side_effects.other", parameters.side_effects.other, 0..=1_000_000)
    }

    fn run(parameters: &Parameters, seed: u64) -> Outcome {
        let free = emit(parameters, seed, &[]);
        let day = emit(parameters, seed, &parameters.duplication);
        let mut rows = vec![
            Row::of("setup")
                .with("shipments", parameters.shipments())
                .with("events_per_shipment", parameters.events_per_shipment)
                .with("distinct_events", free.deliveries.len()),
            Row::of("inputs")
                .number("peak_write", parameters.peak_write)
                .number("window_s", parameters.window_s),
        ];
        rows.extend(day_rows(parameters, "failure-free", &free));
        rows.extend(day_rows(parameters, "DD2", &day));
        let mut split = Row::of("source_split");
        for (source, copies) in parameters.duplication.iter().zip(&day.copies) {
            split = split.with(&source.column(), *copies);
        }
        rows.push(split);
        rows.push(
            Row::of("duplicates")
                .with("deliveries", day.copies.iter().sum::<u64>())
                .with("delivered_events", day.delivered_copies)
                .with("invoice_lines", day.delivered_copies)
                .with("notifications", day.delivered_copies),
        );
        let checkpoint = Fields::new().with("day", "DD2").with_generator(&day.generator);
        Outcome { rows, generator: Fields::new().with("checkpoints", vec![checkpoint]) }
    }
}

/// The model `idempotency-cost`.
pub struct Cost;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostParameters {
    #[serde(rename = "record_bytes_DD3")]
    record_bytes: f64,
    #[serde(rename = "window_h_DD3")]
    window_h: f64,
    events_per_day: f64,
    shipments_per_day: f64,
    daily_growth_mb: f64,
    peak_write: f64,
    reads_behind_cache: f64,
    windows_per_month: u32,
}

impl CostParameters {
    fn check(&self) -> Result<(), Refusal> {
        for (name, value) in [
            ("record_bytes_DD3", self.record_bytes),
            ("window_h_DD3", self.window_h),
            ("events_per_day", self.events_per_day),
            ("shipments_per_day", self.shipments_per_day),
            ("daily_growth_mb", self.daily_growth_mb),
            ("peak_write", self.peak_write),
            ("reads_behind_cache", self.reads_behind_cache),
        ] {
            within(name, value, 0.001..=1e12)?;
        }
        within("windows_per_month", self.windows_per_month, 0..=1_000_000)
    }
}

/// Days of a month.
const MONTH_DAYS: f64 = 30.0;

impl Model for Cost {
    type Parameters = CostParameters;

    const LESSON: u8 = 15;
    const TITLE: &'static str = "Idempotent Operations";
    const NAME: &'static str = "idempotency-cost";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "record_bytes_DD3": 72, "window_h_DD3": 24, "events_per_day": 2800000, "shipments_per_day": 400000,
        "daily_growth_mb": 976, "peak_write": 97.22, "reads_behind_cache": 41.67, "windows_per_month": 2
    }"#;

    fn settle(parameters: &mut CostParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        parameters.check()
    }

    fn run(parameters: &CostParameters, _seed: u64) -> Outcome {
        let keys_per_day = parameters.events_per_day + parameters.shipments_per_day;
        let (bytes, hours) = (parameters.record_bytes, parameters.window_h);
        let mut rows = vec![
            Row::of("keyed_writes")
                .number("total", keys_per_day)
                .number("state_events", parameters.events_per_day)
                .number("shipments", parameters.shipments_per_day),
        ];
        // As chosen, with records twice as large, with three times the window, and with one hour of it.
        for (window_h, record_bytes) in
            [(hours, bytes), (hours, bytes * 2.0), (hours * 3.0, bytes), (1.0, bytes)]
        {
            let price = LedgerPrice { keys_per_day, window_h, record_bytes };
            let mb = price.bytes() / 1e6;
            rows.push(
                Row::of("ledger")
                    .number("window_h", window_h)
                    .number("record_bytes", record_bytes)
                    .with("records", whole(price.records()))
                    .rounded("mb", mb, 2)
                    .rounded("daily_growth_pct", mb * 100.0 / parameters.daily_growth_mb, 2),
            );
        }
        let before = StoreLoad { writes: parameters.peak_write, reads: parameters.reads_behind_cache };
        let after = before.with_ledger();
        let change = |table, before: f64, after: f64| {
            let row = Row::of(table).number("before", before).rounded("after", after, 2);
            row.rounded("factor", after / before, 2)
        };
        rows.push(change("write_rows", before.writes, after.writes));
        rows.push(change("reads", before.reads, after.reads));
        rows.push(
            Row::of("write_read_ratio")
                .with("before", rounding::number(before.writes_per_read(), 2))
                .rounded("after", after.writes_per_read(), 2),
        );
        rows.extend(measured_rows(parameters));
        Outcome { rows, generator: Fields::new() }
    }
}

/// Rows that follow from what the other model counted with its published parameters.
fn measured_rows(parameters: &CostParameters) -> Vec<Row> {
    let published: Parameters = serde_json::from_str(PARAMETERS).expect("the published parameters");
    let day = emit(&published, SEEDING.seed, &published.duplication);
    let kept = process(&published, &day, KeyScope::Occurrence);
    let prevented = unchecked_effects(&published, &day) - kept.effects;
    let mut rows = Vec::new();
    for windows in [parameters.windows_per_month, 2 * parameters.windows_per_month] {
        let of_month = |count: u64| count * u64::from(windows);
        let lines = of_month(day.delivered_copies) as f64;
        let share_pct = lines * 100.0 / (parameters.shipments_per_day * MONTH_DAYS);
        rows.push(
            Row::of("month")
                .with("windows", windows)
                .with("side_effects_prevented", of_month(prevented))
                .with("duplicate_invoice_lines", of_month(day.delivered_copies))
                .rounded("pct", share_pct, 5),
        );
    }
    let free = emit(&published, SEEDING.seed, &[]);
    let suppressed = |scope| {
        let of_shipment =
            process(&published, &free, scope).suppressed as f64 / f64::from(published.shipments());
        whole(of_shipment * parameters.shipments_per_day)
    };
    rows.push(
        Row::of("wrong_scope")
            .with("tracking_state_suppressed", suppressed(KeyScope::State))
            .with("tracking_suppressed", suppressed(KeyScope::Subject)),
    );
    rows
}
