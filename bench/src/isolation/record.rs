//! What is kept of a run: everything raw, so that whatever is said of it can be said again. Each run is a file.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::exposure::{self, Burst, Exposure, Figures, Look, Window};
use super::foreground::{Operation, Round};
use super::plan::Plan;
use super::pressure::FinalCheck;
use super::sampler::Cost;
use super::schedule::{Cell, Medium};
use super::stage::{CoreTurns, Cores, Nodes, Placed};
use crate::Failure;
use crate::campaign::Shelf;
use crate::statistics::nearest_rank;

/// What kind of file it is.
pub const RUN: &str = "isolation-run";
/// Quantiles are told this finely: steps to half of what is left.
const TICKS_PER_HALF: u32 = 4;

/// What a run measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// When the rounds that count were made.
    pub window: Window,
    /// Where everything ran.
    pub placement: Vec<Placed>,
    /// Processor seconds of either node while the rounds were made, those of the warm-up included.
    pub processor_seconds: Nodes<f64>,
    /// What looking cost.
    pub sampler: Cost,
    /// Key by key, at the end.
    pub final_check: FinalCheck,
    /// Reads from the device; none on DRAM.
    pub device: Option<DeviceReads>,
    /// Turns of the foreground's core since its node began.
    pub core_turns: CoreTurns,
    /// Bytes of inventory that the pressure node has sent from its start on, by kind.
    pub bytes_by_kind: BTreeMap<String, u64>,
    /// What others took of the machine.
    pub machine_load: Value,
    /// What the numbers of a round are.
    pub round_columns: Vec<String>,
    /// Rounds that do not count.
    pub warm_up: Vec<Round>,
    /// Rounds that do.
    pub rounds: Vec<Round>,
    /// What the numbers of a burst are.
    pub burst_columns: Vec<String>,
    /// All bursts, those of the warm-up included.
    pub bursts: Vec<Burst>,
    /// What the numbers of a look are.
    pub look_columns: Vec<String>,
    /// All looks.
    pub looks: Vec<Look>,
}

/// That blocks came from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReads {
    /// Blocks restored.
    pub blocks: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Blocks that the node counts as read from its device meanwhile.
    pub node_blocks: u64,
    /// Bytes that the kernel counts as read for it from a block device.
    pub kernel_bytes: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It counts.
    Counts,
    /// It was made, and was not what was declared.
    Rejected,
    /// It was made, and nobody knows whether it was what was declared.
    Unknown,
    /// It was not made to its end.
    Failed,
}

/// A point of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Percentile, 0 to 100.
    pub percentile: f64,
    /// Value at it, in microseconds.
    pub value_us: f64,
}

/// One run, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`RUN`].
    pub kind: String,
    /// Name of its cell.
    pub name: String,
    /// Which attempt at the cell it was, from 1.
    pub attempt: usize,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it does not count.
    pub why: Option<String>,
    /// Its cell.
    pub cell: Cell,
    /// The campaign's sizes.
    pub plan: Plan,
    /// Seed of keys, payload and phase.
    pub seed: u64,
    /// Commit of the build.
    pub commit: String,
    /// On what.
    pub machine: String,
    /// The two cores.
    pub cores: Cores,
    /// When it began, in seconds since 1970.
    pub began_unix_s: u64,
    /// What it was exposed to.
    pub exposure: Option<Figures>,
    /// p99 of each operation, in microseconds.
    pub p99_us: BTreeMap<String, f64>,
    /// Of each operation.
    pub histograms: BTreeMap<String, Vec<Point>>,
    /// Everything raw.
    pub measured: Option<Measured>,
}

impl Measured {
    /// The p99 of an operation over the rounds that count, in nanoseconds.
    pub fn p99(&self, operation: Operation) -> u64 {
        let all: Vec<u64> = self.rounds.iter().map(|round| operation.of(round)).collect();
        nearest_rank(&all, 0.99)
    }

    /// Judges the exposure from what was recorded.
    pub fn exposure(&self, cell: &Cell) -> Exposure {
        exposure::judge(self.window, cell.is_under_pressure(), &self.bursts, &self.looks)
    }

    /// Whether the run counts, and if not why.
    pub fn judge(&self, cell: &Cell, plan: &Plan) -> (Outcome, Option<String>) {
        let exposure = self.exposure(cell);
        if let Exposure::Unknown(..) = exposure {
            return (Outcome::Unknown, exposure.why_not());
        }
        let rounds = (self.warm_up.len(), self.rounds.len());
        let astray = self.placement.iter().find(|placed| placed.astray > 0);
        let why = if rounds != (plan.warm_up_rounds, plan.rounds) {
            Some(format!("{} and {} rounds were made", rounds.0, rounds.1))
        } else if let Some(placed) = astray {
            Some(format!(
                "{} of {} threads of {} left core {}",
                placed.astray, placed.threads, placed.process, placed.core
            ))
        } else {
            exposure.why_not().or_else(|| self.final_check.wrong()).or_else(|| self.unread(cell, plan))
        };
        (if why.is_some() { Outcome::Rejected } else { Outcome::Counts }, why)
    }

    /// Why blocks did not come from the device, if they should have.
    fn unread(&self, cell: &Cell, plan: &Plan) -> Option<String> {
        let wanted = (self.warm_up.len() + self.rounds.len()) as u64;
        let (blocks, bytes) = (wanted * plan.blocks as u64, wanted * plan.round_bytes());
        match (cell.medium, self.device) {
            (Medium::Dram, _) => None,
            (Medium::Ssd, None) => Some("nobody looked at the device".to_owned()),
            (Medium::Ssd, Some(reads)) => {
                let proved = reads.node_blocks >= blocks && reads.kernel_bytes >= bytes;
                (!proved).then(|| {
                    format!(
                        "{blocks} blocks were restored, the node counts {} reads and the kernel {} bytes",
                        reads.node_blocks, reads.kernel_bytes
                    )
                })
            }
        }
    }

    fn histogram(&self, operation: Operation) -> Vec<Point> {
        let mut histogram =
            Histogram::<u64>::new_with_bounds(1, 600_000_000_000, 3).expect("constant bounds");
        for round in &self.rounds {
            histogram.saturating_record(operation.of(round).max(1));
        }
        let quantiles = histogram.iter_quantiles(TICKS_PER_HALF);
        quantiles
            .map(|step| Point {
                percentile: step.quantile_iterated_to() * 100.0,
                value_us: step.value_iterated_to() as f64 / 1e3,
            })
            .collect()
    }
}

impl Record {
    /// What is said of a run, from what it measured.
    pub fn with_measured(mut self, measured: Measured) -> Record {
        (self.outcome, self.why) = measured.judge(&self.cell, &self.plan);
        self.exposure = Some(*measured.exposure(&self.cell).figures());
        let named = |operation: Operation| operation.name().to_owned();
        if !measured.rounds.is_empty() {
            let p99 = |operation| (named(operation), measured.p99(operation) as f64 / 1e3);
            self.p99_us = Operation::ALL.into_iter().map(p99).collect();
            let histogram = |operation| (named(operation), measured.histogram(operation));
            self.histograms = Operation::ALL.into_iter().map(histogram).collect();
        }
        self.measured = Some(measured);
        self
    }
}

/// The run of a cell that counts, if it is there. What it says is judged anew from what it measured.
///
/// # Errors
/// If a file is there and cannot be understood.
pub fn take(shelf: &Shelf, cell: &Cell) -> Result<Option<Record>, Failure> {
    let Some(mut record) = shelf.take::<Record>(&cell.name())? else { return Ok(None) };
    let measured = record.measured.take().ok_or_else(|| format!("{}: nothing measured", cell.name()))?;
    Ok(Some(record.with_measured(measured)).filter(|record| record.outcome == Outcome::Counts))
}

/// Keeps a run, whatever it says.
///
/// # Errors
/// If the disk does not take it.
pub fn put(shelf: &Shelf, record: &Record) -> Result<(), Failure> {
    let failed = (record.outcome != Outcome::Counts).then_some(record.attempt);
    shelf.put(&record.name, failed, record)
}
