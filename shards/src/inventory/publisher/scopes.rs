//! Scopes that somebody subscribes to, as this shard calls their namespaces.
//!
//! Records name namespaces by number; a scope names them by digest. A namespace may be interned after
//! somebody subscribed to it, so the translation is brought up to date whenever the table has grown.

use std::collections::BTreeMap;

use orbitkv_wire::scope::{Scope, ScopeDigest};

use crate::key::NamespaceId;
use crate::namespaces::Namespaces;

/// One scope, translated.
#[derive(Debug)]
pub struct Filter {
    scope: Scope,
    /// Numbers of its namespaces, ascending; unused for [`Scope::All`].
    admitted: Vec<NamespaceId>,
    /// Namespaces that were interned when it was translated.
    interned: usize,
}

impl Filter {
    fn new(scope: Scope) -> Filter {
        Filter { scope, admitted: Vec::new(), interned: 0 }
    }

    /// Whether changes in this namespace are sent.
    #[must_use]
    pub fn admits(&self, namespace: NamespaceId) -> bool {
        matches!(self.scope, Scope::All) || self.admitted.binary_search(&namespace).is_ok()
    }

    /// The first namespace of the scope that is not before `namespace`.
    #[must_use]
    pub fn next_from(&self, namespace: NamespaceId) -> Option<NamespaceId> {
        match self.scope {
            Scope::All => Some(namespace),
            Scope::Namespaces(_) => {
                let place = self.admitted.partition_point(|admitted| *admitted < namespace);
                self.admitted.get(place).copied()
            }
        }
    }

    /// Residences in the scope, of `all` that there are.
    #[must_use]
    pub fn residents(&self, namespaces: &Namespaces, all: u64) -> u64 {
        match self.scope {
            Scope::All => all,
            Scope::Namespaces(_) => self.admitted.iter().map(|&id| namespaces.residents(id)).sum(),
        }
    }

    /// A number, once given, stays; so only growth of the table changes anything. At most 256 searches.
    fn translate(&mut self, namespaces: &Namespaces) {
        if let Scope::Namespaces(list) = &self.scope
            && self.interned != namespaces.len()
        {
            self.admitted.clear();
            self.admitted.extend(list.as_slice().iter().filter_map(|digest| namespaces.get(digest)));
            self.admitted.sort_unstable();
            self.interned = namespaces.len();
        }
    }
}

#[derive(Debug)]
struct Subscribed {
    filter: Filter,
    sessions: usize,
}

/// Every scope with a session.
#[derive(Debug, Default)]
pub struct Scopes {
    subscribed: BTreeMap<ScopeDigest, Subscribed>,
}

impl Scopes {
    /// A session of this scope begins.
    pub fn retain(&mut self, digest: ScopeDigest, scope: Scope) {
        let new = || Subscribed { filter: Filter::new(scope), sessions: 0 };
        self.subscribed.entry(digest).or_insert_with(new).sessions += 1;
    }

    /// A session of this scope has ended.
    ///
    /// # Panics
    /// If none was left.
    pub fn release(&mut self, digest: ScopeDigest) {
        let subscribed = self.subscribed.get_mut(&digest).expect("a session holds its scope");
        subscribed.sessions -= 1;
        if subscribed.sessions == 0 {
            self.subscribed.remove(&digest);
        }
    }

    /// The filter of a subscribed scope, up to date.
    ///
    /// # Panics
    /// If no session has this scope.
    pub fn filter(&mut self, digest: ScopeDigest, namespaces: &Namespaces) -> &Filter {
        let subscribed = self.subscribed.get_mut(&digest).expect("a session holds its scope");
        subscribed.filter.translate(namespaces);
        &subscribed.filter
    }

    /// Sessions over all scopes.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.subscribed.values().map(|subscribed| subscribed.sessions).sum()
    }
}

#[cfg(test)]
mod tests {
    use orbitkv_wire::identity::NamespaceDigest;

    use super::*;

    #[test]
    fn a_filter_learns_namespaces_as_they_are_interned_and_none_is_not_all() {
        let digest = |number| NamespaceDigest([number; 32]);
        let mut namespaces = Namespaces::default();
        let mut scopes = Scopes::default();
        let list = Scope::namespaces([digest(7), digest(3)]).unwrap();
        let (listed, none) = (list.digest(), Scope::none().digest());
        scopes.retain(listed, list);
        scopes.retain(none, Scope::none());
        scopes.retain(Scope::All.digest(), Scope::All);
        let one = namespaces.intern(&digest(1)).unwrap();
        assert!(!scopes.filter(listed, &namespaces).admits(one));
        let seven = namespaces.intern(&digest(7)).unwrap();
        let nine = namespaces.intern(&digest(9)).unwrap();
        let three = namespaces.intern(&digest(3)).unwrap();
        namespaces.retain(three);
        namespaces.retain(nine);
        let filter = scopes.filter(listed, &namespaces);
        assert!(filter.admits(seven) && filter.admits(three) && !filter.admits(nine));
        assert_eq!((filter.next_from(one), filter.next_from(nine)), (Some(seven), Some(three)));
        assert_eq!(filter.residents(&namespaces, 9), 1);
        let filter = scopes.filter(none, &namespaces);
        assert!(!filter.admits(one) && filter.next_from(one).is_none());
        assert_eq!(filter.residents(&namespaces, 9), 0);
        let filter = scopes.filter(Scope::All.digest(), &namespaces);
        assert!(filter.admits(nine));
        assert_eq!(filter.residents(&namespaces, 9), 9);
        scopes.release(none);
        assert_eq!(scopes.sessions(), 2);
    }
}
