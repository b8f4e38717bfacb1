//! What the tests of the engine channel and of the inventory stream share.

pub mod document;
pub mod golden;
pub mod part;
