//! What each operation of the engine channel starts: checks, then commands by shard.

use orbitkv_shards::leases::{ConnectionId, InstanceId, LeaseToken};
use orbitkv_shards::reservations::ReservationId;
use orbitkv_shards::shard::command::{Holder, Media};
use orbitkv_shards::shard::{Command, Key, Tag};
use orbitkv_shards::time::Moment;
use orbitkv_wire::bounds::QUERY_BATCH_KEYS;
use orbitkv_wire::engine::answers::{
    self, BlockRecord, CommitOutcome, HelloAnswer, OutcomeRecord, Place, PlaceRecord, QueryAnswer,
    RegisterAnswer, ResidentRecord, SlotRecord,
};
use orbitkv_wire::engine::requests::{
    Completion, GroupRecord, HashRecord, HelloBody, KeyRecord, ListBody, ListRecord, PrefixBody,
    RegisterBody, Request, ReservationRecord, ReservationsBody, ReserveRecord,
};
use orbitkv_wire::engine::{Header, Operation, Status, VERSION, VERSION_MIN, layout_hash};
use orbitkv_wire::identity::{BlockHash, GroupId, NamespaceDigest, ShardIndex, key_hash};
use orbitkv_wire::layout::{Fixed, Records};

use super::connection::{OWED_PAUSE_BYTES, REGISTRATIONS_PER_CONNECTION_MAX};
use super::job::{Collected, Course, Job, decode_cursor};
use super::prefix::Prefix;
use super::refusal::Refused;
use super::registration::describe;
use super::repeat::{Repeat, is_ledgered};
use super::views::Views;
use super::{Connection, EngineHub, Errand, Phase, deadline};

pub(super) type Parts = Vec<(ShardIndex, Command)>;

impl EngineHub {
    pub(super) fn begin(
        &mut self,
        id: ConnectionId,
        operation: Operation,
        header: &Header,
        body: &[u8],
        request: Request<'_>,
        now: Moment,
    ) -> Result<(), Refused> {
        let request_id = header.request_id;
        let greeted = self.at(id).phase == Phase::Open;
        if greeted == matches!(request, Request::Hello(_)) {
            let text = if greeted { "Hello was said already" } else { "say Hello first" };
            return Err(Refused::new(Status::OutOfOrder, 0, text.into()));
        }
        let connection = self.at(id);
        let limit = connection.in_flight_max;
        let passes = matches!(request, Request::Cancel(_) | Request::Release(_));
        if connection.unanswered() >= limit && !passes {
            let text = format!("{limit} requests are unanswered, the most agreed: wait for answers");
            return Err(Refused::new(Status::TooManyInFlight, limit as u64, text));
        }
        let ledgered = is_ledgered(operation);
        if ledgered {
            match self.repeat(id, operation, request_id, body, now) {
                Repeat::Fresh => {}
                Repeat::Handled => return Ok(()),
                Repeat::Refused(refused) => return Err(refused),
            }
        } else if self.at(id).is_unanswered(request_id) {
            return Err(Refused::duplicate(request_id));
        }
        let begun = self.start(id, operation, header, request, now, ledgered);
        if begun.is_err() && ledgered {
            self.at(id).ledger.abandon(request_id);
        }
        begun
    }

    pub(super) fn at(&mut self, id: ConnectionId) -> &mut Connection {
        self.connections.get_mut(&id).expect("frames come from live connections")
    }

    fn start(
        &mut self,
        id: ConnectionId,
        operation: Operation,
        header: &Header,
        request: Request<'_>,
        now: Moment,
        ledgered: bool,
    ) -> Result<(), Refused> {
        let request_id = header.request_id;
        let shards = self.greeting.shards;
        let (owed_bytes, key_bytes) = (owed_bytes(&request), key_bytes(&request));
        if let Request::Query(body, ..) | Request::Acquire(body, ..) = &request {
            host_memory(body)?;
        }
        let (collected, parts): (Collected, Parts) = match request {
            Request::Hello(hello) => return self.hello(id, request_id, &hello),
            Request::Ping => return self.done(id, operation, request_id),
            Request::Register(body, groups) => return self.register(id, request_id, &body, &groups),
            Request::Cancel(cancel) => {
                if let Some(&job) = self.at(id).requests.get(&cancel.request_id) {
                    self.give_up(job, false);
                }
                self.cancel_drain(id, cancel.request_id);
                return self.done(id, operation, request_id);
            }
            Request::Drain => return self.begin_drain(id, request_id),
            Request::Query(body, lists, hashes) => {
                return self.query(id, header, (&body, &lists, hashes), owed_bytes, now);
            }
            Request::Reserve(body, records) => {
                let namespace = self.namespace(id, body.namespace)?;
                let count = records.len();
                let keys = self.reserve_keys(id, body.namespace, records)?;
                let parts = split(
                    shards,
                    keys,
                    |(key, _)| key.hash.shard(shards),
                    |keys| Command::Reserve { connection: id, namespace, race: body.race == 1, keys },
                );
                (
                    Collected::Slots(vec![
                        SlotRecord { outcome: 0, reservation: 0, offset: 0, bytes: 0 };
                        count
                    ]),
                    parts,
                )
            }
            Request::Commit(body, records) => {
                let (records, blank) = self.reservations(&body, records)?;
                let parts = split(shards, records, shard_of(shards), |reservations| Command::Commit {
                    connection: id,
                    reservations,
                });
                (Collected::Outcomes(blank), parts)
            }
            Request::Abort(body, records) => {
                let (records, blank) = self.reservations(&body, records)?;
                let parts = split(shards, records, shard_of(shards), |reservations| Command::Abort {
                    connection: id,
                    reservations,
                });
                (Collected::Outcomes(blank), parts)
            }
            Request::Acquire(body, lists, hashes) => {
                self.acquire(id, (&body, &lists, hashes), deadline(header, now))?
            }
            Request::Attach(body) => {
                let holder = self.holder(id, LeaseToken(u128::from_le_bytes(body.lease)))?;
                let blocks = Vec::new();
                let lease = holder.token;
                let collected = Collected::Attached { lease, blocks, known: false, error: None };
                (collected, everywhere(shards, || Command::Attach { holder }))
            }
            Request::Release(body) => {
                let token = LeaseToken(u128::from_le_bytes(body.lease));
                (Collected::Released, everywhere(shards, || Command::Release { token, connection: id }))
            }
            Request::Evict(body, records) => {
                let namespace = self.namespace(id, body.namespace)?;
                let media = Media::from_mask(body.media);
                let count = records.len();
                let keys = evict_keys(&namespace, records)?;
                let parts = split(
                    shards,
                    keys,
                    |key| key.hash.shard(shards),
                    |keys| Command::Evict { namespace, media, keys },
                );
                (Collected::Outcomes(vec![OutcomeRecord { outcome: 0 }; count]), parts)
            }
            Request::Clear(body) => {
                let (namespace, media) = (NamespaceDigest(body.namespace), Media::from_mask(body.media));
                let collected = Collected::Cleared(answers::ClearAnswer { removed: 0, in_use: 0 });
                (collected, everywhere(shards, || Command::Clear { namespace, media }))
            }
            Request::List(body) => self.list(&body)?,
            Request::Prefetch(body, lists, hashes) => {
                self.prefetch(id, (&body, &lists, hashes), deadline(header, now))?
            }
            Request::Sync => {
                let heads = vec![answers::SequenceRecord { sequence: 0 }; usize::from(shards)];
                let outcome = match self.basis {
                    None => answers::SyncOutcome::LocalFlushComplete,
                    Some(_) => answers::SyncOutcome::Fence,
                };
                (
                    Collected::Sequences { heads, incarnation: None, outcome },
                    everywhere(shards, || Command::Sync),
                )
            }
        };
        let waits = matches!(operation, Operation::Acquire | Operation::Sync);
        let job = Job {
            connection: id,
            request_id,
            operation,
            deadline: waits.then(|| deadline(header, now)),
            owed_bytes,
            key_bytes,
            outstanding: 0,
            refused: None,
            ledgered,
            course: Course::Running,
            collected,
        };
        let number = self.start_job(job);
        self.send(number, parts, now);
        Ok(())
    }

    fn send(&mut self, number: u64, parts: Parts, now: Moment) {
        if parts.is_empty() {
            return self.finish(number, now);
        }
        let tag = self.tag(number);
        self.jobs.get_mut(&number).expect("just started").outstanding = parts.len() as u32;
        let commands = parts.into_iter().map(|(shard, command)| (shard, tag, command)).collect();
        self.errands.push_back(Errand::Commands(commands));
    }

    fn done(&mut self, id: ConnectionId, operation: Operation, request_id: u64) -> Result<(), Refused> {
        answers::append_done(&mut self.at(id).outbound, operation, request_id);
        self.trace.answer(id.0, request_id);
        self.dirty.insert(id);
        Ok(())
    }

    fn hello(&mut self, id: ConnectionId, request_id: u64, hello: &HelloBody) -> Result<(), Refused> {
        if hello.version_max < VERSION_MIN || hello.version_min > VERSION {
            let text = format!(
                "the engine speaks versions {} to {}, this node {VERSION_MIN} to {VERSION}: update the older one",
                hello.version_min, hello.version_max
            );
            return Err(Refused::new(Status::Incompatible, u64::from(VERSION), text));
        }
        if hello.layout_hash != layout_hash() {
            let text = format!(
                "the engine's frames have layout {:016x}, this node's {:016x}: use one build of both",
                hello.layout_hash,
                layout_hash()
            );
            return Err(Refused::new(Status::Incompatible, u64::from(VERSION), text));
        }
        let greeting = self.greeting;
        let connection = self.at(id);
        connection.phase = Phase::Open;
        connection.in_flight_max = usize::from(hello.in_flight).clamp(1, connection.in_flight_max);
        let body = HelloAnswer {
            version: hello.version_max.min(VERSION),
            layout_hash: layout_hash(),
            arena_generation: greeting.arena_generation,
            arena_bytes: greeting.arena_bytes,
            connection: id.0,
            incarnation: greeting.incarnation.0,
            shards: greeting.shards,
            in_flight: connection.in_flight_max as u16,
            page_kind: greeting.page_kind as u8,
        };
        answers::append_answer::<_, OutcomeRecord>(
            &mut connection.outbound,
            Operation::Hello,
            request_id,
            false,
            &body,
            &[],
        );
        let process_id = connection.process_id;
        self.trace.answer(id.0, request_id);
        self.dirty.insert(id);
        if hello.previous_connection != 0 && hello.previous_connection != id.0 {
            let connection = ConnectionId(hello.previous_connection);
            self.errands.push_back(Errand::Abandoned { connection, process_id });
        }
        Ok(())
    }

    fn register(
        &mut self,
        id: ConnectionId,
        request_id: u64,
        body: &RegisterBody,
        groups: &[GroupRecord],
    ) -> Result<(), Refused> {
        if self.draining {
            return Err(Refused::draining());
        }
        let connection = self.at(id);
        if connection.registered.len() + connection.registering >= REGISTRATIONS_PER_CONNECTION_MAX {
            let limit = REGISTRATIONS_PER_CONNECTION_MAX;
            let text = format!("this connection has {limit} registrations, the most it may");
            return Err(Refused::new(Status::OverLimit, limit as u64, text));
        }
        let (registration, registered) = describe(id, body, groups)?;
        let asked = &registration.instance;
        if let Some(name) = connection.instance_name.as_ref().filter(|name| *name != asked) {
            // Its leases belong to that instance: they would be lost to it.
            let text = format!(
                "this connection registered as instance {name:?}, not {asked:?}: use a connection for each"
            );
            return Err(Refused::new(Status::Conflict, 0, text));
        }
        connection.instance_name = Some(asked.clone());
        connection.registering += 1;
        let job = Job {
            connection: id,
            request_id,
            operation: Operation::Register,
            deadline: None,
            owed_bytes: RegisterAnswer::BYTES,
            key_bytes: 0,
            outstanding: 1,
            refused: None,
            ledgered: true,
            course: Course::Running,
            collected: Collected::Registering(Box::new(registered)),
        };
        let number = self.start_job(job);
        let tag: Tag = self.tag(number);
        self.errands.push_back(Errand::Register(tag, Box::new(registration)));
        Ok(())
    }

    fn namespace(&mut self, id: ConnectionId, handle: u32) -> Result<NamespaceDigest, Refused> {
        let registered = self.at(id).registered.get(handle as usize).map(|registered| registered.namespace);
        registered.ok_or_else(|| {
            let text =
                format!("namespace handle {handle} was never given to this connection: register first");
            Refused::new(Status::UnknownNamespace, u64::from(handle), text)
        })
    }

    fn holder(&mut self, id: ConnectionId, token: LeaseToken) -> Result<Holder, Refused> {
        let instance: InstanceId = self.at(id).instance.ok_or_else(|| {
            Refused::new(Status::NotRegistered, 0, "leases belong to an instance: register first".into())
        })?;
        Ok(Holder { token, instance, connection: id })
    }

    fn reserve_keys(
        &mut self,
        id: ConnectionId,
        handle: u32,
        records: Records<'_, ReserveRecord>,
    ) -> Result<Vec<(Key, u64)>, Refused> {
        let registered = &self.at(id).registered[handle as usize];
        let mut keys = Vec::with_capacity(records.len());
        for (index, record) in (0u32..).zip(records.iter()) {
            let record = record?;
            let (group, block) = (GroupId(record.group), BlockHash(record.block));
            let known = registered.groups.iter().find(|(known, ..)| *known == group);
            let Some(&(_, _, block_bytes)) = known else {
                let text = format!("group {} is not registered in this namespace", record.group);
                return Err(Refused::new(Status::Malformed, u64::from(record.group), text));
            };
            if record.bytes == 0 || record.bytes > block_bytes {
                let text = format!(
                    "key {index} has {} bytes: blocks of group {} have 1 to {block_bytes}, as registered",
                    record.bytes, record.group
                );
                return Err(Refused::new(Status::OverLimit, block_bytes, text));
            }
            let hash = key_hash(&registered.namespace, group, &block);
            keys.push((Key { index, namespace: 0, group, block, hash }, record.bytes));
        }
        Ok(keys)
    }

    #[allow(clippy::type_complexity)] // Positions with reservations, and the answer they will fill.
    fn reservations(
        &mut self,
        body: &ReservationsBody,
        records: Records<'_, ReservationRecord>,
    ) -> Result<(Vec<(u32, ReservationId)>, Vec<OutcomeRecord>), Refused> {
        if body.arena_generation != self.greeting.arena_generation {
            self.counters.stale_generation += 1;
            let text = "these slots belong to an earlier daemon's arena: their blocks must be saved again";
            let now = self.greeting.arena_generation;
            return Err(Refused::new(Status::StaleGeneration, now, text.into()));
        }
        let blank = vec![OutcomeRecord { outcome: CommitOutcome::NotYours as u8 }; records.len()];
        let ids = (0u32..).zip(records.iter());
        let ids = ids.map(|(index, record)| Ok((index, ReservationId(record?.reservation))));
        let ids = ids.collect::<Result<Vec<_>, Refused>>()?;
        // A number that no shard of this node makes stays "not yours".
        let shards = self.greeting.shards;
        let ids = ids.into_iter().filter(|(_, id)| id.shard().0 < shards).collect();
        Ok((ids, blank))
    }

    fn acquire(
        &mut self,
        id: ConnectionId,
        (body, lists, hashes): (&PrefixBody, &[ListRecord], Records<'_, HashRecord>),
        until: Moment,
    ) -> Result<(Collected, Parts), Refused> {
        if self.draining {
            return Err(Refused::draining());
        }
        let token = match u128::from_le_bytes(body.lease) {
            0 => self.new_token(),
            held => LeaseToken(held),
        };
        let holder = self.holder(id, token)?;
        let mut prefix = Prefix::compile(&self.at(id).registered, lists, hashes)?;
        let shards = self.greeting.shards;
        let namespaces = prefix.namespaces.clone();
        let mut parts = split(
            shards,
            prefix.take_all(),
            |key| key.hash.shard(shards),
            |keys| Command::Acquire { holder, namespaces: namespaces.clone(), keys, until },
        );
        if body.lease != [0; 16] {
            // The hold may pin blocks on shards that have no key of this request: it ends there too.
            for shard in (0..shards).map(ShardIndex) {
                if !parts.iter().any(|(part, _)| *part == shard) {
                    let (namespaces, keys) = (Vec::new(), Vec::new());
                    parts.push((shard, Command::Acquire { holder, namespaces, keys, until }));
                }
            }
        }
        Ok((Collected::Blocks { prefix: Box::new(prefix), untold: Vec::new(), lease: token }, parts))
    }

    fn query(
        &mut self,
        id: ConnectionId,
        header: &Header,
        (body, lists, hashes): (&PrefixBody, &[ListRecord], Records<'_, HashRecord>),
        owed_bytes: usize,
        now: Moment,
    ) -> Result<(), Refused> {
        if body.hold == 1 {
            self.holder(id, LeaseToken(0))?;
        }
        // What a draining node held could not be acquired any more.
        let holds = body.hold == 1 && !self.draining;
        let lease = if holds { self.new_token() } else { LeaseToken(0) };
        let prefix = Prefix::compile(&self.at(id).registered, lists, hashes)?;
        let unexamined = PlaceRecord { place: Place::NotExamined as u8 };
        let places = vec![unexamined; prefix.blocks()];
        let job = Job {
            connection: id,
            request_id: header.request_id,
            operation: Operation::Query,
            deadline: (header.deadline_ms > 0).then(|| deadline(header, now)),
            owed_bytes,
            key_bytes: 0,
            outstanding: 0,
            refused: None,
            ledgered: false,
            course: Course::Running,
            collected: Collected::Query {
                prefix: Box::new(prefix),
                places,
                views: Views::new(self.basis),
                lease,
            },
        };
        let number = self.start_job(job);
        self.next_batch(number, now);
        Ok(())
    }

    /// Sends the next batch of a Query.
    pub(super) fn next_batch(&mut self, number: u64, now: Moment) {
        let shards = self.greeting.shards;
        let job = self.jobs.get_mut(&number).expect("a Query in work");
        let connection = job.connection;
        let Collected::Query { prefix, lease, .. } = &mut job.collected else {
            panic!("only a Query works in batches")
        };
        let keys = prefix.next_batch();
        let namespaces = prefix.namespaces.clone();
        let token = *lease;
        let hold = (token != LeaseToken(0)).then(|| self.holder(connection, token)).transpose();
        let hold = hold.expect("checked when the Query began");
        let parts = split(
            shards,
            keys,
            |key| key.hash.shard(shards),
            |keys| Command::Query { namespaces: namespaces.clone(), keys, hold },
        );
        self.send(number, parts, now);
    }

    fn list(&mut self, body: &ListBody) -> Result<(Collected, Parts), Refused> {
        let shards = self.greeting.shards;
        if body.limit == 0 {
            return Err(Refused::new(Status::Malformed, 1, "a page has at least one block".into()));
        }
        let (shard, after) = decode_cursor(&body.cursor, shards).ok_or_else(|| {
            Refused::new(Status::Malformed, 0, "this cursor was not given by this node: start over".into())
        })?;
        let command = Command::List {
            namespace: NamespaceDigest(body.namespace),
            media: Media::from_mask(body.media),
            after,
            limit: body.limit,
        };
        let collected = Collected::Listed { shards, residents: Vec::new(), cursor: [0; 40], done: false };
        Ok((collected, vec![(shard, command)]))
    }

    /// A token that no other lease of this node has: the arena generation is random, job numbers
    /// are unique on a core.
    fn new_token(&self) -> LeaseToken {
        let unique = u128::from(self.core.0) << 48 | u128::from(self.next_job);
        LeaseToken(u128::from(self.greeting.arena_generation.max(1)) << 64 | unique)
    }
}

/// "Recovered" means host memory here: no other promise is made.
pub(super) fn host_memory(body: &PrefixBody) -> Result<(), Refused> {
    if body.completion == Completion::Host as u8 {
        return Ok(());
    }
    let text = format!("completion {} is not served: host memory only in this version", body.completion);
    Err(Refused::new(Status::Incompatible, u64::from(VERSION), text))
}

/// Bytes of the keys that a request sends to the shards.
fn key_bytes(request: &Request<'_>) -> usize {
    match request {
        Request::Reserve(_, keys) => keys.len() * size_of::<(Key, u64)>(),
        Request::Acquire(_, _, hashes) | Request::Prefetch(_, _, hashes) => hashes.len() * size_of::<Key>(),
        Request::Evict(_, keys) => keys.len() * size_of::<Key>(),
        Request::Commit(_, slots) | Request::Abort(_, slots) => {
            slots.len() * size_of::<(u32, ReservationId)>()
        }
        _ => 0,
    }
}

/// Bytes that the answer to a request may have, but for headers, and those kept until it is there.
fn owed_bytes(request: &Request<'_>) -> usize {
    match request {
        Request::Reserve(_, keys) => keys.len() * SlotRecord::BYTES,
        // It goes batch by batch, so its hashes and the places found so far are kept to the end.
        Request::Query(_, _, hashes) => {
            let kept = hashes.len() * (size_of::<BlockHash>() + size_of::<PlaceRecord>());
            let batch = hashes.len().min(QUERY_BATCH_KEYS) * size_of::<Key>();
            QueryAnswer::BYTES + hashes.len() * PlaceRecord::BYTES + kept + batch
        }
        Request::Acquire(_, _, hashes) => hashes.len() * BlockRecord::BYTES,
        // How many blocks the lease has is known with the answer only: nothing else is read before.
        Request::Attach(_) => OWED_PAUSE_BYTES,
        // A listed block may live on both media.
        Request::List(list) => 2 * list.limit as usize * ResidentRecord::BYTES,
        Request::Commit(_, slots) | Request::Abort(_, slots) => slots.len() * OutcomeRecord::BYTES,
        Request::Evict(_, keys) => keys.len() * OutcomeRecord::BYTES,
        Request::Prefetch(_, _, hashes) => hashes.len() * OutcomeRecord::BYTES,
        Request::Hello(_)
        | Request::Ping
        | Request::Register(..)
        | Request::Release(_)
        | Request::Cancel(_)
        | Request::Clear(_)
        | Request::Sync
        | Request::Drain => 0,
    }
}

fn shard_of(shards: u16) -> impl Fn(&(u32, ReservationId)) -> ShardIndex {
    move |(_, id)| {
        debug_assert!(id.shard().0 < shards);
        id.shard()
    }
}

/// Groups `items` by shard, in shard order, and makes one command of each group.
pub(super) fn split<T>(
    shards: u16,
    items: Vec<T>,
    shard: impl Fn(&T) -> ShardIndex,
    mut command: impl FnMut(Vec<T>) -> Command,
) -> Parts {
    if items.is_empty() {
        return Vec::new();
    }
    if shards == 1 {
        return vec![(ShardIndex(0), command(items))];
    }
    let mut groups: Vec<Vec<T>> = (0..shards).map(|_| Vec::new()).collect();
    for item in items {
        let index = shard(&item).0;
        groups[usize::from(index)].push(item);
    }
    let filled = (0..shards).map(ShardIndex).zip(groups).filter(|(_, group)| !group.is_empty());
    filled.map(|(shard, group)| (shard, command(group))).collect()
}

fn everywhere(shards: u16, mut command: impl FnMut() -> Command) -> Parts {
    (0..shards).map(|shard| (ShardIndex(shard), command())).collect()
}

fn evict_keys(namespace: &NamespaceDigest, records: Records<'_, KeyRecord>) -> Result<Vec<Key>, Refused> {
    let keys = (0u32..).zip(records.iter()).map(|(index, record)| {
        let record = record?;
        let (group, block) = (GroupId(record.group), BlockHash(record.block));
        Ok(Key { index, namespace: 0, group, block, hash: key_hash(namespace, group, &block) })
    });
    keys.collect()
}
