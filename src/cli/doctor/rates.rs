//! Whether a rate that the operator has set keeps somebody waiting, and whether anything is given up because too much is
//! wanted.

use super::{Finding, Severity};
use crate::control::report::PeersReport;
use crate::quantity::ByteSize;

/// What is found about the rates of a core: what it sends, and what it asks for. What is given up for demand alone is as it
/// should be.
pub(super) fn findings(shard: u16, peers: &PeersReport) -> Vec<Finding> {
    let (lending, fetching) = (&peers.lending, &peers.fetching);
    let mut found = Vec::new();
    // More than a second's worth waits, or what was wanted would have waited too long.
    let is_behind = |rate: u64, waiting: u64| rate > 0 && waiting > rate;
    if lending.egress_refused() > 0 || is_behind(lending.egress_rate, lending.egress_waiting_bytes) {
        found.push(Finding {
            severity: Severity::Notice,
            name: "egress-full",
            what: format!(
                "core {shard} may send {} a second: {} wait, and {} blocks were refused that would have come too late",
                ByteSize(lending.egress_rate).rounded(),
                ByteSize(lending.egress_waiting_bytes).rounded(),
                lending.egress_refused()
            ),
            why: "peers took what was refused from elsewhere or missed it; what was granted comes in turn",
            remedy: "raise --egress-rate, or have the same blocks on more nodes".to_owned(),
        });
    }
    if is_behind(fetching.receive_rate, fetching.queued_bytes) {
        found.push(Finding {
            severity: Severity::Notice,
            name: "receive-full",
            what: format!(
                "core {shard} may ask for {} a second, and {} wait to be asked for",
                ByteSize(fetching.receive_rate).rounded(),
                ByteSize(fetching.queued_bytes).rounded()
            ),
            why: "engines wait for blocks that peers could send sooner, or miss them at their deadlines",
            remedy: "raise --receive-rate, or let engines ask for less at a time".to_owned(),
        });
    }
    if fetching.shed_demand_length > 0 {
        found.push(Finding {
            severity: Severity::Notice,
            name: "demand-shed",
            what: format!(
                "core {shard} gave up {} blocks that engines wait for: as many were on their way from peers as may be",
                fetching.shed_demand_length
            ),
            why: "each was told to be busy at once, and none to be absent",
            remedy: "let engines ask for less at a time, or use more shards".to_owned(),
        });
    }
    found
}
