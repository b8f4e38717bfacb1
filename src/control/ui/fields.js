// What the page asks the node for, and every field of the answers that it reads. `reading.js` hands on nothing
// else, so a field that is missing here is missing on the page; a test asks a node for each field of this list.
// `*` is each element of a list, or each value of a map. The rest of this file is JSON.
export const SOURCES =
{
  "ready": {
    "path": "/ready",
    "fields": ["ready", "phase"]
  },
  "metadata": {
    "path": "/cache/metadata",
    "fields": [
      "standalone", "incarnation", "epoch", "cluster", "scope_digest", "coverage", "oldest_age_ms", "phase", "sessions",
      "identity.node_id", "identity.version", "identity.engine_socket", "identity.placement", "identity.arena_pages",
      "membership.revision", "membership.validity", "membership.detail", "membership.disputed",
      "membership.foreign_hash",
      "membership.members.*.node_id", "membership.members.*.epoch", "membership.members.*.incarnation",
      "membership.members.*.address", "membership.members.*.shards", "membership.members.*.zone",
      "membership.registrations", "membership.fences", "membership.suspensions", "membership.watches_ended",
      "membership.unanswered", "membership.alarms", "membership.superseded",
      "config.version", "config.origin",
      "index.rows", "index.accounted_bytes", "index.budget_bytes",
      "memory.rss_bytes", "memory.bill_bytes",
      "resets.*.cause", "resets.*.count",
      "shards.*.shard",
      "shards.*.residents.dram", "shards.*.residents.ssd",
      "shards.*.arena.capacity_bytes", "shards.*.arena.allocated_bytes", "shards.*.arena.pinned_bytes",
      "shards.*.ssd.state.state", "shards.*.ssd.state.fault", "shards.*.ssd.state.detail", "shards.*.ssd.breaker.state",
      "shards.*.ssd.capacity_bytes", "shards.*.ssd.live_bytes", "shards.*.ssd.write_backs_queued", "shards.*.ssd.lost_writes",
      "shards.*.journal.head_sequence", "shards.*.journal.used_bytes", "shards.*.journal.capacity_bytes",
      "shards.*.service.hits.dram", "shards.*.service.hits.ssd",
      "shards.*.service.peer_hits.dram", "shards.*.service.peer_hits.ssd", "shards.*.service.misses",
      "shards.*.peers.lag_records_max", "shards.*.peers.protocol_errors", "shards.*.peers.snapshots_refused",
      "shards.*.peers.sessions_lost", "shards.*.peers.sessions_superseded", "shards.*.peers.sessions_refused.*",
      "shards.*.peers.sources.*.node_id", "shards.*.peers.sources.*.shard", "shards.*.peers.sources.*.mode",
      "shards.*.peers.sources.*.answers", "shards.*.peers.sources.*.errors", "shards.*.peers.sources.*.timeouts",
      "shards.*.peers.sources.*.ms_mean",
      "shards.*.peers.breakers.*.node_id", "shards.*.peers.breakers.*.shard", "shards.*.peers.breakers.*.state",
      "shards.*.peers.breakers.*.opens",
      "shards.*.peers.planning.batches", "shards.*.peers.planning.one_route", "shards.*.peers.planning.few_successes",
      "shards.*.peers.planning.beyond_reach", "shards.*.peers.planning.exhausted", "shards.*.peers.planning.not_better",
      "shards.*.peers.planning.kept", "shards.*.peers.planning.changed",
      "shards.*.peers.planning.judged", "shards.*.peers.planning.within_margin"
    ]
  },
  "owners": {
    "path": "/cache/metadata/owners",
    "fields": [
      "next",
      "owners.*.node_id", "owners.*.epoch", "owners.*.incarnation", "owners.*.shard", "owners.*.core", "owners.*.state",
      "owners.*.installed", "owners.*.applied", "owners.*.source_head", "owners.*.rows", "owners.*.age_ms",
      "owners.*.lacking_ms", "owners.*.misfit", "owners.*.mode",
      "owners.*.load.reads", "owners.*.load.ssd_permille", "owners.*.load.egress_permille"
    ]
  },
  "routes": {
    "path": "/cache/routes",
    "fields": [
      "cores.*.core",
      "cores.*.batches.*.batch", "cores.*.batches.*.wanted", "cores.*.batches.*.usable", "cores.*.batches.*.failed",
      "cores.*.batches.*.planned", "cores.*.batches.*.reason", "cores.*.batches.*.followed",
      "cores.*.batches.*.ready_us", "cores.*.batches.*.replans.*",
      "cores.*.batches.*.alternatives.*.plan", "cores.*.batches.*.alternatives.*.predicted_us",
      "cores.*.batches.*.alternatives.*.margin_us",
      "cores.*.batches.*.routes.*.route", "cores.*.batches.*.routes.*.blocks", "cores.*.batches.*.routes.*.bytes"
    ]
  }
};
