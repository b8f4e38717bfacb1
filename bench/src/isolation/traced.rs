//! One run under pressure with the stage timeline on: what the core of the foreground's node was doing while the slowest
//! requests of its engine waited. It looks for causes and counts for no gate.

use std::path::Path;
use std::process::ExitCode;

use orbitkv::client::RequestMoments;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv::turns::screen::{screen, shares_text};
use orbitkv::turns::timeline::{Doing, Shares, Timeline};
use serde::Serialize;
use serde_json::json;

use super::plan::Plan;
use super::record::Measured;
use super::run::{Traced, make_traced};
use super::schedule::{Cell, Kind, Medium, Side};
use super::stage::Cores;
use super::{IsolationArgs, Media};
use crate::attempt::Unmade;
use crate::recording::Recording;
use crate::{Failure, fail, progress};

/// What is kept of it: everything that can be looked at again.
#[derive(Serialize)]
struct Kept<'a> {
    kind: &'static str,
    medium: Medium,
    seed: u64,
    commit: &'static str,
    measured: &'a Measured,
    recording: &'a Recording,
    /// Session, request, operation, submitted and returned in nanoseconds.
    engine: Vec<(u64, u64, u8, u64, u64)>,
}

/// Makes it and shows it. Events without room make it prove nothing, which the exit code says, too.
pub fn run(plan: &Plan, args: &IsolationArgs, cores: Cores) -> ExitCode {
    let media = match args.medium {
        Media::Both => return usage("--trace-turns makes one run: name --medium dram or --medium ssd"),
        one => one.list(),
    };
    match work(plan, media[0], args, cores) {
        Ok(Told { text, lost }) => {
            println!("{text}");
            if lost == 0 { Exit::Done.into() } else { Exit::Unmet.into() }
        }
        Err(why) => why.tell(),
    }
}

/// What is shown.
struct Told {
    text: String,
    /// Events without room.
    lost: u64,
}

fn usage(words: &str) -> ExitCode {
    fail(Exit::Usage, &*Failure::from(words))
}

fn work(plan: &Plan, medium: Medium, args: &IsolationArgs, cores: Cores) -> Result<Told, Unmade> {
    let signals = StopSignals::watch()?;
    std::fs::create_dir_all(&args.out)?;
    let directory = args.out.canonicalize()?;
    let cell = Cell { number: 1, medium, kind: Kind::QuietPressure, pair: 1, side: Side::Compared };
    let rounds = plan.warm_up_rounds + plan.rounds;
    progress(&format!("one run of {rounds} rounds under pressure with the timeline on"));
    let (measured, traced) = make_traced(&cell, plan, cores, args.seed, &directory, &signals)?;
    let path = directory.join(format!("turns-{medium}.json"));
    keep(&path, medium, args.seed, &measured, &traced)?;
    let mut timeline = Timeline::of(&[traced.recording.events()]);
    // The rounds that count: the first ones also touch memory for the first time.
    let began_ns = measured.window.began_ns;
    let moments: Vec<RequestMoments> =
        traced.moments.into_iter().filter(|moments| moments.submitted_ns >= began_ns).collect();
    timeline.join(&moments);
    let lost = timeline.lost;
    if args.json {
        return Ok(Told { text: format!("{:#}", figures(&timeline, args.slowest)), lost });
    }
    let all: Vec<_> = timeline.slowest(usize::MAX);
    let slow = all.len().div_ceil(100);
    let text = format!(
        "{}\nof {} requests the slowest 1 % ({slow}) waited for: {}\nraw pages: {}",
        screen(&timeline, args.slowest),
        all.len(),
        shares_text(&timeline.waited_for(&all[..slow])),
        path.display()
    );
    Ok(Told { text, lost })
}

fn keep(path: &Path, medium: Medium, seed: u64, measured: &Measured, traced: &Traced) -> Result<(), Failure> {
    let engine = traced.moments.iter().map(|moments| {
        let RequestMoments { session, request, operation, submitted_ns, returned_ns } = *moments;
        (session, request, operation as u8, submitted_ns, returned_ns)
    });
    let kept = Kept {
        kind: "isolation-turns",
        medium,
        seed,
        commit: env!("ORBITKV_COMMIT"),
        measured,
        recording: &traced.recording,
        engine: engine.collect(),
    };
    Ok(std::fs::write(path, serde_json::to_vec(&kept)?)?)
}

fn figures(timeline: &Timeline, count: usize) -> serde_json::Value {
    let named = |shares: &Shares| {
        let named = shares.iter().map(|(doing, ns): (&Doing, &u64)| (doing.name().to_owned(), json!(ns)));
        serde_json::Value::Object(named.collect())
    };
    let slowest = timeline.slowest(count);
    let requests: Vec<_> = slowest
        .iter()
        .map(|request| {
            let at_node = request.at_node().unwrap_or_default();
            json!({
                "request": request.name(),
                "session": request.session,
                "took_ns": request.took_ns(),
                "at_node_ns": at_node.end - at_node.start,
                "before": timeline.before(request).map(|span| named(&timeline.shares(request.core, &span))),
                "meanwhile": named(&timeline.shares(request.core, &at_node)),
            })
        })
        .collect();
    json!({ "lost": timeline.lost, "slowest": requests, "waited_for": named(&timeline.waited_for(&slowest)) })
}
