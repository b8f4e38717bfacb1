//! The cell of faults: a cluster under load, one fault after the other, and at the end every key of every owner at every
//! observer.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::cluster::{Cluster, ClusterFailure};
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::owners::{Owner as Stream, OwnersPage};
use orbitkv::control::signals::StopSignals;
use orbitkv::quantity::ByteSize;
use orbitkv::settings::JOURNAL_SLICE_BYTES_MIN;

use super::load::{self, Visits};
use super::plan::Plan;
use super::sampler::{self, Sample};
use super::schedule::{Kind, Schedule};
use super::seats::{Seat, Told, Trouble};
use super::strike::{Done, Means, Striker, generation};
use crate::streams::convergence::{self, Convergence};
use crate::streams::keys::Keys;
use crate::streams::owner::Owner;
use crate::streams::owners::{Holding, StartOrder, order};
use crate::streams::{failure, pause};
use crate::{Failure, progress};

/// Longest time until nodes know each other at the start, and until streams stand still at the end.
const WHOLE_WAIT: Duration = Duration::from_secs(120);
/// How often streams are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What the cell came to.
pub struct FaultsCell {
    /// All faults, in their order.
    pub done: Vec<Done>,
    /// How nodes were cut off.
    pub means: Means,
    /// How long it lasted, in seconds, the check at the end not counted.
    pub seconds: f64,
    /// Changes of all owners.
    pub changes: u64,
    /// Blocks that the reader asked for, and that came.
    pub visited: [u64; 2],
    /// Key by key, at the end.
    pub convergence: Convergence,
    /// Blocks that were accepted by a node that lives, not dropped, and are not there.
    pub lost: u64,
    /// All looks.
    pub samples: Vec<Sample>,
    /// What ended it early.
    pub trouble: Option<Told>,
}

/// Makes the cell; samples go into a file.
///
/// # Errors
/// If the cluster does not start, or a signal comes. What fails later is in the cell.
pub fn run(
    plan: &Plan,
    seed: u64,
    means: Means,
    file: &Path,
    signals: &StopSignals,
) -> Result<FaultsCell, Failure> {
    let faults = &plan.faults;
    let start = StartOrder { journal: Some(ByteSize(JOURNAL_SLICE_BYTES_MIN)), ..StartOrder::default() };
    let order = order(faults.nodes, faults.residences, &start)?;
    progress(&format!("faults: starting etcd and {} nodes", faults.nodes));
    let mut cluster = Cluster::start(&order, signals)?;
    cluster.await_complete(WHOLE_WAIT, signals)?;
    let count = cluster.nodes().len();
    let seats = cluster.nodes().iter().enumerate().map(|(at, node)| {
        let keys = Keys::none(seed, generation(at, count, 0));
        let owner = Owner::start(node.socket(), keys, seed, faults.residences)?;
        Ok(Seat::new(node, Some(owner)))
    });
    let seats = seats.collect::<Result<Vec<Seat>, Failure>>()?;

    let (stop, trouble, visits) = (AtomicBool::new(false), Trouble::default(), Visits::default());
    let (mut done, began) = (Vec::new(), Instant::now());
    let (struck, samples) = thread::scope(|scope| {
        let (stop, trouble, visits, seats) = (&stop, &trouble, &visits, &seats[..]);
        for (at, seat) in seats.iter().enumerate() {
            scope.spawn(move || load::change(at, seat, plan, seed, stop, trouble));
        }
        scope.spawn(move || load::read(seats, seed, visits, stop, trouble));
        let period = Duration::from_millis(plan.sample_ms);
        let sampler = scope.spawn(move || sampler::watch(seats, period, file, stop, trouble));
        let cluster = &mut cluster;
        let mut striker = Striker { cluster, seats, plan, seed, means, signals, trouble, began };
        let struck = strike_all(&mut striker, &mut done);
        stop.store(true, Ordering::Relaxed);
        (struck, sampler.join().expect("the sampler does not panic"))
    });
    let seconds = began.elapsed().as_secs_f64();
    let visited = [visits.asked.load(Ordering::Relaxed), visits.came.load(Ordering::Relaxed)];
    let mut cell = FaultsCell {
        done,
        means,
        seconds,
        changes: seats.iter().map(Seat::changes).sum(),
        visited,
        convergence: Convergence::default(),
        lost: 0,
        samples,
        // Whoever failed first says why; the one that strikes only sees that somebody did.
        trouble: trouble.take(),
    };
    let checked = struck.and_then(|()| match &cell.trouble {
        Some(_) => Ok(None),
        None => check(&seats, signals).map(Some),
    });
    match checked {
        Ok(None) => {}
        Ok(Some((convergence, lost))) => (cell.convergence, cell.lost) = (convergence, lost),
        Err(failure) if is_stop(&failure) => return Err(failure),
        Err(failure) => _ = cell.trouble.get_or_insert(Told::of("the cell of faults", &failure)),
    }
    Ok(cell)
}

/// Whether somebody has asked this program to end.
pub fn is_stop(failure: &Failure) -> bool {
    matches!(failure.downcast_ref(), Some(ClusterFailure::Stopped { .. }))
}

/// One round of all kinds in any case, and then more until the time is over.
fn strike_all(striker: &mut Striker<'_>, done: &mut Vec<Done>) -> Result<(), Failure> {
    let time = Duration::from_secs(striker.plan.faults.seconds);
    for planned in Schedule::of(striker.seed, &striker.plan.faults) {
        if done.len() >= Kind::ALL.len() && striker.began.elapsed() >= time {
            break;
        }
        striker.rest(planned.calm)?;
        let one = striker.strike(&planned)?;
        progress(&format!(
            "faults: {} of {} s; {} at {}: {} ms, well again after {} ms{}",
            striker.began.elapsed().as_secs(),
            time.as_secs(),
            planned.kind.name(),
            striker.seats[planned.node].place().name,
            one.lasted_ms,
            one.recovered_ms,
            if one.traces.are_whole() { "" } else { "; IT LEFT NO TRACE" }
        ));
        done.push(one);
    }
    // Memory is to be seen at rest with load, too.
    let (_, calm_ms) = striker.plan.faults.calm_ms;
    striker.rest(Duration::from_millis(calm_ms))
}

/// Everything against everything: the load has ended.
fn check(seats: &[Seat], signals: &StopSignals) -> Result<(Convergence, u64), Failure> {
    let began = Instant::now();
    let streams = await_heads(seats, signals)?;
    let settled_us = began.elapsed().as_micros() as u64;
    let (mut found, mut lost) = (Convergence { settled_us, ..Convergence::default() }, 0);
    let holdings: Vec<Holding> = seats
        .iter()
        .map(|seat| {
            let keys = seat.keys().ok_or("every node has an owner")?;
            Ok(Holding { node_id: seat.place().name, keys })
        })
        .collect::<Result<_, Failure>>()?;
    for (at, seat) in seats.iter().enumerate() {
        pause(Duration::ZERO, signals)?;
        let mut guard = seat.owner.lock().expect("a panic ends the process");
        let owner = guard.as_mut().ok_or("every node has an owner")?;
        let others: Vec<Holding> = holdings
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at)
            .map(|(_, holding)| holding.clone())
            .collect();
        found += convergence::compare(owner, &streams[at], &others)?;
        lost += owner.lost()?;
    }
    // At last, because what was brought is one more residence of whoever brought it.
    for (at, seat) in seats.iter().enumerate() {
        let mut guard = seat.owner.lock().expect("a panic ends the process");
        let owner = guard.as_mut().ok_or("every node has an owner")?;
        found += convergence::bring(owner, &holdings[(at + 1) % seats.len()].keys)?;
    }
    Ok((found, lost))
}

/// Waits until every node has every other one's changes through the head of its journal; what each has then.
fn await_heads(seats: &[Seat], signals: &StopSignals) -> Result<Vec<Vec<Stream>>, Failure> {
    let clients: Vec<(String, HttpClient)> = seats
        .iter()
        .map(|seat| {
            let place = seat.place();
            Ok((place.name, HttpClient::new(&place.http)?))
        })
        .collect::<Result<_, Failure>>()?;
    let began = Instant::now();
    loop {
        let (mut heads, mut streams) = (Vec::new(), Vec::new());
        for (name, http) in &clients {
            let (page, _): (MetadataPage, _) = http.get_as("/cache/metadata")?;
            heads.push((name.as_str(), page.inventory_sequence.first().copied().unwrap_or(0)));
            let (page, _): (OwnersPage, _) = http.get_as("/cache/metadata/owners")?;
            streams.push(page.owners);
        }
        let Some((observer, owner)) = behind(&heads, &streams) else { return Ok(streams) };
        if began.elapsed() > WHOLE_WAIT {
            return Err(failure(format!(
                "{observer} does not have all of {owner} after {WHOLE_WAIT:?}: {heads:?}, {streams:?}"
            )));
        }
        pause(LOOK, signals)?;
    }
}

/// The first observer that does not have exactly an owner's head, and that owner.
fn behind<'a>(heads: &[(&'a str, u64)], streams: &[Vec<Stream>]) -> Option<(&'a str, &'a str)> {
    for ((observer, _), streams) in heads.iter().zip(streams) {
        for (owner, head) in heads.iter().filter(|(owner, _)| owner != observer) {
            let stream = streams.iter().find(|stream| stream.node_id == *owner);
            if stream.is_none_or(|stream| !stream.installed || stream.applied != *head) {
                return Some((observer, owner));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_stand_at_all_heads_or_the_first_that_does_not_is_named() {
        let stream = |name: &str, installed, applied| Stream {
            node_id: name.to_owned(),
            installed,
            applied,
            ..Stream::default()
        };
        let heads = [("a", 3), ("b", 5)];
        let found = |of_a: Stream, of_b: Stream| behind(&heads, &[vec![of_b], vec![of_a]]);
        assert_eq!(found(stream("a", true, 3), stream("b", true, 5)), None);
        assert_eq!(found(stream("a", true, 2), stream("b", true, 5)), Some(("b", "a")));
        assert_eq!(found(stream("a", true, 3), stream("b", true, 6)), Some(("a", "b")), "of another life");
        assert_eq!(found(stream("a", false, 3), stream("b", true, 5)), Some(("b", "a")));
        assert_eq!(behind(&heads, &[vec![], vec![]]), Some(("a", "b")));
    }

    #[test]
    fn only_a_signal_is_a_stop() {
        assert!(is_stop(&ClusterFailure::Stopped { signal: "SIGTERM" }.into()));
        assert!(!is_stop(&ClusterFailure::NoEtcd.into()) && !is_stop(&"else".into()));
    }
}
