//! What the SSD ring moves on this machine: transfers of one size at one depth through either
//! layout and either page kind, split at 254 pages or whole, one after another in one run.
//!
//! `cargo run --release -p orbitkv-native --example ssd_bare -- [DIRECTORY] [MIB] [TRANSFER_KIB] [DEPTH]`

use orbitkv_native::arena::{Arena, PagePreference};
use orbitkv_native::clock::monotonic_ns;
use orbitkv_native::device_thread::DeviceThread;
use orbitkv_native::ssd_device::SsdDevice;
use orbitkv_native::ssd_file::{DataDirLock, SsdFile};
use orbitkv_native::ssd_ring::{RingSettings, SsdRing};
use orbitkv_native::ssd_transfer::{ChecksumPolicy, Transfer, TransferKind};
use orbitkv_native::wake::wait_readable;
use std::error::Error;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| "target/ssd-bare".into()));
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (file_bytes, bytes, depth) = (number(2_048)? * MIB, number(1_024)? * 1_024, number(32)? as u32);
    let lock = DataDirLock::acquire(&directory)?;
    let file = SsdFile::create(&lock, "ssd-bare", file_bytes)?;
    let count = file_bytes / bytes;
    println!("{count} transfers of {} KiB, depth {depth}; writes to a new file first", bytes / 1_024);
    let page_kinds = [PagePreference::Small, PagePreference::Auto];
    for (preference, split) in page_kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let (arena, report) =
            Arena::create(u64::from(RingSettings::operations_max(depth)) * bytes, preference)?;
        let settings = RingSettings { small_pages: split, ..RingSettings::new(depth, report.page_kind) };
        for threaded in [false, true] {
            let slice = 0..arena.bytes();
            let mut device = if threaded {
                SsdDevice::Thread(DeviceThread::start(settings, None, file.fd(), &arena, slice)?)
            } else {
                SsdDevice::Inline(SsdRing::new(settings, file.fd(), &arena, slice)?)
            };
            for (kind, checksum) in [
                (TransferKind::Write, ChecksumPolicy::Known(0)),
                (TransferKind::Write, ChecksumPolicy::Compute),
                (TransferKind::Read, ChecksumPolicy::Compute),
            ] {
                let started = monotonic_ns();
                move_all(&mut device, kind, checksum, bytes, count);
                let seconds = (monotonic_ns() - started) as f64 / 1e9;
                println!(
                    "{:16} {:5} {:7} {kind:?} {}: {:.2} GB/s",
                    report.page_kind.to_string(),
                    if split { "split" } else { "whole" },
                    if threaded { "thread" } else { "inline" },
                    if checksum == ChecksumPolicy::Compute { "with checksum" } else { "bare" },
                    file_bytes as f64 / seconds / 1e9
                );
            }
        }
    }
    std::fs::remove_file(file.path())?;
    Ok(())
}

/// Moves the whole file once, `depth` transfers at a time, each with a slot of the arena.
fn move_all(device: &mut SsdDevice, kind: TransferKind, checksum: ChecksumPolicy, bytes: u64, count: u64) {
    let mut slots: Vec<u64> = (0..u64::from(device.depth())).collect();
    let mut done = Vec::new();
    let (mut next, mut finished) = (0, 0);
    while finished < count {
        while next < count
            && let Some(slot) = slots.pop()
        {
            let transfer = Transfer {
                id: slot,
                kind,
                arena_offset: slot * bytes,
                file_offset: next * bytes,
                bytes,
                payload_bytes: bytes,
                checksum,
            };
            device.submit(transfer).expect("there are as many slots as seats");
            next += 1;
        }
        let turn = device.turn(&mut done, 256 * 1_024);
        for completed in done.drain(..) {
            completed.outcome.expect("the device works");
            slots.push(completed.id);
            finished += 1;
        }
        // A full device and nothing to check: sleep.
        if !turn.more && (slots.is_empty() || next == count) && finished < count {
            wait_readable([device.completion_fd()], None);
        }
    }
}
