//! Which intervals of a source's history have become visible here, for whoever measures how soon that is. Nothing is
//! kept unless somebody watches, and what is kept is named after the fact: rows, coverage and accounting are done.

use std::collections::VecDeque;

use orbitkv_wire::identity::Sequence;
use orbitkv_wire::inventory::SourceStream;

use super::Subscriber;

/// Installs that wait to be polled. Each input makes one at most, so whoever polls after each loses none.
const UNPOLLED_MAX: usize = 1_024;

/// An interval of a source's history that is visible now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Install {
    /// Whose.
    pub source: SourceStream,
    /// What was visible before, exclusive; 0 if nothing was.
    pub from: Sequence,
    /// What is visible now, inclusive.
    pub through: Sequence,
}

/// Installs of a core, if somebody watches.
#[derive(Debug, Default)]
pub(super) struct Installs {
    unpolled: Option<VecDeque<Install>>,
}

impl Installs {
    /// A stream stands at `through`, and stood at `told` when this was called last.
    pub fn note(&mut self, source: SourceStream, told: &mut Sequence, through: Sequence) {
        let Some(unpolled) = &mut self.unpolled else { return };
        let from = std::mem::replace(told, through);
        // A view that is gone makes nothing visible; the next one begins at 0.
        if through <= from {
            return;
        }
        if unpolled.len() == UNPOLLED_MAX {
            unpolled.pop_front();
        }
        unpolled.push_back(Install { source, from, through });
    }
}

impl Subscriber {
    /// Keeps installs from now on, to be polled after each input and turn. One that is not polled in time is lost, which
    /// shows as a gap in the intervals of its source.
    pub fn watch_installs(&mut self) {
        self.installs.unpolled.get_or_insert_default();
    }

    /// The next install, in the order in which they became visible.
    pub fn poll_install(&mut self) -> Option<Install> {
        self.installs.unpolled.as_mut()?.pop_front()
    }
}
