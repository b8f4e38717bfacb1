//! Who is given up when there is too much.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;
use proptest::prelude::*;

use super::rig::*;
use crate::fetcher::*;
use crate::residents::CopyId;
use crate::resilience::gate::Class;
use crate::time::Moment;

fn ahead(copy: u32) -> Order {
    Order { class: Class::Background, ..order(copy, u64::from(BYTES)) }
}

fn shed(rig: &Rig) -> [u64; 3] {
    let figures = rig.room.figures();
    [figures.shed_demand_length, figures.shed_background_length, figures.shed_background_age]
}

#[test]
fn what_nobody_waits_for_has_half_of_the_places_and_demand_all() {
    let mut rig = Rig::with(FetcherSettings { fetches_max: 4, ..FetcherSettings::default() });
    (1..=3).for_each(|copy| rig.begin_within(ahead(copy), &[at("a")], 60_000));
    (11..=13).for_each(|copy| rig.begin(copy, &[at("a")]));
    // Nobody is connected: nothing can be asked for.
    rig.step();
    let busy = |copy| (CopyId(copy), Err(BlockOutcome::Busy));
    assert_eq!(rig.ended[..2], [busy(3), busy(13)]);
    // There would be no place for them any more, and demand waits.
    assert_eq!((rig.ended.len(), shed(&rig)), (4, [1, 3, 0]));
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [11, 12]);
}

#[test]
fn what_waits_behind_old_demand_is_given_up_and_demand_comes_however_old() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a")]);
    (2..=4).for_each(|copy| rig.begin_within(ahead(copy), &[at("a")], 60_000));
    rig.pass(50);
    assert_eq!((rig.ended.len(), shed(&rig)), (0, [0; 3]));
    assert_eq!(
        rig.room.next_deadline(),
        Some(rig.now + Duration::from_nanos(1)),
        "nothing else would wake it"
    );
    rig.now = rig.now + Duration::from_nanos(1);
    rig.step();
    assert_eq!((rig.ended.len(), shed(&rig)), (3, [0, 0, 3]));
    assert!(rig.ended.iter().all(|ended| ended.1 == Err(BlockOutcome::Busy)), "no absence is claimed");
    rig.pass(30_000);
    rig.begin(5, &[at("a")]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [1, 5], "demand has its own deadline");
    assert_eq!(shed(&rig), [0, 0, 3]);
}

#[test]
fn what_is_asked_for_already_goes_on_and_what_was_promoted_is_demand() {
    let mut rig =
        Rig::with(FetcherSettings { background_bytes_max: u64::from(BYTES), ..FetcherSettings::default() });
    (1..=4).for_each(|copy| rig.begin_within(ahead(copy), &[at("a")], 60_000));
    rig.connect();
    let first = rig.operation("a");
    assert_eq!(rig.blocks(first), [1]);
    // Demand of somebody who is not reached.
    rig.begin(9, &[at("b")]);
    rig.pass(40);
    rig.room.on_awaited(CopyId(3), rig.now + Duration::from_secs(60), rig.now);
    rig.pass(11);
    let ended: Vec<u32> = rig.ended.iter().map(|ended| ended.0.0).collect();
    assert_eq!((ended, shed(&rig)), (vec![4, 2], [0, 0, 2]));
    rig.grant_all(first);
    rig.serve(first, 0);
    assert!(rig.ended.iter().any(|ended| ended.0 == CopyId(1) && ended.1.is_ok()));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(Class),
    Promote(u8),
    Cancel(u8),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Begin(Class::Demand)),
        4 => Just(Step::Begin(Class::Background)),
        1 => any::<u8>().prop_map(Step::Promote),
        1 => any::<u8>().prop_map(Step::Cancel),
        3 => (0..40u64).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Against a plain list of who waits: nobody can be asked, and every fetch has the same time from its begin.
    #[test]
    fn the_room_gives_up_whom_a_list_says(
        places in 1usize..12,
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut rig = Rig::with(FetcherSettings { fetches_max: places, ..FetcherSettings::default() });
        let mut waiting: BTreeMap<u32, (Class, Moment)> = BTreeMap::new();
        let (mut next, mut busy) = (0, 0);
        for step in steps {
            let pick = |number: u8, of: &BTreeMap<u32, _>| of.keys().nth(usize::from(number) % of.len().max(1)).copied();
            match step {
                Step::Begin(class) => {
                    next += 1;
                    rig.begin_within(Order { class, ..ahead(next) }, &[at("a")], 100_000_000);
                    let limit = if class == Class::Background { places / 2 } else { places };
                    if waiting.len() < limit {
                        waiting.insert(next, (class, rig.now));
                    } else {
                        busy += 1;
                    }
                }
                Step::Promote(number) => {
                    if let Some(copy) = pick(number, &waiting) {
                        rig.room.on_awaited(CopyId(copy), rig.now + Duration::from_secs(100_000), rig.now);
                        if waiting[&copy].0 == Class::Background {
                            waiting.insert(copy, (Class::Demand, rig.now));
                        }
                    }
                }
                Step::Cancel(number) => {
                    if let Some(copy) = pick(number, &waiting) {
                        rig.room.cancel(CopyId(copy));
                        waiting.remove(&copy);
                    }
                }
                Step::Pass(milliseconds) => rig.now = rig.now + Duration::from_millis(milliseconds),
            }
            rig.step();
            // The head of demand is who waits for longest; a promoted one waits from then on.
            let demand = waiting.iter().filter(|(_, (class, _))| *class == Class::Demand);
            let head = demand.map(|(_, (_, since))| *since).min();
            let is_old = head.is_some_and(|since| rig.now.since(since) > Duration::from_millis(50));
            if head.is_some() && (is_old || waiting.len() > places / 2) {
                let before = waiting.len();
                waiting.retain(|_, (class, _)| *class == Class::Demand);
                busy += before - waiting.len();
            }
            prop_assert_eq!(rig.room.fetches(), waiting.len());
            prop_assert_eq!(rig.begun.keys().map(|copy| copy.0).collect::<Vec<_>>(), waiting.keys().copied().collect::<Vec<_>>());
            prop_assert_eq!(rig.room.figures().busy, busy as u64);
            prop_assert_eq!(shed(&rig).iter().sum::<u64>(), busy as u64);
        }
    }
}
