//! The HTTP API: operator views and barriers, on the control thread. No lookup ever comes through here.
//!
//! It reaches the node through [`NodePort`] alone, so the API neither knows how the cores are driven nor
//! touches what they own. Answers are JSON (but `/metrics` and `/ui`), errors are `{"error": …, "reason": …}`.

use std::borrow::Cow;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use orbitkv_shards::fence::{AwaitFailure, Fence};
use orbitkv_wire::identity::{Incarnation, Sequence};
use orbitkv_wire::scope::ScopeDigest;
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::Semaphore;

use super::barriers;
use super::connections::BoundedListener;
use super::etcd::Sight;
use super::guard::Guard;
use super::health::canary::OwnPath;
use super::health::{self, DeepCheck};
use super::metadata::{MetadataPage, MixedIncarnations, NodeIdentity, Phase};
use super::metrics;
use super::owners::OwnersPage;
use super::policy::view::ConfigView;
use super::report::{NamespaceRow, ShardReport};
use super::{routes, turns, ui, visibility, zones};
use crate::peers::SamplesAnswer;
use crate::settings::Token;
use crate::turns::recorder::TurnsAnswer;

/// Largest request body.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Longest wait of a barrier.
pub const BARRIER_WAIT_MAX: Duration = Duration::from_secs(30);
/// Barriers that may wait at once.
pub const BARRIER_WAITERS_MAX: usize = 64;
/// Longest wait for the shards' reports: a core that is silent for this long is not serving.
pub const REPORT_WAIT_MAX: Duration = Duration::from_secs(2);
/// Rows of one page of a listing, unless asked for fewer.
pub const PAGE_ROWS_MAX: usize = 1_000;
/// How often a merge starts over when shards answer from different incarnations.
const MERGE_TRIES: usize = 3;

/// Why the node gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PortError {
    /// A shard has no seat for one more question; ask again.
    #[error("a shard is busy")]
    Busy,
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
}

/// How far one shard's journal had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardFence {
    /// Life the sequence belongs to.
    pub incarnation: Incarnation,
    /// Covers every put whose Commit was answered before the fence was asked for.
    pub sequence: Sequence,
}

/// How the API reaches the node: by mail to the cores. Answers come in order of shard.
pub trait NodePort: Clone + Send + Sync + 'static {
    /// Each shard's figures.
    fn shard_reports(&self) -> impl Future<Output = Result<Vec<ShardReport>, PortError>> + Send;

    /// Flushes, then gives each shard's fence.
    fn flush_fence(&self) -> impl Future<Output = Result<Vec<ShardFence>, PortError>> + Send;

    /// At most `limit` registered namespaces after `after` (empty: from the first), in their order.
    fn namespaces(
        &self,
        after: &str,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<NamespaceRow>, PortError>> + Send;

    /// At most `limit` owner streams after `after` (empty: from the first); none if the node is standalone.
    fn owners(
        &self,
        after: &str,
        limit: usize,
    ) -> impl Future<Output = Result<Option<OwnersPage>, PortError>> + Send;

    /// Samples of visibility of each shard after the publications and installs that are had of it; none if none are
    /// kept.
    fn samples(
        &self,
        had: &[(u64, u64)],
    ) -> impl Future<Output = Result<Option<Vec<SamplesAnswer>>, PortError>> + Send;

    /// At most `limit` events that a core has recorded after the one with a number, after it has forgotten those up to
    /// another (0: none); none if it records none.
    fn turns(
        &self,
        core: u16,
        after: u64,
        limit: usize,
        forget_through: u64,
    ) -> impl Future<Output = Result<Option<TurnsAnswer>, PortError>> + Send;

    /// Waits until this node has all of a fence, as long as `longest` at most.
    fn await_fence(
        &self,
        fence: Fence,
        scope: Option<ScopeDigest>,
        longest: Duration,
    ) -> impl Future<Output = Result<(), AwaitFailure>> + Send;

    /// Tells every core of a node with peers to go back to the node's own zone; whether all were told.
    fn fail_back(&self) -> bool;

    /// What does not change.
    fn identity(&self) -> &NodeIdentity;

    /// Where the node is in its life.
    fn phase(&self) -> Phase;

    /// Its membership; none if it is standalone.
    fn membership(&self) -> Option<Sight>;

    /// The operator's policy; empty if it is standalone.
    fn config(&self) -> ConfigView;
}

/// What the API is told at start.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// The machine's name, allowed in `Host`; empty for none.
    pub host_name: String,
    /// The token POST requests must carry.
    pub token: Option<Token>,
}

pub(super) struct Api<P> {
    pub(super) port: P,
    guard: Guard,
    pub(super) barriers: Semaphore,
    pub(super) deep_check: DeepCheck,
}

pub(super) type Shared<P> = State<Arc<Api<P>>>;

/// What a client is told instead of an answer.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) error: &'static str,
    pub(super) reason: Cow<'static, str>,
}

pub(super) type Answer = Result<Response, Failure>;

const SILENT: Failure =
    failure(StatusCode::SERVICE_UNAVAILABLE, "silent", "a shard gave no answer within 2 s");
const NEW_INCARNATION: Failure = failure(
    StatusCode::SERVICE_UNAVAILABLE,
    "new-incarnation",
    "the node is starting a new registration life; ask again",
);
const MEMBERS_CHANGING: Failure = failure(
    StatusCode::SERVICE_UNAVAILABLE,
    "members-changing",
    "who is a member has changed while the shards answered; ask again",
);
const BAD_WINDOW: Failure =
    failure(StatusCode::BAD_REQUEST, "bad-query", "after is text and limit is a number from 1 to 1000");

pub(super) const fn failure(status: StatusCode, error: &'static str, reason: &'static str) -> Failure {
    Failure { status, error, reason: Cow::Borrowed(reason) }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(json!({"error": self.error, "reason": self.reason}))).into_response()
    }
}

impl From<PortError> for Failure {
    fn from(error: PortError) -> Failure {
        let (name, reason) = match error {
            PortError::Busy => ("busy", "a shard is busy; ask again"),
            PortError::Stopping => ("stopping", "the node is stopping"),
        };
        failure(StatusCode::SERVICE_UNAVAILABLE, name, reason)
    }
}

/// The answer of the cores, if they give one soon.
pub(super) async fn soon<T>(answer: impl Future<Output = Result<T, PortError>>) -> Result<T, Failure> {
    Ok(tokio::time::timeout(REPORT_WAIT_MAX, answer).await.map_err(|_| SILENT)??)
}

impl<P: NodePort> Api<P> {
    pub(super) async fn page(&self) -> Result<MetadataPage, Failure> {
        let revision = |sight: &Option<Sight>| sight.as_ref().map(|sight| sight.roster.map().revision);
        let mut failure = NEW_INCARNATION;
        for _ in 0..MERGE_TRIES {
            // The cores are told of members before they are seen here. So coverage is at least of these members,
            // and of no others if they are the same afterwards.
            let before = revision(&self.port.membership());
            let reports = soon(self.port.shard_reports()).await?;
            let (identity, phase, sight) = (self.port.identity(), self.port.phase(), self.port.membership());
            if revision(&sight) != before {
                failure = MEMBERS_CHANGING;
                continue;
            }
            match MetadataPage::of(identity, phase, sight.as_ref(), reports) {
                Ok(page) => {
                    let (config, deep_checks) = (self.port.config(), self.deep_check.counts());
                    return Ok(MetadataPage { config, deep_checks, ..page });
                }
                Err(MixedIncarnations) => failure = NEW_INCARNATION,
            }
        }
        Err(failure)
    }

    pub(super) async fn fence(&self) -> Result<Vec<ShardFence>, Failure> {
        for _ in 0..MERGE_TRIES {
            let fences = self.port.flush_fence().await?;
            if fences.windows(2).all(|pair| pair[0].incarnation == pair[1].incarnation) {
                return Ok(fences);
            }
        }
        Err(NEW_INCARNATION)
    }
}

async fn alive() -> Response {
    Json(json!({"alive": true})).into_response()
}

/// Whether this node can serve: it is in that phase, and every one of its cores answers.
async fn ready<P: NodePort>(State(api): Shared<P>) -> Answer {
    let phase = api.port.phase();
    if phase != Phase::Serving {
        let body = json!({"ready": false, "phase": phase});
        return Ok((StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response());
    }
    api.page().await?;
    Ok(Json(json!({"ready": true, "phase": phase})).into_response())
}

async fn prometheus<P: NodePort>(State(api): Shared<P>) -> Answer {
    let text = metrics::render(&api.page().await?).map_err(|_| {
        failure(StatusCode::INTERNAL_SERVER_ERROR, "encoding", "the metrics could not be written")
    })?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

async fn metadata<P: NodePort>(State(api): Shared<P>) -> Answer {
    Ok(Json(api.page().await?).into_response())
}

/// `?after=&limit=` of a listing.
#[derive(Deserialize)]
struct Window {
    #[serde(default)]
    after: String,
    limit: Option<usize>,
}

impl Window {
    fn rows(&self) -> Result<usize, Failure> {
        match self.limit.unwrap_or(PAGE_ROWS_MAX) {
            limit @ 1..=PAGE_ROWS_MAX => Ok(limit),
            _ => Err(BAD_WINDOW),
        }
    }
}

async fn namespaces<P: NodePort>(
    State(api): Shared<P>,
    window: Result<Query<Window>, QueryRejection>,
) -> Answer {
    let Query(window) = window.map_err(|_| BAD_WINDOW)?;
    let limit = window.rows()?;
    let rows = soon(api.port.namespaces(&window.after, limit)).await?;
    let next = rows.last().filter(|_| rows.len() == limit).map(|row| row.namespace.clone());
    Ok(Json(json!({"namespaces": rows, "next": next})).into_response())
}

async fn owners<P: NodePort>(State(api): Shared<P>, window: Result<Query<Window>, QueryRejection>) -> Answer {
    let Query(window) = window.map_err(|_| BAD_WINDOW)?;
    let limit = window.rows()?;
    let page = soon(api.port.owners(&window.after, limit)).await?;
    let standalone = page.is_none();
    let OwnersPage { owners, next } = page.unwrap_or_default();
    Ok(Json(json!({"standalone": standalone, "owners": owners, "next": next})).into_response())
}

/// Takes a body that is empty or a JSON object.
pub(super) fn object_of(body: Result<Bytes, BytesRejection>) -> Result<Value, Failure> {
    let body =
        body.map_err(|rejection| failure(rejection.status(), "body", "the body has at most 65536 bytes"))?;
    if body.is_empty() {
        return Ok(json!({}));
    }
    match serde_json::from_slice(&body) {
        Ok(value @ Value::Object(_)) => Ok(value),
        _ => Err(failure(StatusCode::BAD_REQUEST, "body", "the body must be a JSON object")),
    }
}

async fn guarded<P: NodePort>(State(api): Shared<P>, request: Request, next: Next) -> Response {
    let mut response = match api.guard.check(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err((status, reason)) => {
            let mut response = failure(status, "refused", reason).into_response();
            if status == StatusCode::UNAUTHORIZED {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            response
        }
    };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn router<P: NodePort>(api: Arc<Api<P>>) -> Router {
    let unknown = || async { failure(StatusCode::NOT_FOUND, "unknown", "no such page") };
    let wrong =
        || async { failure(StatusCode::METHOD_NOT_ALLOWED, "method", "this page has another method") };
    Router::new()
        .route("/health", get(alive))
        .route("/health/deep", get(health::deep::<P>))
        .route("/ready", get(ready::<P>))
        .route("/metrics", get(prometheus::<P>))
        .route("/cache/metadata", get(metadata::<P>))
        .route("/cache/metadata/owners", get(owners::<P>))
        .route("/cache/metadata/await", post(barriers::await_fence::<P>))
        .route("/cache/routes", get(routes::routes::<P>))
        .route("/cache/namespaces", get(namespaces::<P>))
        .route("/cache/visibility", get(visibility::page::<P>))
        .route("/cache/turns", get(turns::page::<P>))
        .route("/cache/turns/forget", post(turns::forget::<P>))
        .route("/cache/sync", post(barriers::sync::<P>))
        .route("/zones/failback", post(zones::fail_back::<P>))
        .merge(ui::pages())
        .fallback(unknown)
        .method_not_allowed_fallback(wrong)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), guarded::<P>))
        .with_state(api)
}

/// Serves the API until `stop` ends: no more connections are taken then, and it returns once those that
/// are open have been answered. Whoever ends the process need not wait for that; a node that stops does
/// not, because a barrier may take half a minute. `own_path` is what a deep check tries.
///
/// # Errors
/// If the listener's own address cannot be read.
pub async fn serve<P: NodePort>(
    listener: BoundedListener,
    settings: HttpSettings,
    port: P,
    own_path: impl OwnPath,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let address: SocketAddr = axum::serve::Listener::local_addr(&listener)?;
    let guard = Guard {
        beyond_loopback: !address.ip().is_loopback(),
        host_name: settings.host_name,
        token: settings.token,
    };
    let (barriers, deep_check) = (Semaphore::new(BARRIER_WAITERS_MAX), DeepCheck::new(own_path));
    let api = Arc::new(Api { port, guard, barriers, deep_check });
    axum::serve(listener, router(api)).with_graceful_shutdown(stop).await
}
