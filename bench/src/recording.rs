//! What a node of one core records with `--trace-turns`, read page by page while something is measured, or at its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::cli::turns::{forget, read_core};
use orbitkv::control::turns::{TurnsPage, forgotten_between};
use orbitkv::turns::timeline::CoreEvents;
use serde::{Deserialize, Serialize};

use crate::Failure;

/// How often what was recorded is read, so that the store is never near full.
const READ_PERIOD: Duration = Duration::from_millis(500);
/// How often somebody looks whether the end has come.
const LOOK: Duration = Duration::from_millis(50);

/// The one core of a measured node.
const CORE: u16 = 0;

/// Pages of a node's core without a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// In order.
    pub pages: Vec<TurnsPage>,
    /// Events without room: with any, nothing is proved.
    pub lost: u64,
}

impl Recording {
    /// Lets the node forget what it has recorded so far, so that what comes has all the room.
    ///
    /// # Errors
    /// If it gives no answer, or records nothing.
    pub fn begin(client: &HttpClient) -> Result<(), Failure> {
        Recording::default().read_on(client, true)
    }

    /// What the node has recorded since it forgot last.
    ///
    /// # Errors
    /// If it gives no answer, or records nothing.
    pub fn take(client: &HttpClient) -> Result<Recording, Failure> {
        let mut recording = Recording::default();
        recording.read_on(client, false)?;
        Ok(recording)
    }

    /// Adds what came after the last page; the node forgets it if it shall.
    fn read_on(&mut self, client: &HttpClient, forgets: bool) -> Result<(), Failure> {
        let after = self.pages.last().map_or(0, TurnsPage::through);
        let pages = read_core(client, CORE, after)?;
        let through = pages.last().map_or(after, TurnsPage::through);
        let lost = match forgets {
            true => forget(client, CORE, through)?,
            false => pages.last().map_or(0, |page| page.lost),
        };
        self.lost += lost + forgotten_between(after, &pages);
        self.pages.extend(pages.into_iter().filter(|page| !page.events.is_empty()));
        Ok(())
    }

    /// Its events.
    pub fn events(&self) -> CoreEvents {
        let events = self.pages.iter().flat_map(TurnsPage::events).collect();
        CoreEvents { core: CORE, lost: self.lost, events }
    }
}

/// Everything a node records from now until `stop` is set. Each reading is a letter to its core, which its turns show.
///
/// # Errors
/// If it gives no answer, or records nothing.
pub fn follow(client: &HttpClient, stop: &AtomicBool) -> Result<Recording, Failure> {
    Recording::begin(client)?;
    let mut recording = Recording::default();
    let mut read = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        sleep(LOOK);
        if read.elapsed() >= READ_PERIOD {
            recording.read_on(client, true)?;
            read = Instant::now();
        }
    }
    recording.read_on(client, true)?;
    Ok(recording)
}
