//! What the node answered, in the engine's types, and how a frame becomes one of them. Every
//! count, number and extent is checked against the request before anybody sees it.

use std::sync::Arc;

use orbitkv_wire::engine::answers::{
    Answer, BlockOutcome, CommitOutcome, Coverage, DrainAnswer, EvictOutcome, OutcomeRecord, Place,
    PrefetchOutcome, SlotOutcome, SyncOutcome, decode_answer,
};
use orbitkv_wire::engine::{Header, Operation};
use orbitkv_wire::identity::{
    BlockHash, GroupId, Incarnation, Medium, NamespaceDigest, Sequence, ShardIndex,
};
use orbitkv_wire::layout::Records;

use super::error::ClientError;
use super::requests::{Namespace, Registration};
use super::session::{Lease, ReadyBlock, ReservedSlot, Session};

/// Names a submitted request until its last completion. Never reused by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

/// One answer, or one frame of an answer that comes in several.
#[derive(Debug)]
pub struct Completion {
    /// The request it answers.
    pub ticket: Ticket,
    /// Whether nothing more comes for this ticket. An error is always the last.
    pub last: bool,
    /// What the node said.
    pub result: Result<Outcome, ClientError>,
}

/// What a request became.
#[derive(Debug)]
pub enum Outcome {
    /// Ping, Release and Cancel.
    Done,
    /// Register.
    Registered(Namespace),
    /// Reserve: one a key, in request order.
    Reserved(Vec<Reserved>),
    /// Commit and Abort: one a slot, in request order.
    Settled(Vec<CommitOutcome>),
    /// Evict: one a key, in request order.
    Evicted(Vec<EvictOutcome>),
    /// Prefetch: one a hash, in request order.
    Prefetched(Vec<PrefetchOutcome>),
    /// Query.
    Query(QueryView),
    /// Acquire, one or more times.
    Acquire(AcquirePart),
    /// Attach, one or more times.
    Attach(AttachPart),
    /// Clear.
    Cleared(Cleared),
    /// List.
    Page(Page),
    /// Sync.
    Synced(Synced),
    /// Drain, one or more times: what is still outstanding.
    Draining(DrainAnswer),
}

/// What became of a key in Reserve.
#[derive(Debug)]
pub enum Reserved {
    /// A slot to fill and commit.
    Slot(ReservedSlot),
    /// The node already has the block.
    Present,
    /// Another engine holds a slot for this key.
    BeingSaved,
    /// No room right now; try again soon.
    Busy,
    /// Larger than a slot can be.
    TooLarge {
        /// The largest slot, in bytes.
        limit_bytes: u64,
    },
}

/// Answer to Query.
#[derive(Clone, Debug)]
pub struct QueryView {
    /// Longest recoverable boundary, in blocks.
    pub boundary_blocks: u32,
    /// Positions of the prefix that were looked at.
    pub examined_blocks: u32,
    /// Coverage of the weakest batch.
    pub coverage: Coverage,
    /// Changes whenever the view behind the answer does.
    pub view_generation: u64,
    /// With `hold`: the lease that pins the local hits, if there are any.
    pub lease: Option<Lease>,
    /// Best place of each hash, in request order.
    pub places: Vec<Place>,
    /// How old the places on peers may be: milliseconds since the oldest view behind the answer was known to be whole,
    /// rounded up. Up to 5,000 a view proves absence; older ones give hints that are tried last. 0 without any view,
    /// and standalone.
    pub hint_age_ms: u32,
    /// Shards of peers of which the node has no view, a broken one, or one older than 5 s: blocks that only they have may
    /// be missing from `places`. 0 standalone, and whenever `coverage` is [`Coverage::CompleteAtWatermarks`].
    pub left_out: u32,
}

/// One frame of an Acquire answer.
#[derive(Debug)]
pub struct AcquirePart {
    /// The lease over every ready block of the request, as soon as there is one.
    pub lease: Option<Lease>,
    /// Largest legal boundary that is ready, in blocks; only meaningful in the last part.
    pub boundary_blocks: u32,
    /// Blocks this part decides.
    pub blocks: Vec<AcquiredBlock>,
}

/// One block of an Acquire.
#[derive(Debug)]
pub struct AcquiredBlock {
    /// Index of its hash in the request.
    pub index: usize,
    /// The block, or why not. Never `Err(Ready)`.
    pub result: Result<ReadyBlock, BlockOutcome>,
}

/// A whole Acquire.
#[derive(Debug)]
pub struct Acquisition {
    /// The lease over the ready blocks, if any is ready.
    pub lease: Option<Lease>,
    /// Largest legal boundary that is ready, in blocks.
    pub boundary_blocks: u32,
    /// One a hash, in request order.
    pub blocks: Vec<Result<ReadyBlock, BlockOutcome>>,
}

/// One frame of an Attach answer, or the whole of it.
#[derive(Debug)]
pub struct AttachPart {
    /// This connection's share of the lease.
    pub lease: Lease,
    /// Blocks under it.
    pub blocks: Vec<AttachedBlock>,
}

/// One block of an attached lease.
#[derive(Clone, Debug)]
pub struct AttachedBlock {
    /// Block hash.
    pub block: BlockHash,
    /// Layer group.
    pub group: GroupId,
    /// Its bytes.
    pub ready: ReadyBlock,
}

/// Answer to Clear, in residences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// Ended.
    pub removed: u64,
    /// Still used by something; they end with their last user.
    pub in_use: u64,
}

/// A page of residents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The residents, in the node's order.
    pub residents: Vec<Resident>,
    /// Where the next page starts; none after the last.
    pub next: Option<[u8; 40]>,
}

/// One residence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Block hash.
    pub block: BlockHash,
    /// Layer group.
    pub group: GroupId,
    /// Where it lives.
    pub medium: Medium,
    /// Shard that owns it.
    pub shard: ShardIndex,
    /// Payload bytes.
    pub bytes: u64,
    /// Residency sequence.
    pub sequence: Sequence,
}

/// Answer to Sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// What was waited for.
    pub outcome: SyncOutcome,
    /// Incarnation the sequences belong to.
    pub incarnation: Incarnation,
    /// Journal head of each shard.
    pub sequences: Vec<Sequence>,
}

/// What the request says about the answers it may get.
pub(super) enum Expect {
    Done,
    Register(Box<Registration>),
    Reserve(Vec<u64>),
    Settle(usize),
    Evict(usize),
    Prefetch(usize),
    Query(usize),
    Acquire { keys: usize, lease: Option<Lease> },
    Attach(Option<Lease>),
    Clear,
    List,
    Sync,
    Drain,
}

/// An answer that still needs the client's tables.
pub(super) enum Decoded {
    Outcome(Outcome),
    Registered { handle: u32, digest: NamespaceDigest },
}

/// Makes an outcome of a frame.
pub(super) fn decode(
    header: &Header,
    body: &[u8],
    operation: Operation,
    expect: &mut Expect,
    session: &Arc<Session>,
) -> Result<Decoded, ClientError> {
    let answer = decode_answer(header, body)?;
    if let Answer::Refused(status, refusal) = answer {
        let text = refusal.text.as_str().unwrap_or("(its explanation is not text)").to_owned();
        return Err(ClientError::Refused { operation, status, detail: refusal.detail, text });
    }
    let outcome = match (expect, answer) {
        (Expect::Done, Answer::Done) => Outcome::Done,
        (Expect::Register(_), Answer::Register(answer)) => {
            return Ok(Decoded::Registered {
                handle: answer.namespace,
                digest: NamespaceDigest(answer.digest),
            });
        }
        (Expect::Reserve(wanted), Answer::Reserve(records)) => {
            same_count(operation, wanted.len(), records.len())?;
            let slots = records.iter().zip(wanted.iter()).map(|(record, &wanted)| {
                let record = record?;
                Ok(match known(SlotOutcome::from_wire(record.outcome))? {
                    SlotOutcome::Slot if record.bytes < wanted => {
                        return Err(ClientError::protocol("a slot is smaller than its key asked for"));
                    }
                    SlotOutcome::Slot => {
                        Reserved::Slot(ReservedSlot::new(session, record.reservation, record.offset, wanted)?)
                    }
                    SlotOutcome::Present => Reserved::Present,
                    SlotOutcome::BeingSaved => Reserved::BeingSaved,
                    SlotOutcome::Busy => Reserved::Busy,
                    SlotOutcome::TooLarge => Reserved::TooLarge { limit_bytes: record.offset },
                })
            });
            Outcome::Reserved(slots.collect::<Result<_, ClientError>>()?)
        }
        (Expect::Settle(count), Answer::Outcomes(records)) => {
            Outcome::Settled(outcomes(operation, *count, records, CommitOutcome::from_wire)?)
        }
        (Expect::Evict(count), Answer::Outcomes(records)) => {
            Outcome::Evicted(outcomes(operation, *count, records, EvictOutcome::from_wire)?)
        }
        (Expect::Prefetch(count), Answer::Outcomes(records)) => {
            Outcome::Prefetched(outcomes(operation, *count, records, PrefetchOutcome::from_wire)?)
        }
        (Expect::Query(count), Answer::Query(answer, records)) => {
            same_count(operation, *count, records.len())?;
            let places = records.iter().map(|record| known(Place::from_wire(record?.place)));
            if answer.boundary_blocks as usize > *count {
                return Err(ClientError::protocol("a boundary lies beyond the queried prefix"));
            }
            Outcome::Query(QueryView {
                boundary_blocks: answer.boundary_blocks,
                examined_blocks: answer.examined_blocks,
                coverage: known(Coverage::from_wire(answer.coverage))?,
                view_generation: answer.view_generation,
                lease: (answer.lease != [0; 16]).then(|| Lease::new(answer.lease, session)),
                places: places.collect::<Result<_, ClientError>>()?,
                hint_age_ms: answer.hint_age_ms,
                left_out: answer.left_out,
            })
        }
        (Expect::Acquire { keys, lease }, Answer::Acquire(answer, records)) => {
            let lease = one_lease(lease, answer.lease, session)?;
            let blocks = records.iter().map(|record| {
                let record = record?;
                let index = record.index as usize;
                if index >= *keys {
                    return Err(ClientError::protocol("a block's index lies beyond the request"));
                }
                let result = match (known(BlockOutcome::from_wire(record.outcome))?, &lease) {
                    (BlockOutcome::Ready, Some(lease)) => {
                        let place = known(Place::from_wire(record.source))?;
                        Ok(ReadyBlock::new(lease, record.offset, record.bytes, place)?)
                    }
                    (BlockOutcome::Ready, None) => {
                        return Err(ClientError::protocol("a ready block without a lease"));
                    }
                    (outcome, _) => Err(outcome),
                };
                Ok(AcquiredBlock { index, result })
            });
            let blocks = blocks.collect::<Result<_, ClientError>>()?;
            Outcome::Acquire(AcquirePart { lease, boundary_blocks: answer.boundary_blocks, blocks })
        }
        (Expect::Attach(lease), Answer::Attach(answer, records)) => {
            let lease = one_lease(lease, answer.lease, session)?;
            let lease = lease.ok_or_else(|| ClientError::protocol("an attached lease without a token"))?;
            let blocks = records.iter().map(|record| {
                let record = record?;
                // Attach does not say where bytes came from; they are in DRAM now.
                let ready = ReadyBlock::new(&lease, record.offset, record.bytes, Place::Dram)?;
                Ok(AttachedBlock { block: BlockHash(record.block), group: GroupId(record.group), ready })
            });
            let blocks = blocks.collect::<Result<_, ClientError>>()?;
            Outcome::Attach(AttachPart { lease, blocks })
        }
        (Expect::Clear, Answer::Clear(answer)) => {
            Outcome::Cleared(Cleared { removed: answer.removed, in_use: answer.in_use })
        }
        (Expect::List, Answer::List(answer, records)) => {
            let residents = records.iter().map(|record| {
                let record = record?;
                Ok(Resident {
                    block: BlockHash(record.block),
                    group: GroupId(record.group),
                    medium: known(Medium::from_wire(record.medium))?,
                    shard: ShardIndex(record.shard),
                    bytes: record.bytes,
                    sequence: Sequence(record.sequence),
                })
            });
            let residents = residents.collect::<Result<_, ClientError>>()?;
            Outcome::Page(Page { residents, next: (answer.done == 0).then_some(answer.cursor) })
        }
        (Expect::Sync, Answer::Sync(answer, records)) => Outcome::Synced(Synced {
            outcome: known(SyncOutcome::from_wire(answer.outcome))?,
            incarnation: Incarnation(answer.incarnation),
            sequences: records.to_vec()?.iter().map(|record| Sequence(record.sequence)).collect(),
        }),
        (Expect::Drain, Answer::Drain(answer)) => Outcome::Draining(answer),
        _ => return Err(ClientError::protocol(format!("the answer does not fit {operation:?}"))),
    };
    Ok(Decoded::Outcome(outcome))
}

/// The lease of a streamed answer: frames without a ready block may leave it out, all others agree.
fn one_lease(
    seen: &mut Option<Lease>,
    token: [u8; 16],
    session: &Arc<Session>,
) -> Result<Option<Lease>, ClientError> {
    match seen {
        _ if token == [0; 16] => {}
        Some(lease) if lease.token() == token => {}
        Some(_) => return Err(ClientError::protocol("two frames of one answer name different leases")),
        None => *seen = Some(Lease::new(token, session)),
    }
    Ok(seen.clone())
}

fn outcomes<T>(
    operation: Operation,
    count: usize,
    records: Records<'_, OutcomeRecord>,
    from_wire: fn(u8) -> Option<T>,
) -> Result<Vec<T>, ClientError> {
    same_count(operation, count, records.len())?;
    records.iter().map(|record| known(from_wire(record?.outcome))).collect()
}

fn same_count(operation: Operation, asked: usize, answered: usize) -> Result<(), ClientError> {
    if asked == answered {
        return Ok(());
    }
    Err(ClientError::protocol(format!(
        "{operation:?} asked for {asked} keys and was answered for {answered}"
    )))
}

fn known<T>(number: Option<T>) -> Result<T, ClientError> {
    number.ok_or_else(|| ClientError::protocol("an answer carries a number this version does not know"))
}
