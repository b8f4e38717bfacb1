//! Lesson 1, `blast-radius`: how far a failing component reaches, if it is down and if it is slow.

use orbitkv_shards::resilience::blast_radius::{Affected, BlastReport, Failure, Flow, Holds, Visit};
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::base_rates::FAILURE_SHARE_MIN;
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

/// Slots that the sensitivity asks about.
const OTHER_SLOTS: u32 = 48;
/// Milliseconds of a round that the sensitivity asks about.
const OTHER_ROUND_MS: u32 = 20;
/// Shorter slowdown that the budget is worked out for, in minutes.
const SHORTER_MIN: f64 = 5.0;
/// Components of a tree, and how deep they may lie.
const COMPONENTS_MAX: usize = 1_000;
const DEPTH_MAX: usize = 64;

/// The model.
pub struct BlastRadius;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    #[serde(rename = "slots_AY2")]
    slots: u32,
    timeout_rounds: f64,
    usual_rounds: f64,
    rounds_per_s: f64,
    flows: Vec<FlowParameters>,
    #[serde(rename = "AY3")]
    slowdowns: Slowdowns,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowParameters {
    name: String,
    /// Requests a second.
    rate: f64,
    /// `a(b,c(d))`: a calls b and then c, which calls d.
    tree: String,
}

/// How often and for how many minutes a dependency is slow in a month.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Slowdowns {
    times_per_month: f64,
    minutes: f64,
}

/// Reads `a(b,c(d))`; what is left of the text follows.
fn visit(text: &str, depth: usize) -> Result<(Visit, &str), &'static str> {
    if depth > DEPTH_MAX {
        return Err("it is deeper than 64 components");
    }
    let end = text.find(['(', ')', ',']).unwrap_or(text.len());
    let component = text[..end].trim();
    if component.is_empty() {
        return Err("a component has no name");
    }
    let mut visited = Visit { component: component.to_owned(), calls: Vec::new() };
    let Some(mut rest) = text[end..].strip_prefix('(') else { return Ok((visited, &text[end..])) };
    loop {
        let (call, after) = visit(rest, depth + 1)?;
        visited.calls.push(call);
        let after = after.trim_start();
        match (after.strip_prefix(','), after.strip_prefix(')')) {
            (Some(after), _) => rest = after,
            (_, Some(after)) => return Ok((visited, after)),
            _ => return Err("a bracket is open"),
        }
    }
}

fn tree(text: &str) -> Result<Visit, &'static str> {
    match visit(text, 0)? {
        (entry, rest) if rest.trim().is_empty() => Ok(entry),
        _ => Err("something follows the last bracket"),
    }
}

fn leaves<'a>(visit: &'a Visit, out: &mut Vec<&'a str>) {
    match visit.calls.as_slice() {
        [] => out.push(&visit.component),
        calls => calls.iter().for_each(|call| leaves(call, out)),
    }
}

fn components(visit: &Visit) -> usize {
    1 + visit.calls.iter().map(components).sum::<usize>()
}

struct Day<'a> {
    flows: &'a [Flow],
    /// Of each flow, a second.
    holds: Holds,
    slots: f64,
}

impl Day<'_> {
    fn report(&self, fault: Option<(&str, Failure)>) -> BlastReport {
        BlastReport::of(self.flows, fault, &self.holds)
    }

    fn affected(&self, parameters: &Parameters, broken: &str, failure: Failure) -> Affected {
        let report = self.report(Some((broken, failure)));
        let mut affected = report.affected(self.flows, broken, self.slots);
        // By the rates a second as they were given, so that no rounding of rates a round shows.
        affected.rate = affected.reached.iter().map(|flow| parameters.flows[*flow].rate).sum();
        affected
    }
}

fn radius_row(broken: &str, mode: &str, affected: &Affected, flows: usize) -> Row {
    Row::of("blast_radius")
        .with("component", broken)
        .with("mode", mode)
        .with("hit", affected.components)
        .with("saturated", affected.saturated.clone())
        .with("flows", affected.reached.len())
        .with("total_flows", flows)
        .rounded("affected_req_per_s", affected.rate, 2)
}

impl Model for BlastRadius {
    type Parameters = Parameters;

    const LESSON: u8 = 1;
    const TITLE: &'static str = "Failure Modes";
    const NAME: &'static str = "blast-radius";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "slots_AY2": 32, "timeout_rounds": 20, "usual_rounds": 2, "rounds_per_s": 100,
        "flows": [
            {"name": "tracking query", "rate": 416.67, "tree": "gateway(tracking-service(projection-store))"},
            {"name": "state event", "rate": 97.22, "tree": "gateway(event-endpoint(carrier-validation,state-store))"},
            {"name": "end-of-day billing", "rate": 833.33, "tree": "end-of-day-billing(state-store)"},
            {"name": "log consumption", "rate": 97.22, "tree": "log-consumer(state-store,projection-store)"}
        ],
        "AY3": {"times_per_month": 3, "minutes": 10}
    }"#;

    fn settle(parameters: &mut Parameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("slots_AY2", parameters.slots, 1..=1_000_000)?;
        within("timeout_rounds", parameters.timeout_rounds, 1.0..=1_000_000.0)?;
        within("usual_rounds", parameters.usual_rounds, 1.0..=1_000_000.0)?;
        within("rounds_per_s", parameters.rounds_per_s, 0.001..=1_000_000.0)?;
        within("flows (entries)", parameters.flows.len(), 1..=100)?;
        for (index, flow) in parameters.flows.iter().enumerate() {
            within(&format!("flows.{index}.rate"), flow.rate, 0.001..=1e9)?;
            let input = format!("flows.{index}.tree={}", flow.tree);
            let remedy = "write it like a(b,c(d)): a calls b, then c, which calls d";
            let entry = tree(&flow.tree).map_err(|limit| Refusal::new(&input, limit, remedy))?;
            holds(components(&entry) <= COMPONENTS_MAX, input, "at most 1000 components", "leave some out")?;
        }
        within("AY3.times_per_month", parameters.slowdowns.times_per_month, 0.0..=1_000_000.0)?;
        within("AY3.minutes", parameters.slowdowns.minutes, 0.0..=1_000_000.0)
    }

    fn run(parameters: &Parameters, _seed: u64) -> Outcome {
        let flow = |flow: &FlowParameters| Flow {
            rate: flow.rate / parameters.rounds_per_s,
            entry: tree(&flow.tree).expect("trees were read before"),
        };
        let flows: Vec<Flow> = parameters.flows.iter().map(flow).collect();
        let slots = f64::from(parameters.slots);
        let holds = Holds { usual: parameters.usual_rounds, own: 1.0, timeout: parameters.timeout_rounds };
        let day = Day { flows: &flows, holds, slots };
        let usual = day.report(None);
        let mut rows: Vec<Row> = Vec::new();
        for (component, occupied) in &usual.occupied {
            rows.push(Row::of("failure_free_utilization").with("component", component.as_str()).rounded(
                "utilization",
                occupied / slots,
                3,
            ));
        }
        let mut dependencies = Vec::new();
        flows.iter().for_each(|flow| leaves(&flow.entry, &mut dependencies));
        dependencies.sort_unstable();
        dependencies.dedup();
        for broken in &dependencies {
            for (mode, failure) in [("down", Failure::Down), ("slowdown", Failure::Slow)] {
                let affected = day.affected(parameters, broken, failure);
                rows.push(radius_row(broken, mode, &affected, flows.len()));
            }
        }
        let first = dependencies[0];
        let [down, slow] =
            [Failure::Down, Failure::Slow].map(|failure| day.affected(parameters, first, failure));
        rows.push(
            Row::of("ratio")
                .rounded("down_req_per_s", down.rate, 2)
                .with("down_components", down.components)
                .rounded("slowdown_req_per_s", slow.rate, 2)
                .with("slowdown_components", slow.components)
                .rounded("ratio", slow.rate / down.rate, 2),
        );
        // The entry that waits for the first dependency.
        let waits = |flow: &&Flow| {
            let mut below = Vec::new();
            leaves(&flow.entry, &mut below);
            below.contains(&first)
        };
        let entry = flows.iter().find(waits).map_or("", |flow| flow.entry.component.as_str());
        let [entry_down, entry_slow] = [Failure::Down, Failure::Slow]
            .map(|failure| day.report(Some((first, failure))).occupied_in(entry));
        rows.push(
            Row::of("gateway_utilization")
                .rounded("failure_free", usual.occupied_in(entry) / slots, 3)
                .rounded("down", entry_down / slots, 3)
                .rounded("slowdown", entry_slow / slots, 3),
        );
        let longer_rounds = f64::from(OTHER_ROUND_MS) * parameters.rounds_per_s / 1_000.0;
        rows.push(
            Row::of("sensitivity")
                .with("slots", OTHER_SLOTS)
                .rounded("slowdown_utilization", entry_slow / f64::from(OTHER_SLOTS), 3)
                .with("round_ms", OTHER_ROUND_MS)
                .rounded("slowdown_utilization_20ms", entry_slow * longer_rounds / slots, 3),
        );
        let Slowdowns { times_per_month: times, minutes } = parameters.slowdowns;
        let total = times * minutes;
        rows.push(
            Row::of("budget_AY3")
                .number("times", times)
                .number("minutes_each", minutes)
                .number("total_minutes", total)
                .rounded("share_pct", total * 100.0 / FAILURE_SHARE_MIN, 1)
                .number("failure_share_min", FAILURE_SHARE_MIN)
                .number("each_if_shorter", SHORTER_MIN)
                .rounded("share_pct_if_5min", times * SHORTER_MIN * 100.0 / FAILURE_SHARE_MIN, 1),
        );
        let seconds = total * 60.0;
        rows.push(
            Row::of("requests_AY3")
                .number("minutes", total)
                .rounded("down", down.rate * seconds, 0)
                .rounded("slowdown", slow.rate * seconds, 0)
                .rounded("difference", (slow.rate - down.rate) * seconds, 0),
        );
        Outcome { rows, generator: Fields::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_read_or_refused() {
        let read = tree("a(b, c(d),e)").expect("a tree");
        let mut below = Vec::new();
        leaves(&read, &mut below);
        assert_eq!((below, components(&read)), (vec!["b", "d", "e"], 5));
        for (text, says) in [
            ("", "no name"),
            ("a(b", "open"),
            ("a(b))", "follows"),
            ("a(,b)", "no name"),
            ("a(b)c", "follows"),
        ] {
            let error = tree(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
        let deep = "a(".repeat(100);
        assert!(tree(&deep).expect_err("too deep").contains("deeper"));
    }
}
