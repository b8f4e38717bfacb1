//! What a simulation has met: every kind of fault and every branch of a rule, counted. A set of seeds
//! that leaves one at zero has not tested it, and the run fails.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Something that has to happen in a set of seeds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Counter {
            $($(#[$doc])* $name),+
        }

        impl Counter {
            /// All of them.
            pub const ALL: &[Counter] = &[$(Counter::$name),+];

            /// Its name in a report.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Counter::$name => stringify!($name)),+
                }
            }
        }
    };
}

counters! {
    // Faults of the network.
    /// A segment was lost and sent again.
    SegmentLost,
    /// A segment arrived after one of another connection that was sent later between the same hosts.
    ReorderedAcrossStreams,
    /// A frame arrived in more than one piece.
    FrameInPieces,
    /// Nothing passed between two hosts, either way.
    CutBothWays,
    /// Nothing passed from one host to another, but back.
    CutOneWay,
    /// A connection ended because nothing passed.
    IdleTimeout,
    /// A connection died inside a frame.
    DiedInsideFrame,
    /// A peer stopped reading.
    StoppedReading,
    /// A sender was told to stop.
    WriteBlocked,
    /// A sender was told to go on.
    WriteRelieved,
    /// A dial was answered by nobody.
    DialUnanswered,
    /// A dial reached another node than it was for.
    DialWrongNode,
    /// A dial reached a node that does not know the dialler.
    DialUnknownRequester,
    /// An Open arrived after its requester had given it up.
    OpenDelayed,
    /// An Open arrived twice.
    OpenDuplicated,

    // Faults of nodes and of the membership service.
    /// A process died.
    Crash,
    /// A process started with a new incarnation of its node.
    Restart,
    /// A process stood still for less than its lease.
    PauseShort,
    /// A process stood still for longer than its lease.
    PauseLong,
    /// One core of a process stood still.
    CoreStalled,
    /// A node could not reach the membership service.
    ServiceUnreachable,
    /// A node was fenced because its deadline had passed.
    FencedByDeadline,
    /// A node was fenced because the service no longer had its record.
    FencedByService,
    /// A process registered a new life without a restart.
    NewLife,
    /// A node has joined for the first time.
    Join,
    /// A node has left.
    Leave,
    /// A record was replaced by that of a successor.
    Replace,
    /// A lease has ended at the service.
    LeaseExpired,
    /// A watch had a gap and was repaired from a snapshot.
    WatchGap,
    /// Somebody took a live member's record away.
    Expelled,
    /// A node subscribed to something else.
    ScopeChanged,
    /// A node started on the address of another one.
    EndpointReuse,
    /// A registration was refused.
    RegistrationRefused,
    /// Cores of a node stood at different revisions when asked.
    MixedRevisions,
    /// Cores of a node stood at different scopes when asked.
    MixedScopes,

    // Load.
    /// A put began a residence in DRAM.
    PutDram,
    /// A put began a residence on SSD.
    PutSsd,
    /// A delete.
    Delete,
    /// A block was put again after a delete.
    Reinsert,
    /// A change in group zero.
    GroupZero,
    /// A whole namespace was wiped.
    Wipe,
    /// Residents were put again for a new life.
    PutAgain,
    /// A key was deleted behind the cursor of a scan.
    DeleteBehindCursor,
    /// A key was deleted ahead of the cursor of a scan.
    DeleteAheadOfCursor,
    /// A key was inserted behind the cursor of a scan.
    InsertBehindCursor,

    // What sources did.
    /// A snapshot waited for a permit.
    SnapshotQueued,
    /// A snapshot was offered.
    SnapshotBegin,
    /// A snapshot was committed.
    SnapshotCommit,
    /// A committed snapshot had no row.
    SnapshotEmpty,
    /// A snapshot of several pages.
    SnapshotManyPages,
    /// A delta inside a snapshot: replay.
    Replay,
    /// A snapshot was begun again in its session.
    SnapshotBegunAgain,
    /// A delta outside a snapshot.
    Delta,
    /// A delta covered records that it left out.
    DeltaCoalesced,
    /// A delta without a record.
    DeltaEmpty,
    /// A delta large enough to be applied in steps.
    DeltaLarge,
    /// A body was shared by several subscribers.
    BodyShared,
    /// Progress.
    Progress,
    /// Liveness.
    Liveness,
    /// A resume was accepted.
    Resumed,
    /// Reset: the history is gone.
    ResetHistoryGone,
    /// The history a scan began with was gone before its end.
    OverrunInScan,
    /// The history a replay needs was gone before its end.
    OverrunInReplay,
    /// Reset: the subscriber was slow.
    ResetSlowSubscriber,
    /// Reset: no page was sent for too long.
    ResetSnapshotExpired,
    /// A source ended a session because a later one was opened.
    EndedReplaced,
    /// A source ended a session because its requester is no longer a member.
    EndedRemoved,
    /// A source ended a connection on which nothing was asked.
    EndedSilent,
    /// Refused: that incarnation is not in the source's map.
    RefusedNotInMap,
    /// Refused: not a newer attempt.
    RefusedStaleAttempt,
    /// Refused: another incarnation of the source.
    RefusedWrongSource,
    /// Refused: the source is fenced.
    RefusedFenced,

    // What requesters did.
    /// An offer was accepted.
    SnapshotAccept,
    /// An offer was refused.
    SnapshotRefuse,
    /// No page came in time.
    PageTimedOut,
    /// A delta did not fit.
    BudgetExceeded,
    /// An acknowledgement.
    Ack,
    /// A barrier wanted progress.
    FlushThrough,
    /// An owner did not fit and was withdrawn.
    Withdrawn,
    /// A view was replaced while the older one was installed.
    Repaired,
    /// A stream was broken and kept its hints.
    KeptHints,

    // Answers.
    /// A merged answer was complete.
    MergedComplete,
    /// A merged answer was partial.
    MergedPartial,
    /// A merged answer was unavailable.
    MergedUnavailable,
    /// An answer proved a block absent.
    AbsenceProved,
    /// A complete answer named a replica.
    PresenceProved,
    /// A list of replicas was cut.
    ReplicasTruncated,
    /// A view was too old to prove absence.
    TooOld,
    /// A source gave a fence.
    FenceGiven,
    /// A barrier was reached.
    AwaitReached,
    /// A barrier was not reached in time.
    AwaitTimedOut,
    /// A barrier failed by name.
    AwaitRefused,
    /// A barrier collected again because something had changed.
    AwaitStartedOver,
}

/// How often each has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters(Vec<u64>);

impl Default for Counters {
    fn default() -> Self {
        Counters(vec![0; Counter::ALL.len()])
    }
}

impl Counters {
    /// It has happened.
    pub fn count(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// It has happened so many times.
    pub fn add(&mut self, counter: Counter, times: u64) {
        self.0[counter as usize] += times;
    }

    /// How often it has happened.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Takes in what another simulation has met.
    pub fn absorb(&mut self, other: &Counters) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// What has not happened.
    #[must_use]
    pub fn missing(&self) -> Vec<Counter> {
        Counter::ALL.iter().copied().filter(|&counter| self.get(counter) == 0).collect()
    }
}
