//! Waiting for other changes before they are told: 2 ms as nodes do, against not at all and against 5 ms, while the same
//! blocks change over and over. The work is that of `orbitkv-bench coalescing`.

use std::time::Duration;

use orbitkv::control::signals::StopSignals;
use serde_json::{Value, json};

use super::judgement::{Question, Sense, Trial, in_turn};
use super::{Ablation, AblationArgs, Column, run_args};
use crate::Failure;
use crate::coalescing::plan::{PERIOD, Plan};
use crate::coalescing::{Run, cluster};
use crate::streams::RunArgs;

const SIDES: [&str; 3] = ["2 ms", "0 ms", "5 ms"];
const WINDOWS: [Duration; 3] = [Duration::from_millis(2), Duration::ZERO, Duration::from_millis(5)];
const OWN: usize = 0;
const NONE: usize = 1;
const LONGER: usize = 2;

/// 2 ms have to spare four fifths of the bytes.
const SPARED_LEAST: f64 = 5.0;
/// They stay unless 5 ms spare another fifth of what is left.
const LONGER_LEAST: f64 = 1.0 / 1.25;
/// A change may be seen in two and a half times the time.
const SEEN_LEAST: f64 = 1.0 / 2.5;

const RESIDENCES: u64 = 512;

const COLUMNS: [Column; 5] = [
    Column { figure: "delta_bytes", title: "delta bytes", digits: 0 },
    Column { figure: "records_told", title: "records told", digits: 0 },
    Column { figure: "seen_p50_ms", title: "seen ms p50", digits: 2 },
    Column { figure: "seen_p99_ms", title: "p99", digits: 2 },
    Column { figure: "node_cores", title: "node cores", digits: 3 },
];

/// The ablation.
pub struct Coalesce {
    args: RunArgs,
    plan: Plan,
}

impl Coalesce {
    /// As it is asked for.
    pub fn new(args: &AblationArgs) -> Coalesce {
        Coalesce { args: run_args(args, args.managers, RESIDENCES), plan: Plan::of(args.profile) }
    }
}

/// What a cluster came to.
fn trial(run: &Run) -> Trial {
    let mut trial = Trial::of([
        ("delta_bytes", run.sent.delta_bytes as f64),
        ("records_told", run.sent.records_told as f64),
        ("node_cores", run.processors["node_cores"].as_f64().unwrap_or(0.0)),
    ]);
    trial.wrong = run.convergence.faults() + run.etcd_writes;
    match &run.visibility {
        Ok(seen) => trial
            .figures
            .extend([("seen_p50_ms", seen.milliseconds(0.5)), ("seen_p99_ms", seen.milliseconds(0.99))]),
        Err(why) => trial.fault = Some(why.clone()),
    }
    if let Err(why) = &run.sessions {
        trial.fault = Some(why.clone());
    }
    trial
}

impl Ablation for Coalesce {
    fn sides(&self) -> &[&'static str] {
        &SIDES
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn questions(&self) -> Vec<Question> {
        let of = |gate, other, figure, least| Question {
            gate,
            built: OWN,
            other,
            figure,
            sense: Sense::Lower,
            least,
        };
        vec![
            of("ablation_coalesce_bytes", NONE, "delta_bytes", SPARED_LEAST),
            of("ablation_coalesce_seen", NONE, "seen_p99_ms", SEEN_LEAST),
            of("ablation_coalesce_longer_bytes", LONGER, "delta_bytes", LONGER_LEAST),
        ]
    }

    fn settings(&self) -> Value {
        json!({
            "managers": self.args.managers,
            "residences": self.args.residences,
            "period_ms": PERIOD.as_millis() as u64,
            "sizes": self.plan,
        })
    }

    fn run(&mut self, number: usize, signals: &StopSignals) -> Result<Vec<Trial>, Failure> {
        in_turn(SIDES.len(), number, |side| {
            Ok(trial(&cluster(&self.args, &self.plan, WINDOWS[side], signals)?))
        })
    }
}
