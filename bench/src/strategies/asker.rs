//! An engine at the reader that wants the blocks of one owner, again and again.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use orbitkv::client::{BlockHash, Client, ClientSettings, Media, Namespace, PrefixList};
use orbitkv_native::clock::monotonic_ns;

use super::plan::Plan;
use crate::Failure;
use crate::payload::{GROUP, is_stamped, registration};
use crate::streams::WAIT;
use crate::streams::keys::Keys;
use crate::streams::owner::BLOCK_BYTES;

/// What an engine gives a request.
const DEADLINE: Duration = Duration::from_secs(2);

/// One request, its times in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// When it was sent.
    pub began_ns: u64,
    /// When its last block was answered.
    pub ended_ns: u64,
    /// Blocks wanted.
    pub wanted: u64,
    /// Blocks that came as they were saved.
    pub came: u64,
    /// Blocks that came with other bytes.
    pub wrong: u64,
}

impl Ask {
    /// Whether all of it came.
    pub fn is_whole(&self) -> bool {
        self.came == self.wanted
    }
}

/// An engine that asks.
pub struct Asker {
    client: Client,
    namespace: Namespace,
    /// Of whose blocks.
    owner: u64,
    first: u64,
    blocks: Vec<BlockHash>,
}

impl Asker {
    /// Connects to the reader, for the oldest blocks of an owner.
    ///
    /// # Errors
    /// If it is not let in.
    pub fn connect(socket: &Path, of: &Keys, plan: &Plan) -> Result<Asker, Failure> {
        let mut client = Client::connect(ClientSettings::new(socket))?;
        let namespace = client.register(&registration(BLOCK_BYTES), WAIT)?;
        let live = of.live();
        let blocks = of.names(live.start..live.end.min(live.start + plan.blocks));
        Ok(Asker { client, namespace, owner: of.owner, first: live.start, blocks })
    }

    /// Asks once, and forgets what came, so that the next request is one to the owner again.
    fn ask(&mut self) -> Result<Ask, Failure> {
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &self.blocks }];
        let began_ns = monotonic_ns();
        let acquired = self.client.acquire(&lists, None, DEADLINE)?;
        let ended_ns = monotonic_ns();
        let (mut came, mut wrong) = (0, 0);
        for (number, block) in (self.first..).zip(&acquired.blocks) {
            match block {
                Ok(block) if is_stamped(block.bytes()?, self.owner, number) => came += 1,
                Ok(_) => wrong += 1,
                Err(_) => {}
            }
        }
        if let Some(lease) = &acquired.lease {
            self.client.release(lease, WAIT)?;
        }
        let named: Vec<_> = self.blocks.iter().map(|&block| (block, GROUP)).collect();
        self.client.evict(self.namespace, &named, Media::ALL, WAIT)?;
        Ok(Ask { began_ns, ended_ns, wanted: self.blocks.len() as u64, came, wrong })
    }

    /// Asks at a steady pace until it is told to stop; what came of it is kept as it comes.
    ///
    /// # Errors
    /// If the reader itself does not answer.
    pub fn run(
        &mut self,
        period: Duration,
        stopping: &AtomicBool,
        asks: &Mutex<Vec<Ask>>,
    ) -> Result<(), String> {
        while !stopping.load(Ordering::Relaxed) {
            let due = Instant::now() + period;
            let ask = self.ask().map_err(|error| error.to_string())?;
            asks.lock().expect("no panics").push(ask);
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}
