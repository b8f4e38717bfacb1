//! What a shard lends to other nodes: exact residences, pinned until whoever asked for them lets go.
//!
//! A residence in DRAM is pinned where it lies. One on SSD is read into a slot of its own that nothing shows,
//! because a peer's read is no reason to keep a block here; if the same bytes are in DRAM, or on their way
//! there from SSD, those are taken. Nothing is lent before its checksum is known: most copies have theirs from their
//! write-back, and the others get it computed once, by the driver, in steps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hashbrown::HashMap;
use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::{KeyHash, Medium, Sequence};
use orbitkv_wire::payload::{ExactResidence, FailureCause};

use super::audit::{Finder, LostCause};
use super::recover::{FillPurpose, FillStage};
use super::save::{Eviction, slot_bytes};
use super::tiers::Purpose;
use super::{Order, OrderKind, Shard};
use crate::drop_memory::Verdict;
use crate::key::{EntryId, StateKey};
use crate::residents::{CopyId, Dram, EntryRef};
use crate::segment_log::Placement;

/// Bytes of a checksum that a driver computes before it looks whether it is still wanted: about 6 µs of a turn.
pub const CHECKSUM_STEP_BYTES: u64 = 64 * 1024;

/// Names one pin of a shard for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PinId(pub u64);

/// Names one checksum that a driver is to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChecksumId(pub u64);

/// A checksum to be computed: `xxh3_64` over bytes of the arena that do not change meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumOrder {
    /// To be named when it is known.
    pub id: ChecksumId,
    /// Offset in the arena.
    pub arena_offset: u64,
    /// Bytes.
    pub payload_bytes: u64,
}

/// What became of a residence that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantOutcome {
    /// It is pinned; [`Shard::poll_pin`] says when it can be read.
    Pinned {
        /// The pin, which is to be given back.
        pin: PinId,
        /// Payload bytes.
        bytes: u32,
        /// Bytes of memory it holds.
        slot_bytes: u64,
    },
    /// It was here and has ended, with the delete at this sequence if that is remembered.
    Ended(Option<Sequence>),
    /// It provably never was.
    NeverHeld,
    /// Its sequence is beyond the head: from a valid peer an alarm.
    BeyondHead,
    /// No memory for it now.
    Busy,
    /// It is there, and may not be pinned: its slot is larger than what is allowed.
    BeyondAllowance {
        /// Bytes of memory it holds.
        slot_bytes: u64,
    },
    /// It is on SSD alone, whose device is left alone for so long.
    DeviceRests(Duration),
}

/// What became of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinEvent {
    /// Its bytes can be read.
    Ready {
        /// The pin.
        pin: PinId,
        /// Offset in the arena.
        offset: u64,
        /// Payload bytes.
        bytes: u32,
        /// `xxh3_64` of them.
        checksum: u64,
    },
    /// Its bytes never will be; the pin is still to be given back.
    Failed {
        /// The pin.
        pin: PinId,
        /// Why.
        cause: FailureCause,
    },
}

/// The residences of one request are asked for under one batch, which searches for memory in vain only once.
#[derive(Debug)]
pub struct GrantBatch {
    eviction: Eviction,
}

impl Default for GrantBatch {
    fn default() -> Self {
        GrantBatch { eviction: Eviction::Allowed }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PinState {
    /// Its checksum is to be computed.
    Summing(ChecksumId),
    /// Its bytes are on their way from SSD.
    Reading,
    /// Whoever asks is told, or has been.
    Decided,
}

struct Pin {
    copy: CopyId,
    state: PinState,
}

/// A block on its way from SSD into a slot that nothing shows.
struct StagedBlock {
    entry: EntryRef,
    placement: Placement,
    payload_bytes: u64,
    checksum: u64,
    stage: FillStage,
    pins: Vec<PinId>,
}

/// A checksum on its way.
struct Sum {
    entry: EntryRef,
    copy: CopyId,
    payload_bytes: u64,
    pins: Vec<PinId>,
}

/// All pins of a shard, and what they wait for.
#[derive(Default)]
pub(super) struct Pins {
    live: BTreeMap<PinId, Pin>,
    pins_made: u64,
    events: VecDeque<PinEvent>,
    stages: HashMap<CopyId, StagedBlock>,
    /// Stages by what they read, so that a block which several peers want is read once.
    staged: HashMap<Placement, CopyId>,
    sums: HashMap<ChecksumId, Sum>,
    summing: HashMap<CopyId, ChecksumId>,
    sums_made: u64,
    /// Checksums that the driver has not been given.
    sum_queue: BTreeSet<ChecksumId>,
}

impl Pins {
    /// Uses of copies: the pins' own, and those of what they wait for.
    pub(super) fn uses(&self) -> usize {
        self.live.len() + self.stages.len() + self.sums.len()
    }

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether something is to be told, or to be computed.
    pub(super) fn has_news(&self) -> bool {
        !self.events.is_empty() || !self.sum_queue.is_empty()
    }

    fn decide(&mut self, event: PinEvent) {
        let (PinEvent::Ready { pin, .. } | PinEvent::Failed { pin, .. }) = event;
        let state = &mut self.live.get_mut(&pin).expect("whoever waits is live").state;
        assert_ne!(*state, PinState::Decided, "a pin is decided once");
        *state = PinState::Decided;
        self.events.push_back(event);
    }

    pub(super) fn assert_invariants(&self) {
        assert_eq!(self.staged.len(), self.stages.len(), "every stage is found by what it reads");
        assert_eq!(self.summing.len(), self.sums.len(), "every checksum is found by its copy");
        assert!(self.sum_queue.len() <= self.sums.len(), "what waits for the driver exists");
    }
}

impl Shard {
    /// Pins the residence if it is there, needs no more than `bytes_max` of memory, and there is memory to
    /// read it into. `hash` is the placement hash of its key. Nothing of what a peer asks is interned.
    pub fn grant(
        &mut self,
        wanted: &ExactResidence,
        hash: KeyHash,
        bytes_max: u64,
        batch: &mut GrantBatch,
    ) -> GrantOutcome {
        let head = self.journal.head();
        let Some(namespace) = self.namespaces.get(&wanted.namespace) else {
            // A number is kept for good, so in a namespace without one nothing ever was.
            let is_beyond = wanted.sequence > head;
            return if is_beyond { GrantOutcome::BeyondHead } else { GrantOutcome::NeverHeld };
        };
        let key = StateKey { namespace, group: wanted.group, block: wanted.block };
        let (medium, asked) = (wanted.medium, wanted.sequence);
        let found = self.residents.find(hash, &key).filter(|&id| self.sequence_on(id, medium) == Some(asked));
        let verdict = self.drops.verdict(asked, head, &key, medium, found.is_some());
        let Some(id) = found else {
            return match verdict {
                Verdict::BeyondHead => GrantOutcome::BeyondHead,
                Verdict::NeverHeld => GrantOutcome::NeverHeld,
                Verdict::Ended(delete) => GrantOutcome::Ended(Some(delete)),
                Verdict::EndedUnknown => GrantOutcome::Ended(None),
                Verdict::Resident => unreachable!("it was not found"),
            };
        };
        // A drain waits for readers to end.
        if self.draining {
            return GrantOutcome::Busy;
        }
        let slot_bytes = slot_bytes(self.residents.entry(id).bytes);
        if slot_bytes > bytes_max {
            return GrantOutcome::BeyondAllowance { slot_bytes };
        }
        self.touch(id);
        let outcome = self.pin_entry(id, &mut batch.eviction);
        self.assert_invariants();
        outcome
    }

    /// The next pin of which something is to be told.
    pub fn poll_pin(&mut self) -> Option<PinEvent> {
        loop {
            let event = self.pins.events.pop_front()?;
            let (PinEvent::Ready { pin, .. } | PinEvent::Failed { pin, .. }) = event;
            // Given back before it was told.
            if self.pins.live.contains_key(&pin) {
                return Some(event);
            }
        }
    }

    /// Gives a pin back. Nobody can read its bytes any more, or ever could. What was under way for it alone
    /// and has not begun does not begin.
    ///
    /// # Panics
    /// If it has been given back before.
    pub fn unpin_grant(&mut self, pin: PinId) {
        let Pin { copy, state } = self.pins.live.remove(&pin).expect("a pin is given back once");
        match state {
            PinState::Decided => {}
            PinState::Summing(id) => {
                let sum = self.pins.sums.get_mut(&id).expect("a summing pin has its checksum");
                sum.pins.retain(|&other| other != pin);
                if sum.pins.is_empty() && self.pins.sum_queue.remove(&id) {
                    self.end_sum(id);
                }
            }
            PinState::Reading => self.stop_waiting(copy, pin),
        }
        self.unpin(copy);
        self.assert_invariants();
    }

    /// Head of the journal: no residence has a later sequence.
    #[must_use]
    pub fn head(&self) -> Sequence {
        self.journal.head()
    }

    /// Pins that have not been given back.
    #[must_use]
    pub fn pins(&self) -> usize {
        self.pins.len()
    }

    /// The next checksum to compute. The bytes stay as they are until it has been told or dropped.
    pub fn poll_checksum(&mut self) -> Option<ChecksumOrder> {
        let id = self.pins.sum_queue.pop_first()?;
        let sum = &self.pins.sums[&id];
        let arena_offset = self.residents.copy(sum.copy).slot.offset;
        Some(ChecksumOrder { id, arena_offset, payload_bytes: sum.payload_bytes })
    }

    /// Whether anybody still waits for a checksum: asked between steps of [`CHECKSUM_STEP_BYTES`].
    ///
    /// # Panics
    /// If it has been told or dropped.
    #[must_use]
    pub fn is_checksum_wanted(&self, id: ChecksumId) -> bool {
        !self.pins.sums[&id].pins.is_empty()
    }

    /// A checksum that nobody wants any more is not going to be computed.
    ///
    /// # Panics
    /// If somebody wants it.
    pub fn on_checksum_dropped(&mut self, id: ChecksumId) {
        assert!(!self.is_checksum_wanted(id), "somebody waits for it");
        self.end_sum(id);
        self.assert_invariants();
    }

    /// A checksum is known.
    ///
    /// # Panics
    /// If it has been told or dropped before.
    pub fn on_checksum(&mut self, id: ChecksumId, checksum: u64) {
        let Sum { entry, copy, payload_bytes, pins } = self.end_sum(id);
        let shown = self.residents.resolve(entry);
        if let Some(id) = shown {
            // A write-back may have been faster.
            self.residents.entry_mut(id).checksum.get_or_insert(checksum);
        }
        pins.into_iter().for_each(|pin| self.make_ready(pin, copy, payload_bytes, checksum));
        self.assert_invariants();
    }

    /// Takes a checksum out and lets go of its copy, which its pins still have.
    fn end_sum(&mut self, id: ChecksumId) -> Sum {
        let sum = self.pins.sums.remove(&id).expect("a checksum ends once");
        self.pins.summing.remove(&sum.copy);
        self.unpin(sum.copy);
        sum
    }

    fn sequence_on(&self, id: EntryId, medium: Medium) -> Option<Sequence> {
        let entry = self.residents.entry(id);
        match (medium, entry.dram) {
            (Medium::Dram, Dram::Resident { sequence, .. }) => Some(sequence),
            (Medium::Dram, Dram::Absent | Dram::Filling(_)) => None,
            (Medium::Ssd, _) => entry.ssd.residence().map(|(_, sequence)| sequence),
        }
    }

    /// Pins the bytes of an entry that has a residence: they are the same on both media.
    fn pin_entry(&mut self, id: EntryId, eviction: &mut Eviction) -> GrantOutcome {
        let entry = self.residents.entry(id);
        let (payload_bytes, checksum) = (entry.bytes, entry.checksum);
        let pin = PinId(self.pins.pins_made + 1);
        let (copy, state) = match entry.dram {
            Dram::Resident { copy, .. } if checksum.is_some() => (copy, PinState::Decided),
            Dram::Resident { copy, .. } => (copy, PinState::Summing(self.sum(id, copy, pin))),
            Dram::Filling(copy) if self.fills[&copy].placement.is_some() => {
                self.hurry(copy);
                let fill = self.fills.get_mut(&copy).expect("a filling copy has its fill");
                fill.pins.push(pin);
                (copy, PinState::Reading)
            }
            // What a peer sends is not waited for: that peer may wait for this residence.
            Dram::Absent | Dram::Filling(_) if !self.admits_reads() => {
                self.count_barred();
                return GrantOutcome::DeviceRests(self.device_rest());
            }
            Dram::Absent | Dram::Filling(_) => match self.stage(id, eviction) {
                Some(copy) => {
                    self.pins.stages.get_mut(&copy).expect("just staged").pins.push(pin);
                    (copy, PinState::Reading)
                }
                None => return GrantOutcome::Busy,
            },
        };
        self.pins.pins_made += 1;
        self.residents.pin(copy);
        let slot = self.residents.copy(copy).slot;
        let bytes = super::save::journal_bytes(payload_bytes);
        self.pins.live.insert(pin, Pin { copy, state });
        if let (PinState::Decided, Some(checksum)) = (state, checksum) {
            self.pins.events.push_back(PinEvent::Ready { pin, offset: slot.offset, bytes, checksum });
        }
        GrantOutcome::Pinned { pin, bytes, slot_bytes: slot.bytes }
    }

    /// Makes a pin wait for the checksum of a copy.
    fn sum(&mut self, id: EntryId, copy: CopyId, pin: PinId) -> ChecksumId {
        if let Some(&sum) = self.pins.summing.get(&copy) {
            self.pins.sums.get_mut(&sum).expect("a summing copy has its checksum").pins.push(pin);
            return sum;
        }
        self.pins.sums_made += 1;
        let sum = ChecksumId(self.pins.sums_made);
        let (entry, payload_bytes) = (self.residents.reference(id), self.residents.entry(id).bytes);
        self.residents.pin(copy);
        self.pins.sums.insert(sum, Sum { entry, copy, payload_bytes, pins: vec![pin] });
        self.pins.summing.insert(copy, sum);
        self.pins.sum_queue.insert(sum);
        sum
    }

    /// The stage of a block that is on SSD, and in DRAM not yet, begun now if nobody reads it yet.
    fn stage(&mut self, id: EntryId, eviction: &mut Eviction) -> Option<CopyId> {
        let entry = self.residents.entry(id);
        let (placement, _) = entry.ssd.residence().expect("it has a residence, and none in DRAM");
        let checksum = entry.checksum.expect("what is on SSD was summed on its way there");
        let payload_bytes = entry.bytes;
        if let Some(&copy) = self.pins.staged.get(&placement) {
            return Some(copy);
        }
        let slot = self.allocate(payload_bytes, eviction).ok()?;
        let copy = self.residents.insert_copy(slot, None);
        self.slot_owners.insert(slot.id, copy);
        self.residents.pin(copy);
        self.log.as_mut().expect("an SSD residence lies in a log").begin_read(&placement);
        let stage = FillStage::Queued(self.queue_read(copy, 0));
        let entry = self.residents.reference(id);
        let pins = Vec::new();
        self.pins.stages.insert(copy, StagedBlock { entry, placement, payload_bytes, checksum, stage, pins });
        self.pins.staged.insert(placement, copy);
        Some(copy)
    }

    /// The order to read a stage, if this copy is one.
    pub(super) fn order_stage(&mut self, copy: CopyId) -> Option<Order> {
        let stage = self.pins.stages.get_mut(&copy)?;
        stage.stage = FillStage::Reading;
        let (file_offset, payload_bytes) = (stage.placement.offset, stage.payload_bytes);
        let arena_offset = self.residents.copy(copy).slot.offset;
        let id = self.begin_transfer(Purpose::Stage(copy));
        self.device_guard.begin_read(id, self.now);
        Some(Order { id, kind: OrderKind::Read, arena_offset, file_offset, payload_bytes, checksum: None })
    }

    pub(super) fn on_staged(&mut self, copy: CopyId, outcome: Result<u64, i32>) {
        let stage = &self.pins.stages[&copy];
        let (placement, checksum, shown) =
            (stage.placement, stage.checksum, self.residents.resolve(stage.entry));
        let failure = match outcome {
            Err(errno) => {
                self.on_read_error(errno);
                self.lose_ssd(shown, placement, LostCause::Unreadable, Finder::Reader);
                Some(FailureCause::DeviceError)
            }
            Ok(found) => {
                self.read_failures_in_a_row = 0;
                self.counters.ssd_reads += 1;
                (found != checksum).then(|| {
                    self.counters.checksum_failures += 1;
                    self.lose_ssd(shown, placement, LostCause::WrongBytes, Finder::Reader);
                    FailureCause::Corrupt
                })
            }
        };
        if let Some(id) = shown {
            self.end_if_bare(id);
        }
        let StagedBlock { payload_bytes, pins, .. } = self.end_stage(copy);
        for pin in pins {
            match failure {
                None => self.make_ready(pin, copy, payload_bytes, checksum),
                Some(cause) => self.pins.decide(PinEvent::Failed { pin, cause }),
            }
        }
        self.unpin(copy);
    }

    /// A stage that the device has not been given ends without its bytes; false if this copy is none.
    pub(super) fn fail_stage(&mut self, copy: CopyId) -> bool {
        if !self.pins.stages.contains_key(&copy) {
            return false;
        }
        for pin in self.end_stage(copy).pins {
            self.pins.decide(PinEvent::Failed { pin, cause: FailureCause::DeviceError });
        }
        self.unpin(copy);
        true
    }

    /// Takes a stage out; its copy is still to be unpinned.
    fn end_stage(&mut self, copy: CopyId) -> StagedBlock {
        let stage = self.pins.stages.remove(&copy).expect("a stage ends once");
        self.pins.staged.remove(&stage.placement);
        self.log.as_mut().expect("a stage reads from a log").end_read(&stage.placement);
        stage
    }

    /// A fill has ended: so have the pins that waited for it.
    pub(super) fn decide_filled(
        &mut self,
        copy: CopyId,
        pins: Vec<PinId>,
        outcome: Result<(), FailureCause>,
    ) {
        for pin in pins {
            match outcome {
                Ok(()) => {
                    let id = self.residents.copy(copy).owner.expect("a fill that succeeds is shown");
                    let entry = self.residents.entry(id);
                    let checksum = entry.checksum.expect("what was on SSD was summed on its way there");
                    self.make_ready(pin, copy, entry.bytes, checksum);
                }
                Err(cause) => self.pins.decide(PinEvent::Failed { pin, cause }),
            }
        }
    }

    fn make_ready(&mut self, pin: PinId, copy: CopyId, payload_bytes: u64, checksum: u64) {
        let offset = self.residents.copy(copy).slot.offset;
        let bytes = super::save::journal_bytes(payload_bytes);
        self.pins.decide(PinEvent::Ready { pin, offset, bytes, checksum });
    }

    /// A pin does not wait for a read any more: if nobody does, and it has not begun, it does not begin.
    fn stop_waiting(&mut self, copy: CopyId, pin: PinId) {
        if let Some(stage) = self.pins.stages.get_mut(&copy) {
            stage.pins.retain(|&other| other != pin);
            if let (FillStage::Queued(turn), true) = (stage.stage, stage.pins.is_empty()) {
                self.fill_queue.remove(&turn);
                self.end_stage(copy);
                self.unpin(copy);
            }
            return;
        }
        let fill = self.fills.get_mut(&copy).expect("a reading pin has a stage or a fill");
        fill.pins.retain(|&other| other != pin);
        if fill.purpose == FillPurpose::Recover {
            self.drop_unwanted_fill(copy, BlockOutcome::Cancelled);
        }
    }
}
