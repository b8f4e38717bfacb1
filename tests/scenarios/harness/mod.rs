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

/// Whoever sets it wants noise for so many seconds instead of a few: `tools/test --soak` does.
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
