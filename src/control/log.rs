//! What the process logs: what its environment says, unless the operator's policy says another level.

use std::env;
use std::io::{self, IsTerminal};

use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::settings::LogLevel;

const VARIABLE: &str = "ORBITKV_LOG";
/// What is logged without the variable.
const DEFAULT: &str = "info";
/// What our own events are of: these, and what is below them.
const TARGETS: [&str; 4] = ["orbitkv", "orbitkv_native", "orbitkv_shards", "orbitkv_wire"];

/// The variable is nothing that could be followed.
#[derive(Debug, Error, PartialEq)]
#[error(
    "{VARIABLE}={value:?}: {why}; write it like {VARIABLE}=debug or {VARIABLE}=info,orbitkv::peers=debug"
)]
pub struct LogError {
    value: String,
    why: String,
}

/// The filter of the log, which can be changed while the process runs.
pub struct LogFilter {
    /// What the process was started with.
    directives: String,
    reload: Box<dyn Fn(EnvFilter) + Send + Sync>,
}

/// Directives as they are followed. A word that is no level would be taken for a target, and nothing else logged.
fn understood(value: &str) -> Result<(String, EnvFilter), LogError> {
    let refuse = |why: String| LogError { value: value.to_owned(), why };
    let parts: Vec<&str> = value.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let is_ours = |word: &str| {
        TARGETS.iter().any(|target| {
            word.strip_prefix(target).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        })
    };
    let mut bare = parts.iter().filter(|part| !part.contains(['=', '[']));
    if let Some(word) = bare.find(|word| word.parse::<LevelFilter>().is_err() && !is_ours(word)) {
        return Err(refuse(format!(
            "`{word}` is no level (off, error, warn, info, debug, trace) and none of our targets"
        )));
    }
    let directives = if parts.is_empty() { DEFAULT.to_owned() } else { parts.join(",") };
    let filter = EnvFilter::try_new(&directives).map_err(|error| refuse(error.to_string()))?;
    Ok((directives, filter))
}

impl LogFilter {
    /// Begins to log to standard error.
    ///
    /// # Errors
    /// [`LogError`] if the environment asks for what cannot be followed.
    pub fn install() -> Result<LogFilter, LogError> {
        let value = env::var_os(VARIABLE).unwrap_or_default();
        let (directives, filter) = understood(&value.to_string_lossy())?;
        let log = tracing_subscriber::fmt()
            .with_ansi(io::stderr().is_terminal())
            .with_writer(io::stderr)
            .with_env_filter(filter)
            .with_filter_reloading();
        let handle = log.reload_handle();
        // A second subscriber in one process is no reason not to serve; it is gone then, and so is its filter.
        let _ = log.try_init();
        Ok(LogFilter { directives, reload: Box::new(move |filter| drop(handle.reload(filter))) })
    }

    /// Logs from this level on, or as it was started.
    pub fn set(&self, level: Option<LogLevel>) {
        let directives = level.map_or_else(|| self.directives.clone(), LogLevel::directives);
        (self.reload)(EnvFilter::new(directives));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_meant_is_followed_and_nothing_else() {
        for (value, directives) in [
            ("", "info"),
            (" , ", "info"),
            ("debug", "debug"),
            ("OFF", "OFF"),
            ("info, orbitkv::peers=debug", "info,orbitkv::peers=debug"),
            ("orbitkv_native::quic,warn", "orbitkv_native::quic,warn"),
            ("orbitkv", "orbitkv"),
            ("warn,hyper=info", "warn,hyper=info"),
            ("[turn]=trace,error", "[turn]=trace,error"),
        ] {
            assert_eq!(understood(value).map(|(directives, _)| directives), Ok(directives.to_owned()));
        }
        for (value, word) in [
            ("debgu", "`debgu`"),
            ("info,peers", "`peers`"),
            ("orbitkvx", "`orbitkvx`"),
            ("info,orbitkv=debgu", "orbitkv=debgu"),
            ("\u{fffd}", "`\u{fffd}`"),
        ] {
            let error = understood(value).expect_err(value).to_string();
            assert!(error.starts_with("ORBITKV_LOG=") && error.contains(word), "{error}");
            assert!(error.ends_with("ORBITKV_LOG=info,orbitkv::peers=debug"), "{error}");
        }
    }
}
