//! Who receives what, and how much changes meanwhile, fixed before anything runs.

use std::time::Duration;

use serde::Serialize;

use crate::profile::FormalProfile;

/// Namespaces of the source.
pub const NAMESPACES: usize = 4;
/// Time between two bursts; they are of the namespaces in turn.
pub const PERIOD: Duration = Duration::from_millis(17);
/// Changes of a burst, half of them puts and half deletes.
pub const CHANGES: u64 = 64;

/// What receivers subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subscription {
    /// Every namespace.
    All,
    /// The first one.
    One,
}

impl Subscription {
    /// Namespaces, from the first on.
    pub fn namespaces(self) -> usize {
        match self {
            Subscription::All => NAMESPACES,
            Subscription::One => 1,
        }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Subscription::All => "all",
            Subscription::One => "1 of 4",
        }
    }
}

/// One cluster that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Nodes that follow the source.
    pub receivers: u16,
    /// What each of them wants.
    pub subscription: Subscription,
}

/// The clusters, in their order: one receiver, half of them, all; each with either subscription.
pub fn cells(managers: u16) -> Vec<Cell> {
    let all = managers - 1;
    let mut counts = vec![1, all.div_ceil(2), all];
    counts.dedup();
    let both = [Subscription::All, Subscription::One];
    let of_count = |receivers| both.map(|subscription| Cell { receivers, subscription });
    counts.into_iter().flat_map(of_count).collect()
}

/// Bursts in each cluster: as many of each namespace.
pub fn bursts(profile: FormalProfile) -> usize {
    match profile {
        FormalProfile::Ci => 40,
        FormalProfile::Dense => 600,
        FormalProfile::Formal => 1_800,
    }
}

/// Changes that a receiver is to be told of: the oracle of its scope.
pub fn changes_of(subscription: Subscription, bursts: usize) -> u64 {
    let told = (0..bursts).filter(|burst| burst % NAMESPACES < subscription.namespaces());
    told.count() as u64 * CHANGES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_receivers_is_measured_once_with_either_subscription() {
        let counts = |managers| -> Vec<u16> {
            cells(managers)
                .chunks(2)
                .map(|pair| {
                    assert_eq!(pair[0].receivers, pair[1].receivers);
                    assert_ne!(pair[0].subscription, pair[1].subscription);
                    pair[0].receivers
                })
                .collect()
        };
        assert_eq!(counts(2), [1]);
        assert_eq!(counts(3), [1, 2]);
        assert_eq!(counts(4), [1, 2, 3]);
        assert_eq!(counts(16), [1, 8, 15]);
        assert_eq!(counts(64), [1, 32, 63]);
    }

    #[test]
    fn a_scope_of_one_is_told_a_quarter() {
        for profile in [FormalProfile::Ci, FormalProfile::Dense, FormalProfile::Formal] {
            let bursts = bursts(profile);
            assert_eq!(changes_of(Subscription::All, bursts), bursts as u64 * CHANGES);
            assert_eq!(4 * changes_of(Subscription::One, bursts), bursts as u64 * CHANGES);
        }
        assert_eq!(changes_of(Subscription::One, 5), 2 * CHANGES, "the first and the fifth");
    }
}
