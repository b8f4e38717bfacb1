//! A bound on what a source sends, against none: what it does for a reader that wants a block now and then, while another
//! reads all that it can get.
//!
//! Three nodes: a source, a reader of single blocks, and one whose engines ask for batches of 128. Without a bound the
//! source gives the transport what it has windows for, and the network shares it out by connection; with one, nodes share
//! the rate in pieces. What the other then gets less is what the bound is for: it is shown, and no rule asks for it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use orbitkv::control::signals::StopSignals;
use orbitkv::quantity::ByteSize;
use serde::Serialize;
use serde_json::{Value, json};

use super::judgement::{Question, Sense, Trial, in_turn};
use super::{Ablation, AblationArgs, Column};
use crate::attempt::{SentFailure, received, sent};
use crate::profile::Profile;
use crate::resilience::stage::{BATCH_BLOCKS, BLOCK_BYTES, Engine, Scene, Stage};
use crate::statistics::{Latencies, gigabytes_per_second};
use crate::{Failure, progress};

const SIDES: [&str; 2] = ["bounded", "unbounded"];
const BOUNDED: usize = 0;
const UNBOUNDED: usize = 1;

/// The bound costs the other reader, so it has to serve the one of single blocks.
const SINGLE_LEAST: f64 = 1.05;

const COLUMNS: [Column; 4] = [
    Column { figure: "single_p50_us", title: "one block us p50", digits: 0 },
    Column { figure: "single_p90_us", title: "p90", digits: 0 },
    Column { figure: "single_p99_us", title: "p99", digits: 0 },
    Column { figure: "bulk_gbps", title: "the other reads GB/s", digits: 3 },
];

const SOURCE: usize = 1;
const BULK_READER: usize = 2;
/// Engines that ask for batches at once: more than a window holds.
const BULK_ENGINES: usize = 4;
const WAIT: Duration = Duration::from_secs(10);
/// Between two single blocks.
const REST: Duration = Duration::from_millis(3);

/// Sizes of a run of either side.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sizes {
    single_blocks: usize,
    bulk_blocks: usize,
}

impl Sizes {
    fn of(profile: Profile) -> Sizes {
        match profile {
            Profile::Full => Sizes { single_blocks: 600, bulk_blocks: 16 * BATCH_BLOCKS },
            Profile::Ci => Sizes { single_blocks: 200, bulk_blocks: 4 * BATCH_BLOCKS },
        }
    }
}

/// The ablation.
pub struct Pacing {
    sizes: Sizes,
    egress_rate: ByteSize,
    seed: u64,
}

impl Pacing {
    /// As it is asked for.
    pub fn new(args: &AblationArgs) -> Pacing {
        Pacing { sizes: Sizes::of(args.profile.into()), egress_rate: args.egress_rate, seed: args.seed }
    }

    /// One side, with nodes of its own.
    fn measure(&self, side: usize, seed: u64, signals: &StopSignals) -> Result<Trial, Failure> {
        let bound = format!("--egress-rate {}", self.egress_rate);
        let flags = [bound.as_str()];
        let mut stage = Stage::start(&Scene::of(3, if side == BOUNDED { &flags } else { &[] }), signals)?;
        // What is asked for one by one, and in batches.
        let [single, bulk] = [seed.wrapping_mul(2), seed.wrapping_mul(2).wrapping_add(1)];
        let Sizes { single_blocks, bulk_blocks } = self.sizes;
        stage.save(SOURCE, single, single_blocks, signals)?;
        stage.save(SOURCE, bulk, bulk_blocks, signals)?;
        let engines = (0..BULK_ENGINES).map(|_| stage.engine(BULK_READER)).collect::<Result<Vec<_>, _>>()?;
        let (taken, running) = (AtomicU64::new(0), AtomicUsize::new(engines.len()));
        let (mut waits, mut missed) = (Latencies::new(), 0);
        let began = Instant::now();
        let time = thread::scope(|scope| -> Result<Duration, Failure> {
            let threads: Vec<_> = engines
                .into_iter()
                .map(|engine| {
                    scope.spawn(|| read_batches(engine, bulk, &taken, bulk_blocks as u64, &running))
                })
                .collect();
            let mut outcome = Ok(());
            for block in 0..single_blocks as u64 {
                if running.load(Ordering::Relaxed) == 0 || outcome.is_err() {
                    break;
                }
                outcome = stage.ask(single, block..block + 1, WAIT).map(|asked| {
                    waits.record(asked.time);
                    missed += u64::from(asked.ready == 0);
                });
                thread::sleep(REST);
            }
            let mut longest = Duration::ZERO;
            for thread in threads {
                let ended = thread.join().expect("a thread says its errors");
                longest = longest.max(ended.map_err(received)? - began);
            }
            outcome.map(|()| longest)
        })?;
        let trial = Trial::of([
            ("single_p50_us", waits.microseconds(0.5)),
            ("single_p90_us", waits.microseconds(0.9)),
            ("single_p99_us", waits.microseconds(0.99)),
            ("bulk_gbps", gigabytes_per_second(bulk_blocks as u64 * BLOCK_BYTES, time)),
        ]);
        Ok(Trial { wrong: missed, details: json!({ "single_block_us": waits.json() }), ..trial })
    }
}

impl Ablation for Pacing {
    fn sides(&self) -> &[&'static str] {
        &SIDES
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn questions(&self) -> Vec<Question> {
        vec![Question {
            gate: "ablation_pacing_single",
            built: BOUNDED,
            other: UNBOUNDED,
            figure: "single_p99_us",
            sense: Sense::Lower,
            least: SINGLE_LEAST,
        }]
    }

    fn settings(&self) -> Value {
        json!({ "egress_rate": self.egress_rate.0, "block_bytes": BLOCK_BYTES, "sizes": self.sizes })
    }

    fn run(&mut self, number: usize, signals: &StopSignals) -> Result<Vec<Trial>, Failure> {
        in_turn(SIDES.len(), number, |side| {
            progress(SIDES[side]);
            self.measure(side, self.seed.wrapping_add(number as u64), signals)
        })
    }
}

/// Reads batches until all are read; when it was done. A batch that did not come whole is asked for again.
fn read_batches(
    mut engine: Engine,
    generation: u64,
    taken: &AtomicU64,
    blocks: u64,
    running: &AtomicUsize,
) -> Result<Instant, SentFailure> {
    let outcome = loop {
        let first = taken.fetch_add(BATCH_BLOCKS as u64, Ordering::Relaxed);
        if first >= blocks {
            break Ok(Instant::now());
        }
        let range = first..blocks.min(first + BATCH_BLOCKS as u64);
        if let Err(error) = read_batch(&mut engine, generation, range) {
            break Err(error);
        }
    };
    running.fetch_sub(1, Ordering::Relaxed);
    outcome
}

fn read_batch(engine: &mut Engine, generation: u64, range: Range<u64>) -> Result<(), SentFailure> {
    let until = Instant::now() + WAIT;
    let wanted = (range.end - range.start) as usize;
    loop {
        let asked = engine.ask(generation, range.clone(), WAIT).map_err(sent)?;
        if asked.ready == wanted {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("{} of {wanted} blocks came within {WAIT:?}", asked.ready).into());
        }
        thread::sleep(REST);
    }
}
