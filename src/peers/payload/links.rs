//! Payload connections: how they come to be, what happens on them, and how they end.

use std::collections::{BTreeMap, VecDeque};

use orbitkv_native::quic::{self, Endpoint, Event, StreamId};
use orbitkv_shards::fetcher;
use orbitkv_shards::payload_streams::{PayloadConnection, StreamAt};
use orbitkv_shards::shard::Shard;
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::NodeId;
use orbitkv_wire::inventory::{Requester, SourceStream};

use super::super::close_code;
use super::fetching::FetchStream;
use super::lent_stream::LentStream;
use super::{Payload, PendingDial, Surroundings};

/// One payload connection.
pub(super) enum Link {
    /// We lend on it.
    Lending { id: PayloadConnection, requester: Requester, streams: BTreeMap<StreamId, LentStream> },
    /// We fetch on it.
    Fetching {
        id: fetcher::ConnectionId,
        source: SourceStream,
        control: Control,
        streams: BTreeMap<StreamId, FetchStream>,
    },
}

/// The stream for releases and cancels of a connection that we dialled.
#[derive(Default)]
pub(super) struct Control {
    stream: Option<StreamId>,
    unsent: VecDeque<Vec<u8>>,
}

impl Payload {
    /// A payload connection has come to be.
    pub fn on_connected(
        &mut self,
        connection: quic::ConnectionId,
        origin: quic::Origin,
        peer: Option<NodeId>,
        shard: &mut Shard,
        around: &mut Surroundings<'_>,
    ) {
        match (origin, self.dials.remove(&connection)) {
            (quic::Origin::Dialled, Some(pending)) => {
                // Nothing is asked before it is known how it will come.
                match self.join(connection, &pending.source, around) {
                    true => drop(self.greeted.insert(connection, pending)),
                    false => self.open(connection, pending, around.now),
                }
            }
            (quic::Origin::Accepted, _) => {
                self.made += 1;
                let id = PayloadConnection(self.made);
                let member = peer.and_then(|node| around.neighbours.map.get(node));
                let requester =
                    member.map(|member| Requester { node: member.node, incarnation: member.incarnation });
                let admitted = requester.zip(self.grants.as_mut()).and_then(|(requester, grants)| {
                    grants.on_connected(id, requester, shard).ok().map(|()| requester)
                });
                match admitted {
                    Some(requester) => {
                        let link = Link::Lending { id, requester, streams: BTreeMap::new() };
                        self.links.insert(connection, link);
                        self.lending.insert(id, connection);
                    }
                    None => {
                        around.endpoint.close(connection, close_code::NOT_A_MEMBER, around.now.0);
                    }
                }
            }
            (quic::Origin::Dialled, None) => {
                around.endpoint.close(connection, close_code::ENDED, around.now.0);
            }
        }
    }

    /// Something has happened on a connection of payload, other than that it came to be.
    pub fn on_event(&mut self, event: &Event, shard: &mut Shard, around: &mut Surroundings<'_>) {
        match *event {
            Event::Lost { connection, .. } => {
                let pending = self.dials.remove(&connection).or_else(|| self.greeted.remove(&connection));
                self.part(connection);
                match pending {
                    Some(PendingDial { dial, .. }) => self.fetcher.on_dial_failed(dial, around.now),
                    None => self.end(connection, shard, around.now),
                }
            }
            Event::StreamOpened { connection, stream } => match self.links.get_mut(&connection) {
                Some(Link::Lending { streams, .. }) => {
                    streams.insert(stream, LentStream::default());
                    self.readable.push_back((connection, stream));
                }
                // A source begins no streams.
                _ => around.endpoint.abandon(connection, stream, close_code::NOT_SERVED),
            },
            Event::Readable { connection, stream } => self.readable.push_back((connection, stream)),
            Event::Writable { connection, stream } => self.on_writable(connection, stream, around),
            Event::Delivered { connection, stream } | Event::Stopped { connection, stream, .. } => {
                self.on_stream_over(connection, stream, shard, around.endpoint);
            }
            Event::StreamsAvailable { .. } | Event::Connected { .. } => {}
        }
    }

    /// Nothing more is sent on a stream. Its other half ends too, so that the requester may begin another one.
    fn on_stream_over(
        &mut self,
        connection: quic::ConnectionId,
        stream: StreamId,
        shard: &mut Shard,
        endpoint: &mut Endpoint,
    ) {
        let Some(Link::Lending { id, streams, .. }) = self.links.get_mut(&connection) else { return };
        self.egress.on_over(StreamAt { connection: *id, stream: stream.number() });
        let unfinished = streams.remove(&stream).and_then(|lent| lent.unfinished());
        if let (Some(operation), Some(grants)) = (unfinished, &mut self.grants) {
            grants.on_cancel(*id, operation, shard);
        }
        endpoint.abandon(connection, stream, close_code::ENDED);
    }

    /// A connection is no more: the rooms hear it, and what it had is dropped.
    pub(super) fn end(&mut self, connection: quic::ConnectionId, shard: &mut Shard, now: Moment) {
        match self.links.remove(&connection) {
            Some(Link::Lending { id, streams, .. }) => {
                self.lending.remove(&id);
                for stream in streams.into_keys() {
                    self.egress.on_over(StreamAt { connection: id, stream: stream.number() });
                }
                self.grants.as_mut().expect("connections come with grants").on_disconnected(id, shard);
            }
            Some(Link::Fetching { id, .. }) => {
                self.fetching.remove(&id);
                self.part(connection);
                self.withdraw(|(of, ..)| *of == id);
                self.fetcher.on_closed(id, now);
            }
            None => {}
        }
    }

    fn on_writable(
        &mut self,
        connection: quic::ConnectionId,
        stream: StreamId,
        around: &mut Surroundings<'_>,
    ) {
        match self.links.get_mut(&connection) {
            // It goes on in its turn.
            Some(Link::Lending { id, .. }) => {
                let at = StreamAt { connection: *id, stream: stream.number() };
                self.egress.on_writable(at, around.now);
            }
            Some(Link::Fetching { control, .. }) if control.stream == Some(stream) => {
                control.send(connection, around.endpoint);
            }
            _ => {}
        }
    }
}

impl Control {
    /// Says something urgent; it waits for a stream if there is none to be had.
    pub fn say(&mut self, connection: quic::ConnectionId, frame: Vec<u8>, endpoint: &mut Endpoint) {
        self.unsent.push_back(frame);
        if self.stream.is_none() {
            self.stream = endpoint.open(connection, quic::Priority::Urgent).ok();
        }
        self.send(connection, endpoint);
    }

    fn send(&mut self, connection: quic::ConnectionId, endpoint: &mut Endpoint) {
        let Some(stream) = self.stream else { return };
        while let Some(frame) = self.unsent.pop_front() {
            if let Err(quic::WriteRefusal::Blocked(frame)) = endpoint.write(connection, stream, frame) {
                self.unsent.push_front(frame.to_vec());
                return;
            }
        }
    }
}
