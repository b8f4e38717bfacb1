//! Models of what stands between a caller and what it calls (lessons 1 to 8).

mod admission_gate;
mod backpressure;
mod blast_radius;
mod breaker;
mod bulkhead;
mod degradation;
mod retry_storm;
mod signature;
mod timeout_budget;

use super::Entry;

/// The models, in the order of their lessons.
pub const MODELS: &[Entry] = &[
    Entry::of::<signature::Signature>(),
    Entry::of::<blast_radius::BlastRadius>(),
    Entry::of::<breaker::CircuitBreaker>(),
    Entry::of::<bulkhead::Bulkhead>(),
    Entry::of::<retry_storm::RetryStorm>(),
    Entry::of::<timeout_budget::TimeoutBudget>(),
    Entry::of::<backpressure::Backpressure>(),
    Entry::of::<admission_gate::AdmissionGate>(),
    Entry::of::<degradation::Degradation>(),
];
