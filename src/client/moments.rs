//! When a client submitted its requests and when it had their answers: kept for whoever measures, by the clock that nodes
//! of the host use, so that what a node recorded of the same request can be laid beside it (chapter 6.7).

use orbitkv_wire::engine::Operation;

use super::engine::Client;

/// A request from the engine's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestMoments {
    /// The node's number of the connection it went over.
    pub session: u64,
    /// The request's number on that connection.
    pub request: u64,
    /// What was asked.
    pub operation: Operation,
    /// Before its frame was made, in nanoseconds of `CLOCK_MONOTONIC`.
    pub submitted_ns: u64,
    /// When the last of its answer had been taken in, likewise.
    pub returned_ns: u64,
}

/// The requests that were answered, up to a bound.
#[derive(Debug, Default)]
pub(super) struct Moments {
    limit: usize,
    kept: Vec<RequestMoments>,
    lost: u64,
}

impl Moments {
    pub fn with_room(limit: usize) -> Moments {
        Moments { limit, kept: Vec::with_capacity(limit), lost: 0 }
    }

    pub fn is_on(&self) -> bool {
        self.limit > 0
    }

    pub fn keep(&mut self, moments: RequestMoments) {
        match self.kept.len() < self.limit {
            true => self.kept.push(moments),
            false => self.lost += 1,
        }
    }
}

impl Client {
    /// Takes what was kept of answered requests, oldest first, and how many more there were since without room. Nothing
    /// unless [`ClientSettings::moments_max`](super::ClientSettings::moments_max) says so.
    pub fn take_moments(&mut self) -> (Vec<RequestMoments>, u64) {
        let limit = self.moments.limit;
        let taken = std::mem::replace(&mut self.moments, Moments::with_room(limit));
        (taken.kept, taken.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_counted() {
        let moments = |request| RequestMoments {
            session: 1,
            request,
            operation: Operation::Ping,
            submitted_ns: 2,
            returned_ns: 3,
        };
        let mut kept = Moments::with_room(2);
        (1..=3).for_each(|request| kept.keep(moments(request)));
        assert_eq!((kept.kept, kept.lost), (vec![moments(1), moments(2)], 1));
        assert!(!Moments::with_room(0).is_on());
    }
}
