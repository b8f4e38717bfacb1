//! From what a core says of itself to what an operator reads.

use std::time::Duration;

use orbitkv_shards::fetcher::BreakerStanding;
use orbitkv_shards::flow::egress::Urgency;
use orbitkv_shards::resilience::breaker::Phase;
use orbitkv_shards::resilience::claim_check::Dangling;
use orbitkv_shards::resilience::deadline::Step;
use orbitkv_shards::segment_log::OffReason;
use orbitkv_shards::shard::{DeviceStanding, PoolFigures};
use orbitkv_wire::inventory::{Kind, OpenRefusal};

use super::report::{
    ArenaReport, BreakerReport, EngineReport, FetchingReport, HandshakesReport, JobsReport, JournalReport,
    LendingReport, PacketsReport, PeerFrames, PeersReport, PerMedium, PoolReport, PrefetchReport, QueuePeaks,
    ReferencesReport, RetentionReport, SaveRefusals, ServiceReport, ShardReport, SsdBreakerReport, SsdFault,
    SsdReport, SsdState, StepsReport, ThrottledReport, TurnReport,
};
use super::{routes, sources, zones};
use crate::core::report::CoreReport;
use crate::peers;

/// What an operator reads of a core.
pub(super) fn shard_report(report: CoreReport) -> ShardReport {
    let CoreReport { figures, engine, turns, policy_version, mail, device_peak, file_deleted, peers } =
        report;
    let counters = figures.counters;
    ShardReport {
        shard: figures.shard.0,
        config_version: policy_version,
        incarnation: figures.incarnation.to_string(),
        residents: PerMedium { dram: counters.dram_residents, ssd: counters.ssd_residents },
        resident_bytes: PerMedium { dram: counters.dram_bytes, ssd: counters.ssd_bytes },
        evictions: PerMedium { dram: counters.dram_evictions, ssd: counters.ssd_evictions },
        journal: JournalReport {
            head_sequence: figures.head.0,
            oldest_sequence: figures.oldest.0,
            used_bytes: figures.journal_bytes[0],
            peak_bytes: figures.journal_bytes[1],
            capacity_bytes: figures.journal_bytes[2],
        },
        arena: ArenaReport {
            capacity_bytes: figures.arena_bytes,
            allocated_bytes: figures.allocated_bytes,
            reserved_bytes: figures.reserved_bytes[0],
            leased_bytes: figures.leased_bytes,
            pinned_bytes: figures.pinned_bytes,
        },
        ssd: figures.ssd.map_or_else(SsdReport::default, |ssd| SsdReport {
            state: ssd_state(ssd.off, file_deleted),
            capacity_bytes: ssd.capacity_bytes,
            live_bytes: ssd.live_bytes,
            free_bytes: ssd.free_bytes,
            write_backs_queued: figures.write_backs_queued,
            write_backs_in_flight: figures.write_backs_in_flight,
            write_backs_done: counters.write_backs_done,
            write_backs_failed: counters.ssd_write_errors,
            reads: counters.ssd_reads,
            read_errors: counters.ssd_read_errors,
            checksum_failures: counters.checksum_failures,
            audited: counters.audited,
            lost_writes: counters.lost_writes,
            quarantined_bytes: ssd.quarantined_bytes,
            breaker: ssd_breaker(&ssd.device),
        }),
        jobs: JobsReport {
            audit_age_ms: figures.audit_age.map(millis),
            reclaim_age_ms: figures.reclaim_age.map(millis),
            bootstrap_age_ms: peers.as_ref().and_then(|peers| peers.bootstrap_age).map(millis),
        },
        engine: EngineReport {
            connections: engine.connections,
            requests_in_flight: engine.requests_in_flight,
            reservations: figures.reservations,
            leases: figures.leases,
            holds: figures.holds,
            holds_expired: figures.holds_expired,
            waiting: figures.waiting[0],
            process_deaths: engine.process_deaths,
            stale_generation_rejections: engine.stale_generation,
            malformed_frames: engine.malformed_frames,
            queries_left_out: engine.queries_left_out,
            repeats_suppressed: engine.repeats_suppressed,
            repeats_too_late: engine.repeats_too_late,
        },
        service: ServiceReport {
            queries: counters.queries,
            acquires_busy: counters.acquires_busy,
            saves_present: counters.saves_present,
            saves_lost_race: counters.saves_lost_race,
            hits: PerMedium { dram: counters.hits_dram, ssd: counters.hits_ssd },
            peer_hits: PerMedium { dram: counters.hits_peer_dram, ssd: counters.hits_peer_ssd },
            misses: counters.misses,
            orphans: counters.orphans,
            saves_committed: counters.saves_committed,
            saved_bytes: counters.saved_bytes,
            saves_refused: SaveRefusals {
                busy: counters.saves_busy,
                too_large: counters.saves_too_large,
                being_saved: counters.saves_being_saved,
                draining: counters.saves_draining,
            },
            throttled: ThrottledReport {
                saves: counters.throttled_saves,
                save_bytes: counters.throttled_save_bytes,
                acquires: counters.throttled_acquires,
                acquire_bytes: counters.throttled_acquire_bytes,
                prefetches: counters.throttled_prefetches,
                prefetch_bytes: counters.throttled_prefetch_bytes,
            },
            prefetch: PrefetchReport {
                taken: counters.prefetch_taken,
                arrived: counters.prefetch_arrived,
                met: counters.prefetch_met,
                missing: counters.prefetch_missing,
                no_room: counters.prefetch_no_room,
                expired: counters.prefetch_expired,
                cancelled: counters.prefetch_cancelled,
                yielded: counters.prefetch_yielded,
                failed: counters.prefetch_failed,
                refused: counters.prefetch_full + counters.prefetch_refused_room,
                used: counters.prefetch_used,
                unused: counters.prefetch_unused,
                bytes: figures.prefetch_bytes,
                waiting: figures.prefetch_waiting,
            },
            retention: RetentionReport {
                reused: counters.fetched_reused,
                kept: counters.fetched_kept,
                dropped: counters.fetched_dropped,
                bytes: counters.fetched_bytes,
            },
        },
        queue_peaks: QueuePeaks {
            connection_requests: engine.requests_in_flight_peak,
            write_backs: counters.write_queue_peak,
            ssd_requests: device_peak,
            waiting: figures.waiting[1],
            mail_requests: mail.requests,
            mail_replies: mail.answers,
        },
        pools: figures.pools.iter().map(pool).collect(),
        turns: TurnReport {
            turns: turns.turns,
            stalls: turns.stalls,
            slice_ns_max: turns.ns_max,
            whole: turns.whole.into(),
            peers: turns.peers.into(),
        },
        coverage: peers.as_ref().map(|peers| peers.coverage),
        peers: peers.map(|peers| peers_report(&peers)),
    }
}

fn pool(figures: &PoolFigures) -> PoolReport {
    let PoolFigures { name, class, account } = figures;
    PoolReport {
        name: (*name).to_owned(),
        class: format!("{class:?}").to_lowercase(),
        capacity: account.places,
        taken: account.taken,
        peak: account.peak,
        refused: account.refused,
        refused_beside_idle: account.refused_beside_idle,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

fn ssd_state(off: Option<OffReason>, file_deleted: bool) -> SsdState {
    if file_deleted {
        let detail = "the SSD file has no name any more; its space comes back when the node ends".to_owned();
        return SsdState::Degraded { fault: SsdFault::FileDeleted, detail };
    }
    let Some(reason) = off else { return SsdState::On };
    let fault = match reason {
        OffReason::Quarantine { .. } => SsdFault::WrongChecksums,
        OffReason::WriteFailures { errno: libc::ENOSPC, .. } => SsdFault::DeviceFull,
        OffReason::WriteFailures { .. } => SsdFault::WriteErrors,
        OffReason::ReadFailures { .. } => SsdFault::ReadErrors,
    };
    SsdState::Degraded { fault, detail: reason.to_string() }
}

fn peers_report(report: &peers::PeersReport) -> PeersReport {
    let peers::PeersReport { index, publisher, publishing, subscriber, endpoint, .. } = report;
    let sent = |kind: Kind| {
        let traffic = publisher.of(kind);
        PeerFrames { frames: traffic.frames_sent, bytes: traffic.bytes_sent }
    };
    let all_sent = publisher.traffic.values().fold(PeerFrames::default(), |sum, traffic| PeerFrames {
        frames: sum.frames + traffic.frames_sent,
        bytes: sum.bytes + traffic.bytes_sent,
    });
    let all_received = subscriber.received.values().fold(PeerFrames::default(), |sum, traffic| PeerFrames {
        frames: sum.frames + traffic.frames,
        bytes: sum.bytes + traffic.bytes,
    });
    let refused = publisher.refusals.iter().map(|(cause, count)| (format!("{cause:?}"), *count));
    let resets = subscriber.resets.iter().map(|(cause, count)| (format!("{cause:?}"), *count));
    PeersReport {
        sessions_served: report.sessions_served as u64,
        sessions_following: publishing.following as u64,
        sessions_received: report.sessions_received as u64,
        index_rows: index.rows,
        index_retired_rows: index.retired_rows,
        index_bytes: index.charged_bytes,
        index_bytes_peak: index.charged_bytes_peak,
        index_budget_bytes: index.budget_bytes,
        records_read: publisher.records_read,
        records_coalesced: publisher.records_coalesced,
        frames_sent: all_sent,
        deltas_sent: sent(Kind::Delta),
        pages_sent: sent(Kind::SnapshotPage),
        replay_bytes_sent: publisher.replay_bytes_sent,
        queue_bytes: publishing.queue_bytes,
        queue_bytes_peak: publishing.queue_bytes_peak,
        lag_records_max: publishing.lag_records_max,
        intentional_wait_us: micros(publisher.intentional_wait),
        intentional_wait_us_max: micros(publisher.intentional_wait_max),
        frames_received: all_received,
        changes_applied: subscriber.changes_applied,
        changes_staged: subscriber.changes_staged,
        sessions_opened: subscriber.sessions_opened,
        sessions_superseded: subscriber.refusals.get(&OpenRefusal::WrongSource).copied().unwrap_or(0),
        sessions_lost: subscriber.sessions_lost,
        sessions_resumed: subscriber.resumed,
        snapshots_installed: subscriber.snapshots_installed,
        snapshots_refused: subscriber.snapshots_refused,
        views_withdrawn: subscriber.views_withdrawn,
        streams_excluded: subscriber.streams_excluded,
        bootstrap_us_max: micros(subscriber.bootstraps.longest),
        repair_us_max: micros(subscriber.repairs.longest),
        sessions_refused: refused.collect(),
        resets: resets.collect(),
        protocol_errors: publisher.protocol_errors,
        lending: lending(&report.payload),
        fetching: fetching(&report.payload),
        planning: routes::planning(&report.payload.planner),
        routes: report.payload.traces.iter().map(routes::row).collect(),
        breakers: report.payload.breakers.iter().map(breaker).collect(),
        sources: report.payload.sources.iter().map(sources::row).collect(),
        zones: zones::report(&report.zones),
        connections: endpoint.connections_now,
        datagrams_received: endpoint.datagrams_received,
        datagrams_dropped: endpoint.dropped_unknown + endpoint.dropped_stray,
        packets: PacketsReport {
            sent: endpoint.packets_sent,
            lost: endpoint.packets_lost,
            congestion_events: endpoint.congestion_events,
        },
        handshakes: HandshakesReport {
            completed: endpoint.handshakes,
            failed: endpoint.handshakes_failed,
            wrong_keys: endpoint.wrong_keys,
            wrong_signatures: endpoint.wrong_signatures,
        },
        handshake_turns: report.handshake_turns,
    }
}

fn lending(report: &peers::PayloadReport) -> LendingReport {
    let grants = report.grants;
    LendingReport {
        connections: report.lending as u64,
        operations: grants.operations,
        pins: grants.pins,
        pinned_bytes: grants.pinned_bytes,
        quarantined_bytes: grants.quarantined_bytes,
        readers: report.readers as u64,
        readers_refused: report.readers_refused,
        asked: grants.asked,
        granted: grants.granted,
        lent_bytes: grants.lent_bytes,
        lent_shm_bytes: grants.lent_shm_bytes,
        quarantines: grants.quarantines,
        ended: grants.ended,
        never_held: grants.never_held,
        beyond_head: grants.beyond_head,
        busy: grants.busy,
        stale_epoch: grants.stale_epoch,
        lease_expired: grants.lease_expired,
        repeated: grants.repeated,
        misdirected: grants.misdirected,
        failed: grants.failed,
        expired: grants.expired,
        cancelled: grants.cancelled,
        cut_off: grants.cut_off,
        egress_rate: report.egress.rate,
        egress_bytes: report.egress.sent_bytes,
        egress_waiting_bytes: report.egress.waiting_bytes,
        egress_paced_us: micros(report.egress.paced),
        egress_aged: report.egress.aged,
        egress_refused_urgent: grants.busy_for_egress[Urgency::Urgent as usize],
        egress_refused_soon: grants.busy_for_egress[Urgency::Soon as usize],
        egress_refused_later: grants.busy_for_egress[Urgency::Later as usize],
    }
}

fn fetching(report: &peers::PayloadReport) -> FetchingReport {
    let fetcher = report.fetcher;
    FetchingReport {
        connections: report.fetching as u64,
        begun: fetcher.begun,
        fetched: fetcher.fetched,
        bytes: fetcher.bytes_fetched,
        fetched_shm: fetcher.fetched_shm,
        shm_bytes: fetcher.bytes_fetched_shm,
        unread: fetcher.unread,
        wasted_bytes: fetcher.bytes_wasted,
        missing: fetcher.missing,
        busy: fetcher.busy,
        corrupt: fetcher.corrupt,
        deadline: fetcher.deadline,
        rerouted: fetcher.rerouted,
        out_of_time: out_of_time(fetcher.out_of_time),
        left_silent: fetcher.left_silent,
        transfers_left: fetcher.transfers_left,
        cancels_confirmed: fetcher.cancels_confirmed,
        cancels_repeated: fetcher.cancels_repeated,
        cancels_closed: fetcher.cancels_closed,
        references: ReferencesReport {
            found: fetcher.claims.found(),
            range_ended: fetcher.claims.dangling_for(Dangling::RangeEnded),
            superseded: fetcher.claims.dangling_for(Dangling::Superseded),
            never_held: fetcher.claims.dangling_for(Dangling::NeverHeld),
        },
        wrong_checksums: fetcher.wrong_checksums,
        range_ended: fetcher.ended,
        stale_epoch: fetcher.stale_epoch,
        transport_off: fetcher.transport_off,
        lease_expired: fetcher.lease_expired,
        dials_failed: fetcher.dials_failed,
        violations: fetcher.violations,
        operations: fetcher.operations,
        first_asks: fetcher.first_asks,
        extra_asks: fetcher.extra_asks,
        extra_asks_refused: fetcher.extra_asks_refused,
        calls_answered: fetcher.calls_answered,
        calls_failed: fetcher.calls_failed,
        breaker_opens: fetcher.breaker_opens,
        breaker_probes: fetcher.breaker_probes,
        breaker_refusals: fetcher.breaker_refusals,
        receive_rate: fetcher.rate,
        window_bytes: fetcher.bytes_window,
        outstanding_bytes: fetcher.bytes_outstanding,
        queued_bytes: fetcher.bytes_queued,
        draining_bytes: fetcher.bytes_draining,
        paced_us: micros(fetcher.paced),
        shed_demand_length: fetcher.shed_demand_length,
        shed_background_length: fetcher.shed_background_length,
        shed_background_age: fetcher.shed_background_age,
    }
}

fn out_of_time(by_step: [u64; Step::ALL.len()]) -> StepsReport {
    let of = |step: Step| by_step[step as usize];
    StepsReport {
        wait: of(Step::Wait),
        authorize: of(Step::Authorize),
        prepare: of(Step::Prepare),
        transfer: of(Step::Transfer),
        install: of(Step::Install),
    }
}

fn phase_name(phase: Phase) -> String {
    let name = match phase {
        Phase::Closed => "closed",
        Phase::HalfOpen => "half-open",
        Phase::Open => "open",
    };
    name.to_owned()
}

fn ssd_breaker(standing: &DeviceStanding) -> SsdBreakerReport {
    let DeviceStanding { phase, opens, probes, barred, late_reads } = *standing;
    SsdBreakerReport { state: phase_name(phase), opens, probes, barred, late_reads }
}

fn breaker(standing: &BreakerStanding) -> BreakerReport {
    let BreakerStanding { source, phase, opens } = *standing;
    let (node_id, shard) = (source.node.to_string(), source.shard.0);
    BreakerReport { node_id, shard, state: phase_name(phase), opens }
}
