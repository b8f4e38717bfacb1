//! Who else uses an etcd: the other clusters that have members in it, and on which hosts those run. An operator's command
//! asks, once; a node never does, and its own role in etcd need not allow it.

use etcd_client::{GetOptions, GetResponse};
use orbitkv_shards::membership::coordinator::Failure;
use orbitkv_wire::bounds::{MEMBER_RECORD_BYTES_MAX, MEMBERS_MAX};
use orbitkv_wire::membership::{MEMBERS, MemberRecord, PREFIX};

use super::operator::OperatorKeys;

/// Clusters that are looked at, one key and the members of each.
const CLUSTERS_MAX: usize = 64;

/// Largest answer: all members of one cluster, keys included, twice over.
const READ_BYTES_MAX: usize = 4 * MEMBERS_MAX * MEMBER_RECORD_BYTES_MAX;

/// What follows [`PREFIX`] and whatever begins with it, in the order of keys.
const AFTER_SLASH: char = '0';

/// Another cluster with members in the same etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its name.
    pub cluster: String,
    /// The boots of hosts that its members run on, each once, of those whose records this program reads.
    pub boots: Vec<[u8; 16]>,
}

/// The other clusters of an etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// Those that have members, in the order of keys.
    pub clusters: Vec<Neighbour>,
    /// Whether there may be more than were looked at.
    pub cut_short: bool,
}

impl OperatorKeys {
    /// The clusters beside this one that have members now.
    ///
    /// # Errors
    /// [`Failure`]; it may be that this user may not look there.
    pub fn neighbours(&mut self) -> Result<Neighbours, Failure> {
        let end = format!("{}{AFTER_SLASH}", PREFIX.trim_end_matches('/'));
        let mut found = Neighbours::default();
        let mut from = PREFIX.to_owned();
        for _ in 0..CLUSTERS_MAX {
            let options = GetOptions::new().with_range(end.as_str()).with_limit(1).with_keys_only();
            let first = self.get(&from, &options)?;
            let Some(pair) = first.kvs().first() else { return Ok(found) };
            let below =
                String::from_utf8_lossy(pair.key().get(PREFIX.len()..).unwrap_or_default()).into_owned();
            let cluster = below.split('/').next().unwrap_or_default();
            let prefix = format!("{PREFIX}{cluster}/");
            from = format!("{PREFIX}{cluster}{AFTER_SLASH}");
            if prefix != self.space().prefix() {
                found.clusters.extend(self.neighbour(cluster, &prefix)?);
            }
        }
        found.cut_short = true;
        Ok(found)
    }

    /// The cluster of this name, if it has members.
    fn neighbour(&mut self, cluster: &str, prefix: &str) -> Result<Option<Neighbour>, Failure> {
        let options = GetOptions::new().with_prefix().with_limit(MEMBERS_MAX as i64);
        let members = self.get(&format!("{prefix}{MEMBERS}"), &options)?;
        let records = members.kvs().iter().filter_map(|pair| MemberRecord::decode(pair.value()).ok());
        let mut boots: Vec<[u8; 16]> = records.map(|record| record.contact.boot_id).collect();
        boots.sort_unstable();
        boots.dedup();
        Ok((!members.kvs().is_empty()).then(|| Neighbour { cluster: cluster.to_owned(), boots }))
    }

    fn get(&mut self, from: &str, options: &GetOptions) -> Result<GetResponse, Failure> {
        self.patiently(|keys| {
            keys.put(async |link, _| {
                let mut reader = link.client().await?.kv_client().max_decoding_message_size(READ_BYTES_MAX);
                reader.get(from, Some(options.clone())).await.map_err(|error| link.on_error(&error))
            })
        })
    }
}
