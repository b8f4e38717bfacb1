//! Permits against a plain list.

use proptest::prelude::*;

use super::*;

fn applicant(number: u64) -> Applicant {
    Applicant { shard: ShardIndex((number % 3) as u16), ticket: PermitTicket(number) }
}

fn told(permits: &mut Permits) -> Vec<PermitEffect> {
    std::iter::from_fn(|| permits.poll_effect()).collect()
}

#[test]
fn two_are_granted_and_the_third_is_told_its_place() {
    let mut permits = Permits::new(SNAPSHOTS_MAX, 2);
    for number in 0..4 {
        permits.request(applicant(number)).unwrap();
    }
    assert_eq!(permits.request(applicant(4)), Err(QueueFull(applicant(4))));
    assert_eq!(
        told(&mut permits),
        [
            PermitEffect::Granted(applicant(0)),
            PermitEffect::Granted(applicant(1)),
            PermitEffect::Waits { applicant: applicant(2), position: 1 },
            PermitEffect::Waits { applicant: applicant(3), position: 2 },
        ]
    );
    permits.give_back(applicant(1));
    assert_eq!(
        told(&mut permits),
        [PermitEffect::Granted(applicant(2)), PermitEffect::Waits { applicant: applicant(3), position: 1 },]
    );
    permits.give_back(applicant(3));
    permits.give_back(applicant(0));
    permits.give_back(applicant(2));
    assert_eq!((permits.held(), permits.waiting(), told(&mut permits)), (0, 0, vec![]));
}

#[test]
fn a_grant_that_is_given_back_before_it_was_told_is_not_told() {
    let mut permits = Permits::new(1, 1);
    permits.request(applicant(0)).unwrap();
    permits.request(applicant(1)).unwrap();
    permits.give_back(applicant(0));
    assert_eq!(told(&mut permits), [PermitEffect::Granted(applicant(1))]);
}

#[test]
#[should_panic(expected = "gives back what it has not")]
fn giving_back_twice_is_our_bug() {
    let mut permits = Permits::new(1, 1);
    permits.request(applicant(0)).unwrap();
    permits.give_back(applicant(0));
    permits.give_back(applicant(0));
}

proptest! {
    #[test]
    fn wishes_are_granted_in_order_and_everybody_knows_its_place(
        steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), any::<bool>()), 0..200)
    ) {
        let mut permits = Permits::new(2, 5);
        // Everybody who wishes, in the order of wishing: the first two hold.
        let mut model: Vec<Applicant> = Vec::new();
        let mut heard = std::collections::BTreeMap::new();
        let mut next = 0;
        for (wish, which, poll) in steps {
            if wish {
                let who = applicant(next);
                next += 1;
                match permits.request(who) {
                    Ok(()) => model.push(who),
                    Err(QueueFull(back)) => prop_assert!(back == who && model.len() == 7),
                }
            } else if !model.is_empty() {
                let who = model.remove(which.index(model.len()));
                permits.give_back(who);
                heard.remove(&who);
            }
            if poll {
                for effect in told(&mut permits) {
                    let (who, place) = match effect {
                        PermitEffect::Granted(who) => (who, 0),
                        PermitEffect::Waits { applicant, position } => (applicant, position),
                    };
                    prop_assert!(heard.insert(who, place) != Some(place), "nothing is told twice");
                }
                for (place, who) in model.iter().enumerate() {
                    prop_assert_eq!(heard.get(who), Some(&(place.saturating_sub(1) as u32)));
                }
            }
            prop_assert_eq!(permits.held(), model.len().min(2));
        }
    }
}
