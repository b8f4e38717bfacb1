//! The local work that ablations of a node's cores have in common: round trips at a steady pace, then blocks saved and
//! brought back as fast as it goes, by engines on threads of this program.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use orbitkv::client::{
    Client, ClientSettings, CommitOutcome, Namespace, PrefixList, Registration, SaveKey, ViewPopulate,
};
use orbitkv::quantity::KIB;
use orbitkv_native::affinity;

use super::plan::Plan;
use crate::Failure;
use crate::attempt::{received, sent};
use crate::payload::{GROUP, Source, block_hashes, registration, require_stamp, slot};
use crate::processes::processor_time;
use crate::statistics::Latencies;

const WAIT: Duration = Duration::from_secs(10);
/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 64 * KIB;
/// Blocks of a batch, and keys of a query.
const BATCH_BLOCKS: usize = 32;
/// Time between two intended round trips.
const INTERVAL: Duration = Duration::from_micros(200);
/// So few cores are as good as none: who did not run at all is not any number of times better than who ran once.
const CORES_MIN: f64 = 1e-4;
/// Between work and rest.
const SETTLING: Duration = Duration::from_millis(300);
/// Batches of an engine have generations of their own: blocks of one engine are never those of another.
const GENERATIONS_OF_ENGINE: u64 = 1 << 32;

/// What the work came to.
pub struct Worked {
    /// An empty request, from when it was to be sent.
    pub ping: Latencies,
    /// A query of 32 resident blocks, from when it was to be sent.
    pub ask: Latencies,
    /// Blocks saved and brought back in a second, by all engines together.
    pub blocks_a_second: f64,
    /// Cores that the node took meanwhile.
    pub busy_cores: f64,
    /// Processor time of the node for a block, in microseconds.
    pub block_us: f64,
    /// Cores that it takes while nothing is to be done.
    pub quiet_cores: f64,
}

/// A node that is worked with.
pub struct Subject<'a> {
    /// Its engine socket.
    pub socket: &'a Path,
    /// Its process.
    pub process: u32,
    /// Where the engine runs; with several engines anywhere.
    pub engine_core: Option<usize>,
    /// Engines at once.
    pub engines: u64,
    /// Seed of payloads.
    pub seed: u64,
}

struct Engine {
    client: Client,
    namespace: Namespace,
    source: Source,
    seed: u64,
    generation: u64,
}

/// Works with a node.
///
/// # Errors
/// If the node does not do what it is asked, or a block comes back wrong.
pub fn measure(subject: &Subject<'_>, plan: &Plan) -> Result<Worked, Failure> {
    // On a thread of its own: the one that called may start further processes, which inherit where it may run.
    thread::scope(|scope| {
        let work = || {
            if let Some(core) = subject.engine_core {
                affinity::pin_current_thread(core).map_err(sent)?;
            }
            work(subject, plan).map_err(sent)
        };
        let worked = scope.spawn(work).join().expect("an engine says its errors");
        worked.map_err(received)
    })
}

fn work(subject: &Subject<'_>, plan: &Plan) -> Result<Worked, Failure> {
    let mut engines =
        (0..subject.engines).map(|number| Engine::start(subject, number)).collect::<Result<Vec<_>, _>>()?;
    // Every page has been touched before anything counts.
    engines.iter_mut().try_for_each(|engine| engine.batches(plan.batches / 4 + 1))?;
    thread::sleep(SETTLING);
    let (before, at) = (processor_time(subject.process)?, Instant::now());
    thread::sleep(Duration::from_millis(plan.rest_ms));
    let quiet_cores = cores(processor_time(subject.process)?.saturating_sub(before), at.elapsed());

    // Of the one that saved last: what others saved before may have had to leave.
    let last = engines.last_mut().expect("at least one engine works");
    let (ping, ask) = last.round_trips(plan.round_trips)?;

    let (before, at) = (processor_time(subject.process)?, Instant::now());
    let done = thread::scope(|scope| {
        let threads: Vec<_> = engines
            .iter_mut()
            .map(|engine| scope.spawn(move || engine.batches(plan.batches).map_err(sent)))
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("an engine says its errors"))
    });
    done.map_err(received)?;
    let (used, elapsed) = (processor_time(subject.process)?.saturating_sub(before), at.elapsed());
    let blocks = (plan.batches * BATCH_BLOCKS) as f64 * subject.engines as f64;
    Ok(Worked {
        ping,
        ask,
        blocks_a_second: blocks / elapsed.as_secs_f64(),
        busy_cores: cores(used, elapsed),
        block_us: used.as_secs_f64() * 1e6 / blocks,
        quiet_cores,
    })
}

/// Cores that a node took, at least [`CORES_MIN`].
fn cores(used: Duration, elapsed: Duration) -> f64 {
    (used.as_secs_f64() / elapsed.as_secs_f64()).max(CORES_MIN)
}

impl Engine {
    fn start(subject: &Subject<'_>, number: u64) -> Result<Engine, Failure> {
        let settings = ClientSettings::new(subject.socket);
        let mut client = Client::connect(ClientSettings { populate: ViewPopulate::AtMap, ..settings })?;
        let common = registration(BLOCK_BYTES);
        let own = Registration { instance: format!("{}-{number}", common.instance), ..common };
        let namespace = client.register(&own, WAIT)?;
        let source = Source::seeded(subject.seed ^ number, BATCH_BLOCKS, BLOCK_BYTES);
        Ok(Engine {
            client,
            namespace,
            source,
            seed: subject.seed,
            generation: number * GENERATIONS_OF_ENGINE,
        })
    }

    /// So many batches of new blocks: reserved, copied in, committed, acquired, looked at, released.
    fn batches(&mut self, count: usize) -> Result<(), Failure> {
        for _ in 0..count {
            self.generation += 1;
            let blocks = block_hashes(self.seed, self.generation, 0..BATCH_BLOCKS as u64);
            let key = |&block| SaveKey { block, group: GROUP, bytes: BLOCK_BYTES };
            let keys: Vec<SaveKey> = blocks.iter().map(key).collect();
            let reserved = self.client.reserve(self.namespace, &keys, false, WAIT)?;
            let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
            self.source.stamp(self.generation, 0);
            for (position, slot) in slots.iter_mut().enumerate() {
                slot.copy_in(0, self.source.block(position))?;
            }
            let outcomes = self.client.commit(&mut slots, WAIT)?;
            if outcomes.iter().any(|outcome| *outcome != CommitOutcome::Committed) {
                return Err(format!("blocks were not committed: {outcomes:?}").into());
            }
            let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &blocks }];
            let acquired = self.client.acquire(&lists, None, WAIT)?;
            for (index, block) in (0..).zip(&acquired.blocks) {
                let block = block.as_ref().map_err(|why| format!("a block just saved is {why:?}"))?;
                require_stamp(block.bytes()?, self.generation, index)?;
            }
            if let Some(lease) = &acquired.lease {
                self.client.release(lease, WAIT)?;
            }
        }
        Ok(())
    }

    /// Pings and queries in turns, each from when it was to begin.
    fn round_trips(&mut self, count: usize) -> Result<(Latencies, Latencies), Failure> {
        let blocks = block_hashes(self.seed, self.generation, 0..BATCH_BLOCKS as u64);
        let (mut ping, mut ask) = (Latencies::new(), Latencies::new());
        let mut intended = Instant::now() + INTERVAL;
        for round in 0..2 * count {
            while Instant::now() < intended {
                std::hint::spin_loop();
            }
            if round % 2 == 0 {
                self.client.ping(WAIT)?;
                ping.record(intended.elapsed());
            } else {
                let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &blocks }];
                let view = self.client.query(&lists, false, WAIT)?;
                if view.boundary_blocks as usize != blocks.len() {
                    let found = view.boundary_blocks;
                    return Err(format!("only {found} of {BATCH_BLOCKS} blocks are resident").into());
                }
                ask.record(intended.elapsed());
            }
            intended += INTERVAL;
        }
        Ok((ping, ask))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_time_over_time_and_a_ten_thousandth_at_least() {
        let ms = Duration::from_millis;
        assert!((cores(ms(500), ms(2_000)) - 0.25).abs() < 1e-12);
        assert_eq!(cores(Duration::ZERO, ms(1_000)), 1e-4);
        assert_eq!(cores(Duration::from_micros(99), ms(1_000)), 1e-4);
        assert!(cores(Duration::from_micros(101), ms(1_000)) > 1e-4);
    }
}
