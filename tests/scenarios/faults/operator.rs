//! What the operator's commands say of a live node, and of none.

use std::net::TcpListener;

use serde_json::Value;

use super::{keys, orbitkv, save_to_ssd};
use crate::harness::saver::Saver;
use crate::harness::{Node, NodeOrder};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn status_shows_the_node_its_tiers_and_its_work() {
    let node = NodeOrder::default().ssd("128mib").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let saved = keys(48);
    save_to_ssd(&node, &mut saver, &saved);
    saver.check_ready(&saved[..16]);
    let said = orbitkv(&["status", "--http", node.http()]);
    assert_eq!(said.code, Some(0), "{said:#?}");
    let incarnation = node.metadata().incarnation;
    for part in [
        "scenario serving, standalone",
        &incarnation,
        "0 blocks from dram, 16 from ssd",
        "48 blocks, 3.00 MiB",
    ] {
        assert!(said.stdout.contains(part), "no word of `{part}`: {said:#?}");
    }
    let page = json(&orbitkv(&["status", "--json", "--http", node.http()]).stdout);
    assert_eq!(page["shards"][0]["residents"]["ssd"].as_u64(), Some(48));
    assert_eq!(page["identity"]["node_id"], "scenario");
    let (code, names, words) = super::doctor(&node);
    assert!(code == Some(0) && names.is_empty(), "{words}");
}

#[test]
fn sync_gives_the_fence_that_covers_what_was_saved() {
    let node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "a");
    saver.save(&keys(20));
    let fence = orbitkv(&["sync", "--json", "--http", node.http()]);
    assert_eq!(fence.code, Some(0), "{fence:#?}");
    let fence = json(&fence.stdout);
    assert_eq!(fence["inventory_sequence"], serde_json::json!([20]));
    let said = orbitkv(&["sync", "--http", node.http()]);
    for part in ["local flush complete", "scenario", "[20]"] {
        assert!(said.stdout.contains(part), "no word of `{part}`: {said:#?}");
    }
}

#[test]
fn namespaces_names_the_model_behind_each() {
    let node = Node::start();
    let said = orbitkv(&["namespaces", "--http", node.http()]);
    assert!(said.code == Some(0) && said.stdout.contains("no engine is connected"), "{said:#?}");
    let _saver = Saver::connect(&node.socket(), "a");
    let said = orbitkv(&["namespaces", "--http", node.http()]);
    for part in ["model-a", "r1", "bf16", "scenario 1", "orbitkv:v2:"] {
        assert!(said.stdout.contains(part), "no word of `{part}`: {said:#?}");
    }
    let rows = json(&orbitkv(&["namespaces", "--json", "--http", node.http()]).stdout);
    let name = rows["namespaces"][0]["namespace"].as_str().expect("a namespace");
    assert_eq!(
        (rows["namespaces"].as_array().map(Vec::len), name.len()),
        (Some(1), "orbitkv:v2:".len() + 64)
    );
}

#[test]
fn without_a_node_every_command_ends_with_5_and_says_where_it_asked() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("bound").to_string();
    drop(free);
    for command in ["status", "sync", "doctor", "namespaces", "owners"] {
        for json in [&[][..], &["--json"]] {
            let mut words = vec![command, "--http", &address];
            words.extend(json);
            let said = orbitkv(&words);
            said.refused(5, &["no node answers at", &address, "is it running"]);
            assert_eq!(said.stdout, "");
        }
    }
}

#[test]
fn an_address_that_is_none_is_bad_usage() {
    for address in ["off", "127.0.0.1", "127.0.0.1:0", "node/7070"] {
        orbitkv(&["status", "--http", address]).refused(2, &["--http", address]);
    }
}

#[test]
fn a_replay_that_cannot_have_been_meant_is_bad_usage_before_anything_is_started() {
    let generated = |arguments: &[&str]| {
        let socket = ["replay", "--generate", "3", "--socket", "/nowhere/engine.sock"];
        orbitkv(&[&socket[..], arguments].concat())
    };
    for speed in ["1e-300", "5e-324", "-1"] {
        let flag = format!("--speed={speed}");
        generated(&[&flag]).refused(2, &["--speed", speed]);
    }
    for bytes in ["7", "1025mib", "18446744073709551615"] {
        generated(&["--block-bytes", bytes]).refused(2, &["--block-bytes", bytes]);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("trace.jsonl");
    let (first, late) =
        ("{\"timestamp\": 0, \"hash_ids\": [1]}", "{\"timestamp\": 1e300, \"hash_ids\": [1]}");
    std::fs::write(&file, format!("{first}\n{late}\n")).expect("room");
    let trace = file.to_str().expect("text");
    let said = orbitkv(&["replay", trace, "--speed", "1", "--socket", "/nowhere/engine.sock"]);
    said.refused(2, &[trace, "line 2", "timestamp 1e300 is not a time"]);
}
