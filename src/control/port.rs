//! Control's way to the cores: questions go out by mail, answers come back to whoever asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orbitkv_native::wake::Wake;
use orbitkv_shards::segment_log::OffReason;
use orbitkv_shards::shard::{Command, Outcome, Tag};
use orbitkv_wire::engine::answers::DrainAnswer;
use orbitkv_wire::identity::ShardIndex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc};

use super::http::{NodePort, PortError, ShardFence};
use super::metadata::{NodeIdentity, Phase};
use super::report::{
    ArenaReport, EngineReport, JournalReport, NamespaceRow, PerMedium, QueuePeaks, SaveRefusals,
    ServiceReport, ShardReport, SsdFault, SsdReport, SsdState, TurnReport,
};
use crate::core::mail::{Answer, Letter, Mail};
use crate::core::report::CoreReport;

/// How often a draining node looks at what is left.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// Questions that may be unanswered at once.
const QUESTIONS_MAX: usize = 256;

struct Questions {
    mail: Mail,
    waiting: HashMap<u64, mpsc::UnboundedSender<Answer>>,
    next: u64,
}

struct Shared {
    // Control's own state, shared by the tasks of its one thread; no core ever sees it.
    questions: Mutex<Questions>,
    wake: Wake,
    cores: usize,
    identity: NodeIdentity,
    phase: AtomicU8,
    drain: Notify,
}

/// Control's way to the cores.
#[derive(Clone)]
pub struct CorePort {
    shared: Arc<Shared>,
}

impl CorePort {
    /// A port over control's mail.
    #[must_use]
    pub fn new(mail: Mail, identity: NodeIdentity) -> CorePort {
        let (wake, cores) = (mail.wake().clone(), mail.participants() - 1);
        let questions = Mutex::new(Questions { mail, waiting: HashMap::new(), next: 1 });
        let phase = AtomicU8::new(Phase::Serving as u8);
        let drain = Notify::new();
        CorePort { shared: Arc::new(Shared { questions, wake, cores, identity, phase, drain }) }
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
        let mut questions = self.questions();
        while let Some(answer) = questions.mail.receive_answer() {
            let number = match &answer {
                Answer::Reply(reply) => reply.tag.number,
                Answer::Report(tag, _) => tag.number,
                Answer::DrainRequested => {
                    self.shared.drain.notify_one();
                    continue;
                }
                Answer::Registered(..) | Answer::Stopped => continue,
            };
            if let Some(asker) = questions.waiting.get(&number) {
                // An asker that has gone away needs no answer.
                let _ = asker.send(answer);
            }
        }
    }

    /// Asks every core the same and collects one answer each, in order of core.
    async fn ask<T>(
        &self,
        letter: impl Fn(Tag) -> Letter,
        read: impl Fn(Answer) -> Option<(usize, T)>,
    ) -> Result<Vec<T>, PortError> {
        let cores = self.shared.cores;
        let (sender, mut answers) = mpsc::unbounded_channel();
        let number = {
            let mut questions = self.questions();
            let room = (0..cores).all(|core| questions.mail.has_room(core, 1));
            if !room || questions.waiting.len() >= QUESTIONS_MAX {
                return Err(PortError::Busy);
            }
            let number = questions.next;
            questions.next += 1;
            questions.waiting.insert(number, sender);
            let tag = Tag { origin: ShardIndex(cores as u16), number };
            for core in 0..cores {
                let sent = questions.mail.send(core, letter(tag));
                assert!(sent.is_ok(), "asked for room before");
            }
            questions.mail.flush();
            number
        };
        let _forget = Forget { port: self, number };
        let mut collected: Vec<Option<T>> = (0..cores).map(|_| None).collect();
        while collected.iter().any(Option::is_none) {
            let answer = answers.recv().await.ok_or(PortError::Stopping)?;
            let (core, value) = read(answer).ok_or(PortError::Busy)?;
            collected[core] = Some(value);
        }
        Ok(collected.into_iter().flatten().collect())
    }

    async fn core_reports(&self) -> Result<Vec<CoreReport>, PortError> {
        self.ask(Letter::Report, |answer| match answer {
            Answer::Report(_, report) => Some((usize::from(report.figures.shard.0), *report)),
            _ => None,
        })
        .await
    }

    fn tell_all(&self, letter: impl Fn() -> Letter) {
        let mut questions = self.questions();
        for core in 0..self.shared.cores {
            // A lane that is full now is tried again with the next look.
            let _ = questions.mail.send(core, letter());
        }
        questions.mail.flush();
    }

    /// Waits until somebody asks for a drain, then takes no new work and waits until nothing is left.
    pub async fn drained(&self) {
        self.shared.drain.notified().await;
        self.shared.phase.store(Phase::Draining as u8, Ordering::Relaxed);
        loop {
            self.tell_all(|| Letter::Drain);
            tokio::time::sleep(DRAIN_LOOK).await;
            let Ok(reports) = self.core_reports().await else { continue };
            let mut left = DrainAnswer { reservations: 0, leases: 0, write_backs: 0, transfers: 0 };
            for report in &reports {
                left.reservations += report.figures.reservations;
                left.leases += report.figures.leases;
                left.write_backs += report.figures.write_backs_queued;
                left.transfers += report.figures.transfers;
            }
            self.tell_all(|| Letter::DrainProgress(Box::new(left)));
            if left == (DrainAnswer { reservations: 0, leases: 0, write_backs: 0, transfers: 0 }) {
                // Let the last word reach its engines before their sockets close.
                tokio::time::sleep(DRAIN_LOOK).await;
                return;
            }
        }
    }

    /// Gives the mail back, to stop the cores with.
    #[must_use]
    pub fn into_mail(self) -> Option<Mail> {
        let shared = Arc::into_inner(self.shared)?;
        Some(shared.questions.into_inner().unwrap_or_else(PoisonError::into_inner).mail)
    }
}

struct Forget<'a> {
    port: &'a CorePort,
    number: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.port.questions().waiting.remove(&self.number);
    }
}

impl NodePort for CorePort {
    async fn shard_reports(&self) -> Result<Vec<ShardReport>, PortError> {
        Ok(self.core_reports().await?.into_iter().map(shard_report).collect())
    }

    async fn flush_fence(&self) -> Result<Vec<ShardFence>, PortError> {
        self.ask(
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
        let reports = self.core_reports().await?;
        let rows = reports.into_iter().flat_map(|report| report.namespaces).map(|(digest, fields)| {
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
        Ok(rows.filter(|row| row.namespace.as_str() > after).take(limit).collect())
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
}

fn shard_report(report: CoreReport) -> ShardReport {
    let CoreReport { figures, engine, turns, mail, device_peak, file_deleted, .. } = report;
    let counters = figures.counters;
    ShardReport {
        shard: figures.shard.0,
        incarnation: figures.incarnation.to_string(),
        residents: PerMedium { dram: counters.dram_residents, ssd: counters.ssd_residents },
        resident_bytes: PerMedium { dram: counters.dram_bytes, ssd: counters.ssd_bytes },
        evictions: PerMedium { dram: counters.dram_evictions, ssd: counters.ssd_evictions },
        journal: JournalReport {
            head_sequence: figures.head.0,
            oldest_sequence: figures.oldest.0,
            used_bytes: figures.journal_bytes[0],
            peak_bytes: figures.journal_bytes[1],
            capacity_bytes: figures.journal_bytes[2],
        },
        arena: ArenaReport {
            capacity_bytes: figures.arena_bytes,
            allocated_bytes: figures.allocated_bytes,
            reserved_bytes: figures.reserved_bytes[0],
            leased_bytes: figures.leased_bytes,
            pinned_bytes: figures.pinned_bytes,
        },
        ssd: figures.ssd.map_or_else(SsdReport::default, |ssd| SsdReport {
            state: ssd_state(ssd.off, file_deleted),
            capacity_bytes: ssd.capacity_bytes,
            live_bytes: ssd.live_bytes,
            free_bytes: ssd.free_bytes,
            write_backs_queued: figures.write_backs_queued,
            write_backs_in_flight: figures.write_backs_in_flight,
            write_backs_done: counters.write_backs_done,
            write_backs_failed: counters.ssd_write_errors,
            reads: counters.ssd_reads,
            read_errors: counters.ssd_read_errors,
            checksum_failures: counters.checksum_failures,
            quarantined_bytes: ssd.quarantined_bytes,
        }),
        engine: EngineReport {
            connections: engine.connections,
            requests_in_flight: engine.requests_in_flight,
            reservations: figures.reservations,
            leases: figures.leases,
            holds: figures.holds,
            holds_expired: figures.holds_expired,
            waiting: figures.waiting[0],
            process_deaths: engine.process_deaths,
            stale_generation_rejections: engine.stale_generation,
            malformed_frames: engine.malformed_frames,
        },
        service: ServiceReport {
            queries: counters.queries,
            acquires_busy: counters.acquires_busy,
            saves_present: counters.saves_present,
            saves_lost_race: counters.saves_lost_race,
            hits: PerMedium { dram: counters.hits_dram, ssd: counters.hits_ssd },
            misses: counters.misses,
            saves_committed: counters.saves_committed,
            saved_bytes: counters.saved_bytes,
            saves_refused: SaveRefusals {
                busy: counters.saves_busy,
                too_large: counters.saves_too_large,
                being_saved: counters.saves_being_saved,
                draining: counters.saves_draining,
            },
        },
        queue_peaks: QueuePeaks {
            connection_requests: engine.requests_in_flight_peak,
            write_backs: counters.write_queue_peak,
            ssd_requests: device_peak,
            waiting: figures.waiting[1],
            mail_requests: mail.requests,
            mail_replies: mail.answers,
        },
        turns: TurnReport { turns: turns.turns, stalls: turns.stalls, slice_ns_max: turns.ns_max },
    }
}

fn ssd_state(off: Option<OffReason>, file_deleted: bool) -> SsdState {
    if file_deleted {
        let detail = "the SSD file has no name any more; its space comes back when the node ends".to_owned();
        return SsdState::Degraded { fault: SsdFault::FileDeleted, detail };
    }
    let Some(reason) = off else { return SsdState::On };
    let fault = match reason {
        OffReason::Quarantine { .. } => SsdFault::WrongChecksums,
        OffReason::WriteFailures { errno: libc::ENOSPC, .. } => SsdFault::DeviceFull,
        OffReason::WriteFailures { .. } => SsdFault::WriteErrors,
        OffReason::ReadFailures { .. } => SsdFault::ReadErrors,
    };
    SsdState::Degraded { fault, detail: reason.to_string() }
}
