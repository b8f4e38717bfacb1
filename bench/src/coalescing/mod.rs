//! `orbitkv-bench coalescing`: what waiting for others spares the streams when the same keys change over and over, and
//! what it costs in visibility (chapters 6.1 and 6.8).
//!
//! The same bursts are made in one cluster after the other: the first tells every change at once, the others wait.
//! Owners take turns, and a burst saves and drops the same few blocks many times. Bytes of deltas are counted, so
//! the order of the clusters does not matter; visibility is a time and informs only. Every key is compared at the end.

pub mod plan;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv::quantity::Span;
use orbitkv_native::clock::monotonic_ns;
use serde::Serialize;
use serde_json::{Value, json};

use crate::ending::conclude;
use crate::pace::Pace;
use crate::report::{Gate, Report};
use crate::streams::cadence::rotation;
use crate::streams::convergence::{self, Convergence};
use crate::streams::distribution::Distribution;
use crate::streams::outlet::Outlet;
use crate::streams::owners::{Owners, Sessions, await_applied};
use crate::streams::samples::Samples;
use crate::streams::{RunArgs, pause};
use crate::{Failure, fail, machine, progress};
use plan::{PERIOD, Plan, SPARED_MIN, WINDOW};

/// What to measure.
#[derive(Args)]
pub struct CoalescingArgs {
    #[command(flatten)]
    run: RunArgs,
}

/// What the sources of a cluster have sent: counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// Journal records read for peers.
    records_read: u64,
    /// What was left of them to tell.
    pub records_told: u64,
    delta_frames: u64,
    /// Bytes of the frames that told of changes.
    pub delta_bytes: u64,
    intentional_wait_us: u64,
}

/// One cluster's run.
pub struct Run {
    window: Duration,
    /// What all sources sent.
    pub sent: Sent,
    /// What was wrong with the sessions, if anything was.
    pub sessions: Result<(), String>,
    /// How soon publications were seen.
    pub visibility: Result<Distribution, String>,
    /// What was compared at the end.
    pub convergence: Convergence,
    /// Writes to etcd.
    pub etcd_writes: u64,
    /// Cores of the nodes and of this program.
    pub processors: Value,
    elapsed: Duration,
}

/// Measures, prints, and says by its exit code whether the gates are met.
pub fn run(args: &CoalescingArgs) -> ExitCode {
    let args = &args.run;
    let windows = match plan::windows(args.coalesce.map(|span| span.0)) {
        Ok(windows) => windows,
        Err(refused) => return fail(Exit::Usage, &*Failure::from(refused)),
    };
    let measured = Outlet::of("coalescing", args).and_then(|outlet| measure(args, &windows, &outlet));
    conclude(measured, args.json)
}

fn measure(args: &RunArgs, windows: &[Duration], outlet: &Outlet) -> Result<Report, Failure> {
    let (machine, plan) = (machine::describe(), Plan::of(args.profile));
    let load = machine::Pressure::now();
    let signals = StopSignals::watch()?;
    let (mut runs, mut pace) = (Vec::with_capacity(windows.len()), Pace::over(windows.len()));
    for window in windows {
        pace.tell(&format!("a window of {}", Span(*window)));
        runs.push(cluster(args, &plan, *window, &signals)?);
        pace.done();
    }
    let report = Report {
        name: "coalescing",
        profile: args.profile.into(),
        seed: args.seed,
        machine,
        figures: figures(&runs, &plan),
        gates: gates(args, &runs),
        settings: json!({
            "managers": args.managers,
            "sizes": plan,
            "changes": plan.changes(),
            "residences": args.residences,
            "period_ms": PERIOD.as_millis() as u64,
            "pressure": load.until_now(),
        }),
    };
    outlet.write(&report, &runs.iter().filter_map(|run| run.visibility.as_ref().ok()).collect::<Vec<_>>())?;
    Ok(report)
}

/// All bursts in a cluster with that window.
///
/// # Errors
/// If a node fails, or a signal comes.
pub fn cluster(args: &RunArgs, plan: &Plan, window: Duration, signals: &StopSignals) -> Result<Run, Failure> {
    let mut owners = Owners::start(args, Some(Span(window)), signals)?;
    await_applied(&owners, signals)?;
    let revision_before = owners.coordinator().revision()?;
    let (sessions_before, sent_before, used_before) = (owners.sessions()?, sent(&owners)?, owners.used()?);
    let mut samples = Samples::of(owners.identities());
    samples.read_all(owners.http())?;
    progress(&format!("{} bursts with a window of {}", plan.bursts, Span(window)));
    let (began_ns, began) = (monotonic_ns(), Instant::now());
    for planned in rotation(args.seed, owners.len(), plan.bursts, PERIOD) {
        let left_ns = (began_ns + planned.offset_ns).saturating_sub(monotonic_ns());
        pause(Duration::from_nanos(left_ns), signals)?;
        owners.owner(planned.owner).repeat(plan.blocks, plan.rounds)?;
    }
    let (elapsed, span_ns) = (began.elapsed(), began_ns..monotonic_ns());
    await_applied(&owners, signals)?;
    let processors = owners.used()?.since(&used_before).json(elapsed);
    samples.read_all(owners.http())?;
    let sent = sent(&owners)?.since(&sent_before);
    let sessions = Sessions::stayed_up(&sessions_before, &owners.sessions()?, owners.sessions_expected());
    let convergence = convergence::check(&mut owners, signals)?;
    owners.require_alive()?;
    Ok(Run {
        window,
        sent,
        sessions,
        visibility: visibility(&samples, span_ns, window),
        convergence,
        etcd_writes: owners.coordinator().revision()? - revision_before,
        processors,
        elapsed,
    })
}

/// How soon each publication was seen.
fn visibility(
    samples: &Samples,
    span_ns: std::ops::Range<u64>,
    window: Duration,
) -> Result<Distribution, String> {
    let mut publication = Distribution::of(match window.as_micros() {
        0 => "publication_install_0ms",
        2_000 => "publication_install_2ms",
        5_000 => "publication_install_5ms",
        _ => "publication_install_other",
    });
    for sight in samples.of_publications(span_ns).map_err(|invalid| invalid.to_string())? {
        publication.record(sight.installed_ns - sight.published_ns);
    }
    Ok(publication)
}

fn sent(owners: &Owners) -> Result<Sent, Failure> {
    let mut all = Sent::default();
    for page in owners.pages()? {
        for peers in page.shards.iter().filter_map(|shard| shard.peers.as_ref()) {
            all.records_read += peers.records_read;
            all.records_told += peers.records_coalesced;
            all.delta_frames += peers.deltas_sent.frames;
            all.delta_bytes += peers.deltas_sent.bytes;
            all.intentional_wait_us += peers.intentional_wait_us;
        }
    }
    Ok(all)
}

impl Sent {
    fn since(&self, before: &Sent) -> Sent {
        Sent {
            records_read: self.records_read - before.records_read,
            records_told: self.records_told - before.records_told,
            delta_frames: self.delta_frames - before.delta_frames,
            delta_bytes: self.delta_bytes - before.delta_bytes,
            intentional_wait_us: self.intentional_wait_us - before.intentional_wait_us,
        }
    }

    /// Share of the bytes that were sent without waiting which this run has spared; less than nothing if it sent more.
    fn spared(&self, none: &Sent) -> Option<f64> {
        (none.delta_bytes > 0).then(|| 1.0 - self.delta_bytes as f64 / none.delta_bytes as f64)
    }
}

impl Run {
    fn json(&self, none: &Run) -> Value {
        json!({
            "window_us": self.window.as_micros() as u64,
            "sent": self.sent,
            "spared": self.sent.spared(&none.sent),
            "visibility": self.visibility.as_ref().map_or_else(|why| json!(why), Distribution::json),
            "convergence": self.convergence,
            "processors": self.processors,
            "seconds": self.elapsed.as_secs_f64(),
        })
    }
}

fn figures(runs: &[Run], plan: &Plan) -> String {
    let mut table = Table::new([
        "window",
        "records told",
        "delta frames",
        "delta bytes",
        "spared",
        "seen ms p50",
        "p99",
        "node cores",
        "seconds",
    ]);
    for run in runs {
        let spared = run.sent.spared(&runs[0].sent);
        let seen = |quantile| match &run.visibility {
            Ok(visibility) => format!("{:.3}", visibility.milliseconds(quantile)),
            Err(_) => "-".to_owned(),
        };
        table.row([
            Span(run.window).to_string(),
            run.sent.records_told.to_string(),
            run.sent.delta_frames.to_string(),
            run.sent.delta_bytes.to_string(),
            spared.map_or_else(|| "-".to_owned(), |spared| format!("{:.1} %", spared * 100.0)),
            seen(0.5),
            seen(0.99),
            format!("{:.2}", run.processors["node_cores"].as_f64().unwrap_or(0.0)),
            format!("{:.1}", run.elapsed.as_secs_f64()),
        ]);
    }
    let unseen = runs.iter().filter_map(|run| {
        let why = run.visibility.as_ref().err()?;
        Some(format!("\nvisibility with {} is not known: {why}", Span(run.window)))
    });
    let words = format!(
        "{table}\n{} changes in each; bytes at {} are held against a gate, everything else informs only",
        plan.changes(),
        Span(judged(runs).window)
    );
    words + &unseen.collect::<String>()
}

/// The run with the window of the gate; with the one that was asked for instead, if there is no such.
fn judged(runs: &[Run]) -> &Run {
    runs.iter().find(|run| run.window == WINDOW).or(runs.get(1)).expect("one that waits is compared")
}

fn gates(args: &RunArgs, runs: &[Run]) -> Vec<Gate> {
    let (none, judged) = (&runs[0], judged(runs));
    let gate = |name| Gate::new(name, args.profile, args.seed);
    let spared = gate(plan::gate(judged.window))
        .at_least(SPARED_MIN)
        .against("best known share of bytes spared", Some(0.836))
        .details(json!({ "runs": runs.iter().map(|run| run.json(none)).collect::<Vec<_>>() }));
    let spared = match (&none.sessions, &judged.sessions, judged.sent.spared(&none.sent)) {
        (Err(why), _, _) | (_, Err(why), _) => spared.invalid(why.clone()),
        (.., None) => spared.invalid("nothing was told at all"),
        (.., Some(share)) => spared.value(share),
    };
    let no = |name, count: u64, what: &str| gate(name).against(what, None).none_ever(count);
    let faults = runs.iter().map(|run| run.convergence.faults()).sum();
    let writes = runs.iter().map(|run| run.etcd_writes).sum();
    vec![
        spared,
        no("coalescing_convergence", faults, "faults, key by key at the end"),
        no("coalescing_etcd", writes, "writes to etcd"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::FormalProfile;

    fn ran(window: Duration, delta_bytes: u64) -> Run {
        Run {
            window,
            sent: Sent { delta_bytes, ..Sent::default() },
            sessions: Ok(()),
            visibility: Ok(Distribution::of("publication_install_other")),
            convergence: Convergence::default(),
            etcd_writes: 0,
            processors: Value::Null,
            elapsed: Duration::ZERO,
        }
    }

    fn verdicts(runs: &[Run]) -> (&'static str, Vec<bool>) {
        let args = RunArgs {
            managers: 16,
            profile: FormalProfile::Formal,
            seed: 1,
            coalesce: None,
            residences: 512,
            out: None,
            json: false,
        };
        let gates = gates(&args, runs);
        (gates[0].name(), gates.iter().map(Gate::is_met).collect())
    }

    #[test]
    fn the_gate_is_the_share_of_bytes_that_two_milliseconds_spare() {
        let ms = Duration::from_millis;
        let met = |none, two, five| verdicts(&[ran(ms(0), none), ran(ms(2), two), ran(ms(5), five)]);
        assert_eq!(met(1_000, 199, 900), ("coalescing_2ms", vec![true, true, true]));
        assert_eq!(met(1_000, 201, 1), ("coalescing_2ms", vec![false, true, true]));
        assert_eq!(met(0, 0, 0).1, [false, true, true], "no bytes are not few bytes");
        assert_eq!(met(1_000, 2_000, 0).1, [false, true, true], "more bytes than before");
        assert_eq!(verdicts(&[ran(ms(0), 100), ran(ms(1), 10)]), ("coalescing", vec![true, true, true]));
    }

    #[test]
    fn any_run_may_spoil_it() {
        let ms = Duration::from_millis;
        let spoilt = |at: usize, spoil: fn(&mut Run)| {
            let mut runs = [ran(ms(0), 1_000), ran(ms(2), 100), ran(ms(5), 50)];
            spoil(&mut runs[at]);
            verdicts(&runs).1
        };
        for at in 0..3 {
            assert_eq!(spoilt(at, |run| run.convergence.keys_missing = 1), [true, false, true]);
            assert_eq!(spoilt(at, |run| run.etcd_writes = 1), [true, true, false]);
            let lost = spoilt(at, |run| run.sessions = Err("one was lost".to_owned()));
            assert_eq!(lost, [at == 2, true, true], "the window that informs only spoils nothing");
        }
    }
}
