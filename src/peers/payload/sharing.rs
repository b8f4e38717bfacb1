//! Shared memory with nodes of this host: peer sockets to payload connections, what is heard on them to the rooms,
//! and copies out of another node's arena in steps.

use std::path::Path;
use std::time::Duration;

use orbitkv_native::arena::Checksum;
use orbitkv_native::clock::monotonic_ns;
use orbitkv_native::quic;
use orbitkv_shards::fetcher::{self, Destination};
use orbitkv_shards::grants::Life;
use orbitkv_shards::shard::Shard;
use orbitkv_shards::time::Moment;
use orbitkv_wire::inventory::SourceStream;
use orbitkv_wire::payload::OperationId;

use super::links::{Control, Link};
use super::sockets::{Heard, REQUESTER_PROOF, SOURCE_PROOF, socket_path};
use super::{Payload, PendingDial, Surroundings};

/// Bytes of a step, before each of which it is asked whether it may still be read (chapter 3.3).
const STEP_BYTES: u64 = 64 * 1024;

/// Time of a turn in which steps begin; the last one and the rest of the turn have what is left of the slice.
pub(super) const STEPS_TIME: Duration = Duration::from_micros(60);

/// The same of a turn that does nothing else.
const STEPS_TIME_ALONE: Duration = Duration::from_micros(85);

/// A residence that is read where its source has it.
pub(super) struct Reading {
    /// As the room knows the connection.
    pub id: fetcher::ConnectionId,
    pub operation: OperationId,
    pub index: u16,
    /// Where it lies in the source's arena, which may not have such a place.
    pub offset: u64,
    pub bytes: u64,
    /// Bytes copied.
    pub done: u64,
    /// Of what was copied.
    pub sum: Option<Checksum>,
}

/// How far a step came.
enum Step {
    Further,
    /// It is copied whole, and has this checksum.
    Whole(u64),
    /// It may be read no more, or is not there.
    Over,
}

impl Payload {
    /// Takes in what was said on peer sockets: true whatever this node's life is, and taken in in any case.
    pub fn attend(&mut self, shard: &mut Shard, around: &mut Surroundings<'_>) {
        let Some(sockets) = &mut self.sockets else { return };
        let is_readable = std::mem::take(&mut self.sockets_readable);
        for heard in sockets.attend(is_readable, around.now) {
            match heard {
                Heard::Released(reader, operation) => {
                    let grants = self.grants.as_mut().expect("readers come with grants");
                    grants.on_released(&reader, operation, shard);
                }
                Heard::ReaderLeft(reader) => {
                    self.grants.as_mut().expect("readers come with grants").on_reader_left(&reader);
                }
                Heard::ReaderDead(reader) => {
                    tracing::debug!(core = self.shard.0, node = %reader.node, "a reader's process has ended");
                    self.grants.as_mut().expect("readers come with grants").on_reader_dead(&reader, shard);
                }
                Heard::Joined(connection) => {
                    self.open_greeted(connection, around.now);
                    if let Some(Link::Fetching { id, .. }) = self.links.get(&connection) {
                        self.fetcher.on_shared(*id);
                    }
                }
                Heard::Refused(connection) => self.open_greeted(connection, around.now),
                Heard::Left(connection) => {
                    if let Some(Link::Fetching { id, .. }) = self.links.get(&connection) {
                        self.fetcher.on_unshared(*id);
                    }
                }
            }
        }
    }

    /// A turn that does nothing but copy; true if the rooms were told of an end.
    pub fn read_on(&mut self) -> bool {
        self.read_shared(STEPS_TIME_ALONE)
    }

    /// Lets readers in that show what a lending connection has, and connects again to sources that broke off.
    pub(super) fn share(&mut self, around: &mut Surroundings<'_>) {
        let Some(sockets) = &mut self.sockets else { return };
        if matches!(around.life, Life::Serving { .. }) {
            for (number, shown) in sockets.shown() {
                let requester = self.links.iter().find_map(|(connection, link)| match link {
                    Link::Lending { requester, .. } => {
                        let secret = around.endpoint.shared_secret(*connection, REQUESTER_PROOF);
                        (secret == Some(shown)).then_some((*connection, requester.node))
                    }
                    Link::Fetching { .. } => None,
                });
                // Until its time is over: its connection may be a datagram away.
                let Some((connection, node)) = requester else { continue };
                let proof = around.endpoint.shared_secret(connection, SOURCE_PROOF);
                if let Some(reader) = proof.and_then(|proof| sockets.admit(number, node, &proof)) {
                    self.grants.as_mut().expect("links come with grants").on_reader_joined(reader);
                }
            }
        }
        let grants = self.grants.as_ref();
        sockets.forget_readers(|reader| grants.is_some_and(|grants| grants.is_read_by(reader)));
        for connection in sockets.take_retries(around.now) {
            if let Some(Link::Fetching { source, .. }) = self.links.get(&connection) {
                let source = *source;
                self.join(connection, &source, around);
            }
        }
    }

    /// Begins to share memory with the source of a connection; false if that is of no use.
    pub(super) fn join(
        &mut self,
        connection: quic::ConnectionId,
        source: &SourceStream,
        around: &mut Surroundings<'_>,
    ) -> bool {
        let Some(sockets) = &mut self.sockets else { return false };
        let Some(base) = around.neighbours.peer_socket(source.node, sockets.boot()) else { return false };
        let path = socket_path(Path::new(base), source.shard);
        let proofs = [REQUESTER_PROOF, SOURCE_PROOF];
        let [Some(own), Some(theirs)] = proofs.map(|label| around.endpoint.shared_secret(connection, label))
        else {
            return false;
        };
        sockets.join(connection, (source.node, source.shard), &path, [own, theirs], around.now)
    }

    /// A dialled connection is open, and it is known how its source is read.
    fn open_greeted(&mut self, connection: quic::ConnectionId, now: Moment) {
        if let Some(pending) = self.greeted.remove(&connection) {
            self.open(connection, pending, now);
        }
    }

    /// A dialled connection is the room's from now on.
    pub(super) fn open(&mut self, connection: quic::ConnectionId, pending: PendingDial, now: Moment) {
        let PendingDial { dial, source } = pending;
        self.made += 1;
        let id = fetcher::ConnectionId(self.made);
        let link = Link::Fetching {
            id,
            source,
            control: Control::default(),
            streams: std::collections::BTreeMap::new(),
        };
        self.links.insert(connection, link);
        self.fetching.insert(id, connection);
        self.fetcher.on_connected(dial, id, now);
    }

    /// Nothing is read of a connection's source any more.
    pub(super) fn part(&mut self, connection: quic::ConnectionId) {
        if let Some(sockets) = &mut self.sockets {
            sockets.part(connection);
        }
    }

    /// Whether something is left to be copied out of another node's arena.
    pub fn is_reading(&self) -> bool {
        !self.readings.is_empty()
    }

    /// Copies what is told in steps that begin within `time`; true if the rooms were told of an end.
    pub(super) fn read_shared(&mut self, time: Duration) -> bool {
        let begun = monotonic_ns();
        let mut has_ended = false;
        while let Some(mut reading) = self.readings.pop_front() {
            // Before each step, and at its own time: a process may be stopped between any two.
            let now = monotonic_ns();
            if now.saturating_sub(begun) >= time.as_nanos() as u64 {
                self.readings.push_front(reading);
                break;
            }
            let Reading { id, operation, index, .. } = reading;
            let step = self.step(&mut reading, Moment(now));
            has_ended |= !matches!(step, Step::Further);
            match step {
                Step::Further => self.readings.push_front(reading),
                Step::Whole(checksum) => {
                    // What took too long is not believed, whatever its checksum.
                    let now = Moment(monotonic_ns());
                    match self.fetcher.destination(id, operation, index, now) {
                        Some(_) => self.fetcher.on_bytes(id, operation, index, checksum),
                        None => self.fetcher.on_unread(id, operation, index),
                    }
                }
                Step::Over => self.fetcher.on_unread(id, operation, index),
            }
        }
        has_ended
    }

    fn step(&mut self, reading: &mut Reading, now: Moment) -> Step {
        let Reading { id, operation, index, offset, .. } = *reading;
        let destination = self.fetcher.destination(id, operation, index, now);
        let connection = self.fetching.get(&id).copied();
        let arena = self.sockets.as_ref().zip(connection).and_then(|(sockets, at)| sockets.arena(at));
        let Some((Destination { arena_offset, .. }, arena)) = destination.zip(arena) else {
            return Step::Over;
        };
        let bytes = STEP_BYTES.min(reading.bytes - reading.done);
        let target = arena_offset + reading.done;
        // An offset is the peer's word: it may be any number.
        let from = offset.saturating_add(reading.done);
        if arena.copy_to(from, bytes, &self.arena, target).is_err() {
            return Step::Over;
        }
        reading.done += bytes;
        let whole = || Checksum::new(arena_offset, reading.bytes);
        match reading.sum.get_or_insert_with(whole).step(&self.arena, bytes) {
            Some(checksum) => Step::Whole(checksum),
            None => Step::Further,
        }
    }
}
