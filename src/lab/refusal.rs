//! What `orbitkv lab` says when it cannot do what was asked: the input, the limit, and the remedy.

use std::fmt::Display;
use std::ops::RangeInclusive;

use thiserror::Error;

/// A refused input.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{input}: {limit}; {remedy}")]
pub struct Refusal {
    input: String,
    limit: String,
    remedy: String,
}

impl Refusal {
    /// What was given, what it must keep to, and what to do.
    #[must_use]
    pub fn new(input: impl Into<String>, limit: impl Into<String>, remedy: impl Into<String>) -> Refusal {
        Refusal { input: input.into(), limit: limit.into(), remedy: remedy.into() }
    }
}

/// Refuses a parameter outside its range.
///
/// # Errors
/// The parameter, by name, with its range.
pub fn within<T: PartialOrd + Display>(
    name: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), Refusal> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Refusal::new(
        format!("{name}={value}"),
        format!("must be {} to {}", range.start(), range.end()),
        format!("give a value in that range with --set {name}=…"),
    ))
}

/// Refuses parameters that do not go together.
///
/// # Errors
/// The parameter, by name, with `limit` and `remedy`, unless `holds`.
pub fn holds(holds: bool, input: impl Display, limit: &str, remedy: &str) -> Result<(), Refusal> {
    match holds {
        true => Ok(()),
        false => Err(Refusal::new(input.to_string(), limit, remedy)),
    }
}
