//! A process that shall not outlive the one that started it, even if that one is killed.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the child asked to end (SIGTERM) when the *thread* that spawns it ends, however it ends: so spawn it
/// from one that lives as long as the child may.
pub fn end_with_parent(command: &mut Command) {
    let parent = getpid();
    let before_exec = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // Told too late if the parent is gone already.
        if getppid() != Some(parent) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing, takes no lock and
    // touches no memory of other threads; errors of these kinds are plain numbers. No safe interface of `Command`
    // reaches the child before exec.
    unsafe {
        command.pre_exec(before_exec);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::thread;

    use super::*;

    #[test]
    fn the_child_is_asked_to_end_when_its_thread_has_ended() {
        let spawned = thread::spawn(|| {
            let mut command = Command::new("sleep");
            end_with_parent(command.arg("600"));
            command.spawn().expect("`sleep` starts")
        });
        let mut child = spawned.join().expect("no panic");
        let status = child.wait().expect("our child");
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
    }
}
