//! How fast payload may go between nodes, in either direction, and how much one namespace may have of a node in time:
//! rates of the node, of which each shard has its share.

use orbitkv_shards::flow::pacing::{BURST_BYTES_MIN, RATE_BYTES_PER_SECOND_MIN, Rate};
use orbitkv_shards::shard::NamespaceRate;

use super::refusal::refused;
use super::{NodeArgs, SettingsError, check_share};
use crate::quantity::ByteSize;

/// Rates of a node, or of one of its shards, over the network interface, in bytes a second; none is as fast as it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerRates {
    /// Payload that is asked for.
    pub receive: Option<Rate>,
    /// Payload that is sent.
    pub egress: Option<Rate>,
}

impl PeerRates {
    /// What one of its shards has. The shares add up to the node's.
    #[must_use]
    pub fn of_shard(&self, shard: u16, shards: u16) -> PeerRates {
        let share = |rate: Option<Rate>| rate.and_then(|rate| rate.share(shard, shards));
        PeerRates { receive: share(self.receive), egress: share(self.egress) }
    }
}

/// Decides the rates of a node.
pub(super) fn rates(args: &NodeArgs, shards: u64) -> Result<PeerRates, SettingsError> {
    Ok(PeerRates {
        receive: rate("--receive-rate", args.receive_rate, shards)?,
        egress: rate("--egress-rate", args.egress_rate, shards)?,
    })
}

fn rate(setting: &str, given: Option<ByteSize>, shards: u64) -> Result<Option<Rate>, SettingsError> {
    let Some(rate) = given.and_then(|size| Rate::new(size.0)) else { return Ok(None) };
    check_share(setting, ByteSize(rate.bytes_a_second()), shards, RATE_BYTES_PER_SECOND_MIN)?;
    Ok(Some(rate))
}

/// Decides what one namespace may have in time.
pub(super) fn namespace_rate(args: &NodeArgs, shards: u64) -> Result<Option<NamespaceRate>, SettingsError> {
    let rate = rate("--namespace-rate", args.namespace_rate, shards)?;
    let Some(rate) = rate else {
        let Some(burst) = args.namespace_burst else { return Ok(None) };
        let bound = "bounds nothing without a rate, and --namespace-rate is 0";
        return Err(refused("--namespace-burst", burst, bound, "add --namespace-rate SIZE, or leave it out"));
    };
    let burst = args.namespace_burst.unwrap_or(ByteSize(rate.bytes_a_second()));
    check_share("--namespace-burst", burst, shards, BURST_BYTES_MIN)?;
    Ok(Some(NamespaceRate { rate, burst_bytes: burst.0 }))
}
