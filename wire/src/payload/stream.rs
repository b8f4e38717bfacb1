//! A stream of a source cut into frames and payload, however the network has cut it.
//!
//! Payload is handed on as it arrives, so that it goes to where it belongs without being collected first;
//! what may have to be collected is one frame.

use std::ops::Range;

use super::{FrameError, FromSource, Header, Kind, decode_from_source, split_frame};

/// What lies at the front of the received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A whole frame of so many bytes, its payload excluded.
    Frame {
        /// Its header.
        header: Header,
        /// What it says.
        message: FromSource,
        /// Bytes of the frame.
        length: usize,
    },
    /// Payload of one residence, all that is there of it.
    Payload {
        /// Position of the residence in the Authorize.
        index: u16,
        /// Where the piece belongs in the payload.
        range: Range<u32>,
        /// Whether the payload is whole with it.
        is_last: bool,
    },
}

impl Part {
    /// Received bytes that it takes off the front.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Part::Frame { length, .. } => *length,
            Part::Payload { range, .. } => range.len(),
        }
    }
}

/// Payload of which a part has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Awaited {
    index: u16,
    bytes: u32,
    come: u32,
}

/// Cuts one stream. [`Splitter::next`] is given the received bytes that no part has taken yet.
#[derive(Clone, Debug, Default)]
pub struct Splitter {
    awaited: Option<Awaited>,
}

impl Splitter {
    /// A splitter at the start of a stream.
    #[must_use]
    pub fn new() -> Splitter {
        Splitter::default()
    }

    /// The part at the front of `bytes`, or `None` until more has arrived. What it returns has been taken:
    /// the next call is given what follows its [`Part::length`] bytes.
    ///
    /// # Errors
    /// [`FrameError`] at a frame that is none; the stream cannot be read on.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Option<Part>, FrameError> {
        if let Some(awaited) = &mut self.awaited {
            let start = awaited.come;
            let piece = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min(awaited.bytes - start);
            if piece == 0 {
                return Ok(None);
            }
            awaited.come += piece;
            let (index, is_last) = (awaited.index, awaited.come == awaited.bytes);
            if is_last {
                self.awaited = None;
            }
            return Ok(Some(Part::Payload { index, range: start..start + piece, is_last }));
        }
        let Some((header, body)) = split_frame(bytes)? else { return Ok(None) };
        let length = body.end;
        let message = decode_from_source(&header, &bytes[body])?;
        if let FromSource::Bytes { index, bytes, .. } = message {
            debug_assert_eq!(header.kind, Kind::Bytes as u8);
            self.awaited = Some(Awaited { index, bytes, come: 0 });
        }
        Ok(Some(Part::Frame { header, message, length }))
    }

    /// Whether the stream may end here: not within a payload.
    #[must_use]
    pub fn may_end(&self) -> bool {
        self.awaited.is_none()
    }
}
