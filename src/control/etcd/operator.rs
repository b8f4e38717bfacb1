//! A cluster's keys for an operator's command: waits for an etcd that is away, reads all of them at one revision and
//! carries one transaction. It decides nothing.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orbitkv_shards::membership::coordinator::{Answer, Failure, Request, Snapshot, Transaction};
use orbitkv_wire::membership::Keyspace;
use tokio::runtime::Runtime;

use super::link::{EtcdAccess, Link};
use super::requests;

/// Between two tries.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

/// An operator's way to a cluster's keys.
pub struct OperatorKeys {
    runtime: Runtime,
    link: Link,
    space: Keyspace,
    wait: Duration,
}

impl OperatorKeys {
    /// A way to the keys; etcd is not asked yet. An answer may take as long as `wait`, and etcd may be away as long before
    /// a read gives up.
    ///
    /// # Errors
    /// If no runtime can be had.
    pub fn new(access: EtcdAccess, space: Keyspace, wait: Duration) -> io::Result<OperatorKeys> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let link = Link::new(Arc::new(access), Arc::default(), 0, Arc::default());
        Ok(OperatorKeys { runtime, link, space, wait })
    }

    /// What stands there.
    ///
    /// # Errors
    /// [`Failure`], without an answer after the wait.
    pub fn read(&mut self) -> Result<Snapshot, Failure> {
        match self.patiently(|keys| keys.ask(&Request::Read))? {
            Answer::Read(snapshot) => Ok(snapshot),
            answer => unreachable!("a read is answered with {answer:?}"),
        }
    }

    /// Carries a transaction, once; whether its conditions held.
    ///
    /// # Errors
    /// [`Failure`]; after [`Failure::Unanswered`] it may have happened.
    pub fn transact(&mut self, transaction: Transaction) -> Result<bool, Failure> {
        match self.ask(&Request::Transact(transaction))? {
            Answer::Transacted(happened) => Ok(happened),
            answer => unreachable!("a transaction is answered with {answer:?}"),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, Failure> {
        let OperatorKeys { runtime, link, space, wait } = self;
        runtime.block_on(requests::ask(link, space, request, *wait)).map(|(_, answer)| answer)
    }

    /// The cluster's part of etcd.
    pub(super) fn space(&self) -> &Keyspace {
        &self.space
    }

    /// Asks something once that no [`Request`] asks, and waits for the answer no longer than it may take.
    pub(super) fn put<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut Link, &Keyspace) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let OperatorKeys { runtime, link, space, wait } = self;
        runtime.block_on(async {
            match tokio::time::timeout(*wait, question(link, space)).await {
                Ok(answer) => answer,
                Err(_) => Err(link.on_silence()),
            }
        })
    }

    /// Asks again and again until there is an answer, or none for as long as etcd may be away.
    pub(super) fn patiently<T>(
        &mut self,
        mut ask: impl FnMut(&mut OperatorKeys) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let until = Instant::now() + self.wait;
        loop {
            match ask(self) {
                Err(Failure::Unanswered(_)) if Instant::now() < until => std::thread::sleep(PAUSE),
                asked => return asked,
            }
        }
    }
}
