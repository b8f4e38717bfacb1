//! Peer sockets of one core: who of this host reads in our arena, and whose arena we read in (chapter 3.3).
//!
//! A source's core listens on a Unix socket; a requester's core connects to it once it has a payload connection
//! to that core, and shows what only the two ends of that connection know. The source answers with the other half
//! of it and its arena, opened for reading alone. From then on the requester says Released and the source Drained.
//!
//! A socket proves who somebody is when it begins, and outlives the connection it was proved with: a Released is
//! true whatever becomes of the connection. What is owed is kept here until it has been answered, and said again
//! on the next socket if one breaks. A reader's process is watched as long as anything waits for its word.
//!
//! Nothing here decides: [`PeerSockets::attend`] tells what was heard, and the payload driver tells the rooms.

mod channel;
mod readers;
mod sources;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use orbitkv_native::arena::Arena;
use orbitkv_native::engine_socket::{EngineSocket, EngineSocketError, Reach};
use orbitkv_shards::grants::Reader;
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{NodeId, ShardIndex};
use orbitkv_wire::payload::OperationId;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::super::settings::PAYLOAD_CONNECTIONS_PLANNED;
use readers::ReaderSocket;
use sources::SourceSocket;

/// Bytes that either side shows.
pub const PROOF_BYTES: usize = 32;

/// What the requester shows is exported under this name, and what the source shows under the other; a new version
/// of what is said on peer sockets has new names.
pub const REQUESTER_PROOF: &str = "EXPORTER-orbitkv-peer-socket-v1-requester";
/// As [`REQUESTER_PROOF`].
pub const SOURCE_PROOF: &str = "EXPORTER-orbitkv-peer-socket-v1-source";

/// How long either side waits for the other to prove itself.
const PROOF_WAIT: Duration = Duration::from_secs(2);

/// How long a core waits before it connects again to a source whose socket has broken.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// How often what a neighbour does not read is offered again.
const SEND_PAUSE: Duration = Duration::from_millis(5);

/// Readers of a core, those included that have not proved themselves and those that are only awaited: more nodes
/// than a host has. Whoever finds no room is served over QUIC.
const READERS_MAX: usize = 32;

/// Descriptors that peer sockets take of a core at most: a socket and a process for each reader, as many sockets to
/// sources as there are payload connections and those that part, the listener and its lock, what they are watched
/// with, and the arena.
pub const PEER_DESCRIPTORS_PER_CORE: u64 = 2 * READERS_MAX as u64 + 2 * PAYLOAD_CONNECTIONS_PLANNED + 5;

/// What happens on peer sockets is taken in this many at a time.
const EVENTS_PER_TURN: usize = 64;

/// The watched thing of an epoll event.
const LISTENER: u64 = 0;

/// Operations that one source may be owed a Released for before no more are begun with it.
const OWED_MAX: usize = 1_024;

/// What has been heard, in order.
#[derive(Debug)]
pub enum Heard<C> {
    /// A reader has said that it reads nothing of an operation any more.
    Released(Reader, OperationId),
    /// A reader's socket is closed.
    ReaderLeft(Reader),
    /// A reader's process is dead.
    ReaderDead(Reader),
    /// The source of this connection lets us read in its arena.
    Joined(C),
    /// It does not.
    Refused(C),
    /// It does no more.
    Left(C),
}

/// A shard of a source, whichever its life.
pub(super) type SourceKey = (NodeId, ShardIndex);

/// Where a core of a node listens, below the path that the node's member record names.
#[must_use]
pub fn socket_path(base: &Path, shard: ShardIndex) -> PathBuf {
    let mut path = base.as_os_str().to_owned();
    path.push(format!(".{}", shard.0));
    PathBuf::from(path)
}

/// Binds the peer socket of a core.
///
/// # Errors
/// As [`EngineSocket::bind`].
pub fn bind(base: &Path, shard: ShardIndex) -> Result<EngineSocket, EngineSocketError> {
    EngineSocket::bind(&socket_path(base, shard), Reach::OwnUser)
}

/// All of one core. `C` names the payload connections that sources are joined with.
pub struct PeerSockets<C> {
    listener: EngineSocket,
    boot: [u8; 16],
    uid: u32,
    /// Our own, for reading alone.
    arena: OwnedFd,
    epoll: OwnedFd,
    /// Sockets are numbered; a number is also what a reader's process is known by.
    made: u64,
    readers: BTreeMap<u64, ReaderSocket>,
    sources: BTreeMap<u64, SourceSocket<C>>,
    by_connection: HashMap<C, u64>,
    owed: BTreeMap<SourceKey, BTreeSet<OperationId>>,
    /// When connections whose socket has broken try again.
    retries: HashMap<C, Moment>,
    refused: u64,
}

impl<C: Copy + Eq + Hash> PeerSockets<C> {
    /// A core that listens, on the host of this boot.
    ///
    /// # Errors
    /// If the process has no descriptors left, or `/proc` is not there.
    pub fn new(listener: EngineSocket, boot: [u8; 16], arena: &Arena) -> io::Result<PeerSockets<C>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, listener.listener(), data, epoll::EventFlags::IN)?;
        Ok(PeerSockets {
            listener,
            boot,
            uid: rustix::process::geteuid().as_raw(),
            arena: arena.read_only_fd()?,
            epoll,
            made: 0,
            readers: BTreeMap::new(),
            sources: BTreeMap::new(),
            by_connection: HashMap::new(),
            owed: BTreeMap::new(),
            retries: HashMap::new(),
            refused: 0,
        })
    }

    /// Readable when something has happened.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The boot of this host.
    #[must_use]
    pub fn boot(&self) -> &[u8; 16] {
        &self.boot
    }

    /// Readers that have our arena.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.readers.values().filter(|reader| reader.has_joined()).count()
    }

    /// Who came and was not let in.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Takes in what has happened, if the descriptor is readable, and ends what has waited too long.
    pub fn attend(&mut self, is_readable: bool, now: Moment) -> Vec<Heard<C>> {
        let mut heard = Vec::new();
        if is_readable {
            self.hear(now, &mut heard);
        }
        for number in self.readers.keys().copied().collect::<Vec<_>>() {
            self.expire_reader(number, now, &mut heard);
        }
        for number in self.sources.keys().copied().collect::<Vec<_>>() {
            self.expire_source(number, now, &mut heard);
        }
        heard
    }

    fn hear(&mut self, now: Moment, heard: &mut Vec<Heard<C>>) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_PER_TURN);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error is an interruption: what has happened is there the next time.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&none));
        for event in events {
            let (number, is_process) = (event.data.u64() >> 1, event.data.u64() & 1 == 1);
            match event.data.u64() {
                LISTENER => self.accept_some(now),
                _ if is_process => self.on_process_dead(number, heard),
                _ if self.readers.contains_key(&number) => self.hear_reader(number, heard),
                _ => self.hear_source(number, now, heard),
            }
        }
    }

    /// When there is something to do if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self, now: Moment) -> Option<Moment> {
        let readers = self.readers.values().filter_map(|reader| reader.due(now));
        let sources = self.sources.values().filter_map(|source| source.due(now));
        readers.chain(sources).chain(self.retries.values().copied()).min()
    }

    fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    /// Watches a socket for bytes.
    fn watch_socket(&self, fd: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number << 1);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Watches a process for its end.
    fn watch_process(&self, fd: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number << 1 | 1);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }
}

#[cfg(test)]
mod tests;
