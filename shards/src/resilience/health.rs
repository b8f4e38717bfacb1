//! Health (chapter 5, row 10): what a check asks of a node, and who is asked for work because of it.
//!
//! A check that asks too little sees no fault; a check that asks for what all nodes share takes all of them
//! out at once when that fails, although each could go on serving. So the deep check asks for this node's
//! own path and nothing else: what the coordinator and peers do is not in it.

use std::time::Duration;

use crate::time::Moment;

/// Time from one check to the next (chapter 5: 2 s).
pub const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// What is known of a node when it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthFacts {
    /// Its process answers.
    pub answers: bool,
    /// It has what it needs to serve: it is no longer starting.
    pub warm: bool,
    /// A canary written to its own DRAM and SSD was read back.
    pub own_path: bool,
    /// What it shares with others and needs for writes answers.
    pub shared_dependency: bool,
    /// What it shares with others and needs now and then answers.
    pub distant_dependency: bool,
}

impl HealthFacts {
    /// Nothing is wrong.
    pub const WELL: HealthFacts = HealthFacts {
        answers: true,
        warm: true,
        own_path: true,
        shared_dependency: true,
        distant_dependency: true,
    };

    /// Whether it can serve reads.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.answers && self.warm
    }
}

/// What a check asks; each asks what the one before it asks, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HealthContent {
    /// Whether the process answers.
    Shallow,
    /// Whether it is warm.
    Readiness,
    /// Whether its own path works.
    #[default]
    DeepLocal,
    /// Whether what it shares with others and needs for writes answers.
    DeepShared,
    /// Whether everything it ever needs answers.
    DeepAll,
}

impl HealthContent {
    /// Every content, the shallowest first.
    pub const ALL: [HealthContent; 5] = [
        HealthContent::Shallow,
        HealthContent::Readiness,
        HealthContent::DeepLocal,
        HealthContent::DeepShared,
        HealthContent::DeepAll,
    ];

    /// Whether a node of these facts passes.
    #[must_use]
    pub fn evaluate(self, facts: &HealthFacts) -> bool {
        facts.answers
            && (self < HealthContent::Readiness || facts.warm)
            && (self < HealthContent::DeepLocal || facts.own_path)
            && (self < HealthContent::DeepShared || facts.shared_dependency)
            && (self < HealthContent::DeepAll || facts.distant_dependency)
    }
}

/// When checks are due.
#[derive(Clone, Copy, Debug)]
pub struct CheckTimer {
    interval: Duration,
    due: Moment,
}

impl CheckTimer {
    /// Checks each `interval`, the first at `first`.
    ///
    /// # Panics
    /// If the interval is zero.
    #[must_use]
    pub fn new(interval: Duration, first: Moment) -> CheckTimer {
        assert!(!interval.is_zero(), "checks take time");
        CheckTimer { interval, due: first }
    }

    /// Whether a check is due; if so it counts as made, and those that were missed are not made up for.
    pub fn take_due(&mut self, now: Moment) -> bool {
        let is_due = now >= self.due;
        while self.due <= now {
            self.due = self.due + self.interval;
        }
        is_due
    }

    /// When the next one is due.
    #[must_use]
    pub fn next_deadline(&self) -> Moment {
        self.due
    }
}

/// What a check changed for a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolChange {
    /// Nothing.
    None,
    /// It was asked and no longer is.
    Evicted,
    /// It is asked again.
    Readmitted,
}

/// Who of some replicas is asked for work. A decision holds until the replica's next check.
#[derive(Clone, Debug)]
pub struct PoolView {
    is_in: Vec<bool>,
    cursor: u64,
    checks: u64,
}

impl PoolView {
    /// All replicas are asked until a check says otherwise.
    #[must_use]
    pub fn new(replicas: usize) -> PoolView {
        PoolView { is_in: vec![true; replicas], cursor: 0, checks: 0 }
    }

    /// A replica was checked.
    ///
    /// # Panics
    /// If there is no such replica.
    pub fn on_check(&mut self, replica: usize, passes: bool) -> PoolChange {
        self.checks += 1;
        match (std::mem::replace(&mut self.is_in[replica], passes), passes) {
            (true, false) => PoolChange::Evicted,
            (false, true) => PoolChange::Readmitted,
            _ => PoolChange::None,
        }
    }

    /// Who is asked next, in turn; `None` if nobody is.
    pub fn route(&mut self) -> Option<usize> {
        let size = self.size();
        if size == 0 {
            return None;
        }
        let turn = usize::try_from(self.cursor % size as u64).expect("below a size");
        self.cursor += 1;
        self.members().nth(turn)
    }

    /// Replicas that are asked, in their order.
    pub fn members(&self) -> impl Iterator<Item = usize> + '_ {
        self.is_in.iter().enumerate().filter_map(|(replica, is_in)| is_in.then_some(replica))
    }

    /// How many are asked.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members().count()
    }

    /// Whether this one is asked.
    #[must_use]
    pub fn contains(&self, replica: usize) -> bool {
        self.is_in[replica]
    }

    /// Checks heard of.
    #[must_use]
    pub fn checks(&self) -> u64 {
        self.checks
    }
}

/// What checking costs and what a false eviction does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckLoad {
    /// Replicas that are checked.
    pub replicas: f64,
    /// Seconds from one check of a replica to the next.
    pub interval_s: f64,
}

impl CheckLoad {
    /// Checks a second over all replicas.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.replicas / self.interval_s
    }

    /// Checks in percent of what the store behind them serves otherwise, at `store_per_s` requests a second.
    #[must_use]
    pub fn store_load_pct(&self, store_per_s: f64) -> f64 {
        self.per_second() * 100.0 / store_per_s
    }
}

/// Load of each replica before and after one of them is taken out.
#[must_use]
pub fn eviction_load(load: f64, replicas: f64) -> (f64, f64) {
    (load / replicas, load / (replicas - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(change: impl Fn(&mut HealthFacts)) -> HealthFacts {
        let mut facts = HealthFacts::WELL;
        change(&mut facts);
        facts
    }

    #[test]
    fn the_default_sees_this_nodes_own_faults_and_nobody_elses() {
        let content = HealthContent::default();
        assert!(content.evaluate(&HealthFacts::WELL));
        assert!(!content.evaluate(&without(|facts| facts.answers = false)));
        assert!(!content.evaluate(&without(|facts| facts.warm = false)));
        assert!(!content.evaluate(&without(|facts| facts.own_path = false)));
        assert!(content.evaluate(&without(|facts| facts.shared_dependency = false)));
        assert!(content.evaluate(&without(|facts| facts.distant_dependency = false)));
    }

    #[test]
    fn a_deeper_check_passes_nothing_that_a_shallower_one_refuses() {
        for bits in 0..32_u8 {
            let fact = |bit: u8| bits & (1 << bit) != 0;
            let facts = HealthFacts {
                answers: fact(0),
                warm: fact(1),
                own_path: fact(2),
                shared_dependency: fact(3),
                distant_dependency: fact(4),
            };
            let passes: Vec<_> = HealthContent::ALL.iter().map(|content| content.evaluate(&facts)).collect();
            assert!(passes.windows(2).all(|pair| pair[0] >= pair[1]), "{facts:?}");
            assert_eq!(passes[0], facts.answers);
            assert_eq!(passes[1], facts.is_ready());
            assert_eq!(passes[4], bits == 31);
        }
    }

    #[test]
    fn a_decision_holds_until_the_next_check() {
        let mut pool = PoolView::new(3);
        assert_eq!(pool.on_check(1, false), PoolChange::Evicted);
        assert_eq!(pool.on_check(1, false), PoolChange::None);
        assert_eq!(pool.members().collect::<Vec<_>>(), [0, 2]);
        assert!(!pool.contains(1));
        assert_eq!((0..4).map(|_| pool.route().unwrap()).collect::<Vec<_>>(), [0, 2, 0, 2]);
        assert_eq!(pool.on_check(1, true), PoolChange::Readmitted);
        assert_eq!((pool.size(), pool.checks()), (3, 3));
    }

    #[test]
    fn an_empty_pool_asks_nobody_and_loses_no_turn() {
        let mut pool = PoolView::new(2);
        pool.route();
        pool.on_check(0, false);
        pool.on_check(1, false);
        assert_eq!(pool.route(), None);
        pool.on_check(0, true);
        pool.on_check(1, true);
        assert_eq!(pool.route(), Some(1));
    }

    #[test]
    fn checks_missed_are_not_made_up_for() {
        let mut timer = CheckTimer::new(CHECK_INTERVAL, Moment(0));
        assert!(timer.take_due(Moment(0)));
        assert!(!timer.take_due(Moment(1_999_999_999)));
        assert!(timer.take_due(Moment(7_000_000_000)));
        assert_eq!(timer.next_deadline(), Moment(8_000_000_000));
    }

    #[test]
    fn one_of_three_gone_is_half_as_much_again_for_the_rest() {
        assert_eq!(eviction_load(6.0, 3.0), (2.0, 3.0));
        let load = CheckLoad { replicas: 3.0, interval_s: 2.0 };
        assert_eq!((load.per_second(), load.store_load_pct(150.0)), (1.5, 1.0));
    }
}
