//! Frames nobody wrote down: every value goes through its bytes, and no bytes do harm.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::Index;

use super::golden::respell;
use super::samples::{Says, samples};
use super::*;
use crate::identity::*;
use crate::inventory::{Requester, ResourceSummary, SourceStream};

fn says() -> impl Strategy<Value = Says> {
    prop_oneof![Just(Says::Authorize), Just(Says::Requester), Just(Says::Source)]
}

fn nodes() -> impl Strategy<Value = NodeId> {
    "[a-z0-9-]{1,64}".prop_map(|text| NodeId::new(&text).unwrap())
}

prop_compose! {
    fn bindings()(
        cluster: [u8; 16], source in nodes(), requester in nodes(), incarnations: [[u8; 16]; 2], epoch: u64,
        shard: u16
    ) -> Binding {
        let [theirs, own] = incarnations.map(Incarnation);
        Binding {
            cluster: ClusterUuid(cluster),
            source: SourceStream { node: source, epoch, incarnation: theirs, shard: ShardIndex(shard) },
            requester: Requester { node: requester, incarnation: own },
        }
    }
}

fn operations() -> impl Strategy<Value = OperationId> {
    (any::<u64>(), 1u64..).prop_map(|(origin, number)| OperationId { origin, number })
}

prop_compose! {
    fn authorizes()(
        binding in bindings(), operation in operations(), deadline_ms in 1..=600_000u32, shm: bool,
        attempt in one_of(Attempt::ALL),
        wanted in btree_map((0..4u8, 0..3u16, any::<[u8; 32]>(), any::<bool>()), 1u64.., 1..=128)
    ) -> Authorize {
        let residences = (wanted.into_iter()).map(|((namespace, group, block, is_dram), sequence)| ExactResidence {
            namespace: NamespaceDigest([namespace; 32]),
            group: GroupId(group),
            block: BlockHash(block),
            medium: if is_dram { Medium::Dram } else { Medium::Ssd },
            sequence: Sequence(sequence),
        });
        // Not in the order of their namespaces.
        let residences = residences.rev().collect();
        let transport = if shm { Transport::Shm } else { Transport::Quic };
        Authorize { binding, operation, deadline_ms, transport, attempt, residences }
    }
}

fn answers() -> impl Strategy<Value = Answer> {
    prop_oneof![
        (1u32..).prop_map(|bytes| Answer::Granted { bytes }),
        proptest::option::of(1u64..).prop_map(|sequence| Answer::Ended { sequence: sequence.map(Sequence) }),
        any::<u64>().prop_map(|head| Answer::NeverHeld { head: Sequence(head) }),
        any::<u32>().prop_map(|retry_after_ms| Answer::Busy { retry_after_ms }),
    ]
}

fn one_of<T: Copy + std::fmt::Debug>(all: &'static [T]) -> impl Strategy<Value = T> {
    (0..all.len()).prop_map(|index| all[index])
}

fn summaries() -> impl Strategy<Value = ResourceSummary> {
    (any::<u32>(), any::<u32>(), 0..=1_000u16, 0..=1_000u16).prop_map(
        |(window_ms, reads_queued, ssd_busy_permille, egress_busy_permille)| ResourceSummary {
            window_ms,
            reads_queued,
            ssd_busy_permille,
            egress_busy_permille,
        },
    )
}

fn source_messages() -> impl Strategy<Value = FromSource> {
    let refusals = prop_oneof![
        (any::<u64>(), any::<[u8; 16]>()).prop_map(|(epoch, incarnation)| Refusal::StaleEpoch {
            epoch,
            incarnation: Incarnation(incarnation)
        }),
        Just(Refusal::LeaseExpired),
        Just(Refusal::TransportOff),
        Just(Refusal::Repeated),
        Just(Refusal::Misdirected),
    ];
    prop_oneof![
        (1..=10_000u32, summaries(), vec(answers(), 1..=128))
            .prop_map(|(grant_ms, summary, answers)| FromSource::Answers { grant_ms, summary, answers }),
        refusals.prop_map(FromSource::Refused),
        (0..128u16, 1u32.., any::<u64>()).prop_map(|(index, bytes, checksum)| FromSource::Bytes {
            index,
            bytes,
            checksum
        }),
        (0..128u16, 1u32.., any::<u64>(), 0..1u64 << 63).prop_map(|(index, bytes, checksum, offset)| {
            FromSource::Extent { index, bytes, checksum, offset }
        }),
        (0..128u16, one_of(FailureCause::ALL)).prop_map(|(index, cause)| FromSource::Failed { index, cause }),
        one_of(StopCause::ALL).prop_map(|cause| FromSource::Stopped { cause }),
        Just(FromSource::Drained),
    ]
}

proptest! {
    #[test]
    fn an_authorize_is_read_as_it_was_written(authorize in authorizes()) {
        let mut bytes = vec![0x77; 3];
        append_authorize(&mut bytes, &authorize);
        let (header, body) = split_frame(&bytes[3..]).unwrap().unwrap();
        prop_assert_eq!(header.tag, authorize.binding.tag().0);
        prop_assert_eq!(decode_authorize(&header, &bytes[3..][body]), Ok(authorize));
    }

    #[test]
    fn a_source_is_read_as_it_wrote(tag: [u8; 16], operation in operations(), message in source_messages()) {
        let mut bytes = vec![0x77; 3];
        append_from_source(&mut bytes, Tag(tag), operation, &message);
        let (header, body) = split_frame(&bytes[3..]).unwrap().unwrap();
        prop_assert_eq!(header.operation(), operation);
        prop_assert_eq!(decode_from_source(&header, &bytes[3..][body]), Ok(message));
    }

    #[test]
    fn random_bytes_do_no_harm(says in says(), bytes in vec(any::<u8>(), 0..500)) {
        let _ = respell(says, &bytes);
    }

    /// Random bodies behind a plausible header reach every decoder.
    #[test]
    fn random_bodies_do_no_harm(
        says in says(), kind in 0..=23u8, count in 0..4u32, body in vec(any::<u8>(), 0..300)
    ) {
        let length = (HEADER_BYTES + body.len()) as u32;
        let tag = if matches!(kind, 4 | 22) { [0; 16] } else { [7; 16] };
        let mut bytes = Vec::new();
        Header { length, kind, tag, origin: 5, number: 1, count }.append_to(&mut bytes);
        bytes.extend(&body);
        if let Ok(again) = respell(says, &bytes) {
            prop_assert_eq!(again, bytes);
        }
    }

    /// A bent good frame is refused, or it is another good frame in its only spelling.
    #[test]
    fn a_bent_frame_has_one_spelling_or_none(pick: Index, bends in vec((any::<Index>(), any::<u8>()), 1..4)) {
        let samples = samples();
        let sample = pick.get(&samples);
        let mut bytes = sample.bytes.clone();
        for (at, value) in &bends {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if let Ok(again) = respell(sample.says, &bytes) {
            prop_assert_eq!(&again, &bytes[..again.len()]);
        }
    }

    #[test]
    fn two_bindings_share_no_tag(left in bindings(), right in bindings()) {
        prop_assert_eq!(left.tag() == right.tag(), left == right);
    }
}
