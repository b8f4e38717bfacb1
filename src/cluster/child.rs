//! A process of ours: its output in a file, its end noticed, and ended in order.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use orbitkv_native::child::end_with_parent;
use rustix::process::{Pid, Signal, kill_process};

use super::ClusterFailure;

/// Time a process may take to stop after SIGTERM.
const STOP_WAIT: Duration = Duration::from_secs(60);
/// How often one that stops is looked at.
const STOP_LOOK: Duration = Duration::from_millis(5);
/// What is shown of a process's own words when it has failed, in bytes.
const LOG_BYTES_TOLD: usize = 4096;

/// A running process, or one that has ended and is remembered. Ended when dropped.
pub(super) struct ChildProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

impl ChildProcess {
    /// Starts it with its output in the file `log`. It has a process group of its own: Ctrl-C reaches only us,
    /// and we end our processes in order. If we are killed, the kernel asks it to end.
    pub(super) fn spawn(
        name: &str,
        mut command: Command,
        log: PathBuf,
    ) -> Result<ChildProcess, ClusterFailure> {
        let failed = |what, path: &Path, error| ClusterFailure::System { what, path: path.into(), error };
        let output = File::create(&log).map_err(|error| failed("making", &log, error))?;
        let errors = output.try_clone().map_err(|error| failed("making", &log, error))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        end_with_parent(&mut command);
        let child =
            command.spawn().map_err(|error| failed("starting", Path::new(command.get_program()), error))?;
        Ok(ChildProcess { name: name.to_owned(), child, log })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its status, if it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends it a signal, unless it has ended.
    pub(super) fn signal(&mut self, signal: Signal) {
        send(&mut self.child, signal);
    }

    /// Kills it, and waits until it is gone.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The rest of the first line it said that begins so.
    pub(super) fn line(&self, beginning: &str) -> Option<String> {
        let log = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        // What follows the last line's end may not be whole yet.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().find_map(|line| line.strip_prefix(beginning)).map(str::to_owned)
    }

    /// The end of what it said.
    pub(super) fn last_words(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let told = &log[log.len().saturating_sub(LOG_BYTES_TOLD)..];
        String::from_utf8_lossy(told).trim_end().to_owned()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        end_child(&mut self.child);
    }
}

/// Asks processes to end, all at once, and waits for them.
pub(super) fn end_all<'a>(children: impl Iterator<Item = &'a mut ChildProcess>) {
    let mut children: Vec<&mut ChildProcess> = children.collect();
    children.iter_mut().for_each(|process| ask_to_end(&mut process.child));
    children.iter_mut().for_each(|process| end_child(&mut process.child));
}

fn ask_to_end(child: &mut Child) {
    send(child, Signal::TERM);
    // One that is paused hears it as it goes on.
    send(child, Signal::CONT);
}

fn send(child: &mut Child, signal: Signal) {
    if !matches!(child.try_wait(), Ok(Some(_))) {
        // It is our unreaped child, so the number is still its own.
        let _ = kill_process(Pid::from_child(child), signal);
    }
}

/// Asks a process that we started to end, and waits; the last resort after a minute is SIGKILL.
pub fn end_child(child: &mut Child) {
    ask_to_end(child);
    let until = Instant::now() + STOP_WAIT;
    while Instant::now() < until {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        sleep(STOP_LOOK);
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn shell(text: &str, directory: &Path) -> ChildProcess {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        ChildProcess::spawn("shell", command, directory.join("log")).expect("a shell")
    }

    fn await_end(process: &mut ChildProcess) -> ExitStatus {
        let until = Instant::now() + STOP_WAIT;
        while Instant::now() < until {
            if let Some(status) = process.ended() {
                return status;
            }
            sleep(STOP_LOOK);
        }
        panic!("it goes on");
    }

    #[test]
    fn its_words_are_kept_and_only_whole_lines_are_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut process =
            shell("echo 'http on here'; echo last >&2; printf 'part on'; exit 7", directory.path());
        assert_eq!(await_end(&mut process).code(), Some(7));
        assert_eq!(process.line("http on "), Some("here".to_owned()));
        assert_eq!(process.line("part"), None, "its line has no end");
        assert_eq!(process.last_words(), "http on here\nlast\npart on");
        assert_eq!(process.ended().and_then(|status| status.code()), Some(7), "it is remembered");
    }

    #[test]
    fn all_are_asked_and_none_is_left() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut both = [shell("exec sleep 600", directory.path()), shell("exit 3", directory.path())];
        await_end(&mut both[1]);
        end_all(both.iter_mut());
        let statuses = both.each_mut().map(|process| process.ended().expect("it has ended"));
        assert_eq!((statuses[0].signal(), statuses[1].code()), (Some(Signal::TERM.as_raw()), Some(3)));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let command = Command::new("/nowhere/program");
        let error = ChildProcess::spawn("x", command, directory.path().join("log")).err().expect("refused");
        assert!(error.to_string().contains("/nowhere/program"), "{error}");
    }
}
