//! The operator's policy on this node: what its flags say, its copy on disk and the record in etcd, and what of them
//! holds. What is newer and what is for whom is decided by [`SettingsCache`]; here it is understood, kept and told
//! to the cores.

pub mod file;
pub mod view;

use orbitkv_shards::membership::coordinator::Failure;
use orbitkv_shards::resilience::configuration::{
    FetchFault, NoSettings, Published, REFRESH, Refresh, Rollout, SettingsCache, first,
};
use orbitkv_shards::time::Moment;
use orbitkv_wire::config::{ConfigRecord, PLACES, place_hash};
use orbitkv_wire::identity::NodeId;
use tokio::sync::watch as latest;

use super::log::LogFilter;
use super::port::CorePort;
use crate::core::mail::Letter;
use crate::settings::{Overrides, Policy, Rollouts, rollouts};
use file::PolicyFile;
use view::{ConfigView, SettingView, StagedView};

/// Who is told what holds.
pub trait PolicySink: Send {
    /// This holds from now on, under this number.
    fn take(&mut self, version: u64, policy: &Policy);
}

/// The cores, in their mail, and the log.
pub struct CoresAndLog {
    /// The way to the cores.
    pub port: CorePort,
    /// The process's log.
    pub log: LogFilter,
}

impl PolicySink for CoresAndLog {
    fn take(&mut self, version: u64, policy: &Policy) {
        self.port.tell_in_order(|| Letter::Policy(Box::new((version, *policy))));
        self.log.set(policy.log);
    }
}

/// Where what holds is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Flags,
    Disk,
    Etcd,
}

/// What was understood of what etcd has: none if there is no record.
type Found = (Option<ConfigRecord>, Rollouts);

/// Follows the record.
pub struct PolicyFollower {
    flags: Policy,
    place: u32,
    file: PolicyFile,
    cache: SettingsCache<(u64, Overrides)>,
    /// The record in use, if there was ever one.
    record: Option<ConfigRecord>,
    source: Source,
    /// What was told last, and under which number.
    told: (u64, Policy),
    /// When etcd was last read.
    read: Moment,
    refused: String,
    unread: String,
    unread_ms: u64,
    copy: String,
    /// The record in use is not in the copy yet.
    is_unkept: bool,
    sink: Box<dyn PolicySink>,
    sight: latest::Sender<ConfigView>,
}

impl PolicyFollower {
    /// Begins with the copy on disk, if there is a good one, else with the flags. etcd is to be read at once.
    #[must_use]
    pub fn begin(
        flags: Policy,
        node: NodeId,
        file: PolicyFile,
        sink: Box<dyn PolicySink>,
        sight: latest::Sender<ConfigView>,
        now: Moment,
    ) -> PolicyFollower {
        let (disk, copy) = match file.read() {
            Ok(disk) => (disk, String::new()),
            Err(error) => {
                tracing::error!(%error, "the copy of the last good settings is not used");
                (None, format!("{error}; it is not used, and is replaced by the next record that is good"))
            }
        };
        let (record, disk) = disk.unzip();
        // etcd was not asked yet.
        let (published, source) = match first(Err(FetchFault::Unreachable), disk) {
            Ok((published, _)) => (published, Source::Disk),
            Err(NoSettings) => (as_flagged(), Source::Flags),
        };
        let place = Rollout::place(place_hash(node), PLACES);
        let mut follower = PolicyFollower {
            flags,
            place,
            file,
            cache: SettingsCache::new(published, place, REFRESH, now),
            record,
            source,
            told: (0, flags),
            read: now,
            refused: String::new(),
            unread: String::new(),
            unread_ms: 0,
            copy,
            is_unkept: false,
            sink,
            sight,
        };
        follower.tell();
        follower
    }

    /// When etcd is to be read.
    #[must_use]
    pub fn next_deadline(&self) -> Moment {
        self.cache.next_deadline()
    }

    /// The record may have changed, or changes may have been missed: etcd is to be read now.
    pub fn hasten(&mut self, now: Moment) {
        self.cache.hasten(now);
    }

    /// Takes what etcd has; it was asked because that was due.
    pub fn take(&mut self, answer: Result<Option<Vec<u8>>, Failure>, now: Moment) {
        let found = self.understand(answer);
        let outcome = self.cache.tick(now, || match &found {
            Ok((_, published)) => Ok(published.clone()),
            Err((fault, _)) => Err(*fault),
        });
        match (outcome, found) {
            (Refresh::Kept(FetchFault::Unreachable), Err((_, why))) => {
                self.unread_ms = now.since(self.read).as_millis() as u64;
                self.unread = why;
                self.show();
                return;
            }
            (Refresh::Kept(FetchFault::Malformed), Err((_, why))) => self.refuse(why),
            (Refresh::Older, Ok((record, _))) => {
                let ours = self.cache.record().version;
                self.refuse(match record {
                    Some(record) => format!(
                        "record {} is older than record {ours}, which is in use: etcd was restored, or the record was \
                         written by hand",
                        record.number
                    ),
                    None => format!("there is none any more, and record {ours} is in use"),
                });
            }
            (Refresh::Changed, Ok((record, _))) => {
                self.refused.clear();
                self.source = Source::Etcd;
                self.record = record;
                self.is_unkept = true;
            }
            (Refresh::Unchanged, Ok(_)) => {
                self.refused.clear();
                if self.record.is_some() {
                    self.source = Source::Etcd;
                }
            }
            (Refresh::NotDue, _) => return,
            (outcome, found) => unreachable!("{outcome:?} of {found:?}"),
        }
        self.keep();
        (self.read, self.unread_ms) = (now, 0);
        self.unread.clear();
        self.tell();
        tracing::debug!(record = self.cache.record().version, "etcd was asked for the settings");
    }

    fn understand(&self, answer: Result<Option<Vec<u8>>, Failure>) -> Result<Found, (FetchFault, String)> {
        let malformed = |why: String| (FetchFault::Malformed, why);
        let bytes = match answer {
            Err(failure) => return Err((FetchFault::Unreachable, failure.to_string())),
            Ok(None) => return Ok((None, as_flagged())),
            Ok(Some(bytes)) => bytes,
        };
        let record = ConfigRecord::decode(&bytes).map_err(|error| malformed(error.to_string()))?;
        let understood = rollouts(&record).map_err(|error| malformed(error.to_string()))?;
        if let Some(ours) =
            self.record.as_ref().filter(|ours| ours.number == record.number && **ours != record)
        {
            let number = ours.number;
            return Err(malformed(format!(
                "record {number} is not the record {number} that is in use: each change has a number of its own"
            )));
        }
        Ok((Some(record), understood))
    }

    fn refuse(&mut self, why: String) {
        if why != self.refused {
            tracing::error!(why, "the record of settings in etcd is not taken; what held goes on");
        }
        self.refused = why;
    }

    /// Keeps the record in use for a start without etcd, unless it is kept already.
    fn keep(&mut self) {
        let Some(record) = self.record.as_ref().filter(|_| self.is_unkept) else { return };
        let written = self.file.write(record);
        self.is_unkept = written.is_err();
        let copy = written.err().map_or_else(String::new, |error| {
            format!("{error}; it is tried again with each reading of etcd, and has what was kept before until then")
        });
        if self.is_unkept && copy != self.copy {
            tracing::error!(copy, "the record of settings is not kept on disk");
        }
        self.copy = copy;
    }

    /// Tells what holds, if that is something else than was told.
    fn tell(&mut self) {
        let (version, overrides) = self.cache.value();
        let holds = (*version, overrides.over(&self.flags));
        if holds != self.told {
            let (version, policy) = holds;
            tracing::info!(
                version,
                record = self.cache.record().version,
                "settings of the operator's policy"
            );
            self.sink.take(version, &policy);
            self.told = holds;
        }
        self.show();
    }

    fn show(&self) {
        let (version, policy) = self.told;
        let published = self.cache.record();
        let counters = self.cache.counters();
        let staged = published.candidate.as_ref().and_then(|((version, _), rollout)| match rollout {
            Rollout::Staged { admitted, .. } => Some(StagedView {
                version: *version,
                share: *admitted,
                place: self.place,
                is_here: rollout.admits(self.place),
            }),
            Rollout::AllAtOnce => None,
        });
        let setting = |((name, value), (_, flag)): ((&str, String), (&str, String))| {
            let flag = (flag != value).then_some(flag);
            SettingView { name: name.to_owned(), value, flag }
        };
        let source = match self.source {
            Source::Flags => "flags",
            Source::Disk => "disk",
            Source::Etcd => "etcd",
        };
        self.sight.send_replace(ConfigView {
            version,
            record: published.version,
            origin: source.to_owned(),
            staged,
            settings: policy.texts().into_iter().zip(self.flags.texts()).map(setting).collect(),
            refused: self.refused.clone(),
            unread: self.unread.clone(),
            unread_ms: self.unread_ms,
            copy: self.copy.clone(),
            reads: counters.reads,
            unreachable: counters.unreachable,
            malformed: counters.malformed,
            older: counters.older,
        });
    }
}

/// What holds without a record.
fn as_flagged() -> Rollouts {
    Published::settled(0, (0, Overrides::default()))
}

#[cfg(test)]
mod tests;
