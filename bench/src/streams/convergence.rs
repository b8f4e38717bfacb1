//! Whether all observers have exactly what all owners have, key by key, and may bring it.

use orbitkv_native::clock::monotonic_ns;
use serde::Serialize;

use super::owners::{Owners, await_applied};
use crate::Failure;

/// Blocks that each observer brings from the owner after it.
const BROUGHT: u64 = 8;

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Convergence {
    /// Rows that observers have of owners.
    pub rows: u64,
    /// Rows that they should have: the live keys of each owner at every other node.
    pub rows_expected: u64,
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
        self.keys_missing + self.rows.abs_diff(self.rows_expected) + self.blocks_asked - self.blocks_brought
    }
}

/// Waits until all streams stand still, then compares. Rows are counted by owner, and each live key is asked for: as
/// many rows as live keys, all of which are shown, leave room for no other.
///
/// # Errors
/// If a node does not answer, or streams do not come to stand at their heads, or a block has a wrong stamp.
pub fn check(owners: &mut Owners) -> Result<Convergence, Failure> {
    let began_ns = monotonic_ns();
    await_applied(owners)?;
    let settled_us = (monotonic_ns() - began_ns) / 1_000;
    let mut found = Convergence { settled_us, ..Convergence::default() };
    let count = owners.len();
    for observer in 0..count {
        for stream in owners.streams(observer)?.owners {
            let owner = owners.identities().iter().position(|other| other.node_id == stream.node_id);
            let expected = owner.map_or(0, |owner| owners.keys(owner).len());
            // Of each stream, so that too many of one do not make up for too few of another.
            found.rows_expected += expected;
            found.rows += expected + expected.abs_diff(u64::from(stream.rows));
        }
        for owner in (0..count).filter(|owner| *owner != observer) {
            let keys = owners.keys(owner);
            found.keys_missing += owners.owner(observer).missing(&keys)?;
        }
    }
    // At last, because what was brought is one more residence of whoever brought it.
    for observer in 0..count {
        let keys = owners.keys((observer + 1) % count);
        found.blocks_asked += BROUGHT;
        found.blocks_brought += owners.owner(observer).bring(&keys, BROUGHT)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_fault_counts() {
        let right = Convergence {
            rows: 9,
            rows_expected: 9,
            blocks_asked: 2,
            blocks_brought: 2,
            ..Convergence::default()
        };
        assert_eq!(right.faults(), 0);
        for wrong in [
            Convergence { rows: 10, ..right },
            Convergence { rows: 8, ..right },
            Convergence { keys_missing: 1, ..right },
            Convergence { blocks_brought: 1, ..right },
        ] {
            assert_eq!(wrong.faults(), 1, "{wrong:?}");
        }
    }
}
