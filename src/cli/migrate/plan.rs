//! `orbitkv migrate plan`: in which order operations move between two layouts, what is written twice on the way,
//! where each piece of state has its one truth, and what going back takes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use orbitkv_shards::resilience::strangler::{MigrationPlan, MoveOrder, Revert, Route, RouteTable};
use serde::{Deserialize, Serialize};

use super::super::table::Table;
use super::super::{fail, say};
use crate::exit::Exit;
use crate::quantity::Span;

/// Largest file of operations.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most operations: every move looks at all that are left.
const OPERATIONS_MAX: usize = 256;
/// Most mentions of state by operations, for the same reason.
const TOUCHES_MAX: usize = 4_096;
/// Most requests or writes a day of one entry: more than 11 million a second.
const PER_DAY_MAX: u64 = 1_000_000_000_000;

/// Arguments of `orbitkv migrate plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// TOML: `[[operation]]` with `name`, `requests_per_day` and `touches`; `[writes_per_day]` by state
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What decides which operation is next
    #[arg(long, value_enum, default_value = "state")]
    order: OrderChoice,
    /// How long the new layout is written alone before a move is taken back
    #[arg(long, value_name = "SPAN", default_value = "1h")]
    revert_after: Span,
    /// Records a second that are brought back then
    #[arg(long, value_name = "RECORDS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    scan_per_s: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OrderChoice {
    /// Always what leaves the fewest writes to be made twice
    State,
    /// The busiest first
    Volume,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    operation: Vec<Operation>,
    #[serde(default)]
    writes_per_day: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Operation {
    name: String,
    requests_per_day: u64,
    touches: BTreeSet<String>,
}

/// A move, and what there is after it.
#[derive(Debug, PartialEq, Serialize)]
struct Step {
    operation: String,
    moved_share: f64,
    split: usize,
    dual_writes_per_s: f64,
    /// State whose truth is in the new layout from then on.
    truth_moved: Vec<String>,
    /// Seconds until the move is taken back: what its state got in the new layout alone is brought back first.
    revert_s: f64,
}

fn parse(text: &str) -> Result<Document, String> {
    let document: Document = toml::from_str(text).map_err(|error| error.to_string())?;
    let mut names = BTreeSet::new();
    if document.operation.is_empty() {
        return Err("it has no [[operation]]; describe at least one".to_owned());
    }
    if document.operation.len() > OPERATIONS_MAX {
        let operations = document.operation.len();
        return Err(format!("{operations} operations, and a plan has at most {OPERATIONS_MAX}; join some"));
    }
    let touches: usize = document.operation.iter().map(|operation| operation.touches.len()).sum();
    if touches > TOUCHES_MAX {
        return Err(format!("operations touch state {touches} times, and at most {TOUCHES_MAX}; join some"));
    }
    if let Some(twice) = document.operation.iter().find(|operation| !names.insert(&operation.name)) {
        return Err(format!("the operation `{}` stands there twice; name each once", twice.name));
    }
    let volumes = document.operation.iter().map(|operation| (&operation.name, operation.requests_per_day));
    let mut rates =
        volumes.clone().chain(document.writes_per_day.iter().map(|(state, writes)| (state, *writes)));
    if let Some((name, rate)) = rates.find(|(_, rate)| *rate > PER_DAY_MAX) {
        return Err(format!(
            "`{name}` has {rate} a day, and at most {PER_DAY_MAX} are planned with; lower it"
        ));
    }
    if volumes.map(|(_, volume)| volume).sum::<u64>() == 0 {
        return Err("no operation has any requests_per_day; give those that are asked for some".to_owned());
    }
    for operation in &document.operation {
        if let Some(state) =
            operation.touches.iter().find(|state| !document.writes_per_day.contains_key(*state))
        {
            let name = &operation.name;
            return Err(format!(
                "`{name}` touches `{state}`, of which [writes_per_day] says nothing; write 0 there if nobody writes it"
            ));
        }
    }
    let is_touched =
        |state: &&String| document.operation.iter().any(|operation| operation.touches.contains(*state));
    match document.writes_per_day.keys().find(|state| !is_touched(state)) {
        Some(state) => {
            Err(format!("[writes_per_day] has `{state}`, which no operation touches; correct or drop it"))
        }
        None => Ok(document),
    }
}

fn read(file: &Path) -> Result<Document, String> {
    let size = std::fs::metadata(file).map_err(|error| error.to_string())?.len();
    if size > FILE_BYTES_MAX {
        return Err(format!("{size} bytes, and a plan has at most {FILE_BYTES_MAX}"));
    }
    parse(&std::fs::read_to_string(file).map_err(|error| error.to_string())?)
}

fn steps(document: Document, order: MoveOrder, revert_after_s: f64, scan_per_s: f64) -> Vec<Step> {
    let writes = document.writes_per_day;
    let routes = document.operation.into_iter().map(|operation| Route {
        name: operation.name,
        volume: operation.requests_per_day,
        touches: operation.touches,
    });
    let plan = MigrationPlan::new(routes.collect(), writes.clone());
    let mut table = RouteTable::new(plan.clone());
    let order = plan.order(order);
    let step = |step: orbitkv_shards::resilience::strangler::MigrationStep| {
        let truth_moved = table.flip(step.route).truth_moved;
        let writes_per_day: u64 = truth_moved.iter().filter_map(|entity| writes.get(entity)).sum();
        Step {
            operation: plan.routes()[step.route].name.clone(),
            moved_share: step.moved_share,
            split: step.split_entities,
            dual_writes_per_s: step.dual_writes_per_s,
            revert_s: Revert::after(revert_after_s, writes_per_day as f64, scan_per_s).seconds,
            truth_moved,
        }
    };
    plan.steps(&order).into_iter().map(step).collect()
}

/// Runs the command.
#[must_use]
pub fn run(args: &PlanArgs) -> ExitCode {
    let document = match read(&args.file) {
        Ok(document) => document,
        Err(why) => return fail(Exit::Usage, &format!("{}: {why}", args.file.display())),
    };
    let order = match args.order {
        OrderChoice::State => MoveOrder::State,
        OrderChoice::Volume => MoveOrder::Volume,
    };
    let steps = steps(document, order, args.revert_after.0.as_secs_f64(), f64::from(args.scan_per_s));
    if args.json {
        say(&serde_json::json!({"steps": steps}).to_string());
        return Exit::Done.into();
    }
    let mut table = Table::new(["move", "moved", "split", "dual writes/s", "truth moves", "revert"]);
    for step in steps {
        table.row([
            step.operation,
            format!("{:.1} %", step.moved_share * 100.0),
            step.split.to_string(),
            format!("{:.2}", step.dual_writes_per_s),
            step.truth_moved.join(" "),
            format!("{:.1} s", step.revert_s),
        ]);
    }
    say(&table.to_string());
    Exit::Done.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
        [[operation]]
        name = \"query\"
        requests_per_day = 900
        touches = [\"blocks\"]
        [[operation]]
        name = \"save\"
        requests_per_day = 100
        touches = [\"blocks\", \"journal\"]
        [writes_per_day]
        blocks = 86400
        journal = 172800
    ";

    #[test]
    fn each_move_says_what_is_written_twice_and_what_going_back_takes() {
        let steps = steps(parse(FILE).expect("a plan"), MoveOrder::State, 60.0, 10.0);
        let query = Step {
            operation: "query".to_owned(),
            moved_share: 0.9,
            split: 1,
            dual_writes_per_s: 1.0,
            truth_moved: Vec::new(),
            revert_s: 0.0,
        };
        let save = Step {
            operation: "save".to_owned(),
            moved_share: 1.0,
            split: 0,
            dual_writes_per_s: 0.0,
            truth_moved: vec!["blocks".to_owned(), "journal".to_owned()],
            revert_s: 18.0,
        };
        assert_eq!(steps, [query, save]);
    }

    #[test]
    fn a_file_that_is_no_plan_is_refused_by_what_is_wrong_with_it() {
        let without_requests = FILE.replace("= 900", "= 0").replace("= 100", "= 0");
        let refused = [
            ("".to_owned(), "missing field `operation`"),
            ("operation = []".to_owned(), "describe at least one"),
            (FILE.replace("save", "query"), "`query` stands there twice"),
            (FILE.replace("touches", "touch"), "unknown field `touch`"),
            (without_requests, "no operation has any requests_per_day"),
            (
                FILE.replace("journal = ", "jurnal = "),
                "touches `journal`, of which [writes_per_day] says nothing",
            ),
            (
                FILE.replace("[writes_per_day]", "[writes_per_day]\nlog = 1"),
                "has `log`, which no operation touches",
            ),
            (FILE.replace("= 86400", &format!("= {}", PER_DAY_MAX + 1)), "`blocks` has 1000000000001 a day"),
            (
                (0..257)
                    .map(|n| format!("[[operation]]\nname = \"{n}\"\nrequests_per_day = 1\ntouches = []\n"))
                    .collect(),
                "257 operations",
            ),
        ];
        for (text, why) in refused {
            let refusal = parse(&text).err().unwrap_or_else(|| panic!("taken: {text}"));
            assert!(refusal.contains(why), "{refusal}");
        }
    }
}
