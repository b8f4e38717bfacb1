//! What a source says of an operation: an answer to each residence or to all, then the bytes as they become
//! readable.

use super::{FrameError, Header, Kind, OperationId, Tag, check_header, ensure, known, within};
use crate::bounds::{GRANT_KEYS_MAX, GRANT_MS_MAX};
use crate::identity::{Incarnation, Sequence};
use crate::inventory::ResourceSummary;
use crate::layout::{Fixed, Reader, fixed};
use crate::numbered::numbered;

fixed! {
    /// Body of Answers; a [`ResourceSummary`] and `count` [`AnswerRecord`]s follow, in the order of the residences.
    pub struct AnswersBody {
        /// Milliseconds from now on in which the source reads what it granted, at least 1.
        pub grant_ms: u32,
    }

    /// The answer to one residence.
    pub struct AnswerRecord {
        /// [`AnswerKind`].
        pub answer: u8,
        /// Granted: payload bytes, at least 1. Else 0.
        pub bytes: u32,
        /// Ended: delete sequence, 0 if it is not remembered. NeverHeld: the source's head. Else 0.
        pub sequence: u64,
        /// Busy: milliseconds before another try makes sense. Else 0.
        pub retry_after_ms: u32,
    }

    /// Body of Refused.
    pub struct RefusedBody {
        /// [`RefusalCause`].
        pub cause: u8,
        /// StaleEpoch: the source's epoch. Else 0.
        pub epoch: u64,
        /// StaleEpoch: the source's life. Else 0.
        pub incarnation: [u8; 16],
    }

    /// Body of Bytes. The payload follows the frame on its stream.
    pub struct BytesBody {
        /// Position of the residence in the Authorize.
        pub index: u16,
        /// Payload bytes, at least 1.
        pub bytes: u32,
        /// `xxh3_64` of the payload.
        pub checksum: u64,
    }

    /// Body of Extent.
    pub struct ExtentBody {
        /// Position of the residence in the Authorize.
        pub index: u16,
        /// Payload bytes, at least 1.
        pub bytes: u32,
        /// `xxh3_64` of the payload.
        pub checksum: u64,
        /// Offset of the payload in the source's arena.
        pub offset: u64,
    }

    /// Body of Failed.
    pub struct FailedBody {
        /// Position of the residence in the Authorize.
        pub index: u16,
        /// [`FailureCause`].
        pub cause: u8,
    }

    /// Body of Stopped.
    pub struct StoppedBody {
        /// [`StopCause`].
        pub cause: u8,
    }
}

numbered! {
    /// What became of one residence.
    pub enum AnswerKind: u8 {
        /// Pinned; its bytes follow.
        Granted = 0,
        /// It was here and is gone.
        Ended = 1,
        /// It provably never was here.
        NeverHeld = 2,
        /// Pins or bytes are exhausted for now.
        Busy = 3,
    }
}

numbered! {
    /// Why nothing of an operation is granted.
    pub enum RefusalCause: u8 {
        /// The source has another epoch or another life.
        StaleEpoch = 0,
        /// The source may no longer serve other nodes.
        LeaseExpired = 1,
        /// The source does not serve this requester over this transport.
        TransportOff = 2,
        /// The operation's number has been used, or cancelled before it came.
        Repeated = 3,
        /// The operation is for another cluster, node or shard, or from another node than the connection's.
        Misdirected = 4,
    }
}

numbered! {
    /// Why the bytes of a granted residence do not come.
    pub enum FailureCause: u8 {
        /// The device reported an error.
        DeviceError = 0,
        /// The device gave wrong bytes.
        Corrupt = 1,
        /// It ended before it was read.
        Ended = 2,
    }
}

numbered! {
    /// Why a source sends no more. On a QUIC stream also the error code of the reset.
    pub enum StopCause: u8 {
        /// The deadline has passed.
        Deadline = 0,
        /// The requester cancelled, or released before all was sent.
        Cancelled = 1,
        /// The source may no longer serve other nodes.
        Fenced = 2,
        /// The requester is no member any more.
        Excluded = 3,
    }
}

/// The answer to one residence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Pinned; its bytes follow.
    Granted {
        /// Payload bytes, at least 1.
        bytes: u32,
    },
    /// It was here and is gone.
    Ended {
        /// Sequence of its delete, if it is remembered.
        sequence: Option<Sequence>,
    },
    /// It provably never was here.
    NeverHeld {
        /// The source's head: a residence beyond it is an alarm.
        head: Sequence,
    },
    /// Pins or bytes are exhausted for now.
    Busy {
        /// Milliseconds before another try makes sense.
        retry_after_ms: u32,
    },
}

/// An answer to the whole operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The source has another epoch or another life.
    StaleEpoch {
        /// Its epoch.
        epoch: u64,
        /// Its life.
        incarnation: Incarnation,
    },
    /// The source may no longer serve other nodes.
    LeaseExpired,
    /// The source does not serve this requester over this transport.
    TransportOff,
    /// The operation's number has been used, or cancelled before it came.
    Repeated,
    /// The operation is for somebody else, or from somebody else.
    Misdirected,
}

/// A message of a source, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromSource {
    /// An answer to each residence.
    Answers {
        /// Milliseconds from now on in which the source reads what it granted.
        grant_ms: u32,
        /// How busy it is. Evidence for a cost, never a permission.
        summary: ResourceSummary,
        /// In the order of the residences.
        answers: Vec<Answer>,
    },
    /// Nothing is granted.
    Refused(Refusal),
    /// The bytes of one residence follow.
    Bytes {
        /// Its position in the Authorize.
        index: u16,
        /// Payload bytes.
        bytes: u32,
        /// `xxh3_64` of the payload.
        checksum: u64,
    },
    /// The bytes of one residence lie in the source's arena.
    Extent {
        /// Its position in the Authorize.
        index: u16,
        /// Payload bytes.
        bytes: u32,
        /// `xxh3_64` of the payload.
        checksum: u64,
        /// Offset in the arena.
        offset: u64,
    },
    /// The bytes of one granted residence do not come.
    Failed {
        /// Its position in the Authorize.
        index: u16,
        /// Why.
        cause: FailureCause,
    },
    /// What has not been sent will not be.
    Stopped {
        /// Why.
        cause: StopCause,
    },
    /// The source holds nothing for this operation any more.
    Drained,
}

impl FromSource {
    /// The kind of its frame.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            FromSource::Answers { .. } => Kind::Answers,
            FromSource::Refused(_) => Kind::Refused,
            FromSource::Bytes { .. } => Kind::Bytes,
            FromSource::Extent { .. } => Kind::Extent,
            FromSource::Failed { .. } => Kind::Failed,
            FromSource::Stopped { .. } => Kind::Stopped,
            FromSource::Drained => Kind::Drained,
        }
    }
}

/// Decodes a message of a source. Whether an index was granted, and whether the tag is the operation's, is
/// the caller's to compare.
///
/// # Errors
/// [`FrameError`] naming what is wrong.
pub fn decode_from_source(header: &Header, body: &[u8]) -> Result<FromSource, FrameError> {
    let kind = Kind::from_wire(header.kind).ok_or(FrameError::Kind { number: header.kind })?;
    let mut reader = Reader::new(body);
    let checked = |counted| {
        check_header(header, counted)?;
        let is_bound = kind != Kind::Drained;
        ensure(is_bound || header.tag == Tag::NONE.0, "a message that outlives incarnations is bound to some")
    };
    let message = match kind {
        Kind::Answers => {
            checked(true)?;
            let count = within("answers", header.count as usize, GRANT_KEYS_MAX)?;
            ensure(count > 0, "an operation is answered by nothing")?;
            let AnswersBody { grant_ms } = reader.take()?;
            ensure((1..=GRANT_MS_MAX).contains(&grant_ms), "a grant has no duration, or one too long")?;
            let summary: ResourceSummary = reader.take()?;
            ensure(summary.is_possible(), "more than all of a resource was busy")?;
            let records = reader.take_records::<AnswerRecord>(count)?;
            let answers = records.iter().map(|record| answer(record?)).collect::<Result<_, _>>()?;
            FromSource::Answers { grant_ms, summary, answers }
        }
        Kind::Refused => {
            checked(false)?;
            FromSource::Refused(refusal(reader.take()?)?)
        }
        Kind::Bytes => {
            checked(false)?;
            let BytesBody { index, bytes, checksum } = reader.take()?;
            check_payload(index, bytes)?;
            FromSource::Bytes { index, bytes, checksum }
        }
        Kind::Extent => {
            checked(false)?;
            let ExtentBody { index, bytes, checksum, offset } = reader.take()?;
            check_payload(index, bytes)?;
            ensure(offset.checked_add(u64::from(bytes)).is_some(), "an extent ends nowhere")?;
            FromSource::Extent { index, bytes, checksum, offset }
        }
        Kind::Failed => {
            checked(false)?;
            let FailedBody { index, cause } = reader.take()?;
            within("position of a residence", usize::from(index), GRANT_KEYS_MAX - 1)?;
            let cause = known(FailureCause::from_wire(cause), "a failure has no such cause")?;
            FromSource::Failed { index, cause }
        }
        Kind::Stopped => {
            checked(false)?;
            let StoppedBody { cause } = reader.take()?;
            FromSource::Stopped { cause: known(StopCause::from_wire(cause), "a stop has no such cause")? }
        }
        Kind::Drained => {
            checked(false)?;
            FromSource::Drained
        }
        Kind::Authorize | Kind::Release | Kind::Cancel | Kind::Released => {
            return Err(FrameError::Kind { number: header.kind });
        }
    };
    reader.finish()?;
    Ok(message)
}

/// Appends a frame of a source. `tag` is that of the Authorize; a Drained does not have it.
///
/// # Panics
/// If the message is none that [`decode_from_source`] accepts.
pub fn append_from_source(out: &mut Vec<u8>, tag: Tag, operation: OperationId, message: &FromSource) {
    let start = out.len();
    let (tag, count) = match message {
        FromSource::Answers { answers, .. } => (tag, answers.len()),
        FromSource::Drained => (Tag::NONE, 0),
        _ => (tag, 0),
    };
    let body = body(message);
    Header::new(message.kind(), tag, operation, count as u32, body.len()).append_to(out);
    out.extend_from_slice(&body);
    debug_assert!({
        let (header, range) = super::split_frame(&out[start..]).ok().flatten().expect("a whole frame");
        decode_from_source(&header, &out[start..][range]).as_ref() == Ok(message)
    });
}

fn body(message: &FromSource) -> Vec<u8> {
    let mut body = Vec::new();
    match *message {
        FromSource::Answers { grant_ms, summary, ref answers } => {
            AnswersBody { grant_ms }.append_to(&mut body);
            summary.append_to(&mut body);
            answers.iter().for_each(|answer| record(answer).append_to(&mut body));
        }
        FromSource::Refused(refusal) => {
            let plain = |cause| (cause, 0, Incarnation([0; 16]));
            let (cause, epoch, incarnation) = match refusal {
                Refusal::StaleEpoch { epoch, incarnation } => (RefusalCause::StaleEpoch, epoch, incarnation),
                Refusal::LeaseExpired => plain(RefusalCause::LeaseExpired),
                Refusal::TransportOff => plain(RefusalCause::TransportOff),
                Refusal::Repeated => plain(RefusalCause::Repeated),
                Refusal::Misdirected => plain(RefusalCause::Misdirected),
            };
            RefusedBody { cause: cause as u8, epoch, incarnation: incarnation.0 }.append_to(&mut body);
        }
        FromSource::Bytes { index, bytes, checksum } => {
            BytesBody { index, bytes, checksum }.append_to(&mut body);
        }
        FromSource::Extent { index, bytes, checksum, offset } => {
            ExtentBody { index, bytes, checksum, offset }.append_to(&mut body);
        }
        FromSource::Failed { index, cause } => FailedBody { index, cause: cause as u8 }.append_to(&mut body),
        FromSource::Stopped { cause } => StoppedBody { cause: cause as u8 }.append_to(&mut body),
        FromSource::Drained => {}
    }
    body
}

fn record(answer: &Answer) -> AnswerRecord {
    let none = AnswerRecord { answer: 0, bytes: 0, sequence: 0, retry_after_ms: 0 };
    match *answer {
        Answer::Granted { bytes } => AnswerRecord { answer: AnswerKind::Granted as u8, bytes, ..none },
        Answer::Ended { sequence } => {
            let sequence = sequence.map_or(0, |sequence| sequence.0);
            AnswerRecord { answer: AnswerKind::Ended as u8, sequence, ..none }
        }
        Answer::NeverHeld { head } => {
            AnswerRecord { answer: AnswerKind::NeverHeld as u8, sequence: head.0, ..none }
        }
        Answer::Busy { retry_after_ms } => {
            AnswerRecord { answer: AnswerKind::Busy as u8, retry_after_ms, ..none }
        }
    }
}

fn answer(record: AnswerRecord) -> Result<Answer, FrameError> {
    let AnswerRecord { answer: kind, bytes, sequence, retry_after_ms } = record;
    let kind = known(AnswerKind::from_wire(kind), "there is no such answer")?;
    let answer = match kind {
        AnswerKind::Granted => Answer::Granted { bytes },
        AnswerKind::Ended => Answer::Ended { sequence: (sequence != 0).then_some(Sequence(sequence)) },
        AnswerKind::NeverHeld => Answer::NeverHeld { head: Sequence(sequence) },
        AnswerKind::Busy => Answer::Busy { retry_after_ms },
    };
    ensure(self::record(&answer) == record, "an answer says more than it means")?;
    ensure(kind != AnswerKind::Granted || bytes > 0, "a grant of no bytes")?;
    Ok(answer)
}

fn refusal(body: RefusedBody) -> Result<Refusal, FrameError> {
    let RefusedBody { cause, epoch, incarnation } = body;
    let cause = known(RefusalCause::from_wire(cause), "a refusal has no such cause")?;
    let is_plain = epoch == 0 && incarnation == [0; 16];
    ensure(is_plain || cause == RefusalCause::StaleEpoch, "a refusal names a life without need")?;
    Ok(match cause {
        RefusalCause::StaleEpoch => Refusal::StaleEpoch { epoch, incarnation: Incarnation(incarnation) },
        RefusalCause::LeaseExpired => Refusal::LeaseExpired,
        RefusalCause::TransportOff => Refusal::TransportOff,
        RefusalCause::Repeated => Refusal::Repeated,
        RefusalCause::Misdirected => Refusal::Misdirected,
    })
}

fn check_payload(index: u16, bytes: u32) -> Result<(), FrameError> {
    within("position of a residence", usize::from(index), GRANT_KEYS_MAX - 1)?;
    ensure(bytes > 0, "a payload of no bytes")
}
