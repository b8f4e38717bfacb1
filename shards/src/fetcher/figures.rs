//! What the room can say of itself.

use std::time::Duration;

use crate::resilience::claim_check::Claims;
use crate::resilience::deadline::Step;

/// Counters since the core began, and what is so now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetcherFigures {
    /// Fetches begun.
    pub begun: u64,
    /// Fetches that brought their block.
    pub fetched: u64,
    /// Payload bytes of those.
    pub bytes_fetched: u64,
    /// Of the fetches that brought their block: over shared memory.
    pub fetched_shm: u64,
    /// Payload bytes of those.
    pub bytes_fetched_shm: u64,
    /// Payload bytes that came and were of no use: wrong, or nobody wanted them any more. Of cancelled operations with
    /// their frames.
    pub bytes_wasted: u64,
    /// Fetches that failed because nobody has the block.
    pub missing: u64,
    /// Fetches that failed because everybody was busy, or too many fetches were here.
    pub busy: u64,
    /// Fetches that failed because bytes were wrong.
    pub corrupt: u64,
    /// Fetches that failed because a source's device did.
    pub device_error: u64,
    /// Fetches whose deadline passed.
    pub deadline: u64,
    /// Fetches that were given up by who began them.
    pub cancelled: u64,
    /// Fetches that went on with another route.
    pub rerouted: u64,
    /// Fetches that somebody waited for when their time was over, by the [`Step`] that had used most of it: their own
    /// time, or that of the engine that waited.
    pub out_of_time: [u64; Step::ALL.len()],
    /// Fetches that went on elsewhere because their source had not answered in their share of the time for that.
    pub left_silent: u64,
    /// Fetches given up while their bytes came; what was still to come was thrown away.
    pub transfers_left: u64,
    /// Cancelled operations whose stream ended after that was said once.
    pub cancels_confirmed: u64,
    /// Those whose stream ended after it was said again.
    pub cancels_repeated: u64,
    /// Those that the end of their connection ended.
    pub cancels_closed: u64,
    /// Residences of the index that were asked for, by what was there. One that is asked for twice counts twice;
    /// busy sources and broken calls count for neither.
    pub claims: Claims,

    /// Fetches given their first route.
    pub first_asks: u64,
    /// Fetches given another route after a call of theirs had failed, or was answered that the bytes cannot be read.
    pub extra_asks: u64,
    /// Fetches that were not, because there had been too many.
    pub extra_asks_refused: u64,
    /// Calls that were answered.
    pub calls_answered: u64,
    /// Calls that failed or took too long; those that were given up early are neither.
    pub calls_failed: u64,
    /// Times a source was left alone from then on.
    pub breaker_opens: u64,
    /// Calls that went out to see whether a source that was left alone answers.
    pub breaker_probes: u64,
    /// Routes passed over because their source is left alone.
    pub breaker_refusals: u64,

    /// Operations begun.
    pub operations: u64,
    /// Residences asked for.
    pub residences: u64,
    /// Operations on which nothing came any more.
    pub stalled: u64,
    /// Operations that their source broke off.
    pub reset: u64,
    /// Operations whose stream ended before everything granted had come.
    pub cut_short: u64,

    /// Answers: granted.
    pub granted: u64,
    /// Answers: it was here and is gone.
    pub ended: u64,
    /// Answers: never held.
    pub never_held: u64,
    /// Of those: residences beyond the source's head. An alarm.
    pub beyond_head: u64,
    /// Answers: busy.
    pub answered_busy: u64,
    /// Grants of another length than the index knew.
    pub wrong_lengths: u64,
    /// Granted residences that the source could not read.
    pub failed_reads: u64,
    /// Told extents that were not read to their end: time was over, nobody wanted them, or they were not there.
    pub unread: u64,
    /// Payloads without the checksum their source told.
    pub wrong_checksums: u64,

    /// Refusals: stale epoch.
    pub stale_epoch: u64,
    /// Of those: our epoch with another life. An alarm.
    pub epoch_conflicts: u64,
    /// Refusals: the source's lease has expired.
    pub lease_expired: u64,
    /// Refusals: the transport is off.
    pub transport_off: u64,
    /// Refusals: the operation's number was used before.
    pub repeated: u64,
    /// Refusals: misdirected.
    pub misdirected: u64,

    /// Connections dialed.
    pub dials: u64,
    /// Dials that failed.
    pub dials_failed: u64,
    /// Connections that ended from elsewhere.
    pub connections_lost: u64,
    /// Connections closed because of a violation.
    pub violations: u64,
    /// Messages and payload of operations that had ended; they changed nothing.
    pub late: u64,

    /// What may be asked for over the network in bytes a second; 0 for no bound.
    pub rate: u64,
    /// Payload bytes that may be asked for and not come at a time.
    pub bytes_window: u64,
    /// Payload bytes now that are asked for and may still come, wanted or not.
    pub bytes_outstanding: u64,
    /// Payload bytes that wait to be asked for now.
    pub bytes_queued: u64,
    /// Payload bytes now that nobody wants and that may still come.
    pub bytes_draining: u64,
    /// Time in which something waited to be asked for because of the rate alone.
    pub paced: Duration,

    /// Fetches that somebody waits for, failed as busy because too many had not ended.
    pub shed_demand_length: u64,
    /// Fetches that nobody waits for, failed as busy because more than half as many had not ended.
    pub shed_background_length: u64,
    /// Fetches that nobody waits for, failed as busy because what somebody waits for had waited too long.
    pub shed_background_age: u64,

    /// Fetches begun for which nobody waited.
    pub begun_background: u64,
    /// Of those, fetches that somebody came to wait for.
    pub promoted: u64,
    /// Most bytes of those asked for and not come at a time.
    pub background_bytes_peak: u64,

    /// Most fetches at a time.
    pub fetches_peak: u64,
    /// Most bytes asked for and not come at a time.
    pub bytes_outstanding_peak: u64,
}
