//! Tests of the payload protocol's bytes: what they are, that nothing else is accepted, and that
//! `docs/payload-protocol.md` tells the truth about them.

mod documented;
mod golden;
mod random;
mod reencode;
mod refused;
mod samples;
mod split;

use super::*;
