//! What an answer about peers is worth: coverage of one core, the merge over the cores asked, and the
//! two-step by which all cores move to a new membership revision (chapter 2.8).
//!
//! Coverage decides one thing only: whether *absence* may be believed. Hints are always revalidated by
//! their source, so doubt costs a recomputation and never a wrong byte.

use std::collections::BTreeSet;
use std::time::Duration;

use orbitkv_wire::identity::ShardIndex;

/// What an answer about peers may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coverage {
    /// Local storage and recomputation only.
    Unavailable,
    /// Positive hints, revalidated by the source; no absence.
    PartialHints,
    /// Candidates, and absence at these cuts.
    CompleteAtWatermarks,
}

/// Why a core can say nothing about peers, or nothing about a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The membership snapshot is invalid, or none has arrived yet.
    MembershipInvalid,
    /// This node's own lease has expired.
    LeaseExpired,
    /// The scope does not contain the namespace.
    OutOfScope,
}

/// How far one core's owner streams are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing may be said.
    Unavailable(Unavailable),
    /// No owner stream is expected on this core: it misses nothing.
    NoneExpected,
    /// Streams are expected and none has a view.
    NoneInstalled,
    /// Some stream is missing, repairing, partly applied, or older than the freshness budget.
    Partial,
    /// Every expected stream has a committed view that is whole and fresh.
    Complete,
}

/// One core's part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreCoverage {
    /// Membership revision the core stands at.
    pub revision: u64,
    /// Which of its scopes the core stands at.
    pub scope_generation: u64,
    /// Whether control has said that all cores stand at this revision.
    pub raised: bool,
    /// How far its streams are.
    pub standing: Standing,
    /// Age of the least fresh installed view, by receipt; zero if none is installed.
    pub oldest_age: Duration,
    /// Owner streams that its members say exist.
    pub expected: u32,
    /// Those of them whose view is missing, broken or too old, so that an answer may leave out what only they have: all of
    /// them where nothing may be said.
    pub left_out: u32,
}

impl CoreCoverage {
    /// The same core where nothing may be said of peers, for this reason.
    #[must_use]
    pub fn unavailable(self, why: Unavailable) -> CoreCoverage {
        CoreCoverage { standing: Standing::Unavailable(why), left_out: self.expected, ..self }
    }

    /// How old the hints of this part may be, those beyond the freshness bound included, which are given and rank last; zero
    /// where none are given.
    #[must_use]
    pub fn hint_age(&self) -> Duration {
        match self.standing {
            Standing::Unavailable(_) => Duration::ZERO,
            _ => self.oldest_age,
        }
    }
}

/// What the core that asks stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Basis {
    /// Its membership revision.
    pub revision: u64,
    /// Its scope generation.
    pub scope_generation: u64,
}

/// The answer over all cores asked. Freshness is reported apart from coverage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// What the answer may be used for.
    pub coverage: Coverage,
    /// The greatest age of all parts.
    pub oldest_age: Duration,
    /// How old hints may be: the greatest such age of all parts.
    pub hint_age: Duration,
    /// Owner streams that the parts leave out, together.
    pub left_out: u32,
}

/// Merges the parts of the cores asked.
#[must_use]
pub fn merge(asking: Basis, answers: &[CoreCoverage]) -> Merged {
    let oldest_age = answers.iter().map(|answer| answer.oldest_age).max().unwrap_or_default();
    let hint_age = answers.iter().map(CoreCoverage::hint_age).max().unwrap_or_default();
    let left_out = answers.iter().fold(0, |sum: u32, answer| sum.saturating_add(answer.left_out));
    let unavailable = answers.iter().any(|answer| matches!(answer.standing, Standing::Unavailable(_)));
    let mut expecting = answers.iter().filter(|answer| answer.standing != Standing::NoneExpected).peekable();
    let bare =
        expecting.peek().is_some() && expecting.all(|answer| answer.standing == Standing::NoneInstalled);
    let complete = answers.iter().all(|answer| {
        matches!(answer.standing, Standing::NoneExpected | Standing::Complete)
            && answer.raised
            && answer.revision == asking.revision
            && answer.scope_generation == asking.scope_generation
    });
    let coverage = match (unavailable || bare, complete) {
        (true, _) => Coverage::Unavailable,
        (false, true) => Coverage::CompleteAtWatermarks,
        (false, false) => Coverage::PartialHints,
    };
    Merged { coverage, oldest_age, hint_age, left_out }
}

/// Control's side of a change of revision: every core is lowered first, and none is raised before all
/// have said that they are. A core that has not heard of a member would else call it absent.
#[derive(Debug)]
pub struct RaiseGate {
    cores: u16,
    state: Gate,
}

#[derive(Debug)]
enum Gate {
    /// No revision yet.
    Unset,
    /// These cores have not answered yet.
    Lowering { revision: u64, missing: BTreeSet<ShardIndex> },
    /// All cores stand at the revision.
    Raised { revision: u64 },
    /// Cores are told of a map that is of this revision in part, or leaves a member out: none is raised.
    Partial { revision: u64 },
    /// The snapshot of this revision was found invalid; it may be read again.
    Invalid { revision: u64 },
}

impl RaiseGate {
    /// The gate of a node with this many cores.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn new(cores: u16) -> RaiseGate {
        assert!(cores > 0, "a node has at least one core");
        RaiseGate { cores, state: Gate::Unset }
    }

    /// A revision to mail as `lower(revision)` to every core. False if it is not newer than the last valid
    /// one: it is then not to be mailed.
    pub fn lower(&mut self, revision: u64) -> bool {
        let late = match self.state {
            Gate::Unset => false,
            Gate::Lowering { revision: last, .. } | Gate::Raised { revision: last } => revision <= last,
            Gate::Partial { revision: last } | Gate::Invalid { revision: last } => revision < last,
        };
        if late {
            return false;
        }
        self.state = Gate::Lowering { revision, missing: (0..self.cores).map(ShardIndex).collect() };
        true
    }

    /// A map to mail as `lower(revision)` to every core, of which only some records are as new as that, or which leaves
    /// a member out: nobody may call anything absent by it, so no core is raised before a whole one. False if it is
    /// older than the last one.
    pub fn lower_in_part(&mut self, revision: u64) -> bool {
        let late = self.revision().is_some_and(|last| revision < last);
        if !late {
            self.state = Gate::Partial { revision };
        }
        !late
    }

    /// A core has answered `lower(revision)`. Says the revision to mail as `may raise` to every core, once,
    /// when it was the last one. Answers to a revision that was overtaken say nothing.
    pub fn on_lowered(&mut self, core: ShardIndex, revision: u64) -> Option<u64> {
        match &mut self.state {
            Gate::Lowering { revision: current, missing } if *current == revision => {
                missing.remove(&core);
                if !missing.is_empty() {
                    return None;
                }
                self.state = Gate::Raised { revision };
                Some(revision)
            }
            _ => None,
        }
    }

    /// The membership snapshot is invalid, as every core is told, or this node begins a new life: the same
    /// revision may be lowered to again.
    pub fn on_membership_invalid(&mut self) {
        if let Some(revision) = self.revision() {
            self.state = Gate::Invalid { revision };
        }
    }

    /// This node begins a new life, perhaps with an etcd that counts anew: any revision may be lowered to.
    pub fn on_registered(&mut self) {
        self.state = Gate::Unset;
    }

    /// The newest revision lowered to.
    #[must_use]
    pub fn revision(&self) -> Option<u64> {
        match &self.state {
            Gate::Unset => None,
            Gate::Lowering { revision, .. }
            | Gate::Raised { revision }
            | Gate::Partial { revision }
            | Gate::Invalid { revision } => Some(*revision),
        }
    }
}

#[cfg(test)]
mod tests;
