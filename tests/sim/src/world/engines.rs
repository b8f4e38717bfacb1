//! What engines do, carried out on stocks.

use orbitkv_shards::key::StateKey;
use orbitkv_wire::identity::{Medium, NamespaceDigest, ShardIndex};

use super::{Part, World};
use crate::counters::Counter;
use crate::event::Event;
use crate::load::Touch;
use crate::network::Place;
use crate::oracle::Verdict;
use crate::truth::KeyId;

impl World {
    pub(crate) fn on_load(&mut self, node: u16) -> Verdict {
        if self.part == Part::Liveness {
            return Ok(());
        }
        self.touch_some(node);
        let gap = self.load.gap();
        self.schedule.after(gap, Event::Load(node));
        Ok(())
    }

    /// One burst on a node.
    pub(crate) fn touch_some(&mut self, node: u16) {
        let touches = self.load.burst(&mut self.truth.universe);
        self.touch(node, touches);
    }

    /// So little that no history is overrun.
    pub(crate) fn touch_a_little(&mut self, node: u16) {
        let touches = (0..2).map(|_| self.load.touch(&mut self.truth.universe)).collect();
        self.touch(node, touches);
    }

    fn touch(&mut self, node: u16, touches: Vec<Touch>) {
        for touch in touches {
            match touch {
                Touch::Toggle(key, medium, bytes) => {
                    if !self.delete(node, key, medium) {
                        self.put(node, key, medium, bytes);
                    }
                }
                Touch::Renew(key, medium, bytes) => {
                    let again = self.delete(node, key, medium);
                    self.counters.add(Counter::Reinsert, u64::from(again));
                    self.put(node, key, medium, bytes);
                }
                Touch::Wipe(namespace) => self.wipe(node, &namespace),
            }
        }
        self.evict(node, self.load.plan().resident_max);
        for core in 0..self.nodes[usize::from(node)].cores.len() as u16 {
            let place = self.place(node, core);
            self.wake(place);
        }
    }

    /// The blocks that a node puts at its start.
    pub(crate) fn fill(&mut self, node: u16) {
        for _ in 0..self.load.plan().filled {
            let key = self.load.fresh(&mut self.truth.universe);
            let medium = self.load.medium();
            self.put(node, key, medium, 1 << 16);
        }
    }

    fn place(&self, node: u16, core: u16) -> Place {
        Place { node, process: self.nodes[usize::from(node)].process, core }
    }

    fn shard_of(&self, node: u16, key: KeyId) -> ShardIndex {
        let shards = self.nodes[usize::from(node)].cores.len() as u16;
        self.truth.universe.get(key).hash.shard(shards)
    }

    fn put(&mut self, node: u16, key: KeyId, medium: Medium, bytes: u32) {
        let shard = self.shard_of(node, key);
        let now = self.now();
        let global = *self.truth.universe.get(key);
        self.note_scans(node, shard, key, true);
        let World { nodes, truth, counters, .. } = self;
        let core = &mut nodes[usize::from(node)].cores[usize::from(shard.0)];
        let namespace = core.namespaces.intern(&global.namespace).expect("few namespaces");
        let state = StateKey { namespace, group: global.group, block: global.block };
        core.stock.put(state, key, medium, bytes, &mut core.namespaces, truth, counters, now);
    }

    fn delete(&mut self, node: u16, key: KeyId, medium: Medium) -> bool {
        let shard = self.shard_of(node, key);
        let now = self.now();
        let core = &self.nodes[usize::from(node)].cores[usize::from(shard.0)];
        let Some(state) = core.state_key(&self.truth, key) else { return false };
        if !core.stock.holds(&state, medium) {
            return false;
        }
        self.note_scans(node, shard, key, false);
        let World { nodes, truth, counters, .. } = self;
        let core = &mut nodes[usize::from(node)].cores[usize::from(shard.0)];
        core.stock.delete(state, medium, &mut core.namespaces, truth, counters, now)
    }

    fn wipe(&mut self, node: u16, namespace: &NamespaceDigest) {
        self.counters.count(Counter::Wipe);
        let now = self.now();
        let World { nodes, truth, counters, .. } = self;
        for core in &mut nodes[usize::from(node)].cores {
            for (key, medium) in core.stock.of_namespace(namespace, &core.namespaces) {
                core.stock.delete(key, medium, &mut core.namespaces, truth, counters, now);
            }
        }
    }

    /// Ends residences of a node until it has at most so many.
    pub(crate) fn evict(&mut self, node: u16, resident_max: u64) {
        let now = self.now();
        let World { nodes, truth, counters, chance, .. } = self;
        let node = &mut nodes[usize::from(node)];
        let share = resident_max.div_ceil(node.cores.len().max(1) as u64) as usize;
        for core in &mut node.cores {
            while core.stock.len() > share {
                let (key, medium) = core.stock.victim(chance).expect("it holds something");
                core.stock.delete(key, medium, &mut core.namespaces, truth, counters, now);
            }
        }
    }

    /// Whether a change is behind or ahead of a scan that is under way.
    fn note_scans(&mut self, node: u16, shard: ShardIndex, key: KeyId, put: bool) {
        let core = &self.nodes[usize::from(node)].cores[usize::from(shard.0)];
        let stream = core.stock.stream();
        let Some(state) = core.state_key(&self.truth, key) else { return };
        for session in self.sessions.values().filter(|session| session.stream == stream && session.scans()) {
            let Some((namespace, group, block, _)) = session.scan_place() else { continue };
            let behind = (state.namespace.0, state.group.0, state.block.0) <= (namespace, group, block);
            match (put, behind) {
                (true, true) => self.counters.count(Counter::InsertBehindCursor),
                (false, true) => self.counters.count(Counter::DeleteBehindCursor),
                (false, false) => self.counters.count(Counter::DeleteAheadOfCursor),
                (true, false) => {}
            }
        }
    }

    /// Ends residences until the smallest index of all has room for what everybody holds.
    pub(crate) fn shrink_to_fit(&mut self) {
        let journal_records = self.plan.rooms.journal_records as u64;
        let streams_max: u64 = self.plan.nodes.len() as u64 * 4;
        let smallest = (self.plan.nodes.iter())
            .map(|node| node.index_bytes / u64::from(node.shards.max(4)))
            .min()
            .expect("there are nodes");
        // Every stream's rows stay, and one of them is being replaced: 64 bytes a row, 24 more while it
        // is scanned, and as many rows to spare as a source may grow by.
        let spare = journal_records * 88 + crate::plan::INDEX_BYTES_MIN;
        let rows = smallest.saturating_sub(spare) / (streams_max * 64 + 2 * 88);
        for node in 0..self.nodes.len() as u16 {
            let shards = self.nodes[usize::from(node)].cores.len() as u64;
            if shards > 0 {
                self.evict(node, (rows * shards).min(self.load.plan().resident_max));
            }
            for core in 0..self.nodes[usize::from(node)].cores.len() as u16 {
                let place = self.place(node, core);
                self.wake(place);
            }
        }
    }
}
