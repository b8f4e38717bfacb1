//! How much payload is on its way, how fast it goes, and whose goes first (chapter 3.6).
//!
//! Two ends, each with its own means. Who asks holds a window of bytes ([`credits`]) and may ask no faster than a
//! rate; who lends sends no faster than a rate, in an order of its own ([`egress`]). Both rates are kept by the same
//! bucket ([`pacing`]). Nothing here sees a transport: the driver tells what was taken, and gets told what may go.
//! How busy a source is ([`pressure`]) is told beside that and decides nothing.

pub mod credits;
pub mod egress;
mod fair;
pub mod pacing;
pub mod pressure;

use std::time::Duration;

/// How long a stream waits for its next piece: after it, it goes before all that have waited less; and no more is granted
/// than gets a piece within it. A quarter of what a requester waits for a word unless it was told otherwise, which the
/// node asserts. A source does not know what a requester was told: one that waits for less than four of these may give
/// up a stream whose turn would have come, and asks elsewhere.
pub const PIECE_WAIT: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
