use orbitkv_wire::config::place_hash;
use proptest::prelude::*;

use super::*;

fn at(second: u64) -> Moment {
    Moment(second * 1_000_000_000)
}

fn cache() -> SettingsCache<u32> {
    SettingsCache::new(Published::settled(5, 50), 0, REFRESH, at(0))
}

#[test]
fn what_is_known_to_be_good_stays_when_the_store_has_nothing_better() {
    let mut cache = cache();
    assert_eq!(cache.tick(at(0), || Err(FetchFault::Unreachable)), Refresh::Kept(FetchFault::Unreachable));
    assert_eq!(cache.tick(at(30), || Err(FetchFault::Malformed)), Refresh::Kept(FetchFault::Malformed));
    assert_eq!(cache.tick(at(60), || Ok(Published::settled(4, 40))), Refresh::Older);
    assert_eq!(cache.tick(at(90), || Ok(Published::settled(5, 50))), Refresh::Unchanged);
    assert_eq!(*cache.value(), 50);
    assert_eq!(cache.tick(at(120), || Ok(Published::settled(6, 60))), Refresh::Changed);
    assert_eq!((*cache.value(), cache.record().version), (60, 6));
    assert_eq!(cache.counters(), RefreshCounters { reads: 5, unreachable: 1, malformed: 1, older: 1 });
}

#[test]
fn the_store_is_read_at_its_time_and_not_more_often_after_a_pause() {
    let mut cache = cache();
    let never = || -> Result<Published<u32>, FetchFault> { panic!("it is not time") };
    cache.tick(at(0), || Ok(Published::settled(5, 50)));
    assert_eq!(cache.tick(at(29), never), Refresh::NotDue);
    assert_eq!(cache.next_deadline(), at(30));
    cache.tick(at(100), || Ok(Published::settled(5, 50)));
    assert_eq!(cache.tick(at(119), never), Refresh::NotDue);
    assert_eq!(cache.next_deadline(), at(120));
}

#[test]
fn a_change_that_is_heard_of_is_read_at_once_and_the_pace_goes_on_from_there() {
    let mut cache = cache();
    let same = || Ok(Published::settled(5, 50));
    cache.tick(at(0), same);
    cache.hasten(at(7));
    assert_eq!(cache.next_deadline(), at(7));
    assert_eq!(cache.tick(at(7), || Ok(Published::settled(6, 60))), Refresh::Changed);
    assert_eq!(cache.next_deadline(), at(37));
    // What is due already does not become due later.
    cache.hasten(at(40));
    assert_eq!(cache.next_deadline(), at(37));
}

/// The place of a hash among a hundred, counted instead of multiplied.
fn counted(hash: u64) -> u32 {
    let scaled = u128::from(hash) * 100;
    (1..100).filter(|place| scaled >= *place << 64).count() as u32
}

proptest! {
    /// A node that has a version at some share has it at every larger one, and at all of them at the end.
    #[test]
    fn stages_are_nested(name in "[a-z0-9-]{1,64}") {
        let hash = place_hash(name.parse().expect("legal"));
        let place = Rollout::place(hash, 100);
        prop_assert_eq!(place, counted(hash));
        let has = |admitted| {
            let staged = Rollout::Staged { admitted, of: 100 };
            *Published { version: 2, stable: 'a', candidate: Some(('b', staged)) }.target(place) == 'b'
        };
        let seen: Vec<bool> = (0..=100).map(has).collect();
        prop_assert!(seen.is_sorted(), "{:?}", seen);
        prop_assert!(!seen[0] && seen[100]);
        prop_assert_eq!(seen.iter().filter(|has| !**has).count() as u32, place + 1);
    }
}

#[test]
fn a_share_is_that_share_of_many_nodes() {
    // Names as operators give them: they differ in their last letters.
    let names = (0..10_000).map(|number| format!("host-{number}"));
    let places: Vec<u32> =
        names.map(|name| Rollout::place(place_hash(name.parse().expect("legal")), 100)).collect();
    for share in [1, 5, 10, 25, 50, 75, 99] {
        let admitted =
            places.iter().filter(|place| Rollout::Staged { admitted: share, of: 100 }.admits(**place));
        let (seen, expected) = (admitted.count() as f64, f64::from(share) * 100.0);
        // Four standard deviations of so many fair draws.
        let margin = 4.0 * (expected * (1.0 - f64::from(share) / 100.0)).sqrt();
        assert!((seen - expected).abs() <= margin, "{seen} of {expected} at {share} %");
    }
}

#[test]
fn a_candidate_is_for_its_stage_and_the_rest_keeps_what_held() {
    let record = |rollout| Published { version: 2, stable: 'a', candidate: Some(('b', rollout)) };
    let staged = record(Rollout::default());
    assert_eq!((0..PLACES).filter(|place| *staged.target(*place) == 'b').collect::<Vec<_>>(), [0]);
    let all = record(Rollout::AllAtOnce);
    assert!((0..PLACES).all(|place| *all.target(place) == 'b'));
    let most = record(Rollout::Staged { admitted: 99, of: 3 });
    assert!((0..3).all(|place| *most.target(place) == 'b'));
}

#[test]
fn a_node_keeps_its_place_and_places_are_evenly_taken() {
    assert_eq!((Rollout::place(0, 16), Rollout::place(u64::MAX, 16)), (0, 15));
    let mut taken = [0; 16];
    for node in 0..1_600_u64 {
        let hash = node.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        taken[Rollout::place(hash, 16) as usize] += 1;
    }
    assert!(taken.iter().all(|count| (90..=110).contains(count)), "{taken:?}");
}

#[test]
fn a_node_without_store_starts_from_its_copy_and_without_copy_not_at_all() {
    let (store, disk) = (Published::settled(3, 'a'), Published::settled(2, 'b'));
    let gone = || Err(FetchFault::Unreachable);
    assert_eq!(first(Ok(store.clone()), None), Ok((store.clone(), Origin::Store)));
    assert_eq!(first(Ok(store.clone()), Some(disk.clone())), Ok((store, Origin::Store)));
    assert_eq!(first(gone(), Some(disk.clone())), Ok((disk.clone(), Origin::Disk)));
    assert_eq!(first::<char>(gone(), None), Err(NoSettings));
    let restored = Published::settled(1, 'c');
    assert_eq!(first(Ok(restored), Some(disk.clone())), Ok((disk, Origin::Disk)));
}

#[test]
fn reading_less_often_costs_time_to_notice() {
    let plan = PollingPlan { nodes: 3.0, refresh_s: 30.0 };
    assert_eq!((plan.reads_per_s(), plan.propagation_s_max()), (0.1, 30.0));
    assert_eq!(plan.faulty_max(2.0, 120.0), 300.0);
}
