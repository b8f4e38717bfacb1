//! The peers' part of a core: what control and other cores say about peers, and their place in a turn.

use orbitkv_native::clock::{boottime_ns, monotonic_ns};
use orbitkv_shards::shard::{Outcome, Reply};
use orbitkv_shards::time::Moment;

use super::mail::{Answer, Letter};
use super::{Core, CoreParts};
use crate::turns::What;

impl Core {
    pub(super) fn wake_peers(&mut self) {
        if let Some(peers) = &mut self.parts.peers {
            peers.wake();
        }
    }

    pub(super) fn wake_peer_sockets(&mut self) {
        if let Some(peers) = &mut self.parts.peers {
            peers.wake_sockets();
        }
    }

    /// After a command of the shard: it may have changed the journal.
    pub(super) fn note_head(&mut self) {
        if let Some(peers) = &mut self.parts.peers {
            peers.note_head(self.parts.shard.head());
        }
    }

    /// The peers' part of a turn: after the engines', whose answers have gone out. True if more is to be done.
    pub(super) fn turn_peers(&mut self, now: Moment) -> bool {
        let control = self.control();
        let CoreParts { peers: Some(peers), shard, mail, hub, .. } = &mut self.parts else { return false };
        let mut left_over = false;
        let boot = Moment(boottime_ns());
        let is_due = peers.is_due(shard.head(), now) || shard.has_peer_work();
        if is_due || peers.is_reading(boot) {
            let began_ns = monotonic_ns();
            if is_due {
                left_over = peers.turn(shard, &mut hub.trace, now, boot);
                if left_over {
                    peers.wake();
                }
            } else {
                peers.read_on();
                hub.trace.lap(What::Payload);
            }
            self.turns.peers.record(monotonic_ns().saturating_sub(began_ns));
        }
        left_over |= peers.is_reading(boot);
        peers.observe(shard, now);
        while let Some((to, letter)) = peers.poll_letter() {
            if let Err(letter) = mail.send(to, letter) {
                // Whoever takes from the full lane rings.
                peers.return_letter(to, letter);
                break;
            }
        }
        while let Some(answer) = peers.poll_answer() {
            mail.answer(control, answer);
        }
        while !mail.owes_answers()
            && let Some(doubt) = peers.poll_doubt()
        {
            mail.answer(control, Answer::Doubted(Box::new(doubt)));
        }
        while !mail.owes_answers()
            && let Some(wish) = peers.poll_lookup()
        {
            mail.answer(control, Answer::Lookup(Box::new(wish)));
        }
        left_over
    }

    /// What peers have to do with an answer of the shard.
    pub(super) fn add_peers(&mut self, reply: &mut Reply, now: Moment) {
        let CoreParts { peers: Some(peers), shard, .. } = &mut self.parts else { return };
        match &mut reply.outcome {
            Outcome::Places(places) => peers.complete(places, shard, now, Moment(boottime_ns())),
            Outcome::Synced(_) => peers.expose(),
            _ => {}
        }
    }

    /// A letter about peers. Only nodes of clusters are sent any.
    pub(super) fn on_peers_letter(&mut self, from: usize, letter: Letter, now: Moment) {
        let CoreParts { peers: Some(peers), shard, mail, hub, .. } = &mut self.parts else {
            panic!("a standalone node has no peers: {letter:?}")
        };
        match letter {
            Letter::Life(letter) => {
                peers.on_life_letter(*letter, shard, now);
                hub.stand_at(peers.basis());
            }
            Letter::Permit(letter) => peers.on_permit_letter(letter, now),
            Letter::Excluded(life) => peers.on_excluded(life.0, life.1),
            Letter::Owners(page) => {
                let rows = Box::new(peers.owners(*page, now));
                mail.answer(from, Answer::Owners(page.tag, shard.index(), rows));
            }
            Letter::Readings(question) => {
                mail.answer(from, Answer::Readings(Box::new(peers.readings(&question, now))));
            }
            Letter::Samples(question) => {
                let samples = Box::new(peers.samples(&question));
                mail.answer(from, Answer::Samples(question.tag, shard.index(), samples));
            }
            Letter::FailBack => peers.fail_back(now),
            letter => unreachable!("{letter:?} is not about peers"),
        }
    }
}
