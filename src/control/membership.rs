//! A node's membership: what is bound and read before it registers, what it is told while it lives, and
//! what an operator sees of it.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use orbitkv_native::engine_socket::EngineSocketError;
use orbitkv_native::entropy;
use orbitkv_native::quic::{NodeKey, NodeKeyError};
use orbitkv_native::ssd_file::DataDirLock;
use orbitkv_shards::members::Local;
use orbitkv_shards::membership::{Applicant, PauseBounds, Settings};
use orbitkv_wire::identity::{ClusterUuid, Incarnation, ShardIndex};
use orbitkv_wire::membership::{Contact, HASH_VERSION};
use orbitkv_wire::scope::ScopeDigest;
use thiserror::Error;

use super::epoch_file::{EpochFile, EpochFileError};
use super::etcd::{EtcdAccess, Registrar, Sight};
use super::metadata::{MemberRow, Membership};
use super::policy::file::PolicyFile;
use crate::node::ClusterSeat;
use crate::peers::{PeersSettings, SettingsRefused, bind_peer_socket};
use crate::settings::{ClusterSettings, NodeSettings, SettingsError};

/// Length of a node's lease. Half of it is what an etcd outage may last before sessions end: longer than
/// an election; and a node that died is gone from the others' maps after all of it.
const LEASE: Duration = Duration::from_secs(10);
/// Between tries of the same.
const RETRY: PauseBounds = PauseBounds { min: Duration::from_millis(100), max: Duration::from_secs(3) };
/// Between tries of a node that was refused: somebody has to do something first.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);
/// How long a port may be taken at start. The kernel ends the rings of a killed process after the process itself,
/// and as long as one of them polls a socket its port is not free: whoever starts again at once finds it taken.
const PORT_WAIT_MAX: Duration = Duration::from_secs(2);
/// Between two tries to bind it.
const PORT_PAUSE: Duration = Duration::from_millis(20);

/// Why a node cannot apply for membership.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// A file of the settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A port of the peers is taken.
    #[error(
        "--peer-addr {address}: port {port}: {source}; another process has it, or it is no address of this host"
    )]
    Port {
        /// As given.
        address: String,
        /// The port.
        port: u16,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The bounds of a node do not go round.
    #[error("--shards: {0}")]
    Shards(#[from] SettingsRefused),
    /// The process has no descriptors left.
    #[error("the process has no descriptors left: {0}; raise its limit (`ulimit -n`)")]
    Descriptors(std::io::Error),
    /// The node's key.
    #[error(transparent)]
    Key(#[from] NodeKeyError),
    /// The node's last epoch.
    #[error(transparent)]
    Epoch(#[from] EpochFileError),
    /// A peer socket.
    #[error(transparent)]
    PeerSocket(#[from] EngineSocketError),
    /// The kernel does not say which boot this is.
    #[error("the boot id cannot be read from {BOOT_ID}")]
    BootId,
}

/// What follows the name of the engine socket; the number of the shard follows this.
const PEER_SOCKET_SUFFIX: &str = ".peer";

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A node's application: its ports are bound and stay so, and its key is at hand.
#[derive(Debug)]
pub struct Application {
    contact: Contact,
    access: EtcdAccess,
    cluster: ClusterSettings,
    node: String,
    /// One a shard. Whoever holds them is the process that the record names.
    pub ports: Vec<UdpSocket>,
    /// What the node proves its name with; its fingerprint is in the record.
    pub key: NodeKey,
    /// Where the last epoch is kept.
    pub epoch_file: EpochFile,
    /// Where the last good settings are kept.
    pub policy_file: PolicyFile,
    /// The last epoch of the processes before this one; 0 if none is known.
    epoch_least: u64,
}

/// Binds a port. One that is taken is tried again until `patience` ends.
fn bind_by(address: SocketAddr, patience: Instant) -> io::Result<UdpSocket> {
    loop {
        match UdpSocket::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < patience => {
                std::thread::sleep(PORT_PAUSE);
            }
            bound => return bound,
        }
    }
}

impl Application {
    /// Binds the ports of the shards, reads what the settings name, and takes the node's key and last epoch
    /// from its data directory, where a first key is made; none if the node is standalone.
    ///
    /// # Errors
    /// [`ApplyError`].
    ///
    /// # Panics
    /// If a node of a cluster has no data directory: the settings refuse that.
    pub fn prepare(
        settings: &NodeSettings,
        lock: Option<&DataDirLock>,
    ) -> Result<Option<Application>, ApplyError> {
        let Some(cluster) = settings.cluster.clone() else { return Ok(None) };
        let address = cluster.peer_address;
        let patience = Instant::now() + PORT_WAIT_MAX;
        let bind = |shard: u16| {
            let port = address.port() + shard;
            bind_by(SocketAddr::new(address.ip(), port), patience).map_err(|source| {
                let address = address.to_string();
                ApplyError::Port { address, port, source }
            })
        };
        let ports = (0..settings.shards).map(bind).collect::<Result<Vec<_>, _>>()?;
        let lock = lock.expect("a node of a cluster has a data directory");
        let key = NodeKey::load_or_create(lock.directory())?;
        let epoch_file = EpochFile::of(lock);
        let epoch_least = epoch_file.read()?;
        let of_cluster = cluster.cluster.parse().expect("the settings were checked");
        let policy_file = PolicyFile::of(lock, of_cluster);
        let contact = Contact {
            address,
            shards: settings.shards,
            hash_version: HASH_VERSION,
            zone: cluster.zone.clone(),
            key_fingerprint: key.fingerprint().0,
            boot_id: boot_id(Path::new(BOOT_ID)).ok_or(ApplyError::BootId)?,
            peer_socket: peer_socket(settings, &cluster).unwrap_or_default(),
            capabilities: Vec::new(),
        };
        let access = EtcdAccess::of(&cluster.etcd)?;
        let node = settings.node_id.clone();
        Ok(Some(Application {
            contact,
            access,
            cluster,
            node,
            ports,
            key,
            epoch_file,
            policy_file,
            epoch_least,
        }))
    }

    /// What the cores are told of the cluster at boot, with the port of each.
    ///
    /// # Errors
    /// If the shards are too many for the bounds of a node, or the process has no descriptors left.
    pub fn seat(&self, settings: &NodeSettings) -> Result<ClusterSeat, ApplyError> {
        let base = Path::new(&self.contact.peer_socket);
        let shards = (0..settings.shards).filter(|_| !self.contact.peer_socket.is_empty());
        let peer_sockets = shards.map(|shard| bind_peer_socket(base, ShardIndex(shard)));
        let peer_sockets = peer_sockets.collect::<Result<_, _>>()?;
        let peers = PeersSettings::of(settings, &self.cluster, self.local(), self.key.clone())?;
        let ports = self.ports.iter().map(UdpSocket::try_clone).collect::<Result<_, _>>();
        let (ports, boot_id) = (ports.map_err(ApplyError::Descriptors)?, self.contact.boot_id);
        Ok(ClusterSeat { peers, ports, peer_sockets, boot_id })
    }

    /// The name under which the node applies; it has no life yet.
    #[must_use]
    pub fn local(&self) -> Local {
        Local {
            cluster: ClusterUuid([0; 16]),
            node: self.node.parse().expect("the settings were checked"),
            epoch: 0,
            incarnation: Incarnation([0; 16]),
            shards: self.contact.shards,
        }
    }

    /// Digest of what the node subscribes to.
    #[must_use]
    pub fn scope(&self) -> ScopeDigest {
        self.cluster.scope.digest()
    }

    /// What is registered, beginning with the life that the shards live.
    #[must_use]
    pub fn registrar(&self, incarnation: Incarnation) -> Registrar {
        let applicant = Applicant {
            node: self.node.parse().expect("the settings were checked"),
            contact: self.contact.clone(),
            cluster_draft: ClusterUuid(entropy::uuid_v4_bytes()),
        };
        let settings = Settings {
            applicant,
            lease: LEASE,
            epoch_least: self.epoch_least,
            retry: RETRY,
            refused_pause: REFUSED_PAUSE,
            jitter: entropy::random_u64(),
            refresh: self.cluster.refresh,
        };
        let (access, space) = (self.access.clone(), self.cluster.keyspace.clone());
        Registrar { settings, access, space, incarnation, watch_lag: self.cluster.watch_lag }
    }
}

/// Where this node's cores listen for nodes of this host, beside its engine socket; none if it shares no memory,
/// or the path cannot be written down.
fn peer_socket(settings: &NodeSettings, cluster: &ClusterSettings) -> Option<String> {
    let mut path = std::path::absolute(&settings.engine_socket).ok()?.into_os_string();
    path.push(PEER_SOCKET_SUFFIX);
    path.into_string().ok().filter(|path| cluster.shares_memory && !path.contains(char::is_control))
}

fn boot_id(file: &Path) -> Option<[u8; 16]> {
    let text = std::fs::read_to_string(file).ok()?.trim().replace('-', "");
    u128::from_str_radix(&text, 16).ok().filter(|_| text.len() == 32).map(u128::to_be_bytes)
}

impl Membership {
    /// What an operator sees of it.
    #[must_use]
    pub fn of(sight: &Sight) -> Membership {
        let map = sight.roster.map();
        let row = |member: &orbitkv_shards::members::Member| {
            let zone = sight.roster.contact(member.node).map(|contact| contact.zone.clone());
            MemberRow {
                node_id: member.node.to_string(),
                epoch: member.epoch,
                incarnation: member.incarnation.to_string(),
                address: member.address.to_string(),
                shards: member.shards,
                zone: zone.unwrap_or_default(),
            }
        };
        let (figures, traffic) = (sight.figures, sight.traffic);
        let foreign_hash = sight.foreign_hash.iter().map(|(node, version)| (node.to_string(), *version));
        let words = sight.standing.to_string();
        let (validity, detail) = words.split_once(": ").unwrap_or((&words, ""));
        Membership {
            revision: (map.revision > 0).then_some(map.revision),
            validity: validity.to_owned(),
            detail: detail.to_owned(),
            incarnation: sight.local.map(|local| local.incarnation.to_string()),
            members: map.members().iter().map(row).collect(),
            registrations: figures.registrations,
            fences: figures.fences,
            suspensions: figures.suspensions,
            watches_ended: figures.watches_ended,
            unanswered: figures.unanswered,
            alarms: figures.alarms,
            superseded: figures.superseded,
            rereads: figures.rereads,
            lookups: figures.lookups,
            disputed: sight.disputed.iter().map(ToString::to_string).collect(),
            foreign_hash: foreign_hash.collect(),
            renewals: figures.renewals,
            etcd_requests: traffic.requests,
            etcd_sent_bytes: traffic.sent_bytes,
            etcd_received_bytes: traffic.received_bytes,
        }
    }
}
