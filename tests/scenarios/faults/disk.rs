//! The file system fails the node: full, in memory, the SSD file deleted, cut or written over.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use orbitkv::client::BlockOutcome;
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::report::{SsdFault, SsdState};
use tempfile::TempDir;

use super::{doctor, keys, leave_dram, save_through, save_to_ssd};
use crate::harness::saver::{BLOCK_BYTES, Saver};
use crate::harness::{Node, NodeOrder};

const MIB: u64 = 1024 * 1024;

/// A small file system of its own, gone when dropped.
struct Volume {
    directory: TempDir,
}

impl Volume {
    /// An ext4 of `bytes` in a file.
    fn ext4(bytes: u64) -> Volume {
        let directory = TempDir::with_prefix_in("volume-", env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let image = directory.path().join("image");
        File::create(&image).and_then(|file| file.set_len(bytes)).expect("room for an image");
        let volume = Volume { directory };
        fs::create_dir(volume.at()).expect("our own directory");
        must(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        must(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(volume.at()));
        volume
    }

    /// A tmpfs.
    fn tmpfs() -> Volume {
        let directory = TempDir::with_prefix_in("volume-", env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let volume = Volume { directory };
        fs::create_dir(volume.at()).expect("our own directory");
        must(Command::new("mount").args(["-t", "tmpfs", "-o", "size=256m", "none"]).arg(volume.at()));
        volume
    }

    fn at(&self) -> PathBuf {
        self.directory.path().join("at")
    }

    /// Takes every byte that is left, and says how many that was.
    fn fill(&self) -> u64 {
        let file = File::create(self.at().join("filler")).expect("a directory entry is left");
        let mut taken = 0;
        for piece in [vec![7; 1 << 20], vec![7; 4096]] {
            loop {
                match file.write_at(&piece, taken) {
                    Ok(written) => taken += written as u64,
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => panic!("filling the disk: {error}"),
                }
            }
        }
        taken
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.at()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            let _ = Command::new("umount").arg("-l").arg(self.at()).status();
        }
    }
}

fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn ssd_file(node: &Node) -> PathBuf {
    node.data_dir().join("blocks.ssd")
}

/// Writes something else over a part of a node's SSD file, as a stranger would.
pub fn write_over(path: &Path, range: std::ops::Range<u64>) {
    let file = File::options().write(true).open(path).expect("the SSD file");
    let mut word = 0x1234_5678_9abc_def1u64;
    let mut piece = vec![0; 1 << 20];
    for at in range.step_by(piece.len()) {
        for chunk in piece.chunks_exact_mut(8) {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        file.write_all_at(&piece, at).expect("the SSD file can be written");
    }
    file.sync_all().expect("the SSD file can be synced");
}

fn fault(page: &MetadataPage) -> Option<SsdFault> {
    match &page.shards[0].ssd.state {
        SsdState::Degraded { fault, .. } => Some(*fault),
        SsdState::Off | SsdState::On => None,
    }
}

#[test]
fn a_disk_without_room_is_refused_with_path_asked_and_available_bytes() {
    let volume = Volume::ext4(160 * MIB);
    let ended =
        NodeOrder::default().ssd("512mib").data_below(volume.at()).try_start().err().expect("no room");
    assert_eq!(ended.status.code(), Some(3), "{ended:#?}");
    for part in ["blocks.ssd", "536870912 bytes", "bytes available", "lower --ssd", "No space left"] {
        assert!(ended.stderr.contains(part), "no word of `{part}`: {ended:#?}");
    }
    let available: u64 = ended
        .stderr
        .split_once(" has ")
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
        .expect("the available bytes are named");
    assert!((64 * MIB..160 * MIB).contains(&available), "{available}: {ended:#?}");
    // Nothing of the attempt stays taken.
    let node = NodeOrder::default().ssd("64mib").data_below(volume.at()).start();
    node.assert_serves();
}

#[test]
fn a_disk_that_becomes_full_costs_nothing_because_the_file_was_allocated_whole() {
    let volume = Volume::ext4(192 * MIB);
    let node = NodeOrder::default().ssd("96mib").data_below(volume.at()).start();
    let filled = volume.fill();
    assert!(filled > 16 * MIB, "{filled} bytes were left to take");
    let mut saver = Saver::connect(&node.socket(), "a");
    // More than the tier holds: every segment is written, and some again.
    let mut saved = Vec::new();
    for _ in 0..8 {
        let some = keys(256);
        save_to_ssd(&node, &mut saver, &some);
        saver.check_never_wrong(&some);
        leave_dram(&mut saver, &some);
        saved = some;
    }
    saver.check_ready(&saved);
    let page = node.metadata();
    let ssd = &page.shards[0].ssd;
    assert_eq!((ssd.write_backs_failed, ssd.read_errors, ssd.checksum_failures), (0, 0, 0), "{ssd:#?}");
    assert_eq!(ssd.state, SsdState::On);
    assert!(ssd.reads >= 256 && page.shards[0].evictions.ssd > 0, "{page:#?}");
}

#[test]
fn a_data_directory_in_memory_is_refused_with_the_file_system_and_the_remedy() {
    let volume = Volume::tmpfs();
    let ended = NodeOrder::default().ssd("64mib").data_below(volume.at()).try_start().err().expect("refused");
    assert_eq!(ended.status.code(), Some(3), "{ended:#?}");
    for part in ["blocks.ssd", "tmpfs", "which is memory and no disk", "ext4 or xfs", "without --ssd"] {
        assert!(ended.stderr.contains(part), "no word of `{part}`: {ended:#?}");
    }
}

#[test]
fn a_deleted_file_serves_on_and_the_operator_is_told() {
    let node = NodeOrder::default().ssd("128mib").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let before = keys(128);
    save_to_ssd(&node, &mut saver, &before);
    assert_eq!(doctor(&node).0, Some(0));
    fs::remove_file(ssd_file(&node)).expect("the SSD file is there");
    saver.check_ready(&before);
    let after = keys(128);
    save_to_ssd(&node, &mut saver, &after);
    saver.check_ready(&after);
    let page = node.metadata();
    assert_eq!(fault(&page), Some(SsdFault::FileDeleted), "{page:#?}");
    assert!(page.shards[0].ssd.reads >= 256, "{page:#?}");
    let (code, names, words) = doctor(&node);
    assert_eq!((code, names), (Some(4), vec!["ssd-degraded".to_owned()]), "{words}");
    for part in ["was deleted", "serves on in the nameless file", "restart the node"] {
        assert!(words.contains(part), "no word of `{part}`: {words}");
    }
}

#[test]
fn a_file_cut_under_us_is_misses_that_are_counted_and_never_wrong_bytes() {
    // With its breaker half of the blocks would not be read at all.
    let node = NodeOrder::default().ssd("128mib").argument("--ssd-breaker").argument("0").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let cut = keys(200);
    save_to_ssd(&node, &mut saver, &cut);
    // In the middle of a block: it comes short, what is behind it does not come at all.
    let file = File::options().write(true).open(ssd_file(&node)).expect("the SSD file");
    file.set_len(100 * BLOCK_BYTES + 5_000).expect("it can be cut");
    let outcomes = saver.check_never_wrong(&cut);
    let lost = outcomes.iter().filter(|outcome| **outcome == Some(BlockOutcome::DeviceError)).count();
    let ready = outcomes.iter().filter(|outcome| outcome.is_none()).count();
    assert_eq!(lost + ready, 200, "{outcomes:?}");
    assert!(lost >= 90 && ready >= 90, "{lost} lost, {ready} ready");
    let page = node.metadata();
    assert_eq!(page.shards[0].ssd.read_errors, lost as u64, "{page:#?}");
    assert_eq!(doctor(&node).1, ["lost-writes", "ssd-errors"]);
    // A block that was lost is a miss and can be saved again; its write makes the file longer.
    leave_dram(&mut saver, &cut);
    let again = saver.check_never_wrong(&cut);
    let missing = again.iter().filter(|outcome| **outcome == Some(BlockOutcome::Missing)).count();
    assert_eq!(missing, lost, "{again:?}");
    save_to_ssd(&node, &mut saver, &cut);
    saver.check_ready(&cut);
    assert_eq!(node.metadata().shards[0].ssd.read_errors, lost as u64);
}

#[test]
fn bytes_written_over_are_misses_that_are_counted_and_their_place_is_quarantined() {
    let node = NodeOrder::default().ssd("256mib").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let saved = keys(256);
    save_to_ssd(&node, &mut saver, &saved);
    // The first blocks of the file: few segments of many.
    write_over(&ssd_file(&node), 0..4 * MIB);
    let outcomes = saver.check_never_wrong(&saved);
    let corrupt = outcomes.iter().filter(|outcome| **outcome == Some(BlockOutcome::Corrupt)).count();
    let ready = outcomes.iter().filter(|outcome| outcome.is_none()).count();
    assert!(corrupt >= 32 && corrupt + ready == 256, "{corrupt} corrupt, {ready} ready: {outcomes:?}");
    // The rest of those segments is still there, and right; then it leaves, and the segments are retired.
    leave_dram(&mut saver, &saved);
    let media = orbitkv::client::Media::ALL;
    saver.client.evict(saver.namespace, &super::named(&saved), media, crate::harness::WAIT).expect("Evict");
    let page =
        node.await_metadata("the segments are quarantined", |page| page.shards[0].ssd.quarantined_bytes > 0);
    let ssd = &page.shards[0].ssd;
    assert_eq!(ssd.checksum_failures, corrupt as u64, "{ssd:#?}");
    assert!(ssd.quarantined_bytes >= 4 * MIB, "{ssd:#?}");
    assert_eq!(ssd.state, SsdState::On, "a small part is no reason to give up the rest");
    let (code, names, words) = doctor(&node);
    assert_eq!(
        (code, names),
        (Some(4), vec!["lost-writes".to_owned(), "wrong-checksums".to_owned()]),
        "{words}"
    );
    // What is quarantined is not used again: the tier is filled more than once.
    for _ in 0..10 {
        let some = keys(512);
        save_to_ssd(&node, &mut saver, &some);
    }
    assert!(node.metadata().shards[0].evictions.ssd > 0, "the log went round");
    let last = keys(256);
    save_to_ssd(&node, &mut saver, &last);
    saver.check_ready(&last);
    let ssd = &node.metadata().shards[0].ssd;
    assert_eq!(ssd.checksum_failures, corrupt as u64, "{ssd:#?}");
}

#[test]
fn a_file_written_over_as_a_whole_turns_the_tier_off_and_saves_go_on() {
    let node = NodeOrder::default().ssd("128mib").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let saved = keys(768);
    save_to_ssd(&node, &mut saver, &saved);
    write_over(&ssd_file(&node), 0..128 * MIB);
    let outcomes: Vec<_> = saved.chunks(256).flat_map(|some| saver.check_never_wrong(some)).collect();
    assert!(outcomes.iter().all(|outcome| *outcome == Some(BlockOutcome::Corrupt)), "{outcomes:?}");
    let page = node.await_metadata("the tier is off", |page| fault(page) == Some(SsdFault::WrongChecksums));
    let ssd = &page.shards[0].ssd;
    assert_eq!((ssd.checksum_failures, page.shards[0].residents.ssd), (768, 0), "{ssd:#?}");
    assert!(ssd.quarantined_bytes > 0, "{ssd:#?}");
    let (code, names, words) = doctor(&node);
    let expected = ["ssd-degraded", "lost-writes", "wrong-checksums"];
    assert_eq!((code, names), (Some(4), expected.map(str::to_owned).to_vec()), "{words}");
    assert!(words.contains("too many wrong checksums") && words.contains("--ssd 0"), "{words}");
    // More than DRAM holds: eviction goes on without the tier.
    let after = keys(1_500);
    save_through(&node, &mut saver, &after);
    saver.check_ready(&after[1_244..]);
    assert_eq!(node.metadata().shards[0].ssd.checksum_failures, 768);
}
