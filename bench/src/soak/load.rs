//! What goes on all the time: owners that change what they have, and a reader that brings blocks from owner to owner and
//! compares every byte. A node that is struck is left out; whatever fails at any other ends the cell.

use std::sync::TryLockError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use orbitkv_native::clock::monotonic_ns;

use super::plan::Plan;
use super::seats::{Seat, Told, Trouble};
use crate::clock::sleep_until;
use crate::payload::splitmix64;

/// Longest sleep of a thread that may be asked to end.
const NAP: Duration = Duration::from_millis(50);
/// Time between two visits of the reader.
const VISIT_PERIOD: Duration = Duration::from_millis(50);
/// Blocks of a visit.
const VISIT_BLOCKS: u64 = 8;

/// What the reader has done.
#[derive(Default)]
pub struct Visits {
    /// Blocks that it asked for.
    pub asked: AtomicU64,
    /// Blocks that came, every byte as it was saved.
    pub came: AtomicU64,
}

/// Sleeps until a moment, or until everybody is to stop; whether to go on.
pub fn rest_until(moment_ns: u64, stop: &AtomicBool, trouble: &Trouble) -> bool {
    let goes_on = || !stop.load(Ordering::Relaxed) && !trouble.is_there();
    while goes_on() && monotonic_ns() < moment_ns {
        sleep_until(moment_ns.min(monotonic_ns() + NAP.as_nanos() as u64));
    }
    goes_on()
}

/// The bursts of the owner at a seat, until everybody is to stop.
pub fn change(at: usize, seat: &Seat, plan: &Plan, seed: u64, stop: &AtomicBool, trouble: &Trouble) {
    let period_ns = plan.burst_period_ms * 1_000_000;
    let mut state = seed ^ at as u64;
    let mut next_ns = monotonic_ns() + splitmix64(&mut state) % period_ns;
    while rest_until(next_ns, stop, trouble) {
        match seat.owner.try_lock() {
            Ok(mut guard) => {
                if let Some(owner) = guard.as_mut() {
                    match owner.burst(at, plan.burst_changes, next_ns) {
                        Ok(_) => seat.changed(Some(*owner.keys()), plan.burst_changes),
                        Err(failure) => {
                            let who = format!("the owner at {}", seat.place().name);
                            return trouble.tell(Told::of(&who, &failure));
                        }
                    }
                }
            }
            // Somebody strikes the node, or reads there.
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(_)) => unreachable!("a panic ends the process"),
        }
        // What was late is not made up for: it would be a load of its own.
        next_ns = (next_ns + period_ns).max(monotonic_ns());
    }
}

/// Brings blocks of one owner to another, in a seeded order, until everybody is to stop.
pub fn read(seats: &[Seat], seed: u64, visits: &Visits, stop: &AtomicBool, trouble: &Trouble) {
    let mut state = seed.rotate_left(32);
    let mut next_ns = monotonic_ns();
    while rest_until(next_ns, stop, trouble) {
        let count = seats.len() as u64;
        let at = (splitmix64(&mut state) % count) as usize;
        let of = (at + 1 + (splitmix64(&mut state) % (count - 1)) as usize) % seats.len();
        if let (Ok(mut guard), Some(keys)) = (seats[at].owner.try_lock(), seats[of].keys())
            && let Some(reader) = guard.as_mut()
        {
            match reader.visit(&keys, VISIT_BLOCKS) {
                Ok(came) => {
                    visits.asked.fetch_add(VISIT_BLOCKS.min(keys.len()), Ordering::Relaxed);
                    visits.came.fetch_add(came, Ordering::Relaxed);
                }
                Err(failure) => {
                    let who = format!("the reader at {}", seats[at].place().name);
                    return trouble.tell(Told::of(&who, &failure));
                }
            }
        }
        next_ns = monotonic_ns() + VISIT_PERIOD.as_nanos() as u64;
    }
}
