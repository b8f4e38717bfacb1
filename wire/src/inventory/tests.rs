//! Tests of the inventory stream's bytes: what they are, that nothing else is accepted, and that
//! `docs/inventory-protocol.md` tells the truth about them.

mod documented;
mod golden;
mod random;
mod reencode;
mod refused;
mod samples;
mod writer;

use super::*;
use crate::bounds::INVENTORY_BODY_BYTES_MAX;
use crate::identity::{BlockHash, NamespaceDigest};
