//! The placement of owner streams, and the order of a map.

use super::*;

#[test]
fn with_equal_counts_a_stream_lives_on_the_core_of_the_same_keys() {
    for shards in 1..40 {
        for shard in 0..shards {
            assert_eq!(stream_core(ShardIndex(shard), shards, shards), ShardIndex(shard));
        }
    }
}

#[test]
fn a_key_of_any_source_lands_within_one_core_of_its_own() {
    // The range of a source's shard begins inside the range of the core it is streamed to.
    for (source, own) in (1u16..24).flat_map(|source| (1u16..24).map(move |own| (source, own))) {
        for shard in 0..source {
            let core = u64::from(stream_core(ShardIndex(shard), source, own).0);
            let begins = u64::from(shard) * u64::from(own);
            assert!(core * u64::from(source) <= begins && begins < (core + 1) * u64::from(source));
        }
    }
}

#[test]
fn a_map_is_ordered_by_name_and_finds_lives() {
    let member = |name: &str, life: u8| Member {
        node: NodeId::new(name).unwrap(),
        epoch: 1,
        incarnation: Incarnation([life; 16]),
        shards: 2,
        address: "10.0.0.1:7000".parse().unwrap(),
    };
    let map = MemberMap::new(3, vec![member("b", 2), member("a", 1)]);
    assert_eq!(map.members().iter().map(|member| member.node.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(map.has(NodeId::new("b").unwrap(), Incarnation([2; 16])));
    assert!(!map.has(NodeId::new("b").unwrap(), Incarnation([1; 16])));
    assert!(map.get(NodeId::new("c").unwrap()).is_none());
    assert_eq!(map.members()[1].shard_address(ShardIndex(1)).port(), 7001);
}
