//! What the page says in words, for who has never seen the project.

/// What all of it is.
pub const INTRODUCTION: &str = "\
<p>OrbitKV is a program that runs beside language-model servers and keeps what they have computed for parts of a text (KV-cache \
<em>blocks</em>) in memory and on SSD, so that it need not be computed again. The programs on all hosts of a cluster (<em>nodes</em>) tell each \
other what they hold and bring it over when it is asked for.</p>\n\
<p>This page was made by <code>orbitkv-bench report</code> from the raw results of measurements. Absolute times depend on the machine; most limits \
are therefore ratios of two things measured in one run. Runs that failed are listed, too.</p>\n";

/// What the isolation campaign asks.
pub const ISOLATION: &str = "\
<p>Nodes tell each other every change of what they hold. Does that slow down the server that works with a node? To find out, an engine \
saves, looks up and restores new blocks in rounds. In half of the runs another node makes 64 changes each 17 ms, of which the first node hears; \
in the other half it is quiet. What is compared is the time that only one round in a hundred exceeds (p99). Before that, quiet runs are \
compared with quiet runs: where even those differ by more than 5 %, this machine cannot answer the question.</p>\n";

/// What words mean.
pub const GLOSSARY: &str = "\
<dl><dt>p50, p99, p99.9</dt><dd>The time that half, 99 % and 99.9 % of all cases took at most. A high percentile shows the slow cases \
that an average hides. Times are counted from when something should have begun, so that a stall is not hidden.</dd>\
<dt>quiet run, run under pressure</dt><dd>The same work without and with changes that another node makes meanwhile.</dd>\
<dt>pair</dt><dd>Two runs one after the other, of which the ratio is taken. Which comes first changes from pair to pair.</dd>\
<dt>geometric mean and interval</dt><dd>The mean of ratios. The interval comes from drawing pairs again and again (bootstrap): runs are drawn, never \
single requests.</dd>\
<dt>exposure</dt><dd>Proof that a run was under the pressure it claims: rate within 5 %, no gap of more than 100 ms, seen on both sides, and every key \
compared at the end. What was not seen is unknown, and does not count.</dd>\
<dt>not resolvable here</dt><dd>The machine's own noise is larger than the limit. It is never a pass.</dd>\
<dt>visibility</dt><dd>From the moment a node has recorded a change until another node can answer with it.</dd>\
<dt>stolen time</dt><dd>Share of the machine's time that its host gave to others meanwhile.</dd></dl>\n";

/// Plain titles of gates and units of their values, by their names. Sizes at the end of a name (`_16`, `_2ms`) need no
/// entry of their own.
const GATES: &[(&str, &str, &str)] = &[
    (
        "ablation_etcd_plain_seen",
        "Streams against a record of each block in etcd: how much sooner a change is seen (p99)",
        "×",
    ),
    (
        "ablation_etcd_coalesced_seen",
        "Streams against records in etcd, many at a time: how much sooner a change is seen (p99)",
        "×",
    ),
    (
        "ablation_etcd_plain_reached",
        "Streams against a record of each block in etcd: changes kept up with",
        "×",
    ),
    (
        "ablation_etcd_coalesced_reached",
        "Streams against records in etcd, many at a time: changes kept up with",
        "×",
    ),
    (
        "ablation_etcd_plain_processor",
        "Streams against a record of each block in etcd: processor time spared for a change",
        "×",
    ),
    (
        "ablation_etcd_coalesced_processor",
        "Streams against records in etcd, many at a time: processor time spared for a change",
        "×",
    ),
    ("ablation_etcd_scoped_bytes", "Streams of one namespace of four against all: bytes spared", "×"),
    ("ablation_coalesce_bytes", "Waiting 2 ms against telling at once: bytes spared", "×"),
    ("ablation_coalesce_seen", "Waiting 2 ms against telling at once: how soon a change is seen (p99)", "×"),
    ("ablation_coalesce_longer_bytes", "Waiting 2 ms against 5 ms: bytes spared", "×"),
    (
        "ablation_idle_ping",
        "Cores that park against cores that spin: how soon an empty request is answered",
        "×",
    ),
    ("ablation_idle_query", "Cores that park against cores that spin: how soon a query is answered", "×"),
    ("ablation_idle_rate", "Cores that park against cores that spin: blocks a second", "×"),
    ("ablation_idle_rest", "Cores that park against cores that spin: processor time spared at rest", "×"),
    ("ablation_shards_rate", "Two shards of a node against one, on two cores: blocks a second", "×"),
    (
        "ablation_shards_query",
        "Two shards of a node against one, on two cores: how soon a query is answered",
        "×",
    ),
    ("ablation_shards_seen", "Two shards of a node against one, on two cores: how soon a fence is met", "×"),
    ("ablation_device_write", "A bare ring against glommio: rate of writing to SSD", "×"),
    ("ablation_device_read", "A bare ring against glommio: rate of reading from SSD", "×"),
    ("ablation_device_small_write", "A bare ring against glommio: rate of writing small blocks", "×"),
    ("ablation_device_small_read", "A bare ring against glommio: rate of reading small blocks", "×"),
    (
        "ablation_device_node_write",
        "The node's ring against glommio with a copy: rate of writing to SSD",
        "×",
    ),
    (
        "ablation_device_node_read",
        "The node's ring against glommio with a copy: rate of reading from SSD",
        "×",
    ),
    ("ablation_quic_rate", "The own network loop against a stock library: rate", "×"),
    (
        "ablation_quic_reader",
        "The own network loop against a stock library: processor time spared where is read",
        "×",
    ),
    (
        "ablation_quic_source",
        "The own network loop against a stock library: processor time spared at the source",
        "×",
    ),
    (
        "ablation_routing_gain",
        "Planned routes against the fixed order while a peer can send little: p95",
        "×",
    ),
    ("ablation_routing_cost", "Planned routes against the fixed order while none is held back: p95", "×"),
    ("ablation_routing_shadow_cost", "Routes planned and not followed against none: p95", "×"),
    (
        "ablation_pacing_single",
        "A bound on what a node sends against none: how soon a single block comes while another node reads all it can (p99)",
        "×",
    ),
    ("ablation_faults", "Blocks that were wrong or missing on any side", ""),
    (
        "isolation_dram_save_worst_pair",
        "Save under pressure, blocks in memory: p99 of the worst pair, times quiet",
        "×",
    ),
    (
        "isolation_dram_save_bound",
        "Save under pressure, blocks in memory: upper bound of the mean of all pairs",
        "×",
    ),
    (
        "isolation_dram_query_worst_pair",
        "Query under pressure, blocks in memory: p99 of the worst pair, times quiet",
        "×",
    ),
    (
        "isolation_dram_query_bound",
        "Query under pressure, blocks in memory: upper bound of the mean of all pairs",
        "×",
    ),
    (
        "isolation_ssd_save_worst_pair",
        "Save under pressure, blocks on SSD: p99 of the worst pair, times quiet",
        "×",
    ),
    (
        "isolation_ssd_save_bound",
        "Save under pressure, blocks on SSD: upper bound of the mean of all pairs",
        "×",
    ),
    (
        "isolation_ssd_query_worst_pair",
        "Query under pressure, blocks on SSD: p99 of the worst pair, times quiet",
        "×",
    ),
    (
        "isolation_ssd_query_bound",
        "Query under pressure, blocks on SSD: upper bound of the mean of all pairs",
        "×",
    ),
    ("dram_path", "Rate of saving to memory and reading back, times plain copying", "×"),
    ("ssd_write_back_fio", "Rate of writing to SSD, times the tool fio", "×"),
    ("ssd_write_back_bare", "Rate of writing to SSD, times a bare loop", "×"),
    ("ssd_read_fio", "Rate of reading from SSD, times the tool fio", "×"),
    ("ssd_read_bare", "Rate of reading from SSD, times a bare loop", "×"),
    ("query_p99", "p99 of a query of 128 blocks, times an empty round trip", "×"),
    ("rest_processor", "Share of a core that a node takes while it has nothing to do", ""),
    ("rest_memory", "Most memory a node took, as a share of what it said it would", ""),
    ("peer_quic", "Rate of reading from another node over the network protocol, times a stock library", "×"),
    ("peer_shm", "Rate of reading from another node of the host, times plain copying", "×"),
    ("peer_shm_settled", "The same, of blocks that the other node has written to its SSD, too", "×"),
    ("routing_slow_ssd", "Planned routes while one peer's SSD is slow: what of p95 or p99 is saved", ""),
    ("routing_egress", "Planned routes while one peer can send little: what of p95 or p99 is saved", ""),
    (
        "routing_uncontended_dram",
        "Planned routes while no peer is held back, blocks in memory: p95 or p99, times the fixed order",
        "×",
    ),
    (
        "routing_uncontended_ssd",
        "Planned routes while no peer is held back, blocks on SSD: p95 or p99, times the fixed order",
        "×",
    ),
    ("restart", "Time until a node has ended that was asked to", "s"),
    ("index_bytes_a_row", "Memory that the index of other nodes' blocks takes for each of them", "bytes"),
    (
        "index_apply_1000_over_64",
        "Rate of changes of the index with 1,000 other nodes, times that with 64",
        "×",
    ),
    ("index_apply", "Changes of the index of other nodes' blocks, on one core", "a second"),
    (
        "index_lookup_1000_over_64",
        "Rate of lookups in the index with 1,000 other nodes, times that with 64",
        "×",
    ),
    ("index_lookup_over_map", "Rate of lookups in the index, times a bare hash map", "×"),
    ("index_lookup", "Blocks looked up in the index of other nodes' blocks, on one core", "a second"),
    ("index_load_over_map", "Rate of filling the index, times a bare hash map", "×"),
    ("index_churn_over_map", "Rate of changes of the full index, times a bare hash map", "×"),
    ("index_retirement_p99", "p99 of lookups while a node's blocks are removed, times quiet", "×"),
    ("index_rss_bytes", "Memory of the index for each block, times the best of other indexers", "×"),
    ("index_queries", "Rate of queries, times the best of other indexers", "×"),
    ("visibility_convergence", "Blocks that are wrong or missing at other nodes after the run", ""),
    ("visibility_etcd", "Writes to the coordinator (etcd) during the run", ""),
    ("visibility", "p99 of visibility: until other nodes know of a change", "ms"),
    ("churn_queue", "Most bytes that ever waited to be told, at the reference rate", "bytes"),
    ("churn_convergence", "Blocks that are wrong or missing at other nodes after the run", ""),
    ("churn_etcd", "Writes to the coordinator (etcd) during the run", ""),
    ("churn_rate", "Changes that all nodes together made and kept up", "a second"),
    ("churn", "p99 of visibility under sustained changes", "ms"),
    ("bootstrap_convergence", "Blocks that are wrong or missing at nodes that joined late", ""),
    (
        "bootstrap",
        "p99 of the time until a node that joins has all that others have, times an earlier build",
        "×",
    ),
    (
        "bootstrap_repair",
        "p99 of the time until a node that another one's changes have overtaken has them anew, times an earlier build",
        "×",
    ),
    (
        "bootstrap_churn",
        "p99 of the same time while all other nodes change what they hold, times an earlier build",
        "×",
    ),
    ("fanout_delivered", "Changes that a node was told beside those it had asked for, or was not told", ""),
    ("fanout_rows", "Blocks that are wrong or missing at nodes that follow", ""),
    ("coalescing_convergence", "Blocks that are wrong or missing at other nodes after the run", ""),
    ("coalescing_etcd", "Writes to the coordinator (etcd) during the run", ""),
    (
        "coalescing",
        "Share of the bytes that waiting a moment spares when the same blocks change again and again",
        "",
    ),
    ("breaker_cost", "A block from a peer while nothing fails, with a circuit breaker, times without", "×"),
    (
        "breaker_gain",
        "Blocks that only a stopped peer has: time until they are given up without a circuit breaker, times with it",
        "×",
    ),
    (
        "retry_budget_cost",
        "A block from a peer while nothing fails, with a budget of retries, times without",
        "×",
    ),
    (
        "retry_budget_amplification",
        "Requests to peers while one of them is stopped, times those made for the first time",
        "×",
    ),
    (
        "ssd_breaker_cost",
        "A block from SSD or a peer while nothing fails, with a circuit breaker of the SSD, times without",
        "×",
    ),
    (
        "ssd_breaker_gain",
        "Share of blocks that come from a peer instead of an SSD of which every read fails",
        "",
    ),
    ("zones_cost", "A block from a peer while nothing fails, the same zone first, times any zone", "×"),
    (
        "zones_gain",
        "Blocks that two sources have of which one is stopped: time without zones, times with them",
        "×",
    ),
    ("cancel_cost", "Requests that were cancelled though nothing fails", ""),
    (
        "cancel_pins_ms",
        "Longest time after a deadline until the peer no longer keeps blocks ready for who gave up",
        "ms",
    ),
    ("scale_cells", "Clusters of the matrix that came to no result", ""),
    ("scale_convergence", "Blocks that are wrong or missing at other nodes at the end of each cluster", ""),
    ("scale_etcd", "Writes to the coordinator (etcd) while changes were made", ""),
    (
        "scale_unrefused",
        "Clusters beyond what nodes are made for that were not refused as they have to be",
        "",
    ),
    ("scale_rss", "Most memory a node took, as a share of what it said it would", ""),
    ("soak_wrong_bytes", "Blocks that came back with other bytes than were saved", ""),
    ("soak_lost", "Blocks that a node had accepted and did not have any more", ""),
    ("soak_troubles", "Parts of the soak that ended before their time", ""),
    ("soak_live_seconds", "How long blocks were saved and restored, every byte compared", "s"),
    ("soak_unseen", "Faults that left nothing in the nodes' counters, or were not made", ""),
    ("soak_convergence", "Blocks that are wrong or missing at other nodes after all faults", ""),
    (
        "soak_rss_growth",
        "Growth of a node's memory in the second half, as a share of what it said it would take",
        "",
    ),
    ("soak_rss", "Most memory a node took, as a share of what it said it would", ""),
    ("strategies_wrong", "Blocks that came with wrong bytes while owners were killed and started again", ""),
    (
        "strategies_hybrid_reads",
        "Reads of the coordinator (etcd) that it takes a node to know owners again that were started anew",
        "",
    ),
    (
        "strategies_hybrid_bytes",
        "Bytes to and from the coordinator (etcd) meanwhile, times looking each owner up before it is asked",
        "×",
    ),
    (
        "strategies_hybrid_quiet",
        "Time until no request is missed any more, times the quicker of two other strategies",
        "×",
    ),
    ("bulkhead_refused", "Blocks here that were refused because another engine waits for a stopped peer", ""),
    ("timeline_p50", "Median with the record of requests and turns on, times the one without", "×"),
    ("timeline_p99_later_ms", "By how much the slowest 1 % of requests are slower with that record on", "ms"),
    ("timeline_processor", "Processor time of the node with that record on, times the one without", "×"),
    ("timeline_unfollowed", "Requests that the record does not show from beginning to end", ""),
    (
        "rollout_cost",
        "A block from a peer while an operator changes settings, times while he only looks what would be written",
        "×",
    ),
    (
        "rollout_gain",
        "Blocks that do not come because of a wrong setting on all nodes at once, times on a share of them first",
        "×",
    ),
];

/// A gate in plain words, and the unit of its value. One that is not known has its own name and no unit: what is
/// known of a similar name may be wrong.
pub fn gate(name: &str) -> (String, &'static str) {
    known(name).map_or_else(
        || (super::figures::capital(&super::figures::plain(name)), ""),
        |(_, title, unit)| ((*title).to_owned(), *unit),
    )
}

fn known(name: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    let entry = |name: &str| GATES.iter().find(|(known, _, _)| *known == name);
    let of_any_size = || match name.rsplit_once('_') {
        Some((rest, size)) if size.starts_with(|first: char| first.is_ascii_digit()) => entry(rest),
        _ => None,
    };
    entry(name).or_else(of_any_size)
}

/// What a benchmark asks, in one sentence; nothing of one that is not known.
pub fn benchmark(name: &str) -> &'static str {
    match name {
        "local" => {
            "One node against the physics of its machine: how near saving, reading and asking come to what memory, SSD and an empty round trip allow."
        }
        "peer" => "How fast one node reads blocks from another, and how soon a node ends that is asked to.",
        "index" => {
            "The table in which a node keeps what other nodes hold: how many changes and lookups one core makes in a second, and what memory it takes."
        }
        "visibility" => "How soon other nodes know of a change that a node has made.",
        "churn" => "Whether other nodes keep up while all nodes change what they hold without a pause.",
        "bootstrap" => {
            "How long a node that joins late takes until it has all that the others have, against an earlier build."
        }
        "fanout" => {
            "What it costs a node to tell its changes, by how many nodes follow it and whether they want all of them."
        }
        "coalescing" => {
            "What it spares to wait a moment before others are told, when the same blocks change again and again."
        }
        "scale" => {
            "How far a cluster goes, one dimension at a time, and that what is too much for it is refused and does no harm."
        }
        "soak" => {
            "Whether a cluster bears hours of work and of faults: every byte right, nothing lost, all alike in the end, in bounded memory."
        }
        "isolation" => "Whether changes that other nodes tell slow down the server that works with a node.",
        "routing" => {
            "How soon a request has its blocks when two peers have them and one is held back: sources chosen by a plan against a fixed order."
        }
        "ablation" => {
            "What was chosen against what was not, doing the same work in turns: how many times better it is, and what a rule that was fixed before says."
        }
        "resilience" => {
            "What each protection against failing peers costs while nothing fails, and what it gains while a peer is stopped."
        }
        "timeline" => "What it costs a node to record what its cores do and how far each request is.",
        "strategies" => {
            "What it costs a node to find out that other nodes were started anew: three strategies while one, eight or all of them are."
        }
        _ => "",
    }
}

/// What a verdict means.
pub fn verdict(word: &str) -> &'static str {
    match word {
        "passed" => "Changes at other nodes do not slow this down by more than the limit.",
        "failed" => "Changes at other nodes slow this down by more than the limit.",
        "not resolvable here" => {
            "Quiet runs already differ from each other by more than the limit, so nothing can be said."
        }
        _ => "Runs are missing, or nobody saw what they were exposed to.",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Names in the sources that look like those of gates and are fields of reports.
    const NO_GATES: &[&str] = &[
        "coalescing_window_us",
        "dram_bytes",
        "query_p50_us",
        "query_p99_us",
        "visibility_p50_us",
        "visibility_p99_us",
    ];

    /// Every source of this program but those of the page: what can name a gate.
    fn sources(directory: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(directory).expect("the sources are here") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("page") {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(fs::read_to_string(path).expect("text"));
            }
        }
    }

    fn all_sources() -> Vec<String> {
        let mut found = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        found
    }

    fn is_name(text: &str) -> bool {
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        !text.is_empty() && text.chars().all(is_part)
    }

    /// The first word of a name.
    fn family(name: &str) -> &str {
        name.split('_').next().expect("a first part")
    }

    #[test]
    fn every_gate_that_can_be_told_has_words_of_its_own() {
        let sources = all_sources();
        let texts = sources
            .iter()
            .flat_map(|source| source.lines())
            .flat_map(|line| line.split('"').skip(1).step_by(2));
        let names: BTreeSet<&str> = texts.filter(|text| is_name(text)).collect();
        let families: BTreeSet<&str> = GATES.iter().map(|(name, _, _)| family(name)).collect();
        let looks_like_a_gate = |name: &&&str| name.contains('_') && families.contains(family(name));
        for name in names.iter().filter(looks_like_a_gate).filter(|name| !NO_GATES.contains(name)) {
            assert!(known(name).is_some(), "{name}: give it words, or say that it is no gate");
        }
        let told: BTreeSet<&str> = names.iter().filter_map(|name| known(name)).map(|entry| entry.0).collect();
        for (name, _, _) in GATES {
            assert!(told.contains(name), "no source names {name}");
        }
        let once: BTreeSet<&str> = GATES.iter().map(|(name, _, _)| *name).collect();
        assert_eq!(once.len(), GATES.len(), "a name is there twice");
    }

    #[test]
    fn every_benchmark_with_a_report_has_its_sentence() {
        let sources = all_sources();
        let reports = sources.iter().filter(|source| source.contains("Report {"));
        let fields =
            reports.flat_map(|source| source.lines()).filter_map(|line| line.trim().strip_prefix("name: \""));
        let names: BTreeSet<&str> = fields.filter_map(|rest| rest.strip_suffix("\",")).collect();
        assert!(names.contains("routing") && names.contains("resilience") && names.len() >= 11, "{names:?}");
        for name in names {
            assert!(benchmark(name).ends_with('.'), "{name} has no sentence");
        }
    }

    #[test]
    fn units_are_those_of_the_values() {
        for (name, unit) in [
            ("churn_16", "ms"),
            ("churn", "ms"),
            ("churn_rate_16", "a second"),
            ("churn_rate", "a second"),
            ("churn_queue", "bytes"),
            ("churn_etcd", ""),
            ("churn_something_new", ""),
            ("visibility_64", "ms"),
            ("visibility_etcd", ""),
            ("coalescing_2ms", ""),
            ("index_apply_64", "a second"),
            ("index_apply_1000_over_64", "×"),
            ("index_rss_bytes_1000", "×"),
            ("retry_budget_amplification", "×"),
            ("cancel_pins_ms", "ms"),
            ("bulkhead_refused", ""),
            ("rollout_gain", "×"),
        ] {
            assert_eq!(gate(name).1, unit, "{name}");
        }
        assert!(gate("isolation_ssd_query_bound").0.starts_with("Query under pressure, blocks on SSD"));
        assert!(gate("coalescing_etcd").0.starts_with("Writes"));
        assert!(gate("coalescing_2ms").0.starts_with("Share"));
        assert_eq!(gate("something_else"), ("Something else".to_owned(), ""));
    }
}
