//! A campaign: all runs of the schedule, one after the other, each kept as it ends; then what they say.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use orbitkv::cluster::ClusterFailure;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv_native::ssd_file::DataDirLock;
use serde::{Deserialize, Serialize};

use super::gates;
use super::plan::Plan;
use super::record::{Outcome, RUN, Record, Shelf};
use super::run::{self, Unmade};
use super::schedule::{Cell, Medium, schedule};
use super::stage::Cores;
use crate::profile::Label;
use crate::report::Report;
use crate::{Failure, machine, progress};

/// The file that says what a directory's campaign is.
const FILE: &str = "campaign.json";
/// The file with what it says at last.
const REPORT: &str = "report.json";
/// What kind of file it is.
const KIND: &str = "isolation-campaign";

/// What a campaign is: runs of one directory have all of it in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Campaign {
    kind: String,
    plan: Plan,
    media: Vec<Medium>,
    seed: u64,
    cores: Cores,
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
    fs::create_dir_all(directory).map_err(|error| format!("--out {shown}: {error}"))?;
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
            Err(format!("--resume {shown}: that campaign has another {what}: runs would not compare").into())
        }
    }
}

impl Campaign {
    /// A campaign of this build on this machine.
    pub fn new(plan: Plan, media: Vec<Medium>, seed: u64, cores: Cores) -> Campaign {
        let (kind, commit) = (KIND.to_owned(), env!("ORBITKV_COMMIT").to_owned());
        Campaign { kind, plan, media, seed, cores, commit, machine: machine::describe() }
    }

    /// The first thing that differs, in words.
    fn differs_from(&self, other: &Campaign) -> Option<&'static str> {
        let pairs = [
            ("kind", self.kind != other.kind),
            ("profile or size", self.plan != other.plan),
            ("choice of media (--medium)", self.media != other.media),
            ("seed (--seed)", self.seed != other.seed),
            ("placement (--cores)", self.cores != other.cores),
            ("commit", self.commit != other.commit),
            ("machine", self.machine != other.machine),
        ];
        pairs.into_iter().find(|(_, differs)| *differs).map(|(what, _)| what)
    }

    /// Makes the runs that are missing, and says what all of them say.
    ///
    /// # Errors
    /// If a signal comes, wrong bytes are seen, or a run cannot be made at all.
    pub fn work(&self, shelf: &Shelf) -> Result<Report, Ended> {
        let _lock = DataDirLock::acquire(shelf.path())?;
        let at_start = machine::Pressure::now();
        let signals = StopSignals::watch()?;
        let cells = schedule(&self.media, self.plan.pairs);
        progress(&format!(
            "{} profile, {} runs of {} rounds, {:.0} s each; files in {}",
            Label::from(self.plan.profile).name,
            cells.len(),
            self.plan.rounds,
            (self.plan.warm_up_rounds + self.plan.rounds) as f64 * self.plan.cadence().as_secs_f64(),
            shelf.path().display()
        ));
        let mut records = Vec::new();
        for cell in &cells {
            if let Some(record) = self.cell(cell, shelf, &signals)? {
                records.push(record);
            }
        }
        let failed: Vec<String> = cells.iter().flat_map(|cell| shelf.failed(cell)).collect();
        let report = gates::report(self, &records, &failed, at_start.until_now());
        shelf.write(REPORT, &report.json())?;
        Ok(report)
    }

    /// The run of a cell that counts: one that is there, or one that is made now; none if every attempt was in vain.
    fn cell(&self, cell: &Cell, shelf: &Shelf, signals: &StopSignals) -> Result<Option<Record>, Ended> {
        if let Some(record) = shelf.take(cell)? {
            progress(&format!("{}: is there", cell.name()));
            return Ok(Some(record));
        }
        for _ in 0..self.plan.attempts {
            let attempt = shelf.failed(cell).len() + 1;
            let record = self.record(cell, attempt);
            let made = run::make(cell, &self.plan, self.cores, self.seed, shelf.path(), signals);
            let (record, ended) = match made {
                Ok(measured) => (record.with_measured(measured), None),
                Err(Unmade::Stopped(signal)) => return Err(stopped(signal, shelf.path())),
                Err(Unmade::WrongBytes(words)) => {
                    (Record { why: Some(words.clone()), ..record }, Some(Ended { exit: Exit::Unmet, words }))
                }
                Err(Unmade::Failed(failure)) => {
                    let ended = match failure.downcast_ref::<ClusterFailure>() {
                        Some(ClusterFailure::Stopped { signal }) => {
                            return Err(stopped(signal, shelf.path()));
                        }
                        Some(ClusterFailure::NoEtcd) => return Err(failure.into()),
                        _ => None,
                    };
                    (Record { why: Some(failure.to_string()), ..record }, ended)
                }
            };
            shelf.put(&record)?;
            progress(&told(&record));
            match ended {
                Some(ended) => return Err(ended),
                None if record.outcome == Outcome::Counts => return Ok(Some(record)),
                None => {}
            }
        }
        Ok(None)
    }

    /// A run of which nothing is known yet.
    pub fn record(&self, cell: &Cell, attempt: usize) -> Record {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Record {
            kind: RUN.to_owned(),
            name: cell.name(),
            attempt,
            outcome: Outcome::Failed,
            why: None,
            cell: *cell,
            plan: self.plan,
            seed: self.seed,
            commit: self.commit.clone(),
            machine: self.machine.clone(),
            cores: self.cores,
            began_unix_s: now.as_secs(),
            exposure: None,
            p99_us: Default::default(),
            histograms: Default::default(),
            measured: None,
        }
    }

    /// Its sizes.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Its media.
    pub fn media(&self) -> &[Medium] {
        &self.media
    }

    /// Its seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Its cores.
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// Its machine.
    pub fn machine(&self) -> &str {
        &self.machine
    }
}

fn stopped(signal: &str, directory: &Path) -> Ended {
    let words = format!("stopped by {signal}; go on with --resume {}", PathBuf::from(directory).display());
    Ended { exit: Exit::Unmet, words }
}

/// A run in a line.
fn told(record: &Record) -> String {
    let Record { name, attempt, outcome, why, p99_us, .. } = record;
    let p99 = p99_us.iter().map(|(operation, us)| format!("{operation} {us:.0}"));
    let p99 = p99.collect::<Vec<_>>().join(", ");
    match (outcome, why) {
        (Outcome::Counts, _) => format!("{name}: p99 µs {p99}"),
        (_, why) => {
            format!(
                "{name}: attempt {attempt} does not count: {}",
                why.as_deref().unwrap_or("it has no reason")
            )
        }
    }
}
