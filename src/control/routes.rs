//! `/cache/routes`: from whom the latest blocks were fetched, what else could have been done, and what came of it;
//! and the counters of that.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use orbitkv_shards::planner::{ByAge, PlanKind, PlannerFigures, REPLANS, Route, RouteTrace, TrialOutcome};
use orbitkv_wire::inventory::ResourceSummary;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::http::{Answer, NodePort, Shared};

/// How a core chooses who is asked for blocks, counters unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanningReport {
    /// Batches.
    pub batches: u64,
    /// Blocks of those.
    pub blocks: u64,
    /// Batches of which no block had two ways.
    pub one_route: u64,
    /// Batches left as they were because too little was seen of a route.
    pub few_successes: u64,
    /// Batches larger than what their routes were seen to do.
    pub beyond_reach: u64,
    /// Batches with more plans than are priced.
    pub exhausted: u64,
    /// Batches of which no plan was better by more than uncertainty and hysteresis.
    pub not_better: u64,
    /// Batches that stayed with an earlier change.
    pub kept: u64,
    /// Batches that were changed.
    pub changed: u64,
    /// Batches whose plan is another one than the fixed one.
    pub differing: u64,
    /// Of those, batches that went as planned.
    pub followed: u64,
    /// By how much the differing plans were predicted to be faster, in microseconds.
    pub predicted_gain_us: u64,
    /// By how much batches took longer than the plan that was not followed, in microseconds.
    pub regret_us: u64,
    /// Batches whose time had been predicted and that came whole.
    pub judged: u64,
    /// Of those, batches within prediction and margin.
    pub within_margin: u64,
    /// Blocks asked of a peer.
    pub outcomes: u64,
    /// Of those, failures and timeouts.
    pub failures: u64,
    /// Routes of which something is remembered, a level.
    pub routes: u64,
    /// Blocks asked of whom their batch asks first, by age of that owner's inventory: within 0.5, 1, 2, 5 s, and older.
    pub asked_by_age: ByAge,
    /// Of those, refused.
    pub refused_by_age: ByAge,
    /// Batches judged, by age of what their owners said of how busy they are.
    pub judged_by_age: ByAge,
    /// By how many thousandths of the prediction those were off, in sum.
    pub error_permille_by_age: ByAge,
}

/// A batch of blocks that was fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteRow {
    /// Its number on its core.
    pub batch: u64,
    /// Blocks wanted.
    pub wanted: u32,
    /// Of those, blocks that somebody may have had.
    pub eligible: u32,
    /// Plans that were compared, the fixed one first.
    pub alternatives: Vec<PlanRow>,
    /// The plan.
    pub planned: String,
    /// Why that one.
    pub reason: String,
    /// Whether it was followed, or the fixed order instead.
    pub followed: bool,
    /// Owner and medium of its blocks.
    pub routes: Vec<OwnerRow>,
    /// Blocks that came.
    pub usable: u32,
    /// Blocks that did not.
    pub failed: u32,
    /// When the last one was there, in microseconds since it was planned.
    pub ready_us: u64,
    /// Why blocks went on elsewhere, and how many; what did not happen is left out.
    pub replans: Vec<(String, u32)>,
}

/// A plan that was compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanRow {
    /// `fixed`, `earliest-finish`, or the one route.
    pub plan: String,
    /// Predicted time to usable in microseconds.
    pub predicted_us: u64,
    /// Upper bound of its error in microseconds.
    pub margin_us: u64,
}

/// A route that blocks of a batch were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnerRow {
    /// Owner, shard and medium.
    pub route: String,
    /// Blocks.
    pub blocks: u32,
    /// Bytes of those.
    pub bytes: u64,
    /// Successes that its price rests on; none if it had no price.
    pub successes: Option<u32>,
    /// Age of the newest outcome of that route, a failure too, in milliseconds; none if it had no price.
    pub age_ms: Option<u64>,
    /// Age of the owner's inventory in milliseconds; none if it was never whole.
    pub inventory_age_ms: Option<u64>,
    /// How busy the owner said that it is, if it did lately.
    pub load: Option<LoadRow>,
}

/// How busy a node said that it is: evidence for a cost, and never a permission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadRow {
    /// Time since it was received, in milliseconds.
    pub age_ms: u64,
    /// Milliseconds that it was measured over.
    pub window_ms: u32,
    /// Blocks that other nodes read, or wait to read, at the end of that.
    pub reads: u32,
    /// Thousandths of the time in which its SSD was busy.
    pub ssd_permille: u16,
    /// Thousandths of its egress rate that were used; 0 without one.
    pub egress_permille: u16,
}

impl LoadRow {
    /// From what was said, and how long ago.
    pub(super) fn new((summary, age): (ResourceSummary, Duration)) -> LoadRow {
        LoadRow {
            age_ms: age.as_millis() as u64,
            window_ms: summary.window_ms,
            reads: summary.reads_queued,
            ssd_permille: summary.ssd_busy_permille,
            egress_permille: summary.egress_busy_permille,
        }
    }
}

impl PlanningReport {
    /// Batches by why they have the plan they have.
    pub(super) fn by_reason(&self) -> [(&'static str, u64); 7] {
        [
            ("one_route", self.one_route),
            ("few_successes", self.few_successes),
            ("beyond_reach", self.beyond_reach),
            ("exhausted", self.exhausted),
            ("not_better", self.not_better),
            ("kept", self.kept),
            ("better", self.changed),
        ]
    }
}

/// What an operator reads of a planner.
pub(super) fn planning(figures: &PlannerFigures) -> PlanningReport {
    PlanningReport {
        batches: figures.batches,
        blocks: figures.blocks,
        one_route: figures.one_route,
        few_successes: figures.few_successes,
        beyond_reach: figures.beyond_reach,
        exhausted: figures.exhausted,
        not_better: figures.not_better,
        kept: figures.kept,
        changed: figures.changed,
        differing: figures.differing,
        followed: figures.followed,
        predicted_gain_us: figures.predicted_gain_us,
        regret_us: figures.regret_us,
        judged: figures.judged,
        within_margin: figures.within_margin,
        outcomes: figures.outcomes,
        failures: figures.failures,
        routes: figures.routes,
        asked_by_age: figures.ages.asked,
        refused_by_age: figures.ages.refused,
        judged_by_age: figures.ages.judged,
        error_permille_by_age: figures.ages.error_permille,
    }
}

fn route_text(route: &Route) -> String {
    let text = |medium| format!("{medium:?}").to_lowercase();
    match *route {
        Route::Local(medium) => format!("local {}", text(medium)),
        Route::Peer { source, medium } => format!("{}/{} {}", source.node, source.shard.0, text(medium)),
        Route::Recompute => "recompute".to_owned(),
    }
}

fn plan_text(kind: &PlanKind) -> String {
    match kind {
        PlanKind::Fixed => "fixed".to_owned(),
        PlanKind::Single(route) => route_text(route),
        PlanKind::EarliestFinish => "earliest-finish".to_owned(),
    }
}

fn replan_text(outcome: TrialOutcome) -> &'static str {
    match outcome {
        TrialOutcome::Usable => "usable",
        TrialOutcome::Busy => "busy",
        TrialOutcome::Missing => "missing",
        TrialOutcome::DeviceError => "device-error",
        TrialOutcome::Corrupt => "corrupt",
        TrialOutcome::TimedOut => "timed-out",
    }
}

/// What an operator reads of a batch.
pub(super) fn row(trace: &RouteTrace) -> RouteRow {
    let micros = |duration: Duration| duration.as_micros() as u64;
    let alternatives = trace.alternatives.iter().map(|plan| PlanRow {
        plan: plan_text(&plan.kind),
        predicted_us: micros(plan.predicted),
        margin_us: micros(plan.margin),
    });
    let routes = trace.routes.iter().map(|traced| OwnerRow {
        route: route_text(&traced.route),
        blocks: traced.blocks,
        bytes: traced.bytes,
        successes: traced.successes,
        age_ms: traced.age.map(|age| age.as_millis() as u64),
        inventory_age_ms: traced.told.metadata_age.map(|age| age.as_millis() as u64),
        load: traced.told.resource.map(LoadRow::new),
    });
    let replans = REPLANS.into_iter().zip(trace.replans).filter(|(_, count)| *count > 0);
    RouteRow {
        batch: trace.batch,
        wanted: trace.wanted,
        eligible: trace.eligible,
        alternatives: alternatives.collect(),
        planned: plan_text(&trace.planned),
        reason: trace.reason.word().to_owned(),
        followed: trace.is_followed,
        routes: routes.collect(),
        usable: trace.usable,
        failed: trace.failed,
        ready_us: micros(trace.ready),
        replans: replans.map(|(outcome, count)| (replan_text(outcome).to_owned(), count)).collect(),
    }
}

/// `GET /cache/routes`: for each core, its latest batches, oldest first.
pub(super) async fn routes<P: NodePort>(State(api): Shared<P>) -> Answer {
    let page = api.page().await?;
    let of_core = |report: &super::report::ShardReport| -> Value {
        let rows = report.peers.as_ref().map(|peers| &peers.routes[..]).unwrap_or_default();
        json!({"core": report.shard, "batches": rows})
    };
    let cores: Vec<Value> = page.shards.iter().map(of_core).collect();
    Ok(Json(json!({"standalone": page.standalone, "cores": cores})).into_response())
}
