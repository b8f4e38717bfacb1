use proptest::prelude::*;

use super::*;

fn record() -> MemberRecord {
    MemberRecord {
        node: "node-7".parse().expect("legal"),
        epoch: 12,
        incarnation: Incarnation([0x4a; 16]),
        contact: Contact {
            address: "10.1.2.3:7100".parse().expect("legal"),
            shards: 4,
            hash_version: HASH_VERSION,
            zone: "rack-3".into(),
            key_fingerprint: [0xab; 32],
            boot_id: [0x11; 16],
            peer_socket: "/run/orbitkv/peer.sock".into(),
            capabilities: vec!["quic".into(), "shm".into()],
        },
    }
}

/// The largest record there can be.
fn largest() -> MemberRecord {
    let mut record = record();
    record.node = NodeId::new(&"n".repeat(NODE_ID_BYTES_MAX)).expect("legal");
    record.epoch = u64::MAX;
    record.contact = Contact {
        address: "[1111:2222:3333:4444:5555:6666:7777:8888]:65535".parse().expect("legal"),
        shards: 1,
        hash_version: u16::MAX,
        zone: "z".repeat(NODE_ID_BYTES_MAX),
        peer_socket: "/".repeat(PEER_SOCKET_BYTES_MAX),
        capabilities: (0..CAPABILITIES_MAX).map(|number| format!("{number:016}")).collect(),
        ..record.contact
    };
    record
}

#[test]
fn records_are_written_as_documented() {
    let text = "node node-7\nepoch 12\nincarnation 4a4a4a4a-4a4a-4a4a-4a4a-4a4a4a4a4a4a\naddress 10.1.2.3:7100\n\
                shards 4\nhash 2\nzone rack-3\nkey abababababababababababababababababababababababababababababababab\n\
                boot 11111111-1111-1111-1111-111111111111\nsocket /run/orbitkv/peer.sock\ncapabilities quic,shm\n";
    assert_eq!(record().encode(), text);
    assert_eq!(MemberRecord::decode(text.as_bytes()), Ok(record()));
    let format = Format { cluster: ClusterUuid([0x22; 16]) };
    let text = "protocol orbitkv/inventory-stream/v4\ncarrier quic-rkyv/1\ncluster 22222222-2222-2222-2222-222222222222\n";
    assert_eq!(format.encode(), text);
    assert_eq!(Format::decode(text.as_bytes()), Ok(format));
}

#[test]
fn the_largest_record_fits() {
    let text = largest().encode();
    assert!(text.len() <= MEMBER_RECORD_BYTES_MAX, "{}", text.len());
    assert_eq!(MemberRecord::decode(text.as_bytes()), Ok(largest()));
}

#[test]
fn empty_parts_are_allowed() {
    let mut record = record();
    (record.contact.zone, record.contact.peer_socket) = (String::new(), String::new());
    record.contact.capabilities.clear();
    assert_eq!(MemberRecord::decode(record.encode().as_bytes()), Ok(record));
}

#[test]
fn what_is_not_exact_is_refused() {
    let good = record().encode();
    for (from, to) in [
        ("epoch 12", "epoch 012"),
        ("epoch 12", "epoch +12"),
        ("epoch 12", "epoch 0"),
        ("epoch 12", "epoch 18446744073709551616"),
        ("epoch 12\n", ""),
        ("node node-7\nepoch 12\n", "epoch 12\nnode node-7\n"),
        ("incarnation 4a", "incarnation 4A"),
        ("incarnation 4a4a4a4a-4a", "incarnation 4a4a4a4a4a-"),
        ("address 10.1.2.3:7100", "address 10.1.2.3:0"),
        ("address 10.1.2.3:7100", "address 10.1.2.3:65533"),
        ("address 10.1.2.3:7100", "address 0.0.0.0:7100"),
        ("address 10.1.2.3:7100", "address 224.0.0.1:7100"),
        ("address 10.1.2.3:7100", "address node-7.example:7100"),
        ("shards 4", "shards 0"),
        ("zone rack-3", "zone RACK"),
        ("zone rack-3", "zone"),
        ("key ab", "key a"),
        ("capabilities quic,shm", "capabilities shm,quic"),
        ("capabilities quic,shm", "capabilities quic,quic"),
        ("capabilities quic,shm", "capabilities quic,,shm"),
        ("capabilities quic,shm", "capabilities a,b,c,d,e,f,g,h,i"),
        ("socket /run/orbitkv/peer.sock", "socket /run/\u{7f}"),
        ("capabilities quic,shm\n", "capabilities quic,shm"),
        ("capabilities quic,shm\n", "capabilities quic,shm\nmore x\n"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        assert!(MemberRecord::decode(bad.as_bytes()).is_err(), "{to}");
    }
    assert_eq!(MemberRecord::decode(&[0xff; 4]), Err(RecordError::NotText));
    let long = good.clone() + &"x".repeat(MEMBER_RECORD_BYTES_MAX);
    assert!(matches!(MemberRecord::decode(long.as_bytes()), Err(RecordError::TooLong { .. })));
}

#[test]
fn other_formats_are_refused() {
    let good = Format { cluster: ClusterUuid([0x22; 16]) }.encode();
    for (from, to) in
        [("/v4", "/v3"), ("/v4", "/v5"), ("quic-rkyv/1", "quic-rkyv/2"), ("carrier", "mode"), ("22\n", "22")]
    {
        assert!(Format::decode(good.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
    }
    assert!(Format::decode(b"{\"protocol\":\"orbitkv/inventory-stream/v4\"}").is_err());
}

#[test]
fn epochs_are_decimal_numbers_and_nothing_else() {
    assert_eq!(decode_epoch(b"7"), Some(7));
    for bad in [&b""[..], b"07", b"+7", b"7\n", b"-1", b"18446744073709551616", b"\xff"] {
        assert_eq!(decode_epoch(bad), None, "{bad:?}");
    }
}

#[test]
fn keys_are_found_again_and_strangers_are_not() {
    let space = Keyspace::new("prod").expect("legal");
    let node = NodeId::new("n1").expect("legal");
    for key in [Key::Format, Key::EpochFloor, Key::Epoch(node), Key::Member(node), Key::Config] {
        assert_eq!(space.parse(space.path(key).as_bytes()), Some(key));
    }
    assert_eq!(space.path(Key::Member(node)), "/orbitkv/v2/prod/members/n1");
    for stranger in
        ["/orbitkv/v2/prod2/format", "/orbitkv/v2/prod/config/x", "/orbitkv/v2/prod/members/N", "format"]
    {
        assert_eq!(space.parse(stranger.as_bytes()), None, "{stranger}");
    }
    assert!(Keyspace::new("a/b").is_err() && Keyspace::new("").is_err());
}

#[test]
fn ports_overlap_on_one_address_only() {
    let at = |address: &str, shards| Contact {
        address: address.parse().expect("legal"),
        shards,
        ..record().contact
    };
    let four = at("10.0.0.1:100", 4);
    for (other, overlaps) in [
        (at("10.0.0.1:103", 1), true),
        (at("10.0.0.1:104", 1), false),
        (at("10.0.0.1:96", 4), false),
        (at("10.0.0.1:96", 5), true),
        (at("10.0.0.2:100", 4), false),
    ] {
        assert_eq!((four.overlaps(&other), other.overlaps(&four)), (overlaps, overlaps), "{other:?}");
    }
}

#[test]
fn the_mark_of_a_migration_is_no_format_and_an_old_format_tells_its_cluster() {
    let mark = migration_mark([0x11; 16]);
    assert_eq!(mark, "migration 11111111-1111-1111-1111-111111111111\n");
    assert!(Format::decode(mark.as_bytes()).is_err());
    assert_eq!(cluster_of_any(mark.as_bytes()), None);
    let old = b"protocol x/v1\ncluster 11111111-1111-4111-8111-111111111111\nmore\n";
    let uuid = "11111111-1111-4111-8111-111111111111".parse().expect("a UUID");
    assert_eq!(cluster_of_any(old), Some(uuid));
    assert_eq!(cluster_of_any(b"cluster 1\n"), None);
    assert_eq!(cluster_of_any(&[0xff]), None);
}

proptest! {
    /// No bytes make a decoder panic, and what it accepts is the one encoding.
    #[test]
    fn any_bytes(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), cut in any::<prop::sample::Index>()) {
        let mut bytes = record().encode().into_bytes();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if cut.index(4) == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(read) = MemberRecord::decode(&bytes) {
            prop_assert_eq!(read.encode().into_bytes(), bytes);
        }
    }
}
