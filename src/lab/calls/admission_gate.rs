//! Lesson 7, `admission-gate`: ceilings for each flow, shedding by class, both or neither, on a day on which
//! one flow surges and on one on which capacity is lost.

use std::collections::VecDeque;
use std::time::Duration;

use orbitkv_shards::resilience::gate::{Class, Refill, Shedder, Throttle, Verdict};
use orbitkv_shards::time::Moment;
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::base_rates::{EDGE_PEAK, FAILURE_SHARE_MIN};
use crate::lab::generators::Accumulator;
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

/// Batch rates that the sensitivity asks about, a round.
const BATCH_RATES: [f64; 2] = [3.0, 6.0];
/// Capacities that the sensitivity asks about, in units.
const CAPACITIES: [u64; 2] = [595, 455];
/// Places of the flows in the parameters.
const EVENT: usize = 0;
const TRACKING: usize = 1;
const BATCH: usize = 2;
const FLOWS: [&str; 3] = ["event", "tracking", "batch"];

/// The model.
pub struct AdmissionGate;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    rounds: u32,
    #[serde(rename = "capacity_AY12")]
    capacity: u64,
    queue_limit: QueueLimit,
    ceiling_ratio: f64,
    flows: [Flow; 3],
    tracking_oscillation: Vec<f64>,
    #[serde(rename = "AY13a")]
    surge: Surge,
    #[serde(rename = "AY13b")]
    node_loss: NodeLoss,
}

/// Units that may be queued: so many, or that many times the capacity (`2 x capacity`).
#[derive(Clone, Copy, Debug, PartialEq)]
enum QueueLimit {
    Times(f64),
    Units(u64),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Flow {
    name: String,
    /// Units that a request takes.
    unit: u64,
    /// Requests a round.
    rate: f64,
    /// 1 is let in first.
    tier: u8,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Surge {
    batch_rate: f64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeLoss {
    capacity: u64,
    minutes: f64,
    per_month: f64,
}

impl QueueLimit {
    fn units(self, capacity: u64) -> u64 {
        match self {
            QueueLimit::Times(factor) => (factor * capacity as f64) as u64,
            QueueLimit::Units(units) => units,
        }
    }
}

impl Serialize for QueueLimit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            QueueLimit::Times(factor) => serializer.collect_str(&format_args!("{factor} x capacity")),
            QueueLimit::Units(units) => serializer.serialize_u64(*units),
        }
    }
}

impl<'de> Deserialize<'de> for QueueLimit {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<QueueLimit, D::Error> {
        let text = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        let times = text.strip_suffix("x capacity").and_then(|factor| factor.trim().parse::<f64>().ok());
        match (times, text.parse()) {
            (Some(factor), _) if (0.0..=1e6).contains(&factor) => Ok(QueueLimit::Times(factor)),
            (None, Ok(units)) => Ok(QueueLimit::Units(units)),
            _ => Err(serde::de::Error::custom(format!(
                "`{text}` is neither a number of units nor a multiple like `2 x capacity`"
            ))),
        }
    }
}

/// What stands at the gate.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    throttles: bool,
    sheds: bool,
}

const SETTINGS: [Setting; 4] = [
    Setting { name: "neither", throttles: false, sheds: false },
    Setting { name: "throttling only", throttles: true, sheds: false },
    Setting { name: "shedding only", throttles: false, sheds: true },
    Setting { name: "both", throttles: true, sheds: true },
];
const THROTTLING: usize = 1;
const SHEDDING: usize = 2;
const BOTH: usize = 3;

/// A day: how much can be served a round, and how much batch work comes.
#[derive(Clone, Copy)]
struct Day {
    capacity: u64,
    batch_rate: f64,
}

/// What is counted in a run, by flow.
#[derive(Clone, Debug, Default)]
struct Counts {
    accepted: [u64; 3],
    throttled: [u64; 3],
    shed: [u64; 3],
    oldest_age: u32,
    backlog: u64,
    pending_age: u32,
}

impl Counts {
    fn rejected(&self) -> u64 {
        self.throttled.iter().chain(&self.shed).sum()
    }
}

impl Parameters {
    const fn usual(&self) -> Day {
        Day { capacity: self.capacity, batch_rate: self.flows[BATCH].rate }
    }

    fn class(&self, flow: usize) -> Class {
        match self.flows[flow].tier {
            1 => Class::Release,
            2 => Class::Demand,
            _ => Class::Background,
        }
    }

    fn ceiling(&self, flow: usize) -> f64 {
        self.flows[flow].rate * self.ceiling_ratio
    }

    /// Units of a usual round.
    fn demand(&self) -> f64 {
        self.flows.iter().map(|flow| flow.rate * flow.unit as f64).sum()
    }

    fn simulate(&self, setting: Setting, day: Day, oscillation: &[f64]) -> Counts {
        let refill = |flow| Refill::EachTick { ceiling: self.ceiling(flow) };
        let mut throttles = [EVENT, TRACKING, BATCH].map(|flow| Throttle::new(refill(flow), Moment(0)));
        let shedder = Shedder::uniform(self.queue_limit.units(day.capacity));
        let mut sources = [Accumulator::default(); 3];
        // Flow and round of what waits.
        let mut queue: VecDeque<(usize, u32)> = VecDeque::new();
        let mut counts = Counts::default();
        for round in 1..=self.rounds {
            let mut arrivals = Vec::new();
            for flow in [EVENT, TRACKING, BATCH] {
                throttles[flow].tick(Moment(u64::from(round)));
                let rate = match flow {
                    TRACKING => self.flows[flow].rate * oscillation[(round as usize - 1) % oscillation.len()],
                    BATCH => day.batch_rate,
                    _ => self.flows[flow].rate,
                };
                for _ in 0..sources[flow].arrivals(rate) {
                    if setting.throttles && throttles[flow].take(1.0).is_err() {
                        counts.throttled[flow] += 1;
                    } else {
                        arrivals.push(flow);
                    }
                }
            }
            arrivals.sort_by_key(|flow| self.class(*flow));
            for flow in arrivals {
                let unit = self.flows[flow].unit;
                let age = queue.front().map_or(0, |(_, since)| round - since);
                let waited = Duration::from_nanos(u64::from(age));
                let verdict = shedder.admit(self.class(flow), unit, counts.backlog, waited);
                if setting.sheds && verdict != Verdict::Admit {
                    counts.shed[flow] += 1;
                } else {
                    counts.accepted[flow] += 1;
                    counts.backlog += unit;
                    queue.push_back((flow, round));
                }
            }
            let mut left = day.capacity;
            while let Some((flow, since)) = queue.front().copied() {
                let unit = self.flows[flow].unit;
                if unit > left {
                    break;
                }
                left -= unit;
                counts.backlog -= unit;
                counts.oldest_age = counts.oldest_age.max(round - since);
                queue.pop_front();
            }
        }
        counts.pending_age = queue.front().map_or(0, |(_, since)| self.rounds - since);
        counts
    }
}

fn run_row(day: &str, setting: Setting, counts: &Counts) -> Row {
    Row::of("runs")
        .with("day", day)
        .with("setting", setting.name)
        .with("accepted", counts.accepted.to_vec())
        .with("throttled", counts.throttled.to_vec())
        .with("shed", counts.shed.to_vec())
        .with("oldest_age", counts.oldest_age)
        .with("backlog", counts.backlog)
        .with("pending_age", counts.pending_age)
}

impl Model for AdmissionGate {
    type Parameters = Parameters;

    const LESSON: u8 = 7;
    const TITLE: &'static str = "Throttling and Load Shedding";
    const NAME: &'static str = "admission-gate";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "rounds": 600, "capacity_AY12": 700, "queue_limit": "2 x capacity", "ceiling_ratio": 1.2,
        "flows": [
            {"name": "event", "unit": 1, "rate": 97.22, "tier": 1},
            {"name": "tracking", "unit": 1, "rate": 416.67, "tier": 2},
            {"name": "batch", "unit": 60, "rate": 1.5, "tier": 3}
        ],
        "tracking_oscillation": [0.85, 0.85, 0.85, 1.45],
        "AY13a": {"batch_rate": 4.5}, "AY13b": {"capacity": 525, "minutes": 8, "per_month": 2}
    }"#;

    fn settle(parameters: &mut Parameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("rounds", parameters.rounds, 1..=10_000)?;
        within("capacity_AY12", parameters.capacity, 1..=10_000_000)?;
        within("ceiling_ratio", parameters.ceiling_ratio, 0.0..=1_000.0)?;
        for (flow, name) in parameters.flows.iter().zip(FLOWS) {
            holds(
                flow.name == name,
                format_args!("flow `{}`", flow.name),
                "flows keep their names and order",
                name,
            )?;
            within(&format!("flows.{name}.unit"), flow.unit, 1..=1_000_000)?;
            within(&format!("flows.{name}.rate"), flow.rate, 0.001..=2_000.0)?;
            within(&format!("flows.{name}.tier"), flow.tier, 1..=3)?;
        }
        within("tracking_oscillation (entries)", parameters.tracking_oscillation.len(), 1..=10_000)?;
        for (index, multiplier) in parameters.tracking_oscillation.iter().enumerate() {
            within(&format!("tracking_oscillation.{index}"), *multiplier, 0.0..=10.0)?;
        }
        within("AY13a.batch_rate", parameters.surge.batch_rate, 0.0..=2_000.0)?;
        within("AY13b.capacity", parameters.node_loss.capacity, 1..=10_000_000)?;
        within("AY13b.minutes", parameters.node_loss.minutes, 0.0..=1e6)?;
        within("AY13b.per_month", parameters.node_loss.per_month, 0.0..=1e6)
    }

    fn run(parameters: &Parameters, _seed: u64) -> Outcome {
        let usual = parameters.usual();
        let surge = Day { batch_rate: parameters.surge.batch_rate, ..usual };
        let node_loss = Day { capacity: parameters.node_loss.capacity, ..usual };
        let run = |setting, day| parameters.simulate(setting, day, &parameters.tracking_oscillation);
        let demand = parameters.demand();
        let mut rows = vec![
            Row::of("capacity")
                .with("capacity", parameters.capacity)
                .rounded("usual_demand", demand, 2)
                .rounded("utilization_pct", demand * 100.0 / parameters.capacity as f64, 1),
            Row::of("ceilings")
                .number("ratio", parameters.ceiling_ratio)
                .rounded("event", parameters.ceiling(EVENT), 2)
                .rounded("tracking", parameters.ceiling(TRACKING), 2)
                .rounded("batch", parameters.ceiling(BATCH), 2),
        ];
        let [free, surged, lost] =
            [usual, surge, node_loss].map(|day| SETTINGS.map(|setting| run(setting, day)));
        for (name, runs) in [("failure-free", &free), ("AY13a", &surged), ("AY13b", &lost)] {
            rows.extend(SETTINGS.iter().zip(runs).map(|(setting, counts)| run_row(name, *setting, counts)));
        }
        let rounds = f64::from(parameters.rounds);
        let shedding = &lost[SHEDDING];
        let kept = (shedding.accepted[EVENT] + shedding.accepted[TRACKING]) as f64 / rounds;
        rows.push(
            Row::of("peak_kept")
                .rounded("kept_req_per_round", kept, 2)
                .number("edge_peak", EDGE_PEAK)
                .rounded("ratio", kept / EDGE_PEAK, 4),
        );
        let batch = &parameters.flows[BATCH];
        rows.push(Row::of("gap").rounded("batch_units", batch.rate * batch.unit as f64, 2).rounded(
            "node_loss_gap",
            demand - node_loss.capacity as f64,
            2,
        ));
        let NodeLoss { minutes, per_month, .. } = parameters.node_loss;
        let total = minutes * per_month;
        rows.push(
            Row::of("ungated_outage")
                .number("minutes", minutes)
                .number("times", per_month)
                .number("total", total)
                .rounded("pct", total * 100.0 / FAILURE_SHARE_MIN, 1)
                .number("failure_share", FAILURE_SHARE_MIN),
        );
        rows.push(Row::of("gated_rejection").rounded(
            "rejected_req_per_round",
            shedding.rejected() as f64 / rounds,
            2,
        ));
        let throttled = free[THROTTLING].throttled[TRACKING];
        let arrived = throttled + free[THROTTLING].accepted[TRACKING];
        let share = (arrived > 0).then(|| throttled as f64 * 100.0 / arrived as f64);
        rows.push(
            Row::of("throttle_cost").with("rejected_tracking", throttled).rounded("pct", share, 2).rounded(
                "req_per_s",
                throttled as f64 / rounds,
                2,
            ),
        );
        let flat = parameters.simulate(SETTINGS[THROTTLING], usual, &[1.0]);
        rows.push(Row::of("throttle_cost_flat").with("rejected_tracking", flat.throttled[TRACKING]));
        rows.push(
            Row::of("shed_cost")
                .with("rejections", free[SHEDDING].rejected())
                .with("oldest_age", free[SHEDDING].oldest_age)
                .with("gateless_oldest_age", free[0].oldest_age),
        );
        let rates =
            BATCH_RATES.map(|batch_rate| (format!("batch {batch_rate:.1}"), Day { batch_rate, ..usual }));
        let capacities =
            CAPACITIES.map(|capacity| (format!("capacity {capacity}"), Day { capacity, ..usual }));
        for (scenario, day) in rates.into_iter().chain(capacities) {
            let counts = run(SETTINGS[BOTH], day);
            rows.push(
                Row::of("sensitivity_AY13")
                    .with("scenario", scenario)
                    .with("accepted", counts.accepted.to_vec())
                    .with("total_rejected", counts.rejected()),
            );
        }
        Outcome { rows, generator: Fields::new() }
    }
}
