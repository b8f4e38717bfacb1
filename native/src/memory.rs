//! What memory this process has and may take, for the memory bill and its refusals.

use crate::procfs;
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::path::Path;

/// Resident bytes of this process, the mapped part of the arena included.
///
/// # Panics
/// If `/proc` is not mounted.
pub fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").expect("/proc must be mounted");
    let pages: u64 =
        text.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("statm has a resident field");
    pages * page_bytes() as u64
}

/// Bytes of this machine's smallest page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: reads a constant; rustix has it only under a feature the workspace does not use.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("the page size is a positive number")
}

/// Bytes that can be taken without swapping or being killed: `MemAvailable`, or what is left
/// below the limit of our memory cgroup if that is less. `None` if `/proc` says neither. The memory
/// bill and the arena both ask here, so that they go by one figure.
pub fn available_bytes() -> Option<u64> {
    let machine = procfs::meminfo_bytes("MemAvailable");
    match (machine, cgroup_available_bytes()) {
        (Some(machine), Some(cgroup)) => Some(machine.min(cgroup)),
        (machine, cgroup) => machine.or(cgroup),
    }
}

/// `RLIMIT_MEMLOCK` in bytes; `None` is unlimited.
pub fn memlock_limit_bytes() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// Where control groups are mounted.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// Where one version of control groups keeps what we ask.
struct GroupFiles {
    /// The controller named in `/proc/self/cgroup`; empty for version 2.
    controller: &'static str,
    /// Directory of the hierarchy below the root.
    hierarchy: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Line of `memory.stat`: page cache that the kernel drops before it kills anybody.
    droppable: &'static str,
}

/// Version 1 first: where both are mounted, that one has the memory controller.
const GROUP_FILES: [GroupFiles; 2] = [
    GroupFiles {
        controller: "memory",
        hierarchy: "memory",
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        droppable: "total_inactive_file",
    },
    GroupFiles {
        controller: "",
        hierarchy: "",
        limit: "memory.max",
        usage: "memory.current",
        droppable: "inactive_file",
    },
];

fn cgroup_available_bytes() -> Option<u64> {
    group_available_bytes(&fs::read_to_string("/proc/self/cgroup").ok()?, Path::new(CGROUP_ROOT))
}

/// What our own memory cgroup (either version) still admits; cache that can be dropped counts as
/// free. Limits of ancestors are not read: inside a container the own group is the one that
/// carries the limit.
fn group_available_bytes(groups: &str, root: &Path) -> Option<u64> {
    GROUP_FILES.iter().find_map(|files| {
        let path = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            controllers.split(',').any(|name| name == files.controller).then_some(path)
        })?;
        let hierarchy = root.join(files.hierarchy);
        let own = hierarchy.join(path.trim_start_matches('/'));
        // Inside a container the path may be the host's; the root is then our own group.
        let group = if own.join(files.limit).exists() { own } else { hierarchy };
        let limit = procfs::number(group.join(files.limit))?;
        let usage = procfs::number(group.join(files.usage))?;
        let statistics = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let used = usage.saturating_sub(procfs::counter(&statistics, files.droppable).unwrap_or(0));
        Some(limit.saturating_sub(used))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena_map::ArenaMap;
    use crate::testing::directory_on_disk;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn resident_bytes_follow_what_is_touched() {
        let bytes = 96 << 20;
        let before = resident_bytes();
        let fd = memfd_create("resident", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, bytes).unwrap();
        let map = ArenaMap::map(&fd, bytes as usize).unwrap();
        map.populate_write(0, bytes as usize).unwrap();
        let grown = resident_bytes().saturating_sub(before);
        // Other tests of this process free and take memory meanwhile.
        assert!(grown > bytes / 2, "{grown}");
    }

    #[test]
    fn available_is_within_the_machine() {
        let available = available_bytes().unwrap();
        assert!(available > 0);
        assert!(available <= procfs::meminfo_bytes("MemTotal").unwrap());
    }

    /// A control group of these files below a new root.
    fn group(directory: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = directory_on_disk();
        let group = root.path().join(directory);
        fs::create_dir_all(&group).unwrap();
        files.iter().for_each(|(name, text)| fs::write(group.join(name), text).unwrap());
        root
    }

    #[test]
    fn a_group_leaves_its_limit_less_what_it_cannot_drop() {
        let files = [
            ("memory.max", "1000\n"),
            ("memory.current", "700\n"),
            ("memory.stat", "anon 500\ninactive_file 150\ntotal_inactive_file 3\n"),
        ];
        let root = group("node.slice", &files);
        assert_eq!(group_available_bytes("0::/node.slice\n", root.path()), Some(450));
        // Used beyond the limit, as a lowered one leaves it, and without statistics.
        fs::remove_file(root.path().join("node.slice/memory.stat")).unwrap();
        fs::write(root.path().join("node.slice/memory.current"), "1200").unwrap();
        assert_eq!(group_available_bytes("0::/node.slice\n", root.path()), Some(0));
        fs::write(root.path().join("node.slice/memory.max"), "max\n").unwrap();
        assert_eq!(group_available_bytes("0::/node.slice\n", root.path()), None);
    }

    #[test]
    fn a_path_of_the_host_means_the_root_group() {
        let files = [("memory.max", "1000"), ("memory.current", "400"), ("memory.stat", "inactive_file 100")];
        let root = group("", &files);
        assert_eq!(group_available_bytes("0::/docker/0123abcd\n", root.path()), Some(700));
        assert_eq!(group_available_bytes("", root.path()), None);
    }

    #[test]
    fn the_memory_controller_of_version_1_comes_first() {
        let files = [
            ("memory.limit_in_bytes", "5000"),
            ("memory.usage_in_bytes", "2000"),
            ("memory.stat", "inactive_file 7\ntotal_inactive_file 500\n"),
        ];
        let root = group("memory/job", &files);
        let groups = "0::/elsewhere\n4:cpu,memory:/job\n";
        assert_eq!(group_available_bytes(groups, root.path()), Some(3_500));
    }

    #[test]
    fn memlock_is_what_the_kernel_says() {
        let limits = fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
        let soft = line.split_whitespace().nth(3).unwrap();
        assert_eq!(memlock_limit_bytes(), soft.parse().ok());
    }
}
