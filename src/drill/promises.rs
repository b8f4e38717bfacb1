//! What was promised, held against the last drill and against what nodes are doing now.

use std::path::Path;
use std::time::{Duration, Instant};

use orbitkv_shards::resilience::objectives::{Objectives, Verdict, at_risk};
use serde_json::{Value, json};
use thiserror::Error;

use super::report::word;
use crate::cli::http_client::{ClientError, HttpClient};
use crate::control::metadata::MetadataPage;

/// Largest report that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum PromisesFailure {
    /// The file is no report.
    #[error("--objectives {file}: {why}; name a file with what `orbitkv drill PLAN --json` has printed")]
    Report {
        /// The file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// A node does not answer.
    #[error(transparent)]
    Node(#[from] ClientError),
}

/// What the last drill and the nodes say.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// What the drill's plan promised.
    pub objectives: Objectives,
    /// Seconds that recovery took in the last drill; none if it did not recover.
    pub recovery_s: Option<f64>,
    /// Of the node with the most: blocks that it saves before the others know of them. None if no node was asked.
    pub at_risk_blocks: Option<f64>,
}

/// Reads the report of the last drill.
///
/// # Errors
/// [`PromisesFailure::Report`].
pub fn last_drill(file: &Path) -> Result<Standing, PromisesFailure> {
    let refused = |why: String| PromisesFailure::Report { file: file.display().to_string(), why };
    let size = std::fs::metadata(file).map_err(|error| refused(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(refused(format!("{size} bytes, and a report has at most {FILE_BYTES_MAX}")));
    }
    let text = std::fs::read_to_string(file).map_err(|error| refused(error.to_string()))?;
    let report: Value = serde_json::from_str(&text).map_err(|error| refused(error.to_string()))?;
    of_report(&report).ok_or_else(|| refused("it has no `recovered` and `measured_s`".to_owned()))
}

fn of_report(report: &Value) -> Option<Standing> {
    let measured_s = report["measured_s"].as_f64()?;
    let has_recovered = report["recovered"].as_bool()?;
    let objectives = Objectives {
        recovery_s_max: report["recovery"]["promised_s"].as_f64(),
        loss_max: report["loss"]["promised_blocks"].as_f64(),
    };
    Some(Standing { objectives, recovery_s: has_recovered.then_some(measured_s), at_risk_blocks: None })
}

/// Watches nodes for that long: saves a second of each × age of the least fresh view among them; the largest.
///
/// # Errors
/// [`PromisesFailure::Node`].
pub fn at_risk_now(nodes: &[HttpClient], span: Duration) -> Result<Option<f64>, PromisesFailure> {
    let pages = || -> Result<Vec<MetadataPage>, ClientError> {
        nodes.iter().map(|node| node.get_as("/cache/metadata").map(|(page, _)| page)).collect()
    };
    let (began, before) = (Instant::now(), pages()?);
    std::thread::sleep(span);
    let (after, elapsed_s) = (pages()?, began.elapsed().as_secs_f64());
    Ok(most_at_risk(&before, &after, elapsed_s))
}

fn most_at_risk(before: &[MetadataPage], after: &[MetadataPage], elapsed_s: f64) -> Option<f64> {
    let saves =
        |page: &MetadataPage| page.shards.iter().map(|shard| shard.service.saves_committed).sum::<u64>();
    let behind_ms = before.iter().chain(after).map(|page| page.oldest_age_ms).max()?;
    let rates = before.iter().zip(after).map(|(before, after)| {
        // A node that was started anew in between counts from 0 again.
        saves(after).saturating_sub(saves(before)) as f64 / elapsed_s
    });
    rates.map(|rate_per_s| at_risk(rate_per_s, behind_ms as f64 / 1e3)).reduce(f64::max)
}

impl Standing {
    /// Whether recovery keeps what was promised, and what is at risk.
    #[must_use]
    pub fn verdicts(&self) -> (Verdict, Verdict) {
        (self.objectives.recovery(self.recovery_s), self.objectives.loss(self.at_risk_blocks))
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let (recovery, loss) = self.verdicts();
        let Objectives { recovery_s_max, loss_max } = self.objectives;
        json!({
            "recovery": {"promised_s": recovery_s_max, "last_drill_s": self.recovery_s, "verdict": word(recovery)},
            "loss": {"promised_blocks": loss_max, "at_risk_blocks": self.at_risk_blocks, "verdict": word(loss)},
        })
    }

    /// As people read it.
    #[must_use]
    pub fn text(&self) -> String {
        let (recovery, loss) = self.verdicts();
        let shown = |value: Option<f64>, unit: &str, none: &str| {
            value.map_or(none.to_owned(), |value| format!("{value:.2} {unit}"))
        };
        let Objectives { recovery_s_max, loss_max } = self.objectives;
        format!(
            "recovery  promised {}, last drill {}: {}\nloss      promised {}, at risk now {}: {}",
            shown(recovery_s_max, "s", "nothing"),
            shown(self.recovery_s, "s", "did not recover"),
            word(recovery),
            shown(loss_max, "blocks", "nothing"),
            shown(self.at_risk_blocks, "blocks", "unknown (name nodes with --http)"),
            word(loss)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::ShardReport;

    fn page(saves: u64, oldest_age_ms: u64) -> MetadataPage {
        let mut shard = ShardReport::default();
        shard.service.saves_committed = saves;
        MetadataPage { oldest_age_ms, shards: vec![shard], ..MetadataPage::default() }
    }

    #[test]
    fn the_node_that_saves_most_has_most_at_risk() {
        let before = [page(100, 100), page(1_000, 500)];
        let after = [page(300, 200), page(1_010, 100)];
        assert_eq!(most_at_risk(&before, &after, 2.0), Some(50.0), "100 a second, half a second behind");
        assert_eq!(most_at_risk(&before, &[page(0, 0), page(1_000, 0)], 2.0), Some(0.0));
        assert_eq!(most_at_risk(&[], &[], 2.0), None);
    }

    #[test]
    fn a_drill_that_did_not_recover_has_no_recovery_time() {
        let report = |recovered| json!({"measured_s": 9.0, "recovered": recovered, "recovery": {"promised_s": 8.0}, "loss": {"promised_blocks": 49.0}});
        let verdict = |recovered| {
            let standing = of_report(&report(recovered)).expect("a report");
            Standing { at_risk_blocks: Some(50.0), ..standing }.verdicts()
        };
        assert_eq!(verdict(true), (Verdict::Breaks, Verdict::Breaks));
        assert_eq!(verdict(false).0, Verdict::Unknown);
        assert_eq!(of_report(&json!({"measured_s": 9.0})), None);
    }
}
