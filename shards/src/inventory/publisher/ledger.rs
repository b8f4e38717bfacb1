//! The ledger of a session: frames that left and that its receiver has not consumed.
//!
//! It is the receiver's credit and our own memory at once: a frame is recorded with its bytes, and
//! those very bytes come back with the acknowledgement that covers it, or with the end of the session,
//! once. Acknowledgements of what was acknowledged, and of what never left, return nothing.

use std::collections::VecDeque;
use std::rc::Rc;

use super::frame::SharedBody;
use crate::time::Moment;

/// A frame that left.
#[derive(Debug)]
struct Outstanding {
    frame: u64,
    left_at: Moment,
    /// Its bytes stay charged while the receiver may not have them.
    body: Rc<SharedBody>,
}

/// Frames of one session that are charged.
#[derive(Debug)]
pub struct Ledger {
    /// What the receiver announced, or less if our share of the queue pool is smaller.
    window_bytes: usize,
    frames_max: usize,
    outstanding: VecDeque<Outstanding>,
    outstanding_bytes: usize,
    recorded_bytes: u64,
    returned_bytes: u64,
}

impl Ledger {
    /// A ledger for `window_bytes` and `frames_max` frames.
    #[must_use]
    pub fn new(window_bytes: usize, frames_max: usize) -> Ledger {
        Ledger {
            window_bytes,
            frames_max,
            outstanding: VecDeque::new(),
            outstanding_bytes: 0,
            recorded_bytes: 0,
            returned_bytes: 0,
        }
    }

    /// Whether a frame of `bytes` may leave.
    #[must_use]
    pub fn has_credit(&self, bytes: usize) -> bool {
        bytes <= self.credit_bytes()
    }

    /// Bytes of the largest frame that may leave.
    #[must_use]
    pub fn credit_bytes(&self) -> usize {
        if self.outstanding.len() == self.frames_max { 0 } else { self.window_bytes - self.outstanding_bytes }
    }

    /// The frame numbered `frame` leaves.
    ///
    /// # Panics
    /// If there is no credit for it, or a later frame has left.
    pub fn record(&mut self, frame: u64, body: Rc<SharedBody>, now: Moment) {
        let bytes = body.frame_bytes();
        assert!(self.has_credit(bytes), "no frame leaves without credit");
        assert!(
            self.outstanding.back().is_none_or(|last| last.frame < frame),
            "frames are numbered in order"
        );
        self.outstanding.push_back(Outstanding { frame, left_at: now, body });
        self.outstanding_bytes += bytes;
        self.recorded_bytes += bytes as u64;
        self.assert_invariants();
    }

    /// The receiver has consumed every frame up to `consumed_frame`; returns the bytes that come back.
    pub fn on_ack(&mut self, consumed_frame: u64) -> usize {
        let mut returned = 0;
        while let Some(first) = self.outstanding.front().filter(|first| first.frame <= consumed_frame) {
            returned += first.body.frame_bytes();
            self.outstanding.pop_front();
        }
        self.outstanding_bytes -= returned;
        self.returned_bytes += returned as u64;
        self.assert_invariants();
        returned
    }

    /// Bytes that left and did not come back.
    #[must_use]
    pub fn outstanding_bytes(&self) -> usize {
        self.outstanding_bytes
    }

    /// When the oldest of them left.
    #[must_use]
    pub fn oldest_left_at(&self) -> Option<Moment> {
        self.outstanding.front().map(|first| first.left_at)
    }

    /// The bodies of outstanding frames.
    #[cfg(test)]
    pub(super) fn bodies(&self) -> impl Iterator<Item = &Rc<SharedBody>> {
        self.outstanding.iter().map(|frame| &frame.body)
    }

    fn assert_invariants(&self) {
        assert_eq!(
            self.recorded_bytes,
            self.returned_bytes + self.outstanding_bytes as u64,
            "every byte that left is outstanding or came back"
        );
        assert!(self.outstanding_bytes <= self.window_bytes, "the window holds");
        debug_assert_eq!(
            self.outstanding_bytes,
            self.outstanding.iter().map(|frame| frame.body.frame_bytes()).sum::<usize>(),
            "each frame is worth what was recorded"
        );
    }
}
