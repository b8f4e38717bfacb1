//! One battery for both layouts, against a real file: every byte is compared with a plain
//! model, read back by ordinary system calls.

use super::*;
use crate::arena::PagePreference;
use crate::device_thread::DeviceThread;
use crate::ssd_device::SsdDevice;
use crate::ssd_file::{DataDirLock, SsdFile};
use crate::testing::{Seeded, directory_on_disk};
use crate::wake::wait_readable;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

const PAGE: u64 = 4_096;
const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Layout {
    Inline,
    Thread,
}

const LAYOUTS: [Layout; 2] = [Layout::Inline, Layout::Thread];

struct Bench {
    device: SsdDevice,
    arena: Arena,
    file: SsdFile,
    _lock: DataDirLock,
    _directory: tempfile::TempDir,
}

fn settings(depth: u32, small_pages: bool) -> RingSettings {
    RingSettings { depth, device_depth: depth * 2, checksum_step_bytes: 64 * 1_024, small_pages }
}

fn device(
    layout: Layout,
    settings: RingSettings,
    file: BorrowedFd<'_>,
    arena: &Arena,
    slice: Range<u64>,
) -> Result<SsdDevice, RingError> {
    Ok(match layout {
        Layout::Inline => SsdDevice::Inline(SsdRing::new(settings, file, arena, slice)?),
        Layout::Thread => {
            let core = affinity_core();
            SsdDevice::Thread(DeviceThread::start(settings, Some(core), file, arena, slice)?)
        }
    })
}

fn affinity_core() -> usize {
    *crate::affinity::available_cores().unwrap().last().unwrap()
}

fn bench(layout: Layout, settings: RingSettings, arena_bytes: u64, file_bytes: u64) -> Bench {
    let directory = directory_on_disk();
    let lock = DataDirLock::acquire(directory.path()).unwrap();
    let file = SsdFile::create(&lock, "ssd-0", file_bytes).unwrap();
    let (arena, _) = Arena::create(arena_bytes, PagePreference::Auto).unwrap();
    let device = device(layout, settings, file.fd(), &arena, 0..arena_bytes).unwrap();
    Bench { device, arena, file, _lock: lock, _directory: directory }
}

fn transfer(
    id: u64,
    kind: TransferKind,
    arena_offset: u64,
    file_offset: u64,
    payload_bytes: u64,
) -> Transfer {
    Transfer {
        id,
        kind,
        arena_offset,
        file_offset,
        bytes: payload_bytes.next_multiple_of(PAGE).max(PAGE),
        payload_bytes,
        checksum: ChecksumPolicy::Compute,
    }
}

impl Bench {
    /// Turns until `count` completions are there, sleeping on the descriptor as a core would.
    fn complete(&mut self, count: usize) -> Vec<Completed> {
        let mut out = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let turn = self.device.turn(&mut out, 64 * 1_024);
            if out.len() >= count {
                return out;
            }
            if !turn.more {
                // A wake that never comes is a bug, even if a turn would find the completion.
                let woken = wait_readable([self.device.completion_fd()], Some(Duration::from_secs(20)))[0];
                assert!(woken, "asleep with {} of {count} completed", out.len());
            }
            assert!(Instant::now() < deadline, "{} of {count} completed", out.len());
        }
    }

    fn one(&mut self, transfer: Transfer) -> Completed {
        self.device.submit(transfer).unwrap();
        let mut out = self.complete(1);
        assert_eq!((out.len(), self.device.in_flight()), (1, 0));
        out.pop().unwrap()
    }

    fn file_bytes(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut read = vec![0; bytes as usize];
        File::open(self.file.path()).unwrap().read_exact_at(&mut read, offset).unwrap();
        read
    }

    fn arena_bytes(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut read = vec![0; bytes as usize];
        self.arena.copy_out(offset, &mut read);
        read
    }
}

#[test]
fn a_payload_goes_out_and_comes_back_with_its_checksum() {
    for (layout, small_pages) in LAYOUTS.into_iter().flat_map(|layout| [(layout, false), (layout, true)]) {
        let mut bench = bench(layout, settings(4, small_pages), 32 * MIB, 32 * MIB);
        for payload_bytes in [0, 1, 4_095, PAGE, 65_536, 65_537, MIB, 5 * MIB + 123] {
            let payload = Seeded(payload_bytes).bytes(payload_bytes as usize);
            bench.arena.copy_in(8 * MIB, &payload);
            let written = bench.one(transfer(1, TransferKind::Write, 8 * MIB, 3 * PAGE, payload_bytes));
            assert_eq!((written.id, written.outcome), (1, Ok(xxh3_64(&payload))));
            assert!(bench.file_bytes(3 * PAGE, payload_bytes) == payload);
            let read = bench.one(transfer(2, TransferKind::Read, 16 * MIB, 3 * PAGE, payload_bytes));
            assert_eq!((read.id, read.outcome), (2, Ok(xxh3_64(&payload))));
            assert!(bench.arena_bytes(16 * MIB, payload_bytes) == payload);
        }
    }
}

#[test]
fn random_transfers_agree_with_a_plain_model() {
    // Small steps and a depth that fills: parts, checksums and seats interleave.
    for (layout, small_pages, seed) in
        [(Layout::Inline, true, 1), (Layout::Inline, false, 2), (Layout::Thread, true, 3)]
    {
        let settings = RingSettings { depth: 7, device_depth: 3, checksum_step_bytes: 8 * PAGE, small_pages };
        let (slots, slot_bytes) = (12, 3 * MIB);
        let mut bench = bench(layout, settings, slots * slot_bytes, 24 * MIB);
        let mut random = Seeded(seed);
        let mut file_model = vec![0u8; 24 * MIB as usize];
        let mut arena_model = vec![0u8; (slots * slot_bytes) as usize];
        for slot in 0..slots {
            let bytes = random.bytes(slot_bytes as usize);
            let offset = slot * slot_bytes;
            bench.arena.copy_in(offset, &bytes);
            arena_model[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        for round in 0..30 {
            // Each transfer of a round has an arena slot and a file area of its own.
            let mut order: Vec<u64> = (0..slots).collect();
            for index in (1..order.len()).rev() {
                order.swap(index, random.below(index as u64 + 1) as usize);
            }
            let mut expected = Vec::new();
            for (id, slot) in order.into_iter().take(7).enumerate() {
                let bytes = (1 + random.below(slot_bytes / PAGE)) * PAGE;
                let payload_bytes = bytes - random.below(PAGE);
                let arena_offset = slot * slot_bytes + random.below((slot_bytes - bytes) / PAGE + 1) * PAGE;
                let file_offset =
                    id as u64 * slot_bytes + random.below((slot_bytes - bytes) / PAGE + 1) * PAGE;
                let kind = if random.below(2) == 0 { TransferKind::Read } else { TransferKind::Write };
                let (arena_range, file_range) = (
                    arena_offset as usize..(arena_offset + bytes) as usize,
                    file_offset as usize..(file_offset + bytes) as usize,
                );
                match kind {
                    TransferKind::Read => {
                        arena_model[arena_range.clone()].copy_from_slice(&file_model[file_range])
                    }
                    TransferKind::Write => {
                        file_model[file_range].copy_from_slice(&arena_model[arena_range.clone()])
                    }
                }
                let mut checksum = xxh3_64(&arena_model[arena_range][..payload_bytes as usize]);
                let mut policy = ChecksumPolicy::Compute;
                if kind == TransferKind::Write && random.below(2) == 0 {
                    checksum = random.next();
                    policy = ChecksumPolicy::Known(checksum);
                }
                let id = round * 100 + id as u64;
                bench
                    .device
                    .submit(Transfer {
                        id,
                        kind,
                        arena_offset,
                        file_offset,
                        bytes,
                        payload_bytes,
                        checksum: policy,
                    })
                    .unwrap();
                expected.push((id, Ok(checksum)));
                if random.below(3) == 0 {
                    let mut out = Vec::new();
                    bench.device.turn(&mut out, 1);
                    expected.retain(|(id, outcome)| {
                        !out.iter().any(|completed| completed.id == *id && completed.outcome == *outcome)
                    });
                }
            }
            let count = bench.device.in_flight() as usize;
            let mut done: Vec<_> = bench
                .complete(count)
                .into_iter()
                .map(|completed| (completed.id, completed.outcome))
                .collect();
            done.sort_unstable_by_key(|(id, _)| *id);
            assert_eq!(done, expected);
        }
        assert!(bench.arena_bytes(0, slots * slot_bytes) == arena_model);
        assert!(bench.file_bytes(0, 24 * MIB) == file_model);
    }
}

#[test]
fn buffers_are_written_and_given_back() {
    for layout in LAYOUTS {
        let mut bench = bench(layout, settings(2, false), MIB, 8 * MIB);
        let bytes = Seeded(9).bytes(3 * MIB as usize);
        let mut buffer = AlignedBuffer::zeroed(bytes.len());
        buffer.copy_from_slice(&bytes);
        bench.device.submit_buffer(77, buffer, 4 * PAGE).unwrap();
        let done = bench.complete(1).pop().unwrap();
        assert_eq!((done.id, done.outcome), (77, Ok(0)));
        assert!(done.buffer.unwrap()[..] == bytes[..]);
        assert!(bench.file_bytes(4 * PAGE, bytes.len() as u64) == bytes);
    }
}

#[test]
fn a_full_device_gives_the_input_back() {
    for layout in LAYOUTS {
        let mut bench = bench(layout, settings(3, true), 8 * MIB, 8 * MIB);
        let write = |id| transfer(id, TransferKind::Write, id * MIB, id * MIB, 100);
        assert_eq!(bench.device.depth(), 3);
        for id in 0..3 {
            bench.device.submit(write(id)).unwrap();
        }
        assert_eq!(bench.device.in_flight(), 3);
        assert_eq!(bench.device.submit(write(3)), Err(write(3)));
        let buffer = bench.device.submit_buffer(4, AlignedBuffer::zeroed(4_096), 0).unwrap_err();
        assert_eq!(buffer.len(), 4_096);
        let mut ids: Vec<u64> = bench.complete(3).iter().map(|done| done.id).collect();
        ids.sort_unstable();
        assert_eq!((ids, bench.device.in_flight()), (vec![0, 1, 2], 0));
        bench.device.submit(write(3)).unwrap();
        bench.complete(1);
    }
}

#[test]
fn a_file_cut_under_us_is_an_error_and_no_hang() {
    for (layout, small_pages) in LAYOUTS.into_iter().flat_map(|layout| [(layout, false), (layout, true)]) {
        let mut bench = bench(layout, settings(4, small_pages), 8 * MIB, 8 * MIB);
        let path = bench.file.path().to_owned();
        let cut = |bytes| File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        let read = transfer(5, TransferKind::Read, 0, 2 * MIB, 3 * MIB);
        for (length, done) in
            [(4 * MIB, 2 * MIB), (2 * MIB + 8_192, 8_192), (2 * MIB + 1_000, 1_000), (2 * MIB, 0), (0, 0)]
        {
            cut(length);
            let completed = bench.one(read);
            let error = completed.outcome.unwrap_err();
            assert_eq!((completed.id, error.errno, error.done), (5, libc::EIO, done), "cut at {length}");
        }
        // The device still works where the file still is.
        cut(8 * MIB);
        assert!(bench.one(read).outcome.is_ok());
    }
}

#[test]
fn the_kernels_refusal_reaches_the_caller() {
    for layout in LAYOUTS {
        let bench = bench(layout, settings(4, true), 4 * MIB, 4 * MIB);
        let read_only = File::open(bench.file.path()).unwrap();
        let device = device(layout, settings(4, true), read_only.as_fd(), &bench.arena, 0..4 * MIB).unwrap();
        let mut bench = Bench { device, ..bench };
        let refused = bench.one(transfer(1, TransferKind::Write, 0, 0, 3 * MIB)).outcome.unwrap_err();
        assert_eq!(refused, DeviceError { errno: libc::EBADF, done: 0 });
        assert!(refused.to_string().contains("0 bytes"));
        bench.device.submit_buffer(2, AlignedBuffer::zeroed(4_096), 0).unwrap();
        let done = bench.complete(1).pop().unwrap();
        assert_eq!(done.outcome, Err(DeviceError { errno: libc::EBADF, done: 0 }));
        assert_eq!(done.buffer.unwrap().len(), 4_096, "the buffer comes back with the error");
    }
}

#[test]
fn transfers_reach_every_region_of_a_slice_that_begins_inside_one() {
    let directory = directory_on_disk();
    let lock = DataDirLock::acquire(directory.path()).unwrap();
    let file = SsdFile::create(&lock, "ssd-0", 4 * MIB).unwrap();
    let (arena, _) = Arena::create(REGION_BYTES + 4 * MIB, PagePreference::Auto).unwrap();
    // Across the boundary (two registered regions), and wholly in the second gibibyte.
    for (layout, start) in
        LAYOUTS.into_iter().flat_map(|layout| [(layout, REGION_BYTES - MIB), (layout, REGION_BYTES + MIB)])
    {
        let mut device =
            device(layout, settings(4, false), file.fd(), &arena, start..start + 2 * MIB).unwrap();
        let payload = Seeded(start).bytes(2 * MIB as usize);
        arena.copy_in(start, &payload);
        device.submit(transfer(1, TransferKind::Write, start, 0, MIB)).unwrap();
        device.submit(transfer(2, TransferKind::Write, start + MIB, MIB, MIB)).unwrap();
        let mut out = Vec::new();
        while out.len() < 2 {
            if !device.turn(&mut out, MIB).more {
                wait_readable([device.completion_fd()], Some(Duration::from_secs(1)));
            }
        }
        assert!(out.iter().all(|done| done.outcome.is_ok()), "{out:?}");
        assert!(std::fs::read(file.path()).unwrap()[..2 * MIB as usize] == payload);
    }
}

#[test]
fn dropping_a_device_waits_for_the_kernel() {
    let fill = vec![0x5a; 64 * MIB as usize];
    for layout in LAYOUTS {
        let settings = settings(64, false);
        let mut bench = bench(layout, settings, 64 * MIB, 64 * MIB);
        let slots = |kind| (0..64).map(move |id| transfer(id, kind, id * MIB, id * MIB, MIB));
        // Written first: what a filesystem knows to be empty is read without the disk.
        slots(TransferKind::Write).for_each(|write| bench.device.submit(write).unwrap());
        assert!(bench.complete(64).iter().all(|done| done.outcome.is_ok()));
        for _ in 0..3 {
            let mut device = device(layout, settings, bench.file.fd(), &bench.arena, 0..64 * MIB).unwrap();
            slots(TransferKind::Read).for_each(|read| device.submit(read).unwrap());
            device.turn(&mut Vec::new(), 4_096);
            if layout == Layout::Thread {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(device);
            // Now nothing writes into the arena any more. The last reads would come last.
            for slot in (0..64).rev() {
                bench.arena.copy_in(slot * MIB, &fill[..MIB as usize]);
            }
            std::thread::sleep(Duration::from_millis(150));
            assert!(bench.arena_bytes(0, 64 * MIB) == fill);
        }
    }
}

#[test]
fn an_idle_device_is_silent_and_uses_no_processor() {
    for layout in LAYOUTS {
        let mut bench = bench(layout, settings(4, true), 4 * MIB, 4 * MIB);
        bench.one(transfer(1, TransferKind::Write, 0, 0, 3 * MIB));
        let mut out = Vec::new();
        assert_eq!(bench.device.turn(&mut out, MIB), Turn { more: false });
        assert!(!wait_readable([bench.device.completion_fd()], Some(Duration::from_millis(50)))[0]);
        if layout == Layout::Thread {
            let before = thread_cpu("ssd-device");
            std::thread::sleep(Duration::from_millis(400));
            // In clock ticks of 10 ms: a spinning thread would take 40.
            assert!(thread_cpu("ssd-device") - before <= 10);
        }
    }
}

/// Clock ticks of all threads of that name. Other tests run such threads, too, but briefly.
fn thread_cpu(name: &str) -> u64 {
    let mut ticks = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
        let (head, tail) = stat.rsplit_once(") ").unwrap();
        if head.ends_with(name) {
            let fields: Vec<&str> = tail.split(' ').collect();
            ticks += fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        }
    }
    ticks
}

#[test]
fn a_turn_does_no_more_checksum_work_than_its_budget() {
    let settings = RingSettings { depth: 2, device_depth: 2, checksum_step_bytes: PAGE, small_pages: false };
    let mut bench = bench(Layout::Inline, settings, 4 * MIB, 4 * MIB);
    bench.device.submit(transfer(1, TransferKind::Write, 0, 0, 10 * PAGE)).unwrap();
    let SsdDevice::Inline(ring) = &mut bench.device else { unreachable!() };
    let mut out = Vec::new();
    for steps in 1..=4 {
        assert_eq!(ring.turn(&mut out, 2 * PAGE), Turn { more: true });
        let left = ring.write_checksums.front().unwrap().checksum.remaining_bytes();
        assert_eq!(left, (10 - 2 * steps) * PAGE);
    }
    assert!(out.is_empty(), "a write ends no earlier than its checksum");
    // A budget of nothing still does one step: a device that is turned makes progress.
    assert_eq!(ring.turn(&mut out, 0), Turn { more: true });
    assert_eq!(ring.write_checksums.front().unwrap().checksum.remaining_bytes(), PAGE);
    assert_eq!(bench.complete(1).len(), 1);
}

#[test]
fn a_wrong_transfer_is_our_bug() {
    let bench = bench(Layout::Inline, settings(4, false), 4 * MIB, 4 * MIB);
    let file = bench.file.fd();
    let refused = |slice: Range<u64>, transfer: Transfer| {
        let arena = bench.arena.clone();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            SsdRing::new(settings(4, false), file, &arena, slice).unwrap().submit(transfer).unwrap();
        }))
        .is_err()
    };
    let write = |offset| transfer(1, TransferKind::Write, offset, 0, 2 * PAGE);
    assert!(!refused(MIB..2 * MIB, write(MIB)));
    assert!(!refused(MIB..2 * MIB, write(2 * MIB - 2 * PAGE)));
    assert!(refused(MIB..2 * MIB, write(MIB - PAGE)), "begins outside the slice");
    assert!(refused(MIB..2 * MIB, write(2 * MIB - PAGE)), "ends outside the slice");
    assert!(refused(0..8 * MIB, write(0)), "a slice outside the arena");
}

#[test]
fn short_of_locked_memory_the_remedy_is_named() {
    // The limit binds only without CAP_IPC_LOCK and counts per user, so a process of its own
    // that gives both up runs the probe below.
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ssd_ring::tests::probe_locked_memory", "--nocapture"])
        .env("ORBITKV_PROBE_MEMLOCK", "1")
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("RLIMIT_MEMLOCK is 1048576 bytes") && said.contains("LimitMEMLOCK"), "{said}");
}

/// Does something only in the process that the test above starts.
#[test]
fn probe_locked_memory() {
    let (arena, _) = Arena::create(8 * MIB, PagePreference::Small).unwrap();
    let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    if std::env::var_os("ORBITKV_PROBE_MEMLOCK").is_none() {
        SsdRing::new(settings(4, true), file.as_fd(), &arena, 0..MIB / 2).unwrap();
        return;
    }
    let limit = rustix::process::Rlimit { current: Some(MIB), maximum: Some(MIB) };
    rustix::process::setrlimit(rustix::process::Resource::Memlock, limit).unwrap();
    // A user nobody else tests as; without root we have no capability to give up.
    if rustix::process::geteuid().is_root() {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(54_321)).unwrap();
    }
    match SsdRing::new(settings(4, true), file.as_fd(), &arena, 0..8 * MIB) {
        Err(error @ RingError::LockedMemory { bytes: 0 | 8_388_608, limit_bytes: Some(1_048_576) }) => {
            println!("{error}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("8 MiB were registered under a limit of 1 MiB"),
    }
}
