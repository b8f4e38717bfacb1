//! The partition against a plain map of what every view said, and its bounds.

use std::collections::BTreeMap;

use orbitkv_wire::identity::{
    BlockHash, GroupId, KeyHash, Medium, NamespaceDigest, Sequence, ShardIndex, key_hash,
};
use proptest::prelude::*;

use super::*;
use crate::key::{NamespaceId, StateKey};

fn key(number: u64) -> StateKey {
    let mut block = [0; 32];
    block[..8].copy_from_slice(&number.to_le_bytes());
    StateKey { namespace: NamespaceId(0), group: GroupId(0), block: BlockHash(block) }
}

fn hash(key: &StateKey) -> KeyHash {
    key_hash(&NamespaceDigest([7; 32]), key.group, &key.block)
}

fn owner(peer: u32) -> Owner {
    Owner { peer, shard: ShardIndex(0) }
}

fn look_up(partition: &Partition, keys: &[StateKey]) -> Vec<Vec<Replica>> {
    let keys: Vec<_> = keys.iter().map(|key| (*key, hash(key))).collect();
    let mut out = vec![Replicas::default(); keys.len()];
    partition.lookup(&keys, &mut out);
    out.iter().map(|replicas| replicas.iter().collect()).collect()
}

/// Few keys and many views, so that keys have from no claim to several places of them.
const KEYS: u64 = 12;
const VIEWS: usize = 14;

#[derive(Clone, Debug)]
enum Step {
    Open(u32),
    Install(usize),
    Retire(usize),
    Put(usize, u64, Medium),
    Delete(usize, u64, Medium),
    Sweep(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let medium = prop_oneof![Just(Medium::Dram), Just(Medium::Ssd)];
    prop_oneof![
        2 => (0u32..4).prop_map(Step::Open),
        1 => any::<usize>().prop_map(Step::Install),
        1 => any::<usize>().prop_map(Step::Retire),
        20 => (any::<usize>(), 0u64..KEYS, medium.clone()).prop_map(|(v, k, m)| Step::Put(v, k, m)),
        10 => (any::<usize>(), 0u64..KEYS, medium).prop_map(|(v, k, m)| Step::Delete(v, k, m)),
        2 => (1usize..40).prop_map(Step::Sweep),
    ]
}

type Said = BTreeMap<(u64, Medium), (u32, Sequence)>;

struct Model {
    views: Vec<(ViewId, u32, bool, Said)>,
}

impl Model {
    /// What a lookup of key `number` must show: installed views only.
    fn expected(&self, number: u64) -> Vec<(u32, Medium, u32, Sequence)> {
        let mut rows: Vec<_> = self
            .views
            .iter()
            .filter(|(_, _, installed, _)| *installed)
            .flat_map(|(_, peer, _, said)| {
                said.iter()
                    .filter(move |((key, _), _)| *key == number)
                    .map(move |((_, medium), (bytes, sequence))| (*peer, *medium, *bytes, *sequence))
            })
            .collect();
        rows.sort();
        rows
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lookups_show_exactly_what_installed_views_said(steps in prop::collection::vec(step(), 1..400)) {
        let mut partition = Partition::new(IndexSettings { budget_bytes: 16 << 20 });
        let mut model = Model { views: Vec::new() };
        let mut sequence = 0;
        for step in steps {
            sequence += 1;
            let count = model.views.len();
            match step {
                Step::Open(peer) if count < VIEWS => {
                    let view = partition.open_view(owner(peer)).unwrap();
                    model.views.push((view, peer, false, Said::new()));
                }
                Step::Install(at) if count > 0 && !model.views[at % count].2 => {
                    partition.install(model.views[at % count].0);
                    model.views[at % count].2 = true;
                }
                Step::Retire(at) if count > 0 => {
                    let (view, ..) = model.views.remove(at % count);
                    partition.retire(view);
                }
                Step::Put(at, number, medium) if count > 0 => {
                    let (view, _, _, said) = &mut model.views[at % count];
                    let (key, sequence) = (key(number), Sequence(sequence));
                    let bytes = sequence.0 as u32;
                    let put = partition.put(*view, &key, hash(&key), medium, bytes, sequence).unwrap();
                    let before = said.insert((number, medium), (bytes, sequence));
                    prop_assert_eq!(put, if before.is_some() { Put::Renewed } else { Put::Added });
                }
                Step::Delete(at, number, medium) if count > 0 => {
                    let (view, _, _, said) = &mut model.views[at % count];
                    let key = key(number);
                    let deleted = partition.delete(*view, &key, hash(&key), medium);
                    prop_assert_eq!(deleted, said.remove(&(number, medium)).is_some());
                }
                Step::Sweep(budget) => {
                    partition.sweep(budget);
                }
                _ => {}
            }
            let number = sequence % KEYS;
            let mut found: Vec<_> = look_up(&partition, &[key(number)])
                .remove(0)
                .into_iter()
                .map(|replica| (replica.owner.peer, replica.medium, replica.bytes, replica.sequence))
                .collect();
            found.sort();
            let expected = model.expected(number);
            if expected.iter().filter(|row| row.1 == Medium::Dram).count() <= REPLICAS_MAX
                && expected.iter().filter(|row| row.1 == Medium::Ssd).count() <= REPLICAS_MAX
            {
                prop_assert_eq!(found, expected);
            } else {
                prop_assert!(found.iter().all(|row| expected.contains(row)));
            }
        }
        for view in &model.views {
            prop_assert_eq!(partition.view_rows(view.0) as usize, view.3.len());
        }
        while partition.sweep(64) {}
        let rows: usize = model.views.iter().map(|view| view.3.len()).sum();
        prop_assert_eq!(partition.accounting().rows, rows as u64);
        prop_assert_eq!(partition.accounting().retired_rows, 0);
        let recharged = recharged_bytes(&partition);
        prop_assert_eq!(partition.charged_bytes, recharged);
    }
}

/// What is charged, counted anew.
fn recharged_bytes(partition: &Partition) -> u64 {
    let directories: u64 = partition.directories.iter().map(Directory::charged_bytes).sum();
    let heaps: u64 = partition.heaps.iter().map(Heap::charged_bytes).sum();
    let own =
        partition.directories.len() * size_of::<Directory>() + partition.heaps.len() * size_of::<Heap>();
    directories + heaps + own as u64
}

fn fill(partition: &mut Partition, view: ViewId, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let key = key(number);
        partition.put(view, &key, hash(&key), Medium::Dram, 65_536, Sequence(number + 1)).unwrap();
    }
}

#[test]
fn a_row_costs_at_most_sixty_four_bytes_from_one_to_two_million() {
    let mut partition = Partition::new(IndexSettings { budget_bytes: 256 << 20 });
    let view = partition.open_view(owner(0)).unwrap();
    fill(&mut partition, view, 0..1_000_000);
    for step in 0..100 {
        let accounting = partition.accounting();
        let bytes = accounting.charged_bytes as f64 / accounting.rows as f64;
        assert!(bytes <= 64.0, "{bytes} bytes a row at {} rows", accounting.rows);
        let from = 1_000_000 + step * 10_000;
        fill(&mut partition, view, from..from + 10_000);
    }
    assert_eq!(partition.accounting().rows, 2_000_000);
}

#[test]
fn adding_and_removing_a_set_a_thousand_times_leaves_memory_constant() {
    let mut partition = Partition::new(IndexSettings { budget_bytes: 16 << 20 });
    let view = partition.open_view(owner(0)).unwrap();
    let empty = partition.accounting().charged_bytes;
    let mut peak = 0;
    for round in 0..1_000 {
        fill(&mut partition, view, 0..500);
        if round == 0 {
            peak = partition.accounting().charged_bytes_peak;
        }
        for number in 0..500 {
            let key = key(number);
            assert!(partition.delete(view, &key, hash(&key), Medium::Dram));
        }
    }
    assert_eq!(partition.accounting().charged_bytes, empty);
    assert_eq!(partition.accounting().charged_bytes_peak, peak);
}

#[test]
fn the_budget_is_never_exceeded_and_its_refusal_changes_nothing() {
    let budget_bytes = 1 << 20;
    let mut partition = Partition::new(IndexSettings { budget_bytes });
    let view = partition.open_view(owner(0)).unwrap();
    let refused_at = (0..u64::MAX)
        .find(|&number| {
            let key = key(number);
            let rows = partition.accounting().rows;
            let put = partition.put(view, &key, hash(&key), Medium::Dram, 1, Sequence(number + 1));
            assert!(partition.charged_bytes <= budget_bytes);
            if put.is_err() {
                assert_eq!(partition.accounting().rows, rows);
            }
            put.is_err()
        })
        .unwrap();
    assert!(refused_at * ROW_BYTES_PLANNED > budget_bytes * 9 / 10, "{refused_at} rows fit");
}

#[test]
fn an_excluded_owner_is_gone_at_once_and_swept_in_slices() {
    let mut partition = Partition::new(IndexSettings { budget_bytes: 16 << 20 });
    let (old, other) = (partition.open_view(owner(1)).unwrap(), partition.open_view(owner(2)).unwrap());
    fill(&mut partition, old, 0..5_000);
    fill(&mut partition, other, 2_500..7_500);
    partition.install(old);
    partition.install(other);
    partition.retire(old);
    let found = look_up(&partition, &(0..7_500).map(key).collect::<Vec<_>>());
    for (number, replicas) in found.iter().enumerate() {
        assert_eq!(replicas.len(), usize::from(number >= 2_500), "key {number}");
        assert!(replicas.iter().all(|replica| replica.owner.peer == 2));
    }
    let mut slices = 0;
    while partition.sweep(256) {
        slices += 1;
    }
    assert!(slices >= 10_000 / 256 / 2, "{slices} slices");
    assert_eq!(partition.accounting().rows, 5_000);
    // The view's number is free again, and its rows do not come back with it.
    let reused = partition.open_view(owner(3)).unwrap();
    assert_eq!((reused, partition.view_rows(reused)), (old, 0));
}

#[test]
fn what_is_swept_is_given_back_and_nothing_stays_charged() {
    let mut partition = Partition::new(IndexSettings { budget_bytes: 16 << 20 });
    let (empty, free) = (partition.charged_bytes, partition.free_bytes());
    let views: Vec<_> = (0..5).map(|peer| partition.open_view(owner(peer)).unwrap()).collect();
    for (number, &view) in (0..).zip(&views) {
        // Some keys have one owner, some two.
        fill(&mut partition, view, number * 2_000..number * 2_000 + 3_000);
    }
    assert_eq!(partition.free_bytes_without(partition.accounting().rows), free);
    for view in views {
        partition.retire(view);
        while partition.sweep(100) {}
    }
    assert_eq!(partition.accounting().rows, 0);
    assert_eq!((partition.charged_bytes, partition.free_bytes()), (empty, free));
}

#[test]
fn rows_without_another_owner_leave_at_least_what_is_said() {
    let mut partition = Partition::new(IndexSettings { budget_bytes: 1 << 20 });
    let views: Vec<_> = (0..3).map(|peer| partition.open_view(owner(peer)).unwrap()).collect();
    for (number, &view) in (0..).zip(&views) {
        fill(&mut partition, view, number * 3_000..(number + 1) * 3_000);
    }
    for (view, left) in views.into_iter().zip([6_000, 3_000, 0]) {
        let said_bytes = partition.free_bytes_without(3_000);
        partition.retire(view);
        while partition.sweep(100) {}
        assert_eq!(partition.accounting().rows, left);
        assert!(partition.free_bytes() >= said_bytes, "{} of {said_bytes}", partition.free_bytes());
    }
}

#[test]
fn a_row_of_a_key_with_many_owners_costs_a_third_of_a_place() {
    let mut partition = Partition::new(IndexSettings { budget_bytes: 16 << 20 });
    let empty = partition.charged_bytes;
    for peer in 0..64 {
        let view = partition.open_view(owner(peer)).unwrap();
        fill(&mut partition, view, 0..2_000);
    }
    let bytes = (partition.charged_bytes - empty) as f64 / partition.accounting().rows as f64;
    assert!(bytes <= 20.0, "{bytes} bytes a row");
}

#[test]
fn two_media_of_one_key_are_two_rows() {
    let mut partition = Partition::new(IndexSettings { budget_bytes: 16 << 20 });
    let view = partition.open_view(owner(1)).unwrap();
    partition.install(view);
    let key = key(1);
    for (medium, sequence) in [(Medium::Dram, 1), (Medium::Ssd, 2)] {
        partition.put(view, &key, hash(&key), medium, 1, Sequence(sequence)).unwrap();
    }
    assert!(partition.delete(view, &key, hash(&key), Medium::Dram));
    let found = look_up(&partition, &[key]).remove(0);
    assert_eq!(found.iter().map(|replica| replica.medium).collect::<Vec<_>>(), [Medium::Ssd]);
}

#[test]
fn many_owners_of_one_key_are_truncated_not_lost() {
    let mut partition = Partition::new(IndexSettings { budget_bytes: 16 << 20 });
    let key = key(1);
    for peer in 0..64 {
        let view = partition.open_view(owner(peer)).unwrap();
        partition.install(view);
        partition.put(view, &key, hash(&key), Medium::Dram, 1, Sequence(1)).unwrap();
    }
    let mut out = [Replicas::default()];
    partition.lookup(&[(key, hash(&key))], &mut out);
    assert!(out[0].truncated);
    assert_eq!(out[0].iter().count(), REPLICAS_MAX);
}

/// Puts of which some are reserved together, between deletes, retirements and sweeps.
#[derive(Clone, Debug)]
enum Frame {
    Apply(usize, Vec<(u64, bool)>, usize),
    Retire(usize),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_reserved_is_never_refused(
        frames in prop::collection::vec(
            prop_oneof![
                8 => (0usize..3, prop::collection::vec((0u64..3_000, prop::bool::weighted(0.7)), 1..200), 1usize..60)
                    .prop_map(|(view, changes, sweep)| Frame::Apply(view, changes, sweep)),
                1 => (0usize..3).prop_map(Frame::Retire),
            ],
            1..60,
        ),
        budget_bytes in 8_192u64..131_072,
    ) {
        let mut partition = Partition::new(IndexSettings { budget_bytes });
        let mut views: Vec<_> = (0..3).map(|peer| partition.open_view(owner(peer)).unwrap()).collect();
        let mut sequence = 0;
        for frame in frames {
            match frame {
                Frame::Retire(at) => {
                    partition.retire(views[at]);
                    views[at] = partition.open_view(owner(at as u32)).unwrap();
                }
                Frame::Apply(at, changes, sweep) => {
                    let puts = changes.iter().filter(|(_, put)| *put).map(|(number, _)| hash(&key(*number)));
                    let before = partition.accounting();
                    if partition.reserve(puts).is_err() {
                        prop_assert_eq!(partition.accounting(), before);
                        continue;
                    }
                    for (number, put) in changes {
                        sequence += 1;
                        let key = key(number);
                        if put {
                            partition.put(views[at], &key, hash(&key), Medium::Dram, 1, Sequence(sequence)).unwrap();
                            prop_assert_eq!(
                                partition.row(views[at], &key, hash(&key), Medium::Dram),
                                Some((1, Sequence(sequence)))
                            );
                        } else {
                            partition.delete(views[at], &key, hash(&key), Medium::Dram);
                            prop_assert_eq!(partition.row(views[at], &key, hash(&key), Medium::Dram), None);
                        }
                        if sequence % 7 == 0 {
                            partition.sweep(sweep);
                        }
                        prop_assert!(partition.charged_bytes <= budget_bytes);
                    }
                }
            }
            prop_assert_eq!(partition.charged_bytes, recharged_bytes(&partition));
        }
    }
}
