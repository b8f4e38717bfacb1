//! What was begun for a fetch is taken back from its end, and that is tried as often as it may be.

use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;

use super::rig::*;
use crate::fetcher::*;
use crate::residents::CopyId;

/// What the room does about a fetch that is given up, in order; `how_far` it was: queued, asked, granted, or coming.
fn given_up(how_far: usize) -> (Vec<FetcherEffect>, FetcherFigures) {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a")]);
    rig.step();
    if how_far > 0 {
        rig.connect();
    }
    if how_far > 1 {
        rig.grant_all(rig.operation("a"));
    }
    if how_far > 2 {
        rig.announce(rig.operation("a"), 0);
    }
    rig.room.cancel(CopyId(1));
    let effects = std::iter::from_fn(|| rig.room.poll_effect()).collect();
    (effects, rig.room.figures())
}

#[test]
fn the_pin_is_given_back_before_the_slot() {
    let failed = FetcherEffect::Failed { copy: CopyId(1), outcome: BlockOutcome::Cancelled };
    for how_far in 0..4 {
        let (effects, figures) = given_up(how_far);
        let (last, before) = effects.split_last().expect("it has ended");
        assert_eq!(*last, failed, "{how_far}");
        let cancels = |effect: &FetcherEffect| matches!(effect, FetcherEffect::Cancel { .. });
        assert_eq!(before.iter().map(cancels).collect::<Vec<_>>(), vec![true; before.len()], "{how_far}");
        assert_eq!(before.len(), usize::from(how_far > 0), "{how_far}: what is asked for is cancelled, once");
        assert_eq!(figures.transfers_left, u64::from(how_far == 3), "{how_far}: what comes is thrown away");
    }
}

#[test]
fn a_cancel_is_said_twice_and_then_the_connection_is_the_proof() {
    // Else the connection would end for want of use, which is a proof, too.
    let idle_wait = Duration::from_secs(60);
    let mut rig = Rig::with(FetcherSettings { idle_wait, ..FetcherSettings::default() });
    rig.keeps_cancelled = true;
    (1..=3).for_each(|copy| {
        rig.begin(copy, &[at("a")]);
        rig.connect();
    });
    let [first, second, third] = rig.operations("a").try_into().expect("one each");
    (1..=3).for_each(|copy| rig.cancel(copy));
    rig.end_cancelled(first);
    rig.pass(14_999);
    assert!(rig.said_again.is_empty());
    rig.pass(1);
    assert_eq!(rig.said_again, [second, third], "once for each that has not ended");
    rig.end_cancelled(second);
    rig.pass(4_999);
    assert!(rig.closed.is_empty() && rig.said_again.len() == 2);
    rig.pass(1);
    assert_eq!(rig.closed, [CloseCause::Violation(Violation::Undrained)]);
    let figures = rig.room.figures();
    let cancels = (figures.cancels_confirmed, figures.cancels_repeated, figures.cancels_closed);
    assert_eq!((cancels, rig.room.bytes_outstanding()), ((1, 1, 1), 0));
}
