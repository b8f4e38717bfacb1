//! What a node carries on a usual day, if its operator says so. A pool that such a day nearly fills is refused at start: on
//! a busier one the bulkhead alone would refuse work (chapter 5, row 3).
//!
//! Keys are spread over shards evenly, so each shard has its part of the load as it has of the places.

use orbitkv_shards::resilience::bulkhead::{Class, HEADROOM, Pools, TooSmall};
use orbitkv_shards::shard::{PrefetchSettings, ShardSettings};

use super::refusal::refused;
use super::{NodeArgs, SLICE_GRAIN_BYTES, SettingsError};
use crate::core::waits_max;
use crate::quantity::ByteSize;

const SETTING: &str = "--usual-load";

/// The classes whose load can be said, in the order of [`Places::pools`].
const NAMES: [(&str, Class); 4] =
    [("dram", Class::Dram), ("ssd", Class::Ssd), ("peer", Class::Peer), ("background", Class::Background)];

/// What the pools of a node follow from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Shards of the node.
    pub shards: u64,
    /// Arena of one in bytes.
    pub dram_slice_bytes: u64,
    /// Share of it for what engines have announced, in percent.
    pub prefetch_percent: u32,
    /// Whether it has peers.
    pub is_member: bool,
}

impl Places {
    /// Places of the whole node: bytes, and of `ssd` commands.
    fn pools(&self) -> [u64; 4] {
        let slice = self.dram_slice_bytes;
        let lent = if self.is_member { ShardSettings::lent_bytes_max(slice) } else { 0 };
        let ahead = PrefetchSettings::of_slice(slice, self.prefetch_percent).bytes_max;
        let [device, _] = waits_max(self.is_member);
        [ShardSettings::reserved_bytes_max(slice), device, lent, ahead].map(|places| places * self.shards)
    }

    /// What gives a pool as many places as `needed`.
    fn remedy(&self, class: Class, places: u64, needed: f64) -> String {
        let times = needed / places as f64;
        let grain = (SLICE_GRAIN_BYTES * self.shards) as f64;
        let dram = ((self.dram_slice_bytes * self.shards) as f64 * times / grain).ceil() * grain;
        let dram = ByteSize(dram as u64);
        match class {
            Class::Peer if !self.is_member => {
                "leave peer out, or add --etcd: a standalone node lends nothing".to_owned()
            }
            Class::Background if places == 0 => "leave background out, or raise --prefetch".to_owned(),
            Class::Background => format!("raise --dram to {dram}, or --prefetch"),
            Class::Ssd => format!("raise --shards to {:.0}", (self.shards as f64 * times).ceil()),
            Class::Dram | Class::Peer | Class::Control => format!("raise --dram to {dram}, or add nodes"),
        }
    }
}

/// Refuses a usual load that a pool has no headroom for; none is said by default, and nothing is refused.
///
/// # Errors
/// What is no load, and the first pool that is too small.
pub(super) fn check(args: &NodeArgs, of: &Places) -> Result<(), SettingsError> {
    let Some(text) = &args.usual_load else { return Ok(()) };
    let loads = read(text)?;
    let places = of.pools();
    let Err(TooSmall { pool, places, usual_load }) = Pools::sized(&places, &loads) else { return Ok(()) };
    let (name, class) = NAMES[pool];
    let needed = HEADROOM * usual_load;
    let size = |places: f64| {
        if class == Class::Ssd { format!("{places:.0}") } else { ByteSize(places as u64).rounded() }
    };
    let bound = format!(
        "the pool of {name} has {}, and {HEADROOM} times a usual day is {}",
        size(places as f64),
        size(needed.ceil())
    );
    Err(refused(SETTING, format!("{name}={}", size(usual_load)), bound, of.remedy(class, places, needed)))
}

/// The load of each class; 0 where none is said.
fn read(text: &str) -> Result<[f64; 4], SettingsError> {
    let mut loads = [0.0; 4];
    for part in text.split(',') {
        let wrong = |bound: String| {
            refused(SETTING, part, bound, "write it like dram=256mib,ssd=500,background=32mib")
        };
        let Some((name, value)) = part.trim().split_once('=') else {
            return Err(wrong("is no class with its load".to_owned()));
        };
        let Some(pool) = NAMES.iter().position(|(known, _)| *known == name) else {
            return Err(wrong(format!("`{name}` is none of dram, ssd, peer and background")));
        };
        loads[pool] = match NAMES[pool].1 {
            Class::Ssd => {
                let commands = value.parse::<u32>();
                commands.map(f64::from).map_err(|_| wrong("is a number of commands that wait".to_owned()))?
            }
            _ => value.parse::<ByteSize>().map_err(|error| wrong(error.to_string()))?.0 as f64,
        };
    }
    Ok(loads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::GIB;

    /// A gibibyte on two shards: 512 MiB for saves, 256 MiB lent, nearly as much ahead of demand.
    fn with(load: &str, change: impl FnOnce(&mut Places)) -> Result<(), String> {
        let mut of = Places { shards: 2, dram_slice_bytes: GIB / 2, prefetch_percent: 25, is_member: true };
        change(&mut of);
        let args = NodeArgs { usual_load: Some(load.to_owned()), ..NodeArgs::default() };
        check(&args, &of).map_err(|error| error.to_string())
    }

    #[test]
    fn a_pool_needs_headroom_over_the_load_that_is_said() {
        assert_eq!(
            check(
                &NodeArgs::default(),
                &Places { shards: 1, dram_slice_bytes: 0, prefetch_percent: 0, is_member: false }
            ),
            Ok(())
        );
        // 1.3 × 393 MiB is 510.9 MiB, and 1.3 × 394 MiB is 512.2.
        assert_eq!(with("dram=393mib,peer=196mib,background=196mib,ssd=6301", |_| {}), Ok(()));
        assert_eq!(
            with("dram=394mib", |_| {}),
            Err("--usual-load dram=394.00 MiB: the pool of dram has 512.00 MiB, and 1.3 times a usual day is 512.20 MiB; raise \
                 --dram to 1028mib, or add nodes".to_owned())
        );
        let peer = with("dram=1mib,peer=197mib", |_| {}).expect_err("256 MiB are lent");
        assert!(peer.contains("peer=197.00 MiB") && peer.contains("256.00 MiB"), "{peer}");
        let ssd = with("ssd=6302", |_| {}).expect_err("2 × 4,096 wait");
        assert!(ssd.contains("has 8192, and") && ssd.ends_with("raise --shards to 3"), "{ssd}");
        assert_eq!(with("ssd=6302", |of| of.is_member = false), Ok(()), "nobody waits for peers");
        let alone = with("peer=1", |of| of.is_member = false).expect_err("nothing is lent");
        assert!(alone.contains("lends nothing"), "{alone}");
        let never = with("background=1mib", |of| of.prefetch_percent = 0).expect_err("nothing is announced");
        assert!(never.ends_with("raise --prefetch"), "{never}");
    }

    #[test]
    fn what_is_no_load_is_refused() {
        for (text, says) in [
            ("dram", "is no class with its load"),
            ("dram=1mib,control=3", "`control` is none of dram, ssd, peer and background"),
            ("dram=many", "not a size"),
            ("ssd=1mib", "is a number of commands"),
        ] {
            let refused = with(text, |_| {}).expect_err("no load");
            assert!(refused.contains(says) && refused.starts_with("--usual-load"), "{text}: {refused}");
        }
    }
}
