//! From runs to what is printed: pairs, verdicts, and two gates for each operation and medium.

use orbitkv::cli::table::Table;
use serde_json::{Value, json};

use super::campaign::IsolationOrder;
use super::foreground::Operation;
use super::plan::{BURST_CHANGES, BURST_PERIOD, LIVE_KEYS, RATIO_MAX};
use super::record::Record;
use super::schedule::{Kind, Medium, Side, schedule};
use super::verdict::{Comparison, Pair, Runs, Verdict};
use crate::campaign::Campaign;
use crate::profile::Label;
use crate::report::{Gate, Report};

/// What is said of one operation on one medium.
struct Finding {
    medium: Medium,
    operation: Operation,
    quiet: Runs,
    pressure: Runs,
    verdict: Verdict,
}

/// The report of a campaign.
pub fn report(
    campaign: &Campaign<IsolationOrder>,
    records: &[Record],
    failed: &[String],
    load: Value,
) -> Report {
    let label = Label::from(campaign.order.plan.profile);
    let mut findings = Vec::new();
    for &medium in &campaign.order.media {
        for operation in Operation::GATED {
            let quiet = runs(campaign, records, medium, Kind::QuietQuiet, operation);
            let pressure = runs(campaign, records, medium, Kind::QuietPressure, operation);
            let verdict = Verdict::of(&quiet, &pressure);
            findings.push(Finding { medium, operation, quiet, pressure, verdict });
        }
    }
    Report {
        name: "isolation",
        profile: label,
        seed: campaign.order.seed,
        machine: campaign.machine.clone(),
        figures: format!("{} profile\n{}", label.name, table(&findings, failed)),
        gates: findings.iter().flat_map(|finding| gates(campaign, finding)).collect(),
        settings: json!({
            "sizes": campaign.order.plan,
            "cores": campaign.order.cores,
            "pressure": {
                "burst_period_ms": BURST_PERIOD.as_millis(),
                "burst_changes": BURST_CHANGES,
                "live_keys": LIVE_KEYS,
            },
            "machine_load": load,
            "failed_runs": failed,
            "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(),
        }),
    }
}

/// The pairs of one kind.
fn runs(
    campaign: &Campaign<IsolationOrder>,
    records: &[Record],
    medium: Medium,
    kind: Kind,
    operation: Operation,
) -> Runs {
    let of = |pair: usize, side: Side| {
        let wanted = |record: &&Record| {
            let cell = record.cell;
            (cell.medium, cell.kind, cell.pair, cell.side) == (medium, kind, pair, side)
        };
        records.iter().find(wanted).and_then(|record| record.measured.as_ref()).map(|run| run.p99(operation))
    };
    let cells = schedule(&campaign.order.media, campaign.order.plan.pairs);
    let cells = cells.into_iter().filter(|cell| cell.medium == medium && cell.kind == kind);
    let missing: Vec<String> =
        cells.filter(|cell| of(cell.pair, cell.side).is_none()).map(|cell| cell.name()).collect();
    let pairs: Vec<Pair> = (1..=campaign.order.plan.pairs)
        .filter_map(|pair| Some(Pair { base: of(pair, Side::Base)?, compared: of(pair, Side::Compared)? }))
        .collect();
    let comparison = Comparison::of(&pairs);
    match comparison {
        Some(comparison) if missing.is_empty() => Runs::Whole(comparison),
        so_far => Runs::Incomplete { missing, so_far },
    }
}

fn gates(campaign: &Campaign<IsolationOrder>, finding: &Finding) -> [Gate; 2] {
    let names = match (finding.medium, finding.operation) {
        (Medium::Dram, Operation::Save) => ["isolation_dram_save_worst_pair", "isolation_dram_save_bound"],
        (Medium::Dram, _) => ["isolation_dram_query_worst_pair", "isolation_dram_query_bound"],
        (Medium::Ssd, Operation::Save) => ["isolation_ssd_save_worst_pair", "isolation_ssd_save_bound"],
        (Medium::Ssd, _) => ["isolation_ssd_query_worst_pair", "isolation_ssd_query_bound"],
    };
    let values: [fn(&Comparison) -> f64; 2] = [Comparison::largest, |comparison| comparison.mean.upper];
    let quiet: [fn(&Comparison) -> f64; 2] = [Comparison::largest_either_way, Comparison::bound_either_way];
    let gate = |at: usize| {
        let gate = Gate::new(names[at], campaign.order.plan.profile, campaign.order.seed)
            .at_most(RATIO_MAX)
            .against("the same of quiet pairs", finding.quiet.comparison().map(quiet[at]))
            .details(finding.json());
        let gate = match finding.pressure.comparison() {
            Some(comparison) => gate.value(values[at](comparison)),
            None => gate,
        };
        match &finding.verdict {
            Verdict::Passed | Verdict::Failed => gate,
            Verdict::NotResolvable => {
                gate.invalid(format!("{}: quiet pairs fail the same test", finding.verdict.words()))
            }
            Verdict::Unknown(why) => gate.invalid(format!("unknown: no run counts of {why}")),
        }
    };
    [gate(0), gate(1)]
}

impl Finding {
    fn json(&self) -> Value {
        let runs = |runs: &Runs, passes: fn(&Comparison) -> bool| {
            let comparison = runs.comparison().map(|comparison| {
                json!({
                    "ratios": comparison.ratios,
                    "geometric_mean": comparison.mean.mean,
                    "lower_bound": comparison.mean.lower,
                    "upper_bound": comparison.mean.upper,
                    "passes": passes(comparison),
                })
            });
            let missing = match runs {
                Runs::Whole(_) => &[][..],
                Runs::Incomplete { missing, .. } => missing,
            };
            json!({ "comparison": comparison, "missing": missing })
        };
        let ratios = self.pressure.comparison().map(|comparison| {
            let smallest = comparison.ratios.iter().copied().fold(f64::MAX, f64::min);
            json!({ "min": smallest, "max": comparison.largest(), "raw": comparison.ratios })
        });
        json!({
            "medium": self.medium,
            "operation": self.operation.name(),
            "verdict": self.verdict.words(),
            "limit": RATIO_MAX,
            "ratios": ratios,
            "quiet_quiet": runs(&self.quiet, Comparison::passes_either_way),
            "quiet_pressure": runs(&self.pressure, Comparison::passes),
        })
    }
}

fn table(findings: &[Finding], failed: &[String]) -> String {
    let mut table = Table::new([
        "p99 of",
        "medium",
        "quiet pairs",
        "their bound",
        "under pressure",
        "mean",
        "bound",
        "verdict",
    ]);
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    let range = |runs: &Runs| {
        runs.comparison().map_or_else(
            || "-".to_owned(),
            |comparison| {
                let smallest = comparison.ratios.iter().copied().fold(f64::MAX, f64::min);
                format!("{smallest:.3} to {:.3}", comparison.largest())
            },
        )
    };
    for finding in findings {
        let (quiet, pressure) = (finding.quiet.comparison(), finding.pressure.comparison());
        table.row([
            finding.operation.name().to_owned(),
            finding.medium.to_string(),
            range(&finding.quiet),
            figure(quiet.map(Comparison::bound_either_way)),
            range(&finding.pressure),
            figure(pressure.map(|comparison| comparison.mean.mean)),
            figure(pressure.map(|comparison| comparison.mean.upper)),
            finding.verdict.words().to_owned(),
        ]);
    }
    let mut lines = vec![table.to_string()];
    lines.extend(failed.iter().map(|name| format!("kept and not counted: {name}")));
    lines.join("\n")
}
