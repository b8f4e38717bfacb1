//! Three symptoms that look alike: a block that was there and is not found. Each is made on real nodes, and it is its
//! counter that grows, its event that is in the log and its finding that the doctor has, and none of the other two's.

use orbitkv::client::Media;

use super::disk::{ssd_file, write_over};
use super::{doctor, save_to_ssd};
use crate::harness::etcd::{Relay, free_port};
use crate::harness::saver::{Saver, block};
use crate::harness::{Etcd, Node, eventually, http_text};
use crate::peers::{await_installed, evict, keys, knows_all, order, order_by, pair, savers};

const MIB: u64 = 1024 * 1024;

/// Their findings, in the order of [`symptoms`].
const FINDINGS: [&str; 3] = ["range-ended", "superseded-answers", "lost-writes"];

/// Range ended, superseded, lost write, over all shards, as a scraper reads them.
fn symptoms(node: &Node) -> [u64; 3] {
    let text = http_text(node.http(), "/metrics");
    ["orbitkv_range_ended_total", "orbitkv_superseded_total", "orbitkv_lost_writes_total"].map(|name| {
        let of_it = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        let values: Vec<u64> = of_it.map(|(_, value)| value.parse().expect("a number")).collect();
        assert!(!values.is_empty(), "no {name} in {text}");
        values.iter().sum()
    })
}

/// Only this one of the findings is there, with its remedy.
fn only(node: &Node, finding: &str, remedy: &str) {
    let (_, names, words) = doctor(node);
    let found: Vec<&str> =
        FINDINGS.into_iter().filter(|name| names.iter().any(|found| found == name)).collect();
    assert_eq!(found, [finding], "{words}");
    assert!(words.contains(&format!("remedy  {remedy}")), "{words}");
}

/// A number in a line of the log.
fn field(line: &str, name: &str) -> Option<u64> {
    let rest = line.split_once(&format!(" {name}="))?.1;
    let digits: String = rest.trim_start_matches("Some(").chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[test]
fn a_range_that_has_ended_is_told_with_its_key_and_both_sequences() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| {
        // What ends is told late, as on a busy network.
        order.argument("--coalesce").argument("5ms").variable("ORBITKV_LOG", "info,orbitkv::peers=debug")
    });
    let [mut saver, mut other] = savers([&first, &second]);
    let mut last = Vec::new();
    eventually("blocks are asked for that have just ended", || {
        last = keys(50);
        saver.save(&last);
        await_installed(&first, &second);
        evict(&mut saver, &last, Media::ALL);
        assert!(other.check_never_wrong(&last).iter().all(Option::is_some), "nobody has them");
        (symptoms(&second)[0] > 0).then_some(())
    });
    let [ended, ..] = symptoms(&second);
    assert_eq!((symptoms(&second), symptoms(&first)), ([ended, 0, 0], [0, 0, 0]));
    let said = second.stderr();
    let told: Vec<&str> = said.lines().filter(|line| line.contains("range ended")).collect();
    assert_eq!(told.len() as u64, ended, "each is told: {said}");
    let head = first.metadata().inventory_sequence[0];
    for line in told {
        assert!(last.iter().any(|&key| line.contains(&block(key).to_string())), "{line}");
        let (put, end) = (field(line, "sequence"), field(line, "ended"));
        assert!(put.zip(end).is_some_and(|(put, end)| 0 < put && put < end && end <= head), "{line}");
    }
    only(&second, FINDINGS[0], "give the peers more room");
    assert_eq!(doctor(&first).1, Vec::<String>::new(), "{}", doctor(&first).2);
}

#[test]
fn a_life_that_is_over_is_told_once_and_by_its_name() {
    let etcd = Etcd::start();
    let relay = Relay::to(etcd.address(0));
    let mut first = order("a", free_port(), &etcd).start();
    let second = order_by("b", free_port(), &relay.url()).start();
    knows_all(&first, 2);
    knows_all(&second, 2);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(20);
    saver.save(&saved);
    await_installed(&first, &second);
    let old = first.metadata().membership.incarnation.expect("a member");
    // From now on it hears nothing of etcd, and the other one begins another life.
    relay.point(None);
    first.kill();
    first.restart();
    first.await_metadata("it is a member again", |page| page.epoch == Some(2));
    eventually("the old life is spoken to", || {
        assert!(other.check_never_wrong(&saved[..1])[0].is_some(), "nobody has it");
        (symptoms(&second)[1] > 0).then_some(())
    });
    let [_, superseded, _] = symptoms(&second);
    assert_eq!((symptoms(&second), symptoms(&first)), ([0, superseded, 0], [0, 0, 0]));
    let said = second.stderr();
    let told: Vec<&str> = said.lines().filter(|line| line.contains("superseded")).collect();
    assert!(told.len() == 1 && told[0].contains("node=a") && told[0].contains(&old), "{said}");
    only(&second, FINDINGS[1], "nothing, if nodes were restarted");
    // With etcd it is known who the other one is now.
    relay.point(Some(etcd.address(0)));
    second.await_metadata("etcd has told it", |page| {
        page.membership.members.iter().any(|member| (member.node_id.as_str(), member.epoch) == ("a", 2))
    });
    knows_all(&second, 2);
    Saver::connect(&first.socket(), "again").save(&saved);
    await_installed(&first, &second);
    other.check_ready(&saved);
    assert_eq!([symptoms(&second)[0], symptoms(&second)[2]], [0, 0]);
}

#[test]
fn a_lost_write_is_told_where_it_was_accepted_and_no_peer_counts_it_as_theirs() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order.ssd("256mib").variable("ORBITKV_AUDIT", "10ms"));
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(64);
    save_to_ssd(&first, &mut saver, &saved);
    await_installed(&first, &second);
    write_over(&ssd_file(&first), 0..2 * MIB);
    first.await_metadata("the audit has gone round", |page| {
        let ssd = &page.shards[0].ssd;
        ssd.lost_writes > 0 && ssd.audited > 3 * 64
    });
    // Its end is told to peers like any other, and nobody is asked for it.
    await_installed(&first, &second);
    let [.., lost] = symptoms(&first);
    let missed = other.check_never_wrong(&saved).iter().filter(|outcome| outcome.is_some()).count();
    assert_eq!(missed as u64, lost, "all others come");
    assert_eq!((symptoms(&first), symptoms(&second)), ([0, 0, lost], [0, 0, 0]));
    let (said, head) = (first.stderr(), first.metadata().inventory_sequence[0]);
    let told: Vec<&str> = said.lines().filter(|line| line.contains("lost write")).collect();
    assert_eq!(told.len() as u64, lost, "each is told: {said}");
    for line in told {
        assert!(saved.iter().any(|&key| line.contains(&block(key).to_string())), "{line}");
        assert!(field(line, "sequence").is_some_and(|sequence| (1..=head).contains(&sequence)), "{line}");
    }
    only(&first, FINDINGS[2], "look for `lost write` in the log");
    assert_eq!(doctor(&second).1, Vec::<String>::new(), "{}", doctor(&second).2);
}
