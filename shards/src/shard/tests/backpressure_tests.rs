//! Backpressure: what a shard accepts and refuses, against the chain that the published model is played with. A save
//! is accepted exactly when a chain whose signal reaches its boundary takes it, and what was accepted is never lost.

use orbitkv_wire::engine::answers::{CommitOutcome, Place, SlotOutcome};

use super::rig::{Fault, KIB, Rig, settings};
use crate::dice::Dice;
use crate::resilience::backpressure::{Chain, Offer};
use crate::slab::CHUNK_BYTES;

const CASES: u64 = 100;
const STEPS: u64 = 150;
const BYTES: u64 = 256 * KIB;
/// Blocks that the arena of these tests holds.
const SLOTS: usize = (ARENA_CHUNKS * CHUNK_BYTES / BYTES) as usize;
const ARENA_CHUNKS: u64 = 2;

/// Saves, and a device that takes and ends writes when it pleases, the oldest first.
fn one_case(case: u64) {
    let mut dice = Dice(case);
    // Everything that is ever saved fits the file: what is lost was not evicted there.
    let mut rig = Rig::new(settings(ARENA_CHUNKS, STEPS * 2 * BYTES));
    let mut chain: Chain<u8> = Chain::to_the_boundary(&[SLOTS]);
    let (mut accepted, mut refused) = (0_u8, 0);
    for step in 0..STEPS {
        match dice.roll(5) {
            0..=2 => {
                let slot = rig.reserve(1, accepted, BYTES);
                match chain.offer(accepted) {
                    Offer::Taken => {
                        assert_eq!(slot.outcome, SlotOutcome::Slot as u8, "case {case}, step {step}");
                        rig.fill(slot.offset, BYTES, u64::from(accepted));
                        assert_eq!(rig.commit(1, slot.reservation), CommitOutcome::Committed);
                        accepted += 1;
                    }
                    Offer::Refused(_) => {
                        assert_eq!(slot.outcome, SlotOutcome::Busy as u8, "case {case}, step {step}");
                        refused += 1;
                    }
                    Offer::Lost(number) => {
                        panic!("case {case}, step {step}: {number} is lost at the boundary")
                    }
                }
            }
            3 => _ = rig.start_one(),
            _ if rig.flights.is_empty() => {}
            _ => {
                rig.complete(0, Fault::None);
                assert_eq!(chain.advance(0, 1).done.len(), 1, "case {case}, step {step}");
            }
        }
        assert_eq!(rig.shard.figures().counters.saves_busy, refused, "case {case}, step {step}");
    }
    rig.settle();
    assert!(refused > 0, "case {case} never met the boundary");
    for number in 0..accepted {
        assert_ne!(rig.place(number), Place::None, "case {case}: {number} was accepted");
    }
}

#[test]
fn a_save_is_accepted_exactly_when_a_chain_to_the_boundary_takes_it_and_then_never_lost() {
    (0..CASES).for_each(one_case);
}
