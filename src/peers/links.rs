//! Which connection of the endpoint belongs to which session of the rooms, and the bytes in between:
//! frames that are not whole yet on their way in, and what the transport has not taken on its way out.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use orbitkv_native::quic::{self, Endpoint, FrameReader, ReadError, ReadState, StreamId, WriteRefusal};
use orbitkv_shards::inventory::ConnectionId;
use orbitkv_shards::time::Moment;
use orbitkv_wire::bounds::{INVENTORY_FRAME_BYTES_MAX, OPEN_BYTES_MAX};
use orbitkv_wire::inventory::{FrameError, split_frame};

use super::close_code;

/// Frames of a requester that its peer has not taken: it sends a few small ones for all that it receives,
/// so a peer with more of them outstanding does not read.
const UNSENT_FRAMES_MAX: usize = 256;

/// How long a peer has to take the last word of a connection.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Which end of a session is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The peer subscribes to us.
    Source,
    /// We subscribe to the peer.
    Requester,
}

impl Side {
    /// Largest frame that comes to this end.
    fn frame_bytes_max(self) -> usize {
        match self {
            Side::Source => OPEN_BYTES_MAX,
            Side::Requester => INVENTORY_FRAME_BYTES_MAX,
        }
    }
}

/// A connection with one session.
struct Link {
    connection: quic::ConnectionId,
    stream: Option<StreamId>,
    side: Side,
    reader: FrameReader,
    unsent: VecDeque<Bytes>,
    is_readable: bool,
    /// Nothing is read any more, and it ends at this moment at the latest.
    ending: Option<Moment>,
    /// Its end is to be said once what waits is sent.
    finishes: bool,
}

/// All of a core.
#[derive(Default)]
pub(super) struct Links {
    made: u64,
    by_id: BTreeMap<ConnectionId, Link>,
    by_connection: HashMap<quic::ConnectionId, ConnectionId>,
    /// Those that may have bytes to read, in turn.
    readable: VecDeque<ConnectionId>,
    /// Those that end, by time.
    ending: VecDeque<(Moment, ConnectionId)>,
}

impl Links {
    /// Names a new connection.
    pub fn add(&mut self, connection: quic::ConnectionId, side: Side) -> ConnectionId {
        let id = ConnectionId(self.made);
        self.made += 1;
        let link = Link {
            connection,
            stream: None,
            side,
            reader: FrameReader::new(),
            unsent: VecDeque::new(),
            is_readable: false,
            ending: None,
            finishes: false,
        };
        self.by_id.insert(id, link);
        self.by_connection.insert(connection, id);
        id
    }

    /// Sessions of this side.
    pub fn count(&self, side: Side) -> usize {
        self.by_id.values().filter(|link| link.side == side && link.ending.is_none()).count()
    }

    /// Gives a connection its stream; false if it has one, or is not known.
    pub fn attach(&mut self, connection: quic::ConnectionId, stream: StreamId) -> bool {
        let Some(link) = self.link_mut(connection).filter(|link| link.stream.is_none()) else { return false };
        link.stream = Some(stream);
        self.note_readable(connection);
        true
    }

    fn link_mut(&mut self, connection: quic::ConnectionId) -> Option<&mut Link> {
        self.by_id.get_mut(self.by_connection.get(&connection)?)
    }

    /// A stream has bytes, its end, or an error.
    pub fn note_readable(&mut self, connection: quic::ConnectionId) {
        let Some(&id) = self.by_connection.get(&connection) else { return };
        let link = self.by_id.get_mut(&id).expect("both maps agree");
        if link.ending.is_none() && !std::mem::replace(&mut link.is_readable, true) {
            self.readable.push_back(id);
        }
    }

    /// Whether something is left to read.
    pub fn has_unread(&self) -> bool {
        !self.readable.is_empty()
    }

    /// Reads up to `budget_bytes` from whoever has something, in turn; returns whose connection is over, and
    /// the code to close it with.
    pub fn read(
        &mut self,
        endpoint: &mut Endpoint,
        budget_bytes: usize,
        mut on_frame: impl FnMut(ConnectionId, Side, &[u8]),
    ) -> Vec<(quic::ConnectionId, u32)> {
        let (mut left_bytes, mut ended) = (budget_bytes, Vec::new());
        while left_bytes > 0
            && let Some(id) = self.readable.pop_front()
        {
            let Some(link) = self.by_id.get_mut(&id) else { continue };
            link.is_readable = false;
            let Some(stream) = link.stream.filter(|_| link.ending.is_none()) else { continue };
            let Link { reader, side, connection, .. } = link;
            let limit = side.frame_bytes_max();
            let split = |bytes: &[u8]| split_frame(bytes, limit).map(|found| found.map(|(_, body)| body.end));
            let mut read_bytes = 0;
            let outcome = endpoint.read(*connection, stream, left_bytes, |chunk| {
                read_bytes += chunk.len();
                reader.on_chunk(chunk, split, |frame| -> Result<(), FrameError> {
                    on_frame(id, *side, frame);
                    Ok(())
                })
            });
            left_bytes = left_bytes.saturating_sub(read_bytes);
            match outcome {
                Ok(ReadState::Blocked) => {}
                Ok(ReadState::More) => {
                    link.is_readable = true;
                    self.readable.push_back(id);
                }
                Ok(ReadState::Ended) | Err(ReadError::Reset { .. } | ReadError::Closed) => {
                    ended.push((*connection, close_code::ENDED));
                }
                Err(ReadError::Reader(error)) => {
                    tracing::warn!(%error, "a peer sent no inventory frame");
                    ended.push((*connection, close_code::BROKEN));
                }
            }
        }
        ended
    }

    /// Sends a whole frame; false if no more is taken until the stream is writable.
    pub fn send(&mut self, id: ConnectionId, frame: Bytes, endpoint: &mut Endpoint) -> bool {
        let Some(link) = self.by_id.get_mut(&id) else { return true };
        let Some(stream) = link.stream else { return true };
        if !link.unsent.is_empty() {
            link.unsent.push_back(frame);
            return false;
        }
        match endpoint.write(link.connection, stream, frame) {
            // What cannot be sent any more is lost with its connection, of which an event tells.
            Ok(()) | Err(WriteRefusal::Closed) => true,
            Err(WriteRefusal::Blocked(frame)) => {
                link.unsent.push_back(frame);
                false
            }
        }
    }

    /// Sends what has waited; the session if it may send again.
    pub fn flush(&mut self, connection: quic::ConnectionId, endpoint: &mut Endpoint) -> Option<ConnectionId> {
        let &id = self.by_connection.get(&connection)?;
        let link = self.by_id.get_mut(&id).expect("both maps agree");
        while let Some(frame) = link.unsent.pop_front() {
            if let Err(WriteRefusal::Blocked(frame)) = endpoint.write(connection, link.stream?, frame) {
                link.unsent.push_front(frame);
                return None;
            }
        }
        if link.finishes {
            endpoint.finish(connection, link.stream?);
        }
        (link.side == Side::Source && link.ending.is_none()).then_some(id)
    }

    /// Whether a peer leaves more unread than it has any reason to.
    pub fn is_stuck(&self, id: ConnectionId) -> bool {
        self.by_id.get(&id).is_some_and(|link| link.unsent.len() > UNSENT_FRAMES_MAX)
    }

    /// Ends a session whose peer is to hear its last word.
    pub fn finish(&mut self, id: ConnectionId, endpoint: &mut Endpoint, now: Moment) {
        let Some(link) = self.by_id.get_mut(&id) else { return };
        let until = now + LAST_WORD;
        link.ending = Some(until);
        self.ending.push_back((until, id));
        link.finishes = !link.unsent.is_empty();
        if let Some(stream) = link.stream.filter(|_| link.unsent.is_empty()) {
            endpoint.finish(link.connection, stream);
        }
    }

    /// Connections whose last word nobody took.
    pub fn overdue(&mut self, now: Moment) -> Vec<quic::ConnectionId> {
        let mut overdue = Vec::new();
        while self.ending.front().is_some_and(|(until, _)| *until <= now) {
            let (_, id) = self.ending.pop_front().expect("it was just there");
            overdue.extend(self.by_id.get(&id).map(|link| link.connection));
        }
        overdue
    }

    /// When [`Self::overdue`] has something.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.ending.front().map(|(until, _)| *until)
    }

    /// Forgets a session that its room has ended.
    pub fn forget(&mut self, id: ConnectionId) -> Option<quic::ConnectionId> {
        let link = self.by_id.remove(&id)?;
        self.by_connection.remove(&link.connection);
        Some(link.connection)
    }

    /// Forgets a connection that is no more; its session, if the room has it still.
    pub fn remove(&mut self, connection: quic::ConnectionId) -> Option<(ConnectionId, Side)> {
        let id = self.by_connection.remove(&connection)?;
        let link = self.by_id.remove(&id).expect("both maps agree");
        link.ending.is_none().then_some((id, link.side))
    }
}
