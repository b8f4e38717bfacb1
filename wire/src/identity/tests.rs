//! The shard hash against streaming xxh3 and against constants that the reference implementation of
//! xxHash gave, and the partition it makes.

use proptest::prelude::*;
use xxhash_rust::xxh3::Xxh3;

use super::*;

/// The same hash, fed piece by piece through the streaming form.
fn streamed(namespace: &NamespaceDigest, group: GroupId, block: &BlockHash) -> u64 {
    let mut state = Xxh3::with_seed(u64::from_be_bytes(*b"orbitkv2"));
    state.update(&namespace.0);
    state.update(&[(group.0 & 0xff) as u8, (group.0 >> 8) as u8]);
    state.update(&block.0);
    state.digest()
}

#[test]
fn golden_vectors() {
    let counting: [u8; 32] = std::array::from_fn(|index| index as u8);
    for (namespace, group, block, hash, shard_of_3) in [
        ([0; 32], 0, [0; 32], 0xe74d_8990_8b35_90d6, 2),
        ([0xff; 32], 0xffff, [0xff; 32], 0xc2b8_bcd2_6ac4_32b2, 2),
        (counting, 0x0102, counting, 0x61b3_b326_5fc5_80b0, 1),
    ] {
        let (namespace, group, block) = (NamespaceDigest(namespace), GroupId(group), BlockHash(block));
        let found = key_hash(&namespace, group, &block);
        assert_eq!(found.0, streamed(&namespace, group, &block));
        assert_eq!(found, KeyHash(hash), "{:#018x}", found.0);
        assert_eq!(found.shard(3), ShardIndex(shard_of_3));
        assert_eq!(found.shard(1), ShardIndex(0));
    }
}

#[test]
fn shards_divide_the_hashes_at_their_exact_borders() {
    assert_eq!(KeyHash(0).shard(4), ShardIndex(0));
    assert_eq!(KeyHash((1 << 62) - 1).shard(4), ShardIndex(0));
    assert_eq!(KeyHash(1 << 62).shard(4), ShardIndex(1));
    assert_eq!(KeyHash(u64::MAX).shard(4), ShardIndex(3));
    assert_eq!(KeyHash(u64::MAX).shard(u16::MAX), ShardIndex(u16::MAX - 1));
}

#[test]
fn texts() {
    let random = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0x4d, 0xef, 0x80, 0x01, 2, 3, 4, 5, 6, 7];
    assert_eq!(Incarnation(random).to_string(), "12345678-9abc-4def-8001-020304050607");
    assert_eq!(ClusterUuid(random).to_string(), "12345678-9abc-4def-8001-020304050607");
    assert_eq!(SessionId(random).to_string(), "123456789abc4def8001020304050607");
    assert_eq!(format!("{:?}", SnapshotId(random)), "SnapshotId(123456789abc4def8001020304050607)");
    assert_eq!(Medium::ALL.map(|medium| medium.to_string()), ["dram", "ssd"]);
    for number in 0..=u8::MAX {
        assert_eq!(Medium::from_wire(number), Medium::ALL.get(usize::from(number)).copied());
    }
}

#[test]
fn node_ids_are_1_to_64_legal_bytes() {
    let (longest, too_long) = ("x".repeat(64), "x".repeat(65));
    for text in ["a", "0", "-", "gpu-07-rack", &longest] {
        let node = NodeId::new(text).expect(text);
        assert_eq!((node.as_str(), node.to_string().as_str()), (text, text));
    }
    for (text, bytes) in [("", 0), (too_long.as_str(), 65)] {
        assert_eq!(NodeId::new(text), Err(NodeIdError::Length { bytes }));
    }
    for (text, at) in [("A", 0), ("a_b", 1), ("a.", 1), ("ab\0", 2), ("é", 0), (" a", 0)] {
        assert_eq!(text.parse::<NodeId>(), Err(NodeIdError::Character { at }), "{text:?}");
    }
}

proptest! {
    #[test]
    fn node_ids_are_ordered_as_their_texts(left in "[a-c-]{1,5}", right in "[a-c-]{1,5}") {
        prop_assert_eq!(NodeId::new(&left).unwrap().cmp(&NodeId::new(&right).unwrap()), left.cmp(&right));
    }

    #[test]
    fn hash_equals_streamed(namespace: [u8; 32], group: u16, block: [u8; 32]) {
        let (namespace, group, block) = (NamespaceDigest(namespace), GroupId(group), BlockHash(block));
        prop_assert_eq!(key_hash(&namespace, group, &block).0, streamed(&namespace, group, &block));
    }

    #[test]
    fn shard_is_monotone_and_inside(left: u64, right: u64, shards in 1u16..) {
        let (low, high) = (left.min(right), left.max(right));
        prop_assert!(KeyHash(low).shard(shards) <= KeyHash(high).shard(shards));
        prop_assert!(KeyHash(high).shard(shards).0 < shards);
    }

    #[test]
    fn equal_shard_counts_nest(hash: u64, shards in 1u16..1_000) {
        // A key's shard among 2·S lies inside its shard among S: streams map to one core.
        let fine = KeyHash(hash).shard(shards * 2).0;
        prop_assert_eq!(fine / 2, KeyHash(hash).shard(shards).0);
    }
}
