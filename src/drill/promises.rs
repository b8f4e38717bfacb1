//! What was promised, held against the last drill and against what nodes are doing now.

use std::path::Path;
use std::time::{Duration, Instant};

use orbitkv_shards::resilience::objectives::{Objectives, Verdict, at_risk};
use serde_json::{Value, json};
use thiserror::Error;

use super::report::word;
use crate::cli::http_client::{ClientError, HttpClient};
use crate::cluster::COMPLETE;
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
    /// Blocks that the last drill has lost; none if it did not come so far, or had saved none.
    pub lost_blocks: Option<f64>,
    /// Bytes that came back in it other than they were saved.
    pub wrong_bytes: u64,
    /// Whether its own report says that all was met.
    pub is_met: bool,
    /// What that report complains of.
    pub complaints: Vec<String>,
    /// What the nodes have at risk now.
    pub at_risk: AtRisk,
}

/// Blocks that a node saves before the others know of them.
#[derive(Clone, Debug, PartialEq)]
pub enum AtRisk {
    /// No node was asked.
    NotAsked,
    /// Nobody can say, and why: the age of views is that of those that are there.
    Unknown(String),
    /// Of the node with the most.
    Blocks(f64),
}

/// What was promised, held against what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdicts {
    /// Recovery of the last drill.
    pub recovery: Verdict,
    /// Loss of the last drill.
    pub loss: Verdict,
    /// What would be lost now.
    pub at_risk: Verdict,
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
    of_report(&report).ok_or_else(|| refused("it has no `recovered`, `met` and `measured_s`".to_owned()))
}

fn of_report(report: &Value) -> Option<Standing> {
    let measured_s = report["measured_s"].as_f64()?;
    let has_recovered = report["recovered"].as_bool()?;
    let is_met = report["met"].as_bool()?;
    let measured = &report["loss"]["measured"];
    let complaints = report["complaints"].as_array().into_iter().flatten();
    let objectives = Objectives {
        recovery_s_max: report["recovery"]["promised_s"].as_f64(),
        loss_max: report["loss"]["promised_blocks"].as_f64(),
    };
    Some(Standing {
        objectives,
        recovery_s: has_recovered.then_some(measured_s),
        lost_blocks: measured["lost_blocks"].as_f64(),
        wrong_bytes: measured["wrong_bytes"].as_u64().unwrap_or(0),
        is_met,
        complaints: complaints.filter_map(|complaint| complaint.as_str().map(str::to_owned)).collect(),
        at_risk: AtRisk::NotAsked,
    })
}

/// Watches nodes for that long: saves a second of each × age of the least fresh view among them; the largest.
///
/// # Errors
/// [`PromisesFailure::Node`].
pub fn at_risk_now(nodes: &[HttpClient], span: Duration) -> Result<AtRisk, PromisesFailure> {
    let pages = || -> Result<Vec<MetadataPage>, ClientError> {
        nodes.iter().map(|node| node.get_as("/cache/metadata").map(|(page, _)| page)).collect()
    };
    let (began, before) = (Instant::now(), pages()?);
    std::thread::sleep(span);
    let (after, elapsed_s) = (pages()?, began.elapsed().as_secs_f64());
    Ok(most_at_risk(&before, &after, elapsed_s))
}

/// Why the age of a node's views does not say how far others are behind; none if it does. A view that is not there
/// has no age.
fn unknown(page: &MetadataPage) -> Option<String> {
    let node = &page.identity.node_id;
    if page.standalone {
        Some(format!("{node} is standalone: nobody follows it"))
    } else if page.coverage != COMPLETE {
        Some(format!("the coverage of {node} is {}, not {COMPLETE}", page.coverage))
    } else if page.membership.members.len() < 2 {
        Some(format!("{node} knows no other member: nobody follows it"))
    } else {
        None
    }
}

fn most_at_risk(before: &[MetadataPage], after: &[MetadataPage], elapsed_s: f64) -> AtRisk {
    if let Some(why) = before.iter().chain(after).find_map(unknown) {
        return AtRisk::Unknown(why);
    }
    let saves =
        |page: &MetadataPage| page.shards.iter().map(|shard| shard.service.saves_committed).sum::<u64>();
    let behind_ms = before.iter().chain(after).map(|page| page.oldest_age_ms).max().unwrap_or(0);
    let rates = before.iter().zip(after).map(|(before, after)| {
        // A node that was started anew in between counts from 0 again.
        saves(after).saturating_sub(saves(before)) as f64 / elapsed_s
    });
    let risks = rates.map(|rate_per_s| at_risk(rate_per_s, behind_ms as f64 / 1e3));
    risks.reduce(f64::max).map_or(AtRisk::NotAsked, AtRisk::Blocks)
}

impl Standing {
    /// Whether what was promised holds, each by itself.
    #[must_use]
    pub fn verdicts(&self) -> Verdicts {
        let now = match &self.at_risk {
            AtRisk::Blocks(blocks) => Some(*blocks),
            AtRisk::NotAsked | AtRisk::Unknown(_) => None,
        };
        Verdicts {
            recovery: self.objectives.recovery(self.recovery_s),
            loss: self.objectives.loss(self.lost_blocks),
            at_risk: self.objectives.loss(now),
        }
    }

    /// Whether the last drill was met, and nothing that is promised breaks; nor is it unknown though nodes were asked.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        let Verdicts { recovery, loss, at_risk } = self.verdicts();
        let is_told = self.objectives.loss_max.is_none() || !matches!(self.at_risk, AtRisk::Unknown(_));
        let is_whole = self.is_met && self.wrong_bytes == 0 && self.recovery_s.is_some();
        is_whole && is_told && ![recovery, loss, at_risk].contains(&Verdict::Breaks)
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let Verdicts { recovery, loss, at_risk } = self.verdicts();
        let Objectives { recovery_s_max, loss_max } = self.objectives;
        let (blocks, why) = match &self.at_risk {
            AtRisk::NotAsked => (None, None),
            AtRisk::Unknown(why) => (None, Some(why)),
            AtRisk::Blocks(blocks) => (Some(blocks), None),
        };
        json!({
            "kept": self.is_kept(),
            "recovery": {"promised_s": recovery_s_max, "last_drill_s": self.recovery_s, "verdict": word(recovery)},
            "loss": {
                "promised_blocks": loss_max,
                "last_drill_blocks": self.lost_blocks,
                "last_drill_verdict": word(loss),
                "at_risk_blocks": blocks,
                "unknown_because": why,
                "verdict": word(at_risk),
            },
            "last_drill": {"met": self.is_met, "wrong_bytes": self.wrong_bytes, "complaints": self.complaints},
        })
    }

    /// As people read it.
    #[must_use]
    pub fn text(&self) -> String {
        let Verdicts { recovery, loss, at_risk } = self.verdicts();
        let shown = |value: Option<f64>, unit: &str, none: &str| {
            value.map_or(none.to_owned(), |value| format!("{value:.2} {unit}"))
        };
        let Objectives { recovery_s_max, loss_max } = self.objectives;
        let loss_max = shown(loss_max, "blocks", "nothing");
        let now = match &self.at_risk {
            AtRisk::NotAsked => "unknown (name nodes with --http)".to_owned(),
            AtRisk::Unknown(why) => format!("unknown ({why})"),
            AtRisk::Blocks(blocks) => format!("{blocks:.2} blocks"),
        };
        let mut text = format!(
            "recovery  promised {}, last drill {}: {}\nloss      promised {loss_max}, last drill {}, {} wrong bytes: {}\n\
             at risk   promised {loss_max}, now {now}: {}",
            shown(recovery_s_max, "s", "nothing"),
            shown(self.recovery_s, "s", "did not recover"),
            word(recovery),
            shown(self.lost_blocks, "blocks", "did not ask"),
            self.wrong_bytes,
            word(loss),
            word(at_risk)
        );
        if !self.is_met {
            text += "\nthe last drill was not met";
        }
        for complaint in &self.complaints {
            text += &format!("\nnot met then: {complaint}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::metadata::MemberRow;
    use crate::control::report::ShardReport;

    fn page(saves: u64, oldest_age_ms: u64) -> MetadataPage {
        let mut shard = ShardReport::default();
        shard.service.saves_committed = saves;
        let mut page = MetadataPage { oldest_age_ms, shards: vec![shard], ..MetadataPage::default() };
        page.coverage = "CompleteAtWatermarks".to_owned();
        page.membership.members = vec![MemberRow::default(); 2];
        page
    }

    #[test]
    fn the_node_that_saves_most_has_most_at_risk() {
        let before = [page(100, 100), page(1_000, 500)];
        let after = [page(300, 200), page(1_010, 100)];
        let most = most_at_risk(&before, &after, 2.0);
        assert_eq!(most, AtRisk::Blocks(50.0), "100 a second, half a second behind");
        assert_eq!(most_at_risk(&before, &[page(0, 0), page(1_000, 0)], 2.0), AtRisk::Blocks(0.0));
        assert_eq!(most_at_risk(&[], &[], 2.0), AtRisk::NotAsked);
    }

    #[test]
    fn where_nobody_follows_it_is_unknown_what_is_at_risk() {
        let whole = [page(0, 0), page(0, 0)];
        assert_eq!(most_at_risk(&whole, &whole, 2.0), AtRisk::Blocks(0.0));
        let changes: [fn(&mut MetadataPage); 4] = [
            |page| page.standalone = true,
            |page| page.coverage = "Unavailable".to_owned(),
            |page| page.coverage = "PartialHints".to_owned(),
            |page| page.membership.members.truncate(1),
        ];
        for change in changes {
            let mut spoiled = whole.clone();
            change(&mut spoiled[1]);
            for (before, after) in [(&spoiled, &whole), (&whole, &spoiled)] {
                let risk = most_at_risk(before, after, 2.0);
                assert!(matches!(risk, AtRisk::Unknown(_)), "{risk:?}");
                let promised = |loss_max| {
                    let report = report(true, json!({"lost_blocks": 0}), loss_max);
                    Standing { at_risk: risk.clone(), ..of_report(&report).expect("a report") }
                };
                assert_eq!(promised(Some(0.0)).verdicts().at_risk, Verdict::Unknown);
                assert!(!promised(Some(0.0)).is_kept(), "it was asked for, and nobody can say");
                assert!(promised(None).is_kept(), "nothing was promised");
            }
        }
    }

    fn report(met: bool, measured: Value, loss_max: Option<f64>) -> Value {
        json!({
            "measured_s": 9.0, "recovered": true, "met": met, "recovery": {"promised_s": 9.0},
            "loss": {"promised_blocks": loss_max, "measured": measured}, "complaints": if met { vec![] } else { vec!["a node died"] },
        })
    }

    #[test]
    fn a_drill_that_did_not_recover_has_no_recovery_time() {
        let report = |recovered| json!({"measured_s": 9.0, "recovered": recovered, "met": true, "recovery": {"promised_s": 8.0}, "loss": {"promised_blocks": 49.0}});
        let verdict = |recovered| {
            let standing = of_report(&report(recovered)).expect("a report");
            Standing { at_risk: AtRisk::Blocks(50.0), ..standing }.verdicts()
        };
        let Verdicts { recovery, loss, at_risk } = verdict(true);
        assert_eq!((recovery, loss, at_risk), (Verdict::Breaks, Verdict::Unknown, Verdict::Breaks));
        assert_eq!(verdict(false).recovery, Verdict::Unknown);
        assert_eq!(of_report(&json!({"measured_s": 9.0, "met": true})), None);
        assert_eq!(of_report(&json!({"measured_s": 9.0, "recovered": true})), None);
    }

    #[test]
    fn what_the_last_drill_broke_is_not_kept() {
        let is_kept = |met, measured| {
            let standing = of_report(&report(met, measured, Some(20.0))).expect("a report");
            (standing.is_kept(), standing)
        };
        let (kept, standing) = is_kept(true, json!({"lost_blocks": 20, "wrong_bytes": 0}));
        assert!(kept, "{standing:?}");
        let (kept, standing) = is_kept(true, json!({"lost_blocks": 21, "wrong_bytes": 0}));
        assert!(!kept && standing.verdicts().loss == Verdict::Breaks, "{standing:?}");
        let (kept, standing) = is_kept(true, json!({"lost_blocks": 0, "wrong_bytes": 1}));
        assert!(!kept, "{standing:?}");
        let (kept, standing) = is_kept(false, json!({"lost_blocks": 0, "wrong_bytes": 0}));
        assert!(!kept && standing.text().contains("not met then: a node died"), "{standing:?}");
    }
}
