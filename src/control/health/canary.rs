//! The canary of a deep check: a small block for each shard that goes the way of an engine's blocks.
//!
//! It goes over the engine socket, as an engine's would, so whatever keeps engines out keeps it out, too. Its
//! keys and bytes are drawn anew each time: nothing that was there before can pass for it, and no peer has it. It
//! blocks its thread, within `CHECK_BUDGET` and what it takes to tidy up.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use orbitkv_native::entropy;
use orbitkv_shards::resilience::health::CHECK_INTERVAL;
use orbitkv_wire::identity::key_hash;

use super::answer::{Canary, PathFault, ShardPath, Step};
use crate::client::{
    BlockHash, BlockOutcome, Client, ClientError, ClientSettings, CommitOutcome, Group, GroupId, Media,
    Medium, Namespace, NamespaceDigest, Place, PrefixList, Registration, Reserved, Retention, SaveKey,
    Status,
};

/// Longest a check tries a node out; shards share it. The next check is not due before.
const CHECK_BUDGET: Duration = Duration::from_millis(1_500);
const _: () = assert!(CHECK_BUDGET.as_millis() < CHECK_INTERVAL.as_millis());

/// Time beyond it to end what a check has begun.
const TIDY_WAIT: Duration = Duration::from_millis(100);

/// Bytes of a canary: the smallest slot there is.
const CANARY_BYTES: u64 = 4_096;

/// First pause before what is not so yet is looked at again; doubles up to [`LOOK_PAUSE_MAX`].
const LOOK_PAUSE_MIN: Duration = Duration::from_micros(500);
/// Longest such pause: short beside the budget, long beside a request.
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(16);

/// Rows of a listing of canaries: of one shard there is one, and what an earlier check could not take along.
const LISTED_MAX: usize = 256;

const GROUP: GroupId = GroupId(0);

const AT_THE_DEVICE: &str =
    "look at the kernel's log for the device of --data-dir; replace it, or restart the node with --ssd 0";
const AT_THE_NODE: &str = "see `orbitkv doctor` and the log; restart the node if it does not pass by itself";

/// A node's own path, as a check tries it.
pub trait OwnPath: Send + 'static {
    /// Sends a canary through each shard; `has_ssd` says of each, in their order, whether it has an SSD tier.
    ///
    /// # Errors
    /// What keeps every shard from being tried.
    fn try_out(&mut self, has_ssd: &[bool]) -> Result<Vec<ShardPath>, PathFault>;
}

/// The path from a node's engine socket on.
pub struct EnginePath {
    socket: PathBuf,
    /// Kept after a request without an answer: what it brings late is given back by the next check.
    client: Option<Client>,
}

impl EnginePath {
    /// The path of the node that listens at `socket`.
    #[must_use]
    pub fn new(socket: PathBuf) -> EnginePath {
        EnginePath { socket, client: None }
    }

    fn connect(&self) -> Result<Client, PathFault> {
        let settings = ClientSettings {
            connect_wait: CHECK_BUDGET / 2,
            grace: TIDY_WAIT,
            ..ClientSettings::new(&self.socket)
        };
        Client::connect(settings).map_err(|error| PathFault {
            step: Step::Connect,
            error: error.to_string(),
            remedy: "see that the engine socket is still where --engine-socket says and that the node may open files \
                     (`ulimit -n`); restart the node if others have removed the socket"
                .to_owned(),
            late: false,
        })
    }
}

impl OwnPath for EnginePath {
    fn try_out(&mut self, has_ssd: &[bool]) -> Result<Vec<ShardPath>, PathFault> {
        let until = Instant::now() + CHECK_BUDGET;
        let client = match self.client.take() {
            Some(client) => client,
            None => self.connect()?,
        };
        let mut flight = Flight::begin(client, has_ssd.len() as u16, until)?;
        let mut paths = Vec::with_capacity(has_ssd.len());
        for (shard, &has_ssd) in (0u16..).zip(has_ssd) {
            if flight.unanswered {
                paths.push(ShardPath { shard, dram: Canary::Failed(silent()), ssd: Canary::NotTried });
                continue;
            }
            // What one does not use is for those after it.
            let left = until.saturating_duration_since(Instant::now()) / u32::from(flight.shards - shard);
            paths.push(flight.through(shard, has_ssd, Instant::now() + left));
        }
        self.client = flight.unanswered.then_some(flight.client);
        Ok(paths)
    }
}

/// One check under way.
struct Flight {
    client: Client,
    namespace: Namespace,
    digest: NamespaceDigest,
    shards: u16,
    /// Of which the keys and bytes are made.
    nonce: [u8; 16],
    /// The shard that a listing from `page` on begins with.
    page_shard: u16,
    page: Option<[u8; 40]>,
    /// Whether a request has had no answer.
    unanswered: bool,
}

/// A canary and when it must be back.
struct Trip {
    block: BlockHash,
    payload: Vec<u8>,
    until: Instant,
}

impl Trip {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

impl Flight {
    fn begin(mut client: Client, shards: u16, until: Instant) -> Result<Flight, PathFault> {
        let wait = until.saturating_duration_since(Instant::now());
        let namespace = client.register(&registration(), wait);
        let known = namespace.and_then(|namespace| Ok((namespace, client.digest(namespace)?)));
        let (namespace, digest) = known.map_err(|error| fault(Step::Register, &error))?;
        let nonce = entropy::random_bytes();
        let unanswered = false;
        Ok(Flight { client, namespace, digest, shards, nonce, page_shard: 0, page: None, unanswered })
    }

    /// Sends one through a shard, and takes it out again.
    fn through(&mut self, shard: u16, has_ssd: bool, until: Instant) -> ShardPath {
        let trip = Trip { block: self.block(shard), payload: self.payload(shard), until };
        let timed = |began: Instant, ended: Result<(), PathFault>| match ended {
            Ok(()) => Canary::Passed { took_us: began.elapsed().as_micros() as u64 },
            Err(fault) => Canary::Failed(fault),
        };
        let began = Instant::now();
        let dram = timed(began, self.through_dram(&trip));
        let began = Instant::now();
        let ssd = match (has_ssd, &dram) {
            (false, _) => Canary::Off,
            (true, Canary::Passed { .. }) => timed(began, self.through_ssd(shard, &trip)),
            (true, _) => Canary::NotTried,
        };
        // Where it cannot be taken out, it is a cold block like any other and leaves as one.
        let evicted = self.client.evict(self.namespace, &[(trip.block, GROUP)], Media::ALL, TIDY_WAIT);
        self.unanswered |= evicted.is_err_and(|error| error.status().is_none());
        ShardPath { shard, dram, ssd }
    }

    fn through_dram(&mut self, trip: &Trip) -> Result<(), PathFault> {
        let key = SaveKey { block: trip.block, group: GROUP, bytes: CANARY_BYTES };
        let mut slot = look(trip, |wait| {
            let reserved = self.client.reserve(self.namespace, &[key], false, wait);
            match self.answered(Step::Reserve, reserved)?.pop() {
                Some(Reserved::Slot(slot)) => Ok(Some(slot)),
                Some(Reserved::Busy) => Ok(None),
                other => Err(odd(Step::Reserve, &format!("it was answered {other:?} for a new key"))),
            }
        })?
        .ok_or_else(|| no_room(Step::Reserve))?;
        let filled = slot.copy_in(0, &trip.payload);
        let mut slots = vec![slot];
        if filled.is_err() {
            let aborted = self.client.abort(&mut slots, TIDY_WAIT);
            self.answered(Step::Commit, aborted)?;
        }
        self.answered(Step::Commit, filled)?;
        let committed = self.client.commit(&mut slots, trip.left());
        match self.answered(Step::Commit, committed)?.as_slice() {
            [CommitOutcome::Committed] => self.read(trip, Step::DramRead, Place::Dram),
            other => Err(odd(Step::Commit, &format!("it was answered {other:?} for a new key"))),
        }
    }

    fn through_ssd(&mut self, shard: u16, trip: &Trip) -> Result<(), PathFault> {
        let written = look(trip, |wait| Ok(self.is_on_ssd(shard, trip.block, wait)?.then_some(())))?;
        written.ok_or_else(|| PathFault {
            step: Step::SsdWrite,
            error: "it was not written back in time".to_owned(),
            remedy: AT_THE_DEVICE.to_owned(),
            late: true,
        })?;
        let dram = Medium::Dram.into();
        let evicted = self.client.evict(self.namespace, &[(trip.block, GROUP)], dram, trip.left());
        self.answered(Step::SsdRead, evicted)?;
        self.read(trip, Step::SsdRead, Place::Ssd)
    }

    /// A listing comes by shard, and each page says where the next begins.
    fn is_on_ssd(&mut self, shard: u16, block: BlockHash, wait: Duration) -> Result<bool, PathFault> {
        loop {
            let listed = self.client.list(self.digest, Medium::Ssd.into(), LISTED_MAX, self.page, wait);
            let page = self.answered(Step::SsdWrite, listed)?;
            if self.page_shard == shard {
                return Ok(page.residents.iter().any(|resident| resident.block == block));
            }
            (self.page_shard, self.page) = (self.page_shard + 1, page.next);
        }
    }

    /// Reads it where it must be, and compares.
    fn read(&mut self, trip: &Trip, step: Step, place: Place) -> Result<(), PathFault> {
        let blocks = [trip.block];
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &blocks }];
        let acquired = look(trip, |wait| {
            let acquired = self.client.acquire(&lists, None, wait);
            let acquired = self.answered(step, acquired)?;
            Ok((!matches!(acquired.blocks[..], [Err(BlockOutcome::Busy)])).then_some(acquired))
        })?;
        let acquired = acquired.ok_or_else(|| no_room(step))?;
        let compared = match &acquired.blocks[..] {
            [Ok(ready)] => {
                let bytes = self.answered(step, ready.bytes())?;
                compare(&trip.payload, bytes, (place, ready.place()), step)
            }
            [Err(outcome)] => Err(unread(step, *outcome)),
            _ => unreachable!("an Acquire answers for each block"),
        };
        if let Some(lease) = &acquired.lease {
            let released = self.client.release(lease, trip.left().max(TIDY_WAIT));
            return compared.and(self.answered(step, released));
        }
        compared
    }

    /// What an answer brings; notes a request without one.
    fn answered<T>(&mut self, step: Step, answer: Result<T, ClientError>) -> Result<T, PathFault> {
        answer.map_err(|error| {
            self.unanswered |= error.status().is_none();
            fault(step, &error)
        })
    }

    /// A key of a shard that nobody has had.
    fn block(&self, shard: u16) -> BlockHash {
        let mut candidates = (0u64..).map(|number| {
            let mut hash = [0; 32];
            hash[..16].copy_from_slice(&self.nonce);
            hash[16..24].copy_from_slice(&number.to_le_bytes());
            BlockHash(hash)
        });
        let is_of = |block: &BlockHash| key_hash(&self.digest, GROUP, block).shard(self.shards).0 == shard;
        candidates.find(is_of).expect("a hash falls on each shard sooner or later")
    }

    /// Bytes of which every word is of this check and shard.
    fn payload(&self, shard: u16) -> Vec<u8> {
        let nonce = u128::from_le_bytes(self.nonce) as u64;
        let seed = nonce.wrapping_add(u64::from(shard));
        let word = |index: u64| (seed ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        (0..CANARY_BYTES / 8).flat_map(word).collect()
    }
}

/// What was written against what has come back, and from where: as meant, and found.
fn compare(
    written: &[u8],
    found: &[u8],
    (meant, place): (Place, Place),
    step: Step,
) -> Result<(), PathFault> {
    if found != written {
        let remedy = "take this host out of service: its memory or its device changes bytes".to_owned();
        let error = "other bytes came back than were written".to_owned();
        return Err(PathFault { step, error, remedy, late: false });
    }
    match place == meant {
        true => Ok(()),
        false => Err(odd(step, &format!("it was read from {place:?} in place of {meant:?}"))),
    }
}

/// Asks until there is something or the time is over; `ask` is told how long it may take.
fn look<T>(
    trip: &Trip,
    mut ask: impl FnMut(Duration) -> Result<Option<T>, PathFault>,
) -> Result<Option<T>, PathFault> {
    let mut pause = LOOK_PAUSE_MIN;
    loop {
        let left = trip.left();
        match ask(left)? {
            None if left > pause => std::thread::sleep(pause),
            found => return Ok(found),
        }
        pause = (2 * pause).min(LOOK_PAUSE_MAX);
    }
}

fn fault(step: Step, error: &ClientError) -> PathFault {
    let remedy = match error.status() {
        Some(Status::Draining) => "wait for its end; start it again if the drain was not meant",
        _ => AT_THE_NODE,
    };
    let late = matches!(error, ClientError::DeadlineExceeded { .. })
        || error.status() == Some(Status::DeadlineExceeded);
    PathFault { step, error: error.to_string(), remedy: remedy.to_owned(), late }
}

fn odd(step: Step, error: &str) -> PathFault {
    PathFault { step, error: error.to_owned(), remedy: AT_THE_NODE.to_owned(), late: false }
}

fn silent() -> PathFault {
    PathFault {
        step: Step::Cores,
        error: "it was not tried: the node had left a request of the check unanswered".to_owned(),
        remedy: AT_THE_NODE.to_owned(),
        late: true,
    }
}

fn no_room(step: Step) -> PathFault {
    PathFault {
        step,
        error: "there was no room: all of the slice is leased, reserved or waits to be written back"
            .to_owned(),
        remedy: "raise --dram, release leases sooner, or use a faster SSD if write-backs are queued"
            .to_owned(),
        late: false,
    }
}

fn unread(step: Step, outcome: BlockOutcome) -> PathFault {
    let error = match outcome {
        BlockOutcome::Missing => "it was there and is missing",
        BlockOutcome::Corrupt => "its checksum was wrong",
        BlockOutcome::DeviceError => "the device failed to read it",
        BlockOutcome::DeadlineExceeded => "it was not read in time",
        BlockOutcome::Ready | BlockOutcome::Busy | BlockOutcome::Cancelled => "its answer makes no sense",
    };
    let remedy = if step == Step::SsdRead { AT_THE_DEVICE } else { AT_THE_NODE };
    let late = outcome == BlockOutcome::DeadlineExceeded;
    PathFault { step, error: error.to_owned(), remedy: remedy.to_owned(), late }
}

/// What nobody else registers.
fn registration() -> Registration {
    Registration {
        instance: "orbitkv-health".to_owned(),
        engine: concat!("orbitkv ", env!("CARGO_PKG_VERSION")).to_owned(),
        model: "orbitkv-health-canary".to_owned(),
        weights_revision: String::new(),
        adapter: String::new(),
        computation: String::new(),
        dtype: "u8".to_owned(),
        layout: "bytes".to_owned(),
        hash_algorithm: "random".to_owned(),
        hash_seed: String::new(),
        hash_bytes: 32,
        block_tokens: 1,
        tp_rank: 0,
        tp_size: 1,
        pp_rank: 0,
        pp_size: 1,
        rank_invariant: true,
        groups: vec![Group { group: GROUP, retention: Retention::Full, block_bytes: CANARY_BYTES }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_or_byte_of_difference_and_another_place_are_told() {
        let written: Vec<u8> = (0..CANARY_BYTES).map(|at| at as u8).collect();
        let there = (Place::Ssd, Place::Ssd);
        assert!(compare(&written, &written, there, Step::SsdRead).is_ok());
        let flipped = |at: usize| {
            let mut found = written.clone();
            found[at] ^= 0x80;
            found
        };
        let others =
            [flipped(0), flipped(written.len() - 1), written[1..].to_vec(), vec![0; written.len()], vec![]];
        for found in others {
            let fault = compare(&written, &found, there, Step::SsdRead).unwrap_err();
            assert_eq!((fault.step, fault.late), (Step::SsdRead, false));
            assert!(
                fault.error.contains("other bytes") && fault.remedy.contains("out of service"),
                "{fault:?}"
            );
        }
        // A copy in DRAM says nothing about the SSD.
        let fault = compare(&written, &written, (Place::Ssd, Place::Dram), Step::SsdRead).unwrap_err();
        assert!(fault.error.contains("Dram in place of Ssd"), "{fault:?}");
    }
}
