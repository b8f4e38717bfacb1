//! The deep health check: what one each two seconds costs an engine, and how soon it notices an SSD that loses what is
//! written to it, which readiness never does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use orbitkv::cli::http_client::{ClientError, HttpClient};
use orbitkv::control::health::answer::DeepHealth;
use orbitkv::control::signals::StopSignals;
use orbitkv_shards::resilience::health::CHECK_INTERVAL;
use serde_json::json;

use super::Given;
use super::figures::{Days, Figure};
use super::rows::{DEADLINE, Row};
use super::stage::{BATCH_BLOCKS, READER, Scene, Stage};
use crate::Failure;
use crate::profile::Profile;
use crate::statistics::Latencies;
use crate::streams::pause;

/// How long a probe is asked that may never notice.
const WATCHED: Duration = Duration::from_secs(10);
/// Intervals within which a fault has to be noticed: up to one until the next question, and one in which the last answer
/// is still told.
const INTERVALS_MAX: f64 = 2.0;
/// Time between two looks at whether to stop.
const STEP: Duration = Duration::from_millis(20);

/// What an operator's probe asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Probe {
    Deep,
    Ready,
}

impl Probe {
    fn passes(self, http: &HttpClient) -> Result<bool, ClientError> {
        match self {
            Probe::Deep => Ok(http.get_verdict::<DeepHealth>("/health/deep")?.passes),
            Probe::Ready => match http.get("/ready") {
                Ok(_) => Ok(true),
                Err(ClientError::Refused { .. }) => Ok(false),
                Err(error) => Err(error),
            },
        }
    }
}

/// A node with an SSD is asked one or the other, while nothing fails and when its SSD does.
pub fn health(given: &Given<'_>) -> Result<Row, Failure> {
    let signals = given.signals;
    let quiet_for = Duration::from_secs(if given.profile == Profile::Full { 20 } else { 6 });
    let mut days = Days { quiet_us: [vec![], vec![]], failing: [vec![], vec![]] };
    let mut checks = 0;
    for (way, probe) in [(0, Probe::Deep), (1, Probe::Ready), (1, Probe::Ready), (0, Probe::Deep)] {
        let scene = Scene { ssd: Some(given.directory), ..Scene::of(2, &["--audit 0s"]) };
        let mut stage = Stage::start(&scene, signals)?;
        stage.save(READER, 1, BATCH_BLOCKS, signals)?;
        days.quiet_us[way].push(beside(&mut stage, probe, quiet_for, signals)?);
        checks += stage.deep_checks(READER)?.passed;
        days.failing[way].push(unnoticed_s(&stage, probe, signals)?);
    }
    let [on, off] = Days::means(&days.failing);
    let gain = Figure {
        name: "health_notices_s",
        value: on,
        target: INTERVALS_MAX * CHECK_INTERVAL.as_secs_f64(),
        at_most: true,
        against: "seconds until a probe each 2 s fails on an SSD that loses what is written to it",
        words: format!(
            "an SSD that loses what is written is noticed after {on:.1} s; /ready did not fail in {off:.1} s"
        ),
        details: json!({ "deep_s": days.failing[0], "ready_s": days.failing[1], "checks_quiet": checks }),
        why_invalid: None,
    };
    let why = if off < WATCHED.as_secs_f64() {
        Some("readiness failed, too: more than an SSD was broken".to_owned())
    } else if checks == 0 {
        Some("no check passed while nothing failed".to_owned())
    } else {
        None
    };
    Ok(Row { pattern: "health", cost: Some(days.cost("health_cost")), gain: gain.proves_nothing(why) })
}

/// Blocks in DRAM that an engine asks for one by one beside a probe: microseconds of the median.
fn beside(
    stage: &mut Stage,
    probe: Probe,
    quiet_for: Duration,
    signals: &StopSignals,
) -> Result<f64, Failure> {
    let (http, over) = (stage.http(READER)?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let probing = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if !probe.passes(&http)? {
                    return Ok(false);
                }
                let asked = Instant::now();
                while asked.elapsed() < CHECK_INTERVAL && !over.load(Ordering::Relaxed) {
                    std::thread::sleep(STEP);
                }
            }
            Ok::<_, ClientError>(true)
        });
        let asked = ask_for(stage, quiet_for, signals);
        over.store(true, Ordering::Relaxed);
        match probing.join().expect("no panic")? {
            true => asked,
            false => Err("a probe failed though nothing is broken".into()),
        }
    })
}

fn ask_for(stage: &mut Stage, quiet_for: Duration, signals: &StopSignals) -> Result<f64, Failure> {
    let mut latencies = Latencies::new();
    let began = Instant::now();
    for index in (0..BATCH_BLOCKS as u64).cycle() {
        if began.elapsed() >= quiet_for {
            break;
        }
        pause(Duration::ZERO, signals)?;
        let asked = stage.ask(1, index..index + 1, DEADLINE)?;
        if asked.ready != 1 {
            return Err("a block does not come though nothing fails".into());
        }
        latencies.record(asked.time);
    }
    Ok(latencies.microseconds(0.5))
}

/// An SSD loses whatever is written to it: seconds until a probe notices, [`WATCHED`] if it does not.
fn unnoticed_s(stage: &Stage, probe: Probe, signals: &StopSignals) -> Result<f64, Failure> {
    let (http, file, over) = (stage.http(READER)?, stage.ssd_file()?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        // What is cut off once is longer again with the next write.
        let losing = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                file.set_len(0)?;
            }
            Ok::<_, std::io::Error>(())
        });
        let began = Instant::now();
        let noticed = loop {
            match probe.passes(&http) {
                Ok(true) if began.elapsed() < WATCHED => {}
                Ok(true) => break Ok(WATCHED),
                Ok(false) => break Ok(began.elapsed()),
                Err(error) => break Err(error.into()),
            }
            if let Err(stopped) = pause(CHECK_INTERVAL, signals) {
                break Err(stopped);
            }
        };
        over.store(true, Ordering::Relaxed);
        losing.join().expect("no panic")?;
        noticed.map(|noticed: Duration| noticed.as_secs_f64())
    })
}
