//! Prefetch: what an engine says it will acquire, to the shards that have the keys. It is answered as soon as they
//! have looked, whatever becomes of it then.

use orbitkv_shards::leases::ConnectionId;
use orbitkv_shards::shard::Command;
use orbitkv_shards::time::Moment;
use orbitkv_wire::engine::answers::{OutcomeRecord, PrefetchOutcome};
use orbitkv_wire::engine::requests::{HashRecord, ListRecord, PrefixBody};
use orbitkv_wire::layout::Records;

use super::EngineHub;
use super::job::Collected;
use super::prefix::Prefix;
use super::refusal::Refused;
use super::requests::{Parts, host_memory, split};

impl EngineHub {
    /// Splits the lists of a Prefetch by shard; what is not in DRAM by `until` is given up.
    pub(super) fn prefetch(
        &mut self,
        id: ConnectionId,
        (body, lists, hashes): (&PrefixBody, &[ListRecord], Records<'_, HashRecord>),
        until: Moment,
    ) -> Result<(Collected, Parts), Refused> {
        if self.draining {
            return Err(Refused::draining());
        }
        host_memory(body)?;
        let mut prefix = Prefix::compile(&self.at(id).registered, lists, hashes)?;
        let shards = self.greeting.shards;
        let blank = OutcomeRecord { outcome: PrefetchOutcome::Absent as u8 };
        let outcomes = vec![blank; prefix.blocks()];
        let namespaces = prefix.namespaces.clone();
        let parts = split(
            shards,
            prefix.take_all(),
            |key| key.hash.shard(shards),
            |keys| Command::Prefetch { connection: id, namespaces: namespaces.clone(), keys, until },
        );
        Ok((Collected::Outcomes(outcomes), parts))
    }
}
