//! A cluster's keys for an operator's command: reads all of them at one revision and carries one transaction. It
//! decides nothing.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orbitkv_shards::membership::coordinator::{Answer, Failure, Request, Snapshot, Transaction};
use orbitkv_wire::membership::Keyspace;
use tokio::runtime::Runtime;

use super::link::{EtcdAccess, Link};
use super::requests;

/// Longest wait for an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long etcd may be away before a read gives up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// An operator's way to a cluster's keys.
pub struct OperatorKeys {
    runtime: Runtime,
    link: Link,
    space: Keyspace,
}

impl OperatorKeys {
    /// A way to the keys; etcd is not asked yet.
    ///
    /// # Errors
    /// If no runtime can be had.
    pub fn new(access: EtcdAccess, space: Keyspace) -> io::Result<OperatorKeys> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let link = Link::new(Arc::new(access), Arc::default(), 0, Arc::default());
        Ok(OperatorKeys { runtime, link, space })
    }

    /// What stands there.
    ///
    /// # Errors
    /// [`Failure`], without an answer after some seconds.
    pub fn read(&mut self) -> Result<Snapshot, Failure> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.ask(&Request::Read) {
                Ok(Answer::Read(snapshot)) => return Ok(snapshot),
                Ok(answer) => unreachable!("a read is answered with {answer:?}"),
                Err(Failure::Unanswered(_)) if Instant::now() < until => std::thread::sleep(PAUSE),
                Err(failure) => return Err(failure),
            }
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
        let OperatorKeys { runtime, link, space } = self;
        runtime.block_on(requests::ask(link, space, request, ANSWER_WAIT_MAX)).map(|(_, answer)| answer)
    }
}
