//! The engine channel alone: frames in, errands out, answers of shards played by the test.

use orbitkv_shards::shard::Places;
use orbitkv_wire::bounds;
use orbitkv_wire::engine::answers::{Answer, BlockOutcome, BlockRecord, DrainAnswer, Place, decode_answer};
use orbitkv_wire::engine::requests::{
    GroupRecord, HashRecord, HelloBody, LeaseBody, ListRecord, PrefixBody, RegisterBody, append_bare_request,
    append_prefix_request, append_request,
};
use orbitkv_wire::engine::{MAGIC, VERSION, VERSION_MIN, layout_hash};
use orbitkv_wire::layout::Fixed;
use orbitkv_wire::text::Text;

use super::connection::{OUTBOUND_PAUSE_BYTES, REGISTRATIONS_PER_CONNECTION_MAX, UNANSWERED_PAUSE};
use super::*;

const NONE: &[HashRecord] = &[];

/// A hub with one connection that has said Hello.
struct Rig {
    hub: EngineHub,
    id: ConnectionId,
}

impl Rig {
    fn new() -> Rig {
        let greeting = Greeting {
            arena_generation: 7,
            arena_bytes: 1 << 20,
            incarnation: Incarnation([1; 16]),
            shards: 1,
            page_kind: PageKindNumber::Small,
        };
        let mut hub = EngineHub::new(ShardIndex(0), greeting, CONNECTIONS_MAX);
        let id = hub.open(1).expect("the first connection");
        let mut rig = Rig { hub, id };
        let hello = HelloBody {
            magic: MAGIC,
            version_min: VERSION_MIN,
            version_max: VERSION,
            layout_hash: layout_hash(),
            in_flight: 256,
            previous_connection: 0,
        };
        rig.ask(Operation::Hello, 1, &hello, NONE);
        assert_eq!(rig.answers(), [(1, Status::Ok)]);
        rig
    }

    /// Registered as `instance`: handle 0, group 0.
    fn registered() -> Rig {
        let mut rig = Rig::new();
        rig.register(2, "a");
        rig.on_registered(Ok(InstanceId(1)));
        assert_eq!(rig.answers(), [(2, Status::Ok)]);
        rig
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.hub.on_bytes(self.id, bytes, Moment(5));
    }

    fn ask<B: Fixed, R: Fixed>(&mut self, operation: Operation, request_id: u64, body: &B, records: &[R]) {
        let mut frame = Vec::new();
        append_request(&mut frame, operation, request_id, 0, body, records);
        self.bytes(&frame);
    }

    fn ask_bare(&mut self, operation: Operation, request_id: u64) {
        let mut frame = Vec::new();
        append_bare_request(&mut frame, operation, request_id, 0);
        self.bytes(&frame);
    }

    fn register(&mut self, request_id: u64, instance: &str) {
        let group = GroupRecord { group: 0, kind: 0, tokens: 0, sink_tokens: 0, block_bytes: 4096 };
        self.ask(Operation::Register, request_id, &registration(instance), &[group]);
    }

    fn prefix(&mut self, operation: Operation, request_id: u64, body: PrefixBody, blocks: usize) {
        let list = ListRecord { namespace: 0, group: 0, count: blocks as u32 };
        let hashes: Vec<HashRecord> = (0..blocks as u64).map(hash).collect();
        let mut frame = Vec::new();
        append_prefix_request(&mut frame, operation, request_id, 0, &body, &[list], &hashes);
        self.bytes(&frame);
    }

    fn connection(&self) -> &Connection {
        self.hub.connection(self.id).expect("open")
    }

    fn errands(&mut self) -> Vec<Errand> {
        std::iter::from_fn(|| self.hub.poll_errand()).collect()
    }

    /// The commands of the errands that wait, with their tags.
    fn commands(&mut self) -> Vec<(Tag, Command)> {
        let commands = self.errands().into_iter().flat_map(|errand| match errand {
            Errand::Commands(commands) => commands,
            other => panic!("no commands: {other:?}"),
        });
        commands.map(|(_, tag, command)| (tag, command)).collect()
    }

    fn on_registered(&mut self, outcome: Result<InstanceId, Conflict>) {
        let Some(Errand::Register(tag, _)) = self.hub.poll_errand() else { panic!("nothing to register") };
        self.hub.on_registered(tag, outcome);
    }

    fn reply(&mut self, tag: Tag, outcome: Outcome) {
        let reply = Reply { tag, shard: ShardIndex(0), incarnation: Incarnation([1; 16]), outcome };
        self.hub.on_reply(reply, Moment(6));
    }

    /// Request id and status of every answer that waits; they are read by that.
    fn answers(&mut self) -> Vec<(u64, Status)> {
        let outbound = std::mem::take(self.hub.outbound(self.id).expect("open"));
        let (mut answers, mut at) = (Vec::new(), 0);
        while let Some((header, _)) = split_frame(&outbound[at..]).expect("our own frames") {
            answers.push((header.request_id, Status::from_wire(header.status).expect("known")));
            at += header.length as usize;
        }
        self.hub.work(self.id, Moment(6));
        answers
    }
}

fn registration(instance: &str) -> RegisterBody {
    RegisterBody {
        instance: words(instance),
        engine: words("e"),
        model: words("m"),
        weights_revision: words(""),
        adapter: words(""),
        computation: words(""),
        dtype: words("bf16"),
        layout: words("rows"),
        hash_algorithm: words("sha256"),
        hash_seed: words(""),
        hash_bytes: 32,
        block_tokens: 16,
        tp_rank: 0,
        tp_size: 1,
        pp_rank: 0,
        pp_size: 1,
        rank_invariant: 0,
    }
}

fn words<const N: usize>(text: &str) -> Text<N> {
    Text::new(text).expect("short")
}

fn hash(key: u64) -> HashRecord {
    let mut block = [0; 32];
    block[..8].copy_from_slice(&key.to_le_bytes());
    HashRecord { block }
}

fn prefix_body(hold: u8) -> PrefixBody {
    PrefixBody { lists: 1, completion: 0, hold, lease: [0; 16] }
}

fn conflict() -> Conflict {
    Conflict::Field { instance: "a".into(), field: "dtype", registered: "bf16".into(), asked: "fp8".into() }
}

fn left(leases: u64) -> DrainAnswer {
    DrainAnswer { reservations: 0, leases, write_backs: 0, transfers: 0 }
}

#[test]
fn drains_of_an_engine_that_never_reads_are_bounded() {
    let mut rig = Rig::new();
    let mut taken = 0;
    for request_id in 10..10_010 {
        if !rig.connection().may_read() {
            break;
        }
        rig.ask_bare(Operation::Drain, request_id);
        taken += 1;
    }
    assert!(taken < 10_000, "an engine that does not read is paused");
    let waiting = rig.connection().outbound.len();
    assert!(waiting < OUTBOUND_PAUSE_BYTES + 1024, "{waiting} bytes wait");
    assert!(matches!(rig.errands()[..], [Errand::Drain]), "control is asked once");
    for leases in 1..1_000 {
        rig.hub.on_drain_progress(left(leases));
    }
    assert_eq!(rig.connection().outbound.len(), waiting, "no progress on top of what is not read");
    rig.hub.on_drain_progress(left(0));
    let answers = rig.answers();
    assert_eq!(answers.last(), Some(&(10, Status::Ok)), "the last word is never left out");
    assert!(answers[..answers.len() - 1].iter().all(|(_, status)| *status == Status::TooManyInFlight));
    assert_eq!(rig.connection().drain, None);
}

#[test]
fn a_drain_is_a_request_like_any_other() {
    let mut rig = Rig::new();
    rig.ask_bare(Operation::Drain, 10);
    rig.ask_bare(Operation::Drain, 10);
    rig.ask_bare(Operation::Ping, 10);
    rig.ask_bare(Operation::Sync, 10);
    assert_eq!(
        rig.answers(),
        [(10, Status::DuplicateRequest), (10, Status::DuplicateRequest), (10, Status::DuplicateRequest)]
    );
    rig.hub.on_drain_progress(left(3));
    let outbound = rig.connection().outbound.clone();
    let (header, body) = split_frame(&outbound).unwrap().expect("a frame");
    assert!(
        matches!(decode_answer(&header, &outbound[body]), Ok(Answer::Drain(answer)) if answer == left(3))
    );
    rig.answers();
    // Its seat counts: 255 others fit.
    for request_id in 100..356 {
        rig.ask_bare(Operation::Sync, request_id);
    }
    assert_eq!(rig.answers(), [(355, Status::TooManyInFlight)]);
    let cancel = orbitkv_wire::engine::requests::CancelBody { request_id: 10 };
    rig.ask(Operation::Cancel, 11, &cancel, NONE);
    assert_eq!(rig.answers(), [(10, Status::Cancelled), (11, Status::Ok)]);
    rig.hub.on_drain_progress(left(3));
    assert_eq!(rig.answers(), [], "nobody waits for it");
}

#[test]
fn a_connection_speaks_for_one_instance() {
    let mut rig = Rig::new();
    rig.register(10, "a");
    rig.register(11, "b");
    assert_eq!(rig.answers(), [(11, Status::Conflict)], "even before the first is answered");
    rig.on_registered(Err(conflict()));
    assert_eq!(rig.answers(), [(10, Status::Conflict)]);
    rig.register(12, "b");
    rig.on_registered(Ok(InstanceId(1)));
    rig.register(13, "a");
    rig.register(14, "b");
    rig.on_registered(Err(conflict()));
    rig.register(15, "a");
    let (ok, conflict) = (Status::Ok, Status::Conflict);
    assert_eq!(rig.answers(), [(12, ok), (13, conflict), (14, conflict), (15, conflict)]);
    assert!(rig.errands().is_empty());
}

#[test]
fn registrations_in_progress_count_and_repeats_do_not() {
    let mut rig = Rig::new();
    let limit = REGISTRATIONS_PER_CONNECTION_MAX as u64;
    for request_id in 0..=limit {
        rig.register(100 + request_id, "a");
    }
    assert_eq!(rig.answers(), [(100 + limit, Status::OverLimit)]);
    for _ in 0..limit {
        rig.on_registered(Ok(InstanceId(1)));
    }
    assert_eq!(rig.answers().len() as u64, limit);
    rig.register(100, "a");
    assert_eq!(rig.answers(), [(100, Status::Ok)], "the answer that was given");
    assert_eq!(rig.connection().registered.len() as u64, limit);
    assert!(rig.errands().is_empty());
}

#[test]
fn a_release_waits_but_is_never_refused() {
    let mut rig = Rig::registered();
    let releases = UNANSWERED_PAUSE as u64 + 100;
    let mut frames = Vec::new();
    for lease in 0..releases {
        let body = LeaseBody { lease: u128::from(lease + 1).to_le_bytes() };
        append_request(&mut frames, Operation::Release, 100 + lease, 0, &body, NONE);
    }
    rig.bytes(&frames);
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.connection().requests.len(), UNANSWERED_PAUSE);
    let mut answered = Vec::new();
    for (tag, _) in rig.commands() {
        rig.reply(tag, Outcome::Done);
    }
    answered.extend(rig.answers());
    for (tag, _) in rig.commands() {
        rig.reply(tag, Outcome::Done);
    }
    answered.extend(rig.answers());
    assert_eq!(answered, (100..100 + releases).map(|id| (id, Status::Ok)).collect::<Vec<_>>());
}

#[test]
fn an_acquire_that_comes_twice_takes_one_lease() {
    let mut rig = Rig::registered();
    rig.prefix(Operation::Acquire, 10, prefix_body(0), 1);
    rig.prefix(Operation::Acquire, 10, prefix_body(0), 1);
    assert_eq!(rig.answers(), [(10, Status::DuplicateRequest)], "while it is in work");
    let commands = rig.commands();
    let [(tag, Command::Acquire { until, .. })] = commands[..] else { panic!("{commands:?}") };
    assert_eq!(until, rig.hub.deadlines.first().expect("it has one").0);
    let ready =
        BlockRecord { index: 0, outcome: BlockOutcome::Ready as u8, source: 1, offset: 0, bytes: 4096 };
    rig.reply(tag, Outcome::Blocks { blocks: vec![ready], done: true });
    assert_eq!(rig.answers(), [(10, Status::Ok)]);
    for blocks in [1, 2] {
        rig.prefix(Operation::Acquire, 10, prefix_body(0), blocks);
        assert_eq!(rig.answers(), [(10, Status::DuplicateRequest)], "and afterwards");
    }
    assert!(rig.commands().is_empty());
    // One that was refused as a whole has taken nothing, so it may come again.
    rig.prefix(Operation::Acquire, 11, prefix_body(0), 1);
    let (tag, _) = rig.commands()[0];
    rig.reply(tag, Outcome::Draining);
    assert_eq!(rig.answers(), [(11, Status::Draining)]);
    rig.commands();
    rig.prefix(Operation::Acquire, 11, prefix_body(0), 1);
    assert!(matches!(rig.commands()[..], [(_, Command::Acquire { .. })]));
}

#[test]
fn an_attach_that_comes_twice_is_done_once_and_a_large_answer_is_not_kept() {
    let mut rig = Rig::registered();
    let block = orbitkv_shards::shard::command::Attached {
        block: orbitkv_wire::identity::BlockHash([3; 32]),
        group: orbitkv_wire::identity::GroupId(0),
        offset: 0,
        bytes: 4096,
    };
    for (request_id, blocks, again) in [(10, 2, Status::Ok), (11, 5_000, Status::DuplicateRequest)] {
        let body = LeaseBody { lease: [9; 16] };
        rig.ask(Operation::Attach, request_id, &body, NONE);
        let (tag, _) = rig.commands()[0];
        rig.reply(tag, Outcome::Attached(vec![block; blocks]));
        assert!(rig.answers().iter().all(|answer| *answer == (request_id, Status::Ok)));
        rig.ask(Operation::Attach, request_id, &body, NONE);
        assert_eq!(rig.answers(), [(request_id, again)]);
        assert!(rig.commands().is_empty());
    }
}

#[test]
fn what_requests_keep_pauses_their_connection_and_is_given_back() {
    let mut rig = Rig::registered();
    let mut queries = 0;
    while rig.connection().may_read() {
        queries += 1;
        rig.prefix(Operation::Query, 10 + queries, prefix_body(0), bounds::QUERY_HASHES_MAX);
    }
    assert!((2..=4).contains(&queries), "{queries} queries keep half a MiB of hashes each");
    for (tag, _) in rig.commands() {
        // Nothing is there, so no further batch is asked for.
        rig.reply(tag, places(Vec::new()));
    }
    assert_eq!((rig.answers().len() as u64, rig.connection().owed_bytes), (queries, 0));

    rig.prefix(Operation::Acquire, 100, prefix_body(0), 4096);
    let before = rig.connection().owed_bytes;
    assert!(before > 4096 * (32 + BlockRecord::BYTES), "{before} bytes for keys and answers");
    let (tag, _) = rig.commands()[0];
    rig.hub.take_dirty();
    rig.reply(tag, Outcome::Blocks { blocks: Vec::new(), done: false });
    assert_eq!(rig.connection().owed_bytes, 4096 * BlockRecord::BYTES, "the keys are the shard's now");
    assert!(rig.hub.take_dirty().contains(&rig.id), "what waited for them is looked at");
}

#[test]
fn a_draining_node_answers_queries_and_holds_nothing() {
    let mut rig = Rig::registered();
    for (request_id, draining) in [(10, false), (11, true)] {
        if draining {
            rig.hub.drain();
        }
        rig.prefix(Operation::Query, request_id, prefix_body(1), 1);
        let commands = rig.commands();
        let [(tag, Command::Query { hold, .. })] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!(hold.is_none(), draining);
        rig.reply(*tag, places(vec![(0, Place::Dram)]));
        let outbound = std::mem::take(rig.hub.outbound(rig.id).unwrap());
        let (header, body) = split_frame(&outbound).unwrap().expect("a frame");
        let Ok(Answer::Query(answer, _)) = decode_answer(&header, &outbound[body]) else { panic!("refused") };
        assert_eq!((answer.boundary_blocks, answer.lease == [0; 16]), (1, draining));
    }
}

#[test]
fn only_host_memory_is_promised() {
    let mut rig = Rig::registered();
    let gpu = PrefixBody { completion: 1, ..prefix_body(0) };
    rig.prefix(Operation::Query, 10, gpu, 1);
    rig.prefix(Operation::Acquire, 11, gpu, 1);
    assert_eq!(rig.answers(), [(10, Status::Incompatible), (11, Status::Incompatible)]);
    assert!(rig.commands().is_empty());
    rig.prefix(Operation::Acquire, 11, prefix_body(0), 1);
    assert_eq!(rig.commands().len(), 1, "a refused id is free");
}

#[test]
fn cancels_of_one_request_stop_it_once() {
    let mut rig = Rig::new();
    rig.ask_bare(Operation::Sync, 10);
    assert_eq!(rig.commands().len(), 1);
    let mut frames = Vec::new();
    for request_id in 100..5_100 {
        let cancel = orbitkv_wire::engine::requests::CancelBody { request_id: 10 };
        append_request(&mut frames, Operation::Cancel, request_id, 0, &cancel, NONE);
    }
    rig.bytes(&frames);
    assert_eq!(rig.answers().len(), 5_000, "each Cancel is answered");
    rig.hub.on_time(Moment(u64::MAX));
    assert_eq!(rig.commands().len(), 1, "the shard is told once, whatever else comes");
}

#[test]
fn deadlines_that_pass_together_are_met_a_part_a_turn() {
    let mut rig = Rig::registered();
    for request_id in 10..210 {
        rig.prefix(Operation::Acquire, request_id, prefix_body(0), 1);
    }
    rig.commands();
    let over = Moment(rig.hub.deadlines.last().expect("each has one").0.0);
    let mut met = Vec::new();
    while rig.hub.next_deadline().is_some_and(|at| at <= over) {
        rig.hub.on_time(over);
        met.push(rig.commands().len());
    }
    assert_eq!(met, [64, 64, 64, 8]);
}

#[test]
fn a_closed_connection_keeps_no_answers() {
    let mut rig = Rig::registered();
    rig.ask_bare(Operation::Sync, 9);
    for request_id in 10..20 {
        rig.prefix(Operation::Acquire, request_id, prefix_body(0), 2);
    }
    rig.register(20, "a");
    let mut register = None;
    let mut commands = Vec::new();
    for errand in rig.errands() {
        match errand {
            Errand::Register(tag, _) => register = Some(tag),
            Errand::Commands(parts) => {
                commands.extend(parts.into_iter().map(|(_, tag, command)| (tag, command)))
            }
            other => panic!("{other:?}"),
        }
    }
    rig.hub.on_closed(rig.id);
    for (tag, command) in commands {
        match command {
            Command::Sync => rig.reply(tag, Outcome::Synced(orbitkv_wire::identity::Sequence(1))),
            Command::Acquire { .. } => {
                let decided = |index, done| Outcome::Blocks {
                    blocks: vec![BlockRecord {
                        index,
                        outcome: BlockOutcome::Ready as u8,
                        source: 1,
                        offset: 0,
                        bytes: 4096,
                    }],
                    done,
                };
                rig.reply(tag, decided(0, false));
                rig.reply(tag, decided(1, true));
            }
            other => panic!("{other:?}"),
        }
    }
    rig.hub.on_registered(register.expect("sent"), Ok(InstanceId(1)));
    let connection = rig.connection();
    assert_eq!((connection.outbound.len(), connection.owed_bytes, connection.unanswered()), (0, 0, 0));
    assert_eq!(connection.ledger.bytes_used(), 0, "nobody can repeat a request on a closed socket");
}

#[test]
fn a_silent_connection_keeps_neither_room_nor_old_answers() {
    let mut rig = Rig::registered();
    rig.prefix(Operation::Query, 10, prefix_body(0), bounds::QUERY_HASHES_MAX);
    rig.ask_bare(Operation::Sync, 11);
    for (tag, command) in rig.commands() {
        match command {
            Command::Sync => rig.reply(tag, Outcome::Synced(orbitkv_wire::identity::Sequence(1))),
            _ => rig.reply(tag, places(Vec::new())),
        }
    }
    assert_eq!(rig.answers().len(), 2);
    let kept = |rig: &Rig| (rig.connection().inbound.capacity(), rig.connection().ledger.bytes_used());
    assert!(kept(&rig).0 <= 16 * 1024, "room for half a MiB of hashes is not kept");
    assert!(kept(&rig).1 > 0);
    let mut looks = 0;
    while let Some(at) = rig.hub.next_deadline() {
        rig.hub.on_time(at);
        looks += 1;
        assert!(looks < 20, "no timer of a connection at rest runs for ever");
    }
    assert_eq!(kept(&rig).1, 0, "answers are forgotten without another request");
    rig.ask_bare(Operation::Sync, 12);
    rig.hub.on_closed(rig.id);
    assert_eq!(rig.hub.ledger_looks.len(), 0);
}

#[test]
fn attaches_are_answered_one_after_the_other() {
    let mut rig = Rig::registered();
    let mut frames = Vec::new();
    for request_id in 10..30 {
        append_request(&mut frames, Operation::Attach, request_id, 0, &LeaseBody { lease: [9; 16] }, NONE);
    }
    rig.bytes(&frames);
    let block = orbitkv_shards::shard::command::Attached {
        block: orbitkv_wire::identity::BlockHash([3; 32]),
        group: orbitkv_wire::identity::GroupId(0),
        offset: 0,
        bytes: 4096,
    };
    for request_id in 10..30 {
        let commands = rig.commands();
        assert_eq!(commands.len(), 1, "as large as a lease may be, only one answer waits");
        rig.reply(commands[0].0, Outcome::Attached(vec![block; bounds::QUERY_HASHES_MAX]));
        assert!(rig.answers().iter().all(|answer| *answer == (request_id, Status::Ok)));
    }
    assert_eq!(rig.connection().owed_bytes, 0);
}

fn places(found: Vec<(u32, Place)>) -> Outcome {
    Outcome::Places(Places { found, namespaces: Vec::new(), keys: Vec::new(), peers: None })
}

#[test]
fn an_announcement_goes_to_the_shards_with_its_deadline_and_is_answered_at_once() {
    let mut rig = Rig::registered();
    rig.prefix(Operation::Prefetch, 10, prefix_body(0), 3);
    let mut commands = rig.commands();
    let (tag, command) = commands.pop().expect("one shard, one command");
    let Command::Prefetch { connection, keys, until, .. } = command else { panic!("{command:?}") };
    assert_eq!((connection, keys.len(), until), (rig.id, 3, Moment(5) + DEADLINE_DEFAULT));
    let outcomes = (0..3).map(|index| (index, answers::PrefetchOutcome::Taken)).collect();
    rig.reply(tag, Outcome::Prefetched(outcomes));
    assert_eq!(rig.answers(), [(10, Status::Ok)]);
    assert!(rig.hub.deadlines.is_empty(), "nobody waits for it");
}
