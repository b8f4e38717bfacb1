//! Settings that change while the core runs: a letter of control, taken whole between two turns' work.

use orbitkv_shards::time::Moment;

use super::Core;
use crate::settings::Policy;

impl Core {
    /// Lets all of it hold from now on; `version` is what the core reports it by.
    pub(super) fn take_policy(&mut self, (version, policy): (u64, Policy), now: Moment) {
        self.parts.shard.set_audit_interval(policy.audit_interval, now);
        if let Some(peers) = &mut self.parts.peers {
            peers.take_policy(&policy);
        }
        self.policy_version = version;
    }
}
