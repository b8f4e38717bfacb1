//! The source's side: who reads in our arena.

use std::hash::Hash;
use std::os::fd::{AsFd, OwnedFd};

use orbitkv_native::engine_socket::{peer_credentials, peer_pidfd};
use orbitkv_native::quic::FrameReader;
use orbitkv_shards::grants::Reader;
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::NodeId;
use orbitkv_wire::payload::{
    FrameError, FromRequester, FromSource, OperationId, Tag, append_from_source, decode_from_requester,
    split_frame,
};

use super::channel::{Broken, Channel};
use super::{Heard, PROOF_BYTES, PROOF_WAIT, PeerSockets, READERS_MAX, SEND_PAUSE};

/// Readers accepted in one turn.
const ACCEPTS_PER_TURN: usize = 16;

/// How far a reader is.
enum Stage {
    /// It shows what it knows; nobody is told who it says it is.
    Proving { shown: Vec<u8>, until: Moment },
    /// It reads.
    Joined(Reader),
    /// Its socket is closed, and what it was told of waits for its process to end.
    Left(Reader),
}

/// One of them.
pub(super) struct ReaderSocket {
    /// None once it is closed.
    channel: Option<Channel>,
    process: OwnedFd,
    frames: FrameReader,
    stage: Stage,
}

impl ReaderSocket {
    pub fn has_joined(&self) -> bool {
        matches!(self.stage, Stage::Joined(_))
    }

    pub fn due(&self, now: Moment) -> Option<Moment> {
        let has_unsent = self.channel.as_ref().is_some_and(Channel::has_unsent);
        match self.stage {
            Stage::Proving { until, .. } => Some(until),
            _ => has_unsent.then(|| now + SEND_PAUSE),
        }
    }
}

impl<C: Copy + Eq + Hash> PeerSockets<C> {
    pub(super) fn accept_some(&mut self, now: Moment) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Ok((socket, _)) = self.listener.listener().accept() else { return };
            let is_ours = peer_credentials(socket.as_fd()).is_ok_and(|peer| peer.uid == self.uid);
            let process = peer_pidfd(socket.as_fd());
            let (Ok(process), true, Ok(())) = (process, is_ours, socket.set_nonblocking(true)) else {
                self.refused += 1;
                continue;
            };
            let number = self.number();
            let has_room = self.readers.len() < READERS_MAX;
            if !has_room || self.watch_socket(socket.as_fd(), number).is_err() {
                self.refused += 1;
                continue;
            }
            let stage = Stage::Proving { shown: Vec::new(), until: now + PROOF_WAIT };
            let (channel, frames) = (Some(Channel::new(socket.into())), FrameReader::new());
            self.readers.insert(number, ReaderSocket { channel, process, frames, stage });
        }
    }

    pub(super) fn hear_reader(&mut self, number: u64, heard: &mut Vec<Heard<C>>) {
        let Some(socket) = self.readers.get_mut(&number) else { return };
        let Some(channel) = &socket.channel else { return };
        let done = channel.receive().and_then(|(bytes, _)| socket.on_bytes(&bytes, heard));
        if done == Err(Broken) {
            self.end_reader(number, heard);
        }
    }

    /// What readers show that have not joined, whole.
    pub fn shown(&self) -> Vec<(u64, [u8; PROOF_BYTES])> {
        let of = |(number, socket): (&u64, &ReaderSocket)| match &socket.stage {
            Stage::Proving { shown, .. } => Some((*number, shown.as_slice().try_into().ok()?)),
            _ => None,
        };
        self.readers.iter().filter_map(of).collect()
    }

    /// A reader has shown what this node alone can show: it is given our half and the arena.
    pub fn admit(&mut self, number: u64, node: NodeId, proof: &[u8; PROOF_BYTES]) -> Option<Reader> {
        let socket = self.readers.get_mut(&number)?;
        let reader = Reader { node, boot: self.boot, process: number };
        let said = socket.channel.as_mut()?.say_with(proof, self.arena.as_fd());
        if said.is_err() || self.watch_process(self.readers[&number].process.as_fd(), number).is_err() {
            self.refused += 1;
            self.readers.remove(&number);
            return None;
        }
        self.readers.get_mut(&number)?.stage = Stage::Joined(reader);
        Some(reader)
    }

    /// Answers a Released.
    pub fn say_drained(&mut self, reader: &Reader, operation: OperationId) {
        let channel = self.readers.get_mut(&reader.process).and_then(|socket| socket.channel.as_mut());
        let Some(channel) = channel else { return };
        let mut frame = Vec::new();
        append_from_source(&mut frame, Tag::NONE, operation, &FromSource::Drained);
        // A socket that breaks says so itself.
        let _ = channel.say(&frame);
    }

    pub(super) fn on_process_dead(&mut self, number: u64, heard: &mut Vec<Heard<C>>) {
        match self.readers.remove(&number).map(|socket| socket.stage) {
            Some(Stage::Joined(reader) | Stage::Left(reader)) => heard.push(Heard::ReaderDead(reader)),
            Some(Stage::Proving { .. }) | None => {}
        }
    }

    pub(super) fn expire_reader(&mut self, number: u64, now: Moment, heard: &mut Vec<Heard<C>>) {
        let socket = self.readers.get_mut(&number).expect("just listed");
        let is_late = matches!(&socket.stage, Stage::Proving { until, .. } if *until <= now);
        let broken = socket.channel.as_mut().is_some_and(|channel| channel.send().is_err());
        if is_late || broken {
            self.end_reader(number, heard);
        }
    }

    /// A socket is of no use any more; its process is watched on.
    fn end_reader(&mut self, number: u64, heard: &mut Vec<Heard<C>>) {
        let socket = self.readers.get_mut(&number).expect("a reader that was just heard");
        // Closing it is what ends its watch.
        socket.channel = None;
        match socket.stage {
            Stage::Joined(reader) => {
                socket.stage = Stage::Left(reader);
                heard.push(Heard::ReaderLeft(reader));
            }
            Stage::Proving { .. } => {
                self.refused += 1;
                self.readers.remove(&number);
            }
            Stage::Left(_) => {}
        }
    }

    /// Watches processes no more of which nothing is waited for.
    pub fn forget_readers(&mut self, is_awaited: impl Fn(&Reader) -> bool) {
        self.readers.retain(|_, socket| match &socket.stage {
            Stage::Left(reader) => is_awaited(reader),
            _ => true,
        });
    }
}

impl ReaderSocket {
    fn on_bytes<C>(&mut self, bytes: &[u8], heard: &mut Vec<Heard<C>>) -> Result<(), Broken> {
        let reader = match &mut self.stage {
            Stage::Proving { shown, .. } => {
                shown.extend_from_slice(bytes);
                // Who has shown all says nothing before it is answered.
                return if shown.len() <= PROOF_BYTES { Ok(()) } else { Err(Broken) };
            }
            Stage::Joined(reader) | Stage::Left(reader) => *reader,
        };
        let split = |bytes: &[u8]| split_frame(bytes).map(|found| found.map(|(_, body)| body.end));
        let said = self.frames.on_chunk(bytes, split, |frame| {
            let (header, body) = split_frame(frame)?.expect("handed out whole");
            match decode_from_requester(&header, &frame[body])? {
                FromRequester::Released(operation) => heard.push(Heard::Released(reader, operation)),
                FromRequester::Release(_) | FromRequester::Cancel(_) => {
                    return Err(FrameError::Kind { number: header.kind });
                }
            }
            Ok(())
        });
        said.map_err(|error| {
            tracing::warn!(node = %reader.node, %error, "a reader sent no frame of a peer socket");
            Broken
        })
    }
}
