//! Lesson 2, `breaker`: a breaker on one dependency protects a pool of slots that another flow shares.

use std::time::Duration;

use orbitkv_shards::resilience::breaker::{Admission, Breaker, Change, Outcome as CallOutcome, Rule};
use orbitkv_shards::resilience::breaker::{Ticket, WINDOW_CALLS_MAX};
use orbitkv_shards::time::Moment;
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::generators::{Accumulator, Generator, Kind};
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

const SEEDING: Seeding =
    Seeding { kind: Kind::ParkMiller, seed: 20_260_731, notes: &[("reseed", "at every run")] };

/// Seconds of an outage that the gain is scaled to.
const SCALED_OUTAGE_S: f64 = 600.0;

/// The model.
pub struct CircuitBreaker;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    rounds: u32,
    failure_start: u32,
    slots: u32,
    rounds_per_s: f64,
    tracking_rate: f64,
    event_rate: f64,
    tracking_hold: u32,
    modes: Modes,
    #[serde(rename = "rule_AY5")]
    rule: RuleParameters,
    other_rules: Vec<RuleParameters>,
    sensitivity_open_rounds: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Modes {
    healthy: Mode,
    partial: Mode,
    down: Mode,
    slowdown: Mode,
}

/// How the dependency of the events behaves.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mode {
    p_fail: f64,
    ok_rounds: u32,
    fail_rounds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RuleKind {
    Ratio,
    Consecutive,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleParameters {
    kind: RuleKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<u32>,
    threshold: f64,
    open_rounds: u32,
}

impl RuleParameters {
    fn check(&self, name: &str) -> Result<(), Refusal> {
        within(&format!("{name}.open_rounds"), self.open_rounds, 1..=1_000_000)?;
        let threshold = format!("{name}.threshold");
        match self.kind {
            RuleKind::Consecutive => {
                within(&threshold, self.threshold, 1.0..=1_000_000.0)?;
                let whole = self.threshold.fract() == 0.0;
                holds(
                    whole,
                    format_args!("{threshold}={}", self.threshold),
                    "failures in a row are whole",
                    "round it",
                )
            }
            RuleKind::Ratio => {
                let window = format!("{name}.window");
                let calls = self.window.ok_or_else(|| {
                    Refusal::new(
                        &window,
                        "a ratio is taken over a window of calls",
                        format!("--set {window}=20"),
                    )
                })?;
                within(&window, calls, 1..=WINDOW_CALLS_MAX)?;
                within(&threshold, self.threshold, 1e-6..=1.0)
            }
        }
    }

    /// The node's breaker with this rule, a round being one tick of its clock.
    fn breaker(&self) -> Breaker {
        let rule = match (self.kind, self.window) {
            (RuleKind::Ratio, Some(window_calls)) => Rule::Share { window_calls, threshold: self.threshold },
            _ => Rule::Consecutive { failures: self.threshold as u32 },
        };
        Breaker::new(rule, Duration::from_nanos(u64::from(self.open_rounds)))
    }

    /// Name without the window, as checkpoints have it.
    fn short(&self) -> String {
        match self.kind {
            RuleKind::Ratio => format!("ratio {}", crate::lab::rounding::text(self.threshold, 2)),
            RuleKind::Consecutive => format!("consecutive {}", self.threshold),
        }
    }

    fn name(&self) -> String {
        match self.window.filter(|_| self.kind == RuleKind::Ratio) {
            Some(window) => format!("{} / {window}", self.short()),
            None => self.short(),
        }
    }

    fn open_for(self, open_rounds: u32) -> RuleParameters {
        RuleParameters { open_rounds, ..self }
    }
}

/// What is counted in a run.
#[derive(Clone, Debug, Default)]
struct Counts {
    tracking_responses: u64,
    tracking_no_slot: u64,
    event_responses: u64,
    event_rejected: u64,
    event_errors: u64,
    event_no_slot: u64,
    calls: u64,
    slot_rounds: u64,
    opens: u64,
    /// Rounds from the failure to the first opening, and the slot rounds that events took in them.
    detection: Option<(u64, u64)>,
    draws: u64,
    state: u64,
}

/// Slots that both flows take, each by the round from which it is free again.
struct Slots(Vec<u64>);

impl Slots {
    fn take(&mut self, round: u64, rounds: u32) -> bool {
        match self.0.iter_mut().find(|free_from| **free_from <= round) {
            Some(free_from) => {
                *free_from = round + u64::from(rounds);
                true
            }
            None => false,
        }
    }
}

#[derive(Clone, Copy)]
enum Arrival {
    Tracking,
    Event,
}

struct Run<'a> {
    parameters: &'a Parameters,
    mode: Mode,
    /// Whether the mode is a failure at all: a healthy day has nothing to detect.
    fails: bool,
    breaker: Option<Breaker>,
    slots: Slots,
    generator: Generator,
    counts: Counts,
    slot_rounds_before: u64,
}

impl Run<'_> {
    fn round(&mut self, round: u64, arrivals: &[Arrival]) {
        for arrival in arrivals {
            match arrival {
                Arrival::Tracking => match self.slots.take(round, self.parameters.tracking_hold) {
                    true => self.counts.tracking_responses += 1,
                    false => self.counts.tracking_no_slot += 1,
                },
                Arrival::Event => self.event(round),
            }
        }
    }

    fn event(&mut self, round: u64) {
        let ticket = match self.breaker.as_mut().map(|breaker| breaker.admit(Moment(round))) {
            None => None,
            Some(Admission::Pass(ticket) | Admission::Probe(ticket)) => Some(ticket),
            Some(Admission::Reject { .. }) => {
                self.counts.event_rejected += 1;
                // Saying no takes a round of a slot, if there is one; it is counted as no call's.
                self.slots.take(round, 1);
                return;
            }
        };
        let mode = if round < u64::from(self.parameters.failure_start) {
            self.parameters.modes.healthy
        } else {
            self.mode
        };
        // The outcome is drawn before a slot is asked for, so that draws do not depend on slots.
        let failed = self.generator.happens(mode.p_fail);
        let rounds = if failed { mode.fail_rounds } else { mode.ok_rounds };
        if !self.slots.take(round, rounds) {
            self.counts.event_no_slot += 1;
            if let (Some(breaker), Some(ticket)) = (&mut self.breaker, ticket) {
                breaker.abandon(ticket);
            }
            return;
        }
        self.counts.calls += 1;
        self.counts.slot_rounds += u64::from(rounds);
        match failed {
            true => self.counts.event_errors += 1,
            false => self.counts.event_responses += 1,
        }
        self.record(round, ticket, if failed { CallOutcome::Failure } else { CallOutcome::Success });
    }

    fn record(&mut self, round: u64, ticket: Option<Ticket>, outcome: CallOutcome) {
        let (Some(breaker), Some(ticket)) = (&mut self.breaker, ticket) else { return };
        let change = breaker.record(ticket, outcome, Moment(round));
        let start = u64::from(self.parameters.failure_start);
        if matches!(change, Some(Change::Opened { .. }))
            && self.fails
            && round >= start
            && self.counts.detection.is_none()
        {
            self.counts.detection = Some((round - start, self.counts.slot_rounds - self.slot_rounds_before));
        }
    }
}

/// One run: the whole day with one kind of failure and one rule, or none.
fn simulate(parameters: &Parameters, seed: u64, mode: &str, rule: Option<RuleParameters>) -> Counts {
    let modes = &parameters.modes;
    let of_mode = match mode {
        "partial" => modes.partial,
        "slowdown" => modes.slowdown,
        "down" => modes.down,
        _ => modes.healthy,
    };
    let mut run = Run {
        parameters,
        mode: of_mode,
        fails: mode != "healthy",
        breaker: rule.map(|rule| rule.breaker()),
        slots: Slots(vec![0; parameters.slots as usize]),
        generator: Generator::new(Kind::ParkMiller, seed),
        counts: Counts::default(),
        slot_rounds_before: 0,
    };
    let (mut tracking, mut events) = (Accumulator::default(), Accumulator::default());
    for round in 0..parameters.rounds {
        if round == parameters.failure_start {
            run.slot_rounds_before = run.counts.slot_rounds;
        }
        let tracked = tracking.arrivals(parameters.tracking_rate / parameters.rounds_per_s);
        let sent = events.arrivals(parameters.event_rate / parameters.rounds_per_s);
        let mut arrivals = vec![Arrival::Tracking; tracked as usize];
        arrivals.resize((tracked + sent) as usize, Arrival::Event);
        run.generator.shuffle(&mut arrivals);
        run.round(u64::from(round), &arrivals);
    }
    let mut counts = run.counts;
    counts.opens = run.breaker.as_ref().map_or(0, Breaker::opens);
    counts.draws = run.generator.draws();
    counts.state = run.generator.state();
    counts
}

fn run_row(mode: &str, breaker: bool, counts: &Counts) -> Row {
    let extra = Fields::new()
        .with("event_no_slot", counts.event_no_slot)
        .with("opens", counts.opens)
        .with("prng_draws", counts.draws);
    Row::of("runs")
        .with("mode", mode)
        .with("breaker", breaker)
        .with("tracking_responses", counts.tracking_responses)
        .with("tracking_no_slot", counts.tracking_no_slot)
        .with("event_responses", counts.event_responses)
        .with("event_rejected", counts.event_rejected)
        .with("event_errors", counts.event_errors)
        .with("calls_made", counts.calls)
        .with("event_slot_rounds", counts.slot_rounds)
        .apart("_extra", extra)
}

fn gain_row(table: &'static str, without: &Counts, with: &Counts) -> Row {
    let row = Row::of(table)
        .with("tracking_no_slot_without", without.tracking_no_slot)
        .with("tracking_no_slot_with", with.tracking_no_slot)
        .with("slot_rounds_without", without.slot_rounds)
        .with("slot_rounds_with", with.slot_rounds);
    let row = match table {
        "gain_slowdown" => {
            let saved = without.slot_rounds as f64 - with.slot_rounds as f64;
            let share = (without.slot_rounds > 0).then(|| saved * 100.0 / without.slot_rounds as f64);
            row.rounded("slot_rounds_saved_pct", share, 2)
        }
        _ => row,
    };
    row.with("calls_without", without.calls).with("calls_with", with.calls)
}

fn rule_rows(rule: RuleParameters, runs: &[(&str, Counts)], partial_without: &Counts) -> Vec<Row> {
    let row = |(mode, counts): &(&str, Counts)| {
        let lost = match *mode {
            "healthy" => Some(counts.event_rejected as i64),
            "partial" => Some(partial_without.event_responses as i64 - counts.event_responses as i64),
            _ => None,
        };
        Row::of("rules")
            .with("rule", rule.name())
            .with("mode", *mode)
            .with("detection_round", counts.detection.map(|(rounds, _)| rounds))
            .with("slot_rounds_to_detection", counts.detection.map(|(_, slot_rounds)| slot_rounds))
            .with("opens", counts.opens)
            .with("rejected_valid_events", lost)
    };
    runs.iter().map(row).collect()
}

fn checkpoint(mode: &str, rule: String, counts: &Counts) -> Fields {
    Fields::new()
        .with("mode", mode)
        .with("rule", rule)
        .with("draws", counts.draws)
        .with("final_state", counts.state)
}

/// Modes in the order of the table of runs.
const MODES: [&str; 4] = ["healthy", "partial", "slowdown", "down"];

impl Model for CircuitBreaker {
    type Parameters = Parameters;

    const LESSON: u8 = 2;
    const TITLE: &'static str = "Circuit Breaker";
    const NAME: &'static str = "breaker";
    const SEEDING: Option<Seeding> = Some(SEEDING);
    const PARAMETERS: &'static str = r#"{
        "rounds": 1200, "failure_start": 200, "slots": 32, "rounds_per_s": 100,
        "tracking_rate": 416.67, "event_rate": 97.22, "tracking_hold": 4,
        "modes": {
            "healthy": {"p_fail": 0.025, "ok_rounds": 6, "fail_rounds": 22},
            "partial": {"p_fail": 0.125, "ok_rounds": 6, "fail_rounds": 3},
            "down": {"p_fail": 1, "ok_rounds": 6, "fail_rounds": 3},
            "slowdown": {"p_fail": 1, "ok_rounds": 6, "fail_rounds": 22}
        },
        "rule_AY5": {"kind": "ratio", "window": 20, "threshold": 0.5, "open_rounds": 100},
        "other_rules": [
            {"kind": "consecutive", "threshold": 5, "open_rounds": 100},
            {"kind": "ratio", "window": 20, "threshold": 0.1, "open_rounds": 100}
        ],
        "sensitivity_open_rounds": 200
    }"#;

    fn settle(parameters: &mut Parameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("rounds", parameters.rounds, 1..=100_000)?;
        let start = format!("failure_start={}", parameters.failure_start);
        let inside = parameters.failure_start < parameters.rounds;
        holds(inside, start, "must be before the last round", "lower it or raise rounds")?;
        within("slots", parameters.slots, 1..=10_000)?;
        within("rounds_per_s", parameters.rounds_per_s, 1.0..=1_000_000.0)?;
        within("tracking_rate", parameters.tracking_rate, 0.0..=100_000.0)?;
        within("event_rate", parameters.event_rate, 0.0..=100_000.0)?;
        within("tracking_hold", parameters.tracking_hold, 1..=100_000)?;
        let modes = &parameters.modes;
        let named = [
            ("healthy", modes.healthy),
            ("partial", modes.partial),
            ("down", modes.down),
            ("slowdown", modes.slowdown),
        ];
        for (name, mode) in named {
            within(&format!("modes.{name}.p_fail"), mode.p_fail, 0.0..=1.0)?;
            within(&format!("modes.{name}.ok_rounds"), mode.ok_rounds, 1..=100_000)?;
            within(&format!("modes.{name}.fail_rounds"), mode.fail_rounds, 1..=100_000)?;
        }
        parameters.rule.check("rule_AY5")?;
        within("other_rules (entries)", parameters.other_rules.len(), 0..=16)?;
        for (index, rule) in parameters.other_rules.iter().enumerate() {
            rule.check(&format!("other_rules.{index}"))?;
        }
        within("sensitivity_open_rounds", parameters.sensitivity_open_rounds, 1..=1_000_000)
    }

    fn run(parameters: &Parameters, seed: u64) -> Outcome {
        let run = |mode, rule| simulate(parameters, seed, mode, rule);
        let rule = parameters.rule;
        let of_rule = |rule: RuleParameters| MODES.map(|mode| (mode, run(mode, Some(rule))));
        let without = MODES.map(|mode| run(mode, None));
        let with = of_rule(rule);
        let [(_, healthy), (_, partial), (_, slowdown), (_, down)] = &with;
        let [_, partial_without, slowdown_without, down_without] = &without;

        let mut rows = Vec::new();
        for (without, (mode, with)) in without.iter().zip(&with) {
            rows.push(run_row(mode, false, without));
            rows.push(run_row(mode, true, with));
        }
        rows.push(
            Row::of("failure_free_cost")
                .with("queried_calls", healthy.calls)
                .with("window", rule.window)
                .with("false_opens", healthy.opens)
                .with("rejected_valid_events", healthy.event_rejected)
                .with("partial_opens", partial.opens)
                .with("partial_event_responses_without", partial_without.event_responses)
                .with("partial_event_responses_with", partial.event_responses)
                .with(
                    "partial_lost",
                    partial_without.event_responses as i64 - partial.event_responses as i64,
                ),
        );
        rows.push(gain_row("gain_slowdown", slowdown_without, slowdown));
        rows.push(gain_row("gain_down", down_without, down));
        let failing_rounds = f64::from(parameters.rounds - parameters.failure_start);
        let scale = SCALED_OUTAGE_S * parameters.rounds_per_s / failing_rounds;
        let saved = slowdown_without.calls as f64 - slowdown.calls as f64;
        let rescued = slowdown_without.tracking_no_slot as f64 - slowdown.tracking_no_slot as f64;
        rows.push(Row::of("scaled_10min").rounded("calls_saved", saved * scale, 0).rounded(
            "tracking_rescued",
            rescued * scale,
            0,
        ));

        let mut checkpoints = vec![
            checkpoint("healthy", "AY5".to_owned(), healthy),
            checkpoint("slowdown", "AY5".to_owned(), slowdown),
        ];
        let of_kind = |kind| parameters.other_rules.iter().copied().filter(move |rule| rule.kind == kind);
        let mut last_ratio = None;
        for other in of_kind(RuleKind::Consecutive) {
            let runs = of_rule(other);
            checkpoints.push(checkpoint("slowdown", other.short(), &runs[2].1));
            rows.extend(rule_rows(other, &runs, partial_without));
        }
        rows.extend(rule_rows(rule, &with, partial_without));
        for other in of_kind(RuleKind::Ratio) {
            let runs = of_rule(other);
            checkpoints
                .extend(runs[..3].iter().map(|(mode, counts)| checkpoint(mode, other.short(), counts)));
            rows.extend(rule_rows(other, &runs, partial_without));
            last_ratio = Some((other, runs[0].1.event_rejected));
        }
        let long = parameters.sensitivity_open_rounds;
        let rejected_long =
            last_ratio.map(|(other, _)| run("healthy", Some(other.open_for(long))).event_rejected);
        rows.push(
            Row::of("sensitivity_open_duration")
                .with("open_rounds_long", long)
                .with("open_rounds", rule.open_rounds)
                .with("slowdown_calls", slowdown.calls)
                .with("slowdown_calls_long", run("slowdown", Some(rule.open_for(long))).calls)
                .with("healthy_rejected_ratio010", last_ratio.map(|(_, rejected)| rejected))
                .with("healthy_rejected_ratio010_long", rejected_long),
        );
        Outcome { rows, generator: Fields::new().with("checkpoints", checkpoints) }
    }
}
