//! The SSD ring on a pinned thread of its own (the dedicated layout): requests and completions
//! cross in two bounded single-producer rings, and an eventfd wakes whichever side sleeps.
//!
//! The thread never spins: with nothing to do it sleeps on its request doorbell and on the
//! ring's eventfd. The handle admits at most `depth` operations, counted until their completion
//! is taken, so neither ring can overflow.

use crate::affinity;
use crate::arena::Arena;
use crate::ssd_ring::{RingError, RingSettings, SsdRing};
use crate::ssd_transfer::{AlignedBuffer, Completed, Transfer, Turn, assert_aligned};
use crate::wake::{Wake, wait_readable};
use rtrb::{Consumer, Producer, RingBuffer};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Checksum work of one turn: short, because a finished transfer waits for the turn's end.
const TURN_CHECKSUM_BYTES: u64 = 256 * 1_024;

enum Request {
    Transfer(Transfer),
    Buffer { id: u64, buffer: AlignedBuffer, file_offset: u64 },
}

#[derive(Default)]
struct Flags {
    /// The thread sleeps or is about to: a request must ring.
    parked: AtomicBool,
    stop: AtomicBool,
}

/// The shard core's handle of a device thread. Dropping it stops the thread, which first waits
/// for what the kernel holds; completions not taken by then are lost.
pub struct DeviceThread {
    requests: Producer<Request>,
    completed: Consumer<Completed>,
    request_wake: Wake,
    completed_wake: Wake,
    flags: Arc<Flags>,
    in_flight: u32,
    depth: u32,
    thread: Option<JoinHandle<()>>,
}

impl DeviceThread {
    /// Starts the thread, pinned to `core` if one is given, and sets its ring up as
    /// [`SsdRing::new`] does; returns when that is done.
    pub fn start(
        settings: RingSettings,
        core: Option<usize>,
        file: BorrowedFd<'_>,
        arena: &Arena,
        slice: Range<u64>,
    ) -> Result<Self, RingError> {
        let system = |step| move |source| RingError::System { step, source };
        let depth = settings.depth;
        let (requests, request_end) = RingBuffer::new(depth as usize);
        let (completed_end, completed) = RingBuffer::new(depth as usize);
        let request_wake = Wake::new().map_err(system("making the request eventfd"))?;
        let completed_wake = Wake::new().map_err(system("making the completion eventfd"))?;
        let flags = Arc::new(Flags::default());
        let file: OwnedFd = file.try_clone_to_owned().map_err(system("duplicating the file descriptor"))?;
        let (arena, service_flags) = (arena.clone(), flags.clone());
        let (service_wake, service_completed_wake) = (request_wake.clone(), completed_wake.clone());
        let (ready, started) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("ssd-device".into())
            .spawn(move || {
                let set_up = || {
                    if let Some(core) = core {
                        affinity::pin_current_thread(core)
                            .map_err(system("pinning the thread to its device core"))?;
                    }
                    SsdRing::new(settings, file.as_fd(), &arena, slice)
                };
                let ring = match set_up() {
                    Ok(ring) => ring,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                let _ = ready.send(Ok(()));
                let mut service = Service {
                    ring,
                    requests: request_end,
                    completed: completed_end,
                    request_wake: service_wake,
                    completed_wake: service_completed_wake,
                    flags: service_flags,
                };
                service.run();
            })
            .map_err(system("starting the device thread"))?;
        match started.recv().expect("the device thread reports how it started") {
            Ok(()) => Ok(Self {
                requests,
                completed,
                request_wake,
                completed_wake,
                flags,
                in_flight: 0,
                depth,
                thread: Some(thread),
            }),
            Err(error) => {
                thread.join().expect("a device thread that reported an error has ended");
                Err(error)
            }
        }
    }

    /// As [`SsdRing::submit`].
    pub fn submit(&mut self, transfer: Transfer) -> Result<(), Transfer> {
        transfer.assert_well_formed();
        if self.in_flight == self.depth {
            return Err(transfer);
        }
        self.send(Request::Transfer(transfer));
        Ok(())
    }

    /// As [`SsdRing::submit_buffer`].
    pub fn submit_buffer(
        &mut self,
        id: u64,
        buffer: AlignedBuffer,
        file_offset: u64,
    ) -> Result<(), AlignedBuffer> {
        assert_aligned("file offset", file_offset);
        if self.in_flight == self.depth {
            return Err(buffer);
        }
        self.send(Request::Buffer { id, buffer, file_offset });
        Ok(())
    }

    /// Appends what has completed to `out`. Never asks to be called again: every further
    /// completion makes [`Self::completion_fd`] readable.
    pub fn turn(&mut self, out: &mut Vec<Completed>) -> Turn {
        self.completed_wake.drain();
        while let Ok(completed) = self.completed.pop() {
            self.in_flight -= 1;
            out.push(completed);
        }
        Turn { more: false }
    }

    /// Readable when something has completed.
    pub fn completion_fd(&self) -> BorrowedFd<'_> {
        self.completed_wake.fd()
    }

    /// Operations accepted and not yet handed out as completed.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Operations that may be in flight.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    fn send(&mut self, request: Request) {
        self.in_flight += 1;
        assert!(self.requests.push(request).is_ok(), "the request ring holds a whole depth");
        // Pairs with the fence in `Service::park`: either we see it parked, or it sees the request.
        fence(Ordering::SeqCst);
        if self.flags.parked.swap(false, Ordering::Relaxed) {
            self.request_wake.ring();
        }
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        self.flags.stop.store(true, Ordering::Release);
        self.request_wake.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the device thread panicked");
        }
    }
}

/// What runs on the thread.
struct Service {
    ring: SsdRing,
    requests: Consumer<Request>,
    completed: Producer<Completed>,
    request_wake: Wake,
    completed_wake: Wake,
    flags: Arc<Flags>,
}

impl Service {
    fn run(&mut self) {
        let mut out = Vec::with_capacity(self.ring.depth() as usize);
        while !self.flags.stop.load(Ordering::Acquire) {
            self.take_requests();
            let turn = self.ring.turn(&mut out, TURN_CHECKSUM_BYTES);
            self.hand_out(&mut out);
            if !turn.more {
                self.park();
            }
        }
    }

    fn take_requests(&mut self) {
        while let Ok(request) = self.requests.pop() {
            let accepted = match request {
                Request::Transfer(transfer) => self.ring.submit(transfer).is_ok(),
                Request::Buffer { id, buffer, file_offset } => {
                    self.ring.submit_buffer(id, buffer, file_offset).is_ok()
                }
            };
            assert!(accepted, "the handle admits no more than the ring's depth");
        }
    }

    fn hand_out(&mut self, out: &mut Vec<Completed>) {
        if out.is_empty() {
            return;
        }
        for completed in out.drain(..) {
            assert!(self.completed.push(completed).is_ok(), "the completion ring holds a whole depth");
        }
        self.completed_wake.ring();
    }

    /// Sleeps until there is a request, a completion or the word to stop.
    fn park(&mut self) {
        self.flags.parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.requests.is_empty() && !self.flags.stop.load(Ordering::Acquire) {
            wait_readable([self.request_wake.fd(), self.ring.completion_fd()], None);
        }
        self.flags.parked.store(false, Ordering::Relaxed);
        self.request_wake.drain();
    }
}
