//! What a source sends next: streams on which payload waits, and a rate that they share.
//!
//! Without a rate the transport takes what it has windows for, so all that is decided is who offers first: streams by
//! how soon their bytes are due, in order of arrival. That costs a queue and no more. With one, streams get pieces in
//! the order of `fair.rs`, as tokens come back. The transport is handed no more than has tokens, so what waits
//! waits here, where a cancel takes it back whole: bytes that have not gone have cost nothing.
//!
//! The driver tells what is queued, asks [`Egress::poll`] who goes, and tells what went. What the transport has no
//! window for does not compete until it has.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use orbitkv_wire::identity::NodeId;

use super::fair::{Entry, Fair};
use super::pacing::{PacedTime, Pacer, Rate};
use crate::payload_streams::StreamAt;
use crate::time::Moment;

/// Largest piece of a stream that goes before another may, in bytes: what a turn of the transport sends.
pub const PIECE_BYTES_MAX: u64 = 64 * 1024;

/// Smallest: below it the pieces cost more than they carry.
pub const PIECE_BYTES_MIN: u64 = 4 * 1024;

/// Pieces of a second, between those bounds, so that at a low rate many streams still get a word in time.
const PIECES_A_SECOND: u64 = 128;

/// Part of a burst that is saved up before a core wakes for it.
const WAKE_PART: u64 = 4;

const _: () = assert!(PIECE_BYTES_MAX <= super::pacing::BURST_BYTES_MIN, "a piece can always be saved up");

/// How soon bytes are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Within 100 ms.
    Urgent,
    /// Within a second.
    Soon,
    /// Later.
    Later,
}

impl Urgency {
    /// All of them, the most urgent first.
    pub const ALL: [Urgency; 3] = [Urgency::Urgent, Urgency::Soon, Urgency::Later];

    /// With so much time left.
    #[must_use]
    pub fn of(left: Duration) -> Urgency {
        match left {
            left if left <= Duration::from_millis(100) => Urgency::Urgent,
            left if left <= Duration::from_secs(1) => Urgency::Soon,
            _ => Urgency::Later,
        }
    }
}

/// Bytes of the pieces in which streams share a rate.
#[must_use]
pub fn piece_bytes(rate: Rate) -> u64 {
    (rate.bytes_a_second() / PIECES_A_SECOND).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
}

/// Who sends, and how much at most. The driver answers each with [`Egress::on_sent`] or [`Egress::on_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendGrant {
    /// The stream.
    pub at: StreamAt,
    /// Bytes.
    pub bytes_max: u64,
}

/// How far the transport took what was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// All of it.
    All,
    /// It has no window for more: [`Egress::on_writable`] follows.
    Blocked,
}

/// What is sent, and what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressFigures {
    /// The rate in bytes a second; 0 for none.
    pub rate: u64,
    /// Bytes given to the transport.
    pub sent_bytes: u64,
    /// Bytes that wait here now.
    pub waiting_bytes: u64,
    /// Streams of those.
    pub waiting_streams: u64,
    /// Most bytes that waited at a time.
    pub waiting_bytes_peak: u64,
    /// Pieces that went before others because they had waited too long.
    pub aged: u64,
    /// Time in which something waited for the rate alone.
    pub paced: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It competes.
    Listed,
    /// The driver sends of it.
    Going,
    /// The transport has no window for it.
    Blocked,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    entry: Entry,
    standing: Standing,
}

/// How those that compete are ordered.
#[derive(Debug)]
enum Order {
    /// All go, the most urgent first. Streams that are over meanwhile are passed over.
    Line([VecDeque<StreamAt>; Urgency::ALL.len()]),
    /// As tokens come back.
    Paced { pacer: Pacer, fair: Fair, time: PacedTime, wakes_at: Option<Moment> },
}

/// The streams of one core on which payload waits.
#[derive(Debug)]
pub struct Egress {
    flows: HashMap<StreamAt, Flow>,
    flows_made: u64,
    order: Order,
    /// Bytes of those that compete.
    listed_bytes: u64,
    figures: EgressFigures,
}

impl Egress {
    /// A core that may send so much; as fast as the line takes it if none is given.
    #[must_use]
    pub fn new(rate: Option<Rate>) -> Egress {
        let order = match rate {
            None => Order::Line(Default::default()),
            Some(rate) => Order::Paced {
                pacer: Pacer::new(rate),
                fair: Fair::default(),
                time: PacedTime::default(),
                wakes_at: None,
            },
        };
        let figures =
            EgressFigures { rate: rate.map_or(0, Rate::bytes_a_second), ..EgressFigures::default() };
        Egress { flows: HashMap::new(), flows_made: 0, order, listed_bytes: 0, figures }
    }

    /// Bytes for a node wait on a stream, beside what waits there; they are of use until `due`.
    pub fn on_queued(&mut self, at: StreamAt, node: NodeId, due: Moment, bytes: u64, now: Moment) {
        assert!(bytes > 0, "something waits");
        self.figures.waiting_bytes += bytes;
        self.figures.waiting_bytes_peak = self.figures.waiting_bytes_peak.max(self.figures.waiting_bytes);
        if let Some(mut flow) = self.flows.get(&at).copied() {
            assert_ne!(flow.standing, Standing::Going, "what was sent is told first");
            let is_listed = flow.standing == Standing::Listed;
            if is_listed {
                self.unlist(&flow.entry);
            }
            flow.entry.waiting_bytes += bytes;
            self.flows.insert(at, flow);
            if is_listed {
                self.relist(&flow.entry);
            }
            return;
        }
        self.flows_made += 1;
        let entry = Entry { at, node, due, waiting_bytes: bytes, since: now, number: self.flows_made };
        self.flows.insert(at, Flow { entry, standing: Standing::Listed });
        self.list(&entry, now);
    }

    /// Who sends now.
    ///
    /// # Panics
    /// If the driver has not told what became of the one before.
    pub fn poll(&mut self, now: Moment) -> Option<SendGrant> {
        let grant = match &mut self.order {
            Order::Line(queues) => loop {
                let at = queues.iter_mut().find_map(VecDeque::pop_front)?;
                if self.flows.get(&at).is_some_and(|flow| flow.standing == Standing::Listed) {
                    break SendGrant { at, bytes_max: u64::MAX };
                }
            },
            Order::Paced { pacer, fair, time, wakes_at } => {
                if self.listed_bytes == 0 {
                    *wakes_at = None;
                    time.end(now);
                    return None;
                }
                let piece = piece_bytes(pacer.rate());
                let room = pacer.room(now);
                let saved = self.listed_bytes.min(piece.max(pacer.burst_bytes() / WAKE_PART));
                // Who has run out waits until it is worth waking.
                let wanted = if wakes_at.is_some() { saved } else { self.listed_bytes.min(piece) };
                if room < wanted {
                    *wakes_at = Some(pacer.ready_at(saved));
                    time.begin(now);
                    return None;
                }
                *wakes_at = None;
                time.end(now);
                let (at, is_aged) = fair.pick(piece, now)?;
                self.figures.aged += u64::from(is_aged);
                SendGrant { at, bytes_max: piece.min(room) }
            }
        };
        let flow = self.flows.get_mut(&grant.at).expect("who goes is known");
        assert_eq!(flow.standing, Standing::Listed, "who goes competes");
        flow.standing = Standing::Going;
        let entry = flow.entry;
        self.unlist(&entry);
        Some(grant)
    }

    /// So many bytes of the stream that was told to go went.
    ///
    /// # Panics
    /// If it was not, or so many did not wait.
    pub fn on_sent(&mut self, at: StreamAt, bytes: u64, taken: SendOutcome, now: Moment) {
        let mut flow = *self.flows.get(&at).expect("who went is known");
        assert_eq!(flow.standing, Standing::Going, "who went was told to");
        let left = flow.entry.waiting_bytes.checked_sub(bytes).expect("what went had waited");
        flow.entry.waiting_bytes = left;
        self.figures.waiting_bytes -= bytes;
        self.figures.sent_bytes += bytes;
        if let Order::Paced { pacer, fair, .. } = &mut self.order {
            assert!(bytes <= pacer.room(now), "no more goes than there are tokens");
            pacer.take(bytes, now);
            fair.on_served(flow.entry.node, bytes);
        }
        if bytes > 0 {
            flow.entry.since = now;
        }
        if left == 0 {
            self.flows.remove(&at);
        } else if taken == SendOutcome::Blocked {
            flow.standing = Standing::Blocked;
            self.flows.insert(at, flow);
        } else {
            flow.standing = Standing::Listed;
            self.flows.insert(at, flow);
            self.list(&flow.entry, now);
        }
    }

    /// The transport has a window for a stream again.
    pub fn on_writable(&mut self, at: StreamAt, now: Moment) {
        let Some(flow) = self.flows.get_mut(&at).filter(|flow| flow.standing == Standing::Blocked) else {
            return;
        };
        flow.standing = Standing::Listed;
        // What its reader kept it waiting for is no age.
        flow.entry.since = now;
        let entry = flow.entry;
        self.list(&entry, now);
    }

    /// Nothing more goes on a stream, whoever ended it. What waited has cost nothing.
    pub fn on_over(&mut self, at: StreamAt) {
        let Some(flow) = self.flows.remove(&at) else { return };
        self.figures.waiting_bytes -= flow.entry.waiting_bytes;
        if flow.standing == Standing::Listed {
            self.unlist(&flow.entry);
        }
    }

    /// When [`Egress::poll`] has tokens again, if something waits for them.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        match &self.order {
            Order::Line(_) => None,
            Order::Paced { wakes_at, .. } => wakes_at.filter(|_| self.listed_bytes > 0),
        }
    }

    /// What it says of itself.
    #[must_use]
    pub fn figures(&self) -> EgressFigures {
        let paced = match &self.order {
            Order::Line(_) => Duration::ZERO,
            Order::Paced { time, .. } => time.total(),
        };
        EgressFigures { waiting_streams: self.flows.len() as u64, paced, ..self.figures }
    }

    /// Conservation: every byte that waits is of one stream, and those that compete are counted once.
    ///
    /// # Panics
    /// If it does not hold.
    pub fn assert_invariants(&self) {
        let listed = self.flows.values().filter(|flow| flow.standing == Standing::Listed);
        let bytes = |flow: &Flow| flow.entry.waiting_bytes;
        assert_eq!(listed.map(bytes).sum::<u64>(), self.listed_bytes, "who competes is counted once");
        let waiting: u64 = self.flows.values().map(bytes).sum();
        assert_eq!(waiting, self.figures.waiting_bytes, "every byte that waits is of one stream");
        assert!(self.flows.values().all(|flow| bytes(flow) > 0), "who has nothing is forgotten");
    }

    fn list(&mut self, entry: &Entry, now: Moment) {
        if let Order::Line(queues) = &mut self.order {
            queues[Urgency::of(entry.due.since(now)) as usize].push_back(entry.at);
        }
        self.relist(entry);
    }

    /// As [`Egress::list`], for one that keeps its place in line.
    fn relist(&mut self, entry: &Entry) {
        self.listed_bytes += entry.waiting_bytes;
        if let Order::Paced { fair, .. } = &mut self.order {
            fair.insert(entry);
        }
    }

    fn unlist(&mut self, entry: &Entry) {
        self.listed_bytes -= entry.waiting_bytes;
        if let Order::Paced { fair, .. } = &mut self.order {
            fair.remove(entry);
        }
    }
}
