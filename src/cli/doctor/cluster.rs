//! What is wrong with a node as a member: its registration, its sessions with the others, and what comes of them.
//!
//! Counters grow for the life of the process, so a finding made of one says what has happened, not what happens now;
//! levels (`disputed`, quarantined bytes, streams that are missing) say what is so at this moment.

use std::collections::BTreeSet;

use orbitkv_shards::resilience::degradation::FRESHNESS_BOUND;
use orbitkv_shards::resilience::zones::ZoneCapacity;

use super::{Finding, Severity, rates};
use crate::control::metadata::{Membership, MetadataPage};
use crate::control::owners::Owner;
use crate::control::report::{BreakerReport, PeersReport, ShardReport};
use crate::control::sources::SourceReport;
use crate::quantity::ByteSize;

/// Time without a session, or without a fresh view, from which a stream is worth a word: every healthy one has
/// heard something before, and absence is not claimed beyond it.
const MISSING_MS_LONG: u64 = FRESHNESS_BOUND.as_millis() as u64;

/// Causes of refused sessions that every node that comes or goes has for a moment: it was not known yet, or not any
/// more.
const REFUSED_IN_PASSING: [&str; 2] = ["NotInMap", "Fenced"];

/// Streams that are named in a finding.
const NAMED_MAX: usize = 3;

/// Share of the residences asked for that had ended at their source and is worth a word, in percent.
const ENDED_PERCENT_HIGH: u64 = 10;

/// Modes of calls that are worth a word, in words, and what they mean.
const MODES: [(&str, &str, &str, &str); 4] = [
    (
        "partial",
        "partly failed",
        "each failed call cost the next peer's turn or a miss; the rest are answered",
        "see `orbitkv doctor` there, and whether the network to it loses packets",
    ),
    (
        "stale",
        "out of date",
        "most of what those nodes told of had ended when it was asked for: each cost the next peer's turn or a miss",
        "give those nodes more room (--dram, --ssd), or lower --coalesce there if their changes come late",
    ),
    (
        "slow-or-cut",
        "slow or cut off",
        "nothing came within --call-budget; a slow node and one that is cut off look the same from here",
        "see whether that node is overloaded or stopped (`orbitkv doctor` there), then the network to it",
    ),
    (
        "down",
        "down",
        "nearly every call broke off at once",
        "see the log of that node: it refuses connections or ends them",
    ),
];

fn finding(severity: Severity, name: &'static str, what: String, why: &'static str, remedy: &str) -> Finding {
    Finding { severity, name, what, why, remedy: remedy.to_owned() }
}

/// What is wrong with the registration and with who stands under whose name.
pub(super) fn of_membership(membership: &Membership) -> Vec<Finding> {
    let mut found = Vec::new();
    let detail = &membership.detail;
    let outside = "blocks of peers are neither lent nor brought; engines are served from this node alone";
    let registration = match membership.validity.as_str() {
        "refused" => Some((
            "not-registered",
            format!("etcd is answered, and this node may not be a member: {detail}"),
            "end the process that holds the name or the ports, or give this one others (--node-id, --peer-addr); \
             another format means another version: use another --cluster",
        )),
        "joining" if !detail.is_empty() => Some((
            "etcd-unreachable",
            format!("etcd does not let this node register: {detail}"),
            "see that the members of etcd run and are reached from here; then --etcd, its certificates and its user",
        )),
        "suspended" => Some((
            "members-unknown",
            format!("who is a member is not known at the moment: {detail}"),
            "it repairs itself when etcd answers; see that its members run and keep enough history",
        )),
        _ => None,
    };
    if let Some((name, what, remedy)) = registration {
        found.push(finding(Severity::Fault, name, what, outside, remedy));
    }
    if membership.fences > 0 {
        found.push(finding(
            Severity::Notice,
            "lease-expired",
            format!(
                "{} lives of this node ended while it ran, and {} questions to etcd were not answered in time",
                membership.fences, membership.unanswered
            ),
            "each time its sessions and grants ended, and everything it holds was told to its peers again",
            "look at the latency of etcd (its disk, its leader) and at what stopped this process or its host",
        ));
    }
    if !membership.disputed.is_empty() {
        found.push(finding(
            Severity::Fault,
            "wrong-key",
            format!(
                "at the address of {} somebody shows another key than its member record names, and etcd confirms the \
                 record",
                membership.disputed.join(", ")
            ),
            "no session with that address comes to be, in either direction, so blocks of that member are misses",
            "two nodes publish one address, or somebody stands in for a member: see which process has these UDP ports",
        ));
    }
    if !membership.foreign_hash.is_empty() {
        let named = membership.foreign_hash.iter().map(|(node, version)| format!("{node} ({version})"));
        let named = named.collect::<Vec<_>>().join(", ");
        found.push(finding(
            Severity::Fault,
            "hash-version",
            format!("members that place keys by another hash version than this node: {named}"),
            "where their keys are cannot be said: they are not asked, and no absence is claimed",
            "update the older of the two: all nodes of a cluster place keys by one hash version",
        ));
    }
    if membership.superseded > 0 {
        found.push(finding(
            Severity::Notice,
            "superseded",
            format!("{} members had begun another life when their key was not the known one", membership.superseded),
            "for a moment their old life was spoken to; etcd was read once each time, and the new one is known",
            "nothing, if nodes were restarted with a new node.key; else see who removes it from --data-dir",
        ));
    }
    if membership.alarms > 0 {
        found.push(finding(
            Severity::Notice,
            "membership-alarms",
            format!("{} alarms about membership, each in the log", membership.alarms),
            "etcd failed or was another one, a name was held twice, or a member record was none",
            "look for lines of level ERROR in the log of this node",
        ));
    }
    found
}

/// What is wrong between one core and its peers.
pub(super) fn of_peers(shard: u16, peers: &PeersReport) -> Vec<Finding> {
    let mut found = Vec::new();
    let PeersReport { lending, fetching, handshakes, .. } = peers;
    if handshakes.wrong_signatures > 0 {
        found.push(finding(
            Severity::Fault,
            "impostor",
            format!(
                "{} times somebody showed a member's key to core {shard} and did not hold it",
                handshakes.wrong_signatures
            ),
            "it was refused each time; no healthy node does that",
            "find the host at the address that tries, and keep others from writing in etcd below this cluster",
        ));
    }
    let told =
        peers.sessions_refused.iter().filter(|(cause, _)| !REFUSED_IN_PASSING.contains(&cause.as_str()));
    let refused: u64 = told.clone().map(|(_, count)| count).sum();
    if refused > 0 {
        let causes = told.map(|(cause, count)| format!("{count} {cause}"));
        found.push(finding(
            Severity::Notice,
            "sessions-refused",
            format!(
                "core {shard} refused {refused} inventory sessions: {}",
                causes.collect::<Vec<_>>().join(", ")
            ),
            "whoever was refused knew another life or another cluster, and asks again once it has read etcd",
            "nothing while nodes come and go; if it grows, compare --cluster and the versions of the nodes",
        ));
    }
    let broken = fetching.violations + fetching.wrong_checksums + fetching.corrupt + lending.beyond_head;
    if broken + peers.protocol_errors > 0 {
        found.push(finding(
            Severity::Fault,
            "peer-violations",
            format!(
                "core {shard}: {} frames and {} answers of peers broke the protocol, {} blocks came with wrong bytes, \
                 {} were asked for that never were",
                peers.protocol_errors,
                fetching.violations,
                fetching.wrong_checksums.max(fetching.corrupt),
                lending.beyond_head
            ),
            "each was refused or was a miss, never wrong bytes; no healthy peer causes it",
            "bring all nodes to one version; if they are, look at the memory and the network of the peer in the log",
        ));
    }
    if lending.quarantined_bytes > 0 {
        found.push(finding(
            Severity::Notice,
            "quarantine",
            format!(
                "{} of shard {shard} was lent over shared memory, is overdue, and is not proved free",
                ByteSize(lending.quarantined_bytes).rounded()
            ),
            "that memory is charged and used for nothing else; with a tenth of its allowance a peer is served over \
             QUIC alone",
            "let the reader go on (it is stopped or frozen), or end its process",
        ));
    }
    found.extend(rates::findings(shard, peers));
    if fetching.transport_off > 0 {
        found.push(finding(
            Severity::Notice,
            "transport-off",
            format!("{} times a peer of this host shared no memory with core {shard} any more", fetching.transport_off),
            "blocks come over QUIC for a while, which costs both processors",
            "let this node read on without being stopped; `orbitkv doctor` at the peer says what it keeps in quarantine",
        ));
    }
    let standing = |state: &str| {
        let those = peers.breakers.iter().filter(|breaker| breaker.state == state);
        let names = those.map(|breaker| {
            let BreakerReport { node_id, shard, .. } = breaker;
            let same = |source: &&SourceReport| (&source.node_id, source.shard) == (node_id, *shard);
            match peers.sources.iter().find(same).map(|source| source.mode.as_str()) {
                None | Some("") => format!("{node_id} shard {shard}"),
                Some(mode) => format!("{node_id} shard {shard} ({mode})"),
            }
        });
        names.collect::<Vec<_>>().join(", ")
    };
    let (left, untried) = (standing("open"), standing("half-open"));
    if !left.is_empty() {
        found.push(finding(
            Severity::Fault,
            "peer-left-alone",
            format!("core {shard} leaves {left} alone: too many of the last calls failed"),
            "blocks that only those have are misses at once; one call a pause tries each again",
            "see whether that node or the network to it is overloaded or down (`orbitkv doctor` there); if it is only \
             slow by nature, raise --call-budget here",
        ));
    }
    if !untried.is_empty() {
        found.push(finding(
            Severity::Notice,
            "peer-untried",
            format!("core {shard} left {untried} alone because calls failed, and has had no answer since"),
            "the pause is over: the next block that only those have is asked for, by itself, and decides",
            "nothing, if that node and the network to it are well; nobody here has asked for a block of it meanwhile",
        ));
    }
    for (mode, words, why, remedy) in MODES {
        // Who is left alone is told above.
        let is_asked = |source: &&SourceReport| {
            let same = |breaker: &&BreakerReport| {
                (&breaker.node_id, breaker.shard) == (&source.node_id, source.shard)
            };
            peers.breakers.iter().find(same).is_none_or(|breaker| breaker.state == "closed")
        };
        let those = peers.sources.iter().filter(|source| source.mode == mode).filter(is_asked);
        let names = those.map(|source| {
            let SourceReport { node_id, shard, answers, fresh, errors, timeouts, ms_mean, .. } = source;
            format!(
                "{node_id} shard {shard} ({answers} answers of which {fresh} fresh, {errors} errors, {timeouts} silences, {ms_mean} \
                 ms a call)"
            )
        });
        let names = names.collect::<Vec<_>>().join(", ");
        if !names.is_empty() {
            let what = format!("the last calls of core {shard} to members look {words}: {names}");
            found.push(finding(Severity::Notice, "peer-mode", what, why, remedy));
        }
    }
    if fetching.extra_asks_refused > 0 {
        found.push(finding(
            Severity::Notice,
            "retries-refused",
            format!(
                "core {shard} did not ask again for {} blocks whose call had failed, and did for {} of {}",
                fetching.extra_asks_refused, fetching.extra_asks, fetching.first_asks
            ),
            "those were misses though another peer may have had them: more would have loaded the rest like an outage",
            "find out why calls fail (`orbitkv_peer_calls_total`); if peers have room to spare, raise --retry-percent",
        ));
    }
    let asked = fetching.fetched + fetching.range_ended;
    if fetching.range_ended * 100 > asked * ENDED_PERCENT_HIGH {
        found.push(finding(
            Severity::Notice,
            "range-ended",
            format!(
                "{} of {asked} residences that core {shard} asked peers for had ended there",
                fetching.range_ended
            ),
            "each cost the next peer's turn or a miss; no data is lost",
            "give the peers more room (--dram, --ssd), or lower --coalesce if their changes come late",
        ));
    }
    if fetching.stale_epoch + peers.sessions_superseded > 0 {
        found.push(finding(
            Severity::Notice,
            "superseded-answers",
            format!(
                "{} requests for blocks and {} for inventory of core {shard} went to a life of a peer that was over",
                fetching.stale_epoch, peers.sessions_superseded
            ),
            "each was a miss or went elsewhere; the old life was excluded, and etcd was read once",
            "nothing, if nodes were restarted; else see why they lose their leases",
        ));
    }
    found
}

/// Which streams of peers are missing or old, and for how long.
pub(super) fn of_owners(owners: &[Owner]) -> Vec<Finding> {
    let name = |owner: &Owner| format!("{} shard {}", owner.node_id, owner.shard);
    let seconds = |ms: Option<u64>| ms.unwrap_or(0) / 1_000;
    let is_long = |ms: Option<u64>| ms.is_some_and(|ms| ms > MISSING_MS_LONG);
    let mut found = Vec::new();
    let mut add = |severity, title, streams: Vec<String>, what: &str, why, remedy: &str| {
        if let Some(first) = streams.get(..NAMED_MAX.min(streams.len())).filter(|first| !first.is_empty()) {
            let more = streams.len() - first.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            found.push(finding(severity, title, format!("{what}: {}{more}", first.join(", ")), why, remedy));
        }
    };
    let (misfits, others): (Vec<&Owner>, Vec<&Owner>) = owners.iter().partition(|owner| owner.misfit);
    add(
        Severity::Fault,
        "index-full",
        misfits.iter().map(|owner| name(owner)).collect(),
        "the index has no room for what these streams tell",
        "their blocks are not found here, and no absence is claimed",
        "raise --index-budget, or subscribe to less with --metadata-namespace",
    );
    let missing = others.iter().filter(|owner| owner.state != "live").filter_map(|owner| {
        let without = owner.lacking_ms.max(owner.age_ms);
        is_long(without).then(|| format!("{} ({}, for {} s)", name(owner), owner.state, seconds(without)))
    });
    add(
        Severity::Fault,
        "sessions-missing",
        missing.collect(),
        "no inventory session",
        "blocks saved there since are not found here, and no absence is claimed",
        "see that UDP gets through to that --peer-addr in both directions, without address translation; if it is \
         `bootstrapping`, wait, or raise --receive-budget",
    );
    let old = others.iter().filter(|owner| owner.state == "live" && is_long(owner.age_ms));
    add(
        Severity::Notice,
        "inventory-stale",
        old.map(|owner| format!("{} ({} s)", name(owner), seconds(owner.age_ms))).collect(),
        "views that are old though their sessions live",
        "what was saved there lately is not found here, and no absence is claimed",
        "the source's core, this core or the network is too busy: see `stalls` on both, and the loss between them",
    );
    found
}

/// Members of whose shards not every block is found here, because ours do not divide theirs.
fn of_shard_counts(page: &MetadataPage) -> Option<Finding> {
    let own = u16::try_from(page.shards.len()).ok().filter(|&own| own > 0)?;
    let others = page.membership.members.iter().filter(|member| !member.shards.is_multiple_of(own));
    let named: Vec<String> = others.map(|member| format!("{} ({})", member.node_id, member.shards)).collect();
    (!named.is_empty()).then(|| {
        finding(
            Severity::Notice,
            "shard-counts",
            format!(
                "members whose number of shards is no multiple of the {own} shards here: {}",
                named.join(", ")
            ),
            "part of their blocks is not found from this node, and no absence is claimed",
            "run the same --shards on every node",
        )
    })
}

/// Whether this node could carry its part of what the nodes of a lost zone have in use, if all are as busy as it.
fn of_headroom(page: &MetadataPage) -> Option<Finding> {
    let zones: BTreeSet<&str> = page.membership.members.iter().map(|member| member.zone.as_str()).collect();
    let count = zones.iter().filter(|zone| !zone.is_empty()).count();
    let sum = |of: fn(&ShardReport) -> u64| page.shards.iter().map(of).sum::<u64>();
    let used = sum(|shard| shard.arena.pinned_bytes + shard.arena.reserved_bytes);
    let all = sum(|shard| shard.arena.capacity_bytes);
    let capacity = ZoneCapacity { zones: count as f64, load: used as f64 };
    (count > 1 && capacity.lacks_headroom(all as f64)).then(|| {
        let what = format!(
            "{} of {} of this node's arena are in use, more than {} of {count} parts",
            ByteSize(used).rounded(),
            ByteSize(all).rounded(),
            count - 1
        );
        let why = "if all nodes are as busy, those of the other zones cannot carry what one zone has in use when it is lost";
        finding(Severity::Notice, "zone-headroom", what, why, "add nodes or --dram, or let engines hold less at once")
    })
}

/// What of a page is about peers; nothing standalone.
pub(super) fn findings(page: &MetadataPage) -> Vec<Finding> {
    let peers = page.shards.iter().filter_map(|report| Some((report.shard, report.peers.as_ref()?)));
    let of_peers = peers.flat_map(|(shard, peers)| of_peers(shard, peers));
    let of_node = of_shard_counts(page).into_iter().chain(of_headroom(page));
    of_membership(&page.membership).into_iter().chain(of_peers).chain(of_node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::tests::check_sentences;
    use crate::control::metadata::MemberRow;

    fn names(found: &[Finding]) -> Vec<(&'static str, Severity)> {
        check_sentences(found);
        found.iter().map(|finding| (finding.name, finding.severity)).collect()
    }

    #[test]
    fn each_trouble_of_a_member_has_its_own_finding() {
        type Change = fn(&mut Membership);
        let table: [(Change, &[(&str, Severity)]); 9] = [
            (|m| m.validity = "refused".to_owned(), &[("not-registered", Severity::Fault)]),
            (
                |m| (m.validity, m.detail) = ("joining".to_owned(), "etcd does not answer".to_owned()),
                &[("etcd-unreachable", Severity::Fault)],
            ),
            // It has just started.
            (|m| m.validity = "joining".to_owned(), &[]),
            (|m| m.validity = "suspended".to_owned(), &[("members-unknown", Severity::Fault)]),
            (|m| m.fences = 1, &[("lease-expired", Severity::Notice)]),
            (|m| m.disputed = vec!["c".to_owned()], &[("wrong-key", Severity::Fault)]),
            (|m| m.foreign_hash = [("c".to_owned(), 1)].into(), &[("hash-version", Severity::Fault)]),
            (|m| m.superseded = 1, &[("superseded", Severity::Notice)]),
            (|m| m.alarms = 1, &[("membership-alarms", Severity::Notice)]),
        ];
        for (change, expected) in table {
            let mut membership = Membership { validity: "member".to_owned(), ..Membership::default() };
            change(&mut membership);
            assert_eq!(names(&of_membership(&membership)), expected);
        }
        let standalone = Membership { validity: "standalone".to_owned(), ..Membership::default() };
        assert_eq!(of_membership(&standalone), []);
    }

    #[test]
    fn headroom_is_missed_above_the_share_of_the_zones_that_are_left() {
        let member = |zone: &str| MemberRow { zone: zone.to_owned(), shards: 1, ..MemberRow::default() };
        let page = |zones: &[&str], pinned, reserved| {
            let mut shard = ShardReport::default();
            (shard.arena.capacity_bytes, shard.arena.pinned_bytes) = (3_000, pinned);
            shard.arena.reserved_bytes = reserved;
            let members = zones.iter().map(|zone| member(zone)).collect();
            let membership = Membership { validity: "member".to_owned(), members, ..Membership::default() };
            MetadataPage { membership, shards: vec![shard], ..MetadataPage::default() }
        };
        let of = |zones: &[&str], pinned, reserved| names(&findings(&page(zones, pinned, reserved)));
        let lacking = [("zone-headroom", Severity::Notice)];
        assert_eq!(of(&["a", "b", "c", "a"], 1_500, 500), [], "two of three parts");
        assert_eq!(of(&["a", "b", "c", "a"], 1_500, 501), lacking);
        assert_eq!(of(&["a", "b"], 1_501, 0), lacking);
        assert_eq!(of(&["a", "", "a"], 3_000, 0), [], "one zone cannot be left");
    }

    #[test]
    fn each_trouble_with_peers_has_its_own_finding() {
        const LEFT: (&str, Severity) = ("peer-left-alone", Severity::Fault);
        const UNTRIED: (&str, Severity) = ("peer-untried", Severity::Notice);
        type Case = (&'static [&'static str], &'static [(&'static str, Severity)]);
        type Change = fn(&mut PeersReport);
        let breaker = |state: &str| BreakerReport {
            node_id: "b".to_owned(),
            state: state.to_owned(),
            ..BreakerReport::default()
        };
        let breakers: [Case; 4] = [
            (&["closed"], &[]),
            (&["closed", "open"], &[LEFT]),
            // The pause is over, and nobody asks.
            (&["half-open", "closed"], &[UNTRIED]),
            (&["half-open", "open"], &[LEFT, UNTRIED]),
        ];
        for (states, expected) in breakers {
            let breakers = states.iter().map(|state| breaker(state)).collect();
            let peers = PeersReport { breakers, ..PeersReport::default() };
            assert_eq!(names(&of_peers(0, &peers)), expected, "{states:?}");
        }
        let source = |mode: &str| SourceReport {
            node_id: "b".to_owned(),
            mode: mode.to_owned(),
            ..SourceReport::default()
        };
        for (mode, state, expected) in [
            ("healthy", "closed", &[][..]),
            ("", "closed", &[]),
            ("stale", "closed", &[("peer-mode", Severity::Notice)]),
            ("down", "open", &[LEFT]),
        ] {
            let (breakers, sources) = (vec![breaker(state)], vec![source(mode)]);
            let peers = PeersReport { breakers, sources, ..PeersReport::default() };
            assert_eq!(names(&of_peers(0, &peers)), expected, "{mode} and {state}");
        }
        for mode in ["partial", "slow-or-cut", "down"] {
            let peers = PeersReport { sources: vec![source(mode)], ..PeersReport::default() };
            assert_eq!(names(&of_peers(0, &peers)), [("peer-mode", Severity::Notice)], "{mode}");
        }
        let table: [(Change, &[(&str, Severity)]); 21] = [
            (|_| {}, &[]),
            (|p| p.lending.egress_refused_later = 1, &[("egress-full", Severity::Notice)]),
            (|p| (p.lending.egress_rate, p.lending.egress_waiting_bytes) = (9, 9), &[]),
            (
                |p| (p.lending.egress_rate, p.lending.egress_waiting_bytes) = (9, 10),
                &[("egress-full", Severity::Notice)],
            ),
            (|p| (p.fetching.receive_rate, p.fetching.queued_bytes) = (9, 9), &[]),
            (
                |p| (p.fetching.receive_rate, p.fetching.queued_bytes) = (9, 10),
                &[("receive-full", Severity::Notice)],
            ),
            (|p| p.fetching.shed_demand_length = 1, &[("demand-shed", Severity::Notice)]),
            (|p| (p.fetching.shed_background_length, p.fetching.shed_background_age) = (9, 9), &[]),
            (|p| p.fetching.extra_asks_refused = 1, &[("retries-refused", Severity::Notice)]),
            (|p| p.handshakes.wrong_signatures = 1, &[("impostor", Severity::Fault)]),
            // By itself it may be a successor: membership knows which.
            (|p| p.handshakes.wrong_keys = 1, &[]),
            (
                |p| p.sessions_refused = [("WrongSource".to_owned(), 2)].into(),
                &[("sessions-refused", Severity::Notice)],
            ),
            (|p| p.sessions_refused = [("NotInMap".to_owned(), 2)].into(), &[]),
            (|p| p.protocol_errors = 1, &[("peer-violations", Severity::Fault)]),
            (|p| p.lending.beyond_head = 1, &[("peer-violations", Severity::Fault)]),
            (|p| p.lending.quarantined_bytes = 1, &[("quarantine", Severity::Notice)]),
            (|p| p.fetching.transport_off = 1, &[("transport-off", Severity::Notice)]),
            (
                |p| (p.fetching.fetched, p.fetching.range_ended) = (80, 20),
                &[("range-ended", Severity::Notice)],
            ),
            (|p| (p.fetching.fetched, p.fetching.range_ended) = (90, 10), &[]),
            (|p| p.fetching.stale_epoch = 1, &[("superseded-answers", Severity::Notice)]),
            (|p| p.sessions_superseded = 1, &[("superseded-answers", Severity::Notice)]),
        ];
        for (change, expected) in table {
            let mut peers = PeersReport::default();
            change(&mut peers);
            assert_eq!(names(&of_peers(0, &peers)), expected);
        }
    }

    #[test]
    fn members_with_another_number_of_shards_are_named() {
        let member =
            |name: &str, shards| MemberRow { node_id: name.to_owned(), shards, ..MemberRow::default() };
        let mut page = MetadataPage { shards: vec![ShardReport::default(); 2], ..MetadataPage::default() };
        page.membership.members = vec![member("a", 2), member("b", 4), member("c", 3)];
        let found: Vec<Finding> = of_shard_counts(&page).into_iter().collect();
        assert_eq!(names(&found), [("shard-counts", Severity::Notice)]);
        assert!(found[0].what.ends_with("2 shards here: c (3)"), "{found:?}");
    }

    #[test]
    fn streams_are_named_with_the_time_they_are_missing() {
        let stream = |state: &str, age_ms, lacking_ms, misfit| Owner {
            node_id: "b".to_owned(),
            state: state.to_owned(),
            age_ms,
            lacking_ms,
            misfit,
            ..Owner::default()
        };
        let quiet = [
            stream("live", Some(900), None, false),
            stream("dialing", None, Some(5_000), false),
            stream("resting", Some(5_000), None, false),
        ];
        assert_eq!(of_owners(&quiet), []);
        let lost = stream("dialing", Some(61_000), None, false);
        let never = stream("resting", None, Some(7_900), false);
        let found = of_owners(&[lost.clone(), never]);
        assert_eq!(names(&found), [("sessions-missing", Severity::Fault)]);
        let words = "no inventory session: b shard 0 (dialing, for 61 s), b shard 0 (resting, for 7 s)";
        assert_eq!(found[0].what, words);
        assert!(of_owners(&vec![lost; 5])[0].what.ends_with(" and 2 more"));
        assert_eq!(
            names(&of_owners(&[stream("live", Some(6_000), None, false)])),
            [("inventory-stale", Severity::Notice)]
        );
        assert_eq!(
            names(&of_owners(&[stream("bootstrapping", None, Some(60_000), true)])),
            [("index-full", Severity::Fault)]
        );
    }
}
