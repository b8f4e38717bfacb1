//! A campaign: all cells, one after the other, each kept as it ends; then what they say.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use orbitkv::cluster::{ClusterFailure, DivisionRefused};
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv_native::affinity;
use orbitkv_native::ssd_file::DataDirLock;
use serde::{Deserialize, Serialize};

use super::measure::{self, Measured};
use super::plan::{Carrier, Cell, Envelope, Plan};
use super::record::{self, CELL, Outcome, Record};
use super::{beyond, gates, simulated};
use crate::isolation::record::Shelf;
use crate::payload::WrongBytes;
use crate::report::Report;
use crate::streams::Profile;
use crate::streams::owners::{SAMPLES, StartOrder, order};
use crate::{Failure, machine, progress};

/// The file that says what a directory's campaign is.
const FILE: &str = "campaign.json";
/// The file with what it says at last.
const REPORT: &str = "report.json";
/// What kind of file it is.
const KIND: &str = "scale-campaign";

/// What a campaign is: cells of one directory have all of it in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Campaign {
    kind: String,
    plan: Plan,
    seed: u64,
    commit: String,
    machine: String,
}

/// Why a campaign has no report.
pub struct Ended {
    /// Exit code of the command.
    pub exit: Exit,
    /// Why, and what to do.
    pub words: String,
}

impl<F: Into<Failure>> From<F> for Ended {
    fn from(failure: F) -> Ended {
        Ended { exit: Exit::Environment, words: failure.into().to_string() }
    }
}

/// Makes the directory of a new campaign.
///
/// # Errors
/// If it has something in it, or cannot be made.
pub fn begin(directory: &Path, campaign: &Campaign) -> Result<Shelf, Failure> {
    let shown = directory.display();
    fs::create_dir_all(directory).map_err(|error| format!("--out {shown}: {error}; choose another"))?;
    if fs::read_dir(directory)?.next().is_some() {
        return Err(
            format!("--out {shown} is not empty: go on with --resume {shown}, or name another").into()
        );
    }
    let shelf = Shelf::new(directory.canonicalize()?);
    shelf.write(FILE, campaign)?;
    Ok(shelf)
}

/// Opens the directory of a campaign that was begun with the same settings on the same build and machine.
///
/// # Errors
/// If there is none, or one that is another.
pub fn resume(directory: &Path, campaign: &Campaign) -> Result<Shelf, Failure> {
    let shown = directory.display();
    let text =
        fs::read(directory.join(FILE)).map_err(|error| format!("--resume {shown}: {FILE}: {error}"))?;
    let there: Campaign =
        serde_json::from_slice(&text).map_err(|error| format!("--resume {shown}: {FILE}: {error}"))?;
    match campaign.differs_from(&there) {
        None => Ok(Shelf::new(directory.canonicalize()?)),
        Some(what) => {
            Err(format!("--resume {shown}: that campaign has another {what}: cells would not compare").into())
        }
    }
}

impl Campaign {
    /// A campaign of this build on this machine.
    pub fn new(profile: Profile, seed: u64) -> Campaign {
        let (kind, commit) = (KIND.to_owned(), env!("ORBITKV_COMMIT").to_owned());
        Campaign { kind, plan: Plan::of(profile), seed, commit, machine: machine::describe() }
    }

    /// The first thing that differs, in words.
    fn differs_from(&self, other: &Campaign) -> Option<&'static str> {
        let pairs = [
            ("kind", self.kind != other.kind),
            ("profile (--profile)", self.plan != other.plan),
            ("seed (--seed)", self.seed != other.seed),
            ("commit", self.commit != other.commit),
            ("machine", self.machine != other.machine),
        ];
        pairs.into_iter().find(|(_, differs)| *differs).map(|(what, _)| what)
    }

    /// Measures the cells that are missing, and says what all of them say.
    ///
    /// # Errors
    /// If a signal comes, wrong bytes are seen, or there is nothing to measure with.
    pub fn work(&self, profile: Profile, shelf: &Shelf) -> Result<Report, Ended> {
        let _lock = DataDirLock::acquire(shelf.path())?;
        let at_start = machine::Pressure::now();
        let signals = StopSignals::watch()?;
        progress(&format!(
            "{} profile, {} cells; files in {}",
            self.plan.profile,
            self.plan.cells.len(),
            shelf.path().display()
        ));
        let (mut records, mut made, began) = (Vec::new(), 0, Instant::now());
        for (number, cell) in self.plan.cells.iter().enumerate() {
            if let Some(record) = record::take(shelf, cell)? {
                progress(&format!("{}: is there", cell.name));
                records.push(record);
                continue;
            }
            let to_come = self.plan.cells.len() - number;
            let left = left(began.elapsed(), made, to_come).map_or_else(String::new, |left| {
                format!(", about {} minutes left", left.as_secs().div_ceil(60))
            });
            let (managers, residences) = (cell.managers, cell.residences);
            progress(&format!(
                "{}, {} of {}: {managers} nodes of {residences} residences{left}",
                cell.name,
                number + 1,
                self.plan.cells.len()
            ));
            records.push(self.cell(cell, shelf, &signals)?);
            made += 1;
        }
        let report =
            gates::report(profile, &self.plan, self.seed, &self.machine, &records, at_start.until_now());
        shelf.write(REPORT, &report.json())?;
        Ok(report)
    }

    /// The record of a cell that is made now, whatever it says.
    fn cell(&self, cell: &Cell, shelf: &Shelf, signals: &StopSignals) -> Result<Record, Ended> {
        let (carrier, why) = self.carrier(cell)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (began, load) = (Instant::now(), machine::Pressure::now());
        let record = Record {
            kind: CELL.to_owned(),
            attempt: record::failed(shelf, cell) + 1,
            outcome: Outcome::Failed,
            carrier,
            why,
            cell: cell.clone(),
            seed: self.seed,
            commit: self.commit.clone(),
            machine: self.machine.clone(),
            began_unix_s: now.as_secs(),
            seconds: 0.0,
            figures: None,
            simulated: None,
            refusal: None,
            machine_load: serde_json::Value::Null,
        };
        let made = self.make(record.clone(), signals);
        let (record, ended) = match made {
            Ok(record) => (record, None),
            Err(failure) => {
                let words = failure.to_string();
                let ended = match failure.downcast_ref::<ClusterFailure>() {
                    Some(ClusterFailure::Stopped { signal }) => {
                        let words =
                            format!("stopped by {signal}; go on with --resume {}", shelf.path().display());
                        return Err(Ended { exit: Exit::Unmet, words });
                    }
                    Some(ClusterFailure::NoEtcd) => return Err(failure.into()),
                    None if failure.is::<WrongBytes>() => {
                        Some(Ended { exit: Exit::Unmet, words: words.clone() })
                    }
                    _ => None,
                };
                (Record { why: Some(words), ..record }, ended)
            }
        };
        let record =
            Record { seconds: began.elapsed().as_secs_f64(), machine_load: load.until_now(), ..record };
        record::put(shelf, &record)?;
        progress(&told(&record));
        match ended {
            Some(ended) => Err(ended),
            None => Ok(record),
        }
    }

    fn make(&self, record: Record, signals: &StopSignals) -> Result<Record, Failure> {
        let cell = record.cell.clone();
        if record.carrier == Carrier::Simulator {
            let simulated = Some(simulated::run(&cell, self.seed, signals)?);
            return Ok(Record { outcome: Outcome::Simulated, simulated, ..record });
        }
        if cell.envelope != Envelope::Within {
            let refusal = beyond::refused(&cell, self.seed, signals)?;
            let outcome = match (refusal.false_complete, refusal.lost) {
                (0, 0) => Outcome::Refused,
                _ => Outcome::Failed,
            };
            return Ok(Record { outcome, refusal: Some(refusal), ..record });
        }
        let Measured { figures, invalid } = measure::measure(&cell, &self.plan, self.seed, signals)?;
        let outcome = if invalid.is_some() { Outcome::Invalid } else { Outcome::Measured };
        Ok(Record { outcome, why: invalid, figures: Some(figures), ..record })
    }

    /// Who carries a cell here, and why if it is the simulator.
    fn carrier(&self, cell: &Cell) -> Result<(Carrier, Option<String>), Failure> {
        let start = StartOrder { samples: SAMPLES, ..StartOrder::default() };
        let refused = match order(cell.managers, cell.residences, &start) {
            Ok(_) => None,
            Err(failure) => match failure.downcast_ref::<DivisionRefused>() {
                Some(DivisionRefused::Memory { .. }) => Some(failure.to_string()),
                _ => return Err(failure),
            },
        };
        let cores = affinity::available_cores()?.len();
        let rows_max = cores as u64 * self.plan.rows_per_core_max;
        let carrier = cell.carrier(rows_max, refused.is_none());
        let why = (carrier == Carrier::Simulator).then(|| {
            let rows = format!("{} rows are more than {cores} cores bring in, {rows_max}", cell.rows());
            refused.unwrap_or(rows)
        });
        Ok((carrier, why))
    }
}

/// Time that is left if the cells to come take as long as those that were made, on the average; unknown before the first.
fn left(took: Duration, made: u32, to_come: usize) -> Option<Duration> {
    (made > 0).then(|| took / made * to_come as u32)
}

/// A cell in a line.
fn told(record: &Record) -> String {
    let name = &record.cell.name;
    match (record.outcome, &record.why, &record.refusal) {
        (Outcome::Refused, _, Some(refusal)) => format!("{name}: refused: {}", refusal.words),
        (outcome, why, _) if !outcome.counts() => {
            format!("{name}: does not count: {}", why.as_deref().unwrap_or("see its file"))
        }
        _ => {
            let [outcome, _, _, reached, unpaced, p50, p99, ..] = record.row();
            format!(
                "{name}: {outcome}, {reached} changes a second, at most {unpaced}; seen after {p50} ms, p99 {p99} ms"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_that_of_the_cells_to_come() {
        assert_eq!(left(Duration::from_secs(90), 3, 4), Some(Duration::from_secs(120)));
        assert_eq!(left(Duration::from_secs(9), 0, 4), None);
    }

    #[test]
    fn a_directory_is_gone_on_with_only_by_the_same_campaign() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = parent.path().join("scale");
        let campaign = Campaign::new(Profile::Ci, 1);
        let words = |opened: Result<Shelf, Failure>| opened.err().map(|error| error.to_string());
        assert!(words(resume(&directory, &campaign)).is_some_and(|words| words.contains("campaign.json")));
        assert_eq!(words(begin(&directory, &campaign)), None);
        assert!(words(begin(&directory, &campaign)).is_some_and(|words| words.contains("--resume")));
        assert_eq!(words(resume(&directory, &campaign)), None);
        for (other, what) in [
            (Campaign::new(Profile::Ci, 2), "--seed"),
            (Campaign::new(Profile::Dense, 1), "--profile"),
            (Campaign { commit: "another".to_owned(), ..campaign.clone() }, "commit"),
            (Campaign { machine: "another".to_owned(), ..campaign.clone() }, "machine"),
        ] {
            assert!(words(resume(&directory, &other)).is_some_and(|words| words.contains(what)), "{what}");
        }
    }
}
