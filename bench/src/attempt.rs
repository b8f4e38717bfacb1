//! An attempt at a measurement: an engine on a thread of its own while somebody looks whether a signal comes, and why
//! there is no result.

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::Duration;

use orbitkv::cluster::ClusterFailure;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;

use crate::payload::WrongBytes;
use crate::{Failure, fail};

/// How often somebody looks whether a signal came, or the engine is done.
const LOOK: Duration = Duration::from_millis(50);

/// What a thread failed with: a [`Failure`] does not leave its thread.
pub type SentFailure = Box<dyn Error + Send + Sync>;

/// A failure that leaves its thread: wrong bytes as they are, anything else in words.
pub fn sent(failure: impl Into<Failure>) -> SentFailure {
    match failure.into().downcast::<WrongBytes>() {
        Ok(wrong) => wrong,
        Err(other) => other.to_string().into(),
    }
}

/// What a thread has sent.
pub fn received(failure: SentFailure) -> Failure {
    failure
}

/// Why there is no result.
pub enum Unmade {
    /// A signal came.
    Stopped(&'static str),
    /// A block came back wrong.
    WrongBytes(String),
    /// Something else.
    Failed(Failure),
}

impl<F: Into<Failure>> From<F> for Unmade {
    fn from(failure: F) -> Unmade {
        let failure = failure.into();
        match failure.downcast_ref::<ClusterFailure>() {
            Some(&ClusterFailure::Stopped { signal }) => Unmade::Stopped(signal),
            None if failure.is::<WrongBytes>() => Unmade::WrongBytes(failure.to_string()),
            _ => Unmade::Failed(failure),
        }
    }
}

impl Unmade {
    /// Says it, for a benchmark that ends with it.
    pub fn tell(self) -> ExitCode {
        match self {
            Unmade::Stopped(signal) => fail(Exit::Unmet, &*Failure::from(format!("stopped by {signal}"))),
            Unmade::WrongBytes(words) => fail(Exit::Unmet, &*Failure::from(words)),
            Unmade::Failed(failure) => fail(Exit::Environment, &*failure),
        }
    }
}

/// Has an engine work on a thread of its own, and looks again and again until it is done or a signal comes. Then `stop`
/// is set, for the engine and whoever else works beside it.
///
/// # Errors
/// See [`Unmade`].
pub fn attend<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    stop: &AtomicBool,
    signals: &StopSignals,
    engine: impl FnOnce() -> Result<T, Failure> + Send + 'scope,
    mut look: impl FnMut(),
) -> Result<T, Unmade> {
    let engine = scope.spawn(move || engine().map_err(sent));
    let mut signal = None;
    while !engine.is_finished() && signal.is_none() {
        signal = signals.wait(LOOK);
        look();
    }
    stop.store(true, Ordering::Relaxed);
    let done = engine.join().expect("a thread says its errors");
    match signal {
        Some(signal) => Err(Unmade::Stopped(signal)),
        None => done.map_err(|failure| received(failure).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_bytes_leave_their_thread_as_they_are_and_signals_are_known() {
        let wrong = received(sent(WrongBytes::of(1, 2)));
        assert!(wrong.is::<WrongBytes>());
        let words = wrong.to_string();
        assert!(matches!(Unmade::from(wrong), Unmade::WrongBytes(told) if told == words));
        let other = received(sent("it rained"));
        assert!(matches!(Unmade::from(other), Unmade::Failed(failure) if failure.to_string() == "it rained"));
        let stopped = ClusterFailure::Stopped { signal: "SIGINT" };
        assert!(matches!(Unmade::from(stopped), Unmade::Stopped("SIGINT")));
        assert!(matches!(Unmade::from(ClusterFailure::NoEtcd), Unmade::Failed(_)));
    }
}
