//! Reading the kernel's text files: one place that knows their shape, so that the rooms above
//! see numbers.

use std::fs;
use std::path::Path;

/// The value in bytes of a `Name:   123 kB` line of `/proc/meminfo`, if the kernel prints one.
pub(crate) fn meminfo_bytes(name: &str) -> Option<u64> {
    kilobyte_field(&fs::read_to_string("/proc/meminfo").ok()?, name)
}

/// A whole file holding one decimal number (sysfs and cgroup counters).
pub(crate) fn number(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The value of a `name 123` line, as `memory.stat` has them.
pub(crate) fn counter(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The chosen word of a `always [madvise] never` file.
pub(crate) fn chosen_word(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word.to_owned())
}

/// Bytes of the address range that this process maps by huge pages of shared memory: what the
/// kernel did, where `madvise` only says what was asked.
pub(crate) fn shmem_huge_mapped_bytes(address: usize, bytes: usize) -> u64 {
    let Ok(text) = fs::read_to_string("/proc/self/smaps") else { return 0 };
    smaps_sum(&text, address, bytes, "ShmemPmdMapped")
}

/// Bytes of the address range that this process maps by huge pages of its own memory.
#[cfg(test)]
pub(crate) fn anonymous_huge_bytes(address: usize, bytes: usize) -> u64 {
    let text = fs::read_to_string("/proc/self/smaps").expect("/proc must be mounted");
    smaps_sum(&text, address, bytes, "AnonHugePages")
}

fn smaps_sum(text: &str, address: usize, bytes: usize, field: &str) -> u64 {
    let range = address..address + bytes;
    let mut inside = false;
    let mut sum = 0;
    for line in text.lines() {
        if let Some((start, _)) = mapping_bounds(line) {
            inside = range.contains(&start);
        } else if inside && let Some(value) = kilobyte_field(line, field) {
            sum += value;
        }
    }
    sum
}

fn mapping_bounds(line: &str) -> Option<(usize, usize)> {
    let (bounds, _) = line.split_once(' ')?;
    let (start, end) = bounds.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

fn kilobyte_field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        let kilobytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes * 1_024)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_counts_only_the_mappings_inside_the_range() {
        let text = "1000-3000 rw-s 0 00:01 1 /memfd:a\nRss: 8 kB\nShmemPmdMapped:    4 kB\n\
                    3000-4000 rw-s 0 00:01 1 /memfd:a\nShmemPmdMapped:    2 kB\n\
                    9000-a000 rw-s 0 00:01 1 /memfd:b\nShmemPmdMapped:    64 kB\n";
        assert_eq!(smaps_sum(text, 0x1000, 0x3000, "ShmemPmdMapped"), 6 * 1_024);
        assert_eq!(smaps_sum(text, 0x9000, 0x1000, "ShmemPmdMapped"), 64 * 1_024);
    }

    #[test]
    fn meminfo_names_must_match_whole() {
        let text = "MemTotal:  10 kB\nMemAvailable:   7 kB\n";
        assert_eq!(kilobyte_field(text, "MemAvailable"), Some(7 * 1_024));
        assert_eq!(kilobyte_field(text, "Mem"), None);
        assert!(meminfo_bytes("MemAvailable").is_some());
        let text = "total_inactive_file 9\ninactive_file 3\n";
        assert_eq!(counter(text, "inactive_file"), Some(3));
        assert_eq!(counter(text, "inactive"), None);
    }
}
