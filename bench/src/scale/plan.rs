//! Which clusters are measured: a base, and from it one dimension at a time; and which of them real processes carry. Fixed
//! before anything runs.

use serde::{Deserialize, Serialize};

use crate::profile::FormalProfile;
use crate::profile::Label;
use crate::streams::background::Rhythm;
use crate::streams::owner::Mix;

/// Changes of a burst: so many that half and nine tenths of them are whole rounds of repeated blocks.
const BURST_CHANGES: u64 = 160;
/// Blocks that are saved and dropped over and over.
const REPEATED_BLOCKS: u64 = 8;
/// How many bursts a bursty owner makes as one, and how much longer it rests.
const BURSTY: u64 = 6;
/// Rows of all indexes together that one core brings in and compares in minutes. More are carried by the simulator.
const ROWS_PER_CORE_MAX: u64 = 8_000_000;
/// The same where it is only to be seen that everything runs, the simulator, too.
const ROWS_PER_CORE_MAX_CI: u64 = 3_000;

/// When changes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// In small bursts, evenly.
    Constant,
    /// As many, in large bursts with longer rests.
    Bursty,
}

/// Whether a cell is one that nodes are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Envelope {
    /// It is.
    Within,
    /// The index has no room for what the others have.
    Index,
    /// The receive budget is below what a node takes.
    Receive,
    /// The arena is larger than the machine.
    Memory,
}

/// One cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Its name, also of its file.
    pub name: String,
    /// Nodes, all of them owners and observers.
    pub managers: u16,
    /// Residences of each owner.
    pub residences: u64,
    /// When changes are made.
    pub load: Load,
    /// Changes in a hundred that are of the same few keys.
    pub repeated_percent: u64,
    /// Namespaces of each owner.
    pub namespaces: usize,
    /// Whether it is one that nodes are made for.
    pub envelope: Envelope,
}

/// Who carries a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// Nodes and an etcd.
    Processes,
    /// The deterministic simulator, in one process under modelled time.
    Simulator,
}

/// Sizes of a campaign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the profile.
    pub profile: String,
    /// Changes a second that all owners of a cell are to make together: as many as the best known system made.
    pub changes_per_second: u64,
    /// How long they do so.
    pub paced_seconds: u64,
    /// How long they change as fast as they can.
    pub unpaced_seconds: u64,
    /// Rows of all indexes together that processes carry for each core of the machine.
    pub rows_per_core_max: u64,
    /// The cells, in the order they are measured.
    pub cells: Vec<Cell>,
}

/// What the cells of a profile lie around.
struct Dimensions {
    managers: &'static [u16],
    residences: &'static [u64],
    /// The base's.
    base: (u16, u64),
    repeated: &'static [u64],
    namespaces: &'static [usize],
    /// Owners and residences with which an index of 1 MiB, the smallest, is too small.
    beyond_index: (u16, u64),
    /// What may be more than real processes can carry here.
    corners: &'static [(u16, u64)],
}

const WHOLE: Dimensions = Dimensions {
    managers: &[1, 4, 16, 32, 64],
    residences: &[512, 4_096, 32_768],
    base: (16, 512),
    repeated: &[0, 50, 90],
    namespaces: &[1, 4, 16],
    beyond_index: (4, 32_768),
    corners: &[(64, 4_096)],
};

/// As above, with the corner of both largest sizes, which takes the simulator a quarter of an hour.
const FORMAL: Dimensions = Dimensions { corners: &[(64, 4_096), (64, 32_768)], ..WHOLE };

const SMALL: Dimensions = Dimensions {
    managers: &[1, 2, 4],
    residences: &[128, 1_024],
    base: (2, 128),
    repeated: &[0, 50, 90],
    namespaces: &[1, 4],
    beyond_index: (2, 24_576),
    corners: &[(12, 256)],
};

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: FormalProfile) -> Plan {
        let (changes_per_second, paced_seconds, unpaced_seconds, rows_per_core_max, dimensions) =
            match profile {
                FormalProfile::Ci => (1_000, 2, 1, ROWS_PER_CORE_MAX_CI, SMALL),
                FormalProfile::Dense => (4_083, 15, 5, ROWS_PER_CORE_MAX, WHOLE),
                FormalProfile::Formal => (4_083, 60, 10, ROWS_PER_CORE_MAX, FORMAL),
            };
        Plan {
            profile: Label::from(profile).name.to_owned(),
            changes_per_second,
            paced_seconds,
            unpaced_seconds,
            rows_per_core_max,
            cells: dimensions.cells(),
        }
    }
}

impl Dimensions {
    fn cells(&self) -> Vec<Cell> {
        let base = Cell {
            name: "base".to_owned(),
            managers: self.base.0,
            residences: self.base.1,
            load: Load::Constant,
            repeated_percent: 0,
            namespaces: 1,
            envelope: Envelope::Within,
        };
        let mut cells = vec![base.clone()];
        let mut add = |name: String, change: &dyn Fn(&mut Cell)| {
            let mut cell = Cell { name, ..base.clone() };
            change(&mut cell);
            // A value that is the base's own is measured as the base.
            if cell != (Cell { name: cell.name.clone(), ..base.clone() }) {
                cells.push(cell);
            }
        };
        for &managers in self.managers {
            add(format!("managers-{managers}"), &|cell| cell.managers = managers);
        }
        for &residences in self.residences {
            add(format!("residences-{residences}"), &|cell| cell.residences = residences);
        }
        add("bursty".to_owned(), &|cell| cell.load = Load::Bursty);
        for &percent in self.repeated {
            add(format!("repeated-{percent}"), &|cell| cell.repeated_percent = percent);
        }
        for &namespaces in self.namespaces {
            add(format!("namespaces-{namespaces}"), &|cell| cell.namespaces = namespaces);
        }
        for &(managers, residences) in self.corners {
            add(format!("corner-{managers}x{residences}"), &|cell| {
                (cell.managers, cell.residences) = (managers, residences);
            });
        }
        let (managers, residences) = self.beyond_index;
        add("beyond-index".to_owned(), &|cell| {
            (cell.managers, cell.residences, cell.envelope) = (managers, residences, Envelope::Index);
        });
        add("beyond-receive".to_owned(), &|cell| (cell.managers, cell.envelope) = (2, Envelope::Receive));
        add("beyond-memory".to_owned(), &|cell| (cell.managers, cell.envelope) = (2, Envelope::Memory));
        cells
    }
}

impl Cell {
    /// Rows of all nodes' indexes together.
    pub fn rows(&self) -> u64 {
        let managers = u64::from(self.managers);
        managers * (managers - 1) * self.residences
    }

    /// Who carries it on a machine whose cores bring in so many rows, if the nodes fit its memory or if they do not.
    pub fn carrier(&self, rows_max: u64, fits_memory: bool) -> Carrier {
        let few_enough = self.rows() <= rows_max;
        match self.envelope == Envelope::Within && !(fits_memory && few_enough) {
            true => Carrier::Simulator,
            false => Carrier::Processes,
        }
    }

    /// What a burst is made of.
    pub fn mix(&self) -> Mix {
        let repeated = BURST_CHANGES * self.repeated_percent / 100;
        let times = if self.load == Load::Bursty { BURSTY } else { 1 };
        let rounds = repeated / (2 * REPEATED_BLOCKS);
        Mix {
            own: (BURST_CHANGES - repeated) * times,
            repeated_blocks: REPEATED_BLOCKS,
            rounds: rounds * times,
        }
    }

    /// When each owner makes its bursts, so that all together make that many changes a second.
    pub fn rhythm(&self, changes_per_second: u64) -> Rhythm {
        Rhythm::of(self.mix(), usize::from(self.managers), changes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(plan: &Plan, name: &str) -> Cell {
        plan.cells.iter().find(|cell| cell.name == name).expect("a cell of that name").clone()
    }

    #[test]
    fn the_matrix_is_one_dimension_at_a_time_around_its_base() {
        let plan = Plan::of(FormalProfile::Formal);
        let names: Vec<&str> = plan.cells.iter().map(|cell| cell.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "base",
                "managers-1",
                "managers-4",
                "managers-32",
                "managers-64",
                "residences-4096",
                "residences-32768",
                "bursty",
                "repeated-50",
                "repeated-90",
                "namespaces-4",
                "namespaces-16",
                "corner-64x4096",
                "corner-64x32768",
                "beyond-index",
                "beyond-receive",
                "beyond-memory",
            ]
        );
        let base = &plan.cells[0];
        let differences = |cell: &Cell| {
            [
                cell.managers != base.managers,
                cell.residences != base.residences,
                cell.load != base.load,
                cell.repeated_percent != base.repeated_percent,
                cell.namespaces != base.namespaces,
            ]
            .into_iter()
            .filter(|differs| *differs)
            .count()
        };
        assert!(plan.cells[1..12].iter().all(|cell| differences(cell) == 1));
        assert!(plan.cells[..14].iter().all(|cell| cell.envelope == Envelope::Within));
        assert!(plan.cells[14..].iter().all(|cell| cell.envelope != Envelope::Within));
        assert_eq!((base.managers, base.residences), (16, 512));
        assert!(!Plan::of(FormalProfile::Dense).cells.iter().any(|cell| cell.name == "corner-64x32768"));
    }

    #[test]
    fn repeated_changes_are_the_share_that_is_asked_for() {
        let plan = Plan::of(FormalProfile::Formal);
        for (name, own, rounds) in
            [("base", 160, 0), ("repeated-50", 80, 5), ("repeated-90", 16, 9), ("bursty", 960, 0)]
        {
            let mix = cell(&plan, name).mix();
            assert_eq!((mix.own, mix.rounds), (own, rounds), "{name}");
            let (all, repeated) = (mix.changes(), 16 * mix.rounds);
            assert_eq!(repeated * 100 / all, cell(&plan, name).repeated_percent, "{name}");
        }
        // Both make as many changes a second; the bursty one in a sixth of the bursts.
        let [even, bursty] = ["base", "bursty"].map(|name| cell(&plan, name).rhythm(4_083));
        assert_eq!(even.period_ns, 160 * 16 * 1_000_000_000 / 4_083);
        assert!(bursty.period_ns.abs_diff(6 * even.period_ns) <= 6);
    }

    #[test]
    fn what_two_cores_or_memory_cannot_hold_is_simulated() {
        let plan = Plan::of(FormalProfile::Formal);
        // 16 × 15 × 32,768 rows are 7.9 M, 64 × 63 × 4,096 are 16.5 M.
        assert_eq!(cell(&plan, "residences-32768").rows(), 7_864_320);
        assert_eq!(cell(&plan, "corner-64x4096").rows(), 16_515_072);
        let carrier = |name, cores, fits| cell(&plan, name).carrier(cores * plan.rows_per_core_max, fits);
        for name in ["base", "managers-64", "residences-32768"] {
            assert_eq!(carrier(name, 2, true), Carrier::Processes, "{name}");
            assert_eq!(carrier(name, 2, false), Carrier::Simulator, "{name}");
        }
        assert_eq!(carrier("corner-64x4096", 2, true), Carrier::Simulator);
        assert_eq!(carrier("corner-64x4096", 3, true), Carrier::Processes);
        assert_eq!(carrier("corner-64x32768", 16, true), Carrier::Simulator);
        let ci = Plan::of(FormalProfile::Ci);
        let simulated: Vec<&str> = (ci.cells.iter())
            .filter(|cell| cell.carrier(2 * ci.rows_per_core_max, true) == Carrier::Simulator)
            .map(|cell| cell.name.as_str())
            .collect();
        assert_eq!(
            simulated,
            ["corner-12x256"],
            "the simulator is seen to run, and nothing else is left to it"
        );
        for name in ["beyond-index", "beyond-receive", "beyond-memory"] {
            assert_eq!(
                carrier(name, 1, false),
                Carrier::Processes,
                "{name}: its refusal is what is measured"
            );
        }
    }

    #[test]
    fn an_index_of_the_least_size_has_no_room_beyond_its_envelope() {
        for profile in [FormalProfile::Ci, FormalProfile::Formal] {
            let beyond = cell(&Plan::of(profile), "beyond-index");
            let rows = (u64::from(beyond.managers) - 1) * beyond.residences;
            // 60 bytes a row, as the guide says.
            assert!(rows * 60 > 1 << 20, "{rows}");
        }
    }
}
