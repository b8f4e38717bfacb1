//! The clocks that rooms get their `now` from. Only the core loop and tests call these.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: never steps, stands still while the machine is suspended.
pub fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds of `CLOCK_BOOTTIME`: never steps and counts suspension, so an expired lease is
/// seen as expired after a resume.
pub fn boottime_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Boottime))
}

fn nanoseconds(time: Timespec) -> u64 {
    // Both clocks start at boot, so neither part is negative and the sum fits for 584 years.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn both_clocks_advance_by_the_time_slept() {
        for clock in [monotonic_ns, boottime_ns] {
            let before = clock();
            std::thread::sleep(Duration::from_millis(20));
            let passed = clock() - before;
            assert!(passed >= 20_000_000, "{passed} ns");
            assert!(passed < 20_000_000_000, "{passed} ns");
        }
    }

    #[test]
    fn boottime_is_not_behind_monotonic() {
        let monotonic = monotonic_ns();
        assert!(boottime_ns() >= monotonic);
    }
}
