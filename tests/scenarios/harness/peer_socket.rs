//! The reader's end of a peer socket, played by the test: what a node of the same host says there, byte for byte.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use orbitkv_native::engine_socket::recv_with_fds;
use orbitkv_wire::payload::{
    FromRequester, FromSource, OperationId, Tag, append_from_requester, decode_from_source, split_frame,
};

/// Names under which either half of the greeting is exported from the session of a payload connection. They are
/// the version of what is said on peer sockets, and so written down here once more.
pub const REQUESTER_PROOF: &str = "EXPORTER-orbitkv-peer-socket-v1-requester";
/// As [`REQUESTER_PROOF`].
pub const SOURCE_PROOF: &str = "EXPORTER-orbitkv-peer-socket-v1-source";

/// Bytes that either side shows.
pub type Proof = [u8; 32];

/// A connection to a peer socket. It is closed when dropped.
pub struct PeerSocket {
    stream: UnixStream,
    heard: Vec<u8>,
    /// The source's arena, for reading alone, once it has come.
    arena: Option<File>,
    drained: Vec<OperationId>,
}

impl PeerSocket {
    /// Connects and shows the reader's half.
    pub fn show(path: &Path, proof: &Proof) -> PeerSocket {
        let mut stream = UnixStream::connect(path).expect("the source listens");
        stream.set_nonblocking(true).expect("a socket");
        stream.write_all(proof).expect("a new socket has room");
        PeerSocket { stream, heard: Vec::new(), arena: None, drained: Vec::new() }
    }

    /// Takes in what has come; false once the source has closed the socket.
    pub fn hear(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match recv_with_fds(self.stream.as_fd(), &mut buffer) {
                Ok((0, _)) => return false,
                Ok((received, fds)) => {
                    self.heard.extend_from_slice(&buffer[..received]);
                    self.arena = self.arena.take().or(fds.into_iter().next().map(File::from));
                }
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    /// Whether the source has shown its half and its arena.
    ///
    /// # Panics
    /// If it has shown something else.
    pub fn has_joined(&mut self, expected: &Proof) -> bool {
        if self.heard.len() < expected.len() {
            return false;
        }
        let shown: Vec<u8> = self.heard.drain(..expected.len()).collect();
        assert!(shown == *expected, "the source shows what only the two ends of the connection know");
        assert!(self.arena.is_some(), "the arena comes with the source's half");
        true
    }

    /// Bytes of the source's arena, whoever they are for.
    pub fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        let arena = self.arena.as_ref().expect("it has joined");
        arena.read_exact_at(&mut read, offset).expect("the arena has such a place");
        read
    }

    /// Says that nothing of an operation is read any more.
    pub fn say_released(&mut self, operation: OperationId) {
        let mut frame = Vec::new();
        append_from_requester(&mut frame, Tag::NONE, FromRequester::Released(operation));
        self.stream.write_all(&frame).expect("the source reads");
    }

    /// Whether the source has answered a Released, once for each time that it was said.
    ///
    /// # Panics
    /// If it says anything else, or has closed the socket.
    pub fn take_drained(&mut self, operation: OperationId) -> bool {
        assert!(self.hear(), "the source has closed its socket");
        while let Some((header, body)) = split_frame(&self.heard).expect("the node's frames are valid") {
            let end = body.end;
            let said = decode_from_source(&header, &self.heard[body]).expect("the node's frames are valid");
            assert_eq!(said, FromSource::Drained, "nothing else is said on a peer socket");
            self.drained.push(header.operation());
            self.heard.drain(..end);
        }
        let answer = self.drained.iter().position(|drained| *drained == operation);
        answer.map(|answer| self.drained.swap_remove(answer)).is_some()
    }
}
