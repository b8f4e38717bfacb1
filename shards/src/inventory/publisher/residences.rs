//! What a snapshot scans: the residences of a shard in the order of (key, medium).

use orbitkv_wire::identity::{BlockHash, GroupId, Medium, Sequence};

use crate::journal::Journal;
use crate::key::{NamespaceId, StateKey};
use crate::namespaces::Namespaces;
use crate::residents::{Dram, Entry, Residents};

/// One stay of one block on one medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residence {
    /// The block.
    pub key: StateKey,
    /// Where it is.
    pub medium: Medium,
    /// Payload bytes.
    pub bytes: u32,
    /// Journal sequence of the put that began it.
    pub sequence: Sequence,
}

/// A table of residences with a monotone cursor: a scan may be interrupted anywhere and go on while the
/// table changes.
pub trait Residences {
    /// The residences after `cursor`, ascending by (key, medium); all of them without one.
    fn after(&self, cursor: Option<(StateKey, Medium)>) -> impl Iterator<Item = Residence>;

    /// At least as many as there are.
    fn len_max(&self) -> u64;
}

/// What a publisher reads of its shard.
pub struct Source<'a, R> {
    /// The history.
    pub journal: &'a Journal,
    /// What is resident.
    pub residences: &'a R,
    /// The names of the namespaces, with how many residences each has.
    pub namespaces: &'a Namespaces,
}

impl Residences for Residents {
    fn after(&self, cursor: Option<(StateKey, Medium)>) -> impl Iterator<Item = Residence> {
        const FIRST: StateKey =
            StateKey { namespace: NamespaceId(0), group: GroupId(0), block: BlockHash([0; 32]) };
        let entries = self.scan_from(&cursor.map_or(FIRST, |(key, _)| key));
        let residences = entries.flat_map(|(_, entry)| sides(entry).into_iter().flatten());
        residences
            .skip_while(move |residence| cursor.is_some_and(|at| (residence.key, residence.medium) <= at))
    }

    fn len_max(&self) -> u64 {
        2 * self.len() as u64
    }
}

/// The residences of one block, in the order of the media.
fn sides(entry: &Entry) -> [Option<Residence>; 2] {
    let residence = |medium, sequence| {
        let bytes = u32::try_from(entry.bytes).expect("a block is smaller than 4 GiB");
        Residence { key: entry.key, medium, bytes, sequence }
    };
    let dram = match entry.dram {
        Dram::Resident { sequence, .. } => Some(residence(Medium::Dram, sequence)),
        Dram::Absent | Dram::Filling(_) => None,
    };
    [dram, entry.ssd.residence().map(|(_, sequence)| residence(Medium::Ssd, sequence))]
}
