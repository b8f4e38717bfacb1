//! The requester's side: what the shard seeks is looked up, what it orders is asked for, and what comes is
//! written where it belongs.

use std::net::SocketAddr;
use std::time::Duration;

use orbitkv_native::arena::{Arena, Checksum};
use orbitkv_native::quic::{self, DialRefusal, Endpoint, Purpose, ReadError, ReadState, StreamId};
use orbitkv_shards::fetcher::{ConnectionId, Fetcher, FetcherEffect, StreamEnd, Violation};
use orbitkv_shards::index::Replicas;
use orbitkv_shards::key::StateKey;
use orbitkv_shards::resilience::breaker::Change;
use orbitkv_shards::shard::{FetchEffect, Shard};
use orbitkv_shards::time::Moment;
use orbitkv_wire::bounds::QUERY_BATCH_KEYS;
use orbitkv_wire::identity::KeyHash;
use orbitkv_wire::inventory::{ResourceSummary, SourceStream};
use orbitkv_wire::payload::{
    ExactResidence, FrameError, FromRequester, FromSource, OperationId, Part, Splitter, StopCause,
    append_authorize, append_from_requester,
};

use super::super::close_code;
use super::super::life::Neighbours;
use super::links::Link;
use super::planning::Tried;
use super::sharing::Reading;
use super::{Asked, Heard, Payload, PendingDial, Surroundings, Unasked, WaitingDial};

/// How long a dial waits for room in the endpoint.
const DIAL_WAIT: Duration = Duration::from_millis(500);

/// Keys sought in one turn.
const SEEKS_PER_TURN: usize = QUERY_BATCH_KEYS;

/// A stream on which this core reads the answers of one operation.
pub(super) struct FetchStream {
    asked: Asked,
    splitter: Splitter,
    /// The front of a frame that is not whole.
    partial: Vec<u8>,
    /// The checksum of the payload that comes, if it goes anywhere.
    sum: Option<Checksum>,
    /// How busy its source has said that it is.
    said: Option<ResourceSummary>,
    /// Whether its operation is cancelled: it is read to its end, which proves that nothing more comes of it.
    is_cancelled: bool,
}

impl Payload {
    /// Looks up what the shard seeks; true if more is sought.
    pub(super) fn seek(&mut self, shard: &mut Shard, around: &Surroundings<'_>) -> bool {
        let mut seeks = Vec::new();
        while seeks.len() < SEEKS_PER_TURN
            && let Some(seek) = shard.poll_seek()
        {
            seeks.push(seek);
        }
        let keys: Vec<(StateKey, KeyHash)> = seeks.iter().map(|seek| (seek.key, seek.hash)).collect();
        let mut replicas = vec![Replicas::default(); keys.len()];
        if around.may_ask {
            around.partition.lookup(&keys, &mut replicas);
        }
        for (seek, replicas) in seeks.into_iter().zip(&replicas) {
            let bytes = replicas.iter().next().map(|replica| u64::from(replica.bytes));
            shard.on_sought(seek, bytes);
        }
        let mut orders = Vec::new();
        while let Some(effect) = shard.poll_fetch() {
            match effect {
                FetchEffect::Fetch(order) => orders.push(order),
                FetchEffect::Cancel(copy) => {
                    // It may be one of those.
                    self.begin(&mut orders, shard, around);
                    if !shard.is_wanted(copy) {
                        self.fetcher.cancel(copy);
                    }
                }
                FetchEffect::Expire(copy) => {
                    self.begin(&mut orders, shard, around);
                    if !shard.is_wanted(copy) {
                        self.fetcher.expire(copy, around.now);
                    }
                }
                FetchEffect::Await { copy, until } => {
                    self.begin(&mut orders, shard, around);
                    self.fetcher.on_awaited(copy, until, around.now);
                }
            }
        }
        self.begin(&mut orders, shard, around);
        shard.has_seeks()
    }

    /// Does what the fetcher wants done.
    pub(super) fn fetch(&mut self, shard: &mut Shard, around: &mut Surroundings<'_>) {
        for _ in 0..self.waiting.len() {
            let waiting = self.waiting.pop_front().expect("counted");
            self.dial(waiting, around);
        }
        for _ in 0..self.unasked.len() {
            let (id, asked, frame) = self.unasked.pop_front().expect("counted");
            self.ask(id, asked, frame, around);
        }
        while let Some(effect) = self.fetcher.poll_effect() {
            match effect {
                FetcherEffect::Dial { dial, source, address } => {
                    let until = around.now + DIAL_WAIT;
                    self.dial(WaitingDial { dial, source, address, until }, around);
                }
                FetcherEffect::Authorize { connection, authorize } => {
                    let mut frame = Vec::new();
                    append_authorize(&mut frame, &authorize);
                    let asked = Asked { operation: authorize.operation, tag: authorize.binding.tag() };
                    match &mut self.record_lookups {
                        Some(lookups) if self.fetching.contains_key(&connection) => {
                            self.fetcher.on_held_back(connection, asked.operation);
                            lookups.park(authorize.binding.source.node, (connection, asked, frame));
                        }
                        _ => self.ask(connection, asked, frame, around),
                    }
                }
                FetcherEffect::Release { connection, operation } => {
                    self.release(connection, operation, around);
                }
                FetcherEffect::Cancel { connection, operation }
                | FetcherEffect::CancelAgain { connection, operation } => {
                    self.cancel(connection, operation, around);
                }
                FetcherEffect::Forget { connection, operation } => {
                    self.leave(connection, operation, around);
                }
                FetcherEffect::Read { connection, operation, index, offset, bytes } => {
                    let (id, bytes) = (connection, u64::from(bytes));
                    let reading = Reading { id, operation, index, offset, bytes, done: 0, sum: None };
                    self.readings.push_back(reading);
                }
                FetcherEffect::Released { source, operation } => {
                    let sockets = self.sockets.as_mut().expect("who shares memory has sockets");
                    sockets.owe((source.node, source.shard), operation);
                }
                FetcherEffect::Close { connection, cause } => {
                    self.withdraw(|(of, ..)| *of == connection);
                    if let Some(connection) = self.fetching.remove(&connection) {
                        self.part(connection);
                        tracing::debug!(core = self.shard.0, %cause, "a payload connection is closed");
                        self.links.remove(&connection);
                        around.endpoint.close(connection, close_code::ENDED, around.now.0);
                    }
                }
                FetcherEffect::Fetched { copy, medium, checksum } => {
                    self.planner.on_ended(copy, true, around.now);
                    shard.on_fetched(copy, medium, checksum);
                }
                FetcherEffect::Failed { copy, outcome } => {
                    self.planner.on_ended(copy, false, around.now);
                    shard.on_fetch_failed(copy, outcome);
                }
                FetcherEffect::OutOfTime { block, source, consumer, used, at, .. } => {
                    let (core, step, at) = (self.shard.0, consumer.label(), at.label());
                    let node = source.map(|source| source.node.to_string());
                    let (shard, used_ms) = (source.map(|source| source.shard.0), used.as_millis() as u64);
                    tracing::debug!(core, ?node, ?shard, %block, step, used_ms, at, "a recovery is out of time");
                }
                FetcherEffect::Tried { copy, candidate, ahead_bytes, since, is_warm, outcome } => {
                    let tried = Tried { copy, candidate, ahead_bytes, since, is_warm, outcome };
                    self.on_tried(&tried, around.now);
                }
                FetcherEffect::Breaker { source, change, is_probe } => {
                    self.log_breaker(source, change, is_probe)
                }
                FetcherEffect::RangeEnded { source, residence, ended } => {
                    let (core, node, shard) = (self.shard.0, source.node, source.shard.0);
                    let ExactResidence { namespace, group, block, medium, sequence } = residence;
                    let (group, sequence, ended) = (group.0, sequence.0, ended.map(|ended| ended.0));
                    tracing::debug!(core, %node, shard, %namespace, group, %block, ?medium, sequence, ?ended, "range ended");
                }
                FetcherEffect::Exclude { node, incarnation } => {
                    self.planner.on_excluded(node, incarnation);
                    self.heard.push_back(Heard::Exclude { node, incarnation });
                }
                FetcherEffect::Refresh { node, incarnation } => {
                    self.heard.push_back(Heard::Doubt { node, incarnation });
                }
            }
        }
    }

    fn log_breaker(&self, source: SourceStream, change: Change, is_probe: bool) {
        let (core, node, shard) = (self.shard.0, source.node, source.shard.0);
        match change {
            Change::Opened { .. } if is_probe => {
                tracing::debug!(core, %node, shard, "a peer that is left alone does not answer yet");
            }
            Change::Opened { .. } => {
                let remedy = "see whether that node, or the network to it, is overloaded or down";
                tracing::warn!(core, %node, shard, remedy, "a peer fails too often and is left alone for a while");
            }
            Change::Closed => tracing::info!(core, %node, shard, "a peer answers and is asked again"),
        }
    }

    fn dial(&mut self, wanted: WaitingDial, around: &mut Surroundings<'_>) {
        let WaitingDial { dial: id, source, address, until } = wanted;
        match dial(around.endpoint, around.neighbours, &source, address, around.now) {
            Ok(connection) => {
                self.dials.insert(connection, PendingDial { dial: id, source });
            }
            Err(DialRefusal::TooManyPending | DialRefusal::NoRoom) if around.now < until => {
                self.waiting.push_back(wanted);
            }
            Err(refusal @ (DialRefusal::TooManyPending | DialRefusal::NoRoom)) => {
                tracing::debug!(core = self.shard.0, node = %source.node, %refusal, "no room for a dial for payload");
                self.fetcher.on_dial_given_up(id, around.now);
            }
            Err(refusal) => {
                tracing::debug!(core = self.shard.0, node = %source.node, %refusal, "no dial for payload");
                self.fetcher.on_dial_failed(id, around.now);
            }
        }
    }

    fn ask(&mut self, id: ConnectionId, asked: Asked, frame: Vec<u8>, around: &mut Surroundings<'_>) {
        let Some(&connection) = self.fetching.get(&id) else { return };
        let Some(Link::Fetching { streams, .. }) = self.links.get_mut(&connection) else { return };
        match around.endpoint.open(connection, quic::Priority::Ordinary) {
            Ok(stream) => {
                // A fresh stream takes a frame; one of a connection that is lost ends with it.
                let _ = around.endpoint.write(connection, stream, frame);
                self.fetcher.on_sent(id, asked.operation, around.now);
                streams.insert(stream, FetchStream::new(asked));
            }
            Err(quic::OpenRefusal::NoneLeft) => self.unasked.push_back((id, asked, frame)),
            // Its end is on its way to the room.
            Err(quic::OpenRefusal::Closed) => {}
        }
    }

    /// Operations that are over before they were asked for.
    pub(super) fn withdraw(&mut self, is_over: impl Fn(&Unasked) -> bool) {
        self.unasked.retain(|unasked| !is_over(unasked));
        if let Some(lookups) = &mut self.record_lookups {
            lookups.retain(|unasked| !is_over(unasked));
        }
    }

    /// Says that all of an operation has come, and reads no more of it.
    fn release(&mut self, id: ConnectionId, operation: OperationId, around: &mut Surroundings<'_>) {
        if let Some(asked) = self.leave(id, operation, around) {
            self.tell(id, asked, FromRequester::Release(operation), around);
        }
    }

    /// Says that nothing of an operation is wanted. Its stream is read on until its source has heard of it.
    fn cancel(&mut self, id: ConnectionId, operation: OperationId, around: &mut Surroundings<'_>) {
        self.withdraw(|(_, asked, _)| asked.operation == operation);
        match self.stream_of(id, operation) {
            Some((_, fetch)) => {
                fetch.is_cancelled = true;
                let asked = fetch.asked;
                self.tell(id, asked, FromRequester::Cancel(operation), around);
            }
            // It was never asked for, so that nothing comes.
            None => {
                let code = StopCause::Cancelled as u64;
                self.fetcher.on_stream_over(id, operation, StreamEnd::Reset { code }, around.now);
            }
        }
    }

    fn stream_of(
        &mut self,
        id: ConnectionId,
        operation: OperationId,
    ) -> Option<(StreamId, &mut FetchStream)> {
        let Link::Fetching { streams, .. } = self.links.get_mut(self.fetching.get(&id)?)? else {
            return None;
        };
        let mut of_it = streams.iter_mut().filter(|(_, stream)| stream.asked.operation == operation);
        of_it.next().map(|(id, stream)| (*id, stream))
    }

    /// Says something urgent of an operation.
    fn tell(&mut self, id: ConnectionId, asked: Asked, word: FromRequester, around: &mut Surroundings<'_>) {
        let Some(&connection) = self.fetching.get(&id) else { return };
        let Some(Link::Fetching { control, .. }) = self.links.get_mut(&connection) else { return };
        let mut frame = Vec::new();
        append_from_requester(&mut frame, asked.tag, word);
        control.say(connection, frame, around.endpoint);
    }

    /// Reads no more of an operation's stream.
    fn leave(
        &mut self,
        id: ConnectionId,
        operation: OperationId,
        around: &mut Surroundings<'_>,
    ) -> Option<Asked> {
        self.withdraw(|(_, asked, _)| asked.operation == operation);
        let (stream, _) = self.stream_of(id, operation)?;
        let &connection = self.fetching.get(&id)?;
        self.drop_stream(connection, stream, around).map(|left| left.asked)
    }

    fn drop_stream(
        &mut self,
        connection: quic::ConnectionId,
        stream: StreamId,
        around: &mut Surroundings<'_>,
    ) -> Option<FetchStream> {
        let Link::Fetching { streams, .. } = self.links.get_mut(&connection)? else { return None };
        around.endpoint.abandon(connection, stream, StopCause::Cancelled as u32);
        streams.remove(&stream)
    }

    /// Reads what a source says, and writes payload where it belongs; how many bytes that were.
    pub(super) fn read_answer(
        &mut self,
        connection: quic::ConnectionId,
        stream: StreamId,
        budget_bytes: usize,
        around: &mut Surroundings<'_>,
    ) -> usize {
        let Some(Link::Fetching { id, source, streams, .. }) = self.links.get_mut(&connection) else {
            return 0;
        };
        let (id, source, Some(fetch)) = (*id, *source, streams.get_mut(&stream)) else { return 0 };
        let (fetcher, arena, now) = (&mut self.fetcher, &self.arena, around.now);
        let mut read_bytes = 0;
        let outcome = around.endpoint.read(connection, stream, budget_bytes, |chunk| {
            read_bytes += chunk.len();
            match fetch.is_cancelled {
                true => Ok(()),
                false => fetch.on_chunk(chunk, id, fetcher, arena, now),
            }
        });
        let (operation, is_cancelled) = (fetch.asked.operation, fetch.is_cancelled);
        if let Some(summary) = fetch.said.take() {
            around.subscriber.on_summary(&source, summary, now);
        }
        if is_cancelled {
            self.fetcher.on_discarded(read_bytes as u64);
        }
        let end = match outcome {
            Ok(ReadState::Blocked) => return read_bytes,
            Ok(ReadState::More) => {
                self.readable.push_back((connection, stream));
                return read_bytes;
            }
            Err(ReadError::Reader(error)) => {
                tracing::warn!(%error, "a source sent no payload frame");
                self.fetcher.on_bad_frame(id, Violation::Frame(error), now);
                return read_bytes;
            }
            Ok(ReadState::Ended) if fetch.partial.is_empty() && fetch.splitter.may_end() => {
                StreamEnd::Finished
            }
            // Broken off in the midst of something.
            Ok(ReadState::Ended) | Err(ReadError::Closed) => {
                StreamEnd::Reset { code: StopCause::Cancelled as u64 }
            }
            Err(ReadError::Reset { code }) => StreamEnd::Reset { code },
        };
        if is_cancelled {
            self.drop_stream(connection, stream, around);
        }
        self.fetcher.on_stream_over(id, operation, end, now);
        read_bytes
    }
}

/// Dials a payload connection, unless the endpoint has no room for it now.
fn dial(
    endpoint: &mut Endpoint,
    neighbours: &Neighbours,
    source: &SourceStream,
    address: SocketAddr,
    now: Moment,
) -> Result<quic::ConnectionId, quic::DialRefusal> {
    let key = neighbours.key_of(source.node).ok_or(quic::DialRefusal::NotAMember)?;
    endpoint.dial(address, key, Purpose::Payload, now.0)
}

impl FetchStream {
    fn new(asked: Asked) -> FetchStream {
        let (splitter, partial) = (Splitter::new(), Vec::new());
        FetchStream { asked, splitter, partial, sum: None, said: None, is_cancelled: false }
    }

    fn on_chunk(
        &mut self,
        chunk: &[u8],
        id: ConnectionId,
        fetcher: &mut Fetcher,
        arena: &Arena,
        now: Moment,
    ) -> Result<(), FrameError> {
        let mut rest = chunk;
        while !rest.is_empty() {
            if !self.partial.is_empty() {
                // A frame that was cut: put together, as far as it goes.
                let before = self.partial.len();
                let room = orbitkv_wire::bounds::PAYLOAD_FRAME_BYTES_MAX - before;
                let taken = rest.len().min(room);
                self.partial.extend_from_slice(&rest[..taken]);
                let partial = std::mem::take(&mut self.partial);
                let Some(part) = self.splitter.next(&partial)? else {
                    self.partial = partial;
                    rest = &rest[taken..];
                    continue;
                };
                rest = &rest[part.length() - before..];
                self.take(part, &[], id, fetcher, arena, now)?;
                continue;
            }
            let Some(part) = self.splitter.next(rest)? else {
                self.partial.extend_from_slice(rest);
                return Ok(());
            };
            let (bytes, tail) = rest.split_at(part.length());
            rest = tail;
            self.take(part, bytes, id, fetcher, arena, now)?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        part: Part,
        bytes: &[u8],
        id: ConnectionId,
        fetcher: &mut Fetcher,
        arena: &Arena,
        now: Moment,
    ) -> Result<(), FrameError> {
        let Asked { operation, tag } = self.asked;
        match part {
            Part::Frame { header, message, .. } => {
                if header.operation() != operation || header.tag != tag.0 {
                    return Err(FrameError::Contradiction { what: "a frame of another operation" });
                }
                self.sum = None;
                if let FromSource::Answers { summary, .. } = message {
                    self.said = Some(summary);
                }
                fetcher.on_message(id, operation, &message, now);
            }
            Part::Payload { index, range, is_last } => {
                let destination = fetcher.destination(id, operation, index, now);
                let computed = destination.and_then(|destination| {
                    let whole = || Checksum::new(destination.arena_offset, u64::from(destination.bytes));
                    arena.copy_in(destination.arena_offset + u64::from(range.start), bytes);
                    self.sum.get_or_insert_with(whole).step(arena, bytes.len() as u64)
                });
                if is_last {
                    // Of what was thrown away the checksum does not matter.
                    fetcher.on_bytes(id, operation, index, computed.unwrap_or(0));
                    self.sum = None;
                }
            }
        }
        Ok(())
    }
}
