//! The scope digest against a second, hand-written encoder and against constants that were computed by
//! another implementation of SHA-256; and what a scope accepts.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::*;

fn namespace(number: u16) -> NamespaceDigest {
    NamespaceDigest(Sha256::digest(number.to_le_bytes()).into())
}

fn exactly(namespaces: &[NamespaceDigest]) -> Scope {
    Scope::namespaces(namespaces.iter().copied()).unwrap()
}

/// The hashed encoding, put together by hand. `None` is all namespaces.
fn spelled(namespaces: Option<&[NamespaceDigest]>) -> ScopeDigest {
    let mut bytes = b"\x0d\0\0\0orbitkv/scope\x01\0".to_vec();
    bytes.extend([1, 1, 0, 0, 0, u8::from(namespaces.is_some())]);
    bytes.push(2);
    match namespaces {
        None => bytes.extend([0; 4]),
        Some(namespaces) => {
            bytes.extend((4 + 32 * namespaces.len() as u32).to_le_bytes());
            bytes.extend((namespaces.len() as u32).to_le_bytes());
            bytes.extend(namespaces.iter().flat_map(|namespace| namespace.0));
        }
    }
    ScopeDigest(Sha256::digest(bytes).into())
}

#[test]
fn golden_vectors() {
    let counting = NamespaceDigest(std::array::from_fn(|index| index as u8));
    let many: Vec<_> = (0..256).map(namespace).collect();
    for (scope, digest) in [
        (Scope::All, "d8680efa344115220504517950dbcfd9389c714cde39a584922728c21eef6b1c"),
        (Scope::none(), "54d6a05f5b8288920c16a4ce7def59af59f2b23aa4aa5f8090954b51044ac2e3"),
        (
            exactly(&[NamespaceDigest([0; 32])]),
            "988237e496994b60c4af4c1da57770862d71709d74c4377bc0db7618108dde8f",
        ),
        (
            exactly(&[NamespaceDigest([0xff; 32]), counting]),
            "de285a75382f8562a4bbe236eb0f59c7c790c2df3b3588604cc05913a68f7afb",
        ),
        (exactly(&many), "72138347896f41c1467801e7cfc1ab6a1f3730dd81ace58399633479223b5d66"),
    ] {
        assert_eq!(scope.digest().to_string(), digest, "{scope:?}");
    }
}

#[test]
fn an_empty_list_is_none_and_never_all() {
    let none = Scope::namespaces([]).unwrap();
    assert_eq!(none, Scope::none());
    assert_ne!(none.digest(), Scope::All.digest());
    assert!(Scope::All.contains(&namespace(1)) && !none.contains(&namespace(1)));
}

#[test]
fn too_many_namespaces_are_refused_and_not_cut() {
    let many = |count| (0..count).map(namespace);
    assert!(Scope::namespaces(many(256)).is_ok());
    assert_eq!(Scope::namespaces(many(257)), Err(ScopeError::TooMany));
    assert!(Scope::namespaces(many(256).chain(many(256))).is_ok(), "repetitions count once");
    let sorted = |count| {
        let mut namespaces: Vec<_> = many(count).collect();
        namespaces.sort();
        NamespaceList::from_sorted(namespaces)
    };
    assert!(sorted(256).is_ok());
    assert_eq!(sorted(257), Err(ScopeError::TooMany));
}

#[test]
fn a_list_from_a_frame_ascends_strictly() {
    let [low, high] = [NamespaceDigest([1; 32]), NamespaceDigest([2; 32])];
    assert!(NamespaceList::from_sorted(vec![low, high]).is_ok());
    for wrong in [vec![high, low], vec![low, low], vec![low, high, low]] {
        assert_eq!(NamespaceList::from_sorted(wrong), Err(ScopeError::Unsorted));
    }
}

proptest! {
    #[test]
    fn a_scope_is_the_set_it_was_given(
        chosen in btree_set(0u16..40, 0..30), shuffle in vec(any::<prop::sample::Index>(), 0..40), probe in 0u16..40
    ) {
        let sorted: std::collections::BTreeSet<_> = chosen.iter().copied().map(namespace).collect();
        let sorted: Vec<_> = sorted.into_iter().collect();
        let mut given: Vec<_> = chosen.iter().copied().map(namespace).collect();
        // Any order, and some of them again.
        for index in shuffle.iter().filter(|_| !chosen.is_empty()) {
            let at = index.index(given.len());
            let again = given[at];
            given.insert(0, again);
        }
        let scope = exactly(&given);
        prop_assert_eq!(scope.digest(), spelled(Some(&sorted)));
        prop_assert_eq!(scope.contains(&namespace(probe)), chosen.contains(&probe));
        let Scope::Namespaces(list) = scope else { panic!() };
        prop_assert_eq!(list.as_slice(), &sorted);
        prop_assert_eq!(Scope::All.digest(), spelled(None));
    }

    #[test]
    fn different_scopes_have_different_digests(left in btree_set(0u16..8, 0..8), right in btree_set(0u16..8, 0..8)) {
        let digest = |chosen: &std::collections::BTreeSet<u16>| {
            Scope::namespaces(chosen.iter().copied().map(namespace)).unwrap().digest()
        };
        prop_assert_eq!(digest(&left) == digest(&right), left == right);
    }
}
