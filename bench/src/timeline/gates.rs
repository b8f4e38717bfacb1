//! The three limits of chapter 6.7, judged over pairs of runs.

use orbitkv::cli::table::Table;
use serde_json::{Value, json};

use super::plan::{P50_RATIO_MAX, P99_LATER_MS_MAX, PROCESSOR_RATIO_MAX, Plan, Side};
use super::run::Run;
use crate::isolation::foreground::Operation;
use crate::isolation::stage::Cores;
use crate::machine;
use crate::profile::FormalProfile;
use crate::report::{Gate, Report};
use crate::resampling::{Mean, mean_difference, mean_of};

/// Share of all drawings that a bound holds for.
const CONFIDENCE: f64 = 0.95;

/// Runs without and with the timeline, pair by pair.
fn pairs(runs: &[Run]) -> Vec<(&Run, &Run)> {
    let in_order = runs.chunks_exact(2).map(|pair| match pair[0].side {
        Side::Off => (&pair[0], &pair[1]),
        Side::On => (&pair[1], &pair[0]),
    });
    in_order.collect()
}

/// A gate on a mean: its upper bound counts, and a limit between both bounds is not decided here.
fn judged(gate: Gate, mean: Mean, limit: f64) -> Gate {
    let gate = gate.at_most(limit).value(mean.upper);
    match mean.lower <= limit && limit < mean.upper {
        true => gate.invalid(format!(
            "not resolvable here: the mean is between {:.3} and {:.3}, on both sides of the limit",
            mean.lower, mean.upper
        )),
        false => gate,
    }
}

/// What all runs say together.
pub fn report(
    profile: FormalProfile,
    seed: u64,
    plan: &Plan,
    cores: Cores,
    runs: &[Run],
    load: Value,
) -> Report {
    let pairs = pairs(runs);
    let ratio =
        |of: &dyn Fn(&Run) -> f64| -> Vec<f64> { pairs.iter().map(|(off, on)| of(on) / of(off)).collect() };
    let mut table = Table::new(["operation", "p50 ratio", "up to", "p99 later ms", "up to"]);
    let (mut medians, mut tails) = (Vec::new(), Vec::new());
    for operation in Operation::ALL {
        let medians_of = ratio(&|run| run.quantile(operation, 0.5) as f64);
        let milliseconds = |run: &Run| run.quantile(operation, 0.99) as f64 / 1e6;
        let later: Vec<f64> = pairs.iter().map(|(off, on)| milliseconds(on) - milliseconds(off)).collect();
        let (median, tail) = (mean_of(&medians_of, CONFIDENCE), mean_difference(&later, CONFIDENCE));
        table.row([
            operation.name().to_owned(),
            format!("{:.3}", median.mean),
            format!("{:.3}", median.upper),
            format!("{:.3}", tail.mean),
            format!("{:.3}", tail.upper),
        ]);
        medians.push((operation, median, medians_of));
        tails.push((operation, tail, later));
    }
    let worst = |all: &[(Operation, Mean, Vec<f64>)]| {
        let (operation, mean, raw) =
            all.iter().max_by(|a, b| a.1.upper.total_cmp(&b.1.upper)).expect("there are operations");
        let raw =
            json!({ "operation": operation.name(), "mean": mean.mean, "lower": mean.lower, "raw": raw });
        (*mean, raw)
    };
    let gate = |name: &'static str| Gate::new(name, profile, seed).against("timeline off", None);
    let (median, median_raw) = worst(&medians);
    let (tail, tail_raw) = worst(&tails);
    let processor_ratios = ratio(&|run| run.processor_seconds);
    let processor = mean_of(&processor_ratios, CONFIDENCE);
    let processor_raw = json!({ "mean": processor.mean, "lower": processor.lower, "raw": processor_ratios });
    let followed = || runs.iter().filter_map(|run| run.followed.as_ref());
    let unfollowed: usize = followed().map(|followed| followed.unfollowed).sum();
    let requests: usize = followed().map(|followed| followed.requests).sum();
    let lost: u64 = followed().map(|followed| followed.recording.lost).sum();
    let mut gates = vec![
        judged(gate("timeline_p50"), median, P50_RATIO_MAX).details(median_raw),
        judged(gate("timeline_p99_later_ms"), tail, P99_LATER_MS_MAX).details(tail_raw),
        judged(gate("timeline_processor"), processor, PROCESSOR_RATIO_MAX).details(processor_raw),
    ];
    if lost > 0 {
        let why = format!("{lost} events found no room: the runs prove nothing");
        gates = gates.into_iter().map(|gate| gate.invalid(why.clone())).collect();
    }
    gates.push(
        Gate::new("timeline_unfollowed", profile, seed)
            .against("requests of the engine", Some(requests as f64))
            .none_ever(unfollowed as u64 + lost),
    );
    Report {
        name: "timeline",
        profile: profile.into(),
        seed,
        machine: machine::describe(),
        figures: table.to_string(),
        gates,
        settings: json!({
            "plan": plan,
            "cores": cores,
            "confidence": CONFIDENCE,
            "events": followed().map(|followed| followed.recording.events().events.len()).collect::<Vec<_>>(),
            "machine_load": load,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolation::foreground::Round;
    use crate::recording::Recording;
    use crate::timeline::run::Followed;

    fn run(side: Side, us: u64, processor_seconds: f64) -> Run {
        let rounds = (1..=100).map(|at| {
            let begin = at * 1_000_000;
            let step = us * 1_000;
            Round::from([begin, begin, begin + step, begin + step, begin + 2 * step, begin + 3 * step])
        });
        let recording = Recording::default();
        let followed = Followed { recording, requests: 600, unfollowed: 0 };
        let followed = (side == Side::On).then_some(followed);
        Run { side, warm_up: Vec::new(), rounds: rounds.collect(), processor_seconds, followed }
    }

    fn judge(runs: &[Run]) -> Vec<(bool, Value)> {
        let plan = Plan::of(FormalProfile::Dense);
        let report = report(FormalProfile::Dense, 1, &plan, Cores { node: 1, other: 0 }, runs, Value::Null);
        let json = report.json();
        (0..report.gates.len()).map(|at| (report.gates[at].is_met(), json["gates"][at].clone())).collect()
    }

    #[test]
    fn each_limit_is_met_missed_or_not_resolved_on_its_own() {
        let pair =
            |off: (u64, f64), on: (u64, f64)| [run(Side::Off, off.0, off.1), run(Side::On, on.0, on.1)];
        let [off, on] = pair((100, 1.0), (104, 1.1));
        // The order within a pair does not matter.
        let gates = judge(&[off.clone(), on.clone(), on, off]);
        assert!(gates.iter().all(|(met, _)| *met), "{gates:?}");
        assert!((gates[0].1["value"].as_f64().expect("a ratio") - 1.04).abs() < 1e-9);
        assert!((gates[1].1["value"].as_f64().expect("a time") - 0.004).abs() < 1e-9);

        let slow = judge(&pair((100, 1.0), (106, 1.2)));
        let valid = |gate: &Value| gate["valid"].as_bool();
        assert_eq!((slow[0].0, slow[1].0, slow[2].0), (false, true, false));
        assert_eq!((valid(&slow[0].1), valid(&slow[2].1)), (Some(true), Some(true)));
        let late = judge(&pair((10_000, 1.0), (10_300, 1.0)));
        assert_eq!((late[0].0, late[1].0, valid(&late[1].1)), (true, false, Some(true)));

        let mut mixed = pair((100, 1.0), (90, 1.0)).to_vec();
        mixed.extend(pair((100, 1.0), (120, 1.0)));
        let mixed = judge(&mixed);
        assert_eq!((mixed[0].0, valid(&mixed[0].1)), (false, Some(false)), "it may be either");
    }

    #[test]
    fn a_store_that_was_full_or_a_request_that_was_not_followed_proves_nothing() {
        let mut runs = vec![run(Side::Off, 100, 1.0), run(Side::On, 100, 1.0)];
        runs[1].followed.as_mut().expect("it is on").unfollowed = 1;
        let gates = judge(&runs);
        assert_eq!((gates[0].0, gates[3].0), (true, false));
        runs[1].followed.as_mut().expect("it is on").recording.lost = 7;
        assert!(judge(&runs).iter().all(|(met, _)| !met));
    }
}
