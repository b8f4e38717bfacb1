//! What is seen of a node of a cluster from outside: one row of its table.

use std::process::ExitStatus;

use serde::Serialize;

use crate::cli::table::{Table, UNKNOWN};
use crate::control::metadata::{MetadataPage, Phase};
use crate::control::report::{PeersReport, ShardReport};
use crate::quantity::ByteSize;

/// How much the coverage of an answer is worth at best.
pub const COMPLETE: &str = "CompleteAtWatermarks";

/// One node at one moment. What it has not said is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeSight {
    /// Its name.
    pub node: String,
    /// `member` and the other words of its membership, `draining`, `silent`, or how it ended.
    pub state: String,
    /// Counter of its registrations; none while it has no life.
    pub epoch: Option<u64>,
    /// Coverage over all its cores; empty if unknown.
    pub coverage: String,
    /// Members it knows, itself included.
    pub members: usize,
    /// Inventory sessions in which peers subscribe to it.
    pub sessions_served: u64,
    /// Inventory sessions in which it subscribes to peers.
    pub sessions_received: u64,
    /// Records by which the rearmost acknowledged view of it is behind its journal.
    pub lag_records_max: u64,
    /// Age of its least fresh view of a peer in milliseconds, by receipt.
    pub oldest_age_ms: u64,
    /// Blocks in its DRAM.
    pub dram_blocks: u64,
    /// Blocks on its SSD.
    pub ssd_blocks: u64,
    /// Resident set in bytes.
    pub rss_bytes: u64,
    /// Total of its memory bill in bytes.
    pub bill_bytes: u64,
    /// Whether it is a member, knows all nodes of the run, and its coverage is complete.
    pub complete: bool,
}

impl NodeSight {
    /// A node of which there is no page.
    pub(super) fn dark(name: &str, ended: Option<ExitStatus>) -> NodeSight {
        let state = ended.map_or("silent".to_owned(), |status| format!("ended, {status}"));
        NodeSight { node: name.to_owned(), state, ..NodeSight::default() }
    }

    /// What a page says; `nodes` are the names of the run's.
    #[must_use]
    pub fn of(page: &MetadataPage, nodes: &[&str]) -> NodeSight {
        let sum = |of: fn(&ShardReport) -> u64| page.shards.iter().map(of).sum();
        let peers = || page.shards.iter().filter_map(|shard| shard.peers.as_ref());
        let sum_peers = |of: fn(&PeersReport) -> u64| peers().map(of).sum();
        let knows = |name: &&str| page.membership.members.iter().any(|member| member.node_id == **name);
        let is_member = page.membership.validity == "member" && page.phase == Phase::Serving;
        NodeSight {
            node: page.identity.node_id.clone(),
            state: match page.phase {
                Phase::Draining => "draining".to_owned(),
                _ => page.membership.validity.clone(),
            },
            epoch: page.epoch,
            coverage: page.coverage.clone(),
            members: page.membership.members.len(),
            sessions_served: sum_peers(|peers| peers.sessions_served),
            sessions_received: sum_peers(|peers| peers.sessions_received),
            lag_records_max: peers().map(|peers| peers.lag_records_max).max().unwrap_or(0),
            oldest_age_ms: page.oldest_age_ms,
            dram_blocks: sum(|shard| shard.residents.dram),
            ssd_blocks: sum(|shard| shard.residents.ssd),
            rss_bytes: page.memory.rss_bytes,
            bill_bytes: page.memory.bill_bytes,
            complete: is_member && page.coverage == COMPLETE && nodes.iter().all(knows),
        }
    }
}

/// The table of a cluster: one row a node.
#[must_use]
pub fn table(sights: &[NodeSight]) -> String {
    let mut table = Table::new([
        "node",
        "epoch",
        "state",
        "coverage",
        "members",
        "served",
        "received",
        "lag",
        "dram blocks",
        "ssd blocks",
        "rss",
    ]);
    for sight in sights {
        // A node that says nothing has no figures, not figures of 0.
        let known = !sight.coverage.is_empty();
        let figure = |value: u64| if known { value.to_string() } else { UNKNOWN.to_owned() };
        table.row([
            sight.node.clone(),
            sight.epoch.map_or(UNKNOWN.to_owned(), |epoch| epoch.to_string()),
            sight.state.clone(),
            if known { sight.coverage.clone() } else { UNKNOWN.to_owned() },
            figure(sight.members as u64),
            figure(sight.sessions_served),
            figure(sight.sessions_received),
            figure(sight.lag_records_max),
            figure(sight.dram_blocks),
            figure(sight.ssd_blocks),
            if known { ByteSize(sight.rss_bytes).rounded() } else { UNKNOWN.to_owned() },
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::control::metadata::{MemberRow, Membership, Memory, NodeIdentity};

    fn page() -> MetadataPage {
        let member = |name: &str| MemberRow { node_id: name.to_owned(), ..MemberRow::default() };
        let shard = |shard, dram, served, lag| {
            let mut report = ShardReport { shard, ..ShardReport::default() };
            report.residents.dram = dram;
            report.peers = Some(PeersReport {
                sessions_served: served,
                sessions_received: 1,
                lag_records_max: lag,
                ..PeersReport::default()
            });
            report
        };
        MetadataPage {
            identity: NodeIdentity { node_id: "node-1".to_owned(), ..NodeIdentity::default() },
            epoch: Some(3),
            coverage: COMPLETE.to_owned(),
            membership: Membership {
                validity: "member".to_owned(),
                members: vec![member("node-1"), member("node-2")],
                ..Membership::default()
            },
            phase: Phase::Serving,
            memory: Memory { rss_bytes: 1 << 20, ..Memory::default() },
            shards: vec![shard(0, 5, 2, 7), shard(1, 6, 2, 4)],
            ..MetadataPage::default()
        }
    }

    #[test]
    fn a_page_becomes_a_row() {
        let sight = NodeSight::of(&page(), &["node-1", "node-2"]);
        let figures = (sight.sessions_served, sight.sessions_received, sight.lag_records_max);
        assert_eq!(figures, (4, 2, 7), "sessions are summed, the lag is the largest");
        assert_eq!((sight.dram_blocks, sight.members, sight.epoch), (11, 2, Some(3)));
        let text = table(&[sight, NodeSight::dark("node-2", Some(ExitStatus::from_raw(9)))]);
        assert!(text.contains("node-1      3  member"), "{text}");
        assert!(text.contains("1.00 MiB") && text.contains("ended, signal: 9"), "{text}");
        assert!(text.lines().last().is_some_and(|row| row.ends_with(UNKNOWN)), "{text}");
    }

    #[test]
    fn complete_wants_all_nodes_membership_and_coverage() {
        let both = ["node-1", "node-2"];
        assert!(NodeSight::of(&page(), &both).complete);
        assert!(!NodeSight::of(&page(), &["node-1", "node-2", "node-3"]).complete, "one is not known yet");
        let spoil: [fn(&mut MetadataPage); 3] = [
            |page| page.coverage = "PartialHints".to_owned(),
            |page| page.membership.validity = "suspended".to_owned(),
            |page| page.phase = Phase::Draining,
        ];
        for spoil in spoil {
            let mut page = page();
            spoil(&mut page);
            assert!(!NodeSight::of(&page, &both).complete, "{page:?}");
        }
        assert!(!NodeSight::dark("node-1", None).complete);
    }
}
