//! Each policy against its textbook form over plain vectors, and what all promise: no resident lost,
//! and a victim in bounded time while everything is touched and half of it is pinned.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::queue::{Links, Queue};
use super::*;

const IDS: u32 = 24;

/// A textbook policy: slow, over plain vectors, without pins or budgets.
trait Textbook: Default {
    fn insert(&mut self, id: u32, hash: u64);
    fn touch(&mut self, id: u32);
    fn remove(&mut self, id: u32);
    /// The victim, still in.
    fn victim(&mut self) -> u32;
}

#[derive(Default)]
struct TextbookLru(Vec<u32>);

impl Textbook for TextbookLru {
    fn insert(&mut self, id: u32, _hash: u64) {
        self.0.push(id);
    }
    fn touch(&mut self, id: u32) {
        self.remove(id);
        self.0.push(id);
    }
    fn remove(&mut self, id: u32) {
        self.0.retain(|other| *other != id);
    }
    fn victim(&mut self) -> u32 {
        self.0[0]
    }
}

#[derive(Default)]
struct TextbookSieve {
    /// Oldest first.
    order: Vec<(u32, bool)>,
    hand: usize,
}

impl Textbook for TextbookSieve {
    fn insert(&mut self, id: u32, _hash: u64) {
        self.order.push((id, false));
    }
    fn touch(&mut self, id: u32) {
        self.order.iter_mut().filter(|(other, _)| *other == id).for_each(|(_, visited)| *visited = true);
    }
    fn remove(&mut self, id: u32) {
        let at = self.order.iter().position(|(other, _)| *other == id).unwrap();
        self.order.remove(at);
        if at < self.hand {
            self.hand -= 1;
        }
        if self.hand == self.order.len() {
            self.hand = 0;
        }
    }
    fn victim(&mut self) -> u32 {
        while self.order[self.hand].1 {
            self.order[self.hand].1 = false;
            self.hand = (self.hand + 1) % self.order.len();
        }
        self.order[self.hand].0
    }
}

#[derive(Default)]
struct TextbookS3Fifo {
    small: Vec<(u32, u8)>,
    main: Vec<(u32, u8)>,
    hashes: BTreeMap<u32, u64>,
    /// Everything ever evicted from probation, in order.
    evicted: Vec<Option<u64>>,
}

impl Textbook for TextbookS3Fifo {
    fn insert(&mut self, id: u32, hash: u64) {
        self.hashes.insert(id, hash);
        let ghost = self.evicted.iter().rposition(|ghost| *ghost == Some(hash));
        let recent = ghost.is_some_and(|at| self.evicted.len() - at <= self.main.len());
        // Looking a ghost up lays it.
        self.evicted.iter_mut().filter(|ghost| **ghost == Some(hash)).for_each(|ghost| *ghost = None);
        if recent { self.main.push((id, 0)) } else { self.small.push((id, 0)) }
    }
    fn touch(&mut self, id: u32) {
        let all = self.small.iter_mut().chain(&mut self.main);
        all.filter(|(other, _)| *other == id).for_each(|(_, uses)| *uses = (*uses + 1).min(3));
    }
    fn remove(&mut self, id: u32) {
        if self.small.iter().any(|(other, _)| *other == id) {
            self.evicted.push(Some(self.hashes[&id]));
        }
        self.small.retain(|(other, _)| *other != id);
        self.main.retain(|(other, _)| *other != id);
    }
    fn victim(&mut self) -> u32 {
        loop {
            let total = self.small.len() + self.main.len();
            if self.small.len() * 10 > total || self.main.is_empty() {
                let (id, uses) = self.small[0];
                if uses < 2 {
                    return id;
                }
                self.small.remove(0);
                self.main.push((id, 0));
            } else {
                let (id, uses) = self.main[0];
                if uses == 0 {
                    return id;
                }
                self.main.remove(0);
                self.main.push((id, uses - 1));
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, u64),
    Touch(u32),
    Remove(u32),
    Evict,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..IDS, 0..2 * u64::from(IDS)).prop_map(|(id, block)| Step::Insert(id, block)),
        5 => (0..IDS).prop_map(Step::Touch),
        1 => (0..IDS).prop_map(Step::Remove),
        2 => Just(Step::Evict),
    ];
    prop::collection::vec(step, 1..300)
}

/// Spreads blocks over buckets and fingerprints, so that the bounded table forgets nothing here.
fn hash_of(block: u64) -> u64 {
    (block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn agrees<T: Textbook>(mut policy: impl EvictionPolicy, steps: Vec<Step>) {
    let mut textbook = T::default();
    // Which block every resident id holds: a block is resident once.
    let mut present: BTreeMap<u32, u64> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Insert(id, block) => {
                if !present.contains_key(&id) && !present.values().any(|other| *other == block) {
                    policy.insert(EntryId(id), KeyHash(hash_of(block)));
                    textbook.insert(id, hash_of(block));
                    present.insert(id, block);
                }
            }
            Step::Touch(id) if present.contains_key(&id) => {
                policy.touch(EntryId(id));
                textbook.touch(id);
            }
            Step::Remove(id) if present.remove(&id).is_some() => {
                policy.remove(EntryId(id));
                textbook.remove(id);
            }
            Step::Evict if !present.is_empty() => {
                let victim = policy.victim(usize::MAX, &mut |_| true).expect("something may go");
                assert_eq!(victim.0, textbook.victim());
                policy.remove(victim);
                textbook.remove(victim.0);
                present.remove(&victim.0);
            }
            Step::Evict => assert_eq!(policy.victim(usize::MAX, &mut |_| true), None),
            Step::Touch(_) | Step::Remove(_) => {}
        }
        assert_eq!(policy.len(), present.len());
        assert!((0..IDS + 1).all(|id| policy.contains(EntryId(id)) == present.contains_key(&id)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lru_is_the_textbook_one(steps in steps()) {
        // Tables that start too small, so that they grow.
        agrees::<TextbookLru>(Lru::new(3), steps);
    }

    #[test]
    fn sieve_is_the_textbook_one(steps in steps()) {
        agrees::<TextbookSieve>(Sieve::new(0), steps);
    }

    #[test]
    fn s3_fifo_is_the_textbook_one(steps in steps()) {
        agrees::<TextbookS3Fifo>(S3Fifo::new(4_096), steps);
    }

    /// The worst the node does to a policy: every resident is used between any two calls, in any
    /// order, and all but a few are pinned.
    #[test]
    fn a_victim_is_found_in_two_rounds_whatever_is_touched_and_pinned(
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
        residents in 1..60u32,
        warm_up in prop::collection::vec(any::<prop::sample::Index>(), 0..120),
        evicted_first in 0..20usize,
        free_to_go in prop::collection::btree_set(0..60u32, 1..6),
        touches in prop::collection::vec(0..60u32, 0..120),
        budget in 1..80usize,
    ) {
        let mut policy = kind.build(8);
        let mut present: BTreeSet<u32> = (0..residents).collect();
        for &id in &present {
            policy.insert(EntryId(id), KeyHash(hash_of(u64::from(id))));
        }
        for index in warm_up {
            policy.touch(EntryId(index.index(residents as usize) as u32));
        }
        for _ in 0..evicted_first.min(residents as usize - 1) {
            let victim = policy.victim(usize::MAX, &mut |_| true).unwrap();
            policy.remove(victim);
            present.remove(&victim.0);
        }
        let mut free: BTreeSet<u32> = present.intersection(&free_to_go).copied().collect();
        if free.is_empty() {
            free.extend(present.first());
        }
        let calls_max = 2 * present.len().div_ceil(budget) + 1;
        let mut victim = None;
        let mut calls = 0;
        while victim.is_none() {
            calls += 1;
            prop_assert!(calls <= calls_max, "{} found nothing in {} calls", kind.name(), calls);
            let mut looks = 0;
            victim = policy.victim(budget, &mut |id| {
                looks += 1;
                free.contains(&id.0)
            });
            prop_assert!(looks <= budget);
            for id in &touches {
                if present.contains(id) {
                    policy.touch(EntryId(*id));
                }
            }
        }
        prop_assert!(victim.is_some_and(|id| free.contains(&id.0)));
        prop_assert_eq!(policy.len(), present.len(), "a victim stays in until it is removed");
    }

    #[test]
    fn queues_are_vectors(steps in prop::collection::vec((0..3u8, 0..8u32), 0..80)) {
        let (mut links, mut queue, mut model) = (Links::new(0), Queue::new(), Vec::<u32>::new());
        for (what, id) in steps {
            let at = model.iter().position(|other| *other == id);
            match (what, at) {
                (0, None) => {
                    links.cover(EntryId(id));
                    queue.push(&mut links, EntryId(id));
                    model.push(id);
                }
                (1, Some(at)) => {
                    queue.remove(&mut links, EntryId(id));
                    model.remove(at);
                }
                (2, Some(at)) => {
                    queue.renew(&mut links, EntryId(id));
                    model.remove(at);
                    model.push(id);
                }
                _ => {}
            }
            let listed: Vec<u32> = queue.iter(&links).map(|id| id.0).collect();
            prop_assert_eq!(&listed, &model);
            prop_assert_eq!(queue.len(), model.len());
        }
    }
}

#[test]
fn ghosts_are_the_last_evictions_and_bounded() {
    let mut ghosts = ghost::GhostTable::new(64);
    for block in 0..1_000 {
        ghosts.insert(KeyHash(hash_of(block)));
    }
    let mut known = |blocks: std::ops::Range<u64>| {
        blocks.filter(|&block| ghosts.take(KeyHash(hash_of(block)), usize::MAX)).count()
    };
    // These hashes go round the eight buckets, so the last 64 have eight seats in each.
    assert_eq!((known(936..1_000), known(0..936)), (64, 0));
    assert!(!ghosts.take(KeyHash(hash_of(999)), usize::MAX), "taking forgets");
    ghosts.insert(KeyHash(7));
    ghosts.insert(KeyHash(8));
    assert!(!ghosts.take(KeyHash(7), 1), "not the last one");
    assert!(ghosts.take(KeyHash(8), 1));
}

#[test]
fn a_scan_is_resisted_by_the_scan_resistant() {
    for kind in [PolicyKind::Sieve, PolicyKind::S3Fifo] {
        let mut policy = kind.build(100);
        for id in 0..100 {
            policy.insert(EntryId(id), KeyHash(hash_of(u64::from(id))));
        }
        // Ten residents are used twice, then a thousand blocks come once each.
        for id in (0..10).chain(0..10) {
            policy.touch(EntryId(id));
        }
        for block in 1_000..2_000 {
            let victim = policy.victim(usize::MAX, &mut |_| true).unwrap();
            policy.remove(victim);
            policy.insert(victim, KeyHash(hash_of(block)));
            for id in 0..10 {
                assert!(policy.contains(EntryId(id)));
                policy.touch(EntryId(id));
            }
            assert!(victim.0 >= 10, "{} evicted a block in use", kind.name());
        }
    }
}
