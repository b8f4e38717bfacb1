//! `/cache/metadata`: one page that says what a node is, holds and has seen.

use std::collections::BTreeMap;

use orbitkv_shards::coverage::{Basis, Merged, merge};
use serde::{Deserialize, Serialize};

use super::etcd::Sight;
use super::health::answer::DeepChecks;
use super::policy::view::ConfigView;
use super::report::{PeersReport, ShardReport};
use crate::bill::Bill;
use crate::settings::NodeSettings;

/// What of a node does not change while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeIdentity {
    /// Name of the node.
    pub node_id: String,
    /// Version of the program.
    pub version: String,
    /// Path of the engine socket.
    pub engine_socket: String,
    /// Cores of shards and device loops, in words.
    pub placement: String,
    /// Pages the arena got: `hugetlb`, `thp` or `small`.
    pub arena_pages: String,
    /// Shards of this incarnation.
    pub shards: u16,
    /// Digest of the subscribed namespaces; none standalone.
    pub scope_digest: Option<String>,
    /// Items of the memory bill in bytes.
    pub bill: Vec<BillLine>,
}

/// One item of the memory bill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BillLine {
    /// What holds it.
    pub name: String,
    /// Bytes in the whole node.
    pub bytes: u64,
}

/// Where a node is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Not serving yet.
    #[default]
    Starting,
    /// Serving.
    Serving,
    /// Admits nothing new.
    Draining,
}

/// The page. Standalone, there is no epoch, cluster, scope or membership, and no session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MetadataPage {
    /// Whether the node has no etcd.
    pub standalone: bool,
    /// What does not change.
    pub identity: NodeIdentity,
    /// Registration life, as UUID text; the same on every shard of the page.
    pub incarnation: String,
    /// Counter of registrations; none standalone.
    pub epoch: Option<u64>,
    /// Cluster; none standalone.
    pub cluster: Option<String>,
    /// Digest of the subscribed namespaces; none standalone.
    pub scope_digest: Option<String>,
    /// Membership map.
    pub membership: Membership,
    /// Settings that can be changed while the node runs, and which version of them holds.
    pub config: ConfigView,
    /// `CompleteAtWatermarks`, `PartialHints` or `Unavailable`, over all cores. Standalone the first: no owner
    /// stream is expected, and every one of them is installed.
    pub coverage: String,
    /// Age of the least fresh installed view in milliseconds, by receipt.
    pub oldest_age_ms: u64,
    /// Owner streams of members whose view is missing, broken or too old, over all cores; 0 standalone.
    pub left_out: u64,
    /// Where the node is in its life.
    pub phase: Phase,
    /// Head of each shard's journal.
    pub inventory_sequence: Vec<u64>,
    /// Bytes of the journals together.
    pub journal: JournalTotals,
    /// Bytes of the index of peers' blocks.
    pub index: IndexTotals,
    /// Inventory sessions.
    pub sessions: u64,
    /// Resets of sessions, by cause; standalone there is nothing to reset.
    pub resets: Vec<Reset>,
    /// Memory of the process.
    pub memory: Memory,
    /// Deep checks that were made because somebody asked for one.
    pub deep_checks: DeepChecks,
    /// Everything else, shard by shard.
    pub shards: Vec<ShardReport>,
}

/// Membership as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Membership {
    /// Revision of the map; none standalone.
    pub revision: Option<u64>,
    /// `standalone`; with etcd `member` if the node is registered and knows the members, else `beginning`,
    /// `joining`, `refused`, `suspended` or `leaving`.
    pub validity: String,
    /// Why it is not `member`, in words; empty if there is nothing to say.
    pub detail: String,
    /// The registered life, as UUID text; none while there is none.
    pub incarnation: Option<String>,
    /// Every member as last read that may be spoken to, this node included, in the order of names.
    pub members: Vec<MemberRow>,
    /// Lives registered by this process.
    pub registrations: u64,
    /// Lives that ended for good while the process lived on.
    pub fences: u64,
    /// Times that the members were no longer known.
    pub suspensions: u64,
    /// Watches that ended and were opened again.
    pub watches_ended: u64,
    /// Requests and renewals that etcd did not answer in time.
    pub unanswered: u64,
    /// Alarms raised; each is in the log.
    pub alarms: u64,
    /// Members that had begun another life when somebody at their address showed another key, counter.
    pub superseded: u64,
    /// Reads of the members because something on the wire contradicted them, counter.
    pub rereads: u64,
    /// Reads of a single member's record, counter; none under the policy that ships.
    pub lookups: u64,
    /// Members at whose address somebody has shown another key than etcd confirms.
    pub disputed: Vec<String>,
    /// Members that place keys on shards by another hash than this node, with its version. They are left out:
    /// `members` has none of them.
    pub foreign_hash: BTreeMap<String, u16>,
    /// Renewals of the lease that were acknowledged.
    pub renewals: u64,
    /// Requests to etcd, renewals and signs of life included.
    pub etcd_requests: u64,
    /// Bytes of keys and values sent to etcd.
    pub etcd_sent_bytes: u64,
    /// Bytes of keys and values received from it.
    pub etcd_received_bytes: u64,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberRow {
    /// Name of the node.
    pub node_id: String,
    /// Counter of its registrations.
    pub epoch: u64,
    /// Its registration life, as UUID text.
    pub incarnation: String,
    /// Where its shard 0 listens.
    pub address: String,
    /// Its shards.
    pub shards: u16,
    /// Its failure zone; empty if it names none.
    pub zone: String,
}

/// The journals of a node together, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JournalTotals {
    /// Held.
    pub used_bytes: u64,
    /// Most ever held, summed over the shards.
    pub peak_bytes: u64,
    /// Of the rings.
    pub capacity_bytes: u64,
}

/// The index of peers' blocks; all zero standalone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexTotals {
    /// Rows: of installed views, of views being received, and of views that are gone and not swept yet.
    pub rows: u64,
    /// Bytes charged for them, transient growth included.
    pub accounted_bytes: u64,
    /// Bytes allowed.
    pub budget_bytes: u64,
}

/// Resets of one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reset {
    /// Why.
    pub cause: String,
    /// How often.
    pub count: u64,
}

/// Memory of the process against its bill, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Resident set, shared arena pages included, reserved huge pages not; 0 if it cannot be read.
    pub rss_bytes: u64,
    /// Most it ever was.
    pub rss_peak_bytes: u64,
    /// Total of the bill.
    pub bill_bytes: u64,
}

impl NodeIdentity {
    /// The identity of a node with these settings; `arena_pages` is what the arena got.
    #[must_use]
    pub fn of(settings: &NodeSettings, bill: &Bill, arena_pages: &str) -> NodeIdentity {
        let lines = bill.items.iter();
        NodeIdentity {
            node_id: settings.node_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            engine_socket: settings.engine_socket.display().to_string(),
            placement: settings.placement.to_string(),
            arena_pages: arena_pages.to_owned(),
            shards: settings.shards,
            scope_digest: settings.cluster.as_ref().map(|cluster| cluster.scope.digest().to_string()),
            bill: lines.map(|item| BillLine { name: item.name.to_owned(), bytes: item.bytes }).collect(),
        }
    }
}

impl Memory {
    /// Memory of this process now.
    #[must_use]
    pub fn observe(identity: &NodeIdentity) -> Memory {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1_024)
        };
        Memory {
            rss_bytes: field("VmRSS:").unwrap_or(0),
            rss_peak_bytes: field("VmHWM:").unwrap_or(0),
            bill_bytes: identity.bill.iter().map(|line| line.bytes).sum(),
        }
    }
}

impl Membership {
    fn standalone() -> Membership {
        Membership { validity: "standalone".to_owned(), ..Membership::default() }
    }
}

/// The shards whose answers were merged belong to different registration lives; ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixedIncarnations;

impl MetadataPage {
    /// Merges the shards' reports, in order of shard.
    ///
    /// # Errors
    /// If the reports are of different incarnations.
    pub fn of(
        identity: &NodeIdentity,
        phase: Phase,
        sight: Option<&Sight>,
        mut shards: Vec<ShardReport>,
    ) -> Result<MetadataPage, MixedIncarnations> {
        shards.sort_by_key(|report| report.shard);
        if shards.windows(2).any(|pair| pair[0].incarnation != pair[1].incarnation) {
            return Err(MixedIncarnations);
        }
        let local = sight.and_then(|sight| sight.local);
        let merged = coverage(&shards);
        let peers = || shards.iter().filter_map(|report| report.peers.as_ref());
        let journals = || shards.iter().map(|report| report.journal);
        Ok(MetadataPage {
            standalone: sight.is_none(),
            identity: identity.clone(),
            incarnation: shards.first().map(|report| report.incarnation.clone()).unwrap_or_default(),
            epoch: local.map(|local| local.epoch),
            cluster: local.map(|local| local.cluster.to_string()),
            scope_digest: identity.scope_digest.clone(),
            membership: sight.map_or_else(Membership::standalone, Membership::of),
            config: ConfigView::default(),
            coverage: format!("{:?}", merged.coverage),
            oldest_age_ms: merged.oldest_age.as_millis() as u64,
            left_out: merged.left_out.into(),
            phase,
            inventory_sequence: journals().map(|journal| journal.head_sequence).collect(),
            journal: JournalTotals {
                used_bytes: journals().map(|journal| journal.used_bytes).sum(),
                peak_bytes: journals().map(|journal| journal.peak_bytes).sum(),
                capacity_bytes: journals().map(|journal| journal.capacity_bytes).sum(),
            },
            index: IndexTotals {
                rows: peers().map(|peers| peers.index_rows).sum(),
                accounted_bytes: peers().map(|peers| peers.index_bytes).sum(),
                budget_bytes: peers().map(|peers| peers.index_budget_bytes).sum(),
            },
            sessions: peers().map(|peers| peers.sessions_served + peers.sessions_received).sum(),
            resets: resets(peers()),
            memory: Memory::observe(identity),
            deep_checks: DeepChecks::default(),
            shards,
        })
    }
}

/// What all cores together know of peers; of a standalone node none says anything, and it is complete.
fn coverage(shards: &[ShardReport]) -> Merged {
    let parts: Vec<_> = shards.iter().filter_map(|report| report.coverage).collect();
    let (revision, scope_generation) =
        parts.first().map_or((0, 0), |first| (first.revision, first.scope_generation));
    merge(Basis { revision, scope_generation }, &parts)
}

fn resets<'a>(peers: impl Iterator<Item = &'a PeersReport>) -> Vec<Reset> {
    let mut sums = BTreeMap::new();
    for (cause, count) in peers.flat_map(|peers| &peers.resets) {
        *sums.entry(cause.clone()).or_default() += count;
    }
    sums.into_iter().map(|(cause, count)| Reset { cause, count }).collect()
}
