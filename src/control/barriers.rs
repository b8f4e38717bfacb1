//! `/cache/sync` and `/cache/metadata/await`: a node's own fence, and the proof that this node has all of
//! another's (chapter 2.9).

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use orbitkv_shards::fence::{AwaitFailure, Fence};
use orbitkv_wire::identity::Sequence;
use orbitkv_wire::inventory::PROTOCOL;
use orbitkv_wire::scope::ScopeDigest;
use serde::Deserialize;
use serde_json::json;

use super::http::{Answer, BARRIER_WAIT_MAX, Failure, NodePort, Shared, failure, object_of};

const BUSY: Failure = failure(StatusCode::TOO_MANY_REQUESTS, "busy", "64 barriers wait already");
const NOT_FLUSHED: Failure =
    failure(StatusCode::GATEWAY_TIMEOUT, "timeout", "the flush did not end within 30 s");
const NO_MEMBER: Failure = failure(
    StatusCode::SERVICE_UNAVAILABLE,
    "not-a-member",
    "this node has no registered life at the moment, so it has no fence that another node could await; ask again",
);

/// What `/cache/sync` of a member answers: the fence, as `await` takes it.
#[derive(Deserialize)]
struct FenceText {
    protocol: String,
    cluster_uuid: String,
    node_id: String,
    epoch: u64,
    incarnation: String,
    inventory_sequence: Vec<u64>,
}

/// Body of an await.
#[derive(Deserialize)]
struct AwaitText {
    fence: FenceText,
    scope_digest: Option<String>,
    timeout_ms: Option<u64>,
}

/// Flushes, and gives the fence.
pub(super) async fn sync<P: NodePort>(State(api): Shared<P>, body: Result<Bytes, BytesRejection>) -> Answer {
    object_of(body)?;
    let _seat = api.barriers.try_acquire().map_err(|_| BUSY)?;
    let fences = tokio::time::timeout(BARRIER_WAIT_MAX, api.fence()).await.map_err(|_| NOT_FLUSHED)??;
    let sequences: Vec<u64> = fences.iter().map(|fence| fence.sequence.0).collect();
    let incarnation = fences.first().map(|fence| fence.incarnation);
    let Some(sight) = api.port.membership() else {
        return Ok(Json(json!({
            "standalone": true,
            "local_flush_complete": true,
            "node_id": api.port.identity().node_id,
            "incarnation": incarnation.map(|incarnation| incarnation.to_string()),
            "inventory_sequence": sequences,
        }))
        .into_response());
    };
    // The shards may live a life that is not registered yet, and the registered one may be over.
    let local = sight.local.filter(|local| Some(local.incarnation) == incarnation).ok_or(NO_MEMBER)?;
    Ok(Json(json!({
        "standalone": false,
        "local_flush_complete": true,
        "protocol": PROTOCOL,
        "cluster_uuid": local.cluster.to_string(),
        "node_id": local.node.to_string(),
        "epoch": local.epoch,
        "incarnation": local.incarnation.to_string(),
        "inventory_sequence": sequences,
    }))
    .into_response())
}

/// Waits until this node has all of a fence.
pub(super) async fn await_fence<P: NodePort>(
    State(api): Shared<P>,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let body = object_of(body)?;
    if api.port.membership().is_none() {
        return Err(refusal(&AwaitFailure::Standalone));
    }
    let text: AwaitText = serde_json::from_value(body).map_err(|error| Failure {
        reason: format!(
            "the body must hold a fence of a member, as `orbitkv sync --json` prints it: {error}"
        )
        .into(),
        ..failure(StatusCode::BAD_REQUEST, "fence", "")
    })?;
    let longest = match text.timeout_ms {
        None => BARRIER_WAIT_MAX,
        Some(ms @ 1..=30_000) => Duration::from_millis(ms),
        Some(_) => return Err(failure(StatusCode::BAD_REQUEST, "timeout", "timeout_ms is 1 to 30000")),
    };
    let (fence, scope) = (fence(&text.fence)?, text.scope_digest.as_deref().map(scope).transpose()?);
    api.port.await_fence(fence, scope, longest).await.map_err(|failure| refusal(&failure))?;
    Ok(Json(json!({"installed": true})).into_response())
}

fn fence(text: &FenceText) -> Result<Fence, Failure> {
    let bad = |what: &str| Failure {
        reason: format!("the fence is broken: {what}").into(),
        ..failure(StatusCode::BAD_REQUEST, "fence", "")
    };
    if text.protocol != PROTOCOL {
        return Err(bad(&format!("protocol {:?}, this node speaks {PROTOCOL}", text.protocol)));
    }
    Ok(Fence {
        cluster: text.cluster_uuid.parse().map_err(|_| bad("cluster_uuid is no UUID"))?,
        node: text.node_id.parse().map_err(|_| bad("node_id is no name of a node"))?,
        epoch: text.epoch,
        incarnation: text.incarnation.parse().map_err(|_| bad("incarnation is no UUID"))?,
        inventory_sequence: text.inventory_sequence.iter().copied().map(Sequence).collect(),
    })
}

fn scope(text: &str) -> Result<ScopeDigest, Failure> {
    text.parse().map_err(|_| failure(StatusCode::BAD_REQUEST, "scope", "scope_digest is 64 hex digits"))
}

/// An await that failed, under a stable name.
fn refusal(cause: &AwaitFailure) -> Failure {
    let (status, name) = match cause {
        AwaitFailure::Standalone => (StatusCode::CONFLICT, "standalone"),
        AwaitFailure::OwnFence => (StatusCode::CONFLICT, "own-fence"),
        AwaitFailure::Fenced => (StatusCode::SERVICE_UNAVAILABLE, "fenced"),
        AwaitFailure::AnotherCluster { .. } => (StatusCode::CONFLICT, "another-cluster"),
        AwaitFailure::AnotherScope => (StatusCode::CONFLICT, "another-scope"),
        AwaitFailure::AnotherIncarnation { .. } => (StatusCode::CONFLICT, "another-incarnation"),
        AwaitFailure::NotAMember { .. } => (StatusCode::NOT_FOUND, "not-a-member"),
        AwaitFailure::VectorLength { .. } => (StatusCode::CONFLICT, "vector-length"),
        AwaitFailure::TimedOut => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
        AwaitFailure::TooMany { .. } => (StatusCode::TOO_MANY_REQUESTS, "busy"),
    };
    Failure { reason: cause.to_string().into(), ..failure(status, name, "") }
}
