//! Membership on real etcd: carries the effects of [`Membership`] to etcd and its answers back.
//!
//! Tasks with a connection each (questions, looks at one record, renewals, the watch), so that none waits for
//! another, and one loop that owns the room. The loop decides nothing.

pub mod cutover;
mod lag;
mod link;
pub mod neighbours;
pub mod operator;
mod policy;
mod renewals;
mod requests;
mod watch;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use orbitkv_native::{clock, entropy};
use orbitkv_shards::members::Local;
use orbitkv_shards::membership::coordinator::{Answer, Failure, Header, LeaseId, News, Request};
use orbitkv_shards::membership::{
    Alarm, Doubt, Effect, FenceCause, Figures, LookupDone, LookupWish, Membership, Roster, Settings, Standing,
};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{Incarnation, NodeId};
use orbitkv_wire::membership::Keyspace;
use tokio::sync::{Notify, mpsc, watch as latest};

pub use link::{EtcdAccess, Meter, Traffic};

use lag::Lag;
use link::{FirstAnswer, Link};
use renewals::Renewer;

use crate::control::policy::PolicyFollower;

/// Longest wait for an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest wait for a record to go when the node stops.
const WITHDRAW_WAIT_MAX: Duration = Duration::from_millis(250);
/// Longest sleep: the loop's timer stands still while the machine is suspended, and leases do not.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// News that wait for the loop; a watch waits with what comes after.
const NEWS_MAX: usize = 64;

/// Done when all shards have begun a life.
pub type Ready = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What membership means to the rest of the node.
pub trait Lives: Send {
    /// Lets every shard begin this incarnation; done when all of them have.
    fn begin(&mut self, incarnation: Incarnation) -> Ready;
    /// A life is over for good.
    fn on_fenced(&mut self, incarnation: Incarnation, cause: &FenceCause);
    /// A life is registered.
    fn on_registered(&mut self, local: Local);
    /// It may speak to others until then (`CLOCK_BOOTTIME`).
    fn on_admitted(&mut self, until: Moment);
    /// The members, as far as known.
    fn on_members(&mut self, roster: &Roster);
    /// A record that a core waits for has been read.
    fn on_looked_up(&mut self, _done: &LookupDone) {}
    /// The members are not known until the next [`Lives::on_members`].
    fn on_suspended(&mut self, cause: &str);
    /// An operator should know.
    fn on_alarm(&mut self, alarm: &Alarm);
}

/// What an operator sees of membership.
#[derive(Clone, Debug)]
pub struct Sight {
    /// Where the node stands.
    pub standing: Standing,
    /// The registered life.
    pub local: Option<Local>,
    /// The members as last known.
    pub roster: Roster,
    /// What happened so far.
    pub figures: Figures,
    /// Members at whose address somebody has shown another key than their record names.
    pub disputed: Vec<NodeId>,
    /// Members that are left out because they place keys by another hash, with its version.
    pub foreign_hash: Vec<(NodeId, u16)>,
    /// What etcd was asked.
    pub traffic: Traffic,
}

/// Everything the loop needs.
pub struct Registrar {
    /// What the room is told.
    pub settings: Settings,
    /// How etcd is reached.
    pub access: EtcdAccess,
    /// The cluster's keys.
    pub space: Keyspace,
    /// The life that the shards live already.
    pub incarnation: Incarnation,
    /// By how much news of the watch are held back on purpose.
    pub watch_lag: Duration,
}

/// What cores have to say of members.
#[derive(Clone, Debug)]
pub enum Heard {
    /// Something contradicts what is known of one.
    Doubt(Doubt),
    /// A record is to be read before its node is asked.
    Lookup(LookupWish),
}

enum Arrival {
    Answer(u64, Result<(Header, Answer), Failure>),
    Renewal(u64, Result<(Header, Option<Duration>), Failure>),
    News(u64, Option<Header>, News),
}

/// Who hears what a watch says.
struct Listener {
    number: u64,
    arrivals: mpsc::Sender<Arrival>,
    /// Rung when the operator's policy should be looked at.
    policy: Arc<Notify>,
}

impl Listener {
    async fn tell(&self, header: Option<Header>, news: News) {
        // A loop that has ended needs no news.
        let _ = self.arrivals.send(Arrival::News(self.number, header, news)).await;
    }
}

/// Where effects go.
struct Outlets {
    questions: latest::Sender<Option<(u64, Request)>>,
    lookups: latest::Sender<Option<(u64, Request)>>,
    renewals: latest::Sender<Option<(u64, LeaseId)>>,
    watches: latest::Sender<Option<(u64, u64)>>,
}

/// Whether a member sees its own record; until it does, nobody is let in by it.
fn sees_itself(room: &Membership) -> bool {
    room.local().is_some_and(|local| room.roster().map().has(local.node, local.incarnation))
}

fn now() -> Moment {
    Moment(clock::boottime_ns())
}

/// Keeps this node a member until `stopped`, then withdraws. What cores have to say of members comes from `heard`;
/// what an operator sees is kept in `sight`. Beside that `follower` has the operator's policy.
pub async fn run(
    registrar: Registrar,
    mut lives: impl Lives,
    follower: Option<PolicyFollower>,
    mut heard: mpsc::UnboundedReceiver<Heard>,
    sight: latest::Sender<Option<Sight>>,
    stopped: impl Future<Output = ()>,
) {
    let Registrar { settings, access, space, incarnation, watch_lag } = registrar;
    let (access, space, meter) = (Arc::new(access), Arc::new(space), Arc::new(Meter::default()));
    let renewal_wait = settings.lease / 8;
    let first_answer = FirstAnswer::default();
    let link =
        || Link::new(Arc::clone(&access), Arc::clone(&first_answer), settings.jitter, Arc::clone(&meter));
    let (arrivals, mut arrived) = mpsc::channel(NEWS_MAX);
    let (questions, asked) = latest::channel(None);
    let (lookups, looked_up) = latest::channel(None);
    let (renewals, renewed) = latest::channel(None);
    let (watches, watched) = latest::channel(None);
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(answer_questions(link(), Arc::clone(&space), asked, arrivals.clone()));
    tasks.spawn(answer_questions(link(), Arc::clone(&space), looked_up, arrivals.clone()));
    tasks.spawn(renew_leases(Renewer::new(link()), renewal_wait, renewed, arrivals.clone()));
    let changed = Arc::new(Notify::new());
    if let Some(follower) = follower {
        tasks.spawn(policy::follow(link(), Arc::clone(&space), follower, Arc::clone(&changed)));
    }
    tasks.spawn(follow_watches(link(), space, watched, arrivals, changed));
    let outlets = Outlets { questions, lookups, renewals, watches };
    let mut late = Lag::of(watch_lag);
    let mut room = Membership::new(settings, now());
    room.on_life_ready(incarnation, now());
    tokio::pin!(stopped);
    // The life that the shards begin.
    let mut beginning: Option<(Incarnation, Ready)> = None;
    let mut leaving: Option<tokio::time::Instant> = None;
    loop {
        let (begin, withdrawn) = carry_out(&mut room, &outlets, &mut lives);
        if begin {
            let incarnation = Incarnation(entropy::uuid_v4_bytes());
            beginning = Some((incarnation, lives.begin(incarnation)));
        }
        sight.send_replace(Some(Sight {
            standing: room.standing(),
            local: room.local(),
            roster: room.roster(),
            figures: room.figures(),
            disputed: room.disputed(),
            foreign_hash: room.foreign_hash(),
            traffic: meter.read(),
        }));
        if withdrawn {
            return;
        }
        let sleep = match (leaving, room.next_deadline()) {
            (Some(end), _) => end.saturating_duration_since(tokio::time::Instant::now()),
            (None, Some(deadline)) => deadline.since(now()).min(SLEEP_MAX),
            (None, None) => SLEEP_MAX,
        };
        tokio::select! {
            arrival = arrived.recv() => match arrival {
                Some(Arrival::Answer(number, result)) => room.on_answer(number, result, now()),
                Some(Arrival::Renewal(number, result)) => room.on_renewed(number, result, now()),
                Some(Arrival::News(number, header, news)) => {
                    // That there is a watch is no news of anybody.
                    let is_of_watch = matches!(news, News::Created | News::Ended(_));
                    let news = (number, header, news);
                    let at_once =
                        if is_of_watch { vec![news] } else { late.hold(news, || sees_itself(&room)) };
                    for (number, header, news) in at_once {
                        room.on_news(number, header, news, now());
                    }
                }
                None => unreachable!("the tasks live as long as this loop"),
            },
            (number, header, news) = late.next() => room.on_news(number, header, news, now()),
            Some(heard) = heard.recv() => match heard {
                Heard::Doubt(doubt) => room.on_doubt(doubt, now()),
                Heard::Lookup(wish) => room.on_lookup(wish, now()),
            },
            incarnation = begun(&mut beginning) => {
                beginning = None;
                room.on_life_ready(incarnation, now());
            }
            () = &mut stopped, if leaving.is_none() => {
                leaving = Some(tokio::time::Instant::now() + WITHDRAW_WAIT_MAX);
                room.withdraw(now());
            }
            () = tokio::time::sleep(sleep) => match leaving {
                // The record goes with its lease.
                Some(_) => return,
                None => room.on_tick(now()),
            },
        }
    }
}

/// Waits until the shards have begun the life, for ever if they begin none.
async fn begun(beginning: &mut Option<(Incarnation, Ready)>) -> Incarnation {
    match beginning {
        Some((incarnation, ready)) => {
            ready.await;
            *incarnation
        }
        None => std::future::pending().await,
    }
}

/// Carries out what the room wants; whether it awaits another life, and whether it has withdrawn.
fn carry_out(room: &mut Membership, outlets: &Outlets, lives: &mut impl Lives) -> (bool, bool) {
    let (mut begin, mut withdrawn) = (false, false);
    while let Some(effect) = room.poll_effect() {
        match effect {
            Effect::Ask { number, request } => {
                outlets.questions.send_replace(Some((number, request)));
            }
            Effect::Lookup { number, request } => {
                outlets.lookups.send_replace(Some((number, request)));
            }
            Effect::Renew { number, lease } => {
                outlets.renewals.send_replace(Some((number, lease)));
            }
            Effect::Watch { number, after } => {
                outlets.watches.send_replace(Some((number, after)));
            }
            Effect::Fenced { incarnation, cause } => lives.on_fenced(incarnation, &cause),
            Effect::BeginLife => begin = true,
            Effect::Registered(local) => lives.on_registered(local),
            Effect::Admit { until } => lives.on_admitted(until),
            Effect::Members(roster) => lives.on_members(&roster),
            Effect::LookedUp(done) => lives.on_looked_up(&done),
            Effect::Suspended(cause) => lives.on_suspended(&cause.to_string()),
            Effect::Alarm(alarm) => lives.on_alarm(&alarm),
            Effect::Withdrawn => withdrawn = true,
        }
    }
    (begin, withdrawn)
}

/// Answers the latest question; one that is overtaken is given up.
async fn answer_questions(
    mut link: Link,
    space: Arc<Keyspace>,
    mut asked: latest::Receiver<Option<(u64, Request)>>,
    arrivals: mpsc::Sender<Arrival>,
) {
    while asked.changed().await.is_ok() {
        let Some((number, request)) = asked.borrow_and_update().clone() else { continue };
        let overtaken = tokio::select! {
            outcome = requests::ask(&mut link, &space, &request, ANSWER_WAIT_MAX) => {
                let _ = arrivals.send(Arrival::Answer(number, outcome)).await;
                false
            }
            changed = asked.changed() => changed.is_ok(),
        };
        if overtaken {
            asked.mark_changed();
        }
    }
}

async fn renew_leases(
    mut renewer: Renewer,
    wait: Duration,
    mut renewed: latest::Receiver<Option<(u64, LeaseId)>>,
    arrivals: mpsc::Sender<Arrival>,
) {
    while renewed.changed().await.is_ok() {
        let Some((number, lease)) = *renewed.borrow_and_update() else { continue };
        let outcome = renewer.renew(lease, wait).await;
        let _ = arrivals.send(Arrival::Renewal(number, outcome)).await;
    }
}

/// Follows the latest watch; one that is overtaken is dropped.
async fn follow_watches(
    mut link: Link,
    space: Arc<Keyspace>,
    mut watched: latest::Receiver<Option<(u64, u64)>>,
    arrivals: mpsc::Sender<Arrival>,
    policy: Arc<Notify>,
) {
    while watched.changed().await.is_ok() {
        let Some((number, after)) = *watched.borrow_and_update() else { continue };
        let listener = Listener { number, arrivals: arrivals.clone(), policy: Arc::clone(&policy) };
        let overtaken = tokio::select! {
            () = watch::follow(&mut link, &space, after, &listener) => false,
            changed = watched.changed() => changed.is_ok(),
        };
        if overtaken {
            watched.mark_changed();
        }
    }
}
