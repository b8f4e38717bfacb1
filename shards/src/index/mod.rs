//! An owner partition of the GlobalIndex: what every peer said it holds, as rows that one core owns
//! (chapter 2.7).
//!
//! A row is evidence, never a pointer and never a permission. Rows name their *view*; a view is
//! filled hidden, installed by one change of state, and excluded by another, after which a bounded
//! sweep removes its rows. Memory is charged as it is taken and never doubles by copying.
//!
//! Nearly all time goes into waiting for memory, so whatever comes in numbers is done in steps over all
//! of it: first every line is asked for, then every one is used (ADR 13).

mod changes;
mod directory;
mod heap;
mod lookup;
mod place;
mod prefetch;
mod room;
mod store;
mod sweep;
mod view;

#[cfg(test)]
mod tests;

pub use changes::Put;
pub use lookup::{REPLICAS_MAX, Replica, Replicas};
pub use prefetch::PrefetchBytes;
pub use room::IndexFull;
pub use store::AdviseBytes;
pub use view::{Owner, VIEWS_MAX, ViewId, ViewState};

use std::cell::RefCell;

use orbitkv_wire::identity::KeyHash;

use directory::{Directory, Groups, Mark};
use heap::{HEAP_PLACES_MAX, Heap, Places};
use place::{Place, PlaceIndex};
use prefetch::Prefetch;
use store::Store;
use view::Views;

/// Charged bytes a row is planned with; the count of directories follows from it.
pub const ROW_BYTES_PLANNED: u64 = 64;

/// Rows a directory is planned for at a full budget: enough that what a directory costs by itself is a
/// small share, and few enough that it grows in microseconds.
const DIRECTORY_ROWS_PLANNED: u64 = 2_048;

/// Directories that share a heap.
const HEAP_DIRECTORIES: usize = 16;

const _: () = assert!(
    DIRECTORY_ROWS_PLANNED as usize * HEAP_DIRECTORIES * 3 / 2 < HEAP_PLACES_MAX,
    "a heap is planned well below what it can name"
);

/// Keys whose memory is asked for together.
const BATCH: usize = 128;

/// Bounds of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexSettings {
    /// Charged bytes it may take: active, staging and retired rows together.
    pub budget_bytes: u64,
}

/// Where every byte of the budget is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexAccounting {
    /// Rows, those of staging and retired views included.
    pub rows: u64,
    /// Rows of retired views.
    pub retired_rows: u64,
    /// Bytes charged.
    pub charged_bytes: u64,
    /// Most bytes ever charged.
    pub charged_bytes_peak: u64,
    /// Bytes allowed.
    pub budget_bytes: u64,
}

/// One partition.
#[derive(Debug)]
pub struct Partition {
    settings: IndexSettings,
    prefetch: Prefetch,
    /// A power of two of them; a hash's lower bits choose, its upper ones chose the shard.
    directories: Vec<Directory>,
    groups: Groups,
    heaps: Vec<Heap>,
    places: Places,
    views: Views,
    rows: u64,
    charged_bytes: u64,
    charged_bytes_peak: u64,
    /// Directory and group that are swept next.
    sweep_at: (usize, usize),
    /// Kept between calls of [`Partition::reserve`] and empty then.
    wanted: room::Wanted,
    /// Kept between calls of [`Partition::lookup`] and empty then.
    walks: RefCell<Vec<Walk>>,
}

/// On the way along the claims to one key on one medium.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// Which key of a batch.
    position: u16,
    heap: u16,
    place: PlaceIndex,
}

impl Partition {
    /// An empty partition.
    #[must_use]
    pub fn new(settings: IndexSettings) -> Partition {
        let planned = settings.budget_bytes / ROW_BYTES_PLANNED / DIRECTORY_ROWS_PLANNED;
        let count = (planned.max(1) as usize).next_power_of_two();
        let mut directories = Vec::with_capacity(count);
        directories.resize_with(count, Directory::default);
        let mut heaps = Vec::with_capacity(count.div_ceil(HEAP_DIRECTORIES));
        heaps.resize_with(heaps.capacity(), Heap::default);
        let charged_bytes = room::empty_bytes(directories.len(), heaps.len());
        Partition {
            settings,
            prefetch: Prefetch::default(),
            directories,
            groups: Store::new(settings.budget_bytes),
            heaps,
            places: Store::new(settings.budget_bytes),
            views: Views::default(),
            rows: 0,
            charged_bytes,
            charged_bytes_peak: charged_bytes,
            sweep_at: (0, 0),
            wanted: room::Wanted::default(),
            walks: RefCell::default(),
        }
    }

    /// The same, which asks for memory before it needs it. Half of its speed hangs on this.
    #[must_use]
    pub fn with_prefetch(self, prefetch: PrefetchBytes) -> Partition {
        Partition { prefetch: Prefetch::new(prefetch), ..self }
    }

    /// The same, in memory that `advise` has mapped by huge pages. Nearly the other half does.
    #[must_use]
    pub fn with_advice(mut self, advise: AdviseBytes) -> Partition {
        self.groups.set_advice(advise);
        self.places.set_advice(advise);
        self
    }

    fn directory_of(&self, hash: KeyHash) -> usize {
        hash.0 as usize & (self.directories.len() - 1)
    }

    /// Asks for the line on which a mark's slot most likely is.
    #[inline]
    fn prefetch_slot(&self, hash: KeyHash, mark: Mark) {
        self.directories[self.directory_of(hash)].prefetch(&self.groups, mark, self.prefetch);
    }

    fn place_of(&self, walk: &Walk) -> &Place {
        self.heaps[usize::from(walk.heap)].place(&self.places, walk.place)
    }

    /// Opens a hidden view of an owner stream.
    ///
    /// # Errors
    /// [`IndexFull::Views`].
    pub fn open_view(&mut self, owner: Owner) -> Result<ViewId, IndexFull> {
        self.views.open(owner).ok_or(IndexFull::Views)
    }

    /// Installs a hidden view: lookups see its rows from now on.
    pub fn install(&mut self, view: ViewId) {
        self.views.activate(view);
    }

    /// Excludes a view at once; [`Partition::sweep`] removes its rows. It must not be named again.
    pub fn retire(&mut self, view: ViewId) {
        self.views.retire(view);
    }

    /// Whose view it is.
    #[must_use]
    pub fn owner(&self, view: ViewId) -> Owner {
        self.views.owner(view)
    }

    /// Rows of a view.
    #[must_use]
    pub fn view_rows(&self, view: ViewId) -> u32 {
        self.views.rows(view)
    }

    /// Where every byte is.
    #[must_use]
    pub fn accounting(&self) -> IndexAccounting {
        IndexAccounting {
            rows: self.rows,
            retired_rows: self.views.retired_rows(),
            charged_bytes: self.charged_bytes + self.views.charged_bytes(),
            charged_bytes_peak: self.charged_bytes_peak + self.views.charged_bytes(),
            budget_bytes: self.settings.budget_bytes,
        }
    }
}
