//! Cores that park while nothing is to be done, against cores that spin: what a round trip takes, what gets done, and
//! what it costs at rest and under load. A node of one shard has one core, the engine the other.

use orbitkv::cluster::{Cluster, ClusterOrder, Coordination, NodeOrder};
use orbitkv::control::signals::StopSignals;
use orbitkv::quantity::{ByteSize, MIB};
use orbitkv::settings::CoreList;
use serde_json::{Value, json};

use super::judgement::{Question, Sense, Trial, in_turn};
use super::plan::Plan;
use super::work::{self, BLOCK_BYTES, Subject};
use super::{Ablation, AblationArgs, Column};
use crate::cores::two_cores;
use crate::{Failure, processes, progress};

const SIDES: [&str; 2] = ["park", "spin"];
const PARK: usize = 0;
const SPIN: usize = 1;

/// Parking has to spare at least nine tenths of what spinning takes at rest.
const REST_LEAST: f64 = 10.0;
/// It stays unless spinning answers in four fifths of the time, or does a tenth more.
const ANSWER_LEAST: f64 = 1.0 / 1.25;
const RATE_LEAST: f64 = 1.0 / 1.1;

const DRAM: ByteSize = ByteSize(192 * MIB);

const COLUMNS: [Column; 8] = [
    Column { figure: "ping_p50_us", title: "ping us p50", digits: 1 },
    Column { figure: "ping_p99_us", title: "p99", digits: 1 },
    Column { figure: "ask_p50_us", title: "query us p50", digits: 1 },
    Column { figure: "ask_p99_us", title: "p99", digits: 1 },
    Column { figure: "blocks_a_second", title: "blocks/s", digits: 0 },
    Column { figure: "busy_cores", title: "cores under load", digits: 3 },
    Column { figure: "block_us", title: "CPU us/block", digits: 1 },
    Column { figure: "quiet_cores", title: "cores at rest", digits: 4 },
];

/// The ablation.
pub struct Idle {
    plan: Plan,
    seed: u64,
    node_core: usize,
    engine_core: usize,
}

impl Idle {
    /// As it is asked for.
    ///
    /// # Errors
    /// If there are no two cores.
    pub fn new(args: &AblationArgs, plan: Plan) -> Result<Idle, Failure> {
        let whose = "the engine's and the node's";
        let [engine_core, node_core] =
            two_cores(args.cores.as_deref(), |available| [available.first(), available.last()], whose)?;
        Ok(Idle { plan, seed: args.seed, node_core, engine_core })
    }

    fn measure(&self, side: usize, signals: &StopSignals) -> Result<Trial, Failure> {
        let node = NodeOrder {
            name: SIDES[side].to_owned(),
            dram: DRAM,
            ssd: ByteSize(0),
            shards: Some(1),
            cores: Some(CoreList(vec![self.node_core])),
            member: None,
            flags: vec!["--idle".to_owned(), SIDES[side].to_owned()],
        };
        let order = ClusterOrder {
            nodes: vec![node],
            coordination: Coordination::Standalone,
            name: "bench".to_owned(),
            data_parent: std::env::temp_dir(),
            program: Some(processes::program()?),
        };
        let cluster = Cluster::start(&order, signals)?;
        let node = &cluster.nodes()[0];
        let subject = Subject {
            socket: node.socket(),
            process: node.process_id(),
            engine_core: Some(self.engine_core),
            engines: 1,
            seed: self.seed,
        };
        let worked = work::measure(&subject, &self.plan)?;
        Ok(Trial::of([
            ("ping_p50_us", worked.ping.microseconds(0.5)),
            ("ping_p99_us", worked.ping.microseconds(0.99)),
            ("ask_p50_us", worked.ask.microseconds(0.5)),
            ("ask_p99_us", worked.ask.microseconds(0.99)),
            ("blocks_a_second", worked.blocks_a_second),
            ("busy_cores", worked.busy_cores),
            ("block_us", worked.block_us),
            ("quiet_cores", worked.quiet_cores),
        ]))
    }
}

impl Ablation for Idle {
    fn sides(&self) -> &[&'static str] {
        &SIDES
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn questions(&self) -> Vec<Question> {
        let of =
            |gate, figure, sense, least| Question { gate, built: PARK, other: SPIN, figure, sense, least };
        vec![
            of("ablation_idle_ping", "ping_p99_us", Sense::Lower, ANSWER_LEAST),
            of("ablation_idle_query", "ask_p99_us", Sense::Lower, ANSWER_LEAST),
            of("ablation_idle_rate", "blocks_a_second", Sense::Higher, RATE_LEAST),
            of("ablation_idle_rest", "quiet_cores", Sense::Lower, REST_LEAST),
        ]
    }

    fn settings(&self) -> Value {
        json!({
            "cores": { "node": self.node_core, "engine": self.engine_core },
            "dram_bytes": DRAM.0,
            "block_bytes": BLOCK_BYTES,
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
