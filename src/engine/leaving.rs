//! How connections end: the socket first, then what their process still holds.
//!
//! A closed socket ends requests and holds. Slots and leases that its process may still touch stay until the process is
//! gone, or says that it uses nothing of them.

use orbitkv_shards::leases::ConnectionId;
use orbitkv_shards::shard::Command;
use orbitkv_wire::identity::ShardIndex;

use super::connection::{Connection, Phase};
use super::{EngineHub, Errand};

/// A closed connection whose shards are asked whether its process still has claims.
pub(super) struct Leaving {
    connection: ConnectionId,
    outstanding: u16,
    claims: bool,
}

impl EngineHub {
    /// The socket is closed; its process may live. Its requests are given up and its holds end.
    pub fn on_closed(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.phase == Phase::Closed {
            return;
        }
        self.counters.take_in(connection.ledger.counters());
        connection.close();
        self.trace.drop_answers(id.0);
        if let Some(at) = connection.ledger_look_at.take() {
            self.ledger_looks.remove(&(at, id));
        }
        let numbers: Vec<u64> = connection.requests.values().copied().collect();
        numbers.into_iter().for_each(|number| self.give_up(number, false));
        // Whatever it asked for has been sent before this, so the shards' answers are final: without
        // claims now, it never has any again.
        let number = self.next_job;
        self.next_job += 1;
        let shards = self.greeting.shards;
        self.leaving.insert(number, Leaving { connection: id, outstanding: shards, claims: false });
        let tag = self.tag(number);
        let commands =
            (0..shards).map(|shard| (ShardIndex(shard), tag, Command::Disconnected { connection: id }));
        self.errands.push_back(Errand::Commands(commands.collect()));
    }

    /// A shard has said whether the process of a closed connection has claims.
    pub(super) fn on_disconnected(&mut self, number: u64, claims: bool) {
        let leaving = self.leaving.get_mut(&number).expect("asked when the connection closed");
        leaving.claims |= claims;
        leaving.outstanding -= 1;
        if leaving.outstanding > 0 {
            return;
        }
        let leaving = self.leaving.remove(&number).expect("it was there");
        if !leaving.claims {
            self.errands.push_back(Errand::Forget(leaving.connection));
        }
    }

    /// Forgets a closed connection without claims; whether it was still known.
    pub fn forget(&mut self, id: ConnectionId) -> bool {
        let forgotten = self.connections.remove(&id).is_some();
        if forgotten {
            self.errands.push_back(Errand::Unregister(id));
        }
        forgotten
    }

    /// The process is gone, or says so itself: everything it had ends.
    pub fn on_process_gone(&mut self, id: ConnectionId) {
        if self.connections.contains_key(&id) {
            self.on_closed(id);
            self.connections.remove(&id);
            self.counters.process_deaths += 1;
            self.end(id);
        }
    }

    /// Ends whatever a connection's process had, everywhere.
    fn end(&mut self, id: ConnectionId) {
        self.broadcast(&|| Command::Gone { connection: id });
        self.errands.push_back(Errand::Unregister(id));
    }

    /// `process_id` says that it lost connection `id` and uses nothing of it. Only that process is
    /// believed; its word may come before the end of the old socket does. Returns whether it was.
    pub fn on_abandoned(&mut self, id: ConnectionId, process_id: u32) -> bool {
        // Processes of pid namespaces that we cannot see all have number 0: none of them is believed.
        let same = |connection: &Connection| connection.process_id == process_id && process_id != 0;
        let believed = self.connections.get(&id).is_some_and(same);
        if believed {
            self.on_closed(id);
            self.connections.remove(&id);
            self.end(id);
        }
        believed
    }
}
