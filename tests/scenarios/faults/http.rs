//! The HTTP API of a live node, byte by byte.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use super::{keys, save_to_ssd};
use crate::harness::saver::Saver;
use crate::harness::{Node, NodeOrder, WAIT};

/// An answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The reason of a refusal, of this status.
    #[track_caller]
    fn reason(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        let json = self.json();
        assert!(json["error"].is_string(), "{self:?}");
        json["reason"].as_str().expect("a reason").to_owned()
    }
}

/// Sends a request as it is and takes the answer to its end.
fn exchange(node: &Node, request: &str) -> Answer {
    let mut stream = TcpStream::connect(node.http()).expect("the node listens");
    stream.set_read_timeout(Some(WAIT)).expect("a time-out");
    stream.write_all(request.as_bytes()).expect("the node takes our bytes");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer in time");
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a status");
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

fn get(node: &Node, path: &str) -> Answer {
    exchange(node, &format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", node.http()))
}

/// A POST with these header lines, each ending in CR LF.
fn post(node: &Node, path: &str, headers: &str, body: &str) -> Answer {
    let (host, bytes) = (node.http(), body.len());
    exchange(
        node,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {bytes}\r\n{headers}\r\n{body}"
        ),
    )
}

const JSON: &str = "Content-Type: application/json\r\n";

#[test]
fn health_ready_and_the_page_say_what_the_node_is_and_holds() {
    let node = NodeOrder::default().ssd("128mib").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let saved = keys(32);
    save_to_ssd(&node, &mut saver, &saved);
    saver.check_ready(&saved);
    assert_eq!(get(&node, "/health").json(), serde_json::json!({"alive": true}));
    let ready = get(&node, "/ready");
    assert_eq!((ready.status, ready.json()["ready"].as_bool()), (200, Some(true)));
    let answer = get(&node, "/cache/metadata");
    assert!(answer.head.to_lowercase().contains("content-type: application/json"), "{answer:?}");
    let page = answer.json();
    assert_eq!(page["identity"]["node_id"], "scenario");
    assert_eq!(page["identity"]["engine_socket"].as_str(), node.socket().to_str());
    assert_eq!(page["membership"]["validity"], "standalone");
    assert_eq!(page["coverage"], "CompleteAtWatermarks");
    assert_eq!(page["phase"], "serving");
    let shard = &page["shards"][0];
    assert_eq!(
        (shard["residents"]["dram"].as_u64(), shard["residents"]["ssd"].as_u64()),
        (Some(32), Some(32))
    );
    assert_eq!(shard["service"]["hits"]["ssd"].as_u64(), Some(32));
    assert_eq!(shard["ssd"]["state"]["state"], "on");
    // 32 puts in DRAM, 32 on SSD, 32 deletes in DRAM, 32 puts in DRAM.
    assert_eq!(page["inventory_sequence"], serde_json::json!([128]));
    assert_eq!(get(&node, "/nothing").status, 404);
}

#[test]
fn metrics_are_parseable_and_their_labels_are_bounded() {
    let node = NodeOrder::default().ssd("128mib").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    save_to_ssd(&node, &mut saver, &keys(32));
    let answer = get(&node, "/metrics");
    assert_eq!(answer.status, 200);
    assert!(answer.head.to_lowercase().contains("content-type: application/openmetrics-text"), "{answer:?}");
    let mut families = BTreeSet::new();
    let mut series = BTreeSet::new();
    let mut saves = None;
    for line in answer.body.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            match comment.split_whitespace().collect::<Vec<_>>()[..] {
                ["TYPE", name, _] => assert!(families.insert(name.to_owned()), "{name} is declared twice"),
                ["HELP", _, ..] | ["UNIT", _, _] | ["EOF"] => {}
                _ => panic!("no comment of the format: {line}"),
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
        value.parse::<f64>().unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(series.insert(name.to_owned()), "{name} comes twice");
        let family = name.split('{').next().expect("a name");
        let known = families.iter().any(|known| family.starts_with(known.as_str()));
        assert!(known && family.starts_with("orbitkv_"), "{line} has no declared family of ours");
        if let Some((_, labels)) = name.split_once('{') {
            for label in labels.trim_end_matches('}').split(',') {
                let (label, _) = label.split_once('=').unwrap_or_else(|| panic!("no label: {line}"));
                let unbounded = ["block", "request", "namespace", "incarnation", "connection", "lease"];
                assert!(!unbounded.contains(&label), "{line} has an unbounded label");
            }
        }
        if family.contains("saves_committed") {
            saves = value.parse::<f64>().ok();
        }
    }
    assert!(answer.body.trim_end().ends_with("# EOF"), "the text is whole");
    assert!(families.len() > 20, "{families:?}");
    assert_eq!(saves, Some(32.0), "{series:?}");
}

#[test]
fn sync_wants_a_json_body_of_an_object_and_gives_the_fence() {
    let node = Node::start();
    node.assert_serves();
    for headers in ["", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n"]
    {
        let reason = post(&node, "/cache/sync", headers, "{}").reason(415);
        assert!(reason.contains("application/json"), "{reason}");
    }
    for body in ["[]", "1", "{", "nonsense"] {
        let reason = post(&node, "/cache/sync", JSON, body).reason(400);
        assert!(reason.contains("JSON object"), "{reason}");
    }
    let large = format!("{{\"x\": \"{}\"}}", "y".repeat(70_000));
    assert!(post(&node, "/cache/sync", JSON, &large).reason(413).contains("65536 bytes"));
    for (headers, body) in
        [(JSON, ""), (JSON, "{}"), ("Content-Type: application/json; charset=utf-8\r\n", "{}")]
    {
        let answer = post(&node, "/cache/sync", headers, body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let json = answer.json();
        assert_eq!(json["local_flush_complete"], true);
        assert_eq!(json["inventory_sequence"], serde_json::json!([1]));
        assert_eq!(json["incarnation"], node.metadata().incarnation);
    }
    assert_eq!(get(&node, "/cache/sync").status, 405);
    let awaited = post(&node, "/cache/metadata/await", JSON, "{}");
    assert!(awaited.reason(409).contains("standalone"), "{awaited:?}");
}

#[test]
fn a_host_that_is_not_ours_is_refused() {
    let node = Node::start();
    let port = node.http().rsplit_once(':').expect("a port").1.to_owned();
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""] {
        for request in [
            format!("GET /cache/metadata HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
            format!(
                "POST /cache/sync HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 2\r\n{JSON}\r\n{{}}"
            ),
        ] {
            let reason = exchange(&node, &request).reason(403);
            assert!(reason.contains("Host header"), "{reason}");
        }
    }
    let none = exchange(&node, "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert_eq!(none.status, 400, "{none:?}");
    let two = format!(
        "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(exchange(&node, &two).status, 400);
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), "[::1]".to_owned()] {
        let ours = format!("GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(exchange(&node, &ours).status, 200, "{host}");
    }
}

#[test]
fn with_a_token_file_only_its_bearer_may_post() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("token");
    fs::write(&file, "correct-horse-battery\n").expect("room for a file");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("our own file");
    let node = NodeOrder::default().argument("--http-token-file").argument(&file).start();
    for headers in [JSON.to_owned(), format!("{JSON}Authorization: Bearer correct-horse-batterz\r\n")] {
        let answer = post(&node, "/cache/sync", &headers, "{}");
        assert!(answer.reason(401).contains("--http-token-file"), "{answer:?}");
        assert!(answer.head.to_lowercase().contains("www-authenticate: bearer"), "{answer:?}");
    }
    let bearer = format!("{JSON}Authorization: Bearer correct-horse-battery\r\n");
    assert_eq!(post(&node, "/cache/sync", &bearer, "{}").status, 200);
    assert_eq!(get(&node, "/cache/metadata").status, 200);
    super::orbitkv(&["sync", "--http", node.http()]).refused(2, &["401"]);
    let file = file.to_str().expect("text");
    let said = super::orbitkv(&["sync", "--http", node.http(), "--http-token-file", file]);
    assert_eq!(said.code, Some(0), "{said:#?}");
}

#[test]
fn what_is_no_http_is_ended_and_the_node_goes_on() {
    let node = Node::start();
    for bytes in [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &[0; 70_000], b"GET\r\n\r\n"] {
        let mut stream = TcpStream::connect(node.http()).expect("the node listens");
        stream.set_read_timeout(Some(WAIT)).expect("a time-out");
        // It may have hung up by then.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // Many that say nothing at all keep nobody out for good.
    let silent: Vec<TcpStream> = (0..64).filter_map(|_| TcpStream::connect(node.http()).ok()).collect();
    drop(silent);
    assert_eq!(get(&node, "/ready").status, 200);
    node.assert_serves();
}
