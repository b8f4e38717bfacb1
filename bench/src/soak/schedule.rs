//! What goes wrong, when and where: seeded, so that a run can be made again, and in rounds, so that each kind comes as
//! often as any other. Pure.

use std::time::Duration;

use serde::Serialize;

use super::plan::Faults;
use crate::payload::splitmix64;

/// The node whose process is never ended: its memory is watched from beginning to end.
pub const WITNESS: usize = 0;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A node hears no other node and is heard by none, for longer than sessions live in silence; its etcd answers.
    Partition,
    /// A node that follows the others runs a part of the time only.
    SlowSubscriber,
    /// A node stands still while another one changes more than its journal holds.
    JournalOverflow,
    /// A node that follows the others is ended in order and started again.
    ReceiverRestart,
    /// A node that others follow is killed and started again with its data.
    SourceRestart,
    /// A node stands still for longer than its lease lives.
    LeaseExpiry,
    /// etcd stands still for longer than leases live.
    EtcdStopped,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 7] = [
        Kind::Partition,
        Kind::SlowSubscriber,
        Kind::JournalOverflow,
        Kind::ReceiverRestart,
        Kind::SourceRestart,
        Kind::LeaseExpiry,
        Kind::EtcdStopped,
    ];

    /// Its stable name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Partition => "partition",
            Kind::SlowSubscriber => "slow-subscriber",
            Kind::JournalOverflow => "journal-overflow",
            Kind::ReceiverRestart => "receiver-restart",
            Kind::SourceRestart => "source-restart",
            Kind::LeaseExpiry => "lease-expiry",
            Kind::EtcdStopped => "etcd-stopped",
        }
    }

    /// Whether the struck node's process ends.
    pub fn ends_process(self) -> bool {
        matches!(self, Kind::ReceiverRestart | Kind::SourceRestart)
    }

    /// How long it lasts, from and until, in milliseconds.
    fn lasts_ms(self) -> (u64, u64) {
        match self {
            // Sessions live for 5 s in silence and leases for 10 s.
            Kind::Partition => (6_000, 6_500),
            Kind::SlowSubscriber => (4_000, 8_000),
            // At most: it ends when the journal has overflowed.
            Kind::JournalOverflow => (8_000, 8_000),
            Kind::ReceiverRestart | Kind::SourceRestart => (200, 2_000),
            Kind::LeaseExpiry | Kind::EtcdStopped => (12_000, 14_000),
        }
    }
}

/// A fault that is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// What.
    pub kind: Kind,
    /// Whose process, or whose network; not said of etcd.
    pub node: usize,
    /// Another node: the source whose journal overflows.
    pub other: usize,
    /// How long.
    pub lasts: Duration,
    /// Rest with load before it.
    pub calm: Duration,
}

/// Faults without end, round after round.
pub struct Schedule {
    state: u64,
    nodes: usize,
    calm_ms: (u64, u64),
    round: Vec<Kind>,
}

impl Schedule {
    /// The faults of a seed.
    ///
    /// # Panics
    /// If there are less than two nodes.
    pub fn of(seed: u64, faults: &Faults) -> Schedule {
        assert!(faults.nodes >= 2, "a fault leaves somebody to see it");
        Schedule { state: seed, nodes: usize::from(faults.nodes), calm_ms: faults.calm_ms, round: Vec::new() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        splitmix64(&mut self.state) % bound
    }

    fn within(&mut self, (from, until): (u64, u64)) -> Duration {
        Duration::from_millis(from + self.below(until - from + 1))
    }
}

impl Iterator for Schedule {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        if self.round.is_empty() {
            self.round = Kind::ALL.to_vec();
            for last in (1..self.round.len()).rev() {
                let other = self.below(last as u64 + 1) as usize;
                self.round.swap(last, other);
            }
        }
        let kind = self.round.pop().expect("a round was begun");
        let nodes = self.nodes as u64;
        let node = match kind.ends_process() {
            true => WITNESS + 1 + self.below(nodes - 1) as usize,
            false => self.below(nodes) as usize,
        };
        let other = (node + 1 + self.below(nodes - 1) as usize) % self.nodes;
        let (lasts, calm) = (self.within(kind.lasts_ms()), self.within(self.calm_ms));
        Some(Planned { kind, node, other, lasts, calm })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn faults(nodes: u16) -> Faults {
        Faults { nodes, residences: 512, seconds: 0, calm_ms: (10, 20) }
    }

    fn drawn(seed: u64, nodes: u16, count: usize) -> Vec<Planned> {
        Schedule::of(seed, &faults(nodes)).take(count).collect()
    }

    #[test]
    fn each_round_has_every_kind_once() {
        for seed in 0..50 {
            for round in drawn(seed, 3, 35).chunks(7) {
                let kinds: BTreeSet<Kind> = round.iter().map(|planned| planned.kind).collect();
                assert_eq!(kinds.len(), 7, "{round:?}");
            }
        }
        let names: BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), 7);
    }

    #[test]
    fn the_seed_decides_everything_and_rounds_differ() {
        assert_eq!(drawn(3, 4, 70), drawn(3, 4, 70));
        assert_ne!(drawn(3, 4, 70), drawn(4, 4, 70));
        let orders: BTreeSet<Vec<Kind>> = drawn(3, 4, 70)
            .chunks(7)
            .map(|round| round.iter().map(|planned| planned.kind).collect())
            .collect();
        assert!(orders.len() > 5, "{orders:?}");
    }

    #[test]
    fn every_node_is_struck_and_the_witness_never_ended() {
        for nodes in [2, 3, 6] {
            let all = drawn(9, nodes, 7_000);
            for planned in &all {
                assert!(planned.node < usize::from(nodes) && planned.other < usize::from(nodes));
                assert_ne!(planned.node, planned.other, "{planned:?}");
                assert!(!(planned.kind.ends_process() && planned.node == WITNESS), "{planned:?}");
                let calm = planned.calm.as_millis();
                assert!((10..=20).contains(&calm), "{planned:?}");
            }
            let pairs: BTreeSet<_> = (all.iter())
                .filter(|planned| planned.kind == Kind::JournalOverflow)
                .map(|planned| (planned.node, planned.other))
                .collect();
            assert_eq!(pairs.len(), usize::from(nodes) * usize::from(nodes - 1), "each pair");
        }
    }

    #[test]
    fn faults_last_as_long_as_what_they_are_to_outlast() {
        for planned in drawn(1, 4, 700) {
            let ms = planned.lasts.as_millis();
            match planned.kind {
                Kind::Partition => assert!(ms > 5_000 && ms < 7_000, "silence ends sessions, not leases"),
                Kind::LeaseExpiry | Kind::EtcdStopped => assert!(ms > 10_000),
                _ => assert!(ms < 10_000),
            }
        }
    }
}
