//! What a seed stands for: how many nodes of how many shards, how small their bounds, how bad the
//! network, what goes wrong how often, and what the engines do.
//!
//! Bounds are small on purpose, and differ from seed to seed, so that every branch runs within
//! twenty thousand events.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::network::Weather;
use crate::random::Random;

/// What a core's index takes before it holds anything, and what its growth is rounded to.
pub const INDEX_BYTES_MIN: u64 = 4_096;

/// Events of an ordinary seed before everything has to converge; more than the twenty thousand that are
/// the least, since most are turns of cores.
pub const SAFETY_EVENTS: u64 = 50_000;

/// One node to be.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Shard cores of its first process.
    pub shards: u16,
    /// What it subscribes to.
    pub scope: ScopePlan,
    /// Bytes of its whole index.
    pub index_bytes: u64,
    /// When its first process starts.
    pub starts: Duration,
}

/// What a node subscribes to, by number of namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopePlan {
    /// Everything.
    All,
    /// These.
    Some(Vec<usize>),
    /// Explicitly none.
    None,
}

/// What engines do.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Between two bursts of one node, in microseconds.
    pub gap_us: RangeInclusive<u64>,
    /// Changes of a burst.
    pub burst: RangeInclusive<u64>,
    /// Bursts in a thousand that are twenty times as long.
    pub storm_permille: u32,
    /// Touches in a thousand that are of a block touched before.
    pub repeat_permille: u32,
    /// Touches in a thousand that are on SSD.
    pub ssd_permille: u32,
    /// Bursts in a thousand that wipe a namespace.
    pub wipe_permille: u32,
    /// Residences that a node keeps at most.
    pub resident_max: u64,
    /// Namespaces.
    pub namespaces: usize,
    /// Layer groups of a namespace.
    pub groups: u16,
    /// Blocks every node puts once at the start.
    pub filled: u64,
}

/// Bounds of the rooms.
#[derive(Clone, Debug)]
pub struct RoomPlan {
    /// Records of a shard's journal ring.
    pub journal_records: usize,
    /// Records of one interval.
    pub interval_records: usize,
    /// Bytes of one page and one delta body at most.
    pub frame_bytes: usize,
    /// Bytes in flight that a requester allows a stream.
    pub window_bytes: usize,
    /// How long a source gathers changes.
    pub coalesce: Duration,
    /// Bytes a second that a shard sends.
    pub pace_bytes_per_s: u64,
    /// Changes of a delta that apply in one step.
    pub step_records: usize,
    /// Residences of one page.
    pub page_records: usize,
    /// Records that one turn reads, and rows that it looks at for a sweep.
    pub slice_records: usize,
}

/// How often something goes wrong.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Between two faults, in microseconds.
    pub gap_us: RangeInclusive<u64>,
    /// Mail in a thousand that is late.
    pub late_mail_permille: u32,
    /// Dials in a thousand whose Open is held back until its requester has given it up.
    pub delayed_open_permille: u32,
    /// Dials in a thousand whose Open is heard twice.
    pub duplicated_open_permille: u32,
}

/// What a seed stands for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Every node there will ever be.
    pub nodes: Vec<NodePlan>,
    /// The network.
    pub weather: Weather,
    /// How long a member record lives without a renewal.
    pub lease: Duration,
    /// What goes wrong.
    pub faults: Option<FaultPlan>,
    /// What engines do.
    pub load: LoadPlan,
    /// Bounds of the rooms.
    pub rooms: RoomPlan,
    /// Events of the safety phase.
    pub safety_events: u64,
    /// Between two lookups somewhere in the cluster.
    pub query_gap_us: RangeInclusive<u64>,
    /// Between two barriers somewhere in the cluster.
    pub await_gap_us: RangeInclusive<u64>,
}

impl ScopePlan {
    /// Mostly everything, sometimes some of the namespaces, sometimes none.
    pub fn draw(random: &mut Random, namespaces: usize) -> ScopePlan {
        match random.below(10) {
            0 => ScopePlan::None,
            1..=3 => ScopePlan::some(random, namespaces),
            _ => ScopePlan::All,
        }
    }

    /// Half of the namespaces.
    fn some(random: &mut Random, namespaces: usize) -> ScopePlan {
        ScopePlan::Some((0..namespaces).filter(|_| random.chance(500)).collect())
    }
}

impl Plan {
    /// What `seed` stands for.
    #[must_use]
    pub fn of_seed(seed: u64) -> Plan {
        let mut random = Random::new(seed).fork("plan");
        let namespaces = *random.pick(&[1, 3, 3, 8, 24]);
        let load = Plan::load(&mut random, namespaces);
        let journal_records = *random.pick(&[24, 64, 200, 1_000]);
        let nodes = Plan::nodes(&mut random, namespaces, load.resident_max, journal_records);
        let frame_bytes = *random.pick(&[640, 1_024, 2_048, 8_192, 60_000]);
        let rooms = RoomPlan {
            journal_records,
            interval_records: *random.pick(&[4, 16, 64, 1_024]),
            frame_bytes,
            window_bytes: frame_bytes * random.within(&(2..=6)) as usize,
            coalesce: Duration::from_millis(*random.pick(&[0, 2, 5])),
            pace_bytes_per_s: *random.pick(&[40_000, 400_000, 16 << 20, 16 << 20]),
            step_records: *random.pick(&[2, 8, 256]),
            page_records: *random.pick(&[3, 32, 256]),
            slice_records: *random.pick(&[8, 64, 256]),
        };
        Plan {
            seed,
            nodes,
            weather: Plan::weather(&mut random),
            lease: Duration::from_millis(random.within(&(4_000..=10_000))),
            faults: Some(FaultPlan {
                gap_us: 20_000..=*random.pick(&[300_000, 1_000_000, 4_000_000]),
                late_mail_permille: *random.pick(&[0, 20, 100]),
                delayed_open_permille: *random.pick(&[0, 30, 100]),
                duplicated_open_permille: *random.pick(&[0, 30, 100]),
            }),
            load,
            rooms,
            safety_events: SAFETY_EVENTS,
            query_gap_us: 5_000..=60_000,
            await_gap_us: 200_000..=2_000_000,
        }
    }

    /// `managers` equal nodes that put `residences` blocks each and change a few of them, on a network
    /// without faults and with the bounds of a real node.
    #[must_use]
    pub fn of_scale(seed: u64, managers: usize, residences: u64) -> Plan {
        let node = NodePlan {
            shards: 1,
            scope: ScopePlan::All,
            index_bytes: 256 << 20,
            starts: Duration::from_millis(5),
        };
        Plan {
            seed,
            nodes: vec![node; managers],
            weather: Weather {
                latency_us: 50..=250,
                loss_permille: 1,
                jitter_permille: 5,
                segment_bytes: 16_384..=65_536,
                send_bytes: 1 << 20,
                receive_bytes: 1 << 20,
            },
            lease: Duration::from_secs(30),
            faults: None,
            load: LoadPlan {
                gap_us: 50_000..=150_000,
                burst: 1..=32,
                storm_permille: 0,
                repeat_permille: 500,
                ssd_permille: 250,
                wipe_permille: 0,
                resident_max: residences,
                namespaces: 4,
                groups: 2,
                filled: residences,
            },
            rooms: RoomPlan {
                journal_records: 16 * 1024 * 1024 / 44,
                interval_records: 1_024,
                frame_bytes: 60_000,
                window_bytes: 256 << 10,
                coalesce: Duration::from_millis(2),
                pace_bytes_per_s: 16 << 20,
                step_records: 256,
                page_records: 1_024,
                slice_records: 256,
            },
            safety_events: 40_000 * managers as u64,
            query_gap_us: 20_000..=40_000,
            await_gap_us: 500_000..=1_500_000,
        }
    }

    fn load(random: &mut Random, namespaces: usize) -> LoadPlan {
        LoadPlan {
            gap_us: 20_000..=*random.pick(&[200_000, 500_000, 1_500_000]),
            burst: 1..=*random.pick(&[4, 12, 40]),
            storm_permille: *random.pick(&[0, 10, 40]),
            repeat_permille: *random.pick(&[0, 500, 900]),
            ssd_permille: *random.pick(&[0, 300, 500, 1_000]),
            wipe_permille: *random.pick(&[0, 5, 30]),
            resident_max: *random.pick(&[12, 60, 250]),
            namespaces,
            groups: *random.pick(&[1, 2, 4]),
            filled: 0,
        }
    }

    fn nodes(
        random: &mut Random,
        namespaces: usize,
        resident_max: u64,
        journal_records: usize,
    ) -> Vec<NodePlan> {
        let count = *random.pick(&[3, 3, 3, 3, 4, 4, 4, 5, 5, 6, 6, 11]);
        let mut shards: Vec<u16> = (0..count).map(|_| *random.pick(&[1, 2, 2, 3, 4])).collect();
        // At least two shards somewhere, and never one count everywhere.
        shards[0] = *random.pick(&[2, 3]);
        shards[1] = shards[0] + 1 - 2 * (random.below(2) as u16);
        let tight = random.chance(400);
        // Many subscribers who want different things are what fills a source's queues.
        let crowd = count > 8;
        (shards.into_iter().enumerate())
            .map(|(number, shards)| NodePlan {
                shards,
                scope: if crowd {
                    ScopePlan::some(random, namespaces)
                } else {
                    ScopePlan::draw(random, namespaces)
                },
                index_bytes: if tight && random.chance(500) {
                    let wanted = resident_max * count as u64 * 12;
                    u64::from(shards.max(4))
                        * (2 * INDEX_BYTES_MIN + journal_records as u64 * 88 + random.below(wanted))
                } else {
                    u64::from(shards) * (1 << 20)
                },
                starts: match number {
                    0 | 1 => Duration::from_millis(random.within(&(1..=50))),
                    _ => {
                        let latest = *random.pick(&[50, 20_000]);
                        Duration::from_millis(random.within(&(1..=latest)))
                    }
                },
            })
            .collect()
    }

    fn weather(random: &mut Random) -> Weather {
        Weather {
            latency_us: 30..=*random.pick(&[300, 3_000, 40_000]),
            loss_permille: *random.pick(&[0, 5, 50]),
            jitter_permille: *random.pick(&[0, 20, 200]),
            segment_bytes: random.pick(&[1..=200, 1_000..=1_452, 16_384..=65_536]).clone(),
            send_bytes: *random.pick(&[2_000, 20_000, 1 << 20]),
            receive_bytes: *random.pick(&[4_000, 1 << 20]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_has_three_nodes_two_shards_and_mixed_counts() {
        for seed in 0..2_000 {
            let plan = Plan::of_seed(seed);
            let shards: Vec<u16> = plan.nodes.iter().map(|node| node.shards).collect();
            assert!(shards.len() >= 3 && shards.iter().max() >= Some(&2), "{shards:?}");
            assert!(shards.iter().any(|count| *count != shards[0]) && !shards.contains(&0), "{shards:?}");
        }
    }
}
