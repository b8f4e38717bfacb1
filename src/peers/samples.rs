//! When changes were published here and when those of peers became visible: bounded samples on `CLOCK_MONOTONIC`, for
//! whoever measures the time in between (chapter 6.3). Off unless the node was started with room for them.
//!
//! Each kind has a ring that drops its oldest. Samples are counted from 1, so a reader that asks for what came after the
//! last one it has sees by the count whether any was dropped.

use std::collections::VecDeque;

use orbitkv_native::clock::monotonic_ns;
use orbitkv_shards::inventory::subscriber::{Install, Subscriber};
use orbitkv_shards::members::Local;
use orbitkv_shards::shard::Tag;
use orbitkv_wire::identity::{Incarnation, Sequence};

use super::Peers;

/// The journal of this core stands at a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Epoch of the life it is of.
    pub epoch: u64,
    /// That life.
    pub incarnation: Incarnation,
    /// The head after the mutation.
    pub sequence: Sequence,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`: after the mutation.
    pub at_ns: u64,
}

/// An interval of a peer's history is visible on this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Whose, and which.
    pub install: Install,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`: after rows, coverage and accounting.
    pub at_ns: u64,
}

/// What is wanted of a core's samples.
#[derive(Clone, Copy, Debug)]
pub struct SamplesQuestion {
    /// Who asks.
    pub tag: Tag,
    /// Number of the last publication that the asker has.
    pub published_after: u64,
    /// Number of the last install that it has.
    pub installed_after: u64,
}

/// Samples of one kind after a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt<T> {
    /// Number of the first one, whether or not there is one.
    pub first: u64,
    /// Those that are left, oldest first.
    pub samples: Vec<T>,
}

/// What a core has of both kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplesAnswer {
    /// Of this core's journal.
    pub published: Excerpt<Published>,
    /// Of the streams of peers.
    pub installed: Excerpt<Installed>,
}

/// The newest samples of a kind.
#[derive(Debug)]
struct Ring<T> {
    capacity: usize,
    samples: VecDeque<T>,
    dropped: u64,
}

impl<T: Copy> Ring<T> {
    fn new(capacity: usize) -> Ring<T> {
        Ring { capacity, samples: VecDeque::with_capacity(capacity), dropped: 0 }
    }

    fn push(&mut self, sample: T) {
        if self.samples.len() == self.capacity {
            self.samples.pop_front();
            self.dropped += 1;
        }
        self.samples.push_back(sample);
    }

    fn after(&self, number: u64) -> Excerpt<T> {
        let newest = self.dropped + self.samples.len() as u64;
        let known = number.clamp(self.dropped, newest) - self.dropped;
        let samples = self.samples.range(known as usize..).copied().collect();
        Excerpt { first: self.dropped + known + 1, samples }
    }
}

/// The samples of a core.
#[derive(Debug)]
pub(super) struct Samples {
    head: Sequence,
    published: Ring<Published>,
    installed: Ring<Installed>,
}

impl Samples {
    /// Room for so many of each kind; none for 0.
    pub fn with_room(count: u32) -> Option<Samples> {
        let capacity = count as usize;
        let (published, installed) = (Ring::new(capacity), Ring::new(capacity));
        (capacity > 0).then_some(Samples { head: Sequence(0), published, installed })
    }

    fn note_head(&mut self, head: Sequence, local: &Local, at_ns: impl FnOnce() -> u64) {
        if head == self.head {
            return;
        }
        self.head = head;
        let Local { epoch, incarnation, .. } = *local;
        self.published.push(Published { epoch, incarnation, sequence: head, at_ns: at_ns() });
    }
}

/// Notes what the subscriber has made visible, if anybody measures.
pub(super) fn note_installs(samples: &mut Option<Samples>, subscriber: &mut Subscriber) {
    let Some(samples) = samples else { return };
    while let Some(install) = subscriber.poll_install() {
        samples.installed.push(Installed { install, at_ns: monotonic_ns() });
    }
}

/// Bytes that room for so many samples of each kind takes, for the memory bill.
#[must_use]
pub const fn samples_bytes(count: u32) -> u64 {
    count as u64 * (size_of::<Published>() + size_of::<Installed>()) as u64
}

impl Peers {
    /// Notes where the journal stands, if anybody measures. To be called after each command of the shard: without
    /// samples it costs one comparison, with them another and, if the head has moved, a look at the clock.
    pub fn note_head(&mut self, head: Sequence) {
        if let Some(samples) = &mut self.samples {
            samples.note_head(head, &self.local, monotonic_ns);
        }
    }

    /// Samples for control; none if there is no room for any.
    #[must_use]
    pub fn samples(&self, question: &SamplesQuestion) -> Option<SamplesAnswer> {
        let samples = self.samples.as_ref()?;
        Some(SamplesAnswer {
            published: samples.published.after(question.published_after),
            installed: samples.installed.after(question.installed_after),
        })
    }
}

#[cfg(test)]
mod tests {
    use orbitkv_wire::identity::{ClusterUuid, NodeId};

    use super::*;

    #[test]
    fn a_reader_sees_by_the_count_that_samples_were_dropped() {
        let mut ring = Ring::new(3);
        assert_eq!(ring.after(0), Excerpt { first: 1, samples: vec![] });
        (1..=3).for_each(|sample| ring.push(sample));
        assert_eq!(ring.after(0), Excerpt { first: 1, samples: vec![1, 2, 3] });
        assert_eq!(ring.after(2), Excerpt { first: 3, samples: vec![3] });
        assert_eq!(ring.after(3), Excerpt { first: 4, samples: vec![] });
        (4..=5).for_each(|sample| ring.push(sample));
        assert_eq!(ring.after(1), Excerpt { first: 3, samples: vec![3, 4, 5] }, "2 is gone, and that shows");
        assert_eq!(ring.after(9), Excerpt { first: 6, samples: vec![] }, "nobody has what is not there yet");
    }

    #[test]
    fn a_head_is_noted_once_and_with_its_life() {
        let local = |life| Local {
            cluster: ClusterUuid([7; 16]),
            node: NodeId::new("a").expect("a name"),
            epoch: u64::from(life),
            incarnation: Incarnation([life; 16]),
            shards: 1,
        };
        let mut samples = Samples::with_room(8).expect("room");
        for (head, life, at) in [(0, 1, 5), (3, 1, 6), (3, 1, 7), (9, 1, 8), (2, 2, 9)] {
            samples.note_head(Sequence(head), &local(life), || at);
        }
        let noted = samples.published.after(0).samples;
        let seen: Vec<_> = noted.iter().map(|noted| (noted.sequence.0, noted.epoch, noted.at_ns)).collect();
        assert_eq!(seen, [(3, 1, 6), (9, 1, 8), (2, 2, 9)]);
        assert!(Samples::with_room(0).is_none());
    }
}
