//! `orbitkv drill`: whole exercises by plan, on real processes.

use std::fs;

use serde_json::Value;

use crate::faults::{Said, orbitkv, run};
use crate::harness::eventually;
use crate::local_cluster::Place;

/// A plan on three small nodes; what is promised, and the steps.
fn plan(objectives: &str, steps: &[(&str, &str, &str, &str)]) -> String {
    let mut text = format!(
        "name = \"test\"\n[cluster]\nmanagers = 3\ndram = \"64mib\"\n[load]\nblocks = 60\nblock = \"16kib\"\n\
         [objectives]\n{objectives}\n"
    );
    for (name, action, until, planned) in steps {
        text += &format!("[[step]]\nname = \"{name}\"\nplanned = \"{planned}\"\n");
        for (key, value) in [("do", action), ("until", until)] {
            if !value.is_empty() {
                text += &format!("{key} = \"{value}\"\n");
            }
        }
    }
    text
}

fn drill(place: &Place, plan: &str) -> (Said, Value) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("plan.toml");
    fs::write(&file, plan).expect("room");
    let said = run(&mut place.command(&["drill", file.to_str().expect("text"), "--json"]));
    let report = serde_json::from_str(said.stdout.trim()).unwrap_or_default();
    place.is_clean();
    (said, report)
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|name| name.as_str().expect("a name")).collect()
}

#[test]
fn a_killed_node_is_dropped_comes_back_and_what_nobody_planned_is_named() {
    let steps = [
        ("dropped", "kill node-2", "dropped node-2", "12s"),
        ("member", "restart node-2", "member node-2", "100ms"),
    ];
    // What one node had is lost with it, and no more.
    let place = Place::new();
    let (said, report) = drill(&place, &plan("recovery = \"100s\"\nblocks_lost = 60", &steps));
    assert_eq!(said.code, Some(0), "{said:#?}");
    let measured = |at: usize| report["steps"][at]["measured_s"].as_f64().expect("seconds");
    // A lease has ten seconds from its last renewal, and etcd looks for ended ones once a second or so.
    assert!((6.0..20.0).contains(&measured(0)), "{said:#?}");
    assert!(measured(1) > 0.0, "{said:#?}");
    assert_eq!(report["loss"]["measured"]["saved_blocks"], 180);
    assert_eq!(report["loss"]["measured"]["lost_blocks"], 60, "{said:#?}");
    assert_eq!(report["loss"]["measured"]["wrong_bytes"], 0);
    let unplanned = names(&report["unplanned"]);
    let tail: Vec<&Value> = report["steps"].as_array().expect("steps").iter().skip(2).collect();
    assert_eq!(unplanned.len(), tail.len(), "{said:#?}");
    assert!(unplanned.iter().all(|name| name.ends_with("complete again")), "{said:#?}");
    let sum: f64 = (0..2 + tail.len()).map(measured).sum();
    assert!((report["measured_s"].as_f64().expect("seconds") - sum).abs() < 1e-6);
    assert_eq!(report["recovery"]["by_drill"], "holds");
    let said_by = |node: &str, words: &str| {
        let rows = report["nodes"].as_array().expect("rows");
        rows.iter()
            .any(|row| row["node"] == node && row["says"].as_str().is_some_and(|says| says.contains(words)))
    };
    assert!(said_by("node-2", "does not run") && said_by("node-2", "member with epoch 2"), "{said:#?}");
    assert!(said_by("node-1", "2 members"), "{said:#?}");
}

#[test]
fn an_objective_that_is_not_kept_and_a_step_that_is_not_reached_are_exit_4() {
    let place = Place::new();
    let paused = [
        ("silent", "pause node-3", "silent node-3", "1s"),
        ("member", "resume node-3", "member node-3", "10s"),
    ];
    let (said, report) = drill(&place, &plan("recovery = \"1ms\"\nblocks_lost = 0", &paused));
    assert_eq!(said.code, Some(4), "{said:#?}");
    let verdicts = (&report["recovery"]["by_drill"], &report["loss"]["verdict"]);
    assert_eq!(verdicts, (&"breaks".into(), &"holds".into()), "a pause loses nothing: {said:#?}");
    assert_eq!(report["recovery"]["by_plan"], "breaks", "the plan does not promise that either");
    assert_eq!(names(&report["complaints"]).len(), 1, "{said:#?}");

    // Nobody is dropped while it lives.
    let hopeless = plan("recovery = \"100s\"", &[("dropped", "", "dropped node-1", "10ms")])
        .replace("planned = \"10ms\"", "planned = \"10ms\"\ngive_up = \"500ms\"");
    let (said, report) = drill(&place, &hopeless);
    assert_eq!(said.code, Some(4), "{said:#?}");
    assert_eq!(names(&report["complaints"]), ["step `dropped` was given up"], "{said:#?}");
    assert_eq!(report["recovery"]["by_drill"], "unknown", "it has not recovered");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("last.json");
    fs::write(&file, said.stdout).expect("room");
    let said = orbitkv(&["drill", "--objectives", file.to_str().expect("text")]);
    assert_eq!(said.code, Some(4), "{said:#?}");
    assert!(said.stdout.contains("promised 100.00 s, last drill did not recover"), "{said:#?}");
    fs::write(&file, "{}").expect("room");
    let said = orbitkv(&["drill", "--objectives", file.to_str().expect("text")]);
    said.refused(2, &["--objectives", "last.json", "orbitkv drill PLAN --json"]);
}

#[test]
fn a_node_that_does_not_start_again_ends_the_drill_with_a_report() {
    let place = Place::new();
    let steps =
        [("dies", "kill node-2", "silent node-2", "1s"), ("comes", "restart node-2", "member node-2", "1s")];
    let (said, report) = std::thread::scope(|scope| {
        // It has read its own by now, and reads it again when it starts.
        scope.spawn(|| {
            let epoch = eventually("node-2 is registered", || {
                let runs = fs::read_dir(place.file("")).ok()?.flatten();
                let mut files = runs.map(|run| run.path().join("node-2/data/epoch"));
                files.find(|file| file.is_file())
            });
            fs::write(epoch, "spoiled").expect("ours");
        });
        drill(&place, &plan("recovery = \"100s\"", &steps))
    });
    assert_eq!(said.code, Some(4), "{said:#?}");
    assert_eq!((&report["met"], &report["recovered"]), (&false.into(), &false.into()), "{said:#?}");
    assert_eq!(report["steps"].as_array().expect("steps").len(), 2, "{said:#?}");
    let complaints = names(&report["complaints"]);
    assert_eq!(complaints[0], "step `comes` was given up", "{said:#?}");
    assert!(complaints[1].contains("step `comes`: node-2 ended with"), "{said:#?}");
    assert!(complaints[1].contains("does not hold this node's last epoch"), "{said:#?}");
    assert_eq!(complaints.len(), 2, "it is said once: {said:#?}");
}

#[test]
fn a_plan_that_cannot_be_is_refused_before_anything_starts() {
    let place = Place::new();
    let steps = [("again", "restart node-1", "member node-1", "1s")];
    let (said, _) = drill(&place, &plan("", &steps));
    said.refused(2, &["plan.toml", "step `again`", "was killed or terminated before"]);
}
