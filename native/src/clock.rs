//! The clocks that rooms get their `now` from, which only the core loop and tests call, and the processor time of
//! processes.

use std::io;

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

/// The largest number of a process that the kernel gives; clocks of larger ones name something else.
const PROCESS_MAX: libc::pid_t = 1 << 22;

/// Nanoseconds that the threads of a process have run, in user space and in the kernel; those that have ended count.
///
/// # Errors
/// If there is no such process.
pub fn processor_ns(process: u32) -> io::Result<u64> {
    let process = libc::pid_t::try_from(process).ok().filter(|process| (1..=PROCESS_MAX).contains(process));
    let process = process.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    let mut clock = 0;
    // rustix has no clock of another process, and what /proc says of threads forgets those that have ended.
    // SAFETY: the call writes one clock id to the place that is borrowed for it.
    match unsafe { libc::clock_getcpuclockid(process, &mut clock) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec to the place that is borrowed for it.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(sum(time.tv_sec, time.tv_nsec))
}

fn nanoseconds(time: Timespec) -> u64 {
    sum(time.tv_sec, time.tv_nsec)
}

/// Clocks that start at boot or with a process: neither part is negative, and the sum fits for 584 years.
fn sum(seconds: i64, nanoseconds: i64) -> u64 {
    seconds as u64 * 1_000_000_000 + nanoseconds as u64
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
    fn threads_that_have_ended_count_as_processor_time_and_a_process_that_is_not_there_has_none() {
        let own = || processor_ns(std::process::id()).expect("it runs");
        let before = own();
        let spin = |ns: u64| {
            let (mut turns, began) = (0_u64, monotonic_ns());
            // By the work too: the thread may not run all the time.
            while monotonic_ns() - began < ns || turns < 100_000 {
                turns += 1;
            }
        };
        std::thread::spawn(move || spin(20_000_000)).join().expect("it counts");
        let used = own() - before;
        assert!(used > 1_000_000, "{used} ns");
        assert!([0, i32::MAX as u32, u32::MAX].iter().all(|process| processor_ns(*process).is_err()));
    }

    #[test]
    fn boottime_is_not_behind_monotonic() {
        let monotonic = monotonic_ns();
        assert!(boottime_ns() >= monotonic);
    }
}
