//! Which places the keys and claims of several neighbouring directories have, each named by sixteen bits: so many
//! share a heap that its last chunk, which is not full, is a small share.
//!
//! The claims to a key on a medium are those of its first place and of the places that follow it. Only the
//! place that follows first may have room: so one more claim, or one less, costs the same whatever there is.

use std::mem;

use super::place::{Claim, Place, PlaceIndex};
use super::prefetch::Prefetch;
use super::store::{ChunkIndex, Store, chunk_bytes};
use super::view::ViewId;

/// Places of a chunk.
const CHUNK_PLACES: usize = 64;

type Chunk = [Place; CHUNK_PLACES];

const CHUNK_BYTES: usize = chunk_bytes::<Chunk>();

/// All places of a partition.
pub(super) type Places = Store<Chunk>;

/// Places a heap may have: whole chunks, and sixteen bits name no place with their highest value.
pub(super) const HEAP_PLACES_MAX: usize = u16::MAX as usize / CHUNK_PLACES * CHUNK_PLACES;

/// Places, used and free.
#[derive(Debug, Default)]
pub(super) struct Heap {
    chunks: Vec<ChunkIndex>,
    /// First of the places that were used once and are free, each of which leads to the next.
    left: Option<PlaceIndex>,
    /// Places ever used. Those behind them are free, too.
    begun: usize,
    used: usize,
}

/// A claim, by its place and its number there.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimAt {
    pub place: PlaceIndex,
    pub number: usize,
}

/// What is where a claim was that has been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removed {
    /// Another claim to the key, which was its last.
    Replaced,
    /// No claim, nor behind it in the same place; the key has others.
    LastOfPlace,
    /// No claim: the key has none any more, and its place is free.
    LastOfKey,
}

impl Heap {
    #[inline]
    pub fn place<'a>(&self, places: &'a Places, index: PlaceIndex) -> &'a Place {
        let index = usize::from(index.0);
        &places.get(self.chunks[index / CHUNK_PLACES])[index % CHUNK_PLACES]
    }

    #[inline]
    fn place_mut<'a>(&self, places: &'a mut Places, index: PlaceIndex) -> &'a mut Place {
        let index = usize::from(index.0);
        &mut places.get_mut(self.chunks[index / CHUNK_PLACES])[index % CHUNK_PLACES]
    }

    /// The claim of a view among those to the key at `first`.
    pub fn find(&self, places: &Places, first: PlaceIndex, view: ViewId) -> Option<ClaimAt> {
        let mut next = Some(first);
        while let Some(index) = next {
            let place = self.place(places, index);
            if let Some(number) = place.claims().position(|claim| claim.view() == view) {
                return Some(ClaimAt { place: index, number });
            }
            next = place.next();
        }
        None
    }

    pub fn claim(&self, places: &Places, at: ClaimAt) -> Claim {
        self.place(places, at.place).claim(at.number)
    }

    pub fn set_claim(&self, places: &mut Places, at: ClaimAt, claim: Claim) {
        self.place_mut(places, at.place).set_claim(at.number, claim);
    }

    /// The place that follows `first` if one more claim fits it.
    fn place_with_room(&self, places: &Places, first: PlaceIndex) -> Option<PlaceIndex> {
        self.place(places, first).next().filter(|&next| self.place(places, next).has_room())
    }

    /// Places that one more claim to the key at `first` takes.
    pub fn places_for_claim(&self, places: &Places, first: PlaceIndex) -> usize {
        usize::from(self.place_with_room(places, first).is_none())
    }

    /// Adds a claim to the key at `first`, for which there is room.
    pub fn add_claim(&mut self, places: &mut Places, first: PlaceIndex, claim: Claim, prefetch: Prefetch) {
        if let Some(next) = self.place_with_room(places, first) {
            self.place_mut(places, next).push(claim);
        } else {
            let next = self.place(places, first).next();
            let index = self.add(places, Place::of_claim(claim, next), prefetch);
            self.place_mut(places, first).set_next(Some(index));
        }
    }

    /// Removes a claim to the key at `first`.
    pub fn remove_claim(&mut self, places: &mut Places, first: PlaceIndex, at: ClaimAt) -> Removed {
        let Some(further) = self.place(places, first).next() else {
            self.free(places, first);
            return Removed::LastOfKey;
        };
        let last = self.place_mut(places, further).pop();
        let (count, next) = (self.place(places, further).count(), self.place(places, further).next());
        let removed = if at.place == further && at.number == count {
            Removed::LastOfPlace
        } else {
            self.set_claim(places, at, last);
            Removed::Replaced
        };
        if count == 0 {
            self.place_mut(places, first).set_next(next);
            self.free(places, further);
        }
        removed
    }

    /// Uses a place, for which there is room, and asks for the one that is used next.
    pub fn add(&mut self, places: &mut Places, place: Place, prefetch: Prefetch) -> PlaceIndex {
        let index = match self.left {
            Some(index) => {
                self.left = self.place(places, index).next();
                index
            }
            None => {
                self.begun += 1;
                PlaceIndex((self.begun - 1) as u16)
            }
        };
        self.used += 1;
        *self.place_mut(places, index) = place;
        if let Some(next) = self.left {
            prefetch.ask(self.place(places, next));
        }
        index
    }

    fn free(&mut self, places: &mut Places, index: PlaceIndex) {
        let left = self.left.replace(index);
        self.place_mut(places, index).set_next(left);
        self.used -= 1;
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Places that are charged for and free.
    pub fn free_places(&self) -> usize {
        self.chunks.len() * CHUNK_PLACES - self.used
    }

    /// Whether so many more places would be more than can be named.
    pub fn would_overflow(&self, places: usize) -> bool {
        self.used + places > HEAP_PLACES_MAX
    }

    /// What so many more places may cost.
    pub fn growth_bytes(&self, places: usize) -> u64 {
        let chunks = (self.used + places).div_ceil(CHUNK_PLACES).saturating_sub(self.chunks.len());
        (chunks * CHUNK_BYTES) as u64
    }

    /// Takes one more chunk.
    pub fn grow(&mut self, places: &mut Places) {
        self.chunks.reserve_exact(1);
        self.chunks.push(places.take([Place::UNUSED; CHUNK_PLACES]));
    }

    /// Gives all chunks back; no place is in use.
    pub fn release(&mut self, places: &mut Places) {
        debug_assert!(self.is_empty());
        mem::take(self).chunks.into_iter().for_each(|chunk| places.give_back(chunk));
    }

    pub fn charged_bytes(&self) -> u64 {
        (self.chunks.len() * CHUNK_BYTES) as u64
    }
}
