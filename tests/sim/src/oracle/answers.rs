//! The oracle of lookups: what an answer is worth, what it shows and what it calls absent.

use std::time::Duration;

use orbitkv_shards::coverage::{Basis, CoreCoverage, Coverage, Merged, Standing};
use orbitkv_shards::index::{REPLICAS_MAX, Replica};
use orbitkv_wire::identity::{Incarnation, Medium, Sequence, ShardIndex};

use super::{Oracle, Verdict, hold};
use crate::truth::{KeyId, StreamName, Truth};

/// How far one view had been applied when a core answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The owner stream.
    pub stream: StreamName,
    /// Sequence it was applied through.
    pub applied: Sequence,
}

/// The merge of chapter 2.8, written down a second time.
#[must_use]
pub fn merged(asking: Basis, answers: &[CoreCoverage]) -> Coverage {
    let mut expecting = 0;
    let mut bare = 0;
    let mut complete = 0;
    for answer in answers {
        match answer.standing {
            Standing::Unavailable(_) => return Coverage::Unavailable,
            Standing::NoneExpected => {}
            Standing::NoneInstalled => {
                expecting += 1;
                bare += 1;
            }
            Standing::Partial | Standing::Complete => expecting += 1,
        }
        let finished = answer.standing == Standing::NoneExpected || answer.standing == Standing::Complete;
        let current =
            answer.revision == asking.revision && answer.scope_generation == asking.scope_generation;
        if finished && current && answer.raised {
            complete += 1;
        }
    }
    if expecting > 0 && bare == expecting {
        Coverage::Unavailable
    } else if complete == answers.len() {
        Coverage::CompleteAtWatermarks
    } else {
        Coverage::PartialHints
    }
}

/// Compares a merge with the one written down here.
///
/// # Errors
/// [`Oracle::Merge`].
pub fn judge_merge(asking: Basis, answers: &[CoreCoverage], merge: &Merged) -> Verdict {
    let (expected, age) = (merged(asking, answers), answers.iter().map(|it| it.oldest_age).max());
    let left_out: u32 = answers.iter().map(|it| it.left_out).sum();
    hold(
        Oracle::Merge,
        merge.coverage == expected
            && merge.oldest_age == age.unwrap_or(Duration::ZERO)
            && merge.left_out == left_out,
        || format!("{answers:?} asked at {asking:?} merge to {expected:?}, it says {merge:?}"),
    )
}

/// A replica with the life it is of.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Whose it is.
    pub stream: StreamName,
    /// What is shown.
    pub replica: Replica,
}

/// Whether (key, medium) is shown as it was at `cut`, or rightly left out.
///
/// # Errors
/// [`Oracle::Absence`] if a residence is missing from a complete answer, [`Oracle::Complete`] if it is
/// shown as it was not.
pub fn judge_key(
    truth: &Truth,
    key: KeyId,
    medium: Medium,
    cut: &Cut,
    shown: &[Shown],
    truncated: bool,
) -> Verdict {
    let here = shown.iter().find(|it| it.stream == cut.stream && it.replica.medium == medium);
    let listed = shown.iter().filter(|it| it.replica.medium == medium).count();
    let was = truth.stream(&cut.stream).and_then(|stream| stream.at(key, medium, cut.applied));
    match (was, here) {
        (None, None) => Ok(()),
        (Some(_), None) => hold(Oracle::Absence, truncated && listed == REPLICAS_MAX, || {
            format!("{key:?} on {medium} was at {cut:?} and is called absent")
        }),
        (was, Some(shown)) => {
            let replica = shown.replica;
            let same = was.is_some_and(|was| was.sequence == replica.sequence && was.bytes == replica.bytes);
            hold(Oracle::Complete, same, || {
                format!("{key:?} on {medium} was {was:?} at {cut:?} and is shown as {replica:?}")
            })
        }
    }
}

/// A member that an answer has to speak for.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Its number.
    pub node: u16,
    /// Its life.
    pub incarnation: Incarnation,
    /// Its shards.
    pub shards: u16,
}

impl Expected {
    /// The stream that a key would be in.
    #[must_use]
    pub fn stream_of(&self, truth: &Truth, key: KeyId) -> StreamName {
        let shard: ShardIndex = truth.universe.get(key).hash.shard(self.shards);
        StreamName { node: self.node, incarnation: self.incarnation, shard }
    }
}
