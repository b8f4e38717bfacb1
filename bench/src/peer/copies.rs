//! What a read over shared memory is held against: the same blocks copied from one memory to another and summed, in the
//! steps that a node takes, by one thread on the reader's core with nobody to ask.

use std::time::{Duration, Instant};

use orbitkv::quantity::KIB;
use orbitkv_native::affinity;
use orbitkv_native::arena::{Arena, Checksum, PagePreference};
use orbitkv_native::peer_arena::PeerArena;

use super::ends::Ends;
use super::plan::Plan;
use crate::Failure;
use crate::payload::Source;

/// Bytes of a step, as in a node.
const STEP_BYTES: u64 = 64 * KIB;

/// Two memories, each of one pass.
pub struct Copies {
    plan: Plan,
    core: usize,
    source: Source,
    from: PeerArena,
    to: Arena,
}

impl Copies {
    /// Fills one memory and touches the other.
    ///
    /// # Errors
    /// If there is not as much.
    pub fn start(plan: &Plan, cores: Ends<usize>, seed: u64) -> Result<Copies, Failure> {
        let arena = || Arena::create(plan.pass_bytes(), PagePreference::Auto);
        let ((bytes, _), (to, _)) = (arena()?, arena()?);
        let mut source = Source::seeded(seed, plan.batch_blocks, plan.block_bytes);
        for index in 0..plan.blocks {
            let position = index % plan.batch_blocks;
            if position == 0 {
                source.stamp(0, index as u64);
            }
            bytes.copy_in(index as u64 * plan.block_bytes, source.block(position));
        }
        let from = PeerArena::map(bytes.read_only_fd()?)?;
        Ok(Copies { plan: *plan, core: cores.reader, source, from, to })
    }

    /// Copies and sums all blocks, on the reader's core.
    ///
    /// # Errors
    /// If the core cannot be had.
    pub fn read(&mut self) -> Result<(Duration, Ends<Duration>), Failure> {
        let pass = || -> Result<Duration, String> {
            affinity::pin_current_thread(self.core).map_err(|error| error.to_string())?;
            let began = Instant::now();
            for index in 0..self.plan.blocks as u64 {
                let at = index * self.plan.block_bytes;
                let mut sum = Checksum::new(at, self.plan.block_bytes);
                while sum.remaining_bytes() > 0 {
                    let bytes = STEP_BYTES.min(sum.remaining_bytes());
                    let offset = at + self.plan.block_bytes - sum.remaining_bytes();
                    let copied = self.from.copy_to(offset, bytes, &self.to, offset);
                    copied.map_err(|error| error.to_string())?;
                    std::hint::black_box(sum.step(&self.to, bytes));
                }
            }
            Ok(began.elapsed())
        };
        let time = std::thread::scope(|scope| scope.spawn(pass).join().expect("a pass does not panic"))?;
        Ok((time, Ends { source: Duration::ZERO, reader: time }))
    }

    /// Compares every byte.
    ///
    /// # Errors
    /// [`WrongBytes`](crate::payload::WrongBytes).
    pub fn check(&mut self) -> Result<(), Failure> {
        let mut block = vec![0; self.plan.block_bytes as usize];
        for index in 0..self.plan.blocks as u64 {
            self.to.copy_out(index * self.plan.block_bytes, &mut block);
            self.source.require(index as usize % self.plan.batch_blocks, 0, index, &block)?;
            // So that bytes of this pass are not taken for those of the next.
            self.to.copy_in(index * self.plan.block_bytes, &[0; 64]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn every_byte_is_brought_and_a_wrong_one_is_found() {
        let plan = Plan { blocks: 20, block_bytes: 100 * KIB, ..Plan::of(Profile::Ci) };
        let plan = Plan { block_bytes: plan.block_bytes / 4_096 * 4_096, ..plan };
        let core = affinity::available_cores().unwrap()[0];
        let mut copies = Copies::start(&plan, Ends { source: core, reader: core }, 5).unwrap();
        copies.read().unwrap();
        copies.check().unwrap();
        assert!(copies.check().is_err(), "nothing was brought since");
        copies.read().unwrap();
        copies.to.copy_in(plan.pass_bytes() - 1, &[0xa5]);
        copies.to.copy_in(plan.pass_bytes() - 2, &[0x5a]);
        assert!(copies.check().is_err());
    }
}
