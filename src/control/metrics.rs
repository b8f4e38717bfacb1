//! `/metrics`: the shards' reports as Prometheus text (OpenMetrics 1.0).
//!
//! The registry is filled anew at each scrape from reports that the cores already keep, so nothing is
//! counted twice and no core shares a counter. Labels are those that the operator guide lists, all from fixed sets but
//! `shard`, `peer` and `zone`: none per block, request, namespace or incarnation.

mod of_peers;

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::durations;
use super::metadata::{Membership, MetadataPage, Phase};
use super::policy::view;
use super::report::{PoolReport, ShardReport, SsdState};
use super::{sources, zones};

/// Content type of [`render`]'s text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
/// Values of a metric in one shard: a further label with its value, if the metric has one.
type Values = Vec<(Option<(&'static str, &'static str)>, u64)>;

/// How a metric's figure behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Level,
}

struct Metric {
    kind: Kind,
    name: &'static str,
    help: &'static str,
    of: fn(&ShardReport) -> Values,
}

/// Pools of a shard's bulkhead.
const POOLS: [&str; 5] = ["dram_bytes", "peer_bytes", "background_bytes", "ssd_waits", "peer_waits"];

fn one(value: u64) -> Values {
    vec![(None, value)]
}

fn by<const N: usize>(label: &'static str, values: [(&'static str, u64); N]) -> Values {
    values.into_iter().map(|(name, value)| (Some((label, name)), value)).collect()
}

fn by_pool(report: &ShardReport, of: fn(&PoolReport) -> u64) -> Values {
    let named = |pool: &PoolReport| POOLS.iter().find(|name| **name == pool.name).copied();
    report.pools.iter().filter_map(|pool| Some((Some(("pool", named(pool)?)), of(pool)))).collect()
}

const fn counter(name: &'static str, help: &'static str, of: fn(&ShardReport) -> Values) -> Metric {
    Metric { kind: Kind::Counter, name, help, of }
}

const fn level(name: &'static str, help: &'static str, of: fn(&ShardReport) -> Values) -> Metric {
    Metric { kind: Kind::Level, name, help, of }
}

/// Every metric of a shard alone. Counters get `_total` from the encoder.
const METRICS: &[Metric] = &[
    level("orbitkv_residents", "Resident blocks", |r| {
        by("medium", [("dram", r.residents.dram), ("ssd", r.residents.ssd)])
    }),
    level("orbitkv_resident_bytes", "Payload bytes of resident blocks", |r| {
        by("medium", [("dram", r.resident_bytes.dram), ("ssd", r.resident_bytes.ssd)])
    }),
    counter("orbitkv_evictions", "Residences ended by eviction", |r| {
        by("medium", [("dram", r.evictions.dram), ("ssd", r.evictions.ssd)])
    }),
    level("orbitkv_journal_head_sequence", "Sequence of the newest journal record", |r| {
        one(r.journal.head_sequence)
    }),
    level("orbitkv_journal_oldest_sequence", "Sequence of the oldest journal record held", |r| {
        one(r.journal.oldest_sequence)
    }),
    level("orbitkv_journal_bytes", "Journal bytes", |r| {
        let journal = r.journal;
        by(
            "kind",
            [
                ("used", journal.used_bytes),
                ("peak", journal.peak_bytes),
                ("capacity", journal.capacity_bytes),
            ],
        )
    }),
    level("orbitkv_arena_bytes", "Arena bytes; leased and pinned are parts of allocated", |r| {
        let arena = r.arena;
        by(
            "kind",
            [
                ("capacity", arena.capacity_bytes),
                ("allocated", arena.allocated_bytes),
                ("reserved", arena.reserved_bytes),
                ("leased", arena.leased_bytes),
                ("pinned", arena.pinned_bytes),
            ],
        )
    }),
    level("orbitkv_ssd_state", "1 for the state the SSD tier is in", |r| {
        let is = |state: bool| u64::from(state);
        by(
            "kind",
            [
                ("off", is(r.ssd.state == SsdState::Off)),
                ("on", is(r.ssd.state == SsdState::On)),
                ("degraded", is(matches!(r.ssd.state, SsdState::Degraded { .. }))),
            ],
        )
    }),
    level("orbitkv_ssd_bytes", "SSD bytes", |r| {
        let ssd = &r.ssd;
        by(
            "kind",
            [
                ("capacity", ssd.capacity_bytes),
                ("live", ssd.live_bytes),
                ("free", ssd.free_bytes),
                ("quarantined", ssd.quarantined_bytes),
            ],
        )
    }),
    level("orbitkv_write_backs_pending", "Write-backs not completed", |r| {
        by("kind", [("queued", r.ssd.write_backs_queued), ("in_flight", r.ssd.write_backs_in_flight)])
    }),
    counter("orbitkv_write_backs", "Write-backs ended", |r| {
        by("kind", [("done", r.ssd.write_backs_done), ("failed", r.ssd.write_backs_failed)])
    }),
    level(
        "orbitkv_ssd_breaker",
        "Whether the SSD is used: 0 it is, 1 one operation tries it, 2 it is left alone",
        |r| match r.ssd.breaker.state.as_str() {
            "" => Values::new(),
            "closed" => one(0),
            "half-open" => one(1),
            _ => one(2),
        },
    ),
    counter("orbitkv_ssd_breaker_events", "What came of an SSD that fails or is too slow", |r| {
        let breaker = &r.ssd.breaker;
        by(
            "kind",
            [
                ("opened", breaker.opens),
                ("probe", breaker.probes),
                ("refused", breaker.barred),
                ("late_read", breaker.late_reads),
            ],
        )
    }),
    counter("orbitkv_ssd_reads", "Blocks read back from SSD", |r| one(r.ssd.reads)),
    counter("orbitkv_ssd_read_errors", "SSD reads that failed or were short", |r| one(r.ssd.read_errors)),
    counter("orbitkv_checksum_failures", "Blocks whose checksum was wrong at a read", |r| {
        one(r.ssd.checksum_failures)
    }),
    counter(
        "orbitkv_audited_blocks",
        "Blocks on SSD read again to see whether they are what was written",
        |r| one(r.ssd.audited),
    ),
    level(
        "orbitkv_job_progress_age_ms",
        "Milliseconds without progress of a background job that has something to do",
        |r| {
            let jobs = [
                ("audit", r.jobs.audit_age_ms),
                ("reclaim", r.jobs.reclaim_age_ms),
                ("bootstrap", r.jobs.bootstrap_age_ms),
            ];
            jobs.into_iter().filter_map(|(job, age)| Some((Some(("job", job)), age?))).collect()
        },
    ),
    counter("orbitkv_lost_writes", "Accepted residences that nobody ended and that are not there", |r| {
        one(r.ssd.lost_writes)
    }),
    level("orbitkv_connections", "Engine connections", |r| one(r.engine.connections)),
    level("orbitkv_requests_in_flight", "Engine requests taken and not answered", |r| {
        one(r.engine.requests_in_flight)
    }),
    level("orbitkv_reservations", "Slots reserved and not committed", |r| one(r.engine.reservations)),
    level("orbitkv_leases", "Leases not released, holds included", |r| one(r.engine.leases)),
    level("orbitkv_waiting", "Acquires, Syncs and Clears that wait", |r| one(r.engine.waiting)),
    counter("orbitkv_holds_expired", "Holds that ended by time", |r| one(r.engine.holds_expired)),
    counter("orbitkv_queries", "Queries worked", |r| one(r.service.queries)),
    counter("orbitkv_queries_left_out", "Queries whose answer left out owner streams", |r| {
        one(r.engine.queries_left_out)
    }),
    counter("orbitkv_repeats", "Engine requests that came again, by whether that was still known", |r| {
        by("kind", [("suppressed", r.engine.repeats_suppressed), ("too_late", r.engine.repeats_too_late)])
    }),
    counter("orbitkv_acquires_busy", "Blocks of an Acquire refused for want of room", |r| {
        one(r.service.acquires_busy)
    }),
    counter("orbitkv_saves_present", "Blocks offered that were resident already", |r| {
        one(r.service.saves_present)
    }),
    counter("orbitkv_saves_lost_race", "Blocks committed after another engine's commit", |r| {
        one(r.service.saves_lost_race)
    }),
    level("orbitkv_holds", "Leases that are holds of queries", |r| one(r.engine.holds)),
    counter("orbitkv_engine_process_deaths", "Engine processes proved dead", |r| {
        one(r.engine.process_deaths)
    }),
    counter("orbitkv_stale_generation_rejections", "Extents of an earlier daemon refused", |r| {
        one(r.engine.stale_generation_rejections)
    }),
    counter("orbitkv_malformed_frames", "Engine frames that could not be understood", |r| {
        one(r.engine.malformed_frames)
    }),
    counter("orbitkv_hits", "Blocks acquired, by the place they were found", |r| {
        by("medium", [("dram", r.service.hits.dram), ("ssd", r.service.hits.ssd)])
    }),
    counter("orbitkv_misses", "Blocks asked for and found nowhere", |r| one(r.service.misses)),
    counter("orbitkv_orphans", "Blocks that came whole and that nothing refers to", |r| {
        one(r.service.orphans)
    }),
    counter("orbitkv_saves_committed", "Blocks committed", |r| one(r.service.saves_committed)),
    counter("orbitkv_saved_bytes", "Bytes of blocks committed", |r| one(r.service.saved_bytes)),
    counter("orbitkv_saves_refused", "Blocks refused a slot", |r| {
        let refused = r.service.saves_refused;
        by(
            "reason",
            [
                ("busy", refused.busy),
                ("too_large", refused.too_large),
                ("being_saved", refused.being_saved),
                ("draining", refused.draining),
            ],
        )
    }),
    counter("orbitkv_throttled_blocks", "Blocks refused because their namespace had used up its rate", |r| {
        let of = r.service.throttled;
        by("kind", [("save", of.saves), ("acquire", of.acquires), ("prefetch", of.prefetches)])
    }),
    counter("orbitkv_throttled_bytes", "Payload bytes of those", |r| {
        let of = r.service.throttled;
        by("kind", [("save", of.save_bytes), ("acquire", of.acquire_bytes), ("prefetch", of.prefetch_bytes)])
    }),
    counter("orbitkv_prefetch_blocks", "Blocks that engines announced, by what became of them", |r| {
        let p = r.service.prefetch;
        by(
            "kind",
            [
                ("taken", p.taken),
                ("arrived", p.arrived),
                ("met", p.met),
                ("missing", p.missing),
                ("no_room", p.no_room),
                ("expired", p.expired),
                ("cancelled", p.cancelled),
                ("yielded", p.yielded),
                ("failed", p.failed),
                ("refused", p.refused),
                ("used", p.used),
                ("unused", p.unused),
            ],
        )
    }),
    level("orbitkv_prefetch_bytes", "Bytes of announced blocks on their way or not acquired yet", |r| {
        one(r.service.prefetch.bytes)
    }),
    counter("orbitkv_fetched_blocks", "What became of blocks that peers have sent", |r| {
        let fetched = r.service.retention;
        let (kept, dropped) = (fetched.kept, fetched.dropped);
        by("kind", [("reused", fetched.reused), ("kept", kept), ("dropped", dropped)])
    }),
    level("orbitkv_fetched_bytes", "Payload bytes in DRAM of blocks that peers have sent", |r| {
        one(r.service.retention.bytes)
    }),
    level("orbitkv_queue_peak", "Most entries that ever waited in a queue", |r| {
        let peaks = r.queue_peaks;
        by(
            "queue",
            [
                ("connection_requests", peaks.connection_requests),
                ("mail_requests", peaks.mail_requests),
                ("mail_replies", peaks.mail_replies),
                ("write_backs", peaks.write_backs),
                ("ssd_requests", peaks.ssd_requests),
                ("waiting", peaks.waiting),
            ],
        )
    }),
    level("orbitkv_pool_taken", "Places taken in a pool: bytes or commands", |r| {
        by_pool(r, |pool| pool.taken)
    }),
    level("orbitkv_pool_peak", "Most places ever taken at once in a pool", |r| by_pool(r, |pool| pool.peak)),
    level("orbitkv_pool_capacity", "Places of a pool", |r| by_pool(r, |pool| pool.capacity)),
    counter("orbitkv_pool_refusals", "Times a pool was asked for more than it had left", |r| {
        by_pool(r, |pool| pool.refused)
    }),
    counter(
        "orbitkv_pool_refusals_beside_idle",
        "Of those, how often one pool for all of that unit would have had room",
        |r| by_pool(r, |pool| pool.refused_beside_idle),
    ),
    level("orbitkv_config_applied_version", "Version of the settings that holds on the core", |r| {
        one(r.config_version)
    }),
    counter("orbitkv_turns", "Turns of the core", |r| one(r.turns.turns)),
    counter("orbitkv_stalls", "Slices that held the core for more than 100 microseconds", |r| {
        one(r.turns.stalls)
    }),
    level("orbitkv_slice_max_nanoseconds", "Longest slice", |r| one(r.turns.slice_ns_max)),
];

fn level_of(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn register(registry: &mut Registry, metric: &Metric, shards: &[ShardReport]) {
    let rows = shards.iter().flat_map(|report| {
        (metric.of)(report).into_iter().map(|(label, value)| {
            let shard = ("shard", report.shard.to_string());
            let labels: Labels =
                std::iter::once(shard).chain(label.map(|(name, value)| (name, value.to_owned()))).collect();
            (labels, value)
        })
    });
    match metric.kind {
        Kind::Counter => {
            let family = Family::<Labels, Counter<u64, AtomicU64>>::default();
            rows.for_each(|(labels, value)| {
                family.get_or_create(&labels).inc_by(value);
            });
            registry.register(metric.name, metric.help, family);
        }
        Kind::Level => {
            let family = Family::<Labels, Gauge>::default();
            rows.for_each(|(labels, value)| {
                family.get_or_create(&labels).set(level_of(value));
            });
            registry.register(metric.name, metric.help, family);
        }
    }
}

/// Peers that are left alone or have been: the one label that is a peer's name, for there are no more than members.
fn register_breakers(registry: &mut Registry, shards: &[ShardReport]) {
    let family = Family::<Labels, Gauge>::default();
    for report in shards {
        for breaker in report.peers.iter().flat_map(|peers| &peers.breakers) {
            let state = match breaker.state.as_str() {
                "closed" => 0,
                "half-open" => 1,
                _ => 2,
            };
            let source = format!("{}/{}", breaker.node_id, breaker.shard);
            family.get_or_create(&vec![("shard", report.shard.to_string()), ("peer", source)]).set(state);
        }
    }
    let help = "Whether a shard of a peer is asked: 0 it is, 1 one call tries it, 2 it is left alone";
    registry.register("orbitkv_peer_breaker", help, family);
}

/// What etcd and the others mean to this node; only with etcd.
fn register_membership(registry: &mut Registry, membership: &Membership) {
    for (name, help, value) in [
        (
            "orbitkv_member",
            "1 while the node is registered and knows the members",
            u64::from(membership.validity == "member"),
        ),
        ("orbitkv_members", "Members of the cluster as last read", membership.members.len() as u64),
        (
            "orbitkv_membership_revision",
            "Revision of etcd they were read at",
            membership.revision.unwrap_or(0),
        ),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(level_of(value));
        registry.register(name, help, gauge);
    }
    for (name, help, value) in [
        ("orbitkv_registrations", "Lives registered", membership.registrations),
        ("orbitkv_fences", "Lives that ended for good while the process lived on", membership.fences),
        ("orbitkv_membership_suspensions", "Times the members were no longer known", membership.suspensions),
        ("orbitkv_membership_alarms", "Alarms about membership", membership.alarms),
        ("orbitkv_membership_rereads", "Reads of the members that a doubt has caused", membership.rereads),
        ("orbitkv_membership_lookups", "Reads of a single member's record", membership.lookups),
        (
            "orbitkv_members_superseded",
            "Members that had another life when another key was shown at their address",
            membership.superseded,
        ),
        ("orbitkv_lease_renewals", "Renewals that etcd acknowledged", membership.renewals),
        ("orbitkv_etcd_requests", "Requests to etcd, lease traffic included", membership.etcd_requests),
        ("orbitkv_etcd_unanswered", "Requests that etcd did not answer in time", membership.unanswered),
        ("orbitkv_etcd_watches_ended", "Watches that ended and were opened again", membership.watches_ended),
        ("orbitkv_etcd_sent_bytes", "Bytes of keys and values sent to etcd", membership.etcd_sent_bytes),
        ("orbitkv_etcd_received_bytes", "Bytes of keys and values from etcd", membership.etcd_received_bytes),
    ] {
        let counter = Counter::<u64, AtomicU64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
}

/// The page as text for a scraper.
pub(super) fn render(page: &MetadataPage) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    for metric in METRICS.iter().chain(of_peers::METRICS) {
        register(&mut registry, metric, &page.shards);
    }
    durations::register(&mut registry, &page.shards);
    let memory = page.memory;
    for (name, help, value) in [
        ("orbitkv_serving", "1 while the node takes saves", u64::from(page.phase == Phase::Serving)),
        ("orbitkv_memory_resident_bytes", "Resident set of the process", memory.rss_bytes),
        ("orbitkv_memory_resident_peak_bytes", "Largest resident set of the process", memory.rss_peak_bytes),
        ("orbitkv_memory_bill_bytes", "Total of the memory bill", memory.bill_bytes),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(level_of(value));
        registry.register(name, help, gauge);
    }
    let checks = Family::<Labels, Counter<u64, AtomicU64>>::default();
    for (kind, count) in [("passed", page.deep_checks.passed), ("failed", page.deep_checks.failed)] {
        checks.get_or_create(&vec![("kind", kind.to_owned())]).inc_by(count);
    }
    registry.register(
        "orbitkv_deep_checks",
        "Deep checks of this node's own path, by what they found",
        checks,
    );
    if !page.standalone {
        register_membership(&mut registry, &page.membership);
        view::register(&mut registry, &page.config);
        register_breakers(&mut registry, &page.shards);
        sources::register(&mut registry, &page.shards);
        zones::register(&mut registry, &page.shards);
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::report::{BreakerReport, PeersReport};
    use super::super::sources::SourceReport;
    use super::super::zones::ZonesReport;
    use super::*;

    /// Of a page, as `metric` and `label`.
    fn labelled(page: &MetadataPage) -> BTreeSet<(String, String)> {
        let text = render(page).expect("text");
        let lines = text.lines().filter_map(|line| line.split_once('{'));
        let of_line = |(metric, rest): (&str, &str)| {
            let labels = rest.rsplit_once('}').expect("labels end").0.to_owned();
            let names =
                labels.split("\",").map(|label| label.split_once("=\"").expect("a value").0.to_owned());
            names.map(|name| (metric.to_owned(), name)).collect::<Vec<_>>()
        };
        lines.flat_map(of_line).collect()
    }

    #[test]
    fn the_guide_lists_every_label() {
        let breaker =
            BreakerReport { node_id: "a".to_owned(), state: "open".to_owned(), ..BreakerReport::default() };
        let source =
            SourceReport { node_id: "a".to_owned(), mode: "down".to_owned(), ..SourceReport::default() };
        let zones = ZonesReport { zones: vec!["east".to_owned()], ..ZonesReport::default() };
        let (breakers, sources) = (vec![breaker], vec![source]);
        let peers = PeersReport { breakers, sources, zones, ..PeersReport::default() };
        let mut report = ShardReport { peers: Some(peers), ..ShardReport::default() };
        report.jobs.audit_age_ms = Some(1);
        report.pools.push(PoolReport { name: POOLS[0].to_owned(), ..PoolReport::default() });
        let labels = labelled(&MetadataPage { shards: vec![report], ..MetadataPage::default() });

        let guide = include_str!("../../docs/operator-guide.md");
        let line = guide.lines().find(|line| line.starts_with("Labels are ")).expect("the list");
        let listed = line.split_once(": never a block").expect("its end").0.split('`').skip(1).step_by(2);
        let listed: BTreeSet<&str> = listed.collect();
        assert_eq!(labels.iter().map(|(_, label)| label.as_str()).collect::<BTreeSet<_>>(), listed);
        let of_a_peer = labels.iter().filter(|(_, label)| label == "peer").map(|(metric, _)| metric.as_str());
        assert_eq!(of_a_peer.collect::<Vec<_>>(), ["orbitkv_peer_breaker", "orbitkv_peer_mode"]);
    }
}
