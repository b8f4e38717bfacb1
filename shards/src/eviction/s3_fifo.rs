//! S3-FIFO: a small queue on probation, a main queue for what was used there, and a memory of what
//! failed probation, which goes to the main queue at once when it comes back.

use orbitkv_wire::identity::KeyHash;

use super::EvictionPolicy;
use super::ghost::GhostTable;
use super::queue::{Links, Queue};
use crate::key::EntryId;

/// The small queue's share of the residents, in parts of 100.
const SMALL_PERCENT: usize = 10;

/// Uses on probation that lead to the main queue.
const PROMOTION_USES: u8 = 2;

/// Uses are counted up to this.
const USES_MAX: u8 = 3;

const _: () = assert!(0 < PROMOTION_USES && PROMOTION_USES <= USES_MAX);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Absent,
    Small,
    Main,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: KeyHash,
    place: Place,
    uses: u8,
}

const ABSENT: Entry = Entry { hash: KeyHash(0), place: Place::Absent, uses: 0 };

/// Two queues of residents and a memory of evictions.
#[derive(Debug)]
pub struct S3Fifo {
    links: Links,
    small: Queue,
    main: Queue,
    entries: Vec<Entry>,
    ghosts: GhostTable,
    /// The queue whose oldest was pinned in the last step: the next step looks at the other one, so
    /// that one queue full of pinned residents does not hide the other.
    pinned: Option<Place>,
}

impl S3Fifo {
    /// Empty, with tables for ids below `entries`, and a memory of as many evictions.
    #[must_use]
    pub fn new(entries: usize) -> S3Fifo {
        S3Fifo {
            links: Links::new(entries),
            small: Queue::new(),
            main: Queue::new(),
            entries: vec![ABSENT; entries],
            ghosts: GhostTable::new(entries),
            pinned: None,
        }
    }

    /// Bytes of the tables for ids below `entries`, the memory of evictions included.
    #[must_use]
    pub fn table_bytes(entries: usize) -> usize {
        entries * (Links::BYTES_PER_ENTRY + size_of::<Entry>()) + GhostTable::table_bytes(entries)
    }

    fn queue(&mut self, place: Place) -> &mut Queue {
        match place {
            Place::Small => &mut self.small,
            Place::Main => &mut self.main,
            Place::Absent => unreachable!("an absent entry is in no queue"),
        }
    }

    /// The queue to look at next: the small one while it has more than its share.
    fn next_place(&mut self) -> Place {
        let due = if self.small.len() * 100 > self.len() * SMALL_PERCENT || self.main.len() == 0 {
            Place::Small
        } else {
            Place::Main
        };
        let other = match self.pinned.take() {
            None => return due,
            Some(Place::Small) => Place::Main,
            Some(_) => Place::Small,
        };
        if self.queue(other).len() > 0 { other } else { due }
    }

    fn requeue(&mut self, id: EntryId, to: Place) {
        let from = self.entries[id.0 as usize].place;
        let S3Fifo { links, small, main, .. } = self;
        match from {
            Place::Small => small.remove(links, id),
            Place::Main => main.remove(links, id),
            Place::Absent => {}
        }
        match to {
            Place::Small => small.push(links, id),
            Place::Main => main.push(links, id),
            Place::Absent => {}
        }
        self.entries[id.0 as usize].place = to;
    }
}

impl EvictionPolicy for S3Fifo {
    fn insert(&mut self, id: EntryId, hash: KeyHash) {
        self.links.cover(id);
        if id.0 as usize >= self.entries.len() {
            self.entries.resize(id.0 as usize + 1, ABSENT);
        }
        assert!(!self.contains(id), "an entry is inserted once");
        self.entries[id.0 as usize] = Entry { hash, place: Place::Absent, uses: 0 };
        let returned = self.ghosts.take(hash, self.main.len());
        self.requeue(id, if returned { Place::Main } else { Place::Small });
    }

    fn touch(&mut self, id: EntryId) {
        assert!(self.contains(id), "only residents are touched");
        let entry = &mut self.entries[id.0 as usize];
        entry.uses = (entry.uses + 1).min(USES_MAX);
    }

    /// Whatever leaves probation unpromoted is remembered, also if it was dropped on request: if it
    /// comes back, it was wanted.
    fn remove(&mut self, id: EntryId) {
        assert!(self.contains(id), "only residents are removed");
        let Entry { hash, place, .. } = self.entries[id.0 as usize];
        if place == Place::Small {
            self.ghosts.insert(hash);
        }
        self.requeue(id, Place::Absent);
    }

    fn victim(&mut self, budget: usize, evictable: &mut dyn FnMut(EntryId) -> bool) -> Option<EntryId> {
        // If everything is used again faster than the queues turn, the first that may go does.
        let mut used = None;
        for _ in 0..budget.min((usize::from(USES_MAX) + 2) * self.len()) {
            let place = self.next_place();
            let id = self.queue(place).oldest()?;
            let entry = &mut self.entries[id.0 as usize];
            let stays = match place {
                Place::Small => entry.uses >= PROMOTION_USES,
                _ => entry.uses > 0,
            };
            if stays {
                entry.uses = if place == Place::Small { 0 } else { entry.uses - 1 };
                match used {
                    Some(_) => {}
                    None if evictable(id) => used = Some(id),
                    None => self.pinned = Some(place),
                }
                self.requeue(id, Place::Main);
            } else if evictable(id) {
                return Some(id);
            } else {
                self.pinned = Some(place);
                self.requeue(id, place);
            }
        }
        used
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn contains(&self, id: EntryId) -> bool {
        self.entries.get(id.0 as usize).is_some_and(|entry| entry.place != Place::Absent)
    }
}
