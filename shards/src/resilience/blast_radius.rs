//! Blast radius: what else stops when one component fails, worked out from who calls whom and how often. A
//! component that answers errors at once takes little with it; one that is slow holds a slot in everything
//! that waits for it, and what has no slot left has failed, too.

/// A component as a flow visits it: itself, and what it calls in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Name of the component.
    pub component: String,
    /// What it calls, one after the other; the first that fails is the last.
    pub calls: Vec<Visit>,
}

/// A flow of requests through components.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Requests a round.
    pub rate: f64,
    /// Where they enter.
    pub entry: Visit,
}

/// How a component fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It answers with an error at once.
    Down,
    /// It is given up after the time-out.
    Slow,
}

/// For how many rounds a request holds a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holds {
    /// Of a component that calls no other.
    pub usual: f64,
    /// Of a component by itself, on top of what it calls; and of one that answers with an error.
    pub own: f64,
    /// Until a call is given up.
    pub timeout: f64,
}

/// Occupied slots of every component.
#[derive(Clone, Debug, PartialEq)]
pub struct BlastReport {
    /// Components in the order in which the flows visit them first, with the slots occupied in each.
    pub occupied: Vec<(String, f64)>,
}

/// What a fault reaches.
#[derive(Clone, Debug, PartialEq)]
pub struct Affected {
    /// Components with no slot left, in the order of the report.
    pub saturated: Vec<String>,
    /// Saturated components and the broken one.
    pub components: usize,
    /// Flows that pass one of them, by their place in the list.
    pub reached: Vec<usize>,
    /// Requests of those flows, in the unit of their rates.
    pub rate: f64,
}

impl Visit {
    fn passes(&self, hit: &dyn Fn(&str) -> bool) -> bool {
        hit(&self.component) || self.calls.iter().any(|call| call.passes(hit))
    }

    /// How long a request holds a slot here, and whether it fails.
    fn hold(&self, fault: Option<(&str, Failure)>, holds: &Holds) -> (f64, bool) {
        match fault {
            Some((broken, Failure::Down)) if broken == self.component => return (holds.own, true),
            Some((broken, Failure::Slow)) if broken == self.component => return (holds.timeout, true),
            _ if self.calls.is_empty() => return (holds.usual, false),
            _ => {}
        }
        let mut held = holds.own;
        for call in &self.calls {
            let (below, fails) = call.hold(fault, holds);
            held += below;
            if fails {
                return (held, true);
            }
        }
        (held, false)
    }

    fn occupy(&self, rate: f64, fault: Option<(&str, Failure)>, holds: &Holds, report: &mut BlastReport) {
        let slots = rate * self.hold(fault, holds).0;
        match report.occupied.iter_mut().find(|(component, _)| *component == self.component) {
            Some((_, occupied)) => *occupied += slots,
            None => report.occupied.push((self.component.clone(), slots)),
        }
        // Also what is called after a failing sibling: its own requests of other flows do not wait for ours,
        // and an estimate that is too high by them errs on the safe side.
        self.calls.iter().for_each(|call| call.occupy(rate, fault, holds, report));
    }
}

impl BlastReport {
    /// The slots that these flows occupy, with a component broken or none.
    #[must_use]
    pub fn of(flows: &[Flow], fault: Option<(&str, Failure)>, holds: &Holds) -> BlastReport {
        let mut report = BlastReport { occupied: Vec::new() };
        flows.iter().for_each(|flow| flow.entry.occupy(flow.rate, fault, holds, &mut report));
        report
    }

    /// Slots occupied in a component; 0 if no flow visits it.
    #[must_use]
    pub fn occupied_in(&self, component: &str) -> f64 {
        self.occupied.iter().find(|(name, _)| name == component).map_or(0.0, |(_, slots)| *slots)
    }

    /// What is hit if `broken` fails and each component has so many slots.
    #[must_use]
    pub fn affected(&self, flows: &[Flow], broken: &str, slots: f64) -> Affected {
        let full = self.occupied.iter().filter(|(_, occupied)| *occupied >= slots);
        let saturated: Vec<String> = full.map(|(component, _)| component.clone()).collect();
        let hit = |component: &str| component == broken || saturated.iter().any(|name| name == component);
        let reached: Vec<usize> = (0..flows.len()).filter(|flow| flows[*flow].entry.passes(&hit)).collect();
        let rate = reached.iter().map(|flow| flows[*flow].rate).sum();
        let components = saturated.len() + usize::from(!saturated.iter().any(|name| name == broken));
        Affected { components, saturated, reached, rate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDS: Holds = Holds { usual: 2.0, own: 1.0, timeout: 20.0 };

    fn leaf(component: &str) -> Visit {
        Visit { component: component.to_owned(), calls: Vec::new() }
    }

    fn flows() -> Vec<Flow> {
        let front = |calls| Visit { component: "front".to_owned(), calls };
        vec![
            Flow { rate: 1.0, entry: front(vec![leaf("index"), leaf("ssd")]) },
            Flow { rate: 0.5, entry: front(vec![leaf("peer")]) },
        ]
    }

    #[test]
    fn a_slow_component_takes_its_callers_with_it() {
        let flows = flows();
        let healthy = BlastReport::of(&flows, None, &HOLDS);
        assert_eq!((healthy.occupied_in("front"), healthy.occupied_in("nothing")), (6.5, 0.0));
        let down = BlastReport::of(&flows, Some(("index", Failure::Down)), &HOLDS);
        assert_eq!(down.occupied_in("front"), 3.5, "errors at once leave slots free");
        let slow = BlastReport::of(&flows, Some(("index", Failure::Slow)), &HOLDS);
        assert_eq!((slow.occupied_in("front"), slow.occupied_in("ssd")), (22.5, 2.0));
        let affected = slow.affected(&flows, "index", 20.0);
        assert_eq!(affected.saturated, ["front", "index"]);
        assert_eq!((affected.components, affected.reached, affected.rate), (2, vec![0, 1], 1.5));
        let affected = down.affected(&flows, "index", 20.0);
        assert_eq!((affected.components, affected.reached, affected.rate), (1, vec![0], 1.0));
    }
}
