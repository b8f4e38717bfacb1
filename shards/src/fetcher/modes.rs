//! What the last calls to each source look like (chapter 5, pattern 1): a name for whoever looks, from what a requester sees
//! and from no more.
//!
//! A call ends with an answer, an error, or silence. An answer is fresh if at most half of the residences that the source's
//! own inventory told of had ended there: one that is not says that what is known of the source is out of date. Slow
//! and cut off look the same from here and have one name. Nothing is decided by a name: the breaker ([`super::guard`])
//! counts for itself. Whether the source is a member is shown beside it and never guessed from it; what is no
//! member any more has no name.

use std::collections::BTreeMap;

use orbitkv_wire::inventory::SourceStream;

use super::Fetcher;
use super::guard::Fate;
use crate::resilience::signature::{Ending, Mode, SignatureWindow, Sums};
use crate::time::Moment;

/// What the last calls to a source look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceStanding {
    /// The source shard, in one life of its node.
    pub source: SourceStream,
    /// What they look like; none before there were as many as are looked back on.
    pub mode: Option<Mode>,
    /// How they ended; `held` is how long they took, in milliseconds.
    pub sums: Sums,
}

/// The last calls to each source.
#[derive(Debug, Default)]
pub(super) struct Modes {
    windows: BTreeMap<SourceStream, SignatureWindow>,
}

impl Modes {
    pub fn push(&mut self, source: SourceStream, ending: Ending, asked: Moment, now: Moment) {
        let taken_ms = u64::try_from(now.since(asked).as_millis()).unwrap_or(u64::MAX);
        self.windows.entry(source).or_default().push(ending, taken_ms);
    }

    pub fn retain(&mut self, is_usable: impl Fn(&SourceStream) -> bool) {
        self.windows.retain(|source, _| is_usable(source));
    }
}

impl Fate {
    /// How a call ended for who looks back on it; none if it says nothing of its source.
    pub(super) fn ending(self, is_patient: impl Fn(Moment, bool) -> bool) -> Option<Ending> {
        match self {
            Fate::Answered { is_fresh } => Some(Ending::Answer { fresh: is_fresh }),
            Fate::Broken => Some(Ending::Error),
            Fate::Silent => Some(Ending::Timeout),
            Fate::GivenUp { quiet_since, has_answered } => {
                is_patient(quiet_since, has_answered).then_some(Ending::Timeout)
            }
            Fate::Ours => None,
        }
    }
}

impl Fetcher {
    /// What the last calls to each source look like, in the order of sources.
    pub fn sources(&self) -> impl Iterator<Item = SourceStanding> {
        let windows = self.modes.windows.iter();
        windows.map(|(source, window)| SourceStanding {
            source: *source,
            mode: window.mode(),
            sums: window.sums(),
        })
    }

    /// What the last calls to a source look like, if there were enough.
    #[must_use]
    pub fn mode_of(&self, source: &SourceStream) -> Option<Mode> {
        self.modes.windows.get(source).and_then(SignatureWindow::mode)
    }
}
