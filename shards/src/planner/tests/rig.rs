//! A room with a clock whose routes behave exactly as a test says.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::identity::{Incarnation, Medium, NodeId, ShardIndex};
use orbitkv_wire::inventory::SourceStream;

use crate::members::{Member, MemberMap};
use crate::planner::*;
use crate::residents::CopyId;
use crate::time::Moment;

pub const BYTES: u64 = 1_000;

pub fn source(number: u8, life: u8) -> SourceStream {
    let node = NodeId::new(&format!("n{number}")).unwrap();
    SourceStream { node, epoch: u64::from(life), incarnation: Incarnation([life; 16]), shard: ShardIndex(0) }
}

pub fn dram(number: u8) -> Route {
    Route::Peer { source: source(number, 1), medium: Medium::Dram }
}

pub fn ssd(number: u8) -> Route {
    Route::Peer { source: source(number, 1), medium: Medium::Ssd }
}

pub fn choice(route: Route) -> Choice {
    Choice { route, bytes: BYTES, declared: None, told: OwnerEvidence::default() }
}

/// Members in their first life.
pub fn members(count: u8, revision: u64) -> MemberMap {
    let member = |number: u8| {
        let SourceStream { node, epoch, incarnation, .. } = source(number, 1);
        Member { node, epoch, incarnation, shards: 1, address: "10.0.0.1:7000".parse().unwrap() }
    };
    MemberMap::new(revision, (0..count).map(member).collect())
}

/// Without any caution: the best plan is taken, by however little.
pub fn eager() -> PlannerSettings {
    PlannerSettings {
        mode: Mode::Executed,
        hysteresis_min: Duration::ZERO,
        hysteresis_percent: 0,
        ..PlannerSettings::default()
    }
}

pub struct Rig {
    pub room: Planner,
    pub now: Moment,
    pub loads: BTreeMap<Route, Load>,
    copies: u32,
}

impl Rig {
    pub fn new(settings: PlannerSettings) -> Rig {
        let mut room = Planner::new(settings);
        room.on_members(&members(140, 1));
        Rig { room, now: Moment(1_000_000_000), loads: BTreeMap::new(), copies: 0 }
    }

    pub fn pass(&mut self, duration: Duration) {
        self.now = self.now + duration;
    }

    pub fn tried(&mut self, route: Route, work_bytes: u64, elapsed: Duration, outcome: TrialOutcome) {
        let trial = Trial {
            copy: CopyId(u32::MAX),
            route,
            bytes: 1,
            ahead_bytes: work_bytes - 1,
            elapsed,
            is_comparable: true,
            outcome,
        };
        self.room.on_trial(&trial, self.now);
        self.room.assert_invariants();
    }

    /// Shows so many successes of a route that takes exactly `base_us` and `byte_ns` a byte.
    pub fn teach(&mut self, route: Route, base_us: u64, byte_ns: u64, count: u64) {
        self.teach_finely(route, base_us * 1_000, byte_ns, count);
    }

    /// The same, with a base in nanoseconds.
    pub fn teach_finely(&mut self, route: Route, base_ns: u64, byte_ns: u64, count: u64) {
        for number in 0..count {
            // All that a test does lies within twice the largest.
            let work_bytes = BYTES * (1 + number);
            let elapsed = Duration::from_nanos(base_ns + byte_ns * work_bytes);
            self.tried(route, work_bytes, elapsed, TrialOutcome::Usable);
        }
    }

    /// Which route each block of a batch goes: what is not changed is the first eligible by `fixed`.
    pub fn plan(&mut self, blocks: &[Vec<Choice>]) -> Vec<Option<usize>> {
        let first = self.copies;
        self.copies += blocks.len() as u32;
        let wants: Vec<Want<'_>> = (first..)
            .zip(blocks)
            .map(|(copy, choices)| Want { copy: CopyId(copy), bytes: BYTES, choices })
            .collect();
        let loads = self.loads.clone();
        let load = |route: &Route| loads.get(route).copied().unwrap_or_default();
        let picks = self.room.plan(&wants, load, self.now);
        assert_eq!(picks.len(), blocks.len());
        self.room.assert_invariants();
        picks
    }

    /// The routes of a batch of which every choice is eligible.
    pub fn routes(&mut self, blocks: &[Vec<Choice>]) -> Vec<Route> {
        let picks = self.plan(blocks);
        picks.iter().zip(blocks).map(|(pick, choices)| choices[pick.unwrap_or(0)].route).collect()
    }

    /// Everything of the latest batch that was asked for is there so much later.
    pub fn arrive(&mut self, blocks: u32, later: Duration) {
        self.pass(later);
        for copy in self.copies - blocks..self.copies {
            self.room.on_ended(CopyId(copy), true, self.now);
        }
        self.room.assert_invariants();
    }

    pub fn latest(&self) -> RouteTrace {
        self.room.traces().last().expect("a batch was planned").clone()
    }
}
