//! A network namespace of its own for a run that shapes or cuts traffic of the loopback device: what is done to it is done
//! to nobody else, and goes with the run. It needs root, `unshare`, `ip` and `tc`.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Failure;

/// Begins again as the same process in a network namespace of its own, with `--inside` behind its arguments; comes back
/// only if that fails.
pub fn enter() -> Failure {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error.into(),
    };
    let script = "ip link set lo up && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", script, "sh"]).arg(program);
    let error = command.args(std::env::args_os().skip(1)).arg("--inside").exec();
    format!("unshare (Debian: util-linux) does not start: {error}").into()
}

/// Runs `tc` with these words.
///
/// # Errors
/// If it is not there, or with what it says.
pub fn tc(arguments: &str) -> Result<(), Failure> {
    let output = Command::new("tc").args(arguments.split_whitespace()).output();
    let output = output.map_err(|error| format!("tc (Debian: iproute2) does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("tc {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()).into())
}

/// A UDP port from which nothing leaves and at which nothing arrives, until this is dropped.
pub struct Cut(());

impl Cut {
    /// Cuts a port of this network namespace off; only one at a time.
    ///
    /// # Errors
    /// If `tc` does not do it.
    pub fn of(port: u16) -> Result<Cut, Failure> {
        tc("qdisc add dev lo root handle 1: htb default 1")?;
        let cut = Cut(());
        tc("class add dev lo parent 1: classid 1:10 htb rate 1mbit ceil 1mbit")?;
        tc("qdisc add dev lo parent 1:10 blackhole")?;
        for side in ["sport", "dport"] {
            tc(&format!(
                "filter add dev lo parent 1: protocol ip u32 match ip protocol 17 0xff match ip {side} {port} 0xffff \
                 flowid 1:10"
            ))?;
        }
        Ok(cut)
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        if let Err(error) = tc("qdisc del dev lo root") {
            eprintln!("bench: {error}");
        }
    }
}
