//! Models of what stands between a caller and what it calls (lessons 1 to 8).

mod breaker;

use super::Entry;

/// The models, in the order of their lessons.
pub const MODELS: &[Entry] = &[Entry::of::<breaker::CircuitBreaker>()];
