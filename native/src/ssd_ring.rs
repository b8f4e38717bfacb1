//! The SSD on a raw io_uring: arena and file registered, no copy between them.
//!
//! The ring belongs to the thread that made it. It is driven by turns: `submit` only queues,
//! [`SsdRing::turn`] enters the kernel at most once a MiB, reaps, continues short transfers and does
//! a bounded amount of checksum work. An operation in flight owns its bytes until the kernel has
//! completed it; dropping the ring waits for that.
//!
//! With 4 KiB pages a long transfer is moved in parts, see `ssd_parts`.

use crate::arena::{Arena, Checksum, PageKind};
use crate::memory;
use crate::ssd_parts::{PART_BYTES_SMALL_PAGES, Part, split};
use crate::ssd_transfer::{
    AlignedBuffer, ChecksumPolicy, Completed, DeviceError, REGION_BYTES, Transfer, TransferKind, Turn,
    assert_aligned,
};
use crate::wake::{self, Wake};
use io_uring::{EnterFlags, IoUring, opcode, squeue, types};
use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Most parts the kernel may be given at once; a deeper queue only adds waiting.
pub const DEVICE_DEPTH_MAX: u32 = 1_024;

/// Operations a ring accepts for each part the device may hold: as many again are being checksummed or wait
/// to be handed out, so that neither leaves the device with less than its depth.
const OPERATIONS_PER_DEVICE_PART: u32 = 2;

/// Bytes that enter the kernel together. The block layer makes one request of neighbours that come
/// together, up to 4 MiB: with large transfers that leaves the device few requests to work at side by side
/// (8 to 12 % slower, both ways), while small ones gain by it.
const ENTER_BYTES: u64 = 1024 * 1024;

/// A part the kernel would not take (EAGAIN, EINTR) is tried this often.
const RETRIES_MAX: u8 = 64;

/// Transfers a ring may hold.
pub const DEPTH_MAX: u32 = 4_096;

/// How a ring is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSettings {
    /// Transfers and buffers accepted and not yet completed; 1 to [`DEPTH_MAX`].
    pub depth: u32,
    /// Parts the kernel holds at once; 1 to [`DEVICE_DEPTH_MAX`]. A transfer is one part unless it is split.
    pub device_depth: u32,
    /// Bytes of one checksum step; a positive multiple of 4,096.
    pub checksum_step_bytes: u64,
    /// The arena has 4 KiB pages: split what exceeds 254 of them.
    pub small_pages: bool,
}

impl RingSettings {
    /// Settings for a device depth and an arena's pages, with 64 KiB checksum steps.
    pub fn new(device_depth: u32, page_kind: PageKind) -> Self {
        Self {
            depth: Self::operations_max(device_depth),
            device_depth,
            checksum_step_bytes: 64 * 1_024,
            small_pages: page_kind == PageKind::Small,
        }
    }

    /// Operations that a ring of [`Self::new`] accepts.
    pub const fn operations_max(device_depth: u32) -> u32 {
        device_depth * OPERATIONS_PER_DEVICE_PART
    }
}

/// Why a ring could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The machine forbids io_uring or lacks it.
    #[error(
        "io_uring is not available ({source}); check `sysctl kernel.io_uring_disabled` (0 allows it), the \
         container's seccomp profile, and that the kernel is 6.1 or later"
    )]
    Unavailable {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The memory to be registered exceeds what this user may lock.
    #[error(
        "registering {bytes} bytes of the arena with io_uring needs locked memory, and RLIMIT_MEMLOCK is \
         {}; raise it (`ulimit -l unlimited`, systemd `LimitMEMLOCK=infinity`) or grant CAP_IPC_LOCK",
        limit_bytes.map_or_else(|| "unlimited (so the kernel itself is out of memory)".to_owned(), |limit| format!("{limit} bytes"))
    )]
    LockedMemory {
        /// Bytes to be registered.
        bytes: u64,
        /// `RLIMIT_MEMLOCK`; `None` is unlimited.
        limit_bytes: Option<u64>,
    },
    /// Another step of the set-up failed.
    #[error("{step} of the SSD ring failed: {source}")]
    System {
        /// What was attempted.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

enum Source {
    Arena { transfer: Transfer, checksum: Option<u64> },
    Buffer { buffer: AlignedBuffer },
}

/// An accepted operation, in the slot its user data names.
struct Operation {
    id: u64,
    kind: TransferKind,
    file_offset: u64,
    source: Source,
    parts: Vec<Part>,
    /// Parts that are queued or in the kernel.
    parts_open: u32,
    errno: Option<i32>,
}

struct PendingChecksum {
    slot: u32,
    checksum: Checksum,
}

/// The ring. See the module for how it is driven.
pub struct SsdRing {
    ring: IoUring,
    completions: Wake,
    arena: Arena,
    slice: Range<u64>,
    settings: RingSettings,
    operations: Vec<Option<Operation>>,
    free: Vec<u32>,
    /// Parts waiting for a seat in the kernel, in order of submission.
    queued: VecDeque<(u32, u32)>,
    /// Checksums of what has been read: worked on first.
    read_checksums: VecDeque<PendingChecksum>,
    write_checksums: VecDeque<PendingChecksum>,
    parts_in_flight: u32,
    /// Completed without a turn's output at hand; never more than `depth`.
    finished: VecDeque<Completed>,
    /// The kernel ties the ring to the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl SsdRing {
    /// Sets the ring up on the calling thread, which must be the one that uses it: `file` and
    /// the arena's `slice` (multiples of 4,096) are registered with it.
    pub fn new(
        settings: RingSettings,
        file: BorrowedFd<'_>,
        arena: &Arena,
        slice: Range<u64>,
    ) -> Result<Self, RingError> {
        assert!(
            (1..=DEPTH_MAX).contains(&settings.depth),
            "depth {} is not in 1..={DEPTH_MAX}",
            settings.depth
        );
        assert!(
            (1..=DEVICE_DEPTH_MAX).contains(&settings.device_depth),
            "device depth {} is not in 1..={DEVICE_DEPTH_MAX}",
            settings.device_depth
        );
        assert!(settings.checksum_step_bytes > 0, "a checksum step does something");
        assert_aligned("checksum step", settings.checksum_step_bytes);
        assert_aligned("slice start", slice.start);
        assert_aligned("slice end", slice.end);
        assert!(slice.start < slice.end && slice.end <= arena.bytes(), "slice {slice:?} is not in the arena");
        let ring: IoUring = IoUring::builder()
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(settings.device_depth.next_power_of_two())
            .map_err(|source| match source.raw_os_error() {
                Some(libc::ENOMEM) => locked_memory(0),
                Some(libc::ENOSYS | libc::EPERM | libc::EINVAL) => RingError::Unavailable { source },
                _ => RingError::System { step: "set-up", source },
            })?;
        let system = |step| move |source| RingError::System { step, source };
        let submitter = ring.submitter();
        submitter.register_files(&[file.as_raw_fd()]).map_err(system("registering the file"))?;
        let regions = regions(arena, &slice);
        // SAFETY: the regions are mapped memory of the arena, of which the ring keeps a clone
        // until after the kernel has let go of them (`Drop`).
        unsafe { submitter.register_buffers(&regions) }.map_err(|source| match source.raw_os_error() {
            Some(libc::ENOMEM) => locked_memory(slice.end - slice.start),
            _ => RingError::System { step: "registering the arena", source },
        })?;
        let completions = Wake::new().map_err(system("making the eventfd"))?;
        submitter
            .register_eventfd(completions.fd().as_raw_fd())
            .map_err(system("registering the eventfd"))?;
        Ok(Self {
            ring,
            completions,
            arena: arena.clone(),
            slice,
            settings,
            operations: (0..settings.depth).map(|_| None).collect(),
            free: (0..settings.depth).rev().collect(),
            queued: VecDeque::new(),
            read_checksums: VecDeque::new(),
            write_checksums: VecDeque::new(),
            parts_in_flight: 0,
            finished: VecDeque::new(),
            _thread: PhantomData,
        })
    }

    /// Accepts a transfer, or gives it back if `depth` operations are not completed. Nothing
    /// enters the kernel before the next turn.
    ///
    /// # Panics
    /// If the transfer is not as its fields document, or not inside the ring's slice.
    pub fn submit(&mut self, transfer: Transfer) -> Result<(), Transfer> {
        transfer.assert_well_formed();
        assert!(
            self.slice.start <= transfer.arena_offset
                && transfer.arena_offset + transfer.bytes <= self.slice.end,
            "transfer {}+{} is outside the slice {:?}",
            transfer.arena_offset,
            transfer.bytes,
            self.slice
        );
        let part_bytes = if self.settings.small_pages { PART_BYTES_SMALL_PAGES } else { REGION_BYTES };
        let known = match transfer.checksum {
            ChecksumPolicy::Known(checksum) => Some(checksum),
            ChecksumPolicy::Compute => None,
        };
        let operation = Operation {
            id: transfer.id,
            kind: transfer.kind,
            file_offset: transfer.file_offset,
            source: Source::Arena { transfer, checksum: known },
            parts: split(transfer.bytes, part_bytes),
            parts_open: 0,
            errno: None,
        };
        let Some(slot) = self.admit(operation) else { return Err(transfer) };
        self.queue_parts(slot);
        // The device takes the bytes of a write while we sum them: neither waits for the other.
        if let (TransferKind::Write, None) = (transfer.kind, known) {
            self.queue_checksum(slot);
        }
        Ok(())
    }

    /// Accepts a write of a heap buffer (a segment table) to `file_offset`, a multiple of
    /// 4,096; gives the buffer back if `depth` operations are not completed.
    ///
    /// # Panics
    /// If the offset is not aligned.
    pub fn submit_buffer(
        &mut self,
        id: u64,
        buffer: AlignedBuffer,
        file_offset: u64,
    ) -> Result<(), AlignedBuffer> {
        assert_aligned("file offset", file_offset);
        if self.free.is_empty() {
            return Err(buffer);
        }
        let operation = Operation {
            id,
            kind: TransferKind::Write,
            file_offset,
            parts: split(buffer.len() as u64, PART_BYTES_SMALL_PAGES),
            source: Source::Buffer { buffer },
            parts_open: 0,
            errno: None,
        };
        let slot = self.admit(operation).expect("a free slot was seen above");
        self.queue_parts(slot);
        Ok(())
    }

    /// One turn: enters the kernel if there is reason to, appends what has completed to
    /// `out`, and computes checksums of about `checksum_budget_bytes` (at least one step).
    pub fn turn(&mut self, out: &mut Vec<Completed>, checksum_budget_bytes: u64) -> Turn {
        // Before reaping: an event after this drain leaves the descriptor readable.
        wake::drain(self.completions.fd());
        self.fill_submission_queue();
        self.enter();
        self.reap();
        self.advance_checksums(checksum_budget_bytes);
        out.extend(self.finished.drain(..));
        self.assert_invariants();
        let seats = self.parts_in_flight < self.settings.device_depth;
        // A kernel short of memory takes fewer than it was offered, and no event tells when it would.
        let refused = !self.ring.submission().is_empty();
        let checksums = !self.read_checksums.is_empty() || !self.write_checksums.is_empty();
        Turn { more: refused || checksums || (seats && !self.queued.is_empty()) }
    }

    /// Readable when the kernel has completed something; a turn drains it.
    pub fn completion_fd(&self) -> BorrowedFd<'_> {
        self.completions.fd()
    }

    /// Operations accepted and not yet handed out as completed.
    pub fn in_flight(&self) -> u32 {
        self.settings.depth - self.free.len() as u32 + self.finished.len() as u32
    }

    /// Operations that may be in flight.
    pub fn depth(&self) -> u32 {
        self.settings.depth
    }

    fn admit(&mut self, operation: Operation) -> Option<u32> {
        let slot = self.free.pop()?;
        let seat = &mut self.operations[slot as usize];
        assert!(seat.is_none(), "a free slot holds no operation");
        *seat = Some(operation);
        Some(slot)
    }

    fn operation(&mut self, slot: u32) -> &mut Operation {
        self.operations[slot as usize].as_mut().expect("the slot holds an operation until it has completed")
    }

    fn queue_parts(&mut self, slot: u32) {
        let operation = self.operation(slot);
        let parts = operation.parts.len() as u32;
        operation.parts_open = parts;
        self.queued.extend((0..parts).map(|part| (slot, part)));
    }

    fn queue_checksum(&mut self, slot: u32) {
        let Source::Arena { transfer, .. } = &self.operation(slot).source else {
            unreachable!("only payloads in the arena have checksums")
        };
        let checksum = Checksum::new(transfer.arena_offset, transfer.payload_bytes);
        let pending = PendingChecksum { slot, checksum };
        // An engine waits for what is read; nobody waits for what is written.
        match transfer.kind {
            TransferKind::Read => self.read_checksums.push_back(pending),
            TransferKind::Write => self.write_checksums.push_back(pending),
        }
    }

    fn fill_submission_queue(&mut self) {
        let mut pending_bytes = 0;
        while self.parts_in_flight < self.settings.device_depth
            && let Some((slot, part)) = self.queued.pop_front()
        {
            if self.operation(slot).errno.is_some() {
                // Another part has failed already: moving this one would change nothing.
                self.close_part(slot);
                continue;
            }
            let entry = self.entry(slot, part);
            let part = &self.operation(slot).parts[part as usize];
            pending_bytes += part.bytes - part.done;
            // SAFETY: the entry points into the arena or a buffer owned by the operation, and
            // both stay until the completion is reaped: the operation leaves its slot only
            // when no part is open, and `Drop` waits.
            unsafe { self.ring.submission().push(&entry) }
                .expect("the submission queue has a seat for every part that may be in flight");
            self.parts_in_flight += 1;
            if pending_bytes >= ENTER_BYTES {
                pending_bytes = 0;
                self.submit_queue(EnterFlags::empty());
            }
        }
    }

    fn entry(&self, slot: u32, part: u32) -> squeue::Entry {
        let operation = self.operations[slot as usize].as_ref().expect("a queued part has its operation");
        let state = &operation.parts[part as usize];
        let (start, bytes) = (state.start + state.done, (state.bytes - state.done) as u32);
        let file = types::Fixed(0);
        let file_offset = operation.file_offset + start;
        let entry = match &operation.source {
            Source::Buffer { buffer } => {
                debug_assert_eq!(operation.kind, TransferKind::Write);
                let address = buffer[start as usize..][..bytes as usize].as_ptr();
                opcode::Write::new(file, address, bytes).offset(file_offset).build()
            }
            Source::Arena { transfer, .. } => {
                let arena_offset = transfer.arena_offset + start;
                let address = self.arena.address(arena_offset, bytes as u64);
                let region = (arena_offset / REGION_BYTES - self.slice.start / REGION_BYTES) as u16;
                match operation.kind {
                    TransferKind::Read => {
                        opcode::ReadFixed::new(file, address, bytes, region).offset(file_offset).build()
                    }
                    TransferKind::Write => {
                        opcode::WriteFixed::new(file, address, bytes, region).offset(file_offset).build()
                    }
                }
            }
        };
        entry.user_data(u64::from(slot) << 32 | u64::from(part))
    }

    /// Enters the kernel if something is queued or completions wait for us to run their task work.
    fn enter(&mut self) {
        let queue = self.ring.submission();
        let (queued, pending) = (queue.len(), queue.taskrun() || queue.cq_overflow());
        drop(queue);
        if queued > 0 || pending {
            self.submit_queue(EnterFlags::GETEVENTS);
        }
    }

    fn submit_queue(&mut self, flags: EnterFlags) {
        let queued = self.ring.submission().len() as u32;
        // SAFETY: plain submission without an argument block.
        let entered = unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, 0, flags.bits(), None) };
        match entered.map_err(|error| error.raw_os_error()) {
            // What was not taken stays queued and goes with the next turn.
            Ok(_) | Err(Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)) => {}
            Err(errno) => panic!("io_uring_enter on our own ring failed with errno {errno:?}"),
        }
    }

    fn reap(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            self.parts_in_flight -= 1;
            let (slot, part) = ((entry.user_data() >> 32) as u32, entry.user_data() as u32);
            self.on_part(slot, part, entry.result());
        }
    }

    fn on_part(&mut self, slot: u32, part: u32, result: i32) {
        let operation = self.operation(slot);
        let state = &mut operation.parts[part as usize];
        let again = match result {
            errno if errno < 0 => {
                let errno = -errno;
                state.retries += 1;
                let again = matches!(errno, libc::EAGAIN | libc::EINTR) && state.retries < RETRIES_MAX;
                if !again {
                    operation.errno.get_or_insert(errno);
                }
                again
            }
            done => {
                state.done += done as u64;
                assert!(state.done <= state.bytes, "the kernel moved more than was asked");
                let missing = state.done < state.bytes;
                // Nothing moved, or not whole pages: the file ends here, and O_DIRECT could
                // not continue at such an offset.
                let ended = done == 0 || !(done as u64).is_multiple_of(EXTENT_ALIGN_BYTES);
                if missing && ended {
                    operation.errno.get_or_insert(libc::EIO);
                }
                missing && !ended
            }
        };
        if again {
            self.queued.push_back((slot, part));
        } else {
            self.close_part(slot);
        }
    }

    fn close_part(&mut self, slot: u32) {
        let operation = self.operation(slot);
        operation.parts_open -= 1;
        if operation.parts_open > 0 {
            return;
        }
        match operation {
            Operation { errno: None, kind: TransferKind::Read, source: Source::Arena { .. }, .. } => {
                self.queue_checksum(slot);
            }
            // A write ends with the later of its transfer and its checksum.
            Operation { kind: TransferKind::Write, source: Source::Arena { checksum: None, .. }, .. } => {}
            _ => self.finish(slot),
        }
    }

    fn finish(&mut self, slot: u32) {
        let operation = self.operations[slot as usize].take().expect("an operation finishes once");
        self.free.push(slot);
        let done = operation.parts.iter().map(|part| part.done).sum();
        let (checksum, buffer) = match operation.source {
            Source::Arena { checksum, .. } => (checksum, None),
            Source::Buffer { buffer } => (Some(0), Some(buffer)),
        };
        let outcome = match operation.errno {
            Some(errno) => Err(DeviceError { errno, done }),
            None => {
                assert_eq!(done, operation.parts.iter().map(|part| part.bytes).sum::<u64>());
                Ok(checksum.expect("a transfer completes after its checksum"))
            }
        };
        self.finished.push_back(Completed { id: operation.id, outcome, buffer });
    }

    fn advance_checksums(&mut self, budget_bytes: u64) {
        let mut left_bytes = budget_bytes;
        loop {
            let queue = match self.read_checksums.is_empty() {
                false => &mut self.read_checksums,
                true => &mut self.write_checksums,
            };
            let Some(pending) = queue.front_mut() else { break };
            let slot = pending.slot;
            let step = self.settings.checksum_step_bytes.min(pending.checksum.remaining_bytes());
            if let Some(value) = pending.checksum.step(&self.arena, step) {
                queue.pop_front();
                self.on_checksum(slot, value);
            }
            left_bytes = left_bytes.saturating_sub(step.max(1));
            if left_bytes == 0 {
                break;
            }
        }
    }

    fn on_checksum(&mut self, slot: u32, value: u64) {
        let operation = self.operation(slot);
        let Source::Arena { checksum, .. } = &mut operation.source else {
            unreachable!("only payloads in the arena have checksums")
        };
        *checksum = Some(value);
        if operation.parts_open == 0 {
            self.finish(slot);
        }
    }

    fn assert_invariants(&self) {
        let held = self.settings.depth as usize - self.free.len();
        let checksums = self.read_checksums.len() + self.write_checksums.len();
        assert!(checksums <= held, "a checksum belongs to a held operation");
        assert!(self.parts_in_flight <= self.settings.device_depth);
        if cfg!(debug_assertions) {
            let operations = self.operations.iter().flatten();
            let open: u32 = operations.clone().map(|operation| operation.parts_open).sum();
            assert_eq!(operations.count(), held);
            assert_eq!(open as usize, self.parts_in_flight as usize + self.queued.len());
        }
    }
}

impl Drop for SsdRing {
    /// Waits until the kernel has completed everything it was given. Parts that never reached
    /// it are dropped.
    fn drop(&mut self) {
        while self.parts_in_flight > 0 {
            match self.ring.submit_and_wait(1).map_err(|error| error.raw_os_error()) {
                Ok(_) | Err(Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)) => {}
                Err(errno) => panic!("waiting for our own ring failed with errno {errno:?}"),
            }
            self.parts_in_flight -= self.ring.completion().count() as u32;
        }
    }
}

fn locked_memory(bytes: u64) -> RingError {
    RingError::LockedMemory { bytes, limit_bytes: memory::memlock_limit_bytes() }
}

/// The slice cut at the arena's multiples of [`REGION_BYTES`], so that a region's index follows
/// from an offset.
fn regions(arena: &Arena, slice: &Range<u64>) -> Vec<libc::iovec> {
    let mut regions = Vec::new();
    let mut start = slice.start;
    while start < slice.end {
        let end = ((start / REGION_BYTES + 1) * REGION_BYTES).min(slice.end);
        let bytes = end - start;
        regions.push(libc::iovec { iov_base: arena.address(start, bytes).cast(), iov_len: bytes as usize });
        start = end;
    }
    regions
}

#[cfg(test)]
#[path = "ssd_ring_tests.rs"]
mod tests;
