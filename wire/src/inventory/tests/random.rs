//! Frames nobody wrote down: every value goes through its bytes, and no bytes do harm.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::golden::respell;
use super::samples::{Says, samples};
use super::*;
use crate::identity::*;
use crate::scope::{Scope, ScopeDigest};

fn says() -> impl Strategy<Value = Says> {
    prop_oneof![Just(Says::Open), Just(Says::Requester), Just(Says::Source)]
}

fn scopes() -> impl Strategy<Value = Scope> {
    let namespace = any::<[u8; 32]>().prop_map(NamespaceDigest);
    let exact = vec(namespace, 0..20).prop_map(|namespaces| Scope::namespaces(namespaces).unwrap());
    prop_oneof![Just(Scope::All), exact]
}

fn nodes() -> impl Strategy<Value = NodeId> {
    "[a-z0-9-]{1,64}".prop_map(|text| NodeId::new(&text).unwrap())
}

prop_compose! {
    fn opens()(
        scope in scopes(), cluster: [u8; 16], session: [u8; 16], node in nodes(), requester in nodes(),
        incarnations: [[u8; 16]; 2], epoch: u64, shard: u16, attempt: u64,
        frame_bytes_max in 160u32..2_000_000, more in 0u32..1_000_000,
        resume in proptest::option::of((any::<[u8; 16]>(), any::<u64>()))
    ) -> Open {
        let resume = resume.map(|(view, sequence)| Resume { view: SnapshotId(view), sequence: Sequence(sequence) });
        let [source, own] = incarnations.map(Incarnation);
        let binding = Binding {
            cluster: ClusterUuid(cluster),
            source: SourceStream { node, epoch, incarnation: source, shard: ShardIndex(shard) },
            requester: Requester { node: requester, incarnation: own },
            scope: scope.digest(),
            session: SessionId(session),
        };
        Open { binding, attempt, scope, window_bytes: frame_bytes_max * 2 + more, frame_bytes_max, resume }
    }
}

fn requester_messages() -> impl Strategy<Value = FromRequester> {
    let snapshot = || any::<[u8; 16]>().prop_map(SnapshotId);
    prop_oneof![
        snapshot().prop_map(|snapshot| FromRequester::SnapshotAccept { snapshot }),
        (snapshot(), any::<u32>()).prop_map(|(snapshot, retry_after_ms)| FromRequester::SnapshotRefuse {
            snapshot,
            retry_after_ms
        }),
        (any::<u64>(), snapshot(), any::<u64>()).prop_map(|(consumed_frame, view, applied)| {
            FromRequester::Ack { consumed_frame, view, applied: Sequence(applied) }
        }),
        any::<u64>().prop_map(|sequence| FromRequester::FlushThrough { sequence: Sequence(sequence) }),
    ]
}

/// Messages without changes; [`super::writer`] has those with.
fn source_messages() -> impl Strategy<Value = FromSource<'static>> {
    let id = any::<[u8; 16]>;
    let cause = (0..OpenRefusal::ALL.len()).prop_map(|index| OpenRefusal::ALL[index]);
    let reset = (0..ResetCause::ALL.len()).prop_map(|index| ResetCause::ALL[index]);
    let sequence = || any::<u64>().prop_map(Sequence);
    let summary = (any::<u32>(), any::<u32>(), 0..=1_000u16, 0..=1_000u16);
    prop_oneof![
        (cause, any::<u64>(), any::<u64>(), id()).prop_map(|(cause, revision, epoch, incarnation)| {
            FromSource::OpenRefused { cause, revision, epoch, incarnation: Incarnation(incarnation) }
        }),
        (id(), sequence())
            .prop_map(|(view, sequence)| FromSource::Resumed { view: SnapshotId(view), sequence }),
        any::<u32>().prop_map(|position| FromSource::SnapshotQueued { position }),
        (id(), sequence(), any::<u64>(), any::<u64>()).prop_map(|(snapshot, after, rows_max, bytes)| {
            FromSource::SnapshotBegin { snapshot: SnapshotId(snapshot), after, rows_max, bytes }
        }),
        (id(), sequence(), any::<u32>(), id()).prop_map(|(snapshot, through, pages, digest)| {
            let (snapshot, digest) = (SnapshotId(snapshot), TranscriptDigest(digest));
            FromSource::SnapshotCommit { snapshot, through, pages, digest }
        }),
        sequence().prop_map(|through| FromSource::Progress { through }),
        summary.prop_map(|(window_ms, reads_queued, ssd_busy_permille, egress_busy_permille)| {
            let summary =
                ResourceSummary { window_ms, reads_queued, ssd_busy_permille, egress_busy_permille };
            FromSource::Liveness { summary }
        }),
        reset.prop_map(|cause| FromSource::ResetRequired { cause }),
    ]
}

proptest! {
    #[test]
    fn an_open_is_read_as_it_was_written(open in opens()) {
        let mut bytes = vec![0x77; 3];
        append_open(&mut bytes, &open);
        let (header, body) = split_frame(&bytes[3..], bounds::OPEN_BYTES_MAX).unwrap().unwrap();
        prop_assert_eq!(header.tag, open.binding.tag().0);
        prop_assert_eq!(decode_open(&header, &bytes[3..][body]), Ok(open));
    }

    #[test]
    fn a_requester_is_read_as_it_wrote(tag: [u8; 16], frame in 1u64.., message in requester_messages()) {
        let mut bytes = vec![0x77; 3];
        append_from_requester(&mut bytes, Tag(tag), frame, &message);
        let (header, body) = split_frame(&bytes[3..], 4_096).unwrap().unwrap();
        prop_assert_eq!((header.tag, header.frame), (tag, frame));
        prop_assert_eq!(decode_from_requester(&header, &bytes[3..][body]), Ok(message));
    }

    #[test]
    fn a_source_is_read_as_it_wrote(tag: [u8; 16], frame in 1u64.., message in source_messages()) {
        let body = source_body(&message);
        let header = Header::new(body.kind, Tag(tag), frame, Sequence(u64::MAX), body.count, body.bytes.len());
        let bytes = [&header_bytes(&header)[..], &body.bytes].concat();
        let (read, range) = split_frame(&bytes, 4_096).unwrap().unwrap();
        prop_assert_eq!(read, header);
        prop_assert_eq!(decode_from_source(&read, &bytes[range]), Ok(message));
    }

    #[test]
    fn a_header_is_read_as_it_was_written(bytes: [[u8; 8]; 5], last: u8) {
        let bytes = [bytes.as_flattened(), &[last]].concat();
        let header: Header = Reader::new(&bytes).take().unwrap();
        prop_assert_eq!(header_bytes(&header).to_vec(), bytes);
    }

    #[test]
    fn random_bytes_do_no_harm(says in says(), bytes in vec(any::<u8>(), 0..500)) {
        let _ = respell(says, &bytes);
    }

    /// Random bodies behind a plausible header reach every decoder.
    #[test]
    fn random_bodies_do_no_harm(
        says in says(), kind in 0..=26u8, head: u64, count in 0..4u32, body in vec(any::<u8>(), 0..300)
    ) {
        let length = (HEADER_BYTES + body.len()) as u32;
        let head = if says == Says::Source { head } else { 0 };
        let header = Header { length, kind, tag: [7; 16], frame: 1, head, count };
        let bytes = [&header_bytes(&header)[..], &body].concat();
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
    fn two_bindings_share_no_tag(left in opens(), right in opens(), node in nodes(), scope: [u8; 32]) {
        let (left, right) = (left.binding, right.binding);
        prop_assert_eq!(left.tag() == right.tag(), left == right);
        let scoped = Binding { scope: ScopeDigest(scope), ..left };
        prop_assert_eq!(left.tag() == scoped.tag(), left == scoped);
        let elsewhere = Binding { requester: Requester { node, ..left.requester }, ..left };
        prop_assert_eq!(left.tag() == elsewhere.tag(), left == elsewhere);
    }
}
