//! The flags of `orbitkv node`, as typed by an operator, before anything is decided.
//!
//! Every field is optional so that three sources can be laid over each other: flag, then
//! `ORBITKV_*` environment variable, then the `--config` file, then the default that
//! [`super::NodeSettings::resolve`] derives. The field names are stable names (chapter 1.5).

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::values::{CoreList, HttpBind, one_or_many, text};
use crate::quantity::{ByteSize, Span};

/// Where the device loops run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayoutChoice {
    /// Dedicated if device cores are named, or an SSD is used and a core is to spare; shared otherwise
    Auto,
    /// Device loops own their cores
    Dedicated,
    /// Device loops share the shards' cores
    Shared,
}

/// What a core does when it has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// Sleep until woken: under 1 % of a core at rest
    Park,
    /// Poll: a whole core at rest, for the lowest latency
    Spin,
}

/// Which pages the arena asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArenaPages {
    /// hugetlb if enough is reserved, else transparent huge pages, else small pages with a warning
    Auto,
    /// Reserved huge pages (vm.nr_hugepages) or no start
    Hugetlb,
    /// Transparent huge pages or no start
    Thp,
    /// 4 KiB pages: slower large I/O
    Small,
}

/// How the SSD is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SsdBackend {
    /// Raw io_uring with registered buffers and files
    Ring,
    /// Not in this version
    Glommio,
}

/// How a recovery route is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoutePolicy {
    /// The fixed order: DRAM before SSD, as the index lists them
    Fixed,
    /// Price the routes, count what they would have been worth, act on the fixed order
    Shadow,
    /// Act on the prices
    Executed,
}

/// How a node finds out that a peer is another life than it was taken for, beside the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RefreshChoice {
    /// Read a peer's record before it is asked
    Lookup,
    /// Ask, and read its record when it refuses
    Redirect,
    /// Ask, and read all records once when some refuse
    Hybrid,
}

/// What becomes of blocks that peers have sent, once they have been used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RetentionChoice {
    /// They stay in DRAM like any other
    Keep,
    /// They stay while there is room, and make it for what this node alone would lose
    Weigh,
    /// They leave DRAM with their last user
    Drop,
}

/// Flags of `orbitkv node`.
#[derive(Clone, Debug, Default, PartialEq, Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct NodeArgs {
    /// TOML file with any of these settings; keys are the flag names without dashes in front.
    /// A flag beats an ORBITKV_* variable, which beats the file
    #[arg(long, value_name = "FILE", env = "ORBITKV_CONFIG")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Name of this node, 1 to 64 of a-z 0-9 -  [default: the host name, or `local`]
    #[arg(long, value_name = "NAME", env = "ORBITKV_NODE_ID")]
    pub node_id: Option<String>,

    /// Directory for the SSD file, the lock and the node's key; needed with --ssd and with --etcd.
    /// One daemon a directory
    /// [default: none]
    #[arg(long, value_name = "DIR", env = "ORBITKV_DATA_DIR")]
    pub data_dir: Option<PathBuf>,

    /// Unix socket engines connect to, at most 107 bytes; a directory that is missing is made 0700
    /// [default: $XDG_RUNTIME_DIR/orbitkv/engine.sock, or /tmp/orbitkv-UID/engine.sock]
    #[arg(long, value_name = "PATH", env = "ORBITKV_ENGINE_SOCKET")]
    pub engine_socket: Option<PathBuf>,

    /// Address of the HTTP API: IP:PORT (port 0 picks a free one) or `off`. Beyond loopback, POST
    /// is refused unless --http-token-file is given  [default: 127.0.0.1:7070]
    #[arg(long, value_name = "IP:PORT|off", env = "ORBITKV_HTTP")]
    #[serde(deserialize_with = "text")]
    pub http: Option<HttpBind>,

    /// File (mode 0600) with the bearer token that POST requests must carry  [default: none]
    #[arg(long, value_name = "FILE", env = "ORBITKV_HTTP_TOKEN_FILE")]
    pub http_token_file: Option<PathBuf>,

    /// Host memory for blocks, e.g. 64gib; at least 64mib a shard, rounded down to 2 MiB a shard
    /// [default: 1gib]
    #[arg(long, value_name = "SIZE", env = "ORBITKV_DRAM")]
    pub dram: Option<ByteSize>,

    /// SSD space for blocks, e.g. 1tib; 0 turns the tier off; at least 64mib a shard; needs
    /// --data-dir  [default: 0]
    #[arg(long, value_name = "SIZE", env = "ORBITKV_SSD")]
    pub ssd: Option<ByteSize>,

    /// Shards of this node, one pinned core each; fixed while the node runs
    /// [default: as many as --cores names; else 1 for up to 7 cores, a quarter of the cores up to 8]
    #[arg(long, value_name = "N", env = "ORBITKV_SHARDS")]
    pub shards: Option<u16>,

    /// Cores the shards are pinned to, e.g. 2,4-7  [default: the last cores this process may use]
    #[arg(long, value_name = "LIST", env = "ORBITKV_CORES")]
    #[serde(deserialize_with = "text")]
    pub cores: Option<CoreList>,

    /// Cores that only complete device I/O, e.g. 8; makes the layout dedicated  [default: see --layout]
    #[arg(long, value_name = "LIST", env = "ORBITKV_DEVICE_CORES")]
    #[serde(deserialize_with = "text")]
    pub device_cores: Option<CoreList>,

    /// Where device loops run  [default: auto]
    #[arg(long, value_name = "LAYOUT", env = "ORBITKV_LAYOUT")]
    pub layout: Option<LayoutChoice>,

    /// What an idle core does  [default: park]
    #[arg(long, value_name = "MODE", env = "ORBITKV_IDLE")]
    pub idle: Option<Idle>,

    /// Memory for the change journal of the node, split over its shards; at least 1mib a shard
    /// [default: 16mib]
    #[arg(long, value_name = "SIZE", env = "ORBITKV_JOURNAL")]
    pub journal: Option<ByteSize>,

    /// Pages of the arena  [default: auto]
    #[arg(long, value_name = "PAGES", env = "ORBITKV_ARENA_PAGES")]
    pub arena_pages: Option<ArenaPages>,

    /// How the SSD is driven  [default: ring]
    #[arg(long, value_name = "BACKEND", env = "ORBITKV_SSD_BACKEND")]
    pub ssd_backend: Option<SsdBackend>,

    /// Requests that a shard gives the SSD at once, 1 to 1024; more than the device works at only wait
    /// [default: 32]
    #[arg(long, value_name = "N", env = "ORBITKV_SSD_DEPTH")]
    pub ssd_depth: Option<u32>,

    /// Pause between two blocks on SSD that a shard reads again to see whether they are still what was written;
    /// 0s is off  [default: 1s]
    #[arg(long, value_name = "SPAN", env = "ORBITKV_AUDIT")]
    pub audit: Option<Span>,

    /// For measurements: record what each core does, in 65536 events over all cores, for `orbitkv turns`. Costs a few
    /// percent  [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        env = "ORBITKV_TRACE_TURNS",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub trace_turns: Option<bool>,

    /// Percentage of the last 20 SSD operations that must have failed for a shard to leave its SSD alone; 0 uses it
    /// whatever happens  [default: 50]
    #[arg(long, value_name = "PERCENT", env = "ORBITKV_SSD_BREAKER")]
    pub ssd_breaker: Option<u32>,

    /// How long the SSD is left alone before one operation tries it again, 10ms to 60s  [default: 1s]
    #[arg(long, value_name = "SPAN", env = "ORBITKV_SSD_BREAKER_PAUSE")]
    pub ssd_breaker_pause: Option<Span>,

    /// Longest an SSD read may take before it counts as failed, 10ms to 60s  [default: 2s]
    #[arg(long, value_name = "SPAN", env = "ORBITKV_SSD_READ_BUDGET")]
    pub ssd_read_budget: Option<Span>,

    /// Percentage of DRAM that blocks may have which engines have announced and not yet acquired, and of the payload on its
    /// way from peers; 0 to 50, 0 takes no announcements  [default: 25]
    #[arg(long, value_name = "PERCENT", env = "ORBITKV_PREFETCH")]
    pub prefetch: Option<u32>,

    /// What the whole node carries on a usual day, by class: bytes that engines hold unpublished (dram), that peers have
    /// pinned (peer) and that were announced and not acquired (background), commands that wait for the SSD (ssd), e.g.
    /// dram=256mib,ssd=500; a start with less than 1.3 times as much room is refused  [default: not said]
    #[arg(long, value_name = "CLASS=LOAD,CLASS=LOAD", env = "ORBITKV_USUAL_LOAD")]
    pub usual_load: Option<String>,

    /// Bytes a second that engines of one namespace may save and have brought into DRAM, from SSD and from peers, e.g.
    /// 256mib; what is more is busy; at least 64kib a shard; 0 is as much as there is room for  [default: 0]
    #[arg(long, value_name = "SIZE", env = "ORBITKV_NAMESPACE_RATE")]
    pub namespace_rate: Option<ByteSize>,

    /// As many bytes that may go at once after a rest, at least 64kib a shard; needs --namespace-rate
    /// [default: what the rate has in a second]
    #[arg(long, value_name = "SIZE", env = "ORBITKV_NAMESPACE_BURST")]
    pub namespace_burst: Option<ByteSize>,

    /// User id whose engines may connect beside our own, such as a container's; may be repeated.
    /// Engines of all admitted ids can write the arena and trust each other  [default: none]
    #[arg(long, value_name = "UID", env = "ORBITKV_ENGINE_UID", value_delimiter = ',')]
    #[serde(deserialize_with = "one_or_many")]
    pub engine_uid: Vec<u32>,

    /// Endpoints of etcd; with them the node joins a cluster. All http:// or all https://
    /// [default: none, the node is standalone]
    #[arg(long, value_name = "URL,URL", env = "ORBITKV_ETCD", help_heading = "Cluster")]
    pub etcd: Option<String>,

    /// Certificate of the authority that etcd's certificate is checked against (PEM)
    #[arg(long, value_name = "FILE", env = "ORBITKV_ETCD_CA", help_heading = "Cluster")]
    pub etcd_ca: Option<PathBuf>,

    /// Certificate of this node for etcd (PEM); needs --etcd-key
    #[arg(long, value_name = "FILE", env = "ORBITKV_ETCD_CERT", help_heading = "Cluster")]
    pub etcd_cert: Option<PathBuf>,

    /// Key of that certificate (PEM, mode 0600)
    #[arg(long, value_name = "FILE", env = "ORBITKV_ETCD_KEY", help_heading = "Cluster")]
    pub etcd_key: Option<PathBuf>,

    /// File (mode 0600) with `user:password` for etcd
    #[arg(long, value_name = "FILE", env = "ORBITKV_ETCD_USER_FILE", help_heading = "Cluster")]
    pub etcd_user_file: Option<PathBuf>,

    /// Cluster to join, the same on every node, 1 to 64 of a-z 0-9 -
    #[arg(long, value_name = "NAME", env = "ORBITKV_CLUSTER", help_heading = "Cluster")]
    pub cluster: Option<String>,

    /// Where peers reach this node: the address of this host and the port of shard 0; shard s has
    /// the s-th port after it
    #[arg(long, value_name = "IP:BASEPORT", env = "ORBITKV_PEER_ADDR", help_heading = "Cluster")]
    pub peer_addr: Option<String>,

    /// Failure zone of this host, 1 to 64 of a-z 0-9 -  [default: none]
    #[arg(long, value_name = "ZONE", env = "ORBITKV_ZONE", help_heading = "Cluster")]
    pub zone: Option<String>,

    /// Namespace whose inventory is wanted of peers, as `orbitkv namespaces` prints it; repeatable  [default: all]
    #[arg(
        long,
        value_name = "NS",
        env = "ORBITKV_METADATA_NAMESPACE",
        value_delimiter = ',',
        help_heading = "Peers"
    )]
    #[serde(deserialize_with = "one_or_many")]
    pub metadata_namespace: Vec<String>,

    /// Want no peer's inventory: serve others and recover nothing from them
    #[arg(
        long,
        value_name = "BOOL",
        env = "ORBITKV_METADATA_EMPTY_SCOPE",
        num_args = 0..=1,
        default_missing_value = "true",
        help_heading = "Peers"
    )]
    pub metadata_empty_scope: Option<bool>,

    /// Memory of the index of peers' blocks, about 60 bytes a residence of a peer  [default: 256mib]
    #[arg(long, value_name = "SIZE", env = "ORBITKV_INDEX_BUDGET", help_heading = "Peers")]
    pub index_budget: Option<ByteSize>,

    /// How long a change may wait for others before peers are told, 0ms to 5ms  [default: 2ms]
    #[arg(long, value_name = "SPAN", env = "ORBITKV_COALESCE", help_heading = "Peers")]
    pub coalesce: Option<Span>,

    /// Receive windows of all peers together, half for metadata and half for payload  [default: 64mib]
    #[arg(long, value_name = "SIZE", env = "ORBITKV_RECEIVE_BUDGET", help_heading = "Peers")]
    pub receive_budget: Option<ByteSize>,

    /// Payload bytes a second that are asked of peers over the network, e.g. 1gib; at least 64kib a shard; 0 is as fast
    /// as they answer  [default: 0]
    #[arg(long, value_name = "SIZE", env = "ORBITKV_RECEIVE_RATE", help_heading = "Peers")]
    pub receive_rate: Option<ByteSize>,

    /// Payload bytes a second that are sent to peers over the network; at least 64kib a shard; 0 is as fast as the line
    /// takes them  [default: 0]
    #[arg(long, value_name = "SIZE", env = "ORBITKV_EGRESS_RATE", help_heading = "Peers")]
    pub egress_rate: Option<ByteSize>,

    /// Transports to peers: shared memory with nodes of this host and user, quic  [default: shm,quic]
    #[arg(long, value_name = "LIST", env = "ORBITKV_TRANSPORTS", help_heading = "Peers")]
    pub transports: Option<String>,

    /// Longest silence of a peer in a call, after which the call is given up and has failed, 10ms to 10s  [default: 1s]
    #[arg(long, value_name = "SPAN", env = "ORBITKV_CALL_BUDGET", help_heading = "Peers")]
    pub call_budget: Option<Span>,

    /// Percentage of the last calls to a peer that must have failed for it to be left alone; 0 asks it whatever
    /// happens  [default: 50]
    #[arg(long, value_name = "PERCENT", env = "ORBITKV_BREAKER", help_heading = "Peers")]
    pub breaker: Option<u32>,

    /// Calls to a peer that this looks back on, 1 to 10000  [default: 20]
    #[arg(long, value_name = "N", env = "ORBITKV_BREAKER_CALLS", help_heading = "Peers")]
    pub breaker_calls: Option<u32>,

    /// How long a peer is left alone before one call tries it again, 10ms to 60s  [default: 1s]
    #[arg(long, value_name = "SPAN", env = "ORBITKV_BREAKER_PAUSE", help_heading = "Peers")]
    pub breaker_pause: Option<Span>,

    /// Blocks that may be asked for again after a failed call, in percent of those first asked for in any window of less
    /// than 10 s  [default: 10]
    #[arg(long, value_name = "PERCENT", env = "ORBITKV_RETRY_PERCENT", help_heading = "Peers")]
    pub retry_percent: Option<u32>,

    /// Such blocks in a window in which few were asked for, over all shards, 0 to 1024; 0 asks for none again
    /// [default: 64]
    #[arg(long, value_name = "N", env = "ORBITKV_RETRY_BURST", help_heading = "Peers")]
    pub retry_burst: Option<u32>,

    /// Checks in a row, one each 2 s, that this node's own zone must have missed for another zone's nodes to be asked first,
    /// 1 to 300; it does not go back by itself  [default: 3]
    #[arg(long, value_name = "N", env = "ORBITKV_FAILOVER_CHECKS", help_heading = "Peers")]
    pub failover_checks: Option<u32>,

    /// How it is chosen which node is asked for a block  [default: shadow]
    #[arg(long, value_name = "POLICY", env = "ORBITKV_ROUTE_POLICY", help_heading = "Peers")]
    pub route_policy: Option<RoutePolicy>,

    /// For measurements: what is read in etcd before a peer is asked, or when it is not what it was taken for. Under all of
    /// them etcd alone says who is a member  [default: hybrid]
    #[arg(long, value_name = "POLICY", hide = true)]
    #[serde(skip)]
    pub refresh_policy: Option<RefreshChoice>,

    /// For measurements: take in what the watch of etcd tells so much later, at most 600s  [default: 0s]
    #[arg(long, value_name = "SPAN", hide = true)]
    #[serde(skip)]
    pub watch_lag: Option<Span>,

    /// What becomes of blocks that peers have sent, once they have been used  [default: weigh]
    #[arg(long, value_name = "POLICY", env = "ORBITKV_RETENTION", help_heading = "Peers")]
    pub retention: Option<RetentionChoice>,

    /// For measurements: keep so many of the newest moments at which a core published changes, and as many at which changes
    /// of peers became visible on it, at most 65536  [default: 0, none]
    #[arg(long, value_name = "COUNT", hide = true)]
    #[serde(skip)]
    pub visibility_samples: Option<u32>,
}

fn given<T>(above: Vec<T>, below: Vec<T>) -> Vec<T> {
    if above.is_empty() { below } else { above }
}

impl NodeArgs {
    /// These settings, and those of `below` where these are silent.
    #[must_use]
    pub fn over(self, below: NodeArgs) -> NodeArgs {
        NodeArgs {
            config: self.config.or(below.config),
            node_id: self.node_id.or(below.node_id),
            data_dir: self.data_dir.or(below.data_dir),
            engine_socket: self.engine_socket.or(below.engine_socket),
            http: self.http.or(below.http),
            http_token_file: self.http_token_file.or(below.http_token_file),
            dram: self.dram.or(below.dram),
            ssd: self.ssd.or(below.ssd),
            shards: self.shards.or(below.shards),
            cores: self.cores.or(below.cores),
            device_cores: self.device_cores.or(below.device_cores),
            layout: self.layout.or(below.layout),
            idle: self.idle.or(below.idle),
            journal: self.journal.or(below.journal),
            ssd_depth: self.ssd_depth.or(below.ssd_depth),
            audit: self.audit.or(below.audit),
            trace_turns: self.trace_turns.or(below.trace_turns),
            ssd_breaker: self.ssd_breaker.or(below.ssd_breaker),
            ssd_breaker_pause: self.ssd_breaker_pause.or(below.ssd_breaker_pause),
            ssd_read_budget: self.ssd_read_budget.or(below.ssd_read_budget),
            prefetch: self.prefetch.or(below.prefetch),
            usual_load: self.usual_load.or(below.usual_load),
            namespace_rate: self.namespace_rate.or(below.namespace_rate),
            namespace_burst: self.namespace_burst.or(below.namespace_burst),
            arena_pages: self.arena_pages.or(below.arena_pages),
            ssd_backend: self.ssd_backend.or(below.ssd_backend),
            engine_uid: given(self.engine_uid, below.engine_uid),
            etcd: self.etcd.or(below.etcd),
            etcd_ca: self.etcd_ca.or(below.etcd_ca),
            etcd_cert: self.etcd_cert.or(below.etcd_cert),
            etcd_key: self.etcd_key.or(below.etcd_key),
            etcd_user_file: self.etcd_user_file.or(below.etcd_user_file),
            cluster: self.cluster.or(below.cluster),
            peer_addr: self.peer_addr.or(below.peer_addr),
            zone: self.zone.or(below.zone),
            metadata_namespace: given(self.metadata_namespace, below.metadata_namespace),
            metadata_empty_scope: self.metadata_empty_scope.or(below.metadata_empty_scope),
            index_budget: self.index_budget.or(below.index_budget),
            coalesce: self.coalesce.or(below.coalesce),
            transports: self.transports.or(below.transports),
            call_budget: self.call_budget.or(below.call_budget),
            breaker: self.breaker.or(below.breaker),
            breaker_calls: self.breaker_calls.or(below.breaker_calls),
            breaker_pause: self.breaker_pause.or(below.breaker_pause),
            retry_percent: self.retry_percent.or(below.retry_percent),
            retry_burst: self.retry_burst.or(below.retry_burst),
            failover_checks: self.failover_checks.or(below.failover_checks),
            route_policy: self.route_policy.or(below.route_policy),
            retention: self.retention.or(below.retention),
            receive_budget: self.receive_budget.or(below.receive_budget),
            receive_rate: self.receive_rate.or(below.receive_rate),
            egress_rate: self.egress_rate.or(below.egress_rate),
            refresh_policy: self.refresh_policy.or(below.refresh_policy),
            watch_lag: self.watch_lag.or(below.watch_lag),
            visibility_samples: self.visibility_samples.or(below.visibility_samples),
        }
    }

    /// The first setting of a cluster that was given beside `--etcd`, and its value.
    #[must_use]
    pub(super) fn first_of_cluster(&self) -> Option<(&'static str, String)> {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let given = [
            ("--cluster", self.cluster.clone()),
            ("--peer-addr", self.peer_addr.clone()),
            ("--zone", self.zone.clone()),
            ("--etcd-ca", path(&self.etcd_ca)),
            ("--etcd-cert", path(&self.etcd_cert)),
            ("--etcd-key", path(&self.etcd_key)),
            ("--etcd-user-file", path(&self.etcd_user_file)),
            ("--metadata-namespace", self.metadata_namespace.first().cloned()),
            ("--metadata-empty-scope", self.metadata_empty_scope.map(|empty| empty.to_string())),
            ("--index-budget", self.index_budget.map(|size| size.to_string())),
            ("--receive-budget", self.receive_budget.map(|size| size.to_string())),
            ("--receive-rate", self.receive_rate.map(|size| size.to_string())),
            ("--egress-rate", self.egress_rate.map(|size| size.to_string())),
            ("--coalesce", self.coalesce.map(|span| span.to_string())),
            ("--transports", self.transports.clone()),
            ("--call-budget", self.call_budget.map(|span| span.to_string())),
            ("--breaker", self.breaker.map(|percent| percent.to_string())),
            ("--breaker-calls", self.breaker_calls.map(|calls| calls.to_string())),
            ("--breaker-pause", self.breaker_pause.map(|span| span.to_string())),
            ("--retry-percent", self.retry_percent.map(|percent| percent.to_string())),
            ("--refresh-policy", self.refresh_policy.map(|policy| format!("{policy:?}").to_lowercase())),
            ("--watch-lag", self.watch_lag.map(|span| span.to_string())),
            ("--retry-burst", self.retry_burst.map(|blocks| blocks.to_string())),
            ("--failover-checks", self.failover_checks.map(|checks| checks.to_string())),
            ("--visibility-samples", self.visibility_samples.map(|count| count.to_string())),
            ("--retention", self.retention.map(|policy| format!("{policy:?}").to_lowercase())),
            ("--route-policy", self.route_policy.map(|policy| format!("{policy:?}").to_lowercase())),
        ];
        given.into_iter().find_map(|(name, value)| value.map(|value| (name, value)))
    }

    /// The first setting that needs peers or another part that this version has not, if any was given.
    #[must_use]
    pub fn beyond_this_version(&self) -> Option<&'static str> {
        (self.ssd_backend == Some(SsdBackend::Glommio)).then_some("ssd-backend")
    }
}
