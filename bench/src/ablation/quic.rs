//! An own QUIC loop on each core, against stock `quinn`: the bulk read of `orbitkv-bench peer`, with processes of its own
//! for each run.

use orbitkv::control::signals::StopSignals;
use serde_json::{Value, json};

use super::judgement::{Question, Sense, Trial, UNLESS_BETTER};
use super::plan::Plan;
use super::{Ablation, AblationArgs, Column};
use crate::Failure;
use crate::peer::ends::Ends;
use crate::peer::plan::Plan as Sizes;
use crate::peer::{Passes, Way, compare, cores};

const SIDES: [&str; 2] = ["own loop", "stock quinn"];
const OWN: usize = 0;
const STOCK: usize = 1;

const COLUMNS: [Column; 3] = [
    Column { figure: "gbps", title: "GB/s", digits: 3 },
    Column { figure: "source_seconds_a_gib", title: "source CPU s/GiB", digits: 3 },
    Column { figure: "reader_seconds_a_gib", title: "reader CPU s/GiB", digits: 3 },
];

/// The ablation.
pub struct Quic {
    sizes: Sizes,
    cores: Ends<usize>,
    seed: u64,
}

impl Quic {
    /// As it is asked for.
    ///
    /// # Errors
    /// If there are no two cores.
    pub fn new(args: &AblationArgs, plan: Plan) -> Result<Quic, Failure> {
        let sizes = Sizes { pairs: plan.quic_pairs, ..Sizes::of(args.profile.into()) };
        Ok(Quic { sizes, cores: cores(args.cores.as_deref())?, seed: args.seed })
    }
}

fn trial(passes: &Passes) -> Trial {
    let Ends { source, reader } = passes.used.per_gib(passes.bytes);
    Trial::of([
        ("gbps", passes.gbps.median()),
        ("source_seconds_a_gib", source),
        ("reader_seconds_a_gib", reader),
    ])
}

impl Ablation for Quic {
    fn sides(&self) -> &[&'static str] {
        &SIDES
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn questions(&self) -> Vec<Question> {
        let of = |gate, figure, sense| Question {
            gate,
            built: OWN,
            other: STOCK,
            figure,
            sense,
            least: 1.0 / UNLESS_BETTER,
        };
        vec![
            of("ablation_quic_rate", "gbps", Sense::Higher),
            of("ablation_quic_reader", "reader_seconds_a_gib", Sense::Lower),
            of("ablation_quic_source", "source_seconds_a_gib", Sense::Lower),
        ]
    }

    fn settings(&self) -> Value {
        json!({ "cores": self.cores, "sizes": self.sizes })
    }

    /// Both sides take turns within it, pair by pair.
    fn run(&mut self, number: usize, signals: &StopSignals) -> Result<Vec<Trial>, Failure> {
        let run = compare(Way::Quic, &self.sizes, self.cores, self.seed + number as u64, signals)?;
        let mut trials = vec![trial(&run.ours), trial(&run.theirs)];
        if run.ours.bytes != run.theirs.bytes {
            let (ours, theirs) = (run.ours.bytes, run.theirs.bytes);
            trials[OWN].fault = Some(format!("only {ours} of {theirs} bytes came from the peer"));
        }
        Ok(trials)
    }
}
