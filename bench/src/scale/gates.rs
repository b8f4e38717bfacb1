//! What all cells say together: one table, and the gates of what must hold at any size. Rates and times inform; they are
//! of this machine.

use orbitkv::cli::table::Table;
use serde_json::{Value, json};

use super::plan::{Envelope, Plan};
use super::record::{Figures, Outcome, Record};
use crate::profile::FormalProfile;
use crate::report::{Gate, Report};

/// The report of a campaign.
pub fn report(
    profile: FormalProfile,
    plan: &Plan,
    seed: u64,
    machine: &str,
    records: &[Record],
    load: Value,
) -> Report {
    Report {
        name: "scale",
        profile: profile.into(),
        seed,
        machine: machine.to_owned(),
        figures: figures(records),
        gates: gates(profile, seed, records),
        settings: json!({
            "plan": plan,
            "cells": records.iter().map(summary).collect::<Vec<_>>(),
            "pressure": load,
        }),
    }
}

/// What a page needs of a cell; its file has everything.
fn summary(record: &Record) -> Value {
    json!({
        "name": record.cell.name,
        "outcome": record.outcome,
        "carrier": record.carrier,
        "why": record.why,
        "cell": record.cell,
        "figures": record.figures,
        "simulated": record.simulated,
        "refusal": record.refusal,
        "seconds": record.seconds,
    })
}

fn figures(records: &[Record]) -> String {
    let mut table = Table::new([
        "cell",
        "outcome",
        "nodes",
        "residences",
        "changes/s",
        "at most",
        "seen ms p50",
        "p99",
        "node cores",
        "rss MiB",
        "MiB sent",
        "keys wrong",
        "etcd writes",
    ]);
    for record in records {
        table.row([record.cell.name.clone()].into_iter().chain(record.row()));
    }
    let words = records.iter().filter_map(|record| {
        let name = &record.cell.name;
        match (record.outcome, &record.why, &record.refusal) {
            (Outcome::Simulated, Some(why), _) => {
                Some(format!("\n{name} is simulated, its times are modelled: {why}"))
            }
            (Outcome::Refused, _, Some(refusal)) => Some(format!("\n{name} was refused: {}", refusal.words)),
            (Outcome::Invalid, Some(why), _) => Some(format!("\n{name} is invalid: {why}")),
            (Outcome::Failed, why, _) => {
                Some(format!("\n{name} failed: {}", why.as_deref().unwrap_or("see its file")))
            }
            _ => None,
        }
    });
    format!("{table}{}", words.collect::<String>())
}

fn gates(profile: FormalProfile, seed: u64, records: &[Record]) -> Vec<Gate> {
    let gate = |name| Gate::new(name, profile, seed);
    let measured = || records.iter().filter_map(|record| record.figures.as_ref());
    let sum = |of: fn(&Figures) -> u64| measured().map(of).sum::<u64>();
    let unanswered: Vec<&str> = (records.iter())
        .filter(|record| !record.outcome.counts())
        .map(|record| record.cell.name.as_str())
        .collect();
    let beyond = records.iter().filter(|record| record.cell.envelope != Envelope::Within);
    let unrefused = beyond.filter(|record| record.outcome != Outcome::Refused).count();
    let share = measured().map(|figures| figures.rss_bytes_peak as f64 / figures.bill_bytes.max(1) as f64);
    let rss = gate("scale_rss").at_most(1.0).against("what the node said it would take", None);
    vec![
        gate("scale_cells")
            .at_most(0.0)
            .against("cells without a result", None)
            .value(unanswered.len() as f64)
            .details(json!({ "unanswered": unanswered })),
        gate("scale_convergence")
            .against("faults, key by key at the end of each cell", None)
            .none_ever(sum(|figures| figures.convergence.faults())),
        gate("scale_etcd").against("writes to etcd", None).none_ever(sum(|figures| figures.etcd_writes)),
        gate("scale_unrefused")
            .against("cells beyond the envelope that were not refused as they have to be", None)
            .none_ever(unrefused as u64),
        match share.reduce(f64::max) {
            Some(share) => rss.value(share),
            None => rss,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::record::tests::record;

    fn judged(records: &[Record]) -> Vec<(&'static str, bool)> {
        gates(FormalProfile::Dense, 1, records).iter().map(|gate| (gate.name(), gate.is_met())).collect()
    }

    #[test]
    fn each_kind_of_fault_misses_its_own_gate() {
        let plan = Plan::of(FormalProfile::Dense);
        let outcome = |envelope| {
            if envelope == Envelope::Within { Outcome::Measured } else { Outcome::Refused }
        };
        let right: Vec<Record> = plan.cells.iter().map(|cell| record(cell, outcome(cell.envelope))).collect();
        let names = ["scale_cells", "scale_convergence", "scale_etcd", "scale_unrefused", "scale_rss"];
        let met = |missed: &[&str]| names.map(|name| (name, !missed.contains(&name))).to_vec();
        assert_eq!(judged(&right), met(&[]));
        let spoilt = |at: usize, change: &dyn Fn(&mut Record)| {
            let mut records = right.clone();
            change(&mut records[at]);
            judged(&records)
        };
        let figures = |change: fn(&mut Figures)| {
            spoilt(3, &|record| change(record.figures.as_mut().expect("it was measured")))
        };
        assert_eq!(figures(|figures| figures.convergence.rows_wrong = 1), met(&["scale_convergence"]));
        assert_eq!(figures(|figures| figures.etcd_writes = 1), met(&["scale_etcd"]));
        assert_eq!(figures(|figures| figures.rss_bytes_peak = figures.bill_bytes + 1), met(&["scale_rss"]));
        assert_eq!(spoilt(0, &|record| record.outcome = Outcome::Invalid), met(&["scale_cells"]));
        let beyond = right.len() - 1;
        let unrefused = spoilt(beyond, &|record| record.outcome = Outcome::Failed);
        assert_eq!(unrefused, met(&["scale_cells", "scale_unrefused"]));
        let simulated = spoilt(12, &|cell| *cell = record(&cell.cell, Outcome::Simulated));
        assert_eq!(simulated, met(&[]), "a simulated cell is a result");
        assert_eq!(judged(&[])[4], ("scale_rss", false), "nothing was measured");
    }

    #[test]
    fn simulated_refused_and_failed_cells_are_named_with_why() {
        let cells = Plan::of(FormalProfile::Ci).cells;
        let simulated =
            Record { why: Some("too many rows".to_owned()), ..record(&cells[1], Outcome::Simulated) };
        let failed = Record { why: Some("a node ended".to_owned()), ..record(&cells[2], Outcome::Failed) };
        let text = figures(&[record(&cells[0], Outcome::Measured), simulated, failed]);
        for words in ["is simulated, its times are modelled: too many rows", "failed: a node ended", "FAILED"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
