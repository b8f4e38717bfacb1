//! The disk as `fio` drives it: io_uring, fixed buffers, direct I/O.

use std::path::Path;
use std::process::Command;

use orbitkv_native::ssd_transfer::TransferKind;
use serde_json::Value;

use crate::Failure;

/// One pass of `fio` over a file that has been written whole before.
pub struct FioPass<'a> {
    /// The file.
    pub file: &'a Path,
    /// Direction.
    pub kind: TransferKind,
    /// Bytes of one transfer.
    pub block_bytes: u64,
    /// Bytes of the pass.
    pub bytes: u64,
    /// Transfers in flight.
    pub depth: u32,
    /// Where its job runs.
    pub core: usize,
}

/// Its version, or what to do about its absence.
pub fn version() -> Result<String, String> {
    let output = Command::new("fio").arg("--version").output().ok().filter(|output| output.status.success());
    match output {
        Some(output) => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        None => Err("fio is not installed: `apt-get install fio`".to_owned()),
    }
}

impl FioPass<'_> {
    fn direction(&self) -> &'static str {
        match self.kind {
            TransferKind::Read => "read",
            TransferKind::Write => "write",
        }
    }

    /// Runs it; bytes a second as fio counts them.
    ///
    /// # Errors
    /// If fio fails or says something else than JSON.
    pub fn run(&self) -> Result<f64, Failure> {
        let mut command = Command::new("fio");
        command.args(["--name=bench", "--ioengine=io_uring", "--fixedbufs=1", "--direct=1"]);
        command.args(["--fallocate=none", "--numjobs=1", "--output-format=json"]);
        command.arg(format!("--rw={}", self.direction()));
        command.arg(format!("--bs={}", self.block_bytes)).arg(format!("--size={}", self.bytes));
        command.arg(format!("--iodepth={}", self.depth)).arg(format!("--cpus_allowed={}", self.core));
        command.arg(format!("--filename={}", self.file.display()));
        let output = command.output()?;
        if !output.status.success() {
            return Err(format!("fio failed: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
        }
        bytes_per_second(&String::from_utf8_lossy(&output.stdout), self.direction(), self.bytes)
    }
}

/// The rate in fio's answer, which may have notes before its JSON.
fn bytes_per_second(text: &str, direction: &str, bytes: u64) -> Result<f64, Failure> {
    let json = text.find('{').map_or("", |start| &text[start..]);
    let answer: Value = serde_json::from_str(json).map_err(|error| format!("fio's answer: {error}"))?;
    let side = &answer["jobs"][0][direction];
    if side["io_bytes"].as_u64() != Some(bytes) {
        return Err(format!("fio moved {} of {bytes} bytes", side["io_bytes"]).into());
    }
    side["bw_bytes"].as_f64().filter(|rate| *rate > 0.0).ok_or_else(|| "fio names no rate".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_a_whole_pass_in_the_right_direction() {
        let text = "note: both\n{\"jobs\":[{\"read\":{\"io_bytes\":0,\"bw_bytes\":0},\
                    \"write\":{\"io_bytes\":100,\"bw_bytes\":50}}]}";
        assert_eq!(bytes_per_second(text, "write", 100).unwrap(), 50.0);
        assert!(bytes_per_second(text, "read", 100).is_err());
        assert!(bytes_per_second(text, "write", 101).is_err());
        assert!(bytes_per_second("nothing", "write", 100).is_err());
    }
}
