//! Arena memory on its way to a peer: lent to the transport, and given back provably.
//!
//! A [`Payload`] is a counted handle. The transport reads through it, retransmissions too, and drops it when
//! the bytes are acknowledged or will never be sent again. Only when the last handle of a loan is gone is the
//! memory drained: [`Payloads::poll_drained`] says so, and nothing else does.

use crate::arena::Arena;
use bytes::Bytes;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Loans of arena memory, in bounded number.
#[derive(Debug)]
pub struct Payloads {
    arena: Arena,
    drained: Arc<Drained>,
    lent: usize,
    lent_max: usize,
}

/// Ends of loans. Handles may be dropped on any thread, because `Bytes` may be; in a node all of them are
/// dropped by the core that lent them, so nobody ever waits here.
#[derive(Debug)]
struct Drained {
    ids: Mutex<Vec<u64>>,
}

impl Payloads {
    /// Loans of `arena`; at most `lent_max` at a time.
    pub fn new(arena: Arena, lent_max: usize) -> Self {
        let drained = Arc::new(Drained { ids: Mutex::new(Vec::with_capacity(lent_max)) });
        Self { arena, drained, lent: 0, lent_max }
    }

    /// Lends a range that nobody writes or frees until [`Self::poll_drained`] has said `id`; `None` if
    /// `lent_max` loans have not been told drained.
    ///
    /// # Panics
    /// If the range is not inside the arena.
    pub fn lend(&mut self, id: u64, offset: u64, bytes: u64) -> Option<Payload> {
        if self.lent == self.lent_max {
            return None;
        }
        // Checks the range.
        self.arena.slice(offset, bytes);
        self.lent += 1;
        let drained = self.drained.clone();
        Some(Payload(Bytes::from_owner(Extent { id, arena: self.arena.clone(), offset, bytes, drained })))
    }

    /// A loan of which no handle is left, each once.
    pub fn poll_drained(&mut self) -> Option<u64> {
        let id = self.drained.lock().pop()?;
        self.lent -= 1;
        Some(id)
    }

    /// Loans that [`Self::poll_drained`] has not told of.
    pub fn lent(&self) -> usize {
        self.lent
    }
}

impl Drained {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        // A vector is whole after every push and pop.
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle to lent arena memory. Clones, and the `Bytes` made of it with all their slices, are handles to the
/// same loan.
#[derive(Clone)]
pub struct Payload(Bytes);

impl Payload {
    /// Length in bytes.
    pub fn bytes_total(&self) -> usize {
        self.0.len()
    }
}

impl From<Payload> for Bytes {
    fn from(payload: Payload) -> Self {
        payload.0
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Payload").field("bytes", &self.0.len()).finish_non_exhaustive()
    }
}

/// What all handles of a loan share.
struct Extent {
    id: u64,
    arena: Arena,
    offset: u64,
    bytes: u64,
    drained: Arc<Drained>,
}

impl AsRef<[u8]> for Extent {
    fn as_ref(&self) -> &[u8] {
        self.arena.slice(self.offset, self.bytes)
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.drained.lock().push(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::PagePreference;

    fn arena() -> Arena {
        Arena::create(64 * 1024, PagePreference::Small).unwrap().0
    }

    #[test]
    fn a_loan_ends_with_its_last_handle() {
        let arena = arena();
        arena.copy_in(4_096, b"payload");
        let mut payloads = Payloads::new(arena, 2);
        let payload = payloads.lend(7, 4_096, 7).unwrap();
        let mut first = Bytes::from(payload.clone());
        assert_eq!(&first[..], b"payload");
        let rest = first.split_off(3);
        let slice = rest.slice(1..3);
        drop((payload, first, rest));
        assert_eq!((payloads.poll_drained(), payloads.lent()), (None, 1));
        assert_eq!(&slice[..], b"oa");
        drop(slice);
        assert_eq!((payloads.poll_drained(), payloads.lent()), (Some(7), 0));
        assert_eq!(payloads.poll_drained(), None);
    }

    #[test]
    fn loans_are_bounded_until_they_are_told() {
        let mut payloads = Payloads::new(arena(), 2);
        let (first, second) = (payloads.lend(1, 0, 4_096).unwrap(), payloads.lend(2, 0, 4_096).unwrap());
        assert!(payloads.lend(3, 0, 1).is_none());
        std::thread::spawn(move || drop(first)).join().unwrap();
        assert!(payloads.lend(3, 0, 1).is_none(), "drained, but not told");
        assert_eq!(payloads.poll_drained(), Some(1));
        assert!(payloads.lend(3, 0, 1).is_some());
        drop(second);
    }

    #[test]
    #[should_panic(expected = "outside the arena")]
    fn a_range_outside_is_our_bug() {
        Payloads::new(arena(), 1).lend(1, 60 * 1024, 8 * 1024);
    }
}
