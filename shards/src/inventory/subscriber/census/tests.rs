//! The counts against a walk over all streams, by plain arithmetic.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const BOUND_MS: u64 = 5_000;

fn census() -> Census {
    Census::new(Degrader { bound: Duration::from_millis(BOUND_MS), ..Degrader::default() })
}

fn at(ms: u64) -> Moment {
    Moment(ms * 1_000_000)
}

/// What happens to a census.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A stream is expected from now on, or is something else; what it has was fresh so many milliseconds ago.
    Set { stream: u64, holding: Holding, age_ms: u64 },
    /// A stream is not expected any more.
    Drop { stream: u64 },
    /// Time goes on.
    Pass { ms: u64 },
    /// The room's turn.
    Turn,
    /// Somebody asks with the time of so many milliseconds ago.
    AskLate { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let holding = prop_oneof![1 => Just(Holding::Bare), 1 => Just(Holding::Stale), 4 => Just(Holding::Whole)];
    // Often just at the bound, and often the same for several.
    let age = prop_oneof![0..12_000u64, Just(BOUND_MS), Just(BOUND_MS + 1), Just(0)];
    let pass = prop_oneof![Just(1u64), Just(500), 0..6_000u64];
    prop_oneof![
        6 => (0..24u64, holding, age).prop_map(|(stream, holding, age_ms)| Step::Set { stream, holding, age_ms }),
        1 => (0..24u64).prop_map(|stream| Step::Drop { stream }),
        4 => pass.prop_map(|ms| Step::Pass { ms }),
        3 => Just(Step::Turn),
        2 => (0..9_000u64).prop_map(|ms| Step::AskLate { ms }),
    ]
}

/// Streams as they are, and everything about them worked out anew each time.
#[derive(Default)]
struct Plain {
    streams: BTreeMap<u64, (Holding, u64)>,
}

impl Plain {
    fn left_out(&self, now_ms: u64) -> usize {
        let counts = |&(holding, fresh_ms): &(Holding, u64)| match holding {
            Holding::Bare | Holding::Stale => true,
            Holding::Whole => now_ms.saturating_sub(fresh_ms) > BOUND_MS,
        };
        self.streams.values().filter(|stream| counts(stream)).count()
    }

    fn oldest_ms(&self) -> Option<u64> {
        let views = self.streams.values().filter(|(holding, _)| *holding != Holding::Bare);
        views.map(|(_, fresh_ms)| *fresh_ms).min()
    }

    fn standing(&self, now_ms: u64) -> Standing {
        if self.streams.is_empty() {
            Standing::NoneExpected
        } else if self.streams.values().all(|(holding, _)| *holding == Holding::Bare) {
            Standing::NoneInstalled
        } else if self.left_out(now_ms) > 0 {
            Standing::Partial
        } else {
            Standing::Complete
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_counted_is_what_a_walk_over_all_streams_finds(steps in prop::collection::vec(step(), 1..200)) {
        let (mut census, mut plain, mut now_ms) = (census(), Plain::default(), 20_000);
        let tally = |(holding, fresh_ms)| Tally { holding, fresh_at: at(fresh_ms) };
        for step in steps {
            match step {
                Step::Set { stream, holding, age_ms } => {
                    let after = (holding, now_ms - age_ms);
                    let before = plain.streams.insert(stream, after);
                    census.change(StreamId(stream), before.map(tally), Some(tally(after)));
                }
                Step::Drop { stream } => {
                    let before = plain.streams.remove(&stream);
                    census.change(StreamId(stream), before.map(tally), None);
                }
                Step::Pass { ms } => now_ms += ms,
                Step::Turn => census.note_time(at(now_ms)),
                Step::AskLate { ms } => {
                    prop_assert_eq!(census.left_out(at(now_ms - ms)), plain.left_out(now_ms - ms));
                }
            }
            let left_out = census.left_out(at(now_ms));
            prop_assert_eq!(left_out, plain.left_out(now_ms));
            prop_assert_eq!(census.standing(left_out), plain.standing(now_ms));
            prop_assert_eq!(census.oldest(), plain.oldest_ms().map(at));
            prop_assert_eq!(census.expected(), plain.streams.len());
        }
    }
}

#[test]
fn a_view_that_is_too_old_is_looked_at_once() {
    let mut census = census();
    let whole = |ms| Some(Tally { holding: Holding::Whole, fresh_at: at(ms) });
    for stream in 0..64 {
        census.change(StreamId(stream), None, whole(stream));
    }
    census.note_time(at(BOUND_MS));
    assert_eq!((census.left_out(at(BOUND_MS)), census.lapsed.whole), (0, 0));
    census.note_time(at(BOUND_MS + 40));
    // The first 40 are behind what is looked at from now on.
    assert_eq!((census.lapsed.whole, census.lapsed.before), (40, at(39) + Duration::from_nanos(1)));
    assert_eq!(census.left_out(at(BOUND_MS + 50)), 50);
    // One is heard again, one goes, one comes that was not heard for long: none is counted twice.
    census.change(StreamId(3), whole(3), whole(BOUND_MS));
    census.change(StreamId(4), whole(4), None);
    census.change(StreamId(99), None, whole(5));
    assert_eq!((census.lapsed.whole, census.left_out(at(BOUND_MS + 40))), (39, 39));
}
