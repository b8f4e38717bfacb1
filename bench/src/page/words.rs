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
    ("cancel_cost", "Requests that were cancelled though nothing fails", ""),
    (
        "cancel_pins_ms",
        "Longest time after a deadline until the peer no longer keeps blocks ready for who gave up",
        "ms",
    ),
    ("bulkhead_refused", "Blocks here that were refused because another engine waits for a stopped peer", ""),
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
        "isolation" => "Whether changes that other nodes tell slow down the server that works with a node.",
        "routing" => {
            "How soon a request has its blocks when two peers have them and one is held back: sources chosen by a plan against a fixed order."
        }
        "resilience" => {
            "What each protection against failing peers costs while nothing fails, and what it gains while a peer is stopped."
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
    const NO_GATES: &[&str] = &["coalescing_window_us", "query_p50_us", "query_p99_us"];

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
