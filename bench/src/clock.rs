//! Waiting on the clock that nodes and measurements share.

use std::thread::sleep;
use std::time::Duration;

use orbitkv_native::clock::monotonic_ns;

/// Sleeps until a moment of the monotonic clock.
pub fn sleep_until(moment_ns: u64) {
    while let Some(left) = moment_ns.checked_sub(monotonic_ns()).filter(|left| *left > 0) {
        sleep(Duration::from_nanos(left));
    }
}
