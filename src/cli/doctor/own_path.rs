//! What a deep check finds wrong with a node's own path.

use super::{Finding, Severity};
use crate::control::health::answer::{DeepHealth, Step};

/// What is broken. That the node takes no work is said of its phase already.
pub(super) fn findings(found: &DeepHealth) -> Vec<Finding> {
    let broken = found.faults().filter(|(_, fault)| fault.step != Step::Serve);
    let finding = broken.map(|(shard, fault)| {
        let of_shard = shard.map(|shard| format!(" of shard {shard}")).unwrap_or_default();
        Finding {
            severity: Severity::Fault,
            name: "own-path",
            what: format!("a canary failed at step {}{of_shard}: {}", fault.step.name(), fault.error),
            why: "blocks of engines go the same way",
            remedy: fault.remedy.clone(),
        }
    });
    finding.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::tests::check_sentences;
    use crate::control::health::answer::{Canary, PathFault, ShardPath};

    fn fault(step: Step) -> PathFault {
        let (error, remedy) = ("it is missing".to_owned(), "look at the device".to_owned());
        PathFault { step, error, remedy, late: false }
    }

    fn found(dram: Canary, ssd: Canary) -> Vec<Finding> {
        let found = findings(&DeepHealth {
            shards: vec![ShardPath { shard: 3, dram, ssd }],
            ..DeepHealth::default()
        });
        check_sentences(&found);
        found
    }

    #[test]
    fn a_broken_step_is_named_with_its_shard_and_remedy() {
        let passed = || Canary::Passed { took_us: 9 };
        let broken = found(passed(), Canary::Failed(fault(Step::SsdRead)));
        let [finding] = &broken[..] else { panic!("{broken:?}") };
        assert_eq!((finding.name, finding.severity), ("own-path", Severity::Fault));
        assert_eq!(finding.what, "a canary failed at step ssd-read of shard 3: it is missing");
        assert_eq!(finding.remedy, "look at the device");
        assert_eq!(found(Canary::Failed(fault(Step::Reserve)), Canary::NotTried).len(), 1);
        for ssd in [passed(), Canary::Off, Canary::Behind] {
            assert_eq!(found(passed(), ssd), []);
        }
    }

    #[test]
    fn what_keeps_every_shard_from_being_tried_is_one_finding_unless_the_node_drains() {
        let whole = |step| findings(&DeepHealth { fault: Some(fault(step)), ..DeepHealth::default() });
        let silent = whole(Step::Cores);
        assert_eq!(silent[0].what, "a canary failed at step cores: it is missing");
        assert_eq!(whole(Step::Serve), []);
    }
}
