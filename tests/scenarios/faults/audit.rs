//! The audit: accepted blocks that a device loses are found and named before anybody asks for them.

use orbitkv::client::BlockOutcome;

use super::disk::{ssd_file, write_over};
use super::{doctor, keys, save_to_ssd};
use crate::harness::saver::{Saver, block};
use crate::harness::{NodeOrder, http_text};

const MIB: u64 = 1024 * 1024;

#[test]
fn a_lost_write_is_found_and_named_though_nobody_asks_for_the_block() {
    let node = NodeOrder::default().ssd("256mib").variable("ORBITKV_AUDIT", "10ms").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let saved = keys(96);
    save_to_ssd(&node, &mut saver, &saved);
    let sequences = 1..=node.metadata().inventory_sequence[0];
    let healthy = node.await_metadata("it has gone round", |page| page.shards[0].ssd.audited > 200);
    assert_eq!((healthy.shards[0].ssd.lost_writes, doctor(&node).1.len()), (0, 0), "{healthy:#?}");
    assert_eq!(healthy.shards[0].service.hits.ssd, 0, "no engine has read anything");
    // Somebody writes over what the first few blocks are in.
    write_over(&ssd_file(&node), 0..2 * MIB);
    let audited = node.metadata().shards[0].ssd.audited;
    let page = node.await_metadata("it has gone round again", |page| {
        page.shards[0].ssd.audited > audited + 200 && page.shards[0].ssd.lost_writes > 0
    });
    let lost = page.shards[0].ssd.lost_writes;
    assert_eq!(page.shards[0].residents.ssd, 96 - lost, "each has ended, and no other");
    // Whoever asks for them now is told that they are not there; all others are as they were.
    let outcomes = saver.check_never_wrong(&saved);
    let gone: Vec<u64> = (saved.iter().zip(&outcomes))
        .filter(|(_, outcome)| **outcome == Some(BlockOutcome::Missing))
        .map(|(&key, _)| key)
        .collect();
    assert_eq!(gone.len() as u64, lost, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_none()).count() as u64, 96 - lost);
    let said = node.stderr();
    for key in gone {
        let name = block(key).to_string();
        let line = said.lines().find(|line| line.contains("lost write") && line.contains(&name));
        let line = line.unwrap_or_else(|| panic!("no word of {name}: {said}"));
        let sequence = line.split("sequence=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        assert!(sequence.is_some_and(|sequence| sequences.contains(&sequence)), "{line}");
        assert!(line.contains("WrongBytes") && line.contains("Audit"), "{line}");
    }
    let (code, names, words) = doctor(&node);
    assert_eq!(
        (code, names),
        (Some(4), vec!["lost-writes".to_owned(), "wrong-checksums".to_owned()]),
        "{words}"
    );
    assert!(words.contains("remedy  look for `lost write` in the log"), "{words}");
    let metrics = http_text(node.http(), "/metrics");
    assert!(metrics.contains(&format!("orbitkv_lost_writes_total{{shard=\"0\"}} {lost}\n")), "{metrics}");
}
