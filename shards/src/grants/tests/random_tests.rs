//! Random lives of a source: every answer right by what the journal has said, nothing freed that a peer may
//! read, every bound kept, nothing left over. A failing case prints its number; `one_case` with that number
//! repeats it exactly.

use std::collections::BTreeMap;

use orbitkv_wire::identity::*;
use orbitkv_wire::payload::*;

use super::super::{Effect, Life};
use super::rig::*;
use crate::dice::Dice;
use crate::payload_streams::PayloadConnection;
use crate::shard::tests::rig::{FOREVER, Fault, KIB, PAGE, digest, holder, padded, settings};
use crate::shard::{Command, Key};

const CASES: u64 = 300;
const STEPS: u64 = 400;
const SIZES: [u64; 4] = [16 * KIB, 64 * KIB, 100_001, 192 * KIB + 1];

struct Case {
    dice: Dice,
    rig: GrantRig,
    /// Connection and life of each peer.
    peers: [(u64, u8); 3],
    connections: u64,
    processes: u64,
    /// The reader of each peer that joined last.
    readers: [u64; 3],
    tokens: u128,
    errors_permille: u64,
    seen: BTreeMap<&'static str, u64>,
}

struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failing case is one_case({})", self.0);
        }
    }
}

fn one_case(number: u64) -> BTreeMap<&'static str, u64> {
    let _named = Named(number);
    let mut dice = Dice(number.wrapping_mul(0x51_7c_c1_b7_27_22_0a_95));
    let ssd_bytes = [0, 3 * 1024 * KIB, 8 * 1024 * KIB][dice.roll(3) as usize];
    let shard = settings(2 + dice.roll(3), ssd_bytes);
    let mut bounds = grant_settings(shard.slab.bytes);
    if dice.roll(2) == 0 {
        bounds.bytes_per_node_max = 500 * KIB;
        bounds.pins_per_node_max = 6;
    }
    let errors_permille = [0, 0, 60, 400][dice.roll(4) as usize];
    let mut case = Case {
        dice,
        rig: GrantRig::new(shard, bounds),
        peers: [(0, 1); 3],
        connections: 0,
        processes: 0,
        readers: [0; 3],
        tokens: 0,
        errors_permille,
        seen: BTreeMap::new(),
    };
    for peer in 0..3 {
        case.connect(peer);
        case.join(peer);
    }
    for _ in 0..STEPS {
        case.step();
        case.rig.assert_kept();
    }
    case.finish()
}

impl Case {
    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn connect(&mut self, peer: usize) {
        self.connections += 1;
        self.peers[peer].0 = self.connections;
        self.rig.connect(self.connections, requester(peer as u8, self.peers[peer].1));
    }

    fn join(&mut self, peer: usize) {
        self.processes += 1;
        self.readers[peer] = self.processes;
        self.rig.grants.on_reader_joined(reader(peer as u8, self.processes));
    }

    fn peer(&mut self) -> usize {
        self.dice.roll(3) as usize
    }

    fn connection(&mut self) -> PayloadConnection {
        let peer = self.peer();
        PayloadConnection(self.peers[peer].0)
    }

    fn some_operation(&mut self) -> OperationId {
        // Some have not come yet.
        let number = self.rig.numbers.saturating_sub(self.dice.roll(12)) + 1;
        OperationId { origin: 5, number }
    }

    fn name(&mut self) -> (u8, u8) {
        (self.dice.roll(2) as u8, self.dice.roll(14) as u8)
    }

    fn step(&mut self) {
        match self.dice.roll(100) {
            0..16 => {
                let ((namespace, number), size) = (self.name(), self.dice.roll(4));
                self.rig.save(namespace, number, SIZES[size as usize]);
            }
            16..22 => {
                let ((namespace, number), media) = (self.name(), 1 + self.dice.roll(3) as u8);
                self.rig.evict(namespace, number, media);
            }
            22..26 => self.acquire(),
            26..44 => self.authorize(),
            44..56 => self.rig.step(),
            56..62 => self.sum(),
            62..72 => drop(self.rig.rig.start_one()),
            72..80 => self.complete(),
            80..88 => self.drain(),
            88..90 => {
                let (connection, operation) = (self.connection(), self.some_operation());
                self.rig.on(|grants, shard| grants.on_cancel(connection, operation, shard));
                self.rig.numbers = self.rig.numbers.max(operation.number);
            }
            90..92 => {
                let (connection, operation) = (self.connection(), self.some_operation());
                self.rig.on(|grants, shard| grants.on_release(connection, operation, shard));
            }
            92..95 => self.let_go(),
            95..97 => {
                let milliseconds = self.dice.roll(4_000);
                self.rig.pass(milliseconds);
            }
            97 => self.lose_connection(),
            98 => self.lose_reader(),
            _ => self.lose_life(),
        }
        self.rig.learn();
    }

    /// An engine of this node reads too, and leaves at once.
    fn acquire(&mut self) {
        let (namespace, number) = self.name();
        let (digest, group, block) = block(namespace, number);
        let hash = key_hash(&digest, group, &block);
        let keys = vec![Key { index: 0, namespace: 0, group, block, hash }];
        self.tokens += 1;
        let holder = holder(self.tokens, 1, 1);
        self.rig.rig.submit(Command::Acquire { holder, namespaces: vec![digest], keys, until: FOREVER });
        if self.dice.roll(3) > 0 {
            let release = Command::Release { token: holder.token, connection: holder.connection };
            self.rig.rig.submit(release);
        }
        if self.dice.roll(4) == 0 {
            self.rig.rig.submit(Command::Gone { connection: holder.connection });
        }
    }

    fn wanted(&mut self) -> ExactResidence {
        let (namespace, number) = self.name();
        let medium = Medium::ALL[self.dice.roll(2) as usize];
        let live = self.rig.live(namespace, number, medium);
        let past = self.dice.pick(self.rig.stays.values().map(|stay| stay.residence));
        let (name, group, block) = block(namespace, number);
        let head = self.rig.rig.shard.head().0;
        let sequence = Sequence(1 + self.dice.roll(head + 3));
        let invented = ExactResidence { namespace: name, group, block, medium, sequence };
        match self.dice.roll(10) {
            0..7 => live.or(past).unwrap_or(invented),
            7 => past.unwrap_or(invented),
            8 => invented,
            _ => ExactResidence { namespace: digest(77), ..invented },
        }
    }

    fn authorize(&mut self) {
        let mut wanted: Vec<ExactResidence> = Vec::new();
        for _ in 0..=self.dice.roll(5) {
            let next = self.wanted();
            let place = |of: &ExactResidence| (of.namespace, of.group, of.block, of.medium);
            if wanted.iter().all(|other| place(other) != place(&next)) {
                wanted.push(next);
            }
        }
        let peer = self.peer();
        let transport = Transport::ALL[self.dice.roll(2) as usize];
        // Evictions of this very request end residences that come later in it.
        let before: Vec<Option<Answer>> = wanted.iter().map(|wanted| self.rig.truth(wanted)).collect();
        let room = self.room(peer, transport);
        let is_off = transport == Transport::Shm
            && (self.rig.grants.is_shm_off(&node(peer as u8))
                || !self.rig.grants.readers.contains_key(&node(peer as u8)));
        let (operation, message) = self.rig.ask(self.peers[peer].0, transport, &wanted);
        let FromSource::Answers { answers, .. } = message else {
            let expected = match self.rig.life {
                Life::Fenced => FromSource::Refused(Refusal::LeaseExpired),
                Life::Serving { .. } => {
                    assert!(is_off, "refused without reason: {message:?}");
                    FromSource::Refused(Refusal::TransportOff)
                }
            };
            assert_eq!(message, expected);
            return self.count("refused");
        };
        assert!(!is_off && matches!(self.rig.life, Life::Serving { .. }), "may not be served: {operation:?}");
        let (mut pins, mut bytes) = room;
        for ((wanted, answer), before) in wanted.iter().zip(answers).zip(before) {
            let after = self.rig.truth(wanted);
            match answer {
                Answer::Granted { bytes: payload } => {
                    assert_eq!(before, None, "granted what is not here: {wanted:?}");
                    assert_eq!(u64::from(payload), self.rig.stays[&wanted.sequence].bytes);
                    let slot = padded(u64::from(payload));
                    assert!(pins > 0 && bytes >= slot, "granted beyond a bound");
                    (pins, bytes) = (pins - 1, bytes - slot);
                    self.count(if wanted.medium == Medium::Dram { "granted DRAM" } else { "granted SSD" });
                }
                Answer::Busy { .. } => {
                    assert_eq!(before, None, "busy with what is not here: {wanted:?}");
                    let slot = padded(self.rig.stays[&wanted.sequence].bytes);
                    let is_full = pins == 0 || bytes < slot;
                    assert!(is_full || wanted.medium == Medium::Ssd, "busy without reason");
                    self.count(if is_full { "busy by bounds" } else { "busy by memory" });
                }
                other => {
                    // The head moves within the request, as it evicts.
                    let never =
                        matches!((other, before), (Answer::NeverHeld { .. }, Some(Answer::NeverHeld { .. })));
                    assert!(never || Some(other) == before || Some(other) == after, "{other:?}: {wanted:?}");
                    self.count(match other {
                        Answer::Ended { sequence: Some(_) } => "ended",
                        Answer::Ended { sequence: None } => "ended unknown",
                        _ => "never held",
                    });
                }
            }
        }
    }

    /// Pins and bytes that a peer may still have, counted by the test from what is charged.
    fn room(&self, peer: usize, transport: Transport) -> (u64, u64) {
        let grants = &self.rig.grants;
        let (bounds, of) = (&grants.settings, node(peer as u8));
        let charged = |all: bool, shm: bool| {
            let operations = grants.operations.values();
            let counted = operations.filter(|operation| {
                (all || operation.requester.node == of) && (!shm || operation.transport == Transport::Shm)
            });
            counted.fold((0, 0), |(pins, bytes), operation| {
                (pins + operation.pins.len() as u64, bytes + operation.slot_bytes())
            })
        };
        let (own, total, shm) = (charged(false, false), charged(true, false), charged(true, true));
        let bytes = (bounds.bytes_per_node_max - own.1).min(grants.bytes.capacity() - total.1);
        let bytes = if transport == Transport::Shm { bytes.min(bounds.shm_bytes_max - shm.1) } else { bytes };
        (bounds.pins_per_node_max - own.0, bytes)
    }

    fn sum(&mut self) {
        if let Some(order) = self.rig.rig.shard.poll_checksum() {
            self.rig.sums.push(order);
        }
        if !self.rig.sums.is_empty() && self.dice.roll(3) > 0 {
            let index = self.dice.roll(self.rig.sums.len() as u64) as usize;
            let wanted = self.rig.rig.shard.is_checksum_wanted(self.rig.sums[index].id);
            self.rig.finish_sum(index);
            self.count(if wanted { "summed" } else { "sum dropped" });
        }
    }

    fn complete(&mut self) {
        if self.rig.rig.flights.is_empty() {
            if self.rig.rig.start_table() {
                self.rig.rig.complete_table(0, true);
            }
            self.rig.rig.shard.step();
            return;
        }
        let index = self.dice.roll(self.rig.rig.flights.len() as u64) as usize;
        let fault = match self.dice.roll(1_000) < self.errors_permille {
            true => [Fault::Error, Fault::Short, Fault::Flipped][self.dice.roll(3) as usize],
            false => Fault::None,
        };
        self.rig.rig.complete(index, fault);
    }

    fn drain(&mut self) {
        if let Some(loan) = self.dice.pick(self.rig.loans.keys().copied()) {
            self.rig.drain(loan);
            self.count("drained");
        }
    }

    fn let_go(&mut self) {
        let Some((operation, _)) = self.dice.pick(self.rig.extents.keys().copied()) else { return };
        let peer = (0..3).find(|&peer| node(peer) == self.rig.operations[&operation].0).expect("a peer's");
        // From whatever process of the node: after a reconnect it is known by another.
        let process = self.processes;
        let reader = reader(peer, process);
        self.rig.released(&reader, operation);
        assert_eq!(self.rig.effects.last(), Some(&Effect::Drained { reader, operation }));
        self.count("released");
    }

    fn lose_connection(&mut self) {
        let peer = self.peer();
        let connection = PayloadConnection(self.peers[peer].0);
        self.rig.on(|grants, shard| grants.on_disconnected(connection, shard));
        if self.dice.roll(2) == 0 {
            self.peers[peer].1 += 1;
        }
        self.connect(peer);
    }

    fn lose_reader(&mut self) {
        let peer = self.peer();
        let lost = reader(peer as u8, self.readers[peer]);
        if self.dice.roll(2) == 0 {
            // A closed socket proves nothing.
            self.rig.grants.on_reader_left(&lost);
        } else {
            let dead: Vec<OperationId> = (self.rig.grants.operations.iter())
                .filter(|(_, operation)| operation.reader == Some(lost))
                .map(|(key, _)| key.1)
                .collect();
            self.rig.extents.retain(|(operation, _), _| !dead.contains(operation));
            self.rig.on(|grants, shard| grants.on_reader_dead(&lost, shard));
            self.count("reader dead");
        }
        if self.dice.roll(4) > 0 {
            self.join(peer);
        }
    }

    fn lose_life(&mut self) {
        if self.dice.roll(2) == 0 {
            self.rig.life = match self.rig.life {
                Life::Fenced => Life::Serving { epoch: EPOCH, incarnation: source().incarnation },
                Life::Serving { .. } => {
                    self.rig.on(|grants, shard| grants.on_fence(shard));
                    Life::Fenced
                }
            };
            return;
        }
        let peer = self.peer();
        let (connection, life) = self.peers[peer];
        self.rig.on(|grants, shard| grants.on_requester_gone(requester(peer as u8, life), shard));
        self.rig.on(|grants, shard| grants.on_disconnected(PayloadConnection(connection), shard));
        self.peers[peer].1 += 1;
        self.connect(peer);
    }

    /// Everybody leaves, the device finishes, transports drain and readers die: nothing may be left.
    fn finish(mut self) -> BTreeMap<&'static str, u64> {
        let figures = self.rig.grants.figures();
        self.seen.insert("quarantines", figures.quarantines);
        self.seen.insert("failed", figures.failed);
        self.seen.insert("expired", figures.expired);
        self.rig.pass(20_000);
        let operations: Vec<OperationId> = self.rig.operations.keys().copied().collect();
        for peer in 0..3u8 {
            let (connection, life) = self.peers[usize::from(peer)];
            self.rig.on(|grants, shard| grants.on_requester_gone(requester(peer, life), shard));
            self.rig.on(|grants, shard| grants.on_disconnected(PayloadConnection(connection), shard));
            for &operation in
                operations.iter().filter(|of| self.rig.operations[of].0 == node(peer)).collect::<Vec<_>>()
            {
                self.rig.released(&reader(peer, 0), operation);
            }
        }
        self.rig.assert_kept();
        self.rig.drain_all();
        let gone = crate::leases::ConnectionId(1);
        self.rig.rig.submit(Command::Gone { connection: gone });
        self.rig.settle();
        let figures = self.rig.grants.figures();
        assert_eq!((figures.pins, figures.operations, figures.pinned_bytes), (0, 0, 0));
        assert_eq!((figures.quarantined_bytes, self.rig.rig.shard.pins()), (0, 0));
        assert!(self.rig.grants.accounts.is_empty() && self.rig.extents.is_empty());
        for namespace in 0..2 {
            let media = crate::shard::command::Media::from_mask(3);
            self.rig.rig.submit(Command::Clear { namespace: digest(namespace), media });
        }
        self.rig.settle();
        let figures = self.rig.rig.shard.figures();
        assert_eq!((figures.pinned_bytes, figures.allocated_bytes), (0, 0), "no memory is lost");
        assert!(figures.ssd.is_none_or(|ssd| ssd.live_bytes == 0) && PAGE > 0);
        self.seen
    }
}

#[test]
fn random_lives_keep_every_promise() {
    let mut totals: BTreeMap<&'static str, u64> = BTreeMap::new();
    let cases = std::env::var("ORBITKV_MODEL_CASES").map_or(CASES, |cases| cases.parse().expect("a number"));
    for number in 0..cases {
        for (what, count) in one_case(number) {
            *totals.entry(what).or_default() += count;
        }
    }
    for what in [
        "granted DRAM",
        "granted SSD",
        "busy by bounds",
        "ended",
        "ended unknown",
        "never held",
        "refused",
        "summed",
        "sum dropped",
        "drained",
        "released",
        "reader dead",
        "quarantines",
        "failed",
        "expired",
    ] {
        assert!(totals.get(what).is_some_and(|count| *count > 0), "no case had {what}: {totals:?}");
    }
}
