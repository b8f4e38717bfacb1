//! The log against a plain model: a list of blocks and table writes with their extents. Whatever
//! is done, no two extents that somebody still uses overlap, and every byte is accounted for.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::tests::name;
use super::*;
use orbitkv_wire::identity::{Incarnation, ShardIndex};

const BASE: u64 = 3 * 4096;

#[derive(Clone, Debug)]
enum Step {
    Append(u64),
    Written(usize),
    Failed(usize),
    Remove(usize),
    BeginRead(usize),
    EndRead(usize),
    Quarantine(usize),
    Reclaim,
    Reinsert(usize),
    DropOffered(usize),
    PollTable,
    TableDone(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<usize>;
    prop_oneof![
        12 => (1u64..=16 * 1024).prop_map(Step::Append),
        12 => any().prop_map(Step::Written),
        1 => any().prop_map(Step::Failed),
        3 => any().prop_map(Step::Remove),
        2 => any().prop_map(Step::BeginRead),
        3 => any().prop_map(Step::EndRead),
        1 => any().prop_map(Step::Quarantine),
        3 => Just(Step::Reclaim),
        3 => any().prop_map(Step::Reinsert),
        6 => any().prop_map(Step::DropOffered),
        2 => Just(Step::PollTable),
        2 => prop::bool::weighted(0.8).prop_map(Step::TableDone),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InFlight,
    Abandoned,
    Live,
    Ended,
}

struct Block {
    owner: EntryId,
    name: BlockName,
    payload_bytes: u64,
    placement: Placement,
    state: State,
    readers: usize,
    sequence: Sequence,
    checksum: u64,
}

struct Model {
    log: SegmentLog,
    blocks: Vec<Block>,
    tables: Vec<TableWrite>,
    /// Segments offered in their present life, with the bytes reinserted from each.
    offered: BTreeMap<SegmentId, (u32, u64)>,
    bad: BTreeSet<SegmentId>,
    next: u64,
}

impl Model {
    fn new(segment_bytes: u64, segments: u64) -> Model {
        let settings = SegmentLogSettings {
            base: BASE,
            bytes: (segment_bytes + 8192) * segments,
            segment_bytes,
            largest_block_bytes: 16 * 1024,
            smallest_block_bytes: 4096,
            incarnation: Incarnation([1; 16]),
            shard: ShardIndex(0),
        };
        let log = SegmentLog::new(settings).unwrap();
        Model {
            log,
            blocks: Vec::new(),
            tables: Vec::new(),
            offered: BTreeMap::new(),
            bad: BTreeSet::new(),
            next: 0,
        }
    }

    fn pick(&self, choice: usize, test: impl Fn(&Block) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.blocks.len()).filter(|index| test(&self.blocks[*index])).collect();
        (!fitting.is_empty()).then(|| fitting[choice % fitting.len()])
    }

    fn placed(&mut self, owner: EntryId, name: BlockName, payload_bytes: u64, placement: Placement) {
        assert!(!self.bad.contains(&placement.segment), "a bad segment is never used again");
        assert!(placement.bytes >= payload_bytes && placement.bytes < payload_bytes + 4096);
        let lives_on =
            self.offered.get(&placement.segment).is_some_and(|(life, _)| *life == placement.generation);
        assert!(!lives_on, "an offered segment takes no block");
        let (sequence, checksum) = (Sequence(0), 0);
        let (state, readers) = (State::InFlight, 0);
        self.blocks.push(Block { owner, name, payload_bytes, placement, state, readers, sequence, checksum });
    }

    fn is_offered(&self, block: &Block) -> bool {
        self.offered
            .get(&block.placement.segment)
            .is_some_and(|(life, _)| *life == block.placement.generation)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Append(payload_bytes) => {
                self.next += 1;
                let (owner, name) = (EntryId(self.next as u32), name(self.next));
                match self.log.append(owner, &name, payload_bytes) {
                    Ok(placement) => self.placed(owner, name, payload_bytes, placement),
                    Err(AppendError::NoRoom) => assert_eq!(self.log.state(), LogState::On),
                    Err(AppendError::Off(_)) => assert!(self.bad.len() > 1),
                    Err(refusal) => panic!("{refusal}"),
                }
            }
            Step::Written(choice) => {
                let pending = |block: &Block| matches!(block.state, State::InFlight | State::Abandoned);
                let Some(index) = self.pick(choice, pending) else { return };
                self.next += 1;
                let (sequence, checksum) = (Sequence(self.next), self.next * 7);
                let block = &mut self.blocks[index];
                let settled = self.log.on_written(&block.placement, sequence, checksum);
                (block.sequence, block.checksum) = (sequence, checksum);
                let expected =
                    if block.state == State::InFlight { Settled::Readable } else { Settled::Abandoned };
                assert_eq!(settled, expected);
                block.state = if block.state == State::InFlight { State::Live } else { State::Ended };
            }
            Step::Failed(choice) => {
                let pending = |block: &Block| matches!(block.state, State::InFlight | State::Abandoned);
                let Some(index) = self.pick(choice, pending) else { return };
                self.log.on_write_failed(&self.blocks[index].placement);
                self.blocks[index].state = State::Ended;
            }
            Step::Remove(choice) => {
                let held = |block: &Block| matches!(block.state, State::InFlight | State::Live);
                let Some(index) = self.pick(choice, held) else { return };
                self.remove(index);
            }
            Step::BeginRead(choice) => {
                let Some(index) = self.pick(choice, |block| block.state == State::Live) else { return };
                self.log.begin_read(&self.blocks[index].placement);
                self.blocks[index].readers += 1;
            }
            Step::EndRead(choice) => {
                let Some(index) = self.pick(choice, |block| block.readers > 0) else { return };
                self.log.end_read(&self.blocks[index].placement);
                self.blocks[index].readers -= 1;
            }
            Step::Quarantine(choice) => {
                let Some(index) = self.pick(choice, |block| block.readers > 0) else { return };
                self.log.quarantine(&self.blocks[index].placement);
                self.blocks[index].state = State::Ended;
                self.bad.insert(self.blocks[index].placement.segment);
            }
            Step::Reclaim => self.reclaim(),
            Step::Reinsert(choice) => {
                let fitting = |block: &Block| block.state == State::Live && self.is_offered(block);
                let Some(index) = self.pick(choice, fitting) else { return };
                let Block { owner, name, payload_bytes, placement, .. } = self.blocks[index];
                if let Ok(copy) = self.log.append_reinsert(&placement, &name, payload_bytes) {
                    let (_, reinserted) = self.offered.get_mut(&placement.segment).unwrap();
                    *reinserted += placement.bytes;
                    assert!(
                        *reinserted <= self.log.geometry().segment_bytes / 2,
                        "half of a segment at most"
                    );
                    self.placed(owner, name, payload_bytes, copy);
                    self.remove(index);
                }
            }
            Step::DropOffered(choice) => {
                let fitting = |block: &Block| block.state == State::Live && self.is_offered(block);
                let Some(index) = self.pick(choice, fitting) else { return };
                self.remove(index);
            }
            Step::PollTable => {
                let Some(write) = self.log.poll_table() else { return };
                let table = decode_table(&write.bytes).unwrap();
                let listed: Vec<_> = table
                    .blocks
                    .iter()
                    .map(|block| (block.offset, block.sequence, block.checksum, block.block))
                    .collect();
                let of = |block: &&Block| {
                    block.state == State::Live
                        && (block.placement.segment, block.placement.generation)
                            == (write.segment, table.generation)
                };
                let live = self.blocks.iter().filter(of);
                let expected: Vec<_> = live
                    .map(|block| (block.placement.offset, block.sequence, block.checksum, block.name.block))
                    .collect();
                assert_eq!(listed, expected, "a table lists what can be read");
                self.tables.push(write);
            }
            Step::TableDone(is_whole) => {
                if !self.tables.is_empty() {
                    let write = self.tables.remove(0);
                    self.log.on_table_written(write.segment, is_whole);
                }
            }
        }
    }

    fn remove(&mut self, index: usize) {
        let block = &mut self.blocks[index];
        self.log.remove(&block.placement);
        block.state = if block.state == State::InFlight { State::Abandoned } else { State::Ended };
    }

    fn reclaim(&mut self) {
        let mut out = Vec::new();
        let Some(segment) = self.log.poll_reclaim(&mut out) else { return };
        let generation = out[0].1.generation;
        let before = self.offered.insert(segment, (generation, 0));
        assert!(before.is_none_or(|(life, _)| life < generation), "a segment is offered once in its life");
        let of = |block: &&Block| {
            (block.placement.segment, block.placement.generation) == (segment, generation)
                && block.state != State::Ended
        };
        let expected: Vec<_> =
            self.blocks.iter().filter(of).map(|block| (block.owner, block.placement)).collect();
        assert_eq!(out, expected, "what is left of the segment is readable and offered");
        let unanswered: BTreeSet<_> = self
            .blocks
            .iter()
            .filter(|block| block.state == State::Live && self.is_offered(block))
            .map(|block| block.placement.segment)
            .collect();
        assert!(unanswered.len() <= OFFERED_SEGMENTS_MAX);
    }

    /// Forgets what nobody can use any more, then checks the rest.
    fn check(&mut self) {
        self.blocks.retain(|block| block.state != State::Ended || block.readers > 0);
        let geometry = self.log.geometry();
        let mut extents: Vec<(u64, u64)> =
            self.blocks.iter().map(|block| (block.placement.offset, block.placement.bytes)).collect();
        extents.extend(self.tables.iter().map(|write| (write.offset, write.bytes.len() as u64)));
        extents.sort_unstable();
        let end = BASE + u64::from(geometry.segments) * geometry.segment_bytes;
        let mut used_to = BASE;
        for (offset, bytes) in extents {
            assert!(offset >= used_to, "the extent at {offset} overlaps one that ends at {used_to}");
            used_to = offset + bytes;
            assert!(offset.is_multiple_of(4096) && bytes.is_multiple_of(4096) && used_to <= end);
            let index = (offset - BASE) / geometry.segment_bytes;
            assert!(used_to <= BASE + (index + 1) * geometry.segment_bytes, "an extent stays in its segment");
            let phase = self.log.segments[index as usize].phase;
            assert!(
                !matches!(phase, Phase::Free | Phase::Retired),
                "an extent in use lies in a {phase:?} segment"
            );
        }
        for block in &self.blocks {
            let expected = match block.state {
                State::InFlight => Standing::InFlight,
                State::Abandoned => Standing::Abandoned,
                State::Live => Standing::Readable,
                State::Ended => Standing::Ended,
            };
            assert_eq!(self.log.standing(&block.placement), expected);
        }

        let accounting = self.log.accounting();
        let bytes = |states: &[State]| {
            let counted = self.blocks.iter().filter(|block| states.contains(&block.state));
            counted.fold((0, 0), |(bytes, blocks), block| (bytes + block.placement.bytes, blocks + 1))
        };
        let shares = accounting.shares;
        assert_eq!((shares.live_bytes, shares.live_blocks), bytes(&[State::Live]));
        let in_flight = bytes(&[State::InFlight, State::Abandoned]);
        assert_eq!((shares.in_flight_bytes, shares.in_flight_writes), in_flight);
        assert_eq!(shares.readers, self.blocks.iter().map(|block| block.readers as u64).sum::<u64>());
        assert_eq!(shares.quarantined_segments + shares.retiring_segments, self.bad.len() as u64);
        assert_eq!(shares.total_bytes(), accounting.capacity_bytes);
        let mut sum = Shares::default();
        self.log.segments.iter().for_each(|segment| sum.add(segment.shares(geometry.segment_bytes)));
        assert_eq!(sum, shares, "the running sums are the sums");
    }

    /// Everything in flight settles and everything ends: all segments come back.
    fn drain(&mut self) {
        while self.pick(0, |block| matches!(block.state, State::InFlight | State::Abandoned)).is_some() {
            self.take(Step::Written(0));
        }
        while self.pick(0, |block| block.readers > 0).is_some() {
            self.take(Step::EndRead(0));
        }
        while !self.tables.is_empty() {
            self.take(Step::TableDone(true));
        }
        while self.pick(0, |block| block.state == State::Live).is_some() {
            self.take(Step::Remove(0));
        }
        self.check();
        let accounting = self.log.accounting();
        let open = u64::from(self.log.open.is_some());
        let back = accounting.shares.free_segments + accounting.shares.quarantined_segments + open;
        assert_eq!(back, u64::from(accounting.segments), "nothing keeps a segment for ever");
        if self.log.state() == LogState::On {
            assert!(self.log.append(EntryId(0), &name(0), 16 * 1024).is_ok());
        }
    }
}

fn run(segment_bytes: u64, segments: u64, steps: Vec<Step>) {
    let mut model = Model::new(segment_bytes, segments);
    for step in steps {
        model.take(step);
        model.check();
    }
    model.drain();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_plain_model(
        segment_pages in 4u64..24,
        segments in 4u64..14,
        steps in prop::collection::vec(step(), 1..700),
    ) {
        let steps = steps.into_iter().filter(|step| !matches!(step, Step::Quarantine(_))).collect();
        run(segment_pages * 4096, segments, steps);
    }

    #[test]
    fn agrees_with_a_plain_model_while_bytes_go_bad(
        segments in 8u64..40,
        steps in prop::collection::vec(step(), 1..700),
    ) {
        run(32 * 1024, segments, steps);
    }
}
