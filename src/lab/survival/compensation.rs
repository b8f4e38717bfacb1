//! Lesson 16: work that is taken back, `compensation` run by run and `compensation-cost` in sum.

use orbitkv_shards::resilience::compensation::{Ordering, StepDeclaration, Workflow, WorkflowFault};
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::generators::{Generator, Kind};
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

const SEEDING: Seeding = Seeding {
    kind: Kind::Mixed,
    seed: 20_260_730,
    notes: &[
        ("reseed", "for each attempts value"),
        ("draws", "one per compensation call, in reverse step order"),
    ],
};

/// The model `compensation`.
pub struct Compensation;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    steps: Vec<Step>,
    #[serde(rename = "compensation_failure_DD5")]
    failure: f64,
    runs: u32,
    attempts: Vec<u32>,
    failing_step: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    name: String,
    compensable: bool,
    requires: Vec<String>,
}

const PARAMETERS: &str = r#"{
    "steps": [
        {"name": "close-period", "compensable": false, "requires": []},
        {"name": "invoice-line", "compensable": true, "requires": ["close-period"]},
        {"name": "collection-entry", "compensable": true, "requires": ["invoice-line"]},
        {"name": "seller-notification", "compensable": false, "requires": ["invoice-line"]}
    ],
    "compensation_failure_DD5": 0.05, "runs": 100000, "attempts": [1, 2, 3],
    "failing_step": "i mod 4 completed steps"
}"#;

impl Parameters {
    fn workflow(&self) -> Result<Workflow, WorkflowFault> {
        let declare = |step: &Step| StepDeclaration {
            name: step.name.clone(),
            compensable: step.compensable,
            requires: step.requires.clone(),
        };
        Workflow::choose(self.steps.iter().map(declare).collect())
    }

    fn checked_workflow(&self) -> Workflow {
        self.workflow().expect("the steps were checked before the run")
    }
}

fn names(workflow: &Workflow, places: &[usize]) -> String {
    places.iter().map(|place| workflow.step(*place).name.as_str()).collect::<Vec<_>>().join(" > ")
}

fn failing_rows(workflow: &Workflow) -> Vec<Row> {
    let row = |(completed, place): (usize, &usize)| {
        let rollback = workflow.rollback(completed, 1, |_| true);
        Row::of("failing_step")
            .with("step", completed + 1)
            .with("name", workflow.step(*place).name.as_str())
            .with("completed", completed)
            .with("compensated", rollback.compensated.len())
            .with("uncompensated", rollback.uncompensated.len())
            .with("rollback_rounds", rollback.rounds)
    };
    workflow.order().iter().enumerate().map(row).collect()
}

impl Model for Compensation {
    type Parameters = Parameters;

    const LESSON: u8 = 16;
    const TITLE: &'static str = "Compensating Transactions";
    const NAME: &'static str = "compensation";
    const SEEDING: Option<Seeding> = Some(SEEDING);
    const PARAMETERS: &'static str = PARAMETERS;

    fn settle(parameters: &mut Parameters, given: &Given<'_>) -> Result<(), Refusal> {
        within("compensation_failure_DD5", parameters.failure, 0.0..=1.0)?;
        within("runs", parameters.runs, 1..=1_000_000)?;
        within("attempts (entries)", parameters.attempts.len(), 0..=16)?;
        parameters.attempts.iter().try_for_each(|attempts| within("attempts", *attempts, 1..=100))?;
        if !given.names("failing_step") {
            parameters.failing_step = format!("i mod {} completed steps", parameters.steps.len());
        }
        let refuse =
            |fault: WorkflowFault| Refusal::new("steps", fault.to_string(), "declare them so that they fit");
        parameters.workflow().map(drop).map_err(refuse)
    }

    fn run(parameters: &Parameters, seed: u64) -> Outcome {
        let workflow = parameters.checked_workflow();
        let orders = workflow.valid_orders();
        let mut rows =
            vec![Row::of("orderings").with("total", workflow.orders_total()).with("valid", orders.len())];
        for Ordering { steps, uncompensated, rounds } in &orders {
            rows.push(
                Row::of("valid_orderings")
                    .with("ordering", names(&workflow, steps))
                    .with("uncompensated", *uncompensated)
                    .with("rounds", *rounds),
            );
        }
        rows.extend(failing_rows(&workflow));
        rows.push(
            Row::of("setup_DD5")
                .with("runs", parameters.runs)
                .number("compensation_failure", parameters.failure),
        );
        let mut checkpoints = Vec::new();
        for attempts in &parameters.attempts {
            let mut generator = Generator::new(Kind::Mixed, seed);
            let (mut stuck, mut calls, mut rounds) = (0_u64, 0, 0);
            for run in 0..parameters.runs as usize {
                let completed = run % workflow.order().len();
                let rollback =
                    workflow.rollback(completed, *attempts, |_| !generator.happens(parameters.failure));
                stuck += u64::from(rollback.is_stuck());
                calls += rollback.calls;
                rounds += rollback.rounds;
            }
            let each = |sum: u64| sum as f64 / f64::from(parameters.runs);
            rows.push(
                Row::of("attempts")
                    .with("attempts", *attempts)
                    .with("stuck_jobs", stuck)
                    .rounded("ratio", each(stuck), 5)
                    .rounded("calls_per_job", each(calls), 3)
                    .rounded("avg_rollback_rounds", each(rounds), 3),
            );
            checkpoints.push(Fields::new().with("attempts", *attempts).with_generator(&generator));
        }
        Outcome { rows, generator: Fields::new().with("checkpoints", checkpoints) }
    }
}

/// The model `compensation-cost`.
pub struct Cost;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostParameters {
    invoice_lines_per_day: f64,
    #[serde(rename = "failure_rate_KK2")]
    failure_rate: f64,
    #[serde(rename = "round_s_DD6")]
    round_s: f64,
    #[serde(rename = "stuck_hours_DD7")]
    stuck_hours: f64,
    measured: Vec<Measured>,
}

/// Attempts, the part of runs that got stuck, and rounds of a run, as the other model printed them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Measured(u32, f64, f64);

/// Days of a year.
const YEAR_DAYS: f64 = 365.0;

/// A longer round, to see how much its length decides.
const LONG_ROUND_S: f64 = 1.0;

/// What rolling back costs with one number of attempts.
struct DailyCost {
    stuck: f64,
    rollback_s: f64,
    intermediate_s: f64,
    stuck_h: f64,
}

impl CostParameters {
    fn failed_per_day(&self) -> f64 {
        self.invoice_lines_per_day * self.failure_rate
    }

    fn cost(&self, Measured(_, stuck_ratio, rounds): Measured, round_s: f64) -> DailyCost {
        let failed = self.failed_per_day();
        let stuck = failed * stuck_ratio;
        let rollback_s = rounds * round_s;
        DailyCost {
            stuck,
            rollback_s,
            intermediate_s: failed * rollback_s,
            stuck_h: stuck * self.stuck_hours,
        }
    }
}

impl DailyCost {
    /// How many times longer state is wrong because something is stuck than because it is being taken back.
    fn factor(&self) -> Option<f64> {
        (self.intermediate_s > 0.0).then(|| self.stuck_h * 3_600.0 / self.intermediate_s)
    }
}

impl Model for Cost {
    type Parameters = CostParameters;

    const LESSON: u8 = 16;
    const TITLE: &'static str = "Compensating Transactions";
    const NAME: &'static str = "compensation-cost";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "invoice_lines_per_day": 4000, "failure_rate_KK2": 0.02, "round_s_DD6": 0.25, "stuck_hours_DD7": 4,
        "measured": [[1, 0.03724, 1.5], [2, 0.00214, 1.538], [3, 0.00008, 1.54]]
    }"#;

    fn settle(parameters: &mut CostParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("invoice_lines_per_day", parameters.invoice_lines_per_day, 0.001..=1e12)?;
        within("failure_rate_KK2", parameters.failure_rate, 0.0..=1.0)?;
        within("round_s_DD6", parameters.round_s, 0.0..=86_400.0)?;
        within("stuck_hours_DD7", parameters.stuck_hours, 0.0..=1e6)?;
        within("measured (entries)", parameters.measured.len(), 1..=16)?;
        for Measured(attempts, stuck, rounds) in &parameters.measured {
            within("measured (attempts)", *attempts, 1..=100)?;
            within("measured (stuck)", *stuck, 0.0..=1.0)?;
            within("measured (rounds)", *rounds, 0.0..=1e6)?;
        }
        Ok(())
    }

    fn run(parameters: &CostParameters, _seed: u64) -> Outcome {
        let published: Parameters = serde_json::from_str(PARAMETERS).expect("the published parameters");
        let workflow = published.checked_workflow();
        let failed = parameters.failed_per_day();
        let steps = workflow.order().len() as f64;
        let mut rows = vec![
            Row::of("daily")
                .number("workflows", parameters.invoice_lines_per_day)
                .number("kk2", parameters.failure_rate)
                .number("failed", failed),
        ];
        let orders = workflow.valid_orders();
        for (ordering, order) in ["notification last", "notification third"].iter().zip(&orders) {
            let uncompensated = failed * order.uncompensated as f64 / steps;
            rows.push(
                Row::of("ordering")
                    .with("ordering", *ordering)
                    .rounded("uncompensated_per_day", uncompensated, 1)
                    .rounded("per_year", uncompensated * YEAR_DAYS, 0),
            );
        }
        for measured in &parameters.measured {
            let cost = parameters.cost(*measured, parameters.round_s);
            rows.push(
                Row::of("attempts")
                    .with("attempts", measured.0)
                    .rounded("stuck_per_day", cost.stuck, 3)
                    .rounded("per_year", cost.stuck * YEAR_DAYS, 0)
                    .rounded("rollback_s", cost.rollback_s, 3)
                    .rounded("intermediate_s_per_day", cost.intermediate_s, 1)
                    .rounded("stuck_h_per_day", cost.stuck_h, 3),
            );
        }
        let once = parameters.measured[0];
        let long = parameters.cost(once, LONG_ROUND_S);
        rows.push(Row::of("ratio").rounded("factor", parameters.cost(once, parameters.round_s).factor(), 0));
        rows.push(
            Row::of("sensitivity_DD6")
                .number("round_s", LONG_ROUND_S)
                .number("base_round_s", parameters.round_s)
                .rounded("intermediate_s_per_day", long.intermediate_s, 1)
                .rounded("factor", long.factor(), 0),
        );
        let compensable = workflow.order().iter().filter(|place| workflow.step(**place).compensable).count();
        let calls: u64 = (0..workflow.order().len())
            .map(|completed| workflow.rollback(completed, 1, |_| true).calls)
            .sum();
        let calls_per_day = failed * (calls as f64 / steps);
        rows.push(
            Row::of("failure_free_cost")
                .with("compensation_steps", compensable)
                .with("steps", workflow.order().len())
                .number("paths_per_day", parameters.invoice_lines_per_day * compensable as f64)
                .rounded("calls_per_day", calls_per_day, 0)
                .rounded("calls_per_workflow", calls_per_day / parameters.invoice_lines_per_day, 4),
        );
        Outcome { rows, generator: Fields::new() }
    }
}
