//! What the machine offers, observed once and handed to [`super::NodeSettings::resolve`], which stays pure.

use std::fs;
use std::path::{Path, PathBuf};

use crate::quantity::KIB;

/// The facts settings are checked against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Cores this process may run on, ascending.
    pub cores: Vec<usize>,
    /// Bytes a new process can take: `MemAvailable`, or what its control group leaves, if less.
    pub memory_available_bytes: u64,
    /// Bytes in reserved and free huge pages of the default size; not part of the above.
    pub hugetlb_free_bytes: u64,
    /// The kernel's host name.
    pub host_name: String,
    /// Our user id.
    pub uid: u32,
    /// `$XDG_RUNTIME_DIR`, if set.
    pub runtime_dir: Option<PathBuf>,
}

fn number(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Value of the line `name: value kB` or `name value`.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_whitespace).find_map(|mut words| {
        words.next().filter(|first| first.trim_end_matches(':') == name).map(|_| words)
    })?;
    words.next()?.parse().ok()
}

/// What the control group of this process leaves, if it limits memory: cache that can be dropped counts as free.
fn control_group_available_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path_of = |controller: &str| {
        let line = groups.lines().find(|line| line.split(':').nth(1) == Some(controller))?;
        line.splitn(3, ':').nth(2).map(|path| path.trim_start_matches('/').to_owned())
    };
    let layouts = [
        (
            "memory",
            "/sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
        ("", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ];
    layouts.into_iter().find_map(|(controller, root, limit, usage, inactive)| {
        let own = Path::new(root).join(path_of(controller)?);
        // Inside a container the path may be the host's; the root is then our own group.
        let directory = if own.join(limit).exists() { own } else { PathBuf::from(root) };
        let limit = number(directory.join(limit))?;
        let statistics = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
        let used = number(directory.join(usage))?.saturating_sub(field(&statistics, inactive).unwrap_or(0));
        Some(limit.saturating_sub(used))
    })
}

impl Machine {
    /// Looks at the machine. What cannot be read is left out: no host name, or no memory (the bill then refuses).
    #[must_use]
    pub fn observe() -> Machine {
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let available = field(&memory, "MemAvailable").unwrap_or(0).saturating_mul(KIB);
        let huge_page = field(&memory, "Hugepagesize").unwrap_or(0).saturating_mul(KIB);
        let huge_free = field(&memory, "HugePages_Free")
            .unwrap_or(0)
            .saturating_sub(field(&memory, "HugePages_Rsvd").unwrap_or(0));
        let affinity = rustix::thread::sched_getaffinity(None);
        let cores = match affinity {
            Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect(),
            Err(_) => (0..std::thread::available_parallelism().map_or(1, usize::from)).collect(),
        };
        let runtime_dir =
            std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        Machine {
            cores,
            memory_available_bytes: control_group_available_bytes()
                .map_or(available, |left| left.min(available)),
            hugetlb_free_bytes: huge_free.saturating_mul(huge_page),
            host_name: fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
            uid: rustix::process::getuid().as_raw(),
            runtime_dir,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_core_and_memory() {
        let machine = Machine::observe();
        assert!(!machine.cores.is_empty() && machine.memory_available_bytes > 0, "{machine:?}");
    }

    #[test]
    fn fields_are_found_by_whole_name() {
        let text = "MemFree: 7 kB\nMemAvailable:   12 kB\ninactive_file 3\n";
        assert_eq!(field(text, "MemAvailable"), Some(12));
        assert_eq!(field(text, "inactive_file"), Some(3));
        assert_eq!(field(text, "Mem"), None);
    }
}
