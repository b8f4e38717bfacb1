//! What bounds an endpoint, and the transport parameters that follow from it.

use super::Purpose;
use quinn_proto::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use std::sync::Arc;
use std::time::Duration;

/// Dials that have not ended, a core (chapter 2.10).
pub const DIALS_PENDING_MAX: usize = 8;

/// Accepted handshakes from addresses that have not proved they receive what we send; above it, Retry.
pub const UNVERIFIED_MAX: usize = 8;

/// Datagrams of handshakes that wait for their turn.
pub(super) const HANDSHAKE_QUEUE_MAX: usize = 256;

/// How many of them may come from one address: no peer takes the queue alone.
pub(super) const HANDSHAKE_QUEUE_SHARE: usize = 16;

/// Bytes of the largest send: 64 segments of 1,452 bytes, which the kernel announces, exceed its own limit.
pub(super) const SEND_BYTES_MAX: usize = 65_000;

/// What a datagram counts of a turn's budget at least, in bytes: a small one takes as long to work on.
pub(super) const DATAGRAM_COST_BYTES: usize = 512;

/// Kept of the send window for urgent streams, so that a release gets through beside bulk that waits for ACKs.
pub const URGENT_WINDOW_BYTES: u64 = 64 * 1024;

/// First guess of the round trip: three times this passes before a lost first datagram is sent again.
const INITIAL_RTT: Duration = Duration::from_millis(100);

/// Smallest datagram of QUIC, and largest UDP payload of Ethernet without options.
const MTU_BYTES: std::ops::RangeInclusive<u16> = 1_200..=65_000;

/// Bounds of the connections of one purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurposeSettings {
    /// Connections, dialled and accepted together, closing ones included.
    pub connections_max: usize,
    /// Bytes that a dialled connection may have received and not given to its reader. Charged whole.
    pub receive_window_bytes: u32,
    /// As much for one of its streams.
    pub stream_window_bytes: u32,
    /// What the receive windows of all connections may add up to, in bytes.
    pub receive_pool_bytes: u64,
    /// Bytes that a connection keeps until the peer acknowledges them; of payload these are handles to the
    /// arena. [`URGENT_WINDOW_BYTES`] more are for urgent streams.
    pub send_window_bytes: u64,
    /// The dialler says something if nobody has for so long.
    pub keep_alive: Duration,
}

/// Bounds of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSettings {
    /// Connections that carry inventory streams.
    pub inventory: PurposeSettings,
    /// Connections that carry payload.
    pub payload: PurposeSettings,
    /// Receive window in bytes of an accepted connection, of either purpose: who is dialled receives only
    /// requests. Charged to the pool of the purpose once that is known.
    pub accepted_window_bytes: u32,
    /// Streams that a dialler may have open. Who is dialled opens none.
    pub streams_max: u32,
    /// Accepted connections in handshake.
    pub handshakes_max: usize,
    /// A handshake that takes longer is given up.
    pub handshake_timeout: Duration,
    /// A connection on which nothing has come in for so long is lost.
    pub idle_timeout: Duration,
    /// Largest UDP payload that path discovery tries, in bytes: 1,452 suits every Ethernet.
    pub mtu_bytes_max: u16,
    /// Bytes taken from the socket in a turn; the last receive may go over it by one batch.
    pub receive_budget_bytes: usize,
    /// Bytes given to the socket in a turn; the last send may go over it.
    pub send_budget_bytes: usize,
    /// Asked of the kernel for each direction of the socket, in bytes; it may give less.
    pub socket_buffer_bytes: usize,
}

impl Default for EndpointSettings {
    /// The defaults of chapter 2.10 for a node of one shard.
    fn default() -> Self {
        const MIB: u32 = 1024 * 1024;
        Self {
            inventory: PurposeSettings {
                connections_max: 256,
                receive_window_bytes: MIB,
                stream_window_bytes: MIB,
                receive_pool_bytes: 32 << 20,
                send_window_bytes: 1 << 20,
                // Beats come each 2 s.
                keep_alive: Duration::from_secs(3),
            },
            payload: PurposeSettings {
                connections_max: 256,
                receive_window_bytes: 4 * MIB,
                stream_window_bytes: 4 * MIB,
                receive_pool_bytes: 32 << 20,
                send_window_bytes: 4 << 20,
                keep_alive: Duration::from_secs(2),
            },
            accepted_window_bytes: 64 * 1024,
            streams_max: 64,
            handshakes_max: 128,
            handshake_timeout: Duration::from_secs(3),
            idle_timeout: Duration::from_secs(5),
            mtu_bytes_max: 1_452,
            receive_budget_bytes: 64 * 1024,
            send_budget_bytes: 64 * 1024,
            socket_buffer_bytes: 4 << 20,
        }
    }
}

impl EndpointSettings {
    /// Bounds of one purpose.
    pub fn of(&self, purpose: Purpose) -> &PurposeSettings {
        match purpose {
            Purpose::Inventory => &self.inventory,
            Purpose::Payload => &self.payload,
        }
    }

    /// Connections that may exist at once, handshakes included.
    pub(super) fn connections_max(&self) -> usize {
        self.inventory.connections_max + self.payload.connections_max + self.handshakes_max
    }

    pub(super) fn assert_valid(&self) {
        for purpose in Purpose::ALL {
            let bounds = self.of(purpose);
            assert!(
                bounds.stream_window_bytes <= bounds.receive_window_bytes,
                "{purpose:?}: a stream's window fits"
            );
            assert!(
                bounds.stream_window_bytes > 0 && bounds.send_window_bytes > 0,
                "{purpose:?}: windows are open"
            );
            assert!(
                bounds.keep_alive < self.idle_timeout,
                "{purpose:?}: a keep-alive comes before the time-out"
            );
        }
        assert!(self.accepted_window_bytes > 0 && self.streams_max > 0, "requests can come in");
        assert!(MTU_BYTES.contains(&self.mtu_bytes_max), "{} is no MTU", self.mtu_bytes_max);
        assert!(self.receive_budget_bytes > 0 && self.send_budget_bytes > 0, "a turn does something");
        let longest = Duration::from_secs(3_600);
        assert!(self.idle_timeout <= longest && self.handshake_timeout <= longest, "a dead peer is noticed");
    }

    /// Parameters of a connection that we dial.
    pub(super) fn dialled(&self, purpose: Purpose) -> Arc<TransportConfig> {
        let bounds = self.of(purpose);
        let mut config = self.transport();
        config
            .receive_window(bounds.receive_window_bytes.into())
            .stream_receive_window(bounds.stream_window_bytes.into())
            .send_window(bounds.send_window_bytes)
            .max_concurrent_bidi_streams(0u32.into())
            .keep_alive_interval(Some(bounds.keep_alive));
        Arc::new(config)
    }

    /// Parameters of a connection that is dialled to us, whose purpose is not known yet. Its dialler keeps it
    /// alive; once that falls silent, the time-out ends it.
    pub(super) fn accepted(&self) -> Arc<TransportConfig> {
        let mut config = self.transport();
        config
            .receive_window(self.accepted_window_bytes.into())
            .stream_receive_window(self.accepted_window_bytes.into())
            .send_window(self.inventory.send_window_bytes.min(self.payload.send_window_bytes))
            .max_concurrent_bidi_streams(self.streams_max.into());
        Arc::new(config)
    }

    fn transport(&self) -> TransportConfig {
        let idle_ms =
            VarInt::try_from(self.idle_timeout.as_millis() as u64).expect("asserted to be below an hour");
        // Whatever came in a turn is acknowledged at its end: a later turn for that alone would find the connection's
        // state out of the caches, and a loss is known sooner.
        let mut acknowledging = AckFrequencyConfig::default();
        acknowledging.ack_eliciting_threshold(0u32.into());
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.mtu_bytes_max);
        let mut config = TransportConfig::default();
        config
            .max_idle_timeout(Some(IdleTimeout::from(idle_ms)))
            .initial_rtt(INITIAL_RTT)
            .mtu_discovery_config(Some(discovery))
            .ack_frequency_config(Some(acknowledging))
            .max_concurrent_uni_streams(0u32.into())
            .datagram_receive_buffer_size(None)
            .datagram_send_buffer_size(0)
            .allow_spin(false);
        config
    }
}
