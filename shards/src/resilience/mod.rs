//! Resilience policies as pure state machines (chapter 5): time and randomness are arguments, decisions are
//! values. The daemon drives them with real time, the lessons of `orbitkv lab` and their conformance tests
//! with rounds; both drive the same types.

pub mod claim_check;
pub mod compensation;
pub mod configuration;
pub mod drill;
pub mod failover;
pub mod health;
pub mod idempotency;
pub mod objectives;
pub mod stamps;
pub mod strangler;
pub mod valet_key;
pub mod zones;
