//! The window against holders that go on spending whatever was decided about them, until they cannot.

use std::collections::BTreeMap;

use crate::dice::Dice;
use crate::flow::credits::Credits;

#[test]
fn what_holders_may_still_spend_never_exceeds_the_window() {
    let (mut expired, mut late, mut alone) = (0u64, 0u64, 0u64);
    for seed in 0..200 {
        let mut dice = Dice(seed);
        let capacity = 1_000 + dice.roll(1_000);
        let mut window = Credits::new(capacity);
        // What each holder was told that it may send and has not, and whether it is still wanted.
        let mut world: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        for number in 0..600 {
            let holder = *world.keys().nth(dice.roll(world.len().max(1) as u64) as usize).unwrap_or(&0);
            match dice.roll(7) {
                0 | 1 => {
                    let most = if world.is_empty() && dice.one_in(3) { 3_000 } else { 400 };
                    let bytes = 1 + dice.roll(most);
                    let outstanding: u64 = world.values().map(|(bytes, _)| bytes).sum();
                    let fits = outstanding == 0 || outstanding + bytes <= capacity;
                    assert_eq!(window.fits(bytes), fits, "{bytes} beside {outstanding} of {capacity}");
                    if fits {
                        window.issue(number, bytes);
                        world.insert(number, (bytes, true));
                        alone += u64::from(bytes > capacity);
                    }
                }
                2 | 3 if world.contains_key(&holder) => {
                    let (left, is_wanted) = world.get_mut(&holder).unwrap();
                    let bytes = dice.roll(*left + 1);
                    *left -= bytes;
                    late += u64::from(!*is_wanted && bytes > 0);
                    window.on_spent(holder, bytes);
                }
                4 if world.get(&holder).is_some_and(|(_, is_wanted)| *is_wanted) => {
                    world.get_mut(&holder).unwrap().1 = false;
                    window.expire(holder);
                    expired += 1;
                }
                5 if dice.one_in(2) => {
                    if let Some((left, _)) = world.remove(&holder) {
                        assert_eq!(window.on_proved(holder), left);
                    }
                }
                6 if dice.one_in(20) => {
                    for (holder, (left, _)) in std::mem::take(&mut world) {
                        assert_eq!(window.on_proved(holder), left);
                    }
                }
                _ => {}
            }
            let outstanding: u64 = world.values().map(|(bytes, _)| bytes).sum();
            let unwanted: u64 = world.values().filter(|(_, wanted)| !wanted).map(|(bytes, _)| bytes).sum();
            assert_eq!((window.in_use_bytes(), window.expired_bytes()), (outstanding, unwanted));
            let spending = world.values().filter(|(bytes, _)| *bytes > 0).count();
            assert!(outstanding <= capacity || spending == 1, "{outstanding} of {capacity}");
            assert_eq!(window.holders(), world.len());
        }
    }
    assert!(expired > 1_000 && late > 500 && alone > 20, "{expired} {late} {alone}");
}

#[test]
fn an_expired_credit_opens_nothing_until_its_holder_is_proved_to_be_done() {
    let mut window = Credits::new(100);
    window.issue('a', 60);
    window.issue('b', 40);
    window.expire('a');
    assert!(!window.fits(1), "its holder may still send all of it");
    window.on_spent('a', 10);
    assert!(window.fits(10) && !window.fits(11), "what has come has come");
    assert_eq!((window.expired_bytes(), window.held_by('a')), (50, 50));
    assert_eq!(window.on_proved('a'), 50);
    assert!(window.fits(60) && !window.fits(61));
}

#[test]
#[should_panic(expected = "nobody spends more than it has")]
fn what_was_not_lent_is_not_spent() {
    let mut window = Credits::new(100);
    window.issue('a', 60);
    window.on_spent('a', 61);
}
