//! Lesson 1, `signature`: what the ends of calls, the time they hold and the freshness of answers tell about
//! a dependency.

use orbitkv_shards::resilience::signature::{Ending, SignatureWindow, Sums};
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::base_rates::{EDGE_PEAK, WRITE_PEAK};
use crate::lab::generators::{Generator, Kind};
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, holds, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};

/// Rounds that a call holds its slot if it is answered with an error.
const ERROR_ROUNDS: u64 = 1;
/// Share of rare time-outs that the sensitivity asks about.
const OTHER_RARE_TIMEOUT: f64 = 0.05;
/// Milliseconds of a second.
const MS_PER_S: f64 = 1_000.0;

/// The model.
pub struct Signature;

/// Parameters, as the vector file names them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    calls_per_mode: usize,
    usual_rounds: u64,
    #[serde(rename = "timeout_rounds_AY2")]
    timeout_rounds: u64,
    shards: u32,
    down_shards: u32,
    #[serde(rename = "rare_timeout_AY4")]
    rare_timeout: f64,
    stamp_bytes: u32,
    naming_window: u32,
    #[serde(rename = "round_ms_AY1")]
    round_ms: f64,
    pair_tolerance: f64,
    mode_order: Vec<Mode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    Healthy,
    Down,
    Slowdown,
    Partial,
    Stale,
    Partition,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Mode::Healthy => "healthy",
            Mode::Down => "down",
            Mode::Slowdown => "slowdown",
            Mode::Partial => "partial",
            Mode::Stale => "stale",
            Mode::Partition => "partition",
        }
    }

    /// How a call ends, and for how long it holds its slot. Only two modes draw.
    fn call(self, parameters: &Parameters, generator: &mut Generator) -> (Ending, u64) {
        let fresh = (Ending::Answer { fresh: true }, parameters.usual_rounds);
        let timeout = (Ending::Timeout, parameters.timeout_rounds);
        let error = (Ending::Error, ERROR_ROUNDS);
        match self {
            Mode::Down => error,
            Mode::Slowdown | Mode::Partition => timeout,
            Mode::Stale => (Ending::Answer { fresh: false }, parameters.usual_rounds),
            Mode::Partial => {
                let share = f64::from(parameters.down_shards) / f64::from(parameters.shards);
                if generator.happens(share) { error } else { fresh }
            }
            Mode::Healthy => {
                if generator.happens(parameters.rare_timeout) {
                    timeout
                } else {
                    fresh
                }
            }
        }
    }
}

fn signature_row(mode: Mode, sums: &Sums) -> Row {
    let [answers, errors, timeouts] = sums.shares();
    let counts = Fields::new()
        .with("response", sums.answers)
        .with("error", sums.errors)
        .with("timeout", sums.timeouts)
        .with("slot_rounds", sums.held);
    Row::of("signature")
        .with("mode", mode.name())
        .rounded("response_ratio", answers, 3)
        .rounded("error_ratio", errors, 3)
        .rounded("timeout_ratio", timeouts, 3)
        .rounded("slot_rounds_per_call", sums.held_mean(), 2)
        .rounded("fresh_ratio", sums.fresh_share(), 3)
        .apart("_counts", counts)
}

impl Model for Signature {
    type Parameters = Parameters;

    const LESSON: u8 = 1;
    const TITLE: &'static str = "Failure Modes";
    const NAME: &'static str = "signature";
    const SEEDING: Option<Seeding> = Some(Seeding {
        kind: Kind::ParkMiller,
        seed: 20_260_730,
        notes: &[("reseed", "once for the whole run; modes share one stream in mode_order")],
    });
    const PARAMETERS: &'static str = r#"{
        "calls_per_mode": 400, "usual_rounds": 2, "timeout_rounds_AY2": 20, "shards": 8, "down_shards": 1,
        "rare_timeout_AY4": 0.025, "stamp_bytes": 8, "naming_window": 20, "round_ms_AY1": 10,
        "pair_tolerance": 0.02,
        "mode_order": ["healthy", "down", "slowdown", "partial", "stale", "partition"]
    }"#;

    fn settle(parameters: &mut Parameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("calls_per_mode", parameters.calls_per_mode, 1..=10_000_000)?;
        within("usual_rounds", parameters.usual_rounds, 1..=1_000_000)?;
        within("timeout_rounds_AY2", parameters.timeout_rounds, 1..=1_000_000)?;
        within("shards", parameters.shards, 1..=1_000_000)?;
        within("down_shards", parameters.down_shards, 0..=parameters.shards)?;
        within("rare_timeout_AY4", parameters.rare_timeout, 0.0..=1.0)?;
        within("naming_window", parameters.naming_window, 1..=1_000_000)?;
        within("round_ms_AY1", parameters.round_ms, 0.001..=1_000_000.0)?;
        within("pair_tolerance", parameters.pair_tolerance, 0.0..=1.0)?;
        let order = &parameters.mode_order;
        let twice = order.iter().enumerate().find(|(index, mode)| order[..*index].contains(mode));
        let input = twice.map_or("", |(_, mode)| mode.name());
        holds(
            twice.is_none(),
            format_args!("mode_order: {input}"),
            "a mode is run once",
            "name each mode once",
        )
    }

    fn run(parameters: &Parameters, seed: u64) -> Outcome {
        let mut generator = Generator::new(Kind::ParkMiller, seed);
        let mut of_modes: Vec<(Mode, Sums)> = Vec::new();
        for mode in &parameters.mode_order {
            let mut window = SignatureWindow::new(parameters.calls_per_mode);
            for _ in 0..parameters.calls_per_mode {
                let (ending, held) = mode.call(parameters, &mut generator);
                window.push(ending, held);
            }
            of_modes.push((*mode, window.sums()));
        }
        let mut rows: Vec<Row> = of_modes.iter().map(|(mode, sums)| signature_row(*mode, sums)).collect();
        for (index, (a, of_a)) in of_modes.iter().enumerate() {
            for (b, of_b) in &of_modes[index + 1..] {
                if of_a.ends_alike(of_b, parameters.pair_tolerance) {
                    let separates = of_a.content_separates(of_b, parameters.pair_tolerance);
                    rows.push(
                        Row::of("indistinguishable_by_class")
                            .with("a", a.name())
                            .with("b", b.name())
                            .with("content_check_separates", separates),
                    );
                }
            }
        }
        let rounds_per_s = MS_PER_S / parameters.round_ms;
        let window_rounds = f64::from(parameters.naming_window) / (WRITE_PEAK / rounds_per_s);
        let window_ms = window_rounds / (rounds_per_s / MS_PER_S);
        rows.push(
            Row::of("failure_free_cost")
                .with("stamp_bytes", parameters.stamp_bytes)
                .rounded("stamp_bytes_per_s", f64::from(parameters.stamp_bytes) * EDGE_PEAK, 2)
                .number("edge_req_per_s", EDGE_PEAK)
                .with("window_calls", parameters.naming_window)
                .rounded("window_rounds", window_rounds, 1)
                .number("events_per_s", WRITE_PEAK)
                .rounded("window_ms", window_ms, 0),
        );
        let healthy = of_modes.iter().find(|(mode, _)| *mode == Mode::Healthy);
        let (usual, timeout) = (parameters.usual_rounds as f64, parameters.timeout_rounds as f64);
        rows.push(
            Row::of("sensitivity_AY4")
                .rounded("rare_ratio", OTHER_RARE_TIMEOUT, 3)
                .rounded("slot_rounds_per_call", usual + OTHER_RARE_TIMEOUT * (timeout - usual), 2)
                .rounded("baseline_slot_rounds", healthy.map(|(_, sums)| sums.held_mean()), 2),
        );
        Outcome { rows, generator: Fields::new().with_generator(&generator) }
    }
}
