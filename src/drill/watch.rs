//! What a drill sees: the pages of the nodes that run, whether a condition holds on them, and what changed.

use std::time::Duration;

use serde::Serialize;

use super::plan::Condition;
use crate::cluster::{Cluster, NodeSight};
use crate::control::metadata::MetadataPage;

/// The pages of all nodes at one moment; none of whoever was not asked or did not answer.
pub(super) struct Look {
    names: Vec<String>,
    asked: Vec<bool>,
    pages: Vec<Option<MetadataPage>>,
}

/// What a node said of itself changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transition {
    /// Seconds since the first step began.
    pub at_s: f64,
    /// The node.
    pub node: String,
    /// What it says now, with its epoch and coverage.
    pub says: String,
}

impl Look {
    /// Asks those nodes, all at once, so that one that is silent delays the others only once.
    pub(super) fn at(cluster: &Cluster, asked: &[bool]) -> Look {
        let pages = std::thread::scope(|scope| {
            let questions: Vec<_> = cluster
                .nodes()
                .iter()
                .zip(asked)
                .map(|(node, &is_asked)| scope.spawn(move || is_asked.then(|| node.page()).flatten()))
                .collect();
            questions.into_iter().map(|page| page.join().expect("a page is read without panics")).collect()
        });
        let names = cluster.nodes().iter().map(|node| node.name().to_owned()).collect();
        Look { names, asked: asked.to_vec(), pages }
    }

    fn asked(&self) -> impl Iterator<Item = (usize, Option<&MetadataPage>)> {
        (0..self.names.len()).filter(|&at| self.asked[at]).map(|at| (at, self.pages[at].as_ref()))
    }

    /// Epoch under which this node's page lists another as a member.
    fn listed(page: &MetadataPage, name: &str) -> Option<u64> {
        page.membership.members.iter().find(|member| member.node_id == name).map(|member| member.epoch)
    }

    /// Names of the nodes that were asked: they should run.
    fn running(&self) -> Vec<&str> {
        self.asked().map(|(at, _)| self.names[at].as_str()).collect()
    }

    /// Whether a node knows all that run and has what they hold, and lists nobody beside them.
    pub(super) fn is_complete(&self, at: usize) -> bool {
        let running = self.running();
        self.pages[at].as_ref().is_some_and(|page| {
            NodeSight::of(page, &running).complete && page.membership.members.len() == running.len()
        })
    }

    /// Whether it holds; [`Condition::Serves`] cannot be seen on a page.
    pub(super) fn holds(&self, condition: Condition) -> bool {
        let name = |at: usize| self.names[at].as_str();
        match condition {
            Condition::Dropped(at) => {
                let mut others = self.asked().filter(|(other, _)| *other != at);
                others.all(|(_, page)| page.is_some_and(|page| Look::listed(page, name(at)).is_none()))
            }
            Condition::Fenced(at) => self.pages[at].as_ref().is_some_and(|page| page.epoch.is_none()),
            Condition::Silent(at) => self.pages[at].is_none(),
            Condition::Member(at) => {
                let own = self.pages[at].as_ref().filter(|page| page.membership.validity == "member");
                let epoch = own.and_then(|page| page.epoch);
                epoch.is_some()
                    && self
                        .asked()
                        .all(|(_, page)| page.is_some_and(|page| Look::listed(page, name(at)) == epoch))
            }
            Condition::Complete => self.asked().all(|(at, _)| self.is_complete(at)),
            Condition::Serves(_) => false,
        }
    }

    /// Age of the least fresh view that any node has of another, in seconds.
    pub(super) fn behind_s_max(&self) -> f64 {
        let ages = self.pages.iter().flatten().map(|page| page.oldest_age_ms);
        ages.max().unwrap_or(0) as f64 / 1e3
    }

    /// What each node says now, in a few words.
    fn words(&self) -> Vec<String> {
        let words = |at: usize| match &self.pages[at] {
            _ if !self.asked[at] => "does not run".to_owned(),
            None => "silent".to_owned(),
            Some(page) => {
                let epoch = page.epoch.map_or_else(String::new, |epoch| format!(" with epoch {epoch}"));
                let members = page.membership.members.len();
                format!("{}{epoch}, {}, {members} members", page.membership.validity, page.coverage)
            }
        };
        (0..self.names.len()).map(words).collect()
    }
}

/// What the nodes said at the last look.
#[derive(Default)]
pub(super) struct Record {
    words: Vec<String>,
    pub(super) transitions: Vec<Transition>,
}

impl Record {
    /// Takes down what changed since the last look.
    pub(super) fn add(&mut self, look: &Look, at: Duration) {
        let words = look.words();
        for (place, says) in words.iter().enumerate() {
            if self.words.get(place) != Some(says) {
                let (node, says) = (look.names[place].clone(), says.clone());
                self.transitions.push(Transition { at_s: at.as_secs_f64(), node, says });
            }
        }
        self.words = words;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::metadata::{MemberRow, Membership, Phase};

    /// A page of a member that lists these with these epochs.
    fn page(name: &str, members: &[(&str, u64)]) -> MetadataPage {
        let row = |&(name, epoch): &(&str, u64)| MemberRow {
            node_id: name.to_owned(),
            epoch,
            ..MemberRow::default()
        };
        let mut page = MetadataPage {
            epoch: members.iter().find(|member| member.0 == name).map(|member| member.1),
            membership: Membership {
                validity: "member".to_owned(),
                members: members.iter().map(row).collect(),
                ..Membership::default()
            },
            coverage: "CompleteAtWatermarks".to_owned(),
            phase: Phase::Serving,
            ..MetadataPage::default()
        };
        page.identity.node_id = name.to_owned();
        page
    }

    fn look(pages: Vec<Option<MetadataPage>>, asked: [bool; 3]) -> Look {
        Look { names: ["a", "b", "c"].map(str::to_owned).to_vec(), asked: asked.to_vec(), pages }
    }

    const ALL: [(&str, u64); 3] = [("a", 1), ("b", 1), ("c", 1)];
    const AGAIN: [(&str, u64); 3] = [("a", 1), ("b", 2), ("c", 1)];

    #[test]
    fn a_node_is_dropped_when_nobody_lists_it_and_everybody_answers() {
        let without = [("a", 1), ("c", 1)];
        let holds = |a: Option<MetadataPage>, c: Option<MetadataPage>| {
            look(vec![a, None, c], [true, false, true]).holds(Condition::Dropped(1))
        };
        assert!(holds(Some(page("a", &without)), Some(page("c", &without))));
        assert!(!holds(Some(page("a", &without)), Some(page("c", &ALL))));
        assert!(!holds(Some(page("a", &without)), None), "whoever does not answer says nothing");
    }

    #[test]
    fn a_node_is_a_member_when_all_say_so_of_the_same_life() {
        let holds = |b: &[(&str, u64)], c: &[(&str, u64)]| {
            let pages = vec![Some(page("a", &AGAIN)), Some(page("b", b)), Some(page("c", c))];
            look(pages, [true; 3]).holds(Condition::Member(1))
        };
        assert!(holds(&AGAIN, &AGAIN));
        assert!(!holds(&AGAIN, &ALL), "one knows the life before");
        assert!(!holds(&[("a", 1), ("c", 1)], &AGAIN), "it has no life of its own");
    }

    #[test]
    fn complete_is_about_those_that_run() {
        let pair = [("a", 1), ("c", 1)];
        let holds = |members: &[(&str, u64)]| {
            let pages = vec![Some(page("a", members)), None, Some(page("c", members))];
            look(pages, [true, false, true]).holds(Condition::Complete)
        };
        assert!(holds(&pair));
        assert!(!holds(&ALL), "somebody who is gone is still listed");
        let mut partial = page("c", &pair);
        partial.coverage = "PartialHints".to_owned();
        let pages = vec![Some(page("a", &pair)), None, Some(partial)];
        assert!(!look(pages, [true, false, true]).holds(Condition::Complete));
    }

    #[test]
    fn only_what_changed_is_taken_down() {
        let mut record = Record::default();
        let whole = || vec![Some(page("a", &ALL)), Some(page("b", &ALL)), Some(page("c", &ALL))];
        record.add(&look(whole(), [true; 3]), Duration::ZERO);
        assert_eq!(record.transitions.len(), 3, "what they say at first");
        record.add(&look(whole(), [true; 3]), Duration::from_secs(1));
        let mut pages = whole();
        pages[1] = None;
        record.add(&look(pages, [true; 3]), Duration::from_secs(2));
        let last = Transition { at_s: 2.0, node: "b".to_owned(), says: "silent".to_owned() };
        assert_eq!(record.transitions[3..], [last]);
    }
}
