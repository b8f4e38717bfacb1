//! On what a run was made, and who else used it meanwhile.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start_matches([' ', '\t', ':']).trim())
}

/// Processor, cores, memory and kernel, in words.
pub fn describe() -> String {
    let (processors, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let cores = processors.lines().filter(|line| line.starts_with("processor")).count();
    let kilobytes = field(&memory, "MemTotal").and_then(|text| text.split_whitespace().next()?.parse().ok());
    format!(
        "{}, {cores} cores, {:.1} GiB, Linux {}",
        field(&processors, "model name").unwrap_or("unknown processor"),
        kilobytes.unwrap_or(0.0) / f64::from(1 << 20),
        read("/proc/sys/kernel/osrelease").trim()
    )
}

/// Filesystem a directory lies on and its kind, in words.
pub fn disk_of(directory: &Path) -> String {
    let mounts = read("/proc/mounts");
    let mount = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        Some((words.next()?, words.next()?, words.next()?))
    };
    let mounts = mounts.lines().filter_map(mount).filter(|(_, point, _)| directory.starts_with(point));
    // Of equal points the last mount is the one that is seen.
    match mounts.max_by_key(|(_, point, _)| point.len()) {
        Some((device, _, kind)) => format!("{kind} on {device}"),
        None => "unknown".to_owned(),
    }
}

/// What others took of the processors.
pub struct Pressure {
    /// All ticks so far, and those the hypervisor gave to others.
    ticks: (u64, u64),
    load: String,
}

impl Pressure {
    /// Now.
    pub fn now() -> Pressure {
        Pressure { ticks: ticks(), load: load() }
    }

    /// Load at both ends, and the share of time stolen in between.
    pub fn until_now(&self) -> Value {
        let (all, stolen) = ticks();
        let all = all.saturating_sub(self.ticks.0).max(1);
        json!({
            "load_at_start": self.load,
            "load_at_end": load(),
            "stolen_share": stolen.saturating_sub(self.ticks.1) as f64 / all as f64,
        })
    }
}

fn load() -> String {
    read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn ticks() -> (u64, u64) {
    let text = read("/proc/stat");
    let line = field(&text, "cpu ").unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user time.
    let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|text| text.parse().ok()).collect();
    (ticks.iter().sum(), ticks.get(7).copied().unwrap_or(0))
}
