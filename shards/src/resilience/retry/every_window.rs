//! A budget of extra calls that holds in every window, short ones included.
//!
//! A share of what was called within ten seconds lets busy seconds pay for a failing one: within the failing second alone
//! there are more extra calls than its share. Here the bound is that of every window by itself:
//!
//! > in each window that is shorter than the longest one, however it lies, the extra calls are at most the share of
//! > the first calls in it, or the burst if that is more.
//!
//! A window is worst if it begins with an extra call and ends with one, so it suffices to look back from each extra call
//! at those before it. Let `g` of an extra call be 1,000 for each extra call before it less the thousandths of the
//! share for each first call before it. From one to another, both counted, the share is kept exactly if `g` of the later
//! is lower by 1,000 or more; within the burst it need not be. So an extra call is allowed if its `g` is lower by 1,000 than the lowest of all
//! that are not among the last burst: what is refused would break the bound of some window, and nothing else is
//! refused (but for the grain in which calls are forgotten).
//!
//! Without a burst no extra call could ever follow: whoever allows one does not know what will be called next to it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Moment;

/// Parts in which what leaves the longest window is forgotten: it counts at most this much of the window too long.
const PARTS: u64 = 100;

/// The lowest `g` of extra calls within a part of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    number: u64,
    lowest: i64,
}

/// Extra calls against first calls, bounded in every window.
#[derive(Clone, Debug)]
pub struct EveryWindow {
    permille: u32,
    burst: usize,
    /// Nanoseconds of a part of the longest window.
    part_ns: u64,
    /// What the next extra call is measured by.
    level: i64,
    /// The last extra calls, at most the burst, oldest first.
    recent: VecDeque<(Moment, i64)>,
    /// Of those before them.
    parts: Vec<Part>,
}

impl EveryWindow {
    /// A budget of so many extra calls for a thousand first ones in every window shorter than `longest`, or of `burst`
    /// in one of fewer.
    ///
    /// # Panics
    /// If the window is shorter than 100 ns.
    #[must_use]
    pub fn new(permille: u32, burst: u32, longest: Duration) -> EveryWindow {
        let part_ns = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX) / PARTS;
        assert!(part_ns > 0, "a window of {longest:?}");
        let burst = burst as usize;
        EveryWindow {
            permille,
            burst,
            part_ns,
            level: 0,
            recent: VecDeque::with_capacity(burst),
            parts: Vec::new(),
        }
    }

    /// Another share from now on: a first call counts with the one that holds when it is made.
    pub const fn set_share(&mut self, permille: u32) {
        self.permille = permille;
    }

    /// A first call is made.
    pub fn on_first(&mut self) {
        self.level -= i64::from(self.permille);
    }

    /// Whether an extra call may follow now; it is counted with that.
    pub fn allow(&mut self, now: Moment) -> bool {
        const EXTRA: i64 = 1_000;
        if self.burst == 0 {
            return false;
        }
        let present = now.0 / self.part_ns;
        self.parts.retain(|part| part.number + PARTS >= present);
        if self.recent.len() == self.burst {
            // With one more the window that begins there has more than the burst.
            let (at, level) = self.recent[0];
            let is_open = at.0 / self.part_ns + PARTS >= present;
            let bound = self.parts.iter().map(|part| part.lowest).chain(is_open.then_some(level)).min();
            if bound.is_some_and(|bound| self.level + EXTRA > bound) {
                return false;
            }
            self.recent.pop_front();
            if is_open {
                self.remember(at.0 / self.part_ns, level);
            }
        }
        self.recent.push_back((now, self.level));
        self.level += EXTRA;
        true
    }

    fn remember(&mut self, number: u64, level: i64) {
        match self.parts.last_mut().filter(|part| part.number == number) {
            Some(part) => part.lowest = part.lowest.min(level),
            None => self.parts.push(Part { number, lowest: level }),
        }
    }
}

#[cfg(test)]
mod tests;
