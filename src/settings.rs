//! What a node is told, checked before anything is allocated.
//!
//! [`NodeArgs`] is what an operator wrote; [`NodeSettings::resolve`] turns it into plain typed values
//! or a refusal that names setting, value, bound and remedy. It is a pure function of the arguments
//! and a [`Machine`], so every refusal has a test that needs no machine of that shape.

mod arguments;
mod cluster;
mod config_file;
mod etcd;
mod flow;
mod guard;
mod machine;
mod placement;
mod policy;
mod refusal;
mod token;
mod usual_load;
mod values;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use arguments::{
    ArenaPages, Idle, LayoutChoice, NodeArgs, RefreshChoice, RetentionChoice, RoutePolicy, SsdBackend,
};
pub use cluster::{ClusterSettings, INDEX_SLICE_BYTES_MIN};
pub use etcd::{EtcdFiles, EtcdSettings, read_file};
pub use flow::PeerRates;
pub use guard::PeerGuard;
pub use machine::Machine;
pub use placement::{DeviceCores, Placement, SHARDS_MAX};
pub use policy::{CHANGEABLE, LogLevel, Overrides, Policy, PolicyError, Rollouts, rollouts};
pub use refusal::SettingsError;
pub use token::Token;
pub use values::{CoreList, HttpBind, is_node_id};

use orbitkv_native::engine_socket::SOCKET_PATH_BYTES_MAX;
use orbitkv_native::ssd_ring::DEVICE_DEPTH_MAX;
use orbitkv_shards::shard::{DeviceGuardSettings, NamespaceRate};

use crate::quantity::{ByteSize, GIB, MIB, Span};
use refusal::refused;

/// Granularity of the arena and the SSD file: one huge page, so that a slice never shares one.
pub const SLICE_GRAIN_BYTES: u64 = 2 * MIB;
/// Least arena of a shard: below it a handful of large blocks fill the slice and eviction thrashes.
pub const DRAM_SLICE_BYTES_MIN: u64 = 64 * MIB;
/// Least SSD of a shard: the segment log needs several large segments to write and clean at once.
pub const SSD_SLICE_BYTES_MIN: u64 = 64 * MIB;
/// Least journal of a shard: two whole input intervals, so that a reader can lag one behind.
pub const JOURNAL_SLICE_BYTES_MIN: u64 = 2 * orbitkv_wire::bounds::INTERVAL_BYTES_MAX as u64;
/// Most user ids that may be admitted beside our own: the list is searched at each connect.
pub const ENGINE_UIDS_MAX: usize = 64;

const DRAM_DEFAULT: ByteSize = ByteSize(GIB);
/// Enough to keep an NVMe drive busy with large blocks; `orbitkv-bench local` measures at this depth.
const SSD_DEPTH_DEFAULT: u32 = 32;
/// One block a second is a small part of what any device reads, and finds what a device loses within hours.
const AUDIT_DEFAULT: Duration = Duration::from_secs(1);
/// What a shard may be asked to do at most: it shares its core with engines.
const AUDIT_MIN: Duration = Duration::from_millis(10);
/// What is announced is mostly acquired soon; three quarters are for what nobody has announced.
const PREFETCH_DEFAULT: u32 = 25;
const PREFETCH_MAX: u32 = 50;
const JOURNAL_DEFAULT: ByteSize = ByteSize(16 * MIB);
const HTTP_DEFAULT: HttpBind =
    HttpBind::At(std::net::SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 7070)));

const _: () = assert!(DRAM_SLICE_BYTES_MIN.is_multiple_of(SLICE_GRAIN_BYTES));
const _: () = assert!(SSD_SLICE_BYTES_MIN.is_multiple_of(SLICE_GRAIN_BYTES));
const _: () = assert!(SLICE_GRAIN_BYTES.is_multiple_of(orbitkv_wire::bounds::EXTENT_ALIGN_BYTES));

/// Everything a node needs to know, decided and within its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Name of the node, 1 to 64 bytes of `[a-z0-9-]`.
    pub node_id: String,
    /// Directory of the SSD file, the lock and the node's key; always there when the SSD is used, and in a cluster.
    pub data_dir: Option<PathBuf>,
    /// Path of the engine socket, at most 107 bytes.
    pub engine_socket: PathBuf,
    /// Where the HTTP API listens.
    pub http: HttpBind,
    /// File with the token POST requests must carry.
    pub http_token_file: Option<PathBuf>,
    /// Shards of the node, at least 1.
    pub shards: u16,
    /// Cores of the shards and device loops.
    pub placement: Placement,
    /// What an idle core does.
    pub idle: Idle,
    /// Arena of one shard in bytes, a multiple of 2 MiB.
    pub dram_slice_bytes: u64,
    /// SSD space of one shard in bytes, a multiple of 2 MiB; 0 is off.
    pub ssd_slice_bytes: u64,
    /// Requests a shard's ring gives the device at once.
    pub ssd_depth: u32,
    /// Pause of a shard between two blocks on SSD that it reads again; none if it reads none.
    pub audit_interval: Option<Duration>,
    /// Whether cores record what they do.
    pub trace_turns: bool,
    /// When the SSD is left alone for a while.
    pub device_guard: DeviceGuardSettings,
    /// Share of DRAM, and of the payload on its way from peers, for what engines have announced, in percent.
    pub prefetch_percent: u32,
    /// What one namespace may save and have brought in time, on the whole node; none is as much as there is room for.
    pub namespace_rate: Option<NamespaceRate>,
    /// Journal ring of one shard in bytes.
    pub journal_slice_bytes: u64,
    /// Pages the arena asks for.
    pub arena_pages: ArenaPages,
    /// User ids whose engines may connect, our own first, none twice.
    pub engine_uids: Vec<u32>,
    /// How the node joins its cluster; none if it is standalone.
    pub cluster: Option<ClusterSettings>,
    /// What an operator should know though nothing is wrong: rounding, unused cores, refused POST.
    pub notices: Vec<String>,
}

impl NodeSettings {
    /// Lays the sources over each other (flag, environment, file), looks at the machine and decides.
    ///
    /// # Errors
    /// The first refusal; exit code 2.
    pub fn of(args: NodeArgs) -> Result<(NodeSettings, Machine), SettingsError> {
        let args = with_config_file(args)?;
        let machine = Machine::observe();
        NodeSettings::resolve(&args, &machine).map(|settings| (settings, machine))
    }

    /// Decides every setting, or refuses the first that is out of its bound.
    ///
    /// # Errors
    /// [`SettingsError::Refused`] or [`SettingsError::NotInThisVersion`].
    pub fn resolve(args: &NodeArgs, machine: &Machine) -> Result<NodeSettings, SettingsError> {
        if let Some(setting) = args.beyond_this_version() {
            return Err(SettingsError::NotInThisVersion { setting });
        }
        let mut notices = Vec::new();
        let ssd = args.ssd.unwrap_or_default();
        let placement = placement::place(args, machine, ssd.0 > 0, &mut notices)?;
        let shards = placement.shard_cores.len() as u64;
        let dram = args.dram.unwrap_or(DRAM_DEFAULT);
        let dram_slice_bytes = slice("--dram", dram, shards, DRAM_SLICE_BYTES_MIN, &mut notices)?;
        let ssd_slice_bytes = match ssd.0 {
            0 => 0,
            _ => slice("--ssd", ssd, shards, SSD_SLICE_BYTES_MIN, &mut notices)?,
        };
        if let (1.., None) = (ssd.0, &args.data_dir) {
            let bound = "the SSD tier needs a directory for its file";
            return Err(refused("--ssd", ssd, bound, "add --data-dir DIR on that SSD, or --ssd 0"));
        }
        let journal = args.journal.unwrap_or(JOURNAL_DEFAULT);
        check_share("--journal", journal, shards, JOURNAL_SLICE_BYTES_MIN)?;
        let http = args.http.unwrap_or(HTTP_DEFAULT);
        notices.extend(http_notice(http, args.http_token_file.as_deref()));
        let prefetch_percent = prefetch_percent(args)?;
        let is_member = args.etcd.is_some();
        let places = usual_load::Places { shards, dram_slice_bytes, prefetch_percent, is_member };
        usual_load::check(args, &places)?;
        Ok(NodeSettings {
            node_id: node_id(args, machine)?,
            data_dir: args.data_dir.clone(),
            engine_socket: engine_socket(args, machine)?,
            http,
            http_token_file: args.http_token_file.clone(),
            shards: shards as u16,
            placement,
            idle: args.idle.unwrap_or(Idle::Park),
            dram_slice_bytes,
            ssd_slice_bytes,
            ssd_depth: ssd_depth(args)?,
            audit_interval: audit_interval(args)?,
            trace_turns: args.trace_turns == Some(true),
            device_guard: guard::device(args)?,
            prefetch_percent,
            namespace_rate: flow::namespace_rate(args, shards)?,
            journal_slice_bytes: journal.0 / shards,
            arena_pages: args.arena_pages.unwrap_or(ArenaPages::Auto),
            engine_uids: engine_uids(args, machine)?,
            cluster: cluster::cluster(args, shards)?,
            notices,
        })
    }

    /// Bytes of the whole arena.
    #[must_use]
    pub fn dram_bytes(&self) -> u64 {
        self.dram_slice_bytes * u64::from(self.shards)
    }

    /// Bytes of the whole SSD file; 0 is off.
    #[must_use]
    pub fn ssd_bytes(&self) -> u64 {
        self.ssd_slice_bytes * u64::from(self.shards)
    }

    /// Reads the HTTP token, if a file is named.
    ///
    /// # Errors
    /// A file that is missing, open to others, or holds no token.
    pub fn http_token(&self) -> Result<Option<Token>, SettingsError> {
        self.http_token_file.as_deref().map(Token::read).transpose()
    }
}

/// Adds the settings of the `--config` file below those of flags and environment.
///
/// # Errors
/// A file that cannot be read or has an unknown key or value.
pub fn with_config_file(args: NodeArgs) -> Result<NodeArgs, SettingsError> {
    match args.config.clone() {
        Some(file) => config_file::read(&file).map(|below| args.over(below)),
        None => Ok(args),
    }
}

fn check_share(setting: &str, size: ByteSize, shards: u64, least: u64) -> Result<(), SettingsError> {
    if size.0 / shards >= least {
        return Ok(());
    }
    let least_total = ByteSize(least * shards);
    let (of_shards, setting) = match shards {
        1 => (String::new(), setting.to_owned()),
        _ => (format!(" a shard, {least_total} for {shards} shards"), format!("{setting} and --shards")),
    };
    let value = if shards == 1 { size.to_string() } else { format!("{size} and {shards}") };
    let flag = setting.split(' ').next().unwrap_or_default();
    let fewer = match size.0 / least {
        affordable @ 1.. => format!(" or lower --shards to {affordable}"),
        0 => String::new(),
    };
    let off = if flag == "--ssd" { ", or turn the tier off with --ssd 0" } else { "" };
    let remedy = format!("raise {flag} to {least_total}{fewer}{off}");
    Err(refused(setting.clone(), value, format!("must be at least {}{of_shards}", ByteSize(least)), remedy))
}

/// A shard's share, rounded down to the grain.
fn slice(
    setting: &str,
    size: ByteSize,
    shards: u64,
    least: u64,
    notices: &mut Vec<String>,
) -> Result<u64, SettingsError> {
    check_share(setting, size, shards, least)?;
    let share = size.0 / shards;
    let rounded = share - share % SLICE_GRAIN_BYTES;
    if rounded * shards != size.0 {
        let (used, grain) = (ByteSize(rounded * shards), ByteSize(SLICE_GRAIN_BYTES));
        notices.push(format!("{setting} {size} rounded down to {used}: {grain} a shard is the grain"));
    }
    Ok(rounded)
}

fn node_id(args: &NodeArgs, machine: &Machine) -> Result<String, SettingsError> {
    match &args.node_id {
        None => Ok(values::node_id_of_host(&machine.host_name)),
        Some(name) if is_node_id(name) => Ok(name.clone()),
        Some(name) => {
            let remedy = format!("try --node-id {}", values::node_id_of_host(name));
            Err(refused("--node-id", format!("{name:?}"), "must be 1 to 64 bytes of a-z, 0-9 and -", remedy))
        }
    }
}

/// Where a node of this user has its engine socket unless told otherwise.
#[must_use]
pub fn default_engine_socket(machine: &Machine) -> PathBuf {
    match &machine.runtime_dir {
        Some(directory) => directory.join("orbitkv/engine.sock"),
        None => PathBuf::from(format!("/tmp/orbitkv-{}/engine.sock", machine.uid)),
    }
}

fn engine_socket(args: &NodeArgs, machine: &Machine) -> Result<PathBuf, SettingsError> {
    let path = args.engine_socket.clone().unwrap_or_else(|| default_engine_socket(machine));
    let bytes = path.as_os_str().len();
    if bytes == 0 || path.file_name().is_none() {
        return Err(refused(
            "--engine-socket",
            path.display(),
            "must name a file",
            "give a path such as /run/orbitkv/engine.sock",
        ));
    }
    if bytes > SOCKET_PATH_BYTES_MAX {
        let bound =
            format!("a Unix socket path has at most {SOCKET_PATH_BYTES_MAX} bytes, this one has {bytes}");
        return Err(refused(
            "--engine-socket",
            path.display(),
            bound,
            "choose a shorter directory, such as /run/orbitkv",
        ));
    }
    Ok(path)
}

fn engine_uids(args: &NodeArgs, machine: &Machine) -> Result<Vec<u32>, SettingsError> {
    let mut uids = vec![machine.uid];
    for uid in &args.engine_uid {
        if !uids.contains(uid) {
            uids.push(*uid);
        }
    }
    if uids.len() > ENGINE_UIDS_MAX + 1 {
        let bound = format!("at most {ENGINE_UIDS_MAX} user ids are admitted beside our own");
        return Err(refused("--engine-uid", format!("{} ids", uids.len() - 1), bound, "name fewer"));
    }
    Ok(uids)
}

fn ssd_depth(args: &NodeArgs) -> Result<u32, SettingsError> {
    let depth = args.ssd_depth.unwrap_or(SSD_DEPTH_DEFAULT);
    if (1..=DEVICE_DEPTH_MAX).contains(&depth) {
        return Ok(depth);
    }
    let bound = format!("a shard gives the device 1 to {DEVICE_DEPTH_MAX} requests at once");
    let remedy = format!("use --ssd-depth {}", depth.clamp(1, DEVICE_DEPTH_MAX));
    Err(refused("--ssd-depth", depth, bound, remedy))
}

fn audit_interval(args: &NodeArgs) -> Result<Option<Duration>, SettingsError> {
    match args.audit {
        None => Ok(Some(AUDIT_DEFAULT)),
        Some(Span(Duration::ZERO)) => Ok(None),
        Some(span) if span.0 >= AUDIT_MIN => Ok(Some(span.0)),
        Some(span) => {
            let bound = format!("must be at least {}, or 0s for none", Span(AUDIT_MIN));
            Err(refused("--audit", span, bound, "use --audit 1s"))
        }
    }
}

fn prefetch_percent(args: &NodeArgs) -> Result<u32, SettingsError> {
    let percent = args.prefetch.unwrap_or(PREFETCH_DEFAULT);
    if percent <= PREFETCH_MAX {
        return Ok(percent);
    }
    let bound = format!("must be 0 to {PREFETCH_MAX}: the rest is for what engines wait for");
    Err(refused("--prefetch", percent, bound, format!("use --prefetch {PREFETCH_MAX}, or 0 for none")))
}

fn http_notice(http: HttpBind, token_file: Option<&Path>) -> Option<String> {
    match (http, token_file) {
        (HttpBind::Off, Some(_)) => Some("--http-token-file has no effect with --http off".to_owned()),
        (HttpBind::At(address), None) if !address.ip().is_loopback() => Some(format!(
            "--http {address} is beyond loopback and no --http-token-file is given: POST will be refused"
        )),
        _ => None,
    }
}
