//! The page over a real socket: what it consists of, what it may do, and that whatever it asks for and reads is there.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use orbitkv_shards::resilience::degradation::FRESHNESS_BOUND;
use orbitkv_wire::identity::{Incarnation, NodeId};
use orbitkv_wire::membership::{Contact, MemberRecord};
use serde::Deserialize;
use serde_json::Value;

use super::{ASSETS, Asset, ICON, POLICY, SCRIPT};
use crate::control::owners::{Owner, OwnersPage};
use crate::control::report::{BreakerReport, PeersReport, ShardReport, SsdFault, SsdState};
use crate::control::routes::{LoadRow, OwnerRow, PlanRow, RouteRow};
use crate::control::sources::SourceReport;
use crate::control::tests::{Running, Start};

/// What the page asks for at one place.
#[derive(Deserialize)]
struct Source {
    path: String,
    fields: Vec<String>,
}

fn asset(path: &str) -> &'static Asset {
    ASSETS.iter().find(|asset| asset.path == path).unwrap_or_else(|| panic!("{path} is no part of the page"))
}

fn scripts() -> impl Iterator<Item = &'static Asset> {
    ASSETS.iter().filter(|asset| asset.content_type == SCRIPT)
}

/// The list that `fields.js` hands to the script that asks.
fn sources() -> BTreeMap<String, Source> {
    let (_, list) = asset("/ui/fields.js").text.split_once("export const SOURCES =").expect("the list");
    let list = list.trim().strip_suffix(';').expect("one statement");
    serde_json::from_str(list).expect("the list is JSON")
}

/// What stands between `before` and the next `after`, everywhere in a text.
fn between<'a>(text: &'a str, before: &str, after: char) -> Vec<&'a str> {
    text.split(before).skip(1).map(|rest| rest.split(after).next().unwrap_or_default()).collect()
}

/// Whether an answer has a field; `*` is any element of a list or value of a map.
fn has(value: &Value, field: &str) -> bool {
    let (name, below) = field.split_once('.').map_or((field, None), |(name, below)| (name, Some(below)));
    let goes_on = |value: &Value| below.is_none_or(|below| has(value, below));
    match (name, value) {
        ("*", Value::Array(elements)) => elements.iter().any(goes_on),
        ("*", Value::Object(values)) => values.values().any(goes_on),
        (name, Value::Object(values)) => values.get(name).is_some_and(goes_on),
        _ => false,
    }
}

fn member(name: &str, life: u8) -> MemberRecord {
    let contact = Contact {
        address: SocketAddr::from(([10, 0, 0, life], 7_000)),
        shards: 1,
        hash_version: 1,
        zone: "east".to_owned(),
        key_fingerprint: [life; 32],
        boot_id: [life; 16],
        peer_socket: String::new(),
        capabilities: Vec::new(),
    };
    let node = NodeId::new(name).expect("a name");
    MemberRecord { node, epoch: 1, incarnation: Incarnation([life; 16]), contact }
}

/// A node that has something to say in every field: it has peers, a reset, a route, and an SSD in trouble.
fn eventful() -> Running {
    let api = Running::start(Start::default());
    let route = RouteRow {
        alternatives: vec![PlanRow::default()],
        routes: vec![OwnerRow::default()],
        replans: vec![("busy".to_owned(), 1)],
        ..RouteRow::default()
    };
    let peers = PeersReport {
        sessions_refused: BTreeMap::from([("unknown".to_owned(), 1)]),
        resets: BTreeMap::from([("history-gone".to_owned(), 1)]),
        routes: vec![route],
        breakers: vec![BreakerReport::default()],
        sources: vec![SourceReport::default()],
        ..PeersReport::default()
    };
    let mut report = ShardReport { peers: Some(peers), ..ShardReport::default() };
    report.ssd.state =
        SsdState::Degraded { fault: SsdFault::DeviceFull, detail: "no space is left".to_owned() };
    let owner = Owner { node_id: "peer".to_owned(), load: Some(LoadRow::default()), ..Owner::default() };
    api.answers(|answers| {
        answers.reports = Ok(vec![report]);
        answers.revisions = vec![3];
        answers.members = vec![member("fake", 1), member("peer", 2)];
        answers.owners = Some(OwnersPage { owners: vec![owner], next: None });
    });
    api
}

#[test]
fn the_page_and_its_parts_are_served_under_a_strict_policy() {
    let api = Running::start(Start::default());
    for asset in &ASSETS {
        let request =
            |host: &str| format!("GET {} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n", asset.path);
        let (status, head, body) = api.raw(&request("localhost"));
        assert_eq!((status, body.as_str()), (200, asset.text), "{}", asset.path);
        let head = head.to_lowercase();
        for line in [
            format!("content-type: {}", asset.content_type),
            format!("content-security-policy: {POLICY}"),
            "x-content-type-options: nosniff".to_owned(),
            "referrer-policy: no-referrer".to_owned(),
            "cache-control: no-store".to_owned(),
        ] {
            assert!(
                head.lines().any(|seen| seen == line),
                "`{line}` is not in the head of {}:\n{head}",
                asset.path
            );
        }
        assert_eq!(api.raw(&request("evil.example")).0, 403, "{}", asset.path);
        let post = "HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(api.raw(&format!("POST {} {post}", asset.path)).0, 405, "{}", asset.path);
    }
    for word in
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for"]
    {
        assert!(POLICY.contains(word), "{word}");
    }
    assert!(!POLICY.contains("unsafe"), "{POLICY}");
}

#[test]
fn the_page_needs_nothing_that_the_policy_forbids() {
    for asset in &ASSETS {
        let text = asset.text.replace("http://www.w3.org/2000/svg", "");
        for word in [
            "http:",
            "https:",
            "\"data:",
            "javascript:",
            "//cdn",
            "@import",
            "url(",
            " style=",
            "<style",
            "onclick",
            "onload",
        ] {
            assert!(!text.contains(word), "`{word}` in {}", asset.path);
        }
    }
    let html = asset("/ui").text;
    assert_eq!(between(html, "<script", '>'), [" type=\"module\" src=\"/ui/app.js\""]);
    for script in scripts() {
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "srcdoc",
            "DOMParser",
            "XMLHttpRequest",
            "WebSocket",
            "EventSource",
            "sendBeacon",
            "localStorage",
        ] {
            assert!(!script.text.contains(word), "{word} in {}", script.path);
        }
        let fetches = script.text.matches("fetch(").count();
        assert_eq!(fetches, usize::from(script.path == "/ui/reading.js"), "{}", script.path);
    }
    assert!(
        asset("/ui/reading.js").text.contains("fetch(SOURCES[name].path + query,"),
        "it asks for listed paths alone"
    );
}

#[test]
fn whatever_the_page_refers_to_is_there() {
    let api = eventful();
    for asset in ASSETS.iter().filter(|asset| asset.content_type != ICON) {
        let files = between(asset.text, "from \"./", '"').into_iter().map(|file| format!("/ui/{file}"));
        let places = between(asset.text, "\"/", '"').into_iter().map(|place| format!("/{place}"));
        for path in files.chain(places) {
            assert_eq!(api.get(&path).0, 200, "{path} of {}", asset.path);
        }
    }
    let html = asset("/ui").text;
    let ids = between(html, "id=\"", '"');
    for script in scripts() {
        let (direct, sections) =
            (between(script.text, "at(\"", '"'), between(script.text, "section(\"", '"'));
        for id in direct.into_iter().chain(sections).chain(between(script.text, "remark(\"", '"')) {
            assert!(ids.contains(&id), "{} looks for #{id}", script.path);
        }
    }
    for target in between(html, "href=\"#", '"').into_iter().chain(between(html, "aria-labelledby=\"", '"')) {
        assert!(ids.contains(&target), "#{target}");
    }
}

#[test]
fn every_field_that_the_page_reads_is_in_the_answer() {
    let api = eventful();
    for (name, Source { path, fields }) in sources() {
        let (status, body) = api.get(&path);
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(status, 200, "{name}: {body}");
        for field in fields {
            assert!(has(&answer, &field), "{path} has no {field}:\n{answer:#}");
        }
    }
    assert!(!has(&serde_json::json!({"a": [{"b": 1}]}), "a.*.c"), "the test itself finds what is missing");
    // A page of owners goes on behind `next`, with the query that the script sends.
    assert_eq!(api.get("/cache/metadata/owners?after=&limit=500").0, 200);
    // What the page colours as fresh is what the node means by it.
    let fresh = format!("FRESH_MS = {};", FRESHNESS_BOUND.as_millis());
    assert!(asset("/ui/streams.js").text.contains(&fresh), "{fresh}");
}

#[test]
fn files_of_the_page_are_short() {
    for asset in &ASSETS {
        assert!(asset.text.lines().count() <= 600, "{}", asset.path);
    }
}
