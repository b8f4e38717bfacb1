//! What engines do to a node, as a stream of touches: a block that is not on that medium is put, one
//! that is there is deleted and perhaps put again. Repeated blocks come from a set that all nodes
//! share, so that they have replicas.

use orbitkv_wire::identity::{BlockHash, GroupId, Medium, NamespaceDigest};

use crate::plan::LoadPlan;
use crate::random::Random;
use crate::truth::{KeyId, Universe};

/// Blocks that are touched again and again.
const HOT_KEYS: usize = 64;

/// One thing an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Puts the block, or deletes it if it is there.
    Toggle(KeyId, Medium, u32),
    /// Puts the block, ending the residence it has before.
    Renew(KeyId, Medium, u32),
    /// Ends every residence of a namespace.
    Wipe(NamespaceDigest),
}

/// The engines of all nodes.
pub struct Load {
    plan: LoadPlan,
    random: Random,
    namespaces: Vec<NamespaceDigest>,
    hot: Vec<KeyId>,
}

impl Load {
    /// Engines that follow `plan`.
    #[must_use]
    pub fn new(plan: LoadPlan, mut random: Random) -> Load {
        let namespaces = (0..plan.namespaces)
            .map(|_| {
                let mut digest = [0; 32];
                digest[..16].copy_from_slice(&random.bytes());
                digest[16..].copy_from_slice(&random.bytes());
                NamespaceDigest(digest)
            })
            .collect();
        Load { plan, random, namespaces, hot: Vec::new() }
    }

    /// Every namespace there is.
    #[must_use]
    pub fn namespaces(&self) -> &[NamespaceDigest] {
        &self.namespaces
    }

    /// What it follows.
    #[must_use]
    pub fn plan(&self) -> &LoadPlan {
        &self.plan
    }

    /// When a node's engines do something again.
    pub fn gap(&mut self) -> std::time::Duration {
        self.random.micros(&self.plan.gap_us.clone())
    }

    /// What a node's engines do now.
    pub fn burst(&mut self, universe: &mut Universe) -> Vec<Touch> {
        if self.random.chance(self.plan.wipe_permille) {
            return vec![Touch::Wipe(*self.random.pick(&self.namespaces))];
        }
        let storm = if self.random.chance(self.plan.storm_permille) { 20 } else { 1 };
        let touches = storm * self.random.within(&self.plan.burst.clone());
        (0..touches).map(|_| self.touch(universe)).collect()
    }

    /// One thing that an engine does.
    pub fn touch(&mut self, universe: &mut Universe) -> Touch {
        let repeats = !self.hot.is_empty() && self.random.chance(self.plan.repeat_permille);
        let key = if repeats { *self.random.pick(&self.hot) } else { self.fresh(universe) };
        let medium = self.medium();
        let bytes = 1 + self.random.below(1 << 20) as u32;
        if self.random.chance(300) {
            Touch::Renew(key, medium, bytes)
        } else {
            Touch::Toggle(key, medium, bytes)
        }
    }

    /// A block nobody has put yet.
    pub fn fresh(&mut self, universe: &mut Universe) -> KeyId {
        let namespace = *self.random.pick(&self.namespaces);
        let group = GroupId(self.random.below(u64::from(self.plan.groups)) as u16);
        let mut block = [0; 32];
        // Some engines have short hashes, which leave most of a block's name zero.
        block[..16].copy_from_slice(&self.random.bytes());
        if self.random.chance(500) {
            block[8..].fill(0);
        }
        let key = universe.add(namespace, group, BlockHash(block));
        if self.hot.len() < HOT_KEYS {
            self.hot.push(key);
        } else {
            let place = self.random.index(HOT_KEYS);
            self.hot[place] = key;
        }
        key
    }

    /// A medium of the plan's mix.
    pub fn medium(&mut self) -> Medium {
        if self.random.chance(self.plan.ssd_permille) { Medium::Ssd } else { Medium::Dram }
    }
}
