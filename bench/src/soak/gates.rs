//! What a soak says: what was done, what it left, and whether memory is bounded.

use std::collections::BTreeMap;

use orbitkv::cli::table::Table;
use serde::Serialize;
use serde_json::{Value, json};

use super::faults::FaultsCell;
use super::growth::{self, Point};
use super::live::LiveCell;
use super::plan::{GROWTH_SHARE_MAX, Plan, RSS_SHARE_MAX};
use super::sampler::Sample;
use super::schedule::Kind;
use super::seats::Told;
use super::strike::Done;
use crate::profile::FormalProfile;
use crate::report::{Gate, Report};
use crate::streams::distribution::Distribution;

/// Points of a curve in a report at most: its files have all.
const POINTS_MAX: usize = 240;

/// The memory of one node over a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// Which cell.
    pub cell: &'static str,
    /// Which node.
    pub node: usize,
    /// What it has said it would take.
    pub bill_bytes: u64,
    /// The most that was seen.
    pub rss_bytes_max: u64,
    /// Growth in the second half, in bytes a second; none if there were too few looks.
    pub bytes_per_second: Option<f64>,
    /// What that made of the second half, as a share of the bill.
    pub growth_share: Option<f64>,
    /// Seconds and bytes, thinned out.
    pub points: Vec<(f64, u64)>,
}

impl Memory {
    /// Of each node of a cell.
    pub fn of(cell: &'static str, samples: &[Sample], settle_s: f64) -> Vec<Memory> {
        let nodes = samples.iter().map(|sample| sample.node + 1).max().unwrap_or(0);
        (0..nodes).map(|node| Memory::of_node(cell, node, samples, settle_s)).collect()
    }

    fn of_node(cell: &'static str, node: usize, samples: &[Sample], settle_s: f64) -> Memory {
        let own: Vec<&Sample> = samples.iter().filter(|sample| sample.node == node).collect();
        let points: Vec<Point> = own.iter().map(|sample| sample.point()).collect();
        let bill_bytes = own.iter().filter_map(|sample| sample.bill_bytes).max().unwrap_or(0);
        let bytes_per_second = growth::slope(&growth::second_half(&points, settle_s));
        let half_s = points.iter().map(|point| point.at_s).fold(0.0, f64::max) / 2.0;
        let growth_share = bytes_per_second.map(|slope| slope * half_s / bill_bytes.max(1) as f64);
        let every = own.len().div_ceil(POINTS_MAX).max(1);
        Memory {
            cell,
            node,
            bill_bytes,
            rss_bytes_max: own.iter().map(|sample| sample.rss_bytes).max().unwrap_or(0),
            bytes_per_second,
            growth_share,
            points: own.iter().step_by(every).map(|sample| (sample.at_s, sample.rss_bytes)).collect(),
        }
    }

    fn share(&self) -> f64 {
        self.rss_bytes_max as f64 / self.bill_bytes.max(1) as f64
    }
}

/// How often a kind of fault was made, and how often it was not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Made.
    pub made: u64,
    /// Of those, seen by nobody.
    pub unseen: u64,
    /// Longest time until all nodes were well again, in milliseconds.
    pub recovered_ms_max: u64,
}

/// All kinds, also those that were not made.
pub fn counts(done: &[Done]) -> BTreeMap<&'static str, Count> {
    let mut counts: BTreeMap<_, _> = Kind::ALL.iter().map(|kind| (kind.name(), Count::default())).collect();
    for one in done {
        let count = counts.entry(one.planned.kind.name()).or_default();
        count.made += 1;
        count.unseen += u64::from(!one.traces.are_whole());
        count.recovered_ms_max = count.recovered_ms_max.max(one.recovered_ms);
    }
    counts
}

/// Both cells, or one of them.
pub struct Soak<'a> {
    /// Whose sizes.
    pub profile: FormalProfile,
    /// The sizes.
    pub plan: &'a Plan,
    /// Seed of everything.
    pub seed: u64,
    /// Saving and restoring.
    pub live: Option<LiveCell>,
    /// Faults.
    pub faults: Option<FaultsCell>,
}

impl Soak<'_> {
    /// The report.
    pub fn report(&self, machine: String, load: Value) -> Report {
        let memory = self.memory();
        Report {
            name: "soak",
            profile: self.profile.into(),
            seed: self.seed,
            machine,
            figures: self.figures(&memory),
            gates: self.gates(&memory),
            settings: json!({
                "plan": self.plan,
                "memory": memory,
                "live": self.live.as_ref().map(live_json),
                "faults": self.faults.as_ref().map(faults_json),
                "pressure": load,
            }),
        }
    }

    /// Everything that was timed.
    pub fn distributions(&self) -> Vec<&Distribution> {
        self.live.iter().flat_map(|live| &live.foregrounds).flat_map(|one| &one.times).collect()
    }

    fn memory(&self) -> Vec<Memory> {
        let settle_s = self.plan.settle_seconds as f64;
        let live = self.live.iter().flat_map(|cell| Memory::of("live", &cell.samples, settle_s));
        live.chain(self.faults.iter().flat_map(|cell| Memory::of("faults", &cell.samples, settle_s)))
            .collect()
    }

    /// What ended a cell early.
    fn troubles(&self) -> Vec<&Told> {
        let live = self.live.iter().filter_map(|cell| cell.trouble.as_ref());
        live.chain(self.faults.iter().filter_map(|cell| cell.trouble.as_ref())).collect()
    }

    /// The most that the nodes counted of something, over all of their processes.
    fn counted(&self, of: fn(&Sample) -> Option<u64>) -> u64 {
        let live = self.live.iter().flat_map(|cell| &cell.samples);
        let samples = live.chain(self.faults.iter().flat_map(|cell| &cell.samples));
        samples.filter_map(of).max().unwrap_or(0)
    }

    fn gates(&self, memory: &[Memory]) -> Vec<Gate> {
        let gate = |name| Gate::new(name, self.profile, self.seed);
        let troubles = self.troubles();
        let wrong = troubles.iter().filter(|told| told.wrong_bytes).count() as u64;
        let tallies = || self.live.iter().flat_map(|cell| &cell.foregrounds).map(|one| one.tally);
        let lost = tallies().map(|tally| tally.lost).sum::<u64>()
            + self.faults.as_ref().map_or(0, |cell| cell.lost)
            + self.counted(|sample| sample.lost_writes);
        let mut gates = vec![
            gate("soak_wrong_bytes")
                .against("blocks that came back otherwise than they were saved", None)
                .none_ever(wrong + self.counted(|sample| sample.wrong_checksums)),
            gate("soak_lost").against("blocks accepted, not dropped, and not there", None).none_ever(lost),
            gate("soak_troubles")
                .against("cells that ended early", None)
                .none_ever(troubles.len() as u64)
                .details(json!(troubles.iter().map(|told| &told.words).collect::<Vec<_>>())),
        ];
        if let Some(cell) = &self.live {
            let idle = cell.foregrounds.iter().any(|one| one.tally.rounds == 0);
            let live = gate("soak_live_seconds")
                .at_least(self.plan.live.seconds as f64)
                .against("seconds of saving and restoring", None)
                .value(cell.seconds);
            gates.push(if idle { live.invalid("a foreground made no round") } else { live });
        }
        if let Some(cell) = &self.faults {
            let counts = counts(&cell.done);
            let missing = counts.values().filter(|count| count.made == 0).count() as u64;
            let unseen = counts.values().map(|count| count.unseen).sum::<u64>();
            let convergence = gate("soak_convergence").against("faults, key by key at the end", None);
            gates.extend([
                gate("soak_unseen")
                    .at_most(0.0)
                    .against("faults that left nothing in counters, and kinds that were not made", None)
                    .value((missing + unseen) as f64)
                    .details(json!(counts)),
                match cell.trouble {
                    // Without a check nothing is known, least of all that nothing is wrong.
                    Some(_) => convergence.none_ever(1).invalid("keys were not compared"),
                    None => convergence.none_ever(cell.convergence.faults()),
                },
            ]);
        }
        let largest = |of: &dyn Fn(&Memory) -> Option<f64>| memory.iter().filter_map(of).reduce(f64::max);
        let share = gate("soak_rss").at_most(RSS_SHARE_MAX).against("what a node said it would take", None);
        let growth =
            gate("soak_rss_growth").at_most(GROWTH_SHARE_MAX).against("growth in the second half", None);
        gates.push(match largest(&|memory| Some(memory.share())) {
            Some(largest) => share.value(largest),
            None => share,
        });
        gates.push(match largest(&|memory| memory.growth_share) {
            Some(largest) => growth.value(largest),
            None => growth.invalid("no process was looked at twice in the second half"),
        });
        gates
    }

    fn figures(&self, memory: &[Memory]) -> String {
        let mut parts = Vec::new();
        if let Some(cell) = &self.live {
            let mut table = Table::new([
                "blocks",
                "rounds",
                "saved",
                "from dram",
                "from ssd",
                "at a peer",
                "missed there",
                "MiB compared",
            ]);
            for one in &cell.foregrounds {
                let tally = &one.tally;
                let blocks =
                    [tally.saved, tally.from_dram, tally.from_ssd, tally.at_peer, tally.missed_at_peer];
                let figures = [tally.rounds].into_iter().chain(blocks).chain([tally.bytes >> 20]);
                table
                    .row([one.medium.to_owned()].into_iter().chain(figures.map(|figure| figure.to_string())));
            }
            parts.push(format!(
                "live, {:.0} s beside {} changes of inventory\n{table}",
                cell.seconds, cell.changes
            ));
            let mut times = Table::new(["milliseconds", "p50", "p90", "p99", "p99.9", "max", "count"]);
            self.distributions().into_iter().for_each(|one| times.row(one.cells()));
            parts.push(times.to_string());
        }
        if let Some(cell) = &self.faults {
            let mut table = Table::new(["fault", "made", "seen", "longest until all are well, ms"]);
            for (kind, count) in counts(&cell.done) {
                let figures = [count.made, count.made - count.unseen, count.recovered_ms_max];
                table.row([kind.to_owned()].into_iter().chain(figures.map(|figure| figure.to_string())));
            }
            let by = match cell.means {
                super::strike::Means::Network => "cut off in the network",
                super::strike::Means::Stopping => "stopped, for want of a network namespace",
            };
            parts.push(format!(
                "faults, {:.0} s beside {} changes; {} of {} blocks asked for amid them came; partitioned nodes were {by}\n{table}",
                cell.seconds, cell.changes, cell.visited[1], cell.visited[0]
            ));
        }
        let mut table =
            Table::new(["memory", "node", "bill MiB", "most MiB", "share", "growth of 2nd half, KiB"]);
        for one in memory {
            let growth = one.growth_share.map(|share| share * one.bill_bytes as f64 / 1_024.0);
            table.row([
                one.cell.to_owned(),
                one.node.to_string(),
                (one.bill_bytes >> 20).to_string(),
                (one.rss_bytes_max >> 20).to_string(),
                format!("{:.2}", one.share()),
                growth.map_or_else(|| "-".to_owned(), |growth| format!("{growth:.0}")),
            ]);
        }
        parts.push(table.to_string());
        parts.extend(self.troubles().into_iter().map(|told| format!("ended early: {}", told.words)));
        parts.join("\n")
    }
}

fn live_json(cell: &LiveCell) -> Value {
    json!({
        "seconds": cell.seconds,
        "changes": cell.changes,
        "trouble": cell.trouble.as_ref().map(|told| &told.words),
        "foregrounds": cell.foregrounds.iter().map(|one| json!({
            "medium": one.medium,
            "tally": one.tally,
            "histograms": one.times.iter().map(|one| (one.name.to_owned(), one.json())).collect::<serde_json::Map<_, _>>(),
        })).collect::<Vec<_>>(),
    })
}

fn faults_json(cell: &FaultsCell) -> Value {
    json!({
        "seconds": cell.seconds,
        "changes": cell.changes,
        "blocks_asked": cell.visited[0],
        "blocks_came": cell.visited[1],
        "partition_by": cell.means,
        "counts": counts(&cell.done),
        "convergence": cell.convergence,
        "lost": cell.lost,
        "trouble": cell.trouble.as_ref().map(|told| &told.words),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::soak::live::{Foreground, Tally};
    use crate::soak::schedule::Planned;
    use crate::soak::strike::Means;
    use crate::soak::traces::Traces;
    use crate::streams::convergence::Convergence;

    const NAMES: [&str; 8] = [
        "soak_wrong_bytes",
        "soak_lost",
        "soak_troubles",
        "soak_live_seconds",
        "soak_unseen",
        "soak_convergence",
        "soak_rss",
        "soak_rss_growth",
    ];

    fn samples(bytes: impl Fn(u32) -> u64) -> Vec<Sample> {
        let sample = |at: u32| Sample {
            at_s: f64::from(at),
            rss_bytes: bytes(at),
            bill_bytes: Some(1_000_000),
            lost_writes: Some(0),
            wrong_checksums: Some(0),
            ..Sample::default()
        };
        (0..=100).map(sample).collect()
    }

    fn done(kind: Kind, seen: u64) -> Done {
        let planned = Planned { kind, node: 0, other: 1, lasts: Duration::ZERO, calm: Duration::ZERO };
        let traces = Traces { counted: BTreeMap::from([("something", seen)]) };
        Done { planned, began_s: 0.0, lasted_ms: 1, recovered_ms: 2, traces }
    }

    fn judged(change: impl Fn(&mut LiveCell, &mut FaultsCell)) -> Vec<&'static str> {
        let plan = Plan { settle_seconds: 10, ..Plan::of(FormalProfile::Dense) };
        let tally = Tally { rounds: 1, ..Tally::default() };
        let mut live = LiveCell {
            foregrounds: vec![Foreground { medium: "dram", tally, times: Vec::new() }],
            seconds: plan.live.seconds as f64,
            changes: 0,
            samples: samples(|_| 500_000),
            trouble: None,
        };
        let mut faults = FaultsCell {
            done: Kind::ALL.map(|kind| done(kind, 1)).to_vec(),
            means: Means::Network,
            seconds: 1.0,
            changes: 0,
            visited: [0, 0],
            convergence: Convergence::default(),
            lost: 0,
            samples: samples(|_| 500_000),
            trouble: None,
        };
        change(&mut live, &mut faults);
        let soak = Soak {
            profile: FormalProfile::Dense,
            plan: &plan,
            seed: 1,
            live: Some(live),
            faults: Some(faults),
        };
        let gates = soak.gates(&soak.memory());
        assert_eq!(gates.iter().map(Gate::name).collect::<Vec<_>>(), NAMES);
        gates.iter().filter(|gate| !gate.is_met()).map(Gate::name).collect()
    }

    #[test]
    fn each_fault_of_a_run_misses_its_own_gate() {
        let none: [&str; 0] = [];
        assert_eq!(judged(|_, _| ()), none);
        assert_eq!(judged(|live, _| live.foregrounds[0].tally.lost = 1), ["soak_lost"]);
        assert_eq!(judged(|_, faults| faults.lost = 1), ["soak_lost"]);
        assert_eq!(judged(|live, _| live.samples[3].lost_writes = Some(1)), ["soak_lost"]);
        assert_eq!(judged(|_, faults| faults.samples[3].wrong_checksums = Some(1)), ["soak_wrong_bytes"]);
        assert_eq!(judged(|live, _| live.seconds -= 1.0), ["soak_live_seconds"]);
        assert_eq!(judged(|live, _| live.foregrounds[0].tally.rounds = 0), ["soak_live_seconds"]);
        assert_eq!(judged(|_, faults| faults.convergence.keys_missing = 1), ["soak_convergence"]);
        assert_eq!(judged(|_, faults| _ = faults.done.pop()), ["soak_unseen"]);
        let unseen = |_: &mut LiveCell, faults: &mut FaultsCell| faults.done.push(done(Kind::Partition, 0));
        assert_eq!(judged(unseen), ["soak_unseen"]);
        let trouble = |wrong_bytes| Some(Told { wrong_bytes, words: "something".to_owned() });
        assert_eq!(
            judged(|_, faults| faults.trouble = trouble(true)),
            ["soak_wrong_bytes", "soak_troubles", "soak_convergence"]
        );
        assert_eq!(judged(|live, _| live.trouble = trouble(false)), ["soak_troubles"]);
    }

    #[test]
    fn memory_is_held_against_the_bill_and_may_not_grow_in_the_second_half() {
        let none: [&str; 0] = [];
        assert_eq!(judged(|live, _| live.samples[2].rss_bytes = 1_000_001), ["soak_rss"]);
        // Of the half of 50 s: 400 bytes a second are 2 % of the bill, 401 are more.
        let growing = |bytes: u64| {
            judged(move |_, faults| faults.samples = samples(|at| 500_000 + u64::from(at) * bytes))
        };
        assert_eq!(growing(400), none);
        assert_eq!(growing(401), ["soak_rss_growth"]);
        let early = |at: u32| 500_000 - u64::from(50_u32.saturating_sub(at)) * 5_000;
        assert_eq!(judged(|_, faults| faults.samples = samples(early)), none, "it fills in the first half");
        assert_eq!(
            judged(|live, faults| {
                live.samples.truncate(1);
                faults.samples.truncate(1);
            }),
            ["soak_rss_growth"],
            "nothing is known"
        );
    }

    #[test]
    fn faults_are_counted_by_kind() {
        let all = [done(Kind::Partition, 1), done(Kind::Partition, 0), done(Kind::SlowSubscriber, 1)];
        let counts = counts(&all);
        assert_eq!(counts.len(), 7);
        assert_eq!(counts["partition"], Count { made: 2, unseen: 1, recovered_ms_max: 2 });
        assert_eq!(counts["slow-subscriber"], Count { made: 1, unseen: 0, recovered_ms_max: 2 });
        assert_eq!(counts["lease-expiry"], Count::default());
    }

    #[test]
    fn curves_are_thinned_out_and_keep_their_ends() {
        let long = (0..1_000).map(|at| Sample { at_s: f64::from(at), rss_bytes: 7, ..Sample::default() });
        let memory = Memory::of("live", &long.collect::<Vec<_>>(), 0.0);
        assert_eq!((memory.len(), memory[0].points.len()), (1, 200));
        assert_eq!((memory[0].points[0].0, memory[0].points[199].0), (0.0, 995.0));
    }
}
