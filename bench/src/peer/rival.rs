//! The other side: two processes of this program that are the ends of a stock `quinn` connection, and the lines
//! that are spoken with them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use orbitkv::cluster::end_child;
use orbitkv_native::child::end_with_parent;

use super::ends::Ends;
use super::plan::Plan;
use crate::payload::WrongBytes;
use crate::{Failure, processes};

/// What the source says before its address.
pub const AT: &str = "at ";
/// What the reader is asked to do, and its answers.
pub const READ: &str = "read";
/// It has read everything, in so many nanoseconds.
pub const TOOK: &str = "took ";
/// Compare every byte.
pub const CHECK: &str = "check";
/// They are as they were sent.
pub const RIGHT: &str = "right";
/// The first block that is not.
pub const WRONG: &str = "wrong ";

/// Both ends. They are stopped when dropped.
pub struct Rival {
    // The reader closes the connection, so it ends first.
    reader: Process,
    source: Process,
}

struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
    told: ChildStdin,
}

impl Rival {
    /// Starts both ends on their cores; they are connected when the first pass begins.
    ///
    /// # Errors
    /// If a process does not start.
    pub fn start(plan: &Plan, cores: Ends<usize>, seed: u64) -> Result<Rival, Failure> {
        let mut source = Process::spawn(plan, cores.source, seed, None)?;
        let address = source.answer(AT)?;
        let reader = Process::spawn(plan, cores.reader, seed, Some(&address))?;
        Ok(Rival { reader, source })
    }

    /// Brings all blocks over: the time from the request to the last byte, and what both processes used.
    ///
    /// # Errors
    /// If a process has ended.
    pub fn read(&mut self) -> Result<(Duration, Ends<Duration>), Failure> {
        let before = self.used()?;
        self.reader.tell(READ)?;
        let nanoseconds = self.reader.answer(TOOK)?.parse()?;
        Ok((Duration::from_nanos(nanoseconds), self.used()?.since(&before)))
    }

    /// Has every byte compared.
    ///
    /// # Errors
    /// [`WrongBytes`], or that a process has ended.
    pub fn check(&mut self) -> Result<(), Failure> {
        self.reader.tell(CHECK)?;
        let line = self.reader.answer("")?;
        match line.strip_prefix(WRONG) {
            Some(index) => Err(WrongBytes::of(0, index.parse()?).into()),
            None if line == RIGHT => Ok(()),
            None => Err(format!("the rival said {line:?}").into()),
        }
    }

    fn used(&self) -> Result<Ends<Duration>, Failure> {
        let of = |process: &Process| processes::processor_time(process.child.id());
        Ok(Ends { source: of(&self.source)?, reader: of(&self.reader)? })
    }
}

impl Process {
    fn spawn(plan: &Plan, core: usize, seed: u64, from: Option<&str>) -> Result<Process, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["quinn-bulk", "--core", &core.to_string(), "--seed", &seed.to_string()]);
        command.args(["--blocks", &plan.blocks.to_string(), "--block-bytes", &plan.block_bytes.to_string()]);
        from.map(|address| command.args(["--from", address]));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        end_with_parent(&mut command);
        let mut child = command.spawn()?;
        let (said, told) = child.stdout.take().zip(child.stdin.take()).expect("both were asked for");
        Ok(Process { child, said: BufReader::new(said), told })
    }

    fn tell(&mut self, word: &str) -> Result<(), Failure> {
        Ok(writeln!(self.told, "{word}")?)
    }

    /// The rest of its next line, which begins so.
    fn answer(&mut self, beginning: &str) -> Result<String, Failure> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        let rest = line.strip_suffix('\n').and_then(|line| line.strip_prefix(beginning));
        rest.map(str::to_owned).ok_or_else(|| format!("the rival said {line:?} or has ended").into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end_child(&mut self.child);
    }
}
