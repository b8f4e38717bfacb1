//! What holds one source back, by means of the kernel that no node knows of: a limit on what its process reads from
//! the disk, or on what leaves its UDP port.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::Failure;
use crate::own_network::tc;

/// How long a control group whose processes have ended may still be busy.
const GROUP_WAIT: Duration = Duration::from_secs(2);
const GROUP_LOOK: Duration = Duration::from_millis(20);
/// What leaves at once at most: more than one send of a node, which is not cut.
const BURST: &str = "128kb";

/// A limit that is lifted when this is dropped, after the process it is for has ended.
pub enum Contention {
    /// None.
    Nothing,
    /// A control group with a limit.
    SlowDisk(PathBuf),
    /// A shaper on the loopback device of this network namespace.
    Egress,
}

impl Contention {
    /// The process reads so much a second from the disk that `directory` lies on.
    ///
    /// # Errors
    /// If there are no control groups for this, or none may be made.
    pub fn slow_disk(process: u32, directory: &Path, bytes_per_second: u64) -> Result<Contention, Failure> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let root = blkio_root(&mounts).ok_or(
            "no control group (v1, `blkio`) is mounted, which limits what a process reads: mount one, as root",
        )?;
        let disk = disk(directory)?;
        let group = Path::new(root).join(format!("orbitkv-bench-{}", std::process::id()));
        let said = |what: &Path, error: io::Error| format!("{}: {error}; are you root?", what.display());
        fs::create_dir(&group).map_err(|error| said(&group, error))?;
        let contention = Contention::SlowDisk(group.clone());
        let entries = [
            ("blkio.throttle.read_bps_device", format!("{disk} {bytes_per_second}")),
            ("cgroup.procs", process.to_string()),
        ];
        for (name, text) in entries {
            let file = group.join(name);
            fs::write(&file, text).map_err(|error| said(&file, error))?;
        }
        Ok(contention)
    }

    /// What leaves a UDP port of this network namespace is so much a second.
    ///
    /// # Errors
    /// If `tc` does not do it.
    pub fn egress(port: u16, bits_per_second: u64) -> Result<Contention, Failure> {
        tc("qdisc add dev lo root handle 1: htb default 1")?;
        let contention = Contention::Egress;
        tc(&format!(
            "class add dev lo parent 1: classid 1:10 htb rate {bits_per_second}bit ceil {bits_per_second}bit \
             burst {BURST} cburst {BURST} quantum 65536"
        ))?;
        tc(&format!(
            "filter add dev lo parent 1: protocol ip u32 match ip protocol 17 0xff match ip sport {port} 0xffff \
             flowid 1:10"
        ))?;
        Ok(contention)
    }
}

impl Drop for Contention {
    fn drop(&mut self) {
        match self {
            Contention::Nothing => {}
            Contention::Egress => {
                let _ = tc("qdisc del dev lo root");
            }
            Contention::SlowDisk(group) => {
                for _ in 0..GROUP_WAIT.as_millis() / GROUP_LOOK.as_millis() {
                    if fs::remove_dir(&*group).is_ok() {
                        return;
                    }
                    sleep(GROUP_LOOK);
                }
                eprintln!("bench: {} is still in use and stays behind", group.display());
            }
        }
    }
}

/// Where the control groups for block devices are.
fn blkio_root(mounts: &str) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let is_it =
            words.len() > 3 && words[2] == "cgroup" && words[3].split(',').any(|word| word == "blkio");
        is_it.then(|| words[1])
    })
}

/// Number of the whole disk that a directory lies on: limits of a partition do not exist.
fn disk(directory: &Path) -> Result<String, Failure> {
    let device = fs::metadata(directory)?.dev();
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let entry = Path::new("/sys/dev/block").join(&number);
    let entry = entry.canonicalize().map_err(|_| {
        format!("--dir {} lies on no disk ({number}): choose a directory on one", directory.display())
    })?;
    if !entry.join("partition").exists() {
        return Ok(number);
    }
    let whole = entry.parent().ok_or("a partition lies on a disk")?;
    Ok(fs::read_to_string(whole.join("dev"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_are_found_by_kind_and_controller() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,blkio 0 0\n\
                      cgroup /sys/fs/cgroup/blkio cgroup rw,relatime,blkio 0 0\n";
        assert_eq!(blkio_root(mounts), Some("/sys/fs/cgroup/blkio"));
        assert_eq!(blkio_root("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn what_lies_on_no_disk_is_refused_by_name() {
        let refusal = disk(Path::new("/proc")).unwrap_err().to_string();
        assert!(refusal.contains("--dir /proc") && refusal.contains("choose"), "{refusal}");
    }
}
