//! What a shard has with its peers: inventory, grants, fetches, flow and plans.

use orbitkv_shards::planner::ByAge;

use super::{Metric, Values, by, counter, level, one};
use crate::control::report::{HandshakesReport, PeersReport, ReferencesReport, ShardReport, StepsReport};

fn of_peers(report: &ShardReport, of: fn(&PeersReport) -> Values) -> Values {
    report.peers.as_ref().map(of).unwrap_or_default()
}

fn by_age(ages: ByAge) -> Values {
    let names = ["500ms", "1s", "2s", "5s", "older"];
    names.into_iter().zip(ages).map(|(name, value)| (Some(("kind", name)), value)).collect()
}

/// Every such metric of a shard.
pub(super) const METRICS: &[Metric] = &[
    counter("orbitkv_range_ended", "Residences of peers that had ended when they were asked for", |r| {
        of_peers(r, |p| one(p.fetching.range_ended))
    }),
    counter("orbitkv_superseded", "Answers of peers in another life than was asked", |r| {
        of_peers(r, |p| one(p.fetching.stale_epoch + p.sessions_superseded))
    }),
    counter("orbitkv_peer_hits", "Blocks acquired from peers, by where they were there", |r| {
        by("medium", [("dram", r.service.peer_hits.dram), ("ssd", r.service.peer_hits.ssd)])
    }),
    level("orbitkv_inventory_sessions", "Inventory sessions; following is a part of served", |r| {
        of_peers(r, |p| {
            by(
                "kind",
                [
                    ("served", p.sessions_served),
                    ("following", p.sessions_following),
                    ("received", p.sessions_received),
                ],
            )
        })
    }),
    counter("orbitkv_inventory_session_events", "Inventory sessions that began or ended", |r| {
        of_peers(r, |p| {
            by(
                "kind",
                [
                    ("opened", p.sessions_opened),
                    ("lost", p.sessions_lost),
                    ("resumed", p.sessions_resumed),
                    ("refused", p.sessions_refused.values().sum()),
                    ("protocol_error", p.protocol_errors),
                ],
            )
        })
    }),
    level("orbitkv_hint_age_ms", "Age that hints in an answer may have, milliseconds", |r| {
        r.coverage.map(|coverage| one(coverage.hint_age().as_millis() as u64)).unwrap_or_default()
    }),
    level("orbitkv_streams_left_out", "Owner streams without a view, with a broken or too old one", |r| {
        r.coverage.map(|coverage| one(coverage.left_out.into())).unwrap_or_default()
    }),
    level("orbitkv_index_rows", "Index rows; retired is a part of all", |r| {
        of_peers(r, |p| by("kind", [("all", p.index_rows), ("retired", p.index_retired_rows)]))
    }),
    level("orbitkv_index_bytes", "Bytes of the index of peers' blocks", |r| {
        of_peers(r, |p| {
            let (peak, budget) = (p.index_bytes_peak, p.index_budget_bytes);
            by("kind", [("accounted", p.index_bytes), ("peak", peak), ("budget", budget)])
        })
    }),
    counter("orbitkv_inventory_records", "Journal records told to peers", |r| {
        of_peers(r, |p| by("kind", [("read", p.records_read), ("coalesced", p.records_coalesced)]))
    }),
    counter("orbitkv_inventory_frames", "Inventory frames", |r| {
        of_peers(r, |p| by("kind", [("sent", p.frames_sent.frames), ("received", p.frames_received.frames)]))
    }),
    counter("orbitkv_inventory_bytes", "Bytes of inventory frames; the others are parts of sent", |r| {
        of_peers(r, |p| {
            by(
                "kind",
                [
                    ("sent", p.frames_sent.bytes),
                    ("received", p.frames_received.bytes),
                    ("deltas", p.deltas_sent.bytes),
                    ("pages", p.pages_sent.bytes),
                    ("replay", p.replay_bytes_sent),
                ],
            )
        })
    }),
    level("orbitkv_inventory_queue_bytes", "Bytes of frames built and not consumed", |r| {
        of_peers(r, |p| by("kind", [("now", p.queue_bytes), ("peak", p.queue_bytes_peak)]))
    }),
    level("orbitkv_inventory_lag_records", "Records by which the rearmost view is behind", |r| {
        of_peers(r, |p| one(p.lag_records_max))
    }),
    counter("orbitkv_inventory_wait_us", "Time changes waited for others on purpose, microseconds", |r| {
        of_peers(r, |p| one(p.intentional_wait_us))
    }),
    counter("orbitkv_index_changes", "Changes taken into the index", |r| {
        of_peers(r, |p| by("kind", [("applied", p.changes_applied), ("staged", p.changes_staged)]))
    }),
    counter("orbitkv_snapshots", "Snapshots of peers", |r| {
        of_peers(r, |p| by("kind", [("installed", p.snapshots_installed), ("refused", p.snapshots_refused)]))
    }),
    counter("orbitkv_resets", "Resets that sources asked for", |r| {
        of_peers(r, |p| one(p.resets.values().sum()))
    }),
    counter("orbitkv_peer_datagrams", "Datagrams", |r| {
        of_peers(r, |p| by("kind", [("received", p.datagrams_received), ("dropped", p.datagrams_dropped)]))
    }),
    counter("orbitkv_peer_packets", "QUIC packets to peers; lost is a part of sent", |r| {
        of_peers(r, |p| by("kind", [("sent", p.packets.sent), ("lost", p.packets.lost)]))
    }),
    counter("orbitkv_peer_congestion_events", "Times that a connection to a peer sent less at once", |r| {
        of_peers(r, |p| one(p.packets.congestion_events))
    }),
    counter("orbitkv_peer_handshakes", "Handshakes with peers, by how they ended", |r| {
        of_peers(r, |p| {
            let HandshakesReport { completed, failed, wrong_keys, wrong_signatures } = p.handshakes;
            let kinds = [
                ("completed", completed),
                ("failed", failed),
                ("wrong_key", wrong_keys),
                ("wrong_signature", wrong_signatures),
            ];
            by("kind", kinds)
        })
    }),
    level("orbitkv_lent", "Blocks pinned for peers, and their bytes", |r| {
        of_peers(r, |p| {
            let (bytes, quarantined) = (p.lending.pinned_bytes, p.lending.quarantined_bytes);
            by("kind", [("pins", p.lending.pins), ("bytes", bytes), ("quarantined_bytes", quarantined)])
        })
    }),
    counter("orbitkv_grants_asked", "Blocks that peers asked for, by how often they had asked before", |r| {
        of_peers(r, |p| {
            let [first, second, third] = p.lending.asked;
            by("attempt", [("first", first), ("second", second), ("third", third)])
        })
    }),
    counter("orbitkv_grants", "Answers to peers that wanted blocks", |r| {
        of_peers(r, |p| {
            by(
                "kind",
                [
                    ("granted", p.lending.granted),
                    ("ended", p.lending.ended),
                    ("never_held", p.lending.never_held),
                    ("beyond_head", p.lending.beyond_head),
                    ("busy", p.lending.busy),
                    ("stale_epoch", p.lending.stale_epoch),
                    ("lease_expired", p.lending.lease_expired),
                    ("repeated", p.lending.repeated),
                    ("misdirected", p.lending.misdirected),
                    ("failed", p.lending.failed),
                ],
            )
        })
    }),
    counter("orbitkv_fetches", "Fetches from peers", |r| {
        of_peers(r, |p| {
            by(
                "kind",
                [
                    ("begun", p.fetching.begun),
                    ("fetched", p.fetching.fetched),
                    ("missing", p.fetching.missing),
                    ("busy", p.fetching.busy),
                    ("corrupt", p.fetching.corrupt),
                    ("deadline", p.fetching.deadline),
                    ("rerouted", p.fetching.rerouted),
                    ("violations", p.fetching.violations),
                ],
            )
        })
    }),
    counter(
        "orbitkv_fetches_out_of_time",
        "Fetches that engines waited for when their time was over, by the step that used it",
        |r| {
            of_peers(r, |p| {
                let StepsReport { wait, authorize, prepare, transfer, install } = p.fetching.out_of_time;
                by(
                    "step",
                    [
                        ("wait", wait),
                        ("authorize", authorize),
                        ("prepare", prepare),
                        ("transfer", transfer),
                        ("install", install),
                    ],
                )
            })
        },
    ),
    counter("orbitkv_fetches_left_silent", "Fetches asked for elsewhere for want of an answer", |r| {
        of_peers(r, |p| one(p.fetching.left_silent))
    }),
    counter("orbitkv_fetch_cancels", "Cancelled requests to peers, by what ended them", |r| {
        of_peers(r, |p| {
            let f = &p.fetching;
            let (repeated, closed) = (f.cancels_repeated, f.cancels_closed);
            by("kind", [("confirmed", f.cancels_confirmed), ("repeated", repeated), ("closed", closed)])
        })
    }),
    counter(
        "orbitkv_references",
        "Blocks of peers' inventories that were asked for, by what was there",
        |r| {
            of_peers(r, |p| {
                let ReferencesReport { found, range_ended, superseded, never_held } = p.fetching.references;
                by(
                    "kind",
                    [
                        ("found", found),
                        ("range_ended", range_ended),
                        ("superseded", superseded),
                        ("never_held", never_held),
                    ],
                )
            })
        },
    ),
    counter("orbitkv_shed", "Fetches from peers given up as busy, by class and reason", |r| {
        of_peers(r, |p| {
            let shed = &p.fetching;
            let (length, age) = (shed.shed_background_length, shed.shed_background_age);
            by(
                "reason",
                [
                    ("demand_length", shed.shed_demand_length),
                    ("background_length", length),
                    ("background_age", age),
                ],
            )
        })
    }),
    counter("orbitkv_peer_asks", "Blocks asked of peers; extra ones after a failed call", |r| {
        of_peers(r, |p| {
            let asks = &p.fetching;
            let refused = asks.extra_asks_refused;
            by("kind", [("first", asks.first_asks), ("extra", asks.extra_asks), ("refused", refused)])
        })
    }),
    counter("orbitkv_peer_calls", "Calls to peers that have ended", |r| {
        of_peers(r, |p| {
            by("kind", [("answered", p.fetching.calls_answered), ("failed", p.fetching.calls_failed)])
        })
    }),
    counter("orbitkv_peer_breaker_events", "What came of peers that fail", |r| {
        of_peers(r, |p| {
            let calls = &p.fetching;
            let refused = calls.breaker_refusals;
            by(
                "kind",
                [("opened", calls.breaker_opens), ("probe", calls.breaker_probes), ("refused", refused)],
            )
        })
    }),
    counter("orbitkv_zone_changes", "Changes of the zone whose nodes are asked first", |r| {
        of_peers(r, |p| by("kind", [("failover", p.zones.failovers), ("failback", p.zones.failbacks)]))
    }),
    level("orbitkv_zone_checks_missed", "Checks in a row that the zone asked first has missed", |r| {
        of_peers(r, |p| one(p.zones.checks_missed))
    }),
    counter("orbitkv_payload_bytes", "Payload bytes between nodes", |r| {
        of_peers(r, |p| {
            let (fetched, wasted) = (p.fetching.bytes, p.fetching.wasted_bytes);
            by("kind", [("lent", p.lending.lent_bytes), ("fetched", fetched), ("wasted", wasted)])
        })
    }),
    counter("orbitkv_payload_shm_bytes", "Payload bytes between nodes that came over shared memory", |r| {
        of_peers(r, |p| by("kind", [("lent", p.lending.lent_shm_bytes), ("fetched", p.fetching.shm_bytes)]))
    }),
    counter("orbitkv_egress_bytes", "Bytes of payload streams given to the network", |r| {
        of_peers(r, |p| one(p.lending.egress_bytes))
    }),
    level("orbitkv_egress_rate_bytes", "Bytes a second that may be sent to peers; 0 for no bound", |r| {
        of_peers(r, |p| one(p.lending.egress_rate))
    }),
    level("orbitkv_receive_rate_bytes", "Bytes a second that may be asked of peers; 0 for no bound", |r| {
        of_peers(r, |p| one(p.fetching.receive_rate))
    }),
    level(
        "orbitkv_receive_window_bytes",
        "Payload bytes that may still come, and that may be asked for",
        |r| {
            of_peers(r, |p| {
                let (used, most) = (p.fetching.outstanding_bytes, p.fetching.window_bytes);
                by("kind", [("outstanding", used), ("bound", most)])
            })
        },
    ),
    level("orbitkv_flow_waiting_bytes", "Payload bytes that wait to be sent, or to be asked for", |r| {
        of_peers(r, |p| {
            let (send, ask) = (p.lending.egress_waiting_bytes, p.fetching.queued_bytes);
            by("kind", [("send", send), ("ask", ask), ("draining", p.fetching.draining_bytes)])
        })
    }),
    counter("orbitkv_flow_paced_us", "Time in which payload waited for a rate alone, microseconds", |r| {
        of_peers(r, |p| by("kind", [("send", p.lending.egress_paced_us), ("ask", p.fetching.paced_us)]))
    }),
    counter("orbitkv_egress_refused", "Blocks refused for want of egress, by when they were due", |r| {
        of_peers(r, |p| {
            let lending = &p.lending;
            let (urgent, soon) = (lending.egress_refused_urgent, lending.egress_refused_soon);
            by("kind", [("urgent", urgent), ("soon", soon), ("later", lending.egress_refused_later)])
        })
    }),
    counter("orbitkv_plans", "Batches of blocks from peers, by why they have the plan they have", |r| {
        of_peers(r, |p| by("reason", p.planning.by_reason()))
    }),
    counter("orbitkv_plans_differing", "Batches planned otherwise than in the fixed order", |r| {
        of_peers(r, |p| by("kind", [("planned", p.planning.differing), ("followed", p.planning.followed)]))
    }),
    counter(
        "orbitkv_plan_us",
        "What plans were worth, and what it cost not to follow them, microseconds",
        |r| {
            of_peers(r, |p| {
                let (gain, regret) = (p.planning.predicted_gain_us, p.planning.regret_us);
                by("kind", [("predicted_gain", gain), ("regret", regret)])
            })
        },
    ),
    counter(
        "orbitkv_plan_predictions",
        "Batches whose time had been predicted; within margin is a part",
        |r| {
            of_peers(r, |p| {
                by("kind", [("judged", p.planning.judged), ("within_margin", p.planning.within_margin)])
            })
        },
    ),
    counter("orbitkv_route_outcomes", "Blocks asked of a peer; failures are a part", |r| {
        of_peers(r, |p| by("kind", [("all", p.planning.outcomes), ("failures", p.planning.failures)]))
    }),
    counter("orbitkv_inventory_age_asks", "Blocks asked of a peer, by age of what it said it has", |r| {
        of_peers(r, |p| by_age(p.planning.asked_by_age))
    }),
    counter("orbitkv_inventory_age_refusals", "Of those, blocks that were refused", |r| {
        of_peers(r, |p| by_age(p.planning.refused_by_age))
    }),
    counter(
        "orbitkv_load_age_batches",
        "Batches judged, by age of how busy their peers said they are",
        |r| of_peers(r, |p| by_age(p.planning.judged_by_age)),
    ),
    counter("orbitkv_load_age_error_permille", "Thousandths of the prediction that those were off", |r| {
        of_peers(r, |p| by_age(p.planning.error_permille_by_age))
    }),
    level("orbitkv_readers", "Nodes of this host that read in the arena", |r| {
        of_peers(r, |p| one(p.lending.readers))
    }),
];
