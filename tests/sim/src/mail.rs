//! Letters between the cores of a node and its control: each ordered pair has a lane of its own, which
//! keeps order; between lanes there is none. How long a letter takes differs, so cores learn of
//! everything at different times.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use orbitkv_shards::coverage::CoreCoverage;
use orbitkv_shards::fence::{Reading, WaiterId};
use orbitkv_shards::inventory::PermitTicket;
use orbitkv_shards::members::{Local, MemberMap};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{Incarnation, NodeId, Sequence, ShardIndex};
use orbitkv_wire::scope::Scope;

use crate::oracle::answers::{Cut, Shown};
use crate::random::Random;
use crate::truth::KeyId;

/// Which of the two pools of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pool {
    /// Snapshots that the node serves.
    Served,
    /// Snapshots that it receives.
    Received,
}

/// Who reads a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reader {
    /// Control.
    Control,
    /// A core.
    Core(ShardIndex),
}

/// A letter.
#[derive(Clone, Debug)]
pub enum Mail {
    /// Control: who is a member from now on.
    Lower(Rc<MemberMap>),
    /// Control: every core stands at this revision.
    MayRaise(u64),
    /// Control: no map can be believed.
    MembershipInvalid,
    /// Control: subscribe to this, which is a scope of that number.
    Scope(Scope, u64),
    /// Control: this life is over.
    Fence,
    /// Control: put everything again under this life.
    NewLife(Incarnation),
    /// Control: this life is a member until that moment, unless told otherwise.
    Registered(Local, Moment),
    /// Control: it is one until that moment.
    Deadline(Moment),
    /// Control: say how far the journal is, and let it be seen.
    Expose(u64),
    /// Control: what do you have of this life, and flush up to there.
    Read(WaiterId, u64, NodeId, Incarnation, Rc<[Sequence]>),

    /// Core: I stand at this revision.
    Lowered(ShardIndex, u64),
    /// Core: everything is put again.
    Restarted(ShardIndex, Incarnation),
    /// Core: the deadline of this life has passed.
    DeadlinePassed(Incarnation),
    /// Core: so far is my journal, in this life; nothing while it puts again.
    Exposed(u64, ShardIndex, Option<(Incarnation, Sequence)>),
    /// Core: this is what I have, at this revision.
    Readings(WaiterId, u64, ShardIndex, u64, Vec<Reading>),

    /// Core: I want a snapshot permit.
    Want(Pool, ShardIndex, PermitTicket),
    /// Core: I do not want it any more.
    Return(Pool, ShardIndex, PermitTicket),
    /// Core 0: you have it.
    Permit(Pool, PermitTicket),
    /// Core 0: you are in this place.
    Waits(Pool, PermitTicket, u32),
    /// Core: what do you have of these?
    Ask(u64, ShardIndex, Rc<[KeyId]>),
    /// Core: this.
    Answer(u64, Box<Part>),
}

/// One core's part of a lookup.
#[derive(Clone, Debug)]
pub struct Part {
    /// The core.
    pub core: ShardIndex,
    /// What its part is worth.
    pub coverage: CoreCoverage,
    /// What it shows of each key, and whether the list was cut.
    pub found: Vec<(Vec<Shown>, bool)>,
    /// The watermarks it answered at.
    pub cuts: Vec<Cut>,
}

/// Lanes of one node: when the last letter of each arrives.
#[derive(Debug, Default)]
pub struct Lanes {
    last: BTreeMap<(Reader, Reader), Moment>,
}

impl Lanes {
    /// When a letter that is written now arrives.
    pub fn arrival(
        &mut self,
        from: Reader,
        to: Reader,
        late_permille: u32,
        random: &mut Random,
        now: Moment,
    ) -> Moment {
        let mut delay = random.micros(&(3..=300));
        if random.chance(late_permille) {
            delay += Duration::from_micros(random.below(400_000));
        }
        let last = self.last.entry((from, to)).or_default();
        *last = (*last).max(now + delay);
        *last
    }
}
