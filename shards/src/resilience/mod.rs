//! Resilience policies: one room a pattern. Each is a pure state machine that answers "may I?" and is told
//! what came of it; it calls nothing, waits for nothing and draws nothing. The node asks them in real time,
//! the models of `orbitkv lab` in rounds: a [`Moment`](crate::time::Moment) is whatever their driver counts.
//!
//! Where a published model is weaker than a node should be, the type takes the model's parameters and has a
//! safer default (decision record 22).

pub mod backpressure;
pub mod blast_radius;
pub mod breaker;
pub mod bulkhead;
pub mod claim_check;
pub mod compensation;
pub mod configuration;
pub mod deadline;
pub mod degradation;
pub mod drill;
pub mod failover;
pub mod gate;
pub mod health;
pub mod idempotency;
pub mod objectives;
pub mod retry;
pub mod signature;
pub mod stamps;
pub mod strangler;
pub mod valet_key;
pub mod zones;
