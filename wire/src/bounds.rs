//! Every bound that a peer or an engine can observe, with its unit and its reason.

/// Block hashes in one Query (chapter 1.3).
pub const QUERY_HASHES_MAX: usize = 16_384;

/// Keys worked per ordered batch of a Query, and keys of one lookup.
pub const QUERY_BATCH_KEYS: usize = 128;

/// Bytes of a block hash on the wire.
pub const BLOCK_HASH_BYTES: usize = 32;

/// Payload part of the largest engine frame: a full Query is exactly this much hash data.
pub const FRAME_BODY_BYTES_MAX: usize = QUERY_HASHES_MAX * BLOCK_HASH_BYTES;

/// Room for a frame's header and fixed part beside [`FRAME_BODY_BYTES_MAX`].
pub const FRAME_FIXED_BYTES_MAX: usize = 8 * 1024;

/// Largest engine frame, length prefix included.
pub const FRAME_BYTES_MAX: usize = FRAME_BODY_BYTES_MAX + FRAME_FIXED_BYTES_MAX;

/// Keys in one Reserve, Commit, Abort, Acquire or Evict.
pub const KEYS_PER_REQUEST_MAX: usize = 4_096;

/// Requests one connection may have unanswered; one more is not read until one is answered.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 256;

/// Rank lists one Query may name.
pub const QUERY_LISTS_MAX: usize = 64;

/// Layer groups of one namespace.
pub const GROUPS_MAX: usize = 64;

/// Residents in one List page.
pub const LIST_PAGE_MAX: usize = 4_096;

/// Namespaces a node interns (chapter 2.7).
pub const NAMESPACES_MAX: usize = 4_096;

/// Input records of one journal interval (chapter 2.10).
pub const INTERVAL_RECORDS_MAX: usize = 1_024;

/// Input bytes of one journal interval.
pub const INTERVAL_BYTES_MAX: usize = 512 * 1024;

/// Bytes of a node id.
pub const NODE_ID_BYTES_MAX: usize = 64;

/// Largest record of a member in etcd (chapter 4): membership is read whole, so it stays small.
pub const MEMBER_RECORD_BYTES_MAX: usize = 1_024;

/// Members of one cluster that are read; far more than are supported (chapter 2.10).
pub const MEMBERS_MAX: usize = 4_096;

/// Largest record of the operator's policy in etcd: every node reads it each half minute, so it stays small.
pub const CONFIG_RECORD_BYTES_MAX: usize = 4 * 1024;

/// Largest number of such a record: numbers follow etcd's revisions, and metrics show them, and neither goes further.
pub const CONFIG_NUMBER_MAX: u64 = i64::MAX as u64;

/// Settings of one version of it: more than can be changed while a node runs.
pub const CONFIG_SETTINGS_MAX: usize = 20;

/// Name of such a setting.
pub const CONFIG_NAME_BYTES_MAX: usize = 24;

/// Value of such a setting.
pub const CONFIG_VALUE_BYTES_MAX: usize = 32;

/// Path of a node's peer socket: what a Unix socket address holds.
pub const PEER_SOCKET_BYTES_MAX: usize = 107;

/// Capabilities a member names.
pub const CAPABILITIES_MAX: usize = 8;

/// Namespaces of one scope; more are refused, never cut (chapter 2.4).
pub const SCOPE_NAMESPACES_MAX: usize = 256;

/// Largest Open frame.
pub const OPEN_BYTES_MAX: usize = 64 * 1024;

/// Header of an inventory frame, beside every bound of a body.
pub const INVENTORY_HEADER_BYTES: usize = 41;

/// Largest body of an inventory frame, encoded and expanded alike: frames are read in place.
pub const INVENTORY_BODY_BYTES_MAX: usize = 512 * 1024;

/// Largest inventory frame, header included.
pub const INVENTORY_FRAME_BYTES_MAX: usize = INVENTORY_HEADER_BYTES + INVENTORY_BODY_BYTES_MAX;

/// Smallest frame bound a receiver may announce: a page or a delta of one change in one namespace, and
/// everything that cannot be cut, fits.
pub const INVENTORY_FRAME_BYTES_MIN: usize = 160;

/// Frames a receiver's window holds at least: one on its way while the other's credit returns.
pub const WINDOW_FRAMES_MIN: usize = 2;

/// Bytes a receiver collects before it has a whole frame.
pub const INVENTORY_RECEIVE_BYTES_MAX: usize = 1024 * 1024;

/// Residences that one Authorize names: as many as a batch of a Query works (chapter 3.2).
pub const GRANT_KEYS_MAX: usize = 128;

/// Longest time in milliseconds that a source keeps what it granted without proof that it must (chapter 3.2).
pub const GRANT_MS_MAX: u32 = 10_000;

/// Pins one requester has at a node (chapter 3.2), split over its shards.
pub const REQUESTER_PINS_MAX: u64 = 1_024;

/// Bytes that those pins hold (chapter 3.2), split over the shards.
pub const REQUESTER_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Operations of one origin that may come out of order: an older one is refused as repeated. As many as one
/// requester can have pins for.
pub const OPERATION_WINDOW: u64 = 1_024;

/// Origins of operations one requester has: its cores, each of which draws one.
pub const OPERATION_ORIGINS_MAX: usize = 256;

/// Header of a payload frame, beside every bound of a body.
pub const PAYLOAD_HEADER_BYTES: usize = 41;

/// Largest payload frame, header included: an Authorize of [`GRANT_KEYS_MAX`] residences in as many
/// namespaces.
pub const PAYLOAD_FRAME_BYTES_MAX: usize = 12 * 1024;

/// Largest body of a snapshot page: its digest is computed in one turn (chapter 2.10).
pub const PAGE_BYTES_MAX: usize = 64 * 1024;

/// Alignment and granularity of every extent of the arena and the SSD file, in bytes:
/// the page size, and what O_DIRECT asks of every device we support.
pub const EXTENT_ALIGN_BYTES: u64 = 4_096;

/// Longest deadline a request may carry; longer is an error naming this limit.
pub const DEADLINE_MS_MAX: u32 = 600_000;

const _: () = assert!(FRAME_BODY_BYTES_MAX == 512 * 1024);
const _: () = assert!(QUERY_HASHES_MAX.is_multiple_of(QUERY_BATCH_KEYS));
const _: () = assert!(REQUESTS_IN_FLIGHT_MAX >= 64, "chapter 1.3 promises at least 64");
const _: () = assert!(INVENTORY_FRAME_BYTES_MAX <= INVENTORY_RECEIVE_BYTES_MAX);
const _: () = assert!(PAGE_BYTES_MAX <= INVENTORY_BODY_BYTES_MAX);
const _: () = assert!(GRANT_KEYS_MAX == QUERY_BATCH_KEYS);
const _: () = assert!(REQUESTER_PINS_MAX >= GRANT_KEYS_MAX as u64, "one whole batch can be granted");
const _: () = assert!(EXTENT_ALIGN_BYTES.is_power_of_two());
