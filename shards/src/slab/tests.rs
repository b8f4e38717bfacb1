//! The allocator against a plain list of extents, and its promises to the caller one by one.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1024 * 1024;

fn settings(base_chunks: u64, chunks: u64, region_chunks: u64) -> SlabSettings {
    SlabSettings {
        base: base_chunks * CHUNK_BYTES,
        bytes: chunks * CHUNK_BYTES,
        region_bytes: region_chunks * CHUNK_BYTES,
    }
}

/// What is allocated, as anyone would write it down.
#[derive(Default)]
struct Model {
    extents: BTreeMap<u64, Slot>,
}

impl Model {
    fn add(&mut self, settings: &SlabSettings, asked: u64, slot: Slot) {
        assert_eq!(u64::from(slot.id.0) * PAGE_BYTES, slot.offset);
        assert_eq!(slot.bytes, asked.div_ceil(PAGE_BYTES) * PAGE_BYTES);
        assert!(slot.offset >= settings.base && slot.offset + slot.bytes <= settings.base + settings.bytes);
        assert_eq!(
            slot.offset / settings.region_bytes,
            (slot.offset + slot.bytes - 1) / settings.region_bytes,
            "no slot lies across a region boundary"
        );
        let below = self.extents.range(..=slot.offset).next_back();
        assert!(below.is_none_or(|(_, other)| other.offset + other.bytes <= slot.offset), "overlap below");
        let above = self.extents.range(slot.offset..).next();
        assert!(above.is_none_or(|(offset, _)| slot.offset + slot.bytes <= *offset), "overlap above");
        self.extents.insert(slot.offset, slot);
    }

    fn check(&self, slab: &Slab) {
        let account = slab.accounting();
        assert_eq!(account.slots, self.extents.len() as u64);
        assert_eq!(account.allocated_bytes, self.extents.values().map(|slot| slot.bytes).sum::<u64>());
        for slot in self.extents.values() {
            assert_eq!(slab.slot(slot.id), Some(*slot));
            let inside = SlotId(slot.id.0 + 1);
            if slot.bytes > PAGE_BYTES {
                assert_eq!(slab.slot(inside), None, "only the first page names a slot");
            }
        }
    }
}

/// No free chunk may be lost, and no span may live without slots: read off the chunk table.
fn check_table(slab: &Slab) {
    let (mut spans, mut free, mut tail) = (0, 0, 0);
    let mut chunk = 0;
    while chunk < slab.chunks.len() {
        match slab.chunks[chunk] {
            Chunk::Free => {
                assert!(slab.pool.is_free(chunk));
                free += 1;
                chunk += 1;
            }
            Chunk::Head(span) => {
                assert!(span.used > 0, "an empty span went back");
                let listed = (0..span.slots as usize).filter(|&i| slab.is_allocated(chunk, i)).count();
                assert_eq!(listed, span.used as usize);
                for later in chunk + 1..chunk + span.chunks as usize {
                    assert!(matches!(slab.chunks[later], Chunk::Tail(head) if head as usize == chunk));
                }
                let mut partial = slab.partial[span.pages as usize];
                while partial != NONE && partial as usize != chunk {
                    partial = slab.span(partial as usize).next;
                }
                assert_eq!(
                    partial == NONE,
                    span.used == span.slots,
                    "partial spans are listed, full ones not"
                );
                spans += 1;
                tail += u64::from(span.chunks) * CHUNK_BYTES
                    - u64::from(span.slots) * u64::from(span.pages) * PAGE_BYTES;
                chunk += span.chunks as usize;
            }
            Chunk::Tail(head) => panic!("chunk {chunk} is a tail of {head}, which does not reach it"),
        }
    }
    let account = slab.accounting();
    assert_eq!((account.spans, account.free_chunks, account.tail_bytes), (spans, free, tail));
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Release(prop::sample::Index),
    MakeRoom(u64, prop::sample::Index),
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => prop::sample::select(vec![64 * 1024, 656 * 1024, MIB, MIB + 4096, 3 * MIB]),
        1 => 1..(9 * MIB),
        1 => (1..20u64).prop_map(|chunks| chunks * CHUNK_BYTES),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => bytes().prop_map(Step::Allocate),
        3 => any::<prop::sample::Index>().prop_map(Step::Release),
        2 => (bytes(), any::<prop::sample::Index>()).prop_map(|(bytes, near)| Step::MakeRoom(bytes, near)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_list_of_extents(
        (base, chunks, region) in (0..9u64, 1..24u64, 1..16u64),
        steps in prop::collection::vec(step(), 1..160),
    ) {
        let settings = settings(base, chunks, region);
        let mut slab = Slab::new(settings);
        let mut model = Model::default();
        let mut occupied = Vec::new();
        for step in steps {
            match step {
                Step::Allocate(bytes) => match slab.allocate(bytes) {
                    Ok(slot) => model.add(&settings, bytes, slot),
                    Err(AllocateError::TooLarge { limit }) => prop_assert!(bytes > limit),
                    Err(AllocateError::Full) => prop_assert!(!model.extents.is_empty(), "an empty slice is full"),
                },
                Step::Release(which) if !model.extents.is_empty() => {
                    let offset = *which.get(&model.extents.keys().copied().collect::<Vec<_>>());
                    let slot = model.extents.remove(&offset).unwrap();
                    slab.release(slot.id);
                    prop_assert_eq!(slab.slot(slot.id), None);
                }
                Step::MakeRoom(bytes, which) if !model.extents.is_empty() => {
                    let offset = *which.get(&model.extents.keys().copied().collect::<Vec<_>>());
                    let near = model.extents[&offset].id;
                    let possible = slab.make_room(bytes, near, &mut occupied);
                    if possible {
                        for id in occupied.drain(..) {
                            let slot = slab.slot(id).expect("only allocated slots have to go");
                            prop_assert!(model.extents.remove(&slot.offset).is_some(), "listed once");
                            slab.release(id);
                        }
                        let slot = slab.allocate(bytes).expect("room was made");
                        model.add(&settings, bytes, slot);
                    } else {
                        let one_region = base % region + chunks <= region;
                        prop_assert!(bytes > slab.largest_slot_bytes() || !one_region, "a window for everyone");
                    }
                }
                Step::Release(_) | Step::MakeRoom(..) => {}
            }
            model.check(&slab);
            check_table(&slab);
        }
        for slot in model.extents.values() {
            slab.release(slot.id);
        }
        prop_assert_eq!(slab.accounting(), Slab::new(settings).accounting(), "everything came back");
    }

    #[test]
    fn a_span_wastes_an_eighth_unless_no_short_one_is_better(pages in 1..=2 * SPAN_CHUNKS_MAX * PAGES_PER_CHUNK) {
        let slab = Slab::new(settings(0, 64, 64));
        let waste = |chunks: usize| (chunks * PAGES_PER_CHUNK % pages) as f64 / (chunks * PAGES_PER_CHUNK) as f64;
        let chosen = slab.span_chunks(pages);
        prop_assert!(chosen * PAGES_PER_CHUNK >= pages, "a slot fits");
        let fits = |chunks: &usize| chunks * PAGES_PER_CHUNK >= pages;
        if waste(chosen) > 1.0 / WASTE_PARTS as f64 {
            prop_assert!((1..=SPAN_CHUNKS_MAX).filter(fits).all(|chunks| waste(chunks) >= waste(chosen)));
        } else {
            prop_assert!((1..chosen).filter(fits).all(|chunks| waste(chunks) > 1.0 / WASTE_PARTS as f64));
        }
    }
}

#[test]
fn one_size_fills_the_slice_and_comes_back_slot_by_slot() {
    let mut slab = Slab::new(settings(3, 8, 512));
    let mut slots = Vec::new();
    while let Ok(slot) = slab.allocate(64 * 1024) {
        slots.push(slot.id);
    }
    assert_eq!(slots.len(), 8 * 32, "64 KiB divides a chunk, nothing is wasted");
    assert_eq!(slab.accounting().allocated_bytes, slab.accounting().capacity_bytes);
    let mut occupied = Vec::new();
    assert!(slab.make_room(60 * 1024 + 1, slots[100], &mut occupied));
    assert_eq!(occupied, [slots[100]], "its own size costs one victim");
    slab.release(slots[100]);
    assert_eq!(slab.allocate(64 * 1024).map(|slot| slot.id), Ok(slots[100]));
}

#[test]
fn another_size_takes_the_emptiest_window_near_the_victim() {
    let mut slab = Slab::new(settings(0, 8, 8));
    let mut slots = Vec::new();
    while let Ok(slot) = slab.allocate(512 * 1024) {
        slots.push(slot.id);
    }
    assert_eq!(slots.len(), 32, "four a chunk");
    // Chunk 4 keeps one slot, chunk 5 two; a window of two chunks around chunk 4 is cheapest there.
    for index in [17, 18, 19, 21, 22] {
        slab.release(slots[index]);
    }
    let mut occupied = Vec::new();
    assert!(slab.make_room(4 * MIB, slots[16], &mut occupied));
    assert_eq!(occupied, [slots[16], slots[20], slots[23]]);
}

#[test]
fn too_large_names_the_longest_part_inside_a_region() {
    for (base, chunks, region, limit) in
        [(0, 6, 8, 6), (6, 6, 8, 4), (7, 12, 8, 8), (1, 3, 2, 2), (7, 2, 8, 1)]
    {
        let mut slab = Slab::new(settings(base, chunks, region));
        let limit = limit * CHUNK_BYTES;
        assert_eq!(slab.largest_slot_bytes(), limit);
        assert_eq!(slab.allocate(limit + 1), Err(AllocateError::TooLarge { limit }));
        assert!(slab.allocate(limit).is_ok());
    }
}

#[test]
fn no_window_in_a_short_region_is_said() {
    // Regions of 4 chunks; the slice has one chunk in its first region.
    let mut slab = Slab::new(settings(3, 5, 4));
    let first = slab.allocate(CHUNK_BYTES).unwrap();
    let others: Vec<_> = (0..4).map(|_| slab.allocate(CHUNK_BYTES).unwrap()).collect();
    let mut occupied = Vec::new();
    assert!(!slab.make_room(2 * CHUNK_BYTES, first.id, &mut occupied));
    assert!(occupied.is_empty());
    assert!(slab.make_room(2 * CHUNK_BYTES, others[0].id, &mut occupied));
    assert_eq!(occupied.len(), 2);
}

#[test]
fn tables_cost_what_the_bill_says() {
    let settings = settings(0, 1024, 512);
    let slab = Slab::new(settings);
    let bytes = slab.chunks.capacity() * size_of::<Chunk>()
        + slab.bits.capacity() * 8
        + slab.partial.capacity() * 4
        + 1024 / 8;
    assert_eq!(Slab::table_bytes(&settings), bytes as u64);
    assert!(Slab::table_bytes(&settings) < settings.bytes / 1_000, "under a thousandth of the slice");
}

#[test]
#[should_panic(expected = "was allocated")]
fn a_double_release_is_our_bug() {
    let mut slab = Slab::new(settings(0, 1, 1));
    let slot = slab.allocate(1).unwrap();
    let _other = slab.allocate(1).unwrap();
    slab.release(slot.id);
    slab.release(slot.id);
}
