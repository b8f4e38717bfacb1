//! Bugs planted in the driver on purpose, at least one for each oracle: an instrument that does not find
//! these finds nothing.

use crate::oracle::Oracle;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A delta is dropped, and the next one claims to begin where the dropped one began.
    DropDelta,
    /// A delivered put has other bytes than were sent.
    ChangeBytes,
    /// A scan leaves a resident out.
    ScanSkips,
    /// A scan shows a residence under the sequence before its own.
    ScanLies,
    /// A core says it has taken a new map, and has not.
    SkipRetire,
    /// A core does not look at its deadline.
    OutliveLease,
    /// A record of a former life of the source is delivered in the session of the new one.
    OldSession,
    /// Progress claims more than was sent.
    ForgeProgress,
    /// Frames are acknowledged before they are delivered.
    AckEarly,
    /// Snapshot permits are given without asking the pool.
    ThirdPermit,
    /// Cores are raised before all were lowered.
    RaiseEarly,
    /// A merge does not look at revisions.
    MergeBlindly,
    /// A lookup asks one core a key, whatever shard counts there are.
    AskOneCore,
    /// Readings for a barrier are one sequence ahead.
    ReadAhead,
    /// A blocked sender is never told to go on.
    NeverRelieve,
    /// A permit that a core gives back is lost in the mail.
    LoseReturn,
}

impl Canary {
    /// All of them.
    pub const ALL: &[Canary] = &[
        Canary::DropDelta,
        Canary::ChangeBytes,
        Canary::ScanSkips,
        Canary::ScanLies,
        Canary::SkipRetire,
        Canary::OutliveLease,
        Canary::OldSession,
        Canary::ForgeProgress,
        Canary::AckEarly,
        Canary::ThirdPermit,
        Canary::RaiseEarly,
        Canary::MergeBlindly,
        Canary::AskOneCore,
        Canary::ReadAhead,
        Canary::NeverRelieve,
        Canary::LoseReturn,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Canary::DropDelta => "drop-delta",
            Canary::ChangeBytes => "change-bytes",
            Canary::ScanSkips => "scan-skips",
            Canary::ScanLies => "scan-lies",
            Canary::SkipRetire => "skip-retire",
            Canary::OutliveLease => "outlive-lease",
            Canary::OldSession => "old-session",
            Canary::ForgeProgress => "forge-progress",
            Canary::AckEarly => "ack-early",
            Canary::ThirdPermit => "third-permit",
            Canary::RaiseEarly => "raise-early",
            Canary::MergeBlindly => "merge-blindly",
            Canary::AskOneCore => "ask-one-core",
            Canary::ReadAhead => "read-ahead",
            Canary::NeverRelieve => "never-relieve",
            Canary::LoseReturn => "lose-return",
        }
    }

    /// The planted bug of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Canary> {
        Canary::ALL.iter().copied().find(|canary| canary.name() == name)
    }

    /// The oracle that it is for.
    #[must_use]
    pub fn found_by(self) -> Oracle {
        match self {
            Canary::DropDelta | Canary::ScanSkips | Canary::OldSession => Oracle::Complete,
            Canary::ChangeBytes => Oracle::Rows,
            Canary::ScanLies => Oracle::Source,
            Canary::SkipRetire | Canary::OutliveLease => Oracle::Fenced,
            Canary::ForgeProgress => Oracle::Watermark,
            Canary::AckEarly => Oracle::Credits,
            Canary::ThirdPermit => Oracle::Bounds,
            Canary::RaiseEarly | Canary::MergeBlindly => Oracle::Merge,
            Canary::AskOneCore => Oracle::Absence,
            Canary::ReadAhead => Oracle::Await,
            Canary::NeverRelieve => Oracle::Convergence,
            Canary::LoseReturn => Oracle::Conservation,
        }
    }
}
