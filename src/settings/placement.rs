//! Which cores shards and device loops get: decided purely from the settings and the machine's core list.

use orbitkv_native::affinity::{self, CoreListError};

use super::refusal::refused;
use super::values::CoreList;
use super::{Idle, LayoutChoice, Machine, NodeArgs, SettingsError};

/// Most shards a default gives: more only pays with many engines, and the host is theirs.
pub const SHARDS_DEFAULT_MAX: usize = 8;
/// Cores of the machine for each shard of the default: three of four stay with the engines.
pub const CORES_PER_DEFAULT_SHARD: usize = 4;
/// Most shards a node takes: beyond it the mailboxes between core pairs outgrow their use.
pub const SHARDS_MAX: u16 = 256;

/// Where device loops run, decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceCores {
    /// On cores of their own, in this order.
    Dedicated(Vec<usize>),
    /// On the shards' cores, co-scheduled.
    Shared,
}

/// The core layout of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Core of each shard; as many as there are shards, none twice.
    pub shard_cores: Vec<usize>,
    /// Where device I/O is completed.
    pub device_cores: DeviceCores,
}

fn checked<'a>(
    setting: &str,
    list: Option<&'a CoreList>,
    machine: &Machine,
) -> Result<Option<&'a [usize]>, SettingsError> {
    let Some(list) = list else { return Ok(None) };
    affinity::check_cores(&list.0, &machine.cores).map_err(|error| match error {
        CoreListError::NotAvailable { core, available } => {
            let bound = format!("core {core} is not available to this process");
            refused(setting, list, bound, format!("choose from {available}"))
        }
        CoreListError::Duplicate { core } => {
            refused(setting, list, format!("core {core} is listed twice"), "list each core once")
        }
        other => refused(setting, list, other.to_string(), "write it like 0,2-5"),
    })?;
    Ok(Some(&list.0))
}

/// Decides the layout. `uses_device` says whether there is device I/O to complete at all.
pub(super) fn place(
    args: &NodeArgs,
    machine: &Machine,
    uses_device: bool,
    notices: &mut Vec<String>,
) -> Result<Placement, SettingsError> {
    let named = checked("--cores", args.cores.as_ref(), machine)?;
    let device_named = checked("--device-cores", args.device_cores.as_ref(), machine)?;
    let layout = args.layout.unwrap_or(LayoutChoice::Auto);
    if let (Some(cores), Some(device)) = (named, device_named)
        && let Some(both) = cores.iter().find(|core| device.contains(core))
    {
        let value = format!("{} and {}", CoreList(cores.to_vec()), CoreList(device.to_vec()));
        let bound = format!("core {both} is in both lists");
        let remedy = "give it to one of them, or drop --device-cores and use --layout shared";
        return Err(refused("--cores and --device-cores", value, bound, remedy));
    }
    if let (Some(device), LayoutChoice::Shared) = (device_named, layout) {
        let value = format!("{} and shared", CoreList(device.to_vec()));
        let bound = "a shared layout has no device cores";
        return Err(refused("--device-cores and --layout", value, bound, "drop one of the two"));
    }

    let candidates: Vec<usize> = match named {
        Some(cores) => cores.to_vec(),
        None => {
            let taken = device_named.unwrap_or_default();
            machine.cores.iter().copied().filter(|core| !taken.contains(core)).collect()
        }
    };
    let shards = match (args.shards, named) {
        (Some(shards), _) => usize::from(shards),
        (None, Some(cores)) => cores.len(),
        (None, None) => (machine.cores.len() / CORES_PER_DEFAULT_SHARD).clamp(1, SHARDS_DEFAULT_MAX),
    };
    if shards == 0 || shards > usize::from(SHARDS_MAX) {
        let bound = format!("a node has 1 to {SHARDS_MAX} shards");
        return Err(refused("--shards", shards, bound, "choose within that, or leave it out"));
    }
    if shards > candidates.len() {
        let count = candidates.len();
        let (setting, value) = match named {
            Some(cores) => ("--shards and --cores", format!("{shards} and {}", CoreList(cores.to_vec()))),
            None => ("--shards", shards.to_string()),
        };
        let bound = format!("each shard needs a core of its own and there are {count}");
        let remedy = format!("lower --shards to {count} or give it more cores (--cores, --device-cores)");
        return Err(refused(setting, value, bound, remedy));
    }
    // The last cores by default: interrupts and everything unpinned gather on the first.
    let shard_cores: Vec<usize> = match named {
        Some(cores) => cores[..shards].to_vec(),
        None => candidates[candidates.len() - shards..].to_vec(),
    };
    if let Some(cores) = named
        && cores.len() > shards
    {
        let unused = CoreList(cores[shards..].to_vec());
        notices.push(format!("--cores names more cores than --shards {shards} uses; {unused} stay unused"));
    }

    let spare: Vec<usize> =
        machine.cores.iter().copied().filter(|core| !shard_cores.contains(core)).collect();
    let device_cores = match (layout, device_named, spare.as_slice()) {
        (_, Some(device), _) => DeviceCores::Dedicated(device.to_vec()),
        (LayoutChoice::Dedicated, None, []) => {
            let remedy = "name one with --device-cores, lower --shards, or use --layout shared";
            let value = format!("dedicated with {shards} shards on {} cores", machine.cores.len());
            return Err(refused("--layout", value, "device loops need a core of their own", remedy));
        }
        (LayoutChoice::Dedicated, None, [.., last]) => DeviceCores::Dedicated(vec![*last]),
        // One spare core is left to the control thread and the engines; auto takes only a second one.
        (LayoutChoice::Auto, None, [_, .., last]) if uses_device => DeviceCores::Dedicated(vec![*last]),
        (LayoutChoice::Auto | LayoutChoice::Shared, None, _) => DeviceCores::Shared,
    };

    let device_count = match &device_cores {
        DeviceCores::Dedicated(cores) => cores.len(),
        DeviceCores::Shared => 0,
    };
    if args.idle == Some(Idle::Spin) && shards + device_count >= machine.cores.len() {
        let value = format!("spin with {} of {} cores in use", shards + device_count, machine.cores.len());
        let bound = "a spinning node must leave one core to its control thread and the kernel";
        return Err(refused("--idle", value, bound, "use --idle park or lower --shards"));
    }
    Ok(Placement { shard_cores, device_cores })
}

/// `2 shards on cores 2-3; device I/O dedicated on core 1`: how a node says it at start, in `/cache/metadata` and in `status`.
impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let count = self.shard_cores.len();
        let cores = CoreList(self.shard_cores.clone());
        write!(f, "{count} shard{} on core{} {cores}; device I/O ", plural(count), plural(count))?;
        match &self.device_cores {
            DeviceCores::Dedicated(cores) => {
                write!(f, "dedicated on core{} {}", plural(cores.len()), CoreList(cores.clone()))
            }
            DeviceCores::Shared => f.write_str("shares the shards' cores"),
        }
    }
}
