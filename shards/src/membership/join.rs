//! The questions: read, decide, get a lease, register, and find out what became of it.

use orbitkv_wire::identity::ClusterUuid;
use orbitkv_wire::membership::Key;

use super::claim::{Decision, Holder, claim, cluster_of, decide};
use super::coordinator::{Answer, Failure, Header, LeaseId, Request, Snapshot};
use super::lease::Lease;
use super::refresh::Lookup;
use super::standing::{Alarm, Effect, FenceCause};
use super::view::{OtherHistory, Patch};
use super::{FOREIGN, Life, Membership, RefreshPolicy, Refusal, Sight};
use crate::members::Local;
use crate::time::Moment;

/// A question that waits for its answer.
pub(super) struct Question {
    number: u64,
    sent: Moment,
    /// What etcd had answered with when it was sent: the answer may not be older.
    revision: u64,
    purpose: Purpose,
}

enum Purpose {
    Read,
    Grant,
    Found,
    Claim {
        epoch: u64,
        cluster: ClusterUuid,
    },
    /// How long the holder of our name has still to live.
    Holder(Box<Holder>),
    Revoke,
}

impl Membership {
    fn ask(&mut self, purpose: Purpose, request: Request, now: Moment) {
        let number = self.draw_number();
        self.question = Some(Question { number, sent: now, revision: self.revision, purpose });
        self.effects.push_back(Effect::Ask { number, request });
    }

    pub(super) fn ask_read(&mut self, now: Moment) {
        self.doubts.on_asked();
        self.ask(Purpose::Read, Request::Read, now);
    }

    /// Begins the next read of one record.
    pub(super) fn ask_look(&mut self) {
        let number = self.draw_number();
        let node = self.lookups.begin(number, self.revision);
        self.doubts.on_asked_of(node);
        self.effects.push_back(Effect::Lookup { number, request: Request::Lookup(node) });
    }

    fn on_looked_up(&mut self, lookup: Lookup, result: Result<(Header, Answer), Failure>, now: Moment) {
        let (header, entry) = match result {
            Ok((header, Answer::LookedUp(entry))) if self.recognise(header) => (header, entry),
            Ok((_, Answer::LookedUp(_))) => return self.lookups.retry(lookup, now),
            Ok((_, answer)) => panic!("an answer to another question: {answer:?}"),
            Err(failure) => {
                self.figures.unanswered += u64::from(matches!(failure, Failure::Unanswered(_)));
                self.note_trouble(failure);
                return self.lookups.retry(lookup, now);
            }
        };
        if header.revision < lookup.revision {
            // Another history: whoever reads all of it says so.
            self.read_wanted = true;
            return self.lookups.retry(lookup, now);
        }
        self.revision = self.revision.max(header.revision);
        match self.view.patch(lookup.node, entry.as_ref()) {
            Patch::Newer => {
                self.tell_flaws();
                self.tell_members();
            }
            Patch::Known => {}
            // Who is left cannot be read off one key.
            Patch::Gone => self.read_wanted = true,
        }
        self.doubts.on_read_of(lookup.node, &self.view);
        let looked = self.lookups.succeed(lookup);
        if !looked.through.is_empty() {
            self.effects.push_back(Effect::LookedUp(looked));
        }
    }

    pub(super) fn ask_revoke(&mut self, lease: LeaseId, now: Moment) {
        self.ask(Purpose::Revoke, Request::Revoke(lease), now);
    }

    /// The answer to a question, or why there is none.
    ///
    /// # Panics
    /// If the answer is to another question than the one with this number.
    pub fn on_answer(&mut self, number: u64, result: Result<(Header, Answer), Failure>, now: Moment) {
        self.check_deadline(now);
        if let Some(lookup) = self.lookups.end(number) {
            self.on_looked_up(lookup, result, now);
            return self.proceed(now);
        }
        let Some(question) = self.question.take_if(|question| question.number == number) else { return };
        if let Purpose::Revoke = question.purpose {
            self.effects.push_back(Effect::Withdrawn);
            return;
        }
        match result {
            Ok((header, answer)) if self.recognise(header) => self.take(question, header, answer, now),
            Ok(_) => self.on_failure(&question, Failure::Unanswered(FOREIGN.into()), now),
            Err(failure) => self.on_failure(&question, failure, now),
        }
        self.proceed(now);
    }

    fn take(&mut self, question: Question, header: Header, answer: Answer, now: Moment) {
        self.questions.succeed();
        if matches!(answer, Answer::Read(_) | Answer::Transacted(_)) {
            if header.revision < question.revision {
                let cause = OtherHistory::Backwards { was: question.revision, is: header.revision };
                self.questions.fail(now);
                return self.on_other_history(cause, now);
            }
            self.revision = self.revision.max(header.revision);
        }
        match (question.purpose, answer) {
            (Purpose::Read, Answer::Read(snapshot)) => self.on_snapshot(&snapshot, now),
            (Purpose::Grant, Answer::Granted(id, length)) => {
                self.lease = Some(Lease::granted(id, length, question.sent));
                self.check_deadline(now);
                if matches!(self.life, Life::Unregistered(_)) {
                    // What was decided on may have changed meanwhile.
                    self.ask_read(now);
                }
            }
            (Purpose::Found, Answer::Transacted(_)) => self.ask_read(now),
            (Purpose::Claim { epoch, cluster }, Answer::Transacted(true)) => {
                self.become_member(epoch, cluster, header.revision, now);
            }
            // Something has changed since it was decided on.
            (Purpose::Claim { .. }, Answer::Transacted(false)) => self.questions.fail(now),
            (Purpose::Holder(holder), Answer::TimeToLive(time)) => {
                self.refuse(Refusal::Held(Box::new(Holder { time_to_live: time, ..*holder })), now);
            }
            (_, answer) => panic!("an answer to another question: {answer:?}"),
        }
    }

    fn on_failure(&mut self, question: &Question, failure: Failure, now: Moment) {
        self.questions.fail(now);
        if let Failure::Unanswered(_) = failure {
            self.figures.unanswered += 1;
        }
        match (&question.purpose, &failure) {
            (Purpose::Claim { .. }, Failure::LeaseGone) => self.lose_lease(FenceCause::LeaseGone, now),
            (Purpose::Holder(holder), _) => self.refuse(Refusal::Held(holder.clone()), now),
            _ => self.note_trouble(failure),
        }
    }

    fn on_snapshot(&mut self, snapshot: &Snapshot, now: Moment) {
        match self.view.install(snapshot) {
            Err(cause) => {
                self.questions.fail(now);
                return self.on_other_history(cause, now);
            }
            Ok(Err(cause)) => {
                self.questions.fail(now);
                return self.lose_sight(cause.into());
            }
            Ok(Ok(())) => {}
        }
        self.figures.snapshots += 1;
        self.doubts.on_read(&self.view);
        // What was doubted after the question had been sent needs another one.
        self.read_wanted = match self.settings.refresh {
            RefreshPolicy::Hybrid => self.doubts.wants_read(),
            RefreshPolicy::Redirect | RefreshPolicy::Lookup => {
                self.doubts.wants_read_of(self.settings.applicant.node)
            }
        };
        self.sight = Sight::Clear;
        self.tell_flaws();
        self.tell_members();
        self.check_own_record(now);
        match self.life {
            Life::Member(..) => {
                self.trouble = None;
                self.check_cluster(snapshot, now);
            }
            Life::Unregistered(_) | Life::Claimed(..) => self.join(snapshot, now),
            Life::Awaited | Life::Leaving => {}
        }
    }

    /// The cluster that the life was registered in must still be there.
    fn check_cluster(&mut self, snapshot: &Snapshot, now: Moment) {
        let found = match snapshot.get(Key::Format) {
            Some(format) => cluster_of(format, self.cluster).map(|_| ()),
            None => Err(Refusal::FormatMissing),
        };
        if let Err(refusal) = found {
            self.fence(FenceCause::OtherCluster(refusal), now);
        }
    }

    /// Takes the next step towards a registration.
    fn join(&mut self, snapshot: &Snapshot, now: Moment) {
        let claimed = match self.life {
            Life::Claimed(incarnation, lease) => Some((incarnation, lease)),
            _ => None,
        };
        let applicant = &self.settings.applicant;
        match decide(applicant, self.cluster, claimed, self.epoch_least, snapshot) {
            Decision::Found(transaction) => self.ask(Purpose::Found, Request::Transact(transaction), now),
            Decision::Registered { epoch, cluster, revision } => {
                self.become_member(epoch, cluster, revision, now);
            }
            Decision::Claim { epoch, cluster, compares } => match (&self.lease, self.life) {
                (None, _) => self.ask(Purpose::Grant, Request::Grant(self.settings.lease), now),
                (Some(lease), Life::Unregistered(incarnation) | Life::Claimed(incarnation, _)) => {
                    let id = lease.id();
                    let transaction = claim(&self.settings.applicant, incarnation, epoch, id, compares);
                    self.refusal = None;
                    // Whatever becomes of it, no other life gets this epoch from this process.
                    self.epoch_least = epoch;
                    self.life = Life::Claimed(incarnation, id);
                    self.ask(Purpose::Claim { epoch, cluster }, Request::Transact(transaction), now);
                }
                (Some(_), life) => panic!("{life:?} registers nothing"),
            },
            Decision::Refuse(refusal) => {
                // A claim that others have overtaken can no longer happen, or is over.
                self.fence(FenceCause::Undecided, now);
                self.lease = None;
                match (refusal, self.life) {
                    (Refusal::Held(holder), Life::Unregistered(_)) if holder.lease.is_some() => {
                        let lease = holder.lease.expect("just seen");
                        self.ask(Purpose::Holder(holder), Request::TimeToLive(lease), now);
                    }
                    (refusal, _) => self.refuse(refusal, now),
                }
            }
        }
    }

    fn become_member(&mut self, epoch: u64, cluster: ClusterUuid, revision: u64, now: Moment) {
        let Life::Claimed(incarnation, _) = self.life else {
            unreachable!("a fence takes the question with it");
        };
        let lease = self.lease.as_ref().expect("a claim lives as long as its lease");
        let (until, applicant) = (lease.deadline(), &self.settings.applicant);
        let local =
            Local { cluster, node: applicant.node, epoch, incarnation, shards: applicant.contact.shards };
        self.cluster = Some(cluster);
        self.epoch_least = self.epoch_least.max(epoch);
        (self.refusal, self.trouble) = (None, None);
        self.life = Life::Member(local, revision);
        self.figures.registrations += 1;
        self.effects.push_back(Effect::Registered(local));
        self.effects.push_back(Effect::Admit { until });
        if self.sight == Sight::Clear {
            // A core trusts what it is told after it was told of its own life.
            self.effects.push_back(Effect::Members(self.view.roster()));
        }
        self.check_own_record(now);
    }

    fn refuse(&mut self, refusal: Refusal, now: Moment) {
        self.questions.wait(self.settings.refused_pause, now);
        let same = |before: &Refusal| match (before, &refusal) {
            // It lives on, that is all.
            (Refusal::Held(one), Refusal::Held(other)) => {
                (one.address, one.epoch) == (other.address, other.epoch)
            }
            (before, refusal) => before == refusal,
        };
        if !self.refusal.as_ref().is_some_and(same) {
            self.raise(Alarm::Refused(refusal.clone()));
        }
        self.refusal = Some(refusal);
    }
}
