//! The fixed order of those who have a block: whoever is told of lately goes before whoever is not, DRAM before SSD,
//! the preferred zone before the others, and among equals as the index lists them (chapter 5, rows 8, 9 and 12).
//!
//! A hint that is older than the bound is still one: its source alone knows what is there, and no bytes are served for
//! their age. So it is asked last, and not left out. Which zone is preferred is said by
//! [`ZonePreference`](super::ZonePreference).

use std::time::Duration;

use orbitkv_wire::identity::Medium;

use crate::resilience::degradation::FRESHNESS_BOUND;

/// What decides the place of a candidate: the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preference {
    is_old: bool,
    is_on_ssd: bool,
    is_elsewhere: bool,
}

impl Preference {
    /// Of a residence on this medium, of which the source's inventory was last known to be whole so long ago, if it
    /// ever was; in the preferred zone or not.
    #[must_use]
    pub fn new(age: Option<Duration>, medium: Medium, is_in_preferred_zone: bool) -> Preference {
        let is_old = age.is_none_or(|age| age > FRESHNESS_BOUND);
        Preference { is_old, is_on_ssd: medium == Medium::Ssd, is_elsewhere: !is_in_preferred_zone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_goes_before_medium_and_medium_before_zone() {
        let young = Some(FRESHNESS_BOUND);
        let old = Some(FRESHNESS_BOUND + Duration::from_nanos(1));
        let (near, far) = (true, false);
        let mut all = Vec::new();
        for age in [None, old, young, Some(Duration::ZERO)] {
            for medium in [Medium::Ssd, Medium::Dram] {
                for zone in [far, near] {
                    all.push((age, medium, zone));
                }
            }
        }
        let mut sorted = all.clone();
        sorted.sort_by_key(|&(age, medium, zone)| Preference::new(age, medium, zone));
        // Equals keep their order: of the same bound none is younger.
        let expected: Vec<_> = [[young, Some(Duration::ZERO)], [None, old]]
            .into_iter()
            .flat_map(|ages| {
                let places =
                    [(Medium::Dram, near), (Medium::Dram, far), (Medium::Ssd, near), (Medium::Ssd, far)];
                places.into_iter().flat_map(move |(medium, at)| ages.map(|age| (age, medium, at)))
            })
            .collect();
        assert_eq!(sorted, expected);
    }
}
