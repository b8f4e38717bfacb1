//! Lessons 9 to 20: how a service survives what fails, and what surviving costs.

use serde_json::Value;

use crate::vectors::{self, rows};

vectors::vectors! {
    failover: "09-failover",
    failover_budget: "09-failover-budget",
    health: "10-health",
    health_budget: "10-health-budget",
    data_loss: "11-data-loss",
    recovery_budget: "11-rto-budget",
    zones: "12-zones",
    zone_capacity: "12-zone-capacity",
    stamps: "13-stamps",
    stamp_load: "13-stamp-load",
    drill_plan: "14-drill-plan",
    drill_work: "14-drill-work",
    idempotency: "15-idempotency",
    idempotency_cost: "15-idempotency-cost",
    compensation: "16-compensation",
    compensation_cost: "16-compensation-cost",
    claim_check: "17-claim-check",
    claim_check_cost: "17-claim-check-cost",
    valet_path: "18-valet-path",
    valet_scope: "18-valet-scope",
    configuration: "19-config",
    strangler: "20-strangler",
}

/// The row of a table whose cell has this text.
fn row<'a>(run: &'a Value, table: &str, cell: &str, text: &str) -> &'a Value {
    rows(run, table).into_iter().find(|row| row[cell] == text).expect("such a row")
}

fn count(row: &Value, cell: &str) -> i64 {
    row[cell].as_i64().unwrap_or_else(|| panic!("{cell} is a count in {row}"))
}

#[test]
fn no_parameter_is_there_for_show() {
    let models = [
        ("09-failover", &[][..]),
        ("09-failover-budget", &[]),
        ("10-health", &[]),
        ("10-health-budget", &[]),
        ("11-data-loss", &[]),
        ("11-rto-budget", &[]),
        ("12-zones", &[]),
        ("12-zone-capacity", &[]),
        ("13-stamps", &[]),
        ("13-stamp-load", &[]),
        ("14-drill-plan", &[]),
        ("14-drill-work", &[]),
        ("15-idempotency", &[]),
        ("15-idempotency-cost", &[]),
        ("16-compensation", &[]),
        ("16-compensation-cost", &[]),
        ("17-claim-check", &[]),
        ("17-claim-check-cost", &[]),
        ("18-valet-path", &[]),
        ("18-valet-scope", &[]),
        // An outage of whole intervals costs every node as many readings, however they are spread.
        ("19-config", &["outage.stagger"]),
        // Told beside the figures, and in none of them.
        ("20-strangler", &["facade_share_ms_DD19", "invoice_reads_DD18"]),
    ];
    let found = models.map(|(name, _)| (name, vectors::without_effect(name, &[])));
    let expected = models
        .map(|(name, paths)| (name, paths.iter().map(|path: &&str| (*path).to_owned()).collect::<Vec<_>>()));
    assert_eq!(found, expected);
}

#[test]
fn what_is_not_gone_back_to_loses_nothing_more_to_it() {
    for stopped in
        ["stopped=[[30,75],[90,96]]", "stopped=[[5,9],[20,29],[40,49],[60,64]]", "stopped=[[2,120]]"]
    {
        let run = vectors::run(9, "failover", None, &[stopped]);
        let automatic = row(&run, "failback", "policy", "automatic");
        let permanent = row(&run, "failback", "policy", "permanent");
        assert_eq!((count(permanent, "failbacks"), count(permanent, "active_replica_changes")), (0, 1));
        assert_eq!(count(&permanent["_extra"], "silent_lost_update"), 0);
        for cell in ["dropped", "active_replica_changes"] {
            assert!(count(permanent, cell) <= count(automatic, cell), "{cell}, {stopped}");
        }
    }
}

#[test]
fn the_nodes_own_check_misses_no_fault_of_its_own_and_wastes_nobody() {
    for reads in ["reads=8", "reads=3"] {
        let run = vectors::run(10, "health", None, &[reads, "schedule.k1_half_failed=[[3,17],[40,77]]"]);
        let own = row(&run, "endpoint", "content", "deepLocal");
        assert_eq!((count(own, "silent_lost_update"), count(own, "wasted_reject")), (0, 0));
        assert!(count(row(&run, "endpoint", "content", "readiness"), "silent_lost_update") > 0);
        let all = row(&run, "endpoint", "content", "deepAll");
        assert!(
            count(all, "wasted_reject") > 0 && count(all, "wasted_reject") == count(all, "dropped_reads")
        );
    }
}

#[test]
fn the_right_key_suppresses_every_copy_and_nothing_else() {
    for seed in [None, Some(0), Some(7), Some(4_294_967_295)] {
        let run = vectors::run(15, "idempotency", seed, &["duplication_DD2.0.p=0.4"]);
        let copies = count(rows(&run, "duplicates")[0], "deliveries");
        for day in ["failure-free", "DD2"] {
            let of_day: Vec<_> =
                rows(&run, "key_modes").into_iter().filter(|row| row["day"] == day).collect();
            let right = of_day[2];
            assert_eq!(right["key_mode"], "tracking+state+event");
            assert_eq!(count(right, "side_effects"), 11_250, "seed {seed:?}, {day}");
            assert_eq!(count(right, "suppressed"), if day == "DD2" { copies } else { 0 });
            assert!(of_day[..2].iter().all(|wide| count(wide, "processed") < count(right, "processed")));
        }
    }
}

#[test]
fn more_attempts_leave_less_behind_whatever_the_seed() {
    for seed in [Some(1), Some(99), Some(123_456_789)] {
        let run = vectors::run(16, "compensation", seed, &["runs=20000", "compensation_failure_DD5=0.1"]);
        let stuck: Vec<i64> = rows(&run, "attempts").iter().map(|row| count(row, "stuck_jobs")).collect();
        assert!(stuck[0] > stuck[1] && stuck[1] > stuck[2], "{stuck:?}");
        assert_eq!(rows(&run, "valid_orderings").len(), 2);
    }
    let circle = r#"steps=[{"name":"a","compensable":true,"requires":["b"]},{"name":"b","compensable":true,"requires":["a"]}]"#;
    assert!(vectors::refusal(16, "compensation", &[circle]).contains("no order of the steps"));
}

#[test]
fn what_is_kept_for_a_time_never_dangles() {
    for seed in [None, Some(3), Some(4_000_000_000)] {
        let given = ["events=20000", "unacked_crash_DD10=0.1"];
        let run = vectors::run(17, "claim-check", seed, &given);
        for layout in rows(&run, "layouts") {
            match layout["deletion"].as_str() {
                Some("lifetime") => {
                    assert_eq!(count(layout, "dangling"), 0);
                    assert_eq!(count(layout, "processed"), count(layout, "deliveries"));
                }
                Some("immediate") => {
                    assert_eq!(count(layout, "processed") + count(layout, "orphaned"), 20_000);
                }
                _ => assert_eq!(count(layout, "orphaned"), 0),
            }
        }
    }
}

#[test]
fn who_gives_keys_refuses_nobody() {
    let run = vectors::run(18, "valet-path", None, &["pool_DD13=2", "slow_rounds=200"]);
    for path in rows(&run, "paths") {
        let is_valet = path["path"] == "valet";
        assert_eq!(count(path, "rejected") == 0, is_valet, "{path}");
        assert_eq!(count(path, "peak_slots") == 0, is_valet, "{path}");
    }
}

#[test]
fn a_stage_bounds_what_a_wrong_value_answers() {
    // The wrong value stands for a whole number of readings, so that each replica has it for as long.
    for given in ["refresh_s_DD16=30", "refresh_s_DD16=8", "detection_s_DD17=240"] {
        let run = vectors::run(19, "config", None, &[given]);
        let faulty = |row: &Value| row["_raw"]["faulty_replies"].as_f64().expect("a number");
        let rollouts = rows(&run, "rollout");
        let [all, all_later, staged, staged_later] = [0, 1, 2, 3].map(|index| faulty(rollouts[index]));
        assert!(staged == staged_later && (all - 3.0 * staged).abs() < 1e-3 * all, "{given}");
        assert_eq!(all, all_later, "{given}");
        let known = row(&run, "store_outage", "behavior", "last known good value");
        assert_eq!(count(known, "dropped_requests"), 0);
    }
}

#[test]
fn moving_by_state_writes_less_twice_than_moving_by_volume() {
    for given in
        ["writes_per_day.event=2800000", "writes_per_day.proof=90000000", "routes.proof-read.volume=9000000"]
    {
        let run = vectors::run(20, "strangler", None, &[given]);
        let area = |order| row(&run, "areas", "order", order)["_raw"]["dual_write_area"].as_f64();
        assert!(area("state").expect("a number") <= area("volume").expect("a number"), "{given}");
    }
}

#[test]
fn what_a_model_cannot_be_run_with_is_refused_by_name() {
    for (lesson, model, assignment, says) in [
        (9, "failover", "stopped=[[9,3]]", "stopped: is of pairs of a first and a last round"),
        (9, "failover", "promotion_rounds=0", "promotion_rounds=0: must be 1 to"),
        (10, "health", "intervals=[0]", "intervals=0: must be 1 to"),
        (11, "rto-budget", "lag_s_KU6=0", "lag_s_KU6=0: must be 0.001 to"),
        (12, "zones", "plans.three-zone=[]", "plans.three-zone (entries)=0: must be 1 to 64"),
        (13, "stamps", "stamps=0", "stamps=0: must be 1 to"),
        (13, "stamps", "shared.single-piece=some", "did not match any variant"),
        (14, "drill-work", "side_effect_steps=[9]", "names steps from 1 to `steps`"),
        (15, "idempotency", "events_per_shipment=6", "is the length of `sequence`"),
        (16, "compensation", "steps.1.requires=[\"nothing\"]", "which is no step"),
        (17, "claim-check", "producer_crash_DD10=1.5", "producer_crash_DD10=1.5: must be 0 to 1"),
        (18, "valet-path", "slow_window=[9,2]", "slow_window: is a first round and the first after it"),
        (19, "config", "outage.up_at=100", "outage: ends after it begins"),
        (20, "strangler", "routes.0.volumes=3", "unknown field `volumes`"),
    ] {
        let error = vectors::refusal(lesson, model, &[assignment]);
        assert!(error.contains(says), "{error} lacks {says}");
    }
}

#[test]
fn what_follows_from_other_parameters_is_worked_out() {
    let run = vectors::run(10, "health", None, &["schedule.k3_stopped=[[70,95]]"]);
    assert_eq!(run["parameters"]["k3_stop_round"], 70);
    let given = vectors::run(10, "health", None, &["schedule.k3_stopped=[[70,95]]", "k3_stop_round=60"]);
    assert_eq!(given["parameters"]["k3_stop_round"], 60);
    let run = vectors::run(15, "idempotency", None, &["sequence=accepted,delivered"]);
    assert_eq!(run["parameters"]["events_per_shipment"], 2);
}
