//! Boot: from settings to running cores, refusing before anything is allocated, and back down again.

use std::cell::Cell;
use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use orbitkv_native::affinity;
use orbitkv_native::arena::{Arena, ArenaError, PageKind, PagePreference};
use orbitkv_native::clock::monotonic_ns;
use orbitkv_native::descriptors;
use orbitkv_native::device_thread::DeviceThread;
use orbitkv_native::engine_socket::{EngineSocket, EngineSocketError, Reach};
use orbitkv_native::entropy;
use orbitkv_native::quic::EndpointError;
use orbitkv_native::ssd_device::SsdDevice;
use orbitkv_native::ssd_file::{DataDirError, DataDirLock, SsdFile, SsdFileError};
use orbitkv_native::ssd_ring::{RingError, RingSettings, SsdRing};
use orbitkv_native::ssd_transfer::REGION_BYTES;
use orbitkv_shards::drop_memory;
use orbitkv_shards::eviction::DramPolicy;
use orbitkv_shards::journal::{self, JournalSettings};
use orbitkv_shards::namespaces;
use orbitkv_shards::residents::Residents;
use orbitkv_shards::retention::Retention;
use orbitkv_shards::segment_log::{SegmentLogSettings, table_memory_bytes};
use orbitkv_shards::shard::{LIFE_SLICE_ENTRIES, PrefetchSettings, Shard, ShardSettings, throttle_bytes};
use orbitkv_shards::slab::{Slab, SlabSettings};
use orbitkv_shards::time::Moment;
use orbitkv_wire::bounds;
use orbitkv_wire::engine::answers::PageKindNumber;
use orbitkv_wire::identity::{Incarnation, ShardIndex};
use thiserror::Error;

use crate::bill::{self, Bill, BillTooLarge, Rooms};
use crate::control::connections::CONNECTIONS_MAX as HTTP_CONNECTIONS_MAX;
use crate::control::membership::{Application, ApplyError};
use crate::core::device::DeviceDriver;
use crate::core::mail::Mail;
use crate::core::sockets::DESCRIPTORS_PER_CONNECTION;
use crate::core::{Core, CoreParts, DESCRIPTORS_PER_CORE, WAITING_MAX, waits_max};
use crate::engine::{CONNECTIONS_MAX, Connection, EngineHub, Greeting};
use crate::exit::Exit;
use crate::peers::{PEER_DESCRIPTORS_PER_CORE, PeerSockets, Peers, PeersSettings, samples_bytes};
use crate::settings::{ArenaPages, DeviceCores, Idle, Machine, NodeSettings};
use crate::turns;
use crate::turns::recorder::Trace;

/// Ended residences one shard remembers.
const DROP_MEMORY_ENTRIES: usize = 16_384;

/// Failed reads in a row after which a shard's SSD tier is off: more than one segment holds of usual blocks,
/// so that one bad place is no reason.
const READ_FAILURES_IN_A_ROW_MAX: u32 = 1_024;

/// Failed writes in a row after which it is. Its breaker opens before that; then two pauses pass between two probes, so
/// with the usual pause this is more than a minute without one write that succeeds.
const WRITE_FAILURES_IN_A_ROW_MAX: u32 = 64;

/// Bytes that one leased or reserved slot takes in the tables.
const LEASED_SLOT_BYTES: u64 = 128;

/// Block size that the tables are laid out for: a node keeps no more blocks than this many bytes each
/// would fill.
pub const BILLED_BLOCK_BYTES: u64 = 32 * 1024;

/// Connections the bill has buffers for, a core; more are let in, and their buffers grow only with
/// what they send.
const BILLED_CONNECTIONS: u64 = 32;

/// Largest block that goes to SSD, unless the shard's part is small.
const SSD_BLOCK_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Descriptors of a node beside those of its cores and its connections: control's runtime, listeners, locks,
/// arena, SSD file, what it inherits, and engines that are being accepted or turned away.
const NODE_DESCRIPTORS: u64 = 64;

/// How often a stopping node looks whether its cores have ended.
const STOP_LOOK: Duration = Duration::from_millis(1);

/// Name of the SSD file in the data directory.
const SSD_FILE: &str = "blocks.ssd";

/// Why a node does not start.
#[derive(Debug, Error)]
pub enum BootError {
    /// The memory does not fit.
    #[error(transparent)]
    Bill(#[from] BillTooLarge),
    /// The arena.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// Membership.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The SSD file.
    #[error(transparent)]
    SsdFile(#[from] SsdFileError),
    /// The endpoint of a core.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The SSD ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The engine socket.
    #[error(transparent)]
    Socket(#[from] EngineSocketError),
    /// A core's reactor.
    #[error(
        "core {core} cannot start: {source}; check `sysctl kernel.io_uring_disabled` (0 allows io_uring), the container's \
         seccomp profile, and RLIMIT_MEMLOCK"
    )]
    Core {
        /// The core.
        core: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The shard's part of the SSD cannot be cut.
    #[error("--ssd: {0}")]
    Segments(#[from] orbitkv_shards::segment_log::GeometryError),
    /// Even the hard limit of descriptors is too low to start.
    #[error(
        "this process may open {limit} descriptors, and a node of this many shards needs {needed} to serve one \
         engine on each; raise the hard RLIMIT_NOFILE (`ulimit -Hn`, systemd `LimitNOFILE`) or lower --shards"
    )]
    Descriptors {
        /// The hard limit.
        limit: u64,
        /// Descriptors with one connection a core.
        needed: u64,
    },
    /// The process has no descriptors or threads left.
    #[error("the process has no {what} left: {source}; raise its limit (`ulimit -n`, `ulimit -u`)")]
    Limit {
        /// What there is none of.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What a node of a cluster brings to its cores.
pub struct ClusterSeat {
    /// Their bounds.
    pub peers: PeersSettings,
    /// A bound port for each.
    pub ports: Vec<UdpSocket>,
    /// A bound peer socket for each, or none at all.
    pub peer_sockets: Vec<EngineSocket>,
    /// The boot of this host.
    pub boot_id: [u8; 16],
}

/// What a core of it brings.
struct PeerSeat {
    settings: PeersSettings,
    port: UdpSocket,
    /// Its peer socket, and the boot of this host, if memory is shared.
    socket: Option<(EngineSocket, [u8; 16])>,
}

impl ClusterSeat {
    /// Each core's part.
    fn divide(self) -> Vec<PeerSeat> {
        let ClusterSeat { peers, ports, peer_sockets, boot_id } = self;
        let mut sockets = peer_sockets.into_iter();
        let seat = |port| {
            let socket = sockets.next().map(|socket| (socket, boot_id));
            PeerSeat { settings: peers.clone(), port, socket }
        };
        ports.into_iter().map(seat).collect()
    }
}

/// A running node: its cores, and control's end of the mail.
pub struct Node {
    /// Control's end of the mail, unless it is lent to control.
    mail: Option<Mail>,
    /// The life it serves.
    pub incarnation: Incarnation,
    /// Pages the arena got.
    pub page_kind: PageKind,
    /// What an operator should know about what the machine gave.
    pub notes: Vec<String>,
    /// What it applies for membership with; none if it is standalone.
    pub application: Option<Application>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    _lock: Option<DataDirLock>,
}

/// The memory bill of a node with these settings.
#[must_use]
pub fn bill(settings: &NodeSettings) -> Bill {
    let blocks = blocks_max(settings);
    let slab = slab_settings(settings, 0);
    let log =
        log_settings(settings, Incarnation([0; 16]), 0).map(|log| table_memory_bytes(&log).unwrap_or(0));
    let participants = usize::from(settings.shards) + 1;
    let cluster = settings.cluster.as_ref();
    let journal = JournalSettings::with_capacity(settings.journal_slice_bytes as usize);
    let rooms = Rooms {
        blocks,
        journal_bytes: journal::table_bytes(&journal) as u64,
        drop_memory_bytes: drop_memory::table_bytes(DROP_MEMORY_ENTRIES) as u64,
        resident_bytes: Residents::table_bytes(blocks),
        // Of a member, once more for blocks that peers have sent.
        eviction_bytes: DramPolicy::table_bytes(blocks as usize) as u64 * (1 + u64::from(cluster.is_some())),
        slab_bytes: Slab::table_bytes(&slab),
        segment_log_bytes: log.unwrap_or(0),
        ssd_ring_bytes: match settings.ssd_slice_bytes {
            0 => 0,
            _ => u64::from(RingSettings::operations_max(settings.ssd_depth)) * 1024,
        },
        connection_bytes: Core::table_bytes() + BILLED_CONNECTIONS * Connection::table_bytes(),
        ledger_bytes: WAITING_MAX * 256
            + bill::charged_slots_max(settings.dram_slice_bytes) * LEASED_SLOT_BYTES,
        mailbox_bytes: Mail::table_bytes(participants) / settings.shards as u64,
        namespace_bytes: namespaces::table_bytes(bounds::NAMESPACES_MAX) as u64
            + settings.namespace_rate.map_or(0, |_| throttle_bytes(bounds::NAMESPACES_MAX) as u64),
        index_bytes: cluster.map_or(0, |cluster| cluster.index_slice_bytes),
        receive_bytes: cluster.map_or(0, |cluster| cluster.receive_slice_bytes),
        metadata_queue_bytes: cluster
            .map_or(0, |cluster| PeersSettings::queue_bytes(settings.shards, cluster.receive_slice_bytes)),
        visibility_bytes: cluster.map_or(0, |cluster| samples_bytes(cluster.visibility_samples)),
        turns_bytes: if settings.trace_turns { Trace::table_bytes(settings.shards) } else { 0 },
    };
    Bill::of(settings, &rooms)
}

fn slab_settings(settings: &NodeSettings, shard: u16) -> SlabSettings {
    let base = u64::from(shard) * settings.dram_slice_bytes;
    SlabSettings { base, bytes: settings.dram_slice_bytes, region_bytes: REGION_BYTES }
}

fn log_settings(settings: &NodeSettings, incarnation: Incarnation, shard: u16) -> Option<SegmentLogSettings> {
    let bytes = settings.ssd_slice_bytes;
    let base = u64::from(shard) * bytes;
    // A block may take a segment of its own; with enough segments, giving one up costs little.
    let largest = (bytes / 64).clamp(bounds::EXTENT_ALIGN_BYTES, SSD_BLOCK_BYTES_MAX);
    (bytes > 0).then(|| SegmentLogSettings::new(base, bytes, largest, incarnation, ShardIndex(shard)))
}

fn shard_settings(settings: &NodeSettings, incarnation: Incarnation, shard: u16) -> ShardSettings {
    let [waiting_max, waiting_for_peers_max] = waits_max(settings.cluster.is_some());
    ShardSettings {
        shard: ShardIndex(shard),
        incarnation,
        slab: slab_settings(settings, shard),
        log: log_settings(settings, incarnation, shard),
        journal: JournalSettings::with_capacity(settings.journal_slice_bytes as usize),
        drop_memory_entries: DROP_MEMORY_ENTRIES,
        leases: ShardSettings::lease_settings(settings.dram_slice_bytes),
        reserved_bytes_max: ShardSettings::reserved_bytes_max(settings.dram_slice_bytes),
        lent_bytes_max: ShardSettings::lent_bytes_max(settings.dram_slice_bytes),
        write_backs_max: write_backs_max(settings),
        waiting_max,
        waiting_for_peers_max,
        blocks_max: blocks_max(settings),
        read_failures_in_a_row_max: READ_FAILURES_IN_A_ROW_MAX,
        write_failures_in_a_row_max: WRITE_FAILURES_IN_A_ROW_MAX,
        device_guard: settings.device_guard,
        life_slice_entries: LIFE_SLICE_ENTRIES,
        prefetch: PrefetchSettings::of_slice(settings.dram_slice_bytes, settings.prefetch_percent),
        namespace_rate: settings.namespace_rate.and_then(|rate| rate.share(shard, settings.shards)),
        // Nobody sends a standalone node anything.
        retention: settings.cluster.as_ref().map_or(Retention::Keep, |cluster| cluster.retention),
        audit_interval: settings.audit_interval,
    }
}

/// Write-backs of one shard at once: three quarters of what its ring accepts, so that reads of waiting
/// engines always find seats.
fn write_backs_max(settings: &NodeSettings) -> usize {
    (RingSettings::operations_max(settings.ssd_depth) as usize * 3 / 4).max(1)
}

/// Blocks that one shard keeps track of: those of [`BILLED_BLOCK_BYTES`] that fit both media. Smaller
/// blocks find the tables full before the media are, and are evicted earlier.
fn blocks_max(settings: &NodeSettings) -> u64 {
    settings.dram_slice_bytes.saturating_add(settings.ssd_slice_bytes) / BILLED_BLOCK_BYTES
}

/// Seats for engine connections on each of `shards` cores that so many descriptors suffice for (`None`: any
/// number), and what to say if they are fewer than a core can serve. HTTP keeps what it needs, so that an
/// operator gets through however many engines there are.
fn connection_seats(
    shards: u16,
    shares_memory: bool,
    limit: Option<u64>,
) -> Result<(usize, Option<String>), BootError> {
    let Some(limit) = limit else { return Ok((CONNECTIONS_MAX, None)) };
    let shards = u64::from(shards);
    let of_core = DESCRIPTORS_PER_CORE + if shares_memory { PEER_DESCRIPTORS_PER_CORE } else { 0 };
    let own = NODE_DESCRIPTORS + HTTP_CONNECTIONS_MAX as u64 + shards * of_core;
    let each = shards * DESCRIPTORS_PER_CONNECTION;
    let seats = usize::try_from(limit.saturating_sub(own) / each).unwrap_or(CONNECTIONS_MAX);
    match seats {
        0 => Err(BootError::Descriptors { limit, needed: own + each }),
        CONNECTIONS_MAX.. => Ok((CONNECTIONS_MAX, None)),
        _ => {
            let needed = own + each * CONNECTIONS_MAX as u64;
            let note = format!(
                "this process may open {limit} descriptors, enough for {seats} engine connections a core; with \
                 {needed} (`ulimit -Hn`) it would be {CONNECTIONS_MAX}"
            );
            Ok((seats, Some(note)))
        }
    }
}

impl Node {
    /// Starts a node. Whatever can be refused is refused before the arena is made.
    ///
    /// # Errors
    /// [`BootError`]; nothing is left behind.
    pub fn start(settings: &NodeSettings, machine: &Machine, bill: &Bill) -> Result<Node, BootError> {
        bill.admit(machine, settings.arena_pages)?;
        let shares_memory = settings.cluster.as_ref().is_some_and(|cluster| cluster.shares_memory);
        let (connections_max, seats_note) =
            connection_seats(settings.shards, shares_memory, descriptors::raise_limit())?;
        for shard in 0..settings.shards {
            if let Some(log) = log_settings(settings, Incarnation([0; 16]), shard) {
                log.geometry()?;
            }
        }
        let reach = if settings.engine_uids.len() > 1 { Reach::Others } else { Reach::OwnUser };
        let listener = EngineSocket::bind(&settings.engine_socket, reach)?;
        let lock = settings.data_dir.as_ref().map(|directory| DataDirLock::acquire(directory)).transpose()?;
        let application = Application::prepare(settings, lock.as_ref())?;
        let cluster = application.as_ref().map(|application| application.seat(settings)).transpose()?;
        let preference = match settings.arena_pages {
            ArenaPages::Auto => PagePreference::Auto,
            ArenaPages::Hugetlb => PagePreference::HugeTlb,
            ArenaPages::Thp => PagePreference::Thp,
            ArenaPages::Small => PagePreference::Small,
        };
        let bytes = settings.dram_slice_bytes * u64::from(settings.shards);
        let (arena, report) = Arena::create(bytes, preference)?;
        // After the arena: what can still be refused leaves no large file behind.
        let file = match &lock {
            Some(lock) if settings.ssd_slice_bytes > 0 => {
                let file_bytes = settings.ssd_slice_bytes * u64::from(settings.shards);
                Some(SsdFile::create(lock, SSD_FILE, file_bytes)?)
            }
            _ => None,
        };
        let greeting = Greeting {
            arena_generation: entropy::random_u64().max(1),
            arena_bytes: bytes,
            incarnation: Incarnation(entropy::uuid_v4_bytes()),
            shards: settings.shards,
            page_kind: match report.page_kind {
                PageKind::Small => PageKindNumber::Small,
                PageKind::Thp => PageKindNumber::Thp,
                PageKind::HugeTlb => PageKindNumber::HugeTlb,
            },
        };
        let limit = |what| move |source| BootError::Limit { what, source };
        let mut mails = Mail::mesh(usize::from(settings.shards) + 1).map_err(limit("descriptors"))?;
        let control = mails.pop().expect("control has mail");
        let mut node = Node {
            mail: Some(control),
            incarnation: greeting.incarnation,
            page_kind: report.page_kind,
            notes: seats_note.into_iter().chain(report.warning).collect(),
            application,
            threads: Vec::new(),
            _lock: lock,
        };
        let file = file.map(Arc::new);
        let mut listener = Some(listener);
        let mut peers = cluster.map_or_else(Vec::new, ClusterSeat::divide).into_iter();
        for (shard, mail) in (0u16..).zip(mails) {
            let seat = Seat {
                shard,
                settings: settings.clone(),
                greeting,
                connections_max,
                mail,
                arena: arena.clone(),
                page_kind: report.page_kind,
                file: file.clone(),
                listener: listener.take(),
                peers: peers.next(),
            };
            let started = seat.start();
            match started {
                Ok(thread) => node.threads.push(thread),
                Err(error) => {
                    node.stop();
                    return Err(error);
                }
            }
        }
        Ok(node)
    }

    /// Control's end of the mail. Participants are the cores in order, then control.
    ///
    /// # Panics
    /// If it is lent already.
    pub fn take_mail(&mut self) -> Mail {
        self.mail.take().expect("the mail is lent once")
    }

    /// Takes control's end of the mail back.
    pub fn give_mail(&mut self, mail: Option<Mail>) {
        self.mail = mail;
    }

    /// Tells every core to end and waits for it: device operations in flight are completed.
    pub fn stop(mut self) {
        // Without its mail the process ends by exit, and the kernel completes what the devices do.
        let Some(mut mail) = self.mail.take() else { return };
        for core in 0..self.threads.len() {
            // A core that has panicked took the process with it; a full lane empties as it turns.
            while mail.send(core, crate::core::mail::Letter::Stop).is_err() {
                mail.flush();
                std::thread::sleep(STOP_LOOK);
            }
        }
        mail.flush();
        for thread in self.threads.drain(..) {
            while !thread.is_finished() {
                // A core reads from nobody who has not taken its answers.
                while mail.receive().is_some() {}
                mail.flush();
                std::thread::sleep(STOP_LOOK);
            }
            let _ = thread.join();
        }
    }
}

/// Everything one core needs to start, on its way to its thread.
struct Seat {
    shard: u16,
    settings: NodeSettings,
    greeting: Greeting,
    connections_max: usize,
    mail: Mail,
    arena: Arena,
    page_kind: PageKind,
    file: Option<Arc<SsdFile>>,
    listener: Option<EngineSocket>,
    peers: Option<PeerSeat>,
}

impl Seat {
    /// Starts the core's thread and waits until it serves or has failed.
    fn start(self) -> Result<JoinHandle<io::Result<()>>, BootError> {
        let index = usize::from(self.shard);
        let (ready, started) = std::sync::mpsc::sync_channel::<Result<(), BootError>>(1);
        let name = format!("core-{index}");
        let limit = |source| BootError::Limit { what: "threads", source };
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                let (ready, serves) = (&ready, &Cell::new(false));
                let outcome = crate::core::run(move || match self.build() {
                    Ok(core) => {
                        serves.set(true);
                        let _ = ready.send(Ok(()));
                        Ok(core)
                    }
                    Err(error) => {
                        let text = error.to_string();
                        let _ = ready.send(Err(error));
                        Err(io::Error::other(text))
                    }
                });
                if let Err(source) = &outcome {
                    if serves.get() {
                        // No half-alive node goes on without one of its cores.
                        tracing::error!(core = index, %source, "a core's reactor failed: the node ends");
                        std::process::exit(Exit::Environment as i32);
                    }
                    // Unless `build` has told why already: the reactor itself could not be made.
                    let source = io::Error::new(source.kind(), source.to_string());
                    let _ = ready.try_send(Err(BootError::Core { core: index, source }));
                }
                outcome
            })
            .map_err(limit)?;
        match started.recv() {
            Ok(Ok(())) => Ok(thread),
            Ok(Err(error)) => {
                let _ = thread.join();
                Err(error)
            }
            Err(_) => {
                let source = io::Error::other("the thread ended while it started");
                Err(BootError::Core { core: index, source })
            }
        }
    }

    /// Builds the core on its own thread: rings belong to the thread that makes them.
    fn build(self) -> Result<Core, BootError> {
        let index = usize::from(self.shard);
        let core_error = |source| BootError::Core { core: index, source };
        let placement = &self.settings.placement;
        if let Some(&core) = placement.shard_cores.get(index) {
            affinity::pin_current_thread(core).map_err(core_error)?;
        }
        let mut shard = Shard::new(shard_settings(&self.settings, self.greeting.incarnation, self.shard))?;
        let mut hub = EngineHub::new(ShardIndex(self.shard), self.greeting, self.connections_max);
        if self.settings.trace_turns {
            shard.watch_stages();
            hub.trace = Trace::with_room(turns::share(self.settings.shards, self.shard));
        }
        let device = match &self.file {
            None => None,
            Some(file) => {
                let settings = RingSettings::new(self.settings.ssd_depth, self.page_kind);
                let base = u64::from(self.shard) * self.settings.dram_slice_bytes;
                let slice = base..base + self.settings.dram_slice_bytes;
                let device = match &placement.device_cores {
                    DeviceCores::Shared => {
                        SsdDevice::Inline(SsdRing::new(settings, file.fd(), &self.arena, slice)?)
                    }
                    DeviceCores::Dedicated(cores) => {
                        let core = cores[index % cores.len()];
                        let thread =
                            DeviceThread::start(settings, Some(core), file.fd(), &self.arena, slice)?;
                        SsdDevice::Thread(thread)
                    }
                };
                Some(DeviceDriver::new(device))
            }
        };
        let peers = match self.peers {
            None => None,
            Some(PeerSeat { settings, port, socket }) => {
                let now = Moment(monotonic_ns());
                let sockets = socket.map(|(socket, boot)| PeerSockets::new(socket, boot, &self.arena));
                let sockets = sockets.transpose().map_err(core_error)?;
                let (shard, arena) = (ShardIndex(self.shard), self.arena.clone());
                Some(Box::new(Peers::new(&settings, shard, port, arena, sockets, now)?))
            }
        };
        let parts = CoreParts {
            shard,
            hub,
            mail: self.mail,
            arena: self.arena,
            device,
            file: self.file,
            listener: self.listener,
            engine_uids: self.settings.engine_uids.clone(),
            peers,
            spins: self.settings.idle == Idle::Spin,
        };
        Core::new(parts).map_err(core_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_follow_from_the_descriptors() {
        let seats = |shards, limit| {
            connection_seats(shards, false, limit).map(|(seats, note)| (seats, note.is_some()))
        };
        assert_eq!(seats(1, None).ok(), Some((CONNECTIONS_MAX, false)));
        assert_eq!(seats(1, Some(64 + 128 + 16 + 4 * 1_024)).ok(), Some((CONNECTIONS_MAX, false)));
        assert_eq!(seats(1, Some(64 + 128 + 16 + 4 * 1_024 - 1)).ok(), Some((CONNECTIONS_MAX - 1, true)));
        assert_eq!(seats(8, Some(1_024)).ok(), Some((22, true)));
        assert_eq!(seats(1, Some(212)).ok(), Some((1, true)));
        let refused = connection_seats(2, false, Some(100)).expect_err("too few").to_string();
        assert!(refused.contains("open 100") && refused.contains("needs 232"), "{refused}");
    }
}
