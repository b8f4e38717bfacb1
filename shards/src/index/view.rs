//! Views: what of one owner stream is installed. Rows name their view, so that hiding, showing and
//! excluding all rows of an owner is one change of its view's state.

use orbitkv_wire::identity::ShardIndex;

/// Views of one partition at a time, staging and retiring ones included: 4,096 owner streams, each
/// with a successor in staging and a predecessor being swept, and some to spare.
pub const VIEWS_MAX: usize = 1 << 14;

/// Names a view while it has rows. Reused only after its last row is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViewId(pub u16);

/// Whose stream a view is of, as its requester numbers its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The peer.
    pub peer: u32,
    /// The peer's shard.
    pub shard: ShardIndex,
}

/// What rows of a view are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewState {
    /// Being filled; no lookup sees it.
    Staging,
    /// Installed.
    Active,
    /// Excluded; its rows are being removed.
    Retired,
}

#[derive(Clone, Copy, Debug)]
struct View {
    owner: Owner,
    state: ViewState,
    rows: u32,
}

/// The views of one partition.
#[derive(Debug, Default)]
pub(super) struct Views {
    views: Vec<Option<View>>,
    free: Vec<u16>,
    retired_rows: u64,
}

impl Views {
    pub fn open(&mut self, owner: Owner) -> Option<ViewId> {
        let view = Some(View { owner, state: ViewState::Staging, rows: 0 });
        if let Some(index) = self.free.pop() {
            self.views[usize::from(index)] = view;
            return Some(ViewId(index));
        }
        if self.views.len() == VIEWS_MAX {
            return None;
        }
        self.views.push(view);
        Some(ViewId(self.views.len() as u16 - 1))
    }

    fn get(&self, id: ViewId) -> &View {
        self.views[usize::from(id.0)].as_ref().expect("a view is named while it stands")
    }

    fn get_mut(&mut self, id: ViewId) -> &mut View {
        self.views[usize::from(id.0)].as_mut().expect("a view is named while it stands")
    }

    pub fn owner(&self, id: ViewId) -> Owner {
        self.get(id).owner
    }

    pub fn state(&self, id: ViewId) -> ViewState {
        self.get(id).state
    }

    /// Whose view it is, if it is installed.
    #[inline]
    pub fn installed_owner(&self, id: ViewId) -> Option<Owner> {
        let view = self.get(id);
        (view.state == ViewState::Active).then_some(view.owner)
    }

    pub fn rows(&self, id: ViewId) -> u32 {
        self.get(id).rows
    }

    pub fn activate(&mut self, id: ViewId) {
        let view = self.get_mut(id);
        assert_eq!(view.state, ViewState::Staging, "a view is installed once");
        view.state = ViewState::Active;
    }

    /// Excludes a view; it ends with its last row.
    pub fn retire(&mut self, id: ViewId) {
        let view = self.get_mut(id);
        assert_ne!(view.state, ViewState::Retired, "a view is excluded once");
        view.state = ViewState::Retired;
        let rows = view.rows;
        self.retired_rows += u64::from(rows);
        if rows == 0 {
            self.end(id);
        }
    }

    pub fn add_row(&mut self, id: ViewId) {
        let view = self.get_mut(id);
        assert_ne!(view.state, ViewState::Retired, "an excluded view takes no rows");
        view.rows += 1;
    }

    pub fn remove_row(&mut self, id: ViewId) {
        let view = self.get_mut(id);
        view.rows = view.rows.checked_sub(1).expect("every row of a view is counted");
        if view.state == ViewState::Retired {
            let last = view.rows == 0;
            self.retired_rows -= 1;
            if last {
                self.end(id);
            }
        }
    }

    fn end(&mut self, id: ViewId) {
        self.views[usize::from(id.0)] = None;
        self.free.push(id.0);
    }

    /// Rows of excluded views that are still there.
    pub fn retired_rows(&self) -> u64 {
        self.retired_rows
    }

    pub fn charged_bytes(&self) -> u64 {
        (self.views.capacity() * size_of::<Option<View>>() + self.free.capacity() * 2) as u64
    }
}
