//! `orbitkv-bench fanout`: what a source's streams cost it by the number of nodes that follow it, and what nodes that want
//! one of four namespaces are told of it (chapter 6.1).
//!
//! One node saves and drops blocks of four namespaces in turn; one, half or all of the others follow it, for all
//! namespaces or for the first. What each of them applied is held against what its scope has, and its rows against the
//! live keys; bytes and processor time inform only.

pub mod cell;
pub mod plan;

use std::process::ExitCode;

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::control::signals::StopSignals;
use serde_json::json;

use crate::ending::conclude;
use crate::pace::Pace;
use crate::report::{Gate, Report};
use crate::streams::RunArgs;
use crate::streams::outlet::Outlet;
use crate::{Failure, machine};
use cell::Measured;
use plan::{CHANGES, NAMESPACES, PERIOD, Subscription};

/// Bytes of a scope of one in four over those of all, by the best known system.
const RATIO_KNOWN: f64 = 0.26;

/// What to measure.
#[derive(Args)]
pub struct FanoutArgs {
    #[command(flatten)]
    run: RunArgs,
}

/// Measures, prints, and says by its exit code whether the gates are met.
pub fn run(args: &FanoutArgs) -> ExitCode {
    let args = &args.run;
    let measured = Outlet::of("fanout", args).and_then(|outlet| measure(args, &outlet));
    conclude(measured, args.json)
}

fn measure(args: &RunArgs, outlet: &Outlet) -> Result<Report, Failure> {
    let machine = machine::describe();
    let load = machine::Pressure::now();
    let signals = StopSignals::watch()?;
    let (cells, bursts) = (plan::cells(args.managers), plan::bursts(args.profile));
    let (mut measured, mut pace) = (Vec::with_capacity(cells.len()), Pace::over(cells.len()));
    for cell in &cells {
        pace.tell("cell");
        measured.push(cell::measure(args, *cell, bursts, &signals)?);
        pace.done();
    }
    let report = Report {
        name: "fanout",
        profile: args.profile.into(),
        seed: args.seed,
        machine,
        figures: figures(&measured),
        gates: gates(args, &measured),
        settings: json!({
            "managers": args.managers,
            "namespaces": NAMESPACES,
            "residences_per_namespace": args.residences,
            "bursts": bursts,
            "changes_per_burst": CHANGES,
            "period_ms": PERIOD.as_millis() as u64,
            "coalescing_window_us": args.coalescing_window().as_micros() as u64,
            "cells": measured,
            "ratios": ratios(&measured),
            "pressure": load.until_now(),
        }),
    };
    outlet.write(&report, &[])?;
    Ok(report)
}

/// Bytes of the scope of one over those of all, by number of receivers.
fn ratios(measured: &[Measured]) -> Vec<(u16, f64)> {
    let of = |subscription| measured.iter().filter(move |one| one.cell.subscription == subscription);
    let pairs = of(Subscription::All).zip(of(Subscription::One));
    pairs.map(|(all, one)| (all.cell.receivers, one.delta_bytes as f64 / all.delta_bytes as f64)).collect()
}

fn figures(measured: &[Measured]) -> String {
    let mut table = Table::new([
        "receivers",
        "scope",
        "changes",
        "delivered",
        "expected",
        "delta frames",
        "delta bytes",
        "bytes a change told",
        "source µs a change",
    ]);
    for one in measured {
        table.row([
            one.cell.receivers.to_string(),
            one.cell.subscription.name().to_owned(),
            one.changes.to_string(),
            one.delivered.to_string(),
            one.delivered_expected.to_string(),
            one.delta_frames.to_string(),
            one.delta_bytes.to_string(),
            format!("{:.1}", one.delta_bytes as f64 / one.delivered.max(1) as f64),
            format!("{:.2}", one.source_ns as f64 / 1e3 / one.changes as f64),
        ]);
    }
    let ratios = ratios(measured).into_iter().map(|(receivers, ratio)| {
        format!("\n{receivers} receivers: a scope of one in four takes {ratio:.3} of the bytes (best known {RATIO_KNOWN})")
    });
    format!("{table}{}\nbytes and processor time inform only", ratios.collect::<String>())
}

fn gates(args: &RunArgs, measured: &[Measured]) -> Vec<Gate> {
    let none = |name, against: &str, count: u64| {
        Gate::new(name, args.profile, args.seed).against(against, None).none_ever(count)
    };
    let delivered: u64 = measured.iter().map(|one| one.delivered_wrong).sum();
    let rows: u64 = measured.iter().map(|one| one.rows_wrong).sum();
    let nothing = measured.iter().any(|one| one.delivered == 0);
    let records = none("fanout_delivered", "records beside the scope's oracle", delivered);
    vec![
        if nothing { records.invalid("a cluster was told nothing at all") } else { records },
        none("fanout_rows", "rows beside the live keys of the scope", rows),
    ]
}

#[cfg(test)]
mod tests {
    use super::plan::Cell;
    use super::*;
    use crate::profile::FormalProfile;

    fn measured(subscription: Subscription, delta_bytes: u64) -> Measured {
        Measured {
            cell: Cell { receivers: 3, subscription },
            changes: 100,
            delivered: 300,
            delivered_expected: 300,
            delivered_wrong: 0,
            rows_wrong: 0,
            delta_frames: 3,
            delta_bytes,
            source_ns: 1,
            elapsed_ms: 1,
        }
    }

    #[test]
    fn one_record_or_row_beside_the_oracle_is_a_miss() {
        let args = RunArgs {
            managers: 4,
            profile: FormalProfile::Formal,
            seed: 1,
            coalesce: None,
            residences: 512,
            out: None,
            json: false,
        };
        let met = |spoil: fn(&mut Measured)| {
            let mut all = [measured(Subscription::All, 1_000), measured(Subscription::One, 260)];
            spoil(&mut all[1]);
            gates(&args, &all).iter().map(Gate::is_met).collect::<Vec<_>>()
        };
        assert_eq!(met(|_| ()), [true, true]);
        assert_eq!(met(|one| one.delivered_wrong = 1), [false, true]);
        assert_eq!(met(|one| one.rows_wrong = 1), [true, false]);
        assert_eq!(met(|one| one.delivered = 0), [false, true]);
    }

    #[test]
    fn ratios_are_of_clusters_with_as_many_receivers() {
        let all = [measured(Subscription::All, 1_000), measured(Subscription::One, 260)];
        assert_eq!(ratios(&all), [(3, 0.26)]);
    }
}
