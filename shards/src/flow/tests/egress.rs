//! The order of what a source sends, against a plain model: all streams in a list, looked through for each piece.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::identity::NodeId;

use super::Sendings;
use crate::dice::Dice;
use crate::flow::PIECE_WAIT;
use crate::flow::egress::*;
use crate::flow::fair::LEAD_PIECES;
use crate::flow::pacing::Rate;
use crate::payload_streams::{PayloadConnection, StreamAt};
use crate::time::Moment;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

fn node(number: u64) -> NodeId {
    NodeId::new(&format!("peer-{number}")).unwrap()
}

fn at(stream: u64) -> StreamAt {
    StreamAt { connection: PayloadConnection(stream % 7), stream }
}

/// A stream as the world sees it.
#[derive(Clone, Debug)]
struct Stream {
    node: u64,
    due: Moment,
    waiting: u64,
    since: Moment,
    arrived: u64,
    is_blocked: bool,
}

/// What competes, served in pieces by looking at everything.
#[derive(Default)]
struct Model {
    streams: BTreeMap<u64, Stream>,
    served: BTreeMap<u64, u64>,
    reached: u64,
    arrivals: u64,
}

impl Model {
    fn competes(&self, node: u64) -> bool {
        self.streams.values().any(|stream| stream.node == node && !stream.is_blocked)
    }

    /// A node that begins to compete begins where the others are, at least.
    fn welcome(&mut self, node: u64) {
        if !self.competes(node) {
            let served = self.served.entry(node).or_insert(0);
            *served = (*served).max(self.reached);
        }
    }

    fn queue(&mut self, stream: u64, node: u64, due: Moment, bytes: u64, now: Moment) {
        match self.streams.get_mut(&stream) {
            Some(known) => known.waiting += bytes,
            None => {
                self.welcome(node);
                self.arrivals += 1;
                let (since, arrived) = (now, self.arrivals);
                let new = Stream { node, due, waiting: bytes, since, arrived, is_blocked: false };
                self.streams.insert(stream, new);
            }
        }
    }

    /// Whose piece is next.
    fn next(&mut self, piece: u64, now: Moment) -> Option<u64> {
        let competing: Vec<(&u64, &Stream)> =
            self.streams.iter().filter(|(_, stream)| !stream.is_blocked).collect();
        let least = competing.iter().map(|(_, stream)| self.served[&stream.node]).min()?;
        let question: Vec<&(&u64, &Stream)> = competing
            .iter()
            .filter(|(_, stream)| self.served[&stream.node] <= least + LEAD_PIECES * piece)
            .collect();
        self.reached = self.reached.max(least);
        let aged = question.iter().filter(|(_, stream)| now.since(stream.since) >= PIECE_WAIT);
        if let Some((number, _)) = aged.min_by_key(|(_, stream)| (stream.since, stream.arrived)) {
            return Some(**number);
        }
        let need = |stream: &Stream| (stream.due.0 >> 26, stream.waiting, stream.arrived);
        question.iter().min_by_key(|(_, stream)| need(stream)).map(|(number, _)| **number)
    }
}

struct World {
    dice: Dice,
    rate: Rate,
    egress: Egress,
    model: Model,
    now: Moment,
    nodes: u64,
    streams_made: u64,
    sent: Sendings,
    /// Longest that a stream which could have gone waited for its next piece.
    longest: Duration,
    queued: u64,
    dropped: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut dice = Dice(seed);
        let rate = Rate::new(256 * 1024 + dice.size(27)).unwrap();
        World {
            rate,
            egress: Egress::new(Some(rate)),
            model: Model::default(),
            now: Moment(dice.roll(1 << 40)),
            nodes: 1 + dice.roll(6),
            streams_made: 0,
            sent: Sendings::default(),
            longest: Duration::ZERO,
            queued: 0,
            dropped: 0,
            dice,
        }
    }

    fn pick(&mut self, is_blocked: bool) -> Option<u64> {
        let of = self.model.streams.iter().filter(|(_, stream)| stream.is_blocked == is_blocked);
        let all: Vec<u64> = of.map(|(number, _)| *number).collect();
        (!all.is_empty()).then(|| all[self.dice.roll(all.len() as u64) as usize])
    }

    fn queue(&mut self) {
        let known = if self.dice.one_in(3) { self.pick(false) } else { None };
        let stream = known.unwrap_or_else(|| {
            self.streams_made += 1;
            self.streams_made
        });
        let node = known.map_or_else(|| self.dice.roll(self.nodes), |known| self.model.streams[&known].node);
        let due = known.map(|known| self.model.streams[&known].due);
        let left = Duration::from_millis(1 + self.dice.roll(3_000));
        let due = due.unwrap_or(self.now + left);
        let bytes = 1 + self.dice.size(21);
        self.queued += bytes;
        self.egress.on_queued(at(stream), self::node(node), due, bytes, self.now);
        self.model.queue(stream, node, due, bytes, self.now);
    }

    /// Sends what may go now.
    fn send(&mut self) {
        while let Some(SendGrant { at: went, bytes_max }) = self.egress.poll(self.now) {
            let piece = piece_bytes(self.rate);
            let expected = self.model.next(piece, self.now).expect("something waits");
            assert_eq!(went, at(expected), "the next by looking at all");
            assert!(bytes_max <= piece, "others get their turn after a piece");
            let stream = self.model.streams.get_mut(&expected).unwrap();
            self.longest = self.longest.max(self.now.since(stream.since));
            let most = bytes_max.min(stream.waiting);
            let (bytes, taken) = match self.dice.roll(12) {
                0 => (self.dice.roll(most + 1), SendOutcome::Blocked),
                _ => (most, SendOutcome::All),
            };
            self.sent.note(self.now.0, bytes);
            stream.waiting -= bytes;
            if bytes > 0 {
                stream.since = self.now;
            }
            stream.is_blocked = taken == SendOutcome::Blocked && stream.waiting > 0;
            *self.model.served.get_mut(&stream.node).unwrap() += bytes;
            if stream.waiting == 0 {
                self.model.streams.remove(&expected);
            }
            self.egress.on_sent(went, bytes, taken, self.now);
            self.egress.assert_invariants();
        }
    }

    fn act(&mut self) {
        match self.dice.roll(10) {
            0 | 1 if self.model.streams.len() < 40 => self.queue(),
            2 => {
                if let Some(stream) = self.pick(true) {
                    let node = self.model.streams[&stream].node;
                    self.model.welcome(node);
                    let known = self.model.streams.get_mut(&stream).unwrap();
                    (known.is_blocked, known.since) = (false, self.now);
                    self.egress.on_writable(at(stream), self.now);
                }
            }
            3 if self.dice.one_in(4) => {
                let is_blocked = self.dice.one_in(2);
                if let Some(stream) = self.pick(is_blocked) {
                    self.dropped += self.model.streams.remove(&stream).unwrap().waiting;
                    self.egress.on_over(at(stream));
                }
            }
            4 => self.now = self.now + Duration::from_micros(self.dice.roll(20_000)),
            _ => {
                if let Some(due) = self.egress.next_deadline() {
                    assert!(due > self.now, "what could go went");
                    self.now = due;
                }
            }
        }
        self.send();
        self.egress.assert_invariants();
    }
}

#[test]
fn pieces_go_in_the_order_of_a_plain_model_and_never_faster_than_the_rate() {
    let (mut total, mut aged) = (0, 0);
    for seed in 0..120 {
        let mut world = World::new(seed);
        (0..600).for_each(|_| world.act());
        world.sent.assert_kept(world.rate.bytes_a_second(), world.rate.burst_bytes());
        let figures = world.egress.figures();
        let waiting: u64 = world.model.streams.values().map(|stream| stream.waiting).sum();
        assert_eq!((figures.sent_bytes, figures.waiting_bytes), (world.sent.total(), waiting));
        assert_eq!(world.queued, world.sent.total() + waiting + world.dropped, "every byte is somewhere");
        assert_eq!(figures.waiting_streams, world.model.streams.len() as u64);
        total += figures.sent_bytes;
        aged += figures.aged;
    }
    assert!(total > 20 * MIB && aged > 200, "{total} bytes, {aged} aged");
}

/// Streams that always have more, none of them blocked: what each got, and the longest wait between two pieces.
fn busy(rate: Rate, streams: &[(u64, u64)], seconds: u64) -> (BTreeMap<u64, u64>, Duration, u64) {
    let mut egress = Egress::new(Some(rate));
    let mut now = Moment(MS);
    let mut dice = Dice(7);
    let mut nodes = BTreeMap::new();
    let mut since = BTreeMap::new();
    let mut longest = Duration::ZERO;
    let mut most_ahead = 0;
    for (number, (node, left_ms)) in streams.iter().enumerate() {
        nodes.insert(*node, 0u64);
        since.insert(number as u64, now);
        let due = now + Duration::from_millis(*left_ms);
        // More than can go.
        egress.on_queued(at(number as u64), self::node(*node), due, 1 << 40, now);
    }
    let end = now + Duration::from_secs(seconds);
    while now < end {
        while let Some(SendGrant { at: went, bytes_max }) = egress.poll(now) {
            let waited = now.since(since[&went.stream]);
            longest = longest.max(waited);
            since.insert(went.stream, now);
            *nodes.get_mut(&streams[went.stream as usize].0).unwrap() += bytes_max;
            egress.on_sent(went, bytes_max, SendOutcome::All, now);
            most_ahead = most_ahead.max(nodes.values().max().unwrap() - nodes.values().min().unwrap());
        }
        // A core that is late now and then.
        now = egress.next_deadline().expect("there is always more") + Duration::from_micros(dice.roll(3_000));
    }
    let latest = since.values().map(|since| now.since(*since)).max().unwrap();
    (nodes, longest.max(latest), most_ahead)
}

#[test]
fn nodes_share_a_rate_whatever_their_streams_and_deadlines_say() {
    for rate in [256 * 1024, 8 * MIB, 1 << 30] {
        let rate = Rate::new(rate).unwrap();
        // One stream in no hurry, five in a great one, two between.
        let streams: Vec<(u64, u64)> =
            [(0, 9_000)].into_iter().chain([(1, 1); 5]).chain([(2, 500), (2, 700)]).collect();
        let (nodes, _, most_ahead) = busy(rate, &streams, 4);
        let bound = (LEAD_PIECES + 1) * piece_bytes(rate);
        assert!(most_ahead <= bound, "{nodes:?}: {most_ahead} ahead, and {bound} may be");
        let total: u64 = nodes.values().sum();
        assert!(total >= rate.bytes_in(Duration::from_secs(4)) * 9 / 10, "{total}: the rate is used");
    }
}

#[test]
fn no_stream_waits_for_longer_than_its_age_and_a_round_of_pieces() {
    for (rate, streams) in [(256 * 1024, 6), (8 * MIB, 24), (64 * MIB, 60), (8 * MIB, 1)] {
        let rate = Rate::new(rate).unwrap();
        // One of each node has until doomsday, all others are nearly due.
        let nodes = 3;
        let streams: Vec<(u64, u64)> =
            (0..streams).map(|number| (number % nodes, if number < nodes { 60_000 } else { 1 })).collect();
        let (_, longest, _) = busy(rate, &streams, 6);
        let own = streams.len() as u64 / nodes + 1;
        let pieces = nodes * (own + LEAD_PIECES + 1) + 1;
        let late = Duration::from_millis(3) + rate.time_for(rate.burst_bytes());
        let bound = PIECE_WAIT + rate.time_for(pieces * piece_bytes(rate)) + late;
        assert!(longest <= bound, "{longest:?} at {rate:?}, and {bound:?} may be");
    }
}

#[test]
fn who_is_due_first_goes_first_then_who_has_least_left() {
    let rate = Rate::new(8 * MIB).unwrap();
    let mut egress = Egress::new(Some(rate));
    // The burst is spent.
    let now = Moment(MS);
    egress.on_queued(at(9), node(0), now, rate.burst_bytes(), now);
    while let Some(SendGrant { at: went, bytes_max }) = egress.poll(now) {
        egress.on_sent(went, bytes_max.min(egress.figures().waiting_bytes), SendOutcome::All, now);
    }
    let due = |left_ms| now + Duration::from_millis(left_ms);
    for (stream, left_ms, bytes) in [(1, 5_000, 10), (2, 400, 3_000), (3, 400, 2_000), (4, 900, 1)] {
        egress.on_queued(at(stream), node(0), due(left_ms), bytes, now);
    }
    assert_eq!(egress.poll(now), None, "the burst is spent");
    let later = egress.next_deadline().expect("it comes back");
    let order: Vec<u64> = std::iter::from_fn(|| {
        let SendGrant { at: went, bytes_max } = egress.poll(later)?;
        let bytes = [0, 10, 3_000, 2_000, 1][went.stream as usize];
        egress.on_sent(went, bytes.min(bytes_max), SendOutcome::All, later);
        Some(went.stream)
    })
    .collect();
    assert_eq!(order, [3, 2, 4, 1]);
    assert!(egress.figures().paced > Duration::ZERO);
}

#[test]
fn what_is_taken_back_has_cost_nothing() {
    let rate = Rate::new(MIB).unwrap();
    let mut egress = Egress::new(Some(rate));
    egress.on_queued(at(1), node(0), Moment(u64::MAX), 900 * MIB, Moment(0));
    egress.on_over(at(1));
    egress.on_over(at(1));
    assert_eq!((egress.figures().waiting_bytes, egress.next_deadline()), (0, None));
    // The whole burst is still there.
    egress.on_queued(at(2), node(0), Moment(u64::MAX), rate.burst_bytes(), Moment(0));
    let mut sent = 0;
    while let Some(SendGrant { at: went, bytes_max }) = egress.poll(Moment(0)) {
        let bytes = bytes_max.min(rate.burst_bytes() - sent);
        sent += bytes;
        egress.on_sent(went, bytes, SendOutcome::All, Moment(0));
    }
    assert_eq!(sent, rate.burst_bytes());
}

#[test]
fn without_a_rate_all_goes_the_most_urgent_first_in_order_of_arrival() {
    let mut egress = Egress::new(None);
    let now = Moment(MS);
    let due = |left_ms| now + Duration::from_millis(left_ms);
    for (stream, left_ms) in [(1, 9_000), (2, 500), (3, 50), (4, 900), (5, 10), (6, 2_000)] {
        egress.on_queued(at(stream), node(stream), due(left_ms), 70 * MIB, now);
    }
    egress.on_queued(at(1), node(1), due(9_000), 5, now);
    egress.on_over(at(4));
    let mut order = Vec::new();
    while let Some(SendGrant { at: went, bytes_max }) = egress.poll(now) {
        assert_eq!(bytes_max, u64::MAX, "the transport's windows are the bound");
        order.push(went.stream);
        let bytes = if went.stream == 1 { 70 * MIB + 5 } else { 70 * MIB };
        match went.stream {
            2 => egress.on_sent(went, MIB, SendOutcome::Blocked, now),
            _ => egress.on_sent(went, bytes, SendOutcome::All, now),
        }
    }
    assert_eq!(order, [3, 5, 2, 1, 6]);
    assert_eq!((egress.poll(now), egress.next_deadline()), (None, None));
    // What the transport had no window for goes on when it has.
    egress.on_writable(at(2), now);
    egress.on_writable(at(6), now);
    assert_eq!(egress.poll(now).map(|grant| grant.at.stream), Some(2));
    egress.on_sent(at(2), 69 * MIB, SendOutcome::All, now);
    let figures = egress.figures();
    assert_eq!((figures.waiting_bytes, figures.waiting_streams, figures.paced), (0, 0, Duration::ZERO));
    assert_eq!(figures.sent_bytes, 5 * 70 * MIB + 5);
    egress.assert_invariants();
}
