//! Processes that are measured: which program, and what it has used of the processors.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orbitkv_native::clock::processor_ns;

use crate::Failure;

/// The `orbitkv` of the same build.
///
/// # Errors
/// If there is none beside this program.
pub fn program() -> Result<PathBuf, Failure> {
    beside("orbitkv")
}

/// The program of that name of the same build: a package of it, or `sim` of `orbitkv-sim`.
///
/// # Errors
/// If there is none beside this program.
pub fn beside(name: &str) -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?.with_file_name(name);
    if program.is_file() {
        return Ok(program);
    }
    let directory = program.parent().unwrap_or(&program).display().to_string();
    let others = if name == "sim" { " -p orbitkv-sim" } else { "" };
    Err(format!(
        "there is no `{name}` in {directory}: build all with `cargo build --release -p orbitkv -p orbitkv-bench{others}`"
    )
    .into())
}

/// Resident memory of a process, in bytes.
///
/// # Errors
/// If the kernel does not say.
pub fn resident_bytes(process: u32) -> Result<u64, Failure> {
    let status = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    Ok(kibibytes << 10)
}

/// Time the threads of a process have run so far, in user space and in the kernel; those that have ended count.
///
/// # Errors
/// If there is no such process.
pub fn processor_time(process: u32) -> Result<Duration, Failure> {
    let used =
        processor_ns(process).map_err(|error| format!("processor time of process {process}: {error}"))?;
    Ok(Duration::from_nanos(used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::thread;

    #[test]
    fn a_busy_process_is_counted_and_one_that_is_not_there_refused() {
        let mut busy =
            Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("there is a shell");
        let counted = (0..6_000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            processor_time(busy.id()).expect("it runs") > Duration::from_millis(20)
        });
        busy.kill().expect("it runs");
        busy.wait().expect("it was started here");
        assert!(counted, "a minute of spinning was not counted");
        assert!(processor_time(u32::MAX).is_err());
    }
}
