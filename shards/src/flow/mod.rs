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

#[cfg(test)]
mod tests;
