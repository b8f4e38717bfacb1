//! What an endpoint counts.

use quinn_proto::ConnectionStats;

/// Counts since the endpoint was made, unless a field says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams taken from the socket.
    pub datagrams_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Receives that gave something.
    pub receives: u64,
    /// Receives that the kernel refused.
    pub receives_failed: u64,
    /// Datagrams given to the kernel.
    pub datagrams_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Sends the kernel took.
    pub sends: u64,
    /// Sends the kernel had no room for; they were tried again.
    pub sends_blocked: u64,
    /// Sends the kernel refused (unreachable, too large): lost like any datagram.
    pub sends_failed: u64,

    /// Datagrams from an address of no member, dropped unread.
    pub dropped_unknown: u64,
    /// Datagrams of handshakes dropped because too many wait, of all peers or of this one.
    pub dropped_handshake_queue: u64,
    /// First datagrams of connections that found no room.
    pub dropped_no_room: u64,
    /// Datagrams that belong to nothing and got no answer.
    pub dropped_stray: u64,

    /// Handshakes begun by us.
    pub dials: u64,
    /// Handshakes begun by peers.
    pub accepts: u64,
    /// Retries sent: the address must prove itself first.
    pub retries: u64,
    /// Handshakes completed.
    pub handshakes: u64,
    /// Handshakes that ended otherwise, for whatever reason.
    pub handshakes_failed: u64,
    /// Peers that showed another key than the member record of their address.
    pub wrong_keys: u64,
    /// Peers that showed the right key and did not hold it.
    pub wrong_signatures: u64,
    /// Connections closed because the pool or the connections of their purpose were used up.
    pub refused_no_room: u64,

    /// Stateless resets sent: somebody speaks of a connection that we do not have.
    pub resets_sent: u64,
    /// Connections lost to a stateless reset: the peer has forgotten them.
    pub resets_received: u64,
    /// Connections lost to silence.
    pub idle_timeouts: u64,
    /// Other answers without a connection: version negotiation, refusals.
    pub answers_sent: u64,

    /// QUIC packets sent.
    pub packets_sent: u64,
    /// QUIC packets declared lost.
    pub packets_lost: u64,
    /// Times a congestion window was reduced.
    pub congestion_events: u64,

    /// Connections now, handshakes and closing ones included.
    pub connections_now: u64,
    /// Of them, dials in handshake.
    pub dials_pending_now: u64,
    /// Of them, accepted ones in handshake.
    pub handshakes_pending_now: u64,
    /// Receive windows charged now, in bytes: inventory, payload.
    pub receive_charged_now_bytes: [u64; 2],
}

impl Counters {
    /// Adds what a connection has counted.
    pub(super) fn add(&mut self, stats: &ConnectionStats) {
        self.packets_sent += stats.path.sent_packets;
        self.packets_lost += stats.path.lost_packets;
        self.congestion_events += stats.path.congestion_events;
    }
}
