//! Lessons 1 to 8: what stands between a caller and what it calls.

use crate::vectors::{self, rows};

vectors::vectors! {
    signature: "01-signature",
    blast_radius: "01-blast-radius",
    breaker: "02-breaker",
    bulkhead: "03-bulkhead",
    retry_storm: "04-retry-storm",
    timeout_budget: "05-timeout-budget",
}

#[test]
fn a_breaker_changes_nothing_on_a_healthy_day_whatever_the_seed() {
    for seed in [None, Some(1), Some(7), Some(20_260_802)] {
        let run = vectors::run(2, "breaker", seed, &["modes.healthy.p_fail=0.02"]);
        let of_day: Vec<_> = rows(&run, "runs").into_iter().filter(|row| row["mode"] == "healthy").collect();
        let [mut without, mut with] = [of_day[0].clone(), of_day[1].clone()];
        for row in [&mut without, &mut with] {
            row["breaker"] = serde_json::Value::Null;
        }
        assert_eq!(with, without, "seed {seed:?}");
    }
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
