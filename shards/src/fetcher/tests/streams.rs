//! What the model's sources hold and send: the right bytes of every block, and streams as both ends see them.

use orbitkv_wire::identity::BlockHash;
use orbitkv_wire::payload::Authorize;

use crate::dice::Dice;
use crate::fetcher::ConnectionId;

/// Bytes of a slot, and of the largest block.
pub const SLOT: usize = 64;

/// The only right bytes of a block.
pub fn truth(key: u64) -> Vec<u8> {
    let mut dice = Dice(key * 7 + 1);
    (0..length(key)).map(|_| dice.roll(256) as u8).collect()
}

pub fn length(key: u64) -> u64 {
    1 + key % SLOT as u64
}

pub fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

pub fn key_of(block: &BlockHash) -> u64 {
    u64::from_le_bytes(*block.0.first_chunk().unwrap())
}

/// A payload on its way: what the source sends, and how far the driver is.
pub struct Flow {
    pub index: u16,
    pub sends: Vec<u8>,
    pub come: usize,
}

/// A stream as its source and the driver see it.
pub struct Stream {
    pub connection: ConnectionId,
    pub authorize: Authorize,
    /// Positions that are granted and not served.
    pub due: Vec<u16>,
    pub granted: Vec<bool>,
    pub is_answered: bool,
    pub flow: Option<Flow>,
    /// Whether the room has ended it; its source may go on for a while.
    pub is_over: bool,
    /// Whether it ended by a cancel, of which its source does not know yet.
    pub is_cancelled: bool,
}

impl Stream {
    /// Bytes that its source may still send, whatever the room thinks of it.
    pub fn may_send(&self) -> u64 {
        let length = |index: usize| length(key_of(&self.authorize.residences[index].block));
        let all = 0..self.authorize.residences.len();
        match (self.is_over && !self.is_cancelled, self.is_answered) {
            (true, _) => 0,
            (false, false) => all.map(length).sum(),
            (false, true) => {
                let flowing = self.flow.as_ref().map(|flow| usize::from(flow.index));
                self.due.iter().map(|index| usize::from(*index)).chain(flowing).map(length).sum()
            }
        }
    }
}
