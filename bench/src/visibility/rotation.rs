//! The rotation: bursts at their moments, and every observer looked at before an owner's next one.
//!
//! Looking costs the nodes time, so it is done in the second half of a period, when what was published at its beginning
//! has been seen if it goes well: two nodes a period, so that each is looked at twice in a rotation.

use std::thread::sleep;
use std::time::Duration;

use orbitkv::control::signals::StopSignals;
use orbitkv_native::clock::monotonic_ns;

use super::plan::{CHANGES, PERIOD};
use crate::clock::sleep_until;
use crate::streams::cadence::{Planned, Schedule};
use crate::streams::owner::Burst;
use crate::streams::owners::Owners;
use crate::streams::samples::Samples;
use crate::streams::{failure, pause};
use crate::{Failure, progress};

/// When looking begins, after a burst.
const LOOK_AFTER: Duration = Duration::from_millis(9);
/// Nodes looked at in a period.
const LOOKS_PER_PERIOD: usize = 2;
/// Time that is left for the next burst.
const LEAVE: Duration = Duration::from_millis(3);
/// How often those are looked at that have not seen an owner's last burst when its next one is due.
const LOOK_AGAIN: Duration = Duration::from_micros(500);
/// How long they may take: longer than any cadence allows, so that the run ends by its own rule.
const LOOK_LONGEST: Duration = Duration::from_millis(500);
/// Periods between two words of progress.
const PERIODS_PER_WORD: usize = 600;

/// Makes all bursts; those that were made, and what was seen of them is in `samples`.
///
/// # Errors
/// If a node fails or does not see a burst before the owner's next one, or a signal comes.
pub fn run(
    owners: &mut Owners,
    samples: &mut Samples,
    plan: &[Planned],
    signals: &StopSignals,
) -> Result<Vec<Burst>, Failure> {
    let mut schedule = Schedule::beginning_at(monotonic_ns() + PERIOD.as_nanos() as u64, PERIOD);
    let mut bursts: Vec<Burst> = Vec::with_capacity(plan.len());
    let mut last_of: Vec<u64> = vec![0; owners.len()];
    let mut next_look = 0;
    for (number, planned) in plan.iter().enumerate() {
        pause(Duration::ZERO, signals)?;
        let (intended_ns, begin_ns) = schedule.moments(*planned);
        if let Some(before) = bursts.last() {
            sleep_until(before.began_ns + LOOK_AFTER.as_nanos() as u64);
            for _ in 0..LOOKS_PER_PERIOD {
                if monotonic_ns() + LEAVE.as_nanos() as u64 <= begin_ns {
                    samples.read(next_look, &owners.http()[next_look])?;
                    next_look = (next_look + 1) % owners.len();
                }
            }
        }
        await_seen(owners, samples, planned.owner, last_of[planned.owner])?;
        sleep_until(begin_ns);
        let burst = owners.owner(planned.owner).burst(planned.owner, CHANGES, intended_ns)?;
        schedule.on_begun(*planned, burst.began_ns);
        last_of[planned.owner] = burst.terminal;
        bursts.push(burst);
        if number % PERIODS_PER_WORD == PERIODS_PER_WORD - 1 {
            let left = (plan.len() - number - 1) as u32 * PERIOD;
            progress(&format!("burst {} of {}, {:.0} s left", number + 1, plan.len(), left.as_secs_f64()));
        }
    }
    for (owner, &terminal) in last_of.iter().enumerate() {
        await_seen(owners, samples, owner, terminal)?;
    }
    samples.read_all(owners.http())?;
    Ok(bursts)
}

/// Looks at whoever is not known to have seen a sequence until all have.
fn await_seen(owners: &Owners, samples: &mut Samples, owner: usize, sequence: u64) -> Result<(), Failure> {
    let until = monotonic_ns() + LOOK_LONGEST.as_nanos() as u64;
    loop {
        let unseen = samples.unseen(owner, sequence);
        if unseen.is_empty() {
            return Ok(());
        }
        if monotonic_ns() > until {
            let nodes = unseen.len();
            return Err(failure(format!(
                "{nodes} nodes have not seen {sequence} of owner {owner} {LOOK_LONGEST:?} after its next burst was due"
            )));
        }
        for at in unseen {
            samples.read(at, &owners.http()[at])?;
        }
        if !samples.unseen(owner, sequence).is_empty() {
            sleep(LOOK_AGAIN);
        }
    }
}
