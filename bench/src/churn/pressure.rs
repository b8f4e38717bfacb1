//! All owners at once, each on a thread of its own: bursts at a steady rate, for as long as was planned.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use orbitkv::cluster::ClusterFailure;
use orbitkv::control::signals::StopSignals;
use orbitkv_native::clock::monotonic_ns;

use super::plan::Pressure;
use crate::payload::splitmix64;
use crate::streams::failure;
use crate::streams::owner::{Burst, Owner};
use crate::streams::owners::Owners;
use crate::{Failure, progress};

/// Time until the first burst.
const LEAD: Duration = Duration::from_millis(100);
/// How often the threads are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Time between two words of progress.
const WORD: Duration = Duration::from_secs(10);

/// What was made.
pub struct Made {
    /// All bursts, by owner.
    pub bursts: Vec<Vec<Burst>>,
    /// From the first intended beginning to the end of the last burst, in nanoseconds of the clock.
    pub span: std::ops::Range<u64>,
    /// Changes in that time.
    pub changes: u64,
}

impl Made {
    /// Changes a second of all owners together.
    pub fn rate(&self) -> f64 {
        self.changes as f64 / self.seconds()
    }

    /// How long that was, in seconds.
    pub fn seconds(&self) -> f64 {
        (self.span.end - self.span.start) as f64 / 1e9
    }

    /// Longest time by which a burst began late, in nanoseconds.
    pub fn late_ns_max(&self) -> u64 {
        let late = self.bursts.iter().flatten().map(|burst| burst.began_ns.saturating_sub(burst.intended_ns));
        late.max().unwrap_or(0)
    }
}

/// Lets all owners make their bursts. Each begins at a seeded moment of its period.
///
/// # Errors
/// If a node fails, or a signal comes.
pub fn run(
    owners: &mut Owners,
    pressure: &Pressure,
    seed: u64,
    signals: &StopSignals,
) -> Result<Made, Failure> {
    let began_ns = monotonic_ns() + LEAD.as_nanos() as u64;
    let mut state = seed;
    let stopping = AtomicBool::new(false);
    let mut stopped_by = None;
    let bursts = thread::scope(|scope| {
        let threads: Vec<_> = (owners.all().iter_mut().enumerate())
            .map(|(at, owner)| {
                let first_ns = began_ns + splitmix64(&mut state) % pressure.period_ns;
                let stopping = &stopping;
                scope.spawn(move || {
                    changes(owner, at, pressure, first_ns, stopping).map_err(|error| {
                        // What the others would still make is of no use.
                        stopping.store(true, Ordering::Relaxed);
                        error.to_string()
                    })
                })
            })
            .collect();
        let (began, mut word) = (Instant::now(), WORD);
        while !threads.iter().all(|thread| thread.is_finished()) {
            if let Some(signal) = signals.wait(LOOK) {
                stopped_by = Some(signal);
                stopping.store(true, Ordering::Relaxed);
            }
            if began.elapsed() >= word {
                progress(&format!("{} s of changes left", pressure.seconds.saturating_sub(word.as_secs())));
                word += WORD;
            }
        }
        let joined = threads.into_iter().map(|thread| thread.join().expect("an owner does not panic"));
        joined.collect::<Result<Vec<Vec<Burst>>, String>>()
    });
    if let Some(signal) = stopped_by {
        return Err(ClusterFailure::Stopped { signal }.into());
    }
    let bursts = bursts.map_err(failure)?;
    let all = bursts.iter().flatten();
    let span = match (
        all.clone().map(|burst| burst.began_ns).min(),
        all.clone().map(|burst| burst.ended_ns).max(),
    ) {
        (Some(first), Some(last)) => first..last,
        _ => return Err(failure("no burst was made")),
    };
    let changes = all.count() as u64 * pressure.changes;
    Ok(Made { bursts, span, changes })
}

/// The bursts of one owner: at their moments, or at once if it is late, since the rate is what counts here.
fn changes(
    owner: &mut Owner,
    at: usize,
    pressure: &Pressure,
    first_ns: u64,
    stopping: &AtomicBool,
) -> Result<Vec<Burst>, Failure> {
    let mut bursts = Vec::with_capacity(pressure.bursts() as usize);
    for number in 0..pressure.bursts() {
        let intended_ns = first_ns + number * pressure.period_ns;
        let left = intended_ns.saturating_sub(monotonic_ns());
        if left > 0 {
            thread::sleep(Duration::from_nanos(left));
        }
        if stopping.load(Ordering::Relaxed) {
            break;
        }
        bursts.push(owner.burst(at, pressure.changes, intended_ns)?);
    }
    Ok(bursts)
}
