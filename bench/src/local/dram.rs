//! The DRAM path: batches reserved, copied in, committed, acquired, copied out and released, against
//! the same two memcpys at the same places of an equal memfd.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use orbitkv::client::{
    BlockHash, Client, CommitOutcome, Completion, CompletionTarget, Namespace, Outcome, PrefixList, SaveKey,
    Ticket, ViewPopulate,
};
use orbitkv_native::arena::{Arena, ArenaView};
use orbitkv_native::ssd_transfer::AlignedBuffer;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;

use super::Context;
use super::node::Node;
use crate::payload::{GROUP, Source, block_hashes, registration, require_stamp, slot};
use crate::report::Gate;
use crate::statistics::{Figures, Latencies, gigabytes_per_second};
use crate::{Failure, progress};

const WAIT: Duration = Duration::from_secs(10);

/// What the design asks of the path.
const TARGET: f64 = 0.90;

/// Saves the blocks of a batch and brings them back.
struct Engine<'a> {
    context: &'a Context,
    client: Client,
    namespace: Namespace,
    next_generation: u64,
    /// The batch whose slots have been asked for.
    next: Option<Batch>,
    /// The Release whose answer has not been looked at.
    releasing: Option<Ticket>,
    /// Answers to requests that nobody waits for yet.
    early: VecDeque<Completion>,
    latencies: Latencies,
    /// Time of all passes by what it went to.
    spent: Spent,
}

/// A batch that waits for its slots.
struct Batch {
    generation: u64,
    blocks: Vec<BlockHash>,
    ticket: Ticket,
}

#[derive(Default)]
struct Spent {
    reserve: Duration,
    copy_in: Duration,
    commit_and_acquire: Duration,
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
    let mut engine = Engine {
        context,
        client,
        namespace,
        next_generation: 1,
        next: None,
        releasing: None,
        early: VecDeque::new(),
        latencies,
        spent: Spent::default(),
    };
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
                "commit_and_acquire": spent.commit_and_acquire.as_secs_f64(),
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
        let mut last = 0;
        let started = Instant::now();
        for _ in 0..batches {
            last = self.batch(buffers, offsets)?;
        }
        let time = started.elapsed();
        let blocks = buffers.target.chunks_exact(plan.block_bytes as usize).enumerate();
        for (position, block) in blocks {
            buffers.source.require(position, last, position as u64, block)?;
        }
        Ok(time)
    }

    /// One batch, and its generation. Requests that need no answer of each other are on the way together:
    /// behind the Commit the Acquire and the next batch's Reserve; of a Release, the answer is looked at a batch
    /// later.
    fn batch(&mut self, buffers: &mut Buffers, offsets: &mut Vec<u64>) -> Result<u64, Failure> {
        let Buffers { source, target } = buffers;
        let plan = &self.context.plan;
        let started = Instant::now();
        let Batch { generation, blocks, ticket } = self.next.take().map_or_else(|| self.reserve(), Ok)?;
        let Some(Outcome::Reserved(reserved)) = self.wait_for(ticket)?.pop() else {
            return Err("a Reserve was answered by something else".into());
        };
        let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
        let at_reserved = Instant::now();
        source.stamp(generation, 0);
        for (position, slot) in slots.iter_mut().enumerate() {
            slot.copy_in(0, source.block(position))?;
            offsets.push(slot.offset());
        }
        let at_copied = Instant::now();
        let commit = self.client.submit_commit(&mut slots, WAIT)?;
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &blocks }];
        let acquire = self.client.submit_acquire(&lists, CompletionTarget::Host, None, WAIT)?;
        self.next = Some(self.reserve()?);
        match self.wait_for(commit)?.pop() {
            Some(Outcome::Settled(outcomes))
                if outcomes.iter().all(|outcome| *outcome == CommitOutcome::Committed) => {}
            other => return Err(format!("blocks were not committed: {other:?}").into()),
        }
        let acquired = self.wait_for(acquire)?;
        let at_acquired = Instant::now();
        let mut leases = Vec::new();
        let mut copied = 0;
        let mut targets: Vec<&mut [u8]> = target.chunks_exact_mut(plan.block_bytes as usize).collect();
        for outcome in &acquired {
            let Outcome::Acquire(part) = outcome else {
                return Err(format!("an Acquire was answered by {outcome:?}").into());
            };
            for block in &part.blocks {
                let ready =
                    block.result.as_ref().map_err(|outcome| format!("a block just saved is {outcome:?}"))?;
                targets[block.index].copy_from_slice(ready.bytes()?);
                copied += 1;
            }
            leases.extend(&part.lease);
        }
        if copied != plan.batch_blocks {
            return Err(format!("{copied} of {} blocks came back", plan.batch_blocks).into());
        }
        let at_out = Instant::now();
        let lease = leases.pop().ok_or("blocks came without a lease")?;
        let release = self.client.submit_release(lease, WAIT)?;
        if let Some(before) = self.releasing.replace(release) {
            self.wait_for(before)?;
        }
        let ended = Instant::now();

        self.latencies.record(ended - started);
        let spent = &mut self.spent;
        spent.reserve += at_reserved - started;
        spent.copy_in += at_copied - at_reserved;
        spent.commit_and_acquire += at_acquired - at_copied;
        spent.copy_out += at_out - at_acquired;
        spent.release += ended - at_out;
        for (index, block) in (0..).zip(target.chunks_exact(plan.block_bytes as usize)) {
            require_stamp(block, generation, index)?;
        }
        Ok(generation)
    }

    /// Asks for the slots of the next batch.
    fn reserve(&mut self) -> Result<Batch, Failure> {
        let plan = &self.context.plan;
        let generation = self.next_generation;
        self.next_generation += 1;
        let blocks = block_hashes(self.context.seed, generation, 0..plan.batch_blocks as u64);
        let key = |&block| SaveKey { block, group: GROUP, bytes: plan.block_bytes };
        let keys: Vec<SaveKey> = blocks.iter().map(key).collect();
        let ticket = self.client.submit_reserve(self.namespace, &keys, false, WAIT)?;
        Ok(Batch { generation, blocks, ticket })
    }

    /// Everything the node answers to a request.
    fn wait_for(&mut self, ticket: Ticket) -> Result<Vec<Outcome>, Failure> {
        let mut outcomes = Vec::new();
        loop {
            let at = self.early.iter().position(|completion| completion.ticket == ticket);
            let completion = match at.and_then(|at| self.early.remove(at)).or_else(|| self.client.poll()) {
                Some(completion) => completion,
                None => {
                    poll(&mut [PollFd::new(&self.client.fd(), PollFlags::IN)], None)?;
                    continue;
                }
            };
            if completion.ticket != ticket {
                self.early.push_back(completion);
                continue;
            }
            outcomes.push(completion.result?);
            if completion.last {
                return Ok(outcomes);
            }
        }
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
