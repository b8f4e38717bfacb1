//! Where payload goes, and whether what came is what was promised.

use orbitkv_wire::payload::{OperationId, Transport};

use super::Fetcher;
use super::effect::{ConnectionId, Destination};
use super::guard::Fate;
use super::operation::Stage;
use super::order::Setback;
use crate::time::Moment;

impl Fetcher {
    /// Where the payload of a residence goes whose Bytes has come, or that is read; `None` if it is to be
    /// thrown away, or read no more. It holds until anything else of the room is called: it is asked for
    /// again with every piece.
    pub fn destination(
        &mut self,
        connection: ConnectionId,
        operation: OperationId,
        index: u16,
        now: Moment,
    ) -> Option<Destination> {
        let number = self.number_of(connection, operation)?;
        let operation = self.operations.get_mut(&number).expect("just found");
        operation.progressed = now;
        if operation.transport == Transport::Shm && operation.over_at <= now {
            return None;
        }
        let part = operation.parts.get(usize::from(index))?;
        let Stage::Flowing { bytes, .. } = part.stage else { return None };
        let order = self.fetches[&part.copy?].order;
        Some(Destination { arena_offset: order.arena_offset, bytes })
    }

    /// The payload of a residence has come whole. `computed` is `xxh3_64` of what was written; of what was
    /// thrown away it does not matter.
    pub fn on_bytes(&mut self, connection: ConnectionId, operation: OperationId, index: u16, computed: u64) {
        let number = self.number_of(connection, operation);
        let part = number.and_then(|number| self.operations[&number].parts.get(usize::from(index)));
        let (Some(number), Some(Stage::Flowing { bytes, checksum })) = (number, part.map(|part| part.stage))
        else {
            self.figures.late += 1;
            return;
        };
        let index = usize::from(index);
        self.close_part(number, index);
        let is_right = computed == checksum;
        match self.operations[&number].parts[index].copy {
            Some(copy) if is_right => {
                self.detach(number, index);
                let transport = self.operations[&number].transport;
                self.succeed(copy, checksum, transport);
            }
            Some(_) => {
                self.figures.wrong_checksums += 1;
                self.figures.bytes_wasted += u64::from(bytes);
                self.judge(number, Fate::Broken);
                self.fail_part(number, index, Setback::Corrupt);
            }
            None => self.figures.bytes_wasted += u64::from(bytes),
        }
        self.settle(number);
    }

    /// A residence that was to be read over shared memory is not, or no further: its time is over, nobody
    /// wants it, or the source has no such range. Its source may still have it for who asks over QUIC.
    pub fn on_unread(&mut self, connection: ConnectionId, operation: OperationId, index: u16) {
        let Some(number) = self.number_of(connection, operation) else { return };
        let index = usize::from(index);
        let part = self.operations[&number].parts.get(index);
        if !matches!(part.map(|part| part.stage), Some(Stage::Flowing { .. })) {
            return;
        }
        self.figures.unread += 1;
        self.close_part(number, index);
        self.ask_over_quic(number, index);
        self.settle(number);
    }
}
