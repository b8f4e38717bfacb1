//! One thread telling another, or a reactor, that there is work: a nonblocking eventfd.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A shareable doorbell. Rings before a [`Wake::drain`] are merged into one.
#[derive(Clone, Debug)]
pub struct Wake {
    fd: Arc<OwnedFd>,
}

impl Wake {
    /// A doorbell that has not been rung. Fails only when the process or the machine has no
    /// descriptors left.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd: Arc::new(fd) })
    }

    /// Makes [`Wake::fd`] readable. Callable from any thread.
    pub fn ring(&self) {
        loop {
            match rustix::io::write(&*self.fd, &1u64.to_ne_bytes()) {
                // A full counter is still a readable descriptor: the ring is not lost.
                Ok(_) | Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(errno) => panic!("writing an eventfd we own failed: {errno}"),
            }
        }
    }

    /// Takes all rings so far; true if there was any. Drain first and look for work after:
    /// the other order loses a wake.
    pub fn drain(&self) -> bool {
        drain(self.fd.as_fd())
    }

    /// Readable while there is an undrained ring.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Takes all rings of a nonblocking eventfd.
pub(crate) fn drain(fd: BorrowedFd<'_>) -> bool {
    let mut count = [0; 8];
    loop {
        match rustix::io::read(fd, &mut count) {
            Ok(_) => return true,
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR) => {}
            Err(errno) => panic!("reading an eventfd we own failed: {errno}"),
        }
    }
}

/// Sleeps until one of the descriptors is readable, or for `timeout` (`None`: for ever); says
/// which are readable.
///
/// # Panics
/// If a descriptor is not pollable: our bug.
pub fn wait_readable<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Option<Duration>) -> [bool; N] {
    let timeout = timeout.map(|time| Timespec::try_from(time).expect("a time-out fits a timespec"));
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => polled.map(|fd| fd.revents().intersects(PollFlags::IN | PollFlags::HUP)),
        Err(Errno::INTR) => [false; N],
        Err(errno) => panic!("poll on descriptors we own failed: {errno}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(wake: &Wake, timeout: Duration) -> bool {
        wait_readable([wake.fd()], Some(timeout))[0]
    }

    #[test]
    fn rings_merge_and_drain_empties() {
        let wake = Wake::new().unwrap();
        assert!(!wake.drain());
        assert!(!readable(&wake, Duration::ZERO));
        wake.ring();
        wake.ring();
        assert!(readable(&wake, Duration::ZERO));
        assert!(wake.drain());
        assert!(!wake.drain());
        assert!(!readable(&wake, Duration::ZERO));
    }

    #[test]
    fn a_full_counter_neither_blocks_nor_loses_the_ring() {
        let wake = Wake::new().unwrap();
        rustix::io::write(wake.fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
        wake.ring();
        assert!(wake.drain());
    }

    #[test]
    fn a_clone_on_another_thread_wakes_a_sleeper() {
        let wake = Wake::new().unwrap();
        let far = wake.clone();
        let ringer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            far.ring();
        });
        assert!(readable(&wake, Duration::from_secs(20)));
        ringer.join().unwrap();
    }
}
