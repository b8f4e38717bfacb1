//! The source's side: requests off the streams into the room, and what it lends onto them.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use orbitkv_native::arena::Checksum;
use orbitkv_native::quic::{self, Endpoint, ReadError, ReadState, StreamId};
use orbitkv_shards::flow::egress::{Egress, SendGrant};
use orbitkv_shards::grants::Effect;
use orbitkv_shards::payload_streams::{PayloadConnection, StreamAt};
use orbitkv_shards::shard::{CHECKSUM_STEP_BYTES, PinId, Shard};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::NodeId;
use orbitkv_wire::payload::{
    FrameError, FromRequester, FromSource, Header, Kind, append_from_source, decode_authorize,
    decode_from_requester, split_frame,
};

use super::super::close_code;
use super::lent_stream::LentStream;
use super::{Heard, Link, Payload, Surroundings};

/// Bytes of checksums that a turn computes: about 45 µs of it.
const CHECKSUM_BYTES_PER_TURN: u64 = 512 * 1024;

/// Turns that places of blocks wait for those of others while checksums are computed, so that they go together: each
/// alone would be a datagram, an acknowledgement and a wake-up.
const EXTENTS_WAIT_TURNS: u32 = 8;

/// Streams on which places wait to be told.
#[derive(Default)]
pub(super) struct HeldExtents {
    streams: BTreeSet<(quic::ConnectionId, StreamId)>,
    turns: u32,
}

/// What a requester said.
enum Said {
    Authorize(Box<orbitkv_wire::payload::Authorize>),
    Control(FromRequester),
}

/// A stream by all of its names.
struct Line {
    connection: quic::ConnectionId,
    stream: StreamId,
    at: StreamAt,
    now: Moment,
}

impl Line {
    fn of(id: PayloadConnection, connection: quic::ConnectionId, stream: StreamId, now: Moment) -> Line {
        Line { connection, stream, at: StreamAt { connection: id, stream: stream.number() }, now }
    }

    fn name(&self) -> (quic::ConnectionId, StreamId) {
        (self.connection, self.stream)
    }

    /// Makes all that is queued wait for its turn.
    fn list(&self, lent: &mut LentStream, node: NodeId, egress: &mut Egress) {
        let bytes = lent.list();
        if bytes > 0 {
            egress.on_queued(self.at, node, lent.due, bytes, self.now);
        }
    }

    /// Sends at once what no payload is before; the rate is for payload.
    fn send_frames(&self, lent: &mut LentStream, node: NodeId, egress: &mut Egress, endpoint: &mut Endpoint) {
        if !lent.is_listed() {
            lent.send(self.connection, self.stream, endpoint, u64::MAX);
        }
        self.list(lent, node, egress);
    }
}

impl Payload {
    /// Reads what a requester says; how many bytes that were.
    pub(super) fn read_request(
        &mut self,
        connection: quic::ConnectionId,
        stream: StreamId,
        budget_bytes: usize,
        shard: &mut Shard,
        around: &mut Surroundings<'_>,
    ) -> usize {
        let Some(Link::Lending { id, streams, .. }) = self.links.get_mut(&connection) else { return 0 };
        let (id, Some(lent)) = (*id, streams.get_mut(&stream)) else { return 0 };
        let LentStream { reader, operation: asked, due, .. } = lent;
        let now = around.now;
        let (mut read_bytes, mut said) = (0, Vec::new());
        let split = |bytes: &[u8]| split_frame(bytes).map(|found| found.map(|(_, body)| body.end));
        let outcome = around.endpoint.read(connection, stream, budget_bytes, |chunk| {
            read_bytes += chunk.len();
            reader.on_chunk(chunk, split, |frame| {
                let word = decode(frame)?;
                if let Said::Authorize(authorize) = &word
                    && asked.replace(authorize.operation).is_some()
                {
                    // Or answers would pile up behind a reader that takes none.
                    return Err(FrameError::Contradiction { what: "a second operation on one stream" });
                }
                if let Said::Authorize(authorize) = &word {
                    *due = now + Duration::from_millis(u64::from(authorize.deadline_ms));
                }
                said.push(word);
                Ok(())
            })
        });
        let grants = self.grants.as_mut().expect("connections come with grants");
        let at = StreamAt { connection: id, stream: stream.number() };
        for said in said {
            match said {
                Said::Authorize(authorize) => {
                    grants.on_authorize(at, &authorize, around.life, around.now, shard);
                }
                Said::Control(FromRequester::Release(operation)) => grants.on_release(id, operation, shard),
                Said::Control(FromRequester::Cancel(operation)) => grants.on_cancel(id, operation, shard),
                // Of shared memory, and not of a connection.
                Said::Control(FromRequester::Released(_)) => {}
            }
        }
        match outcome {
            Ok(ReadState::Blocked | ReadState::Ended) | Err(ReadError::Reset { .. } | ReadError::Closed) => {}
            Ok(ReadState::More) => self.readable.push_back((connection, stream)),
            Err(ReadError::Reader(error)) => {
                tracing::warn!(%error, "a peer sent no payload frame");
                self.end(connection, shard, around.now);
                around.endpoint.close(connection, close_code::BROKEN, around.now.0);
            }
        }
        read_bytes
    }

    /// Does what the room of grants wants done, and sends what has its turn.
    pub(super) fn lend(&mut self, shard: &mut Shard, around: &mut Surroundings<'_>) {
        let Some(grants) = &mut self.grants else { return };
        while let Some(effect) = grants.poll_effect() {
            let at = match &effect {
                Effect::Say { at, .. }
                | Effect::Lend { at, .. }
                | Effect::Finish { at }
                | Effect::Stop { at, .. } => *at,
                Effect::Behind { node, incarnation } => {
                    self.heard.push_back(Heard::Behind { node: *node, incarnation: *incarnation });
                    continue;
                }
                Effect::Drained { reader, operation } => {
                    if let Some(sockets) = &mut self.sockets {
                        sockets.say_drained(reader, *operation);
                    }
                    continue;
                }
            };
            let Some(&connection) = self.lending.get(&at.connection) else {
                // Its connection is gone: what would have been lent is not.
                if let Effect::Lend { loan, .. } = effect {
                    grants.on_loan_drained(loan, shard);
                }
                continue;
            };
            let stream = StreamId::numbered(at.stream);
            let link = match self.links.get_mut(&connection) {
                Some(Link::Lending { requester, streams, .. }) => Some((requester.node, streams)),
                _ => None,
            };
            let lent = link.and_then(|(node, streams)| Some((node, streams.get_mut(&stream)?)));
            let line = Line { connection, stream, at, now: around.now };
            match effect {
                Effect::Say { tag, operation, message, .. } => {
                    let mut frame = Vec::new();
                    append_from_source(&mut frame, tag, operation, &message);
                    if let Some((node, lent)) = lent {
                        lent.push(frame.into());
                        match message {
                            FromSource::Extent { .. } => drop(self.held.streams.insert(line.name())),
                            _ => line.send_frames(lent, node, &mut self.egress, around.endpoint),
                        }
                    }
                }
                Effect::Lend { tag, operation, index, loan, offset, bytes, checksum, .. } => {
                    let Some((node, lent)) = lent else {
                        grants.on_loan_drained(loan, shard);
                        continue;
                    };
                    let mut frame = Vec::new();
                    let message = FromSource::Bytes { index, bytes, checksum };
                    append_from_source(&mut frame, tag, operation, &message);
                    lent.push(frame.into());
                    let payload = self.loans.lend(loan.0, offset, u64::from(bytes));
                    lent.push(Bytes::from(
                        payload.expect("no more is lent than fits a quarter of the slice"),
                    ));
                    line.list(lent, node, &mut self.egress);
                }
                Effect::Finish { .. } => {
                    if let Some((node, lent)) = lent {
                        lent.finish();
                        line.send_frames(lent, node, &mut self.egress, around.endpoint);
                    }
                }
                Effect::Stop { cause, .. } => {
                    // What is queued goes with the stream; its references end here.
                    if let Some(Link::Lending { streams, .. }) = self.links.get_mut(&connection) {
                        streams.remove(&stream);
                    }
                    self.egress.on_over(at);
                    around.endpoint.abandon(connection, stream, cause as u32);
                }
                Effect::Behind { .. } | Effect::Drained { .. } => unreachable!("left out above"),
            }
        }
        self.tell_extents(around);
        self.send_in_turn(around);
    }

    /// Sends payload, who has its turn first, as far as the egress rate and the transport go.
    fn send_in_turn(&mut self, around: &mut Surroundings<'_>) {
        let now = around.now;
        while let Some(SendGrant { at, bytes_max }) = self.egress.poll(now) {
            let stream = StreamId::numbered(at.stream);
            let connection = self.lending.get(&at.connection).copied();
            let link = connection.and_then(|connection| Some((connection, self.links.get_mut(&connection)?)));
            if let Some((connection, Link::Lending { streams, .. })) = link
                && let Some(lent) = streams.get_mut(&stream)
            {
                // Places that are held back may be queued behind what has its turn.
                let bytes_max = bytes_max.min(lent.listed_bytes());
                let (sent_bytes, taken) = lent.send(connection, stream, around.endpoint, bytes_max);
                self.egress.on_sent(at, sent_bytes, taken, now);
                if lent.is_listed() {
                    continue;
                }
            }
            // All of it went, or the stream is over.
            self.egress.on_over(at);
        }
    }

    /// Sends places that wait, unless more of them are about to come.
    fn tell_extents(&mut self, around: &mut Surroundings<'_>) {
        let HeldExtents { streams, turns } = &mut self.held;
        *turns += 1;
        if streams.is_empty() || (self.is_summing && *turns < EXTENTS_WAIT_TURNS) {
            return;
        }
        *turns = 0;
        for (connection, stream) in std::mem::take(streams) {
            if let Some(Link::Lending { id, requester, streams }) = self.links.get_mut(&connection)
                && let Some(lent) = streams.get_mut(&stream)
            {
                let line = Line::of(*id, connection, stream, around.now);
                line.send_frames(lent, requester.node, &mut self.egress, around.endpoint);
            }
        }
    }

    /// Memory that the transport has let go of.
    pub(super) fn drain(&mut self, shard: &mut Shard) {
        while let Some(loan) = self.loans.poll_drained() {
            let grants = self.grants.as_mut().expect("loans come with grants");
            grants.on_loan_drained(PinId(loan), shard);
        }
    }

    /// Computes checksums of what has none yet, a bounded part; true if more is left.
    pub(super) fn sum(&mut self, shard: &mut Shard) -> bool {
        let mut left_bytes = CHECKSUM_BYTES_PER_TURN;
        while left_bytes > 0 {
            let Some((id, mut sum)) = self.sums.pop_front().or_else(|| {
                let order = shard.poll_checksum()?;
                Some((order.id, Checksum::new(order.arena_offset, order.payload_bytes)))
            }) else {
                return false;
            };
            if !shard.is_checksum_wanted(id) {
                shard.on_checksum_dropped(id);
                continue;
            }
            left_bytes = left_bytes.saturating_sub(CHECKSUM_STEP_BYTES.min(sum.remaining_bytes()));
            match sum.step(&self.arena, CHECKSUM_STEP_BYTES) {
                Some(checksum) => shard.on_checksum(id, checksum),
                None => self.sums.push_front((id, sum)),
            }
        }
        true
    }
}

fn decode(frame: &[u8]) -> Result<Said, FrameError> {
    let (header, body): (Header, _) = split_frame(frame)?.expect("handed out whole");
    match Kind::from_wire(header.kind) {
        Some(Kind::Authorize) => decode_authorize(&header, &frame[body]).map(Box::new).map(Said::Authorize),
        _ => decode_from_requester(&header, &frame[body]).map(Said::Control),
    }
}
