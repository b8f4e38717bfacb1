//! What a node answers: bodies, records, and the outcomes of single keys.

use super::{FLAG_MORE, FrameError, Header, Operation, Status, append_frame};
use crate::layout::{Fixed, Reader, Records, fixed};
use crate::numbered::numbered;
use crate::text::Text;

fixed! {
    /// Answer to Hello; the arena's descriptor comes with it by SCM_RIGHTS.
    pub struct HelloAnswer {
        /// Version both sides speak from now on.
        pub version: u16,
        /// The node's layout hash.
        pub layout_hash: u64,
        /// Random per daemon process; extents are valid within one generation only.
        pub arena_generation: u64,
        /// Size of the arena.
        pub arena_bytes: u64,
        /// Number of this connection, for `previous_connection` after a loss.
        pub connection: u64,
        /// Incarnation of the node.
        pub incarnation: [u8; 16],
        /// Shards of the node.
        pub shards: u16,
        /// Requests this connection may have unanswered.
        pub in_flight: u16,
        /// [`PageKindNumber`] of the arena.
        pub page_kind: u8,
    }

    /// Answer to Register.
    pub struct RegisterAnswer {
        /// Handle to use in later requests of this connection.
        pub namespace: u32,
        /// Digest of the namespace.
        pub digest: [u8; 32],
    }

    /// One key of a Reserve answer.
    pub struct SlotRecord {
        /// [`SlotOutcome`].
        pub outcome: u8,
        /// Slot: number for Commit and Abort. Else 0.
        pub reservation: u64,
        /// Slot: offset in the arena. Too large: the limit in bytes. Else 0.
        pub offset: u64,
        /// Slot: payload bytes that may be written. Else 0.
        pub bytes: u64,
    }

    /// Outcome of one key of a Commit, Abort, Evict or Prefetch.
    pub struct OutcomeRecord {
        /// [`CommitOutcome`], [`EvictOutcome`] or [`PrefetchOutcome`].
        pub outcome: u8,
    }

    /// Answer to Query; one [`PlaceRecord`] per hash follows, in the order of the request.
    pub struct QueryAnswer {
        /// Longest recoverable boundary, in blocks.
        pub boundary_blocks: u32,
        /// Positions of the prefix that were looked at.
        pub examined_blocks: u32,
        /// [`Coverage`] of the weakest batch.
        pub coverage: u8,
        /// Changes whenever the view behind the answer does.
        pub view_generation: u64,
        /// Hold: the lease that pins the local hits. Else zero.
        pub lease: [u8; 16],
        /// How old the hints may be: milliseconds since the oldest view behind the answer was fresh, rounded up. 0
        /// without hints.
        pub hint_age_ms: u32,
        /// Owner streams of members whose view is missing, broken or older than 5 s: what only they have may be left out.
        pub left_out: u32,
    }

    /// Best place of one key.
    pub struct PlaceRecord {
        /// [`Place`].
        pub place: u8,
    }

    /// Answer to Acquire, in one or more frames; [`BlockRecord`]s follow.
    pub struct AcquireAnswer {
        /// The lease that covers every ready block.
        pub lease: [u8; 16],
        /// Last frame: the largest legal boundary that is ready, in blocks. Earlier frames: 0.
        pub boundary_blocks: u32,
    }

    /// One block of an Acquire answer.
    pub struct BlockRecord {
        /// Index of the block's hash in the request.
        pub index: u32,
        /// [`BlockOutcome`].
        pub outcome: u8,
        /// Ready: [`Place`] the bytes came from.
        pub source: u8,
        /// Ready: offset in the arena.
        pub offset: u64,
        /// Ready: payload bytes.
        pub bytes: u64,
    }

    /// Answer to Attach; [`AttachedRecord`]s follow.
    pub struct AttachAnswer {
        /// The lease.
        pub lease: [u8; 16],
    }

    /// One block of an attached lease.
    pub struct AttachedRecord {
        /// Block hash.
        pub block: [u8; 32],
        /// Layer group.
        pub group: u16,
        /// Offset in the arena.
        pub offset: u64,
        /// Payload bytes.
        pub bytes: u64,
    }

    /// Answer to Clear.
    pub struct ClearAnswer {
        /// Residences ended.
        pub removed: u64,
        /// Those of them whose memory something still uses; it is freed with its last user.
        pub in_use: u64,
    }

    /// Answer to List; [`ResidentRecord`]s follow.
    pub struct ListAnswer {
        /// Cursor of the next page; meaningless once `done`.
        pub cursor: [u8; 40],
        /// 1 if this was the last page.
        pub done: u8,
    }

    /// One residence.
    pub struct ResidentRecord {
        /// Block hash.
        pub block: [u8; 32],
        /// Layer group.
        pub group: u16,
        /// Medium number.
        pub medium: u8,
        /// Shard that owns it.
        pub shard: u16,
        /// Payload bytes.
        pub bytes: u64,
        /// Residency sequence.
        pub sequence: u64,
    }

    /// Answer to Sync; one [`SequenceRecord`] per shard follows.
    pub struct SyncAnswer {
        /// [`SyncOutcome`].
        pub outcome: u8,
        /// Incarnation the sequences belong to.
        pub incarnation: [u8; 16],
    }

    /// Journal head of one shard.
    pub struct SequenceRecord {
        /// The head.
        pub sequence: u64,
    }

    /// Answer to Drain, repeated while the node waits; the last frame has all zeros.
    pub struct DrainAnswer {
        /// Slots engines still fill.
        pub reservations: u64,
        /// Leases engines still hold.
        pub leases: u64,
        /// Blocks not yet on SSD.
        pub write_backs: u64,
        /// Device operations in flight.
        pub transfers: u64,
    }

    /// Body of every answer whose status is not Ok.
    pub struct Refusal {
        /// The limit, version or other number the status speaks of.
        pub detail: u64,
        /// The input, the limit and the remedy, for a person.
        pub text: Text<240>,
    }
}

numbered! {
    /// Pages behind the arena.
    pub enum PageKindNumber: u8 {
        /// 4 KiB pages.
        Small = 0,
        /// Transparent huge pages.
        Thp = 1,
        /// Reserved huge pages.
        HugeTlb = 2,
    }
}

numbered! {
    /// What became of a key in Reserve.
    pub enum SlotOutcome: u8 {
        /// A slot to fill.
        Slot = 0,
        /// The node already has the block.
        Present = 1,
        /// Another engine holds a slot for this key.
        BeingSaved = 2,
        /// No room right now; try again soon.
        Busy = 3,
        /// Larger than a slot can be; `offset` is the limit in bytes.
        TooLarge = 4,
    }
}

numbered! {
    /// What became of a reservation in Commit or Abort.
    pub enum CommitOutcome: u8 {
        /// Published.
        Committed = 0,
        /// Another writer's value was published first; this slot was given back.
        Lost = 1,
        /// Not a live reservation of this connection; nothing was done.
        NotYours = 2,
        /// Given back unpublished.
        Aborted = 3,
    }
}

numbered! {
    /// What became of a key in Evict.
    pub enum EvictOutcome: u8 {
        /// Gone from every medium asked for.
        Evicted = 0,
        /// Was not there.
        Absent = 1,
        /// Withdrawn from lookups; its memory follows when its last user ends.
        InUse = 2,
    }
}

numbered! {
    /// What is done about a key in Prefetch.
    pub enum PrefetchOutcome: u8 {
        /// It will be brought into DRAM, if it can be before the deadline.
        Taken = 0,
        /// In DRAM already.
        Present = 1,
        /// On its way into DRAM already.
        Coming = 2,
        /// Not on this node, and there is no peer to ask.
        Absent = 3,
        /// As many blocks are wanted ahead as may be.
        Full = 4,
        /// What was brought ahead and is not used yet has all the room there is for it.
        NoRoom = 5,
    }
}

numbered! {
    /// Where a block can come from, best first.
    pub enum Place: u8 {
        /// Not found in what was looked at.
        None = 0,
        /// This node's DRAM.
        Dram = 1,
        /// This node's SSD.
        Ssd = 2,
        /// A peer's DRAM: a hint.
        PeerDram = 3,
        /// A peer's SSD: a hint.
        PeerSsd = 4,
        /// Not looked at: no longer boundary was possible.
        NotExamined = 5,
    }
}

numbered! {
    /// What became of a block in Acquire.
    pub enum BlockOutcome: u8 {
        /// In the arena, pinned by the lease.
        Ready = 0,
        /// No longer anywhere.
        Missing = 1,
        /// No room in the arena or in the lease bound right now.
        Busy = 2,
        /// The bytes found failed their checksum; the residence has been dropped.
        Corrupt = 3,
        /// The device failed.
        DeviceError = 4,
        /// The deadline passed first.
        DeadlineExceeded = 5,
        /// Cancelled by the engine.
        Cancelled = 6,
    }
}

numbered! {
    /// What an answer says about blocks it does not show.
    pub enum Coverage: u8 {
        /// Absence holds at these cuts.
        CompleteAtWatermarks = 0,
        /// Absence proves nothing.
        PartialHints = 1,
        /// Local knowledge only.
        Unavailable = 2,
    }
}

numbered! {
    /// What a Sync waited for.
    pub enum SyncOutcome: u8 {
        /// Standalone: every save this connection submitted is published, and what the node
        /// writes back of it is on SSD.
        LocalFlushComplete = 0,
        /// Clustered: the sequences are a fence.
        Fence = 1,
    }
}

/// An answer, validated.
#[derive(Clone, Debug)]
pub enum Answer<'a> {
    /// The request as a whole was refused.
    Refused(Status, Refusal),
    /// See [`Operation::Hello`].
    Hello(HelloAnswer),
    /// Ping, Release and Cancel have nothing to say.
    Done,
    /// See [`Operation::Register`].
    Register(RegisterAnswer),
    /// See [`Operation::Reserve`].
    Reserve(Records<'a, SlotRecord>),
    /// Commit, Abort, Evict and Prefetch: outcomes in request order.
    Outcomes(Records<'a, OutcomeRecord>),
    /// See [`Operation::Query`].
    Query(QueryAnswer, Records<'a, PlaceRecord>),
    /// See [`Operation::Acquire`].
    Acquire(AcquireAnswer, Records<'a, BlockRecord>),
    /// See [`Operation::Attach`].
    Attach(AttachAnswer, Records<'a, AttachedRecord>),
    /// See [`Operation::Clear`].
    Clear(ClearAnswer),
    /// See [`Operation::List`].
    List(ListAnswer, Records<'a, ResidentRecord>),
    /// See [`Operation::Sync`].
    Sync(SyncAnswer, Records<'a, SequenceRecord>),
    /// See [`Operation::Drain`].
    Drain(DrainAnswer),
}

/// Decodes an answer's body, once.
///
/// # Errors
/// [`FrameError`] naming what is wrong.
pub fn decode_answer<'a>(header: &Header, body: &'a [u8]) -> Result<Answer<'a>, FrameError> {
    let operation =
        Operation::from_wire(header.operation).ok_or(FrameError::Operation { number: header.operation })?;
    let status = Status::from_wire(header.status).ok_or(FrameError::Invalid)?;
    let succeeded = status == Status::Ok;
    let more = succeeded && operation.may_stream() && header.flags == FLAG_MORE;
    let counted = succeeded && operation.answers_with_records();
    if header.deadline_ms != 0 || (header.flags != 0 && !more) || (header.count != 0 && !counted) {
        return Err(FrameError::Invalid);
    }
    let count = header.count as usize;
    let mut reader = Reader::new(body);
    let answer = if succeeded {
        match operation {
            Operation::Hello => Answer::Hello(reader.take()?),
            Operation::Ping | Operation::Release | Operation::Cancel => Answer::Done,
            Operation::Register => Answer::Register(reader.take()?),
            Operation::Reserve => Answer::Reserve(reader.take_records(count)?),
            Operation::Commit | Operation::Abort | Operation::Evict | Operation::Prefetch => {
                Answer::Outcomes(reader.take_records(count)?)
            }
            Operation::Query => Answer::Query(reader.take()?, reader.take_records(count)?),
            Operation::Acquire => Answer::Acquire(reader.take()?, reader.take_records(count)?),
            Operation::Attach => Answer::Attach(reader.take()?, reader.take_records(count)?),
            Operation::Clear => Answer::Clear(reader.take()?),
            Operation::List => Answer::List(reader.take()?, reader.take_records(count)?),
            Operation::Sync => Answer::Sync(reader.take()?, reader.take_records(count)?),
            Operation::Drain => Answer::Drain(reader.take()?),
        }
    } else {
        let refusal: Refusal = reader.take()?;
        refusal.text.as_str().ok_or(FrameError::Invalid)?;
        Answer::Refused(status, refusal)
    };
    reader.finish()?;
    Ok(answer)
}

/// Appends an answer frame of records alone.
pub fn append_records<R: Fixed>(out: &mut Vec<u8>, operation: Operation, request_id: u64, records: &[R]) {
    append_frame(out, operation, 0, Status::Ok, request_id, 0, |out| {
        records.iter().for_each(|record| record.append_to(out));
        records.len() as u32
    });
}

/// Appends an answer frame; `more` tells that others of the same request follow.
pub fn append_answer<B: Fixed, R: Fixed>(
    out: &mut Vec<u8>,
    operation: Operation,
    request_id: u64,
    more: bool,
    body: &B,
    records: &[R],
) {
    debug_assert!(!more || operation.may_stream(), "{operation:?} answers in one frame");
    let flags = if more { FLAG_MORE } else { 0 };
    append_frame(out, operation, flags, Status::Ok, request_id, 0, |out| {
        body.append_to(out);
        records.iter().for_each(|record| record.append_to(out));
        records.len() as u32
    });
}

/// Appends an answer frame with nothing to say.
pub fn append_done(out: &mut Vec<u8>, operation: Operation, request_id: u64) {
    append_frame(out, operation, 0, Status::Ok, request_id, 0, |_| 0);
}

/// Appends a refusal; `text` names the input, the limit and the remedy, and is cut to fit.
pub fn append_refusal(
    out: &mut Vec<u8>,
    operation: Operation,
    request_id: u64,
    status: Status,
    detail: u64,
    text: &str,
) {
    assert_ne!(status, Status::Ok, "a refusal has a reason");
    append_frame(out, operation, 0, status, request_id, 0, |out| {
        Refusal { detail, text: Text::cut(text) }.append_to(out);
        0
    });
}

impl Operation {
    /// Whether an answer to this operation may come in several frames.
    #[must_use]
    pub fn may_stream(self) -> bool {
        matches!(self, Operation::Acquire | Operation::Attach | Operation::Drain)
    }

    /// Whether a successful answer to this operation carries records.
    #[must_use]
    pub fn answers_with_records(self) -> bool {
        use Operation::{Abort, Acquire, Attach, Commit, Evict, List, Prefetch, Query, Reserve, Sync};
        matches!(self, Reserve | Commit | Abort | Evict | Query | Acquire | Attach | List | Sync | Prefetch)
    }
}
