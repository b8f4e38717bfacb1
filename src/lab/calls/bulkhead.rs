//! Lesson 3, `bulkhead`: the same slots, shared or split between two flows, on a day on which one flow holds
//! its slots for long.

use orbitkv_shards::resilience::bulkhead::Pools;
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::generators::{Generator, Kind};
use crate::lab::parameters::{ExpBits, Given};
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

const ROUNDS_PER_S: f64 = 100.0;
/// Seconds of an outage that the gain is scaled to.
const SCALED_OUTAGE_S: f64 = 600.0;
/// Name of the layout without a bulkhead.
const SINGLE: &str = "single";

/// The model.
pub struct Bulkhead;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    rounds: u32,
    failure_start: u32,
    total_slots: u32,
    tracking_rate: f64,
    event_rate: f64,
    hold: Hold,
    slow_event_hold: u32,
    chosen_split: String,
    splits: Vec<String>,
    exp_neg_lambda: ExpOfRates,
}

/// Rounds that a request holds a slot.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hold {
    tracking: u32,
    event: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpOfRates {
    tracking: ExpBits,
    event: ExpBits,
}

/// Slots of tracking and of events, or of both together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Single(u32),
    Split(u32, u32),
}

impl Layout {
    fn read(text: &str, total: u32) -> Result<Layout, Refusal> {
        if text == SINGLE {
            return Ok(Layout::Single(total));
        }
        let halves = text
            .split_once('/')
            .and_then(|(tracking, event)| Some((tracking.trim().parse().ok()?, event.trim().parse().ok()?)));
        match halves {
            Some((tracking, event)) if u32::checked_add(tracking, event).is_some_and(|sum| sum <= total) => {
                Ok(Layout::Split(tracking, event))
            }
            Some(_) => Err(Refusal::new(
                format!("split {text}"),
                format!("there are {total} slots"),
                "split no more than those, or raise total_slots",
            )),
            None => {
                Err(Refusal::new(format!("split {text}"), "is no split", "write `single` or one like 24/8"))
            }
        }
    }

    fn pools(self) -> Vec<u64> {
        match self {
            Layout::Single(slots) => vec![slots.into()],
            Layout::Split(tracking, event) => vec![tracking.into(), event.into()],
        }
    }

    fn event_slots(self) -> u32 {
        match self {
            Layout::Single(slots) | Layout::Split(_, slots) => slots,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Day {
    Healthy,
    Slowdown,
}

#[derive(Clone, Copy)]
enum Arrival {
    Tracking,
    Event,
}

/// What is counted in a run.
#[derive(Clone, Debug, Default)]
struct Counts {
    tracking_responses: u64,
    tracking_dropped: u64,
    event_responses: u64,
    event_dropped: u64,
    idle_slots: u64,
    busy_rounds: u64,
    generator: Fields,
}

fn simulate(parameters: &Parameters, seed: u64, layout: Layout, day: Day) -> Counts {
    let mut generator = Generator::new(Kind::ParkMiller, seed);
    let sizes = layout.pools();
    let mut pools = Pools::new(&sizes);
    let mut ends: Vec<Vec<u64>> = vec![Vec::new(); sizes.len()];
    let mut counts = Counts::default();
    for round in 0..parameters.rounds {
        let now = u64::from(round);
        for (pool, ends) in ends.iter_mut().enumerate() {
            let before = ends.len();
            ends.retain(|end| *end > now);
            (ends.len()..before).for_each(|_| pools.give_back(pool, 1));
        }
        counts.busy_rounds += pools.taken();
        let tracking = generator.poisson(parameters.exp_neg_lambda.tracking.0) as usize;
        let events = generator.poisson(parameters.exp_neg_lambda.event.0) as usize;
        let mut arrivals = vec![Arrival::Tracking; tracking];
        arrivals.resize(tracking + events, Arrival::Event);
        generator.shuffle(&mut arrivals);
        let slow = day == Day::Slowdown && round >= parameters.failure_start;
        for arrival in arrivals {
            let (pool, rounds) = match arrival {
                Arrival::Tracking => (0, parameters.hold.tracking),
                Arrival::Event if slow => (sizes.len() - 1, parameters.slow_event_hold),
                Arrival::Event => (sizes.len() - 1, parameters.hold.event),
            };
            let (responses, dropped) = match arrival {
                Arrival::Tracking => (&mut counts.tracking_responses, &mut counts.tracking_dropped),
                Arrival::Event => (&mut counts.event_responses, &mut counts.event_dropped),
            };
            match pools.take(pool, 1) {
                Ok(()) => {
                    ends[pool].push(now + u64::from(rounds));
                    *responses += 1;
                }
                Err(full) => {
                    *dropped += 1;
                    counts.idle_slots += full.idle_elsewhere;
                }
            }
        }
    }
    counts.generator = Fields::new().with_generator(&generator);
    counts
}

/// Both days of a layout.
struct Days {
    name: String,
    layout: Layout,
    healthy: Counts,
    slowdown: Counts,
}

impl Days {
    fn layout_rows(&self, rounds: f64) -> [Row; 2] {
        [("healthy", &self.healthy), ("slowdown", &self.slowdown)].map(|(day, counts)| {
            Row::of("layouts")
                .with("layout", self.name.as_str())
                .with("day", day)
                .with("tracking_responses", counts.tracking_responses)
                .with("tracking_dropped", counts.tracking_dropped)
                .with("event_responses", counts.event_responses)
                .with("event_dropped", counts.event_dropped)
                .with("idle_slots", counts.idle_slots)
                .rounded("avg_busy_slots", counts.busy_rounds as f64 / rounds, 2)
        })
    }

    fn split_row(&self) -> Row {
        Row::of("splits")
            .with("split", self.name.as_str())
            .with("healthy_tracking_dropped", self.healthy.tracking_dropped)
            .with("healthy_event_dropped", self.healthy.event_dropped)
            .with("slowdown_tracking_dropped", self.slowdown.tracking_dropped)
            .with("slowdown_event_dropped", self.slowdown.event_dropped)
    }
}

impl Model for Bulkhead {
    type Parameters = Parameters;

    const LESSON: u8 = 3;
    const TITLE: &'static str = "Bulkhead Pattern";
    const NAME: &'static str = "bulkhead";
    const SEEDING: Option<Seeding> =
        Some(Seeding { kind: Kind::ParkMiller, seed: 20_260_801, notes: &[("reseed", "at every run")] });
    const PARAMETERS: &'static str = r#"{
        "rounds": 4000, "failure_start": 1000, "total_slots": 32, "tracking_rate": 416.67, "event_rate": 97.22,
        "hold": {"tracking": 4, "event": 6}, "slow_event_hold": 22, "chosen_split": "24/8",
        "splits": ["single", "28/4", "24/8", "20/12", "16/16", "27/5"],
        "exp_neg_lambda": {"tracking": "0x3f8fc036a4b564c7", "event": "0x3fd8353f5f003624"}
    }"#;

    fn settle(parameters: &mut Parameters, given: &Given<'_>) -> Result<(), Refusal> {
        within("rounds", parameters.rounds, 1..=100_000)?;
        let start = format!("failure_start={}", parameters.failure_start);
        let inside = parameters.failure_start < parameters.rounds;
        holds(inside, start, "must be before the last round", "lower it or raise rounds")?;
        within("total_slots", parameters.total_slots, 1..=10_000)?;
        within("tracking_rate", parameters.tracking_rate, 0.0..=50_000.0)?;
        within("event_rate", parameters.event_rate, 0.0..=50_000.0)?;
        within("hold.tracking", parameters.hold.tracking, 1..=100_000)?;
        within("hold.event", parameters.hold.event, 1..=100_000)?;
        within("slow_event_hold", parameters.slow_event_hold, 1..=100_000)?;
        within("splits (entries)", parameters.splits.len(), 1..=100)?;
        for split in parameters.splits.iter().chain([&parameters.chosen_split]) {
            Layout::read(split, parameters.total_slots)?;
        }
        let exp = &mut parameters.exp_neg_lambda;
        if given.names("tracking_rate") && !given.names("exp_neg_lambda.tracking") {
            exp.tracking = ExpBits::of_rate(parameters.tracking_rate, ROUNDS_PER_S);
        }
        if given.names("event_rate") && !given.names("exp_neg_lambda.event") {
            exp.event = ExpBits::of_rate(parameters.event_rate, ROUNDS_PER_S);
        }
        Ok(())
    }

    fn run(parameters: &Parameters, seed: u64) -> Outcome {
        let days = |name: &str| {
            let layout = Layout::read(name, parameters.total_slots).expect("splits were read before");
            let run = |day| simulate(parameters, seed, layout, day);
            Days { name: name.to_owned(), layout, healthy: run(Day::Healthy), slowdown: run(Day::Slowdown) }
        };
        let (single, chosen) = (days(SINGLE), days(&parameters.chosen_split));
        let rounds = f64::from(parameters.rounds);
        let slots = f64::from(parameters.total_slots);
        let mut rows = Vec::new();
        rows.extend(single.layout_rows(rounds));
        rows.extend(chosen.layout_rows(rounds));
        let (before, after) = (&single.healthy, &chosen.healthy);
        let [busy_before, busy_after] = [before, after].map(|counts| counts.busy_rounds as f64 / rounds);
        rows.push(
            Row::of("failure_free_cost")
                .with("tracking_dropped_single", before.tracking_dropped)
                .with("tracking_dropped_bulkhead", after.tracking_dropped)
                .with("event_dropped_single", before.event_dropped)
                .with("event_dropped_bulkhead", after.event_dropped)
                .rounded("busy_single", busy_before, 2)
                .rounded("busy_bulkhead", busy_after, 2)
                .rounded("util_single", busy_before / slots, 3)
                .rounded("util_bulkhead", busy_after / slots, 3)
                .with("idle_single", before.idle_slots)
                .with("idle_bulkhead", after.idle_slots),
        );
        let (without, with) = (&single.slowdown, &chosen.slowdown);
        let rescued = without.tracking_dropped as f64 - with.tracking_dropped as f64;
        let share = (without.tracking_dropped > 0).then(|| rescued / without.tracking_dropped as f64 * 100.0);
        let failing_rounds = f64::from(parameters.rounds - parameters.failure_start);
        let scale = SCALED_OUTAGE_S * ROUNDS_PER_S / failing_rounds;
        rows.push(
            Row::of("gain")
                .with("tracking_dropped_single", without.tracking_dropped)
                .with("tracking_dropped_bulkhead", with.tracking_dropped)
                .rounded("reduction_pct", share, 1)
                .with("event_dropped_single", without.event_dropped)
                .with("event_dropped_bulkhead", with.event_dropped)
                .rounded("tracking_rescued_10min", rescued * scale, 0),
        );
        // The last split is the one that the sensitivity asks about; the others are a table.
        let (last, table) = parameters.splits.split_last().expect("there is a split");
        rows.extend(table.iter().map(|split| days(split).split_row()));
        let last = days(last);
        let load = parameters.event_rate / ROUNDS_PER_S * f64::from(parameters.hold.event);
        let utilization = |days: &Days| {
            let slots = days.layout.event_slots();
            (slots > 0).then(|| load / f64::from(slots))
        };
        rows.push(
            Row::of("sensitivity_27_5")
                .with("tracking_dropped_24_8", chosen.healthy.tracking_dropped)
                .with("tracking_dropped_27_5", last.healthy.tracking_dropped)
                .with("event_dropped_24_8", chosen.healthy.event_dropped)
                .with("event_dropped_27_5", last.healthy.event_dropped)
                .rounded("event_util_8", utilization(&chosen), 3)
                .rounded("event_util_5", utilization(&last), 3),
        );
        // Arrivals do not depend on the layout, so that all runs end at one state.
        let mut checkpoint = Fields::new().with("run", "all layouts and days");
        for (name, value) in single.healthy.generator.iter() {
            checkpoint = checkpoint.with(name, value.clone());
        }
        let ends = [&single.slowdown, &chosen.healthy, &chosen.slowdown].map(|counts| &counts.generator);
        assert!(
            ends.into_iter().all(|end| *end == single.healthy.generator),
            "arrivals depend on the layout"
        );
        Outcome { rows, generator: Fields::new().with("checkpoints", vec![checkpoint]) }
    }
}
