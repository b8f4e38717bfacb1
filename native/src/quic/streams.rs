//! Streams: opening, whole writes with back-pressure, reads in place.
//!
//! A write is taken whole or not at all. What the protocol has no window for stays here, at most one write a
//! stream, and the next is refused until it has gone: the refusal is where back-pressure begins.

use super::endpoint::Endpoint;
use super::link::{Backlog, Link, Outgoing, Then};
use super::settings::URGENT_WINDOW_BYTES;
use super::{ConnectionId, Event, OpenRefusal, Priority, ReadError, ReadState, StreamId, WriteRefusal};
use bytes::Bytes;
use quinn_proto as proto;

impl StreamId {
    fn of(stream: proto::StreamId) -> Self {
        Self(proto::VarInt::from(stream).into_inner())
    }

    fn protocol(self) -> proto::StreamId {
        proto::VarInt::from_u64(self.0).expect("made of a stream's number").into()
    }
}

impl Endpoint {
    /// Begins a stream. The peer hears of it with its first bytes.
    pub fn open(&mut self, connection: ConnectionId, priority: Priority) -> Result<StreamId, OpenRefusal> {
        let (_, link) = self.links.open_mut(connection).ok_or(OpenRefusal::Closed)?;
        let stream = link.protocol.streams().open(proto::Dir::Bi).ok_or(OpenRefusal::NoneLeft)?;
        link.outgoing.insert(stream, Outgoing::default());
        link.prioritise(stream, priority);
        Ok(StreamId::of(stream))
    }

    /// Changes which bytes go first, for what is written from now on.
    pub fn prioritise(&mut self, connection: ConnectionId, stream: StreamId, priority: Priority) {
        if let Some((_, link)) = self.links.open_mut(connection) {
            link.prioritise(stream.protocol(), priority);
        }
    }

    /// Takes `bytes` (a frame, or lent payload) for sending after what was written before, without a copy; or
    /// gives them back. They are dropped when the peer has acknowledged them, or with the stream.
    pub fn write(
        &mut self,
        connection: ConnectionId,
        stream: StreamId,
        bytes: impl Into<Bytes>,
    ) -> Result<(), WriteRefusal> {
        let (slot, link) = self.links.open_mut(connection).ok_or(WriteRefusal::Closed)?;
        let window_bytes = self.settings.of(link.lane).send_window_bytes;
        let id = stream.protocol();
        let outgoing = link.outgoing.get_mut(&id).ok_or(WriteRefusal::Closed)?;
        match &mut outgoing.backlog {
            Backlog::Clear => outgoing.backlog = Backlog::Rest { bytes: bytes.into(), then: Then::Nothing },
            Backlog::Rest { then: Then::Finish, .. } | Backlog::Finished => return Err(WriteRefusal::Closed),
            Backlog::Rest { then, .. } => {
                *then = Then::Tell;
                return Err(WriteRefusal::Blocked(bytes.into()));
            }
        }
        link.push(id, window_bytes);
        self.touch(slot);
        Ok(())
    }

    /// Says that nothing more will be written. [`Event::Delivered`] follows when the peer has everything.
    pub fn finish(&mut self, connection: ConnectionId, stream: StreamId) {
        let Some((slot, link)) = self.links.open_mut(connection) else { return };
        let id = stream.protocol();
        let Some(outgoing) = link.outgoing.get_mut(&id) else { return };
        match &mut outgoing.backlog {
            Backlog::Rest { then, .. } => *then = Then::Finish,
            Backlog::Clear => link.say_end(id),
            Backlog::Finished => {}
        }
        self.touch(slot);
    }

    /// Gives a stream up in both directions: what is unsent or unacknowledged is dropped, and the peer hears
    /// `code` for both.
    pub fn abandon(&mut self, connection: ConnectionId, stream: StreamId, code: u32) {
        let Some((slot, link)) = self.links.open_mut(connection) else { return };
        let id = stream.protocol();
        // Either half may have ended already, which is what was wanted of it.
        if link.outgoing.remove(&id).is_some() {
            let _ = link.protocol.send_stream(id).reset(code.into());
        }
        let _ = link.protocol.recv_stream(id).stop(code.into());
        self.touch(slot);
    }

    /// Gives the next bytes of a stream to `on_chunk`, in order and where they were received, until
    /// `budget_bytes` are read or it refuses. What was read makes room in the windows.
    pub fn read<E>(
        &mut self,
        connection: ConnectionId,
        stream: StreamId,
        budget_bytes: usize,
        mut on_chunk: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<ReadState, ReadError<E>> {
        let (slot, link) = self.links.open_mut(connection).ok_or(ReadError::Closed)?;
        let mut received = link.protocol.recv_stream(stream.protocol());
        let mut chunks = received.read(true).map_err(|_| ReadError::Closed)?;
        let mut left_bytes = budget_bytes;
        let outcome = loop {
            if left_bytes == 0 {
                break Ok(ReadState::More);
            }
            match chunks.next(left_bytes) {
                Ok(Some(chunk)) => {
                    left_bytes -= chunk.bytes.len();
                    if let Err(refusal) = on_chunk(&chunk.bytes) {
                        break Err(ReadError::Reader(refusal));
                    }
                }
                Ok(None) => break Ok(ReadState::Ended),
                Err(proto::ReadError::Blocked) => break Ok(ReadState::Blocked),
                Err(proto::ReadError::Reset(code)) => {
                    break Err(ReadError::Reset { code: code.into_inner() });
                }
            }
        };
        if chunks.finalize().should_transmit() {
            self.touch(slot);
        }
        outcome
    }

    /// A secret that both ends of a connection know and nobody else: what ties another channel to it. `None` if the
    /// connection is not open.
    pub fn shared_secret(&mut self, connection: ConnectionId, label: &str) -> Option<[u8; 32]> {
        let (_, link) = self.links.open_mut(connection)?;
        let mut secret = [0; 32];
        let session = link.protocol.crypto_session();
        session.export_keying_material(&mut secret, label.as_bytes(), &[]).ok()?;
        Some(secret)
    }

    pub(super) fn on_stream_event(&mut self, slot: usize, event: proto::StreamEvent) -> Option<Event> {
        let link = self.links.get_mut(slot).expect("an event has its connection");
        let connection = link.id;
        match event {
            proto::StreamEvent::Opened { .. } => {
                link.has_unaccepted = true;
                None
            }
            proto::StreamEvent::Readable { id } => {
                Some(Event::Readable { connection, stream: StreamId::of(id) })
            }
            proto::StreamEvent::Writable { id } => {
                let window_bytes = self.settings.of(link.lane).send_window_bytes;
                let then = link.push(id, window_bytes);
                self.touch(slot);
                (then == Then::Tell).then_some(Event::Writable { connection, stream: StreamId::of(id) })
            }
            proto::StreamEvent::Finished { id } => {
                link.outgoing.remove(&id)?;
                Some(Event::Delivered { connection, stream: StreamId::of(id) })
            }
            proto::StreamEvent::Stopped { id, error_code } => {
                link.outgoing.remove(&id)?;
                let _ = link.protocol.send_stream(id).reset(error_code);
                self.touch(slot);
                let code = error_code.into_inner();
                Some(Event::Stopped { connection, stream: StreamId::of(id), code })
            }
            proto::StreamEvent::Available { .. } => Some(Event::StreamsAvailable { connection }),
        }
    }
}

impl Link {
    /// A stream that the peer has begun and nobody was told of.
    pub(super) fn accept_stream(&mut self) -> Option<Event> {
        match self.protocol.streams().accept(proto::Dir::Bi) {
            Some(stream) => {
                self.outgoing.insert(stream, Outgoing::default());
                Some(Event::StreamOpened { connection: self.id, stream: StreamId::of(stream) })
            }
            None => {
                self.has_unaccepted = false;
                None
            }
        }
    }

    fn prioritise(&mut self, stream: proto::StreamId, priority: Priority) {
        let Some(outgoing) = self.outgoing.get_mut(&stream) else { return };
        outgoing.priority = priority;
        // A stream that has been reset meanwhile sends nothing in any order.
        let _ = self.protocol.send_stream(stream).set_priority(priority as i32);
    }

    /// Gives the protocol as much of a backlog as it has windows for; what was to follow if all has gone.
    fn push(&mut self, stream: proto::StreamId, window_bytes: u64) -> Then {
        let Some(outgoing) = self.outgoing.get_mut(&stream) else { return Then::Nothing };
        let Backlog::Rest { bytes, then } = &mut outgoing.backlog else { return Then::Nothing };
        let is_urgent = outgoing.priority == Priority::Urgent;
        if is_urgent {
            self.protocol.set_send_window(window_bytes + URGENT_WINDOW_BYTES);
        }
        let mut sending = self.protocol.send_stream(stream);
        while !bytes.is_empty() {
            match sending.write_chunks(std::slice::from_mut(bytes)) {
                Ok(_) => {}
                Err(proto::WriteError::Blocked) => break,
                // The stream is over, and the event that says so is on its way.
                Err(proto::WriteError::Stopped(_) | proto::WriteError::ClosedStream) => bytes.clear(),
            }
        }
        let has_gone = bytes.is_empty();
        let then = *then;
        if is_urgent {
            self.protocol.set_send_window(window_bytes);
        }
        if !has_gone {
            return Then::Nothing;
        }
        outgoing.backlog = Backlog::Clear;
        if then == Then::Finish {
            self.say_end(stream);
        }
        then
    }

    fn say_end(&mut self, stream: proto::StreamId) {
        // Fails for a stream that the peer has stopped, which is at its end.
        let _ = self.protocol.send_stream(stream).finish();
        if let Some(outgoing) = self.outgoing.get_mut(&stream) {
            outgoing.backlog = Backlog::Finished;
        }
    }
}
