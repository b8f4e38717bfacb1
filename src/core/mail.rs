//! Mail between cores: one bounded ring per ordered pair and lane.
//!
//! The request lane may be full; a sender asks for room first. Answers that do not fit their lane wait with
//! the sender, up to a bound: whoever is owed such answers is not read from before he has taken them, and a
//! core completes nothing for anybody meanwhile. Answers are always read, so this ends. Nobody looks at a full lane
//! again and again: whoever takes the first letter out of one rings its sender. Letters carry handles, never payload.

use std::collections::VecDeque;

use orbitkv_native::wake::Wake;
use orbitkv_shards::leases::{ConnectionId, InstanceId};
use orbitkv_shards::membership::{Doubt, LookupWish};
use orbitkv_shards::shard::{Command, Reply, Tag};
use orbitkv_wire::engine::answers::DrainAnswer;
use orbitkv_wire::identity::{Incarnation, NodeId, ShardIndex};
use rtrb::{Consumer, Producer, RingBuffer};

use super::WAITING_MAX;
use super::report::CoreReport;
use crate::engine::EngineStream;
use crate::engine::registry::{Conflict, NamespaceFields, Registration};
use crate::peers::{
    LifeLetter, OwnerRow, OwnersPage, PermitLetter, ReadingsAnswer, ReadingsQuestion, SamplesAnswer,
    SamplesQuestion,
};
use crate::settings::Policy;
use crate::turns::recorder::{TurnsAnswer, TurnsQuestion};

/// Letters a lane holds.
pub const LANE_LETTERS: usize = 1_024;

/// Letters and answers that a core takes in in one turn.
pub const LETTERS_PER_TURN: usize = 64;

/// Looks at the device in one turn.
const DEVICE_LOOKS_PER_TURN: usize = 2;

/// What a core says to control unasked: once in its life that an engine asked for a drain, and that it has
/// stopped, and a doubt about a member while no other answer waits.
const UNASKED_ANSWERS: usize = 3;

/// Answers that may wait for a full lane. They are those of one turn, since the next one begins no work for
/// anybody who is owed some: an answer to each letter, and at each look at the device one to each command that
/// was admitted to wait.
pub const ANSWERS_UNSENT_MAX: usize =
    LETTERS_PER_TURN + DEVICE_LOOKS_PER_TURN * WAITING_MAX as usize + UNASKED_ANSWERS;

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
    /// What control says of this node's life and of its peers.
    Life(Box<LifeLetter>),
    /// About snapshot permits, to and from core 0.
    Permit(PermitLetter),
    /// A source has told another core that this life of its node is over.
    Excluded(Box<(NodeId, Incarnation)>),
    /// Control wants a page of owner streams.
    Owners(Box<OwnersPage>),
    /// Control wants to know what of a fence is here.
    Readings(Box<ReadingsQuestion>),
    /// Control wants samples of visibility.
    Samples(SamplesQuestion),
    /// Control wants a page of what this core recorded of its turns.
    Turns(TurnsQuestion),
    /// The operator goes back to the node's own zone.
    FailBack,
    /// Settings that hold from now on, and the number of their version.
    Policy(Box<(u64, Policy)>),
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
    /// A page of owner streams, and whose.
    Owners(Tag, ShardIndex, Box<Vec<OwnerRow>>),
    /// What of a fence is here.
    Readings(Box<ReadingsAnswer>),
    /// Samples of visibility and whose; none if the core keeps none.
    Samples(Tag, ShardIndex, Box<Option<SamplesAnswer>>),
    /// A page of recorded turns and whose; none if the core records none.
    Turns(Tag, ShardIndex, Box<Option<TurnsAnswer>>),
    /// The core stands at this revision of the membership.
    Lowered(ShardIndex, u64),
    /// What was heard on the wire contradicts what is known of a member.
    Doubted(Box<Doubt>),
    /// A record is to be read before its node is asked.
    Lookup(Box<LookupWish>),
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

/// What has come in.
#[derive(Debug)]
pub enum Incoming {
    /// A request, and who sent it.
    Letter(usize, Letter),
    /// An answer to a request of ours.
    Answer(Answer),
}

/// One core's mail: its lanes to and from every other participant, and its doorbell.
pub struct Mail {
    me: usize,
    /// The lane to look at first: requests and answers of each participant in turn.
    next_lane: usize,
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
                next_lane: 0,
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

    /// Bytes of the lanes between `participants` and of the answers that wait for them, for the memory bill.
    #[must_use]
    pub fn table_bytes(participants: usize) -> u64 {
        let lane = LANE_LETTERS * (size_of::<Letter>() + size_of::<Answer>());
        let unsent = ANSWERS_UNSENT_MAX * size_of::<Answer>();
        (participants * (participants.saturating_sub(1) * lane + unsent)) as u64
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
    ///
    /// # Panics
    /// If [`ANSWERS_UNSENT_MAX`] wait already: our own work has outrun its admission.
    pub fn answer(&mut self, to: usize, answer: Answer) {
        let peer = self.peers[to].as_mut().expect("nobody mails himself");
        peer.send_waiting();
        peer.unsent.push_back(answer);
        peer.send_waiting();
        assert!(peer.unsent.len() <= ANSWERS_UNSENT_MAX, "answers wait within what was admitted");
        peer.rung = true;
        let waiting = LANE_LETTERS - peer.answers_out.slots() + peer.unsent.len();
        self.peaks.answers = self.peaks.answers.max(waiting as u64);
    }

    /// Whether answers wait for a full lane.
    #[must_use]
    pub fn owes_answers(&self) -> bool {
        self.peers.iter().flatten().any(|peer| !peer.unsent.is_empty())
    }

    /// Moves waiting answers and rings the doorbells of everybody who got something, or who may send again.
    /// Returns whether the last answers that waited for somebody have gone out: his requests, and whatever else
    /// was put off for them, can be taken up again.
    pub fn flush(&mut self) -> bool {
        let mut caught_up = false;
        for peer in self.peers.iter_mut().flatten() {
            let waited = !peer.unsent.is_empty();
            peer.send_waiting();
            caught_up |= waited && peer.unsent.is_empty();
            if std::mem::take(&mut peer.rung) {
                peer.wake.ring();
            }
        }
        caught_up
    }

    /// What has come in next: in turn from each lane, so that nobody starves the others. Requests of
    /// whoever has not taken our answers wait.
    pub fn receive(&mut self) -> Option<Incoming> {
        let lanes = 2 * self.peers.len();
        for step in 0..lanes {
            let lane = (self.next_lane + step) % lanes;
            let from = lane / 2;
            let Some(peer) = &mut self.peers[from] else { continue };
            let (incoming, was_full) = match lane % 2 {
                0 => {
                    let was_full = peer.answers_in.slots() == LANE_LETTERS;
                    (peer.answers_in.pop().ok().map(Incoming::Answer), was_full)
                }
                _ if peer.unsent.is_empty() => {
                    let was_full = peer.requests_in.slots() == LANE_LETTERS;
                    (peer.requests_in.pop().ok().map(|letter| Incoming::Letter(from, letter)), was_full)
                }
                _ => (None, false),
            };
            if incoming.is_some() {
                // Whoever found it full waits for the doorbell.
                peer.rung |= was_full;
                self.next_lane = (lane + 1) % lanes;
                return incoming;
            }
        }
        None
    }
}

impl Peer {
    /// Moves waiting answers into their lane, as far as it has room.
    fn send_waiting(&mut self) {
        while let Some(answer) = self.unsent.pop_front() {
            if let Err(rtrb::PushError::Full(answer)) = self.answers_out.push(answer) {
                self.unsent.push_front(answer);
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(mail: &mut Mail) -> Option<(usize, Letter)> {
        match mail.receive()? {
            Incoming::Letter(from, letter) => Some((from, letter)),
            Incoming::Answer(answer) => panic!("no letter but {answer:?}"),
        }
    }

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
        assert!(matches!(letter(&mut second), Some((0, Letter::Drain))));
        assert!(matches!(letter(&mut second), Some((0, Letter::Stop))));
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
        let senders: Vec<usize> = std::iter::from_fn(|| letter(&mut second)).map(|(from, _)| from).collect();
        assert_eq!(&senders[..3], &[0, 2, 0]);
        assert_eq!(senders.len(), 11);
    }

    #[test]
    fn answers_do_not_starve_requests() {
        let mut mails = Mail::mesh(2).unwrap();
        let (mut second, mut first) = (mails.remove(1), mails.remove(0));
        for _ in 0..LANE_LETTERS {
            first.answer(1, Answer::Stopped);
        }
        first.send(1, Letter::Drain).unwrap();
        let read: Vec<Incoming> = (0..2).filter_map(|_| second.receive()).collect();
        assert!(read.iter().any(|incoming| matches!(incoming, Incoming::Letter(0, Letter::Drain))));
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
        assert!(!first.flush() && first.owes_answers(), "one answer more than the lane holds");
        assert!(matches!(second.receive(), Some(Incoming::Answer(_))));
        assert!(first.flush() && !first.owes_answers(), "it fits once one was taken");
        assert!(!first.flush(), "said once");
    }

    #[test]
    fn whoever_finds_a_lane_full_is_rung_when_it_is_not_and_not_before() {
        let mut mails = Mail::mesh(2).unwrap();
        let (mut second, mut first) = (mails.remove(1), mails.remove(0));
        for round in 0..2 {
            while first.send(1, Letter::Drain).is_ok() {}
            first.flush();
            assert!(second.wake().drain() && !first.wake().drain(), "round {round}");
            assert!(letter(&mut second).is_some());
            second.flush();
            assert!(first.wake().drain(), "there is room for one");
            // From here on nobody can have found it full.
            while letter(&mut second).is_some() {}
            second.flush();
            assert!(!first.wake().drain());
            // The same for answers.
            (0..=LANE_LETTERS).for_each(|_| first.answer(1, Answer::Stopped));
            first.flush();
            assert!(first.owes_answers() && !first.wake().drain());
            assert!(second.receive().is_some());
            second.flush();
            assert!(first.wake().drain() && first.flush());
            while second.receive().is_some() {}
            second.flush();
            let _ = (first.wake().drain(), second.wake().drain());
        }
    }

    #[test]
    fn whoever_does_not_take_his_answers_is_not_read_from() {
        let mut mails = Mail::mesh(3).unwrap();
        let (mut third, mut second, mut first) = (mails.remove(2), mails.remove(1), mails.remove(0));
        let mut taken = 0;
        // Each letter is answered; the second takes no answer, the third does.
        for _ in 0..4 * LANE_LETTERS {
            let _ = second.send(0, Letter::Drain);
            third.send(0, Letter::Drain).unwrap();
            while let Some(incoming) = first.receive() {
                let Incoming::Letter(from, _) = incoming else { panic!("no letter: {incoming:?}") };
                taken += usize::from(from == 1);
                first.answer(from, Answer::Stopped);
            }
            first.flush();
            assert!(matches!(third.receive(), Some(Incoming::Answer(_))));
        }
        assert_eq!(taken, LANE_LETTERS + 1, "no more than its lane holds, and one");
        assert!(first.owes_answers());
        assert!(matches!(second.receive(), Some(Incoming::Answer(_))));
        assert!(first.flush() && !first.owes_answers(), "he may be read from again");
        assert!(matches!(letter(&mut first), Some((1, Letter::Drain))), "then it is read again");
    }
}
