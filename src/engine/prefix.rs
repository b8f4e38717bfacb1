//! Query and Acquire look at a prefix: the blocks of one or more groups and ranks, position by
//! position. This room compiles their common demand and tells the longest boundary.

use orbitkv_shards::demand::{Demand, GroupDemand, PresenceBits};
use orbitkv_shards::shard::Key;
use orbitkv_wire::bounds::QUERY_BATCH_KEYS;
use orbitkv_wire::engine::Status;
use orbitkv_wire::engine::requests::{HashRecord, ListRecord};
use orbitkv_wire::identity::{BlockHash, GroupId, NamespaceDigest, key_hash};
use orbitkv_wire::layout::Records;

use super::connection::Registered;
use super::refusal::Refused;

/// The lists of one request, compiled.
pub struct Prefix {
    /// Namespaces that keys refer to by index.
    pub namespaces: Vec<NamespaceDigest>,
    lists: Vec<(u16, GroupId)>,
    hashes: Vec<BlockHash>,
    positions: u32,
    demand: Demand,
    presence: Vec<PresenceBits>,
    examined: u32,
}

impl Prefix {
    /// Checks that the lists make a demand: known namespaces of one block size, every registered
    /// group exactly once, lists of one length.
    ///
    /// # Errors
    /// A refusal that names what is wrong.
    pub fn compile(
        registered: &[Registered],
        lists: &[ListRecord],
        hashes: Records<'_, HashRecord>,
    ) -> Result<Prefix, Refused> {
        let positions = lists.first().map_or(0, |list| list.count);
        let mut namespaces: Vec<NamespaceDigest> = Vec::new();
        let mut handles: Vec<u32> = Vec::new();
        let mut listed = Vec::with_capacity(lists.len());
        let mut demands = Vec::with_capacity(lists.len());
        let mut block_tokens = None;
        for (index, list) in lists.iter().enumerate() {
            let of = registered.get(list.namespace as usize).ok_or_else(|| unknown(list.namespace))?;
            let kind = of.groups.iter().find(|(group, ..)| group.0 == list.group).ok_or_else(|| {
                Refused::new(
                    Status::Malformed,
                    u64::from(list.group),
                    format!(
                        "group {} is not registered in namespace {}: list registered groups only",
                        list.group, of.namespace
                    ),
                )
            })?;
            if list.count != positions {
                let text = format!(
                    "list {index} has {} hashes, the first one {positions}: all lists of a prefix are equally long",
                    list.count
                );
                return Err(Refused::new(Status::Malformed, u64::from(list.count), text));
            }
            if *block_tokens.get_or_insert(of.block_tokens) != of.block_tokens {
                let text = "the listed namespaces have blocks of different token counts: query them apart";
                return Err(Refused::new(Status::Conflict, u64::from(of.block_tokens), text.into()));
            }
            let namespace = match handles.iter().position(|&handle| handle == list.namespace) {
                Some(known) => known,
                None => {
                    handles.push(list.namespace);
                    namespaces.push(of.namespace);
                    namespaces.len() - 1
                }
            };
            let entry = (namespace as u16, GroupId(list.group));
            if listed.contains(&entry) {
                let text =
                    format!("list {index} repeats group {}: list each group of a namespace once", list.group);
                return Err(Refused::new(Status::Malformed, index as u64, text));
            }
            listed.push(entry);
            // The demand knows lists by their index; that two ranks use one group number is no clash.
            demands.push(GroupDemand { group: GroupId(index as u16), kind: kind.1 });
        }
        for (&handle, namespace) in handles.iter().zip(0u16..) {
            for (group, ..) in &registered[handle as usize].groups {
                if !listed.contains(&(namespace, *group)) {
                    let text = format!(
                        "group {} of namespace {} is not listed: a boundary needs every registered group",
                        group.0, registered[handle as usize].namespace
                    );
                    return Err(Refused::new(Status::Malformed, u64::from(group.0), text));
                }
            }
        }
        let demand = Demand::compile(block_tokens.unwrap_or(1), &demands).map_err(|error| {
            Refused::new(Status::Malformed, 0, format!("the lists make no demand: {error}"))
        })?;
        let hashes = hashes.iter().map(|hash| hash.map(|hash| BlockHash(hash.block)));
        let hashes = hashes.collect::<Result<Vec<_>, _>>()?;
        let presence = lists.iter().map(|_| PresenceBits::new(positions)).collect();
        Ok(Prefix { namespaces, lists: listed, hashes, positions, demand, presence, examined: 0 })
    }

    /// Blocks of the request.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.hashes.len()
    }

    /// Positions looked at so far.
    #[must_use]
    pub fn examined(&self) -> u32 {
        self.examined
    }

    /// Whether looking further can still find a longer boundary.
    #[must_use]
    pub fn may_grow(&self) -> bool {
        self.examined < self.positions
            && self.demand.bound(&self.presence, self.examined, self.positions) > self.longest()
    }

    /// The next batch of keys, ordered by position: at most [`QUERY_BATCH_KEYS`].
    pub fn next_batch(&mut self) -> Vec<Key> {
        let lists = self.lists.len().max(1);
        let width = (QUERY_BATCH_KEYS / lists).max(1) as u32;
        let end = self.positions.min(self.examined + width);
        let keys = (self.examined..end)
            .flat_map(|position| (0..self.lists.len()).map(move |list| (list, position)))
            .map(|(list, position)| self.key(list, position))
            .collect();
        self.examined = end;
        keys
    }

    /// Every key, in the order of the request. The hashes are given away with them: what stays can
    /// only tell the boundary.
    #[must_use]
    pub fn take_all(&mut self) -> Vec<Key> {
        let keys = (0..self.lists.len())
            .flat_map(|list| (0..self.positions).map(move |position| (list, position)))
            .map(|(list, position)| self.key(list, position))
            .collect();
        self.hashes = Vec::new();
        keys
    }

    fn key(&self, list: usize, position: u32) -> Key {
        let index = list as u32 * self.positions + position;
        let (namespace, group) = self.lists[list];
        let block = self.hashes[index as usize];
        let hash = key_hash(&self.namespaces[namespace as usize], group, &block);
        Key { index, namespace, group, block, hash }
    }

    /// The block with this index in the request is there.
    pub fn set_present(&mut self, index: u32) {
        self.presence[(index / self.positions) as usize].set(index % self.positions);
    }

    /// The longest legal boundary over what is known to be there, in blocks.
    #[must_use]
    pub fn longest(&self) -> u32 {
        if self.positions == 0 { 0 } else { self.demand.longest(&self.presence, self.positions).blocks() }
    }
}

fn unknown(handle: u32) -> Refused {
    let text = format!("namespace handle {handle} was never given to this connection: register first");
    Refused::new(Status::UnknownNamespace, u64::from(handle), text)
}
