//! The main job on real input: a trace driven through the engine channel of one or more nodes,
//! every payload derived from its block and compared byte for byte on the way back.

mod engine;
mod generate;
mod lanes;
#[cfg(test)]
mod model_node;
mod node;
mod payload;
mod report;
#[cfg(test)]
mod tests;
mod trace;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Client, ClientError, ClientSettings};
use engine::Engine;

pub use generate::generate;
pub use lanes::{Spread, assign};
pub use node::{ChildNode, NodeFailure, NodeOrder, end_child};
pub use payload::{PAYLOAD_BYTES_MIN, PAYLOAD_GENERATION, block_hash, fill, wrong_bytes};
pub use report::{BrokenPromises, Hits, Latencies, Report, Saves, Tally};
pub use trace::{LINE_BYTES_MAX, TraceError, TraceRequest, TraceShape, read_trace};

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Requests an engine has in flight: a handful of releases beside the one it waits for.
const IN_FLIGHT: u16 = 64;

/// What to drive, and how.
#[derive(Clone, Debug)]
pub struct ReplaySettings {
    /// Engine sockets, one a node.
    pub sockets: Vec<PathBuf>,
    /// Engines a node.
    pub engines: usize,
    /// Payload bytes of a block.
    pub block_bytes: u64,
    /// Times real time; 0 for as fast as possible.
    pub speed: f64,
    /// How requests are spread over nodes and engines.
    pub spread: Spread,
    /// How long to try to reach a node.
    pub connect_wait: Duration,
}

/// Drives the trace. `progress` is told how many requests are done.
///
/// # Errors
/// The first error of an engine that is not an answer: the node unreachable, a refusal, a broken
/// protocol. What the other engines did is lost with it.
pub fn replay(
    requests: &[TraceRequest],
    settings: &ReplaySettings,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, ClientError> {
    let shape = TraceShape::of(requests);
    let mut engines = Vec::new();
    for index in 0..settings.engines {
        for socket in &settings.sockets {
            let client = Client::connect(ClientSettings {
                in_flight: IN_FLIGHT,
                connect_wait: settings.connect_wait,
                ..ClientSettings::new(socket)
            })?;
            engines.push(Engine::new(client, settings.block_bytes, index)?);
        }
    }
    let lanes = assign(requests, engines.len(), settings.spread);
    let starts = intended_starts(requests, settings.speed);
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    let served: Vec<Result<Engine, ClientError>> = thread::scope(|scope| {
        let running: Vec<_> = engines
            .into_iter()
            .zip(&lanes)
            .map(|(mut engine, lane)| {
                let (done, stop, starts) = (&done, &stop, &starts);
                scope.spawn(move || {
                    for &index in lane {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let late = starts.get(index).map_or(Duration::ZERO, |&start| until(began + start));
                        engine
                            .serve(&requests[index].hash_ids, late)
                            .inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(engine)
                })
            })
            .collect();
        while running.iter().any(|engine| !engine.is_finished()) {
            progress(done.load(Ordering::Relaxed));
            thread::park_timeout(PROGRESS_INTERVAL);
        }
        running.into_iter().map(|engine| engine.join().expect("an engine does not panic")).collect()
    });
    let elapsed = began.elapsed();
    progress(done.load(Ordering::Relaxed));

    let mut tally = Tally::default();
    let mut engines = served.into_iter().collect::<Result<Vec<Engine>, ClientError>>()?;
    let began = Instant::now();
    for engine in &mut engines {
        engine.sync()?;
        tally.add(&engine.tally);
    }
    Ok(Report { shape, block_bytes: settings.block_bytes, tally, elapsed, syncing: began.elapsed() })
}

/// When each request is due, from the beginning of the run; empty if nothing is paced. Arrivals
/// that run backwards are due with the latest before them.
fn intended_starts(requests: &[TraceRequest], speed: f64) -> Vec<Duration> {
    if speed == 0.0 {
        return Vec::new();
    }
    let first = requests.first().map_or(0.0, |request| request.timestamp);
    let mut latest = 0.0f64;
    let due = |request: &TraceRequest| {
        latest = latest.max(request.timestamp - first);
        Duration::try_from_secs_f64(latest / 1e3 / speed).unwrap_or(Duration::MAX)
    };
    requests.iter().map(due).collect()
}

/// Waits for a moment; by how much it was missed.
fn until(moment: Instant) -> Duration {
    if let Some(ahead) = moment.checked_duration_since(Instant::now()) {
        thread::sleep(ahead.saturating_sub(TIMER_SLACK));
        // What a timer sleeps too long would be booked as the node's delay.
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
    }
    Instant::now().saturating_duration_since(moment)
}

/// How much later than asked a sleeping thread may wake.
const TIMER_SLACK: Duration = Duration::from_micros(150);
