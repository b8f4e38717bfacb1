//! What the machine offers, observed once and handed to [`super::NodeSettings::resolve`], which stays pure.

use std::fs;
use std::path::PathBuf;

use orbitkv_native::{affinity, memory};

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

/// Value of the line `name: value` of `/proc/meminfo`, in the line's own unit.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_whitespace).find_map(|mut words| {
        words.next().filter(|first| first.strip_suffix(':') == Some(name)).map(|_| words)
    })?;
    words.next()?.parse().ok()
}

impl Machine {
    /// Looks at the machine. What cannot be read is left out: no host name, or no memory (the bill then refuses).
    #[must_use]
    pub fn observe() -> Machine {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let huge_page = field(&text, "Hugepagesize").unwrap_or(0).saturating_mul(KIB);
        let huge_free = field(&text, "HugePages_Free")
            .unwrap_or(0)
            .saturating_sub(field(&text, "HugePages_Rsvd").unwrap_or(0));
        let cores = affinity::available_cores()
            .unwrap_or_else(|_| (0..std::thread::available_parallelism().map_or(1, usize::from)).collect());
        let runtime_dir =
            std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        Machine {
            cores,
            memory_available_bytes: memory::available_bytes().unwrap_or(0),
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
        let text = "HugePages_Total:  16\nHugePages_Free:   12\nHugepagesize:  2048 kB\n";
        assert_eq!(field(text, "HugePages_Free"), Some(12));
        assert_eq!(field(text, "Hugepagesize"), Some(2_048));
        assert_eq!(field(text, "HugePages"), None);
    }
}
