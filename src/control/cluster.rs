//! Control's part in a cluster: what membership means to the cores, and who awaits a fence.
//!
//! Cores are told by mail, in one order. A new map goes out in two steps: every core first stands at the new
//! revision and proves no absence, and is raised only when all have said that they stand there.

use std::collections::HashMap;
use std::time::Duration;

use orbitkv_native::clock::monotonic_ns;
use orbitkv_shards::coverage::RaiseGate;
use orbitkv_shards::fence::{AwaitEffect, AwaitFailure, AwaitSettings, Awaits, Fence, WaiterId};
use orbitkv_shards::members::Local;
use orbitkv_shards::membership::{Alarm, FenceCause, LookupDone, Roster};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{Incarnation, ShardIndex};
use orbitkv_wire::scope::ScopeDigest;
use tokio::sync::{mpsc, oneshot};

use super::epoch_file::EpochFile;
use super::etcd::{Heard, Lives, Ready};
use super::port::CorePort;
use crate::console::say;
use crate::core::mail::Letter;
use crate::peers::{LifeLetter, Neighbours, ReadingsAnswer, ReadingsQuestion};

/// How often awaits look at the time.
const AWAIT_LOOK: Duration = Duration::from_millis(5);

/// Between tries of beginning a life, while cores have no seat for the question.
const BEGIN_PAUSE: Duration = Duration::from_millis(20);

/// State of control that its tasks share; no core ever sees it.
#[derive(Debug)]
pub(super) struct Cluster {
    gate: RaiseGate,
    awaits: Awaits,
    waiters: HashMap<WaiterId, Waiter>,
    /// To whoever follows etcd. Each core doubts a life once for each cause, and wants no more records than it has dials
    /// and operations, so what waits is bounded.
    heard: mpsc::UnboundedSender<Heard>,
}

#[derive(Debug)]
struct Waiter {
    fence: Fence,
    done: oneshot::Sender<Result<(), AwaitFailure>>,
}

impl Cluster {
    /// A node of `local`'s name and shards that is no member yet.
    pub fn new(local: Local, scope: ScopeDigest, heard: mpsc::UnboundedSender<Heard>) -> Cluster {
        let mut awaits = Awaits::new(AwaitSettings::default(), local, scope);
        awaits.on_fenced();
        Cluster { gate: RaiseGate::new(local.shards), awaits, waiters: HashMap::new(), heard }
    }

    /// Letters for every core that the awaits want sent; ends those that are done.
    fn poll(&mut self) -> Vec<Letter> {
        let mut letters = Vec::new();
        while let Some(effect) = self.awaits.poll_effect() {
            match effect {
                AwaitEffect::Read { waiter, round, node, incarnation } => {
                    // One that has been given up needs no answer.
                    let Some(waiting) = self.waiters.get(&waiter) else { continue };
                    let targets = waiting.fence.inventory_sequence.clone();
                    let question = ReadingsQuestion { waiter, round, node, incarnation, targets };
                    letters.push(Letter::Readings(Box::new(question)));
                }
                AwaitEffect::Done { waiter, outcome } => {
                    if let Some(waiting) = self.waiters.remove(&waiter) {
                        let _ = waiting.done.send(outcome);
                    }
                }
            }
        }
        letters
    }
}

fn now() -> Moment {
    Moment(monotonic_ns())
}

impl CorePort {
    fn with_cluster<T>(&self, act: impl FnOnce(&mut Cluster) -> T) -> T {
        let (outcome, letters) = {
            let mut cluster = self.cluster();
            let cluster = cluster.as_mut().expect("only nodes of clusters have lives");
            let outcome = act(cluster);
            (outcome, cluster.poll())
        };
        for letter in letters {
            let Letter::Readings(question) = letter else { unreachable!("awaits only read") };
            self.tell_in_order(|| Letter::Readings(question.clone()));
        }
        outcome
    }

    fn tell_life(&self, letter: &LifeLetter) {
        self.tell_in_order(|| Letter::Life(Box::new(letter.clone())));
    }

    /// A core stands at this revision.
    pub(super) fn on_lowered(&self, core: ShardIndex, revision: u64) {
        let raised = self.with_cluster(|cluster| cluster.gate.on_lowered(core, revision));
        if let Some(revision) = raised {
            self.tell_life(&LifeLetter::MayRaise(revision));
        }
    }

    /// Something that a core has to say of members.
    pub(super) fn pass_on(&self, heard: Heard) {
        // Whoever leaves reads nothing any more.
        let _ = self.with_cluster(|cluster| cluster.heard.send(heard));
    }

    /// What a core has for a waiter.
    pub(super) fn on_readings(&self, answer: &ReadingsAnswer) {
        let ReadingsAnswer { waiter, round, core, revision, ref readings } = *answer;
        self.with_cluster(|cluster| {
            cluster.awaits.on_readings(waiter, round, core, revision, readings, now())
        });
    }

    /// Waits until this node has all of a fence; `None` if the node is standalone. Whoever drops it waits no
    /// longer.
    ///
    /// # Errors
    /// Why it has not, or will not.
    pub(super) async fn await_installed(
        &self,
        fence: Fence,
        scope: Option<ScopeDigest>,
        longest: Duration,
    ) -> Result<(), AwaitFailure> {
        if self.cluster().is_none() {
            return Err(AwaitFailure::Standalone);
        }
        let (done, mut outcome) = oneshot::channel();
        let waiter = self.with_cluster(|cluster| {
            let waiter = cluster.awaits.begin(fence.clone(), scope, now())?;
            cluster.waiters.insert(waiter, Waiter { fence, done });
            Ok(waiter)
        })?;
        let _waiting = Waiting { port: self, waiter };
        let until = tokio::time::Instant::now() + longest;
        loop {
            tokio::select! {
                outcome = &mut outcome => return outcome.unwrap_or(Err(AwaitFailure::TimedOut)),
                () = tokio::time::sleep(AWAIT_LOOK) => {
                    self.with_cluster(|cluster| cluster.awaits.on_time(now()));
                    if tokio::time::Instant::now() >= until {
                        return Err(AwaitFailure::TimedOut);
                    }
                }
            }
        }
    }
}

/// Ends an await that nobody waits for any more.
struct Waiting<'a> {
    port: &'a CorePort,
    waiter: WaiterId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waiter = self.waiter;
        self.port.with_cluster(|cluster| {
            cluster.awaits.cancel(waiter);
            cluster.waiters.remove(&waiter);
        });
    }
}

/// Tells the cores what membership means to them, and the operator what he should know.
#[derive(Clone)]
pub struct Teller {
    /// The way to the cores.
    pub port: CorePort,
    /// Where the epoch is kept.
    pub epoch_file: EpochFile,
}

impl Lives for Teller {
    fn begin(&mut self, incarnation: Incarnation) -> Ready {
        let port = self.port.clone();
        Box::pin(async move {
            while let Err(error) = port.begin_life(incarnation).await {
                tracing::debug!(%error, "the shards have not begun the life yet");
                tokio::time::sleep(BEGIN_PAUSE).await;
            }
        })
    }

    fn on_fenced(&mut self, incarnation: Incarnation, cause: &FenceCause) {
        self.port.with_cluster(|cluster| {
            cluster.awaits.on_fenced();
            cluster.gate.on_membership_invalid();
        });
        self.port.tell_life(&LifeLetter::Fenced(incarnation));
        match cause {
            FenceCause::Withdrawn => tracing::info!(%incarnation, "withdrawn"),
            cause => tracing::warn!(%incarnation, %cause, "this life is over; local service goes on"),
        }
    }

    fn on_registered(&mut self, local: Local) {
        self.port.with_cluster(|cluster| {
            cluster.awaits.on_registered(local);
            cluster.gate.on_registered();
        });
        self.port.tell_life(&LifeLetter::Registered(local));
        if let Err(error) = self.epoch_file.write(local.epoch) {
            // A member all the same: only an etcd restored from an old copy could give the epoch again.
            tracing::error!(epoch = local.epoch, %error, "the epoch is not kept");
        }
        say(&format!(
            "member with epoch {} of cluster {} as {}",
            local.epoch, local.cluster, local.incarnation
        ));
    }

    fn on_admitted(&mut self, until: Moment) {
        self.port.tell_life(&LifeLetter::Admitted(until));
    }

    fn on_members(&mut self, roster: &Roster) {
        let map = roster.map();
        tracing::debug!(revision = map.revision, members = map.members().len(), "members");
        let is_new = self.port.with_cluster(|cluster| {
            cluster.awaits.on_members(map);
            match roster.is_whole() {
                true => cluster.gate.lower(map.revision),
                false => cluster.gate.lower_in_part(map.revision),
            }
        });
        if is_new {
            self.port.tell_life(&LifeLetter::Members(Neighbours::of(roster)));
        }
    }

    fn on_looked_up(&mut self, done: &LookupDone) {
        self.port.tell_life(&LifeLetter::LookedUp(done.clone()));
    }

    fn on_suspended(&mut self, cause: &str) {
        self.port.with_cluster(|cluster| cluster.gate.on_membership_invalid());
        self.port.tell_life(&LifeLetter::Suspended);
        tracing::warn!(
            cause,
            "the members are not known: nothing remote is admitted until they are read again"
        );
    }

    fn on_alarm(&mut self, alarm: &Alarm) {
        tracing::error!("{alarm}");
    }
}
