//! The DRAM path: batches reserved, copied in, committed, acquired, copied out and released, against
//! the same two memcpys at the same places of an equal memfd.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use orbitkv::client::{
    Client, CommitOutcome, Namespace, PrefixList, Reserved, ReservedSlot, SaveKey, ViewPopulate,
};
use orbitkv_native::arena::{Arena, ArenaView};
use orbitkv_native::ssd_transfer::AlignedBuffer;
use serde_json::json;

use super::node::Node;
use super::payload::{GROUP, Source, block_hashes, registration, require_stamp};
use super::report::Gate;
use super::statistics::{Figures, Latencies, gigabytes_per_second};
use super::{Context, Failure, progress};

const WAIT: Duration = Duration::from_secs(10);

/// What the design asks of the path.
const TARGET: f64 = 0.90;

/// Saves the blocks of a batch and brings them back.
struct Engine<'a> {
    context: &'a Context,
    client: Client,
    namespace: Namespace,
    next_generation: u64,
    latencies: Latencies,
    /// Time of all passes by what it went to.
    spent: Spent,
}

#[derive(Default)]
struct Spent {
    reserve: Duration,
    copy_in: Duration,
    commit: Duration,
    acquire: Duration,
    copy_out: Duration,
    release: Duration,
}

/// The two buffers both sides copy from and to.
struct Buffers {
    source: Source,
    target: AlignedBuffer,
}

/// Measures the path.
pub fn measure(context: &Context) -> Result<Vec<Gate>, Failure> {
    let plan = &context.plan;
    progress("DRAM path: starting a node");
    let node = Node::start(context, plan.dram_bytes, 0)?;
    let preference = node.same_pages()?;
    let (arena, _) = Arena::create(plan.dram_bytes, preference)?;
    let view = ArenaView::map(arena.fd().try_clone_to_owned()?, arena.bytes(), ViewPopulate::AtMap)?;
    let mut client = node.connect()?;
    let namespace = client.register(&registration(plan.block_bytes), WAIT)?;
    let latencies = Latencies::new();
    let mut engine =
        Engine { context, client, namespace, next_generation: 1, latencies, spent: Spent::default() };
    let mut buffers = Buffers {
        source: Source::seeded(context.seed, plan.batch_blocks, plan.block_bytes),
        target: AlignedBuffer::zeroed(plan.batch_blocks * plan.block_bytes as usize),
    };

    // Every slot has been used and every page touched before anything counts.
    let mut offsets = Vec::new();
    engine.pass(&mut buffers, &mut offsets)?;
    engine.pass(&mut buffers, &mut offsets)?;
    bare_pass(context, &view, &mut buffers, &offsets)?;
    engine.latencies = Latencies::new();
    engine.spent = Spent::default();

    let (mut ours, mut bare) = (Figures::default(), Figures::default());
    let mut working_set = u64::MAX;
    for pair in 0..plan.pairs {
        let time = engine.pass(&mut buffers, &mut offsets)?;
        ours.0.push(gigabytes_per_second(2 * plan.dram_pass_bytes, time));
        let time = bare_pass(context, &view, &mut buffers, &offsets)?;
        bare.0.push(gigabytes_per_second(2 * plan.dram_pass_bytes, time));
        let slots: BTreeSet<u64> = offsets.iter().copied().collect();
        working_set = working_set.min(slots.len() as u64 * plan.block_bytes);
        progress(&format!("DRAM pair {}: {:.2} against {:.2} GB/s", pair + 1, ours.0[pair], bare.0[pair]));
    }
    let ratios = ours.over(&bare);
    let spent = &engine.spent;
    let gate = context
        .gate("dram_path")
        .at_least(TARGET)
        .against("two memcpys, GB/s", Some(bare.median()))
        .value(ratios.median())
        .details(json!({
            "ratios": ratios.json(),
            "node_gbps": ours.json(),
            "memcpy_gbps": bare.json(),
            "working_set_bytes": working_set,
            "arena_pages": node.metadata()?.identity.arena_pages,
            "memcpy_view_huge_bytes": view.transparent_huge_bytes(),
            "batch_latency_us": engine.latencies.json(),
            "seconds": {
                "reserve": spent.reserve.as_secs_f64(),
                "copy_in": spent.copy_in.as_secs_f64(),
                "commit": spent.commit.as_secs_f64(),
                "acquire": spent.acquire.as_secs_f64(),
                "copy_out": spent.copy_out.as_secs_f64(),
                "release": spent.release.as_secs_f64(),
            },
        }));
    let needed = plan.dram_bytes * 4 / 5;
    Ok(vec![match working_set >= needed {
        true => gate,
        false => gate.invalid(format!("only {working_set} bytes of the arena were used, less than {needed}")),
    }])
}

impl Engine<'_> {
    /// One pass; `offsets` gets the place of every block.
    fn pass(&mut self, buffers: &mut Buffers, offsets: &mut Vec<u64>) -> Result<Duration, Failure> {
        offsets.clear();
        let plan = &self.context.plan;
        let batches = plan.dram_pass_bytes / (plan.batch_blocks as u64 * plan.block_bytes);
        let first = self.next_generation;
        let started = Instant::now();
        for _ in 0..batches {
            self.batch(buffers, offsets)?;
        }
        let time = started.elapsed();
        let last = self.next_generation - 1;
        assert_eq!(last - first + 1, batches);
        let blocks = buffers.target.chunks_exact(plan.block_bytes as usize).enumerate();
        for (position, block) in blocks {
            buffers.source.require(position, last, position as u64, block)?;
        }
        Ok(time)
    }

    fn batch(&mut self, buffers: &mut Buffers, offsets: &mut Vec<u64>) -> Result<(), Failure> {
        let Buffers { source, target } = buffers;
        let (plan, client) = (&self.context.plan, &mut self.client);
        let generation = self.next_generation;
        self.next_generation += 1;
        source.stamp(generation, 0);
        let blocks = block_hashes(self.context.seed, generation, 0..plan.batch_blocks as u64);
        let key = |&block| SaveKey { block, group: GROUP, bytes: plan.block_bytes };
        let keys: Vec<SaveKey> = blocks.iter().map(key).collect();

        let started = Instant::now();
        let reserved = client.reserve(self.namespace, &keys, false, WAIT)?;
        let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
        let at_reserved = Instant::now();
        for (position, slot) in slots.iter_mut().enumerate() {
            slot.copy_in(0, source.block(position))?;
            offsets.push(slot.offset());
        }
        let at_copied = Instant::now();
        let committed = client.commit(&mut slots, WAIT)?;
        if committed.iter().any(|outcome| *outcome != CommitOutcome::Committed) {
            return Err(format!("blocks were not committed: {committed:?}").into());
        }
        let at_committed = Instant::now();
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &blocks }];
        let acquired = client.acquire(&lists, None, WAIT)?;
        let at_acquired = Instant::now();
        let targets = target.chunks_exact_mut(plan.block_bytes as usize);
        for (block, target) in acquired.blocks.iter().zip(targets) {
            let block = block.as_ref().map_err(|outcome| format!("a block just saved is {outcome:?}"))?;
            target.copy_from_slice(block.bytes()?);
        }
        let at_out = Instant::now();
        if let Some(lease) = &acquired.lease {
            client.release(lease, WAIT)?;
        }
        let ended = Instant::now();

        self.latencies.record(ended - started);
        let spent = &mut self.spent;
        spent.reserve += at_reserved - started;
        spent.copy_in += at_copied - at_reserved;
        spent.commit += at_committed - at_copied;
        spent.acquire += at_acquired - at_committed;
        spent.copy_out += at_out - at_acquired;
        spent.release += ended - at_out;
        for (index, block) in (0..).zip(target.chunks_exact(plan.block_bytes as usize)) {
            require_stamp(block, generation, index)?;
        }
        Ok(())
    }
}

/// The slot of a key, which a node with room always gives.
pub fn slot(reserved: Reserved) -> Result<ReservedSlot, Failure> {
    match reserved {
        Reserved::Slot(slot) => Ok(slot),
        other => Err(format!("a new block got no slot: {other:?}").into()),
    }
}

/// The two memcpys alone, batch by batch at the places of the pass before.
fn bare_pass(
    context: &Context,
    view: &ArenaView,
    buffers: &mut Buffers,
    offsets: &[u64],
) -> Result<Duration, Failure> {
    let (batch_blocks, block_bytes) = (context.plan.batch_blocks, context.plan.block_bytes as usize);
    let Buffers { source, target } = buffers;
    let started = Instant::now();
    for (batch, offsets) in (0..).zip(offsets.chunks(batch_blocks)) {
        source.stamp(batch, 0);
        for (position, &offset) in offsets.iter().enumerate() {
            view.copy_in(offset, source.block(position))?;
        }
        for (&offset, target) in offsets.iter().zip(target.chunks_exact_mut(block_bytes)) {
            target.copy_from_slice(view.bytes(offset, block_bytes as u64)?);
        }
        for (index, block) in (0..).zip(target.chunks_exact(block_bytes)) {
            require_stamp(block, batch, index)?;
        }
    }
    Ok(started.elapsed())
}
