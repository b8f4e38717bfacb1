//! The settings of a node that has peers: which etcd, as whom, in which cluster, and where peers find it.

use std::net::SocketAddr;
use std::time::Duration;

use orbitkv_shards::inventory::publisher::COALESCING_WINDOW_MAX;
use orbitkv_shards::membership::RefreshPolicy;
use orbitkv_shards::planner::Mode;
use orbitkv_shards::retention::Retention;
use orbitkv_wire::identity::{NamespaceDigest, NodeId};
use orbitkv_wire::membership::Keyspace;
use orbitkv_wire::scope::Scope;

use super::etcd::{EtcdFiles, EtcdSettings};
use super::flow::{PeerRates, rates};
use super::guard::{PeerGuard, failover_checks, guard};
use super::refusal::refused;
use super::{NodeArgs, RefreshChoice, RetentionChoice, RoutePolicy, SettingsError, check_share};
use crate::peers::RECEIVE_SLICE_BYTES_MIN;
use crate::quantity::{ByteSize, MIB, Span};

/// Some four million rows: 66,500 residences of each of 63 peers.
const INDEX_DEFAULT: ByteSize = ByteSize(256 * MIB);
/// Least index of a shard: below it a few thousand rows are all that fits.
pub const INDEX_SLICE_BYTES_MIN: u64 = MIB;
const RECEIVE_DEFAULT: ByteSize = ByteSize(64 * MIB);
/// Changes that come together are told together, and none waits for longer than it takes to be seen anyway.
const COALESCE_DEFAULT: Duration = Duration::from_millis(2);

/// Most samples of each kind that a core keeps: ten minutes of a hundred installs a second, in some ten megabytes.
const VISIBILITY_SAMPLES_MAX: u32 = 65_536;

/// Longest time by which news of the watch may be held back: a measurement of one move is over by then.
const WATCH_LAG_MAX: Duration = Duration::from_mins(10);

/// How a node joins its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// How etcd is reached.
    pub etcd: EtcdSettings,
    /// Name of the cluster.
    pub cluster: String,
    /// Its keys in etcd.
    pub keyspace: Keyspace,
    /// Where shard 0 listens; shard `s` listens `s` ports further.
    pub peer_address: SocketAddr,
    /// Failure zone; empty if none is named.
    pub zone: String,
    /// Namespaces whose inventory it wants.
    pub scope: Scope,
    /// Index of peers' blocks of one shard in bytes.
    pub index_slice_bytes: u64,
    /// Receive windows of one shard in bytes, half for metadata and half for payload.
    pub receive_slice_bytes: u64,
    /// How long a change may wait for others before it is told.
    pub coalesce: Duration,
    /// Whether nodes of this host read in each other's arenas, where both do.
    pub shares_memory: bool,
    /// How peers that fail are treated.
    pub guard: PeerGuard,
    /// Checks in a row that the zone asked first misses before another one is.
    pub failover_checks: u32,
    /// How fast payload may go.
    pub rates: PeerRates,
    /// What is read in etcd when a peer is not what it was taken for.
    pub refresh: RefreshPolicy,
    /// By how much news of etcd's watch are held back, for whoever measures what else is learned from.
    pub watch_lag: Duration,
    /// Samples of publications and of installs that each core keeps, for whoever measures; 0 for none.
    pub visibility_samples: u32,
    /// How it is chosen which node is asked for a block.
    pub routing: Mode,
    /// What becomes of blocks that peers have sent.
    pub retention: Retention,
}

/// Decides the cluster's settings; none if the node is standalone.
pub(super) fn cluster(args: &NodeArgs, shards: u64) -> Result<Option<ClusterSettings>, SettingsError> {
    let Some(etcd) = &args.etcd else {
        let alone = "has no effect without etcd: the node is standalone";
        return match args.first_of_cluster() {
            None => Ok(None),
            Some((setting, value)) => Err(refused(setting, value, alone, "add --etcd URL, or remove it")),
        };
    };
    let missing = |what: &'static str, remedy: &'static str| refused("--etcd", etcd, what, remedy);
    let name = args.cluster.as_ref().ok_or_else(|| {
        missing("a node with etcd belongs to a cluster", "add --cluster NAME, the same on every node")
    })?;
    let peer = args.peer_addr.as_ref().ok_or_else(|| {
        missing("peers must be able to reach the node", "add --peer-addr IP:BASEPORT of this host")
    })?;
    if args.data_dir.is_none() {
        let bound = "a member keeps its key and its last epoch in a directory of its own";
        return Err(missing(bound, "add --data-dir DIR"));
    }
    let word = |setting: &'static str, text: &str| {
        let bound = "must be 1 to 64 bytes of a-z, 0-9 and -";
        NodeId::new(text).map(|_| ()).map_err(|_| refused(setting, format!("{text:?}"), bound, "rename it"))
    };
    word("--cluster", name)?;
    let zone = args.zone.clone().unwrap_or_default();
    if args.zone.is_some() {
        word("--zone", &zone)?;
    }
    let files = EtcdFiles {
        authority: args.etcd_ca.clone(),
        certificate: args.etcd_cert.clone(),
        key: args.etcd_key.clone(),
        user: args.etcd_user_file.clone(),
    };
    Ok(Some(ClusterSettings {
        etcd: EtcdSettings::resolve(etcd, files)?,
        cluster: name.clone(),
        keyspace: Keyspace::new(name).expect("the name was just checked"),
        peer_address: peer_address(peer, shards)?,
        zone,
        scope: scope(args)?,
        index_slice_bytes: share(
            "--index-budget",
            args.index_budget,
            INDEX_DEFAULT,
            INDEX_SLICE_BYTES_MIN,
            shards,
        )?,
        receive_slice_bytes: share(
            "--receive-budget",
            args.receive_budget,
            RECEIVE_DEFAULT,
            RECEIVE_SLICE_BYTES_MIN,
            shards,
        )?,
        coalesce: coalesce(args)?,
        shares_memory: shares_memory(args)?,
        guard: guard(args)?,
        failover_checks: failover_checks(args)?,
        rates: rates(args, shards)?,
        refresh: refresh(args),
        watch_lag: watch_lag(args)?,
        visibility_samples: visibility_samples(args)?,
        routing: routing(args),
        retention: retention(args),
    }))
}

/// A shard's share of a size.
fn share(
    setting: &str,
    given: Option<ByteSize>,
    default: ByteSize,
    least: u64,
    shards: u64,
) -> Result<u64, SettingsError> {
    let size = given.unwrap_or(default);
    check_share(setting, size, shards, least)?;
    Ok(size.0 / shards)
}

fn scope(args: &NodeArgs) -> Result<Scope, SettingsError> {
    let named = &args.metadata_namespace;
    let empty = args.metadata_empty_scope == Some(true);
    if empty && let Some(first) = named.first() {
        let bound = "an empty scope names no namespace";
        return Err(refused(
            "--metadata-empty-scope and --metadata-namespace",
            first,
            bound,
            "remove one of them",
        ));
    }
    if named.is_empty() && !empty {
        return Ok(Scope::All);
    }
    let parse = |text: &String| {
        text.parse::<NamespaceDigest>().map_err(|_| {
            let bound = "must be orbitkv:v2: and 64 lowercase hex digits";
            refused("--metadata-namespace", text, bound, "take it from `orbitkv namespaces`")
        })
    };
    let digests = named.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    Scope::namespaces(digests).map_err(|error| {
        let given = format!("{} namespaces", named.len());
        refused("--metadata-namespace", given, error.to_string(), "name none to subscribe to all")
    })
}

pub(super) fn coalesce(args: &NodeArgs) -> Result<Duration, SettingsError> {
    let Some(span) = args.coalesce else { return Ok(COALESCE_DEFAULT) };
    if span.0 > COALESCING_WINDOW_MAX {
        let bound = format!("must be at most {}", Span(COALESCING_WINDOW_MAX));
        return Err(refused("--coalesce", span, bound, "use --coalesce 2ms"));
    }
    Ok(span.0)
}

fn visibility_samples(args: &NodeArgs) -> Result<u32, SettingsError> {
    let count = args.visibility_samples.unwrap_or(0);
    if count > VISIBILITY_SAMPLES_MAX {
        let bound = format!("must be at most {VISIBILITY_SAMPLES_MAX}");
        return Err(refused("--visibility-samples", count, bound, "read them more often"));
    }
    Ok(count)
}

fn watch_lag(args: &NodeArgs) -> Result<Duration, SettingsError> {
    let Some(span) = args.watch_lag else { return Ok(Duration::ZERO) };
    if span.0 > WATCH_LAG_MAX {
        let bound = format!("must be at most {}", Span(WATCH_LAG_MAX));
        return Err(refused("--watch-lag", span, bound, "leave it out: it is for measurements"));
    }
    Ok(span.0)
}

fn refresh(args: &NodeArgs) -> RefreshPolicy {
    match args.refresh_policy {
        Some(RefreshChoice::Lookup) => RefreshPolicy::Lookup,
        Some(RefreshChoice::Redirect) => RefreshPolicy::Redirect,
        Some(RefreshChoice::Hybrid) => RefreshPolicy::Hybrid,
        None => RefreshPolicy::default(),
    }
}

/// Whether shared memory is among the transports; QUIC carries every request and is always.
fn shares_memory(args: &NodeArgs) -> Result<bool, SettingsError> {
    let Some(text) = &args.transports else { return Ok(true) };
    let mut named: Vec<&str> = text.split(',').map(str::trim).collect();
    named.sort_unstable();
    match named[..] {
        ["quic"] => Ok(false),
        ["quic", "shm"] => Ok(true),
        ["shm"] => {
            let bound = "requests travel over quic whatever brings the bytes";
            Err(refused("--transports", text, bound, "use --transports shm,quic"))
        }
        _ => {
            let bound = "must be shm,quic or quic; others are not in this version";
            Err(refused("--transports", text, bound, "use --transports shm,quic"))
        }
    }
}

pub(super) fn routing(args: &NodeArgs) -> Mode {
    match args.route_policy {
        Some(RoutePolicy::Fixed) => Mode::Fixed,
        Some(RoutePolicy::Shadow) => Mode::Shadow,
        Some(RoutePolicy::Executed) => Mode::Executed,
        None => Mode::default(),
    }
}

fn retention(args: &NodeArgs) -> Retention {
    match args.retention {
        Some(RetentionChoice::Keep) => Retention::Keep,
        Some(RetentionChoice::Weigh) => Retention::Weigh,
        Some(RetentionChoice::Drop) => Retention::Drop,
        None => Retention::default(),
    }
}

fn peer_address(text: &str, shards: u64) -> Result<SocketAddr, SettingsError> {
    let refuse = |bound: &str, remedy: &str| Err(refused("--peer-addr", text, bound, remedy.to_owned()));
    let Ok(address) = text.parse::<SocketAddr>() else {
        return refuse("must be an IP address and a port", "write it like 10.0.0.7:7100");
    };
    if address.ip().is_unspecified() || address.ip().is_multicast() {
        return refuse("peers cannot send to this address", "name the address that peers reach this host at");
    }
    if address.port() == 0 || u64::from(address.port()) + shards - 1 > u64::from(u16::MAX) {
        let bound = format!("a node of {shards} shards uses that many ports from this one on, below 65536");
        return refuse(&bound, "choose a lower port that is not 0");
    }
    Ok(address)
}
