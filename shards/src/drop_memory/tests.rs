//! The verdicts against a plain list of every residence that ever was.

use orbitkv_wire::identity::{BlockHash, GroupId};
use proptest::prelude::*;

use super::*;
use crate::key::NamespaceId;

fn key(number: u8) -> StateKey {
    StateKey { namespace: NamespaceId(0), group: GroupId(0), block: BlockHash([number; 32]) }
}

#[test]
fn never_is_said_only_where_it_is_proved() {
    let mut memory = DropMemory::new(2);
    let ask = |memory: &DropMemory, asked, number| {
        memory.verdict(Sequence(asked), Sequence(20), &key(number), Medium::Dram, false)
    };
    memory.on_ended(key(1), Medium::Dram, Sequence(1), Sequence(5));
    memory.on_ended(key(2), Medium::Dram, Sequence(2), Sequence(6));
    assert_eq!(ask(&memory, 1, 1), Verdict::Ended(Sequence(5)));
    assert_eq!(ask(&memory, 3, 1), Verdict::NeverHeld, "nothing is forgotten yet");
    assert_eq!(ask(&memory, 2, 1), Verdict::NeverHeld, "that sequence was another key's");
    memory.on_ended(key(3), Medium::Dram, Sequence(4), Sequence(9));
    assert_eq!(memory.forgotten(), Sequence(5));
    assert_eq!(ask(&memory, 1, 1), Verdict::EndedUnknown);
    assert_eq!(
        ask(&memory, 5, 1),
        Verdict::EndedUnknown,
        "at the border: began no later than what was forgotten"
    );
    assert_eq!(ask(&memory, 6, 1), Verdict::NeverHeld);
    assert_eq!(ask(&memory, 2, 2), Verdict::Ended(Sequence(6)));
    assert_eq!(ask(&memory, 20, 9), Verdict::NeverHeld);
    assert_eq!(ask(&memory, 21, 9), Verdict::BeyondHead);
    assert_eq!(memory.verdict(Sequence(7), Sequence(20), &key(7), Medium::Ssd, true), Verdict::Resident);
    memory.restart();
    assert_eq!(ask(&memory, 1, 1), Verdict::NeverHeld, "of this life");
    assert_eq!((memory.forgotten(), memory.entries_dropped()), (Sequence(0), 1));
}

#[test]
fn a_memory_of_nothing_proves_only_the_future() {
    let mut memory = DropMemory::new(0);
    memory.on_ended(key(1), Medium::Dram, Sequence(1), Sequence(5));
    assert_eq!(memory.verdict(Sequence(1), Sequence(9), &key(1), Medium::Dram, false), Verdict::EndedUnknown);
    assert_eq!(memory.verdict(Sequence(6), Sequence(9), &key(1), Medium::Dram, false), Verdict::NeverHeld);
}

#[test]
#[should_panic(expected = "order of their ending")]
fn endings_out_of_order_are_our_bug() {
    let mut memory = DropMemory::new(2);
    memory.on_ended(key(1), Medium::Dram, Sequence(1), Sequence(5));
    memory.on_ended(key(2), Medium::Dram, Sequence(2), Sequence(4));
}

#[test]
fn the_bill_is_what_is_allocated() {
    let memory = DropMemory::new(1_000);
    let allocated = memory.ring.capacity() * size_of::<Ended>() + memory.buckets.capacity() * 4;
    assert_eq!(allocated, table_bytes(1_000));
    assert_eq!(ENTRY_BYTES, 68);
}

/// One residence of the model; `delete` is `None` while it lasts.
#[derive(Clone, Copy, Debug)]
struct Residence {
    key: u8,
    medium: Medium,
    put: u64,
    delete: Option<u64>,
}

#[derive(Clone, Debug)]
enum Step {
    Toggle { key: u8, medium: Medium },
    Skip { gap: u64 },
    Restart,
}

fn medium() -> impl Strategy<Value = Medium> {
    prop_oneof![Just(Medium::Dram), Just(Medium::Ssd)]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0u8..4, medium()).prop_map(|(key, medium)| Step::Toggle { key, medium }),
        4 => (1u64..6).prop_map(|gap| Step::Skip { gap }),
        1 => (1u64..1 << 40).prop_map(|gap| Step::Skip { gap }),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn verdicts_match_the_list(
        entries_max in 0usize..9,
        steps in proptest::collection::vec(steps(), 1..80),
    ) {
        let mut memory = DropMemory::new(entries_max);
        let mut head = 0u64;
        let mut all: Vec<Residence> = Vec::new();
        for step in steps {
            match step {
                Step::Toggle { key: number, medium } => {
                    head += 1;
                    let running = all.iter_mut().find(|residence| {
                        residence.key == number && residence.medium == medium && residence.delete.is_none()
                    });
                    if let Some(residence) = running {
                        residence.delete = Some(head);
                        memory.on_ended(key(number), medium, Sequence(residence.put), Sequence(head));
                    } else {
                        all.push(Residence { key: number, medium, put: head, delete: None });
                    }
                }
                Step::Skip { gap } => head += gap,
                Step::Restart => {
                    memory.restart();
                    all.clear();
                    head = 0;
                }
            }
            let mut ended: Vec<Residence> = all.iter().copied().filter(|one| one.delete.is_some()).collect();
            ended.sort_by_key(|residence| residence.delete);
            let kept_from = ended.len().saturating_sub(entries_max);
            let (dropped, kept) = ended.split_at(kept_from);
            let forgotten = dropped.last().map_or(0, |residence| residence.delete.unwrap());
            prop_assert_eq!(memory.forgotten(), Sequence(forgotten));
            prop_assert_eq!(memory.len(), kept.len());
            let asked_sequences = (0..12).map(|back| (head + 2).saturating_sub(back))
                .chain(all.iter().map(|residence| residence.put));
            for asked in asked_sequences {
                for number in 0..5 {
                    for medium in Medium::ALL {
                        let is_it = |one: &&Residence| one.key == number && one.medium == medium && one.put == asked;
                        let was = all.iter().find(is_it);
                        let is_resident = was.is_some_and(|residence| residence.delete.is_none());
                        let expected = match (was, kept.iter().find(is_it)) {
                            _ if asked > head => Verdict::BeyondHead,
                            _ if is_resident => Verdict::Resident,
                            (_, Some(residence)) => Verdict::Ended(Sequence(residence.delete.unwrap())),
                            (None, None) if asked > forgotten => Verdict::NeverHeld,
                            _ => Verdict::EndedUnknown,
                        };
                        let found =
                            memory.verdict(Sequence(asked), Sequence(head), &key(number), medium, is_resident);
                        prop_assert_eq!(found, expected);
                        if found == Verdict::NeverHeld {
                            prop_assert!(was.is_none(), "never is never said of what was");
                        }
                    }
                }
            }
        }
    }
}
