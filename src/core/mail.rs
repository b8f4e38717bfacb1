//! Mail between cores: one bounded ring per ordered pair and lane.
//!
//! The request lane may be full; a sender asks for room first. The reply lane is as long as the
//! request lane of the opposite direction, and parts of an answer that do not fit wait with the
//! sender. Letters carry handles, never payload.

use std::collections::VecDeque;

use orbitkv_native::wake::Wake;
use orbitkv_shards::leases::{ConnectionId, InstanceId};
use orbitkv_shards::shard::{Command, Reply, Tag};
use orbitkv_wire::engine::answers::DrainAnswer;
use rtrb::{Consumer, Producer, RingBuffer};

use super::WAITING_MAX;
use super::report::CoreReport;
use crate::engine::EngineStream;
use crate::engine::registry::{Conflict, NamespaceFields, Registration};

/// Letters a lane holds.
pub const LANE_LETTERS: usize = 1_024;

/// A request from one core to another.
#[derive(Debug)]
pub enum Letter {
    /// For the receiver's shard.
    Command(Box<(Tag, Command)>),
    /// For the registry on core 0.
    Register(Box<(Tag, Registration)>),
    /// For the registry on core 0: a connection's process is gone.
    Unregister(ConnectionId),
    /// An accepted engine connection to be served.
    Connection(Box<EngineStream>),
    /// A process says that it lost this connection and uses nothing of it.
    Abandoned {
        /// The lost connection.
        connection: ConnectionId,
        /// The process that says so; only the same one is believed.
        process: u32,
    },
    /// Control wants figures.
    Report(Tag),
    /// Control wants a page of what is registered, from the registry on core 0.
    Namespaces(Box<NamespacesPage>),
    /// Take no new work.
    Drain,
    /// What the whole node still has to finish, for the engines that wait for it.
    DrainProgress(Box<DrainAnswer>),
    /// End now: whatever the device still does is waited for, nothing else.
    Stop,
}

/// Which registered namespaces are wanted.
#[derive(Debug)]
pub struct NamespacesPage {
    /// Who asks.
    pub tag: Tag,
    /// Text of the namespace before the first wanted; empty for the first of all.
    pub after: String,
    /// Most of them.
    pub limit: usize,
}

/// What comes back.
#[derive(Debug)]
pub enum Answer {
    /// From the shard.
    Reply(Box<Reply>),
    /// From the registry.
    Registered(Tag, Box<Result<InstanceId, Conflict>>),
    /// Figures of one core.
    Report(Tag, Box<CoreReport>),
    /// A page of registered namespaces.
    Namespaces(Tag, Box<Vec<NamespaceFields>>),
    /// The core has ended.
    Stopped,
    /// An engine asked for the node to drain.
    DrainRequested,
}

const _: () = assert!(size_of::<Letter>() <= 64, "a letter is one cache line");
const _: () = assert!(size_of::<Answer>() <= 64, "an answer is one cache line");

struct Peer {
    requests_out: Producer<Letter>,
    answers_out: Producer<Answer>,
    requests_in: Consumer<Letter>,
    answers_in: Consumer<Answer>,
    unsent: VecDeque<Answer>,
    wake: Wake,
    rung: bool,
}

/// Most that ever waited in any lane of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Letters.
    pub requests: u64,
    /// Answers, those that waited for a full lane included.
    pub answers: u64,
}

/// One core's mail: its lanes to and from every other participant, and its doorbell.
pub struct Mail {
    me: usize,
    next_sender: usize,
    peaks: Peaks,
    peers: Vec<Option<Peer>>,
    wake: Wake,
}

impl Mail {
    /// Lanes between `participants`, each pair in both directions.
    ///
    /// # Errors
    /// If the process has no descriptors left for the doorbells.
    pub fn mesh(participants: usize) -> std::io::Result<Vec<Mail>> {
        let wakes: Vec<Wake> = (0..participants).map(|_| Wake::new()).collect::<Result<_, _>>()?;
        let mut mails: Vec<Mail> = wakes
            .iter()
            .enumerate()
            .map(|(me, wake)| Mail {
                me,
                next_sender: 0,
                peaks: Peaks::default(),
                peers: (0..participants).map(|_| None).collect(),
                wake: wake.clone(),
            })
            .collect();
        for a in 0..participants {
            for b in a + 1..participants {
                let (requests_ab, from_a) = RingBuffer::new(LANE_LETTERS);
                let (requests_ba, from_b) = RingBuffer::new(LANE_LETTERS);
                let (answers_ab, answers_from_a) = RingBuffer::new(LANE_LETTERS);
                let (answers_ba, answers_from_b) = RingBuffer::new(LANE_LETTERS);
                let peer = |requests_out, answers_out, requests_in, answers_in, wake: &Wake| Peer {
                    requests_out,
                    answers_out,
                    requests_in,
                    answers_in,
                    unsent: VecDeque::new(),
                    wake: wake.clone(),
                    rung: false,
                };
                mails[a].peers[b] = Some(peer(requests_ab, answers_ab, from_b, answers_from_b, &wakes[b]));
                mails[b].peers[a] = Some(peer(requests_ba, answers_ba, from_a, answers_from_a, &wakes[a]));
            }
        }
        Ok(mails)
    }

    /// Bytes of the lanes between `participants`, for the memory bill.
    #[must_use]
    pub fn table_bytes(participants: usize) -> u64 {
        let lane = LANE_LETTERS * (size_of::<Letter>() + size_of::<Answer>());
        (participants * participants.saturating_sub(1) * lane) as u64
    }

    /// Participants, this one included.
    #[must_use]
    pub fn participants(&self) -> usize {
        self.peers.len()
    }

    /// Most that ever waited in any of this participant's outgoing lanes.
    #[must_use]
    pub fn peaks(&self) -> Peaks {
        self.peaks
    }

    /// This participant's number.
    #[must_use]
    pub fn me(&self) -> usize {
        self.me
    }

    /// This participant's doorbell.
    #[must_use]
    pub fn wake(&self) -> &Wake {
        &self.wake
    }

    /// Whether `count` letters to `to` fit.
    #[must_use]
    pub fn has_room(&self, to: usize, count: usize) -> bool {
        self.peers[to].as_ref().is_none_or(|peer| peer.requests_out.slots() >= count)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The letter itself, if the lane is full.
    pub fn send(&mut self, to: usize, letter: Letter) -> Result<(), Letter> {
        let peer = self.peers[to].as_mut().expect("nobody mails himself");
        match peer.requests_out.push(letter) {
            Ok(()) => {
                peer.rung = true;
                let waiting = LANE_LETTERS - peer.requests_out.slots();
                self.peaks.requests = self.peaks.requests.max(waiting as u64);
                Ok(())
            }
            Err(rtrb::PushError::Full(letter)) => Err(letter),
        }
    }

    /// Sends an answer; it waits here while the lane is full.
    pub fn answer(&mut self, to: usize, answer: Answer) {
        let peer = self.peers[to].as_mut().expect("nobody mails himself");
        peer.unsent.push_back(answer);
        peer.rung = true;
        let waiting = LANE_LETTERS - peer.answers_out.slots() + peer.unsent.len();
        self.peaks.answers = self.peaks.answers.max(waiting as u64);
    }

    /// Moves waiting answers and rings the doorbells of everybody who got something. Returns whether
    /// answers are still waiting.
    pub fn flush(&mut self) -> bool {
        let mut waiting = false;
        for peer in self.peers.iter_mut().flatten() {
            while let Some(answer) = peer.unsent.pop_front() {
                if let Err(rtrb::PushError::Full(answer)) = peer.answers_out.push(answer) {
                    peer.unsent.push_front(answer);
                    waiting = true;
                    break;
                }
            }
            if std::mem::take(&mut peer.rung) {
                peer.wake.ring();
            }
        }
        waiting
    }

    /// The next request, and who sent it: in turn from each, so that nobody starves the others.
    pub fn receive(&mut self) -> Option<(usize, Letter)> {
        let participants = self.peers.len();
        for step in 0..participants {
            let from = (self.next_sender + step) % participants;
            let letter = self.peers[from].as_mut().and_then(|peer| peer.requests_in.pop().ok());
            if let Some(letter) = letter {
                self.next_sender = (from + 1) % participants;
                return Some((from, letter));
            }
        }
        None
    }

    /// The next answer.
    pub fn receive_answer(&mut self) -> Option<Answer> {
        self.peers.iter_mut().flatten().find_map(|peer| peer.answers_in.pop().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_arrive_in_order_and_ring_once() {
        let mut mails = Mail::mesh(3).unwrap();
        let mut second = mails.remove(1);
        let mut first = mails.remove(0);
        first.send(1, Letter::Drain).unwrap();
        first.send(1, Letter::Stop).unwrap();
        assert!(!second.wake().drain(), "the doorbell rings at the flush");
        first.flush();
        assert!(second.wake().drain());
        assert!(matches!(second.receive(), Some((0, Letter::Drain))));
        assert!(matches!(second.receive(), Some((0, Letter::Stop))));
        assert!(second.receive().is_none());
    }

    #[test]
    fn a_busy_sender_does_not_starve_the_others() {
        let mut mails = Mail::mesh(3).unwrap();
        let (mut third, mut second, mut first) = (mails.remove(2), mails.remove(1), mails.remove(0));
        for _ in 0..10 {
            first.send(1, Letter::Drain).unwrap();
        }
        third.send(1, Letter::Stop).unwrap();
        let senders: Vec<usize> = std::iter::from_fn(|| second.receive()).map(|(from, _)| from).collect();
        assert_eq!(&senders[..3], &[0, 2, 0]);
        assert_eq!(senders.len(), 11);
    }

    #[test]
    fn a_full_lane_returns_the_letter_and_answers_wait() {
        let mut mails = Mail::mesh(2).unwrap();
        let mut second = mails.remove(1);
        let mut first = mails.remove(0);
        for _ in 0..LANE_LETTERS {
            assert!(first.has_room(1, 1));
            first.send(1, Letter::Drain).unwrap();
        }
        assert!(!first.has_room(1, 1));
        assert!(matches!(first.send(1, Letter::Stop), Err(Letter::Stop)));
        for _ in 0..=LANE_LETTERS {
            first.answer(1, Answer::Stopped);
        }
        assert!(first.flush(), "one answer more than the lane holds");
        assert!(second.receive_answer().is_some());
        assert!(!first.flush(), "it fits once one was taken");
    }
}
