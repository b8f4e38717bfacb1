//! What an engine sends: bodies, records, and the one place where their bytes are decoded.

use super::{FrameError, Header, MAGIC, Operation, Status, append_frame};
use crate::bounds;
use crate::layout::{Fixed, Reader, Records, fixed};
use crate::numbered::numbered;
use crate::text::Text;

fixed! {
    /// Body of Hello.
    pub struct HelloBody {
        /// [`MAGIC`].
        pub magic: [u8; 8],
        /// Oldest version the engine speaks.
        pub version_min: u16,
        /// Newest version the engine speaks.
        pub version_max: u16,
        /// [`super::layout_hash`] of the engine's build.
        pub layout_hash: u64,
        /// Requests the engine wants unanswered at once; the node may grant fewer.
        pub in_flight: u16,
        /// Connection this process lost and declares unused: its reservations and leases end now.
        /// 0 if there was none.
        pub previous_connection: u64,
    }

    /// Body of Register; [`GroupRecord`]s follow.
    pub struct RegisterBody {
        /// Names the engine instance; its processes share leases.
        pub instance: Text<64>,
        /// Engine and version, for the operator.
        pub engine: Text<64>,
        /// Model identity.
        pub model: Text<256>,
        /// Weights revision.
        pub weights_revision: Text<128>,
        /// Adapter identity; empty if none.
        pub adapter: Text<256>,
        /// What else changes the computed values (attention backend, quantisation of activations).
        pub computation: Text<128>,
        /// Element type of the cache.
        pub dtype: Text<32>,
        /// Memory layout of a block.
        pub layout: Text<128>,
        /// Algorithm of the block hash.
        pub hash_algorithm: Text<32>,
        /// Seed of the block hash.
        pub hash_seed: Text<64>,
        /// Bytes of a block hash before zero-extension, 1 to 32.
        pub hash_bytes: u16,
        /// Tokens a block stands for.
        pub block_tokens: u32,
        /// Tensor-parallel rank.
        pub tp_rank: u32,
        /// Tensor-parallel world size.
        pub tp_size: u32,
        /// Pipeline-parallel rank.
        pub pp_rank: u32,
        /// Pipeline-parallel world size.
        pub pp_size: u32,
        /// 1 if every tensor-parallel rank holds the same bytes, else 0.
        pub rank_invariant: u8,
    }

    /// One layer group of a registration.
    pub struct GroupRecord {
        /// The group's number.
        pub group: u16,
        /// [`GroupKindNumber`].
        pub kind: u8,
        /// Sliding and sink+sliding: tokens of the window. Checkpoint: tokens of the interval. Else 0.
        pub tokens: u32,
        /// Sink+sliding: tokens of the sink. Else 0.
        pub sink_tokens: u32,
        /// Payload bytes of one block of the group.
        pub block_bytes: u64,
    }

    /// Body of Reserve; [`ReserveRecord`]s follow.
    pub struct ReserveBody {
        /// Handle from Register.
        pub namespace: u32,
        /// 1 to get a slot although another engine is saving the key; the first Commit wins. Else 0.
        pub race: u8,
    }

    /// One key to be saved.
    pub struct ReserveRecord {
        /// Block hash, zero-extended.
        pub block: [u8; 32],
        /// Layer group.
        pub group: u16,
        /// Payload bytes.
        pub bytes: u64,
    }

    /// Body of Commit and Abort; [`ReservationRecord`]s follow.
    pub struct ReservationsBody {
        /// Arena generation the slots belong to, from HelloAnswer.
        pub arena_generation: u64,
    }

    /// One reserved slot.
    pub struct ReservationRecord {
        /// Number from the Reserve answer.
        pub reservation: u64,
    }

    /// Body of Query, Acquire and Prefetch; [`ListRecord`]s follow, then [`HashRecord`]s.
    pub struct PrefixBody {
        /// Number of lists.
        pub lists: u32,
        /// [`Completion`].
        pub completion: u8,
        /// Query: 1 to pin local hits. Acquire and Prefetch: 0.
        pub hold: u8,
        /// Acquire: the lease a Query held under, to be taken over; zero for a new one. Query and Prefetch: zero.
        pub lease: [u8; 16],
    }

    /// One list of a prefix: the blocks of one group of one namespace, in prefix order.
    pub struct ListRecord {
        /// Handle from Register.
        pub namespace: u32,
        /// Layer group.
        pub group: u16,
        /// Hashes of this list.
        pub count: u32,
    }

    /// One block hash.
    pub struct HashRecord {
        /// Block hash, zero-extended.
        pub block: [u8; 32],
    }

    /// Body of Attach and Release.
    pub struct LeaseBody {
        /// Lease token.
        pub lease: [u8; 16],
    }

    /// Body of Cancel.
    pub struct CancelBody {
        /// The request to stop.
        pub request_id: u64,
    }

    /// Body of Evict; [`KeyRecord`]s follow.
    pub struct EvictBody {
        /// Handle from Register.
        pub namespace: u32,
        /// Bit 0 DRAM, bit 1 SSD.
        pub media: u8,
    }

    /// One key.
    pub struct KeyRecord {
        /// Block hash, zero-extended.
        pub block: [u8; 32],
        /// Layer group.
        pub group: u16,
    }

    /// Body of Clear.
    pub struct ClearBody {
        /// Namespace digest.
        pub namespace: [u8; 32],
        /// Bit 0 DRAM, bit 1 SSD.
        pub media: u8,
    }

    /// Body of List.
    pub struct ListBody {
        /// Namespace digest.
        pub namespace: [u8; 32],
        /// Bit 0 DRAM, bit 1 SSD.
        pub media: u8,
        /// Blocks wanted, 1 to [`bounds::LIST_PAGE_MAX`]; a block on both media has two records.
        pub limit: u32,
        /// Zero for the first page, else the cursor of the page before.
        pub cursor: [u8; 40],
    }
}

numbered! {
    /// Retention of a layer group.
    pub enum GroupKindNumber: u8 {
        /// Every block of the prefix.
        Full = 0,
        /// The blocks of the last tokens.
        Sliding = 1,
        /// The state at a multiple of the interval.
        Checkpoint = 2,
        /// The first tokens' blocks and the last tokens' blocks.
        SinkSliding = 3,
    }
}

numbered! {
    /// What "recovered" means to the engine.
    pub enum Completion: u8 {
        /// Bytes are in the arena.
        Host = 0,
        /// Bytes are on the GPU.
        Gpu = 1,
    }
}

/// A request, validated: counts within bounds, numbers known, bytes used up.
#[derive(Clone, Debug)]
pub enum Request<'a> {
    /// See [`Operation::Hello`].
    Hello(HelloBody),
    /// See [`Operation::Ping`].
    Ping,
    /// See [`Operation::Register`].
    Register(Box<RegisterBody>, Vec<GroupRecord>),
    /// See [`Operation::Reserve`].
    Reserve(ReserveBody, Records<'a, ReserveRecord>),
    /// See [`Operation::Commit`].
    Commit(ReservationsBody, Records<'a, ReservationRecord>),
    /// See [`Operation::Abort`].
    Abort(ReservationsBody, Records<'a, ReservationRecord>),
    /// See [`Operation::Query`].
    Query(PrefixBody, Vec<ListRecord>, Records<'a, HashRecord>),
    /// See [`Operation::Acquire`].
    Acquire(PrefixBody, Vec<ListRecord>, Records<'a, HashRecord>),
    /// See [`Operation::Attach`].
    Attach(LeaseBody),
    /// See [`Operation::Release`].
    Release(LeaseBody),
    /// See [`Operation::Cancel`].
    Cancel(CancelBody),
    /// See [`Operation::Evict`].
    Evict(EvictBody, Records<'a, KeyRecord>),
    /// See [`Operation::Clear`].
    Clear(ClearBody),
    /// See [`Operation::List`].
    List(ListBody),
    /// See [`Operation::Sync`].
    Sync,
    /// See [`Operation::Drain`].
    Drain,
    /// See [`Operation::Prefetch`].
    Prefetch(PrefixBody, Vec<ListRecord>, Records<'a, HashRecord>),
}

fn within(what: &'static str, count: usize, limit: usize) -> Result<usize, FrameError> {
    if count > limit {
        return Err(FrameError::OverLimit { what, count: count as u64, limit: limit as u64 });
    }
    Ok(count)
}

fn flag(value: u8) -> Result<(), FrameError> {
    if value > 1 { Err(FrameError::Invalid) } else { Ok(()) }
}

fn media(value: u8) -> Result<(), FrameError> {
    if matches!(value, 1..=3) { Ok(()) } else { Err(FrameError::Invalid) }
}

/// Decodes a request's body, once.
///
/// # Errors
/// [`FrameError`] naming what is wrong; limits name their value.
pub fn decode_request<'a>(header: &Header, body: &'a [u8]) -> Result<Request<'a>, FrameError> {
    let operation =
        Operation::from_wire(header.operation).ok_or(FrameError::Operation { number: header.operation })?;
    if header.flags != 0 || header.status != 0 {
        return Err(FrameError::Invalid);
    }
    within("deadline in milliseconds", header.deadline_ms as usize, bounds::DEADLINE_MS_MAX as usize)?;
    if header.count != 0 && !operation.asks_with_records() {
        return Err(FrameError::Invalid);
    }
    let count = header.count as usize;
    let mut reader = Reader::new(body);
    let request = match operation {
        Operation::Hello => {
            let hello: HelloBody = reader.take()?;
            if hello.magic != MAGIC {
                return Err(FrameError::Invalid);
            }
            Request::Hello(hello)
        }
        Operation::Ping => Request::Ping,
        Operation::Register => {
            let register = Box::new(reader.take::<RegisterBody>()?);
            let count = within("layer groups in a registration", count, bounds::GROUPS_MAX)?;
            let groups = reader.take_records(count)?.to_vec()?;
            registration(&register, &groups)?;
            Request::Register(register, groups)
        }
        Operation::Reserve => {
            let reserve: ReserveBody = reader.take()?;
            flag(reserve.race)?;
            Request::Reserve(reserve, keys(&mut reader, count)?)
        }
        Operation::Commit => Request::Commit(reader.take()?, keys(&mut reader, count)?),
        Operation::Abort => Request::Abort(reader.take()?, keys(&mut reader, count)?),
        Operation::Query => {
            let (prefix, lists, hashes) = prefix(&mut reader, count, bounds::QUERY_HASHES_MAX)?;
            Request::Query(prefix, lists, hashes)
        }
        Operation::Acquire => {
            let (prefix, lists, hashes) = prefix(&mut reader, count, bounds::KEYS_PER_REQUEST_MAX)?;
            Request::Acquire(prefix, lists, hashes)
        }
        Operation::Attach => Request::Attach(reader.take()?),
        Operation::Release => Request::Release(reader.take()?),
        Operation::Cancel => Request::Cancel(reader.take()?),
        Operation::Evict => {
            let evict: EvictBody = reader.take()?;
            media(evict.media)?;
            Request::Evict(evict, keys(&mut reader, count)?)
        }
        Operation::Clear => {
            let clear: ClearBody = reader.take()?;
            media(clear.media)?;
            Request::Clear(clear)
        }
        Operation::List => {
            let list: ListBody = reader.take()?;
            media(list.media)?;
            if within("residents in a page", list.limit as usize, bounds::LIST_PAGE_MAX)? == 0 {
                return Err(FrameError::Invalid);
            }
            Request::List(list)
        }
        Operation::Sync => Request::Sync,
        Operation::Drain => Request::Drain,
        Operation::Prefetch => {
            let (prefix, lists, hashes) = prefix(&mut reader, count, bounds::KEYS_PER_REQUEST_MAX)?;
            // Nothing is pinned: there is neither a hold nor a lease to be taken over.
            if prefix.hold != 0 || prefix.lease != [0; 16] {
                return Err(FrameError::Invalid);
            }
            Request::Prefetch(prefix, lists, hashes)
        }
    };
    reader.finish()?;
    Ok(request)
}

/// Checks what a registration's types alone do not say.
fn registration(register: &RegisterBody, groups: &[GroupRecord]) -> Result<(), FrameError> {
    flag(register.rank_invariant)?;
    let width = usize::from(register.hash_bytes);
    let known = groups.iter().all(|group| GroupKindNumber::from_wire(group.kind).is_some());
    let texts = [
        register.instance.as_str(),
        register.engine.as_str(),
        register.model.as_str(),
        register.weights_revision.as_str(),
        register.adapter.as_str(),
        register.computation.as_str(),
        register.dtype.as_str(),
        register.layout.as_str(),
        register.hash_algorithm.as_str(),
        register.hash_seed.as_str(),
    ];
    if within("bytes of a block hash", width, bounds::BLOCK_HASH_BYTES)? == 0
        || !known
        || texts.contains(&None)
    {
        return Err(FrameError::Invalid);
    }
    Ok(())
}

fn keys<'a, T: Fixed>(reader: &mut Reader<'a>, count: usize) -> Result<Records<'a, T>, FrameError> {
    Ok(reader.take_records(within("keys in a request", count, bounds::KEYS_PER_REQUEST_MAX)?)?)
}

type Prefix<'a> = (PrefixBody, Vec<ListRecord>, Records<'a, HashRecord>);

fn prefix<'a>(reader: &mut Reader<'a>, count: usize, limit: usize) -> Result<Prefix<'a>, FrameError> {
    let body: PrefixBody = reader.take()?;
    flag(body.hold)?;
    Completion::from_wire(body.completion).ok_or(FrameError::Invalid)?;
    within("block hashes in a request", count, limit)?;
    let lists = within("lists in a request", body.lists as usize, bounds::QUERY_LISTS_MAX)?;
    let lists: Vec<ListRecord> = reader.take_records(lists)?.to_vec()?;
    let listed: usize = lists.iter().map(|list| list.count as usize).sum();
    if listed != count {
        return Err(FrameError::Invalid);
    }
    Ok((body, lists, reader.take_records(count)?))
}

impl Operation {
    /// Whether a request of this operation carries records.
    #[must_use]
    pub fn asks_with_records(self) -> bool {
        use Operation::{Abort, Acquire, Commit, Evict, Prefetch, Query, Register, Reserve};
        matches!(self, Register | Reserve | Commit | Abort | Query | Acquire | Evict | Prefetch)
    }
}

/// Appends a request frame with `records` after its fixed body.
pub fn append_request<B: Fixed, R: Fixed>(
    out: &mut Vec<u8>,
    operation: Operation,
    request_id: u64,
    deadline_ms: u32,
    body: &B,
    records: &[R],
) {
    append_frame(out, operation, 0, Status::Ok, request_id, deadline_ms, |out| {
        body.append_to(out);
        records.iter().for_each(|record| record.append_to(out));
        records.len() as u32
    });
}

/// Appends a request frame that is a header alone.
pub fn append_bare_request(out: &mut Vec<u8>, operation: Operation, request_id: u64, deadline_ms: u32) {
    append_frame(out, operation, 0, Status::Ok, request_id, deadline_ms, |_| 0);
}

/// Appends a Query, Acquire or Prefetch frame; the hashes lie list after list.
pub fn append_prefix_request(
    out: &mut Vec<u8>,
    operation: Operation,
    request_id: u64,
    deadline_ms: u32,
    body: &PrefixBody,
    lists: &[ListRecord],
    hashes: &[HashRecord],
) {
    append_frame(out, operation, 0, Status::Ok, request_id, deadline_ms, |out| {
        body.append_to(out);
        lists.iter().for_each(|list| list.append_to(out));
        hashes.iter().for_each(|hash| out.extend_from_slice(&hash.block));
        hashes.len() as u32
    });
}
