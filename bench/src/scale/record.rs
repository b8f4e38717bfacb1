//! What is kept of a cell. Each cell is a file; those that do not count lie beside those that do.

use std::collections::BTreeMap;

use orbitkv::cli::table::UNKNOWN;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::{Carrier, Cell};
use crate::Failure;
use crate::campaign::Shelf;
use crate::streams::convergence::Convergence;

/// What kind of file it is.
pub const CELL: &str = "scale-cell";

/// How a cell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Real processes were measured.
    Measured,
    /// The simulator came to its end without a violation. Its times are modelled.
    Simulated,
    /// What is beyond the envelope was refused, within all bounds.
    Refused,
    /// It was measured, and part of it says nothing.
    Invalid,
    /// It was not made to its end, or nothing was refused where something had to be.
    Failed,
}

impl Outcome {
    /// Whether the cell need not be made again.
    pub fn counts(self) -> bool {
        matches!(self, Outcome::Measured | Outcome::Simulated | Outcome::Refused)
    }
}

/// How soon changes were seen, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Visibility {
    /// Half of all sights.
    pub p50_ms: f64,
    /// Ninety-nine in a hundred.
    pub p99_ms: f64,
    /// The slowest.
    pub max_ms: f64,
    /// How many there are.
    pub count: u64,
}

/// What real processes came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Changes a second that were to be made.
    pub offered_per_second: f64,
    /// Changes a second that were made.
    pub reached_per_second: f64,
    /// Changes a second that were made, and seen everywhere, as fast as all cores let them.
    pub unpaced_per_second: f64,
    /// How soon those at the offered rate were seen; none if there is nobody to see them, or it is not known.
    pub visibility: Option<Visibility>,
    /// By how much the latest burst began too late, in milliseconds.
    pub late_ms_max: f64,
    /// Cores that all nodes used at the offered rate.
    pub node_cores: f64,
    /// Cores that this program and its engines used.
    pub bench_cores: f64,
    /// Resident bytes of a node: the mean.
    pub rss_bytes_mean: u64,
    /// The largest ever of any node.
    pub rss_bytes_peak: u64,
    /// What a node has said it would take.
    pub bill_bytes: u64,
    /// Bytes of inventory that all nodes sent at the offered rate, by kind.
    pub bytes_by_kind: BTreeMap<String, u64>,
    /// Largest queue of frames that any node ever had, in bytes.
    pub queue_bytes_peak: u64,
    /// Sessions that were up before, those that are to be up, and those that were lost meanwhile.
    pub sessions: [u64; 3],
    /// Key by key, at the end.
    pub convergence: Convergence,
    /// Writes to etcd while changes were made.
    pub etcd_writes: u64,
}

/// What the simulator came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Simulated {
    /// Events.
    pub events: u64,
    /// Time that passed in its world, in microseconds.
    pub virtual_us: u64,
    /// Time that it took, in microseconds.
    pub real_us: u64,
    /// Frames that sources sent.
    pub frames: u64,
    /// Bytes of frames, both ways.
    pub frame_bytes: u64,
    /// Modelled visibility: half of all sights, in microseconds.
    pub visibility_p50_us: u64,
    /// Ninety-nine in a hundred.
    pub visibility_p99_us: u64,
}

/// How what is beyond the envelope was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// In the node's words, or in figures.
    pub words: String,
    /// Owner streams that found no room, over all nodes.
    pub misfits: u64,
    /// Streams that are expected.
    pub streams: u64,
    /// Nodes that said that they knew all while they did not.
    pub false_complete: u64,
    /// Own blocks that nodes no longer had.
    pub lost: u64,
}

/// One cell, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`CELL`].
    pub kind: String,
    /// Which attempt it was, from 1.
    pub attempt: usize,
    /// How it ended.
    pub outcome: Outcome,
    /// Who carried it.
    pub carrier: Carrier,
    /// Why it does not count, or why the simulator carried it.
    pub why: Option<String>,
    /// The cell.
    pub cell: Cell,
    /// Seed of keys, payload and moments.
    pub seed: u64,
    /// Commit of the build.
    pub commit: String,
    /// On what.
    pub machine: String,
    /// When it began, in seconds since 1970.
    pub began_unix_s: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// What processes came to.
    pub figures: Option<Figures>,
    /// What the simulator came to.
    pub simulated: Option<Simulated>,
    /// How it was refused.
    pub refusal: Option<Refusal>,
    /// What else used the machine.
    pub machine_load: Value,
}

impl Record {
    /// The cells of its row in a table, after its name.
    pub fn row(&self) -> [String; 12] {
        let unknown = || UNKNOWN.to_owned();
        let of = |figure: &dyn Fn(&Figures) -> String| self.figures.as_ref().map_or_else(unknown, figure);
        let seen = |ms: fn(&Visibility) -> f64, simulated: fn(&Simulated) -> u64| {
            let measured = self.figures.as_ref().and_then(|figures| figures.visibility.as_ref()).map(ms);
            let modelled = self.simulated.as_ref().map(|run| simulated(run) as f64 / 1e3);
            measured.or(modelled).map_or_else(unknown, |ms| format!("{ms:.2}"))
        };
        let mebibytes = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
        let outcome = match self.outcome {
            Outcome::Measured => "measured",
            Outcome::Simulated => "simulated",
            Outcome::Refused => "refused",
            Outcome::Invalid => "INVALID",
            Outcome::Failed => "FAILED",
        };
        let bytes = match (&self.figures, &self.simulated) {
            (Some(figures), _) => mebibytes(figures.bytes_by_kind.values().sum()),
            (None, Some(run)) => mebibytes(run.frame_bytes),
            (None, None) => unknown(),
        };
        [
            outcome.to_owned(),
            self.cell.managers.to_string(),
            self.cell.residences.to_string(),
            of(&|figures| format!("{:.0}", figures.reached_per_second)),
            of(&|figures| format!("{:.0}", figures.unpaced_per_second)),
            seen(|visibility| visibility.p50_ms, |run| run.visibility_p50_us),
            seen(|visibility| visibility.p99_ms, |run| run.visibility_p99_us),
            of(&|figures| format!("{:.2}", figures.node_cores)),
            of(&|figures| mebibytes(figures.rss_bytes_mean)),
            bytes,
            of(&|figures| figures.convergence.faults().to_string()),
            of(&|figures| figures.etcd_writes.to_string()),
        ]
    }
}

/// Keeps a cell, whatever it says.
///
/// # Errors
/// If the disk does not take it.
pub fn put(shelf: &Shelf, record: &Record) -> Result<(), Failure> {
    let failed = (!record.outcome.counts()).then_some(record.attempt);
    shelf.put(&record.cell.name, failed, record)
}

/// The record of a cell that counts, if it is there.
///
/// # Errors
/// If a file is there and cannot be understood.
pub fn take(shelf: &Shelf, cell: &Cell) -> Result<Option<Record>, Failure> {
    let record: Option<Record> = shelf.take(&cell.name)?;
    Ok(record.filter(|record| record.outcome.counts() && record.cell == *cell))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::profile::FormalProfile;
    use crate::scale::plan::Plan;

    /// A record of a cell with made-up figures.
    pub fn record(cell: &Cell, outcome: Outcome) -> Record {
        let simulated = outcome == Outcome::Simulated;
        let figures = Figures {
            offered_per_second: 4_083.0,
            reached_per_second: 4_100.4,
            unpaced_per_second: 50_000.0,
            visibility: Some(Visibility { p50_ms: 2.5, p99_ms: 4.25, max_ms: 9.0, count: 10 }),
            late_ms_max: 1.0,
            node_cores: 0.5,
            bench_cores: 0.1,
            rss_bytes_mean: 50 << 20,
            rss_bytes_peak: 60 << 20,
            bill_bytes: 100 << 20,
            bytes_by_kind: BTreeMap::from([("changes (deltas)".to_owned(), 3 << 20)]),
            queue_bytes_peak: 1,
            sessions: [2, 2, 0],
            convergence: Convergence::default(),
            etcd_writes: 0,
        };
        let run = Simulated {
            visibility_p50_us: 2_300,
            visibility_p99_us: 4_100,
            frame_bytes: 7 << 20,
            ..Simulated::default()
        };
        Record {
            kind: CELL.to_owned(),
            attempt: 1,
            outcome,
            carrier: if simulated { Carrier::Simulator } else { Carrier::Processes },
            why: None,
            cell: cell.clone(),
            seed: 1,
            commit: "c".to_owned(),
            machine: "m".to_owned(),
            began_unix_s: 0,
            seconds: 1.0,
            figures: matches!(outcome, Outcome::Measured | Outcome::Invalid).then_some(figures),
            simulated: simulated.then_some(run),
            refusal: (outcome == Outcome::Refused).then(Refusal::default),
            machine_load: Value::Null,
        }
    }

    #[test]
    fn a_cell_is_taken_from_its_file_only_if_it_counts_and_is_the_same() {
        let directory = tempfile::tempdir().expect("a directory");
        let shelf = Shelf::new(directory.path().to_owned());
        let cells = Plan::of(FormalProfile::Ci).cells;
        assert_eq!(take(&shelf, &cells[0]).expect("nothing is there"), None);
        for outcome in [Outcome::Invalid, Outcome::Failed] {
            let attempt = shelf.failed(&cells[0].name).len() + 1;
            put(&shelf, &Record { attempt, ..record(&cells[0], outcome) }).expect("a disk");
            assert_eq!(take(&shelf, &cells[0]).expect("it is kept elsewhere"), None, "{outcome:?}");
        }
        let failed = |cell: &Cell| shelf.failed(&cell.name).len();
        assert_eq!((failed(&cells[0]), failed(&cells[1])), (2, 0));
        for (cell, outcome) in cells.iter().zip([Outcome::Measured, Outcome::Simulated, Outcome::Refused]) {
            let kept = record(cell, outcome);
            put(&shelf, &kept).expect("a disk");
            assert_eq!(take(&shelf, cell).expect("it can be read"), Some(kept));
        }
        let other = Cell { residences: 77, ..cells[0].clone() };
        assert_eq!(take(&shelf, &other).expect("it can be read"), None, "a file of another cell");
        std::fs::write(directory.path().join("base.json"), "{").expect("a disk");
        assert!(take(&shelf, &cells[0]).is_err(), "half a file is no answer");
    }

    #[test]
    fn a_row_says_who_carried_the_cell() {
        let cells = Plan::of(FormalProfile::Ci).cells;
        let row = |outcome| record(&cells[0], outcome).row();
        let measured = row(Outcome::Measured);
        assert_eq!(
            measured,
            ["measured", "2", "128", "4100", "50000", "2.50", "4.25", "0.50", "50", "3", "0", "0"]
        );
        let simulated = row(Outcome::Simulated);
        assert_eq!(simulated, ["simulated", "2", "128", "-", "-", "2.30", "4.10", "-", "-", "7", "-", "-"]);
        assert_eq!(row(Outcome::Refused)[3..], ["-"; 9]);
        assert_eq!(row(Outcome::Failed)[0], "FAILED");
    }
}
