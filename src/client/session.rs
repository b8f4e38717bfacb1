//! What outlives a call: the mapped arena, the connection it came over, and the leases, slots and
//! blocks that point into it. Each of them knows when its bytes stop being its own and refuses
//! from then on; none of them can be made to read another block's bytes.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use orbitkv_native::arena::{ArenaView, ArenaViewError, RangeError, ViewPopulate};
use orbitkv_wire::engine::answers::Place;
use rustix::io::Errno;

use super::error::ClientError;

/// One arena, mapped twice: once to be read by any number of blocks, once to be written by one
/// slot at a time. Two mappings let safe code hand out both kinds of references at once.
pub(super) struct MappedArena {
    pub(super) generation: u64,
    reading: ArenaView,
    writing: Mutex<ArenaView>,
}

impl MappedArena {
    pub(super) fn map(
        fd: OwnedFd,
        bytes: u64,
        generation: u64,
        populate: ViewPopulate,
    ) -> Result<MappedArena, ClientError> {
        let second = fd.try_clone().map_err(|error| ClientError::System {
            step: "duplicating the arena's descriptor",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::MFILE),
        })?;
        let map = |fd| -> Result<ArenaView, ArenaViewError> { ArenaView::map(fd, bytes, populate) };
        let (reading, writing) = (map(fd)?, Mutex::new(map(second)?));
        Ok(MappedArena { generation, reading, writing })
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<(), ClientError> {
        self.reading.bytes(offset, bytes).map(|_| ()).map_err(outside)
    }
}

fn outside(error: RangeError) -> ClientError {
    ClientError::protocol(error.to_string())
}

/// One connection's life as its slots, blocks and leases see it.
pub(super) struct Session {
    pub(super) arena: Arc<MappedArena>,
    /// The node's number for it.
    pub(super) connection: u64,
    ended: AtomicBool,
    replaced_by: OnceLock<u64>,
}

impl Session {
    pub(super) fn new(arena: Arc<MappedArena>, connection: u64) -> Arc<Session> {
        Arc::new(Session { arena, connection, ended: AtomicBool::new(false), replaced_by: OnceLock::new() })
    }

    /// Nothing of it may be touched any more: the connection after it serves `generation`.
    pub(super) fn end(&self, generation: u64) {
        // The first replacement stays the answer; a later one makes nothing valid again.
        let _ = self.replaced_by.set(generation);
        self.ended.store(true, Ordering::Release);
    }

    pub(super) fn check(&self) -> Result<(), ClientError> {
        if !self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.replaced_by.get() {
            Some(&current) if current != self.arena.generation => {
                Err(ClientError::StaleGeneration { held: self.arena.generation, current })
            }
            _ => Err(ClientError::Ended),
        }
    }
}

pub(super) struct LeaseState {
    pub(super) token: [u8; 16],
    pub(super) session: Arc<Session>,
    ended: AtomicBool,
}

impl LeaseState {
    fn check(&self) -> Result<(), ClientError> {
        self.session.check()?;
        if self.ended.load(Ordering::Acquire) { Err(ClientError::Ended) } else { Ok(()) }
    }
}

/// This process's share of a lease: while it lasts, the blocks under it stay where they are.
/// Clones are the same share; it ends once, by `release`.
#[derive(Clone)]
pub struct Lease(pub(super) Arc<LeaseState>);

impl Lease {
    pub(super) fn new(token: [u8; 16], session: &Arc<Session>) -> Lease {
        Lease(Arc::new(LeaseState { token, session: session.clone(), ended: AtomicBool::new(false) }))
    }

    /// The token, for `attach` in another process of the same instance.
    #[must_use]
    pub fn token(&self) -> [u8; 16] {
        self.0.token
    }

    /// Whether blocks under it may still be used.
    ///
    /// # Errors
    /// [`ClientError::Ended`] after release or a replaced connection;
    /// [`ClientError::StaleGeneration`] once another daemon answers.
    pub fn check(&self) -> Result<(), ClientError> {
        self.0.check()
    }

    pub(super) fn end(&self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:032x})", u128::from_be_bytes(self.0.token))
    }
}

/// A block in the arena, pinned by a lease and read in place.
#[derive(Clone)]
pub struct ReadyBlock {
    lease: Arc<LeaseState>,
    offset: u64,
    bytes: u64,
    place: Place,
}

impl ReadyBlock {
    pub(super) fn new(
        lease: &Lease,
        offset: u64,
        bytes: u64,
        place: Place,
    ) -> Result<ReadyBlock, ClientError> {
        lease.0.session.arena.check(offset, bytes)?;
        Ok(ReadyBlock { lease: lease.0.clone(), offset, bytes, place })
    }

    /// The payload, in place. Do not hold the reference across the release of its lease: the
    /// node may give the memory to another block then.
    ///
    /// # Errors
    /// [`ClientError::Ended`] after its lease, [`ClientError::StaleGeneration`] once another
    /// daemon answers.
    pub fn bytes(&self) -> Result<&[u8], ClientError> {
        self.lease.check()?;
        self.lease.session.arena.reading.bytes(self.offset, self.bytes).map_err(outside)
    }

    /// Payload bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.bytes
    }

    /// Offset in the arena, for engines that register the arena with a device.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where the bytes came from.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }
}

impl fmt::Debug for ReadyBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadyBlock({}+{} from {:?})", self.offset, self.bytes, self.place)
    }
}

/// A slot to be filled, then handed to `commit` or `abort`. Dropping it gives nothing back: the
/// node keeps the slot reserved until the connection ends.
#[must_use = "a slot stays reserved until commit, abort or the end of the connection"]
pub struct ReservedSlot {
    pub(super) session: Arc<Session>,
    pub(super) reservation: u64,
    offset: u64,
    bytes: u64,
}

impl ReservedSlot {
    pub(super) fn new(
        session: &Arc<Session>,
        reservation: u64,
        offset: u64,
        bytes: u64,
    ) -> Result<ReservedSlot, ClientError> {
        session.arena.check(offset, bytes)?;
        Ok(ReservedSlot { session: session.clone(), reservation, offset, bytes })
    }

    /// The slot's bytes, to be written in place. What they hold before is undefined. Two slots
    /// of one arena are filled one after the other (the guard excludes them); threads that fill
    /// at once use [`Self::copy_in`].
    ///
    /// # Errors
    /// [`ClientError::Ended`] or [`ClientError::StaleGeneration`] once its connection was replaced.
    pub fn bytes_mut(&mut self) -> Result<SlotBytes<'_>, ClientError> {
        self.session.check()?;
        let mut view = self.session.arena.writing.lock().unwrap_or_else(PoisonError::into_inner);
        view.bytes_mut(self.offset, self.bytes).map_err(outside)?;
        Ok(SlotBytes { view, offset: self.offset, bytes: self.bytes })
    }

    /// Copies `source` to `at` within the slot; may run on several threads, each with its slot.
    ///
    /// # Errors
    /// As [`Self::bytes_mut`]; [`ClientError::OverLimit`] if it does not fit the slot.
    pub fn copy_in(&mut self, at: u64, source: &[u8]) -> Result<(), ClientError> {
        self.session.check()?;
        let end = at.saturating_add(source.len() as u64);
        if end > self.bytes {
            return Err(ClientError::OverLimit {
                what: "bytes in a slot",
                count: usize::try_from(end).unwrap_or(usize::MAX),
                limit: self.bytes as usize,
            });
        }
        self.session.arena.reading.copy_in(self.offset + at, source).map_err(outside)
    }

    /// Payload bytes that may be written.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.bytes
    }

    /// Offset in the arena, for engines that register the arena with a device.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl fmt::Debug for ReservedSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReservedSlot({} at {}+{})", self.reservation, self.offset, self.bytes)
    }
}

/// A slot's bytes while they are written.
pub struct SlotBytes<'a> {
    view: MutexGuard<'a, ArenaView>,
    offset: u64,
    bytes: u64,
}

impl Deref for SlotBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.view.bytes(self.offset, self.bytes).expect("the range was checked when the guard was made")
    }
}

impl DerefMut for SlotBytes<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.view.bytes_mut(self.offset, self.bytes).expect("the range was checked when the guard was made")
    }
}
