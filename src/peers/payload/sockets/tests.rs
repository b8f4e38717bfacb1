//! Both ends of peer sockets against each other, on real sockets.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use orbitkv_native::arena::PagePreference;
use orbitkv_native::clock::monotonic_ns;

use super::*;

const BYTES: u64 = 1 << 20;
const SHARD: ShardIndex = ShardIndex(3);
const PROOFS: [[u8; PROOF_BYTES]; 2] = [[1; PROOF_BYTES], [2; PROOF_BYTES]];
/// The connection of all these tests, as either end's driver knows it.
const CONNECTION: u32 = 7;

struct End {
    sockets: PeerSockets<u32>,
    arena: Arena,
    heard: Vec<Heard<u32>>,
}

fn now() -> Moment {
    Moment(monotonic_ns())
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn operation(number: u64) -> OperationId {
    OperationId { origin: 5, number }
}

impl End {
    fn new(base: &Path) -> End {
        let (arena, _) = Arena::create(BYTES, PagePreference::Small).unwrap();
        let sockets = PeerSockets::new(bind(base, SHARD).unwrap(), [9; 16], &arena).unwrap();
        End { sockets, arena, heard: Vec::new() }
    }

    fn attend(&mut self) {
        self.heard.extend(self.sockets.attend(true, now()));
    }

    /// Lets in who shows the right proof.
    fn admit(&mut self) -> Option<Reader> {
        self.attend();
        let shown = self.sockets.shown();
        let (number, _) = *shown.iter().find(|(_, shown)| *shown == PROOFS[0])?;
        self.sockets.admit(number, node("requester"), &PROOFS[1])
    }

    fn join(&mut self, base: &Path) -> bool {
        let path = socket_path(base, SHARD);
        self.sockets.join(CONNECTION, (node("source"), SHARD), &path, PROOFS, now())
    }

    fn owe(&mut self, number: u64) {
        self.sockets.owe((node("source"), SHARD), operation(number));
    }

    fn owed(&self) -> usize {
        self.sockets.owed.values().map(BTreeSet::len).sum()
    }

    fn released(&self) -> Vec<u64> {
        let number = |heard: &Heard<u32>| match heard {
            Heard::Released(_, operation) => Some(operation.number),
            _ => None,
        };
        self.heard.iter().filter_map(number).collect()
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A source and a requester that reads in its arena.
fn joined(directory: &Path) -> (End, End, Reader) {
    let (base, own) = (directory.join("source"), directory.join("requester"));
    let (mut source, mut requester) = (End::new(&base), End::new(&own));
    assert!(requester.join(&base));
    let mut reader = None;
    until("the reader is let in", || {
        reader = reader.or_else(|| source.admit());
        requester.attend();
        matches!(requester.heard[..], [Heard::Joined(CONNECTION)])
    });
    requester.heard.clear();
    (source, requester, reader.unwrap())
}

fn directory() -> tempfile::TempDir {
    tempfile::TempDir::with_prefix("okp-").unwrap()
}

#[test]
fn who_proves_itself_reads_in_the_arena_and_answers_for_it() {
    let directory = directory();
    let (mut source, mut requester, reader) = joined(directory.path());
    source.arena.copy_in(4_096, b"payload");
    let arena = requester.sockets.arena(CONNECTION).unwrap();
    arena.copy_to(4_096, 7, &requester.arena, 0).unwrap();
    let mut came = [0; 7];
    requester.arena.copy_out(0, &mut came);
    assert_eq!((&came, source.sockets.readers()), (b"payload", 1));
    (1..=300).for_each(|number| requester.owe(number));
    until("all are released", || {
        source.attend();
        requester.attend();
        source.released().len() == 300
    });
    assert_eq!(source.released(), (1..=300).collect::<Vec<_>>());
    // Its connection is gone: the arena with it, and what is owed is still answered.
    requester.sockets.part(CONNECTION);
    requester.sockets.forget_sources();
    assert!(requester.sockets.arena(CONNECTION).is_none() && requester.owed() == 300);
    (1..=300).for_each(|number| source.sockets.say_drained(&reader, operation(number)));
    // More than the kernel takes at once waits at the source.
    until("nothing is owed", || {
        source.attend();
        requester.attend();
        requester.owed() == 0
    });
    requester.sockets.forget_sources();
    until("the socket is closed", || {
        source.attend();
        matches!(source.heard.last(), Some(Heard::ReaderLeft(left)) if *left == reader)
    });
    // Its process is watched for as long as somebody waits for it.
    source.sockets.forget_readers(|_| true);
    assert_eq!(source.sockets.readers.len(), 1);
    source.sockets.forget_readers(|_| false);
    assert_eq!(source.sockets.readers.len(), 0);
}

#[test]
fn what_is_owed_is_said_again_after_a_reconnect() {
    let directory = directory();
    let (source, mut requester, _) = joined(directory.path());
    requester.owe(1);
    requester.owe(2);
    drop(source);
    until("the end is heard", || {
        requester.attend();
        matches!(requester.heard[..], [Heard::Left(CONNECTION)])
    });
    assert!(requester.sockets.arena(CONNECTION).is_none(), "nothing is read any more");
    assert_eq!(requester.owed(), 2);
    requester.owe(3);
    assert!(requester.sockets.take_retries(now()).is_empty(), "not at once");
    assert_eq!(requester.sockets.take_retries(now() + RECONNECT_PAUSE), [CONNECTION]);
    let base = directory.path().join("source");
    let mut again = End::new(&base);
    assert!(requester.join(&base));
    until("all are released", || {
        again.admit();
        again.attend();
        requester.attend();
        again.released() == [1, 2, 3]
    });
    assert!(matches!(requester.heard.last(), Some(Heard::Joined(CONNECTION))));
}

#[test]
fn who_shows_something_else_gets_nothing() {
    let directory = directory();
    let base = directory.path().join("source");
    let mut source = End::new(&base);
    let connect = || UnixStream::connect(socket_path(&base, SHARD)).unwrap();
    let (mut wrong, silent, mut chatty) = (connect(), connect(), connect());
    wrong.write_all(&PROOFS[1]).unwrap();
    chatty.write_all(&[1; PROOF_BYTES + 1]).unwrap();
    until("all are turned away", || {
        assert_eq!(source.admit(), None);
        source.sockets.refused() == 3
    });
    for mut stranger in [wrong, silent, chatty] {
        assert!(matches!(stranger.read(&mut [0; 64]), Ok(0) | Err(_)), "a stranger was told something");
    }
    assert!(source.heard.is_empty() && source.sockets.readers.is_empty());
}

#[test]
fn a_source_that_shows_something_else_is_not_believed() {
    let directory = directory();
    let base = directory.path().join("source");
    let (mut impostor, mut requester) = (End::new(&base), End::new(&directory.path().join("requester")));
    assert!(requester.join(&base));
    until("it is refused", || {
        impostor.attend();
        for (number, _) in impostor.sockets.shown() {
            impostor.sockets.admit(number, node("requester"), &PROOFS[0]);
        }
        requester.attend();
        matches!(requester.heard[..], [Heard::Refused(CONNECTION)])
    });
    assert!(requester.sockets.arena(CONNECTION).is_none() && requester.sockets.retries.is_empty());
}

#[test]
fn a_source_that_is_not_there_or_does_not_answer_is_done_without() {
    let directory = directory();
    let base = directory.path().join("source");
    let mut requester = End::new(&directory.path().join("requester"));
    assert!(!requester.join(&base));
    let _silent = End::new(&base);
    assert!(requester.join(&base));
    until("it is given up", || {
        requester.attend();
        matches!(requester.heard[..], [Heard::Refused(CONNECTION)])
    });
}

#[test]
fn readers_are_bounded() {
    let directory = directory();
    let base = directory.path().join("source");
    let mut source = End::new(&base);
    let strangers: Vec<_> =
        (0..READERS_MAX + 3).map(|_| UnixStream::connect(socket_path(&base, SHARD)).unwrap()).collect();
    until("the last ones are turned away", || {
        source.attend();
        source.sockets.refused() >= 3
    });
    assert!(source.sockets.readers.len() <= READERS_MAX);
    drop(strangers);
}
