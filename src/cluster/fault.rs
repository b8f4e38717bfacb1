//! Faults of a cluster's processes on purpose: killed, paused, started again.

use std::ops::Range;

use rustix::process::Signal;

use super::child::{ChildProcess, end_all};
use super::{Cluster, ClusterFailure};
use crate::control::signals::StopSignals;

/// A process of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The node of this number.
    Node(usize),
    /// Its etcd.
    Etcd,
}

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGTERM, and waiting until it has ended.
    Terminate,
    /// SIGSTOP.
    Pause,
    /// SIGCONT.
    Resume,
    /// It is started again, at the same addresses and with the same directories.
    Restart,
}

impl Cluster {
    fn process(&mut self, target: Target) -> &mut ChildProcess {
        match target {
            Target::Node(at) => &mut self.nodes[at].process,
            Target::Etcd => &mut self.etcd.as_mut().expect("the cluster's own etcd").process,
        }
    }

    /// Does this to a process. A node that is started again serves when this returns, and etcd takes writes; an end on
    /// purpose is no news for [`Cluster::obituaries`].
    ///
    /// # Errors
    /// If it does not start.
    ///
    /// # Panics
    /// If there is no such node, or the etcd is not the cluster's own.
    pub fn strike(
        &mut self,
        target: Target,
        fault: Fault,
        signals: &StopSignals,
    ) -> Result<(), ClusterFailure> {
        match fault {
            Fault::Kill => self.process(target).kill(),
            Fault::Terminate => end_all(std::iter::once(self.process(target))),
            Fault::Pause => self.process(target).signal(Signal::STOP),
            Fault::Resume => self.process(target).signal(Signal::CONT),
            Fault::Restart => return self.restart(target, signals),
        }
        if matches!(fault, Fault::Kill | Fault::Terminate) {
            match target {
                Target::Node(at) => self.nodes[at].told = true,
                Target::Etcd => self.etcd_told = true,
            }
        }
        Ok(())
    }

    /// Starts nodes again that were killed, all at once, at the same addresses and with the same directories; they serve
    /// when this returns.
    ///
    /// # Errors
    /// If one does not start.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn restart_nodes(
        &mut self,
        nodes: Range<usize>,
        signals: &StopSignals,
    ) -> Result<(), ClusterFailure> {
        for at in nodes.clone() {
            self.nodes[at] = self.spawn(at)?;
        }
        self.nodes[nodes].iter_mut().try_for_each(|node| node.await_ready(signals))
    }

    fn restart(&mut self, target: Target, signals: &StopSignals) -> Result<(), ClusterFailure> {
        match target {
            Target::Node(at) => {
                self.nodes[at] = self.spawn(at)?;
                self.nodes[at].await_ready(signals)
            }
            Target::Etcd => {
                let etcd = self.etcd.as_ref().expect("the cluster's own etcd").spawn_again(&self.run)?;
                self.etcd_told = false;
                self.etcd.insert(etcd).await_healthy(signals)
            }
        }
    }
}
