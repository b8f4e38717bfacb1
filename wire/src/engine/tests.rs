//! Tests of the engine channel's bytes: what they are, that nothing else is accepted, and that
//! `docs/engine-protocol.md` tells the truth about them.

mod documented;
mod golden;
mod plain;
mod random;
mod reencode;
mod refused;
mod samples;

use super::answers::*;
use super::requests::*;
use super::*;
use crate::layout::*;
use crate::text::Text;
