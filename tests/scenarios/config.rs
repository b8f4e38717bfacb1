//! Settings that are changed while nodes run: `orbitkv config` and `orbitkv epochs` on real etcd, nodes that follow
//! and nodes that refuse.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use orbitkv::control::metadata::MetadataPage;
use orbitkv_shards::resilience::configuration::Rollout;
use orbitkv_wire::config::{ConfigRecord, Staged, Version, place_hash};
use serde_json::Value;

use crate::faults::{Said, doctor, orbitkv};
use crate::harness::etcd::free_port;
use crate::harness::saver::{Saver, fresh_key};
use crate::harness::{Etcd, Node, NodeOrder, eventually, http_text};
use crate::peers::{await_installed, knows_all, order};

pub const KEY: &str = "/orbitkv/v2/test/config/node";

fn arguments<'a>(command: &'a str, url: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let action = rest.iter().take(1);
    let rest = rest.iter().skip(1);
    let place = ["--etcd", url, "--cluster", "test"];
    [command].iter().chain(action).chain(&place).chain(rest).copied().collect()
}

fn config(etcd: &Etcd, rest: &[&str]) -> Said {
    orbitkv(&arguments("config", &etcd.url(0), rest))
}

#[track_caller]
fn done(said: Said) -> Said {
    assert_eq!(said.code, Some(0), "{said:#?}");
    said
}

/// Changes the record; its number then.
#[track_caller]
fn change(etcd: &Etcd, rest: &[&str]) -> u64 {
    let said = done(config(etcd, &[rest, &["--json"]].concat()));
    let document: Value = serde_json::from_str(&said.stdout).expect("JSON");
    document["record"].as_u64().expect("a number")
}

fn value(page: &MetadataPage, name: &str) -> String {
    let found = page.config.settings.iter().find(|setting| setting.name == name);
    found.expect("every setting is shown").value.clone()
}

/// Waits until a version holds on every core of a node.
fn holds(node: &Node, version: u64) -> MetadataPage {
    node.await_metadata(&format!("version {version} holds"), |page| {
        page.config.version == version && page.shards.iter().all(|shard| shard.config_version == version)
    })
}

/// Microseconds for which changes have waited for others before they were told, on all cores.
fn waited_us(node: &Node) -> u64 {
    let metrics = http_text(node.http(), "/metrics");
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("orbitkv_inventory_wait_us_total{"));
    lines
        .map(|line| line.rsplit(' ').next().and_then(|text| text.parse::<u64>().ok()).expect("a number"))
        .sum()
}

/// What each of some changes, told alone, has waited on average.
fn wait_of_a_change_us(from: &Node, to: &Node, saver: &mut Saver) -> u64 {
    const CHANGES: u64 = 10;
    let before = waited_us(from);
    for _ in 0..CHANGES {
        saver.save(&[fresh_key()]);
        // Longer than any window.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    await_installed(from, to);
    (waited_us(from) - before) / CHANGES
}

#[test]
fn what_is_set_holds_on_every_core_and_is_what_the_node_does() {
    let etcd = Etcd::start();
    let first = order("a", free_port(), &etcd).two_shards().start();
    let second = order("b", free_port(), &etcd).two_shards().start();
    for node in [&first, &second] {
        knows_all(node, 2);
    }
    let mut saver = Saver::connect(&first.socket(), "engine");
    assert_eq!(first.metadata().config.origin, "flags");
    let slow = change(&etcd, &["set", "coalesce=5ms", "breaker=80", "call-budget=0.5s", "log=debug"]);
    for node in [&first, &second] {
        let page = holds(node, slow);
        assert_eq!((page.shards.len(), page.config.origin.as_str()), (2, "etcd"));
        assert_eq!(
            (value(&page, "breaker"), value(&page, "call-budget")),
            ("80".to_owned(), "500ms".to_owned())
        );
    }
    let waited = wait_of_a_change_us(&first, &second, &mut saver);
    assert!(waited >= 4_000, "{waited} us in place of 5 ms");
    eventually("the log says more", || first.stderr().contains(" DEBUG ").then_some(()));
    let quick = change(&etcd, &["set", "coalesce=0s", "route-policy=executed"]);
    let page = holds(&first, quick);
    assert_eq!(value(&page, "breaker"), "80", "what was set stays set");
    assert_eq!(value(&page, "route-policy"), "executed");
    assert_eq!(wait_of_a_change_us(&first, &second, &mut saver), 0);
    let metrics = http_text(first.http(), "/metrics");
    for line in [
        format!("orbitkv_config_version {quick}"),
        format!("orbitkv_config_applied_version{{shard=\"0\"}} {quick}"),
        format!("orbitkv_config_applied_version{{shard=\"1\"}} {quick}"),
        "orbitkv_config_refused 0".to_owned(),
    ] {
        assert!(metrics.lines().any(|present| present == line), "no line {line}: {metrics}");
    }
    let said = orbitkv(&["status", "--http", first.http()]);
    assert!(said.stdout.contains(&format!("version {quick} of record {quick}, from etcd")), "{said:#?}");
    // What held before comes again, in one step.
    change(&etcd, &["revert"]);
    let page = holds(&first, slow);
    assert_eq!(
        (value(&page, "coalesce"), value(&page, "route-policy")),
        ("5ms".to_owned(), "shadow".to_owned())
    );
    config(&etcd, &["revert"]).refused(4, &["there is nothing to go back to"]);
    assert_eq!(doctor(&first).1, Vec::<String>::new());
    // Nobody wrote to etcd for that but the operator.
    let nodes = [first.http(), second.http()].join(",");
    let before = etcd.revision();
    let said = done(config(&etcd, &["show", "--nodes", &nodes]));
    for node in ["a ", "b "] {
        let is_there =
            said.stdout.lines().any(|line| line.starts_with(node) && line.ends_with("in force, from etcd"));
        assert!(is_there, "{said:#?}");
    }
    assert_eq!(etcd.revision(), before);
}

#[test]
fn a_record_that_is_none_is_refused_by_name_and_what_held_goes_on() {
    let etcd = Etcd::start();
    let node = order("a", free_port(), &etcd).start();
    knows_all(&node, 1);
    let number = change(&etcd, &["set", "coalesce=1ms"]);
    holds(&node, number);
    let good = etcd.value(KEY);
    let next = number + 1;
    let bad = good.trim_end().replace(&format!("record {number}"), &format!("record {next}"));
    for (text, part) in [
        ("x".to_owned(), "line 1 has to be `schema orbitkv/config/v1`"),
        (format!("{bad}\n").replace("1ms", "6ms"), "coalesce 6ms: must be at most 5ms; use coalesce=2ms"),
        (format!("{bad}\n").replace("coalesce 1ms", "coalesce 1ms\ndram 1gib"), "dram needs a restart"),
        (format!("{bad}\nx{}\n", "x".repeat(5_000)), "a record has at most 4096"),
    ] {
        etcd.ctl(&["put", KEY, &text]);
        let page = node.await_metadata("it is refused", |page| page.config.refused.contains(part));
        assert_eq!((page.config.version, value(&page, "coalesce").as_str()), (number, "1ms"));
        let (code, names, words) = doctor(&node);
        assert_eq!((code, names), (Some(4), vec!["config-refused".to_owned()]), "{words}");
        assert!(
            words.contains(part) && words.contains(&format!("version {number} holds, from etcd")),
            "{words}"
        );
        config(&etcd, &["set", "coalesce=2ms"])
            .refused(4, &["what stands under config/node is not taken", part]);
    }
    assert!(http_text(node.http(), "/metrics").contains("orbitkv_config_refused 1"));
    let said = orbitkv(&["status", "--http", node.http()]);
    assert!(said.stdout.contains("; refused: "), "{said:#?}");
    // Without any the last good one goes on, too, and what is set then is newer.
    etcd.ctl(&["del", KEY]);
    node.await_metadata("it is missed", |page| page.config.refused.contains("there is none any more"));
    let after = change(&etcd, &["set", "coalesce=3ms"]);
    assert!(after > number);
    let page = holds(&node, after);
    assert_eq!((page.config.refused.as_str(), value(&page, "coalesce").as_str()), ("", "3ms"));
    assert_eq!(doctor(&node).1, Vec::<String>::new());
}

#[test]
fn an_etcd_that_was_restored_is_brought_above_the_record_that_nodes_have() {
    let etcd = Etcd::start();
    let node = order("a", free_port(), &etcd).argument("--coalesce").argument("4ms").start();
    knows_all(&node, 1);
    assert_eq!(change(&etcd, &["set", "coalesce=3ms", "--above", "49"]), 50);
    holds(&node, 50);
    let version = |number, value: &str| {
        let settings = [("coalesce".to_owned(), value.to_owned())].into();
        Version { number, settings }
    };
    let restore = |staged| {
        let record = ConfigRecord { number: 40, stable: version(39, "1ms"), staged, former: None };
        etcd.ctl(&["put", KEY, &record.encode()]);
        node.await_metadata("it is older", |page| page.config.refused.contains("record 40 is older"));
    };
    let taken = |number| {
        let page = node.await_metadata("it is taken", |page| page.config.record == number);
        assert_eq!(page.config.refused, "");
        (page.config.version, value(&page, "coalesce"))
    };
    restore(None);
    config(&etcd, &["set", "coalesce=1ms"]).refused(4, &["version 39 says all of that already"]);
    assert_eq!(change(&etcd, &["set", "coalesce=1ms", "--above", "50"]), 51);
    assert_eq!(taken(51), (51, "1ms".to_owned()));
    // What was staged then is given up, or goes to all.
    for (action, number, expected) in [("revert", 61, (39, "1ms")), ("promote", 71, (40, "2ms"))] {
        restore(Some(Staged { version: version(40, "2ms"), share: 10 }));
        let above = (number - 1).to_string();
        config(&etcd, &["set", "coalesce=1ms", "--above", &above]).refused(4, &["version 40 is staged"]);
        assert_eq!(change(&etcd, &[action, "--above", &above]), number);
        assert_eq!(taken(number), (expected.0, expected.1.to_owned()));
    }
    // The record is lost, and nothing was set in it but what the flags say.
    etcd.ctl(&["del", KEY]);
    node.await_metadata("it is missed", |page| page.config.refused.contains("there is none any more"));
    config(&etcd, &["set", "coalesce=default"]).refused(4, &["says all of that already"]);
    assert_eq!(change(&etcd, &["set", "coalesce=default", "--above", "71"]), 72);
    assert_eq!(taken(72), (72, "4ms".to_owned()));
    assert_eq!(doctor(&node).1, Vec::<String>::new());
}

#[test]
fn a_start_without_etcd_is_with_the_last_good_settings() {
    let mut etcd = Etcd::start();
    let mut node = order("a", free_port(), &etcd).argument("--coalesce").argument("4ms").start();
    knows_all(&node, 1);
    let number = change(&etcd, &["set", "breaker=70", "coalesce=1ms"]);
    holds(&node, number);
    etcd.kill(0);
    assert!(node.terminate().success());
    node.restart();
    let page = holds(&node, number);
    assert_eq!((page.config.origin.as_str(), page.config.record), ("disk", number));
    assert_eq!((value(&page, "coalesce").as_str(), value(&page, "breaker").as_str()), ("1ms", "70"));
    let page = node.await_metadata("etcd is missed", |page| !page.config.unread.is_empty());
    assert!(page.config.unread.contains("does not answer"), "{page:#?}");
    node.assert_serves();
    // A copy that was damaged is named, and not trusted.
    assert!(node.terminate().success());
    let file = node.data_dir().join("config");
    let damaged = fs::read_to_string(&file).expect("it was kept").replace("coalesce 1ms", "coalesce 3ms");
    fs::write(&file, damaged).expect("the test's own");
    node.restart();
    let page = node.metadata();
    assert_eq!((page.config.version, page.config.origin.as_str()), (0, "flags"));
    assert_eq!(value(&page, "coalesce"), "4ms");
    let (_, names, words) = doctor(&node);
    assert!(names.contains(&"config-copy".to_owned()), "{names:?}");
    assert!(words.contains("config: its sum is not that of its text, so it is damaged"), "{words}");
    etcd.launch(0);
    etcd.wait_ready();
    let page = holds(&node, number);
    assert_eq!((page.config.origin.as_str(), page.config.copy.as_str()), ("etcd", ""));
}

fn place(name: &str) -> u32 {
    Rollout::place(place_hash(name.parse().expect("legal")), 100)
}

#[test]
fn a_stage_is_for_its_nodes_and_grows_until_all_have_it() {
    let etcd = Etcd::start();
    // Two below the middle and one above, told apart by a second stage.
    let mut names: Vec<String> = (0..100).map(|number| format!("n{number}")).collect();
    names.sort_by_key(|name| place(name));
    let chosen =
        [20, 45, 80].map(|wanted| names.iter().find(|name| place(name) >= wanted).expect("one").clone());
    let places: Vec<u32> = chosen.iter().map(|name| place(name)).collect();
    assert!(places[0] < 45 && places[1] < 50 && places[2] >= 80, "{places:?}");
    let nodes: Vec<Node> = chosen.iter().map(|name| order(name, free_port(), &etcd).start()).collect();
    nodes.iter().for_each(|node| drop(knows_all(node, 3)));
    let base = change(&etcd, &["set", "coalesce=1ms"]);
    nodes.iter().for_each(|node| drop(holds(node, base)));
    let versions = |expected: [u64; 3]| {
        nodes.iter().zip(expected).for_each(|(node, version)| drop(holds(node, version)))
    };

    let middle = places[1].to_string();
    let dry = done(config(&etcd, &["set", "coalesce=3ms", "breaker=90", "--stage", &middle, "--dry-run"]));
    assert!(dry.stdout.contains(&format!("share {middle}\nbreaker 90\ncoalesce 3ms")), "{dry:#?}");
    let whom = format!("for places below {middle} of 100, 1 of these 3 nodes; version {base} for all others");
    assert!(dry.stdout.contains(&whom), "{dry:#?}");
    assert!(etcd.value(KEY).contains(&format!("record {base}\n")), "a dry run writes nothing");
    let staged = change(&etcd, &["set", "coalesce=3ms", "breaker=90", "--stage", &middle]);
    versions([staged, base, base]);
    for (node, expected) in nodes.iter().zip(["3ms", "1ms", "1ms"]) {
        assert_eq!(value(&node.metadata(), "coalesce"), expected);
    }
    config(&etcd, &["set", "breaker=1"]).refused(4, &["is staged for", "promote"]);
    config(&etcd, &["promote", "--stage", &middle]).refused(4, &["name a larger share"]);
    let addresses = nodes.iter().map(Node::http).collect::<Vec<_>>().join(",");
    let shown = done(config(&etcd, &["show", "--nodes", &addresses, "--json"]));
    let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let rows: BTreeMap<&str, (u64, u64, u64)> = shown["nodes"]
        .as_array()
        .expect("a row for each node")
        .iter()
        .map(|row| {
            let number = |name: &str| row[name].as_u64().expect("a number");
            (row["node_id"].as_str().expect("a name"), (number("place"), number("version"), number("runs")))
        })
        .collect();
    let expected = [staged, base, base];
    for ((name, place), version) in chosen.iter().zip(&places).zip(expected) {
        assert_eq!(rows[name.as_str()], (u64::from(*place), version, version));
    }

    change(&etcd, &["promote", "--stage", "50"]);
    versions([staged, staged, base]);
    let said = orbitkv(&["status", "--http", nodes[2].http()]);
    assert!(said.stdout.contains(&format!("version {staged} is staged for 50 %, not here")), "{said:#?}");
    // Given up, all are where they were; staged anew and promoted, all have it.
    change(&etcd, &["revert"]);
    versions([base, base, base]);
    let again = change(&etcd, &["set", "coalesce=3ms", "--stage", "50"]);
    versions([again, again, base]);
    change(&etcd, &["promote"]);
    versions([again, again, again]);
    assert_eq!(nodes.iter().map(|node| value(&node.metadata(), "coalesce")).collect::<Vec<_>>(), ["3ms"; 3]);
}

#[test]
fn nodes_that_do_not_answer_and_nodes_of_others_are_told_in_one_document() {
    let etcd = Etcd::start();
    let node = order("a", free_port(), &etcd).start();
    knows_all(&node, 1);
    let elsewhere = Etcd::start();
    let stranger = order("x", free_port(), &elsewhere).start();
    knows_all(&stranger, 1);
    let number = change(&etcd, &["set", "coalesce=1ms"]);
    holds(&node, number);
    let silent = format!("127.0.0.1:{}", free_port());
    let show = |nodes: &[&str]| {
        let said = config(&etcd, &["show", "--json", "--nodes", &nodes.join(",")]);
        let document: Value =
            serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:#?}"));
        (said, document)
    };
    let (said, document) = show(&[node.http(), stranger.http()]);
    assert_eq!((said.code, &document["done"], &document["why"]), (Some(0), &Value::Bool(true), &Value::Null));
    let states: Vec<_> =
        document["nodes"].as_array().expect("rows").iter().map(|row| row["state"].as_str()).collect();
    assert_eq!(states[0], Some("in force, from etcd"));
    assert!(states[1].is_some_and(|state| state.starts_with("of another cluster, ")), "{states:?}");
    let (said, document) = show(&[&silent, node.http()]);
    said.refused(5, &[&format!("--nodes {silent}: no node answers"), "is --nodes right?"]);
    assert_eq!((&document["done"], &document["record"]), (&Value::Bool(false), &Value::from(number)));
    assert!(document["why"].as_str().is_some_and(|why| said.stderr.contains(why)), "{said:#?}");
    assert_eq!(document["nodes"][0]["state"], "in force, from etcd");
    // Looked at before anybody is asked.
    let (said, document) = show(&[&silent, "garbage"]);
    said.refused(2, &["--nodes garbage: it is not HOST:PORT"]);
    assert_eq!(document["done"], false);
}

#[test]
fn of_two_operators_at_once_the_second_is_told() {
    let etcd = Etcd::start();
    let node = order("a", free_port(), &etcd).start();
    knows_all(&node, 1);
    let first = change(&etcd, &["set", "coalesce=1ms", "--if-record", "0"]);
    config(&etcd, &["set", "coalesce=2ms", "--if-record", "0"])
        .refused(4, &[&format!("the record is number {first} and not 0"), "nothing was written"]);
    // Whatever the interleaving: each number is written once, and whoever was too late wrote nothing.
    let url = etcd.url(0);
    let values: Vec<String> = (2..10).map(|percent| format!("breaker={percent}")).collect();
    let operators: Vec<_> = values
        .iter()
        .map(|value| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_orbitkv"));
            command.args(arguments("config", &url, &["set", value]));
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("it starts")
        })
        .collect();
    let outcomes: Vec<_> =
        operators.into_iter().map(|operator| operator.wait_with_output().expect("it ends")).collect();
    let written = outcomes.iter().filter(|outcome| outcome.status.success()).count() as u64;
    for outcome in outcomes.iter().filter(|outcome| !outcome.status.success()) {
        let words = String::from_utf8_lossy(&outcome.stderr).into_owned();
        assert_eq!(outcome.status.code(), Some(4), "{words}");
        assert!(
            words.contains("somebody else has made it record") && words.contains("nothing was written"),
            "{words}"
        );
    }
    assert!(written >= 1);
    let last = first + written;
    holds(&node, last);
    assert!(etcd.value(KEY).contains(&format!("record {last}\n")), "{}", etcd.value(KEY));
    // Two who have looked at the same record: exactly one of them.
    let wanted = last.to_string();
    let codes: Vec<Option<i32>> = std::thread::scope(|scope| {
        let operator = |value: &'static str| {
            let (url, wanted) = (&url, &wanted);
            scope.spawn(move || {
                orbitkv(&arguments("config", url, &["set", value, "--if-record", wanted])).code
            })
        };
        let both = [operator("coalesce=3ms"), operator("coalesce=4ms")];
        both.map(|operator| operator.join().expect("no panics")).into()
    });
    assert!(codes.contains(&Some(0)) && codes.contains(&Some(4)), "{codes:?}");
}

#[test]
fn what_cannot_be_changed_is_refused_before_anything_is_written() {
    let etcd = Etcd::start();
    config(&etcd, &["set", "coalesce=1ms"]).refused(4, &["there is no cluster \"test\" in this etcd"]);
    let node = order("a", free_port(), &etcd).start();
    knows_all(&node, 1);
    let before = etcd.revision();
    for (setting, parts) in [
        ("dram=2gib", ["dram needs a restart", "give --dram when the node is started"]),
        ("shards=2", ["shards needs a restart", "What can be changed: audit, breaker"]),
        ("coalescing=1ms", ["coalescing is no setting", "did you mean coalesce?"]),
        ("coalesce=6ms", ["must be at most 5ms", "use coalesce=2ms"]),
        ("coalesce", ["is no setting with a value", "coalesce=1ms"]),
        ("breaker=101", ["0 to 100 percent", "use breaker=50"]),
    ] {
        config(&etcd, &["set", setting]).refused(2, &parts);
    }
    config(&etcd, &["set", "coalesce=1ms", "--stage", "0"]).refused(2, &["1..=100"]);
    config(&etcd, &["set", "coalesce=1ms", "--above", "9223372036854775807"]).refused(2, &["--above"]);
    config(&etcd, &["promote"]).refused(4, &["nothing is staged"]);
    let shown = done(config(&etcd, &["show"]));
    assert!(shown.stdout.contains("no record: every node does what its flags say"), "{shown:#?}");
    assert_eq!(etcd.revision(), before);
    etcd.ctl(&["put", "/orbitkv/v2/test/format", "protocol other\n"]);
    config(&etcd, &["set", "coalesce=1ms"]).refused(4, &["the cluster's format is `protocol other`"]);
    assert_eq!(etcd.value(KEY), "");
}

fn epochs(etcd: &Etcd, rest: &[&str]) -> Said {
    let url = etcd.url(0);
    orbitkv(&[rest, &["--etcd", &url, "--cluster", "test"]].concat())
}

#[test]
fn epochs_of_nodes_that_are_gone_are_cleaned_up_and_nobody_gets_one_again() {
    let etcd = Etcd::start();
    let named = |name: &str| -> NodeOrder { order(name, free_port(), &etcd) };
    let stays = named("stays").start();
    let mut goes = named("goes").start();
    knows_all(&stays, 2);
    for life in 2..4 {
        assert!(goes.terminate().success());
        goes.restart();
        goes.await_metadata("it joins again", |page| page.epoch == Some(life));
    }
    epochs(&etcd, &["epochs", "retire", "goes"]).refused(4, &["goes is a member: stop it first"]);
    assert!(goes.terminate().success());
    let listed = done(epochs(&etcd, &["epochs"]));
    let row =
        |name: &str| listed.stdout.lines().find(|line| line.starts_with(name)).expect("a row").to_owned();
    assert!(row("goes").contains(" 3  no") && row("stays").contains(" 1  at 127.0.0.1:"), "{listed:#?}");
    assert!(listed.stdout.contains("epoch floor 0, nothing was cleaned up yet"), "{listed:#?}");
    let before = etcd.revision();
    let dry = done(epochs(&etcd, &["epochs", "retire", "goes", "--dry-run"]));
    assert!(dry.stdout.contains("epoch 3 of goes would be removed, and the floor would be 3"), "{dry:#?}");
    assert_eq!(etcd.revision(), before);
    let said = done(epochs(&etcd, &["epochs", "retire", "goes"]));
    assert!(said.stdout.contains("epoch 3 of goes is removed, and the floor is 3"), "{said:#?}");
    assert_eq!(etcd.revision(), before + 1, "one transaction");
    assert_eq!(etcd.value("/orbitkv/v2/test/epochs/goes"), "");
    assert_eq!(etcd.value("/orbitkv/v2/test/epoch_floor").trim(), "3");
    epochs(&etcd, &["epochs", "retire", "goes"]).refused(4, &["goes has no epoch"]);
    epochs(&etcd, &["epochs", "retire"]).refused(2, &["<NODE>"]);
    epochs(&etcd, &["epochs", "retire", "No Name"]).refused(2, &["No Name"]);
    let listed = done(epochs(&etcd, &["epochs", "--json"]));
    let document: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!(document["epoch_floor"], 3);
    assert_eq!(document["nodes"].as_array().map(Vec::len), Some(1));
    // A new node begins above the floor, and so does one that had the name before and lost its directory.
    let page = named("new").start().await_metadata("it joins", |page| page.epoch.is_some());
    assert_eq!(page.epoch, Some(4));
    let page = named("goes").start().await_metadata("it joins", |page| page.epoch.is_some());
    assert_eq!(page.epoch, Some(4));
}
