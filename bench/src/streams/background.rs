//! Engines that make changes on threads of their own while something else is measured: bursts at a steady rate, or as
//! fast as the machine lets them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use orbitkv_native::clock::monotonic_ns;
use serde::Serialize;

use super::failure;
use super::owner::{Burst, Mix, Owner};
use crate::Failure;
use crate::clock::sleep_until;
use crate::payload::splitmix64;

/// Time until the first burst.
const LEAD: Duration = Duration::from_millis(100);
/// Longest sleep of an engine that may be asked to end.
const NAP: Duration = Duration::from_millis(50);

/// When each engine makes which bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rhythm {
    /// What a burst is made of.
    pub mix: Mix,
    /// Time between two bursts of an engine, in nanoseconds; 0 for one after the other.
    pub period_ns: u64,
}

impl Rhythm {
    /// The rhythm in which so many engines make so many changes a second together.
    ///
    /// # Panics
    /// If there is none of any of them.
    pub fn of(mix: Mix, owners: usize, changes_per_second: u64) -> Rhythm {
        assert!(mix.changes() > 0 && owners > 0 && changes_per_second > 0, "a rate of something");
        let period_ns = mix.changes() * owners as u64 * 1_000_000_000 / changes_per_second;
        Rhythm { mix, period_ns }
    }
}

/// An engine with its bursts, or why it failed, in words.
type Worked = Result<(Owner, Vec<Burst>), String>;

/// Engines at work.
pub struct Background {
    mix: Mix,
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Worked>>,
}

/// What they have made.
pub struct Made {
    /// The engines.
    pub owners: Vec<Owner>,
    /// Bursts, in no order.
    pub bursts: Vec<Burst>,
    /// Changes of all of them.
    pub changes: u64,
}

impl Background {
    /// Begins, each engine at a seeded moment of its period. It ends when it is asked to, or after so many bursts of each.
    pub fn begin(engines: Vec<Owner>, rhythm: Rhythm, seed: u64, bursts: Option<u64>) -> Background {
        let stopping = Arc::new(AtomicBool::new(false));
        let (mut state, began_ns) = (seed, monotonic_ns() + LEAD.as_nanos() as u64);
        let threads = engines.into_iter().enumerate().map(|(at, mut owner)| {
            let first_ns = began_ns + splitmix64(&mut state) % rhythm.period_ns.max(1);
            let stopping = Arc::clone(&stopping);
            thread::spawn(move || {
                let made = work(&mut owner, at, &rhythm, first_ns, bursts, &stopping);
                // What the others would still make is of no use.
                made.map(|made| (owner, made)).map_err(|error| {
                    stopping.store(true, Ordering::Relaxed);
                    error.to_string()
                })
            })
        });
        let threads = threads.collect();
        Background { mix: rhythm.mix, stopping, threads }
    }

    /// Whether all have made their bursts, or one has failed.
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Asks all to end after the burst they are at, and waits for them.
    ///
    /// # Errors
    /// If one has failed.
    pub fn end(mut self) -> Result<Made, Failure> {
        self.stopping.store(true, Ordering::Relaxed);
        self.join()
    }

    /// Waits until all have made their bursts.
    ///
    /// # Errors
    /// If one has failed.
    pub fn join(&mut self) -> Result<Made, Failure> {
        let mut made = Made { owners: Vec::new(), bursts: Vec::new(), changes: 0 };
        let mut failed = None;
        for thread in self.threads.drain(..) {
            match thread.join().expect("an engine does not panic") {
                Ok((owner, bursts)) => {
                    made.owners.push(owner);
                    made.bursts.extend(bursts);
                }
                Err(words) => failed = failed.or(Some(words)),
            }
        }
        made.changes = made.bursts.len() as u64 * self.mix.changes();
        match failed {
            Some(words) => Err(failure(words)),
            None => Ok(made),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

fn work(
    owner: &mut Owner,
    at: usize,
    rhythm: &Rhythm,
    first_ns: u64,
    bursts: Option<u64>,
    stopping: &AtomicBool,
) -> Result<Vec<Burst>, Failure> {
    let mut made = Vec::new();
    while bursts.is_none_or(|bursts| (made.len() as u64) < bursts) {
        let intended_ns = first_ns + made.len() as u64 * rhythm.period_ns;
        while monotonic_ns() < intended_ns && !stopping.load(Ordering::Relaxed) {
            sleep_until(intended_ns.min(monotonic_ns() + NAP.as_nanos() as u64));
        }
        if stopping.load(Ordering::Relaxed) {
            break;
        }
        made.push(owner.mixed_burst(at, &rhythm.mix, intended_ns)?);
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_together_make_the_rate_that_is_asked_for() {
        let mix = Mix { own: 80, repeated_blocks: 8, rounds: 5 };
        let rhythm = Rhythm::of(mix, 16, 4_000);
        // 16 engines × 160 changes in 0.64 s are 4,000 a second.
        assert_eq!(rhythm.period_ns, 640_000_000);
        assert_eq!(Rhythm::of(Mix { own: 64, ..Mix::default() }, 1, 6_400).period_ns, 10_000_000);
    }
}
