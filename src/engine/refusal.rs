//! Refusals of the engine channel: a status, a number and a sentence with the remedy.

use orbitkv_shards::leases::LeaseError;
use orbitkv_wire::engine::{FrameError, Operation, Status, answers};
use orbitkv_wire::layout::LayoutError;

/// Why a request as a whole is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The status the engine sees.
    pub status: Status,
    /// The limit or value it speaks of.
    pub detail: u64,
    /// Input, limit and remedy.
    pub text: String,
}

impl From<LayoutError> for Refused {
    fn from(error: LayoutError) -> Refused {
        Refused::frame(&error.into())
    }
}

impl Refused {
    /// A refusal.
    #[must_use]
    pub fn new(status: Status, detail: u64, text: String) -> Refused {
        Refused { status, detail, text }
    }

    /// The frame could not be read.
    #[must_use]
    pub fn frame(error: &FrameError) -> Refused {
        match *error {
            FrameError::OverLimit { limit, .. } => {
                Refused::new(Status::OverLimit, limit, format!("{error}: split the request"))
            }
            _ => Refused::new(Status::Malformed, 0, error.to_string()),
        }
    }

    /// The lease could not be used.
    #[must_use]
    pub fn lease(error: LeaseError) -> Refused {
        let (status, detail) = match error {
            LeaseError::Unknown => (Status::UnknownLease, 0),
            LeaseError::Foreign => (Status::ForeignLease, 0),
            LeaseError::TooMany { limit } => (Status::Busy, limit as u64),
        };
        Refused::new(status, detail, error.to_string())
    }

    /// The node takes no new work.
    #[must_use]
    pub fn draining() -> Refused {
        Refused::new(Status::Draining, 0, "the node is draining: use another node".into())
    }

    /// The time was not enough, or the engine lost interest.
    #[must_use]
    pub fn stopped(deadline: bool) -> Refused {
        if deadline {
            Refused::new(
                Status::DeadlineExceeded,
                0,
                "the deadline passed before the answer was there".into(),
            )
        } else {
            Refused::new(Status::Cancelled, 0, "cancelled by the engine".into())
        }
    }

    /// The request id is taken.
    #[must_use]
    pub fn duplicate(request_id: u64) -> Refused {
        let text = format!("request id {request_id} was used for something else: use fresh ids");
        Refused::new(Status::DuplicateRequest, request_id, text)
    }

    /// The request was answered, and its answer is not given twice.
    #[must_use]
    pub fn answered_before(request_id: u64) -> Refused {
        let text = format!("request {request_id} was answered, and its answer is not kept: use a fresh id");
        Refused::new(Status::DuplicateRequest, request_id, text)
    }

    /// Appends the refusal as an answer frame.
    pub fn append_to(&self, out: &mut Vec<u8>, operation: Operation, request_id: u64) {
        answers::append_refusal(out, operation, request_id, self.status, self.detail, &self.text);
    }
}
