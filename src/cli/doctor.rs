//! `orbitkv doctor`: what is wrong with a node, why, and the remedy, from the node's own counters.
//!
//! The diagnosis is a pure function of one `/cache/metadata` page, which carries every figure that
//! `/metrics` shows, so that both always agree, and in a cluster of the owner streams. With `--deep` also of what comes of
//! a canary, which is work for the node like an engine's, and with `--etcd` of what other clusters have in the same etcd.

mod cluster;
mod config;
mod own_path;
mod rates;
mod stamps;
mod zones;

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::cluster_keys::{ClusterKeys, EtcdIdentity};
use super::http_client::{ClientError, HttpClient, query_text};
use super::{NodeAddress, fail_client, say};
use crate::control::health::answer::DeepHealth;
use crate::control::metadata::{MetadataPage, Phase};
use crate::control::owners::{Owner, OwnersPage};
use crate::control::report::{ShardReport, SsdBreakerReport, SsdFault, SsdState};
use crate::exit::Exit;
use crate::quantity::ByteSize;

/// Arguments of `orbitkv doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    node: NodeAddress,
    /// Also send a canary through the node's own DRAM and SSD, as `GET /health/deep` does. On a device that is left alone
    /// it may be what tries it again.
    #[arg(long)]
    deep: bool,
    /// Endpoints of the cluster's etcd: also look there for what other clusters use as well; needs --cluster
    #[arg(long, value_name = "URL,URL", requires = "cluster")]
    etcd: Option<String>,
    /// Name of the node's cluster in that etcd
    #[arg(long, value_name = "NAME", requires = "etcd")]
    cluster: Option<String>,
    #[command(flatten)]
    identity: EtcdIdentity,
}

impl DoctorArgs {
    /// The keys to look into, if it is asked for.
    fn cluster_keys(&self) -> Option<ClusterKeys> {
        let (etcd, cluster) = self.etcd.clone().zip(self.cluster.clone())?;
        Some(ClusterKeys { etcd, identity: self.identity.clone(), cluster })
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Something is broken or lost; exit code 4.
    Fault,
    /// It works, but less well than it could.
    Notice,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Stable name.
    pub name: &'static str,
    /// What was seen, with figures.
    pub what: String,
    /// What it does to the service.
    pub why: &'static str,
    /// What to do.
    pub remedy: String,
}

/// Share of the arena under leases from which saves begin to be refused, in percent.
const LEASED_PERCENT_HIGH: u64 = 40;
/// Share of saves refused for want of room that is worth a word, in percent.
const REFUSED_PERCENT_HIGH: u64 = 1;
/// Share of turns with a slice over 100 µs that is worth a word, in turns a stall.
const TURNS_PER_STALL_LOW: u64 = 1_000;

/// Streams asked for at once: the most there are on a page.
const OWNERS_PER_PAGE: usize = 1_000;

fn fault_effect(fault: SsdFault) -> &'static str {
    match fault {
        SsdFault::FileDeleted => "the tier serves on in the nameless file, whose space nobody else can have",
        SsdFault::DeviceFull | SsdFault::WriteErrors | SsdFault::ReadErrors | SsdFault::WrongChecksums => {
            "evicted blocks are lost instead of kept on SSD; DRAM goes on serving"
        }
    }
}

fn fault_remedy(fault: SsdFault) -> &'static str {
    match fault {
        SsdFault::DeviceFull => "free space in --data-dir or lower --ssd, then restart the node",
        SsdFault::FileDeleted => {
            "keep other programs out of --data-dir, then restart the node to make a new file"
        }
        SsdFault::WriteErrors | SsdFault::ReadErrors => {
            "look at the kernel's log for the device of --data-dir; replace it or use --ssd 0, then restart the node"
        }
        SsdFault::WrongChecksums => {
            "the device returns bytes that were not written: replace it, or use --ssd 0"
        }
    }
}

fn of_shard(report: &ShardReport) -> Vec<Finding> {
    let mut found = Vec::new();
    let shard = report.shard;
    let mut add = |severity, name, what: String, why, remedy: &str| {
        found.push(Finding { severity, name, what, why, remedy: remedy.to_owned() });
    };
    let (ssd, arena, engine, turns) = (&report.ssd, &report.arena, &report.engine, &report.turns);
    if let SsdState::Degraded { fault, detail } = &ssd.state {
        let what = format!("the SSD tier of shard {shard} is degraded: {} ({detail})", fault.in_words());
        add(Severity::Fault, "ssd-degraded", what, fault_effect(*fault), fault_remedy(*fault));
    }
    if matches!(ssd.breaker.state.as_str(), "open" | "half-open") {
        let SsdBreakerReport { opens, late_reads, .. } = ssd.breaker;
        let what = format!(
            "the SSD of shard {shard} is left alone, for the {opens}. time: {} reads and {} writes failed, {late_reads} reads \
             were too slow",
            ssd.read_errors, ssd.write_backs_failed
        );
        let why =
            "blocks on it come from peers or are misses, and no write-back is begun until it answers again";
        let remedy = "look at the kernel's log for the device of --data-dir; if it is slow by nature, raise \
                      --ssd-read-budget or lower --ssd-depth";
        add(Severity::Fault, "ssd-left-alone", what, why, remedy);
    }
    if ssd.lost_writes > 0 {
        let what = format!("{} accepted blocks of shard {shard} are lost", ssd.lost_writes);
        let why =
            "nobody evicted them, and the SSD gives other bytes or none; each is a miss, never wrong bytes";
        let remedy =
            "look for `lost write` in the log: it names keys and sequences; replace the device if it goes on";
        add(Severity::Fault, "lost-writes", what, why, remedy);
    }
    if ssd.checksum_failures > 0 || ssd.quarantined_bytes > 0 {
        let size = ByteSize(ssd.quarantined_bytes).rounded();
        let what = format!(
            "{} blocks of shard {shard} had wrong checksums, {size} is quarantined",
            ssd.checksum_failures
        );
        let why =
            "the device or a writer of the file changed bytes; each such block was a miss, never wrong bytes";
        add(
            Severity::Fault,
            "wrong-checksums",
            what,
            why,
            "check the device of --data-dir and who else writes there",
        );
    }
    if ssd.read_errors > 0 || ssd.write_backs_failed > 0 {
        let what = format!(
            "{} SSD reads and {} write-backs of shard {shard} failed",
            ssd.read_errors, ssd.write_backs_failed
        );
        let why = "each failed read was a miss; each failed write-back leaves its block in DRAM only";
        add(
            Severity::Fault,
            "ssd-errors",
            what,
            why,
            "look at the kernel's log for the device of --data-dir",
        );
    }
    let refused = report.service.saves_refused;
    let throttled = report.service.throttled;
    let busy = refused.busy.saturating_sub(throttled.saves);
    let asked = report.service.saves_committed + busy + refused.too_large;
    if refused.too_large > 0 {
        let what =
            format!("{} blocks of shard {shard} were too large for its arena slice", refused.too_large);
        add(
            Severity::Fault,
            "saves-too-large",
            what,
            "such blocks are never cached",
            "raise --dram or lower --shards",
        );
    }
    if throttled.saves + throttled.acquires > 0 {
        let what = format!(
            "a namespace of shard {shard} used up its rate: {} of saves and {} of acquires were refused",
            ByteSize(throttled.save_bytes).rounded(),
            ByteSize(throttled.acquire_bytes).rounded()
        );
        let why = "its engines were told to be busy, so that the others keep their part of the node";
        let remedy = "raise --namespace-rate or --namespace-burst if the node has room for more";
        add(Severity::Notice, "namespace-throttled", what, why, remedy);
    }
    if busy * 100 > asked * REFUSED_PERCENT_HIGH {
        let what = format!("{busy} of {asked} blocks offered to shard {shard} found no room");
        let why = "everything evictable was leased, reserved or waiting to be written back";
        let remedy = "raise --dram, release leases sooner, or use a faster SSD if write-backs are queued";
        add(Severity::Notice, "saves-refused", what, why, remedy);
    }
    if arena.capacity_bytes > 0
        && arena.leased_bytes / (arena.capacity_bytes / 100).max(1) >= LEASED_PERCENT_HIGH
    {
        let (leased, whole) =
            (ByteSize(arena.leased_bytes).rounded(), ByteSize(arena.capacity_bytes).rounded());
        let what = format!(
            "{leased} of {whole} in shard {shard} is under {} leases, {} of them holds",
            engine.leases, engine.holds
        );
        let why = "leased blocks cannot be evicted, so saves and SSD reads run out of room";
        add(
            Severity::Notice,
            "high-lease-share",
            what,
            why,
            "raise --dram, or make engines release after each step",
        );
    }
    if turns.stalls > 0 && turns.turns / turns.stalls < TURNS_PER_STALL_LOW {
        let longest = turns.slice_ns_max / 1_000;
        let what = format!(
            "{} of {} turns of shard {shard} held the core over 100 us, {longest} us at most",
            turns.stalls, turns.turns
        );
        let why = "requests wait behind a long slice; most often something else runs on the core";
        add(
            Severity::Notice,
            "stalls",
            what,
            why,
            "give the shard a core of its own with --cores, away from interrupts",
        );
    }
    if engine.malformed_frames > 0 || engine.stale_generation_rejections > 0 {
        let what = format!(
            "shard {shard} refused {} malformed frames and {} extents of an earlier daemon",
            engine.malformed_frames, engine.stale_generation_rejections
        );
        let why =
            "an engine speaks another protocol version, or did not reconnect after a restart of the node";
        add(Severity::Notice, "engine-protocol", what, why, "bring engine and node to the same version");
    }
    found
}

/// What is wrong, worst first.
#[must_use]
pub fn findings(page: &MetadataPage) -> Vec<Finding> {
    let mut found: Vec<Finding> = page.shards.iter().flat_map(of_shard).collect();
    found.extend(cluster::findings(page));
    found.extend(config::findings(page));
    found.extend(zones::findings(page));
    if page.identity.arena_pages == "small" {
        found.push(Finding {
            severity: Severity::Notice,
            name: "small-pages",
            what: "the arena is in 4 KiB pages".to_owned(),
            why: "large SSD reads and writes are a third slower than with huge pages",
            remedy: "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, or reserve huge pages \
                     (vm.nr_hugepages), then restart the node"
                .to_owned(),
        });
    }
    let memory = page.memory;
    if memory.bill_bytes > 0 && memory.rss_bytes > memory.bill_bytes {
        let (resident, bill) = (ByteSize(memory.rss_bytes).rounded(), ByteSize(memory.bill_bytes).rounded());
        found.push(Finding {
            severity: Severity::Fault,
            name: "over-bill",
            what: format!("the process holds {resident}, its memory bill says {bill}"),
            why: "the node holds more than it planned and may be killed for it",
            remedy:
                "report this with the output of `orbitkv status --json`; restart the node with a lower --dram"
                    .to_owned(),
        });
    }
    if page.phase != Phase::Serving {
        found.push(Finding {
            severity: Severity::Notice,
            name: "not-serving",
            what: "the node is starting or draining".to_owned(),
            why: "it admits no saves now",
            remedy: "wait, or start it again if the drain was not meant".to_owned(),
        });
    }
    found.sort_by_key(|finding| finding.severity);
    found
}

/// What the node says of itself, what came of a canary if one is sent, and in a cluster what it says of the streams it
/// expects.
fn look(
    client: &HttpClient,
    deep: bool,
) -> Result<(MetadataPage, Option<DeepHealth>, Vec<Owner>), ClientError> {
    // First: a canary leaves traces in the figures if it meets a fault.
    let (page, _) = client.get_as::<MetadataPage>("/cache/metadata")?;
    let own_path = deep.then(|| client.get_verdict::<DeepHealth>("/health/deep")).transpose()?;
    let mut owners = Vec::new();
    let mut after = (!page.standalone).then(String::new);
    while let Some(from) = after {
        let path = format!("/cache/metadata/owners?after={}&limit={OWNERS_PER_PAGE}", query_text(&from));
        let (more, _) = client.get_as::<OwnersPage>(&path)?;
        owners.extend(more.owners);
        after = more.next;
    }
    Ok((page, own_path, owners))
}

/// Runs the command. Exit code 4 if there is a fault.
#[must_use]
pub fn run(args: &DoctorArgs) -> ExitCode {
    let (page, own_path, owners) = match args.node.client().and_then(|client| look(&client, args.deep)) {
        Ok(seen) => seen,
        Err(error) => return fail_client(&error),
    };
    let mut found = findings(&page);
    found.extend(own_path.iter().flat_map(own_path::findings));
    found.extend(cluster::of_owners(&owners));
    if let Some(keys) = args.cluster_keys() {
        found.extend(match stamps::look(&keys, &page) {
            Ok(seen) => stamps::findings(&seen, &page.identity.node_id, &owners),
            Err(why) => Some(stamps::unseen(&why)),
        });
    }
    found.sort_by_key(|finding| finding.severity);
    if args.node.json {
        say(&serde_json::json!({"node_id": page.identity.node_id, "findings": found}).to_string());
    } else if found.is_empty() {
        say("nothing wrong found");
    }
    for finding in found.iter().filter(|_| !args.node.json) {
        let mark = match finding.severity {
            Severity::Fault => "FAULT ",
            Severity::Notice => "notice",
        };
        say(&format!("{mark} {}\n  why     {}\n  remedy  {}", finding.what, finding.why, finding.remedy));
    }
    match found.iter().any(|finding| finding.severity == Severity::Fault) {
        true => Exit::Unmet.into(),
        false => Exit::Done.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that was broken without its end marked has blanks in the midst of a sentence.
    #[track_caller]
    pub(super) fn check_sentences(found: &[Finding]) {
        for finding in found {
            for text in [finding.what.as_str(), finding.why, &finding.remedy] {
                let is_plain = !text.is_empty() && !text.contains("  ") && !text.contains('\n');
                assert!(is_plain, "{}: {text:?}", finding.name);
            }
        }
    }

    fn degraded(fault: SsdFault) -> SsdState {
        SsdState::Degraded { fault, detail: "unlinked".to_owned() }
    }

    fn page(change: impl FnOnce(&mut MetadataPage)) -> MetadataPage {
        let mut report = ShardReport::default();
        report.arena.capacity_bytes = 1_000;
        report.ssd.state = SsdState::On;
        report.turns.turns = 1_000_000;
        report.service.saves_committed = 1_000;
        let mut page =
            MetadataPage { phase: Phase::Serving, shards: vec![report], ..MetadataPage::default() };
        page.identity.arena_pages = "thp".to_owned();
        change(&mut page);
        page
    }

    #[test]
    fn a_healthy_node_has_no_finding() {
        assert_eq!(findings(&page(|_| {})), []);
    }

    #[test]
    fn each_trouble_has_its_own_finding() {
        type Change = fn(&mut MetadataPage);
        let table: [(Change, &str, Severity); 18] = [
            (|p| p.shards[0].ssd.breaker.state = "open".to_owned(), "ssd-left-alone", Severity::Fault),
            (|p| p.shards[0].ssd.breaker.state = "half-open".to_owned(), "ssd-left-alone", Severity::Fault),
            (|p| p.shards[0].ssd.lost_writes = 1, "lost-writes", Severity::Fault),
            (|p| p.shards[0].ssd.state = degraded(SsdFault::FileDeleted), "ssd-degraded", Severity::Fault),
            (|p| p.shards[0].ssd.quarantined_bytes = 1, "wrong-checksums", Severity::Fault),
            (|p| p.shards[0].ssd.checksum_failures = 1, "wrong-checksums", Severity::Fault),
            (|p| p.shards[0].ssd.read_errors = 1, "ssd-errors", Severity::Fault),
            (|p| p.shards[0].ssd.write_backs_failed = 1, "ssd-errors", Severity::Fault),
            (|p| p.shards[0].service.saves_refused.too_large = 1, "saves-too-large", Severity::Fault),
            (|p| p.shards[0].service.saves_refused.busy = 100, "saves-refused", Severity::Notice),
            (
                |p| {
                    let service = &mut p.shards[0].service;
                    (service.saves_refused.busy, service.throttled.saves) = (100, 100);
                },
                "namespace-throttled",
                Severity::Notice,
            ),
            (|p| p.shards[0].service.throttled.acquires = 1, "namespace-throttled", Severity::Notice),
            (|p| p.shards[0].arena.leased_bytes = 400, "high-lease-share", Severity::Notice),
            (|p| p.shards[0].turns.stalls = 1_001, "stalls", Severity::Notice),
            (|p| p.shards[0].engine.malformed_frames = 1, "engine-protocol", Severity::Notice),
            (|p| p.identity.arena_pages = "small".to_owned(), "small-pages", Severity::Notice),
            (|p| (p.memory.bill_bytes, p.memory.rss_bytes) = (1, 2), "over-bill", Severity::Fault),
            (|p| p.phase = Phase::Draining, "not-serving", Severity::Notice),
        ];
        for (change, name, severity) in table {
            let found = findings(&page(change));
            check_sentences(&found);
            let seen: Vec<_> = found.iter().map(|finding| (finding.name, finding.severity)).collect();
            assert_eq!(seen, [(name, severity)]);
        }
        let deleted = page(|p| p.shards[0].ssd.state = degraded(SsdFault::FileDeleted));
        assert!(findings(&deleted)[0].what.contains("was deleted (unlinked)"));
        for fault in
            [SsdFault::DeviceFull, SsdFault::WriteErrors, SsdFault::ReadErrors, SsdFault::WrongChecksums]
        {
            check_sentences(&findings(&page(|p| p.shards[0].ssd.state = degraded(fault))));
        }
    }

    #[test]
    fn levels_just_below_are_no_finding() {
        let quiet = page(|p| {
            p.shards[0].ssd.breaker.state = "closed".to_owned();
            p.shards[0].arena.leased_bytes = 399;
            p.shards[0].service.saves_refused.busy = 10;
            p.shards[0].turns.stalls = 1_000;
            (p.memory.bill_bytes, p.memory.rss_bytes) = (2, 2);
        });
        assert_eq!(findings(&quiet), []);
    }

    #[test]
    fn the_worst_comes_first() {
        let found = findings(&page(|p| {
            p.shards[0].turns.stalls = 1_001;
            p.shards[0].ssd.read_errors = 1;
        }));
        assert_eq!(found.first().map(|finding| finding.severity), Some(Severity::Fault));
    }
}
