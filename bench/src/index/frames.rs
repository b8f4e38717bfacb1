//! What a change costs on its way: written by its source, checked by its receiver, applied to the index; beside it
//! the frame's bytes, copied.

use std::time::{Duration, Instant};

use orbitkv_shards::key::{NamespaceId, StateKey};
use orbitkv_wire::bounds::INVENTORY_BODY_BYTES_MAX;
use orbitkv_wire::identity::{BlockHash, Sequence, key_hash};
use orbitkv_wire::inventory::{
    ChangesWriter, FromSource, HEADER_BYTES, Header, Tag, decode_from_source, header_bytes, split_frame,
};
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::rows::{Change, NAMESPACE, Population};
use super::tables::{Index, Table};

/// Owners.
const OWNERS: u32 = 64;

/// Nanoseconds a change.
#[derive(Debug, Serialize, Deserialize)]
pub struct Frames {
    /// Changes of a frame.
    pub changes: u64,
    /// Bytes of a frame.
    pub bytes: u64,
    /// Into a body.
    pub encode_ns: f64,
    /// Header and body as a receiver decodes and validates them.
    pub check_ns: f64,
    /// Read, hashed, with room asked for, applied to a full table.
    pub apply_ns: f64,
    /// The frame's bytes, copied.
    pub copy_ns: f64,
}

/// Measures.
pub fn measure(plan: &Plan, seed: u64) -> Frames {
    let mut population = Population::new(seed, OWNERS);
    let mut index = Index::new(OWNERS, plan.rows);
    let (mut changes, mut loaded) = (Vec::new(), 0);
    while loaded < plan.rows {
        let owner = (loaded / plan.frame_changes) as u32 % OWNERS;
        let count = plan.frame_changes.min(plan.rows - loaded);
        population.grow(owner, count, &mut changes);
        index.apply(owner, &changes);
        loaded += count;
    }
    let mut writer = ChangesWriter::new(INVENTORY_BODY_BYTES_MAX);
    let (mut frame, mut copy, mut read) = (Vec::new(), Vec::new(), Vec::new());
    let [mut encode, mut check, mut apply, mut copying] = [Duration::ZERO; 4];
    for number in 0..plan.frames {
        let owner = number as u32 % OWNERS;
        population.churn(owner, plan.frame_changes, &mut changes);

        let started = Instant::now();
        let body = written(&mut writer, &changes);
        encode += started.elapsed();

        let through = changes[changes.len() - 1].sequence;
        let header =
            Header::new(body.kind, Tag([1; 16]), 1 + number as u64, through, body.count, body.bytes.len());
        frame.clear();
        frame.extend_from_slice(&header_bytes(&header));
        frame.extend_from_slice(&body.bytes);
        copy.resize(frame.len(), 0);

        let started = Instant::now();
        copy.copy_from_slice(&frame);
        copying += started.elapsed();

        let started = Instant::now();
        let split = split_frame(&copy, HEADER_BYTES + INVENTORY_BODY_BYTES_MAX).expect("our own frame");
        let (header, body) = split.expect("a whole frame");
        let message = decode_from_source(&header, &copy[body]).expect("our own frame");
        check += started.elapsed();

        let FromSource::Delta { changes: decoded, .. } = message else { panic!("a delta was written") };
        let started = Instant::now();
        read.clear();
        read.extend(decoded.iter().map(|change| {
            let block = BlockHash(*change.block);
            Change {
                key: StateKey { namespace: NamespaceId(0), group: change.group, block },
                hash: key_hash(&NAMESPACE, change.group, &block),
                medium: change.medium,
                change: change.change,
                sequence: change.sequence,
            }
        }));
        index.apply(owner, &read);
        apply += started.elapsed();
        assert!(read == changes, "what was written is what is read");
    }
    let total = plan.frames as f64 * plan.frame_changes as f64;
    let a_change = |time: Duration| time.as_nanos() as f64 / total;
    Frames {
        changes: plan.frame_changes,
        bytes: frame.len() as u64,
        encode_ns: a_change(encode),
        check_ns: a_change(check),
        apply_ns: a_change(apply),
        copy_ns: a_change(copying),
    }
}

fn written(writer: &mut ChangesWriter, changes: &[Change]) -> orbitkv_wire::inventory::Body {
    let (first, last) = (changes[0].sequence, changes[changes.len() - 1].sequence);
    writer.delta(Sequence(first.0 - 1), last);
    for Change { key, medium, change, sequence, .. } in changes {
        let pushed = writer.push(&NAMESPACE, key.group, &key.block, *medium, *change, *sequence);
        pushed.expect("a frame has room for these");
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_applied_as_they_were_written() {
        let plan = Plan { rows: 20_000, frames: 4, ..Plan::of(crate::profile::Profile::Ci) };
        let found = measure(&plan, 1);
        assert!(found.bytes > found.changes * 40 && found.apply_ns > 0.0);
    }
}
