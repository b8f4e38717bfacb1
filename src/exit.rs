//! Exit codes: scripts of operators branch on them, so each has one meaning, listed here and in the guide.

use std::process::ExitCode;

/// Why a command ended. The numbers are stable names (operator guide, "Exit codes").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command did what it was asked.
    Done = 0,
    /// Bad usage, or a setting that was refused; nothing was allocated or changed.
    Usage = 2,
    /// The environment cannot carry it: memory, io_uring, a device, a lock, a directory.
    Environment = 3,
    /// A running check found wrong bytes, a fault or an unmet gate.
    Unmet = 4,
    /// No answer from the node: it is down, elsewhere, or stopped while answering.
    Unreachable = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
