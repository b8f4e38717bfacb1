//! The oracle of rows: what a core would show of one owner stream, against the truth at its watermark.

use orbitkv_shards::index::Replicas;
use orbitkv_wire::identity::{Medium, Sequence};

use super::{Oracle, Verdict, hold};
use crate::core::Core;
use crate::truth::{KeyId, StreamName, Truth};

/// How closely rows are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closeness {
    /// The view is whole at this watermark: every row is as it was there.
    At(Sequence),
    /// A large frame is being applied: every row is a residence that its source had at some time.
    Mixed,
}

/// What is looked at.
pub struct Looked<'a> {
    /// Everything true.
    pub truth: &'a Truth,
    /// Whose claims they are.
    pub core: &'a Core,
    /// Of which stream.
    pub stream: StreamName,
    /// How closely.
    pub closeness: Closeness,
}

impl Looked<'_> {
    /// Compares the rows of these blocks.
    ///
    /// # Errors
    /// [`Oracle::Rows`] or [`Oracle::Complete`].
    pub fn judge(&self, keys: &[KeyId]) -> Verdict {
        let mut out = vec![Replicas::default(); 128];
        for keys in keys.chunks(128) {
            let known: Vec<_> =
                keys.iter().filter_map(|&key| Some((key, self.core.state_key(self.truth, key)?))).collect();
            let asked: Vec<_> =
                known.iter().map(|(key, state)| (*state, self.truth.universe.get(*key).hash)).collect();
            self.core.partition.lookup(&asked, &mut out);
            for ((key, _), replicas) in known.iter().zip(&out) {
                for medium in Medium::ALL {
                    self.judge_row(*key, medium, replicas)?;
                }
            }
            for &key in keys.iter().filter(|&&key| self.core.state_key(self.truth, key).is_none()) {
                for medium in Medium::ALL {
                    self.judge_row(key, medium, &Replicas::default())?;
                }
            }
        }
        Ok(())
    }

    fn judge_row(&self, key: KeyId, medium: Medium, replicas: &Replicas) -> Verdict {
        let truth = self.truth.stream(&self.stream).expect("a stream with a view has a history");
        let ours = |owner| {
            self.core.subscriber.member(owner).is_some_and(|member| {
                member.incarnation == self.stream.incarnation && owner.shard == self.stream.shard
            })
        };
        let row = replicas.iter().find(|replica| replica.medium == medium && ours(replica.owner));
        if let Some(row) = row {
            let had = truth.try_change(row.sequence).is_some_and(|change| {
                change.key == key && change.medium == medium && change.bytes == row.bytes && row.bytes > 0
            });
            hold(Oracle::Rows, had, || {
                format!("{:?} never had {key:?} on {medium} as {row:?}", self.stream)
            })?;
        }
        let Closeness::At(applied) = self.closeness else { return Ok(()) };
        let was = truth.at(key, medium, applied);
        let same = was.map(|was| (was.sequence, was.bytes)) == row.map(|row| (row.sequence, row.bytes));
        hold(Oracle::Complete, same || (row.is_none() && replicas.truncated), || {
            format!("{:?} at {applied:?} had {key:?} on {medium} as {was:?}, shown is {row:?}", self.stream)
        })
    }
}
