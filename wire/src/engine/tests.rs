use super::answers::*;
use super::layout::Fixed;
use super::requests::*;
use super::text::Text;
use super::*;

#[test]
fn header_is_twenty_four_bytes() {
    assert_eq!(HEADER_BYTES, 24);
}

#[test]
fn a_request_survives_its_bytes() {
    let mut out = Vec::new();
    let body = ReserveBody { namespace: 7, race: 1 };
    let record = ReserveRecord { block: [9; 32], group: 3, bytes: 65536 };
    append_request(&mut out, Operation::Reserve, 42, 250, &body, &[record, record]);
    let (header, range) = split_frame(&out).unwrap().unwrap();
    assert_eq!((header.length as usize, header.request_id, header.count), (out.len(), 42, 2));
    let Request::Reserve(decoded, records) = decode_request(&header, &out[range]).unwrap() else { panic!() };
    assert_eq!(decoded, body);
    assert_eq!(records.to_vec().unwrap(), vec![record, record]);
}
