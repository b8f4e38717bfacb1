//! The SSD tier: how fast saves reach the disk and come back, against `fio` and a bare ring loop with
//! the same file size, block, depth and direct I/O, in turns.
//!
//! All three move blocks at rising offsets of a file that has been written whole before: the first
//! write to allocated space is another thing than a rewrite, and is reported apart.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use orbitkv::client::{
    BlockHash, Client, CommitOutcome, EvictOutcome, Media, Medium, Namespace, Outcome, Place, PrefixList,
    SaveKey, Ticket,
};
use orbitkv::quantity::{GIB, MIB};
use orbitkv_native::affinity;
use orbitkv_native::arena::Arena;
use orbitkv_native::bare_ring::{Sweep, sweep};
use orbitkv_native::ssd_file::{DataDirLock, SsdFile};
use orbitkv_native::ssd_transfer::TransferKind;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::Context;
use super::fio::{self, FioPass};
use super::node::Node;
use crate::payload::{GROUP, Source, block_hashes, registration, require_stamp, slot};
use crate::report::Gate;
use crate::statistics::{Figures, Latencies, gigabytes_per_second};
use crate::{Failure, progress};

const WAIT: Duration = Duration::from_secs(60);

const FIO_TARGET: f64 = 1.0;
const BARE_TARGET: f64 = 0.95;

/// Bytes of one save.
const SAVE_BYTES: u64 = 32 * MIB;

/// Acquires that together have as many blocks as the depth says.
const ACQUIRES_OF_DEPTH: u64 = 4;

/// Acquires that wait at the node. Twice the depth: the node gives the device no more than the depth at once,
/// as the others do, and what it checks and tells about meanwhile is asked for beside that.
const ACQUIRES_IN_FLIGHT: u64 = 2 * ACQUIRES_OF_DEPTH;

/// Keys of one Evict.
const EVICT_KEYS: usize = 4_096;

/// Blocks whose every byte is compared after the last pass.
const COMPARED_BLOCKS: u64 = 64;

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Node,
    Fio,
    Bare,
}

/// What was measured at one block size, in GB/s.
struct Measured {
    block_bytes: u64,
    figures: BTreeMap<(&'static str, Side), Figures>,
    first_write_gbps: f64,
    device_reads: u64,
    disk_read_bytes: u64,
    reads_expected: u64,
    queue_peak: u64,
    arena_pages: String,
    acquire_latency: Latencies,
    /// Processor time of all passes: what is left when a busy machine blurs the rates.
    processor: BTreeMap<(&'static str, Side), Duration>,
    bytes: u64,
}

/// Measures the tier.
pub fn measure(context: &Context) -> Result<Vec<Gate>, Failure> {
    let plan = &context.plan;
    let fio = fio::version();
    let with_fio = fio.is_ok();
    let large = measure_blocks(context, plan.block_bytes, plan.ssd_pass_bytes, plan.pairs, with_fio)?;
    let (block_bytes, bytes) = (plan.ssd_small_block_bytes, plan.ssd_small_pass_bytes);
    let small = measure_blocks(context, block_bytes, bytes, plan.ssd_small_pairs, with_fio)?;
    let gates = [
        ("ssd_write_back_fio", "write", Side::Fio, FIO_TARGET),
        ("ssd_write_back_bare", "write", Side::Bare, BARE_TARGET),
        ("ssd_read_fio", "read", Side::Fio, FIO_TARGET),
        ("ssd_read_bare", "read", Side::Bare, BARE_TARGET),
    ];
    Ok(gates
        .into_iter()
        .map(|(name, direction, side, target)| {
            let gate = context.gate(name).at_least(target);
            let gate = match (side, &fio) {
                (Side::Fio, Ok(version)) => gate.against(format!("{version}, GB/s"), None),
                (Side::Fio, Err(why)) => return gate.against("fio", None).invalid(why),
                _ => gate.against("bare ring loop, GB/s", None),
            };
            let gate = large.judge(gate, direction, side);
            gate.details(json!({
                "ratios": large.ratios(direction, side).json(),
                "large": large.json(),
                "small": small.json(),
            }))
        })
        .collect())
}

impl Measured {
    fn ratios(&self, direction: &'static str, side: Side) -> Figures {
        self.figures[&(direction, Side::Node)].over(&self.figures[&(direction, side)])
    }

    fn judge(&self, gate: Gate, direction: &'static str, side: Side) -> Gate {
        let theirs = self.figures[&(direction, side)].median();
        let gate = gate.measured_against(theirs).value(self.ratios(direction, side).median());
        let proved = self.device_reads >= self.reads_expected
            && self.disk_read_bytes >= self.reads_expected * self.block_bytes;
        match proved {
            true => gate,
            false => gate.invalid(format!(
                "{} blocks were asked from SSD, but the node counts {} reads and the kernel {} bytes",
                self.reads_expected, self.device_reads, self.disk_read_bytes
            )),
        }
    }

    fn json(&self) -> Value {
        let figures: serde_json::Map<String, Value> = self
            .figures
            .iter()
            .map(|((direction, side), figures)| {
                (format!("{}_{direction}_gbps", format!("{side:?}").to_lowercase()), figures.json())
            })
            .collect();
        let processor: serde_json::Map<String, Value> = self
            .processor
            .iter()
            .map(|((direction, side), time)| {
                let passes = self.figures[&(*direction, *side)].0.len() as f64;
                let gib = passes * self.bytes as f64 / GIB as f64;
                (
                    format!("{}_{direction}", format!("{side:?}").to_lowercase()),
                    json!(time.as_secs_f64() / gib),
                )
            })
            .collect();
        json!({
            "block_bytes": self.block_bytes,
            "figures": figures,
            "processor_seconds_per_gib": processor,
            "first_write_gbps": self.first_write_gbps,
            "arena_pages": self.arena_pages,
            "node_reads": self.device_reads,
            "node_reads_expected": self.reads_expected,
            "disk_read_bytes": self.disk_read_bytes,
            "node_device_queue_peak": self.queue_peak,
            "acquire_latency_us": self.acquire_latency.json(),
        })
    }
}

fn measure_blocks(
    context: &Context,
    block_bytes: u64,
    bytes: u64,
    pairs: usize,
    with_fio: bool,
) -> Result<Measured, Failure> {
    let kib = block_bytes >> 10;
    progress(&format!("SSD, {kib} KiB: starting a node and writing all files once"));
    // Segments of a small log waste room, and some are kept free; two passes still go round it.
    let ssd_bytes = (bytes * 3 / 2).max(96 * MIB);
    let node = Node::start(context, bytes + bytes / 4 + 64 * MIB, ssd_bytes)?;
    let mut tier = Tier::connect(context, &node, block_bytes, bytes)?;
    let first_write_gbps = gigabytes_per_second(bytes, tier.write()?);
    tier.evict(Media::ALL)?;
    // The log goes round, so this reaches the segments that the first pass left.
    tier.write()?;
    tier.evict(Media::ALL)?;

    let lock = DataDirLock::acquire(&context.workplace.path().join("reference"))?;
    let file = SsdFile::create(&lock, "reference", bytes)?;
    let (arena, _) = Arena::create(bytes, node.same_pages()?)?;
    let mut source = Source::seeded(context.seed, 1, block_bytes);
    for index in 0..bytes / block_bytes {
        source.stamp(0, index);
        arena.copy_in(index * block_bytes, source.block(0));
    }
    let bare = |kind| {
        let pass = Sweep { kind, block_bytes, count: bytes / block_bytes, depth: context.plan.ssd_depth };
        on_core(context.node_core, || sweep(file.fd(), &arena, pass))
    };
    bare(TransferKind::Write)?;

    let mut measured = Measured {
        block_bytes,
        figures: BTreeMap::new(),
        first_write_gbps,
        device_reads: 0,
        disk_read_bytes: 0,
        reads_expected: 0,
        queue_peak: 0,
        arena_pages: node.metadata()?.identity.arena_pages,
        acquire_latency: Latencies::new(),
        processor: BTreeMap::new(),
        bytes,
    };
    let mut order = vec![Side::Node, Side::Bare];
    if with_fio {
        order.push(Side::Fio);
    }
    let (reads_before, disk_before) = (ssd_reads(&node)?, node.disk_read_bytes());
    for pair in 0..pairs {
        for (direction, kind) in [("write", TransferKind::Write), ("read", TransferKind::Read)] {
            for &side in &order {
                let rate = match side {
                    Side::Node => {
                        if kind == TransferKind::Read {
                            tier.evict(Media::from(Medium::Dram))?;
                        }
                        let before = node.processor_time()?;
                        let time = if kind == TransferKind::Write { tier.write()? } else { tier.read()? };
                        *measured.processor.entry((direction, side)).or_default() +=
                            node.processor_time()? - before;
                        gigabytes_per_second(bytes, time)
                    }
                    Side::Bare => {
                        let (time, processor) = bare(kind)?;
                        *measured.processor.entry((direction, side)).or_default() += processor;
                        gigabytes_per_second(bytes, time)
                    }
                    Side::Fio => {
                        let (depth, core) = (context.plan.ssd_depth, context.node_core);
                        FioPass { file: file.path(), kind, block_bytes, bytes, depth, core }.run()? / 1e9
                    }
                };
                measured.figures.entry((direction, side)).or_default().0.push(rate);
            }
            let rates = order.iter().map(|&side| {
                format!("{side:?} {:.2}", measured.figures[&(direction, side)].0[pair]).to_lowercase()
            });
            let rates = rates.collect::<Vec<_>>().join(", ");
            progress(&format!("SSD, {kib} KiB, {direction} {}: {rates} GB/s", pair + 1));
        }
        tier.compare(COMPARED_BLOCKS)?;
        tier.evict(Media::ALL)?;
        order.rotate_left(1);
    }
    measured.reads_expected = pairs as u64 * bytes / block_bytes;
    measured.device_reads = ssd_reads(&node)? - reads_before;
    measured.disk_read_bytes = node.disk_read_bytes() - disk_before;
    measured.queue_peak = node.metadata()?.shards.iter().map(|shard| shard.queue_peaks.ssd_requests).sum();
    measured.acquire_latency = tier.latencies;
    drop((file, lock));
    std::fs::remove_dir_all(context.workplace.path().join("reference"))?;
    Ok(measured)
}

fn ssd_reads(node: &Node) -> Result<u64, Failure> {
    Ok(node.metadata()?.shards.iter().map(|shard| shard.ssd.reads).sum())
}

/// Runs `work` on a thread pinned to `core`; what it gives, and the processor time of the thread.
fn on_core(
    core: usize,
    work: impl FnOnce() -> std::io::Result<Duration> + Send,
) -> Result<(Duration, Duration), Failure> {
    let pinned = || {
        affinity::pin_current_thread(core)?;
        let before = clock_gettime(ClockId::ThreadCPUTime);
        let time = work()?;
        let after = clock_gettime(ClockId::ThreadCPUTime);
        let processor = Duration::try_from(after).ok().zip(Duration::try_from(before).ok());
        Ok::<_, std::io::Error>((time, processor.map_or(Duration::ZERO, |(after, before)| after - before)))
    };
    let outcome = std::thread::scope(|scope| scope.spawn(pinned).join());
    Ok(outcome.expect("the thread says its errors")?)
}

/// A node's SSD tier as one engine uses it: `bytes` of blocks that are all saved, then all read.
pub struct Tier<'a> {
    context: &'a Context,
    client: Client,
    namespace: Namespace,
    block_bytes: u64,
    blocks: u64,
    source: Source,
    generation: u64,
    /// From an Acquire's submission to its last block.
    pub latencies: Latencies,
}

impl<'a> Tier<'a> {
    /// Connects to the node.
    pub fn connect(
        context: &'a Context,
        node: &Node,
        block_bytes: u64,
        bytes: u64,
    ) -> Result<Tier<'a>, Failure> {
        let mut client = node.connect()?;
        let namespace = client.register(&registration(block_bytes), WAIT)?;
        let source = Source::seeded(context.seed, (SAVE_BYTES / block_bytes) as usize, block_bytes);
        let blocks = bytes / block_bytes;
        assert_eq!(bytes % SAVE_BYTES, 0, "a pass is a whole number of saves");
        let latencies = Latencies::new();
        Ok(Tier { context, client, namespace, block_bytes, blocks, source, generation: 0, latencies })
    }

    fn hashes(&self, from: u64, count: u64) -> Vec<BlockHash> {
        let until = (from + count).min(self.blocks);
        block_hashes(self.context.seed, self.generation, from..until)
    }

    /// Saves a new generation of all blocks; the time from the first commit until all are on SSD.
    pub fn write(&mut self) -> Result<Duration, Failure> {
        self.generation += 1;
        let save_blocks = SAVE_BYTES / self.block_bytes;
        let mut started = None;
        for first in (0..self.blocks).step_by(save_blocks as usize) {
            self.source.stamp(self.generation, first);
            let key = |block| SaveKey { block, group: GROUP, bytes: self.block_bytes };
            let keys: Vec<SaveKey> = self.hashes(first, save_blocks).into_iter().map(key).collect();
            let reserved = self.client.reserve(self.namespace, &keys, false, WAIT)?;
            let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
            for (position, slot) in slots.iter_mut().enumerate() {
                slot.copy_in(0, self.source.block(position))?;
            }
            started.get_or_insert_with(Instant::now);
            let committed = self.client.commit(&mut slots, WAIT)?;
            if committed.iter().any(|outcome| *outcome != CommitOutcome::Committed) {
                return Err("blocks were not committed".into());
            }
        }
        self.client.sync(WAIT)?;
        Ok(started.expect("a pass has blocks").elapsed())
    }

    /// Drops all blocks of the generation from media; none may be in use.
    pub fn evict(&mut self, media: Media) -> Result<(), Failure> {
        for first in (0..self.blocks).step_by(EVICT_KEYS) {
            let hashes = self.hashes(first, EVICT_KEYS as u64);
            let keys: Vec<_> = hashes.into_iter().map(|block| (block, GROUP)).collect();
            let outcomes = self.client.evict(self.namespace, &keys, media, WAIT)?;
            if let Some(other) = outcomes.iter().find(|outcome| **outcome != EvictOutcome::Evicted) {
                return Err(format!("a block could not be evicted: {other:?}").into());
            }
        }
        Ok(())
    }

    /// Acquires all blocks, which must come from SSD, as many at once as the depth says; the time until
    /// the last is there.
    pub fn read(&mut self) -> Result<Duration, Failure> {
        let acquire_blocks = u64::from(self.context.plan.ssd_depth) / ACQUIRES_OF_DEPTH;
        let mut open: BTreeMap<Ticket, (u64, Instant)> = BTreeMap::new();
        let mut releases = 0;
        let (mut next, mut done) = (0, 0);
        let started = Instant::now();
        let mut ended = started;
        while done < self.blocks || releases > 0 {
            while next < self.blocks && (open.len() as u64) < ACQUIRES_IN_FLIGHT {
                let blocks = self.hashes(next, acquire_blocks);
                let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &blocks }];
                let target = orbitkv::client::CompletionTarget::Host;
                let ticket = self.client.submit_acquire(&lists, target, None, WAIT)?;
                open.insert(ticket, (next, Instant::now()));
                next += acquire_blocks;
            }
            let Some(completion) = self.client.poll() else {
                poll(&mut [PollFd::new(&self.client.fd(), PollFlags::IN)], None)?;
                continue;
            };
            let Outcome::Acquire(part) = completion.result? else {
                releases -= 1;
                continue;
            };
            let (first, submitted) = open[&completion.ticket];
            for block in &part.blocks {
                let ready =
                    block.result.as_ref().map_err(|outcome| format!("a block on SSD is {outcome:?}"))?;
                if ready.place() != Place::Ssd {
                    return Err(format!("a block came from {:?}, not from SSD", ready.place()).into());
                }
                require_stamp(ready.bytes()?, self.generation, first + block.index as u64)?;
                done += 1;
            }
            if completion.last {
                open.remove(&completion.ticket);
                ended = Instant::now();
                self.latencies.record(ended - submitted);
                if let Some(lease) = part.lease {
                    self.client.submit_release(&lease, WAIT)?;
                    releases += 1;
                }
            }
        }
        Ok(ended - started)
    }

    /// Compares every byte of the first blocks of the generation.
    fn compare(&mut self, count: u64) -> Result<(), Failure> {
        let save_blocks = SAVE_BYTES / self.block_bytes;
        let blocks = self.hashes(0, count.min(save_blocks));
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &blocks }];
        let acquired = self.client.acquire(&lists, None, WAIT)?;
        for (position, block) in acquired.blocks.iter().enumerate() {
            let block = block.as_ref().map_err(|outcome| format!("a block read before is {outcome:?}"))?;
            self.source.require(position, self.generation, position as u64, block.bytes()?)?;
        }
        if let Some(lease) = &acquired.lease {
            self.client.release(lease, WAIT)?;
        }
        Ok(())
    }
}
