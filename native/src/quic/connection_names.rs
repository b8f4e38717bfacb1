//! The names that our connections have in datagrams.
//!
//! A name is a random number and a tag of it, so that bytes which are no name of this port are told from one in a
//! few nanoseconds and get no stateless reset. The key outlives the process (see [`super::NodeKey`]); 64 random bits
//! are never drawn twice in its life, as the reset token of a name must not be that of another connection's.

use crate::entropy::random_u64;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const RANDOM_BYTES: usize = 8;
const TAG_BYTES: usize = 4;

/// Draws and recognises names.
pub(super) struct ConnectionNames {
    pub(super) key: u64,
}

impl ConnectionNames {
    fn tag(&self, random: &[u8]) -> [u8; TAG_BYTES] {
        let tag = xxh3_64_with_seed(random, self.key).to_le_bytes();
        *tag.first_chunk().expect("a hash is longer than a tag")
    }
}

impl ConnectionIdGenerator for ConnectionNames {
    fn generate_cid(&mut self) -> ConnectionId {
        let random = random_u64().to_le_bytes();
        let mut name = [0; RANDOM_BYTES + TAG_BYTES];
        name[..RANDOM_BYTES].copy_from_slice(&random);
        name[RANDOM_BYTES..].copy_from_slice(&self.tag(&random));
        ConnectionId::new(&name)
    }

    fn validate(&self, name: &ConnectionId) -> Result<(), InvalidCid> {
        match name.split_at_checked(RANDOM_BYTES) {
            Some((random, tag)) if tag == self.tag(random) => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        RANDOM_BYTES + TAG_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_recognised_by_its_key_alone() {
        let mut names = ConnectionNames { key: 7 };
        let name = names.generate_cid();
        assert_eq!(name.len(), names.cid_len());
        assert!(names.validate(&name).is_ok() && ConnectionNames { key: 7 }.validate(&name).is_ok());
        assert!(ConnectionNames { key: 8 }.validate(&name).is_err());
        for at in 0..name.len() {
            let mut other = name.to_vec();
            other[at] ^= 1;
            assert!(names.validate(&ConnectionId::new(&other)).is_err(), "byte {at}");
        }
        assert!(names.validate(&ConnectionId::new(&name[..RANDOM_BYTES - 1])).is_err());
    }
}
