//! Whether a node has left its own zone for another one's nodes.

use super::{Finding, Severity};
use crate::control::metadata::MetadataPage;
use crate::control::report::ShardReport;
use crate::control::zones::ZonesReport;

/// One finding for all cores that ask another zone first although nodes of their own are there.
pub(super) fn findings(page: &MetadataPage) -> Option<Finding> {
    let of_shard = |report: &ShardReport| {
        let zones = report.peers.as_ref()?.zones.clone();
        zones.has_left_own().then_some((report.shard, zones))
    };
    let left: Vec<(u16, ZonesReport)> = page.shards.iter().filter_map(of_shard).collect();
    let own = &left.first()?.1.own;
    let core = |(shard, zones): &(u16, ZonesReport)| {
        let preferred = zones.preferred.as_deref().unwrap_or_default();
        format!("core {shard} nodes of {preferred}, after {} changes", zones.failovers)
    };
    let asked: Vec<String> = left.iter().map(core).collect();
    Some(Finding {
        severity: Severity::Notice,
        name: "zone-left",
        what: format!(
            "blocks are no longer asked of this node's own zone {own} first, for it had missed its checks: {}",
            asked.join("; ")
        ),
        why: "what both zones have comes from farther away; the node does not go back by itself, because a zone that comes \
              and goes would cost a change each time",
        remedy: format!(
            "see `orbitkv doctor` at the nodes of {own} and the network to them; once they are well, `orbitkv failback`"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::tests::check_sentences;
    use crate::control::report::PeersReport;

    #[test]
    fn a_zone_that_was_left_is_one_finding_while_somebody_stands_in_it() {
        let core = |shard, own: &str, preferred: Option<&str>, zones: &[&str]| {
            let zones = ZonesReport {
                own: own.to_owned(),
                preferred: preferred.map(str::to_owned),
                zones: zones.iter().map(|zone| (*zone).to_owned()).collect(),
                failovers: 1,
                ..ZonesReport::default()
            };
            let peers = Some(PeersReport { zones, ..PeersReport::default() });
            ShardReport { shard, peers, ..ShardReport::default() }
        };
        let of = |shards| findings(&MetadataPage { shards, ..MetadataPage::default() });
        let both = ["east", "west"];
        let found = of(vec![
            core(0, "east", Some("west"), &both),
            core(1, "east", Some("east"), &both),
            core(2, "east", Some("west"), &both),
        ]);
        let found = found.expect("it was left");
        check_sentences(std::slice::from_ref(&found));
        assert_eq!((found.name, found.severity), ("zone-left", Severity::Notice));
        let cores = "checks: core 0 nodes of west, after 1 changes; core 2 nodes of west, after 1 changes";
        assert!(found.what.contains("own zone east") && found.what.ends_with(cores), "{found:?}");
        for quiet in [
            ShardReport::default(),
            core(0, "", None, &[]),
            core(0, "east", None, &[]),
            core(0, "east", Some("east"), &both),
            // Nobody is there to go back to.
            core(0, "east", Some("west"), &["west"]),
        ] {
            assert_eq!(of(vec![quiet]), None);
        }
    }
}
