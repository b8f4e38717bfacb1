//! A migration of a cluster's keys on real etcd: reads what stands there, carries one transaction, and goes on until
//! the room says that it is done. It decides nothing.

use std::io;
use std::time::{Duration, Instant};

use etcd_client::{Compare, CompareOp, Error, GetOptions, Txn, TxnOp};
use orbitkv_shards::membership::coordinator::{Failure, LeaseId};
use orbitkv_shards::membership::cutover::{Archive, Direction, Exchange, Next, Obstacle, Stand, StandingKey};
use orbitkv_wire::membership::{FORMAT, Keyspace};
use thiserror::Error;

use super::link::{EtcdAccess, unsigned};
use super::operator::{OperatorKeys, PAUSE};

/// Largest answer to a read.
const READ_BYTES_MAX: usize = 64 << 20;
/// Longest wait for an answer, as a read may be megabytes; and how long etcd may be away, or others may change keys under a
/// migration, before it gives up.
const WAIT: Duration = Duration::from_secs(10);

/// Why a migration does not go on. What was done stays, and can be gone on with or taken back.
#[derive(Debug, Error)]
pub enum CutoverFailure {
    /// What stands there forbids it.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// etcd does not answer, or refuses.
    #[error(transparent)]
    Etcd(#[from] Failure),
    /// The name of a key is no text, and an archive is.
    #[error("the key {0} below the cluster's prefix is no text, so it cannot be archived: remove it first")]
    Name(String),
    /// There is no runtime.
    #[error("starting the runtime: {0}")]
    Runtime(#[from] io::Error),
}

/// A cluster's keys, all of them, whoever wrote them.
pub struct Keys {
    keys: OperatorKeys,
}

impl Keys {
    /// A way to the keys; etcd is not asked yet.
    ///
    /// # Errors
    /// If no runtime can be had.
    pub fn new(access: EtcdAccess, space: Keyspace) -> Result<Keys, CutoverFailure> {
        Ok(Keys { keys: OperatorKeys::new(access, space, WAIT)? })
    }

    /// What stands there.
    ///
    /// # Errors
    /// [`CutoverFailure::Etcd`] after ten seconds without an answer, [`CutoverFailure::Name`].
    pub fn read(&mut self) -> Result<Stand, CutoverFailure> {
        let response = self.keys.patiently(|keys| {
            keys.put(async |link, space| {
                let mut reader = link.client().await?.kv_client().max_decoding_message_size(READ_BYTES_MAX);
                let options = GetOptions::new().with_prefix();
                reader.get(space.prefix(), Some(options)).await.map_err(|error| link.on_error(&error))
            })
        })?;
        let space = self.keys.space();
        let revision = response.header().map_or(0, |header| unsigned(header.revision()));
        let key = |pair: &etcd_client::KeyValue| {
            let path = std::str::from_utf8(pair.key()).ok();
            let name = path.and_then(|path| path.strip_prefix(space.prefix()));
            let name = name.ok_or_else(|| CutoverFailure::Name(pair.key().escape_ascii().to_string()))?;
            Ok(StandingKey {
                name: name.to_owned(),
                value: pair.value().to_vec(),
                revision: unsigned(pair.mod_revision()),
                lease: (pair.lease() != 0).then(|| LeaseId(pair.lease())),
            })
        };
        let mut keys = response.kvs().iter().map(key).collect::<Result<Vec<_>, CutoverFailure>>()?;
        keys.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(Stand { revision, keys })
    }

    /// Goes that way to the end; `told` hears the names that each transaction has written.
    ///
    /// # Errors
    /// [`CutoverFailure`].
    pub fn migrate(
        &mut self,
        archive: &Archive,
        direction: Direction,
        mut told: impl FnMut(&Exchange),
    ) -> Result<(), CutoverFailure> {
        let mut until = Instant::now() + WAIT;
        loop {
            let stand = self.read()?;
            let Next::Exchange(exchange) = archive.next(direction, &stand)? else { return Ok(()) };
            match self.exchange(&exchange) {
                Ok(true) => {
                    told(&exchange);
                    until = Instant::now() + WAIT;
                }
                // What was read is old, or the answer was lost: what stands there now says what is next.
                Ok(false) | Err(Failure::Unanswered(_)) if Instant::now() < until => {
                    std::thread::sleep(PAUSE)
                }
                Ok(false) => {
                    let text = "the keys change faster than they can be moved".to_owned();
                    return Err(Failure::Refused(text).into());
                }
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Carries one transaction; whether it happened.
    pub(super) fn exchange(&mut self, exchange: &Exchange) -> Result<bool, Failure> {
        let response = self.keys.put(async |link, space| {
            let mut client = link.client().await?;
            client.txn(translate(space, exchange)).await.map_err(|error: Error| link.on_error(&error))
        })?;
        Ok(response.succeeded())
    }
}

/// The transaction in etcd's words.
fn translate(space: &Keyspace, exchange: &Exchange) -> Txn {
    let path = |name: &str| format!("{}{name}", space.prefix());
    let signed = |revision: u64| i64::try_from(revision).unwrap_or(i64::MAX);
    let (format, revision) = &exchange.format;
    let mut compares = vec![
        Compare::value(path(FORMAT), CompareOp::Equal, format.as_slice()),
        Compare::mod_revision(path(FORMAT), CompareOp::Equal, signed(*revision)),
        Compare::create_revision(space.members(), CompareOp::Equal, 0).with_prefix(),
    ];
    let unchanged = exchange.unchanged.iter();
    compares.extend(
        unchanged
            .map(|(name, revision)| Compare::mod_revision(path(name), CompareOp::Equal, signed(*revision))),
    );
    if let Some(last) = exchange.nothing_after {
        let after = signed(last).saturating_add(1);
        compares.push(Compare::mod_revision(space.prefix(), CompareOp::Less, after).with_prefix());
    }
    let writes = exchange.writes.iter().map(|(name, value)| match value {
        Some(value) => TxnOp::put(path(name), value.as_slice(), None),
        None => TxnOp::delete(path(name), None),
    });
    Txn::new().when(compares).and_then(writes.collect::<Vec<_>>())
}
