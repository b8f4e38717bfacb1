//! Intervals of the journal as frames: encoded once per scope and cursor, shared by subscribers.
//!
//! Every subscriber of a scope walks the same chain: from its cursor to the end of a *piece*, which is
//! the next cursor. A piece is either encoded, or still quiet: an interval that held nothing for the
//! scope so far, and grows until it holds something. So what is proved empty is read once as well, and is
//! folded into the delta that ends it.
//!
//! An encoded piece is charged to the queue pool once, however many hold it.

use std::collections::BTreeMap;
use std::rc::Rc;

use orbitkv_wire::identity::Sequence;
use orbitkv_wire::inventory::{
    Body, ChangesWriter, DeltaBody, HEADER_BYTES, NAMESPACE_BYTES, RECORD_BYTES, WireChange,
};
use orbitkv_wire::layout::Fixed;
use orbitkv_wire::scope::ScopeDigest;

use super::figures::Figures;
use super::frame::SharedBody;
use super::scopes::Filter;
use super::slice::Slice;
use crate::admission::Pool;
use crate::journal::{Change, Interval, Journal, JournalSettings, ReadError, Record};
use crate::namespaces::Namespaces;

/// Where a subscriber stands and what it can take.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its scope.
    pub scope: ScopeDigest,
    /// It has been told everything up to here.
    pub from: Sequence,
    /// Largest frame for it.
    pub frame_bytes_max: usize,
    /// What its receiver gives credit for.
    pub credit_bytes: usize,
}

/// What is read, for whom, and at whose charge.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    /// The history.
    pub journal: &'a Journal,
    /// Names of namespaces.
    pub namespaces: &'a Namespaces,
    /// Nothing beyond this is read yet.
    pub exposed: Sequence,
    /// The scope of the place.
    pub filter: &'a Filter,
    /// What bodies are charged to.
    pub pool: &'a Pool,
}

/// What comes next at a place.
#[derive(Debug)]
pub enum Next {
    /// Nothing for this scope up to here.
    Quiet {
        /// Inclusive; the place itself if nothing is there yet.
        through: Sequence,
    },
    /// A delta.
    Delta {
        /// Where it ends.
        through: Sequence,
        /// Its body.
        body: Rc<SharedBody>,
    },
    /// The journal has dropped what comes next.
    HistoryGone,
    /// The receiver may have no credit for the delta.
    NoCredit,
    /// The queue pool may have no room for the delta.
    NoRoom,
}

#[derive(Debug)]
enum Piece {
    Quiet { through: Sequence },
    Encoded { through: Sequence, body: Rc<SharedBody> },
}

/// The pieces that somebody may still ask for.
#[derive(Debug)]
pub struct Intervals {
    delta_records_max: usize,
    pieces: BTreeMap<(ScopeDigest, Sequence), Piece>,
    scratch: Interval,
    writer: ChangesWriter,
}

impl Intervals {
    /// No pieces; reads a journal of these settings, `delta_records_max` records at a time, into bodies
    /// of at most `body_bytes_max` bytes.
    #[must_use]
    pub fn new(journal: &JournalSettings, delta_records_max: usize, body_bytes_max: usize) -> Intervals {
        Intervals {
            delta_records_max,
            pieces: BTreeMap::new(),
            scratch: Interval::new(journal),
            writer: ChangesWriter::new(body_bytes_max),
        }
    }

    /// What comes next at `place`. Reads what `slice` has left and at most one delta more; while the slice
    /// is spent, a quiet answer may end before the history does.
    ///
    /// # Panics
    /// If the place is beyond the journal's head, or its frame bound has no room for one change.
    pub fn next(
        &mut self,
        place: &Place,
        reading: &Reading<'_>,
        slice: &mut Slice,
        figures: &mut Figures,
    ) -> Next {
        let &Reading { journal, namespaces, exposed, filter, pool } = reading;
        let key = (place.scope, place.from);
        let mut read_from = match self.pieces.get(&key) {
            Some(Piece::Encoded { through, body }) if body.frame_bytes() <= place.frame_bytes_max => {
                return Next::Delta { through: *through, body: Rc::clone(body) };
            }
            Some(Piece::Quiet { through }) => *through,
            Some(Piece::Encoded { .. }) | None => place.from,
        };
        let body_bytes_max = place.frame_bytes_max - HEADER_BYTES;
        while read_from < exposed && !slice.is_spent() {
            let through = Sequence(exposed.0.min(read_from.0 + self.delta_records_max as u64));
            // Asked before anything is read: what is encoded can leave and is kept, so that neither a slow
            // reader nor an exhausted pool makes us encode the same again and again.
            let records = usize::try_from(through.0 - read_from.0).expect("a delta's records");
            let needed = HEADER_BYTES + DeltaBody::BYTES + records * CHANGE_BYTES_MAX;
            let needed = needed.min(place.frame_bytes_max);
            if needed > place.credit_bytes {
                return Next::NoCredit;
            }
            if pool.in_use() + needed as u64 > pool.capacity() {
                return Next::NoRoom;
            }
            let cost =
                |record: &Record| if filter.admits(record.key.namespace) { CHANGE_BYTES_MAX } else { 0 };
            let room = body_bytes_max - DeltaBody::BYTES;
            match journal.read_encoded_through(read_from, through, room, cost, &mut self.scratch) {
                Ok(()) => {}
                Err(ReadError::HistoryGone { .. }) => return Next::HistoryGone,
                Err(error) => panic!("a cursor inside the history, and room for a change: {error}"),
            }
            figures.records_read += self.scratch.input_records();
            figures.records_coalesced += self.scratch.records().len() as u64;
            slice.charge_records(self.scratch.input_records() as usize);
            read_from = self.scratch.through();
            let body = self.encode(place.from, filter, namespaces);
            let Some(body) = body else {
                self.pieces.insert(key, Piece::Quiet { through: read_from });
                continue;
            };
            slice.charge_bytes(body.bytes.len());
            figures.on_encoded(&body);
            let body = SharedBody::charge(body, pool).expect("room was asked for");
            self.pieces.insert(key, Piece::Encoded { through: read_from, body: Rc::clone(&body) });
            return Next::Delta { through: read_from, body };
        }
        Next::Quiet { through: read_from }
    }

    /// The interval just read as a delta from `from`, unless it holds nothing for the scope.
    fn encode(&mut self, from: Sequence, filter: &Filter, namespaces: &Namespaces) -> Option<Body> {
        self.writer.delta(from, self.scratch.through());
        for record in self.scratch.records().iter().filter(|record| filter.admits(record.key.namespace)) {
            let change = match record.change {
                Change::Put { bytes } => WireChange::Put { bytes },
                Change::Delete => WireChange::Delete,
            };
            let namespace = namespaces.digest(record.key.namespace);
            let Record { key, medium, sequence, .. } = record;
            let pushed = self.writer.push(namespace, key.group, &key.block, *medium, change, *sequence);
            pushed.expect("the interval was cut to what fits");
        }
        (self.writer.count() > 0).then(|| self.writer.finish())
    }

    /// A delta that proves `(from, through]` empty, for a replay that ends quietly.
    #[must_use]
    pub fn empty_delta(&mut self, from: Sequence, through: Sequence) -> Body {
        self.writer.delta(from, through);
        self.writer.finish()
    }

    /// The writer, for pages.
    pub fn writer(&mut self) -> &mut ChangesWriter {
        &mut self.writer
    }

    /// Forgets every piece that nobody can come to: `places` are where subscribers of each scope stand.
    pub fn forget_passed(&mut self, places: &mut Vec<(ScopeDigest, Sequence)>) {
        // Ascending, so that the first of each scope is its rearmost.
        places.sort_unstable();
        places.dedup_by_key(|(scope, _)| *scope);
        self.pieces.retain(|(scope, from), _| {
            let place = places.binary_search_by_key(scope, |(scope, _)| *scope);
            place.is_ok_and(|place| places[place].1 <= *from)
        });
        self.forget_surplus();
    }

    /// Of each scope, only the newest pieces are kept: who is further behind has its own encoded again, at
    /// no cost to the others' memory.
    fn forget_surplus(&mut self) {
        if self.pieces.len() <= PIECES_MAX {
            return;
        }
        let (mut of_scope, mut kept) = (None, 0);
        let is_surplus = |(scope, _): &&(ScopeDigest, Sequence)| {
            kept = if of_scope == Some(*scope) { kept + 1 } else { 1 };
            of_scope = Some(*scope);
            kept > PIECES_MAX
        };
        let surplus: Vec<_> = self.pieces.keys().rev().filter(is_surplus).copied().collect();
        for key in surplus {
            self.pieces.remove(&key);
        }
    }

    /// Forgets encoded pieces that no ledger holds; whether any was. They are encoded again when needed.
    pub fn evict_unheld(&mut self) -> bool {
        let before = self.pieces.len();
        let is_held = |body: &Rc<SharedBody>| Rc::strong_count(body) > 1;
        self.pieces.retain(|_, piece| match piece {
            Piece::Quiet { .. } => true,
            Piece::Encoded { body, .. } => is_held(body),
        });
        self.pieces.len() < before
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Pieces kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Every body that is kept.
    #[cfg(test)]
    pub(super) fn bodies(&self) -> impl Iterator<Item = &Rc<SharedBody>> {
        self.pieces.values().filter_map(|piece| match piece {
            Piece::Quiet { .. } => None,
            Piece::Encoded { body, .. } => Some(body),
        })
    }
}

/// Pieces kept for the subscribers of one scope that lag.
pub const PIECES_MAX: usize = 16;

/// The most that one change adds to a body.
const CHANGE_BYTES_MAX: usize = RECORD_BYTES + NAMESPACE_BYTES;
