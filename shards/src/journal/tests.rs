//! The journal against a list of everything that ever happened.

use std::collections::BTreeMap;

use orbitkv_wire::identity::BlockHash;
use proptest::prelude::*;

use super::*;
use crate::key::NamespaceId;

fn key(number: u8) -> StateKey {
    let mut block = [0; 32];
    // Differ in one byte, at either end, in the group or in the namespace.
    block[if number & 1 == 0 { 0 } else { 31 }] = number;
    StateKey {
        namespace: NamespaceId(u16::from(number & 2)),
        group: GroupId(u16::from(number & 4)),
        block: BlockHash(block),
    }
}

fn settings(capacity_records: usize, records_max: usize, bytes_max: usize) -> JournalSettings {
    JournalSettings {
        capacity_bytes: capacity_records * RECORD_BYTES + 7,
        interval_records_max: records_max,
        interval_bytes_max: bytes_max,
    }
}

/// What one record costs in these tests: puts more than deletes, one group nothing.
fn cost(record: &Record) -> usize {
    match record.change {
        _ if record.key.group != GroupId(0) => 0,
        Change::Put { bytes } => 3 + bytes as usize,
        Change::Delete => 2,
    }
}

/// The newest record per (key, medium) of a piece of history, by sequence.
fn coalesced(input: &[Record]) -> Vec<Record> {
    let newest: BTreeMap<_, _> = input.iter().map(|record| ((record.key, record.medium), *record)).collect();
    let mut output: Vec<Record> = newest.into_values().collect();
    output.sort_by_key(|record| record.sequence);
    output
}

#[test]
fn the_example_of_the_specification() {
    let mut journal = Journal::new(JournalSettings::default());
    let mut out = Interval::new(journal.settings());
    for number in 0..9 {
        journal.append_put(key(100 + number), Medium::Dram, 1);
    }
    assert_eq!(journal.append_put(key(1), Medium::Dram, 10), Sequence(10));
    journal.append_put(key(1), Medium::Ssd, 11);
    assert_eq!(journal.append_delete(key(1), Medium::Dram), Sequence(12));
    for number in 0..4 {
        journal.append_put(key(110 + number), Medium::Dram, 1);
    }
    assert_eq!(journal.append_put(key(1), Medium::Dram, 17), Sequence(17));
    journal.read(Sequence(9), &mut out).unwrap();
    assert_eq!((out.after(), out.through(), out.input_records()), (Sequence(9), Sequence(17), 8));
    let of_key: Vec<_> = out.records().iter().filter(|record| record.key == key(1)).collect();
    assert_eq!(of_key.len(), 2, "the DRAM delete has not touched SSD");
    assert_eq!((of_key[0].sequence, of_key[0].medium), (Sequence(11), Medium::Ssd));
    assert_eq!((of_key[1].sequence, of_key[1].change), (Sequence(17), Change::Put { bytes: 17 }));
}

#[test]
fn a_last_delete_is_sent_and_the_cursor_is_of_the_input() {
    let mut journal = Journal::new(settings(10, 2, usize::MAX));
    let mut out = Interval::new(journal.settings());
    journal.append_delete(key(1), Medium::Ssd);
    journal.append_put(key(2), Medium::Dram, 5);
    journal.append_put(key(2), Medium::Dram, 6);
    journal.read(Sequence(0), &mut out).unwrap();
    assert_eq!(out.records()[0].change, Change::Delete);
    assert_eq!(out.through(), Sequence(2));
    journal.read(Sequence(2), &mut out).unwrap();
    assert_eq!((out.through(), out.records().len()), (Sequence(3), 1));
    journal.read(Sequence(3), &mut out).unwrap();
    assert_eq!((out.after(), out.through(), out.records().len()), (Sequence(3), Sequence(3), 0));
}

#[test]
fn a_reader_behind_the_ring_is_told_and_the_interval_stays_as_it_was() {
    let mut journal = Journal::new(settings(3, 10, usize::MAX));
    let mut out = Interval::new(journal.settings());
    for number in 0..5 {
        journal.append_put(key(number), Medium::Dram, 1);
    }
    journal.read(Sequence(2), &mut out).unwrap();
    assert_eq!(out.records().len(), 3);
    assert_eq!(journal.read(Sequence(1), &mut out), Err(ReadError::HistoryGone { oldest: Sequence(3) }));
    assert_eq!(journal.read(Sequence(6), &mut out), Err(ReadError::BeyondHead { head: Sequence(5) }));
    assert_eq!((out.after(), out.records().len()), (Sequence(2), 3));
    journal.restart();
    assert_eq!((journal.head(), journal.oldest()), (Sequence(0), Sequence(1)));
    assert_eq!(journal.read(Sequence(5), &mut out), Err(ReadError::BeyondHead { head: Sequence(0) }));
    assert_eq!(journal.append_delete(key(0), Medium::Dram), Sequence(1));
    assert_eq!((journal.records_dropped(), journal.records_cleared()), (2, 3));
}

#[test]
fn an_output_too_large_shortens_the_input() {
    let mut journal = Journal::new(settings(10, 10, usize::MAX));
    let mut out = Interval::new(journal.settings());
    let flat = |_: &Record| 10;
    journal.append_put(key(8), Medium::Dram, 1);
    journal.append_put(key(16), Medium::Dram, 1);
    journal.append_delete(key(8), Medium::Dram);
    journal.append_put(key(24), Medium::Dram, 1);
    journal.read_encoded(Sequence(0), 25, flat, &mut out).unwrap();
    assert_eq!((out.through(), out.records().len()), (Sequence(3), 2), "the delete took the put's place");
    journal.read_encoded(Sequence(0), 10, flat, &mut out).unwrap();
    assert_eq!((out.through(), out.records()[0].change), (Sequence(1), Change::Put { bytes: 1 }));
    assert_eq!(
        journal.read_encoded(Sequence(3), 9, flat, &mut out),
        Err(ReadError::RecordTooLarge { sequence: Sequence(4), encoded_bytes: 10, encoded_bytes_max: 9 })
    );
    journal.read_encoded(Sequence(0), 0, |_| 0, &mut out).unwrap();
    assert_eq!(out.through(), Sequence(4), "records out of scope cost nothing and are covered");
}

/// Keys made to share one place in the table, and the two media that always do.
#[test]
fn colliding_keys_stay_apart() {
    let plain = key(8);
    let colliding: Vec<StateKey> = (0..4u64)
        .map(|group| {
            let mut other = StateKey { group: GroupId(group as u16), ..plain };
            let word = u64::from_le_bytes(*plain.block.0.first_chunk().unwrap());
            let word = word ^ group.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            other.block.0[..8].copy_from_slice(&word.to_le_bytes());
            other
        })
        .collect();
    let mut journal = Journal::new(JournalSettings::default());
    let mut out = Interval::new(journal.settings());
    for key in &colliding {
        assert_eq!(mix(key), mix(&plain), "the test's own premise");
        journal.append_put(*key, Medium::Dram, 1);
        journal.append_put(*key, Medium::Ssd, 1);
    }
    journal.read(Sequence(0), &mut out).unwrap();
    assert_eq!(out.records().len(), 8);
}

#[test]
#[should_panic(expected = "overflowed")]
fn the_sequence_does_not_wrap() {
    let mut journal = Journal::new(settings(3, 3, usize::MAX));
    journal.head = Sequence(u64::MAX);
    journal.append_put(key(0), Medium::Dram, 1);
}

#[test]
fn the_bill_is_what_is_allocated() {
    let settings = JournalSettings::default();
    let journal = Journal::new(settings);
    assert_eq!(journal.ring.capacity() * RECORD_BYTES, table_bytes(&settings));
    assert!(table_bytes(&settings) <= JOURNAL_BYTES_DEFAULT);
    assert_eq!(settings.input_records_max(), 1_024);
    assert_eq!(JournalSettings { interval_bytes_max: 100, ..settings }.input_records_max(), 2);
}

#[derive(Clone, Debug)]
enum Step {
    Put { key: u8, medium: Medium, bytes: u32 },
    Delete { key: u8, medium: Medium },
    Restart,
    Read { back: u64 },
    ReadThrough { back: u64, share: u64 },
    ReadEncoded { back: u64, limit: usize },
}

fn steps() -> impl Strategy<Value = Step> {
    let medium = || prop_oneof![Just(Medium::Dram), Just(Medium::Ssd)];
    prop_oneof![
        8 => (0u8..6, medium(), 0u32..9).prop_map(|(key, medium, bytes)| Step::Put { key, medium, bytes }),
        4 => (0u8..6, medium()).prop_map(|(key, medium)| Step::Delete { key, medium }),
        1 => Just(Step::Restart),
        3 => (0u64..20).prop_map(|back| Step::Read { back }),
        3 => (0u64..20, 0u64..20).prop_map(|(back, share)| Step::ReadThrough { back, share }),
        3 => (0u64..20, 0usize..40).prop_map(|(back, limit)| Step::ReadEncoded { back, limit }),
    ]
}

/// A reader that follows from the first record and applies what it gets.
#[derive(Default)]
struct Follower {
    cursor: Sequence,
    state: BTreeMap<(StateKey, Medium), (Sequence, u32)>,
}

fn apply(state: &mut BTreeMap<(StateKey, Medium), (Sequence, u32)>, records: &[Record]) {
    for record in records {
        match record.change {
            Change::Put { bytes } => state.insert((record.key, record.medium), (record.sequence, bytes)),
            Change::Delete => state.remove(&(record.key, record.medium)),
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn reads_match_the_whole_history(
        capacity in 1usize..12,
        records_max in 1usize..8,
        bytes_max in (RECORD_BYTES..10 * RECORD_BYTES),
        steps in proptest::collection::vec(steps(), 1..120),
    ) {
        let settings = settings(capacity, records_max, bytes_max);
        let mut journal = Journal::new(settings);
        let mut history: Vec<Record> = Vec::new();
        let mut out = Interval::new(&settings);
        let mut follower = Follower::default();
        let mut ended = 0;
        let count_max = records_max.min(bytes_max / RECORD_BYTES);
        for step in steps {
            let oldest = history.len().saturating_sub(capacity) as u64 + 1;
            let head = history.len() as u64;
            let from = |back: u64| (head + 3).saturating_sub(back);
            let refusal = |after: u64| {
                if after > head {
                    Some(ReadError::BeyondHead { head: Sequence(head) })
                } else if after + 1 < oldest {
                    Some(ReadError::HistoryGone { oldest: Sequence(oldest) })
                } else {
                    None
                }
            };
            match step {
                Step::Put { key: number, medium, bytes } => {
                    let sequence = journal.append_put(key(number), medium, bytes);
                    let change = Change::Put { bytes };
                    history.push(Record { sequence, key: key(number), medium, change });
                }
                Step::Delete { key: number, medium } => {
                    let sequence = journal.append_delete(key(number), medium);
                    history.push(Record { sequence, key: key(number), medium, change: Change::Delete });
                }
                Step::Restart => {
                    journal.restart();
                    ended += history.len() as u64;
                    history.clear();
                    follower = Follower::default();
                }
                Step::Read { back } => {
                    let after = from(back);
                    let result = journal.read(Sequence(after), &mut out);
                    prop_assert_eq!(result.err(), refusal(after));
                    if result.is_ok() {
                        let through = (after as usize + count_max).min(history.len());
                        prop_assert_eq!((out.after().0, out.through().0), (after, through as u64));
                        prop_assert_eq!(out.records(), coalesced(&history[after as usize..through]));
                    }
                }
                Step::ReadThrough { back, share } => {
                    let after = from(back);
                    let through = if after > head { head } else { after + share.min(head - after) };
                    let result = journal.read_through(Sequence(after), Sequence(through), &mut out);
                    prop_assert_eq!(result.err(), refusal(after));
                    if result.is_ok() {
                        let through = (after as usize + count_max).min(through as usize);
                        prop_assert_eq!(out.through().0, through as u64);
                        prop_assert_eq!(out.records(), coalesced(&history[after as usize..through]));
                    }
                }
                Step::ReadEncoded { back, limit } => {
                    let after = from(back);
                    let result = journal.read_encoded(Sequence(after), limit, cost, &mut out);
                    // Shorten the input from the far end and coalesce again, until all of its
                    // beginnings fit: an interval never runs through one that did not.
                    let most = (after as usize + count_max).min(history.len());
                    let fits = |through: usize| {
                        coalesced(&history[after as usize..through]).iter().map(cost).sum::<usize>() <= limit
                    };
                    if let Some(error) = refusal(after) {
                        prop_assert_eq!(result, Err(error));
                    } else if (after as usize) < most && !fits(after as usize + 1) {
                        let is_too_large = matches!(result, Err(ReadError::RecordTooLarge { .. }));
                        prop_assert!(is_too_large, "{:?}", result);
                    } else {
                        let through = (after as usize..=most).take_while(|&end| fits(end)).last().unwrap();
                        prop_assert_eq!(result, Ok(()));
                        prop_assert_eq!((out.after().0, out.through().0), (after, through as u64));
                        prop_assert_eq!(out.records(), coalesced(&history[after as usize..through]));
                    }
                }
            }
            prop_assert_eq!(journal.head().0, history.len() as u64);
            prop_assert_eq!(journal.oldest().0, history.len().saturating_sub(capacity) as u64 + 1);
            prop_assert!(journal.bytes_used() <= settings.capacity_bytes);
            prop_assert!(journal.bytes_used() <= journal.bytes_peak());
            prop_assert_eq!(journal.records_appended(), ended + history.len() as u64);
            // The follower takes one interval after every other step, and resets to what is true when
            // it has fallen behind.
            if history.len().is_multiple_of(2) {
                match journal.read(follower.cursor, &mut out) {
                    Ok(()) => {
                        prop_assert_eq!(out.after(), follower.cursor);
                        apply(&mut follower.state, out.records());
                        follower.cursor = out.through();
                    }
                    Err(_) => {
                        follower = Follower { cursor: journal.head(), state: BTreeMap::new() };
                        apply(&mut follower.state, &history);
                    }
                }
            }
            let mut truth = BTreeMap::new();
            apply(&mut truth, &history[..follower.cursor.0 as usize]);
            prop_assert_eq!(&follower.state, &truth, "a follower holds what was true at its cursor");
        }
    }
}
