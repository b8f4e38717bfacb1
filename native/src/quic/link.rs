//! One connection as the endpoint sees it, the table of them, and the queues they stand in.

use super::identity::Fingerprint;
use super::{ConnectionId, Loss, Origin, Priority, Purpose};
use bytes::Bytes;
use quinn_proto as proto;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

/// A connection: protocol state and what we remember beside it.
pub(super) struct Link {
    pub(super) id: ConnectionId,
    pub(super) protocol: proto::Connection,
    /// Its name in the protocol's endpoint, until that has forgotten it.
    pub(super) handle: Option<proto::ConnectionHandle>,
    pub(super) remote: SocketAddr,
    pub(super) origin: Origin,
    pub(super) stage: Stage,
    /// Its purpose; `Inventory` until that is known, because handshakes are small and go first.
    pub(super) lane: Purpose,
    /// Keys of which the peer must show one; empty once it has.
    pub(super) expected: Vec<Fingerprint>,
    /// Receive window that the pool of its purpose is charged with, in bytes.
    pub(super) charge: Option<u32>,
    /// Streams that we may still write to, or whose end is not acknowledged.
    pub(super) outgoing: BTreeMap<proto::StreamId, Outgoing>,
    /// The peer may have begun streams that nobody was told of.
    pub(super) has_unaccepted: bool,
    /// The deadline that stands in the endpoint's timers.
    pub(super) timer: Option<Instant>,
}

/// Where in its life a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Keys are being agreed.
    Handshake {
        /// Given up then.
        until: Instant,
        /// The peer's address has not proved itself.
        unverified: bool,
    },
    /// Frames may travel.
    Open,
    /// Lost by our own decision; whoever uses it is to be told.
    Failed(Loss),
    /// Nobody uses it; the protocol says its last words.
    Closing,
}

/// The sending half of a stream.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) backlog: Backlog,
    pub(super) priority: Priority,
}

/// What the protocol has not taken yet.
#[derive(Debug, Default)]
pub(super) enum Backlog {
    /// Nothing; a write is taken.
    #[default]
    Clear,
    /// The rest of one write.
    Rest { bytes: Bytes, then: Then },
    /// Nothing, and the end was said.
    Finished,
}

/// What follows when a backlog has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Nothing,
    /// A write was refused meanwhile: tell the writer.
    Tell,
    /// Say the end of the stream.
    Finish,
}

impl Link {
    /// Drops everything that is kept for the peer, so that lent memory drains now and not when the protocol
    /// forgets the connection.
    pub(super) fn drop_outgoing(&mut self, code: proto::VarInt) {
        for (stream, _) in std::mem::take(&mut self.outgoing) {
            // A stream whose end is acknowledged holds nothing and says that it is closed.
            let _ = self.protocol.send_stream(stream).reset(code);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    pub(super) fn is_dialling(&self) -> bool {
        matches!(self.stage, Stage::Handshake { .. }) && self.origin == Origin::Dialled
    }

    pub(super) fn is_accepting(&self) -> bool {
        matches!(self.stage, Stage::Handshake { .. }) && self.origin == Origin::Accepted
    }
}

/// All connections, by slot; a slot is used again under another generation.
#[derive(Default)]
pub(super) struct Links {
    slots: Vec<Option<Link>>,
    generations: Vec<u32>,
    free: Vec<usize>,
    /// Slot of each connection that the protocol's endpoint knows.
    by_handle: Vec<Option<usize>>,
    /// Links at each remote address.
    by_remote: BTreeMap<SocketAddr, u32>,
}

impl Links {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts the link that `make` builds for its id into a slot.
    pub(super) fn insert(&mut self, make: impl FnOnce(ConnectionId) -> Link) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.generations.push(0);
            self.slots.len() - 1
        });
        let link = make(ConnectionId { slot: slot as u32, generation: self.generations[slot] });
        let handle = link.handle.expect("a new link is known to the protocol").0;
        if self.by_handle.len() <= handle {
            self.by_handle.resize(handle + 1, None);
        }
        assert!(self.by_handle[handle].replace(slot).is_none(), "a handle names one connection");
        *self.by_remote.entry(link.remote).or_default() += 1;
        self.slots[slot] = Some(link);
        slot
    }

    pub(super) fn remove(&mut self, slot: usize) -> Link {
        let link = self.slots[slot].take().expect("a link is removed once");
        assert!(link.handle.is_none(), "the protocol has forgotten it");
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        self.free.push(slot);
        let count = self.by_remote.get_mut(&link.remote).expect("counted when inserted");
        *count -= 1;
        if *count == 0 {
            self.by_remote.remove(&link.remote);
        }
        link
    }

    /// The protocol's endpoint has forgotten the connection; its handle may be given to another.
    pub(super) fn forget_handle(&mut self, slot: usize) {
        if let Some(handle) = self.slots[slot].as_mut().and_then(|link| link.handle.take()) {
            self.by_handle[handle.0] = None;
        }
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Link> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// The slot of a connection that still exists.
    pub(super) fn slot(&self, id: ConnectionId) -> Option<usize> {
        let slot = id.slot as usize;
        let link = self.slots.get(slot)?.as_ref()?;
        (link.id == id).then_some(slot)
    }

    /// The link of a connection on which frames may travel.
    pub(super) fn open_mut(&mut self, id: ConnectionId) -> Option<(usize, &mut Link)> {
        let slot = self.slot(id)?;
        let link = self.slots[slot].as_mut()?;
        link.is_open().then_some((slot, link))
    }

    pub(super) fn slot_of_handle(&self, handle: proto::ConnectionHandle) -> Option<usize> {
        *self.by_handle.get(handle.0)?
    }

    pub(super) fn has_remote(&self, remote: SocketAddr) -> bool {
        self.by_remote.contains_key(&remote)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.slots.iter().flatten()
    }
}

/// Slots in order of arrival, each at most once: bounded by the connections.
#[derive(Debug, Default)]
pub(super) struct SlotQueue {
    order: VecDeque<usize>,
    queued: Vec<bool>,
}

impl SlotQueue {
    /// Appends the slot unless it stands in the queue.
    pub(super) fn push(&mut self, slot: usize) {
        if self.queued.len() <= slot {
            self.queued.resize(slot + 1, false);
        }
        if !std::mem::replace(&mut self.queued[slot], true) {
            self.order.push_back(slot);
        }
    }

    pub(super) fn pop(&mut self) -> Option<usize> {
        let slot = self.order.pop_front()?;
        self.queued[slot] = false;
        Some(slot)
    }

    pub(super) fn front(&self) -> Option<usize> {
        self.order.front().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_stands_in_a_queue_once() {
        let mut queue = SlotQueue::default();
        for slot in [3, 1, 3, 1, 0] {
            queue.push(slot);
        }
        assert_eq!((queue.pop(), queue.front()), (Some(3), Some(1)));
        queue.push(3);
        assert_eq!([queue.pop(), queue.pop(), queue.pop(), queue.pop()], [Some(1), Some(0), Some(3), None]);
        assert!(queue.is_empty());
    }
}
