//! What a Query may say of blocks that it does not show: coverage over all cores and all batches of it
//! (chapter 2.8).

use std::collections::BTreeMap;

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
}

impl Views {
    /// Nothing asked yet.
    #[must_use]
    pub fn new(asking: Option<Basis>) -> Views {
        Views { asking, parts: BTreeMap::new(), weakest: Coverage::CompleteAtWatermarks }
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
        self.weakest = self.weakest.min(merge(asking, &parts).coverage);
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

    /// A number that differs when any view that was asked does; 0 on a standalone node.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.parts.values().map(|part| part.view_generation).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use orbitkv_shards::coverage::{CoreCoverage, Standing, Unavailable};

    use super::*;

    const ASKING: Basis = Basis { revision: 5, scope_generation: 1 };

    fn part(revision: u64, standing: Standing, view_generation: u64) -> PeersPart {
        let oldest_age = Duration::ZERO;
        let coverage = CoreCoverage { revision, scope_generation: 1, raised: true, standing, oldest_age };
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
    }
}
