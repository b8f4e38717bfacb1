//! The operations as submit and poll: each checks its limits, appends one frame and returns a
//! ticket. `wait` is the deadline the node is told; reconnecting counts against it.

use std::time::Duration;

use orbitkv_wire::bounds::{
    GROUPS_MAX, KEYS_PER_REQUEST_MAX, LIST_PAGE_MAX, QUERY_HASHES_MAX, QUERY_LISTS_MAX,
};
use orbitkv_wire::engine::Operation;
use orbitkv_wire::engine::requests::{
    CancelBody, ClearBody, Completion as CompletionTarget, EvictBody, HashRecord, KeyRecord, LeaseBody,
    ListBody, ListRecord, PrefixBody, ReservationRecord, ReservationsBody, ReserveBody, ReserveRecord,
    append_bare_request, append_prefix_request, append_request,
};
use orbitkv_wire::identity::{BlockHash, GroupId, NamespaceDigest};

use super::engine::{Client, Encoding};
use super::error::ClientError;
use super::outcome::{Expect, Outcome, Ticket};
use super::requests::{Media, Namespace, PrefixList, Registration, SaveKey, within};
use super::session::{Lease, ReservedSlot};

/// All `submit_*` return [`ClientError::Full`] with nothing sent while as many requests as
/// agreed have no delivered answer, [`ClientError::OverLimit`] beyond a limit of the protocol,
/// and [`ClientError::Unreachable`] if there is no connection and none can be made in `wait`.
impl Client {
    /// Registers an engine's identity; completes with [`Outcome::Registered`].
    ///
    /// # Errors
    /// See above; [`ClientError::TextTooLong`]. A registration that contradicts an earlier one
    /// completes with status `Conflict`.
    pub fn submit_register(
        &mut self,
        registration: &Registration,
        wait: Duration,
    ) -> Result<Ticket, ClientError> {
        within("layer groups in a registration", registration.groups.len(), GROUPS_MAX)?;
        let (body, groups) = (registration.body()?, registration.records());
        let expect = Expect::Register(Box::new(registration.clone()));
        self.submit(Operation::Register, wait, expect, |encoding, out| {
            append_request(
                out,
                Operation::Register,
                encoding.request_id,
                encoding.deadline_ms,
                &body,
                &groups,
            );
            Ok(())
        })
    }

    /// Asks for slots, at most 4,096 keys; completes with [`Outcome::Reserved`]. `race` asks for
    /// a slot although another engine is saving the key.
    ///
    /// # Errors
    /// See above.
    pub fn submit_reserve(
        &mut self,
        namespace: Namespace,
        keys: &[SaveKey],
        race: bool,
        wait: Duration,
    ) -> Result<Ticket, ClientError> {
        within("keys", keys.len(), KEYS_PER_REQUEST_MAX)?;
        let record =
            |key: &SaveKey| ReserveRecord { block: key.block.0, group: key.group.0, bytes: key.bytes };
        let records: Vec<ReserveRecord> = keys.iter().map(record).collect();
        let expect = Expect::Reserve(keys.iter().map(|key| key.bytes).collect());
        self.submit(Operation::Reserve, wait, expect, |encoding, out| {
            let body = ReserveBody { namespace: encoding.handle(namespace)?, race: u8::from(race) };
            append_request(
                out,
                Operation::Reserve,
                encoding.request_id,
                encoding.deadline_ms,
                &body,
                &records,
            );
            Ok(())
        })
    }

    /// Publishes filled slots, at most 4,096; completes with [`Outcome::Settled`]. Takes the
    /// slots out of `slots` once they are sent; on an error they stay.
    ///
    /// # Errors
    /// See above; [`ClientError::Ended`] or [`ClientError::StaleGeneration`] if a slot's
    /// connection was replaced.
    pub fn submit_commit(
        &mut self,
        slots: &mut Vec<ReservedSlot>,
        wait: Duration,
    ) -> Result<Ticket, ClientError> {
        self.settle(Operation::Commit, slots, wait)
    }

    /// Gives slots back unpublished, at most 4,096; otherwise as [`Self::submit_commit`].
    ///
    /// # Errors
    /// As [`Self::submit_commit`].
    pub fn submit_abort(
        &mut self,
        slots: &mut Vec<ReservedSlot>,
        wait: Duration,
    ) -> Result<Ticket, ClientError> {
        self.settle(Operation::Abort, slots, wait)
    }

    fn settle(
        &mut self,
        operation: Operation,
        slots: &mut Vec<ReservedSlot>,
        wait: Duration,
    ) -> Result<Ticket, ClientError> {
        within("slots", slots.len(), KEYS_PER_REQUEST_MAX)?;
        let record = |slot: &ReservedSlot| ReservationRecord { reservation: slot.reservation };
        let records: Vec<ReservationRecord> = slots.iter().map(record).collect();
        let ticket = self.submit(operation, wait, Expect::Settle(records.len()), |encoding, out| {
            slots.iter().try_for_each(|slot| slot.session.check())?;
            if slots.iter().any(|slot| !std::sync::Arc::ptr_eq(&slot.session, encoding.session)) {
                return Err(ClientError::Ended);
            }
            let body = ReservationsBody { arena_generation: encoding.session.arena.generation };
            append_request(out, operation, encoding.request_id, encoding.deadline_ms, &body, &records);
            Ok(())
        })?;
        slots.clear();
        Ok(ticket)
    }

    /// Asks how much of a prefix could be recovered, at most 16,384 hashes in at most 64 lists;
    /// completes with [`Outcome::Query`]. `hold` pins the local hits until Acquire, Release or
    /// the end of the connection.
    ///
    /// # Errors
    /// See above.
    pub fn submit_query(
        &mut self,
        lists: &[PrefixList<'_>],
        target: CompletionTarget,
        hold: bool,
        wait: Duration,
    ) -> Result<Ticket, ClientError> {
        let keys = count(lists, QUERY_HASHES_MAX)?;
        self.submit(Operation::Query, wait, Expect::Query(keys), |encoding, out| {
            append_prefix(out, Operation::Query, encoding, lists, target, hold, [0; 16])
        })
    }

    /// Makes blocks ready in the arena, at most 4,096; completes with [`Outcome::Acquire`], block
    /// by block as they become ready. `held` is the lease of a Query with `hold`, taken over.
    ///
    /// # Errors
    /// See above; [`ClientError::Ended`] or [`ClientError::StaleGeneration`] for a `held` lease
    /// that is over.
    pub fn submit_acquire(
        &mut self,
        lists: &[PrefixList<'_>],
        target: CompletionTarget,
        held: Option<&Lease>,
        wait: Duration,
    ) -> Result<Ticket, ClientError> {
        let keys = count(lists, KEYS_PER_REQUEST_MAX)?;
        let expect = Expect::Acquire { keys, lease: None };
        self.submit(Operation::Acquire, wait, expect, |encoding, out| {
            held.map_or(Ok(()), Lease::check)?;
            let lease = held.map_or([0; 16], Lease::token);
            append_prefix(out, Operation::Acquire, encoding, lists, target, false, lease)
        })
    }

    /// Says which blocks will be acquired within `wait`, at most 4,096, so that they may be in DRAM by then;
    /// completes with [`Outcome::Prefetched`] at once. Nothing is pinned, and nothing is promised.
    ///
    /// # Errors
    /// See above.
    pub fn submit_prefetch(
        &mut self,
        lists: &[PrefixList<'_>],
        wait: Duration,
    ) -> Result<Ticket, ClientError> {
        let keys = count(lists, KEYS_PER_REQUEST_MAX)?;
        let operation = Operation::Prefetch;
        self.submit(operation, wait, Expect::Prefetch(keys), |encoding, out| {
            append_prefix(out, operation, encoding, lists, CompletionTarget::Host, false, [0; 16])
        })
    }

    /// Joins a lease that another process of the instance took; completes with
    /// [`Outcome::Attach`].
    ///
    /// # Errors
    /// See above.
    pub fn submit_attach(&mut self, token: [u8; 16], wait: Duration) -> Result<Ticket, ClientError> {
        self.submit(Operation::Attach, wait, Expect::Attach(None), |encoding, out| {
            append_lease(out, Operation::Attach, encoding, token);
            Ok(())
        })
    }

    /// Ends this connection's share of a lease: its blocks refuse to be read from now on. A lease
    /// that ended with its connection completes at once.
    ///
    /// # Errors
    /// See above.
    pub fn submit_release(&mut self, lease: &Lease, wait: Duration) -> Result<Ticket, ClientError> {
        let sent = self.submit(Operation::Release, wait, Expect::Done, |encoding, out| {
            lease.0.session.check()?;
            append_lease(out, Operation::Release, encoding, lease.token());
            Ok(())
        });
        match sent {
            Err(ClientError::Ended | ClientError::StaleGeneration { .. }) => {
                Ok(self.complete_at_once(Outcome::Done))
            }
            sent => {
                let ticket = sent?;
                lease.end();
                Ok(ticket)
            }
        }
    }

    /// Stops an unanswered request of this client; that request completes by itself, with what
    /// it had or with status `Cancelled`. Has a seat of its own beside the other requests.
    ///
    /// # Errors
    /// See above.
    pub fn submit_cancel(&mut self, ticket: Ticket, wait: Duration) -> Result<Ticket, ClientError> {
        self.submit(Operation::Cancel, wait, Expect::Done, |encoding, out| {
            let body = CancelBody { request_id: ticket.0 };
            let (id, deadline_ms) = (encoding.request_id, encoding.deadline_ms);
            append_request::<_, CancelBody>(out, Operation::Cancel, id, deadline_ms, &body, &[]);
            Ok(())
        })
    }

    /// Drops keys from media, at most 4,096; completes with [`Outcome::Evicted`].
    ///
    /// # Errors
    /// See above.
    pub fn submit_evict(
        &mut self,
        namespace: Namespace,
        keys: &[(BlockHash, GroupId)],
        media: Media,
        wait: Duration,
    ) -> Result<Ticket, ClientError> {
        within("keys", keys.len(), KEYS_PER_REQUEST_MAX)?;
        let record = |(block, group): &(BlockHash, GroupId)| KeyRecord { block: block.0, group: group.0 };
        let records: Vec<KeyRecord> = keys.iter().map(record).collect();
        self.submit(Operation::Evict, wait, Expect::Evict(keys.len()), |encoding, out| {
            let body = EvictBody { namespace: encoding.handle(namespace)?, media: media.0 };
            append_request(out, Operation::Evict, encoding.request_id, encoding.deadline_ms, &body, &records);
            Ok(())
        })
    }

    /// Drops a whole namespace from media; completes with [`Outcome::Cleared`].
    ///
    /// # Errors
    /// See above.
    pub fn submit_clear(
        &mut self,
        namespace: NamespaceDigest,
        media: Media,
        wait: Duration,
    ) -> Result<Ticket, ClientError> {
        self.submit(Operation::Clear, wait, Expect::Clear, |encoding, out| {
            let body = ClearBody { namespace: namespace.0, media: media.0 };
            let (id, deadline_ms) = (encoding.request_id, encoding.deadline_ms);
            append_request::<_, ClearBody>(out, Operation::Clear, id, deadline_ms, &body, &[]);
            Ok(())
        })
    }

    /// Lists residents, 1 to 4,096 a page; completes with [`Outcome::Page`]. `cursor` is `None`
    /// for the first page, then `next` of the page before.
    ///
    /// # Errors
    /// See above.
    pub fn submit_list(
        &mut self,
        namespace: NamespaceDigest,
        media: Media,
        limit: usize,
        cursor: Option<[u8; 40]>,
        wait: Duration,
    ) -> Result<Ticket, ClientError> {
        within("residents in a page", limit, LIST_PAGE_MAX)?;
        let (cursor, limit) = (cursor.unwrap_or([0; 40]), limit.max(1) as u32);
        self.submit(Operation::List, wait, Expect::List, |encoding, out| {
            let body = ListBody { namespace: namespace.0, media: media.0, limit, cursor };
            let (id, deadline_ms) = (encoding.request_id, encoding.deadline_ms);
            append_request::<_, ListBody>(out, Operation::List, id, deadline_ms, &body, &[]);
            Ok(())
        })
    }

    /// An empty round trip; completes with [`Outcome::Done`].
    ///
    /// # Errors
    /// See above.
    pub fn submit_ping(&mut self, wait: Duration) -> Result<Ticket, ClientError> {
        self.bare(Operation::Ping, Expect::Done, wait)
    }

    /// Waits for this connection's submitted saves; completes with [`Outcome::Synced`].
    ///
    /// # Errors
    /// See above.
    pub fn submit_sync(&mut self, wait: Duration) -> Result<Ticket, ClientError> {
        self.bare(Operation::Sync, Expect::Sync, wait)
    }

    /// Stops the node once everything outstanding has ended; completes with
    /// [`Outcome::Draining`] again and again, the last one all zeros.
    ///
    /// # Errors
    /// See above.
    pub fn submit_drain(&mut self, wait: Duration) -> Result<Ticket, ClientError> {
        self.bare(Operation::Drain, Expect::Drain, wait)
    }

    fn bare(&mut self, operation: Operation, expect: Expect, wait: Duration) -> Result<Ticket, ClientError> {
        self.submit(operation, wait, expect, |encoding, out| {
            append_bare_request(out, operation, encoding.request_id, encoding.deadline_ms);
            Ok(())
        })
    }
}

fn count(lists: &[PrefixList<'_>], limit: usize) -> Result<usize, ClientError> {
    within("lists", lists.len(), QUERY_LISTS_MAX)?;
    let count = lists.iter().map(|list| list.blocks.len()).sum();
    within("block hashes", count, limit)?;
    Ok(count)
}

fn append_prefix(
    out: &mut Vec<u8>,
    operation: Operation,
    encoding: &Encoding<'_>,
    lists: &[PrefixList<'_>],
    target: CompletionTarget,
    hold: bool,
    lease: [u8; 16],
) -> Result<(), ClientError> {
    let records = lists.iter().map(|list| {
        let namespace = encoding.handle(list.namespace)?;
        Ok(ListRecord { namespace, group: list.group.0, count: list.blocks.len() as u32 })
    });
    let records: Vec<ListRecord> = records.collect::<Result<_, ClientError>>()?;
    let hashes = lists.iter().flat_map(|list| list.blocks.iter().map(|block| HashRecord { block: block.0 }));
    let hashes: Vec<HashRecord> = hashes.collect();
    let body =
        PrefixBody { lists: records.len() as u32, completion: target as u8, hold: u8::from(hold), lease };
    append_prefix_request(
        out,
        operation,
        encoding.request_id,
        encoding.deadline_ms,
        &body,
        &records,
        &hashes,
    );
    Ok(())
}

fn append_lease(out: &mut Vec<u8>, operation: Operation, encoding: &Encoding<'_>, lease: [u8; 16]) {
    let body = LeaseBody { lease };
    append_request::<_, LeaseBody>(out, operation, encoding.request_id, encoding.deadline_ms, &body, &[]);
}
