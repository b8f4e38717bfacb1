//! The requester's side: whose arena we read in, and what we owe whom.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use orbitkv_native::engine_socket::{connect_to, peer_credentials};
use orbitkv_native::peer_arena::PeerArena;
use orbitkv_native::quic::FrameReader;
use orbitkv_shards::time::Moment;
use orbitkv_wire::payload::{
    FrameError, FromRequester, FromSource, OperationId, Tag, append_from_requester, decode_from_source,
    split_frame,
};

use super::channel::{Broken, Channel};
use super::{Heard, OWED_MAX, PROOF_BYTES, PROOF_WAIT, PeerSockets, RECONNECT_PAUSE, SEND_PAUSE, SourceKey};

/// How far a source is.
enum Stage {
    /// It is to show its half.
    Proving { expected: [u8; PROOF_BYTES], shown: Vec<u8>, arena: Option<OwnedFd>, until: Moment },
    /// We read in its arena.
    Joined(PeerArena),
    /// Its life is over or its connection gone: its arena is unmapped, and what we owe is still said.
    Parting,
}

/// One of them.
pub(super) struct SourceSocket<C> {
    key: SourceKey,
    /// What it was proved with.
    connection: C,
    channel: Channel,
    frames: FrameReader,
    stage: Stage,
}

impl<C> SourceSocket<C> {
    pub fn due(&self, now: Moment) -> Option<Moment> {
        match self.stage {
            Stage::Proving { until, .. } => Some(until),
            _ => self.channel.has_unsent().then(|| now + SEND_PAUSE),
        }
    }

    fn has_joined(&self) -> bool {
        !matches!(self.stage, Stage::Proving { .. })
    }
}

impl<C: Copy + Eq + Hash> PeerSockets<C> {
    /// Connects to the source of a connection: it is shown `proof` and must show `expected`. False if it cannot be
    /// reached, or is owed so much that nothing more is begun with it.
    pub fn join(
        &mut self,
        connection: C,
        key: SourceKey,
        path: &Path,
        [proof, expected]: [[u8; PROOF_BYTES]; 2],
        now: Moment,
    ) -> bool {
        self.retries.remove(&connection);
        if self.owed.get(&key).is_some_and(|owed| owed.len() >= OWED_MAX) {
            return false;
        }
        let Ok(socket) = connect_to(path) else { return false };
        let is_ours = peer_credentials(socket.as_fd()).is_ok_and(|peer| peer.uid == self.uid);
        let number = self.number();
        let mut channel = Channel::new(socket);
        if !is_ours || channel.say(&proof).is_err() || self.watch_socket(channel.fd(), number).is_err() {
            return false;
        }
        let (shown, arena, until) = (Vec::new(), None, now + PROOF_WAIT);
        let stage = Stage::Proving { expected, shown, arena, until };
        let frames = FrameReader::new();
        self.sources.insert(number, SourceSocket { key, connection, channel, frames, stage });
        self.by_connection.insert(connection, number);
        true
    }

    /// The arena of a connection's source.
    pub fn arena(&self, connection: C) -> Option<&PeerArena> {
        match &self.sources[self.by_connection.get(&connection)?].stage {
            Stage::Joined(arena) => Some(arena),
            _ => None,
        }
    }

    /// A source is owed a Released until it has answered.
    pub fn owe(&mut self, key: SourceKey, operation: OperationId) {
        self.owed.entry(key).or_default().insert(operation);
        let socket = self.sources.values_mut().find(|socket| socket.key == key && socket.has_joined());
        if let Some(socket) = socket {
            // A socket that breaks says so itself, and then it is said again on the next.
            let _ = socket.channel.say(&released(operation));
        }
    }

    /// A connection is gone: nothing is read there any more. Whoever is owed something keeps the socket.
    pub fn part(&mut self, connection: C) {
        self.retries.remove(&connection);
        let Some(number) = self.by_connection.remove(&connection) else { return };
        let socket = self.sources.get_mut(&number).expect("a connection's socket");
        match socket.stage {
            Stage::Proving { .. } => drop(self.sources.remove(&number)),
            Stage::Joined(_) | Stage::Parting => socket.stage = Stage::Parting,
        }
    }

    /// Closes sockets that are of no use any more.
    pub fn forget_sources(&mut self) {
        let Self { sources, owed, .. } = self;
        sources.retain(|_, socket| !matches!(socket.stage, Stage::Parting) || owed.contains_key(&socket.key));
    }

    /// Connections whose source is to be connected to again.
    pub fn take_retries(&mut self, now: Moment) -> Vec<C> {
        let due: Vec<_> = self.retries.iter().filter(|(_, at)| **at <= now).map(|(due, _)| *due).collect();
        self.retries.retain(|connection, _| !due.contains(connection));
        due
    }

    pub(super) fn hear_source(&mut self, number: u64, now: Moment, heard: &mut Vec<Heard<C>>) {
        let Some(socket) = self.sources.get_mut(&number) else { return };
        let mut drained = Vec::new();
        let had_joined = socket.has_joined();
        let done =
            socket.channel.receive().and_then(|(bytes, fds)| socket.on_bytes(&bytes, fds, &mut drained));
        let (key, connection, has_joined) = (socket.key, socket.connection, socket.has_joined());
        if let Some(owed) = self.owed.get_mut(&key) {
            owed.retain(|operation| !drained.contains(operation));
            if owed.is_empty() {
                self.owed.remove(&key);
            }
        }
        if done == Err(Broken) {
            return self.end_source(number, now, heard);
        }
        if has_joined && !had_joined {
            heard.push(Heard::Joined(connection));
            self.say_owed(key);
        }
    }

    /// Says all that a source is owed, again.
    fn say_owed(&mut self, key: SourceKey) {
        let owed: BTreeSet<OperationId> = self.owed.get(&key).cloned().unwrap_or_default();
        owed.into_iter().for_each(|operation| self.owe(key, operation));
    }

    pub(super) fn expire_source(&mut self, number: u64, now: Moment, heard: &mut Vec<Heard<C>>) {
        let socket = self.sources.get_mut(&number).expect("just listed");
        let is_late = matches!(&socket.stage, Stage::Proving { until, .. } if *until <= now);
        if is_late || socket.channel.send().is_err() {
            self.end_source(number, now, heard);
        }
    }

    fn end_source(&mut self, number: u64, now: Moment, heard: &mut Vec<Heard<C>>) {
        let socket = self.sources.remove(&number).expect("a source that was just heard");
        let is_current = self.by_connection.get(&socket.connection) == Some(&number);
        if is_current {
            self.by_connection.remove(&socket.connection);
            let was_shared = matches!(socket.stage, Stage::Joined(_));
            if was_shared || self.owed.contains_key(&socket.key) {
                self.retries.insert(socket.connection, now + RECONNECT_PAUSE);
            }
            let of = if was_shared { Heard::Left } else { Heard::Refused };
            heard.push(of(socket.connection));
        }
        // There may be another socket to the same source.
        self.say_owed(socket.key);
    }
}

impl<C> SourceSocket<C> {
    fn on_bytes(
        &mut self,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
        drained: &mut Vec<OperationId>,
    ) -> Result<(), Broken> {
        if let Stage::Proving { expected, shown, arena, .. } = &mut self.stage {
            shown.extend_from_slice(bytes);
            *arena = arena.take().or(fds.into_iter().next());
            if shown.len() < PROOF_BYTES {
                return Ok(());
            }
            let arena = arena.take().filter(|_| shown[..] == expected[..]).ok_or(Broken)?;
            let mapped = PeerArena::map(arena).map_err(|error| {
                tracing::warn!(node = %self.key.0, %error, "a source's arena cannot be read");
                Broken
            })?;
            self.stage = Stage::Joined(mapped);
            return Ok(());
        }
        let split = |bytes: &[u8]| split_frame(bytes).map(|found| found.map(|(_, body)| body.end));
        let said = self.frames.on_chunk(bytes, split, |frame| {
            let (header, body) = split_frame(frame)?.expect("handed out whole");
            match decode_from_source(&header, &frame[body])? {
                FromSource::Drained => drained.push(header.operation()),
                _ => return Err(FrameError::Kind { number: header.kind }),
            }
            Ok(())
        });
        said.map_err(|error| {
            tracing::warn!(node = %self.key.0, %error, "a source sent no frame of a peer socket");
            Broken
        })
    }
}

fn released(operation: OperationId) -> Vec<u8> {
    let mut frame = Vec::new();
    append_from_requester(&mut frame, Tag::NONE, FromRequester::Released(operation));
    frame
}
