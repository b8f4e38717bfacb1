//! A stream on which this core lends: what was asked on it, and what is still to be sent.

use std::collections::VecDeque;

use bytes::Bytes;
use orbitkv_native::quic::{self, Endpoint, FrameReader, StreamId, WriteRefusal};
use orbitkv_wire::payload::OperationId;

/// What comes after the last of the queued bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Then {
    /// More may follow.
    #[default]
    Nothing,
    /// FIN.
    Finish,
    /// FIN has been said.
    Finished,
}

/// One stream.
#[derive(Default)]
pub(super) struct LentStream {
    pub reader: FrameReader,
    /// What was asked on it: one operation, or none.
    pub operation: Option<OperationId>,
    /// Frames, and handles to the arena; dropping them is what gives the memory back.
    queue: VecDeque<Bytes>,
    then: Then,
}

impl LentStream {
    /// Queues bytes behind what waits.
    pub fn push(&mut self, bytes: Bytes) {
        self.queue.push_back(bytes);
    }

    /// The operation, if not everything of it was sent.
    pub fn unfinished(self) -> Option<OperationId> {
        self.operation.filter(|_| self.then != Then::Finished)
    }

    /// Nothing follows what is queued.
    pub fn finish(&mut self) {
        if self.then == Then::Nothing {
            self.then = Then::Finish;
        }
    }

    /// Sends as far as the transport takes it.
    pub fn send(&mut self, connection: quic::ConnectionId, stream: StreamId, endpoint: &mut Endpoint) {
        while let Some(bytes) = self.queue.pop_front() {
            match endpoint.write(connection, stream, bytes) {
                Ok(()) => {}
                Err(WriteRefusal::Blocked(bytes)) => {
                    self.queue.push_front(bytes);
                    return;
                }
                Err(WriteRefusal::Closed) => self.queue.clear(),
            }
        }
        if self.then == Then::Finish {
            self.then = Then::Finished;
            endpoint.finish(connection, stream);
        }
    }
}
