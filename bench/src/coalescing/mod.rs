//! `orbitkv-bench coalescing`: what waiting for others spares the streams when the same keys change over and over.
//!
//! The same bursts are made in two clusters one after the other, one of which tells every change at once and one that
//! waits: owners take turns, and a burst saves and drops the same few blocks many times. What the sources have sent in
//! deltas is compared, and every key at the end.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv::quantity::Span;
use orbitkv_native::clock::monotonic_ns;
use serde::Serialize;
use serde_json::json;

use crate::report::{Gate, Report};
use crate::streams::cadence::rotation;
use crate::streams::convergence::{self, Convergence};
use crate::streams::outlet::Outlet;
use crate::streams::owners::{Owners, await_applied};
use crate::streams::{CommonArgs, Profile, exit_of, failure};
use crate::{Failure, fail, machine, progress};

/// Share of the bytes that waiting spares at least (chapter 6.1).
const SPARED_MIN: f64 = 0.8;
/// The window that is compared with none, unless another one is asked for.
const WINDOW: Duration = Duration::from_millis(2);
/// Time between two bursts.
const PERIOD: Duration = Duration::from_millis(17);
/// Blocks that a burst saves and drops.
const BLOCKS: u64 = 8;
/// How often it does so.
const ROUNDS: u64 = 16;

/// What to measure.
#[derive(Args)]
pub struct CoalescingArgs {
    #[command(flatten)]
    common: CommonArgs,
}

/// What the sources of a cluster have sent for the same changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Sent {
    window_us: u64,
    changes: u64,
    records_coalesced: u64,
    delta_frames: u64,
    delta_bytes: u64,
    intentional_wait_us: u64,
    /// How long all bursts took, in milliseconds.
    elapsed_ms: u64,
}

/// Measures, prints, and says by its exit code whether the gates are met.
pub fn run(args: &CoalescingArgs) -> ExitCode {
    let args = &args.common;
    let measured = Outlet::of("coalescing", args).and_then(|outlet| measure(args, &outlet));
    let report = match measured {
        Ok(report) => report,
        Err(error) => return fail(exit_of(&*error), &*error),
    };
    match args.json {
        true => println!("{:#}", report.json()),
        false => println!("{}", report.text()),
    }
    match report.is_met() || !report.profile.qualifies {
        true => Exit::Done.into(),
        false => Exit::Unmet.into(),
    }
}

fn measure(args: &CommonArgs, outlet: &Outlet) -> Result<Report, Failure> {
    let machine = machine::describe();
    let load = machine::Pressure::now();
    let signals = StopSignals::watch()?;
    let waiting = args.coalesce.map_or(WINDOW, |span| span.0);
    let (none, none_convergence) = cluster(args, Duration::ZERO, &signals)?;
    let (some, some_convergence) = cluster(args, waiting, &signals)?;
    let report = Report {
        name: "coalescing",
        profile: args.profile.into(),
        seed: args.seed,
        machine,
        figures: figures(&[none, some]),
        gates: gates(args, &none, &some, none_convergence.faults() + some_convergence.faults()),
        settings: json!({
            "managers": args.managers,
            "residences": args.residences,
            "blocks": BLOCKS,
            "rounds": ROUNDS,
            "period_ms": PERIOD.as_millis() as u64,
            "convergence": [none_convergence, some_convergence],
            "pressure": load.until_now(),
        }),
    };
    outlet.write(&report, &[])?;
    Ok(report)
}

/// All bursts in a cluster with that window.
fn cluster(
    args: &CommonArgs,
    window: Duration,
    signals: &StopSignals,
) -> Result<(Sent, Convergence), Failure> {
    let mut owners = Owners::start(args, Some(Span(window)), signals)?;
    await_applied(&owners)?;
    let bursts = match args.profile {
        Profile::Ci => 60,
        Profile::Dense => 600,
        Profile::Formal => 1_800,
    };
    let before = sent(&owners)?;
    let began_ns = monotonic_ns();
    let plan = rotation(args.seed, owners.len(), bursts, PERIOD);
    progress(&format!("{bursts} bursts with a window of {}", Span(window)));
    for planned in &plan {
        let left = (began_ns + planned.offset_ns).saturating_sub(monotonic_ns());
        if let Some(signal) = signals.wait(Duration::from_nanos(left)) {
            return Err(failure(format!("stopped by {signal}")));
        }
        owners.owner(planned.owner).repeat(BLOCKS, ROUNDS)?;
    }
    let elapsed_ms = (monotonic_ns() - began_ns) / 1_000_000;
    await_applied(&owners)?;
    let after = sent(&owners)?;
    let convergence = convergence::check(&mut owners)?;
    let sent = Sent {
        window_us: window.as_micros() as u64,
        changes: bursts as u64 * 2 * BLOCKS * ROUNDS,
        records_coalesced: after.records_coalesced - before.records_coalesced,
        delta_frames: after.delta_frames - before.delta_frames,
        delta_bytes: after.delta_bytes - before.delta_bytes,
        intentional_wait_us: after.intentional_wait_us - before.intentional_wait_us,
        elapsed_ms,
    };
    Ok((sent, convergence))
}

fn sent(owners: &Owners) -> Result<Sent, Failure> {
    let mut all = Sent::default();
    for page in owners.pages()? {
        for peers in page.shards.iter().filter_map(|shard| shard.peers.as_ref()) {
            all.records_coalesced += peers.records_coalesced;
            all.delta_frames += peers.deltas_sent.frames;
            all.delta_bytes += peers.deltas_sent.bytes;
            all.intentional_wait_us += peers.intentional_wait_us;
        }
    }
    Ok(all)
}

fn figures(all: &[Sent]) -> String {
    let mut table =
        Table::new(["window ms", "changes", "records told", "delta frames", "delta bytes", "seconds"]);
    for sent in all {
        table.row([
            format!("{}", sent.window_us as f64 / 1e3),
            sent.changes.to_string(),
            sent.records_coalesced.to_string(),
            sent.delta_frames.to_string(),
            sent.delta_bytes.to_string(),
            format!("{:.1}", sent.elapsed_ms as f64 / 1e3),
        ]);
    }
    table.to_string()
}

fn gates(args: &CommonArgs, none: &Sent, some: &Sent, faults: u64) -> Vec<Gate> {
    let gate = |name| Gate::new(name, args.profile, args.seed);
    let spared = gate("coalescing")
        .at_least(SPARED_MIN)
        .against("best known share of bytes spared", Some(0.836))
        .details(json!({ "without": none, "with": some }));
    let spared = match none.delta_bytes {
        0 => spared.invalid("nothing was told at all"),
        bytes => spared.value(1.0 - some.delta_bytes as f64 / bytes as f64),
    };
    vec![
        spared,
        gate("coalescing_convergence")
            .at_most(0.0)
            .against("faults, key by key at the end", None)
            .value(faults as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_is_the_share_of_bytes_that_waiting_spares() {
        let args = CommonArgs {
            managers: 16,
            profile: Profile::Formal,
            seed: 1,
            coalesce: None,
            residences: 512,
            out: None,
            json: false,
        };
        let sent = |delta_bytes| Sent { delta_bytes, ..Sent::default() };
        let met = |none, some, faults| -> Vec<bool> {
            gates(&args, &sent(none), &sent(some), faults).iter().map(Gate::is_met).collect()
        };
        assert_eq!(met(1_000, 199, 0), [true, true]);
        assert_eq!(met(1_000, 201, 0), [false, true]);
        assert_eq!(met(1_000, 199, 1), [true, false]);
        assert_eq!(met(0, 0, 0), [false, true], "no bytes are not few bytes");
    }
}
