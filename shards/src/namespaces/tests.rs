//! The table against a plain map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn digest(number: u16) -> NamespaceDigest {
    // Spread, so that the order of digests is not the order of interning.
    let mut bytes = [0; 32];
    bytes[..2].copy_from_slice(&number.wrapping_mul(40_503).to_be_bytes());
    NamespaceDigest(bytes)
}

#[test]
fn a_full_table_refuses_by_name_and_still_knows_the_old() {
    let mut namespaces = Namespaces::default();
    for number in 0..NAMESPACES_MAX as u16 {
        assert_eq!(namespaces.intern(&digest(number)), Ok(NamespaceId(number)));
    }
    let full = namespaces.intern(&digest(5_000)).unwrap_err();
    assert_eq!(full.to_string(), "no room for another namespace: the limit is 4096");
    assert_eq!(namespaces.intern(&digest(17)), Ok(NamespaceId(17)));
    assert_eq!(namespaces.get(&digest(5_000)), None);
    assert_eq!(namespaces.charged_bytes(), table_bytes(NAMESPACES_MAX));
    assert_eq!(NAMESPACE_BYTES, 42);
}

#[test]
#[should_panic(expected = "more residences ended than began")]
fn residences_are_conserved() {
    let mut namespaces = Namespaces::default();
    let id = namespaces.intern(&digest(1)).unwrap();
    namespaces.retain(id);
    namespaces.release(id);
    namespaces.release(id);
}

proptest! {
    #[test]
    fn it_is_a_bounded_map(
        namespaces_max in 0usize..6,
        steps in proptest::collection::vec((0u16..8, 0u8..3), 0..60),
    ) {
        let mut namespaces = Namespaces::new(namespaces_max);
        let mut model: BTreeMap<NamespaceDigest, (NamespaceId, u64)> = BTreeMap::new();
        for (number, step) in steps {
            let digest = digest(number);
            let known = model.get(&digest).copied();
            prop_assert_eq!(namespaces.get(&digest), known.map(|(id, _)| id));
            match (step, known) {
                (0, Some((id, _))) => prop_assert_eq!(namespaces.intern(&digest), Ok(id)),
                (0, None) if model.len() == namespaces_max => {
                    prop_assert_eq!(namespaces.intern(&digest), Err(NamespacesFull { limit: namespaces_max }));
                }
                (0, None) => {
                    let id = namespaces.intern(&digest).unwrap();
                    prop_assert!(model.values().all(|(other, _)| *other != id), "a number is given once");
                    model.insert(digest, (id, 0));
                }
                (1, Some((id, residents))) => {
                    namespaces.retain(id);
                    model.insert(digest, (id, residents + 1));
                }
                (2, Some((id, residents))) if residents > 0 => {
                    namespaces.release(id);
                    model.insert(digest, (id, residents - 1));
                }
                _ => {}
            }
            let listed: Vec<_> = namespaces.iter().map(|(digest, id, count)| (*digest, (id, count))).collect();
            let expected: Vec<_> = model.iter().map(|(digest, value)| (*digest, *value)).collect();
            prop_assert_eq!(listed, expected);
            for (digest, (id, residents)) in &model {
                prop_assert_eq!(namespaces.digest(*id), digest);
                prop_assert_eq!(namespaces.residents(*id), *residents);
            }
            prop_assert_eq!(namespaces.charged_bytes(), model.len() * NAMESPACE_BYTES);
        }
    }
}
