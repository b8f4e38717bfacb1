//! Placeholder.

/// Text before the 64 hex digits of a namespace.
pub const PREFIX: &str = "orbitkv:v2:";
