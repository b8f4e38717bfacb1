//! What memory this process has and may take, for the memory bill and its refusals.

use crate::procfs;
use rustix::process::{Resource, getrlimit};
use std::fs;

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
/// below the limit of our memory cgroup if that is less. `None` if `/proc` says neither.
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

/// What our own memory cgroup (either version) still admits. Limits of ancestors are not read:
/// inside a container the own group is the one that carries the limit.
fn cgroup_available_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, limit, usage) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => return None,
        };
        let limit = procfs::number(&format!("{root}{path}/{limit}"))?;
        let usage = procfs::number(&format!("{root}{path}/{usage}"))?;
        Some(limit.saturating_sub(usage))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena_map::ArenaMap;
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

    #[test]
    fn memlock_is_what_the_kernel_says() {
        let limits = fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
        let soft = line.split_whitespace().nth(3).unwrap();
        assert_eq!(memlock_limit_bytes(), soft.parse().ok());
    }
}
