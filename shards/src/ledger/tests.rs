//! The ledger against a list of everything that was ever answered.

use proptest::prelude::*;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn settings(bytes_max: usize, in_flight_max: usize) -> LedgerSettings {
    LedgerSettings { bytes_max, age_max: MINUTE, in_flight_max }
}

fn at(seconds: u64) -> Moment {
    Moment(seconds * 1_000_000_000)
}

#[test]
fn a_repeat_happens_once() {
    let mut ledger: Ledger = Ledger::new(LedgerSettings::default());
    assert_eq!(ledger.begin(7, 3, 99, at(0)), Begin::Fresh);
    assert_eq!(ledger.begin(7, 3, 99, at(1)), Begin::InFlight);
    ledger.finish(7, b"done", at(2));
    assert_eq!(ledger.begin(7, 3, 99, at(3)), Begin::Answered(b"done"));
    assert_eq!(ledger.begin(7, 4, 99, at(3)), Begin::Mismatch);
    assert_eq!(ledger.begin(7, 3, 98, at(3)), Begin::Mismatch);
    let counters = LedgerCounters { fresh: 1, suppressed: 2, mismatches: 2, ..LedgerCounters::default() };
    assert_eq!(*ledger.counters(), counters);
}

#[test]
fn at_exactly_its_age_an_answer_is_over_and_the_late_repeat_is_counted() {
    let mut ledger: Ledger = Ledger::new(LedgerSettings::default());
    ledger.begin(7, 3, 0, at(0));
    ledger.finish(7, b"done", at(1));
    assert_eq!(ledger.next_deadline(), Some(at(61)));
    assert_eq!(ledger.begin(7, 3, 0, Moment(at(61).0 - 1)), Begin::Answered(b"done"));
    // Swept by another operation first, and still known as expired.
    assert_eq!(ledger.begin(8, 3, 0, at(61)), Begin::Fresh);
    assert_eq!(ledger.answers(), 0);
    assert_eq!(ledger.begin(7, 3, 0, at(62)), Begin::Fresh);
    assert_eq!((ledger.counters().expired_hits, ledger.counters().evicted_by_age), (1, 1));
}

#[test]
fn what_runs_is_bounded_and_never_evicted() {
    let mut ledger: Ledger = Ledger::new(settings(0, 2));
    assert_eq!(ledger.begin(1, 0, 0, at(0)), Begin::Fresh);
    assert_eq!(ledger.begin(2, 0, 0, at(0)), Begin::Fresh);
    assert_eq!(ledger.begin(3, 0, 0, at(0)), Begin::Full);
    assert_eq!(ledger.begin(1, 0, 0, at(1_000)), Begin::InFlight, "age is of answers");
    ledger.abandon(1);
    assert_eq!(ledger.begin(1, 0, 0, at(1_000)), Begin::Fresh);
    assert_eq!(ledger.counters().expired_hits, 0, "abandoned is not expired");
    ledger.finish(2, b"", at(1_000));
    assert_eq!((ledger.answers(), ledger.counters().evicted_by_bytes), (0, 1), "no room for one answer");
    assert_eq!(ledger.begin(2, 0, 0, at(1_000)), Begin::Fresh);
    assert_eq!(ledger.counters().expired_hits, 1);
}

#[test]
fn memory_of_the_forgotten_is_bounded() {
    let mut ledger: Ledger = Ledger::new(settings(0, 1));
    for key in 0..=FORGOTTEN_KEYS_MAX as u64 {
        ledger.begin(key, 0, 0, at(0));
        ledger.finish(key, b"", at(0));
    }
    assert_eq!(ledger.forgotten.len(), FORGOTTEN_KEYS_MAX);
    ledger.begin(0, 0, 0, at(0));
    assert_eq!(ledger.counters().expired_hits, 0, "forgotten that it was forgotten");
}

#[test]
#[should_panic(expected = "finished once")]
fn finishing_twice_is_our_bug() {
    let mut ledger: Ledger = Ledger::new(LedgerSettings::default());
    ledger.begin(1, 0, 0, at(0));
    ledger.finish(1, b"", at(0));
    ledger.finish(1, b"", at(0));
}

#[derive(Clone, Debug)]
enum Step {
    Begin { key: u64, operation: u8, digest: u64 },
    Finish { pick: usize, answer_bytes: usize },
    Abandon { pick: usize },
    Wait { seconds: u64 },
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u64..8, prop_oneof![9 => Just(0u8), 1 => Just(1)], prop_oneof![9 => Just(0u64), 1 => Just(1)])
            .prop_map(|(key, operation, digest)| Step::Begin { key, operation, digest }),
        5 => (any::<usize>(), 0usize..40).prop_map(|(pick, answer_bytes)| Step::Finish { pick, answer_bytes }),
        1 => any::<usize>().prop_map(|pick| Step::Abandon { pick }),
        3 => (0u64..40).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

/// One answer of the model; kept for ever, whether the ledger still may have it or not.
#[derive(Clone, Debug)]
struct Answer {
    key: u64,
    content: (u8, u64),
    bytes: Vec<u8>,
    answered: u64,
    is_kept: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn it_answers_as_the_list_does(
        answers_worth in 0usize..5,
        in_flight_max in 1usize..4,
        steps in proptest::collection::vec(steps(), 1..100),
    ) {
        let bytes_max = answers_worth * (Ledger::<u64>::ENTRY_BYTES + 20);
        let mut ledger: Ledger = Ledger::new(settings(bytes_max, in_flight_max));
        let mut now = 0u64;
        let mut running: Vec<(u64, (u8, u64))> = Vec::new();
        let mut answers: Vec<Answer> = Vec::new();
        let (mut expired_hits, mut by_age, mut by_bytes) = (0, 0, 0);
        for (number, step) in steps.into_iter().enumerate() {
            if !matches!(step, Step::Wait { .. } | Step::Abandon { .. }) {
                for answer in answers.iter_mut().filter(|one| one.is_kept && now - one.answered >= 60) {
                    answer.is_kept = false;
                    by_age += 1;
                }
            }
            match step {
                Step::Begin { key, operation, digest } => {
                    let content = (operation, digest);
                    let kept = answers.iter().find(|answer| answer.key == key && answer.is_kept);
                    let begun = ledger.begin(key, operation, digest, at(now));
                    if let Some((_, running)) = running.iter().find(|(running, _)| *running == key) {
                        let expected = if *running == content { Begin::InFlight } else { Begin::Mismatch };
                        prop_assert_eq!(begun, expected);
                    } else if let Some(answer) = kept {
                        let expected =
                            if answer.content == content { Begin::Answered(&answer.bytes) } else { Begin::Mismatch };
                        prop_assert_eq!(begun, expected);
                    } else if running.len() == in_flight_max {
                        prop_assert_eq!(begun, Begin::Full);
                    } else {
                        prop_assert_eq!(begun, Begin::Fresh);
                        running.push((key, content));
                        expired_hits += u64::from(answers.iter().any(|answer| answer.key == key));
                    }
                }
                Step::Finish { pick, answer_bytes } if !running.is_empty() => {
                    let (key, content) = running.swap_remove(pick % running.len());
                    let bytes = vec![number as u8; answer_bytes];
                    ledger.finish(key, &bytes, at(now));
                    answers.push(Answer { key, content, bytes, answered: now, is_kept: true });
                    let charge = |answer: &Answer| answer.bytes.len() + Ledger::<u64>::ENTRY_BYTES;
                    while answers.iter().filter(|one| one.is_kept).map(charge).sum::<usize>() > bytes_max {
                        answers.iter_mut().find(|answer| answer.is_kept).unwrap().is_kept = false;
                        by_bytes += 1;
                    }
                }
                Step::Abandon { pick } if !running.is_empty() => {
                    let (key, _) = running.swap_remove(pick % running.len());
                    ledger.abandon(key);
                }
                Step::Wait { seconds } => now += seconds,
                // Nothing runs, but the ledger has not been asked either.
                Step::Finish { .. } => ledger.expire(at(now)),
                Step::Abandon { .. } => {}
            }
            prop_assert_eq!(ledger.in_flight(), running.len());
            prop_assert_eq!(ledger.answers(), answers.iter().filter(|answer| answer.is_kept).count());
            prop_assert!(ledger.bytes_used() <= bytes_max);
            let counters = ledger.counters();
            prop_assert_eq!(
                (counters.expired_hits, counters.evicted_by_age, counters.evicted_by_bytes),
                (expired_hits, by_age, by_bytes)
            );
        }
    }
}
