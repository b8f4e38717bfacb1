//! Lesson 12: which replicas fail together, `zones` write by write and `zone-capacity` in sum.

use std::collections::{BTreeMap, BTreeSet};

use orbitkv_shards::resilience::objectives::{SECONDS_PER_DAY, at_risk};
use orbitkv_shards::resilience::zones::{Distance, Placement, Survivors, ZoneCapacity, ZoneFault, ZoneLabel};
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

/// The model `zones`.
pub struct Zones;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneParameters {
    rounds: u32,
    failure_round: u32,
    writes_per_round: u32,
    #[serde(rename = "propagation_KU7")]
    propagation: Propagation,
    /// Region and zone of each replica, by the name of the plan.
    plans: BTreeMap<String, Vec<[String; 2]>>,
}

/// Rounds that a copy takes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Propagation {
    same_zone: u32,
    same_region: u32,
    remote: u32,
}

impl Propagation {
    fn rounds(self, distance: Distance) -> u32 {
        match distance {
            Distance::SameZone => self.same_zone,
            Distance::SameRegion => self.same_region,
            Distance::Remote => self.remote,
        }
    }
}

/// A copy on its way.
#[derive(Clone, Copy, Debug)]
struct Copy {
    due: u32,
    from: usize,
    to: usize,
}

/// A write: who has it and who will.
#[derive(Clone, Debug)]
struct Write {
    holders: BTreeSet<usize>,
    copies: Vec<Copy>,
}

impl Write {
    fn arrive(&mut self, round: u32) {
        for copy in &self.copies {
            if copy.due <= round {
                self.holders.insert(copy.to);
            }
        }
        self.copies.retain(|copy| copy.due > round);
    }

    /// Whether the fault takes all there is of it.
    fn is_lost(&mut self, survivors: &Survivors) -> bool {
        self.copies.retain(|copy| survivors.contains(copy.from) && survivors.contains(copy.to));
        self.holders.retain(|holder| survivors.contains(*holder));
        self.holders.is_empty() && self.copies.is_empty()
    }
}

/// What fails: the first replica, the first zone of the first region, or that region.
const FAULTS: [&str; 3] = ["machine", "zone", "region"];
const REGION: &str = "r1";
const ZONE: &str = "z1";

fn simulate(parameters: &ZoneParameters, plan: &Placement, after: &Survivors) -> (u64, u64) {
    let replicas = plan.labels().len();
    let all = Survivors::all(replicas);
    let mut writes: Vec<Write> = Vec::new();
    let (mut dropped, mut lost, mut turn) = (0, 0, 0);
    for round in 1..=parameters.rounds {
        writes.iter_mut().for_each(|write| write.arrive(round));
        if round == parameters.failure_round {
            lost += writes.iter_mut().filter_map(|write| write.is_lost(after).then_some(())).count() as u64;
            writes.clear();
        }
        let alive = if round < parameters.failure_round { &all } else { after };
        let pool: Vec<usize> = alive.nodes().collect();
        for _ in 0..parameters.writes_per_round {
            if pool.is_empty() {
                dropped += 1;
                continue;
            }
            let holder = pool[turn % pool.len()];
            turn += 1;
            // What is written after the failure cannot be lost to it any more.
            if round < parameters.failure_round {
                let others = pool.iter().copied().filter(|other| *other != holder);
                let copy = |to| {
                    let due = round + parameters.propagation.rounds(plan.distance(holder, to));
                    Copy { due, from: holder, to }
                };
                writes.push(Write { holders: [holder].into(), copies: others.map(copy).collect() });
            }
        }
    }
    (dropped, lost)
}

impl Model for Zones {
    type Parameters = ZoneParameters;

    const LESSON: u8 = 12;
    const TITLE: &'static str = "Redundancy Zones";
    const NAME: &'static str = "zones";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "rounds": 40, "failure_round": 20, "writes_per_round": 6,
        "propagation_KU7": {"same_zone": 1, "same_region": 2, "remote": 4},
        "plans": {
            "single-zone": [["r1", "z1"], ["r1", "z1"], ["r1", "z1"], ["r1", "z1"], ["r1", "z1"], ["r1", "z1"]],
            "three-zone": [["r1", "z1"], ["r1", "z1"], ["r1", "z2"], ["r1", "z2"], ["r1", "z3"], ["r1", "z3"]],
            "two-region": [["r1", "z1"], ["r1", "z2"], ["r1", "z3"], ["r2", "z1"], ["r2", "z2"], ["r2", "z3"]]
        }
    }"#;

    fn settle(parameters: &mut ZoneParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("rounds", parameters.rounds, 1..=1_000)?;
        within("failure_round", parameters.failure_round, 1..=1_000)?;
        within("writes_per_round", parameters.writes_per_round, 0..=100)?;
        let propagation = parameters.propagation;
        within("propagation_KU7.same_zone", propagation.same_zone, 1..=1_000)?;
        within("propagation_KU7.same_region", propagation.same_region, 1..=1_000)?;
        within("propagation_KU7.remote", propagation.remote, 1..=1_000)?;
        let mut plans = parameters.plans.iter();
        plans.try_for_each(|(name, plan)| within(&format!("plans.{name} (entries)"), plan.len(), 1..=64))
    }

    fn run(parameters: &ZoneParameters, _seed: u64) -> Outcome {
        let Propagation { same_zone, same_region, remote } = parameters.propagation;
        let mut rows = vec![
            Row::of("setup")
                .with("rounds", parameters.rounds)
                .with("writes_per_round", parameters.writes_per_round)
                .with("failure_round", parameters.failure_round),
            Row::of("propagation_KU7")
                .with("same_zone", same_zone)
                .with("same_region", same_region)
                .with("remote", remote),
        ];
        let zone = ZoneLabel::new(REGION, ZONE);
        for (name, labels) in &parameters.plans {
            let label = |[region, zone]: &[String; 2]| ZoneLabel::new(region, zone);
            let plan = Placement::new(labels.iter().map(label).collect());
            for failure in FAULTS {
                let fault = match failure {
                    "machine" => ZoneFault::Machine(0),
                    "zone" => ZoneFault::Zone(&zone),
                    _ => ZoneFault::Region(REGION),
                };
                let survivors = plan.survivors(fault);
                let (dropped, lost) = simulate(parameters, &plan, &survivors);
                rows.push(
                    Row::of("placement")
                        .with("plan", name.as_str())
                        .with("failure", failure)
                        .with("surviving", survivors.count())
                        .with("total", labels.len())
                        .rounded("surviving_capacity_pct", survivors.capacity_pct(), 1)
                        .with("dropped_writes", dropped)
                        .with("lost_unpropagated", lost),
                );
            }
        }
        Outcome { rows, generator: Fields::new() }
    }
}

/// The model `zone-capacity`.
pub struct Capacity;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapacityParameters {
    edge_peak: f64,
    write_peak: f64,
    events_per_day: f64,
    growth_gb: f64,
    #[serde(rename = "round_s_KU1")]
    round_s: f64,
    zone_rounds: u32,
    region_rounds: u32,
}

/// Zones that are compared.
const ZONES: [u32; 4] = [2, 3, 4, 6];

/// What is lost with one of so many units, the copies to the others taking so many rounds.
struct Unit {
    name: &'static str,
    of: f64,
    rounds: u32,
}

impl Model for Capacity {
    type Parameters = CapacityParameters;

    const LESSON: u8 = 12;
    const TITLE: &'static str = "Redundancy Zones";
    const NAME: &'static str = "zone-capacity";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "edge_peak": 513.89, "write_peak": 97.22, "events_per_day": 2800000, "growth_gb": 0.976,
        "round_s_KU1": 2, "zone_rounds": 1, "region_rounds": 4
    }"#;

    fn settle(parameters: &mut CapacityParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("edge_peak", parameters.edge_peak, 0.001..=1e9)?;
        within("write_peak", parameters.write_peak, 0.001..=1e9)?;
        within("events_per_day", parameters.events_per_day, 0.001..=1e12)?;
        within("growth_gb", parameters.growth_gb, 0.0..=1e9)?;
        within("round_s_KU1", parameters.round_s, 0.001..=SECONDS_PER_DAY)?;
        within("zone_rounds", parameters.zone_rounds, 1..=1_000_000)?;
        within("region_rounds", parameters.region_rounds, 1..=1_000_000)
    }

    fn run(parameters: &CapacityParameters, _seed: u64) -> Outcome {
        let mut rows = Vec::new();
        for zones in ZONES {
            let capacity = ZoneCapacity { zones: f64::from(zones), load: parameters.edge_peak };
            rows.push(
                Row::of("idle_capacity")
                    .with("zones", zones)
                    .rounded("load_per_zone", capacity.per_zone(), 2)
                    .rounded("if_one_drops", capacity.per_zone_after_loss(), 2)
                    .rounded("must_provision", capacity.to_provision(), 2)
                    .rounded("idle", capacity.idle(), 2)
                    .rounded("extra_share_pct", capacity.idle_pct(), 1),
            );
        }
        let event_bytes = parameters.growth_gb * 1e9 / parameters.events_per_day;
        rows.extend([
            Row::of("bytes_per_event").rounded("bytes", event_bytes, 2),
            Row::of("two_region_transfer")
                .rounded("kb_per_s", parameters.write_peak * event_bytes / 1_024.0, 2)
                .rounded("mb_per_day", parameters.growth_gb * 1_000.0, 2),
            Row::of("round").number("seconds", parameters.round_s),
        ]);
        let units = [
            Unit { name: "zone loss (3 zones)", of: 3.0, rounds: parameters.zone_rounds },
            Unit { name: "region loss (2 regions)", of: 2.0, rounds: parameters.region_rounds },
        ];
        let lost = units.map(|Unit { name, of, rounds }| {
            let seconds = f64::from(rounds) * parameters.round_s;
            let writes_per_s = parameters.write_peak / of;
            let writes = at_risk(writes_per_s, seconds);
            rows.push(
                Row::of("lost_at_scale")
                    .with("unit", name)
                    .with("propagation_rounds", rounds)
                    .number("seconds", seconds)
                    .rounded("writes_per_s_per_unit", writes_per_s, 2)
                    .rounded("writes", writes, 2),
            );
            writes
        });
        rows.push(Row::of("ratio").rounded("ratio", lost[1] / lost[0], 2));
        Outcome { rows, generator: Fields::new() }
    }
}
