//! What a Query may say of blocks that it does not show: coverage over all cores and all batches of it
//! (chapter 2.8), how old its hints may be, and how many owner streams it leaves out.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_shards::coverage::{Basis, Coverage, merge};
use orbitkv_shards::shard::PeersPart;
use orbitkv_wire::engine::answers;
use orbitkv_wire::identity::ShardIndex;

/// The parts of one Query so far.
#[derive(Debug)]
pub struct Views {
    /// What the core that asks stands at; none on a standalone node.
    asking: Option<Basis>,
    /// The last word of each core.
    parts: BTreeMap<ShardIndex, PeersPart>,
    /// The weakest coverage of a batch; less than complete once views changed between batches.
    weakest: Coverage,
    /// Of the batch whose hints may be the oldest.
    hint_age: Duration,
    /// Of the batch that leaves out the most.
    left_out: u32,
}

impl Views {
    /// Nothing asked yet.
    #[must_use]
    pub fn new(asking: Option<Basis>) -> Views {
        Views {
            asking,
            parts: BTreeMap::new(),
            weakest: Coverage::CompleteAtWatermarks,
            hint_age: Duration::ZERO,
            left_out: 0,
        }
    }

    /// A core's part of a batch.
    pub fn add(&mut self, core: ShardIndex, part: PeersPart) {
        let before = self.parts.insert(core, part);
        let is_same = before.is_none_or(|before| {
            let (before_is, is) = (before.coverage, part.coverage);
            before.view_generation == part.view_generation
                && (before_is.revision, before_is.scope_generation) == (is.revision, is.scope_generation)
        });
        if !is_same {
            self.weakest = self.weakest.min(Coverage::PartialHints);
        }
    }

    /// All parts of a batch have come.
    pub fn end_batch(&mut self) {
        let Some(asking) = self.asking else { return };
        let parts: Vec<_> = self.parts.values().map(|part| part.coverage).collect();
        let merged = merge(asking, &parts);
        self.weakest = self.weakest.min(merged.coverage);
        self.hint_age = self.hint_age.max(merged.hint_age);
        self.left_out = self.left_out.max(merged.left_out);
    }

    /// What the answer is worth. A standalone node expects nobody to know anything, so it is complete.
    #[must_use]
    pub fn coverage(&self) -> answers::Coverage {
        match self.weakest {
            Coverage::CompleteAtWatermarks => answers::Coverage::CompleteAtWatermarks,
            Coverage::PartialHints => answers::Coverage::PartialHints,
            Coverage::Unavailable => answers::Coverage::Unavailable,
        }
    }

    /// How old the hints of the answer may be, in milliseconds, rounded up so that none is older; 0 without hints and on a
    /// standalone node.
    #[must_use]
    pub fn hint_age_ms(&self) -> u32 {
        u32::try_from(self.hint_age.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
    }

    /// Owner streams whose blocks the answer may leave out, on the cores that were asked; 0 on a standalone node.
    #[must_use]
    pub fn left_out(&self) -> u32 {
        self.left_out
    }

    /// A number that differs when any view that was asked does; 0 on a standalone node.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.parts.values().map(|part| part.view_generation).sum()
    }
}

#[cfg(test)]
mod tests {
    use orbitkv_shards::coverage::{CoreCoverage, Standing, Unavailable};

    use super::*;

    const ASKING: Basis = Basis { revision: 5, scope_generation: 1 };

    fn part(revision: u64, standing: Standing, view_generation: u64) -> PeersPart {
        let oldest_age = Duration::ZERO;
        let coverage = CoreCoverage {
            revision,
            scope_generation: 1,
            raised: true,
            standing,
            oldest_age,
            expected: 0,
            left_out: 0,
        };
        PeersPart { coverage, view_generation }
    }

    fn of(batches: &[&[(u16, PeersPart)]]) -> answers::Coverage {
        let mut views = Views::new(Some(ASKING));
        for batch in batches {
            batch.iter().for_each(|&(core, part)| views.add(ShardIndex(core), part));
            views.end_batch();
        }
        views.coverage()
    }

    #[test]
    fn the_weakest_batch_decides() {
        use answers::Coverage::{CompleteAtWatermarks, PartialHints, Unavailable as Nothing};
        let whole = part(5, Standing::Complete, 3);
        let none = part(5, Standing::NoneExpected, 0);
        assert_eq!(of(&[&[(0, whole), (1, none)], &[(0, whole)]]), CompleteAtWatermarks);
        let partial = part(5, Standing::Partial, 3);
        assert_eq!(of(&[&[(0, partial)], &[(0, whole)]]), PartialHints);
        assert_eq!(of(&[&[(0, whole), (1, part(6, Standing::Complete, 3))]]), PartialHints);
        let invalid = part(5, Standing::Unavailable(Unavailable::MembershipInvalid), 3);
        assert_eq!(of(&[&[(0, invalid)], &[(0, whole)]]), Nothing);
        // One core that expects streams and has none leaves the hints of the other.
        let bare = part(5, Standing::NoneInstalled, 0);
        assert_eq!(of(&[&[(0, whole), (1, bare)]]), PartialHints);
        assert_eq!(of(&[&[(0, bare), (1, none)]]), Nothing);
    }

    #[test]
    fn a_view_that_changes_between_batches_proves_nothing() {
        let (before, after) = (part(5, Standing::Complete, 3), part(5, Standing::Complete, 4));
        assert_eq!(of(&[&[(0, before)], &[(0, after)]]), answers::Coverage::PartialHints);
        let mut views = Views::new(Some(ASKING));
        views.add(ShardIndex(0), before);
        views.add(ShardIndex(1), after);
        views.end_batch();
        assert_eq!((views.coverage(), views.generation()), (answers::Coverage::CompleteAtWatermarks, 7));
    }

    #[test]
    fn a_standalone_node_is_complete() {
        let mut views = Views::new(None);
        views.end_batch();
        assert_eq!((views.coverage(), views.generation()), (answers::Coverage::CompleteAtWatermarks, 0));
        assert_eq!((views.hint_age_ms(), views.left_out()), (0, 0));
    }

    #[test]
    fn what_is_left_out_is_of_all_cores_and_of_the_worst_batch() {
        let seen = |age: Duration, expected, left_out| {
            let mut part = part(5, Standing::Partial, 3);
            part.coverage = CoreCoverage { oldest_age: age, expected, left_out, ..part.coverage };
            part
        };
        let told = |batches: &[&[(u16, PeersPart)]]| {
            let mut views = Views::new(Some(ASKING));
            for batch in batches {
                batch.iter().for_each(|&(core, part)| views.add(ShardIndex(core), part));
                views.end_batch();
            }
            (views.hint_age_ms(), views.left_out())
        };
        let ms = Duration::from_millis;
        assert_eq!(told(&[&[(0, seen(ms(70), 3, 1)), (1, seen(ms(900), 3, 2))]]), (900, 3));
        // What a later batch finds better does not make an earlier one better.
        assert_eq!(told(&[&[(0, seen(ms(70), 3, 2))], &[(0, seen(ms(90), 3, 0))]]), (90, 2));
        assert_eq!(told(&[&[(0, seen(ms(900), 3, 2))], &[(0, seen(ms(10), 3, 0))]]), (900, 2));
        // A core that is asked in one batch only counts in those after it.
        assert_eq!(told(&[&[(0, seen(ms(5), 3, 1))], &[(1, seen(ms(6), 3, 1))]]), (6, 2));
        assert_eq!(told(&[&[(0, seen(Duration::from_nanos(1), 1, 0))]]), (1, 0), "rounded up");
        // Where nothing may be said no view was asked, and everything is left out.
        let mut fenced = seen(ms(900), 4, 1);
        fenced.coverage = fenced.coverage.unavailable(Unavailable::LeaseExpired);
        assert_eq!(told(&[&[(0, fenced), (1, seen(ms(6), 3, 1))]]), (6, 5));
        let ages = seen(Duration::MAX, u32::MAX, u32::MAX);
        assert_eq!(told(&[&[(0, ages), (1, ages)]]), (u32::MAX, u32::MAX), "as much as can be said");
    }
}
