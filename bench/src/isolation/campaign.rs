//! A campaign: all runs of the schedule, one after the other, each kept as it ends; then what they say.

use std::time::{SystemTime, UNIX_EPOCH};

use orbitkv::control::signals::StopSignals;
use orbitkv_native::ssd_file::DataDirLock;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::record::{Outcome, RUN, Record, put, take};
use super::schedule::{Cell, Medium, schedule};
use super::stage::Cores;
use super::{gates, run};
use crate::campaign::{Campaign, Ended, Order, REPORT, Shelf, unmade};
use crate::pace::Pace;
use crate::profile::Label;
use crate::report::Report;
use crate::{machine, progress};

/// What is asked of a campaign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationOrder {
    /// Its sizes.
    pub plan: Plan,
    /// Its media.
    pub media: Vec<Medium>,
    /// Seed of keys, payload and phases.
    pub seed: u64,
    /// Where everything runs.
    pub cores: Cores,
}

impl Order for IsolationOrder {
    const KIND: &'static str = "isolation-campaign";
    const PARTS: &'static str = "runs";

    fn differences(&self, other: &IsolationOrder) -> Vec<(&'static str, bool)> {
        vec![
            ("profile or size", self.plan != other.plan),
            ("choice of media (--medium)", self.media != other.media),
            ("seed (--seed)", self.seed != other.seed),
            ("placement (--cores)", self.cores != other.cores),
        ]
    }
}

impl Campaign<IsolationOrder> {
    /// Makes the runs that are missing, and says what all of them say.
    ///
    /// # Errors
    /// If a signal comes, wrong bytes are seen, or a run cannot be made at all.
    pub fn work(&self, shelf: &Shelf) -> Result<Report, Ended> {
        let _lock = DataDirLock::acquire(shelf.path())?;
        let at_start = machine::Pressure::now();
        let signals = StopSignals::watch()?;
        let plan = &self.order.plan;
        let cells = schedule(&self.order.media, plan.pairs);
        progress(&format!(
            "{} profile, {} runs of {} rounds, {:.0} s each; files in {}",
            Label::from(plan.profile).name,
            cells.len(),
            plan.rounds,
            (plan.warm_up_rounds + plan.rounds) as f64 * plan.cadence().as_secs_f64(),
            shelf.path().display()
        ));
        let (mut records, mut pace) = (Vec::new(), Pace::over(cells.len()));
        for cell in &cells {
            if let Some(record) = take(shelf, cell)? {
                progress(&format!("{}: is there", cell.name()));
                records.push(record);
                pace.skip();
                continue;
            }
            pace.tell(&cell.name());
            records.extend(self.cell(cell, shelf, &signals)?);
            pace.done();
        }
        let failed: Vec<String> = cells.iter().flat_map(|cell| shelf.failed(&cell.name())).collect();
        let report = gates::report(self, &records, &failed, at_start.until_now());
        shelf.write(REPORT, &report.json())?;
        Ok(report)
    }

    /// Makes the run of a cell; none counts if every attempt was in vain.
    fn cell(&self, cell: &Cell, shelf: &Shelf, signals: &StopSignals) -> Result<Option<Record>, Ended> {
        let IsolationOrder { plan, seed, cores, .. } = &self.order;
        for _ in 0..plan.attempts {
            let attempt = shelf.failed(&cell.name()).len() + 1;
            let record = self.record(cell, attempt);
            let (record, ended) = match run::make(cell, plan, *cores, *seed, shelf.path(), signals) {
                Ok(measured) => (record.with_measured(measured), None),
                Err(why) => {
                    let (why, ended) = unmade(why, shelf)?;
                    (Record { why: Some(why), ..record }, ended)
                }
            };
            put(shelf, &record)?;
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
            plan: self.order.plan,
            seed: self.order.seed,
            commit: self.commit.clone(),
            machine: self.machine.clone(),
            cores: self.order.cores,
            began_unix_s: now.as_secs(),
            exposure: None,
            p99_us: Default::default(),
            histograms: Default::default(),
            measured: None,
        }
    }
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
