//! Faults carried out on the processes of a cluster, one at a time, each until all nodes are well again.

use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::cluster::{Cluster, Fault, Target};
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::owners::OwnersPage;
use orbitkv::control::signals::StopSignals;
use serde::Serialize;

use super::plan::Plan;
use super::schedule::{Kind, Planned};
use super::seats::{Place, Seat, Trouble};
use super::traces::{self, Counters, Traces};
use crate::Failure;
use crate::own_network::Cut;
use crate::streams::keys::Keys;
use crate::streams::owner::Owner;
use crate::streams::{failure, overflow, pause};

/// Longest time until all nodes know each other again.
const RECOVERY_WAIT: Duration = Duration::from_secs(120);
/// How long a slow subscriber stands still, and how long it runs, in turns.
const SLOW: (Duration, Duration) = (Duration::from_millis(800), Duration::from_millis(200));
/// How often a journal is to be made to overflow before that counts as a fault that nobody saw.
const OVERFLOW_ATTEMPTS: u32 = 3;
/// How often somebody asks whether anything went wrong meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// How a node is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// Nothing leaves its port and nothing arrives: needs a network namespace of the run's own.
    Network,
    /// Its process stands still, so that its own side is not seen.
    Stopping,
}

/// A fault that was made.
#[derive(Clone, Debug, Serialize)]
pub struct Done {
    /// As it was planned.
    pub planned: Planned,
    /// When it began, in seconds since the cell began.
    pub began_s: f64,
    /// How long it lasted, in milliseconds.
    pub lasted_ms: u64,
    /// From its end until all nodes knew each other again.
    pub recovered_ms: u64,
    /// What it left in counters.
    pub traces: Traces,
}

/// Whoever strikes.
pub struct Striker<'a> {
    /// The nodes' processes.
    pub cluster: &'a mut Cluster,
    /// The nodes as others see them.
    pub seats: &'a [Seat],
    /// Sizes.
    pub plan: &'a Plan,
    /// Seed of payload.
    pub seed: u64,
    /// How a node is cut off.
    pub means: Means,
    /// Whoever asks this program to end.
    pub signals: &'a StopSignals,
    /// What goes wrong meanwhile.
    pub trouble: &'a Trouble,
    /// When the cell began.
    pub began: Instant,
}

impl Striker<'_> {
    /// Makes a fault and waits until all nodes know each other again.
    ///
    /// # Errors
    /// If they do not, a node fails, or a signal comes.
    pub fn strike(&mut self, planned: &Planned) -> Result<Done, Failure> {
        let before = self.counters()?;
        let (began_s, began) = (self.began.elapsed().as_secs_f64(), Instant::now());
        let mut lag_beyond = 0;
        match planned.kind {
            Kind::Partition => self.partition(planned)?,
            Kind::SlowSubscriber => lag_beyond = self.slow(planned)?,
            Kind::JournalOverflow => self.overflow(planned)?,
            Kind::ReceiverRestart => self.restart(planned, Fault::Terminate)?,
            Kind::SourceRestart => self.restart(planned, Fault::Kill)?,
            Kind::LeaseExpiry => self.stop(planned.node, planned.lasts)?,
            Kind::EtcdStopped => {
                self.cluster.strike(Target::Etcd, Fault::Pause, self.signals)?;
                self.rest(planned.lasts)?;
                self.cluster.strike(Target::Etcd, Fault::Resume, self.signals)?;
            }
        }
        let (lasted_ms, recovering) = (began.elapsed().as_millis() as u64, Instant::now());
        let (traces, recovered_ms) = self.await_whole(planned, &before, lag_beyond, recovering)?;
        Ok(Done { planned: *planned, began_s, lasted_ms, recovered_ms, traces })
    }

    /// Waits that long, unless something goes wrong meanwhile.
    ///
    /// # Errors
    /// If it does, or a signal comes.
    pub fn rest(&mut self, time: Duration) -> Result<(), Failure> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            pause(left.min(LOOK), self.signals)?;
            if self.trouble.is_there() {
                return Err(failure("the load has failed"));
            }
        }
        match self.cluster.obituaries().into_iter().next() {
            Some(words) => Err(failure(words)),
            None => Ok(()),
        }
    }

    /// All know each other, and what the fault had to leave is there. The latter may come later: who was fenced, for
    /// one, may look well until it finds that out.
    fn await_whole(
        &mut self,
        planned: &Planned,
        before: &[Counters],
        lag_beyond: u64,
        since: Instant,
    ) -> Result<(Traces, u64), Failure> {
        loop {
            self.cluster.await_complete(RECOVERY_WAIT, self.signals)?;
            let recovered_ms = since.elapsed().as_millis() as u64;
            let traces = traces::of(planned, before, &self.counters()?, lag_beyond);
            if traces.are_whole() || since.elapsed() > RECOVERY_WAIT / 4 {
                return Ok((traces, recovered_ms));
            }
            self.rest(LOOK)?;
        }
    }

    fn counters(&self) -> Result<Vec<Counters>, Failure> {
        let of = |seat: &Seat| {
            let place = seat.place();
            let (page, _): (MetadataPage, _) = HttpClient::new(&place.http)?.get_as("/cache/metadata")?;
            Ok(Counters::of(&page, place.life))
        };
        self.seats.iter().map(of).collect()
    }

    /// Cuts a node off from all others.
    fn partition(&mut self, planned: &Planned) -> Result<(), Failure> {
        match self.means {
            Means::Stopping => self.stop(planned.node, planned.lasts),
            Means::Network => {
                let _cut = Cut::of(self.port(planned.node)?)?;
                self.rest(planned.lasts)
            }
        }
    }

    /// The UDP port of a node, by its member record.
    fn port(&self, node: usize) -> Result<u16, Failure> {
        let place = self.seats[node].place();
        let (page, _): (MetadataPage, _) = HttpClient::new(&place.http)?.get_as("/cache/metadata")?;
        let member = page.membership.members.into_iter().find(|member| member.node_id == place.name);
        let port = member.and_then(|member| member.address.rsplit_once(':')?.1.parse().ok());
        port.ok_or_else(|| failure(format!("{} does not know its own record", place.name)))
    }

    /// A node stands still. Nobody has its engine meanwhile, because it would wait for answers.
    fn stop(&mut self, node: usize, time: Duration) -> Result<(), Failure> {
        let seat = &self.seats[node];
        let _engine = seat.owner.lock().expect("a panic ends the process");
        seat.set_dark(true);
        self.cluster.strike(Target::Node(node), Fault::Pause, self.signals)?;
        self.rest(time)?;
        self.cluster.strike(Target::Node(node), Fault::Resume, self.signals)?;
        seat.set_dark(false);
        Ok(())
    }

    /// A node runs a part of the time; by how many records it was seen behind, beyond what is usual.
    fn slow(&mut self, planned: &Planned) -> Result<u64, Failure> {
        let (until, seats) = (Instant::now() + planned.lasts, self.seats);
        let others = || seats.iter().enumerate().filter(|(at, _)| *at != planned.node).map(|(_, seat)| seat);
        let mut beyond = 0;
        while Instant::now() < until {
            self.cluster.strike(Target::Node(planned.node), Fault::Pause, self.signals)?;
            let before: Vec<u64> = others().map(Seat::changes).collect();
            self.rest(SLOW.0)?;
            for (seat, before) in others().zip(before) {
                let changed = seat.changes() - before;
                let (page, _): (MetadataPage, _) =
                    HttpClient::new(&seat.place().http)?.get_as("/cache/metadata")?;
                let peers = page.shards.iter().filter_map(|shard| shard.peers.as_ref());
                let lag = peers.map(|peers| peers.lag_records_max).max().unwrap_or(0);
                beyond = beyond.max(traces::lag_beyond(lag, changed));
            }
            self.cluster.strike(Target::Node(planned.node), Fault::Resume, self.signals)?;
            self.rest(SLOW.1)?;
        }
        Ok(beyond)
    }

    /// A node stands still until another one's journal no longer has what comes next for it. It has to go on before its
    /// lease ends, so that on a machine that is busy otherwise this may take several attempts.
    fn overflow(&mut self, planned: &Planned) -> Result<(), Failure> {
        for _ in 0..OVERFLOW_ATTEMPTS {
            if self.has_overflown(planned)? {
                break;
            }
            self.cluster.await_complete(RECOVERY_WAIT, self.signals)?;
        }
        Ok(())
    }

    fn has_overflown(&mut self, planned: &Planned) -> Result<bool, Failure> {
        let (node, source) = (&self.seats[planned.node], &self.seats[planned.other]);
        let _engine = node.owner.lock().expect("a panic ends the process");
        let mut guard = source.owner.lock().expect("a panic ends the process");
        let owner = guard.as_mut().ok_or("every node has an owner")?;
        let name = source.place().name;
        let (page, _): (OwnersPage, _) =
            HttpClient::new(&node.place().http)?.get_as("/cache/metadata/owners")?;
        let stream = page.owners.into_iter().find(|stream| stream.node_id == name);
        let applied = stream.map_or(0, |stream| stream.applied);
        let http = HttpClient::new(&source.place().http)?;
        node.set_dark(true);
        self.cluster.strike(Target::Node(planned.node), Fault::Pause, self.signals)?;
        let changed = |keys: &Keys, changes| source.changed(Some(*keys), changes);
        let owner = (planned.other, owner);
        let overflown = overflow::until(owner, &http, applied, planned.lasts, changed, self.signals)?;
        self.cluster.strike(Target::Node(planned.node), Fault::Resume, self.signals)?;
        node.set_dark(false);
        Ok(overflown)
    }

    /// A node ends and comes back with nothing, and its owner saves blocks anew.
    fn restart(&mut self, planned: &Planned, end: Fault) -> Result<(), Failure> {
        let (node, seat) = (planned.node, &self.seats[planned.node]);
        let mut engine = seat.owner.lock().expect("a panic ends the process");
        *engine = None;
        seat.changed(None, 0);
        seat.set_dark(true);
        self.cluster.strike(Target::Node(node), end, self.signals)?;
        self.rest(planned.lasts)?;
        self.cluster.strike(Target::Node(node), Fault::Restart, self.signals)?;
        let place = Place::of(&self.cluster.nodes()[node], seat.place().life + 1);
        let keys = Keys::none(self.seed, generation(node, self.seats.len(), place.life));
        let owner = Owner::start(&place.socket, keys, self.seed, self.plan.faults.residences)?;
        seat.moved(place);
        seat.changed(Some(*owner.keys()), self.plan.faults.residences);
        seat.set_dark(false);
        *engine = Some(owner);
        Ok(())
    }
}

/// The generation of an owner's payload: another one after each restart of its node. Generation 0 would be the bytes of a
/// block that nobody wrote.
pub fn generation(node: usize, nodes: usize, life: u32) -> u64 {
    (node + 1 + nodes * life as usize) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_owners_ever_have_the_same_generation() {
        let all: std::collections::BTreeSet<u64> =
            (0..5).flat_map(|node| (0..9).map(move |life| generation(node, 5, life))).collect();
        assert_eq!((all.len(), all.first()), (45, Some(&1)));
    }
}
