//! What a fault leaves in the counters of the nodes: one that leaves nothing was not seen by anybody, and proves nothing.
//! Pure.

use std::collections::BTreeMap;

use orbitkv::control::metadata::MetadataPage;
use serde::Serialize;

use super::schedule::{Kind, Planned};

/// Reset causes of a source that cannot go on from where its subscriber is.
const OVERFLOWS: [&str; 3] = ["HistoryGone", "SlowSubscriber", "Overload"];

/// Counters of a node's process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// How often the node was started again: counters begin again with it.
    pub life: u32,
    /// Sessions that ended from elsewhere.
    pub sessions_lost: u64,
    /// Snapshots installed.
    pub snapshots_installed: u64,
    /// Owner streams excluded because their source left or was replaced.
    pub streams_excluded: u64,
    /// Resets because a source had no history left, or no room.
    pub overflows: u64,
    /// Lives that ended for good while the process lived on.
    pub fences: u64,
    /// Lives registered.
    pub registrations: u64,
    /// Times that the members were no longer known.
    pub suspensions: u64,
    /// Requests and renewals that etcd did not answer in time.
    pub unanswered: u64,
}

impl Counters {
    /// What a page says.
    pub fn of(page: &MetadataPage, life: u32) -> Counters {
        let peers = || page.shards.iter().filter_map(|shard| shard.peers.as_ref());
        let resets = page.resets.iter().filter(|reset| OVERFLOWS.contains(&reset.cause.as_str()));
        Counters {
            life,
            sessions_lost: peers().map(|peers| peers.sessions_lost).sum(),
            snapshots_installed: peers().map(|peers| peers.snapshots_installed).sum(),
            streams_excluded: peers().map(|peers| peers.streams_excluded).sum(),
            overflows: resets.map(|reset| reset.count).sum(),
            fences: page.membership.fences,
            registrations: page.membership.registrations,
            suspensions: page.membership.suspensions,
            unanswered: page.membership.unanswered,
        }
    }
}

/// What a fault has left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traces {
    /// By what was counted.
    pub counted: BTreeMap<&'static str, u64>,
}

impl Traces {
    /// Whether somebody saw it: all that had to be counted was.
    pub fn are_whole(&self) -> bool {
        !self.counted.is_empty() && self.counted.values().all(|count| *count > 0)
    }
}

/// By how many records an owner's rearmost follower is behind, beyond half of what that owner changed while the follower
/// stood still: one that runs is behind by a burst or two, however slow the machine is.
pub fn lag_beyond(lag: u64, changed: u64) -> u64 {
    match changed {
        0 => 0,
        _ => lag.saturating_sub(changed / 2),
    }
}

/// What came to a counter over some of the nodes; a process that began meanwhile counts from nothing.
fn came(
    before: &[Counters],
    after: &[Counters],
    which: impl Fn(usize) -> bool,
    of: fn(&Counters) -> u64,
) -> u64 {
    let pairs = before.iter().zip(after).enumerate().filter(|(at, _)| which(*at));
    let since = |(before, after): (&Counters, &Counters)| {
        let base = if before.life == after.life { of(before) } else { 0 };
        of(after).saturating_sub(base)
    };
    pairs.map(|(_, pair)| since(pair)).sum()
}

/// What a fault has to leave, by the counters of all nodes before it and after all are well again. `lag_beyond` is by how
/// many records somebody was seen behind, beyond what is usual.
pub fn of(planned: &Planned, before: &[Counters], after: &[Counters], lag_beyond: u64) -> Traces {
    let everywhere = |_: usize| true;
    let struck = |at: usize| at == planned.node;
    let others = |at: usize| at != planned.node;
    let lost = |which: &dyn Fn(usize) -> bool| {
        came(before, after, which, |counters| counters.sessions_lost + counters.streams_excluded)
    };
    let snapshots =
        |which: &dyn Fn(usize) -> bool| came(before, after, which, |counters| counters.snapshots_installed);
    let counted = match planned.kind {
        Kind::Partition => vec![("sessions lost by others", lost(&others))],
        Kind::SlowSubscriber => vec![("records behind, beyond half of what changed in a stop", lag_beyond)],
        Kind::JournalOverflow => vec![
            ("resets for want of history", came(before, after, everywhere, |counters| counters.overflows)),
            ("snapshots of the one that stood still", snapshots(&struck)),
        ],
        Kind::ReceiverRestart => {
            vec![
                ("sessions lost by others", lost(&others)),
                ("snapshots of the one that came back", snapshots(&struck)),
            ]
        }
        Kind::SourceRestart => {
            vec![("sessions lost by others", lost(&others)), ("snapshots of others", snapshots(&others))]
        }
        Kind::LeaseExpiry => vec![
            ("fences of the one that stood still", came(before, after, struck, |counters| counters.fences)),
            ("lives that it registered", came(before, after, struck, |counters| counters.registrations)),
        ],
        Kind::EtcdStopped => vec![(
            "suspensions and unanswered requests",
            came(before, after, everywhere, |counters| counters.suspensions + counters.unanswered),
        )],
    };
    Traces { counted: counted.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use orbitkv::control::metadata::{Membership, Reset};
    use orbitkv::control::report::{PeersReport, ShardReport};

    use super::*;

    fn planned(kind: Kind) -> Planned {
        Planned { kind, node: 1, other: 2, lasts: Duration::ZERO, calm: Duration::ZERO }
    }

    fn whole(kind: Kind, lag: u64, change: impl Fn(&mut [Counters])) -> bool {
        let before = vec![
            Counters {
                sessions_lost: 5,
                snapshots_installed: 5,
                streams_excluded: 5,
                overflows: 5,
                fences: 5,
                registrations: 5,
                suspensions: 5,
                unanswered: 5,
                life: 0,
            };
            3
        ];
        let mut after = before.clone();
        change(&mut after);
        of(&planned(kind), &before, &after, lag).are_whole()
    }

    #[test]
    fn a_fault_that_leaves_nothing_was_not_seen() {
        for kind in Kind::ALL {
            assert!(!whole(kind, 0, |_| ()), "{kind:?}");
        }
    }

    #[test]
    fn each_kind_is_seen_by_its_own_counters_at_the_right_node() {
        assert!(whole(Kind::Partition, 0, |after| after[0].sessions_lost += 1));
        assert!(!whole(Kind::Partition, 0, |after| after[1].sessions_lost += 1), "only it said so itself");
        assert!(whole(Kind::SlowSubscriber, 1, |_| ()));
        let overflow = |resets: u64, snapshots_at: usize| {
            whole(Kind::JournalOverflow, 0, move |after| {
                after[2].overflows += resets;
                after[snapshots_at].snapshots_installed += 1;
            })
        };
        assert!(overflow(1, 1));
        assert!(
            !overflow(0, 1) && !overflow(1, 0),
            "both have to be seen, and the snapshot at the struck node"
        );
        for (kind, snapshots_at, seen) in [
            (Kind::ReceiverRestart, 1, true),
            (Kind::ReceiverRestart, 0, false),
            (Kind::SourceRestart, 0, true),
            (Kind::SourceRestart, 1, false),
        ] {
            let found = whole(kind, 0, |after| {
                after[0].streams_excluded += 1;
                // Its counters begin again, and what it had before is not what came to it.
                after[1] = Counters { life: 1, ..Counters::default() };
                after[snapshots_at].snapshots_installed += 2;
            });
            assert_eq!(found, seen, "{kind:?} {snapshots_at}");
        }
        assert!(whole(Kind::LeaseExpiry, 0, |after| {
            after[1].fences += 1;
            after[1].registrations += 1;
        }));
        assert!(!whole(Kind::LeaseExpiry, 0, |after| after[1].registrations += 1));
        assert!(whole(Kind::EtcdStopped, 0, |after| after[2].unanswered += 1));
    }

    #[test]
    fn a_follower_is_slow_if_it_lacks_most_of_what_changed_while_it_stood_still() {
        assert_eq!(lag_beyond(400, 400), 200);
        assert_eq!(lag_beyond(64, 400), 0, "two bursts on their way");
        assert_eq!(lag_beyond(64, 96), 16, "an owner that made three bursts in that time");
        assert_eq!(lag_beyond(64, 0), 0, "nothing changed, so nothing shows");
    }

    #[test]
    fn counters_are_those_of_the_page() {
        let peers = PeersReport { sessions_lost: 2, snapshots_installed: 3, ..Default::default() };
        let shard = ShardReport { peers: Some(peers), ..Default::default() };
        let reset = |cause: &str, count| Reset { cause: cause.to_owned(), count };
        let page = MetadataPage {
            shards: vec![shard.clone(), shard],
            resets: vec![reset("HistoryGone", 4), reset("SlowSubscriber", 1), reset("ViewUnknown", 7)],
            membership: Membership { fences: 6, registrations: 8, ..Default::default() },
            ..Default::default()
        };
        let expected = Counters {
            life: 3,
            sessions_lost: 4,
            snapshots_installed: 6,
            overflows: 5,
            fences: 6,
            registrations: 8,
            ..Default::default()
        };
        assert_eq!(Counters::of(&page, 3), expected);
    }
}
