//! Control's way to the cores: questions go out by mail, answers come back to whoever asked.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orbitkv_native::wake::Wake;
use orbitkv_shards::fence::{AwaitFailure, Fence};
use orbitkv_shards::inventory::subscriber::StreamId;
use orbitkv_shards::shard::{Command, Outcome, Tag};
use orbitkv_wire::engine::answers::DrainAnswer;
use orbitkv_wire::identity::{Incarnation, ShardIndex};
use orbitkv_wire::scope::ScopeDigest;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, watch as latest};

use super::cluster::Cluster;
use super::etcd::{Heard, Sight};
use super::figures::shard_report;
use super::http::{NodePort, PortError, ShardFence};
use super::metadata::{NodeIdentity, Phase};
use super::owners;
use super::policy::view::ConfigView;
use super::report::{NamespaceRow, ShardReport};
use crate::core::mail::{Answer, Incoming, Letter, Mail, NamespacesPage};
use crate::core::report::CoreReport;
use crate::peers::{OwnerRow, OwnersPage, SamplesAnswer, SamplesQuestion};
use crate::turns::recorder::{TurnsAnswer, TurnsQuestion};

/// How often a draining node looks at what is left.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// How often the last word of a drain is tried, where a lane is full.
const LAST_WORD_TRIES: u32 = 20;

/// Nothing is left to wait for.
const NOTHING_LEFT: DrainAnswer = DrainAnswer { reservations: 0, leases: 0, write_backs: 0, transfers: 0 };

/// The registry is on the first core.
const REGISTRY_CORES: usize = 1;

/// Questions that may be unanswered at once.
const QUESTIONS_MAX: usize = 256;

struct Questions {
    mail: Mail,
    waiting: HashMap<u64, mpsc::UnboundedSender<Answer>>,
    next: u64,
    /// Cancels that found their core's lane full. Nothing is asked before they are out, so there are
    /// no more than questions, one for each core.
    cancels: VecDeque<(usize, Tag)>,
    /// What every core is to be told in this order, and the core that is next: it waits for a full lane.
    /// A core that takes nothing for long holds up nothing else than this; what is added meanwhile comes of
    /// membership and of awaits, which are bounded and slow.
    orders: VecDeque<(usize, Letter)>,
}

impl Questions {
    /// Sends the cancels that wait, oldest first; whether all are out.
    fn send_cancels(&mut self) -> bool {
        while let Some(&(core, tag)) = self.cancels.front() {
            let unanswered = Tag { number: 0, ..tag };
            let cancel = Box::new((unanswered, Command::Cancel { tag, deadline: true }));
            if self.mail.send(core, Letter::Command(cancel)).is_err() {
                break;
            }
            self.cancels.pop_front();
        }
        self.mail.flush();
        self.cancels.is_empty()
    }

    /// Sends the orders that wait, oldest first.
    fn send_orders(&mut self) {
        while let Some((core, letter)) = self.orders.pop_front() {
            if let Err(letter) = self.mail.send(core, letter) {
                self.orders.push_front((core, letter));
                break;
            }
        }
        self.mail.flush();
    }
}

struct Shared {
    // Control's own state, shared by the tasks of its one thread; no core ever sees it.
    questions: Mutex<Questions>,
    wake: Wake,
    cores: usize,
    identity: NodeIdentity,
    phase: AtomicU8,
    drain: Notify,
    membership: latest::Receiver<Option<Sight>>,
    config: latest::Receiver<ConfigView>,
    /// None if the node is standalone.
    cluster: Mutex<Option<Cluster>>,
}

/// Control's way to the cores.
#[derive(Clone)]
pub struct CorePort {
    shared: Arc<Shared>,
}

impl CorePort {
    /// A port over control's mail; `membership` is what is seen of it, none if the node is standalone, and `config` what
    /// is seen of the operator's policy.
    #[must_use]
    pub(super) fn new(
        mail: Mail,
        identity: NodeIdentity,
        membership: latest::Receiver<Option<Sight>>,
        config: latest::Receiver<ConfigView>,
        cluster: Option<Cluster>,
    ) -> CorePort {
        let (wake, cores) = (mail.wake().clone(), mail.participants() - 1);
        let questions = Questions {
            mail,
            waiting: HashMap::new(),
            next: 1,
            cancels: VecDeque::new(),
            orders: VecDeque::new(),
        };
        let shared = Shared {
            questions: Mutex::new(questions),
            wake,
            cores,
            identity,
            phase: AtomicU8::new(Phase::Serving as u8),
            drain: Notify::new(),
            membership,
            config,
            cluster: Mutex::new(cluster),
        };
        CorePort { shared: Arc::new(shared) }
    }

    pub(super) fn cluster(&self) -> std::sync::MutexGuard<'_, Option<Cluster>> {
        self.shared.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells every core, in the order of the calls and whether or not lanes have room.
    pub(super) fn tell_in_order(&self, letter: impl Fn() -> Letter) {
        let mut questions = self.questions();
        let cores = self.shared.cores;
        questions.orders.extend((0..cores).map(|core| (core, letter())));
        questions.send_orders();
    }

    /// Lets every shard begin a life; done when all of them live it.
    pub(super) async fn begin_life(&self, incarnation: Incarnation) -> Result<(), PortError> {
        let begun = self.ask(
            self.shared.cores,
            |tag| Letter::Command(Box::new((tag, Command::BeginLife(incarnation)))),
            |answer| match answer {
                Answer::Reply(reply) if matches!(reply.outcome, Outcome::LifeBegun) => {
                    Some((usize::from(reply.shard.0), ()))
                }
                _ => None,
            },
        );
        begun.await.map(|_| ())
    }

    /// A page of owner streams of one core.
    async fn owners_of(
        &self,
        core: usize,
        after: Option<StreamId>,
        limit: usize,
    ) -> Result<Vec<OwnerRow>, PortError> {
        let letter = |tag| Letter::Owners(Box::new(OwnersPage { tag, after, limit }));
        match self.ask_one(core, letter).await? {
            Answer::Owners(_, _, rows) => Ok(*rows),
            _ => Err(PortError::Busy),
        }
    }

    fn questions(&self) -> std::sync::MutexGuard<'_, Questions> {
        self.shared.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands answers to those who wait, for ever.
    ///
    /// # Errors
    /// If the doorbell cannot be watched.
    pub async fn deliver(&self) -> std::io::Result<()> {
        let fd = self.shared.wake.fd().try_clone_to_owned()?;
        // The safe constructor is deprecated because a type may lie about its descriptor; `OwnedFd` does not.
        #[allow(deprecated)]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        loop {
            let mut ready = fd.readable().await?;
            self.shared.wake.drain();
            ready.clear_ready();
            self.deliver_arrived();
        }
    }

    fn deliver_arrived(&self) {
        let mut of_cluster = Vec::new();
        let mut questions = self.questions();
        questions.send_cancels();
        questions.send_orders();
        while let Some(Incoming::Answer(answer)) = questions.mail.receive() {
            let number = match &answer {
                Answer::Reply(reply) => reply.tag.number,
                Answer::Report(tag, _)
                | Answer::Namespaces(tag, _)
                | Answer::Owners(tag, ..)
                | Answer::Samples(tag, ..)
                | Answer::Turns(tag, ..) => tag.number,
                Answer::DrainRequested => {
                    self.shared.drain.notify_one();
                    continue;
                }
                Answer::Lowered(..) | Answer::Readings(_) | Answer::Doubted(_) | Answer::Lookup(_) => {
                    of_cluster.push(answer);
                    continue;
                }
                Answer::Registered(..) | Answer::Stopped => continue,
            };
            if let Some(asker) = questions.waiting.get(&number) {
                // An asker that has gone away needs no answer.
                let _ = asker.send(answer);
            }
        }
        // Cores whose lane was full are rung.
        questions.mail.flush();
        drop(questions);
        for answer in of_cluster {
            match answer {
                Answer::Lowered(core, revision) => self.on_lowered(core, revision),
                Answer::Readings(answer) => self.on_readings(&answer),
                Answer::Doubted(doubt) => self.pass_on(Heard::Doubt(*doubt)),
                Answer::Lookup(wish) => self.pass_on(Heard::Lookup(*wish)),
                _ => unreachable!("only these were put aside"),
            }
        }
    }

    /// Asks the first `cores` cores the same and collects one answer each, in order of core.
    async fn ask<T>(
        &self,
        cores: usize,
        letter: impl Fn(Tag) -> Letter,
        read: impl Fn(Answer) -> Option<(usize, T)>,
    ) -> Result<Vec<T>, PortError> {
        let (sender, mut answers) = mpsc::unbounded_channel();
        let mut forget = {
            let mut questions = self.questions();
            questions.send_orders();
            // Nothing overtakes an order.
            let room = questions.orders.is_empty()
                && questions.send_cancels()
                && (0..cores).all(|core| questions.mail.has_room(core, 1));
            if !room || questions.waiting.len() >= QUESTIONS_MAX {
                return Err(PortError::Busy);
            }
            let number = questions.next;
            questions.next += 1;
            questions.waiting.insert(number, sender);
            let tag = Tag { origin: ShardIndex(self.shared.cores as u16), number };
            let mut waits = false;
            for core in 0..cores {
                let letter = letter(tag);
                waits = matches!(letter, Letter::Command(_));
                let sent = questions.mail.send(core, letter);
                assert!(sent.is_ok(), "asked for room before");
            }
            questions.mail.flush();
            Forget { port: self, tag, waits }
        };
        let mut collected: Vec<Option<T>> = (0..cores).map(|_| None).collect();
        while collected.iter().any(Option::is_none) {
            let answer = answers.recv().await.ok_or(PortError::Stopping)?;
            let (core, value) = read(answer).ok_or(PortError::Busy)?;
            collected[core] = Some(value);
        }
        forget.waits = false;
        Ok(collected.into_iter().flatten().collect())
    }

    /// Asks one core.
    async fn ask_one(&self, core: usize, letter: impl Fn(Tag) -> Letter) -> Result<Answer, PortError> {
        let (sender, mut answers) = mpsc::unbounded_channel();
        let _forget = {
            let mut questions = self.questions();
            if !questions.mail.has_room(core, 1) || questions.waiting.len() >= QUESTIONS_MAX {
                return Err(PortError::Busy);
            }
            let number = questions.next;
            questions.next += 1;
            questions.waiting.insert(number, sender);
            let tag = Tag { origin: ShardIndex(self.shared.cores as u16), number };
            let sent = questions.mail.send(core, letter(tag));
            assert!(sent.is_ok(), "asked for room before");
            questions.mail.flush();
            Forget { port: self, tag, waits: false }
        };
        answers.recv().await.ok_or(PortError::Stopping)
    }

    async fn core_reports(&self) -> Result<Vec<CoreReport>, PortError> {
        self.ask(self.shared.cores, Letter::Report, |answer| match answer {
            Answer::Report(_, report) => Some((usize::from(report.figures.shard.0), *report)),
            _ => None,
        })
        .await
    }

    /// Tells every core; whether all lanes had room.
    fn tell_all(&self, letter: impl Fn() -> Letter) -> bool {
        let mut questions = self.questions();
        let sent = (0..self.shared.cores).filter(|&core| questions.mail.send(core, letter()).is_ok()).count();
        questions.mail.flush();
        sent == self.shared.cores
    }

    /// Waits until somebody asks for a drain, then takes no new work and waits until nothing is left.
    pub async fn drained(&self) {
        self.shared.drain.notified().await;
        self.shared.phase.store(Phase::Draining as u8, Ordering::Relaxed);
        loop {
            // A lane that is full now is tried again with the next look.
            let _ = self.tell_all(|| Letter::Drain);
            tokio::time::sleep(DRAIN_LOOK).await;
            let Ok(reports) = self.core_reports().await else { continue };
            let mut left = NOTHING_LEFT;
            for report in &reports {
                left.reservations += report.figures.reservations;
                // A hold is a hint that ends by itself, and what it holds can no longer be acquired.
                left.leases += report.figures.leases.saturating_sub(report.figures.holds);
                left.write_backs += report.figures.write_backs_queued;
                left.transfers += report.figures.transfers;
            }
            let mut told = self.tell_all(|| Letter::DrainProgress(Box::new(left)));
            if left != NOTHING_LEFT {
                continue;
            }
            for _ in 0..LAST_WORD_TRIES {
                // Let the last word reach its engines before their sockets close.
                tokio::time::sleep(DRAIN_LOOK).await;
                if told {
                    break;
                }
                told = self.tell_all(|| Letter::DrainProgress(Box::new(left)));
            }
            return;
        }
    }

    /// Gives the mail back, to stop the cores with.
    #[must_use]
    pub fn into_mail(self) -> Option<Mail> {
        let shared = Arc::into_inner(self.shared)?;
        Some(shared.questions.into_inner().unwrap_or_else(PoisonError::into_inner).mail)
    }
}

/// A question in work. Dropped before its answers are there, by a deadline say, it tells the shards
/// that nobody waits any more: their seats for what waits are few.
struct Forget<'a> {
    port: &'a CorePort,
    tag: Tag,
    waits: bool,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut questions = self.port.questions();
        questions.waiting.remove(&self.tag.number);
        if self.waits {
            let tag = self.tag;
            questions.cancels.extend((0..self.port.shared.cores).map(|core| (core, tag)));
            questions.send_cancels();
        }
    }
}

impl NodePort for CorePort {
    async fn shard_reports(&self) -> Result<Vec<ShardReport>, PortError> {
        Ok(self.core_reports().await?.into_iter().map(shard_report).collect())
    }

    async fn flush_fence(&self) -> Result<Vec<ShardFence>, PortError> {
        self.ask(
            self.shared.cores,
            |tag| Letter::Command(Box::new((tag, Command::Sync))),
            |answer| match answer {
                Answer::Reply(reply) => {
                    let Outcome::Synced(sequence) = reply.outcome else { return None };
                    let fence = ShardFence { incarnation: reply.incarnation, sequence };
                    Some((usize::from(reply.shard.0), fence))
                }
                _ => None,
            },
        )
        .await
    }

    async fn namespaces(&self, after: &str, limit: usize) -> Result<Vec<NamespaceRow>, PortError> {
        let page = |tag| NamespacesPage { tag, after: after.to_owned(), limit };
        let pages = self.ask(
            REGISTRY_CORES,
            |tag| Letter::Namespaces(Box::new(page(tag))),
            |answer| match answer {
                Answer::Namespaces(_, namespaces) => Some((0, *namespaces)),
                _ => None,
            },
        );
        let rows = pages.await?.into_iter().flatten().map(|(digest, fields)| {
            let field = |name: &str| {
                let found = fields.iter().find(|(field, _)| *field == name);
                found.map(|(_, value)| value.clone()).unwrap_or_default()
            };
            NamespaceRow {
                namespace: digest.to_string(),
                engine: field("engine"),
                model: field("model"),
                weights_revision: field("weights revision"),
                adapter: field("adapter"),
                dtype: field("dtype"),
                layout: field("layout"),
                block_tokens: field("block tokens").parse().unwrap_or(0),
                rank: match field("rank invariant").as_str() {
                    "true" => "rank-invariant".to_owned(),
                    _ => format!(
                        "tp {}/{} pp {}/{}",
                        field("tp rank"),
                        field("tp size"),
                        field("pp rank"),
                        field("pp size")
                    ),
                },
                groups: field("groups").split("; ").count() as u32,
            }
        });
        Ok(rows.collect())
    }

    async fn owners(&self, after: &str, limit: usize) -> Result<Option<owners::OwnersPage>, PortError> {
        if self.cluster().is_none() {
            return Ok(None);
        }
        let of_core = |core, after, limit| self.owners_of(core, after, limit);
        owners::page(after, limit, self.shared.cores, of_core).await.map(Some)
    }

    async fn samples(&self, had: &[(u64, u64)]) -> Result<Option<Vec<SamplesAnswer>>, PortError> {
        if self.cluster().is_none() {
            return Ok(None);
        }
        let of_core = |core: usize| {
            let (published_after, installed_after) = had.get(core).copied().unwrap_or_default();
            let question = move |tag| SamplesQuestion { tag, published_after, installed_after };
            async move {
                match self.ask_one(core, |tag| Letter::Samples(question(tag))).await? {
                    Answer::Samples(_, _, samples) => Ok(*samples),
                    _ => Err(PortError::Busy),
                }
            }
        };
        let mut all = Vec::new();
        for core in 0..self.shared.cores {
            all.push(of_core(core).await?);
        }
        Ok(all.into_iter().collect())
    }

    async fn turns(
        &self,
        core: u16,
        after: u64,
        limit: usize,
        forget_through: u64,
    ) -> Result<Option<TurnsAnswer>, PortError> {
        let limit = limit as u32;
        let question = |tag| Letter::Turns(TurnsQuestion { tag, after, limit, forget_through });
        match self.ask_one(usize::from(core), question).await? {
            Answer::Turns(_, _, page) => Ok(*page),
            _ => Err(PortError::Busy),
        }
    }

    async fn await_fence(
        &self,
        fence: Fence,
        scope: Option<ScopeDigest>,
        longest: Duration,
    ) -> Result<(), AwaitFailure> {
        self.await_installed(fence, scope, longest).await
    }

    fn fail_back(&self) -> bool {
        self.tell_all(|| Letter::FailBack)
    }

    fn identity(&self) -> &NodeIdentity {
        &self.shared.identity
    }

    fn phase(&self) -> Phase {
        if self.shared.phase.load(Ordering::Relaxed) == Phase::Draining as u8 {
            Phase::Draining
        } else {
            Phase::Serving
        }
    }

    fn membership(&self) -> Option<Sight> {
        self.shared.membership.borrow().clone()
    }

    fn config(&self) -> ConfigView {
        self.shared.config.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::mail::LANE_LETTERS;

    fn identity() -> NodeIdentity {
        NodeIdentity {
            node_id: "node".to_owned(),
            version: "0".to_owned(),
            engine_socket: String::new(),
            placement: String::new(),
            arena_pages: "small".to_owned(),
            shards: 1,
            scope_digest: None,
            bill: Vec::new(),
        }
    }

    fn port(mail: Mail) -> CorePort {
        CorePort::new(
            mail,
            identity(),
            latest::channel(None).1,
            latest::channel(ConfigView::default()).1,
            None,
        )
    }

    fn commands(core: &mut Mail) -> Vec<(Tag, Command)> {
        let letters = std::iter::from_fn(|| core.receive());
        let commands = letters.filter_map(|incoming| match incoming {
            Incoming::Letter(_, Letter::Command(command)) => Some(*command),
            _ => None,
        });
        commands.collect()
    }

    #[tokio::test]
    async fn a_sync_that_nobody_waits_for_any_more_gives_its_seat_back() {
        let mut mails = Mail::mesh(2).expect("descriptors");
        let port = port(mails.pop().expect("control"));
        let mut core = mails.pop().expect("the core");
        let timed_out = tokio::time::timeout(Duration::from_millis(1), port.flush_fence()).await;
        assert!(timed_out.is_err());
        let sent = commands(&mut core);
        let [(asked, Command::Sync), (unanswered, Command::Cancel { tag, .. })] = &sent[..] else {
            panic!("{sent:?}")
        };
        assert_eq!((tag, unanswered.number), (asked, 0));
        // A report never waits in a shard: there is nothing to cancel.
        assert!(tokio::time::timeout(Duration::from_millis(1), port.shard_reports()).await.is_err());
        assert!(commands(&mut core).is_empty());
        assert!(port.questions().waiting.is_empty());
    }

    #[tokio::test]
    async fn a_cancel_that_finds_no_room_is_sent_later() {
        let mut mails = Mail::mesh(2).expect("descriptors");
        let port = port(mails.pop().expect("control"));
        let mut core = mails.pop().expect("the core");
        let fill = async {
            while port.tell_all(|| Letter::Drain) {}
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            fence = port.flush_fence() => panic!("nobody answers: {fence:?}"),
            () = fill => {}
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
        assert_eq!(port.questions().cancels.len(), 1, "the lane of {LANE_LETTERS} letters is full");
        assert!(matches!(port.flush_fence().await, Err(PortError::Busy)));
        assert!(matches!(commands(&mut core)[..], [(_, Command::Sync)]));
        port.deliver_arrived();
        assert!(matches!(commands(&mut core)[..], [(_, Command::Cancel { .. })]));
        assert!(port.questions().cancels.is_empty());
    }
}
