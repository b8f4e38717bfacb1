//! Another node's arena, as this one reads it: a descriptor that was passed over a peer socket, mapped for reading
//! alone.
//!
//! Which ranges may be read, and until when, is what the source has granted. A range that is read later may have
//! other bytes, which the checksum shows; it can make no fault, because the size is sealed.

use crate::arena::Arena;
use crate::arena_map::ArenaMap;
use crate::arena_view::{ArenaViewError, RangeError, sealed_bytes};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// A mapped arena of another node. It is unmapped when this is dropped; the descriptor is closed once mapped.
#[derive(Debug)]
pub struct PeerArena {
    map: ArenaMap,
}

impl PeerArena {
    /// Checks that `fd` is a size-sealed memfd and maps all of it.
    ///
    /// # Errors
    /// [`ArenaViewError`] for anything else.
    pub fn map(fd: OwnedFd) -> Result<PeerArena, ArenaViewError> {
        let bytes = sealed_bytes(&fd)?;
        let refuse = |errno| ArenaViewError::System { step: "mmap", bytes, errno };
        let length = usize::try_from(bytes).ok().filter(|length| *length > 0);
        let map =
            ArenaMap::map_read_only(&fd, length.ok_or_else(|| refuse(Errno::INVAL))?).map_err(refuse)?;
        map.advise_huge();
        Ok(PeerArena { map })
    }

    /// Copies `bytes` at `offset` into our own arena at `target_offset`, which the caller owns.
    ///
    /// # Errors
    /// If the other arena has no such range; nothing is copied.
    ///
    /// # Panics
    /// If our own has none.
    pub fn copy_to(
        &self,
        offset: u64,
        bytes: u64,
        target: &Arena,
        target_offset: u64,
    ) -> Result<(), RangeError> {
        if !self.map.contains(offset, bytes) {
            return Err(RangeError { offset, bytes, arena_bytes: self.map.bytes() as u64 });
        }
        target.copy_in(target_offset, self.map.slice(offset, bytes));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::PagePreference;
    use rustix::fs::{OFlags, fcntl_getfl};
    use std::os::fd::AsFd;

    const BYTES: u64 = 1 << 20;

    fn arena() -> Arena {
        Arena::create(BYTES, PagePreference::Small).unwrap().0
    }

    #[test]
    fn what_is_passed_can_be_read_and_not_written() {
        let (source, target) = (arena(), arena());
        let fd = source.read_only_fd().unwrap();
        assert_eq!(fcntl_getfl(&fd).unwrap() & OFlags::ACCMODE, OFlags::RDONLY);
        assert_eq!(rustix::io::write(&fd, b"x"), Err(Errno::BADF));
        assert_eq!(ArenaMap::map(fd.as_fd(), BYTES as usize).err(), Some(Errno::ACCESS));
        let view = PeerArena::map(fd).unwrap();
        source.copy_in(BYTES - 7, b"payload");
        view.copy_to(BYTES - 7, 7, &target, 4_096).unwrap();
        let mut came = [0; 7];
        target.copy_out(4_096, &mut came);
        assert_eq!(&came, b"payload");
    }

    #[test]
    fn a_range_that_is_not_there_is_refused() {
        let (source, target) = (arena(), arena());
        let view = PeerArena::map(source.read_only_fd().unwrap()).unwrap();
        for offset in [BYTES - 6, BYTES, u64::MAX] {
            assert!(view.copy_to(offset, 7, &target, 0).is_err(), "{offset}");
        }
    }

    #[test]
    fn what_is_no_sealed_memfd_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES).unwrap();
        assert!(PeerArena::map(file.into()).is_err());
    }
}
