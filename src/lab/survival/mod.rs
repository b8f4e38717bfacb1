//! Models of how a service survives what fails, and what surviving costs (lessons 9 to 20).

mod claim_check;
mod compensation;
mod configuration;
mod drill;
mod failover;
mod health;
mod idempotency;
mod objectives;
mod rounds;
mod stamps;
mod strangler;
mod valet_key;
mod zones;

use super::Entry;

/// The models, in the order of their lessons.
pub const MODELS: &[Entry] = &[
    Entry::of::<failover::Schedule>(),
    Entry::of::<failover::Budget>(),
    Entry::of::<health::Endpoint>(),
    Entry::of::<health::Budget>(),
    Entry::of::<objectives::DataLoss>(),
    Entry::of::<objectives::RecoveryBudget>(),
    Entry::of::<zones::Zones>(),
    Entry::of::<zones::Capacity>(),
    Entry::of::<stamps::Stamps>(),
    Entry::of::<stamps::Load>(),
    Entry::of::<drill::Plan>(),
    Entry::of::<drill::Work>(),
    Entry::of::<idempotency::Idempotency>(),
    Entry::of::<idempotency::Cost>(),
    Entry::of::<compensation::Compensation>(),
    Entry::of::<compensation::Cost>(),
    Entry::of::<claim_check::ClaimCheck>(),
    Entry::of::<claim_check::Cost>(),
    Entry::of::<valet_key::Path>(),
    Entry::of::<valet_key::Scope>(),
    Entry::of::<configuration::Configuration>(),
    Entry::of::<strangler::Strangler>(),
];
