//! One run: a node of its own beside its engine on one core, rounds of a fixed cadence, and what they took.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;

use orbitkv::cli::http_client::HttpClient;
use orbitkv::cluster::{Cluster, ClusterOrder, Coordination, NodeOrder};
use orbitkv::control::signals::StopSignals;
use orbitkv::quantity::ByteSize;
use orbitkv::settings::CoreList;
use orbitkv::turns::What;
use orbitkv::turns::timeline::{Request, Timeline};
use orbitkv_native::affinity;
use orbitkv_native::clock::monotonic_ns;
use serde::{Deserialize, Serialize};

use super::plan::{Plan, Side};
use crate::attempt::{Unmade, attend};
use crate::isolation::foreground::{self, BEFORE_ROUNDS, Operation, Round, Served};
use crate::isolation::schedule::Medium;
use crate::isolation::stage::{Cores, Seat, pin, unpin};
use crate::processes;
use crate::recording::Recording;
use crate::statistics::nearest_rank;

/// What the timeline says, of a run that had it on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Followed {
    /// All pages.
    pub recording: Recording,
    /// Requests that the engine had answered.
    pub requests: usize,
    /// Of those, requests without a receive, start, execute and respond in order, within the engine's own moments.
    pub unfollowed: usize,
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// With the timeline or without.
    pub side: Side,
    /// Rounds that do not count.
    pub warm_up: Vec<Round>,
    /// Rounds that do.
    pub rounds: Vec<Round>,
    /// Processor time of the node while all of them were made, in seconds.
    pub processor_seconds: f64,
    /// What the timeline says, if it was on.
    pub followed: Option<Followed>,
}

impl Run {
    /// A quantile of an operation, in nanoseconds.
    pub fn quantile(&self, operation: Operation, share: f64) -> u64 {
        let all: Vec<u64> = self.rounds.iter().map(|round| operation.of(round)).collect();
        nearest_rank(&all, share)
    }

    /// It in a line.
    pub fn told(&self) -> String {
        let of = |operation: Operation| {
            let us = |share| self.quantile(operation, share) as f64 / 1e3;
            format!("{} {:.0} and {:.0}", operation.name(), us(0.5), us(0.99))
        };
        let operations = Operation::ALL.map(of).join(", ");
        format!("p50 and p99 µs: {operations}; {:.2} s of a processor", self.processor_seconds)
    }
}

/// Makes a run.
///
/// # Errors
/// See [`Unmade`].
pub fn make(
    plan: &Plan,
    side: Side,
    cores: Cores,
    seed: u64,
    data_parent: &Path,
    signals: &StopSignals,
) -> Result<Run, Unmade> {
    let flags = match side {
        Side::Off => Vec::new(),
        Side::On => vec!["--trace-turns".to_owned()],
    };
    let node = NodeOrder {
        name: "measured".to_owned(),
        dram: ByteSize(plan.rounds.dram_bytes),
        shards: Some(1),
        cores: Some(CoreList(vec![cores.node])),
        flags,
        ..NodeOrder::default()
    };
    let order = ClusterOrder {
        nodes: vec![node],
        coordination: Coordination::Standalone,
        name: "bench".to_owned(),
        data_parent: data_parent.to_owned(),
        program: Some(processes::program()?),
    };
    // A child inherits the mask of the thread that makes it, and a node refuses cores outside of it.
    unpin(cores)?;
    let cluster = Cluster::start(&order, signals)?;
    let node = &cluster.nodes()[0];
    pin(node.process_id(), cores.node)?;
    affinity::pin_current_thread(cores.other)?;
    let moments_max = if side == Side::On { plan.rounds.requests_max() } else { 0 };
    let seat = Seat::at(node.socket().to_owned(), cores.node, seed).with_moments(moments_max);
    let client = HttpClient::new(node.http_address())?;
    if side == Side::On {
        Recording::begin(&client)?;
    }
    let before = processes::processor_time(node.process_id())?;
    let (epoch_ns, stop) = (monotonic_ns() + BEFORE_ROUNDS.as_nanos() as u64, AtomicBool::new(false));
    let engine = || foreground::run(&seat, &plan.rounds, Medium::Dram, epoch_ns, &stop);
    let served = thread::scope(|scope| attend(scope, &stop, signals, engine, || ()));
    let Served { mut rounds, moments } = served?;
    let used = processes::processor_time(node.process_id())?.saturating_sub(before);
    let followed = match side {
        Side::Off => None,
        Side::On => {
            let recording = Recording::take(&client)?;
            let mut timeline = Timeline::of(&[recording.events()]);
            timeline.join(&moments);
            let followed = timeline.requests().iter().filter(|request| is_followed(request)).count();
            let requests = moments.len();
            Some(Followed { recording, requests, unfollowed: requests.saturating_sub(followed) })
        }
    };
    let warm_up: Vec<Round> = rounds.drain(..plan.rounds.warm_up_rounds.min(rounds.len())).collect();
    Ok(Run { side, warm_up, rounds, processor_seconds: used.as_secs_f64(), followed })
}

/// Whether a request of the engine can be followed from its submit to its return.
pub fn is_followed(request: &Request) -> bool {
    let Some(engine) = &request.engine else { return false };
    let stages = [What::Receive, What::Start, What::Execute, What::Respond].map(|what| request.first(what));
    let moments: Option<Vec<u64>> = stages.into_iter().collect();
    // An answer may be with its engine before the node has noted that it went out.
    moments
        .is_some_and(|moments| moments.is_sorted() && engine.start <= moments[0] && moments[2] <= engine.end)
}
