//! Whether all observers have exactly what all owners have, key by key, and may bring it.

use std::ops::AddAssign;
use std::time::Duration;

use orbitkv::control::owners::Owner as Stream;
use orbitkv::control::signals::StopSignals;
use orbitkv_native::clock::monotonic_ns;
use serde::{Deserialize, Serialize};

use super::keys::Keys;
use super::owner::Owner;
use super::owners::{Holding, Owners, await_applied};
use super::pause;
use crate::Failure;

/// Blocks that each observer brings from the owner after it.
const BROUGHT: u64 = 8;

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Convergence {
    /// Rows that observers have of owners.
    pub rows: u64,
    /// Rows of an owner beyond its live keys, or too few for them, over all observers.
    pub rows_wrong: u64,
    /// Live keys that an observer does not show at a peer.
    pub keys_missing: u64,
    /// Blocks that observers brought from their owners, their stamps compared.
    pub blocks_brought: u64,
    /// Blocks that were asked for.
    pub blocks_asked: u64,
    /// How long it took until all streams stood at the heads of their journals, in microseconds.
    pub settled_us: u64,
}

impl Convergence {
    /// What is wrong: keys not shown, rows too many or too few, blocks that did not come.
    pub fn faults(&self) -> u64 {
        self.keys_missing + self.rows_wrong + self.blocks_asked - self.blocks_brought
    }
}

/// Waits until all streams stand still, then compares. Rows are counted by owner, and each live key is asked for: as
/// many rows as live keys, all of which are shown, leave room for no other.
///
/// # Errors
/// If a signal comes, a node does not answer, or streams do not come to stand at their heads, or a block has a wrong stamp.
pub fn check(owners: &mut Owners, signals: &StopSignals) -> Result<Convergence, Failure> {
    let began_ns = monotonic_ns();
    await_applied(owners, signals)?;
    let settled_us = (monotonic_ns() - began_ns) / 1_000;
    let mut found = Convergence { settled_us, ..Convergence::default() };
    let count = owners.len();
    for observer in 0..count {
        pause(Duration::ZERO, signals)?;
        let others = (0..count).filter(|owner| *owner != observer);
        let holdings: Vec<_> = others.map(|owner| owners.holding(owner)).collect();
        let streams = owners.streams(observer)?.owners;
        found += compare(owners.owner(observer), &streams, &holdings)?;
    }
    // At last, because what was brought is one more residence of whoever brought it.
    for observer in 0..count {
        let keys = owners.keys((observer + 1) % count);
        found += bring(owners.owner(observer), &keys)?;
    }
    Ok(found)
}

/// What one observer has of those that own blocks, against what they have.
///
/// # Errors
/// If its node does not answer.
pub fn compare(
    observer: &mut Owner,
    streams: &[Stream],
    holdings: &[Holding],
) -> Result<Convergence, Failure> {
    let expected: Vec<_> =
        holdings.iter().map(|holding| (holding.node_id.as_str(), holding.keys.len())).collect();
    let (rows, rows_wrong) = rows(&expected, streams);
    let mut keys_missing = 0;
    for holding in holdings {
        keys_missing += observer.missing(&holding.keys)?;
    }
    Ok(Convergence { rows, rows_wrong, keys_missing, ..Convergence::default() })
}

/// Whether one observer may bring what it is told of.
///
/// # Errors
/// If a block has a wrong stamp, or its node does not answer.
pub fn bring(observer: &mut Owner, keys: &Keys) -> Result<Convergence, Failure> {
    let blocks_asked = BROUGHT.min(keys.len());
    Ok(Convergence { blocks_asked, blocks_brought: observer.bring(keys, BROUGHT)?, ..Convergence::default() })
}

impl AddAssign for Convergence {
    fn add_assign(&mut self, other: Convergence) {
        self.rows += other.rows;
        self.rows_wrong += other.rows_wrong;
        self.keys_missing += other.keys_missing;
        self.blocks_brought += other.blocks_brought;
        self.blocks_asked += other.blocks_asked;
        self.settled_us = self.settled_us.max(other.settled_us);
    }
}

/// Rows that an observer has of all owners, and those that are too many or too few of an owner: of each apart, so that
/// too many of one do not make up for too few of another.
fn rows(expected: &[(&str, u64)], streams: &[Stream]) -> (u64, u64) {
    let rows_of = |name: &str| -> u64 {
        let of_owner = streams.iter().filter(|stream| stream.node_id == name);
        of_owner.map(|stream| u64::from(stream.rows)).sum()
    };
    let all: u64 = streams.iter().map(|stream| u64::from(stream.rows)).sum();
    let known: u64 = expected.iter().map(|(name, _)| rows_of(name)).sum();
    let wrong: u64 = expected.iter().map(|(name, keys)| rows_of(name).abs_diff(*keys)).sum();
    (all, wrong + all - known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::splitmix64;

    fn stream(name: &str, rows: u32) -> Stream {
        Stream { node_id: name.to_owned(), rows, ..Stream::default() }
    }

    #[test]
    fn rows_are_held_against_the_keys_of_their_owner() {
        let expected = [("a", 3), ("b", 5)];
        let found = |streams: &[(&str, u32)]| {
            rows(&expected, &streams.iter().map(|(name, rows)| stream(name, *rows)).collect::<Vec<_>>())
        };
        assert_eq!(found(&[("a", 3), ("b", 5)]), (8, 0));
        assert_eq!(found(&[("b", 5), ("a", 1), ("a", 2)]), (8, 0), "two streams of one owner");
        assert_eq!(found(&[("a", 4), ("b", 4)]), (8, 2), "one too many does not make up for one too few");
        assert_eq!(found(&[("a", 3)]), (3, 5), "an owner that is not followed at all");
        assert_eq!(found(&[("a", 3), ("b", 5), ("c", 7)]), (15, 7), "rows of nobody");
        assert_eq!(found(&[]), (0, 8));
    }

    /// Each row by itself, in two sets, instead of counts.
    #[test]
    fn counts_agree_with_sets_of_rows() {
        let mut state = 9;
        for _ in 0..200 {
            let mut lives = std::collections::BTreeSet::new();
            let mut shown = std::collections::BTreeSet::new();
            let mut expected = Vec::new();
            let mut streams = Vec::new();
            for name in ["a", "b", "c"] {
                let (keys, rows) = (splitmix64(&mut state) % 5, splitmix64(&mut state) % 5);
                lives.extend((0..keys).map(|number| (name, number)));
                shown.extend((0..rows).map(|number| (name, number)));
                expected.push((name, keys));
                streams.push(stream(name, rows as u32));
            }
            let wrong = lives.symmetric_difference(&shown).count() as u64;
            assert_eq!(rows(&expected, &streams), (shown.len() as u64, wrong), "{expected:?} {streams:?}");
        }
    }

    #[test]
    fn every_kind_of_fault_counts() {
        let right = Convergence { rows: 9, blocks_asked: 2, blocks_brought: 2, ..Convergence::default() };
        assert_eq!(right.faults(), 0);
        for wrong in [
            Convergence { rows_wrong: 1, ..right },
            Convergence { keys_missing: 1, ..right },
            Convergence { blocks_brought: 1, ..right },
        ] {
            assert_eq!(wrong.faults(), 1, "{wrong:?}");
        }
    }
}
