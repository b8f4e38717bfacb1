//! FIFO queues threaded through one table of links indexed by entry, so that moving an entry between
//! queues neither allocates nor searches.

use crate::key::EntryId;

const NONE: u32 = u32::MAX;

/// Neighbours of every entry; an entry is in at most one queue of the table.
#[derive(Debug)]
pub(super) struct Links {
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
}

/// One queue. Entries join as the newest and are looked at from the oldest.
#[derive(Debug)]
pub(super) struct Queue {
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Links {
    pub(super) const BYTES_PER_ENTRY: usize = size_of::<Link>();

    pub(super) fn new(entries: usize) -> Links {
        Links { links: vec![Link { newer: NONE, older: NONE }; entries] }
    }

    /// Makes room for an id.
    pub(super) fn cover(&mut self, id: EntryId) {
        assert_ne!(id.0, NONE, "the last id stands for none");
        let entries = id.0 as usize + 1;
        if entries > self.links.len() {
            self.links.resize(entries, Link { newer: NONE, older: NONE });
        }
    }

    /// The entry that joined the same queue next after this one.
    pub(super) fn newer(&self, id: EntryId) -> Option<EntryId> {
        named(self.links[id.0 as usize].newer)
    }
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue { newest: NONE, oldest: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn oldest(&self) -> Option<EntryId> {
        named(self.oldest)
    }

    pub(super) fn push(&mut self, links: &mut Links, id: EntryId) {
        links.links[id.0 as usize] = Link { newer: NONE, older: self.newest };
        match self.newest {
            NONE => self.oldest = id.0,
            newest => links.links[newest as usize].newer = id.0,
        }
        self.newest = id.0;
        self.len += 1;
    }

    /// Takes out an entry of this queue, wherever it is.
    pub(super) fn remove(&mut self, links: &mut Links, id: EntryId) {
        let Link { newer, older } = links.links[id.0 as usize];
        match newer {
            NONE => {
                assert_eq!(self.newest, id.0, "the entry is in this queue");
                self.newest = older;
            }
            newer => links.links[newer as usize].older = older,
        }
        match older {
            NONE => {
                assert_eq!(self.oldest, id.0, "the entry is in this queue");
                self.oldest = newer;
            }
            older => links.links[older as usize].newer = newer,
        }
        self.len -= 1;
    }

    /// Makes an entry of this queue its newest.
    pub(super) fn renew(&mut self, links: &mut Links, id: EntryId) {
        if self.newest != id.0 {
            self.remove(links, id);
            self.push(links, id);
        }
    }

    /// From the oldest to the newest.
    #[cfg(test)]
    pub(super) fn iter(&self, links: &Links) -> impl Iterator<Item = EntryId> {
        std::iter::successors(self.oldest(), |&id| links.newer(id))
    }
}

fn named(link: u32) -> Option<EntryId> {
    (link != NONE).then_some(EntryId(link))
}
