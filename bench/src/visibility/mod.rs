//! `orbitkv-bench visibility`: how soon a change at one node is visible at all others, in a cluster of real nodes
//! with an etcd of its own (chapter 6.3).
//!
//! One owner after the other makes a burst of 64 changes, one burst each 17 ms. A burst ends at a sequence that is
//! known before; the node says when its journal stood there, and each observer when it had exactly that, both on the
//! kernel's monotonic clock. Nobody waits for anything in between. Two further endpoints are measured apart, behind
//! bursts of their own: a fence that the observers await one after the other, and at once.
//!
//! A run that was not made at its cadence, in which a session ended, or of which a sample is missing publishes nothing and
//! says why.

mod plan;
mod rotation;

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::cluster::ClusterFailure;
use orbitkv::control::signals::StopSignals;
use orbitkv_native::clock::monotonic_ns;
use serde_json::{Value, json};

use crate::ending::conclude;
use crate::report::{Gate, Report};
use crate::streams::barriers;
use crate::streams::cadence::{judge, rotation as planned};
use crate::streams::convergence::{self, Convergence};
use crate::streams::distribution::Distribution;
use crate::streams::outlet::Outlet;
use crate::streams::owner::Burst;
use crate::streams::owners::{Owners, Sessions};
use crate::streams::samples::Samples;
use crate::streams::{RunArgs, pause};
use crate::{Failure, machine, progress};
use plan::{CHANGES, PERIOD, Plan};

/// What to measure.
#[derive(Args)]
pub struct VisibilityArgs {
    #[command(flatten)]
    run: RunArgs,
}

/// What was measured of bursts, if it counts.
struct Measured {
    publication: Distribution,
    slowest: Distribution,
    save: Distribution,
    bursts: usize,
}

/// Measures, prints, and says by its exit code whether the gates are met.
pub fn run(args: &VisibilityArgs) -> ExitCode {
    let args = &args.run;
    let measured = Outlet::of("visibility", args).and_then(|outlet| measure(args, &outlet));
    conclude(measured, args.json)
}

fn measure(args: &RunArgs, outlet: &Outlet) -> Result<Report, Failure> {
    let (plan, machine) = (Plan::of(args.profile), machine::describe());
    let signals = StopSignals::watch()?;
    let mut owners = Owners::start(args, args.coalesce, &signals)?;
    let count = owners.len();
    let pressure = machine::Pressure::now();
    let (sessions_before, revision_before) = (owners.sessions()?, owners.coordinator().revision()?);
    let mut samples = Samples::of(owners.identities());
    samples.read_all(owners.http())?;
    let warm_up = plan.warm_up_bursts(count);
    let bursts = planned(args.seed, count, warm_up + plan.bursts(count), PERIOD);
    let (used_before, began) = (owners.used()?, Instant::now());
    let made = match rotation::run(&mut owners, &mut samples, &bursts, &signals) {
        Err(error) if error.is::<ClusterFailure>() => return Err(error),
        made => made,
    };
    let used = owners.used()?.since(&used_before).json(began.elapsed());
    let sessions_after = owners.sessions()?;
    let expected = owners.sessions_expected();
    // What is wrong with the run is what it reports then; the rest is looked at all the same.
    let measured = made.map_err(|error| error.to_string()).and_then(|made| {
        Sessions::stayed_up(&sessions_before, &sessions_after, expected)?;
        judge(&made[warm_up..], PERIOD)?;
        of_bursts(&samples, &made[warm_up..])
    });
    owners.require_alive()?;
    let barriers = barriers(&mut owners, &plan, &signals)?;
    let convergence = convergence::check(&mut owners, &signals)?;
    let etcd_writes = owners.coordinator().revision()? - revision_before;
    let (figures, histograms, distributions) = figures(measured.as_ref().ok(), &barriers);
    let details = json!({
        "histograms": histograms,
        "bursts": measured.as_ref().map_or(0, |measured| measured.bursts),
        "processors": used,
    });
    let report = Report {
        name: "visibility",
        profile: args.profile.into(),
        seed: args.seed,
        machine,
        figures,
        gates: gates(args, measured.as_ref(), details, &convergence, etcd_writes),
        settings: json!({
            "managers": count,
            "observers": count - 1,
            "sizes": plan,
            "period_ms": PERIOD.as_millis() as u64,
            "changes_per_burst": CHANGES,
            "residences": args.residences,
            "coalescing_window_us": args.coalescing_window().as_micros() as u64,
            "placement": owners.pages()?.iter().map(|page| page.identity.placement.clone()).collect::<Vec<_>>(),
            "sessions": { "before": sessions_before, "after": sessions_after, "expected": expected },
            "convergence": convergence,
            "pressure": pressure.until_now(),
        }),
    };
    outlet.write(&report, &distributions.iter().collect::<Vec<_>>())?;
    Ok(report)
}

fn of_bursts(samples: &Samples, bursts: &[Burst]) -> Result<Measured, String> {
    let sights = samples.of_bursts(bursts).map_err(|invalid| invalid.to_string())?;
    let mut publication = Distribution::of("publication_install");
    let mut save = Distribution::of("save_start_install");
    let mut slowest = Distribution::of("publication_last_install");
    let mut last = vec![0; bursts.len()];
    for sight in &sights {
        let latency = sight.installed_ns - sight.published_ns;
        publication.record(latency);
        save.record(sight.installed_ns.saturating_sub(bursts[sight.number].intended_ns));
        last[sight.number] = latency.max(last[sight.number]);
    }
    last.into_iter().for_each(|latency| slowest.record(latency));
    Ok(Measured { publication, slowest, save, bursts: bursts.len() })
}

/// From the first request of a burst until the last observer has been awaited, one by one and at once.
fn barriers(owners: &mut Owners, plan: &Plan, signals: &StopSignals) -> Result<[Distribution; 2], Failure> {
    let mut serial = Distribution::of("serial_barrier");
    let mut concurrent = Distribution::of("concurrent_barrier");
    let count = owners.len();
    for number in 0..2 * plan.barriers {
        let at = number / 2 % count;
        let began_ns = monotonic_ns();
        owners.owner(at).burst(at, CHANGES, began_ns)?;
        let (source, all) = (&owners.http()[at], owners.http());
        let observers: Vec<_> =
            all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, http)| http).collect();
        match number % 2 {
            0 => barriers::serial(source, observers.into_iter())?,
            _ => barriers::concurrent(source, &observers)?,
        }
        let distribution = if number % 2 == 0 { &mut serial } else { &mut concurrent };
        distribution.record(monotonic_ns() - began_ns);
        pause(PERIOD, signals)?;
    }
    progress(&format!("{} barriers of either kind awaited", plan.barriers));
    Ok([serial, concurrent])
}

fn figures(
    measured: Option<&Measured>,
    [serial, concurrent]: &[Distribution; 2],
) -> (String, Value, Vec<Distribution>) {
    let mut all: Vec<Distribution> = Vec::new();
    if let Some(Measured { publication, slowest, save, .. }) = measured {
        all.extend([publication, slowest, save].map(Distribution::clone));
    }
    all.extend([serial.clone(), concurrent.clone()]);
    let mut table = Table::new(["milliseconds", "p50", "p90", "p99", "p99.9", "max", "count"]);
    let mut histograms = serde_json::Map::new();
    for distribution in &all {
        table.row(distribution.cells());
        histograms.insert(distribution.name.to_owned(), distribution.json());
    }
    (table.to_string(), Value::Object(histograms), all)
}

fn gates(
    args: &RunArgs,
    measured: Result<&Measured, &String>,
    details: Value,
    convergence: &Convergence,
    etcd_writes: u64,
) -> Vec<Gate> {
    let (name, limit_ms) = plan::gate(usize::from(args.managers));
    let visibility = Gate::new(name, args.profile, args.seed)
        .at_most(limit_ms)
        .against("best known p99 of publication to install, one observer, ms", Some(4.281))
        .details(details);
    let visibility = match measured {
        Ok(measured) => visibility.value(measured.publication.milliseconds(0.99)),
        Err(why) => visibility.invalid(why.clone()),
    };
    let none = |name, value: u64, what: &str| {
        Gate::new(name, args.profile, args.seed).against(what, None).none_ever(value)
    };
    vec![
        visibility,
        none("visibility_convergence", convergence.faults(), "faults, key by key at the end"),
        none("visibility_etcd", etcd_writes, "writes to etcd"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_worth_nothing_has_a_gate_that_says_so() {
        let args = RunArgs {
            managers: 16,
            profile: crate::profile::FormalProfile::Formal,
            seed: 1,
            coalesce: None,
            residences: 512,
            out: None,
            json: false,
        };
        let right = Convergence::default();
        let mut publication = Distribution::of("publication_install");
        publication.record(4_000_000);
        let measured = |publication: &Distribution| Measured {
            publication: publication.clone(),
            slowest: Distribution::of("publication_last_install"),
            save: Distribution::of("save_start_install"),
            bursts: 1,
        };
        let met = |measured: Result<&Measured, &String>| {
            let gates = gates(&args, measured, Value::Null, &right, 0);
            assert_eq!(gates[0].name(), "visibility_16");
            gates.iter().map(Gate::is_met).collect::<Vec<_>>()
        };
        assert_eq!(met(Ok(&measured(&publication))), [true; 3]);
        publication.record(4_400_000);
        assert_eq!(met(Ok(&measured(&publication))), [false, true, true]);
        assert_eq!(met(Err(&"two bursts are too close".to_owned())), [false, true, true]);
    }
}
