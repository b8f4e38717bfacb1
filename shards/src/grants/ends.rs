//! How operations end, and how their memory comes back.
//!
//! An end gives back at once what the requester was never told of, so that no read begins for it, and stops
//! the stream. The rest waits for its proof.

use orbitkv_wire::identity::NodeId;
use orbitkv_wire::inventory::Requester;
use orbitkv_wire::payload::{OperationId, StopCause, Transport};

use super::operation::{Progress, Use};
use super::{Effect, Grants, OperationKey, Reader};
use crate::members::MemberMap;
use crate::payload_streams::PayloadConnection;
use crate::shard::{PinId, Shard};
use crate::time::Moment;

/// Whether whoever asked can still be told that an operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// It is told, and what is queued for it is dropped.
    Stop(StopCause),
    /// All it wanted has been sent, or its connection is gone.
    None,
}

impl Grants {
    /// The requester has what it wanted. From another connection than the operation's it means nothing.
    pub fn on_release(&mut self, connection: PayloadConnection, operation: OperationId, shard: &mut Shard) {
        let Some(key) = self.key_on(connection, operation) else { return };
        let notice = match self.operations[&key].progress {
            Progress::Running { .. } => Notice::Stop(StopCause::Cancelled),
            // What is on its way arrives: it is acknowledged, and drains by that.
            Progress::Sent => Notice::None,
            Progress::Ended | Progress::Quarantined => return,
        };
        self.figures.released += 1;
        self.end(key, notice, shard);
        self.assert_invariants();
    }

    /// The requester wants nothing more. Before its request has come this uses up the number, so that it will
    /// be refused.
    ///
    /// # Panics
    /// If the connection is not known.
    pub fn on_cancel(&mut self, connection: PayloadConnection, operation: OperationId, shard: &mut Shard) {
        let Some(key) = self.key_on(connection, operation) else {
            let Requester { node, incarnation } = self.connections[&connection].requester;
            let account = self.accounts.get_mut(&node).expect("a connection has its account");
            if account.incarnation == Some(incarnation) {
                account.use_up(operation);
            }
            return;
        };
        if matches!(self.operations[&key].progress, Progress::Ended | Progress::Quarantined) {
            return;
        }
        self.figures.cancelled += 1;
        self.end(key, Notice::Stop(StopCause::Cancelled), shard);
        self.assert_invariants();
    }

    /// A reader of this node and boot says on its peer socket that it reads nothing of an operation any more.
    /// True whatever became of incarnations, and answered in any case.
    pub fn on_released(&mut self, reader: &Reader, operation: OperationId, shard: &mut Shard) {
        let key = (reader.node, operation);
        let of_boot = |other: &Reader| other.boot == reader.boot;
        match self.operations.get(&key) {
            Some(lent) if lent.reader.as_ref().is_some_and(of_boot) => {
                if !self.has_ended(key) {
                    self.figures.released += 1;
                    self.end(key, Notice::Stop(StopCause::Cancelled), shard);
                }
                self.drain(key, shard);
            }
            // Another boot's, or one over QUIC: not theirs to release.
            Some(_) => return,
            None => {
                if let Some(account) = self.accounts.get_mut(&reader.node) {
                    account.use_up(operation);
                }
            }
        }
        self.effects.push_back(Effect::Drained { reader: *reader, operation });
        self.assert_invariants();
    }

    /// The peer socket of a reader is closed. That proves nothing, but nothing more is lent to it.
    pub fn on_reader_left(&mut self, reader: &Reader) {
        if self.readers.get(&reader.node) == Some(reader) {
            self.readers.remove(&reader.node);
        }
    }

    /// Whether anything waits for a proof of this reader. Its process is watched as long.
    #[must_use]
    pub fn is_read_by(&self, reader: &Reader) -> bool {
        self.keys_of(reader.node).iter().any(|key| self.operations[key].reader.as_ref() == Some(reader))
    }

    /// A reader's process is dead: nobody reads what it was told of.
    pub fn on_reader_dead(&mut self, reader: &Reader, shard: &mut Shard) {
        self.on_reader_left(reader);
        let read = |key: &OperationKey| self.operations[key].reader.as_ref() == Some(reader);
        let keys: Vec<OperationKey> = self.keys_of(reader.node).into_iter().filter(read).collect();
        for key in keys {
            if !self.has_ended(key) {
                self.figures.cut_off += 1;
                self.end(key, Notice::Stop(StopCause::Cancelled), shard);
            }
            self.drain(key, shard);
        }
        self.assert_invariants();
    }

    /// The transport has dropped its last reference to a loan: everything of it was acknowledged, or its
    /// stream was reset here, or its connection is discarded.
    ///
    /// # Panics
    /// If it is no loan, or has drained before.
    pub fn on_loan_drained(&mut self, loan: PinId, shard: &mut Shard) {
        let key = *self.pins.get(&loan).expect("a loan drains once");
        let operation = &self.operations[&key];
        assert_eq!(operation.transport, Transport::Quic, "nothing else is lent to the transport");
        assert_eq!(operation.pins[&loan].state, Use::Told, "only what was lent drains");
        self.give_back(loan, shard);
        self.end_if_drained(key);
        self.assert_invariants();
    }

    /// A connection is gone. What was lent on it drains as the transport says so; what is read over shared
    /// memory is read on.
    ///
    /// # Panics
    /// If the connection is not known.
    pub fn on_disconnected(&mut self, connection: PayloadConnection, shard: &mut Shard) {
        let keys = self.connections[&connection].operations.clone();
        for key in keys {
            if !self.has_ended(key) {
                self.figures.cut_off += 1;
                self.end(key, Notice::None, shard);
            }
        }
        let gone = self.connections.remove(&connection).expect("a connection ends once");
        let account = self.accounts.get_mut(&gone.requester.node).expect("a connection has its account");
        account.connections -= 1;
        self.forget_if_done(gone.requester.node);
        self.assert_invariants();
    }

    /// A life of a node is no member any more, or has a successor. Its connections are closed by the driver;
    /// nothing more is granted on them meanwhile.
    pub fn on_requester_gone(&mut self, requester: Requester, shard: &mut Shard) {
        let Requester { node, incarnation } = requester;
        for key in self.keys_of(node) {
            if self.operations[&key].requester.incarnation != incarnation {
                continue;
            }
            if !self.has_ended(key) {
                self.figures.cut_off += 1;
                self.end(key, Notice::Stop(StopCause::Excluded), shard);
            }
            // Nobody is left to answer for it: no reason to wait for its time.
            self.quarantine(key);
        }
        if let Some(account) = self.accounts.get_mut(&node).filter(|it| it.incarnation == Some(incarnation)) {
            account.incarnation = None;
            account.windows.clear();
        }
        self.forget_if_done(node);
        self.assert_invariants();
    }

    /// Who is a member now: lives that are none any more are gone, whether or not they have a connection.
    pub fn on_members(&mut self, members: &MemberMap, shard: &mut Shard) {
        let gone: Vec<Requester> = (self.accounts.iter())
            .filter_map(|(&node, account)| {
                let requester = Requester { node, incarnation: account.incarnation? };
                (!members.has(node, requester.incarnation)).then_some(requester)
            })
            .collect();
        gone.into_iter().for_each(|requester| self.on_requester_gone(requester, shard));
    }

    /// This node may not serve others any more: running streams stop and no read begins.
    pub fn on_fence(&mut self, shard: &mut Shard) {
        let running: Vec<OperationKey> = self.operations.keys().copied().collect();
        for key in running {
            if !self.has_ended(key) {
                self.figures.cut_off += 1;
                self.end(key, Notice::Stop(StopCause::Fenced), shard);
            }
        }
        self.assert_invariants();
    }

    pub(super) fn on_time(&mut self, now: Moment, shard: &mut Shard) {
        while let Some(&(expires, key)) = self.deadlines.first()
            && expires <= now
        {
            if !self.has_ended(key) {
                self.figures.expired += 1;
                self.end(key, Notice::Stop(StopCause::Deadline), shard);
            }
            self.quarantine(key);
        }
    }

    /// Ends an operation that has not ended.
    fn end(&mut self, key: OperationKey, notice: Notice, shard: &mut Shard) {
        let operation = self.operations.get_mut(&key).expect("only what exists ends");
        let was_sent = operation.progress == Progress::Sent;
        operation.progress = Progress::Ended;
        let untold = operation.pins.iter().filter(|(_, used)| used.state == Use::Awaited);
        let untold: Vec<PinId> = untold.map(|(&pin, _)| pin).collect();
        let (at, tag, transport) = (operation.at, operation.tag, operation.transport);
        if transport == Transport::Quic {
            self.deadlines.remove(&(operation.expires, key));
        }
        match notice {
            // An extent that has been told cannot be taken back, and its stream has ended.
            Notice::Stop(_) if was_sent && transport == Transport::Shm => {}
            Notice::Stop(cause) => {
                self.effects.push_back(Effect::Stop { at, tag, operation: key.1, cause });
            }
            Notice::None => {}
        }
        untold.into_iter().for_each(|pin| self.give_back(pin, shard));
        self.end_if_drained(key);
    }

    /// What is left of an ended operation over shared memory has no proof and no time any more.
    fn quarantine(&mut self, key: OperationKey) {
        let Some(operation) = self.operations.get_mut(&key) else { return };
        if operation.transport != Transport::Shm || operation.progress == Progress::Quarantined {
            return;
        }
        assert_eq!(operation.progress, Progress::Ended, "only what has ended is quarantined");
        operation.progress = Progress::Quarantined;
        self.deadlines.remove(&(operation.expires, key));
        let (pins, bytes) = (operation.pins.len() as u64, operation.slot_bytes());
        let account = self.accounts.get_mut(&key.0).expect("an operation has its account");
        account.quarantined_pins += pins;
        account.quarantined_bytes += bytes;
        self.quarantined_bytes += bytes;
        self.figures.quarantines += 1;
    }

    /// Gives back everything an ended operation has: nobody reads it.
    fn drain(&mut self, key: OperationKey, shard: &mut Shard) {
        let Some(operation) = self.operations.get(&key) else { return };
        let pins: Vec<PinId> = operation.pins.keys().copied().collect();
        pins.into_iter().for_each(|pin| self.give_back(pin, shard));
        self.end_if_drained(key);
    }

    pub(super) fn give_back(&mut self, pin: PinId, shard: &mut Shard) {
        let key = self.pins.remove(&pin).expect("a pin is given back once");
        let operation = self.operations.get_mut(&key).expect("a pin has its operation");
        let used = operation.pins.remove(&pin).expect("a pin is with its operation");
        if operation.progress == Progress::Quarantined {
            let account = self.accounts.get_mut(&key.0).expect("an operation has its account");
            account.quarantined_pins -= 1;
            account.quarantined_bytes -= used.slot_bytes;
            self.quarantined_bytes -= used.slot_bytes;
        }
        shard.unpin_grant(pin);
    }

    /// Forgets an operation that has nothing left.
    pub(super) fn end_if_drained(&mut self, key: OperationKey) {
        let Some(operation) = self.operations.get(&key).filter(|operation| operation.pins.is_empty()) else {
            return;
        };
        self.deadlines.remove(&(operation.expires, key));
        if let Some(connection) = self.connections.get_mut(&operation.at.connection) {
            connection.operations.remove(&key);
        }
        self.operations.remove(&key);
        self.accounts.get_mut(&key.0).expect("an operation has its account").operations -= 1;
        self.forget_if_done(key.0);
    }

    fn forget_if_done(&mut self, node: NodeId) {
        let is_done = self.accounts.get(&node).is_some_and(|account| {
            account.incarnation.is_none() && account.connections == 0 && account.operations == 0
        });
        if is_done {
            self.accounts.remove(&node);
        }
    }

    fn has_ended(&self, key: OperationKey) -> bool {
        matches!(self.operations[&key].progress, Progress::Ended | Progress::Quarantined)
    }

    /// The operation of this number, if it travels on this connection.
    fn key_on(&self, connection: PayloadConnection, operation: OperationId) -> Option<OperationKey> {
        let key = (self.connections.get(&connection)?.requester.node, operation);
        (self.operations.get(&key)?.at.connection == connection).then_some(key)
    }

    fn keys_of(&self, node: NodeId) -> Vec<OperationKey> {
        let first = (node, OperationId { origin: 0, number: 0 });
        let last = (node, OperationId { origin: u64::MAX, number: u64::MAX });
        self.operations.range(first..=last).map(|(&key, _)| key).collect()
    }
}
