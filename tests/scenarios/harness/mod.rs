//! What scenarios share: a node as a child process, engines as processes of their own, raw frames, a
//! network between nodes.

// The tests of membership use all of it.
#[allow(dead_code)]
pub mod etcd;
pub mod gate;
pub mod node;
pub mod page;
pub mod peer_socket;
pub mod place;
pub mod process;
pub mod raw;
pub mod saver;
pub mod scripted_peer;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

pub use etcd::Etcd;
pub use gate::Network;
pub use node::{Node, NodeOrder};
pub use page::Held;
pub use peer_socket::PeerSocket;
pub use place::Place;
pub use process::EngineProcess;
pub use raw::Raw;
pub use saver::Saver;
pub use scripted_peer::ScriptedPeer;

/// How long anything that must happen may take: long, because test machines are slow.
pub const WAIT: Duration = Duration::from_secs(20);

/// Whoever sets it wants noise for so many seconds instead of a few, and counts as far as the claims go:
/// `tools/test --soak` does.
const SOAK_VARIABLE: &str = "SCENARIO_SOAK_SECONDS";

/// How long noise goes on.
///
/// # Panics
/// If the environment says something that is no number of seconds.
pub fn soak_or(short: Duration) -> Duration {
    let wanted = std::env::var(SOAK_VARIABLE);
    wanted.map_or(short, |text| Duration::from_secs(text.parse().expect("seconds to soak")))
}

/// Polls `check` until it gives something.
///
/// # Panics
/// After [`WAIT`], saying what did not happen.
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + WAIT;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < until, "within {WAIT:?} this did not happen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The body of `GET path` at an address.
pub fn http_text(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(WAIT)).expect("a time-out");
    // The older version has no chunks.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the request is taken");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer in time");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    assert!(head.contains(" 200 "), "{head}");
    body.to_owned()
}

/// Whether tests that count go as far as the claims do.
pub fn is_soak() -> bool {
    std::env::var_os(SOAK_VARIABLE).is_some()
}
