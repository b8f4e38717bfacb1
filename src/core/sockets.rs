//! Descriptors of a core's engine connections: accepting, receiving, sending, and the death of
//! their processes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use orbitkv_native::engine_socket::{EngineSocket, peer_credentials, peer_pidfd, send_with_fds};
use orbitkv_shards::leases::ConnectionId;
use rustix::event::{Timespec, epoll};
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::engine::EngineStream;

/// Process deaths taken in one turn; the others keep the descriptor readable.
const DEATHS_PER_TURN: usize = 64;

/// One connection's descriptors.
pub struct Stream {
    /// The socket; `None` once closed while the process lives.
    pub socket: Option<UnixStream>,
    /// Whether the arena has been passed.
    pub arena_sent: bool,
    /// Whether a watch waits for room to send.
    pub write_watched: bool,
    /// Whether a watch waits for bytes.
    pub read_watched: bool,
    process: OwnedFd,
}

/// All of them.
pub struct Sockets {
    streams: BTreeMap<ConnectionId, Stream>,
    processes: OwnedFd,
}

/// What became of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Everything is on its way.
    All,
    /// The engine does not read; the rest waits.
    Blocked,
    /// The socket is of no use any more.
    Broken,
}

impl Sockets {
    /// No connections.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Sockets> {
        let processes = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Sockets { streams: BTreeMap::new(), processes })
    }

    /// Readable once a watched process is gone.
    #[must_use]
    pub fn processes(&self) -> BorrowedFd<'_> {
        self.processes.as_fd()
    }

    /// Takes a connection in.
    ///
    /// # Errors
    /// If its process cannot be watched: the connection is then refused.
    pub fn insert(&mut self, id: ConnectionId, stream: EngineStream) -> io::Result<()> {
        let data = epoll::EventData::new_u64(id.0);
        epoll::add(&self.processes, &stream.process, data, epoll::EventFlags::IN)?;
        let stream = Stream {
            socket: Some(stream.socket),
            arena_sent: false,
            write_watched: false,
            read_watched: false,
            process: stream.process,
        };
        self.streams.insert(id, stream);
        Ok(())
    }

    /// A connection's descriptors, if it is known.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Stream> {
        self.streams.get_mut(&id)
    }

    /// Connections with a socket.
    #[must_use]
    pub fn open(&self) -> Vec<ConnectionId> {
        let open = self.streams.iter().filter(|(_, stream)| stream.socket.is_some());
        open.map(|(&id, _)| id).collect()
    }

    /// Closes a socket; the process is watched on.
    pub fn close(&mut self, id: ConnectionId) {
        if let Some(socket) = self.streams.get_mut(&id).and_then(|stream| stream.socket.take()) {
            // Watches hold duplicates: the shutdown wakes them, so that they end.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
    }

    /// Forgets a connection altogether.
    pub fn remove(&mut self, id: ConnectionId) {
        self.close(id);
        if let Some(stream) = self.streams.remove(&id) {
            let _ = epoll::delete(&self.processes, &stream.process);
        }
    }

    /// Connections whose process is gone.
    pub fn take_deaths(&mut self) -> Vec<ConnectionId> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(DEATHS_PER_TURN);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.processes, rustix::buffer::spare_capacity(&mut events), Some(&none)) {
            Ok(_) => events.iter().map(|event| ConnectionId(event.data.u64())).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Receives into `buffer`; `Ok(None)` if nothing is there, `Ok(Some(0))` at the end of the stream.
    ///
    /// # Errors
    /// Whatever breaks the socket.
    pub fn receive(&mut self, id: ConnectionId, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(socket) = self.streams.get(&id).and_then(|stream| stream.socket.as_ref()) else {
            return Ok(Some(0));
        };
        match rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT) {
            Ok((_, received)) => Ok(Some(received)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends as much of `bytes` as goes; the first bytes of a connection carry the arena with them.
    pub fn send(
        &mut self,
        id: ConnectionId,
        bytes: &mut Vec<u8>,
        arena: BorrowedFd<'_>,
        greeted: bool,
    ) -> Sent {
        let Some(stream) = self.streams.get_mut(&id) else { return Sent::Broken };
        let Some(socket) = stream.socket.as_ref() else { return Sent::Broken };
        let mut sent = 0;
        let outcome = loop {
            if sent == bytes.len() {
                break Sent::All;
            }
            let rest = &bytes[sent..];
            let result = if greeted && !stream.arena_sent {
                send_with_fds(socket.as_fd(), rest, &[arena]).inspect(|_| stream.arena_sent = true)
            } else {
                rustix::net::send(socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
                    .map_err(io::Error::from)
            };
            match result {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Sent::Blocked,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break Sent::Broken,
            }
        };
        bytes.drain(..sent);
        outcome
    }
}

/// What became of accepting.
#[derive(Debug)]
pub enum Accepted {
    /// An engine, let in.
    Engine(EngineStream),
    /// Nobody waits.
    Nobody,
    /// Its user may not use this node.
    OtherUser(u32),
    /// The kernel did not say who it is, or the engine has gone already.
    Unknown(io::Error),
    /// Nobody can be accepted for now: the process has no descriptor or memory left.
    Exhausted(io::Error),
}

/// Accepts one waiting engine.
pub fn accept(listener: &EngineSocket, admitted_uids: &[u32]) -> Accepted {
    let socket = match listener.listener().accept() {
        Ok((socket, _)) => socket,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::WouldBlock => Accepted::Nobody,
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => Accepted::Unknown(error),
                _ => Accepted::Exhausted(error),
            };
        }
    };
    let identified = (|| {
        socket.set_nonblocking(true)?;
        let peer = peer_credentials(socket.as_fd())?;
        io::Result::Ok((peer, peer_pidfd(socket.as_fd())?))
    })();
    match identified {
        Ok((peer, _)) if !admitted_uids.contains(&peer.uid) => Accepted::OtherUser(peer.uid),
        Ok((peer, process)) => {
            let (process_id, user_id) = (peer.pid, peer.uid);
            Accepted::Engine(EngineStream { socket, process, process_id, user_id })
        }
        Err(error) => Accepted::Unknown(error),
    }
}
