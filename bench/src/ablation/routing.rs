//! Routes as planned, against the fixed order of the index, and against the fixed order while routes are planned that
//! nobody follows: what planning gains while a source can send little, and what it costs while none is held back. The
//! work is that of `orbitkv-bench routing`.

use std::path::PathBuf;

use orbitkv::control::signals::StopSignals;
use orbitkv_native::affinity;
use serde_json::{Value, json};

use super::judgement::{Question, Sense, Trial, in_turn};
use super::{Ablation, AblationArgs, Column};
use crate::routing::plan::Plan;
use crate::routing::trial::{Ground, run};
use crate::routing::{Case, Policy, directory};
use crate::statistics::Latencies;
use crate::{Failure, machine, progress};

const SIDES: [&str; 3] = ["executed", "fixed", "shadow"];
const POLICIES: [Policy; 3] = [Policy::Executed, Policy::Fixed, Policy::Shadow];
const EXECUTED: usize = 0;
const FIXED: usize = 1;
const SHADOW: usize = 2;

/// What planning has to gain while a source is held back, and what it may cost while none is.
const GAIN_LEAST: f64 = 1.0 / 0.9;
const COST_LEAST: f64 = 1.0 / 1.05;

const COLUMNS: [Column; 5] = [
    Column { figure: "held_p50_us", title: "little egress us p50", digits: 0 },
    Column { figure: "held_p95_us", title: "p95", digits: 0 },
    Column { figure: "free_p50_us", title: "none held back us p50", digits: 0 },
    Column { figure: "free_p95_us", title: "p95", digits: 0 },
    Column { figure: "held_share", title: "of the source held back", digits: 2 },
];

/// The ablation.
pub struct Routing {
    plan: Plan,
    seed: u64,
    directory: PathBuf,
    sources_core: usize,
    reader_core: usize,
}

impl Routing {
    /// As it is asked for, in a network namespace of its own.
    ///
    /// # Errors
    /// If there are no two cores, or no directory.
    pub fn new(args: &AblationArgs) -> Result<Routing, Failure> {
        let available = affinity::available_cores()?;
        let [sources_core, .., reader_core] = available[..] else {
            return Err("nodes need two cores, one for the sources and one for the reader".into());
        };
        let directory = directory(args.dir.as_deref())?;
        Ok(Routing {
            plan: Plan::of(args.profile.into()),
            seed: args.seed,
            directory,
            sources_core,
            reader_core,
        })
    }
}

impl Ablation for Routing {
    fn sides(&self) -> &[&'static str] {
        &SIDES
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn questions(&self) -> Vec<Question> {
        let of = |gate, built, figure, least| Question {
            gate,
            built,
            other: FIXED,
            figure,
            sense: Sense::Lower,
            least,
        };
        vec![
            of("ablation_routing_gain", EXECUTED, "held_p95_us", GAIN_LEAST),
            of("ablation_routing_cost", EXECUTED, "free_p95_us", COST_LEAST),
            of("ablation_routing_shadow_cost", SHADOW, "free_p95_us", COST_LEAST),
        ]
    }

    fn settings(&self) -> Value {
        json!({
            "cores": { "sources": self.sources_core, "reader": self.reader_core },
            "disk": machine::disk_of(&self.directory),
            "sizes": self.plan,
        })
    }

    fn run(&mut self, number: usize, signals: &StopSignals) -> Result<Vec<Trial>, Failure> {
        let ground = Ground {
            directory: &self.directory,
            sources_core: self.sources_core,
            reader_core: self.reader_core,
        };
        in_turn(SIDES.len(), number, |side| {
            progress(SIDES[side]);
            let mut trial = Trial::default();
            for (case, [p50, p95]) in [
                (Case::Egress, ["held_p50_us", "held_p95_us"]),
                (Case::UncontendedDram, ["free_p50_us", "free_p95_us"]),
            ] {
                let seed = self.seed + number as u64;
                let ran = run(&self.plan, case, POLICIES[side], seed, &ground, signals)?;
                let mut ready = Latencies::new();
                ran.ready.iter().for_each(|time| ready.record(*time));
                trial.figures.extend([(p50, ready.microseconds(0.5)), (p95, ready.microseconds(0.95))]);
                if case == Case::Egress {
                    trial.figures.insert("held_share", ran.contended_share);
                }
                if side != EXECUTED && ran.planning.followed > 0 {
                    trial.fault = Some("the fixed order was left".to_owned());
                }
            }
            Ok(trial)
        })
    }
}
