//! The socket and its two bounded buffers: whole frames in, whole frames out, never blocking.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use orbitkv_native::engine_socket::{peer_credentials, recv_with_fds};
use orbitkv_wire::bounds::FRAME_BYTES_MAX;
use orbitkv_wire::engine::{FrameError, Header, split_frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};

use super::error::ClientError;

/// Unsent bytes beyond which no more requests are taken: room for two of the largest.
const OUTGOING_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

/// The connection has ended; why, for the text of an error.
#[derive(Debug)]
pub(super) struct Lost(pub(super) String);

pub(super) struct Channel {
    socket: OwnedFd,
    /// Always [`FRAME_BYTES_MAX`] long; `filled` of it hold received bytes. The pages of the
    /// rest are untouched until a frame needs them.
    received: Box<[u8]>,
    filled: Range<usize>,
    outgoing: Vec<u8>,
    sent: usize,
    /// Whether the caller's descriptor wakes for writing too.
    pub(super) watched_for_writing: bool,
}

impl Channel {
    /// Connects without ever blocking; a full backlog is an error like a missing listener.
    pub(super) fn connect(path: &Path) -> Result<Channel, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Channel {
            socket,
            received: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
            filled: 0..0,
            outgoing: Vec::new(),
            sent: 0,
            watched_for_writing: false,
        })
    }

    /// User id of whoever listened at the socket when we connected.
    pub(super) fn peer_uid(&self) -> Result<u32, ClientError> {
        peer_credentials(self.socket.as_fd()).map(|peer| peer.uid).map_err(|error| ClientError::System {
            step: "getsockopt(SO_PEERCRED)",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes the next whole frame: its header, and its body's range for [`Self::body`].
    pub(super) fn next_frame(&mut self) -> Result<Option<(Header, Range<usize>)>, FrameError> {
        let Some((header, body)) = split_frame(&self.received[self.filled.clone()])? else { return Ok(None) };
        let body = self.filled.start + body.start..self.filled.start + body.end;
        self.filled.start = body.end;
        Ok(Some((header, body)))
    }

    /// The body [`Self::next_frame`] found; valid until the next receive.
    pub(super) fn body(&self, body: Range<usize>) -> &[u8] {
        &self.received[body]
    }

    /// Reads what is there, at most what fits; false if nothing is. All whole frames must have
    /// been taken before, so that there is always room.
    pub(super) fn receive(&mut self) -> Result<bool, Lost> {
        self.receive_by(|socket, buffer| recv(socket, buffer, RecvFlags::empty()).map(|(count, _)| count))
    }

    /// As [`Self::receive`]; keeps the descriptors that came along. For the handshake.
    pub(super) fn receive_with_fds(&mut self, fds: &mut Vec<OwnedFd>) -> Result<bool, Lost> {
        self.receive_by(|socket, buffer| match recv_with_fds(socket, buffer) {
            Ok((count, more)) => {
                fds.extend(more);
                Ok(count)
            }
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::PROTO)),
        })
    }

    fn receive_by(
        &mut self,
        mut read: impl FnMut(BorrowedFd<'_>, &mut [u8]) -> Result<usize, Errno>,
    ) -> Result<bool, Lost> {
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.filled.end == self.received.len() {
            self.received.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        assert!(self.filled.end < self.received.len(), "a buffer of one largest frame holds a whole frame");
        loop {
            match read(self.socket.as_fd(), &mut self.received[self.filled.end..]) {
                Ok(0) => return Err(Lost("the node closed it".into())),
                Ok(count) => {
                    self.filled.end += count;
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(Lost(errno.to_string())),
            }
        }
    }

    /// Where a request's frame is appended; see [`Self::has_room`].
    pub(super) fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// Forgets what was appended since the buffer was `length` long.
    pub(super) fn withdraw(&mut self, length: usize) {
        self.outgoing.truncate(length);
    }

    /// Whether one more frame may be appended.
    pub(super) fn has_room(&self) -> bool {
        self.outgoing.len() - self.sent < OUTGOING_BYTES_MAX
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), Lost> {
        while self.sent < self.outgoing.len() {
            match send(&self.socket, &self.outgoing[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(Lost(errno.to_string())),
            }
        }
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        } else if self.sent >= FRAME_BYTES_MAX {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Waits until the socket can be read, or written if bytes are unsent, or until `until`.
    pub(super) fn wait(&self, until: Instant) -> Result<(), ClientError> {
        let wanted = if self.has_unsent() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let left = until.saturating_duration_since(Instant::now());
        let timeout = timespec(left);
        match poll(&mut [PollFd::new(&self.socket, wanted)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(ClientError::System { step: "poll", errno }),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}
