//! One node that joins a cluster late: how long it takes until it has all that the others have, what they send it for
//! that, and whether it is exactly that. The others stand still, or make changes until it has what they had when it began.
//! It may be stopped then until an owner's journal has gone on without it: how long it takes to get that owner's view anew.

use std::time::Duration;

use orbitkv::cli::http_client::HttpClient;
use orbitkv::cluster::Fault;
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::owners::{Owner as Stream, OwnersPage};
use orbitkv::control::report::PeersReport;
use orbitkv::control::signals::StopSignals;
use orbitkv_native::clock::monotonic_ns;
use serde::Serialize;

use crate::Failure;
use crate::streams::background::{Background, Rhythm};
use crate::streams::convergence::{self, Convergence};
use crate::streams::keys::Keys;
use crate::streams::owner::Owner;
use crate::streams::owners::{Holding, Owners};
use crate::streams::{WAIT, failure, pause};

/// How often the one that joins is looked at: seldom, because looking takes it time.
const LOOK: Duration = Duration::from_millis(10);
/// Longest time until it has all.
const LONGEST: Duration = Duration::from_secs(60);
/// Longest time that it stands still: less than its lease lives.
const STOP_MAX: Duration = Duration::from_secs(8);

/// What the owners have sent for snapshots, counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// Snapshot pages.
    pub page_frames: u64,
    /// Their bytes.
    pub page_bytes: u64,
    /// Bytes of what changed while pages were on their way.
    pub replay_bytes: u64,
}

impl Sent {
    fn by(owners: &Owners) -> Result<Sent, Failure> {
        let mut sent = Sent::default();
        for page in owners.pages()? {
            for peers in page.shards.iter().filter_map(|shard| shard.peers.as_ref()) {
                sent.page_frames += peers.pages_sent.frames;
                sent.page_bytes += peers.pages_sent.bytes;
                sent.replay_bytes += peers.replay_bytes_sent;
            }
        }
        Ok(sent)
    }

    fn since(&self, before: &Sent) -> Sent {
        Sent {
            page_frames: self.page_frames - before.page_frames,
            page_bytes: self.page_bytes - before.page_bytes,
            replay_bytes: self.replay_bytes - before.replay_bytes,
        }
    }
}

/// How one join went.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Joined {
    /// Longest time from an owner's being known to its first view, as the node itself says, in microseconds.
    pub bootstrap_us: u64,
    /// From the start of the process until it showed all of all owners, in nanoseconds: to the next look.
    pub complete_ns: u64,
    /// What that took of the owners.
    pub sent: Sent,
    /// Time from the reset of a view that was there to the one in its place, as the node itself says, in microseconds; none
    /// if it was not made to need one.
    pub repair_us: Option<u64>,
    /// Whether it was exactly what they have.
    pub convergence: Convergence,
}

/// Lets a node of that name join, while the owners make changes if there is a rhythm for them, looks at what it has, lets
/// it lose the view of an owner if one is named, looks again, and lets it go.
///
/// # Errors
/// If it does not start, does not come to have all, shows a wrong block, or a signal comes.
pub fn once(
    owners: &mut Owners,
    name: String,
    seed: u64,
    (churn, to_repair): (Option<Rhythm>, Option<usize>),
    signals: &StopSignals,
) -> Result<Joined, Failure> {
    let before = Sent::by(owners)?;
    let background = churn.map(|rhythm| Background::begin(owners.lend(), rhythm, seed, None));
    let heads = heads(owners)?;
    let began_ns = monotonic_ns();
    let (http, socket) = {
        let node = owners.add(name, signals)?;
        (HttpClient::new(node.http_address())?, node.socket().to_owned())
    };
    await_streams(&http, signals, |streams| lacking(&heads, streams))?;
    let complete_ns = monotonic_ns() - began_ns;
    if let Some(background) = background {
        owners.take_back(background.end()?.owners);
    }
    let streams = await_heads(owners, &http, signals)?;
    let bootstrap_us = longest(&http, |peers| peers.bootstrap_us_max)?;
    let sent = Sent::by(owners)?.since(&before);
    // Its engine has no blocks of its own: the generation is nobody's.
    let mut observer = Owner::start(&socket, Keys::none(seed, u64::MAX), seed, 0)?;
    let holdings: Vec<Holding> = (0..owners.len()).map(|owner| owners.holding(owner)).collect();
    let mut convergence = convergence::compare(&mut observer, &streams, &holdings)?;
    let repair_us = to_repair.map(|owner| repair(owners, owner, &http, signals)).transpose()?;
    if repair_us.is_some() {
        let streams = await_heads(owners, &http, signals)?;
        let holdings: Vec<Holding> = (0..owners.len()).map(|owner| owners.holding(owner)).collect();
        convergence += convergence::compare(&mut observer, &streams, &holdings)?;
    }
    convergence += convergence::bring(&mut observer, &owners.keys(0))?;
    drop(observer);
    owners.remove_added();
    await_gone(owners, signals)?;
    Ok(Joined { bootstrap_us, complete_ns, sent, repair_us, convergence })
}

/// Stops the one that joined until an owner's journal has gone on without it; how long it takes from then to that owner's
/// next view.
fn repair(
    owners: &mut Owners,
    owner: usize,
    http: &HttpClient,
    signals: &StopSignals,
) -> Result<u64, Failure> {
    let applied = owners.owner(owner).sequence();
    owners.strike_added(Fault::Pause, signals)?;
    let overflown = owners.overflow(owner, applied, STOP_MAX, signals)?;
    owners.strike_added(Fault::Resume, signals)?;
    if !overflown {
        return Err(failure(format!(
            "a journal did not overflow in {STOP_MAX:?}; run this on a machine that has less to do beside it"
        )));
    }
    await_heads(owners, http, signals)?;
    match longest(http, |peers| peers.repair_us_max)? {
        0 => Err(failure("a node whose view was beyond its owner's journal has got no other one")),
        repair_us => Ok(repair_us),
    }
}

/// Waits until the one that joins has all that all owners have; its streams then.
fn await_heads(owners: &Owners, http: &HttpClient, signals: &StopSignals) -> Result<Vec<Stream>, Failure> {
    await_streams(http, signals, |streams| {
        owners.behind(streams, None).map(|owner| owners.identities()[owner].node_id.clone())
    })
}

/// The longest of a time that its shards tell.
fn longest(http: &HttpClient, of: fn(&PeersReport) -> u64) -> Result<u64, Failure> {
    let (page, _): (MetadataPage, _) = http.get_as("/cache/metadata")?;
    let peers = page.shards.iter().filter_map(|shard| shard.peers.as_ref());
    Ok(peers.map(of).max().unwrap_or(0))
}

/// Where the journals of all owners stand, by the names of their nodes.
fn heads(owners: &Owners) -> Result<Vec<(String, u64)>, Failure> {
    let pages = owners.pages()?.into_iter();
    Ok(pages
        .map(|page| (page.identity.node_id, page.inventory_sequence.first().copied().unwrap_or(0)))
        .collect())
}

/// The first owner whose journal a node does not have through that sequence.
fn lacking(heads: &[(String, u64)], streams: &[Stream]) -> Option<String> {
    let has = |(name, head): &(String, u64)| {
        let of_owner = streams.iter().find(|stream| stream.node_id == *name);
        of_owner.is_some_and(|stream| stream.installed && stream.applied >= *head)
    };
    heads.iter().find(|head| !has(head)).map(|(name, _)| name.clone())
}

/// Looks at the streams of the one that joins until nobody is missing.
fn await_streams(
    http: &HttpClient,
    signals: &StopSignals,
    missing: impl Fn(&[Stream]) -> Option<String>,
) -> Result<Vec<Stream>, Failure> {
    let began_ns = monotonic_ns();
    loop {
        let (page, _): (OwnersPage, _) = http.get_as("/cache/metadata/owners")?;
        let Some(owner) = missing(&page.owners) else { return Ok(page.owners) };
        if monotonic_ns() - began_ns > LONGEST.as_nanos() as u64 {
            return Err(failure(format!(
                "it does not have all of {owner} after {LONGEST:?}: {:?}",
                page.owners
            )));
        }
        pause(LOOK, signals)?;
    }
}

/// The next one joins a cluster that has forgotten this one.
fn await_gone(owners: &Owners, signals: &StopSignals) -> Result<(), Failure> {
    let began_ns = monotonic_ns();
    while owners.pages()?.iter().any(|page| page.membership.members.len() > owners.len()) {
        if monotonic_ns() - began_ns > WAIT.as_nanos() as u64 {
            return Err(failure(format!("a node that has left is still a member after {WAIT:?}")));
        }
        pause(LOOK, signals)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_joined_when_it_has_every_owner_through_its_head() {
        let stream = |name: &str, installed, applied| Stream {
            node_id: name.to_owned(),
            installed,
            applied,
            ..Stream::default()
        };
        let heads = [("a".to_owned(), 10), ("b".to_owned(), 0)];
        let lacks = |streams: &[Stream]| lacking(&heads, streams);
        assert_eq!(lacks(&[]), Some("a".to_owned()));
        assert_eq!(lacks(&[stream("a", true, 9), stream("b", true, 0)]), Some("a".to_owned()));
        assert_eq!(lacks(&[stream("a", true, 10)]), Some("b".to_owned()));
        assert_eq!(lacks(&[stream("b", false, 0), stream("a", true, 11)]), Some("b".to_owned()));
        assert_eq!(lacks(&[stream("b", true, 5), stream("a", true, 11)]), None);
    }
}
