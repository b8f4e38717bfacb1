//! The SSD as a core drives it: orders of the shard become transfers, completions go back. With
//! `reactor.rs` the only place where a room meets I/O.

use orbitkv_native::ssd_device::SsdDevice;
use orbitkv_native::ssd_transfer::{AlignedBuffer, ChecksumPolicy, Completed, Transfer, TransferKind};
use orbitkv_shards::segment_log::SegmentId;
use orbitkv_shards::shard::{Order, OrderKind, Shard, TransferId};
use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;

use crate::turns::recorder::Trace;

/// Marks the id of a segment table's write.
const TABLE: u64 = 1 << 63;

/// Checksum bytes of one turn. At the rate memory is read this takes about 45 µs, below the slice bound
/// of 100 µs; a turn costs some 8 µs of its own, so less would spend the core on turning.
const CHECKSUM_BYTES_PER_TURN: u64 = 512 * 1024;

/// Checksum bytes of the other looks at the device in a turn: the least the device does.
const CHECKSUM_BYTES_BETWEEN: u64 = 0;

/// The device and what it has completed.
pub struct DeviceDriver {
    device: SsdDevice,
    completed: Vec<Completed>,
    peak: u32,
}

impl DeviceDriver {
    /// Drives `device`.
    #[must_use]
    pub fn new(device: SsdDevice) -> DeviceDriver {
        DeviceDriver { device, completed: Vec::new(), peak: 0 }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &SsdDevice {
        &self.device
    }

    /// Most operations at once so far.
    #[must_use]
    pub fn peak(&self) -> u32 {
        self.peak
    }

    /// The device's part of a turn: reports completions to the shard and, unless `stopping`, takes its
    /// next orders. Returns whether more can be done without waiting.
    pub fn step(&mut self, shard: &mut Shard, trace: &mut Trace, stopping: bool) -> bool {
        self.step_within(shard, trace, stopping, CHECKSUM_BYTES_PER_TURN)
    }

    /// Another look in the same turn, when the rooms have worked: as [`Self::step`], with hardly any
    /// checksums.
    pub fn step_again(&mut self, shard: &mut Shard, trace: &mut Trace, stopping: bool) -> bool {
        self.step_within(shard, trace, stopping, CHECKSUM_BYTES_BETWEEN)
    }

    fn step_within(
        &mut self,
        shard: &mut Shard,
        trace: &mut Trace,
        stopping: bool,
        checksum_bytes: u64,
    ) -> bool {
        let mut more = self.reap(shard, checksum_bytes);
        trace.take_stages(shard);
        if !stopping && self.submit(shard) {
            more |= self.reap(shard, CHECKSUM_BYTES_BETWEEN);
        }
        trace.take_stages(shard);
        more
    }

    fn reap(&mut self, shard: &mut Shard, checksum_bytes: u64) -> bool {
        let turn = self.device.turn(&mut self.completed, checksum_bytes);
        for completed in self.completed.drain(..) {
            let outcome = completed.outcome.map_err(|error| error.errno);
            if completed.id & TABLE != 0 {
                shard.on_table_written(SegmentId((completed.id & !TABLE) as u32), outcome.is_ok());
            } else {
                shard.on_transfer_done(TransferId(completed.id), outcome);
            }
        }
        // With more to come, what is there already may not have been reported.
        if !turn.more {
            shard.on_device_seen();
        }
        turn.more
    }

    fn submit(&mut self, shard: &mut Shard) -> bool {
        let before = self.device.in_flight();
        while self.device.in_flight() < self.device.depth() {
            if let Some(table) = shard.poll_table() {
                let mut buffer = AlignedBuffer::zeroed(table.bytes.len());
                buffer.copy_from_slice(&table.bytes);
                let id = TABLE | u64::from(table.segment.0);
                let submitted = self.device.submit_buffer(id, buffer, table.offset);
                assert!(submitted.is_ok(), "asked for room before");
                continue;
            }
            let Some(order) = shard.poll_order() else { break };
            let submitted = self.device.submit(transfer(&order));
            assert!(submitted.is_ok(), "asked for room before");
        }
        self.peak = self.peak.max(self.device.in_flight());
        self.device.in_flight() > before
    }
}

fn transfer(order: &Order) -> Transfer {
    Transfer {
        id: order.id.0,
        kind: match order.kind {
            OrderKind::Read => TransferKind::Read,
            OrderKind::Write => TransferKind::Write,
        },
        arena_offset: order.arena_offset,
        file_offset: order.file_offset,
        bytes: order.payload_bytes.next_multiple_of(EXTENT_ALIGN_BYTES),
        payload_bytes: order.payload_bytes,
        checksum: match (order.kind, order.checksum) {
            (OrderKind::Write, Some(known)) => ChecksumPolicy::Known(known),
            _ => ChecksumPolicy::Compute,
        },
    }
}
