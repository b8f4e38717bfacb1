//! A core of a simulated node: the production rooms of both ends, a stock that stands for residency, and
//! what a core's loop knows beside them. It holds rooms and lets them take turns; the world moves bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use orbitkv_shards::index::{IndexSettings, Partition};
use orbitkv_shards::inventory::permits::{Permits, SNAPSHOTS_MAX};
use orbitkv_shards::inventory::publisher::{Publisher, PublisherSettings};
use orbitkv_shards::inventory::subscriber::{StreamId, Subscriber, SubscriberSettings};
use orbitkv_shards::journal::{JournalSettings, RECORD_BYTES};
use orbitkv_shards::key::StateKey;
use orbitkv_shards::members::{Local, MemberMap};
use orbitkv_shards::namespaces::Namespaces;
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{Incarnation, Sequence, ShardIndex, SnapshotId};
use orbitkv_wire::inventory::HEADER_BYTES;
use orbitkv_wire::scope::Scope;

use crate::canary::Canary;
use crate::network::{ConnectionName, Side};
use crate::plan::{NodePlan, Plan};
use crate::stock::Stock;
use crate::truth::{KeyId, Truth};

/// Wishes for a permit that may wait: more than a node has streams here.
const PERMIT_QUEUE: usize = 4_096;

/// Where a core's registration life stands, as its control has told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It was never told of one.
    Unregistered,
    /// A member until the deadline.
    Member {
        /// When it is over unless it is prolonged.
        deadline: Moment,
    },
    /// Over. Its residents are being put again, or wait to be.
    Over,
}

/// A core.
pub struct Core {
    /// Its place in the node.
    pub shard: ShardIndex,
    /// What it speaks for.
    pub local: Local,
    /// Where that stands.
    pub life: Life,
    /// What it holds.
    pub stock: Stock,
    /// Its numbers of namespaces, of residents and rows alike.
    pub namespaces: Namespaces,
    /// The source's end.
    pub publisher: Publisher,
    /// The requester's end.
    pub subscriber: Subscriber,
    /// What others hold.
    pub partition: Partition,
    /// On core 0: permits for snapshots served and received.
    pub pools: Option<[Permits; 2]>,
    /// Permits given to this node's cores and not returned, as the driver counts them; on core 0.
    pub permits_out: [Vec<orbitkv_shards::inventory::permits::Applicant>; 2],
    /// Which end of each connection is here.
    pub connections: BTreeMap<ConnectionName, Side>,
    /// The map it was told last, whatever it made of it.
    pub map: Option<Rc<MemberMap>>,
    /// The map whose keys it accepts at a handshake; a fence does not end those.
    pub known: Option<Rc<MemberMap>>,
    /// What it subscribes to.
    pub scope: Scope,
    /// What was seen of its streams last.
    pub seen: BTreeMap<StreamId, (SnapshotId, Sequence)>,
    /// Views that it gave up: only another snapshot may follow.
    pub withdrawn: BTreeSet<SnapshotId>,
    /// It takes nothing in and does nothing before.
    pub stalled_until: Moment,
    /// Its next turn.
    pub turn_at: Option<Moment>,
    /// Whether the next turn after a restart still has to tell control that everything is put again.
    pub restarting: Option<Incarnation>,
    /// Settings its bounds are judged by.
    pub settings: (PublisherSettings, SubscriberSettings),
}

impl Core {
    /// A core that knows of nobody.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "each is another thing, and there is one caller or two")]
    pub fn new(
        node: u16,
        local: Local,
        shard: ShardIndex,
        plan: &Plan,
        own: &NodePlan,
        scope: Scope,
        canary: Option<Canary>,
        truth: &mut Truth,
    ) -> Core {
        let settings = settings(plan);
        let journal = settings.0.journal;
        let index = IndexSettings { budget_bytes: own.index_bytes / u64::from(local.shards) };
        Core {
            shard,
            local,
            life: Life::Unregistered,
            stock: Stock::new(node, local.incarnation, shard, journal, canary, truth),
            namespaces: Namespaces::default(),
            publisher: Publisher::new(settings.0, local, shard),
            subscriber: Subscriber::new(settings.1, local, shard, scope.clone()),
            partition: Partition::new(index),
            pools: (shard.0 == 0).then(|| [0, 1].map(|_| Permits::new(SNAPSHOTS_MAX, PERMIT_QUEUE))),
            permits_out: [Vec::new(), Vec::new()],
            connections: BTreeMap::new(),
            map: None,
            known: None,
            scope,
            seen: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            stalled_until: Moment(0),
            turn_at: None,
            restarting: None,
            settings,
        }
    }

    /// What its table calls a block, if it has a number for the namespace.
    #[must_use]
    pub fn state_key(&self, truth: &Truth, key: KeyId) -> Option<StateKey> {
        let global = truth.universe.get(key);
        let namespace = self.namespaces.get(&global.namespace)?;
        Some(StateKey { namespace, group: global.group, block: global.block })
    }

    /// Whether its life is over by its own clock, though nobody has said so yet.
    #[must_use]
    pub fn is_overdue(&self, now: Moment) -> bool {
        matches!(self.life, Life::Member { deadline } if deadline <= now)
    }
}

/// Bounds of the rooms, as a plan shrinks them.
fn settings(plan: &Plan) -> (PublisherSettings, SubscriberSettings) {
    let rooms = &plan.rooms;
    let journal = JournalSettings {
        capacity_bytes: rooms.journal_records * RECORD_BYTES,
        interval_records_max: rooms.interval_records,
        interval_bytes_max: rooms.interval_records * RECORD_BYTES,
    };
    let frame_bytes = rooms.frame_bytes + HEADER_BYTES;
    let window_bytes = rooms.window_bytes.max(2 * frame_bytes);
    let publisher = PublisherSettings {
        coalescing_window: rooms.coalesce,
        journal,
        delta_records_max: rooms.interval_records,
        page_records_max: rooms.page_records,
        page_bytes_max: rooms.frame_bytes,
        frame_bytes_max: frame_bytes,
        stream_bytes_max: window_bytes,
        stream_frames_max: 64,
        queue_bytes_max: 8 * window_bytes,
        bytes_per_second: rooms.pace_bytes_per_s,
        burst_bytes: 2 * frame_bytes,
        connections_max: 256,
        sessions_max: 128,
        slice_records: rooms.slice_records,
        slice_bytes: 2 * frame_bytes,
    };
    let subscriber = SubscriberSettings {
        window_bytes: window_bytes as u32,
        frame_bytes_max: frame_bytes as u32,
        backlog_frames_max: 1_024,
        ack_bytes: frame_bytes as u32 / 2,
        ack_wait: Duration::from_millis(10),
        changes_per_step: rooms.step_records,
        sweep_rows: rooms.slice_records,
        ..SubscriberSettings::default()
    };
    (publisher, subscriber)
}
