//! How fast rows come, change and are found, how many bytes they take at every fill, and the same of a bare map.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::Plan;
use super::rows::{Change, Key, Population};
use super::tables::{BareMap, Index, LOOKUP_KEYS, Table, step_changes};
use super::trace::driver::rss_bytes;
use crate::statistics::{Figures, Latencies};

/// Keys that are drawn ahead: few enough to stay in the second cache, for drawing costs as much as a lookup.
const KEYS_AHEAD: usize = 16 * LOOKUP_KEYS;

/// What was found of one table, in turn with the other. Rates are per second.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Rates {
    /// Rows put into an empty table until it is full.
    pub load: Figures,
    /// Changes of a full table, half of them deletes and half puts.
    pub churn: Figures,
    /// Keys looked up, 128 at a time.
    pub lookup: Figures,
    /// Bytes a row when full, by the table's own account.
    pub bytes_a_row: f64,
    /// Growth of the process's resident set a row.
    pub rss_bytes_a_row: f64,
    /// Of a lookup of 128 keys, in microseconds.
    pub lookup_us: Value,
}

/// What was found at one number of owners.
#[derive(Debug, Serialize, Deserialize)]
pub struct Throughput {
    /// How many owners.
    pub owners: u32,
    /// The index.
    pub index: Rates,
    /// The bare map.
    pub map: Rates,
    /// Most bytes a row at any fill from half of the rows to all.
    pub worst_bytes_a_row: f64,
    /// Keys a second while changes come in between.
    pub lookup_during_churn: Figures,
    /// Of a lookup of 128 keys while changes come, in microseconds, from when the step of changes before it began:
    /// the longest it can wait.
    pub lookup_during_churn_us: Value,
}

/// Measures with so many owners.
pub fn measure(plan: &Plan, owners: u32, seed: u64) -> Throughput {
    let mut measuring =
        Measuring { plan, population: Population::new(seed, owners), frame: Vec::new(), keys: Vec::new() };
    let (mut index, mut map) = (Rates::default(), Rates::default());
    let mut worst_bytes_a_row = 0.0;
    let mut tables = None;
    for turn in 0..plan.loads {
        drop(tables.take());
        let empty = measuring.population.clone();
        let before = rss_bytes();
        let mut ours = Index::new(owners, plan.rows);
        let rate = measuring.load(&mut ours, |rows, bytes| {
            if rows >= plan.rows / 2 {
                worst_bytes_a_row = f64::max(worst_bytes_a_row, bytes as f64 / rows as f64);
            }
        });
        index.load.0.push(rate);
        let between = rss_bytes();
        let mut bare = BareMap::default();
        measuring.population = empty;
        map.load.0.push(measuring.load(&mut bare, |_, _| {}));
        // The first tables are the first to take memory of this size: later ones get back what earlier ones had.
        if turn == 0 {
            let a_row = |bytes: u64| bytes as f64 / plan.rows as f64;
            index.rss_bytes_a_row = a_row(between.saturating_sub(before));
            map.rss_bytes_a_row = a_row(rss_bytes().saturating_sub(between));
            (index.bytes_a_row, map.bytes_a_row) =
                (a_row(ours.accounted_bytes()), a_row(bare.accounted_bytes()));
        }
        tables = Some((ours, bare));
        if turn + 1 < plan.loads {
            measuring.population = Population::new(seed, owners);
        }
    }
    let (mut ours, mut bare) = tables.expect("there is a load");
    let (mut ours_latencies, mut bare_latencies) = (Latencies::new(), Latencies::new());
    let (mut during, mut during_latencies) = (Figures::default(), Latencies::new());
    for _ in 0..plan.pairs {
        index.lookup.0.push(measuring.look_up(&mut ours, &mut ours_latencies));
        map.lookup.0.push(measuring.look_up(&mut bare, &mut bare_latencies));
        let before = measuring.population.clone();
        index.churn.0.push(measuring.churn(&mut ours));
        measuring.population = before;
        map.churn.0.push(measuring.churn(&mut bare));
    }
    drop(bare);
    for _ in 0..plan.pairs {
        during.0.push(measuring.look_up_during_churn(&mut ours, &mut during_latencies));
    }
    assert_eq!(ours.rows(), measuring.population.count(), "every row is there");
    index.lookup_us = ours_latencies.json();
    map.lookup_us = bare_latencies.json();
    Throughput {
        owners,
        index,
        map,
        worst_bytes_a_row,
        lookup_during_churn: during,
        lookup_during_churn_us: during_latencies.json(),
    }
}

struct Measuring<'a> {
    plan: &'a Plan,
    population: Population,
    frame: Vec<Change>,
    keys: Vec<Key>,
}

impl Measuring<'_> {
    /// Fills a table, an owner's frame after the other; `seen` hears of every fill.
    fn load(&mut self, table: &mut impl Table, mut seen: impl FnMut(u64, u64)) -> f64 {
        let (owners, rows) = (u64::from(self.population.owners()), self.plan.rows);
        let mut time = Duration::ZERO;
        let mut loaded = 0;
        // The last frames are short, so that the table is exactly full and every owner has about the same.
        for turn in 0.. {
            let count = self.plan.frame_changes.min((rows / owners).max(1)).min(rows - loaded);
            if count == 0 {
                break;
            }
            let owner = (turn % owners) as u32;
            self.population.grow(owner, count, &mut self.frame);
            let started = Instant::now();
            table.apply(owner, &self.frame);
            time += started.elapsed();
            loaded += count;
            seen(table.rows(), table.accounted_bytes());
        }
        assert_eq!(table.rows(), rows, "every row is new");
        loaded as f64 / time.as_secs_f64()
    }

    fn churn(&mut self, table: &mut impl Table) -> f64 {
        let owners = self.population.owners();
        let (frames, mut time) = (self.plan.pass_changes / self.plan.frame_changes, Duration::ZERO);
        for frame in 0..frames {
            let owner = frame as u32 % owners;
            self.population.churn(owner, self.plan.frame_changes, &mut self.frame);
            let started = Instant::now();
            table.apply(owner, &self.frame);
            time += started.elapsed();
        }
        (frames * self.plan.frame_changes) as f64 / time.as_secs_f64()
    }

    fn draw(&mut self) {
        self.population.draw(0..self.population.owners(), KEYS_AHEAD, &mut self.keys);
    }

    fn look_up(&mut self, table: &mut impl Table, latencies: &mut Latencies) -> f64 {
        let mut time = Duration::ZERO;
        let passes = self.plan.pass_keys / KEYS_AHEAD as u64;
        for _ in 0..passes {
            self.draw();
            for keys in self.keys.chunks(LOOKUP_KEYS) {
                let started = Instant::now();
                let found = table.look_up(keys);
                let taken = started.elapsed();
                assert_eq!(found, keys.len(), "every key has a row");
                latencies.record(taken);
                time += taken;
            }
        }
        (passes * KEYS_AHEAD as u64) as f64 / time.as_secs_f64()
    }

    /// A step of changes, a lookup, and so on.
    fn look_up_during_churn(&mut self, index: &mut Index, latencies: &mut Latencies) -> f64 {
        let owners = self.population.owners();
        let (passes, mut time) = (self.plan.pass_keys / KEYS_AHEAD as u64, Duration::ZERO);
        let mut looked_up = 0;
        for pass in 0..passes {
            let owner = pass as u32 % owners;
            self.population.churn(owner, self.plan.frame_changes, &mut self.frame);
            // Drawn after the changes: what is deleted by the frame is not asked for.
            self.draw();
            index.reserve(&self.frame);
            let steps = self.frame.chunks(step_changes()).chain(std::iter::repeat(&[][..]));
            for (keys, step) in self.keys.chunks(LOOKUP_KEYS).zip(steps) {
                if step.is_empty() {
                    break;
                }
                let begun = Instant::now();
                index.step(owner, step);
                let started = Instant::now();
                index.look_up(keys);
                let ended = Instant::now();
                latencies.record(ended - begun);
                time += ended - started;
                looked_up += keys.len();
            }
            // What no lookup came between.
            let lookups = KEYS_AHEAD / LOOKUP_KEYS;
            self.frame.chunks(step_changes()).skip(lookups).for_each(|step| index.step(owner, step));
        }
        looked_up as f64 / time.as_secs_f64()
    }
}
