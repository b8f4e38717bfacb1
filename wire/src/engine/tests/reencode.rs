//! Turns a decoded frame back into bytes. What the decoders accept has one spelling only, so the
//! result must equal the input; the fuzz targets include this file too.

use super::{Answer, Header, Operation, Request, Status};
use super::{Fixed, FrameError, HashRecord, PlaceRecord, Records};
use super::{append_answer, append_done, append_records, append_refusal};
use super::{append_bare_request, append_prefix_request, append_request};

fn all<T: Fixed>(records: &Records<'_, T>) -> Result<Vec<T>, FrameError> {
    let copied = records.to_vec()?;
    assert_eq!(copied.len(), records.len());
    Ok(copied)
}

/// The bytes of a request.
pub fn request(header: &Header, request: &Request<'_>) -> Result<Vec<u8>, FrameError> {
    let mut out = Vec::new();
    let operation = Operation::from_wire(header.operation).expect("it decoded");
    let (id, wait) = (header.request_id, header.deadline_ms);
    let none: &[HashRecord] = &[];
    match request {
        Request::Ping | Request::Sync | Request::Drain => append_bare_request(&mut out, operation, id, wait),
        Request::Hello(body) => append_request(&mut out, operation, id, wait, body, none),
        Request::Register(body, groups) => append_request(&mut out, operation, id, wait, &**body, groups),
        Request::Reserve(body, records) => {
            append_request(&mut out, operation, id, wait, body, &all(records)?)
        }
        Request::Commit(body, records) | Request::Abort(body, records) => {
            append_request(&mut out, operation, id, wait, body, &all(records)?);
        }
        Request::Query(body, lists, hashes)
        | Request::Acquire(body, lists, hashes)
        | Request::Prefetch(body, lists, hashes) => {
            append_prefix_request(&mut out, operation, id, wait, body, lists, &all(hashes)?);
        }
        Request::Attach(body) | Request::Release(body) => {
            append_request(&mut out, operation, id, wait, body, none);
        }
        Request::Cancel(body) => append_request(&mut out, operation, id, wait, body, none),
        Request::Evict(body, keys) => append_request(&mut out, operation, id, wait, body, &all(keys)?),
        Request::Clear(body) => append_request(&mut out, operation, id, wait, body, none),
        Request::List(body) => append_request(&mut out, operation, id, wait, body, none),
    }
    Ok(out)
}

/// The bytes of an answer.
pub fn answer(header: &Header, answer: &Answer<'_>) -> Result<Vec<u8>, FrameError> {
    let mut out = Vec::new();
    let operation = Operation::from_wire(header.operation).expect("it decoded");
    let status = Status::from_wire(header.status).expect("it decoded");
    let (id, more) = (header.request_id, header.flags != 0);
    let none: &[PlaceRecord] = &[];
    match answer {
        Answer::Refused(said, refusal) => {
            assert_eq!(*said, status);
            let text = refusal.text.as_str().expect("checked by the decoder");
            append_refusal(&mut out, operation, id, status, refusal.detail, text);
        }
        Answer::Done => append_done(&mut out, operation, id),
        Answer::Hello(body) => append_answer(&mut out, operation, id, more, body, none),
        Answer::Register(body) => append_answer(&mut out, operation, id, more, body, none),
        Answer::Reserve(slots) => append_records(&mut out, operation, id, &all(slots)?),
        Answer::Outcomes(outcomes) => append_records(&mut out, operation, id, &all(outcomes)?),
        Answer::Query(body, places) => append_answer(&mut out, operation, id, more, body, &all(places)?),
        Answer::Acquire(body, blocks) => append_answer(&mut out, operation, id, more, body, &all(blocks)?),
        Answer::Attach(body, blocks) => append_answer(&mut out, operation, id, more, body, &all(blocks)?),
        Answer::Clear(body) => append_answer(&mut out, operation, id, more, body, none),
        Answer::List(body, residents) => append_answer(&mut out, operation, id, more, body, &all(residents)?),
        Answer::Sync(body, heads) => append_answer(&mut out, operation, id, more, body, &all(heads)?),
        Answer::Drain(body) => append_answer(&mut out, operation, id, more, body, none),
    }
    Ok(out)
}
