//! What a deep check found, as `GET /health/deep` says it and `orbitkv doctor` reads it.

use serde::{Deserialize, Serialize};

/// The body of an answer: the last check, however long ago.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeepHealth {
    /// Whether it found nothing wrong with this node's own path.
    pub passes: bool,
    /// Milliseconds since it ended.
    pub age_ms: u64,
    /// Milliseconds it took.
    pub took_ms: u64,
    /// What kept every shard from being tried; null if they were.
    pub fault: Option<PathFault>,
    /// What was found on each shard, in their order; empty if none was tried.
    pub shards: Vec<ShardPath>,
}

/// A shard's own path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardPath {
    /// The shard.
    pub shard: u16,
    /// Through its DRAM.
    pub dram: Canary,
    /// Through its part of the SSD.
    pub ssd: Canary,
}

/// What became of a canary on one medium.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Canary {
    /// Written, and read back as it was written.
    Passed {
        /// Microseconds that took.
        took_us: u64,
    },
    /// The node was told to use none: no fault.
    Off,
    /// Its turn had not come when the time was over, and the device worked off what was before it: no fault.
    Behind,
    /// It did not come so far.
    NotTried,
    /// Something is broken.
    Failed(PathFault),
}

/// What is broken, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathFault {
    /// Where.
    pub step: Step,
    /// What was seen.
    pub error: String,
    /// What to do.
    pub remedy: String,
    /// Whether all that was seen is that it did not come in time.
    pub late: bool,
}

/// A step of the way that a block takes through a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The node takes work.
    Serve,
    /// Every core answers.
    Cores,
    /// An engine is let in.
    Connect,
    /// It has its namespace.
    Register,
    /// A slot is given.
    Reserve,
    /// What was filled in is published.
    Commit,
    /// It is read from DRAM.
    DramRead,
    /// It is written back.
    SsdWrite,
    /// It is read from the SSD.
    SsdRead,
}

/// Deep checks of a node since its start, counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeepChecks {
    /// That found nothing wrong.
    pub passed: u64,
    /// That found something broken.
    pub failed: u64,
}

impl Step {
    /// Its name, as in an answer.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Step::Serve => "serve",
            Step::Cores => "cores",
            Step::Connect => "connect",
            Step::Register => "register",
            Step::Reserve => "reserve",
            Step::Commit => "commit",
            Step::DramRead => "dram-read",
            Step::SsdWrite => "ssd-write",
            Step::SsdRead => "ssd-read",
        }
    }
}

impl Canary {
    /// What is broken, if something is.
    #[must_use]
    pub fn fault(&self) -> Option<&PathFault> {
        match self {
            Canary::Failed(fault) => Some(fault),
            Canary::Passed { .. } | Canary::Off | Canary::Behind | Canary::NotTried => None,
        }
    }
}

impl DeepHealth {
    /// Everything that is broken, with its shard if it is of one.
    pub fn faults(&self) -> impl Iterator<Item = (Option<u16>, &PathFault)> {
        let of_shards = self.shards.iter().flat_map(|path| {
            let media = [&path.dram, &path.ssd].into_iter().filter_map(Canary::fault);
            media.map(|fault| (Some(path.shard), fault))
        });
        self.fault.iter().map(|fault| (None, fault)).chain(of_shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_it_was_said() {
        let fault = |step| PathFault {
            step,
            error: "it is broken".to_owned(),
            remedy: "mend it".to_owned(),
            late: false,
        };
        let path = |shard, dram, ssd| ShardPath { shard, dram, ssd };
        let said = DeepHealth {
            passes: false,
            age_ms: 3,
            took_ms: 5,
            fault: Some(fault(Step::Cores)),
            shards: vec![
                path(0, Canary::Passed { took_us: 7 }, Canary::Failed(fault(Step::SsdRead))),
                path(1, Canary::Failed(fault(Step::Reserve)), Canary::NotTried),
                path(2, Canary::Passed { took_us: 7 }, Canary::Behind),
                path(3, Canary::Passed { took_us: 7 }, Canary::Off),
            ],
        };
        let text = serde_json::to_value(&said).expect("JSON");
        assert_eq!(text["shards"][0]["dram"], serde_json::json!({"outcome": "passed", "took_us": 7}));
        assert_eq!(
            (&text["shards"][0]["ssd"]["step"], &text["shards"][1]["ssd"]["outcome"]),
            (&"ssd-read".into(), &"not-tried".into())
        );
        assert_eq!(serde_json::from_value::<DeepHealth>(text).expect("the same"), said);
        let faults: Vec<_> = said.faults().map(|(shard, fault)| (shard, fault.step)).collect();
        assert_eq!(faults, [(None, Step::Cores), (Some(0), Step::SsdRead), (Some(1), Step::Reserve)]);
    }

    #[test]
    fn steps_have_one_name_each() {
        let steps = [
            Step::Serve,
            Step::Cores,
            Step::Connect,
            Step::Register,
            Step::Reserve,
            Step::Commit,
            Step::DramRead,
            Step::SsdWrite,
            Step::SsdRead,
        ];
        for step in steps {
            assert_eq!(serde_json::to_value(step).expect("JSON"), step.name());
        }
    }
}
