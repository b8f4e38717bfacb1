//! What owners have said is counted by its age, and decides nothing.

use std::time::Duration;

use orbitkv_wire::inventory::ResourceSummary;

use super::rig::*;
use crate::dice::Dice;
use crate::planner::*;
use crate::residents::CopyId;

/// Around every bound, on it, and none.
fn age(dice: &mut Dice) -> Option<Duration> {
    let bounds = [0, 500, 1_000, 2_000, 5_000, 60_000];
    let age = Duration::from_millis(bounds[dice.roll(6) as usize]);
    match dice.roll(4) {
        0 => None,
        1 => Some(age + Duration::from_nanos(1)),
        _ => Some(age),
    }
}

fn evidence(dice: &mut Dice) -> OwnerEvidence {
    let summary = ResourceSummary {
        window_ms: 1_000,
        reads_queued: dice.roll(9) as u32,
        ssd_busy_permille: dice.roll(1_001) as u16,
        egress_busy_permille: dice.roll(1_001) as u16,
    };
    OwnerEvidence { metadata_age: age(dice), resource: age(dice).map(|age| (summary, age)) }
}

/// Which figure an age belongs to, spelled out.
fn band(age: Option<Duration>) -> usize {
    match age.map(|age| age.as_nanos()) {
        Some(0..=500_000_000) => 0,
        Some(..=1_000_000_000) => 1,
        Some(..=2_000_000_000) => 2,
        Some(..=5_000_000_000) => 3,
        _ => 4,
    }
}

fn taught(mode: Mode) -> Rig {
    let mut rig = Rig::new(PlannerSettings { mode, ..PlannerSettings::default() });
    (0..3).for_each(|number| rig.teach(dram(number), 1_000 + 500 * u64::from(number), 1, 40));
    rig
}

#[test]
fn refusals_are_counted_by_age_of_metadata_and_errors_by_age_of_what_was_said() {
    let mut expected = AgeFigures::default();
    let mut dice = Dice(5);
    let mut rig = taught(Mode::Executed);
    let mut copies = 0;
    for _ in 0..2_000 {
        let told: Vec<OwnerEvidence> = (0..3).map(|_| evidence(&mut dice)).collect();
        let blocks: Vec<Vec<Choice>> = (0..1 + dice.roll(3))
            .map(|_| {
                let first = dice.roll(3) as u8;
                let numbers = [first, (first + 1) % 3];
                numbers
                    .map(|number| Choice { told: told[usize::from(number)], ..choice(dram(number)) })
                    .into()
            })
            .collect();
        let picks = rig.plan(&blocks);
        let mut used = Vec::new();
        for (copy, (pick, choices)) in (copies..).zip(picks.iter().zip(&blocks)) {
            let asked = choices[pick.unwrap_or(0)];
            used.push(asked.told);
            let outcome =
                [TrialOutcome::Usable, TrialOutcome::Busy, TrialOutcome::Missing, TrialOutcome::Corrupt]
                    [if dice.roll(3) == 0 { dice.roll(4) as usize } else { 0 }];
            let trial = Trial {
                copy: CopyId(copy),
                route: asked.route,
                bytes: BYTES,
                ahead_bytes: 0,
                elapsed: Duration::from_micros(1_001),
                is_comparable: true,
                outcome,
            };
            rig.room.on_trial(&trial, rig.now);
            expected.asked[band(asked.told.metadata_age)] += 1;
            if outcome == TrialOutcome::Busy || outcome == TrialOutcome::Missing {
                expected.refused[band(asked.told.metadata_age)] += 1;
            }
            // Whom it goes on to says nothing of how old the first one's word was.
            if outcome != TrialOutcome::Usable {
                let elsewhere = dram(9);
                rig.room.on_trial(&Trial { route: elsewhere, ..trial }, rig.now);
            }
        }
        copies += blocks.len() as u32;
        let took = Duration::from_micros(1 + dice.roll(9_000));
        rig.arrive(blocks.len() as u32, took);
        let trace = rig.latest();
        if let Some(plan) = trace.alternatives.iter().find(|plan| plan.kind == trace.planned) {
            let predicted = plan.predicted.as_nanos() as i128;
            let off = (took.as_nanos() as i128 - predicted).unsigned_abs();
            let band = used.iter().map(|told| band(told.resource.map(|(_, age)| age))).max().unwrap();
            expected.judged[band] += 1;
            expected.error_permille[band] += (off * 1_000 / predicted as u128) as u64;
        }
    }
    assert_eq!(rig.room.figures().ages, expected);
    let is_seen = |counts: ByAge| counts.iter().all(|count| *count > 20);
    assert!(is_seen(expected.asked) && is_seen(expected.refused), "{expected:?}");
    assert!(is_seen(expected.judged) && is_seen(expected.error_permille), "{expected:?}");
}

#[test]
fn what_owners_say_decides_nothing() {
    let (mut silent, mut told) = (taught(Mode::Executed), taught(Mode::Executed));
    let mut dice = Dice(9);
    let mut moved = 0;
    for _ in 0..300 {
        let plain: Vec<Vec<Choice>> = (0..1 + dice.roll(4))
            .map(|_| {
                let first = dice.roll(3) as u8;
                [first, (first + 2) % 3].map(|number| choice(dram(number))).into()
            })
            .collect();
        let mut busy = plain.clone();
        busy.iter_mut().flatten().for_each(|choice| choice.told = evidence(&mut dice));
        let picks = silent.plan(&plain);
        assert_eq!(told.plan(&busy), picks);
        moved += picks.iter().flatten().count();
        let took = Duration::from_micros(1 + dice.roll(9_000));
        silent.arrive(plain.len() as u32, took);
        told.arrive(plain.len() as u32, took);
        let (one, other) = (silent.latest(), told.latest());
        assert_eq!((one.alternatives, one.reason), (other.alternatives, other.reason));
    }
    assert!(moved > 50, "{moved} blocks went otherwise than in the fixed order");
}
