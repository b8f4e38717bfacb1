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

use super::Interest;
use crate::engine::EngineStream;
use crate::engine::connection::give_room_back;

/// Process deaths taken in one turn; the others keep the descriptor readable.
const DEATHS_PER_TURN: usize = 64;

/// Descriptors that one connection takes at most: its socket, its process, and a watch in each direction.
pub const DESCRIPTORS_PER_CONNECTION: u64 = 4;

/// A connection's socket.
#[derive(Debug)]
enum Socket {
    /// The engine has not been passed the arena yet.
    Fresh(UnixStream),
    /// It has.
    Sharing(UnixStream),
    /// Closed, while the process may live.
    Closed,
}

/// What the watches of a socket wait for: one for bytes and one for room at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Nothing.
    Nothing,
    /// Bytes to receive.
    Bytes,
    /// Room to send.
    Room,
    /// Either, each with a watch of its own.
    Both,
}

impl Watched {
    /// Whether a watch waits for it.
    #[must_use]
    pub fn has(self, interest: Interest) -> bool {
        self == Watched::Both || self == Watched::only(interest)
    }

    /// With a watch for it as well.
    #[must_use]
    pub fn with(self, interest: Interest) -> Watched {
        match self {
            Watched::Nothing => Watched::only(interest),
            _ if self.has(interest) => self,
            _ => Watched::Both,
        }
    }

    /// Without a watch for it.
    #[must_use]
    pub fn without(self, interest: Interest) -> Watched {
        match (self, interest) {
            (Watched::Both, Interest::Read) => Watched::Room,
            (Watched::Both, Interest::Write) => Watched::Bytes,
            (one, interest) if one == Watched::only(interest) => Watched::Nothing,
            (other, _) => other,
        }
    }

    fn only(interest: Interest) -> Watched {
        match interest {
            Interest::Read => Watched::Bytes,
            Interest::Write => Watched::Room,
        }
    }
}

/// One connection's descriptors.
pub struct Stream {
    /// What watches wait for.
    pub watched: Watched,
    socket: Socket,
    process: OwnedFd,
}

impl Stream {
    /// The socket, unless it is closed.
    #[must_use]
    pub fn socket(&self) -> Option<&UnixStream> {
        match &self.socket {
            Socket::Fresh(socket) | Socket::Sharing(socket) => Some(socket),
            Socket::Closed => None,
        }
    }

    /// Sends what goes of `bytes`, the arena with the first of a greeted engine.
    fn send(&mut self, bytes: &[u8], arena: BorrowedFd<'_>, greeted: bool) -> io::Result<usize> {
        let socket = self.socket().ok_or(io::ErrorKind::NotConnected)?;
        if !greeted || matches!(self.socket, Socket::Sharing(_)) {
            return Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?);
        }
        let sent = send_with_fds(socket.as_fd(), bytes, &[arena])?;
        if let Socket::Fresh(socket) = std::mem::replace(&mut self.socket, Socket::Closed) {
            self.socket = Socket::Sharing(socket);
        }
        Ok(sent)
    }
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
        let socket = Socket::Fresh(stream.socket);
        let stream = Stream { watched: Watched::Nothing, socket, process: stream.process };
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
        let open = self.streams.iter().filter(|(_, stream)| stream.socket().is_some());
        open.map(|(&id, _)| id).collect()
    }

    /// Closes a socket; the process is watched on.
    pub fn close(&mut self, id: ConnectionId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Some(socket) = stream.socket() {
            // Watches hold duplicates: the shutdown wakes them, so that they end.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
        stream.socket = Socket::Closed;
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
        let Some(socket) = self.streams.get(&id).and_then(Stream::socket) else {
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
        let mut sent = 0;
        let outcome = loop {
            if sent == bytes.len() {
                break if stream.socket().is_some() { Sent::All } else { Sent::Broken };
            }
            let result = stream.send(&bytes[sent..], arena, greeted);
            match result {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Sent::Blocked,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break Sent::Broken,
            }
        };
        bytes.drain(..sent);
        give_room_back(bytes);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_watch_comes_and_goes_by_itself() {
        let (read, write) = (Interest::Read, Interest::Write);
        let both = Watched::Nothing.with(read).with(write);
        assert_eq!((both, both.with(read)), (Watched::Both, Watched::Both));
        assert_eq!((both.without(read), both.without(write)), (Watched::Room, Watched::Bytes));
        for interest in [read, write] {
            let one = Watched::Nothing.with(interest);
            assert!(one.has(interest) && one.with(interest) == one);
            assert_eq!(one.without(interest), Watched::Nothing);
            assert!(!both.without(interest).has(interest) && !Watched::Nothing.has(interest));
        }
        assert_eq!(Watched::Bytes.without(write), Watched::Bytes);
    }
}
