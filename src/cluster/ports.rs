//! Ports on loopback that nobody has, for processes that are about to bind them.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;

use super::ClusterFailure;

/// Where ports are looked for: below those that the kernel gives out by itself, so that between our look and the
/// process's bind only somebody who wants this very port can take it.
const SEARCHED: Range<u16> = 20_000..32_000;

/// Where a run begins to look: runs that begin together shall not want the same.
fn first_looked_at(process: u32) -> u16 {
    SEARCHED.start + (process % (SEARCHED.len() as u32 / 4)) as u16 * 4
}

/// Gives out ports of one run, none twice.
pub(super) struct Ports {
    next: u16,
    left: usize,
}

impl Ports {
    pub(super) fn new() -> Ports {
        Ports { next: first_looked_at(std::process::id()), left: SEARCHED.len() }
    }

    /// A port for TCP.
    pub(super) fn stream(&mut self) -> Result<u16, ClusterFailure> {
        self.find(1, |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
    }

    /// The first of so many ports for UDP that follow each other.
    pub(super) fn datagrams(&mut self, count: u16) -> Result<u16, ClusterFailure> {
        self.find(count, |port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
    }

    fn find(&mut self, count: u16, is_free: impl Fn(u16) -> bool) -> Result<u16, ClusterFailure> {
        while self.left > 0 {
            if SEARCHED.end - self.next < count {
                self.left = self.left.saturating_sub(usize::from(SEARCHED.end - self.next));
                self.next = SEARCHED.start;
                continue;
            }
            let run = self.next..self.next + count;
            let taken = run.clone().find(|&port| !is_free(port));
            let looked_at = taken.map_or(count, |port| port - run.start + 1);
            self.next += looked_at;
            self.left = self.left.saturating_sub(usize::from(looked_at));
            if taken.is_none() {
                return Ok(run.start);
            }
        }
        Err(ClusterFailure::Ports { count, searched: SEARCHED })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_free_ports_are_found_and_none_is_given_twice() {
        let mut ports = Ports { next: SEARCHED.end - 3, left: SEARCHED.len() };
        // The end of the range is too short, and the second port is taken.
        let taken = SEARCHED.start + 1;
        assert_eq!(ports.find(4, |port| port != taken).ok(), Some(taken + 1));
        assert_eq!(ports.find(1, |_| true).ok(), Some(taken + 5));
    }

    #[test]
    fn a_full_range_is_refused_with_its_bounds() {
        let mut ports = Ports { next: 31_990, left: SEARCHED.len() };
        let error = ports.find(2, |port| port.is_multiple_of(2)).expect_err("no two follow each other");
        assert!(error.to_string().contains("20000"), "{error}");
    }

    #[test]
    fn a_run_begins_within_the_range() {
        for process in [1, 2_999, 3_000, u32::MAX] {
            assert!(SEARCHED.contains(&first_looked_at(process)), "{process}");
        }
    }
}
