//! Lesson 6, `backpressure`: three links in a row, a source that comes in bursts, and a signal that travels
//! back none, some or all of the way.

use orbitkv_shards::resilience::backpressure::{Chain, Offer};
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::base_rates::WRITE_PEAK;
use crate::lab::generators::Accumulator;
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

/// Consumptions that the sensitivity asks about, a round.
const CONSUMPTIONS: [u32; 3] = [90, 60, 30];
/// The rate of a link that works as fast as is consumed.
const CONSUMPTION: &str = "consumption";
/// Most units that a model may make in a run: an unlimited buffer keeps them all.
const UNITS_MAX: f64 = 20_000_000.0;

/// The model.
pub struct Backpressure;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    rounds: u32,
    source_rate: f64,
    links: Vec<Link>,
    oscillation: Vec<f64>,
    consumption_normal: u32,
    #[serde(rename = "consumption_slow_AY11")]
    consumption_slow: u32,
    settings: Vec<Setting>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    name: String,
    capacity: usize,
    rate: Rate,
}

/// Units a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Rate {
    Units(u32),
    Named(String),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    name: String,
    depth: usize,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unlimited: bool,
}

/// What is counted in a run.
#[derive(Clone, Debug)]
struct Counts {
    produced: u64,
    completed: u64,
    rejected: u64,
    lost: Vec<u64>,
    paused: Vec<u64>,
    backlog: usize,
    pending_age: u32,
    finished_age: u32,
}

impl Counts {
    fn lost_in_all(&self) -> u64 {
        self.lost.iter().sum()
    }
}

impl Parameters {
    fn simulate(&self, setting: &Setting, consumption: u32, oscillation: &[f64]) -> Counts {
        let capacity = |link: &Link| (!setting.unlimited).then_some(link.capacity);
        let capacities: Vec<Option<usize>> = self.links.iter().map(capacity).collect();
        // A round's number is the birth of what arrives in it.
        let mut chain: Chain<u32> = Chain::with_depth(&capacities, setting.depth);
        let mut counts = Counts {
            produced: 0,
            completed: 0,
            rejected: 0,
            lost: vec![0; self.links.len()],
            paused: vec![0; self.links.len()],
            backlog: 0,
            pending_age: 0,
            finished_age: 0,
        };
        let mut source = Accumulator::default();
        for round in 1..=self.rounds {
            for (index, link) in self.links.iter().enumerate().rev() {
                let rate = match &link.rate {
                    Rate::Units(units) => *units,
                    Rate::Named(_) => consumption,
                };
                let advance = chain.advance(index, rate as usize);
                counts.completed += advance.done.len() as u64;
                let ages = advance.done.iter().map(|birth| round - birth);
                counts.finished_age = ages.fold(counts.finished_age, u32::max);
                if let Some(lost) = counts.lost.get_mut(index + 1) {
                    *lost += advance.lost.len() as u64;
                }
                counts.paused[index] += u64::from(advance.paused);
            }
            let multiplier = oscillation[(round as usize - 1) % oscillation.len()];
            for _ in 0..source.arrivals(self.source_rate * multiplier) {
                counts.produced += 1;
                match chain.offer(round) {
                    Offer::Taken => {}
                    Offer::Refused(_) => counts.rejected += 1,
                    Offer::Lost(_) => counts.lost[0] += 1,
                }
            }
        }
        counts.backlog = chain.backlog();
        counts.pending_age = chain.queued().min().map_or(0, |oldest| self.rounds - oldest);
        counts
    }

    /// The three settings that the costs speak of, whatever the table of settings has.
    fn to_the_limit(&self) -> Setting {
        Setting { name: String::new(), depth: self.links.len(), unlimited: false }
    }
}

const NO_SIGNAL: Setting = Setting { name: String::new(), depth: 0, unlimited: false };
const UNLIMITED: Setting = Setting { name: String::new(), depth: 0, unlimited: true };

fn run_row(day: &str, setting: &Setting, counts: &Counts) -> Row {
    let extra = Fields::new()
        .with("depth", setting.depth)
        .with("unlimited", setting.unlimited)
        .with("produced", counts.produced)
        .with("paused", counts.paused.clone());
    Row::of("runs")
        .with("day", day)
        .with("setting", setting.name.as_str())
        .with("completed", counts.completed)
        .with("rejected", counts.rejected)
        .with("lost", counts.lost_in_all())
        .with("loss_location", counts.lost.clone())
        .with("backlog", counts.backlog)
        .with("pending_age", counts.pending_age)
        .with("finished_age", counts.finished_age)
        .apart("_extra", extra)
}

impl Model for Backpressure {
    type Parameters = Parameters;

    const LESSON: u8 = 6;
    const TITLE: &'static str = "Backpressure";
    const NAME: &'static str = "backpressure";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "rounds": 1200, "source_rate": 97.22,
        "links": [
            {"name": "entry", "capacity": 200, "rate": 250},
            {"name": "log", "capacity": 150, "rate": 150},
            {"name": "projection", "capacity": 100, "rate": "consumption"}
        ],
        "oscillation": [0.6, 0.6, 0.6, 2.2], "consumption_normal": 120, "consumption_slow_AY11": 60,
        "settings": [
            {"name": "unlimited buffer", "depth": 0, "unlimited": true},
            {"name": "no signal", "depth": 0},
            {"name": "1 link", "depth": 1},
            {"name": "2 links", "depth": 2},
            {"name": "to the limit", "depth": 3}
        ]
    }"#;

    fn settle(parameters: &mut Parameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("rounds", parameters.rounds, 1..=100_000)?;
        within("source_rate", parameters.source_rate, 0.0..=100_000.0)?;
        within("oscillation (entries)", parameters.oscillation.len(), 1..=10_000)?;
        let mut highest = 1.0f64;
        for (index, multiplier) in parameters.oscillation.iter().enumerate() {
            within(&format!("oscillation.{index}"), *multiplier, 0.0..=1_000.0)?;
            highest = highest.max(*multiplier);
        }
        holds(
            f64::from(parameters.rounds) * parameters.source_rate * highest <= UNITS_MAX,
            format_args!("rounds={}, source_rate={}", parameters.rounds, parameters.source_rate),
            "no more than 20000000 units in a run, which an unlimited buffer keeps",
            "lower one of them",
        )?;
        within("links (entries)", parameters.links.len(), 1..=64)?;
        for (index, link) in parameters.links.iter().enumerate() {
            if let Rate::Named(name) = &link.rate {
                let input = format!("links.{index}.rate={name}");
                holds(name == CONSUMPTION, input, "is a number or `consumption`", "write one of them")?;
            }
        }
        within("settings (entries)", parameters.settings.len(), 1..=64)?;
        for (index, setting) in parameters.settings.iter().enumerate() {
            within(&format!("settings.{index}.depth"), setting.depth, 0..=parameters.links.len())?;
        }
        Ok(())
    }

    fn run(parameters: &Parameters, _seed: u64) -> Outcome {
        let run = |setting: &Setting, consumption| {
            parameters.simulate(setting, consumption, &parameters.oscillation)
        };
        let mut rows = Vec::new();
        for (day, consumption) in
            [("failure-free", parameters.consumption_normal), ("AY11", parameters.consumption_slow)]
        {
            let of_day = parameters.settings.iter();
            rows.extend(of_day.map(|setting| run_row(day, setting, &run(setting, consumption))));
        }
        let normal = parameters.consumption_normal;
        let limit = run(&parameters.to_the_limit(), normal);
        let unlimited = run(&UNLIMITED, normal);
        let share = (limit.produced > 0).then(|| limit.rejected as f64 / limit.produced as f64 * 100.0);
        rows.push(
            Row::of("cost_rejections")
                .with("produced", limit.produced)
                .with("rejected", limit.rejected)
                .rounded("pct", share, 2),
        );
        let flat = parameters.simulate(&parameters.to_the_limit(), normal, &[1.0]);
        rows.push(Row::of("cost_flat_arrivals").with("rejected", flat.rejected));
        rows.push(
            Row::of("cost_pending_age")
                .with("unlimited", unlimited.pending_age)
                .with("to_limit", limit.pending_age),
        );
        rows.push(
            Row::of("cost_paused")
                .with("paused_link_rounds", limit.paused.clone())
                .with("source_stopped", limit.rejected),
        );
        let links = parameters.links.len();
        rows.push(Row::of("cost_checks").with("links", links).number("events_per_s", WRITE_PEAK).rounded(
            "checks_per_s",
            links as f64 * WRITE_PEAK,
            2,
        ));
        for consumption in CONSUMPTIONS {
            let lost = run(&NO_SIGNAL, consumption).lost_in_all();
            let rejected = run(&parameters.to_the_limit(), consumption).rejected;
            rows.push(
                Row::of("sensitivity_AY11")
                    .with("consumption", consumption)
                    .rounded("gap", parameters.source_rate - f64::from(consumption), 2)
                    .with("unlimited_backlog", run(&UNLIMITED, consumption).backlog)
                    .with("no_signal_lost", lost)
                    .with("rejected_at_limit", rejected)
                    .rounded("ratio", (rejected > 0).then(|| lost as f64 / rejected as f64), 3),
            );
        }
        Outcome { rows, generator: Fields::new() }
    }
}
