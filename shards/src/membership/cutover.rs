//! Moving a cluster's keys from the format of another program to ours, and back: what becomes of each key, and by
//! which transactions. Pure: what stands in etcd and an archive in, one transaction out.
//!
//! It is made while no node is registered, in steps of which each is decided anew on what stands there:
//!
//! | `format` holds | moving on | going back |
//! | --- | --- | --- |
//! | what the archive has | put the mark, if all keys are exactly those of the archive | done |
//! | the mark of this archive | remove what our format does not have, then put our format | put back what was removed, then the old format |
//! | our format | done | put the mark |
//!
//! So whoever is interrupted begins again anywhere, in either direction. With the mark no program registers. Epochs
//! are never lowered: moving on leaves them, and going back leaves what has grown since.

use orbitkv_wire::identity::ClusterUuid;
use orbitkv_wire::membership::{
    CONFIG, FORMAT, Format, Key, MEMBERS, cluster_of_any, decode_epoch, migration_mark,
};
use thiserror::Error;

use super::coordinator::LeaseId;

/// Most keys that one transaction writes: etcd takes 128 operations unless told otherwise.
pub const EXCHANGE_WRITES_MAX: usize = 64;
/// Most bytes of values that one transaction puts, if it puts more than one: etcd takes 1.5 MiB.
pub const EXCHANGE_BYTES_MAX: usize = 512 * 1024;

/// A key below the cluster's prefix as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingKey {
    /// Its name below the prefix.
    pub name: String,
    /// What it holds.
    pub value: Vec<u8>,
    /// Revision of its last change.
    pub revision: u64,
    /// The lease it hangs on, if it does.
    pub lease: Option<LeaseId>,
}

/// All keys below the prefix at one revision, whoever wrote them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stand {
    /// The revision.
    pub revision: u64,
    /// Every key once, ascending by name.
    pub keys: Vec<StandingKey>,
}

impl Stand {
    /// The key of this name, if it is there.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&StandingKey> {
        let place = self.keys.binary_search_by(|key| key.name.as_str().cmp(name)).ok()?;
        Some(&self.keys[place])
    }
}

/// A key as it stood when the archive was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedKey {
    /// Its name below the prefix.
    pub name: String,
    /// What it held.
    pub value: Vec<u8>,
    /// Revision of its last change.
    pub revision: u64,
}

/// What a migration began with and leads to: enough to go on, and to go back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    /// Identity of the migration.
    pub id: [u8; 16],
    /// Name of the cluster.
    pub cluster: String,
    /// Revision at which the keys were read.
    pub revision: u64,
    /// What `format` holds afterwards.
    pub format: Vec<u8>,
    /// Every key, ascending by name; `format` among them.
    pub keys: Vec<ArchivedKey>,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To our format.
    Onward,
    /// To what the archive has.
    Back,
}

/// What becomes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It holds this afterwards.
    Replaced(Vec<u8>),
    /// It goes.
    Removed,
    /// What was removed comes again.
    PutBack(Vec<u8>),
    /// It is an epoch below the one in the archive, and is raised to it.
    Raised(u64),
    /// It stays as it is, for this reason.
    Stays(&'static str),
}

/// A key and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name below the prefix.
    pub name: String,
    /// What becomes of it.
    pub fate: Fate,
}

/// Why nothing is done. Whatever was done before stays, and can be gone on with or taken back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Obstacle {
    /// There is nothing to move.
    #[error("the cluster has no format: there is nothing to migrate; look at the cluster's name")]
    NoFormat,
    /// It has our format.
    #[error("the cluster's format is this program's already: there is nothing to migrate")]
    Current,
    /// Somebody is registered.
    #[error("{} registered: {}; stop every node first", count(.0.len()), .0.join(", "))]
    Members(Vec<String>),
    /// A key hangs on a lease, so who wrote it lives.
    #[error("the key `{0}` hangs on a lease: a process of the other format lives; stop it first")]
    Alive(String),
    /// An epoch cannot be read.
    #[error(
        "`{0}` holds no epoch, a decimal number: nobody could go on above it; write the number there first"
    )]
    Epoch(String),
    /// A key is not what it has to be.
    #[error(
        "`{0}` is not as the archive has it: make a new archive if nothing was moved yet, else put it there as it was, or remove it"
    )]
    Changed(String),
    /// The format is neither before, during nor after this migration.
    #[error(
        "the cluster's format is `{0}`, which this archive knows nothing of; name the archive of the migration to it"
    )]
    Foreign(String),
    /// A migration is under way.
    #[error(
        "a migration with another archive is under way (`{0}`): go on with that archive, or roll it back"
    )]
    UnderWay(String),
}

fn count(members: usize) -> String {
    if members == 1 { "a node is".to_owned() } else { format!("{members} nodes are") }
}

/// What stands there, if all of it is still so when it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// What `format` holds, and the revision of its last change.
    pub format: (Vec<u8>, u64),
    /// Names and revisions of other keys that are written; 0 is absent.
    pub unchanged: Vec<(String, u64)>,
    /// No key below the prefix was changed after this revision, if one is named.
    pub nothing_after: Option<u64>,
    /// Names and what they hold from then on; none is absent.
    pub writes: Vec<(String, Option<Vec<u8>>)>,
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is done.
    Done,
    /// This transaction, which also wants that there is no member.
    Exchange(Exchange),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Old,
    Marked,
    New,
}

impl Archive {
    /// What a migration of these keys begins with. `cluster_draft` is the cluster's identity if the old format tells
    /// none.
    ///
    /// # Errors
    /// [`Obstacle`].
    pub fn of(
        cluster: &str,
        stand: &Stand,
        id: [u8; 16],
        cluster_draft: ClusterUuid,
    ) -> Result<Archive, Obstacle> {
        let format = stand.get(FORMAT).ok_or(Obstacle::NoFormat)?;
        if Format::decode(&format.value).is_ok() {
            return Err(Obstacle::Current);
        }
        if format.value.starts_with(b"migration ") {
            return Err(Obstacle::UnderWay(shown(&format.value)));
        }
        nobody_lives(stand)?;
        let cluster_uuid = cluster_of_any(&format.value).unwrap_or(cluster_draft);
        let keys = stand.keys.iter().map(|key| ArchivedKey {
            name: key.name.clone(),
            value: key.value.clone(),
            revision: key.revision,
        });
        let archive = Archive {
            id,
            cluster: cluster.to_owned(),
            revision: stand.revision,
            format: Format { cluster: cluster_uuid }.encode().into_bytes(),
            keys: keys.collect(),
        };
        // What cannot be moved is said before anything is written.
        archive.changes(Direction::Onward, stand).map(|_| archive)
    }

    fn get(&self, name: &str) -> Option<&ArchivedKey> {
        let place = self.keys.binary_search_by(|key| key.name.as_str().cmp(name)).ok()?;
        Some(&self.keys[place])
    }

    fn mark(&self) -> Vec<u8> {
        migration_mark(self.id).into_bytes()
    }

    fn phase(&self, stand: &Stand) -> Result<Phase, Obstacle> {
        let found = &stand.get(FORMAT).ok_or(Obstacle::NoFormat)?.value;
        let old = self.get(FORMAT).ok_or(Obstacle::NoFormat)?;
        match found {
            found if *found == old.value => Ok(Phase::Old),
            found if *found == self.mark() => Ok(Phase::Marked),
            found if *found == self.format => Ok(Phase::New),
            found if found.starts_with(b"migration ") => Err(Obstacle::UnderWay(shown(found))),
            found => Err(Obstacle::Foreign(shown(found))),
        }
    }

    /// What becomes of each key from here on: those that stand there and those that come again, ascending by name.
    ///
    /// # Errors
    /// [`Obstacle`].
    pub fn changes(&self, direction: Direction, stand: &Stand) -> Result<Vec<Change>, Obstacle> {
        let phase = self.phase(stand)?;
        let is_done = match direction {
            Direction::Onward => phase == Phase::New,
            Direction::Back => phase == Phase::Old,
        };
        if is_done {
            let stays = |key: &StandingKey| Change { name: key.name.clone(), fate: Fate::Stays("done") };
            return Ok(stand.keys.iter().map(stays).collect());
        }
        nobody_lives(stand)?;
        match direction {
            Direction::Onward => self.onward(phase, stand),
            Direction::Back => self.back(stand),
        }
    }

    fn onward(&self, phase: Phase, stand: &Stand) -> Result<Vec<Change>, Obstacle> {
        if phase == Phase::Old {
            let gone = self.keys.iter().find(|key| stand.get(&key.name).is_none());
            if let Some(key) = gone {
                return Err(Obstacle::Changed(key.name.clone()));
            }
        }
        let changes = stand.keys.iter().map(|key| {
            let archived = self.get(&key.name);
            let is_same = archived.is_some_and(|old| old.value == key.value && old.revision == key.revision);
            let is_put_back = phase == Phase::Marked && archived.is_some_and(|old| old.value == key.value);
            let changed = || Err(Obstacle::Changed(key.name.clone()));
            if phase == Phase::Old && !is_same {
                return changed();
            }
            let fate = match Key::of_name(&key.name) {
                Some(Key::Format) => Fate::Replaced(self.format.clone()),
                Some(Key::Epoch(_) | Key::EpochFloor) => {
                    epoch(key)?;
                    Fate::Stays("epochs go on")
                }
                _ if key.name.starts_with(CONFIG) => Fate::Stays("the operator's policy"),
                _ if is_same || is_put_back => Fate::Removed,
                _ => return changed(),
            };
            Ok(Change { name: key.name.clone(), fate })
        });
        changes.collect()
    }

    fn back(&self, stand: &Stand) -> Result<Vec<Change>, Obstacle> {
        let floor = stand.keys.iter().find(|key| Key::of_name(&key.name) == Some(Key::EpochFloor));
        let floor = floor.map_or(Ok(0), epoch)?;
        let mut changes = Vec::new();
        for key in &stand.keys {
            let old = self.get(&key.name);
            let fate = match Key::of_name(&key.name) {
                Some(Key::Format) => {
                    Fate::Replaced(self.get(FORMAT).expect("the phase has found it").value.clone())
                }
                Some(Key::Epoch(_) | Key::EpochFloor) => {
                    let (now, then) = (epoch(key)?, old.map_or(Ok(0), archived_epoch)?);
                    if now < then { Fate::Raised(then) } else { Fate::Stays("epochs go on") }
                }
                _ if key.name.starts_with(CONFIG) => Fate::Stays("the operator's policy"),
                _ => match old {
                    None => Fate::Stays("not of the archive"),
                    Some(old) if old.value == key.value => Fate::Stays("as it was"),
                    Some(_) => return Err(Obstacle::Changed(key.name.clone())),
                },
            };
            changes.push(Change { name: key.name.clone(), fate });
        }
        for old in self.keys.iter().filter(|old| stand.get(&old.name).is_none()) {
            let fate = match Key::of_name(&old.name) {
                // Cleaned up since, by a floor that is above it: whoever comes begins above that.
                Some(Key::Epoch(_)) if archived_epoch(old)? <= floor => continue,
                Some(Key::Epoch(_) | Key::EpochFloor) => Fate::Raised(archived_epoch(old)?),
                _ if old.name.starts_with(CONFIG) => continue,
                _ => Fate::PutBack(old.value.clone()),
            };
            changes.push(Change { name: old.name.clone(), fate });
        }
        changes.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(changes)
    }

    /// The next transaction that way.
    ///
    /// # Errors
    /// [`Obstacle`].
    pub fn next(&self, direction: Direction, stand: &Stand) -> Result<Next, Obstacle> {
        let changes = self.changes(direction, stand)?;
        let format = stand.get(FORMAT).ok_or(Obstacle::NoFormat)?;
        let stood = (format.value.clone(), format.revision);
        let put_format = |text: Vec<u8>| {
            Next::Exchange(Exchange {
                format: stood.clone(),
                unchanged: Vec::new(),
                nothing_after: Some(stand.revision),
                writes: vec![(FORMAT.to_owned(), Some(text))],
            })
        };
        let Some(goal) = changes.iter().find_map(|change| match &change.fate {
            Fate::Replaced(text) => Some(text.clone()),
            _ => None,
        }) else {
            return Ok(Next::Done);
        };
        if self.phase(stand)? != Phase::Marked {
            return Ok(put_format(self.mark()));
        }
        let mut writes: Vec<(String, Option<Vec<u8>>)> = Vec::new();
        let mut bytes = 0;
        for Change { name, fate } in changes {
            let value = match fate {
                Fate::Removed => None,
                Fate::PutBack(value) => Some(value),
                Fate::Raised(epoch) => Some(epoch.to_string().into_bytes()),
                Fate::Replaced(_) | Fate::Stays(_) => continue,
            };
            bytes += value.as_ref().map_or(0, Vec::len);
            if writes.len() == EXCHANGE_WRITES_MAX || (bytes > EXCHANGE_BYTES_MAX && !writes.is_empty()) {
                break;
            }
            writes.push((name, value));
        }
        if writes.is_empty() {
            return Ok(put_format(goal));
        }
        let revision = |name: &str| stand.get(name).map_or(0, |key| key.revision);
        let unchanged = writes.iter().map(|(name, _)| (name.clone(), revision(name))).collect();
        Ok(Next::Exchange(Exchange { format: stood, unchanged, nothing_after: None, writes }))
    }
}

/// Nobody is registered, and nothing else hangs on a lease.
fn nobody_lives(stand: &Stand) -> Result<(), Obstacle> {
    let members = stand.keys.iter().filter_map(|key| key.name.strip_prefix(MEMBERS));
    let members: Vec<String> = members.map(str::to_owned).collect();
    if !members.is_empty() {
        return Err(Obstacle::Members(members));
    }
    let alive = stand.keys.iter().find(|key| key.lease.is_some());
    alive.map_or(Ok(()), |key| Err(Obstacle::Alive(key.name.clone())))
}

fn epoch(key: &StandingKey) -> Result<u64, Obstacle> {
    decode_epoch(&key.value).ok_or_else(|| Obstacle::Epoch(key.name.clone()))
}

fn archived_epoch(key: &ArchivedKey) -> Result<u64, Obstacle> {
    decode_epoch(&key.value).ok_or_else(|| Obstacle::Epoch(key.name.clone()))
}

/// The beginning of a text, on one line.
fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(120)]).trim().escape_debug().to_string()
}

#[cfg(test)]
mod tests;
