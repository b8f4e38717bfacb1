//! Samples of when changes were published and when they were seen, taken from the nodes' pages and joined by exact
//! sequence. Whatever cannot be bound to the node, life, shard, scope and sequence it should be of ends the collection.

use std::fmt;

use orbitkv::cli::http_client::HttpClient;
use orbitkv::control::visibility::{ClockPlace, ShardSamples, VisibilityPage};

use super::owner::Burst;
use super::owners::Identity;
use crate::Failure;

/// An interval of an owner's changes that became visible at an observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    from: u64,
    through: u64,
    at_ns: u64,
}

/// One publication as one observer saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Which of the bursts or publications it is of.
    pub number: usize,
    /// Who saw it.
    pub observer: usize,
    /// When it was published, in nanoseconds.
    pub published_ns: u64,
    /// When it was seen.
    pub installed_ns: u64,
}

/// Why a collection is worth nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The clocks of two processes cannot be compared.
    Clock {
        /// The node's and ours.
        clocks: Box<(ClockPlace, ClockPlace)>,
    },
    /// A page or a sample is of another node, life, shard or scope than it should be.
    Binding {
        /// The observer.
        observer: usize,
        /// What was found.
        found: String,
    },
    /// A node had dropped samples before they were read.
    Dropped {
        /// Which node.
        observer: usize,
        /// How many.
        count: u64,
    },
    /// Intervals do not follow each other.
    Gap {
        /// Where.
        observer: usize,
        /// Whose.
        owner: usize,
        /// End of the one, begin of the next.
        between: (u64, u64),
    },
    /// The journal never stood at the terminal sequence of a burst.
    NotPublished {
        /// Whose.
        owner: usize,
        /// The sequence.
        sequence: u64,
    },
    /// A terminal sequence was seen only together with later changes.
    Superseded {
        /// Where.
        observer: usize,
        /// Whose.
        owner: usize,
        /// The sequence, and the one with which it was seen.
        sequences: (u64, u64),
    },
    /// A sequence was not seen at all.
    NotInstalled {
        /// Where.
        observer: usize,
        /// Whose.
        owner: usize,
        /// The sequence.
        sequence: u64,
    },
    /// Something was seen before it was there.
    BeforePublication {
        /// Where.
        observer: usize,
        /// Whose.
        owner: usize,
        /// The sequence.
        sequence: u64,
    },
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invalid::Clock { clocks } => {
                write!(f, "clocks of another boot or time namespace: {:?} and {:?}", clocks.0, clocks.1)
            }
            Invalid::Binding { observer, found } => {
                write!(f, "a sample at node {observer} is of something else: {found}")
            }
            Invalid::Dropped { observer, count } => {
                write!(f, "superseded: node {observer} had dropped {count} samples before they were read")
            }
            Invalid::Gap { observer, owner, between: (end, begin) } => {
                write!(f, "at node {observer} what follows {end} of owner {owner} begins at {begin}")
            }
            Invalid::NotPublished { owner, sequence } => {
                write!(f, "the journal of owner {owner} never stood at {sequence}")
            }
            Invalid::Superseded { observer, owner, sequences: (wanted, seen) } => {
                write!(f, "superseded: node {observer} saw {wanted} of owner {owner} only with {seen}")
            }
            Invalid::NotInstalled { observer, owner, sequence } => {
                write!(f, "node {observer} has not seen {sequence} of owner {owner}")
            }
            Invalid::BeforePublication { observer, owner, sequence } => {
                write!(f, "node {observer} saw {sequence} of owner {owner} before it was published")
            }
        }
    }
}

impl std::error::Error for Invalid {}

/// All samples of a cluster.
pub struct Samples {
    identities: Vec<Identity>,
    clock: ClockPlace,
    /// Numbers of the last publication and install that were taken of each node.
    had: Vec<(u64, u64)>,
    /// Heads of each owner's journal and when it came to stand there.
    published: Vec<Vec<(u64, u64)>>,
    /// By observer, then by owner.
    installed: Vec<Vec<Vec<Interval>>>,
}

impl Samples {
    /// None yet, of these nodes, in the order of their numbers.
    pub fn of(identities: &[Identity]) -> Samples {
        let count = identities.len();
        Samples {
            identities: identities.to_vec(),
            clock: ClockPlace::here(),
            had: vec![(0, 0); count],
            published: vec![Vec::new(); count],
            installed: vec![vec![Vec::new(); count]; count],
        }
    }

    /// Asks a node for what it has not told yet.
    ///
    /// # Errors
    /// If it does not answer, or as [`Invalid`] says.
    pub fn read(&mut self, at: usize, http: &HttpClient) -> Result<(), Failure> {
        let (published, installed) = self.had[at];
        let (page, _) = http.get_as(&format!("/cache/visibility?after={published}.{installed}"))?;
        Ok(self.take(at, &page)?)
    }

    /// Asks every node.
    ///
    /// # Errors
    /// As [`Samples::read`].
    pub fn read_all(&mut self, http: &[HttpClient]) -> Result<(), Failure> {
        http.iter().enumerate().try_for_each(|(at, http)| self.read(at, http))
    }

    /// Takes a page of a node in.
    ///
    /// # Errors
    /// As [`Invalid`] says; nothing of the collection counts then.
    pub fn take(&mut self, at: usize, page: &VisibilityPage) -> Result<(), Invalid> {
        if !page.clock.is_shared_with(&self.clock) {
            return Err(Invalid::Clock { clocks: Box::new((page.clock.clone(), self.clock.clone())) });
        }
        let own = &self.identities[at];
        let [shard] = &page.shards[..] else {
            return Err(self.unbound(at, format!("{} shards", page.shards.len())));
        };
        if page.node_id != own.node_id || page.scope_digest.as_ref() != Some(&own.scope_digest) {
            return Err(self.unbound(at, format!("{} with scope {:?}", page.node_id, page.scope_digest)));
        }
        self.require_next(at, shard)?;
        for life in &shard.published {
            if (life.epoch, &life.incarnation) != (own.epoch, &own.incarnation) {
                return Err(self.unbound(at, format!("epoch {} of itself", life.epoch)));
            }
            self.published[at].extend(&life.samples);
        }
        for stream in &shard.installed {
            let bound = |identity: &Identity| {
                (&identity.node_id, identity.epoch, &identity.incarnation)
                    == (&stream.node_id, stream.epoch, &stream.incarnation)
            };
            let owner = self.identities.iter().position(bound).filter(|_| stream.shard == 0);
            let Some(owner) = owner.filter(|owner| *owner != at) else {
                let found = format!("{} epoch {} shard {}", stream.node_id, stream.epoch, stream.shard);
                return Err(self.unbound(at, found));
            };
            let intervals = &mut self.installed[at][owner];
            for &(from, through, at_ns) in &stream.samples {
                if let Some(last) = intervals.last().filter(|last| last.through != from) {
                    let between = (last.through, from);
                    return Err(Invalid::Gap { observer: at, owner, between });
                }
                intervals.push(Interval { from, through, at_ns });
            }
        }
        self.had[at] = shard.had();
        Ok(())
    }

    fn unbound(&self, observer: usize, found: String) -> Invalid {
        Invalid::Binding { observer, found }
    }

    fn require_next(&self, at: usize, shard: &ShardSamples) -> Result<(), Invalid> {
        let (published, installed) = self.had[at];
        let dropped = shard.published_first.saturating_sub(published + 1)
            + shard.installed_first.saturating_sub(installed + 1);
        if dropped > 0 { Err(Invalid::Dropped { observer: at, count: dropped }) } else { Ok(()) }
    }

    /// Through which sequence of an owner an observer is known to have all.
    pub fn seen(&self, observer: usize, owner: usize) -> u64 {
        self.installed[observer][owner].last().map_or(0, |interval| interval.through)
    }

    /// Observers that are not known to have a sequence of an owner.
    pub fn unseen(&self, owner: usize, sequence: u64) -> Vec<usize> {
        let observers = (0..self.identities.len()).filter(|observer| *observer != owner);
        observers.filter(|&observer| self.seen(observer, owner) < sequence).collect()
    }

    /// How each observer saw the end of each burst: as exactly that sequence, alone.
    ///
    /// # Errors
    /// If one of them did not.
    pub fn of_bursts(&self, bursts: &[Burst]) -> Result<Vec<Sight>, Invalid> {
        let mut sights = Vec::new();
        for (number, burst) in bursts.iter().enumerate() {
            let (owner, sequence) = (burst.owner, burst.terminal);
            let published = &self.published[owner];
            let at = published.binary_search_by_key(&sequence, |(sequence, _)| *sequence);
            let published_ns = published[at.map_err(|_| Invalid::NotPublished { owner, sequence })?].1;
            for observer in (0..self.identities.len()).filter(|observer| *observer != owner) {
                let interval = self.interval(observer, owner, sequence)?;
                if interval.through != sequence {
                    let sequences = (sequence, interval.through);
                    return Err(Invalid::Superseded { observer, owner, sequences });
                }
                sights.push(sight(number, (observer, owner), (sequence, published_ns), interval)?);
            }
        }
        Ok(sights)
    }

    /// How each observer saw each publication in a span of time: in the one interval that has it.
    ///
    /// # Errors
    /// If an observer did not see one.
    pub fn of_publications(&self, span: std::ops::Range<u64>) -> Result<Vec<Sight>, Invalid> {
        let mut sights = Vec::new();
        let mut number = 0;
        for (owner, published) in self.published.iter().enumerate() {
            for &(sequence, published_ns) in published.iter().filter(|(_, at_ns)| span.contains(at_ns)) {
                for observer in (0..self.identities.len()).filter(|observer| *observer != owner) {
                    let interval = self.interval(observer, owner, sequence)?;
                    sights.push(sight(number, (observer, owner), (sequence, published_ns), interval)?);
                }
                number += 1;
            }
        }
        Ok(sights)
    }

    /// How each observer saw a sequence of an owner, with whatever came together with it.
    ///
    /// # Errors
    /// If it was not published, or one of them did not see it.
    pub fn of_sequence(&self, number: usize, owner: usize, sequence: u64) -> Result<Vec<Sight>, Invalid> {
        let published = &self.published[owner];
        let at = published.partition_point(|(head, _)| *head < sequence);
        let (_, published_ns) = *published.get(at).ok_or(Invalid::NotPublished { owner, sequence })?;
        let observers = (0..self.identities.len()).filter(|observer| *observer != owner);
        observers
            .map(|observer| {
                let interval = self.interval(observer, owner, sequence)?;
                sight(number, (observer, owner), (sequence, published_ns), interval)
            })
            .collect()
    }

    /// When each observer saw a sequence of an owner.
    ///
    /// # Errors
    /// If one of them did not.
    pub fn installed(&self, owner: usize, sequence: u64) -> Result<Vec<u64>, Invalid> {
        let observers = (0..self.identities.len()).filter(|observer| *observer != owner);
        observers.map(|observer| Ok(self.interval(observer, owner, sequence)?.at_ns)).collect()
    }

    /// The interval in which an observer saw a sequence.
    fn interval(&self, observer: usize, owner: usize, sequence: u64) -> Result<Interval, Invalid> {
        let intervals = &self.installed[observer][owner];
        let at = intervals.partition_point(|interval| interval.through < sequence);
        let found = intervals.get(at).filter(|interval| interval.from < sequence);
        found.copied().ok_or(Invalid::NotInstalled { observer, owner, sequence })
    }
}

fn sight(
    number: usize,
    (observer, owner): (usize, usize),
    (sequence, published_ns): (u64, u64),
    interval: Interval,
) -> Result<Sight, Invalid> {
    if interval.at_ns < published_ns {
        return Err(Invalid::BeforePublication { observer, owner, sequence });
    }
    Ok(Sight { number, observer, published_ns, installed_ns: interval.at_ns })
}

#[cfg(test)]
mod tests {
    use orbitkv::control::visibility::{LifePublished, StreamInstalled};

    use super::*;

    fn identity(name: &str) -> Identity {
        Identity {
            node_id: name.to_owned(),
            epoch: 7,
            incarnation: format!("life of {name}"),
            scope_digest: "all".to_owned(),
        }
    }

    fn samples() -> Samples {
        Samples::of(&[identity("a"), identity("b"), identity("c")])
    }

    fn installs(of: &str, samples: &[(u64, u64, u64)]) -> StreamInstalled {
        let Identity { node_id, epoch, incarnation, .. } = identity(of);
        StreamInstalled { node_id, epoch, incarnation, shard: 0, samples: samples.to_vec() }
    }

    /// A page of a node that has published and installed so much, from the first sample on.
    fn page(of: &str, published: &[(u64, u64)], installed: Vec<StreamInstalled>) -> VisibilityPage {
        let Identity { node_id, epoch, incarnation, scope_digest } = identity(of);
        let life = LifePublished { epoch, incarnation, samples: published.to_vec() };
        let shard = ShardSamples { published_first: 1, published: vec![life], installed_first: 1, installed };
        VisibilityPage {
            clock: ClockPlace::here(),
            node_id,
            scope_digest: Some(scope_digest),
            shards: vec![shard],
        }
    }

    fn burst(terminal: u64) -> Burst {
        Burst { owner: 0, intended_ns: 0, began_ns: 0, ended_ns: 0, terminal }
    }

    #[test]
    fn a_burst_is_seen_by_every_observer_as_exactly_its_sequence() {
        let mut all = samples();
        all.take(0, &page("a", &[(32, 90), (64, 100)], vec![])).expect("bound");
        all.take(1, &page("b", &[], vec![installs("a", &[(0, 32, 95), (32, 64, 130)])])).expect("bound");
        assert_eq!(all.unseen(0, 64), [2]);
        let missing = Invalid::NotInstalled { observer: 2, owner: 0, sequence: 64 };
        assert_eq!(all.of_bursts(&[burst(64)]), Err(missing));
        all.take(2, &page("c", &[], vec![installs("a", &[(0, 64, 140)])])).expect("bound");
        assert_eq!(all.unseen(0, 64), [] as [usize; 0]);
        let sight = |observer, installed_ns| Sight { number: 0, observer, published_ns: 100, installed_ns };
        assert_eq!(all.of_bursts(&[burst(64)]), Ok(vec![sight(1, 130), sight(2, 140)]));
        let unpublished = Invalid::NotPublished { owner: 0, sequence: 63 };
        assert_eq!(all.of_bursts(&[burst(63)]), Err(unpublished), "nearly is not exactly");
    }

    #[test]
    fn a_burst_that_is_seen_with_the_next_one_fails_the_collection() {
        let mut all = samples();
        all.take(0, &page("a", &[(64, 100), (128, 200)], vec![])).expect("bound");
        for (at, name) in [(1, "b"), (2, "c")] {
            all.take(at, &page(name, &[], vec![installs("a", &[(0, 128, 230)])])).expect("bound");
        }
        let superseded = Invalid::Superseded { observer: 1, owner: 0, sequences: (64, 128) };
        assert_eq!(all.of_bursts(&[burst(64), burst(128)]), Err(superseded));
        // Under sustained changes the interval that has a sequence is what makes it visible.
        let sights = all.of_publications(0..300).expect("both are seen");
        let times: Vec<_> = sights.iter().map(|sight| sight.installed_ns - sight.published_ns).collect();
        assert_eq!(times, [130, 130, 30, 30]);
        assert_eq!(all.of_publications(150..300).map(|sights| sights.len()), Ok(2));
        // A sequence within a publication is seen with the publication, at the time of its own interval.
        let sight = |observer| Sight { number: 5, observer, published_ns: 200, installed_ns: 230 };
        assert_eq!(all.of_sequence(5, 0, 65), Ok(vec![sight(1), sight(2)]));
        assert_eq!(all.of_sequence(5, 0, 128), Ok(vec![sight(1), sight(2)]));
        assert_eq!(all.of_sequence(5, 0, 129), Err(Invalid::NotPublished { owner: 0, sequence: 129 }));
    }

    #[test]
    fn what_was_dropped_or_left_out_fails_the_collection() {
        let mut all = samples();
        let first = page("b", &[], vec![installs("a", &[(0, 32, 1)])]);
        all.take(1, &first).expect("bound");
        let mut next = page("b", &[], vec![installs("a", &[(64, 96, 3)])]);
        next.shards[0].installed_first = 3;
        assert_eq!(all.take(1, &next), Err(Invalid::Dropped { observer: 1, count: 1 }));
        next.shards[0].installed_first = 2;
        assert_eq!(all.take(1, &next), Err(Invalid::Gap { observer: 1, owner: 0, between: (32, 64) }));
    }

    #[test]
    fn samples_of_something_else_are_refused() {
        let spoil: [fn(&mut VisibilityPage); 8] = [
            |page| page.node_id = "c".to_owned(),
            |page| page.scope_digest = Some("other".to_owned()),
            |page| page.scope_digest = None,
            |page| page.shards[0].published[0].epoch = 8,
            |page| page.shards[0].published[0].incarnation = "another".to_owned(),
            |page| page.shards[0].installed[0].epoch = 8,
            |page| page.shards[0].installed[0].incarnation = "another".to_owned(),
            |page| page.shards[0].installed[0].shard = 1,
        ];
        for (number, spoil) in spoil.into_iter().enumerate() {
            let mut page = page("b", &[(1, 1)], vec![installs("a", &[(0, 32, 1)])]);
            assert_eq!(samples().take(1, &page), Ok(()));
            spoil(&mut page);
            let refused = samples().take(1, &page);
            assert!(matches!(refused, Err(Invalid::Binding { observer: 1, .. })), "{number}: {refused:?}");
        }
        let mut page = page("b", &[], vec![]);
        page.clock.time_namespace = "time:[1]".to_owned();
        assert!(matches!(samples().take(1, &page), Err(Invalid::Clock { .. })));
    }

    #[test]
    fn nothing_is_seen_before_it_is_there() {
        let mut all = samples();
        all.take(0, &page("a", &[(64, 100)], vec![])).expect("bound");
        all.take(1, &page("b", &[], vec![installs("a", &[(0, 64, 99)])])).expect("bound");
        let early = Invalid::BeforePublication { observer: 1, owner: 0, sequence: 64 };
        assert_eq!(all.of_bursts(&[burst(64)]), Err(early));
    }
}
