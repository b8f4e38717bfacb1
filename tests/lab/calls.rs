//! Lessons 1 to 8: what stands between a caller and what it calls.

use serde_json::Value;

use crate::vectors::{self, rows};

vectors::vectors! {
    signature: "01-signature",
    blast_radius: "01-blast-radius",
    breaker: "02-breaker",
    bulkhead: "03-bulkhead",
    retry_storm: "04-retry-storm",
    timeout_budget: "05-timeout-budget",
    backpressure: "06-backpressure",
    admission_gate: "07-admission-gate",
    degradation: "08-degradation",
}

/// A number of a row.
fn count(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_else(|| panic!("{name} of {row}"))
}

fn row<'a>(run: &'a Value, table: &str, cells: &[(&str, &str)]) -> &'a Value {
    let fits = |row: &&Value| cells.iter().all(|(name, value)| row[*name] == *value);
    rows(run, table).into_iter().find(fits).unwrap_or_else(|| panic!("{table} has no {cells:?}"))
}

#[test]
fn no_parameter_is_there_for_show() {
    let models = [
        ("01-signature", "calls_per_mode=400", &[][..]),
        ("01-blast-radius", "slots_AY2=32", &[]),
        // Nothing succeeds on these days.
        ("02-breaker", "rounds=700", &["modes.down.ok_rounds", "modes.slowdown.ok_rounds"]),
        ("03-bulkhead", "rounds=1500", &[]),
        ("04-retry-storm", "rounds=1600", &[]),
        // The delivery arm has one step, and what its step needs divides nothing.
        ("05-timeout-budget", "requests=48", &["typical_ms.delivery"]),
        ("06-backpressure", "rounds=300", &[]),
        ("07-admission-gate", "rounds=100", &[]),
        ("08-degradation", "failure_rounds=200", &[]),
    ];
    let found = models.map(|(name, shorter, _)| (name, vectors::without_effect(name, &[shorter])));
    let expected = models
        .map(|(name, _, paths)| (name, paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>()));
    assert_eq!(found, expected);
}

#[test]
fn a_breaker_changes_nothing_on_a_healthy_day_whatever_the_seed() {
    for seed in [None, Some(1), Some(7), Some(20_260_802)] {
        let run = vectors::run(2, "breaker", seed, &["modes.healthy.p_fail=0.02"]);
        let of_day: Vec<_> = rows(&run, "runs").into_iter().filter(|row| row["mode"] == "healthy").collect();
        let [mut without, mut with] = [of_day[0].clone(), of_day[1].clone()];
        for row in [&mut without, &mut with] {
            row["breaker"] = Value::Null;
        }
        assert_eq!(with, without, "seed {seed:?}");
    }
}

#[test]
fn whatever_the_split_a_neighbours_bad_day_is_not_ours() {
    for seed in [None, Some(5)] {
        let run =
            vectors::run(3, "bulkhead", seed, &["slow_event_hold=40", "splits=single,28/4,20/12,4/28,24/8"]);
        for row in rows(&run, "splits") {
            let drops =
                ["healthy_tracking_dropped", "slowdown_tracking_dropped"].map(|name| count(row, name));
            assert_eq!(drops[0] == drops[1], row["split"] != "single", "{row}");
        }
    }
}

#[test]
fn on_a_healthy_day_more_tries_than_two_change_nothing() {
    let run = vectors::run(4, "retry-storm", None, &[]);
    let healthy: Vec<Value> = rows(&run, "runs")
        .into_iter()
        .filter(|row| row["scenario"] == "healthy" && count(row, "allowed") > 1)
        .map(|row| {
            let mut row = row.clone();
            row["configuration"] = Value::Null;
            row["allowed"] = Value::Null;
            row
        })
        .collect();
    assert_eq!(healthy.len(), 4);
    assert!(healthy.iter().all(|row| *row == healthy[0]), "{healthy:?}");
}

#[test]
fn what_is_cancelled_costs_no_more_slots_than_its_caller() {
    let run = vectors::run(5, "timeout-budget", None, &["threshold_ms=150", "requests=100"]);
    for row in rows(&run, "busy_slots") {
        assert_eq!(row["_raw"]["total_cancel"], row["_raw"]["caller"]);
        assert!(row["_raw"]["abandoned"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(run["parameters"]["arm_share_ms"], 130.0, "what was not given follows");
}

#[test]
fn what_a_shorter_signal_loses_the_boundary_refuses() {
    for assignments in [&[][..], &["source_rate=140.5"], &["links.log.capacity=20", "rounds=700"]] {
        let run = vectors::run(6, "backpressure", None, assignments);
        for day in ["failure-free", "AY11"] {
            let [inside, boundary] = ["2 links", "to the limit"]
                .map(|setting| row(&run, "runs", &[("day", day), ("setting", setting)]));
            assert_eq!(count(inside, "lost"), count(boundary, "rejected"), "{day} {assignments:?}");
            assert_eq!(count(inside, "completed"), count(boundary, "completed"), "{day} {assignments:?}");
            assert_eq!(count(boundary, "lost"), 0);
        }
    }
}

#[test]
fn the_first_tier_is_kept_whole() {
    let run = vectors::run(7, "admission-gate", None, &["AY13b.capacity=300", "AY13a.batch_rate=9"]);
    for row in rows(&run, "runs").into_iter().filter(|row| row["setting"] == "both") {
        assert_eq!(row["accepted"][0], 58331, "{row}");
    }
    assert!(rows(&run, "runs").iter().any(|row| row["shed"][1].as_u64() > Some(0)), "something was shed");
}

#[test]
fn a_bound_of_staleness_is_how_long_a_core_source_may_be_out() {
    for (bound, last) in [("staleness_bound_AY14=60", 59), ("staleness_bound_AY14=10", 9)] {
        let run = vectors::run(8, "degradation", None, &[bound]);
        let fallback = row(&run, "runs", &[("day", "AY14b"), ("policy", "+ stale fallback")]);
        assert_eq!(count(fallback, "last_response_round"), last, "{bound}");
    }
}

#[test]
fn values_that_a_model_cannot_run_with_are_refused() {
    for (lesson, model, assignment, says) in [
        (1, "signature", "down_shards=9", "down_shards=9: must be 0 to 8"),
        (1, "signature", "mode_order=healthy,healthy", "name each mode once"),
        (1, "signature", "mode_order=healthy,odd", "unknown variant `odd`"),
        (
            1,
            "blast-radius",
            "flows.0.tree=a(b",
            "flows.0.tree=a(b: a bracket is open; write it like a(b,c(d))",
        ),
        (1, "blast-radius", "flows.9.rate=1", "known there: 0 to 3"),
        (3, "bulkhead", "chosen_split=30/8", "split 30/8: there are 32 slots"),
        (3, "bulkhead", "splits=28:4", "write `single` or one like 24/8"),
        (
            4,
            "retry-storm",
            "scenarios.healthy.duration=5",
            "a healthy day has the usual capacity and no window",
        ),
        (4, "retry-storm", "scenarios.outage.duration=0", "must be 1 to 4000"),
        (5, "timeout-budget", "gateway_share_ms=201", "must be 0 to 200"),
        (5, "timeout-budget", "cycles.failure-free.size=[]", "(entries)=0: must be 1 to 10000"),
        (6, "backpressure", "links.log.rate=fast", "is a number or `consumption`"),
        (6, "backpressure", "settings.0.depth=4", "must be 0 to 3"),
        (6, "backpressure", "source_rate=90000", "no more than 20000000 units"),
        (7, "admission-gate", "queue_limit=twice", "neither a number of units nor a multiple"),
        (7, "admission-gate", "flows.batch.tier=4", "must be 1 to 3"),
        (8, "degradation", "transient_period=0", "must be 1 to 1000000"),
        (8, "degradation", "fields.fee.source=estimate", "is the one that fails"),
    ] {
        let error = vectors::refusal(lesson, model, &[assignment]);
        assert!(error.contains(says), "{error} lacks {says}");
    }
}

#[test]
fn what_follows_from_other_parameters_is_worked_out_again() {
    let run = vectors::run(3, "bulkhead", None, &["event_rate=48.61"]);
    assert_eq!(
        run["parameters"]["exp_neg_lambda"]["event"],
        format!("{:#018x}", (-0.4861f64).exp().to_bits())
    );
    let run = vectors::run(7, "admission-gate", None, &["queue_limit=1400", "rounds=300"]);
    assert_eq!(run["parameters"]["queue_limit"], 1400);
    let run = vectors::run(4, "retry-storm", None, &["usual_capacity_AY6=4"]);
    assert_eq!(run["parameters"]["scenarios"]["healthy"]["capacity"], 4);
}

#[test]
fn parameters_of_a_breaker_change_its_table() {
    let earlier = vectors::run(2, "breaker", None, &["rule_AY5.threshold=0.3", "rule_AY5.window=10"]);
    assert!(rows(&earlier, "rules").iter().any(|row| row["rule"] == "ratio 0.30 / 10"));
    for (assignment, says) in [
        ("rule_AY5.threshold=1.5", "rule_AY5.threshold=1.5: must be 0.000001 to 1"),
        ("rounds=0", "rounds=0: must be 1 to 100000"),
        ("failure_start=1200", "must be before the last round"),
        ("modes.down.p_fail=2", "modes.down.p_fail=2: must be 0 to 1"),
        ("other_rules.0.threshold=2.5", "failures in a row are whole"),
        ("rule_AY5={\"kind\":\"ratio\",\"threshold\":0.5,\"open_rounds\":1}", "--set rule_AY5.window=20"),
    ] {
        let error = vectors::refusal(2, "breaker", &[assignment]);
        assert!(error.contains(says), "{error} lacks {says}");
    }
}
