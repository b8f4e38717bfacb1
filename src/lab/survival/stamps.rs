//! Lesson 13: how far a failure reaches when a service is cut into stamps, `stamps`, and what each of them
//! has to carry, `stamp-load`.

use std::collections::BTreeSet;

use orbitkv_shards::resilience::stamps::{Flow, Scope, StampReport, StampSize};
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};
use crate::lab::rounding::{self, whole};

/// The model `stamps`.
pub struct Stamps;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StampParameters {
    stamps: u64,
    flows: OfFlows<Vec<String>>,
    load: OfFlows<f64>,
    shared: Placements,
}

/// Something of each flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfFlows<Part> {
    tracking: Part,
    event: Part,
    billing: Part,
}

/// What stamps share, for each way of placing components.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Placements {
    single_piece: Shared,
    shared_stamp: Shared,
    self_contained: Shared,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Shared {
    Named(BTreeSet<String>),
    All(All),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum All {
    All,
}

impl StampParameters {
    fn flows(&self) -> Vec<Flow> {
        let flow = |name: &str, load: f64, components: &[String]| Flow {
            name: name.into(),
            load,
            components: components.to_vec(),
        };
        vec![
            flow("tracking", self.load.tracking, &self.flows.tracking),
            flow("event", self.load.event, &self.flows.event),
            flow("billing", self.load.billing, &self.flows.billing),
        ]
    }

    /// Each way of placing components, by name; without stamps all is one piece.
    fn reports(&self) -> [(&'static str, StampReport); 3] {
        let flows = self.flows();
        let report = |shared: &Shared, stamps| {
            let all = || flows.iter().flat_map(|flow| flow.components.iter().cloned()).collect();
            let shared = match shared {
                Shared::All(All::All) => all(),
                Shared::Named(names) => names.clone(),
            };
            StampReport::new(flows.clone(), shared, stamps)
        };
        [
            ("single-piece", report(&self.shared.single_piece, 1)),
            ("shared-stamp", report(&self.shared.shared_stamp, self.stamps)),
            ("self-contained", report(&self.shared.self_contained, self.stamps)),
        ]
    }
}

impl Model for Stamps {
    type Parameters = StampParameters;

    const LESSON: u8 = 13;
    const TITLE: &'static str = "Deployment Stamps and Geo-Replicas";
    const NAME: &'static str = "stamps";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "stamps": 4,
        "flows": {
            "tracking": ["routing", "edge", "tracking-service", "cache", "state-store"],
            "event": ["routing", "edge", "event-queue", "state-store", "number-dispenser"],
            "billing": ["billing-job", "state-store", "tariff-store"]
        },
        "load": {"tracking": 8, "event": 2, "billing": 1},
        "shared": {
            "single-piece": "all",
            "shared-stamp": ["cache", "number-dispenser", "routing", "tariff-store"],
            "self-contained": ["routing"]
        }
    }"#;

    fn settle(parameters: &mut StampParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("stamps", parameters.stamps, 1..=1_000_000)?;
        let loads = [
            ("load.tracking", parameters.load.tracking),
            ("load.event", parameters.load.event),
            ("load.billing", parameters.load.billing),
        ];
        for (name, load) in loads {
            within(name, load, 0.0..=1e9)?;
        }
        within("load (all flows)", loads.iter().map(|(_, load)| load).sum(), 0.001..=1e10)?;
        for flow in parameters.flows() {
            within(&format!("flows.{} (entries)", flow.name), flow.components.len(), 0..=1_000)?;
        }
        Ok(())
    }

    fn run(parameters: &StampParameters, _seed: u64) -> Outcome {
        let reports = parameters.reports();
        let mut rows = Vec::new();
        for (placement, report) in &reports {
            rows.push(
                Row::of("placements")
                    .with("placement", *placement)
                    .with("stamps", report.stamps())
                    .with("shared", report.count(Scope::Shared))
                    .with("stamp_local", report.count(Scope::Local))
                    .with("crossing_links", report.crossing_links()),
            );
        }
        for component in reports[0].1.components() {
            let mut row = Row::of("blast").with("component", component.as_str());
            for (placement, report) in &reports {
                let radius = report.radius(component);
                let cell = Fields::new()
                    .with("affected_pct", rounding::number(radius.affected_pct, 1))
                    .with("stamps", radius.stamps)
                    .with("of", report.stamps());
                let path = format!("{placement}.affected_pct");
                row = row.with(placement, cell).noting(&path, radius.affected_pct, 1);
            }
            rows.push(row);
        }
        Outcome { rows, generator: Fields::new() }
    }
}

/// The model `stamp-load`.
pub struct Load;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadParameters {
    edge_peak: f64,
    store_req_per_s: f64,
    write_peak: f64,
    shipments_per_day: f64,
    stamp_local_components: u64,
    shared_components: u64,
}

/// Numbers of stamps that are compared.
const STAMPS: [u32; 5] = [1, 2, 4, 8, 16];

impl Model for Load {
    type Parameters = LoadParameters;

    const LESSON: u8 = 13;
    const TITLE: &'static str = "Deployment Stamps and Geo-Replicas";
    const NAME: &'static str = "stamp-load";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "edge_peak": 513.89, "store_req_per_s": 138.89, "write_peak": 97.22, "shipments_per_day": 400000,
        "stamp_local_components": 8, "shared_components": 1
    }"#;

    fn settle(parameters: &mut LoadParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("edge_peak", parameters.edge_peak, 0.0..=1e9)?;
        within("store_req_per_s", parameters.store_req_per_s, 0.0..=1e9)?;
        within("write_peak", parameters.write_peak, 0.0..=1e9)?;
        within("shipments_per_day", parameters.shipments_per_day, 0.0..=1e12)?;
        within("stamp_local_components", parameters.stamp_local_components, 0..=1_000_000)?;
        within("shared_components", parameters.shared_components, 0..=1_000_000)
    }

    fn run(parameters: &LoadParameters, _seed: u64) -> Outcome {
        let mut rows = Vec::new();
        for stamps in STAMPS {
            let each = |load: f64| load / f64::from(stamps);
            rows.push(
                Row::of("per_stamp")
                    .with("stamps", stamps)
                    .rounded("edge", each(parameters.edge_peak), 2)
                    .rounded("store", each(parameters.store_req_per_s), 2)
                    .rounded("writes", each(parameters.write_peak), 2)
                    .rounded("blast_pct", each(100.0), 2)
                    .with("daily_shipments", whole(each(parameters.shipments_per_day))),
            );
        }
        let (local, shared) = (parameters.stamp_local_components, parameters.shared_components);
        let size = StampSize { local, shared };
        for stamps in STAMPS.map(u64::from) {
            rows.push(
                Row::of("components")
                    .with("stamps", stamps)
                    .with("total", size.total(stamps))
                    .with("with_geo_replicas", size.total_with_geo_replicas(stamps))
                    .with("stamps_touched_by_billing", stamps),
            );
        }
        // What still reaches everybody when each stamp has its own of everything else.
        let flows: StampParameters =
            serde_json::from_str(Stamps::PARAMETERS).expect("the published parameters");
        let [_, _, (_, self_contained)] = flows.reports();
        let floor_pct = self_contained.shared_floor().map(|radius| radius.affected_pct);
        rows.push(Row::of("shared_floor").with("pct", floor_pct.map(|pct| rounding::number(pct, 1))));
        Outcome { rows, generator: Fields::new() }
    }
}
