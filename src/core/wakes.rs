//! What wakes a core: the descriptors that it watches, its timer, and its own word that work was left over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use orbitkv_shards::leases::ConnectionId;
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec};

use super::Core;
use crate::turns::Woken;

/// Which descriptor of a core has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The doorbell.
    Mail,
    /// An engine waits to be accepted.
    Listener,
    /// The device has completed something.
    Device,
    /// Peers have sent something.
    Datagrams,
    /// Something has happened on peer sockets.
    PeerSockets,
    /// Work was left over.
    Again,
    /// A deadline has come.
    Timer,
    /// A process is gone.
    Processes,
    /// A connection has bytes.
    Receive(ConnectionId),
    /// A connection has room.
    Send(ConnectionId),
}

impl Ready {
    /// What it is called where turns are recorded.
    pub(super) fn woken(self) -> Woken {
        match self {
            Ready::Mail => Woken::Mail,
            Ready::Listener => Woken::Listener,
            Ready::Device => Woken::Device,
            Ready::Datagrams => Woken::Datagrams,
            Ready::PeerSockets => Woken::PeerSockets,
            Ready::Again => Woken::LeftOver,
            Ready::Timer => Woken::Timer,
            Ready::Processes => Woken::Processes,
            Ready::Receive(_) => Woken::Engine,
            Ready::Send(_) => Woken::Room,
        }
    }
}

/// What a watch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes, or the end.
    Read,
    /// Room.
    Write,
}

/// A descriptor to be watched.
#[derive(Debug)]
pub struct Watch {
    /// The descriptor; a duplicate.
    pub fd: OwnedFd,
    /// What to report.
    pub ready: Ready,
    /// What to wait for.
    pub interest: Interest,
}

/// Whether a watch goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait again.
    Again,
    /// Drop the watch.
    Stop,
}

impl Core {
    pub(super) fn watch_own(&mut self) -> io::Result<()> {
        let mut watches = vec![
            watch(self.again.fd(), Ready::Again)?,
            watch(self.timer.as_fd(), Ready::Timer)?,
            watch(self.sockets.processes(), Ready::Processes)?,
        ];
        if let Some(listener) = &self.parts.listener {
            watches.push(watch(listener.listener().as_fd(), Ready::Listener)?);
        }
        if let Some(driver) = &self.parts.device {
            watches.push(watch(driver.device().completion_fd(), Ready::Device)?);
        }
        if let Some(peers) = &self.parts.peers {
            watches.push(watch(peers.fd(), Ready::Datagrams)?);
            if let Some(sockets) = peers.sockets_fd() {
                watches.push(watch(sockets, Ready::PeerSockets)?);
            }
        }
        self.watches.extend(watches);
        if self.parts.spins {
            self.ring_again();
        }
        Ok(())
    }

    /// The watch of the doorbell.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn mail_watch(&self) -> io::Result<Watch> {
        watch(self.parts.mail.wake().fd(), Ready::Mail)
    }

    /// Watches to be started.
    pub fn take_watches(&mut self) -> Vec<Watch> {
        std::mem::take(&mut self.watches)
    }

    /// Makes another turn come at once.
    pub(super) fn ring_again(&mut self) {
        if !std::mem::replace(&mut self.is_rung, true) {
            self.again.ring();
        }
    }

    /// Sets the timer to the next moment at which anything has something to do.
    pub(super) fn arm_timer(&mut self) {
        let deadlines = [
            self.parts.hub.next_deadline(),
            self.parts.shard.next_deadline(),
            self.accept_again_at,
            self.parts.peers.as_ref().and_then(|peers| peers.next_deadline()),
        ];
        let next = deadlines.into_iter().flatten().min();
        if next == self.timer_at {
            return;
        }
        self.timer_at = next;
        // An all-zero time disarms the timer.
        let at = next.map_or(Duration::ZERO, |at| Duration::from_nanos(at.0.max(1)));
        let it_value = Timespec { tv_sec: at.as_secs() as i64, tv_nsec: i64::from(at.subsec_nanos()) };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval, it_value };
        let armed = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec);
        assert!(armed.is_ok(), "our own timer takes any time");
    }
}

/// A watch for bytes, or the end.
pub(super) fn watch(fd: BorrowedFd<'_>, ready: Ready) -> io::Result<Watch> {
    Ok(Watch { fd: fd.try_clone_to_owned()?, ready, interest: Interest::Read })
}
