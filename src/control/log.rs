//! What the process logs: what its environment says, unless the operator's policy says another level.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::settings::LogLevel;

const VARIABLE: &str = "ORBITKV_LOG";

/// The filter of the log, which can be changed while the process runs.
pub struct LogFilter {
    reload: Box<dyn Fn(EnvFilter) + Send + Sync>,
}

fn as_started() -> EnvFilter {
    EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"))
}

impl LogFilter {
    /// Begins to log to standard error.
    #[must_use]
    pub fn install() -> LogFilter {
        let log = tracing_subscriber::fmt()
            .with_ansi(io::stderr().is_terminal())
            .with_writer(io::stderr)
            .with_env_filter(as_started())
            .with_filter_reloading();
        let handle = log.reload_handle();
        // A second subscriber in one process is no reason not to serve; it is gone then, and so is its filter.
        let _ = log.try_init();
        LogFilter { reload: Box::new(move |filter| drop(handle.reload(filter))) }
    }

    /// Logs from this level on, or as it was started.
    pub fn set(&self, level: Option<LogLevel>) {
        (self.reload)(level.map_or_else(as_started, |level| EnvFilter::new(level.directives())));
    }
}
