//! The command as an operator types it.

use std::process::{Command, Output};

use serde_json::Value;

use crate::vectors;

fn orbitkv(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orbitkv")).args(arguments).output().expect("the command runs")
}

fn stdout(arguments: &[&str]) -> String {
    let output = orbitkv(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn json_is_a_vector_file() {
    let text = stdout(&["lab", "2", "--model", "breaker", "--json"]);
    let run: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(run["expected"], vectors::run(2, "breaker", None, &[])["expected"]);
    let reseeded = stdout(&["lab", "2", "--seed", "7", "--set", "rounds=600", "--json"]);
    let reseeded: Value = serde_json::from_str(&reseeded).expect("JSON");
    assert_eq!((&reseeded["prng"]["seed"], &reseeded["parameters"]["rounds"]), (&7.into(), &600.into()));
    assert_ne!(reseeded["expected"], run["expected"]);
}

#[test]
fn tables_are_for_people() {
    let text = stdout(&["lab", "2", "--model", "breaker"]);
    assert!(
        text.starts_with("lesson 2: Circuit Breaker, model breaker\npark-miller generator, seed 20260731\n")
    );
    assert!(text.contains("\n\ngain_slowdown\n") && text.contains("91.48"), "{text}");
    assert!(stdout(&["lab"]).contains("Circuit Breaker"));
}

#[test]
fn refusals_name_the_input_the_limit_and_the_remedy() {
    for (arguments, says) in [
        (&["lab", "21"][..], "lab 21: there are models for"),
        (&["lab", "2", "--model", "fuse"], "--model fuse: lesson 2 has no such model; choose from breaker"),
        (
            &["lab", "2", "--set", "round=3"],
            "--set round=3: the model has no parameter `round`; known there: ",
        ),
        (&["lab", "2", "--set", "slots=0"], "slots=0: must be 1 to 10000; give a value in that range"),
        (&["lab", "2", "--set", "slots"], "is not NAME=VALUE"),
        (&["lab", "2", "--seed", "0"], "--seed 0: every draw would be 0"),
        (&["lab", "--seed", "3"], "NUMBER"),
    ] {
        let output = orbitkv(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(says), "{error} lacks {says}");
    }
}
