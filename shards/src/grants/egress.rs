//! Whether what is granted can also be sent in time, where a rate bounds what this shard sends.
//!
//! What is pinned for QUIC is what has not left yet, or not been acknowledged. Streams share the rate by node
//! ([`crate::flow::egress`]), so whoever asks has to wait for all of it or for its own part at its share of the rate,
//! whichever is less. What would come too late is refused at once: elsewhere it may come in time.

use std::time::Duration;

use orbitkv_wire::bounds::GRANT_MS_MAX;
use orbitkv_wire::identity::NodeId;
use orbitkv_wire::payload::Transport;

use super::operation::{Operation, Progress};
use super::{Account, Grants};
use crate::flow::PIECE_WAIT;
use crate::flow::egress::piece_bytes;
use crate::flow::pacing::Rate;

/// What one request has of the rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sendable {
    rate: Rate,
    /// Bytes that can be sent by all streams within the time of the request.
    bytes_in_time: u64,
    /// Nodes that share it, this one included.
    nodes: u64,
    /// Whether each operation that is sent gets a piece soon enough, were there one more.
    has_round: bool,
}

impl Grants {
    /// What a request has of the rate, if it is bound by one.
    pub(super) fn egress_for(&self, node: NodeId, transport: Transport, time: Duration) -> Option<Sendable> {
        // Over shared memory nothing is sent.
        let rate = self.settings.egress.filter(|_| transport == Transport::Quic)?;
        let shares =
            |(other, account): &(&NodeId, &Account)| **other != node && account.network_bytes.in_use() > 0;
        let others = self.accounts.iter().filter(shares).count();
        let is_sent = |of: &&Operation| of.transport == Transport::Quic && of.progress != Progress::Ended;
        let round_bytes = self.operations.values().filter(is_sent).count() as u64 * piece_bytes(rate);
        let has_round = round_bytes <= rate.bytes_in(PIECE_WAIT).max(piece_bytes(rate));
        Some(Sendable { rate, bytes_in_time: rate.bytes_in(time), nodes: 1 + others as u64, has_round })
    }

    /// Bytes that a node can still be granted so that they come in time.
    pub(super) fn sendable_bytes(&self, node: NodeId, of: Sendable) -> u64 {
        if !of.has_round {
            return 0;
        }
        let beside_all = of.bytes_in_time.saturating_sub(self.unsent_bytes());
        let beside_own =
            (of.bytes_in_time / of.nodes).saturating_sub(self.accounts[&node].network_bytes.in_use());
        beside_all.max(beside_own)
    }

    /// When a refused requester may try again.
    pub(super) fn retry_after_ms(&self, node: NodeId, egress: Option<Sendable>) -> u32 {
        let least = self.settings.retry_after_ms;
        let Some(Sendable { rate, nodes, .. }) = egress else { return least };
        let own = self.accounts[&node].network_bytes.in_use().saturating_mul(nodes);
        let wait = rate.time_for(self.unsent_bytes().min(own)).as_millis();
        u32::try_from(wait).unwrap_or(u32::MAX).clamp(least, GRANT_MS_MAX.max(least))
    }

    fn unsent_bytes(&self) -> u64 {
        self.bytes.in_use() - self.shm_bytes.in_use()
    }
}
