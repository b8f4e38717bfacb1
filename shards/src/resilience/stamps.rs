//! Deployment stamps (chapter 5, row 13): how far a failure reaches when a service is cut into equal,
//! separate parts, and what still ties the parts together.
//!
//! A component that stamps share keeps its whole reach, however many stamps there are. The report counts
//! links between what is shared and what is not, because each of them is a way for one stamp's trouble to
//! become another's. `orbitkv doctor` makes flows and scopes from what it sees of a cluster.

use std::collections::BTreeSet;

/// Work of one kind and the components it passes, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Its name.
    pub name: String,
    /// Its load in one stamp, in any unit.
    pub load: f64,
    /// What it passes.
    pub components: Vec<String>,
}

/// Whether a component is there once or in each stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One for all stamps.
    Shared,
    /// One in each stamp.
    Local,
}

/// How far the failure of one component reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Radius {
    /// Percent of all load that passes it.
    pub affected_pct: f64,
    /// Stamps that have some of that load.
    pub stamps: u64,
}

/// Flows over stamps.
#[derive(Clone, Debug)]
pub struct StampReport {
    flows: Vec<Flow>,
    components: Vec<String>,
    shared: BTreeSet<String>,
    stamps: u64,
}

impl StampReport {
    /// Each of `stamps` has these flows; the components named in `shared` are there once.
    ///
    /// # Panics
    /// If there are no stamps.
    #[must_use]
    pub fn new(flows: Vec<Flow>, shared: BTreeSet<String>, stamps: u64) -> StampReport {
        assert!(stamps > 0, "there is at least one stamp");
        let mut components: Vec<String> = Vec::new();
        for component in flows.iter().flat_map(|flow| &flow.components) {
            if !components.contains(component) {
                components.push(component.clone());
            }
        }
        StampReport { flows, components, shared, stamps }
    }

    /// Every component, in the order of first appearance over the flows.
    #[must_use]
    pub fn components(&self) -> &[String] {
        &self.components
    }

    /// Stamps.
    #[must_use]
    pub fn stamps(&self) -> u64 {
        self.stamps
    }

    /// Whether a component is there once or in each stamp.
    #[must_use]
    pub fn scope(&self, component: &str) -> Scope {
        if self.shared.contains(component) { Scope::Shared } else { Scope::Local }
    }

    /// Components of this scope.
    #[must_use]
    pub fn count(&self, scope: Scope) -> usize {
        self.components.iter().filter(|component| self.scope(component) == scope).count()
    }

    /// Links of flows between a component that is shared and one that is not; a link that two flows have
    /// counts twice.
    #[must_use]
    pub fn crossing_links(&self) -> usize {
        let links = self.flows.iter().flat_map(|flow| flow.components.windows(2));
        links.filter(|link| self.scope(&link[0]) != self.scope(&link[1])).count()
    }

    /// Links of flows, each as often as flows have it.
    #[must_use]
    pub fn links(&self) -> usize {
        self.flows.iter().map(|flow| flow.components.len().saturating_sub(1)).sum()
    }

    /// How far its failure reaches.
    #[must_use]
    pub fn radius(&self, component: &str) -> Radius {
        let stamps = match self.scope(component) {
            Scope::Shared => self.stamps,
            Scope::Local => 1,
        };
        let passes = |flow: &&Flow| flow.components.iter().any(|passed| passed == component);
        let affected: f64 = self.flows.iter().filter(passes).map(|flow| flow.load * stamps as f64).sum();
        let total = self.flows.iter().map(|flow| flow.load).sum::<f64>() * self.stamps as f64;
        Radius { affected_pct: affected * 100.0 / total, stamps }
    }

    /// The farthest reach of anything that is shared: more stamps do not get below it. `None` if nothing is.
    #[must_use]
    pub fn shared_floor(&self) -> Option<Radius> {
        self.farthest_shared().map(|(_, radius)| radius)
    }

    /// What has that reach. `None` if nothing is shared.
    #[must_use]
    pub fn farthest_shared(&self) -> Option<(&str, Radius)> {
        let shared = self.components.iter().filter(|component| self.scope(component) == Scope::Shared);
        let radii = shared.map(|component| (component.as_str(), self.radius(component)));
        radii.max_by(|(_, one), (_, other)| one.affected_pct.total_cmp(&other.affected_pct))
    }
}

/// Components that stamps take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampSize {
    /// Components of each stamp.
    pub local: u64,
    /// Components there once.
    pub shared: u64,
}

impl StampSize {
    /// Components of so many stamps.
    #[must_use]
    pub fn total(&self, stamps: u64) -> u64 {
        self.local * stamps + self.shared
    }

    /// The same if each stamp has a second one in another region.
    #[must_use]
    pub fn total_with_geo_replicas(&self, stamps: u64) -> u64 {
        self.total(2 * stamps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(shared: &[&str], stamps: u64) -> StampReport {
        let flow = |name: &str, load, components: &[&str]| Flow {
            name: name.into(),
            load,
            components: components.iter().map(|name| (*name).to_owned()).collect(),
        };
        let flows =
            vec![flow("read", 3.0, &["front", "cache", "store"]), flow("write", 1.0, &["front", "store"])];
        StampReport::new(flows, shared.iter().map(|name| (*name).to_owned()).collect(), stamps)
    }

    #[test]
    fn what_is_shared_keeps_its_reach_and_what_is_not_is_divided() {
        let report = report(&["front"], 4);
        assert_eq!(report.radius("front"), Radius { affected_pct: 100.0, stamps: 4 });
        assert_eq!(report.radius("store"), Radius { affected_pct: 25.0, stamps: 1 });
        assert_eq!(report.radius("cache"), Radius { affected_pct: 18.75, stamps: 1 });
        assert_eq!(report.shared_floor(), Some(report.radius("front")));
        assert_eq!(report.farthest_shared().map(|(name, _)| name), Some("front"));
        assert_eq!(report.links(), 3);
    }

    #[test]
    fn a_link_crosses_where_scopes_differ_and_counts_for_each_flow() {
        assert_eq!(report(&[], 4).crossing_links(), 0);
        assert_eq!(report(&["front"], 4).crossing_links(), 2);
        assert_eq!(report(&["cache"], 4).crossing_links(), 2);
        assert_eq!(report(&["front", "cache"], 4).crossing_links(), 2);
        assert_eq!(report(&["front", "cache", "store"], 4).crossing_links(), 0);
    }

    #[test]
    fn components_keep_the_order_of_first_appearance() {
        let report = report(&["store"], 2);
        assert_eq!(report.components(), ["front", "cache", "store"]);
        assert_eq!((report.count(Scope::Shared), report.count(Scope::Local)), (1, 2));
        assert_eq!(report.shared_floor().map(|radius| radius.stamps), Some(2));
    }

    #[test]
    fn without_anything_shared_there_is_no_floor() {
        assert_eq!(report(&[], 3).shared_floor(), None);
        let size = StampSize { local: 8, shared: 1 };
        assert_eq!((size.total(4), size.total_with_geo_replicas(4)), (33, 65));
    }
}
