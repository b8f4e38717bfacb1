//! One peer socket: what comes is handed on as it comes, what the kernel does not take waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use orbitkv_native::engine_socket::{recv_with_fds, send_with_fds};
use rustix::net::SendFlags;

/// Bytes received at once: hundreds of frames.
const RECEIVE_BYTES: usize = 16 * 1024;

/// Bytes that may wait for a neighbour that does not read: more than all it can be owed.
const UNSENT_BYTES_MAX: usize = 128 * 1024;

/// The socket is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// A connected peer socket, nonblocking.
pub struct Channel {
    socket: OwnedFd,
    unsent: Vec<u8>,
}

impl Channel {
    pub fn new(socket: OwnedFd) -> Channel {
        Channel { socket, unsent: Vec::new() }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether something waits for the neighbour to read.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// What has come, with its descriptors; no bytes if nothing has.
    pub fn receive(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), Broken> {
        let mut buffer = vec![0; RECEIVE_BYTES];
        match recv_with_fds(self.fd(), &mut buffer) {
            Ok((0, _)) => Err(Broken),
            Ok((received, fds)) => {
                buffer.truncate(received);
                Ok((buffer, fds))
            }
            Err(error) if is_passing(&error) => Ok((Vec::new(), Vec::new())),
            Err(_) => Err(Broken),
        }
    }

    /// Says a few bytes, and a descriptor with them. Only the first word of a socket: it has room.
    pub fn say_with(&mut self, bytes: &[u8], fd: BorrowedFd<'_>) -> Result<(), Broken> {
        match send_with_fds(self.fd(), bytes, &[fd]) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            _ => Err(Broken),
        }
    }

    /// Says something; it waits while the kernel does not take it.
    pub fn say(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.unsent.extend_from_slice(bytes);
        self.send()
    }

    /// Sends what waits, as far as it goes.
    pub fn send(&mut self) -> Result<(), Broken> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match rustix::net::send(
                &self.socket,
                &self.unsent[sent..],
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(count) => sent += count,
                Err(error) if is_passing(&error.into()) => break,
                Err(_) => return Err(Broken),
            }
        }
        self.unsent.drain(..sent);
        if self.unsent.len() > UNSENT_BYTES_MAX { Err(Broken) } else { Ok(()) }
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
}
