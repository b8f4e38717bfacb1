//! A frame on its way out: a body that may be shared, behind a header that belongs to one session.

use std::rc::Rc;

use orbitkv_wire::inventory::{Body, HEADER_BYTES, Kind, SnapshotCommitBody};
use orbitkv_wire::layout::Fixed;

use crate::admission::{Permit, Pool};

/// Largest frame without changes.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + SnapshotCommitBody::BYTES;

/// A body that is built once, and charged once to the queue pool for as long as anybody needs it.
#[derive(Debug)]
pub struct SharedBody {
    kind: Kind,
    count: u32,
    bytes: Rc<[u8]>,
    _charge: Permit,
}

impl SharedBody {
    /// `body`, charged to `pool`; nothing if the pool has no room.
    #[must_use]
    pub fn charge(body: Body, pool: &Pool) -> Option<Rc<SharedBody>> {
        let charge = pool.take((HEADER_BYTES + body.bytes.len()) as u64)?;
        Some(Rc::new(SharedBody {
            kind: body.kind,
            count: body.count,
            bytes: body.bytes.into(),
            _charge: charge,
        }))
    }

    /// What it says.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Changes in it.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &Rc<[u8]> {
        &self.bytes
    }

    /// Bytes of a frame with this body.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.bytes.len()
    }
}

/// A frame of one session that is built and was not taken yet.
#[derive(Debug)]
pub struct Frame {
    /// Its header.
    pub header: [u8; HEADER_BYTES],
    /// Its body.
    pub body: Rc<[u8]>,
}
