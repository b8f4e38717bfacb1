//! The main job on real input: a trace driven through the engine channel of one or more nodes,
//! every payload derived from its block and compared byte for byte on the way back.

mod engine;
mod generate;
mod lanes;
#[cfg(test)]
mod model_node;
mod payload;
mod report;
#[cfg(test)]
mod tests;
mod trace;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::client::{Client, ClientError, ClientSettings};
use engine::Engine;

pub use generate::generate;
pub use lanes::{Spread, assign};
pub use payload::{PAYLOAD_BYTES_MIN, PAYLOAD_GENERATION, block_hash, fill, wrong_bytes};
pub use report::{BrokenPromises, Hits, Latencies, Report, Saves, Tally};
pub use trace::{LINE_BYTES_MAX, TraceError, TraceRequest, TraceShape, read_trace};

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Requests an engine has in flight: a handful of releases beside the one it waits for.
const IN_FLIGHT: u16 = 64;
/// How long after its intended start an announced request may begin, or after its announcement if nothing is paced.
const ANNOUNCED_FOR: Duration = Duration::from_secs(1);

/// Longest replay that is begun: a request due later is one of a trace or a pace that was not meant.
const REPLAY_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

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
    /// Requests that an engine announces before it serves them; 0 announces none.
    pub announced: usize,
    /// How long to try to reach a node.
    pub connect_wait: Duration,
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The first error of an engine that is not an answer: the node unreachable, a refusal, a broken
    /// protocol. What the other engines did is lost with it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A request is due in the far future.
    #[error(transparent)]
    Pace(#[from] PaceError),
    /// It was asked to stop.
    #[error("stopped before the trace was through; nothing is reported of a part of it")]
    Stopped,
}

/// A request is due after more than a year.
#[derive(Debug, Error, PartialEq)]
#[error(
    "--speed {speed:e}: request {request} of the trace, {after_s:.3} s after the first, would be due after more than a year; \
     give a larger --speed, or 0 for as fast as possible"
)]
pub struct PaceError {
    /// Times real time.
    pub speed: f64,
    /// Its number, from 1.
    pub request: usize,
    /// When it came, in seconds of the trace.
    pub after_s: f64,
}

/// Drives the trace. `progress` is told how many requests are done, and says whether to go on.
///
/// # Errors
/// As [`ReplayError`] says.
pub fn replay(
    requests: &[TraceRequest],
    settings: &ReplaySettings,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Report, ReplayError> {
    let starts = intended_starts(requests, settings.speed)?;
    let shape = TraceShape::of(requests.iter());
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
    let nodes = settings.sockets.len();
    let hits_bound_alone = hits_bound_alone(requests, &lanes, nodes);
    let mut stopped = false;
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    let served: Vec<Result<Engine, ClientError>> = thread::scope(|scope| {
        let running: Vec<_> = engines
            .into_iter()
            .zip(&lanes)
            .map(|(mut engine, lane)| {
                let (done, stop, starts) = (&done, &stop, &starts);
                scope.spawn(move || {
                    for (position, &index) in lane.iter().enumerate() {
                        for &next in to_announce(lane, position, settings.announced) {
                            let due = starts.get(next).map(|&start| began + start);
                            let ahead = due.map(|due| due.saturating_duration_since(Instant::now()));
                            let wait = ahead.unwrap_or_default() + ANNOUNCED_FOR;
                            engine
                                .announce(&requests[next].hash_ids, wait)
                                .inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
                        }
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let due = starts.get(index).map(|&start| began + start);
                        let Some(late) = due.map_or(Some(Duration::ZERO), |due| until(due, stop)) else {
                            break;
                        };
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
            if progress(done.load(Ordering::Relaxed)).is_break() {
                stopped = true;
                stop.store(true, Ordering::Relaxed);
            }
            thread::park_timeout(PROGRESS_INTERVAL);
        }
        running.into_iter().map(|engine| engine.join().expect("an engine does not panic")).collect()
    });
    let elapsed = began.elapsed();
    if stopped || progress(done.load(Ordering::Relaxed)).is_break() {
        return Err(ReplayError::Stopped);
    }

    let mut tally = Tally::default();
    let mut engines = served.into_iter().collect::<Result<Vec<Engine>, ClientError>>()?;
    let began = Instant::now();
    for engine in &mut engines {
        engine.sync()?;
        tally.add(&engine.tally);
    }
    let (block_bytes, syncing) = (settings.block_bytes, began.elapsed());
    Ok(Report { shape, nodes, hits_bound_alone, block_bytes, tally, elapsed, syncing })
}

/// What of a lane is announced before it serves the request at `position`: each of the others once, so many ahead.
fn to_announce(lane: &[usize], position: usize, announced: usize) -> &[usize] {
    let newest = if position == 0 { 1 } else { position + announced.max(1) };
    let end = lane.len().min(position + announced + 1);
    &lane[newest.min(end)..end]
}

/// What nodes that never forget would hit if they knew nothing of each other: lane `l` is of node `l % nodes`.
fn hits_bound_alone(requests: &[TraceRequest], lanes: &[Vec<usize>], nodes: usize) -> u64 {
    let of_node = |node: usize| {
        let mut indices = lanes.iter().skip(node).step_by(nodes).flatten().copied().collect::<Vec<usize>>();
        indices.sort_unstable();
        TraceShape::of(indices.into_iter().map(|index| &requests[index])).hits_bound
    };
    (0..nodes).map(of_node).sum()
}

/// When each request is due, from the beginning of the run; empty if nothing is paced. Arrivals
/// that run backwards are due with the latest before them.
///
/// # Errors
/// [`PaceError`] for the first that is due after more than a year.
pub fn intended_starts(requests: &[TraceRequest], speed: f64) -> Result<Vec<Duration>, PaceError> {
    if speed == 0.0 {
        return Ok(Vec::new());
    }
    let first = requests.first().map_or(0.0, |request| request.timestamp);
    let mut latest = 0.0f64;
    let due = |(index, request): (usize, &TraceRequest)| {
        latest = latest.max(request.timestamp - first);
        let after_s = latest / 1e3;
        let due = Duration::try_from_secs_f64(after_s / speed).ok().filter(|due| *due <= REPLAY_MAX);
        due.ok_or(PaceError { speed, request: index + 1, after_s })
    };
    requests.iter().enumerate().map(due).collect()
}

/// Waits for a moment; by how much it was missed. Nothing if it is stopped before.
fn until(moment: Instant, stop: &AtomicBool) -> Option<Duration> {
    while let Some(ahead) = moment.checked_duration_since(Instant::now()) {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let asleep = ahead.saturating_sub(TIMER_SLACK);
        if asleep > PROGRESS_INTERVAL {
            thread::sleep(PROGRESS_INTERVAL);
            continue;
        }
        thread::sleep(asleep);
        // What a timer sleeps too long would be booked as the node's delay.
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
    }
    Some(Instant::now().saturating_duration_since(moment))
}

/// How much later than asked a sleeping thread may wake.
const TIMER_SLACK: Duration = Duration::from_micros(150);
