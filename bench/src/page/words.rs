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

/// Plain titles of gates, by the beginning of their names; the first that fits.
const GATES: &[(&str, &str)] = &[
    (
        "isolation_dram_save_worst_pair",
        "Save under pressure, blocks in memory: slowest 1 % of the worst pair, times quiet",
    ),
    ("isolation_dram_save_bound", "The same over all pairs: upper bound of the mean"),
    (
        "isolation_dram_query_worst_pair",
        "Query under pressure, blocks in memory: slowest 1 % of the worst pair, times quiet",
    ),
    ("isolation_dram_query_bound", "The same over all pairs: upper bound of the mean"),
    (
        "isolation_ssd_save_worst_pair",
        "Save under pressure, blocks on SSD: slowest 1 % of the worst pair, times quiet",
    ),
    ("isolation_ssd_save_bound", "The same over all pairs: upper bound of the mean"),
    (
        "isolation_ssd_query_worst_pair",
        "Query under pressure, blocks on SSD: slowest 1 % of the worst pair, times quiet",
    ),
    ("isolation_ssd_query_bound", "The same over all pairs: upper bound of the mean"),
    ("dram_path", "Save to and read from memory, as a share of plain copying"),
    ("ssd_write_back", "Writing to SSD, times the reference"),
    ("ssd_read", "Reading from SSD, times the reference"),
    ("query_p99", "A query of 128 blocks, times an empty round trip"),
    ("peer_quic", "Reading from another node over the network protocol, times a stock library"),
    ("peer_shm", "Reading from another node of the host, as a share of plain copying"),
    ("restart", "Seconds until a node has ended that was asked to"),
    ("visibility_convergence", "Rows that are wrong or missing at other nodes after the run"),
    ("visibility_etcd", "Writes to the coordinator (etcd) during the run"),
    ("visibility", "Visibility of changes at other nodes, slowest 1 %, ms"),
    ("churn_queue", "Most bytes that ever waited to be told, at the reference rate"),
    ("churn_convergence", "Rows that are wrong or missing at other nodes after the run"),
    ("churn_etcd", "Writes to the coordinator (etcd) during the run"),
    ("churn", "Visibility under sustained changes, slowest 1 %, ms"),
];

/// A gate in plain words.
pub fn gate(name: &str) -> String {
    let known = GATES.iter().find(|(beginning, _)| name.starts_with(beginning));
    known.map_or_else(
        || super::figures::capital(&super::figures::plain(name)),
        |(_, title)| (*title).to_owned(),
    )
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
    use super::*;

    #[test]
    fn gates_have_plain_titles() {
        assert!(gate("isolation_ssd_query_bound").starts_with("The same"));
        assert!(gate("visibility_64").starts_with("Visibility of changes"));
        assert!(gate("visibility_etcd").starts_with("Writes"));
        assert_eq!(gate("index_bytes_row"), "Index bytes row");
    }
}
