//! Jobs: requests that shards are working on, and how their answers are put together.
//!
//! A request is split by shard, each part travels as a command, and the job collects the outcomes.
//! It is answered when the last part has come; an Acquire also in between.

use orbitkv_shards::leases::{ConnectionId, LeaseError, LeaseToken};
use orbitkv_shards::shard::command::Attached;
use orbitkv_shards::shard::{Command, Outcome, Reply, Tag};
use orbitkv_shards::time::Moment;
use orbitkv_wire::engine::answers::{
    self, AcquireAnswer, AttachAnswer, AttachedRecord, BlockOutcome, BlockRecord, ClearAnswer, ListAnswer,
    OutcomeRecord, Place, PlaceRecord, QueryAnswer, ResidentRecord, SequenceRecord, SlotRecord, SyncAnswer,
    SyncOutcome,
};
use orbitkv_wire::engine::{Operation, Status};
use orbitkv_wire::identity::{BlockHash, GroupId, Incarnation, ShardIndex};

use super::prefix::Prefix;
use super::refusal::Refused;
use super::views::Views;

/// One unanswered request.
pub struct Job {
    /// Who asked.
    pub connection: ConnectionId,
    /// The engine's number.
    pub request_id: u64,
    /// What it asked.
    pub operation: Operation,
    /// When it is given up.
    pub deadline: Option<Moment>,
    /// Bytes its answer may have, and bytes kept of the request until then.
    pub owed_bytes: usize,
    /// Bytes of keys on their way to the shards: theirs as soon as the first one has answered.
    pub key_bytes: usize,
    /// Parts not answered for the last time.
    pub outstanding: u32,
    /// Why it fails, once a part has failed; the others are still waited for.
    pub refused: Option<Refused>,
    /// Whether the engine's repeats are answered from the ledger.
    pub ledgered: bool,
    /// Whether anybody still wants it.
    pub course: Course,
    /// What is collected.
    pub collected: Collected,
}

/// Whether a job is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// It is worked on.
    Running,
    /// It was cancelled, its deadline is over or its socket is closed: the shards have been told, once.
    GivenUp,
}

/// What a job collects.
pub enum Collected {
    /// Query: batches go out one after the other.
    Query {
        /// The lists.
        prefix: Box<Prefix>,
        /// Best place of each block.
        places: Vec<PlaceRecord>,
        /// What is known of peers.
        views: Views,
        /// Token of the hold; zero without one.
        lease: LeaseToken,
    },
    /// Reserve.
    Slots(Vec<SlotRecord>),
    /// Commit, Abort, Evict, Prefetch.
    Outcomes(Vec<OutcomeRecord>),
    /// Acquire.
    Blocks {
        /// The lists.
        prefix: Box<Prefix>,
        /// Decided and not yet told.
        untold: Vec<BlockRecord>,
        /// The lease.
        lease: LeaseToken,
    },
    /// Attach: blocks so far, and whether any shard knows the lease.
    Attached {
        /// The lease.
        lease: LeaseToken,
        /// Blocks of all shards.
        blocks: Vec<Attached>,
        /// Whether any shard has a part of it.
        known: bool,
        /// Why not, if none has.
        error: Option<LeaseError>,
    },
    /// Release.
    Released,
    /// Clear.
    Cleared(ClearAnswer),
    /// List: a page of one shard.
    Listed {
        /// Shards of the node.
        shards: u16,
        /// The page so far.
        residents: Vec<ResidentRecord>,
        /// Where the next page goes on.
        cursor: [u8; 40],
        /// Whether this is the last page.
        done: bool,
    },
    /// Sync.
    Sequences {
        /// Head of each shard's journal.
        heads: Vec<SequenceRecord>,
        /// The life they belong to, once a shard has answered.
        incarnation: Option<Incarnation>,
        /// What they are: a fence others can await, if there are others.
        outcome: SyncOutcome,
    },
    /// Register: answered by the registry.
    Registering(Box<super::connection::Registered>),
}

impl Collected {
    /// The lease that the request takes, if it takes one.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseToken> {
        match self {
            Collected::Query { lease, .. } | Collected::Blocks { lease, .. } if lease.0 != 0 => Some(*lease),
            _ => None,
        }
    }
}

/// What to do with a job after a reply.
pub enum Progress {
    /// Wait for more.
    Wait,
    /// Send the next command of the job.
    Next,
    /// Tell the engine what is decided so far.
    Tell,
    /// Tell the engine the rest; the job has ended.
    Finish,
}

impl Job {
    /// Takes one shard's answer in.
    pub fn on_reply(&mut self, reply: Reply) -> Progress {
        let shard = reply.shard;
        let last = !matches!(reply.outcome, Outcome::Blocks { done: false, .. });
        if last {
            self.outstanding -= 1;
        }
        match (&mut self.collected, reply.outcome) {
            (Collected::Query { prefix, places, views, .. }, Outcome::Places(answer)) => {
                if let Some(part) = answer.peers {
                    views.add(shard, part);
                }
                if self.outstanding == 0 {
                    views.end_batch();
                }
                for (index, place) in answer.found {
                    places[index as usize] = PlaceRecord { place: place as u8 };
                    if place != Place::None {
                        prefix.set_present(index);
                    }
                }
                if self.outstanding == 0 && self.refused.is_none() && prefix.may_grow() {
                    return Progress::Next;
                }
            }
            (Collected::Slots(slots), Outcome::Slots(found)) => {
                found.into_iter().for_each(|(index, slot)| slots[index as usize] = slot);
            }
            (Collected::Outcomes(outcomes), Outcome::Committed(found)) => {
                for (index, outcome) in found {
                    outcomes[index as usize] = OutcomeRecord { outcome: outcome as u8 };
                }
            }
            (Collected::Outcomes(outcomes), Outcome::Prefetched(found)) => {
                for (index, outcome) in found {
                    outcomes[index as usize] = OutcomeRecord { outcome: outcome as u8 };
                }
            }
            (Collected::Outcomes(outcomes), Outcome::Evicted(found)) => {
                for (index, outcome) in found {
                    outcomes[index as usize] = OutcomeRecord { outcome: outcome as u8 };
                }
            }
            (Collected::Blocks { prefix, untold, .. }, Outcome::Blocks { blocks, .. }) => {
                let ready = blocks.iter().filter(|block| block.outcome == BlockOutcome::Ready as u8);
                ready.for_each(|block| prefix.set_present(block.index));
                untold.extend(blocks);
                if self.outstanding > 0 && !untold.is_empty() && self.refused.is_none() {
                    return Progress::Tell;
                }
            }
            (Collected::Attached { blocks, known, .. }, Outcome::Attached(found)) => {
                *known = true;
                blocks.extend(found);
            }
            // Ending what has ended is done already.
            (Collected::Released, Outcome::Done | Outcome::LeaseRefused(_)) => {}
            (Collected::Attached { error, .. }, Outcome::LeaseRefused(why)) => {
                // A shard that has no part of the lease is no failure, as long as another one has.
                *error = Some(match (*error, why) {
                    (Some(LeaseError::Foreign), _) => LeaseError::Foreign,
                    (_, why) => why,
                });
            }
            (Collected::Cleared(answer), Outcome::Cleared { removed, in_use }) => {
                answer.removed += removed;
                answer.in_use += in_use;
            }
            (Collected::Listed { .. }, Outcome::Listed { residents, next }) => {
                return self.on_listed(shard, residents, next);
            }
            (Collected::Sequences { heads, incarnation, .. }, Outcome::Synced(head)) => {
                let before = incarnation.replace(reply.incarnation);
                heads[shard.0 as usize] = SequenceRecord { sequence: head.0 };
                if before.is_some_and(|before| before != reply.incarnation) {
                    let text = "the node has begun a new registration life meanwhile: sync again".to_owned();
                    self.refuse(Refused::new(Status::Busy, 0, text));
                }
            }
            (_, Outcome::LeaseRefused(error)) => self.refuse(Refused::lease(error)),
            (_, Outcome::Draining) => self.refuse(Refused::draining()),
            (_, Outcome::NamespacesFull) => {
                let limit = orbitkv_wire::bounds::NAMESPACES_MAX;
                let text = format!(
                    "the node knows {limit} namespaces, the most of one life: restart the node to forget them"
                );
                self.refuse(Refused::new(Status::Busy, limit as u64, text));
            }
            (_, Outcome::Cancelled) => {
                // Who cancelled has left the reason; a shard without a waiting seat cancels by itself.
                let text = "too many requests wait on this node: try again".to_owned();
                self.refuse(Refused::new(Status::Busy, 0, text));
            }
            (_, outcome) => panic!("{:?} was answered by {outcome:?}", self.operation),
        }
        if self.outstanding == 0 { Progress::Finish } else { Progress::Wait }
    }

    fn on_listed(
        &mut self,
        from: ShardIndex,
        found: Vec<orbitkv_shards::shard::command::Resident>,
        next: Option<(GroupId, BlockHash)>,
    ) -> Progress {
        let Collected::Listed { shards, residents, cursor, done } = &mut self.collected else {
            unreachable!("only a List lists")
        };
        residents.extend(found.into_iter().map(|resident| ResidentRecord {
            block: resident.block.0,
            group: resident.group.0,
            medium: resident.medium as u8,
            shard: from.0,
            bytes: resident.bytes,
            sequence: resident.sequence.0,
        }));
        // A page never crosses shards: it may be short, but its cursor stays simple.
        *cursor = match next {
            Some(after) => encode_cursor(from, Some(after)),
            None => encode_cursor(ShardIndex(from.0 + 1), None),
        };
        *done = next.is_none() && from.0 + 1 == *shards;
        Progress::Finish
    }

    /// The job fails, unless it has failed before.
    pub fn refuse(&mut self, refused: Refused) {
        self.refused.get_or_insert(refused);
    }

    /// Appends the parts of an Acquire that are decided so far.
    pub fn tell(&mut self, out: &mut Vec<u8>) {
        let Collected::Blocks { untold, lease, .. } = &mut self.collected else { return };
        let body = AcquireAnswer { lease: lease.0.to_le_bytes(), boundary_blocks: 0 };
        answers::append_answer(out, self.operation, self.request_id, true, &body, untold);
        untold.clear();
    }

    /// Appends the last answer frame.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let (operation, id) = (self.operation, self.request_id);
        if let Some(refused) = &self.refused {
            return refused.append_to(out, operation, id);
        }
        match &mut self.collected {
            Collected::Query { prefix, places, views, lease } => {
                let body = QueryAnswer {
                    boundary_blocks: prefix.longest(),
                    examined_blocks: prefix.examined(),
                    coverage: views.coverage() as u8,
                    view_generation: views.generation(),
                    lease: lease.0.to_le_bytes(),
                    hint_age_ms: views.hint_age_ms(),
                    left_out: views.left_out(),
                };
                answers::append_answer(out, operation, id, false, &body, places);
            }
            Collected::Slots(slots) => answers::append_records(out, operation, id, slots),
            Collected::Outcomes(outcomes) => answers::append_records(out, operation, id, outcomes),
            Collected::Blocks { prefix, untold, lease } => {
                let body = AcquireAnswer { lease: lease.0.to_le_bytes(), boundary_blocks: prefix.longest() };
                answers::append_answer(out, operation, id, false, &body, untold);
            }
            Collected::Attached { lease, blocks, known, error } => {
                if !*known {
                    let error = error.unwrap_or(LeaseError::Unknown);
                    return Refused::lease(error).append_to(out, operation, id);
                }
                let body = AttachAnswer { lease: lease.0.to_le_bytes() };
                let records: Vec<AttachedRecord> = blocks
                    .iter()
                    .map(|block| AttachedRecord {
                        block: block.block.0,
                        group: block.group.0,
                        offset: block.offset,
                        bytes: block.bytes,
                    })
                    .collect();
                let mut pages = records.chunks(orbitkv_wire::bounds::KEYS_PER_REQUEST_MAX).peekable();
                if pages.peek().is_none() {
                    answers::append_answer::<_, AttachedRecord>(out, operation, id, false, &body, &[]);
                }
                while let Some(page) = pages.next() {
                    answers::append_answer(out, operation, id, pages.peek().is_some(), &body, page);
                }
            }
            Collected::Released => answers::append_done(out, operation, id),
            Collected::Cleared(answer) => {
                answers::append_answer::<_, OutcomeRecord>(out, operation, id, false, answer, &[]);
            }
            Collected::Listed { residents, cursor, done, .. } => {
                let body = ListAnswer { cursor: *cursor, done: u8::from(*done) };
                answers::append_answer(out, operation, id, false, &body, residents);
            }
            Collected::Sequences { heads, incarnation, outcome } => {
                let outcome = *outcome as u8;
                let incarnation = incarnation.expect("a node has shards, and all have answered").0;
                let body = SyncAnswer { outcome, incarnation };
                answers::append_answer(out, operation, id, false, &body, heads);
            }
            Collected::Registering(_) => panic!("a registration is answered by the registry"),
        }
    }

    /// Whether it is a Query that is answered, and leaves out what some owner streams have.
    #[must_use]
    pub fn leaves_out(&self) -> bool {
        let views = match &self.collected {
            Collected::Query { views, .. } if self.refused.is_none() => views,
            _ => return false,
        };
        views.left_out() > 0
    }

    /// What stops the parts that wait, if the operation can wait at all.
    #[must_use]
    pub fn cancel_command(&self, tag: Tag, deadline: bool) -> Option<Command> {
        matches!(self.operation, Operation::Acquire | Operation::Sync)
            .then_some(Command::Cancel { tag, deadline })
    }
}

/// A List cursor: shard + 1, whether a key follows, group, block hash.
fn encode_cursor(shard: ShardIndex, after: Option<(GroupId, BlockHash)>) -> [u8; 40] {
    let mut cursor = [0; 40];
    cursor[..2].copy_from_slice(&(shard.0 + 1).to_le_bytes());
    if let Some((group, block)) = after {
        cursor[2] = 1;
        cursor[3..5].copy_from_slice(&group.0.to_le_bytes());
        cursor[5..37].copy_from_slice(&block.0);
    }
    cursor
}

/// What a cursor says, if this node wrote it.
pub fn decode_cursor(cursor: &[u8; 40], shards: u16) -> Option<(ShardIndex, Option<(GroupId, BlockHash)>)> {
    let shard = u16::from_le_bytes([cursor[0], cursor[1]]);
    let shard = ShardIndex(shard.saturating_sub(1));
    let group = GroupId(u16::from_le_bytes([cursor[3], cursor[4]]));
    let block = BlockHash(*cursor[5..37].first_chunk::<32>()?);
    let known = shard.0 < shards && cursor[2] <= 1 && cursor[37..] == [0; 3];
    known.then_some((shard, (cursor[2] == 1).then_some((group, block))))
}
