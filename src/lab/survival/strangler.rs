//! Lesson 20, `strangler`: in which order operations move from one layout to another.

use std::collections::{BTreeMap, BTreeSet};

use orbitkv_shards::resilience::strangler::{MigrationPlan, MigrationStep, MoveOrder, Revert, Route};
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::base_rates::EDGE_PEAK;
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};
use crate::lab::rounding::whole;

/// The model.
pub struct Strangler;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    routes: Vec<RouteParameters>,
    writes_per_day: BTreeMap<String, u64>,
    scan_rate: f64,
    #[serde(rename = "routing_entry_lifetime_s_DD20")]
    routing_lifetime_s: f64,
    #[serde(rename = "facade_share_ms_DD19")]
    facade_share_ms: f64,
    #[serde(rename = "invoice_reads_DD18")]
    invoice_reads: u64,
    failure_share_s: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteParameters {
    name: String,
    volume: u64,
    touches: BTreeSet<String>,
}

impl Parameters {
    fn plan(&self) -> MigrationPlan {
        let route = |route: &RouteParameters| Route {
            name: route.name.clone(),
            volume: route.volume,
            touches: route.touches.clone(),
        };
        MigrationPlan::new(self.routes.iter().map(route).collect(), self.writes_per_day.clone())
    }

    fn share_pct(&self, seconds: f64) -> f64 {
        seconds * 100.0 / self.failure_share_s
    }
}

/// State whose writes are brought back when a move is taken back.
const REVERTED: &str = "event";

/// Seconds after which it is.
const REVERTS: [(&str, f64); 3] = [("0", 0.0), ("1 hour", 3_600.0), ("1 day", 86_400.0)];

/// The step of which the worst day is told: the first with this part of all requests moved.
const FAILING_SHARE: f64 = 0.5;

/// Seconds that a facade needs to notice a failure.
const FACADE_S: f64 = 1.0;

/// A whole move in one order.
struct Migration {
    name: &'static str,
    steps: Vec<MigrationStep>,
    dual_write_area: f64,
    moved_area: f64,
}

impl Migration {
    fn new(plan: &MigrationPlan, name: &'static str, mode: MoveOrder) -> Migration {
        let steps = plan.steps(&plan.order(mode));
        let dual_write_area = steps.iter().map(|step| step.dual_writes_per_s).sum();
        let moved_area = steps.iter().map(|step| step.moved_share).sum();
        Migration { name, steps, dual_write_area, moved_area }
    }

    fn rows(&self, plan: &MigrationPlan) -> Vec<Row> {
        let row = |(index, step): (usize, &MigrationStep)| {
            Row::of("steps")
                .with("order", self.name)
                .with("step", index + 1)
                .with("route", plan.routes()[step.route].name.as_str())
                .rounded("moved_traffic_pct", step.moved_share * 100.0, 2)
                .with("split_entities", step.split_entities)
                .rounded("dual_writes_per_s", step.dual_writes_per_s, 2)
        };
        let mut rows: Vec<Row> = self.steps.iter().enumerate().map(row).collect();
        rows.push(
            Row::of("areas")
                .with("order", self.name)
                .rounded("dual_write_area", self.dual_write_area, 2)
                .rounded("moved_traffic_area", self.moved_area, 4),
        );
        rows
    }

    /// What goes wrong if the new layout fails once half of all requests have moved.
    fn failing_day(&self, parameters: &Parameters) -> Option<Row> {
        let index = self.steps.iter().position(|step| step.moved_share >= FAILING_SHARE)?;
        let moved = self.steps[index].moved_share;
        let dropped = |seconds: f64| moved * EDGE_PEAK * seconds;
        let unnoticed = dropped(parameters.routing_lifetime_s);
        let row = Row::of("failing_day")
            .with("order", self.name)
            .with("step", index + 1)
            .rounded("moved_traffic_pct", moved * 100.0, 2)
            .rounded("facade_dropped", dropped(FACADE_S), 0)
            .rounded("dd20_dropped", unnoticed, 0)
            .rounded("equiv_outage_s", unnoticed / EDGE_PEAK, 2)
            .rounded("failure_share_pct", unnoticed * 100.0 / EDGE_PEAK / parameters.failure_share_s, 2);
        Some(row)
    }
}

impl Model for Strangler {
    type Parameters = Parameters;

    const LESSON: u8 = 20;
    const TITLE: &'static str = "Strangler Fig Pattern";
    const NAME: &'static str = "strangler";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "routes": [
            {"name": "tracking-query", "volume": 12000000, "touches": ["event", "shipment"]},
            {"name": "status-event", "volume": 2800000, "touches": ["event", "shipment"]},
            {"name": "shipment-create", "volume": 400000, "touches": ["shipment"]},
            {"name": "proof-upload", "volume": 400000, "touches": ["event", "proof"]},
            {"name": "proof-read", "volume": 8000, "touches": ["proof"]},
            {"name": "billing-period", "volume": 4000, "touches": ["event", "invoice", "shipment", "tariff"]},
            {"name": "invoice-read", "volume": 4000, "touches": ["invoice"]},
            {"name": "tariff-admin", "volume": 1, "touches": ["tariff"]}
        ],
        "writes_per_day": {"shipment": 400000, "event": 2800000, "proof": 400000, "invoice": 4000, "tariff": 1},
        "scan_rate": 833.33, "routing_entry_lifetime_s_DD20": 60, "facade_share_ms_DD19": 20,
        "invoice_reads_DD18": 4000, "failure_share_s": 1692
    }"#;

    fn settle(parameters: &mut Parameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("routes (entries)", parameters.routes.len(), 1..=64)?;
        for route in &parameters.routes {
            within(&format!("routes.{}.volume", route.name), route.volume, 0..=1_000_000_000_000)?;
        }
        let volume: u64 = parameters.routes.iter().map(|route| route.volume).sum();
        holds(volume > 0, "routes", "have no requests at all", "give one of them a volume")?;
        for (name, writes) in &parameters.writes_per_day {
            within(&format!("writes_per_day.{name}"), *writes, 0..=1_000_000_000_000)?;
        }
        within("scan_rate", parameters.scan_rate, 0.001..=1e9)?;
        within("routing_entry_lifetime_s_DD20", parameters.routing_lifetime_s, 0.0..=1e9)?;
        within("facade_share_ms_DD19", parameters.facade_share_ms, 0.0..=1e9)?;
        within("failure_share_s", parameters.failure_share_s, 0.001..=1e9)
    }

    fn run(parameters: &Parameters, _seed: u64) -> Outcome {
        let plan = parameters.plan();
        let volume = Migration::new(&plan, "volume", MoveOrder::Volume);
        let state = Migration::new(&plan, "state", MoveOrder::State);
        let mut rows = vec![
            Row::of("setup")
                .with("routes", plan.routes().len())
                .with("entities", parameters.writes_per_day.len())
                .with("requests_per_day", plan.volume()),
        ];
        rows.extend(volume.rows(&plan));
        rows.extend(state.rows(&plan));
        let ratio = |of: f64, to: f64| (to > 0.0).then(|| of / to);
        rows.push(
            Row::of("ratio")
                .rounded("dual_writes", ratio(volume.dual_write_area, state.dual_write_area), 2)
                .rounded("moved_traffic", ratio(volume.moved_area, state.moved_area), 2),
        );
        let writes = parameters.writes_per_day.get(REVERTED).copied().unwrap_or_default() as f64;
        for (after, seconds) in REVERTS {
            let revert = Revert::after(seconds, writes, parameters.scan_rate);
            rows.push(
                Row::of("revert")
                    .with("after", after)
                    .with("backfill_events", whole(revert.backfill))
                    .rounded("revert_s", revert.seconds, 2)
                    .rounded("failure_share_pct", parameters.share_pct(revert.seconds), 2),
            );
        }
        rows.extend([&volume, &state].into_iter().filter_map(|migration| migration.failing_day(parameters)));
        Outcome { rows, generator: Fields::new() }
    }
}
