//! The compiled demand against a brute-force oracle that asks, boundary by boundary and token by
//! token, what each kind of group is defined to need.

use proptest::prelude::*;

use super::*;

/// The blocks that a group needs at boundary `b`, by its definition; `None` if `b` splits a state.
fn oracle_needed(kind: GroupKind, block_tokens: u32, b: u32) -> Option<Vec<u32>> {
    let tokens = b * block_tokens;
    let block_of = |token: u32| token / block_tokens;
    let mut blocks: Vec<u32> = match kind {
        GroupKind::Full => (0..tokens).map(block_of).collect(),
        GroupKind::Sliding { window_tokens } => {
            (0..tokens).filter(|token| token + window_tokens >= tokens).map(block_of).collect()
        }
        GroupKind::Checkpoint { interval_tokens } => {
            if !tokens.is_multiple_of(interval_tokens) {
                return None;
            }
            // The state at the end of the last block.
            (0..b).filter(|block| (block + 1) * block_tokens == tokens).collect()
        }
        GroupKind::SinkSliding { sink_tokens, window_tokens } => (0..tokens)
            .filter(|&token| token < sink_tokens || token + window_tokens >= tokens)
            .map(block_of)
            .collect(),
    };
    blocks.dedup();
    Some(blocks)
}

fn oracle_longest(kinds: &[GroupKind], block_tokens: u32, presence: &[Vec<bool>], positions: u32) -> u32 {
    (0..=positions)
        .rev()
        .find(|&b| {
            kinds.iter().zip(presence).all(|(kind, present)| {
                oracle_needed(*kind, block_tokens, b)
                    .is_some_and(|needed| needed.iter().all(|block| present[*block as usize]))
            })
        })
        .expect("boundary 0 needs nothing")
}

fn bits(present: &[bool]) -> PresenceBits {
    let mut bits = PresenceBits::new(present.len() as u32);
    for (position, _) in present.iter().enumerate().filter(|(_, present)| **present) {
        bits.set(position as u32);
    }
    bits
}

fn demands(kinds: &[GroupKind]) -> Vec<GroupDemand> {
    (0..).map(GroupId).zip(kinds).map(|(group, kind)| GroupDemand { group, kind: *kind }).collect()
}

fn compile(block_tokens: u32, kinds: &[GroupKind]) -> Demand {
    Demand::compile(block_tokens, &demands(kinds)).unwrap()
}

#[test]
fn table() {
    const FULL: GroupKind = GroupKind::Full;
    const WINDOW: GroupKind = GroupKind::Sliding { window_tokens: 33 };
    const STATE: GroupKind = GroupKind::Checkpoint { interval_tokens: 64 };
    const SINK: GroupKind = GroupKind::SinkSliding { sink_tokens: 4, window_tokens: 16 };
    // Blocks of 16 tokens; a row of `#` a group.
    for (kinds, presence, longest) in [
        (vec![FULL], vec!["####.###"], 4),
        (vec![FULL], vec!["........"], 0),
        (vec![FULL], vec!["########"], 8),
        (vec![WINDOW], vec!["....###."], 7),
        (vec![WINDOW], vec!["....##.."], 0),
        (vec![WINDOW], vec!["##....##"], 2),
        (vec![STATE], vec!["...#...#"], 8),
        (vec![STATE], vec!["...####."], 4),
        (vec![STATE], vec!["###....."], 0),
        (vec![SINK], vec!["#....#.."], 6),
        (vec![SINK], vec![".######."], 0),
        (vec![FULL, STATE], vec!["#######.", "...#...#"], 4),
        (vec![FULL, WINDOW], vec!["#######.", ".###.##."], 4),
        (vec![STATE, WINDOW], vec!["...#...#", ".###.##."], 4),
        (vec![STATE, WINDOW], vec!["...#...#", ".##..###"], 8),
    ] {
        let presence: Vec<_> = presence
            .iter()
            .map(|row| bits(&row.bytes().map(|byte| byte == b'#').collect::<Vec<_>>()))
            .collect();
        assert_eq!(compile(16, &kinds).longest(&presence, 8).blocks(), longest, "{kinds:?} {presence:?}");
    }
}

#[test]
fn what_makes_no_demand() {
    let one = |kind| Demand::compile(16, &[GroupDemand { group: GroupId(7), kind }]).unwrap_err();
    let group = GroupId(7);
    assert_eq!(Demand::compile(0, &demands(&[GroupKind::Full])), Err(DemandError::BlockTokensZero));
    assert_eq!(Demand::compile(16, &[]), Err(DemandError::NoGroups));
    assert_eq!(
        Demand::compile(16, &demands(&[GroupKind::Full; 65])),
        Err(DemandError::TooManyGroups { groups: 65 })
    );
    assert!(Demand::compile(16, &demands(&[GroupKind::Full; 64])).is_ok());
    let twice = GroupDemand { group, kind: GroupKind::Full };
    assert_eq!(Demand::compile(16, &[twice, twice]), Err(DemandError::DuplicateGroup { group }));
    assert_eq!(one(GroupKind::Sliding { window_tokens: 0 }), DemandError::WindowZero { group });
    assert_eq!(
        one(GroupKind::SinkSliding { sink_tokens: 1, window_tokens: 0 }),
        DemandError::WindowZero { group }
    );
    assert_eq!(one(GroupKind::Checkpoint { interval_tokens: 0 }), DemandError::IntervalZero { group });
    let inside = one(GroupKind::Checkpoint { interval_tokens: 24 });
    assert_eq!(inside, DemandError::IntervalInsideBlock { group, interval_tokens: 24, block_tokens: 16 });
    assert_eq!(inside.to_string(), "group 7: interval_tokens 24 is not a multiple of block_tokens 16");
}

#[test]
fn an_illegal_split_is_refused_by_name() {
    let demand = compile(16, &[GroupKind::Full, GroupKind::Checkpoint { interval_tokens: 64 }]);
    assert_eq!(demand.boundary(8).map(Boundary::blocks), Ok(8));
    assert_eq!(
        demand.boundary(6),
        Err(DemandError::IllegalSplit { blocks: 6, group: GroupId(1), interval_blocks: 4 })
    );
}

#[test]
fn a_query_can_stop_early() {
    let demand = compile(16, &[GroupKind::Full]);
    let mut presence = PresenceBits::new(16_384);
    (0..100).for_each(|position| presence.set(position));
    let presence = [presence];
    assert_eq!(demand.bound(&presence, 0, 16_384), 16_384);
    assert_eq!(demand.bound(&presence, 100, 16_384), 16_384);
    assert_eq!(demand.bound(&presence, 128, 16_384), 100, "block 100 is missing, no more can come");
    assert_eq!(demand.longest(&presence, 128).blocks(), 100);
    // A window alone can always come back later.
    let window = compile(16, &[GroupKind::Sliding { window_tokens: 64 }]);
    assert_eq!(window.bound(&presence, 128, 16_384), 16_384);
}

#[test]
fn extremes_do_not_overflow() {
    let demand = compile(
        1,
        &[
            GroupKind::SinkSliding { sink_tokens: u32::MAX, window_tokens: u32::MAX },
            GroupKind::Checkpoint { interval_tokens: u32::MAX },
        ],
    );
    let presence = [bits(&[true; 70]), bits(&[true; 70])];
    assert_eq!(demand.longest(&presence, 70).blocks(), 0);
    assert_eq!(demand.bound(&presence, 70, u32::MAX), u32::MAX);
}

#[derive(Clone, Debug)]
struct Case {
    block_tokens: u32,
    kinds: Vec<GroupKind>,
    presence: Vec<Vec<bool>>,
    positions: u32,
    examined: u32,
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = (1u32..5, 0u32..150, 1usize..5);
    shape.prop_flat_map(|(block_tokens, positions, groups)| {
        let tokens = if positions > 20 { 300u32 } else { 14 };
        let kind = prop_oneof![
            Just(GroupKind::Full),
            (1..tokens).prop_map(|window_tokens| GroupKind::Sliding { window_tokens }),
            (1u32..6)
                .prop_map(move |blocks| GroupKind::Checkpoint { interval_tokens: blocks * block_tokens }),
            (0..tokens, 1..tokens).prop_map(|(sink_tokens, window_tokens)| GroupKind::SinkSliding {
                sink_tokens,
                window_tokens
            }),
        ];
        // Mostly present, or long prefixes and windows would never be satisfied.
        let row = (0.5f64..1.0).prop_flat_map(move |share| {
            proptest::collection::vec(proptest::bool::weighted(share), positions as usize)
        });
        let rows = proptest::collection::vec(row, groups);
        (Just(block_tokens), proptest::collection::vec(kind, groups), rows, Just(positions), 0..=positions)
            .prop_map(|(block_tokens, kinds, presence, positions, examined)| Case {
                block_tokens,
                kinds,
                presence,
                positions,
                examined,
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn longest_and_bound_match_the_oracle(case in cases()) {
        let Case { block_tokens, kinds, presence, positions, examined } = case;
        let demand = compile(block_tokens, &kinds);
        let known: Vec<_> = presence.iter().map(|row| bits(row)).collect();
        let longest = demand.longest(&known, positions);
        prop_assert_eq!(longest.blocks(), oracle_longest(&kinds, block_tokens, &presence, positions));
        prop_assert_eq!(demand.boundary(longest.blocks()), Ok(longest));

        let hopeful: Vec<Vec<bool>> = presence
            .iter()
            .map(|row| row.iter().enumerate().map(|(at, present)| *present || at as u32 >= examined).collect())
            .collect();
        let bound = demand.bound(&known, examined, positions);
        prop_assert_eq!(bound, oracle_longest(&kinds, block_tokens, &hopeful, positions));
        prop_assert!(bound >= longest.blocks(), "a bound is never too low");
        let so_far = demand.longest(&known, examined);
        if bound == so_far.blocks() {
            prop_assert_eq!(so_far, longest, "stopping early loses nothing");
        }
    }

    #[test]
    fn needed_is_what_the_definition_needs(case in cases()) {
        let Case { block_tokens, kinds, positions, .. } = case;
        let demand = compile(block_tokens, &kinds);
        for b in 0..=positions {
            let legal = kinds.iter().all(|kind| oracle_needed(*kind, block_tokens, b).is_some());
            prop_assert_eq!(demand.boundary(b).is_ok(), legal);
            let Ok(boundary) = demand.boundary(b) else { continue };
            for (index, kind) in kinds.iter().enumerate() {
                let needed = demand.needed(index, boundary);
                let blocks: Vec<u32> = needed.ranges().flatten().collect();
                prop_assert_eq!(needed.blocks() as usize, blocks.len());
                let ranges: Vec<_> = needed.ranges().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ranges);
                prop_assert!((0..b).all(|block| needed.contains(block) == blocks.contains(&block)));
                prop_assert_eq!(Some(blocks), oracle_needed(*kind, block_tokens, b));
            }
        }
    }

    #[test]
    fn needed_blocks_suffice_and_none_is_spare(case in cases()) {
        let Case { block_tokens, kinds, positions, .. } = case;
        let demand = compile(block_tokens, &kinds);
        let boundary = (0..=positions).rev().find_map(|b| demand.boundary(b).ok()).unwrap();
        let mut presence = vec![PresenceBits::new(positions); kinds.len()];
        for (index, bits) in presence.iter_mut().enumerate() {
            demand.needed(index, boundary).ranges().flatten().for_each(|position| bits.set(position));
        }
        prop_assert_eq!(demand.longest(&presence, boundary.blocks()), boundary);
        for index in 0..kinds.len() {
            if let Some(position) = demand.needed(index, boundary).ranges().flatten().next() {
                let mut without = presence.clone();
                without[index].clear(position);
                prop_assert!(demand.longest(&without, boundary.blocks()) < boundary);
            }
        }
    }

    #[test]
    fn bits_match_a_list(present in proptest::collection::vec(any::<bool>(), 0..200), a in 0usize..200, b in 0usize..200) {
        let set = bits(&present);
        let range = a.min(b).min(present.len())..a.max(b).min(present.len());
        let missing: Vec<u32> = range.clone().filter(|at| !present[*at]).map(|at| at as u32).collect();
        let range = range.start as u32..range.end as u32;
        prop_assert_eq!(set.first_missing(range.clone()), missing.first().copied());
        prop_assert_eq!(set.last_missing(range), missing.last().copied());
        prop_assert_eq!(set.present() as usize, present.iter().filter(|present| **present).count());
        prop_assert!(present.iter().enumerate().all(|(at, present)| set.get(at as u32) == *present));
    }
}
