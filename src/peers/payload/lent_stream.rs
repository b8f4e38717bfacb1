//! A stream on which this core lends: what was asked on it, and what is still to be sent.

use std::collections::VecDeque;

use bytes::Bytes;
use orbitkv_native::quic::{self, Endpoint, FrameReader, StreamId, WriteRefusal};
use orbitkv_shards::flow::egress::SendOutcome;
use orbitkv_shards::time::Moment;
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
    /// When its bytes are of no use any more.
    pub due: Moment,
    /// Frames, and handles to the arena; dropping them is what gives the memory back.
    queue: VecDeque<Bytes>,
    queued_bytes: u64,
    /// Of those, bytes that wait for their turn to be sent.
    listed_bytes: u64,
    then: Then,
}

impl LentStream {
    /// Queues bytes behind what waits.
    pub fn push(&mut self, bytes: Bytes) {
        self.queued_bytes += bytes.len() as u64;
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

    /// Whether what is queued waits for its turn: what is pushed then goes behind it.
    pub fn is_listed(&self) -> bool {
        self.listed_bytes > 0
    }

    /// Bytes that wait for their turn; what was pushed since and not listed is behind them.
    pub fn listed_bytes(&self) -> u64 {
        self.listed_bytes
    }

    /// Makes all that is queued wait for its turn: how many bytes of it did not.
    pub fn list(&mut self) -> u64 {
        let fresh_bytes = self.queued_bytes - self.listed_bytes;
        self.listed_bytes = self.queued_bytes;
        fresh_bytes
    }

    /// Sends as far as the transport takes it, and no more than so many bytes; how many it took, and whether it takes
    /// no more. If the stream is over nothing waits on it any more.
    pub fn send(
        &mut self,
        connection: quic::ConnectionId,
        stream: StreamId,
        endpoint: &mut Endpoint,
        bytes_max: u64,
    ) -> (u64, SendOutcome) {
        let mut left_bytes = bytes_max;
        let mut taken = SendOutcome::All;
        while left_bytes > 0
            && let Some(mut bytes) = self.queue.pop_front()
        {
            if bytes.len() as u64 > left_bytes {
                self.queue.push_front(bytes.split_off(left_bytes as usize));
            }
            let length = bytes.len() as u64;
            match endpoint.write(connection, stream, bytes) {
                Ok(()) => left_bytes -= length,
                Err(WriteRefusal::Blocked(bytes)) => {
                    self.queue.push_front(bytes);
                    taken = SendOutcome::Blocked;
                    break;
                }
                Err(WriteRefusal::Closed) => {
                    self.queue.clear();
                    (self.queued_bytes, self.listed_bytes) = (0, 0);
                    break;
                }
            }
        }
        let sent_bytes = bytes_max - left_bytes;
        self.note_sent(sent_bytes);
        if self.queue.is_empty() && self.then == Then::Finish {
            self.then = Then::Finished;
            endpoint.finish(connection, stream);
        }
        (sent_bytes, taken)
    }

    /// What is listed is at the head of the queue, so it goes first.
    fn note_sent(&mut self, bytes: u64) {
        self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
        self.listed_bytes = self.listed_bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_behind_a_listed_part_is_not_listed_when_that_goes() {
        let mut lent = LentStream::default();
        lent.push(Bytes::from_static(&[0; 10]));
        assert_eq!(lent.list(), 10);
        lent.push(Bytes::from_static(&[0; 5]));
        lent.note_sent(4);
        assert_eq!((lent.listed_bytes(), lent.queued_bytes), (6, 11));
        lent.note_sent(6);
        assert!(!lent.is_listed());
        assert_eq!(lent.list(), 5);
    }
}
