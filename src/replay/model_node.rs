//! A node in a few dozen lines for the tests of replay: one arena, one map, first in first out, on
//! a real socket. It can be told to misbehave in the ways a replay has to notice or survive.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use orbitkv_native::arena::{Arena, PagePreference};
use orbitkv_native::engine_socket::send_with_fds;
use orbitkv_wire::engine::answers::*;
use orbitkv_wire::engine::requests::{PrefixBody, Request, decode_request};
use orbitkv_wire::engine::{Header, Operation, VERSION, layout_hash, split_frame};

/// What a model node does wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// Of so many acquired blocks, one has a flipped byte.
    pub(super) flip_one_of: Option<usize>,
    /// Blocks one Acquire may lease; the others are busy.
    pub(super) lease_blocks_max: Option<usize>,
    /// Of so many blocks that Query shows, one is gone at Acquire.
    pub(super) lose_one_of: Option<usize>,
    /// Of so many keys in Reserve, one is busy.
    pub(super) busy_one_of: Option<usize>,
    /// No key ever gets a slot.
    pub(super) always_full: bool,
    /// Of so many requests, one ends the connection instead of an answer.
    pub(super) hang_up_one_of: Option<usize>,
    /// Ready blocks name no place they come from.
    pub(super) no_place: bool,
    /// Query shows what is not here at a peer, and no Acquire gets it.
    pub(super) hints_unknown: bool,
    /// Ready blocks come from a peer's SSD.
    pub(super) from_peer: bool,
}

struct State {
    faults: Faults,
    arena: Arena,
    block_bytes: u64,
    free: Vec<u64>,
    resident: HashMap<[u8; 32], u64>,
    order: VecDeque<[u8; 32]>,
    reserved: BTreeMap<u64, ([u8; 32], u64)>,
    leased: BTreeMap<u64, Vec<u64>>,
    next_number: u64,
    counts: BTreeMap<&'static str, usize>,
}

/// Its socket; the node ends with the process of the test.
pub(super) struct ModelNode {
    directory: tempfile::TempDir,
}

impl ModelNode {
    /// A node with room for `blocks` blocks.
    pub(super) fn start(blocks: u64, block_bytes: u64, faults: Faults) -> ModelNode {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("engine.sock")).unwrap();
        let slot_bytes = block_bytes.next_multiple_of(4096);
        let (arena, _) = Arena::create(blocks * slot_bytes, PagePreference::Small).unwrap();
        let state = State {
            faults,
            arena,
            block_bytes,
            free: (0..blocks).map(|slot| slot * slot_bytes).collect(),
            resident: HashMap::new(),
            order: VecDeque::new(),
            reserved: BTreeMap::new(),
            leased: BTreeMap::new(),
            next_number: 1,
            counts: BTreeMap::new(),
        };
        let state = Arc::new(Mutex::new(state));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = state.clone();
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        ModelNode { directory }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("engine.sock")
    }
}

fn serve(mut stream: UnixStream, state: &Mutex<State>) {
    let mut received = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        while let Some((header, body)) = split_frame(&received).unwrap() {
            let body = received[body].to_vec();
            received.drain(..header.length as usize);
            let mut out = Vec::new();
            let mut state = state.lock().unwrap();
            let hello = header.operation == Operation::Hello as u8;
            let hangs_up = state.faults.hang_up_one_of;
            if !hello && state.one_of("request", hangs_up) {
                return;
            }
            state.answer(&header, &body, &mut out);
            let sent = if hello {
                send_with_fds(stream.as_fd(), &out, &[state.arena.fd()]).map(|_| ())
            } else {
                stream.write_all(&out)
            };
            if sent.is_err() {
                return;
            }
        }
        match stream.read(&mut chunk) {
            Ok(count) if count > 0 => received.extend_from_slice(&chunk[..count]),
            _ => return,
        }
    }
}

impl State {
    /// Whether this is the one of `every` that goes wrong.
    fn one_of(&mut self, what: &'static str, every: Option<usize>) -> bool {
        let count = self.counts.entry(what).or_default();
        *count += 1;
        every.is_some_and(|every| count.is_multiple_of(every))
    }

    fn answer(&mut self, header: &Header, body: &[u8], out: &mut Vec<u8>) {
        let id = header.request_id;
        let operation = Operation::from_wire(header.operation).unwrap();
        match decode_request(header, body).unwrap() {
            Request::Hello(hello) => {
                let answer = HelloAnswer {
                    version: VERSION,
                    layout_hash: layout_hash(),
                    arena_generation: 5,
                    arena_bytes: self.arena.bytes(),
                    connection: self.number(),
                    incarnation: [1; 16],
                    shards: 1,
                    in_flight: hello.in_flight,
                    page_kind: 0,
                };
                append_answer::<_, HelloAnswer>(out, operation, id, false, &answer, &[]);
            }
            Request::Register(..) => {
                let answer = RegisterAnswer { namespace: 1, digest: [2; 32] };
                append_answer::<_, RegisterAnswer>(out, operation, id, false, &answer, &[]);
            }
            Request::Reserve(_, records) => {
                let records = records.to_vec().unwrap();
                let records: Vec<SlotRecord> = records.iter().map(|key| self.reserve(key.block)).collect();
                append_records(out, operation, id, &records);
            }
            Request::Commit(_, records) => {
                let commit = |state: &mut State, number| match state.reserved.remove(&number) {
                    Some((hash, offset)) if state.resident.contains_key(&hash) => {
                        state.free.push(offset);
                        CommitOutcome::Lost
                    }
                    Some((hash, offset)) => {
                        state.resident.insert(hash, offset);
                        state.order.push_back(hash);
                        CommitOutcome::Committed
                    }
                    None => CommitOutcome::NotYours,
                };
                let records = records.to_vec().unwrap();
                let outcomes: Vec<OutcomeRecord> = records
                    .iter()
                    .map(|record| OutcomeRecord { outcome: commit(self, record.reservation) as u8 })
                    .collect();
                append_records(out, operation, id, &outcomes);
            }
            Request::Query(_, _, hashes) => {
                let hashes = hashes.to_vec().unwrap();
                let known = |hash: &[u8; 32]| self.resident.contains_key(hash);
                let hints = self.faults.hints_unknown;
                let boundary = hashes.iter().take_while(|hash| hints || known(&hash.block)).count();
                let place = |hash: &[u8; 32]| match known(hash) {
                    true => Place::Dram,
                    false if hints => Place::PeerDram,
                    false => Place::None,
                };
                let places: Vec<PlaceRecord> =
                    hashes.iter().map(|hash| PlaceRecord { place: place(&hash.block) as u8 }).collect();
                let answer = QueryAnswer {
                    boundary_blocks: boundary as u32,
                    examined_blocks: hashes.len() as u32,
                    coverage: 0,
                    view_generation: 1,
                    lease: [0; 16],
                    hint_age_ms: 0,
                    left_out: 0,
                };
                append_answer(out, operation, id, false, &answer, &places);
            }
            Request::Acquire(prefix, _, hashes) => {
                let hashes: Vec<[u8; 32]> = hashes.to_vec().unwrap().iter().map(|hash| hash.block).collect();
                self.acquire(prefix, &hashes, id, out);
            }
            Request::Release(lease) => {
                let token = u64::from_le_bytes(*lease.lease.first_chunk().unwrap());
                self.leased.remove(&token);
                append_done(out, operation, id);
            }
            Request::Sync => {
                let answer = SyncAnswer { outcome: 0, incarnation: [1; 16] };
                append_answer(out, operation, id, false, &answer, &[SequenceRecord { sequence: 1 }]);
            }
            Request::Ping | Request::Cancel(_) => append_done(out, operation, id),
            other => panic!("a replay does not ask for {other:?}"),
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn reserve(&mut self, hash: [u8; 32]) -> SlotRecord {
        let answer = |outcome: SlotOutcome, reservation, offset, bytes| SlotRecord {
            outcome: outcome as u8,
            reservation,
            offset,
            bytes,
        };
        if self.resident.contains_key(&hash) {
            return answer(SlotOutcome::Present, 0, 0, 0);
        }
        let busy = self.faults.busy_one_of;
        if self.faults.always_full || self.one_of("reserve", busy) {
            return answer(SlotOutcome::Busy, 0, 0, 0);
        }
        if self.free.is_empty() {
            let leased: HashSet<u64> = self.leased.values().flatten().copied().collect();
            let victim = self
                .order
                .iter()
                .position(|hash| self.resident.get(hash).is_some_and(|offset| !leased.contains(offset)));
            if let Some(victim) = victim.and_then(|at| self.order.remove(at)) {
                self.free.extend(self.resident.remove(&victim));
            }
        }
        let Some(offset) = self.free.pop() else { return answer(SlotOutcome::Busy, 0, 0, 0) };
        let reservation = self.number();
        self.reserved.insert(reservation, (hash, offset));
        answer(SlotOutcome::Slot, reservation, offset, self.block_bytes)
    }

    /// Answers block by block, last block first.
    fn acquire(&mut self, prefix: PrefixBody, hashes: &[[u8; 32]], id: u64, out: &mut Vec<u8>) {
        assert_eq!(prefix.lease, [0; 16], "a replay does not hold");
        let token = self.number();
        let mut lease = [1; 16];
        lease[..8].copy_from_slice(&token.to_le_bytes());
        let bound = self.faults.lease_blocks_max.unwrap_or(usize::MAX);
        let (lose, flip) = (self.faults.lose_one_of, self.faults.flip_one_of);
        let mut leased = Vec::new();
        for (index, hash) in hashes.iter().enumerate().rev() {
            let lost = self.one_of("acquire", lose);
            let offset = self.resident.get(hash).copied().filter(|_| !lost);
            let outcome = match offset {
                None => BlockOutcome::Missing,
                Some(_) if leased.len() >= bound => BlockOutcome::Busy,
                Some(offset) => {
                    leased.push(offset);
                    if self.one_of("ready", flip) {
                        let mut byte = [0];
                        self.arena.copy_out(offset + 20, &mut byte);
                        self.arena.copy_in(offset + 20, &[byte[0] ^ 1]);
                    }
                    BlockOutcome::Ready
                }
            };
            let source = match self.faults {
                Faults { no_place: true, .. } => Place::NotExamined,
                Faults { from_peer: true, .. } => Place::PeerSsd,
                _ => Place::Dram,
            };
            let record = BlockRecord {
                index: index as u32,
                outcome: outcome as u8,
                source: source as u8,
                offset: offset.unwrap_or(0),
                bytes: self.block_bytes,
            };
            let answer = AcquireAnswer { lease, boundary_blocks: 0 };
            append_answer(out, Operation::Acquire, id, index > 0, &answer, &[record]);
        }
        self.leased.insert(token, leased);
    }
}
