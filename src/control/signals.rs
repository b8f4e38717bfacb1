//! Signals that ask a command with processes of its own to end, so that it can end them first.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

/// Signals that are kept until somebody waits for them; more say nothing new.
const SIGNALS_KEPT: usize = 4;

/// From now on SIGTERM, SIGINT and SIGHUP do not end this process: they are told here.
pub struct StopSignals {
    told: Receiver<&'static str>,
}

impl StopSignals {
    /// Begins to watch, on a thread that ends with the process.
    ///
    /// # Errors
    /// If a handler, or the runtime behind it, cannot be had.
    pub fn watch() -> io::Result<StopSignals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (tell, told) = sync_channel(SIGNALS_KEPT);
        let entered = runtime.enter();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        drop(entered);
        let watch = move || {
            runtime.block_on(async {
                loop {
                    let name = tokio::select! {
                        _ = terminate.recv() => "SIGTERM",
                        _ = interrupt.recv() => "SIGINT",
                        _ = hang_up.recv() => "SIGHUP",
                    };
                    let _ = tell.try_send(name);
                }
            });
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(watch)?;
        Ok(StopSignals { told })
    }

    /// Waits that long for a signal; its name, if one came.
    #[must_use]
    pub fn wait(&self, longest: Duration) -> Option<&'static str> {
        match self.told.recv_timeout(longest) {
            Ok(name) => Some(name),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => unreachable!("the watching thread never ends"),
        }
    }
}
