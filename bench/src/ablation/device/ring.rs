//! The node's own ring over a file, driven as a core drives it.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use orbitkv_native::affinity;
use orbitkv_native::arena::Arena;
use orbitkv_native::bare_ring::Sweep;
use orbitkv_native::clock::monotonic_ns;
use orbitkv_native::ssd_ring::{RingSettings, SsdRing};
use orbitkv_native::ssd_transfer::{ChecksumPolicy, Transfer};
use orbitkv_native::wake::wait_readable;

use crate::Failure;

/// Checksum work of one turn, in bytes.
const CHECKSUM_BUDGET_BYTES: u64 = 256 * 1_024;

/// Runs `work` on a thread that stays on a core.
///
/// # Errors
/// Its own, and that the core is not to be had.
pub fn on_core(core: usize, work: impl FnOnce() -> io::Result<Duration> + Send) -> Result<Duration, Failure> {
    let pinned = || {
        affinity::pin_current_thread(core)?;
        work()
    };
    let outcome = std::thread::scope(|scope| scope.spawn(pinned).join());
    Ok(outcome.expect("the thread says its errors")?)
}

/// Moves all blocks between arena and file; how long that took, from the first submission to the last completion.
///
/// # Errors
/// If the ring cannot be set up, or a transfer fails.
pub fn sweep(file: BorrowedFd<'_>, arena: &Arena, pass: Sweep) -> io::Result<Duration> {
    let settings = RingSettings::new(pass.depth, arena.page_kind());
    let mut ring = SsdRing::new(settings, file, arena, 0..arena.bytes()).map_err(io::Error::other)?;
    let (mut next, mut finished) = (0, 0);
    let mut done = Vec::new();
    let started = monotonic_ns();
    while finished < pass.count {
        while next < pass.count && ring.in_flight() < ring.depth() {
            let offset = next * pass.block_bytes;
            let transfer = Transfer {
                id: next,
                kind: pass.kind,
                arena_offset: offset,
                file_offset: offset,
                bytes: pass.block_bytes,
                payload_bytes: pass.block_bytes,
                checksum: ChecksumPolicy::Compute,
            };
            ring.submit(transfer)
                .map_err(|_| io::Error::other("a ring with a free seat took no transfer"))?;
            next += 1;
        }
        let turn = ring.turn(&mut done, CHECKSUM_BUDGET_BYTES);
        let full = ring.in_flight() == ring.depth() || next == pass.count;
        let idle = done.is_empty() && full && !turn.more;
        for completed in done.drain(..) {
            completed.outcome.map_err(io::Error::other)?;
            finished += 1;
        }
        if idle {
            wait_readable([ring.completion_fd()], None);
        }
    }
    Ok(Duration::from_nanos(monotonic_ns() - started))
}
