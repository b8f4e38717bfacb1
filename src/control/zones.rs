//! Whose zone's nodes a core asks first: what an operator sees of it, and the way back to the node's own zone.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use orbitkv_shards::planner::ZoneStanding;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};

use super::http::{Answer, Failure, NodePort, PortError, Shared, failure, object_of, soon};
use super::report::ShardReport;

const STANDALONE: Failure =
    failure(StatusCode::CONFLICT, "standalone", "this node has no peers, so it prefers no zone");

/// Whose zone a core asks first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ZonesReport {
    /// The node's own zone; empty if it names none.
    pub own: String,
    /// The zone whose nodes are asked first; none while no other member has ever named the node's own.
    pub preferred: Option<String>,
    /// Zones from which it is one, the nearest first.
    pub zones: Vec<String>,
    /// Checks in a row that the preferred one has missed.
    pub checks_missed: u64,
    /// Times that another one is preferred because it had missed its checks, counter.
    pub failovers: u64,
    /// Times that the operator went back to the node's own, counter.
    pub failbacks: u64,
}

impl ZonesReport {
    /// Whether the node's own zone was left and can be gone back to: another member stands in it.
    #[must_use]
    pub fn has_left_own(&self) -> bool {
        self.preferred.as_ref().is_some_and(|preferred| *preferred != self.own)
            && self.zones.contains(&self.own)
    }
}

/// What `POST /zones/failback` answers: how it is afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailbackAnswer {
    /// The node's own zone; empty if it names none.
    pub own: String,
    /// The zone that each core asks first, in the order of cores; none if it prefers none.
    pub preferred: Vec<Option<String>>,
}

/// What an operator reads of it.
pub(super) fn report(standing: &ZoneStanding) -> ZonesReport {
    let ZoneStanding { own, preferred, zones, missed, failovers, failbacks } = standing.clone();
    ZonesReport { own, preferred, zones, checks_missed: missed.into(), failovers, failbacks }
}

/// Goes back to the node's own zone on every core. Asking again changes nothing more.
pub(super) async fn fail_back<P: NodePort>(
    State(api): Shared<P>,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    object_of(body)?;
    if api.port.membership().is_none() {
        return Err(STANDALONE);
    }
    if !api.port.fail_back() {
        return Err(PortError::Busy.into());
    }
    // Each core takes its letters in order: what it says now is said afterwards.
    let mut reports = soon(api.port.shard_reports()).await?;
    reports.sort_by_key(|report| report.shard);
    let zones = reports.into_iter().filter_map(|report| Some(report.peers?.zones));
    let (own, preferred): (Vec<String>, Vec<_>) = zones.map(|zones| (zones.own, zones.preferred)).unzip();
    let own = own.into_iter().next().unwrap_or_default();
    Ok(Json(FailbackAnswer { own, preferred }).into_response())
}

/// Which zone each core prefers; there are no more zones than members, and the preferred one.
pub(super) fn register(registry: &mut Registry, shards: &[ShardReport]) {
    let family = Family::<Vec<(&'static str, String)>, Gauge>::default();
    for report in shards {
        let Some(zones) = report.peers.as_ref().map(|peers| &peers.zones) else { continue };
        for zone in &zones.zones {
            let labels = vec![("shard", report.shard.to_string()), ("zone", zone.clone())];
            family.get_or_create(&labels).set(i64::from(zones.preferred.as_ref() == Some(zone)));
        }
    }
    let help = "Whether the nodes of a zone are asked first: 1 they are, 0 they are not";
    registry.register("orbitkv_preferred_zone", help, family);
}
