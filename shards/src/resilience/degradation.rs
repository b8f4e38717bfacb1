//! Graceful degradation: an answer from what there is. Parts without which there is no answer are its core;
//! others may be out of date up to a bound, or missing, and the answer says which.
//!
//! A node's hints (who has a block, how busy a source is) may be old. Its bytes may not: a part that is bytes
//! is served only as it is now, whatever the policy and however young what is remembered.

use std::time::Duration;

/// Oldest hint that a node serves.
pub const FRESHNESS_BOUND: Duration = Duration::from_secs(5);

/// What is done about parts that are not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// One missing part, no answer.
    AllOrNothing,
    /// A part that is not there now is left out.
    Skip,
    /// What is remembered of it is served up to a bound, then it is left out.
    #[default]
    Fallback,
}

/// What there is of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Have {
    /// The part as it is now.
    Fresh,
    /// The part as it was that long ago.
    Remembered(Duration),
    /// Nothing.
    Nothing,
}

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Whether there is no answer without it.
    pub core: bool,
    /// Whether it is bytes of a block, which no age makes acceptable.
    pub bytes: bool,
    /// What there is of it.
    pub have: Have,
}

impl Part {
    /// A part that an answer can do without, and that may be old.
    #[must_use]
    pub const fn hint(have: Have) -> Part {
        Part { core: false, bytes: false, have }
    }
}

/// How a part is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// As it is.
    Fresh,
    /// As it was.
    Stale,
    /// Not at all.
    Missing,
}

/// What an answer comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// Every part, fresh.
    Full,
    /// The core, and what else there was.
    Reduced,
    /// No answer.
    Dropped,
}

/// An answer, and what it says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What it comes to.
    pub grade: Grade,
    /// How each part is served, in the order of the parts; those that are missing were left out.
    pub parts: Vec<Served>,
    /// Age of the oldest part that is served stale.
    pub oldest: Option<Duration>,
}

/// Puts answers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrader {
    /// What is done about parts that are not there.
    pub policy: Policy,
    /// Oldest remembered part that is served; of just that age it still is.
    pub bound: Duration,
}

impl Default for Degrader {
    fn default() -> Degrader {
        Degrader { policy: Policy::default(), bound: FRESHNESS_BOUND }
    }
}

impl Degrader {
    /// How one part is served. What is remembered of a part is served up to some age and not beyond it, so whoever has
    /// parts in the order of their age need not judge each of them again.
    #[must_use]
    pub fn serve(&self, part: &Part) -> Served {
        match part.have {
            Have::Fresh => Served::Fresh,
            Have::Remembered(age) if self.policy == Policy::Fallback && !part.bytes && age <= self.bound => {
                Served::Stale
            }
            Have::Remembered(_) | Have::Nothing => Served::Missing,
        }
    }

    /// The answer from these parts.
    #[must_use]
    pub fn assemble(&self, parts: &[Part]) -> Answer {
        let served: Vec<Served> = parts.iter().map(|part| self.serve(part)).collect();
        let stale = parts.iter().zip(&served).filter(|(_, served)| **served == Served::Stale);
        let ages = stale.filter_map(|(part, _)| match part.have {
            Have::Remembered(age) => Some(age),
            Have::Fresh | Have::Nothing => None,
        });
        let oldest = ages.max();
        let needed = |part: &Part| part.core || self.policy == Policy::AllOrNothing;
        let lacks =
            parts.iter().zip(&served).any(|(part, served)| needed(part) && *served == Served::Missing);
        let grade = match lacks {
            true => Grade::Dropped,
            false if served.iter().all(|served| *served == Served::Fresh) => Grade::Full,
            false => Grade::Reduced,
        };
        Answer { grade, parts: served, oldest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = FRESHNESS_BOUND;

    fn core(have: Have) -> Part {
        Part { core: true, ..Part::hint(have) }
    }

    #[test]
    fn hints_may_be_old_up_to_the_bound() {
        let answer = Degrader::default().assemble(&[core(Have::Fresh), Part::hint(Have::Remembered(BOUND))]);
        assert_eq!(answer.grade, Grade::Reduced);
        assert_eq!((answer.parts, answer.oldest), (vec![Served::Fresh, Served::Stale], Some(BOUND)));
        let older = BOUND + Duration::from_nanos(1);
        let answer = Degrader::default().assemble(&[core(Have::Fresh), Part::hint(Have::Remembered(older))]);
        assert_eq!(answer.parts, [Served::Fresh, Served::Missing]);
        assert_eq!((answer.grade, answer.oldest), (Grade::Reduced, None), "what was left out has no age");
    }

    #[test]
    fn bytes_are_never_served_on_age() {
        let bytes = Part { core: true, bytes: true, have: Have::Remembered(Duration::ZERO) };
        assert_eq!(Degrader::default().assemble(&[bytes]).grade, Grade::Dropped);
        let fresh = Part { have: Have::Fresh, ..bytes };
        assert_eq!(Degrader::default().assemble(&[fresh]).grade, Grade::Full);
    }

    #[test]
    fn policies_differ_in_what_they_do_without() {
        let parts = [core(Have::Fresh), Part::hint(Have::Remembered(Duration::ZERO))];
        let graded = |policy, parts: &[Part]| Degrader { policy, bound: BOUND }.assemble(parts).grade;
        assert_eq!(graded(Policy::AllOrNothing, &parts), Grade::Dropped);
        assert_eq!(graded(Policy::Skip, &parts), Grade::Reduced);
        let without_core = [core(Have::Nothing), Part::hint(Have::Fresh)];
        assert_eq!(graded(Policy::Fallback, &without_core), Grade::Dropped);
    }
}
