//! A connection whose every byte the test chooses: no client in between.

use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use orbitkv::client::Registration;
use orbitkv_native::engine_socket::recv_with_fds;
use orbitkv_wire::engine::answers::{Answer, HelloAnswer, Refusal, RegisterAnswer, decode_answer};
use orbitkv_wire::engine::requests::{
    GroupRecord, HashRecord, HelloBody, ListRecord, PrefixBody, RegisterBody, ReservationRecord,
    ReservationsBody, ReserveBody, ReserveRecord, append_bare_request, append_prefix_request, append_request,
};
use orbitkv_wire::engine::{
    FLAG_MORE, Header, MAGIC, Operation, Status, VERSION, VERSION_MIN, layout_hash, split_frame,
};
use orbitkv_wire::layout::Fixed;
use orbitkv_wire::text::Text;

use super::WAIT;

/// One frame that came.
#[derive(Clone, Debug)]
pub struct Frame {
    pub header: Header,
    pub body: Vec<u8>,
}

impl Frame {
    pub fn answer(&self) -> Answer<'_> {
        decode_answer(&self.header, &self.body).expect("the node's frames are valid")
    }

    /// The refusal it is.
    ///
    /// # Panics
    /// If it is none.
    pub fn refusal(&self) -> (Status, Refusal) {
        match self.answer() {
            Answer::Refused(status, refusal) => (status, refusal),
            answer => panic!("not refused: {answer:?}"),
        }
    }

    pub fn status(&self) -> Status {
        Status::from_wire(self.header.status).expect("a known status")
    }
}

/// The words of a refusal.
pub fn words(refusal: &Refusal) -> &str {
    refusal.text.as_str().expect("text")
}

/// The connection.
pub struct Raw {
    pub stream: UnixStream,
    received: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    pub next_request: u64,
}

impl Raw {
    /// Connects and says nothing.
    pub fn connect(socket: &Path) -> Raw {
        let stream = UnixStream::connect(socket).expect("the node listens");
        stream.set_read_timeout(Some(WAIT)).expect("a timeout");
        Raw { stream, received: Vec::new(), fds: Vec::new(), next_request: 1 }
    }

    /// Connects and says Hello.
    pub fn greeted(socket: &Path) -> Raw {
        let mut raw = Raw::connect(socket);
        raw.hello(&hello_body(0));
        raw
    }

    pub fn hello(&mut self, body: &HelloBody) -> HelloAnswer {
        match self.ask(Operation::Hello, body, &[] as &[HashRecord]).answer() {
            Answer::Hello(answer) => answer,
            answer => panic!("Hello was answered by {answer:?}"),
        }
    }

    pub fn fresh_id(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request - 1
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the node takes our bytes");
    }

    /// Sends a request and returns its id.
    pub fn submit<B: Fixed, R: Fixed>(&mut self, operation: Operation, body: &B, records: &[R]) -> u64 {
        let id = self.fresh_id();
        let mut frame = Vec::new();
        append_request(&mut frame, operation, id, 0, body, records);
        self.send(&frame);
        id
    }

    /// Sends a request and takes the next frame, which must answer it.
    pub fn ask<B: Fixed, R: Fixed>(&mut self, operation: Operation, body: &B, records: &[R]) -> Frame {
        let id = self.submit(operation, body, records);
        self.answer_to(id)
    }

    /// Sends frames made elsewhere and takes the next answer.
    pub fn ask_bytes(&mut self, bytes: &[u8]) -> Frame {
        self.send(bytes);
        self.next().expect("an answer")
    }

    /// The next frame, which must answer `id`.
    pub fn answer_to(&mut self, id: u64) -> Frame {
        let frame = self.next().expect("an answer, not the end");
        assert_eq!(frame.header.request_id, id, "an answer to another request: {frame:?}");
        frame
    }

    /// All frames of a streamed answer to `id`, last one included.
    pub fn answers_to(&mut self, id: u64) -> Vec<Frame> {
        let mut frames = vec![self.answer_to(id)];
        while frames.last().is_some_and(|frame| frame.header.flags & FLAG_MORE != 0) {
            frames.push(self.answer_to(id));
        }
        frames
    }

    pub fn ping(&mut self) {
        let id = self.fresh_id();
        let mut frame = Vec::new();
        append_bare_request(&mut frame, Operation::Ping, id, 0);
        self.send(&frame);
        assert!(matches!(self.answer_to(id).answer(), Answer::Done));
    }

    pub fn register(&mut self, registration: &Registration) -> RegisterAnswer {
        match self.try_register(registration).answer() {
            Answer::Register(answer) => answer,
            answer => panic!("Register was answered by {answer:?}"),
        }
    }

    pub fn try_register(&mut self, registration: &Registration) -> Frame {
        let groups: Vec<GroupRecord> = registration
            .groups
            .iter()
            .map(|group| GroupRecord {
                group: group.group.0,
                kind: 0,
                tokens: 0,
                sink_tokens: 0,
                block_bytes: group.block_bytes,
            })
            .collect();
        self.ask(Operation::Register, &register_body(registration), &groups)
    }

    /// Reserves slots in namespace handle 0, group 0; returns the answer frame.
    pub fn reserve(&mut self, blocks: &[[u8; 32]], bytes: u64) -> Frame {
        let record = |&block: &[u8; 32]| ReserveRecord { block, group: 0, bytes };
        let records: Vec<ReserveRecord> = blocks.iter().map(record).collect();
        self.ask(Operation::Reserve, &ReserveBody { namespace: 0, race: 0 }, &records)
    }

    /// Commits or aborts reservations; the outcome numbers.
    pub fn settle(&mut self, operation: Operation, generation: u64, reservations: &[u64]) -> Vec<u8> {
        let records: Vec<ReservationRecord> =
            reservations.iter().map(|&reservation| ReservationRecord { reservation }).collect();
        let frame = self.ask(operation, &ReservationsBody { arena_generation: generation }, &records);
        match frame.answer() {
            Answer::Outcomes(records) => {
                records.to_vec().expect("valid records").iter().map(|record| record.outcome).collect()
            }
            answer => panic!("{operation:?} was answered by {answer:?}"),
        }
    }

    /// The next frame; `None` at the end of the stream, however the node ended it.
    ///
    /// # Panics
    /// If nothing comes within [`WAIT`].
    pub fn next(&mut self) -> Option<Frame> {
        self.next_within(WAIT).expect("the node says something in time")
    }

    /// As [`Self::next`]; `None` outside if nothing has come.
    pub fn next_within(&mut self, wait: Duration) -> Option<Option<Frame>> {
        let until = Instant::now() + wait;
        loop {
            if let Some((header, body)) = split_frame(&self.received).expect("the node's frames are valid") {
                let body_bytes = self.received[body.clone()].to_vec();
                self.received.drain(..body.end);
                return Some(Some(Frame { header, body: body_bytes }));
            }
            let left = until.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).expect("a timeout");
            let mut buffer = [0; 64 * 1024];
            match recv_with_fds(self.stream.as_fd(), &mut buffer) {
                Ok((0, _)) => {
                    assert!(self.received.is_empty(), "the node closed in the middle of a frame");
                    return Some(None);
                }
                Ok((count, fds)) => {
                    self.received.extend_from_slice(&buffer[..count]);
                    self.fds.extend(fds);
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Some(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() >= until {
                        return None;
                    }
                }
                Err(error) => panic!("the socket failed: {error}"),
            }
        }
    }

    /// The node must close without another word.
    pub fn expect_end(&mut self) {
        let next = self.next();
        assert!(next.is_none(), "another frame instead of the end: {next:?}");
    }
}

/// A Hello of this build.
pub fn hello_body(previous_connection: u64) -> HelloBody {
    HelloBody {
        magic: MAGIC,
        version_min: VERSION_MIN,
        version_max: VERSION,
        layout_hash: layout_hash(),
        in_flight: 256,
        previous_connection,
    }
}

/// A request frame.
pub fn request<B: Fixed, R: Fixed>(operation: Operation, id: u64, body: &B, records: &[R]) -> Vec<u8> {
    let mut frame = Vec::new();
    append_request(&mut frame, operation, id, 0, body, records);
    frame
}

/// A request frame that is a header alone.
pub fn bare_request(operation: Operation, id: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    append_bare_request(&mut frame, operation, id, 0);
    frame
}

/// A Query or Acquire of one list in namespace handle 0, group 0.
pub fn prefix_request(
    operation: Operation,
    id: u64,
    deadline_ms: u32,
    hold: bool,
    lease: [u8; 16],
    blocks: &[[u8; 32]],
) -> Vec<u8> {
    let body = PrefixBody { lists: 1, completion: 0, hold: u8::from(hold), lease };
    let list = ListRecord { namespace: 0, group: 0, count: blocks.len() as u32 };
    let hashes: Vec<HashRecord> = blocks.iter().map(|&block| HashRecord { block }).collect();
    let mut frame = Vec::new();
    append_prefix_request(&mut frame, operation, id, deadline_ms, &body, &[list], &hashes);
    frame
}

/// The wire form of a registration.
pub fn register_body(registration: &Registration) -> RegisterBody {
    RegisterBody {
        instance: text(&registration.instance),
        engine: text(&registration.engine),
        model: text(&registration.model),
        weights_revision: text(&registration.weights_revision),
        adapter: text(&registration.adapter),
        computation: text(&registration.computation),
        dtype: text(&registration.dtype),
        layout: text(&registration.layout),
        hash_algorithm: text(&registration.hash_algorithm),
        hash_seed: text(&registration.hash_seed),
        hash_bytes: registration.hash_bytes,
        block_tokens: registration.block_tokens,
        tp_rank: registration.tp_rank,
        tp_size: registration.tp_size,
        pp_rank: registration.pp_rank,
        pp_size: registration.pp_size,
        rank_invariant: u8::from(registration.rank_invariant),
    }
}

fn text<const N: usize>(value: &str) -> Text<N> {
    Text::new(value).expect("short")
}
