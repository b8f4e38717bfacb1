//! A campaign: all cells, one after the other, each kept as it ends; then what they say.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use orbitkv::cluster::DivisionRefused;
use orbitkv::control::signals::StopSignals;
use orbitkv_native::affinity;
use orbitkv_native::ssd_file::DataDirLock;
use serde::{Deserialize, Serialize};

use super::measure::{self, Measured};
use super::plan::{Carrier, Cell, Envelope, Plan};
use super::record::{self, CELL, Outcome, Record};
use super::{beyond, gates, simulated};
use crate::campaign::{Campaign, Ended, Order, REPORT, Shelf, unmade};
use crate::pace::Pace;
use crate::profile::FormalProfile;
use crate::report::Report;
use crate::streams::owners::{SAMPLES, StartOrder, order};
use crate::{Failure, machine, progress};

/// What is asked of a campaign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleOrder {
    plan: Plan,
    seed: u64,
}

impl ScaleOrder {
    /// The sizes of a profile.
    pub fn of(profile: FormalProfile, seed: u64) -> ScaleOrder {
        ScaleOrder { plan: Plan::of(profile), seed }
    }
}

impl Order for ScaleOrder {
    const KIND: &'static str = "scale-campaign";
    const PARTS: &'static str = "cells";

    fn differences(&self, other: &ScaleOrder) -> Vec<(&'static str, bool)> {
        vec![("profile (--profile)", self.plan != other.plan), ("seed (--seed)", self.seed != other.seed)]
    }
}

impl Campaign<ScaleOrder> {
    /// Measures the cells that are missing, and says what all of them say.
    ///
    /// # Errors
    /// If a signal comes, wrong bytes are seen, or there is nothing to measure with.
    pub fn work(&self, profile: FormalProfile, shelf: &Shelf) -> Result<Report, Ended> {
        let _lock = DataDirLock::acquire(shelf.path())?;
        let at_start = machine::Pressure::now();
        let signals = StopSignals::watch()?;
        progress(&format!(
            "{} profile, {} cells; files in {}",
            self.order.plan.profile,
            self.order.plan.cells.len(),
            shelf.path().display()
        ));
        let mut records = Vec::new();
        let mut pace = Pace::over(self.order.plan.cells.len());
        for cell in &self.order.plan.cells {
            if let Some(record) = record::take(shelf, cell)? {
                progress(&format!("{}: is there", cell.name));
                records.push(record);
                pace.skip();
                continue;
            }
            let (managers, residences) = (cell.managers, cell.residences);
            pace.tell(&format!("{}, {managers} nodes of {residences} residences", cell.name));
            records.push(self.cell(cell, shelf, &signals)?);
            pace.done();
        }
        let report = gates::report(
            profile,
            &self.order.plan,
            self.order.seed,
            &self.machine,
            &records,
            at_start.until_now(),
        );
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
            attempt: shelf.failed(&cell.name).len() + 1,
            outcome: Outcome::Failed,
            carrier,
            why,
            cell: cell.clone(),
            seed: self.order.seed,
            commit: self.commit.clone(),
            machine: self.machine.clone(),
            began_unix_s: now.as_secs(),
            seconds: 0.0,
            figures: None,
            simulated: None,
            refusal: None,
            machine_load: serde_json::Value::Null,
        };
        let (record, ended) = match self.make(record.clone(), signals) {
            Ok(record) => (record, None),
            Err(failure) => {
                let (why, ended) = unmade(failure.into(), shelf)?;
                (Record { why: Some(why), ..record }, ended)
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
            let simulated = Some(simulated::run(&cell, self.order.seed, signals)?);
            return Ok(Record { outcome: Outcome::Simulated, simulated, ..record });
        }
        if cell.envelope != Envelope::Within {
            let refusal = beyond::refused(&cell, self.order.seed, signals)?;
            let outcome = match (refusal.false_complete, refusal.lost) {
                (0, 0) => Outcome::Refused,
                _ => Outcome::Failed,
            };
            return Ok(Record { outcome, refusal: Some(refusal), ..record });
        }
        let Measured { figures, invalid } =
            measure::measure(&cell, &self.order.plan, self.order.seed, signals)?;
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
        let rows_max = cores as u64 * self.order.plan.rows_per_core_max;
        let carrier = cell.carrier(rows_max, refused.is_none());
        let why = (carrier == Carrier::Simulator).then(|| {
            let rows = format!("{} rows are more than {cores} cores bring in, {rows_max}", cell.rows());
            refused.unwrap_or(rows)
        });
        Ok((carrier, why))
    }
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
    fn a_campaign_of_another_profile_or_seed_is_another() {
        let differing = |other: ScaleOrder| {
            let pairs = ScaleOrder::of(FormalProfile::Ci, 1).differences(&other);
            pairs.into_iter().find(|(_, differs)| *differs).map(|(what, _)| what)
        };
        assert_eq!(differing(ScaleOrder::of(FormalProfile::Ci, 1)), None);
        assert_eq!(differing(ScaleOrder::of(FormalProfile::Ci, 2)), Some("seed (--seed)"));
        assert_eq!(differing(ScaleOrder::of(FormalProfile::Dense, 1)), Some("profile (--profile)"));
    }

    #[test]
    fn what_is_asked_of_a_campaign_is_read_as_it_was_written() {
        let parent = tempfile::tempdir().expect("a directory");
        let campaign = Campaign::new(ScaleOrder::of(FormalProfile::Formal, 1));
        campaign.begin(parent.path()).expect("nothing is in it");
        assert!(campaign.resume(parent.path()).is_ok());
        let text = std::fs::read_to_string(parent.path().join("campaign.json")).expect("it is there");
        assert!(text.starts_with(r#"{"kind":"scale-campaign","plan":{"#), "{text}");
    }
}
