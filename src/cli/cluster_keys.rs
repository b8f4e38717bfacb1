//! How a command reaches a cluster's keys in etcd, and how it ends when it may not go on.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use orbitkv_shards::membership::cluster_of;
use orbitkv_shards::membership::coordinator::{Compare, Failure, Snapshot};
use orbitkv_wire::membership::{Key, Keyspace};

use crate::control::etcd::EtcdAccess;
use crate::control::etcd::operator::OperatorKeys;
use crate::exit::Exit;
use crate::settings::{EtcdFiles, EtcdSettings};

/// Longest wait for an answer of etcd, and how long it may be away before a command gives up.
const WAIT: Duration = Duration::from_secs(5);

/// Which etcd, as whom, and which cluster in it.
#[derive(Clone, Debug, Args)]
pub struct ClusterKeys {
    /// Endpoints of etcd, all http:// or all https://
    #[arg(long, value_name = "URL,URL", env = "ORBITKV_ETCD")]
    pub etcd: String,
    /// As whom it is asked.
    #[command(flatten)]
    pub identity: EtcdIdentity,
    /// Cluster whose keys are meant
    #[arg(long, value_name = "NAME", env = "ORBITKV_CLUSTER")]
    pub cluster: String,
}

/// As whom etcd is asked.
#[derive(Clone, Debug, Default, Args)]
pub struct EtcdIdentity {
    /// Certificate of the authority that etcd's certificate is checked against (PEM)
    #[arg(long, value_name = "FILE", env = "ORBITKV_ETCD_CA")]
    etcd_ca: Option<PathBuf>,
    /// Certificate for etcd (PEM); needs --etcd-key
    #[arg(long, value_name = "FILE", env = "ORBITKV_ETCD_CERT")]
    etcd_cert: Option<PathBuf>,
    /// Key of that certificate (PEM, mode 0600)
    #[arg(long, value_name = "FILE", env = "ORBITKV_ETCD_KEY")]
    etcd_key: Option<PathBuf>,
    /// File (mode 0600) with `user:password` for etcd
    #[arg(long, value_name = "FILE", env = "ORBITKV_ETCD_USER_FILE")]
    etcd_user_file: Option<PathBuf>,
}

/// Why a command ends early.
#[derive(Debug)]
pub struct Refusal(pub Exit, pub String);

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        let exit = match &failure {
            Failure::Unanswered(_) => Exit::Unreachable,
            _ => Exit::Environment,
        };
        Refusal(exit, failure.to_string())
    }
}

impl ClusterKeys {
    /// How etcd is reached, and the cluster's keys in it.
    ///
    /// # Errors
    /// What is no name, no address or no file.
    pub fn access(&self) -> Result<(EtcdAccess, Keyspace), Refusal> {
        let usage = |text: String| Refusal(Exit::Usage, text);
        let space = Keyspace::new(&self.cluster).map_err(|error| {
            usage(format!(
                "--cluster {:?}: {error}; use the name that the nodes are started with",
                self.cluster
            ))
        })?;
        let files = EtcdFiles {
            authority: self.identity.etcd_ca.clone(),
            certificate: self.identity.etcd_cert.clone(),
            key: self.identity.etcd_key.clone(),
            user: self.identity.etcd_user_file.clone(),
        };
        let settings = EtcdSettings::resolve(&self.etcd, files).map_err(|error| usage(error.to_string()))?;
        let access = EtcdAccess::of(&settings).map_err(|error| usage(error.to_string()))?;
        Ok((access, space))
    }

    /// The way to the keys, and what stands there; the cluster must be of our format.
    ///
    /// # Errors
    /// What stands against it.
    pub fn open(&self) -> Result<(OperatorKeys, Snapshot), Refusal> {
        let (access, space) = self.access()?;
        let keys = OperatorKeys::new(access, space, WAIT);
        let mut keys =
            keys.map_err(|error| Refusal(Exit::Environment, format!("starting the runtime: {error}")))?;
        let snapshot = keys.read()?;
        let Some(format) = snapshot.get(Key::Format) else {
            let text = format!(
                "there is no cluster {:?} in this etcd: no node has joined it yet; look at --cluster and --etcd",
                self.cluster
            );
            return Err(Refusal(Exit::Unmet, text));
        };
        cluster_of(format, None).map_err(|refusal| Refusal(Exit::Unmet, refusal.to_string()))?;
        Ok((keys, snapshot))
    }
}

/// Whatever is written is written to the cluster that was read.
#[must_use]
pub fn same_format(snapshot: &Snapshot) -> Compare {
    let format = snapshot.get(Key::Format).expect("looked at when it was opened");
    Compare::Value(Key::Format, format.value.clone())
}
