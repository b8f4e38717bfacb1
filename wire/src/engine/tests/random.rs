//! Frames nobody wrote down: every value goes through its bytes, and no bytes do harm.

use proptest::collection::vec;
use proptest::prelude::*;

use super::samples::{answers, requests};
use super::*;

/// Any value of a fixed type, by way of its bytes: plain fields allow every bit pattern.
fn any_of<T: Fixed + std::fmt::Debug>() -> impl Strategy<Value = T> {
    vec(any::<u8>(), T::BYTES).prop_map(|bytes| Reader::new(&bytes).take::<T>().unwrap())
}

fn some_of<T: Fixed + std::fmt::Debug>() -> impl Strategy<Value = Vec<T>> {
    vec(any_of::<T>(), 0..9)
}

/// Decodes a request and spells it again.
fn respell_request(bytes: &[u8]) -> Result<Vec<u8>, FrameError> {
    let (header, body) = split_frame(bytes)?.ok_or(FrameError::Truncated)?;
    reencode::request(&header, &decode_request(&header, &bytes[body])?)
}

fn respell_answer(bytes: &[u8]) -> Result<Vec<u8>, FrameError> {
    let (header, body) = split_frame(bytes)?.ok_or(FrameError::Truncated)?;
    reencode::answer(&header, &decode_answer(&header, &bytes[body])?)
}

/// Every value survives its bytes, and every bit pattern is the bytes of one value.
macro_rules! survives_its_bytes {
    ($($name:ident: $kind:ty,)*) => {proptest! {$(
        #[test]
        fn $name(bytes in vec(any::<u8>(), <$kind>::BYTES)) {
            let value: $kind = Reader::new(&bytes).take().unwrap();
            let mut again = Vec::new();
            value.append_to(&mut again);
            prop_assert_eq!(again, bytes);
        }
    )*}};
}

survives_its_bytes! {
    header: Header,
    hello: HelloBody,
    register: RegisterBody,
    group: GroupRecord,
    reserve: ReserveBody,
    reserve_record: ReserveRecord,
    prefix: PrefixBody,
    list_record: ListRecord,
    list: ListBody,
    hello_answer: HelloAnswer,
    slot: SlotRecord,
    query_answer: QueryAnswer,
    block: BlockRecord,
    attached: AttachedRecord,
    resident: ResidentRecord,
    sync_answer: SyncAnswer,
    drain_answer: DrainAnswer,
    refusal: Refusal,
}

proptest! {
    #[test]
    fn a_save_is_read_as_it_was_written(
        id: u64, wait in 0..=600_000u32, race in 0..=1u8, namespace: u32, keys in some_of::<ReserveRecord>()
    ) {
        let body = ReserveBody { namespace, race };
        let mut bytes = Vec::new();
        append_request(&mut bytes, Operation::Reserve, id, wait, &body, &keys);
        let (header, range) = split_frame(&bytes).unwrap().unwrap();
        prop_assert_eq!((header.request_id, header.deadline_ms), (id, wait));
        let Request::Reserve(read, records) = decode_request(&header, &bytes[range]).unwrap() else { panic!() };
        prop_assert_eq!((read, records.to_vec().unwrap()), (body, keys));
    }

    #[test]
    fn a_prefix_is_read_as_it_was_written(
        which in 0..3usize, hold in 0..=1u8, completion in 0..=1u8, lease: [u8; 16],
        lists in vec((any::<u32>(), any::<u16>(), vec(any_of::<HashRecord>(), 0..5)), 0..6)
    ) {
        let operation = [Operation::Query, Operation::Acquire, Operation::Prefetch][which];
        // Who prefetches pins nothing.
        let (hold, lease) = if operation == Operation::Prefetch { (0, [0; 16]) } else { (hold, lease) };
        let body = PrefixBody { lists: lists.len() as u32, completion, hold, lease };
        let heads: Vec<_> = lists
            .iter()
            .map(|(namespace, group, hashes)| {
                ListRecord { namespace: *namespace, group: *group, count: hashes.len() as u32 }
            })
            .collect();
        let hashes: Vec<_> = lists.iter().flat_map(|(_, _, hashes)| hashes.clone()).collect();
        let mut bytes = Vec::new();
        append_prefix_request(&mut bytes, operation, 1, 0, &body, &heads, &hashes);
        let (header, range) = split_frame(&bytes).unwrap().unwrap();
        let (read, read_heads, read_hashes) = match decode_request(&header, &bytes[range]).unwrap() {
            Request::Query(body, lists, hashes) if operation == Operation::Query => (body, lists, hashes),
            Request::Acquire(body, lists, hashes) if operation == Operation::Acquire => (body, lists, hashes),
            Request::Prefetch(body, lists, hashes) if operation == Operation::Prefetch => (body, lists, hashes),
            other => panic!("{other:?}"),
        };
        prop_assert_eq!((read, read_heads, read_hashes.to_vec().unwrap()), (body, heads, hashes));
    }

    #[test]
    fn blocks_are_read_as_they_were_written(more: bool, body in any_of::<AcquireAnswer>(), blocks in some_of::<BlockRecord>()) {
        let mut bytes = Vec::new();
        append_answer(&mut bytes, Operation::Acquire, 3, more, &body, &blocks);
        let (header, range) = split_frame(&bytes).unwrap().unwrap();
        prop_assert_eq!(header.flags, u8::from(more));
        let Answer::Acquire(read, records) = decode_answer(&header, &bytes[range]).unwrap() else { panic!() };
        prop_assert_eq!((read, records.to_vec().unwrap()), (body, blocks));
    }

    #[test]
    fn random_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..400)) {
        let _ = respell_request(&bytes);
        let _ = respell_answer(&bytes);
    }

    /// Random bodies behind a plausible header reach every decoder.
    #[test]
    fn random_bodies_do_no_harm(
        operation in 0..=18u8, status in 0..=2u16, count in 0..8u32, body in vec(any::<u8>(), 0..300)
    ) {
        let length = (HEADER_BYTES + body.len()) as u32;
        let header = Header { length, operation, flags: 0, status, request_id: 1, deadline_ms: 0, count };
        let mut bytes = Vec::new();
        header.append_to(&mut bytes);
        bytes.extend(body);
        if let Ok(again) = respell_request(&bytes) {
            prop_assert_eq!(&again, &bytes);
        }
        if let Ok(again) = respell_answer(&bytes) {
            prop_assert_eq!(&again, &bytes);
        }
    }

    /// A bent good frame is refused, or it is another good frame in its only spelling.
    #[test]
    fn a_bent_frame_has_one_spelling_or_none(
        pick: prop::sample::Index, bends in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
    ) {
        let asked = requests();
        let mut bytes = pick.get(&asked).bytes.clone();
        for (at, value) in &bends {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if let Ok(again) = respell_request(&bytes) {
            prop_assert_eq!(&again, &bytes[..again.len()]);
        }
        let answered = answers();
        let mut bytes = pick.get(&answered).bytes.clone();
        for (at, value) in &bends {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if let Ok(again) = respell_answer(&bytes) {
            prop_assert_eq!(&again, &bytes[..again.len()]);
        }
    }

    #[test]
    fn a_text_is_cut_to_what_it_holds(text in "\\PC{0,40}") {
        let field = Text::<20>::cut(&text);
        let kept = field.as_str().unwrap();
        prop_assert!(text.starts_with(kept));
        let next = text[kept.len()..].chars().next();
        prop_assert!(next.is_none_or(|next| kept.len() + next.len_utf8() > 20));
        prop_assert_eq!(Text::<20>::new(&text).is_ok(), text.len() <= 20);
    }
}
