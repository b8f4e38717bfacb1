//! Redundancy zones (chapter 5, row 12): which nodes fail together, which is nearest, and whether the rest
//! can carry the load when a zone is gone.
//!
//! A label says where a node stands and nothing else; without labels every node is as near as every other
//! and fails alone. Copies are placed so that as few as possible share a zone, then a region.

use std::collections::BTreeMap;

/// Where a node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ZoneLabel {
    /// Its region.
    pub region: String,
    /// Its zone within the region.
    pub zone: String,
}

impl ZoneLabel {
    /// A label of these two names.
    #[must_use]
    pub fn new(region: &str, zone: &str) -> ZoneLabel {
        ZoneLabel { region: region.into(), zone: zone.into() }
    }

    /// How far another place is.
    #[must_use]
    pub fn distance(&self, other: &ZoneLabel) -> Distance {
        match (self.region == other.region, self.zone == other.zone) {
            (true, true) => Distance::SameZone,
            (true, false) => Distance::SameRegion,
            (false, _) => Distance::Remote,
        }
    }
}

/// How far two nodes are from each other, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// In one zone.
    SameZone,
    /// In two zones of a region.
    SameRegion,
    /// In two regions.
    Remote,
}

/// What fails at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneFault<'a> {
    /// One node, by its place in the plan.
    Machine(usize),
    /// All nodes of a zone.
    Zone(&'a ZoneLabel),
    /// All nodes of a region.
    Region(&'a str),
}

/// Nodes and where they stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    labels: Vec<ZoneLabel>,
}

impl Placement {
    /// Nodes at these places.
    #[must_use]
    pub fn new(labels: Vec<ZoneLabel>) -> Placement {
        Placement { labels }
    }

    /// Where each node stands.
    #[must_use]
    pub fn labels(&self) -> &[ZoneLabel] {
        &self.labels
    }

    /// Which nodes a fault leaves.
    #[must_use]
    pub fn survivors(&self, fault: ZoneFault<'_>) -> Survivors {
        let survives = |(node, label): (usize, &ZoneLabel)| match fault {
            ZoneFault::Machine(failed) => node != failed,
            ZoneFault::Zone(zone) => label != zone,
            ZoneFault::Region(region) => label.region != region,
        };
        Survivors { alive: self.labels.iter().enumerate().map(survives).collect() }
    }

    /// How far one node is from another.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn distance(&self, from: usize, to: usize) -> Distance {
        self.labels[from].distance(&self.labels[to])
    }

    /// Chooses `count` nodes, or all if there are fewer: each next one stands where fewest of those chosen
    /// stand, by region, then by zone; among equals the first.
    #[must_use]
    pub fn pick(&self, count: usize) -> Vec<usize> {
        let mut regions: BTreeMap<&str, usize> = BTreeMap::new();
        let mut zones: BTreeMap<&ZoneLabel, usize> = BTreeMap::new();
        let mut picked = Vec::new();
        while picked.len() < count.min(self.labels.len()) {
            let crowd = |node: &usize| {
                let label = &self.labels[*node];
                (regions.get(label.region.as_str()).copied(), zones.get(label).copied())
            };
            let next = (0..self.labels.len()).filter(|node| !picked.contains(node)).min_by_key(crowd);
            let next = next.expect("fewer are picked than there are");
            *regions.entry(&self.labels[next].region).or_default() += 1;
            *zones.entry(&self.labels[next]).or_default() += 1;
            picked.push(next);
        }
        picked
    }

    /// Nodes by distance from a place, nearest first; those equally far keep their order.
    #[must_use]
    pub fn nearest_first(&self, from: &ZoneLabel) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.labels.len()).collect();
        order.sort_by_key(|node| from.distance(&self.labels[*node]));
        order
    }
}

/// Which nodes of a [`Placement`] live on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivors {
    alive: Vec<bool>,
}

impl Survivors {
    /// All of `nodes`.
    #[must_use]
    pub fn all(nodes: usize) -> Survivors {
        Survivors { alive: vec![true; nodes] }
    }

    /// Whether this one does.
    #[must_use]
    pub fn contains(&self, node: usize) -> bool {
        self.alive[node]
    }

    /// How many do.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes().count()
    }

    /// Those that do, in the plan's order.
    pub fn nodes(&self) -> impl Iterator<Item = usize> + '_ {
        self.alive.iter().enumerate().filter_map(|(node, alive)| alive.then_some(node))
    }

    /// Percent of the nodes that do.
    #[must_use]
    pub fn capacity_pct(&self) -> f64 {
        self.count() as f64 * 100.0 / self.alive.len() as f64
    }
}

/// A load spread evenly over zones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ZoneCapacity {
    /// Zones; a second one at least, if one may fail.
    pub zones: f64,
    /// The whole load.
    pub load: f64,
}

impl ZoneCapacity {
    /// Load of a zone.
    #[must_use]
    pub fn per_zone(&self) -> f64 {
        self.load / self.zones
    }

    /// Load of a zone when another is gone.
    #[must_use]
    pub fn per_zone_after_loss(&self) -> f64 {
        self.load / (self.zones - 1.0)
    }

    /// What must be there so that the rest carries everything.
    #[must_use]
    pub fn to_provision(&self) -> f64 {
        self.zones * self.per_zone_after_loss()
    }

    /// What of it does nothing on a day without a failure.
    #[must_use]
    pub fn idle(&self) -> f64 {
        self.to_provision() - self.load
    }

    /// That, in percent of the load.
    #[must_use]
    pub fn idle_pct(&self) -> f64 {
        (self.to_provision() / self.load - 1.0) * 100.0
    }

    /// Whether the rest could *not* carry the load out of `capacity` when a zone is gone: it is above
    /// (n − 1)/n of it.
    #[must_use]
    pub fn lacks_headroom(&self, capacity: f64) -> bool {
        self.load > capacity * (self.zones - 1.0) / self.zones
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(labels: &[(&str, &str)]) -> Placement {
        Placement::new(labels.iter().map(|(region, zone)| ZoneLabel::new(region, zone)).collect())
    }

    #[test]
    fn a_zone_of_the_same_name_in_another_region_is_another_zone() {
        let plan = placement(&[("r1", "z1"), ("r1", "z2"), ("r2", "z1")]);
        assert_eq!(plan.distance(0, 0), Distance::SameZone);
        assert_eq!(plan.distance(0, 1), Distance::SameRegion);
        assert_eq!(plan.distance(0, 2), Distance::Remote);
        let zone = ZoneLabel::new("r1", "z1");
        assert_eq!(plan.survivors(ZoneFault::Zone(&zone)).nodes().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(plan.survivors(ZoneFault::Region("r1")).nodes().collect::<Vec<_>>(), [2]);
        assert_eq!(plan.survivors(ZoneFault::Machine(1)).nodes().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(plan.survivors(ZoneFault::Machine(1)).capacity_pct(), 200.0 / 3.0);
    }

    #[test]
    fn copies_are_spread_over_regions_then_over_zones() {
        let plan = placement(&[("r1", "z1"), ("r1", "z1"), ("r1", "z2"), ("r2", "z1"), ("r2", "z2")]);
        assert_eq!(plan.pick(2), [0, 3]);
        assert_eq!(plan.pick(4), [0, 3, 2, 4]);
        assert_eq!(plan.pick(9), [0, 3, 2, 4, 1]);
        let zone = ZoneLabel::new("r1", "z1");
        let left = plan.survivors(ZoneFault::Zone(&zone));
        assert!(plan.pick(2).iter().any(|node| left.contains(*node)));
    }

    #[test]
    fn without_labels_all_are_equally_near_and_keep_their_order() {
        let plan = placement(&[("", ""); 3]);
        assert_eq!(plan.nearest_first(&ZoneLabel::default()), [0, 1, 2]);
        let plan = placement(&[("r2", "z1"), ("r1", "z2"), ("r1", "z1"), ("r1", "z2")]);
        assert_eq!(plan.nearest_first(&ZoneLabel::new("r1", "z1")), [2, 1, 3, 0]);
    }

    #[test]
    fn headroom_is_gone_above_the_capacity_of_all_zones_but_one() {
        let capacity = ZoneCapacity { zones: 3.0, load: 60.0 };
        assert_eq!((capacity.per_zone(), capacity.per_zone_after_loss()), (20.0, 30.0));
        assert_eq!((capacity.to_provision(), capacity.idle(), capacity.idle_pct()), (90.0, 30.0, 50.0));
        assert!(!capacity.lacks_headroom(90.0));
        assert!(capacity.lacks_headroom(89.0));
    }
}
