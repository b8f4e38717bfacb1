//! A snapshot on its way in: offered, then staged out of sight, and what is remembered of one for which
//! there was no room (chapter 2.6).

use hashbrown::HashSet;
use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::{Transcript, TranscriptDigest};

use super::close::CloseCause;
use crate::index::{ROW_BYTES_PLANNED, ViewId};
use crate::inventory::PermitTicket;
use crate::time::Moment;

/// Planned bytes a scanned residence takes beside its row, until commit: its sequence in a hash set that
/// is at least half full.
const SCANNED_BYTES_PLANNED: u64 = 24;

/// Where a bootstrap is.
#[derive(Debug)]
pub(super) enum Bootstrap {
    /// Nothing is offered.
    Idle,
    /// What was offered is refused. What still comes of it is nothing to this end.
    Refused,
    /// An offer waits until other snapshots have given their room back.
    Held(Offer),
    /// An offer waits for a permit.
    Offered(Offer, PermitTicket),
    /// Accepted.
    Staging(Box<Staging>),
}

/// What a source offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub snapshot: SnapshotId,
    pub after: Sequence,
    pub rows_max: u64,
}

/// What a source says its snapshot was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commit {
    pub snapshot: SnapshotId,
    pub through: Sequence,
    pub pages: u32,
    pub digest: TranscriptDigest,
}

/// A snapshot or a delta for which there was no room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Misfit {
    /// The estimate and the bytes it could have had; `None` if it was a delta.
    pub snapshot: Option<(u64, u64)>,
    pub at: Moment,
}

impl Misfit {
    /// Whether a snapshot with this estimate did not fit with as much room as it would have now.
    pub fn repeats(&self, rows_max: u64, room_bytes: u64) -> bool {
        self.snapshot.is_some_and(|(rows, bytes)| rows == rows_max && room_bytes <= bytes)
    }
}

/// Index bytes that a snapshot of so many rows is planned with.
pub(super) fn planned_bytes(rows_max: u64) -> u64 {
    rows_max.saturating_mul(ROW_BYTES_PLANNED + SCANNED_BYTES_PLANNED)
}

/// Which half of a snapshot has been reached. All pages come before the replay, so that a late page
/// cannot bring back what was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Scan,
    Replay,
}

/// A view being filled.
#[derive(Debug)]
pub(super) struct Staging {
    pub snapshot: SnapshotId,
    pub view: ViewId,
    pub ticket: PermitTicket,
    pub page_due: Moment,
    /// Bytes that were free when it was accepted.
    room_bytes: u64,
    rows_max: u64,
    half: Half,
    pages: u32,
    cursor: Sequence,
    scanned_last: Sequence,
    scanned: HashSet<u64>,
    transcript: Transcript,
}

impl Staging {
    /// Begins what was offered; rows go into the hidden `view`.
    pub fn new(
        offer: Offer,
        view: ViewId,
        ticket: PermitTicket,
        room_bytes: u64,
        page_due: Moment,
    ) -> Staging {
        Staging {
            snapshot: offer.snapshot,
            view,
            ticket,
            page_due,
            room_bytes,
            rows_max: offer.rows_max,
            half: Half::Scan,
            pages: 0,
            cursor: offer.after,
            scanned_last: Sequence(0),
            // At most what the budget has room for: the offer was weighed before.
            scanned: HashSet::with_capacity(offer.rows_max as usize),
            transcript: Transcript::new(offer.snapshot),
        }
    }

    /// Bytes it may still take of the budget, its view having `rows`.
    pub fn outstanding_bytes(&self, rows: u32) -> u64 {
        let missing = self.rows_max.saturating_sub(u64::from(rows));
        missing * ROW_BYTES_PLANNED + self.rows_max * SCANNED_BYTES_PLANNED
    }

    /// Its estimate, and the bytes that it could have had.
    pub fn estimate(&self) -> (u64, u64) {
        (self.rows_max, self.room_bytes)
    }

    /// A page has come, to be applied next.
    pub fn begin_page(
        &mut self,
        snapshot: SnapshotId,
        number: u32,
        rows: usize,
        body: &[u8],
    ) -> Result<(), CloseCause> {
        self.ensure(self.snapshot == snapshot, "a page is of another one")?;
        self.ensure(self.half == Half::Scan, "a page comes after the replay has begun")?;
        self.ensure(self.pages == number, "a page is missing or comes twice")?;
        let rows = self.scanned.len() as u64 + rows as u64;
        self.ensure(rows <= self.rows_max, "there are more residences than were offered")?;
        self.pages += 1;
        self.transcript.absorb(body);
        Ok(())
    }

    /// A residence of a page. Each sequence is scanned once.
    pub fn scan(&mut self, sequence: Sequence) -> Result<(), CloseCause> {
        if !self.scanned.insert(sequence.0) {
            return Err(CloseCause::SequenceConflict { sequence });
        }
        self.scanned_last = self.scanned_last.max(sequence);
        Ok(())
    }

    /// Whether the residence that began at this sequence was in the scan.
    pub fn has_scanned(&self, sequence: Sequence) -> bool {
        self.scanned.contains(&sequence.0)
    }

    /// A replayed interval has come, to be applied next.
    pub fn begin_replay(&mut self, from: Sequence, through: Sequence, body: &[u8]) -> Result<(), CloseCause> {
        self.continues(from, through)?;
        self.half = Half::Replay;
        self.transcript.absorb(body);
        Ok(())
    }

    /// An interval of the replay held nothing for this scope.
    pub fn skip_replay(&mut self, through: Sequence) -> Result<(), CloseCause> {
        self.continues(self.cursor, through)?;
        self.half = Half::Replay;
        self.cursor = through;
        Ok(())
    }

    fn continues(&self, from: Sequence, through: Sequence) -> Result<(), CloseCause> {
        let applied = self.cursor;
        if from == applied && applied <= through {
            Ok(())
        } else {
            Err(CloseCause::NotContiguous { from, through, applied })
        }
    }

    /// The replayed interval is applied.
    pub fn finish_replay(&mut self, through: Sequence) {
        self.cursor = through;
    }

    /// Whether everything that the commit speaks of is here.
    pub fn check(&self, commit: &Commit) -> Result<(), CloseCause> {
        let Commit { snapshot, through, pages, digest } = *commit;
        self.ensure(self.snapshot == snapshot, "the commit is of another one")?;
        self.ensure(self.pages == pages, "pages are missing")?;
        self.ensure(self.cursor == through, "the replay does not reach the commit")?;
        self.ensure(self.scanned_last <= through, "a scanned residence is newer than the commit")?;
        self.ensure(self.transcript.digest() == digest, "the transcripts differ")
    }

    fn ensure(&self, holds: bool, what: &'static str) -> Result<(), CloseCause> {
        if holds { Ok(()) } else { Err(CloseCause::Snapshot(what)) }
    }
}
