//! What benchmarks of inventory streams have in common: a cluster of real nodes with an engine at each, changes in
//! bursts, samples of when they were published and seen, and what makes a run worth nothing.

pub mod background;
pub mod barriers;
pub mod cadence;
pub mod convergence;
pub mod coordinator;
pub mod distribution;
pub mod keys;
pub mod outlet;
pub mod overflow;
pub mod owner;
pub mod owners;
pub mod samples;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use orbitkv::cluster::ClusterFailure;
use orbitkv::control::signals::StopSignals;
use orbitkv::quantity::{QuantityError, Span};
use orbitkv_shards::inventory::publisher::COALESCING_WINDOW_MAX;

use crate::Failure;
use crate::profile::FormalProfile;

/// Longest wait for one answer of a node.
pub const WAIT: Duration = Duration::from_secs(10);

/// What every such benchmark is told.
#[derive(Args)]
pub struct RunArgs {
    /// Nodes, each of one shard; all of them save and all observe.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub managers: u16,
    /// `formal` and `dense` qualify; `ci` runs the same for seconds and qualifies nothing.
    #[arg(long, value_enum, default_value_t = FormalProfile::Formal)]
    pub profile: FormalProfile,
    /// Seed of payloads, of the order of owners and of offsets.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How long a change may wait for others before it is told [default: the node's own, 2ms].
    #[arg(long, value_name = "SPAN", value_parser = coalescing_window)]
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

/// A window that a node takes.
fn coalescing_window(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error: QuantityError| error.to_string())?;
    match span.0 > COALESCING_WINDOW_MAX {
        true => Err(format!("a node waits for at most {}; write 2ms", Span(COALESCING_WINDOW_MAX))),
        false => Ok(span),
    }
}

impl RunArgs {
    /// The window in which changes wait for others on purpose.
    pub fn coalescing_window(&self) -> Duration {
        self.coalesce.map_or(Duration::from_millis(2), |span| span.0)
    }
}

/// Waits that long, and refuses to go on if somebody asks this program to end.
///
/// # Errors
/// That it was stopped.
pub fn pause(longest: Duration, signals: &StopSignals) -> Result<(), Failure> {
    match signals.wait(longest) {
        Some(signal) => Err(ClusterFailure::Stopped { signal }.into()),
        None => Ok(()),
    }
}

/// An error from words.
pub fn failure(words: impl Into<String>) -> Failure {
    words.into().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_no_node_takes_is_refused_with_the_limit() {
        for (text, window) in [("0ms", 0), ("2ms", 2_000), ("500us", 500), ("5ms", 5_000)] {
            assert_eq!(coalescing_window(text), Ok(Span(Duration::from_micros(window))));
        }
        let refused = coalescing_window("6ms").expect_err("too long");
        assert!(refused.contains("at most 5ms"), "{refused}");
        assert!(coalescing_window("2").is_err() && coalescing_window("").is_err());
    }
}
