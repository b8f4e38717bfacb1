//! The client itself: which requests are unanswered, what has been answered, which connection is
//! in use, and how a frame finds its request.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use orbitkv_native::clock::monotonic_ns;
use orbitkv_wire::bounds::DEADLINE_MS_MAX;
use orbitkv_wire::engine::requests::{
    CancelBody, LeaseBody, ReservationRecord, ReservationsBody, append_request,
};
use orbitkv_wire::engine::{FLAG_MORE, Header, Operation};
use orbitkv_wire::identity::NamespaceDigest;
use rustix::event::epoll;

use super::ClientSettings;
use super::channel::Lost;
use super::error::ClientError;
use super::link::{Known, Link, NodeInfo, establish};
use super::moments::{Moments, RequestMoments};
use super::outcome::{Completion, Decoded, Expect, Outcome, Reserved, Ticket, decode};
use super::requests::Namespace;
use super::session::{Lease, Session};

/// An engine's connection to its node. See [the module](super).
pub struct Client {
    pub(super) settings: ClientSettings,
    epoll: OwnedFd,
    state: State,
    pub(super) namespaces: Vec<Known>,
    pending: BTreeMap<u64, Pending>,
    ready: VecDeque<Completion>,
    next_request: u64,
    pub(super) moments: Moments,
}

enum State {
    Up(Box<Link>),
    /// Lost; its session ends when another connection replaces it.
    Down(Arc<Session>),
}

struct Pending {
    operation: Operation,
    expect: Expect,
    /// When it was submitted, if anybody wants to know; else 0.
    submitted_ns: u64,
    /// The caller has gone: give back what the answer brings.
    abandoned: bool,
}

/// What a request's bytes are made of: the node's handles on the connection in use.
pub(super) struct Encoding<'a> {
    namespaces: &'a [Known],
    /// Session that slots and leases must be of.
    pub(super) session: &'a Arc<Session>,
    pub(super) request_id: u64,
    pub(super) deadline_ms: u32,
}

impl Encoding<'_> {
    pub(super) fn handle(&self, namespace: Namespace) -> Result<u32, ClientError> {
        let known = self.namespaces.get(namespace.0 as usize);
        known.map(|known| known.handle).ok_or(ClientError::UnknownNamespace { handle: namespace.0 })
    }
}

impl Client {
    /// Connects and maps the arena.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after `connect_wait`; [`ClientError::UntrustedNode`] if another
    /// user's process listens there; [`ClientError::Refused`] if the node
    /// speaks another version; [`ClientError::Arena`] if its arena is not what it says.
    pub fn connect(settings: ClientSettings) -> Result<Client, ClientError> {
        let link = establish(&settings, &mut [], None, settings.connect_wait)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| ClientError::System { step: "epoll_create", errno })?;
        let state = State::Down(link.session.clone());
        let moments = Moments::with_room(settings.moments_max);
        let mut client = Client {
            settings,
            epoll,
            state,
            namespaces: Vec::new(),
            pending: BTreeMap::new(),
            ready: VecDeque::new(),
            next_request: 1,
            moments,
        };
        client.take_link(link)?;
        Ok(client)
    }

    /// The one descriptor to wait on: readable when [`Self::poll`] may have something, the same
    /// for the client's whole life. Poll until `None` before waiting: answers that were read
    /// ahead do not show on it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The node of the connection in use; `None` while there is none.
    #[must_use]
    pub fn node(&self) -> Option<NodeInfo> {
        match &self.state {
            State::Up(link) => Some(link.node),
            State::Down(_) => None,
        }
    }

    /// The digest of a registered namespace, for Clear, List and the node's HTTP API.
    ///
    /// # Errors
    /// [`ClientError::UnknownNamespace`] for another client's handle.
    pub fn digest(&self, namespace: Namespace) -> Result<NamespaceDigest, ClientError> {
        let known = self.namespaces.get(namespace.0 as usize);
        known.map(|known| known.digest).ok_or(ClientError::UnknownNamespace { handle: namespace.0 })
    }

    /// Requests that may be submitted before answers must be taken. One seat of the node's grant
    /// is kept for Cancel.
    #[must_use]
    pub fn in_flight_max(&self) -> usize {
        match &self.state {
            State::Up(link) => usize::from(link.node.in_flight - 1).max(1),
            State::Down(_) => usize::from(self.settings.in_flight.max(1)),
        }
    }

    /// The next answer, if there is one; never blocks, never connects.
    pub fn poll(&mut self) -> Option<Completion> {
        if self.ready.is_empty() {
            self.progress();
        }
        self.ready.pop_front()
    }

    /// Connects if there is no connection, within `wait`. Other calls do it by themselves.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn reconnect(&mut self, wait: Duration) -> Result<(), ClientError> {
        let State::Down(last) = &self.state else { return Ok(()) };
        let link = establish(&self.settings, &mut self.namespaces, Some(&last.clone()), wait)?;
        self.take_link(link)
    }

    fn take_link(&mut self, link: Link) -> Result<(), ClientError> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        epoll::add(&self.epoll, link.channel.fd(), epoll::EventData::new_u64(0), flags)
            .map_err(|errno| ClientError::System { step: "epoll_ctl", errno })?;
        self.state = State::Up(Box::new(link));
        Ok(())
    }

    /// Sends one request. `encode` appends its frame and may be called again after a reconnect,
    /// when handles have changed; if it refuses, nothing was sent.
    pub(super) fn submit(
        &mut self,
        operation: Operation,
        wait: Duration,
        mut expect: Expect,
        encode: impl Fn(&Encoding<'_>, &mut Vec<u8>) -> Result<(), ClientError>,
    ) -> Result<Ticket, ClientError> {
        let until = Instant::now() + wait;
        let submitted_ns = if self.moments.is_on() { monotonic_ns() } else { 0 };
        let milliseconds = wait.as_millis();
        if milliseconds > u128::from(DEADLINE_MS_MAX) {
            return Err(ClientError::OverLimit {
                what: "milliseconds of deadline",
                count: usize::try_from(milliseconds).unwrap_or(usize::MAX),
                limit: DEADLINE_MS_MAX as usize,
            });
        }
        // Twice: the first write to a connection whose node has gone is what finds that out, and
        // a frame that was not taken whole was not executed.
        for _ in 0..2 {
            self.reconnect(until.saturating_duration_since(Instant::now()))?;
            self.check_seats(operation)?;
            let State::Up(link) = &mut self.state else { unreachable!("connected above") };
            let request_id = self.next_request;
            let encoding = Encoding {
                namespaces: &self.namespaces,
                session: &link.session,
                request_id,
                deadline_ms: (milliseconds as u32).max(1),
            };
            let before = link.channel.outgoing().len();
            if let Err(error) = encode(&encoding, link.channel.outgoing()) {
                link.channel.withdraw(before);
                return Err(error);
            }
            self.next_request += 1;
            match link.channel.flush() {
                Ok(()) => {
                    let pending = Pending { operation, expect, submitted_ns, abandoned: false };
                    self.pending.insert(request_id, pending);
                    self.watch_writing();
                    return Ok(Ticket(request_id));
                }
                Err(_) => self.lose(),
            }
            if let Expect::Acquire { lease, .. } | Expect::Attach(lease) = &mut expect {
                *lease = None;
            }
        }
        Err(ClientError::ConnectionLost { operation })
    }

    fn check_seats(&self, operation: Operation) -> Result<(), ClientError> {
        let State::Up(link) = &self.state else { unreachable!("the caller has connected") };
        let limit = match operation {
            Operation::Cancel => usize::from(link.node.in_flight),
            _ => self.in_flight_max(),
        };
        let undelivered = self.ready.iter().filter(|completion| completion.last).count();
        if self.pending.len() + undelivered >= limit || !link.channel.has_room() {
            return Err(ClientError::Full { in_flight: self.in_flight_max() });
        }
        Ok(())
    }

    /// Waits for the last completion of `ticket` and returns all of them. After `wait` and the
    /// grace the request is cancelled and forgotten; what a late answer brings is given back.
    pub(super) fn wait_for(&mut self, ticket: Ticket, wait: Duration) -> Result<Vec<Outcome>, ClientError> {
        let mut outcomes = Vec::new();
        match self.wait_each(ticket, wait, |outcome| outcomes.push(outcome)) {
            Ok(()) => Ok(outcomes),
            Err(error) => {
                // The caller will not see the parts that came before. An abandoned request gives
                // back at its end, when the node has stopped working on it.
                if !self.pending.contains_key(&ticket.0) {
                    outcomes.into_iter().for_each(|outcome| self.give_back(outcome));
                }
                Err(error)
            }
        }
    }

    /// As [`Self::wait_for`], telling each outcome as it comes.
    pub(super) fn wait_each(
        &mut self,
        ticket: Ticket,
        wait: Duration,
        mut each: impl FnMut(Outcome),
    ) -> Result<(), ClientError> {
        let operation = self.pending.get(&ticket.0).map_or(Operation::Ping, |pending| pending.operation);
        let until = Instant::now() + wait + self.settings.grace;
        loop {
            while let Some(at) = self.ready.iter().position(|completion| completion.ticket == ticket) {
                let completion = self.ready.remove(at).expect("found above");
                each(completion.result?);
                if completion.last {
                    return Ok(());
                }
            }
            if self.progress() {
                continue;
            }
            if Instant::now() >= until {
                self.abandon(ticket);
                return Err(ClientError::DeadlineExceeded { operation, wait });
            }
            if let State::Up(link) = &self.state {
                link.channel.wait(until)?;
            }
        }
    }

    fn abandon(&mut self, ticket: Ticket) {
        if let Some(pending) = self.pending.get_mut(&ticket.0) {
            pending.abandoned = true;
            let body = CancelBody { request_id: ticket.0 };
            self.send_unasked(Operation::Cancel, Expect::Done, |id, out| {
                append_request::<_, CancelBody>(out, Operation::Cancel, id, 0, &body, &[]);
            });
        }
    }

    /// Sends a request whose answer nobody waits for. Without a seat it is left out: the end of
    /// the connection does the same.
    fn send_unasked(&mut self, operation: Operation, expect: Expect, append: impl FnOnce(u64, &mut Vec<u8>)) {
        let State::Up(link) = &mut self.state else { return };
        if self.pending.len() >= usize::from(link.node.in_flight) || !link.channel.has_room() {
            return;
        }
        append(self.next_request, link.channel.outgoing());
        let pending = Pending { operation, expect, submitted_ns: 0, abandoned: true };
        self.pending.insert(self.next_request, pending);
        self.next_request += 1;
        if link.channel.flush().is_err() {
            self.lose();
        }
        self.watch_writing();
    }

    /// Sends and receives what can be without waiting; whether anything became ready or the
    /// connection was lost.
    fn progress(&mut self) -> bool {
        let State::Up(link) = &mut self.state else { return false };
        let before = self.ready.len();
        let flushed = link.channel.flush();
        let received = link.channel.receive();
        // What came before the end of the connection still counts.
        let decoded = self.take_frames();
        let lost = matches!(received, Err(Lost(_))) || flushed.is_err() || decoded.is_err();
        if lost {
            self.lose();
        } else {
            self.watch_writing();
        }
        lost || self.ready.len() > before || received.unwrap_or(false)
    }

    fn take_frames(&mut self) -> Result<(), ClientError> {
        loop {
            let State::Up(link) = &mut self.state else { return Ok(()) };
            let Some((header, body)) = link.channel.next_frame()? else { return Ok(()) };
            let Some(pending) = self.pending.get_mut(&header.request_id) else {
                return Err(ClientError::protocol("an answer to a request that was not made"));
            };
            let more = header.flags & FLAG_MORE != 0;
            if header.operation != pending.operation as u8 || (more && !pending.operation.may_stream()) {
                return Err(ClientError::protocol("an answer does not fit its request"));
            }
            let (operation, abandoned) = (pending.operation, pending.abandoned);
            let body = link.channel.body(body);
            let decoded = decode(&header, body, operation, &mut pending.expect, &link.session);
            let broken = matches!(decoded, Err(ClientError::Protocol { .. } | ClientError::Arena(_)));
            let last = !more || decoded.is_err();
            let result = decoded.and_then(|decoded| self.finish(&header, decoded));
            let ended = last.then(|| self.pending.remove(&header.request_id)).flatten();
            self.keep_moments(header.request_id, ended.as_ref());
            match (result, ended) {
                (result, _) if !abandoned => {
                    self.deliver(Completion { ticket: Ticket(header.request_id), last, result });
                }
                // A streamed answer names its lease before its end.
                (_, Some(Pending { expect: Expect::Acquire { lease, .. } | Expect::Attach(lease), .. })) => {
                    lease.iter().for_each(|lease| self.release_unasked(lease));
                }
                (Ok(outcome), Some(_)) => self.give_back(outcome),
                _ => {}
            }
            if broken {
                return Err(ClientError::protocol("an answer could not be read"));
            }
        }
    }

    /// Keeps when a request that has ended was submitted and answered, if anybody wants to know.
    fn keep_moments(&mut self, request: u64, ended: Option<&Pending>) {
        let (State::Up(link), Some(ended)) = (&self.state, ended) else { return };
        // What the client asked by itself, such as a Cancel of what nobody waits for, was submitted by nobody.
        if ended.submitted_ns == 0 {
            return;
        }
        self.moments.keep(RequestMoments {
            session: link.node.connection,
            request,
            operation: ended.operation,
            submitted_ns: ended.submitted_ns,
            returned_ns: monotonic_ns(),
        });
    }

    fn finish(&mut self, header: &Header, decoded: Decoded) -> Result<Outcome, ClientError> {
        let (handle, digest) = match decoded {
            Decoded::Outcome(outcome) => return Ok(outcome),
            Decoded::Registered { handle, digest } => (handle, digest),
        };
        let Some(Pending { expect: Expect::Register(registration), .. }) =
            self.pending.get(&header.request_id)
        else {
            unreachable!("only a Register is decoded as registered")
        };
        if let Some(at) = self.known(registration) {
            self.namespaces[at].handle = handle;
            return Ok(Outcome::Registered(Namespace(at as u32)));
        }
        let registration = (**registration).clone();
        self.namespaces.push(Known { registration, handle, digest });
        Ok(Outcome::Registered(Namespace(self.namespaces.len() as u32 - 1)))
    }

    pub(super) fn known(&self, registration: &super::Registration) -> Option<usize> {
        self.namespaces.iter().position(|known| known.registration == *registration)
    }

    pub(super) fn deliver(&mut self, completion: Completion) {
        // Progress of a drain replaces itself, so that a caller who does not look keeps one.
        if let (Some(newest), Ok(Outcome::Draining(_))) = (self.ready.back_mut(), &completion.result)
            && newest.ticket == completion.ticket
            && newest.result.is_ok()
        {
            *newest = completion;
            return;
        }
        self.ready.push_back(completion);
    }

    /// A ticket that is complete already, for work that needs no message.
    pub(super) fn complete_at_once(&mut self, outcome: Outcome) -> Ticket {
        let ticket = Ticket(self.next_request);
        self.next_request += 1;
        self.deliver(Completion { ticket, last: true, result: Ok(outcome) });
        ticket
    }

    /// Ends what an answer that nobody takes has brought.
    fn give_back(&mut self, outcome: Outcome) {
        let lease = match outcome {
            Outcome::Reserved(reserved) => return self.abort_unasked(&reserved),
            Outcome::Query(view) => view.lease,
            Outcome::Acquire(part) => part.lease,
            Outcome::Attach(part) => Some(part.lease),
            _ => None,
        };
        lease.iter().for_each(|lease| self.release_unasked(lease));
    }

    fn release_unasked(&mut self, lease: &Lease) {
        if lease.check().is_err() {
            return;
        }
        lease.end();
        let body = LeaseBody { lease: lease.token() };
        self.send_unasked(Operation::Release, Expect::Done, |id, out| {
            append_request::<_, LeaseBody>(out, Operation::Release, id, 0, &body, &[]);
        });
    }

    fn abort_unasked(&mut self, reserved: &[Reserved]) {
        let records = reserved.iter().filter_map(|reserved| match reserved {
            Reserved::Slot(slot) => Some(ReservationRecord { reservation: slot.reservation }),
            _ => None,
        });
        let records: Vec<ReservationRecord> = records.collect();
        let State::Up(link) = &self.state else { return };
        let body = ReservationsBody { arena_generation: link.node.arena_generation };
        if !records.is_empty() {
            self.send_unasked(Operation::Abort, Expect::Settle(records.len()), |id, out| {
                append_request(out, Operation::Abort, id, 0, &body, &records);
            });
        }
    }

    /// The connection has ended: every unanswered request completes with that.
    fn lose(&mut self) {
        let State::Up(link) = &self.state else { return };
        // Closing the socket takes it out of the epoll set.
        self.state = State::Down(link.session.clone());
        for (id, pending) in std::mem::take(&mut self.pending) {
            if !pending.abandoned {
                let result = Err(ClientError::ConnectionLost { operation: pending.operation });
                self.deliver(Completion { ticket: Ticket(id), last: true, result });
            }
        }
    }

    /// Wakes the caller for writing as long as something is unsent.
    fn watch_writing(&mut self) {
        let State::Up(link) = &mut self.state else { return };
        let unsent = link.channel.has_unsent();
        if unsent == link.channel.watched_for_writing {
            return;
        }
        let mut flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        flags.set(epoll::EventFlags::OUT, unsent);
        if epoll::modify(&self.epoll, link.channel.fd(), epoll::EventData::new_u64(0), flags).is_ok() {
            link.channel.watched_for_writing = unsent;
        }
    }
}
