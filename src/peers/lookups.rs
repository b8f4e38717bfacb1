//! What waits until the record of the peer it is for has been read in etcd: nothing, unless the node looks up first,
//! which it does only for whoever measures that.

use std::collections::VecDeque;

use orbitkv_shards::membership::{Asker, LookupDone, LookupPurpose, LookupWish};
use orbitkv_wire::identity::{NodeId, ShardIndex};

/// What a core wants to say to peers for one purpose, in order.
pub(super) struct LookupQueue<T> {
    asker: Asker,
    /// Wishes made.
    tickets: u64,
    parked: VecDeque<(u64, NodeId, T)>,
    parked_max: usize,
    /// Of those that are parked.
    unsaid: VecDeque<LookupWish>,
}

impl<T> LookupQueue<T> {
    /// Of a core that has no more than `parked_max` to say at a time: it gives up what nobody wants any more.
    pub fn new(core: ShardIndex, purpose: LookupPurpose, parked_max: usize) -> LookupQueue<T> {
        let (parked, unsaid) = (VecDeque::new(), VecDeque::new());
        LookupQueue { asker: Asker { core, purpose }, tickets: 0, parked, parked_max, unsaid }
    }

    /// Keeps it until the record of `node` has been read.
    ///
    /// # Panics
    /// If more is kept than there can be.
    pub fn park(&mut self, node: NodeId, what: T) {
        assert!(self.parked.len() < self.parked_max, "{:?} bounds what it parks", self.asker.purpose);
        self.tickets += 1;
        self.parked.push_back((self.tickets, node, what));
        self.unsaid.push_back(LookupWish { node, asker: self.asker, ticket: self.tickets });
    }

    /// The next wish for control.
    pub fn poll_wish(&mut self) -> Option<LookupWish> {
        self.unsaid.pop_front()
    }

    /// A record has been read: what waited for that, in order.
    pub fn release(&mut self, done: &LookupDone) -> Vec<T> {
        let through = done.through.get(&self.asker).copied().unwrap_or(0);
        let mut released = Vec::new();
        for (ticket, node, what) in std::mem::take(&mut self.parked) {
            match node == done.node && ticket <= through {
                true => released.push(what),
                false => self.parked.push_back((ticket, node, what)),
            }
        }
        released
    }

    /// Forgets what `is_wanted` says nobody wants any more.
    pub fn retain(&mut self, is_wanted: impl Fn(&T) -> bool) {
        self.parked.retain(|(_, _, what)| is_wanted(what));
        let parked = &self.parked;
        self.unsaid.retain(|wish| parked.binary_search_by_key(&wish.ticket, |(ticket, ..)| *ticket).is_ok());
    }

    /// Gives back all that waits.
    pub fn give_back(&mut self) -> Vec<T> {
        self.unsaid.clear();
        std::mem::take(&mut self.parked).into_iter().map(|(_, _, what)| what).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn node(name: &str) -> NodeId {
        name.parse().expect("legal")
    }

    #[test]
    fn what_is_parked_goes_on_with_its_own_ticket_and_no_other() {
        let mut lookups = LookupQueue::new(ShardIndex(1), LookupPurpose::Payload, 4);
        for (name, what) in [("a", 1), ("b", 2), ("a", 3), ("a", 4)] {
            lookups.park(node(name), what);
        }
        let wishes: Vec<_> =
            std::iter::from_fn(|| lookups.poll_wish()).map(|wish| (wish.node, wish.ticket)).collect();
        assert_eq!(wishes, [(node("a"), 1), (node("b"), 2), (node("a"), 3), (node("a"), 4)]);
        let done = |name, core, purpose, ticket| {
            let asker = Asker { core: ShardIndex(core), purpose };
            LookupDone { node: node(name), through: BTreeMap::from([(asker, ticket)]) }
        };
        // Others' wishes are none of ours.
        assert!(lookups.release(&done("a", 0, LookupPurpose::Payload, 9)).is_empty());
        assert!(lookups.release(&done("a", 1, LookupPurpose::Inventory, 9)).is_empty());
        assert_eq!(lookups.release(&done("a", 1, LookupPurpose::Payload, 3)), [1, 3]);
        lookups.retain(|what| *what != 4);
        assert!(lookups.release(&done("a", 1, LookupPurpose::Payload, 9)).is_empty());
        // A wish that nobody has any more is not said.
        lookups.park(node("b"), 5);
        lookups.retain(|what| *what != 5);
        assert_eq!(lookups.poll_wish(), None);
        assert_eq!(lookups.give_back(), [2]);
    }
}
