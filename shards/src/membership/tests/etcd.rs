//! etcd as one would explain it: a map, a revision, a list of what happened, and leases.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::membership::Key;

use crate::membership::coordinator::*;
use crate::time::Moment;

#[derive(Clone, Debug)]
struct Stored {
    value: Vec<u8>,
    revision: u64,
    version: u64,
    lease: Option<LeaseId>,
}

#[derive(Clone)]
pub struct Etcd {
    pub id: u64,
    pub revision: u64,
    pub compacted: u64,
    pub full: bool,
    keys: BTreeMap<Key, Stored>,
    pub history: Vec<Event>,
    leases: BTreeMap<LeaseId, (Moment, Duration)>,
    leases_made: i64,
}

impl Etcd {
    pub fn new(id: u64) -> Etcd {
        Etcd {
            id,
            revision: 1,
            compacted: 0,
            full: false,
            keys: BTreeMap::new(),
            history: Vec::new(),
            leases: BTreeMap::new(),
            leases_made: 0,
        }
    }

    pub fn header(&self) -> Header {
        Header { coordinator: self.id, revision: self.revision }
    }

    pub fn value(&self, key: Key) -> Option<&[u8]> {
        self.keys.get(&key).map(|stored| stored.value.as_slice())
    }

    pub fn snapshot(&self) -> Snapshot {
        let entry = |(&key, stored): (&Key, &Stored)| Entry {
            key,
            value: stored.value.clone(),
            revision: stored.revision,
            version: stored.version,
            lease: stored.lease,
        };
        Snapshot { revision: self.revision, entries: self.keys.iter().map(entry).collect() }
    }

    pub fn expire(&mut self, now: Moment) {
        let over: Vec<LeaseId> =
            self.leases.iter().filter(|(_, (end, _))| *end <= now).map(|(id, _)| *id).collect();
        over.into_iter().for_each(|lease| self.revoke(lease));
    }

    fn revoke(&mut self, lease: LeaseId) {
        if self.leases.remove(&lease).is_none() {
            return;
        }
        let gone: Vec<Key> =
            self.keys.iter().filter(|(_, stored)| stored.lease == Some(lease)).map(|(key, _)| *key).collect();
        if !gone.is_empty() {
            self.write(&gone.into_iter().map(Write::Delete).collect::<Vec<_>>());
        }
    }

    pub fn write(&mut self, writes: &[Write]) {
        let revision = self.revision + 1;
        let before = self.history.len();
        for write in writes {
            match write {
                Write::Put(key, value, lease) => {
                    let version = self.keys.get(key).map_or(0, |stored| stored.version) + 1;
                    let value = value.clone();
                    self.keys.insert(*key, Stored { value: value.clone(), revision, version, lease: *lease });
                    self.history.push(Event { key: *key, revision, put: Some(Put { value, version }) });
                }
                Write::Delete(key) => {
                    if self.keys.remove(key).is_some() {
                        self.history.push(Event { key: *key, revision, put: None });
                    }
                }
            }
        }
        if self.history.len() > before {
            self.revision = revision;
        }
    }

    pub fn serve(&mut self, request: &Request, now: Moment) -> Result<(Header, Answer), Failure> {
        self.expire(now);
        let answer = match request {
            Request::Read => Answer::Read(self.snapshot()),
            Request::Lookup(node) => Answer::LookedUp(self.snapshot().get(Key::Member(*node)).cloned()),
            Request::Grant(length) => {
                self.leases_made += 1;
                let lease = LeaseId(self.leases_made);
                self.leases.insert(lease, (now + *length, *length));
                Answer::Granted(lease, *length)
            }
            Request::Transact(transaction) => self.transact(transaction)?,
            Request::TimeToLive(lease) => {
                Answer::TimeToLive(self.leases.get(lease).map(|(end, _)| end.since(now)))
            }
            Request::Revoke(lease) => {
                self.revoke(*lease);
                Answer::Revoked
            }
        };
        Ok((self.header(), answer))
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<Answer, Failure> {
        if self.full {
            return Err(Failure::NoSpace);
        }
        let holds = transaction.compares.iter().all(|compare| match compare {
            Compare::Revision(key, revision) => {
                self.keys.get(key).map_or(0, |stored| stored.revision) == *revision
            }
            Compare::Value(key, value) => self.keys.get(key).is_some_and(|stored| stored.value == *value),
            Compare::NoMembers => !self.keys.keys().any(|key| matches!(key, Key::Member(_))),
        });
        if !holds {
            return Ok(Answer::Transacted(false));
        }
        for write in &transaction.writes {
            if let Write::Put(_, _, Some(lease)) = write
                && !self.leases.contains_key(lease)
            {
                return Err(Failure::LeaseGone);
            }
        }
        self.write(&transaction.writes);
        Ok(Answer::Transacted(true))
    }

    pub fn renew(&mut self, lease: LeaseId, now: Moment) -> (Header, Option<Duration>) {
        self.expire(now);
        let header = self.header();
        let Some((end, length)) = self.leases.get_mut(&lease) else { return (header, None) };
        *end = now + *length;
        (header, Some(*length))
    }

    /// What a watch that has delivered everything up to `after` says next.
    pub fn events_after(&self, after: u64) -> News {
        if after < self.compacted {
            return News::Compacted;
        }
        News::Events(self.history.iter().filter(|event| event.revision > after).cloned().collect())
    }
}
