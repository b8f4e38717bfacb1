//! How much a run measures: what every benchmark offers.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Small sizes, to see that everything runs.
    Ci,
    /// The sizes of the gates; a benchmark with one size takes `dense` and `formal` for it.
    #[value(aliases = ["dense", "formal"])]
    Full,
}

/// How much to measure, where it is a matter of hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FormalProfile {
    /// Seconds or minutes, to see that everything runs: qualifies nothing.
    Ci,
    /// A part of the formal time, judged by the same gates and labelled dense.
    Dense,
    /// The whole time.
    Formal,
}

/// What a report says of the profile of its run, whichever profiles the benchmark has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The stable name.
    pub name: &'static str,
    /// Whether what was measured counts for the gates.
    pub qualifies: bool,
}

impl From<Profile> for Label {
    fn from(profile: Profile) -> Label {
        Label { name: profile.name(), qualifies: profile == Profile::Full }
    }
}

impl From<FormalProfile> for Label {
    fn from(profile: FormalProfile) -> Label {
        match profile {
            FormalProfile::Ci => Label { name: "ci", qualifies: false },
            FormalProfile::Dense => Label { name: "dense", qualifies: true },
            FormalProfile::Formal => Label { name: "formal", qualifies: true },
        }
    }
}

/// The sizes of a benchmark that has no others.
impl From<FormalProfile> for Profile {
    fn from(profile: FormalProfile) -> Profile {
        match profile {
            FormalProfile::Ci => Profile::Ci,
            FormalProfile::Dense | FormalProfile::Formal => Profile::Full,
        }
    }
}

impl Profile {
    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Ci => "ci",
            Profile::Full => "full",
        }
    }
}
