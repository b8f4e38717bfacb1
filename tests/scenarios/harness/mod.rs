//! What scenarios share: a node as a child process, engines as processes of their own, raw frames, a
//! network between nodes.

// The tests of membership use all of it.
#[allow(dead_code)]
pub mod etcd;
pub mod gate;
pub mod node;
pub mod page;
pub mod place;
pub mod process;
pub mod raw;
pub mod saver;

use std::time::{Duration, Instant};

pub use etcd::Etcd;
pub use gate::Network;
pub use node::{Node, NodeOrder};
pub use page::Held;
pub use place::Place;
pub use process::EngineProcess;
pub use raw::Raw;
pub use saver::Saver;

/// How long anything that must happen may take: long, because test machines are slow.
pub const WAIT: Duration = Duration::from_secs(20);

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
