//! The operations for callers that wait: submit, then take this ticket's completions. Answers to
//! other tickets stay for [`Client::poll`].

use std::time::Duration;

use orbitkv_wire::bounds::DEADLINE_MS_MAX;
use orbitkv_wire::engine::answers::{
    BlockOutcome, CommitOutcome, DrainAnswer, EvictOutcome, PrefetchOutcome,
};
use orbitkv_wire::engine::requests::Completion as CompletionTarget;
use orbitkv_wire::identity::{BlockHash, GroupId, NamespaceDigest};

use super::engine::Client;
use super::error::ClientError;
use super::outcome::{
    AcquirePart, Acquisition, AttachPart, Cleared, Outcome, Page, QueryView, Reserved, Synced, Ticket,
};
use super::requests::{Media, Namespace, PrefixList, Registration, SaveKey};
use super::session::{Lease, ReadyBlock, ReservedSlot};

/// Takes the one outcome of its kind; decoding has made sure that it is.
macro_rules! only {
    ($outcomes:expr, $kind:pat => $value:expr) => {
        match $outcomes.pop() {
            Some($kind) => Ok($value),
            _ => unreachable!("an answer is checked against its request when it is decoded"),
        }
    };
}

/// Blocking forms. Each returns within `wait` plus the settings' grace, with
/// [`ClientError::DeadlineExceeded`] if the node says nothing at all, with
/// [`ClientError::Refused`] if it refuses, and with [`ClientError::ConnectionLost`] if the
/// connection ends first; limits are those of the `submit_*` form.
impl Client {
    /// Registers an engine's identity; the same one again gives the same handle at no cost.
    ///
    /// # Errors
    /// See above; a contradiction is refused with status `Conflict`, naming the field.
    pub fn register(
        &mut self,
        registration: &Registration,
        wait: Duration,
    ) -> Result<Namespace, ClientError> {
        if let Some(at) = self.known(registration) {
            return Ok(Namespace(at as u32));
        }
        let ticket = self.submit_register(registration, wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Registered(namespace) => namespace)
    }

    /// Asks for slots; one outcome a key.
    ///
    /// # Errors
    /// See above.
    pub fn reserve(
        &mut self,
        namespace: Namespace,
        keys: &[SaveKey],
        race: bool,
        wait: Duration,
    ) -> Result<Vec<Reserved>, ClientError> {
        let ticket = self.submit_reserve(namespace, keys, race, wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Reserved(reserved) => reserved)
    }

    /// Publishes filled slots; one outcome a slot. `slots` is empty once they are sent.
    ///
    /// # Errors
    /// See above.
    pub fn commit(
        &mut self,
        slots: &mut Vec<ReservedSlot>,
        wait: Duration,
    ) -> Result<Vec<CommitOutcome>, ClientError> {
        let ticket = self.submit_commit(slots, wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Settled(outcomes) => outcomes)
    }

    /// Gives slots back unpublished; one outcome a slot.
    ///
    /// # Errors
    /// See above.
    pub fn abort(
        &mut self,
        slots: &mut Vec<ReservedSlot>,
        wait: Duration,
    ) -> Result<Vec<CommitOutcome>, ClientError> {
        let ticket = self.submit_abort(slots, wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Settled(outcomes) => outcomes)
    }

    /// Asks how much of a prefix could be recovered to host memory.
    ///
    /// # Errors
    /// See above.
    pub fn query(
        &mut self,
        lists: &[PrefixList<'_>],
        hold: bool,
        wait: Duration,
    ) -> Result<QueryView, ClientError> {
        let ticket = self.submit_query(lists, CompletionTarget::Host, hold, wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Query(view) => view)
    }

    /// Makes blocks ready in the arena and waits for all of them.
    ///
    /// # Errors
    /// See above.
    pub fn acquire(
        &mut self,
        lists: &[PrefixList<'_>],
        held: Option<&Lease>,
        wait: Duration,
    ) -> Result<Acquisition, ClientError> {
        let keys = lists.iter().map(|list| list.blocks.len()).sum();
        let ticket = self.submit_acquire(lists, CompletionTarget::Host, held, wait)?;
        let mut lease = None;
        let mut boundary_blocks = 0;
        // A node that says nothing about a block does not have it.
        let mut blocks: Vec<Result<ReadyBlock, BlockOutcome>> =
            std::iter::repeat_with(|| Err(BlockOutcome::Missing)).take(keys).collect();
        for outcome in self.wait_for(ticket, wait)? {
            let Outcome::Acquire(AcquirePart { lease: of_part, boundary_blocks: boundary, blocks: decided }) =
                outcome
            else {
                unreachable!("an answer is checked against its request when it is decoded")
            };
            (lease, boundary_blocks) = (of_part.or(lease), boundary);
            for block in decided {
                blocks[block.index] = block.result;
            }
        }
        Ok(Acquisition { lease, boundary_blocks, blocks })
    }

    /// Says which blocks will be acquired within `wait`; one outcome a hash, at once.
    ///
    /// # Errors
    /// See above; status `Incompatible` if the node speaks version 1 only.
    pub fn prefetch(
        &mut self,
        lists: &[PrefixList<'_>],
        wait: Duration,
    ) -> Result<Vec<PrefetchOutcome>, ClientError> {
        let ticket = self.submit_prefetch(lists, wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Prefetched(outcomes) => outcomes)
    }

    /// Joins a lease that another process of the instance took.
    ///
    /// # Errors
    /// See above; status `UnknownLease` or `ForeignLease`.
    pub fn attach(&mut self, token: [u8; 16], wait: Duration) -> Result<AttachPart, ClientError> {
        let ticket = self.submit_attach(token, wait)?;
        let mut whole: Option<AttachPart> = None;
        for outcome in self.wait_for(ticket, wait)? {
            let Outcome::Attach(part) = outcome else {
                unreachable!("an answer is checked against its request when it is decoded")
            };
            match &mut whole {
                Some(whole) => whole.blocks.extend(part.blocks),
                None => whole = Some(part),
            }
        }
        Ok(whole.expect("a finished request has at least one outcome"))
    }

    /// Ends this connection's share of a lease; its blocks refuse to be read from now on.
    ///
    /// # Errors
    /// See above.
    pub fn release(&mut self, lease: &Lease, wait: Duration) -> Result<(), ClientError> {
        let ticket = self.submit_release(lease, wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Done => ())
    }

    /// Asks the node to stop an unanswered request, which completes by itself.
    ///
    /// # Errors
    /// See above.
    pub fn cancel(&mut self, ticket: Ticket, wait: Duration) -> Result<(), ClientError> {
        let ticket = self.submit_cancel(ticket, wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Done => ())
    }

    /// Drops keys from media; one outcome a key.
    ///
    /// # Errors
    /// See above.
    pub fn evict(
        &mut self,
        namespace: Namespace,
        keys: &[(BlockHash, GroupId)],
        media: Media,
        wait: Duration,
    ) -> Result<Vec<EvictOutcome>, ClientError> {
        let ticket = self.submit_evict(namespace, keys, media, wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Evicted(outcomes) => outcomes)
    }

    /// Drops a whole namespace from media.
    ///
    /// # Errors
    /// See above.
    pub fn clear(
        &mut self,
        namespace: NamespaceDigest,
        media: Media,
        wait: Duration,
    ) -> Result<Cleared, ClientError> {
        let ticket = self.submit_clear(namespace, media, wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Cleared(cleared) => cleared)
    }

    /// One page of residents, 1 to 4,096.
    ///
    /// # Errors
    /// See above.
    pub fn list(
        &mut self,
        namespace: NamespaceDigest,
        media: Media,
        limit: usize,
        cursor: Option<[u8; 40]>,
        wait: Duration,
    ) -> Result<Page, ClientError> {
        let ticket = self.submit_list(namespace, media, limit, cursor, wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Page(page) => page)
    }

    /// Waits for this connection's submitted saves.
    ///
    /// # Errors
    /// See above.
    pub fn sync(&mut self, wait: Duration) -> Result<Synced, ClientError> {
        let ticket = self.submit_sync(wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Synced(synced) => synced)
    }

    /// Stops the node once everything outstanding has ended; `progress` is told what remains. A node drains without
    /// an end of its own, so `wait` may be longer than a frame's deadline.
    ///
    /// # Errors
    /// See above; after [`ClientError::DeadlineExceeded`] a node that has told what remains goes on draining.
    pub fn drain(
        &mut self,
        wait: Duration,
        mut progress: impl FnMut(DrainAnswer),
    ) -> Result<(), ClientError> {
        let ticket = self.submit_drain(wait.min(Duration::from_millis(DEADLINE_MS_MAX.into())))?;
        self.wait_each(ticket, wait, |outcome| {
            if let Outcome::Draining(left) = outcome {
                progress(left);
            }
        })
    }

    /// An empty round trip.
    ///
    /// # Errors
    /// See above.
    pub fn ping(&mut self, wait: Duration) -> Result<(), ClientError> {
        let ticket = self.submit_ping(wait)?;
        only!(self.wait_for(ticket, wait)?, Outcome::Done => ())
    }
}
