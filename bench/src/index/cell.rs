//! One measurement, in a process of its own: fresh memory, so that what the process grows by says something.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use orbitkv_native::affinity;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::Plan;
use super::trace::stream::{Stream, Trace};
use super::trace::{TraceIndex, driver};
use super::{frames, retirement, throughput};
use crate::Failure;
use crate::profile::Profile;

/// What to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum What {
    /// Rows that are made up, with so many owners.
    Throughput {
        /// How many.
        owners: u32,
    },
    /// Lookups while rows are removed.
    Retirement,
    /// Frames.
    Frames,
    /// The index on the trace, with so many owners.
    Trace {
        /// How many.
        owners: u32,
        /// The trace.
        path: PathBuf,
    },
}

/// A measurement and what it needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// What to measure.
    pub what: What,
    /// Whether with the sizes of the ci profile.
    pub ci: bool,
    /// Seed of rows and keys.
    pub seed: u64,
    /// Where to run.
    pub core: usize,
}

impl Cell {
    /// Measures here and prints what was found.
    ///
    /// # Errors
    /// If there is no such core, or no such trace.
    pub fn run(&self) -> Result<(), Failure> {
        affinity::pin_current_thread(self.core)?;
        let plan = Plan::of(if self.ci { Profile::Ci } else { Profile::Full });
        let found = match &self.what {
            What::Throughput { owners } => {
                serde_json::to_value(throughput::measure(&plan, *owners, self.seed))?
            }
            What::Retirement => serde_json::to_value(retirement::measure(&plan, self.seed))?,
            What::Frames => serde_json::to_value(frames::measure(&plan, self.seed))?,
            What::Trace { owners, path } => {
                let trace = Trace::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
                let stream = Stream::derive(&trace, *owners, plan.rows, self.seed);
                let make = || TraceIndex::new(*owners, stream.rows);
                driver::measure(&stream, make, plan.queries, Duration::from_millis(plan.query_ms))
            }
        };
        println!("{found}");
        Ok(())
    }

    /// Measures in a process of its own.
    ///
    /// # Errors
    /// If it does not end well or says something else than expected.
    pub fn measure<T: for<'a> Deserialize<'a>>(&self) -> Result<T, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["index", "--cell", &serde_json::to_string(self)?]);
        Ok(serde_json::from_value(answer_of(&mut command)?)?)
    }
}

/// Runs an indexer of others on the same rows; see `bench/rivals`. It has all cores: it takes one for its events and
/// one for its queries.
///
/// # Errors
/// If it does not end well or prints no JSON.
pub fn rival(
    program: &Path,
    indexer: &str,
    owners: u32,
    trace: &Path,
    plan: &Plan,
    seed: u64,
) -> Result<Value, Failure> {
    let mut command = Command::new(program);
    command.arg(indexer).arg(trace);
    command.args(
        [u64::from(owners), plan.rows, seed, plan.queries, plan.query_ms].map(|number| number.to_string()),
    );
    answer_of(&mut command)
}

fn answer_of(command: &mut Command) -> Result<Value, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).map_err(|error| format!("{program}: {error}"))?),
        false => Err(format!("{program} ended with {}", output.status).into()),
    }
}
