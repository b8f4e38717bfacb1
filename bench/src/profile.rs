//! How much a run measures: what every benchmark offers.

use clap::ValueEnum;

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Small sizes, to see that everything runs.
    Ci,
    /// The sizes of the gates.
    Full,
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

impl Profile {
    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Ci => "ci",
            Profile::Full => "full",
        }
    }
}
