//! What a requester says once its session is open: yes or no to a snapshot, credit, and a barrier's wish.

use super::{
    FrameError, Header, Kind, SequenceBody, SnapshotBody, Tag, check_requester_header, header_bytes,
};
use crate::identity::{Sequence, SnapshotId};
use crate::layout::{Fixed, Reader, fixed};

fixed! {
    /// Body of SnapshotRefuse.
    pub struct SnapshotRefuseBody {
        /// The snapshot.
        pub snapshot: [u8; 16],
        /// Milliseconds before another offer makes sense.
        pub retry_after_ms: u32,
    }

    /// Body of Ack.
    pub struct AckBody {
        /// Every frame up to this number has been consumed; 0 is none.
        pub consumed_frame: u64,
        /// The installed view; 0 if there is none.
        pub view: [u8; 16],
        /// Sequence the view has been applied through; 0 without a view.
        pub applied: u64,
    }
}

/// A message of a requester, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromRequester {
    /// The offered snapshot may come.
    SnapshotAccept {
        /// Which one.
        snapshot: SnapshotId,
    },
    /// The offered snapshot must not come now.
    SnapshotRefuse {
        /// Which one.
        snapshot: SnapshotId,
        /// Milliseconds before another offer makes sense.
        retry_after_ms: u32,
    },
    /// Credit back and, apart from it, progress.
    Ack {
        /// Every frame up to this number has been consumed; 0 is none.
        consumed_frame: u64,
        /// The installed view; all zeros if there is none.
        view: SnapshotId,
        /// Sequence the view has been applied through.
        applied: Sequence,
    },
    /// A barrier waits for everything up to this sequence.
    FlushThrough {
        /// The sequence.
        sequence: Sequence,
    },
}

/// Decodes everything a requester says except Open.
///
/// # Errors
/// [`FrameError`] naming what is wrong.
pub fn decode_from_requester(header: &Header, body: &[u8]) -> Result<FromRequester, FrameError> {
    check_requester_header(header, false)?;
    let mut reader = Reader::new(body);
    let message = match Kind::from_wire(header.kind) {
        Some(Kind::SnapshotAccept) => {
            let SnapshotBody { snapshot } = reader.take()?;
            FromRequester::SnapshotAccept { snapshot: SnapshotId(snapshot) }
        }
        Some(Kind::SnapshotRefuse) => {
            let SnapshotRefuseBody { snapshot, retry_after_ms } = reader.take()?;
            FromRequester::SnapshotRefuse { snapshot: SnapshotId(snapshot), retry_after_ms }
        }
        Some(Kind::Ack) => {
            let AckBody { consumed_frame, view, applied } = reader.take()?;
            FromRequester::Ack { consumed_frame, view: SnapshotId(view), applied: Sequence(applied) }
        }
        Some(Kind::FlushThrough) => {
            let SequenceBody { sequence } = reader.take()?;
            FromRequester::FlushThrough { sequence: Sequence(sequence) }
        }
        _ => return Err(FrameError::Kind { number: header.kind }),
    };
    reader.finish()?;
    Ok(message)
}

/// Appends a frame of a requester; `frame` is its number in the session.
pub fn append_from_requester(out: &mut Vec<u8>, tag: Tag, frame: u64, message: &FromRequester) {
    match *message {
        FromRequester::SnapshotAccept { snapshot } => {
            append(out, tag, frame, Kind::SnapshotAccept, &SnapshotBody { snapshot: snapshot.0 });
        }
        FromRequester::SnapshotRefuse { snapshot, retry_after_ms } => {
            let body = SnapshotRefuseBody { snapshot: snapshot.0, retry_after_ms };
            append(out, tag, frame, Kind::SnapshotRefuse, &body);
        }
        FromRequester::Ack { consumed_frame, view, applied } => {
            let body = AckBody { consumed_frame, view: view.0, applied: applied.0 };
            append(out, tag, frame, Kind::Ack, &body);
        }
        FromRequester::FlushThrough { sequence } => {
            append(out, tag, frame, Kind::FlushThrough, &SequenceBody { sequence: sequence.0 });
        }
    }
}

fn append<B: Fixed>(out: &mut Vec<u8>, tag: Tag, frame: u64, kind: Kind, body: &B) {
    out.extend_from_slice(&header_bytes(&Header::new(kind, tag, frame, Sequence(0), 0, B::BYTES)));
    body.append_to(out);
}
