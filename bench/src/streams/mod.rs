//! What benchmarks of inventory streams have in common: a cluster of real nodes with an engine at each, changes in
//! bursts, samples of when they were published and seen, and what makes a run worth nothing.

pub mod barriers;
pub mod cadence;
pub mod convergence;
pub mod coordinator;
pub mod distribution;
pub mod keys;
pub mod outlet;
pub mod owner;
pub mod owners;
pub mod samples;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use orbitkv::exit::Exit;
use orbitkv::quantity::Span;

use crate::Failure;
use crate::payload::WrongBytes;
use crate::profile::Label;

/// Longest wait for one answer of a node.
pub const WAIT: Duration = Duration::from_secs(10);

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// A few seconds, to see that everything runs: qualifies nothing.
    Ci,
    /// A third of the formal time, judged by the same gates and labelled dense.
    Dense,
    /// The whole time.
    Formal,
}

impl From<Profile> for Label {
    fn from(profile: Profile) -> Label {
        match profile {
            Profile::Ci => Label { name: "ci", qualifies: false },
            Profile::Dense => Label { name: "dense", qualifies: true },
            Profile::Formal => Label { name: "formal", qualifies: true },
        }
    }
}

/// What every such benchmark is told.
#[derive(Args)]
pub struct CommonArgs {
    /// Nodes, each of one shard; all of them save and all observe.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub managers: u16,
    /// `formal` and `dense` qualify; `ci` runs the same for seconds and qualifies nothing.
    #[arg(long, value_enum, default_value_t = Profile::Formal)]
    pub profile: Profile,
    /// Seed of payloads, of the order of owners and of offsets.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How long a change may wait for others before it is told [default: the node's own, 2ms].
    #[arg(long, value_name = "SPAN")]
    pub coalesce: Option<Span>,
    /// Residences of each owner when it begins.
    #[arg(long, value_name = "COUNT", default_value_t = 512, value_parser = clap::value_parser!(u64).range(64..=32_768))]
    pub residences: u64,
    /// Directory for the report and the HDR logs of the run.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

impl CommonArgs {
    /// The window in which changes wait for others on purpose.
    pub fn coalescing_window(&self) -> Duration {
        self.coalesce.map_or(Duration::from_millis(2), |span| span.0)
    }
}

/// Exit code of a benchmark that ends with this.
pub fn exit_of(error: &(dyn std::error::Error + 'static)) -> Exit {
    match error.downcast_ref::<orbitkv::cluster::ClusterFailure>() {
        Some(failure) => failure.exit(),
        None if error.is::<WrongBytes>() => Exit::Unmet,
        None => Exit::Environment,
    }
}

/// An error from words.
pub fn failure(words: impl Into<String>) -> Failure {
    words.into().into()
}
