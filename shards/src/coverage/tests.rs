//! The merge against the words of chapter 2.8, over all small combinations, and the gate.

use super::*;

const ASKING: Basis = Basis { revision: 7, scope_generation: 3 };

fn parts() -> Vec<CoreCoverage> {
    let standings = [
        Standing::Unavailable(Unavailable::MembershipInvalid),
        Standing::Unavailable(Unavailable::LeaseExpired),
        Standing::Unavailable(Unavailable::OutOfScope),
        Standing::NoneExpected,
        Standing::NoneInstalled,
        Standing::Partial,
        Standing::Complete,
    ];
    let mut parts = Vec::new();
    for standing in standings {
        for (revision, scope_generation) in [(7, 3), (6, 3), (8, 3), (7, 2)] {
            for raised in [true, false] {
                let number = parts.len() as u32;
                parts.push(CoreCoverage {
                    oldest_age: Duration::from_millis(number.into()),
                    expected: 100,
                    left_out: number % 7,
                    ..CoreCoverage { revision, scope_generation, raised, ..part(standing) }
                });
            }
        }
    }
    parts
}

/// The three sentences of the chapter, written as counts instead of as one pass.
fn said(answers: &[CoreCoverage]) -> Coverage {
    let count = |holds: &dyn Fn(&CoreCoverage) -> bool| answers.iter().filter(|answer| holds(answer)).count();
    let refusing = count(&|answer| matches!(answer.standing, Standing::Unavailable(_)));
    let expecting = count(&|answer| answer.standing != Standing::NoneExpected);
    let with_nothing = count(&|answer| answer.standing == Standing::NoneInstalled);
    if refusing > 0 || (expecting > 0 && expecting == with_nothing) {
        return Coverage::Unavailable;
    }
    let sure =
        count(&|answer| answer.standing == Standing::Complete || answer.standing == Standing::NoneExpected);
    let lowered = count(&|answer| !answer.raised);
    let elsewhere = count(&|answer| (answer.revision, answer.scope_generation) != (7, 3));
    if sure == answers.len() && lowered == 0 && elsewhere == 0 {
        Coverage::CompleteAtWatermarks
    } else {
        Coverage::PartialHints
    }
}

#[test]
fn the_merge_says_what_the_chapter_says_for_all_answers_of_up_to_three_cores() {
    let parts = parts();
    let mut seen = [0; 3];
    let mut check = |answers: &[CoreCoverage]| {
        let merged = merge(ASKING, answers);
        assert_eq!(merged.coverage, said(answers), "{answers:?}");
        assert_eq!(merged.oldest_age, answers.iter().map(|answer| answer.oldest_age).max().unwrap());
        let asked = |answer: &&CoreCoverage| !matches!(answer.standing, Standing::Unavailable(_));
        let hints = answers.iter().filter(asked).map(|answer| answer.oldest_age).max();
        assert_eq!(merged.hint_age, hints.unwrap_or(Duration::ZERO), "of those whose views are asked");
        assert_eq!(merged.left_out, answers.iter().map(|answer| answer.left_out).sum::<u32>());
        seen[merged.coverage as usize] += 1;
    };
    for &first in &parts {
        check(&[first]);
        for &second in &parts {
            check(&[first, second]);
            for &third in &parts {
                check(&[first, second, third]);
            }
        }
    }
    assert!(seen.iter().all(|&count| count > 10), "{seen:?}");
}

fn part(standing: Standing) -> CoreCoverage {
    let Basis { revision, scope_generation } = ASKING;
    let oldest_age = Duration::ZERO;
    CoreCoverage { revision, scope_generation, raised: true, standing, oldest_age, expected: 0, left_out: 0 }
}

#[test]
fn a_core_that_may_say_nothing_leaves_everything_out_and_gives_no_hint() {
    let seen = CoreCoverage {
        oldest_age: Duration::from_secs(9),
        expected: 8,
        left_out: 2,
        ..part(Standing::Partial)
    };
    assert_eq!((seen.left_out, seen.hint_age()), (2, Duration::from_secs(9)), "an old hint is one");
    let silent = seen.unavailable(Unavailable::LeaseExpired);
    assert_eq!(silent.standing, Standing::Unavailable(Unavailable::LeaseExpired));
    assert_eq!((silent.left_out, silent.hint_age()), (8, Duration::ZERO));
    let many = CoreCoverage { left_out: u32::MAX, ..seen };
    assert_eq!(merge(ASKING, &[many, seen]).left_out, u32::MAX, "as many as can be said");
}

#[test]
fn a_core_that_expects_nothing_takes_nothing_away() {
    let merged = |standings: &[Standing]| {
        merge(ASKING, &standings.iter().copied().map(part).collect::<Vec<_>>()).coverage
    };
    use Standing::*;
    assert_eq!(merged(&[NoneExpected]), Coverage::CompleteAtWatermarks);
    assert_eq!(merged(&[NoneExpected, Complete]), Coverage::CompleteAtWatermarks);
    assert_eq!(merged(&[NoneExpected, NoneInstalled]), Coverage::Unavailable);
    assert_eq!(merged(&[Complete, NoneInstalled]), Coverage::PartialHints);
    assert_eq!(merged(&[Partial, Complete]), Coverage::PartialHints);
}

#[test]
fn no_core_is_raised_before_all_are_lowered() {
    let mut gate = RaiseGate::new(3);
    assert!(gate.lower(5));
    assert_eq!(gate.on_lowered(ShardIndex(0), 5), None);
    assert_eq!(gate.on_lowered(ShardIndex(0), 5), None, "one core answers for itself only");
    assert_eq!(gate.on_lowered(ShardIndex(1), 5), None);
    // A newer revision overtakes: late answers to the older one raise nothing.
    assert!(gate.lower(6));
    assert_eq!(gate.on_lowered(ShardIndex(2), 5), None);
    for core in [1, 0] {
        assert_eq!(gate.on_lowered(ShardIndex(core), 6), None);
    }
    assert_eq!(gate.on_lowered(ShardIndex(2), 6), Some(6));
    assert_eq!(gate.on_lowered(ShardIndex(2), 6), None, "said once");
    assert!(!gate.lower(6) && !gate.lower(4), "a revision is lowered to once, and never back");
    assert_eq!(gate.revision(), Some(6));
}

#[test]
fn after_an_invalid_snapshot_the_same_revision_is_lowered_to_again() {
    let mut gate = RaiseGate::new(1);
    assert!(gate.lower(5));
    assert_eq!(gate.on_lowered(ShardIndex(0), 5), Some(5));
    gate.on_membership_invalid();
    assert!(!gate.lower(4));
    assert!(gate.lower(5));
    assert_eq!(gate.on_lowered(ShardIndex(0), 5), Some(5));
}

#[test]
fn a_map_that_is_new_in_part_raises_nobody_until_a_whole_one_follows() {
    let mut gate = RaiseGate::new(1);
    assert!(gate.lower(5));
    assert_eq!(gate.on_lowered(ShardIndex(0), 5), Some(5));
    // Of the same revision or a later one; and another record of the same.
    for revision in [5, 7, 7] {
        assert!(gate.lower_in_part(revision));
        assert_eq!(gate.on_lowered(ShardIndex(0), revision), None);
    }
    assert!(!gate.lower_in_part(6) && !gate.lower(6), "never back");
    assert!(gate.lower(7));
    assert_eq!(gate.on_lowered(ShardIndex(0), 7), Some(7));
    // Those who are being lowered are told of a newer record, and nobody is raised for what they answer.
    assert!(gate.lower(8) && gate.lower_in_part(8));
    assert_eq!(gate.on_lowered(ShardIndex(0), 8), None);
}
