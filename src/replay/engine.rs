//! One engine of a replay: what an inference process does with each request. It asks what of the
//! prefix is there, reads that and compares every byte in place, and saves what was not. Every
//! block of the request ends as exactly one hit or one miss.

use std::collections::VecDeque;
use std::thread::sleep;
use std::time::{Duration, Instant};

use orbitkv_wire::bounds::{DEADLINE_MS_MAX, KEYS_PER_REQUEST_MAX};
use orbitkv_wire::engine::Status;

use super::payload::{block_hash, fill, wrong_bytes};
use super::report::{Tally, WRONG_BLOCKS_TOLD};
use crate::client::{
    Acquisition, BlockHash, BlockOutcome, Client, ClientError, CommitOutcome, Group, GroupId, Lease,
    Namespace, Place, PrefixList, ReadyBlock, Registration, Reserved, ReservedSlot, Retention, SaveKey,
};

/// The one layer group of a replay.
const GROUP: GroupId = GroupId(0);
/// Time given to one operation.
const WAIT: Duration = Duration::from_secs(30);
/// Time given to the final Sync.
const SYNC_WAIT: Duration = Duration::from_secs(300);
/// Queries tried again after a lost connection.
const QUERY_ATTEMPTS: usize = 5;
/// First pause after "no room", doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Longest pause after "no room".
const PAUSE_MAX: Duration = Duration::from_millis(64);
/// Pauses in one request's acquires before the rest counts as missing.
const ACQUIRE_PAUSES_MAX: usize = 8;
/// Time a request's saves may wait for room before the rest counts as refused.
const SAVE_PATIENCE: Duration = Duration::from_secs(5);

/// What became of one block of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Hit,
    Miss,
}

/// What Query tells of other nodes is no promise: the block may have gone when it is asked for.
fn is_hint(place: Place) -> bool {
    matches!(place, Place::PeerDram | Place::PeerSsd)
}

/// An engine with its connection.
pub(super) struct Engine {
    client: Client,
    namespace: Namespace,
    block_bytes: u64,
    pub(super) tally: Tally,
}

/// Registers as the engine of a replay. Runs with another block size are another namespace.
pub(super) fn registration(block_bytes: u64, index: usize) -> Registration {
    Registration {
        instance: format!("replay-{}-{index}", std::process::id()),
        engine: concat!("orbitkv-replay ", env!("CARGO_PKG_VERSION")).into(),
        model: "replay".into(),
        weights_revision: "1".into(),
        adapter: String::new(),
        computation: format!("payload-{}", super::payload::PAYLOAD_GENERATION),
        dtype: "u8".into(),
        layout: format!("flat-{block_bytes}"),
        hash_algorithm: "replay-id".into(),
        hash_seed: "0".into(),
        hash_bytes: 32,
        block_tokens: 512,
        tp_rank: 0,
        tp_size: 1,
        pp_rank: 0,
        pp_size: 1,
        rank_invariant: false,
        groups: vec![Group { group: GROUP, retention: Retention::Full, block_bytes }],
    }
}

impl Engine {
    pub(super) fn new(mut client: Client, block_bytes: u64, index: usize) -> Result<Engine, ClientError> {
        let namespace = client.register(&registration(block_bytes, index), WAIT)?;
        Ok(Engine { client, namespace, block_bytes, tally: Tally::default() })
    }

    /// Serves one request. `late` is by how much it starts after its intended time; latencies
    /// count from there, so that a slow node cannot hide its queue.
    pub(super) fn serve(&mut self, ids: &[u64], late: Duration) -> Result<(), ClientError> {
        self.tally.requests += 1;
        self.tally.block_references += ids.len() as u64;
        if ids.is_empty() {
            return Ok(());
        }
        let hashes: Vec<BlockHash> = ids.iter().map(|&id| block_hash(id)).collect();
        let started = Instant::now();
        let places = self.places(&hashes)?;
        let boundary = places.len();
        self.tally.query.record(late + started.elapsed());

        let mut fates = vec![Fate::Open; ids.len()];
        if boundary > 0 {
            let latency = self.read(ids, &hashes, &places, &mut fates)?;
            self.tally.acquire.record(late + latency);
        }
        fates[boundary..].fill(Fate::Miss);
        for fate in &fates {
            match fate {
                Fate::Open => self.tally.unaccounted += 1,
                Fate::Hit => {}
                Fate::Miss => self.tally.misses += 1,
            }
        }
        let missing = (0..ids.len()).filter(|&at| fates[at] == Fate::Miss);
        let missing: VecDeque<usize> = missing.collect();
        if !missing.is_empty() {
            let started = Instant::now();
            self.save(ids, &hashes, missing)?;
            self.tally.save.record(late + started.elapsed());
        }
        // Answers to releases, which nobody waits for.
        while self.client.poll().is_some() {}
        Ok(())
    }

    /// Says that a request will come within `wait`.
    pub(super) fn announce(&mut self, ids: &[u64], wait: Duration) -> Result<(), ClientError> {
        let hashes: Vec<BlockHash> =
            ids.iter().take(KEYS_PER_REQUEST_MAX).map(|&id| block_hash(id)).collect();
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &hashes }];
        let longest = Duration::from_millis(DEADLINE_MS_MAX.into());
        match self.client.prefetch(&lists, wait.min(longest)) {
            Ok(outcomes) => outcomes.into_iter().for_each(|outcome| self.tally.announced.count(outcome)),
            Err(ClientError::ConnectionLost { .. }) => self.tally.connections_lost += 1,
            // It only helps.
            Err(ClientError::Refused { status: Status::Busy | Status::DeadlineExceeded, .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Where the blocks up to the longest boundary are.
    fn places(&mut self, hashes: &[BlockHash]) -> Result<Vec<Place>, ClientError> {
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: hashes }];
        for attempt in 1.. {
            match self.client.query(&lists, false, WAIT) {
                Ok(mut view) => {
                    view.places.truncate(view.boundary_blocks as usize);
                    return Ok(view.places);
                }
                Err(ClientError::ConnectionLost { .. }) if attempt < QUERY_ATTEMPTS => {
                    self.tally.connections_lost += 1;
                }
                Err(ClientError::Refused { status: Status::Busy, .. }) if attempt < QUERY_ATTEMPTS => {
                    sleep(PAUSE_MAX);
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Acquires, compares and releases the blocks that have `places`, in as many pieces as the
    /// lease bound makes necessary. Returns the time spent acquiring.
    fn read(
        &mut self,
        ids: &[u64],
        hashes: &[BlockHash],
        places: &[Place],
        fates: &mut [Fate],
    ) -> Result<Duration, ClientError> {
        let mut latency = Duration::ZERO;
        let mut todo: VecDeque<usize> = (0..places.len()).collect();
        let mut piece_blocks = KEYS_PER_REQUEST_MAX;
        let (mut pauses, mut pause) = (0, PAUSE_MIN);
        while !todo.is_empty() {
            let piece: Vec<usize> = todo.drain(..todo.len().min(piece_blocks)).collect();
            let blocks: Vec<BlockHash> = piece.iter().map(|&at| hashes[at]).collect();
            let started = Instant::now();
            let acquired = self.acquire(&blocks)?;
            latency += started.elapsed();
            let Some(acquired) = acquired else {
                // The connection is gone, and with it what it had acquired.
                self.tally.broken_promises.failed += (piece.len() + todo.len()) as u64;
                piece.iter().chain(&todo).for_each(|&at| fates[at] = Fate::Miss);
                break;
            };
            let mut busy = Vec::new();
            for (&at, result) in piece.iter().zip(&acquired.blocks) {
                match result {
                    Ok(ready) => fates[at] = self.compare(ids[at], ready),
                    Err(BlockOutcome::Busy) => busy.push(at),
                    Err(outcome) => {
                        fates[at] = Fate::Miss;
                        let promises = &mut self.tally.broken_promises;
                        *match outcome {
                            BlockOutcome::Missing if is_hint(places[at]) => &mut promises.peer_missing,
                            BlockOutcome::Missing => &mut promises.missing,
                            BlockOutcome::Corrupt => &mut promises.corrupt,
                            _ => &mut promises.failed,
                        } += 1;
                    }
                }
            }
            if let Some(lease) = &acquired.lease {
                self.release(lease)?;
            }
            if busy.len() == piece.len() {
                if pauses == ACQUIRE_PAUSES_MAX {
                    self.tally.broken_promises.busy += (busy.len() + todo.len()) as u64;
                    busy.iter().chain(&todo).for_each(|&at| fates[at] = Fate::Miss);
                    break;
                }
                sleep(pause);
                (pauses, pause) = (pauses + 1, (pause * 2).min(PAUSE_MAX));
                piece_blocks = (piece.len() / 2).max(1);
            } else if !busy.is_empty() {
                piece_blocks = (piece.len() - busy.len()).max(1);
            }
            busy.into_iter().rev().for_each(|at| todo.push_front(at));
        }
        Ok(latency)
    }

    /// `None` if the connection was lost; an acquire refused as a whole is one without room.
    fn acquire(&mut self, blocks: &[BlockHash]) -> Result<Option<Acquisition>, ClientError> {
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks }];
        match self.client.acquire(&lists, None, WAIT) {
            Ok(acquired) => Ok(Some(acquired)),
            Err(ClientError::ConnectionLost { .. }) => {
                self.tally.connections_lost += 1;
                Ok(None)
            }
            Err(ClientError::Refused { status: Status::Busy | Status::DeadlineExceeded, .. }) => {
                let nothing = blocks.iter().map(|_| Err(BlockOutcome::Busy)).collect();
                Ok(Some(Acquisition { lease: None, boundary_blocks: 0, blocks: nothing }))
            }
            Err(error) => Err(error),
        }
    }

    /// Submits the release and goes on; its answer is taken at the end of the request.
    fn release(&mut self, lease: &Lease) -> Result<(), ClientError> {
        loop {
            match self.client.submit_release(lease, WAIT) {
                Ok(_) => return Ok(()),
                Err(ClientError::Full { .. }) => {
                    self.client.ping(WAIT)?;
                    while self.client.poll().is_some() {}
                }
                // Its lease ends with it.
                Err(ClientError::ConnectionLost { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn compare(&mut self, id: u64, ready: &ReadyBlock) -> Fate {
        let started = Instant::now();
        let Ok(found) = ready.bytes() else {
            // The connection was replaced between the answer and the look.
            self.tally.broken_promises.failed += 1;
            return Fate::Miss;
        };
        let mut wrong = wrong_bytes(id, found);
        let length = found.len() as u64;
        if length != self.block_bytes {
            wrong = wrong.max(self.block_bytes.abs_diff(length));
        }
        self.tally.verifying += started.elapsed();
        self.tally.verified_bytes += length;
        if wrong > 0 {
            self.tally.wrong_bytes += wrong;
            if self.tally.wrong_blocks.len() < WRONG_BLOCKS_TOLD {
                let head: Vec<String> = found.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
                self.tally.wrong_blocks.push(format!(
                    "block {id} from {:?} at arena offset {}: {wrong} of {} bytes ({length} came), begins {}",
                    ready.place(),
                    ready.offset(),
                    self.block_bytes,
                    head.concat()
                ));
            }
        }
        if self.tally.hits.count(ready.place()) { Fate::Hit } else { Fate::Open }
    }

    /// Reserves, fills and commits; what finds no room in time is counted as refused.
    fn save(
        &mut self,
        ids: &[u64],
        hashes: &[BlockHash],
        mut todo: VecDeque<usize>,
    ) -> Result<(), ClientError> {
        let give_up = Instant::now() + SAVE_PATIENCE;
        let mut pause = PAUSE_MIN;
        let mut piece_blocks = KEYS_PER_REQUEST_MAX;
        while !todo.is_empty() {
            let piece: Vec<usize> = todo.drain(..todo.len().min(piece_blocks)).collect();
            let Some(reserved) = self.reserve(hashes, &piece)? else {
                self.tally.saves.failed += (piece.len() + todo.len()) as u64;
                break;
            };
            let mut busy = Vec::new();
            let mut slots = Vec::new();
            for (&at, reserved) in piece.iter().zip(reserved) {
                match reserved {
                    Reserved::Slot(slot) => slots.push((at, slot)),
                    Reserved::Present => self.tally.saves.present += 1,
                    Reserved::BeingSaved => self.tally.saves.being_saved += 1,
                    Reserved::Busy => busy.push(at),
                    Reserved::TooLarge { limit_bytes } => {
                        return Err(ClientError::OverLimit {
                            what: "bytes of --block-bytes",
                            count: self.block_bytes as usize,
                            limit: limit_bytes as usize,
                        });
                    }
                }
            }
            let progress = busy.len() < piece.len();
            self.publish(ids, slots)?;
            busy.into_iter().rev().for_each(|at| todo.push_front(at));
            if progress {
                pause = PAUSE_MIN;
            } else if Instant::now() >= give_up {
                self.tally.saves.refused += todo.len() as u64;
                break;
            } else {
                sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
                piece_blocks = (piece.len() / 2).max(1);
            }
        }
        Ok(())
    }

    /// `None` if the connection was lost.
    fn reserve(
        &mut self,
        hashes: &[BlockHash],
        piece: &[usize],
    ) -> Result<Option<Vec<Reserved>>, ClientError> {
        let key = |&at: &usize| SaveKey { block: hashes[at], group: GROUP, bytes: self.block_bytes };
        let keys: Vec<SaveKey> = piece.iter().map(key).collect();
        match self.client.reserve(self.namespace, &keys, false, WAIT) {
            Ok(reserved) => Ok(Some(reserved)),
            Err(ClientError::ConnectionLost { .. }) => {
                self.tally.connections_lost += 1;
                Ok(None)
            }
            Err(ClientError::Refused { status: Status::Busy | Status::DeadlineExceeded, .. }) => {
                Ok(Some(keys.iter().map(|_| Reserved::Busy).collect()))
            }
            Err(error) => Err(error),
        }
    }

    fn publish(&mut self, ids: &[u64], slots: Vec<(usize, ReservedSlot)>) -> Result<(), ClientError> {
        if slots.is_empty() {
            return Ok(());
        }
        let count = slots.len() as u64;
        let started = Instant::now();
        let mut filled = Vec::with_capacity(slots.len());
        for (at, mut slot) in slots {
            fill(ids[at], &mut slot.bytes_mut()?);
            filled.push(slot);
        }
        self.tally.filling += started.elapsed();
        let outcomes = match self.client.commit(&mut filled, WAIT) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.tally.saves.failed += count;
                return match error {
                    ClientError::ConnectionLost { .. } => {
                        self.tally.connections_lost += 1;
                        Ok(())
                    }
                    ClientError::Ended | ClientError::StaleGeneration { .. } => Ok(()),
                    error => Err(error),
                };
            }
        };
        for outcome in outcomes {
            match outcome {
                CommitOutcome::Committed => {
                    self.tally.saves.committed += 1;
                    self.tally.saved_bytes += self.block_bytes;
                }
                CommitOutcome::Lost => self.tally.saves.lost += 1,
                CommitOutcome::NotYours | CommitOutcome::Aborted => self.tally.saves.failed += 1,
            }
        }
        Ok(())
    }

    /// Waits until what was saved is where the node keeps it.
    pub(super) fn sync(&mut self) -> Result<(), ClientError> {
        self.client.sync(SYNC_WAIT).map(|_| ())
    }
}
