//! Examples: geometry and utilisation at the size of the acceptance trace, tables, reclaim,
//! quarantine, and what happens to a write whose block was removed.

use super::*;
use orbitkv_wire::identity::{BlockHash, GroupId, Incarnation, NamespaceDigest, ShardIndex};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// Distinct blocks of the conversation trace.
const TRACE_BLOCKS: u64 = 182_790;

pub(super) fn name(number: u64) -> BlockName {
    let mut hash = [0u8; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    let namespace = NamespaceDigest([(number % 3) as u8; 32]);
    BlockName { namespace, group: GroupId((number % 5) as u16), block: BlockHash(hash) }
}

fn settings(bytes: u64, largest_block_bytes: u64) -> SegmentLogSettings {
    SegmentLogSettings::new(8 * KIB, bytes, largest_block_bytes, Incarnation([7; 16]), ShardIndex(3))
}

/// 64 KiB of data a segment, blocks of 8 KiB: eight to a segment, sixteen segments.
fn small() -> SegmentLog {
    let mut settings = settings(16 * 68 * KIB, 8 * KIB);
    (settings.segment_bytes, settings.smallest_block_bytes) = (64 * KIB, 8 * KIB);
    let log = SegmentLog::new(settings).unwrap();
    assert_eq!((log.geometry().segments, log.geometry().segment_bytes), (16, 68 * KIB));
    log
}

fn write(log: &mut SegmentLog, number: u64, bytes: u64) -> Result<Placement, AppendError> {
    let placement = log.append(EntryId(number as u32), &name(number), bytes)?;
    assert_eq!(log.on_written(&placement, Sequence(number + 1), number * 31), Settled::Readable);
    Ok(placement)
}

fn fill(log: &mut SegmentLog, blocks: std::ops::Range<u64>) -> Vec<Placement> {
    blocks.map(|number| write(log, number, 8 * KIB).unwrap()).collect()
}

/// Blocks live when the log first asks for room, and the fewest in the steady state after it.
fn utilisation(mut log: SegmentLog, blocks: u64, block_bytes: u64) -> (u64, u64) {
    let mut out = Vec::new();
    let (mut first, mut fewest) = (None, u64::MAX);
    for number in 0..2 * blocks {
        write(&mut log, number, block_bytes).expect("an owner that answers at once always finds room");
        while let Some(write) = log.poll_table() {
            log.on_table_written(write.segment, true);
        }
        while log.poll_reclaim(&mut out).is_some() {
            first.get_or_insert(log.accounting().shares.live_blocks);
            out.iter().for_each(|(_, placement)| log.remove(placement));
        }
        if first.is_some() {
            fewest = fewest.min(log.accounting().shares.live_blocks);
        }
    }
    (first.expect("the log is smaller than twice its blocks"), fewest)
}

#[test]
fn holds_nearly_every_block_of_the_trace_before_it_drops_any() {
    for (shards, block_bytes, largest_block_bytes) in [
        (1, 64 * KIB, 64 * KIB),
        (2, 64 * KIB, 64 * KIB),
        (8, 64 * KIB, 64 * KIB),
        (1, 64 * KIB, MIB),
        (4, 64 * KIB, 4 * MIB),
        (1, MIB, MIB),
    ] {
        let bytes = TRACE_BLOCKS * 64 * KIB / shards / 4096 * 4096;
        let blocks = bytes / block_bytes;
        let log = SegmentLog::new(settings(bytes, largest_block_bytes)).unwrap();
        let geometry = log.geometry();
        let (first, fewest) = utilisation(log, blocks, block_bytes);
        println!(
            "{shards} shards, {block_bytes} of at most {largest_block_bytes}: {} segments of {}, {:.4} first, {:.4} steady",
            geometry.segments,
            geometry.segment_bytes,
            first as f64 / blocks as f64,
            fewest as f64 / blocks as f64
        );
        assert!(first * 1000 >= blocks * 985, "{first} of {blocks} with {geometry:?}");
        assert!(fewest * 1000 >= blocks * 985, "steady {fewest} of {blocks} with {geometry:?}");
    }
}

#[test]
fn geometry_follows_the_part() {
    // A large part has segments of the size asked for, a small one at least eight.
    let large = settings(100 << 30, 64 * KIB).geometry().unwrap();
    assert_eq!(large.segment_bytes / MIB, 32);
    for bytes in [2 * MIB, 5 * MIB, 16 * MIB, 64 * MIB, 1 << 30] {
        let geometry = settings(bytes, 64 * KIB).geometry().unwrap();
        assert!(geometry.segments >= 8, "{bytes}: {geometry:?}");
    }
    // The largest block fits and a larger one is refused with the limit.
    let mut log = SegmentLog::new(settings(1 << 30, 100 * MIB + 1)).unwrap();
    assert!(write(&mut log, 0, 100 * MIB + 1).is_ok());
    let limit_bytes = log.geometry().block_bytes_max;
    assert!(log.append(EntryId(1), &name(1), limit_bytes).is_ok());
    assert_eq!(log.append(EntryId(2), &name(2), limit_bytes + 1), Err(AppendError::TooLarge { limit_bytes }));
}

#[test]
fn impossible_parts_are_refused_with_their_bound() {
    let misaligned = SegmentLogSettings { base: 100, ..settings(MIB, 4096) };
    assert_eq!(misaligned.geometry(), Err(GeometryError::Misaligned { base: 100 }));
    let beyond = SegmentLogSettings { base: i64::MAX as u64 / 4096 * 4096, ..settings(MIB, 4096) };
    assert!(matches!(beyond.geometry(), Err(GeometryError::BeyondFile { .. })));
    let huge = settings(1 << 40, 5 << 30).geometry();
    assert!(matches!(huge, Err(GeometryError::SegmentTooLarge { .. })));
    for bytes in [0, 4096, 3 * MIB] {
        let Err(GeometryError::PartTooSmall { least_bytes, .. }) = settings(bytes, MIB).geometry() else {
            panic!("{bytes} bytes hold no four blocks of a MiB");
        };
        assert_eq!(settings(least_bytes, MIB).geometry().unwrap().segments, 4, "the least named does");
        assert!(settings(least_bytes - 4096, MIB).geometry().is_err(), "and no less");
    }
}

#[test]
fn memory_bill_covers_the_tables() {
    let of = settings(TRACE_BLOCKS * 64 * KIB, 64 * KIB);
    let bill = table_memory_bytes(&of).unwrap();
    let mut log = SegmentLog::new(of).unwrap();
    // The worst that the bill allows: every block of the smallest size.
    let mut number = 0;
    while write(&mut log, number, SMALLEST_BLOCK_BYTES).is_ok() {
        number += 1;
    }
    let records: usize = log.segments.iter().map(|segment| segment.records.capacity()).sum();
    let used = records * size_of::<segment::Record>() + log.segments.capacity() * size_of::<Segment>();
    assert!((used as u64) < bill, "{used} of {bill}");
    assert!(bill < 16 * MIB, "a thousandth of the part: {bill}");
    assert_eq!(log.awaiting_table.len(), TABLES_AWAITING_MAX, "tables that nobody fetches stay bounded");
    let detailed = log.segments.iter().filter(|segment| segment.details.is_some()).count();
    assert_eq!(detailed, TABLES_AWAITING_MAX + 1);
    assert!(log.accounting().counts.lost_tables > 0);
}

#[test]
fn blocks_follow_each_other_and_the_table_ends_the_segment() {
    let mut log = small();
    let placements = fill(&mut log, 0..9);
    for (ordinal, placement) in placements[..8].iter().enumerate() {
        assert_eq!(placement.offset, 8 * KIB + ordinal as u64 * 8 * KIB, "sequential from the base");
        assert_eq!((placement.ordinal, placement.segment.0), (ordinal as u32, 0));
    }
    assert_eq!(placements[8].offset, (8 + 68) * KIB, "the ninth opens the next segment");
    log.remove(&placements[2]);
    let write = log.poll_table().unwrap();
    assert_eq!(log.poll_table(), None);
    assert_eq!(write.offset + write.bytes.len() as u64, (8 + 68) * KIB);
    let table = decode_table(&write.bytes).unwrap();
    assert_eq!((table.incarnation, table.shard), (Incarnation([7; 16]), ShardIndex(3)));
    assert_eq!((table.segment, table.generation), (0, 1));
    assert_eq!((table.segment_offset, table.segment_bytes), (8 * KIB, 68 * KIB));
    let expected: Vec<TableBlock> = [0, 1, 3, 4, 5, 6, 7]
        .map(|number: u64| TableBlock {
            namespace: name(number).namespace,
            group: name(number).group,
            block: name(number).block,
            sequence: Sequence(number + 1),
            offset: placements[number as usize].offset,
            payload_bytes: 8192,
            checksum: number * 31,
        })
        .into();
    assert_eq!(table.blocks, expected);
}

#[test]
fn a_changed_table_is_refused() {
    let mut log = small();
    fill(&mut log, 0..9);
    let bytes = log.poll_table().unwrap().bytes;
    let whole = decode_table(&bytes).unwrap();
    // A reader need not know the length: more before the table is fine.
    let mut more = vec![0xaa; 3 * 4096];
    more.extend_from_slice(&bytes);
    assert_eq!(decode_table(&more), Ok(whole));
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_table(&flipped).is_err(), "bit {bit}");
    }
    assert_eq!(decode_table(&[]), Err(TableError::Length { bytes: 0 }));
    assert_eq!(decode_table(&bytes[..100]), Err(TableError::Length { bytes: 100 }));
    assert_eq!(decode_table(&[0; 4096]), Err(TableError::Magic));
}

#[test]
fn a_table_with_a_valid_checksum_is_still_checked() {
    let mut log = small();
    fill(&mut log, 0..9);
    let bytes = log.poll_table().unwrap().bytes;
    let forged = |at: usize, value: &[u8]| {
        let mut forged = bytes.clone();
        forged[at..at + value.len()].copy_from_slice(value);
        let end = forged.len();
        let crc = crc64::crc64(crc64::crc64(0, &forged[..end - 16]), b"orbkvend");
        forged[end - 16..end - 8].copy_from_slice(&crc.to_le_bytes());
        decode_table(&forged)
    };
    assert_eq!(forged(8, &[9, 0, 0, 0]), Err(TableError::Version { version: 9 }));
    let entries = 64 + 3 * 32;
    let cases: [(usize, &[u8]); 6] = [
        (56, &[0xff; 4]),              // blocks
        (60, &[0xff; 4]),              // namespaces
        (entries, &[3, 0, 0, 0]),      // the first block's namespace
        (entries + 8, &[1, 0, 0, 0]),  // its first page: now overlaps the second block
        (entries + 8, &[17, 0, 0, 0]), // beyond the data
        (entries + 12, &[0; 4]),       // its bytes
    ];
    for (at, value) in cases {
        assert!(matches!(forged(at, value), Err(TableError::Contradiction { .. })), "at {at}");
    }
    assert!(matches!(forged(bytes.len() - 24, &[0, 32, 0, 0]), Err(TableError::TableLength { bytes: 8192 })));
}

#[test]
fn a_block_removed_in_flight_holds_its_segment_until_the_write_settles() {
    let mut log = small();
    let first = log.append(EntryId(0), &name(0), 8 * KIB).unwrap();
    let others = fill(&mut log, 1..9);
    log.remove(&first);
    assert_eq!(log.standing(&first), Standing::Abandoned);
    others[..7].iter().for_each(|placement| log.remove(placement));
    assert_eq!(log.accounting().shares.free_segments, 14, "the device may still write there");
    assert_eq!(log.poll_table(), None);
    assert_eq!(log.on_written(&first, Sequence(0), 0), Settled::Abandoned);
    assert_eq!(log.accounting().shares.free_segments, 15);
    assert_eq!(log.standing(&first), Standing::Stale);
    assert_eq!(log.poll_table(), None, "an empty segment needs no table");
}

#[test]
fn a_failed_write_is_dead_space() {
    let mut log = small();
    let placement = log.append(EntryId(0), &name(0), 5 * KIB).unwrap();
    assert_eq!(log.accounting().shares.in_flight_bytes, 8 * KIB);
    log.on_write_failed(&placement);
    assert_eq!(log.standing(&placement), Standing::Ended);
    let accounting = log.accounting();
    assert_eq!((accounting.shares.in_flight_bytes, accounting.shares.dead_bytes), (0, 8 * KIB));
    assert_eq!(accounting.counts.failed_writes, 1);
}

#[test]
fn readers_and_table_writes_hold_their_segment() {
    let mut log = small();
    let placements = fill(&mut log, 0..9);
    let table = log.poll_table().unwrap();
    log.begin_read(&placements[3]);
    placements[..8].iter().for_each(|placement| log.remove(placement));
    assert_eq!(log.accounting().shares.free_segments, 14);
    log.end_read(&placements[3]);
    assert_eq!(log.accounting().shares.free_segments, 14, "its table is still being written");
    log.on_table_written(table.segment, true);
    assert_eq!(log.accounting().shares.free_segments, 15);
}

#[test]
fn reclaim_takes_the_oldest_but_prefers_an_almost_dead_one_of_the_older_half() {
    let oldest_victim = |dead: &[usize]| {
        let mut log = small();
        // Fifteen segments: fourteen sealed, one open, one free.
        let placements = fill(&mut log, 0..14 * 8 + 1);
        for segment in dead {
            placements[segment * 8..segment * 8 + 7].iter().for_each(|placement| log.remove(placement));
        }
        let mut out = Vec::new();
        let victim = log.poll_reclaim(&mut out).unwrap();
        assert_eq!(log.poll_reclaim(&mut Vec::new()), None, "what is offered will be room enough");
        (victim.0, out.len())
    };
    assert_eq!(oldest_victim(&[]), (0, 8));
    assert_eq!(oldest_victim(&[5]), (5, 1));
    assert_eq!(oldest_victim(&[9]), (0, 8), "the younger half is left to die by itself");
}

#[test]
fn readers_of_an_offered_segment_do_not_stop_the_log() {
    let mut log = small();
    let placements = fill(&mut log, 0..14 * 8 + 1);
    let mut out = Vec::new();
    log.begin_read(&placements[0]);
    assert_eq!(log.poll_reclaim(&mut out), Some(SegmentId(0)));
    out.iter().for_each(|(_, placement)| log.remove(placement));
    assert_eq!(log.poll_reclaim(&mut out), None, "room is on its way");
    fill(&mut log, 200..207);
    assert_eq!(
        write(&mut log, 207, 8 * KIB),
        Err(AppendError::NoRoom),
        "the last free one is for reinsertion"
    );
    assert_eq!(log.poll_reclaim(&mut out), Some(SegmentId(1)), "a block was refused");
    out.iter().for_each(|(_, placement)| log.remove(placement));
    write(&mut log, 207, 8 * KIB).unwrap();
    log.end_read(&placements[0]);
    assert_eq!(log.accounting().shares.free_segments, 2);
}

#[test]
fn an_owner_that_finds_everything_hot_cannot_stop_the_log() {
    // Blocks of a page are the hard case: by bytes, all of a segment would fit its budget.
    for block_bytes in [4 * KIB, 8 * KIB] {
        let mut log = small();
        let mut out = Vec::new();
        for number in 0..4000 {
            let mut polls = 0;
            while write(&mut log, number, block_bytes).is_err() {
                polls += 1;
                assert!(polls <= 4, "two reclaims gain a segment; block {number}");
                let Some(segment) = log.poll_reclaim(&mut out) else { continue };
                let mut reinserted = 0;
                for (_, placement) in &out {
                    if let Ok(copy) = log.append_reinsert(placement, &name(9), block_bytes) {
                        log.on_written(&copy, Sequence(1), 0);
                        reinserted += 1;
                    }
                    log.remove(placement);
                }
                assert!((1..=4).contains(&reinserted), "half of eight at most: {reinserted}");
                assert_eq!(log.reinsert_budget(segment), 0);
            }
        }
        assert!(log.accounting().counts.reinserted_blocks > 1000);
    }
}

#[test]
fn wrong_bytes_retire_their_segment_and_too_many_turn_the_log_off() {
    let mut log = small();
    let placements = fill(&mut log, 0..9);
    log.begin_read(&placements[0]);
    log.quarantine(&placements[0]);
    log.quarantine(&placements[0]);
    assert_eq!(log.accounting().counts.quarantined_blocks, 1, "two readers saw the same bytes");
    assert_eq!(log.standing(&placements[0]), Standing::Ended);
    assert_eq!(log.standing(&placements[1]), Standing::Readable, "its neighbours are checked on read");
    assert_eq!(log.poll_table(), None);
    placements[1..8].iter().for_each(|placement| log.remove(placement));
    assert_eq!(log.accounting().shares.retiring_segments, 1);
    log.end_read(&placements[0]);
    let shares = log.accounting().shares;
    assert_eq!((shares.retiring_segments, shares.quarantined_segments), (0, 1));
    assert_eq!((shares.quarantined_bytes, shares.free_segments), (68 * KIB, 14));
    assert_eq!(log.state(), LogState::On);

    // The second of sixteen, in the open segment, is more than a tenth.
    log.quarantine(&placements[8]);
    let off = OffReason::Quarantine { segments: 2, of: 16 };
    assert_eq!(log.state(), LogState::Off(off));
    assert_eq!(write(&mut log, 20, 8 * KIB), Err(AppendError::Off(off)));
    assert_eq!(log.poll_reclaim(&mut Vec::new()), None);
    assert_eq!(log.accounting().shares.quarantined_segments, 2);
}

#[test]
fn a_quarantined_segment_is_never_used_again() {
    let mut log = small();
    let placements = fill(&mut log, 0..8);
    placements[1..].iter().for_each(|placement| log.remove(placement));
    log.quarantine(&placements[0]);
    let mut out = Vec::new();
    for number in 0..1000 {
        let placement = write(&mut log, number, 8 * KIB).unwrap();
        assert_ne!(placement.segment, placements[0].segment);
        while log.poll_reclaim(&mut out).is_some() {
            out.iter().for_each(|(_, placement)| log.remove(placement));
        }
    }
}

#[test]
#[should_panic(expected = "a stale placement")]
fn a_stale_placement_is_recognised() {
    let mut log = small();
    let placements = fill(&mut log, 0..9);
    placements[..8].iter().for_each(|placement| log.remove(placement));
    log.remove(&placements[0]);
}
