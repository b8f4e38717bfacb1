//! Two shards of a node on two cores, against one: what two engines get done at a node that another one follows, and how
//! soon a fence behind a burst is met there. Source and follower have a core each, or both of them two shards on both.

use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::cluster::{Cluster, ClusterOrder, Coordination, MemberOrder, NodeOrder};
use orbitkv::control::signals::StopSignals;
use orbitkv::quantity::{ByteSize, MIB};
use orbitkv::settings::CoreList;
use orbitkv_native::clock::monotonic_ns;
use serde_json::{Value, json};

use super::judgement::{Question, Sense, Trial, in_turn};
use super::plan::{PERIOD, Plan};
use super::work::{self, BLOCK_BYTES, Subject};
use super::{Ablation, AblationArgs, Column};
use crate::cores::two_cores;
use crate::statistics::Latencies;
use crate::streams::barriers;
use crate::streams::keys::Keys;
use crate::streams::owner::Owner;
use crate::streams::pause;
use crate::{Failure, processes, progress};

const SIDES: [&str; 2] = ["2 shards", "1 shard"];
const TWO: usize = 0;
const ONE: usize = 1;

/// More shards have to do a twentieth more, and may not be seen later than by a quarter.
const RATE_LEAST: f64 = 1.05;
const SEEN_LEAST: f64 = 1.0 / 1.25;

const DRAM: ByteSize = ByteSize(192 * MIB);
const MEMBER: MemberOrder = MemberOrder {
    journal: ByteSize(16 * MIB),
    index: ByteSize(64 * MIB),
    receive: ByteSize(64 * MIB),
    shares_memory: false,
};
const ENGINES: u64 = 2;
const COMPLETE_WAIT: Duration = Duration::from_secs(60);
/// Changes of a burst, and blocks before the first.
const CHANGES: u64 = 64;
const RESIDENCES: u64 = 512;

const COLUMNS: [Column; 8] = [
    Column { figure: "blocks_a_second", title: "blocks/s", digits: 0 },
    Column { figure: "block_us", title: "CPU us/block", digits: 1 },
    Column { figure: "busy_cores", title: "cores under load", digits: 3 },
    Column { figure: "quiet_cores", title: "cores at rest", digits: 4 },
    Column { figure: "ask_p50_us", title: "query us p50", digits: 1 },
    Column { figure: "ask_p99_us", title: "p99", digits: 1 },
    Column { figure: "fence_p50_ms", title: "fence ms p50", digits: 2 },
    Column { figure: "fence_p99_ms", title: "p99", digits: 2 },
];

/// The ablation.
pub struct Shards {
    plan: Plan,
    seed: u64,
    cores: [usize; 2],
}

impl Shards {
    /// As it is asked for.
    ///
    /// # Errors
    /// If there are no two cores.
    pub fn new(args: &AblationArgs, plan: Plan) -> Result<Shards, Failure> {
        let whose = "which both nodes share, or have one of each";
        let cores =
            two_cores(args.cores.as_deref(), |available| [available.first(), available.last()], whose)?;
        Ok(Shards { plan, seed: args.seed, cores })
    }

    fn measure(&self, side: usize, signals: &StopSignals) -> Result<Trial, Failure> {
        let node = |name: &str, at: usize| NodeOrder {
            name: name.to_owned(),
            dram: DRAM,
            ssd: ByteSize(0),
            shards: Some(if side == TWO { 2 } else { 1 }),
            cores: Some(CoreList(if side == TWO { self.cores.to_vec() } else { vec![self.cores[at]] })),
            member: Some(MEMBER),
            flags: Vec::new(),
        };
        let order = ClusterOrder {
            nodes: vec![node("source", 0), node("follower", 1)],
            coordination: Coordination::Started,
            name: "bench".to_owned(),
            data_parent: std::env::temp_dir(),
            program: Some(processes::program()?),
        };
        let mut cluster = Cluster::start(&order, signals)?;
        cluster.await_complete(COMPLETE_WAIT, signals)?;
        let [source, follower] = [0, 1].map(|at| HttpClient::new(cluster.nodes()[at].http_address()));
        let fences = self.fences(&cluster, &source?, &follower?, signals)?;
        let node = &cluster.nodes()[0];
        let subject = Subject {
            socket: node.socket(),
            process: node.process_id(),
            engine_core: None,
            engines: ENGINES,
            seed: self.seed,
        };
        let worked = work::measure(&subject, &self.plan)?;
        Ok(Trial::of([
            ("blocks_a_second", worked.blocks_a_second),
            ("block_us", worked.block_us),
            ("busy_cores", worked.busy_cores),
            ("quiet_cores", worked.quiet_cores),
            ("ask_p50_us", worked.ask.microseconds(0.5)),
            ("ask_p99_us", worked.ask.microseconds(0.99)),
            ("fence_p50_ms", fences.microseconds(0.5) / 1e3),
            ("fence_p99_ms", fences.microseconds(0.99) / 1e3),
        ]))
    }

    /// From the end of a burst until the follower is proved to have all of it, on every shard.
    fn fences(
        &self,
        cluster: &Cluster,
        source: &HttpClient,
        follower: &HttpClient,
        signals: &StopSignals,
    ) -> Result<Latencies, Failure> {
        let keys = Keys::none(self.seed, 1);
        let mut owner = Owner::start(cluster.nodes()[0].socket(), keys, self.seed, RESIDENCES)?;
        let mut fences = Latencies::new();
        for number in 0..=self.plan.fences {
            owner.burst(0, CHANGES, monotonic_ns())?;
            let made = Instant::now();
            barriers::serial(source, std::iter::once(follower))?;
            // The first one meets what was there before.
            if number > 0 {
                fences.record(made.elapsed());
            }
            pause(PERIOD, signals)?;
        }
        Ok(fences)
    }
}

impl Ablation for Shards {
    fn sides(&self) -> &[&'static str] {
        &SIDES
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn questions(&self) -> Vec<Question> {
        let of = |gate, figure, sense, least| Question { gate, built: TWO, other: ONE, figure, sense, least };
        vec![
            of("ablation_shards_rate", "blocks_a_second", Sense::Higher, RATE_LEAST),
            of("ablation_shards_query", "ask_p99_us", Sense::Lower, SEEN_LEAST),
            of("ablation_shards_seen", "fence_p99_ms", Sense::Lower, SEEN_LEAST),
        ]
    }

    fn settings(&self) -> Value {
        json!({
            "cores": self.cores,
            "engines": ENGINES,
            "dram_bytes": DRAM.0,
            "block_bytes": BLOCK_BYTES,
            "changes_per_burst": CHANGES,
            "sizes": self.plan,
        })
    }

    fn run(&mut self, number: usize, signals: &StopSignals) -> Result<Vec<Trial>, Failure> {
        in_turn(SIDES.len(), number, |side| {
            progress(SIDES[side]);
            self.measure(side, signals)
        })
    }
}
