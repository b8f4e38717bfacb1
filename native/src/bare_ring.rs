//! The bare ring loop that the benchmark holds the SSD tier against: registered memory, a registered
//! file, direct I/O at one depth, and nothing else. It shares no code with [`crate::ssd_ring`], so
//! that whatever that one costs shows. It stands here because driving a ring needs `unsafe`.

use crate::arena::Arena;
use crate::clock::monotonic_ns;
use crate::ssd_transfer::{REGION_BYTES, TransferKind};
use io_uring::{IoUring, opcode, squeue, types};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// One pass over a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sweep {
    /// Direction.
    pub kind: TransferKind,
    /// Bytes of one transfer; a multiple of 4,096 that divides [`REGION_BYTES`].
    pub block_bytes: u64,
    /// Transfers, at consecutive offsets of the file and of the arena.
    pub count: u64,
    /// Transfers in flight.
    pub depth: u32,
}

/// Moves `count` blocks between the arena and `file` (open for direct I/O) on the calling thread, and
/// says how long that took, from the first submission to the last completion.
///
/// # Errors
/// If the ring cannot be set up, or a transfer fails or is short.
///
/// # Panics
/// If the arena is shorter than the pass, or the block size is not as documented.
pub fn sweep(file: BorrowedFd<'_>, arena: &Arena, pass: Sweep) -> io::Result<Duration> {
    let Sweep { block_bytes, count, depth, .. } = pass;
    assert!(block_bytes.is_multiple_of(4_096) && REGION_BYTES.is_multiple_of(block_bytes));
    assert!(count * block_bytes <= arena.bytes(), "the arena holds the whole pass");
    let mut ring: IoUring = IoUring::builder()
        .dontfork()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .build(depth.next_power_of_two())?;
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    let regions: Vec<libc::iovec> = (0..arena.bytes())
        .step_by(REGION_BYTES as usize)
        .map(|start| {
            let bytes = REGION_BYTES.min(arena.bytes() - start);
            libc::iovec { iov_base: arena.address(start, bytes).cast(), iov_len: bytes as usize }
        })
        .collect();
    // SAFETY: the regions are mapped memory of the arena, which the caller lends for longer than the
    // ring lives.
    unsafe { ring.submitter().register_buffers(&regions) }?;

    let started = monotonic_ns();
    let (mut next, mut in_flight, mut failed) = (0, 0, None);
    while next < count || in_flight > 0 {
        while in_flight < depth && next < count {
            let entry = entry(arena, pass.kind, next * block_bytes, block_bytes as u32);
            // SAFETY: the entry points into the arena, and nothing leaves this function before
            // every transfer in flight has completed.
            unsafe { ring.submission().push(&entry) }.expect("the queue has a seat for each in flight");
            next += 1;
            in_flight += 1;
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The kernel still writes into the arena: there is no safe way on from here.
            Err(error) => panic!("waiting for our own ring failed: {error}"),
        }
        for completion in ring.completion() {
            in_flight -= 1;
            let failure = match completion.result() {
                errno if errno < 0 => io::Error::from_raw_os_error(-errno),
                done if done as u64 == block_bytes => continue,
                done => io::Error::other(format!("a transfer moved {done} of {block_bytes} bytes")),
            };
            failed.get_or_insert(failure);
            next = count;
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(Duration::from_nanos(monotonic_ns() - started)),
    }
}

fn entry(arena: &Arena, kind: TransferKind, offset: u64, bytes: u32) -> squeue::Entry {
    let (file, address) = (types::Fixed(0), arena.address(offset, u64::from(bytes)));
    let region = (offset / REGION_BYTES) as u16;
    match kind {
        TransferKind::Read => opcode::ReadFixed::new(file, address, bytes, region).offset(offset).build(),
        TransferKind::Write => opcode::WriteFixed::new(file, address, bytes, region).offset(offset).build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::PagePreference;
    use crate::ssd_file::{DataDirLock, SsdFile};

    const BLOCK: u64 = 64 * 1_024;

    #[test]
    fn what_one_pass_writes_another_reads() {
        let directory = crate::testing::directory_on_disk();
        let lock = DataDirLock::acquire(directory.path()).unwrap();
        let file = SsdFile::create(&lock, "bare", 20 * BLOCK).unwrap();
        let (arena, _) = Arena::create(20 * BLOCK, PagePreference::Small).unwrap();
        for block in 0..20 {
            arena.copy_in(block * BLOCK, &[block as u8 + 1; BLOCK as usize]);
        }
        let pass =
            |kind, count| sweep(file.fd(), &arena, Sweep { kind, block_bytes: BLOCK, count, depth: 8 });
        pass(TransferKind::Write, 20).unwrap();
        arena.copy_in(0, &[0; 20 * BLOCK as usize]);
        pass(TransferKind::Read, 19).unwrap();
        let mut bytes = vec![0; BLOCK as usize];
        for block in 0..20 {
            arena.copy_out(block * BLOCK, &mut bytes);
            let expected = if block == 19 { 0 } else { block as u8 + 1 };
            assert!(bytes.iter().all(|&byte| byte == expected), "block {block}");
        }
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        let directory = crate::testing::directory_on_disk();
        let lock = DataDirLock::acquire(directory.path()).unwrap();
        let file = SsdFile::create(&lock, "bare", 2 * BLOCK).unwrap();
        let (arena, _) = Arena::create(4 * BLOCK, PagePreference::Small).unwrap();
        let pass = Sweep { kind: TransferKind::Read, block_bytes: BLOCK, count: 4, depth: 2 };
        assert!(sweep(file.fd(), &arena, pass).unwrap_err().to_string().contains("moved 0 of"));
    }
}
