//! A connection to etcd: one endpoint at a time, the next one after a failure, and what failures mean.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use orbitkv_shards::membership::coordinator::{Failure, Header};

use crate::settings::{EtcdSettings, SettingsError, read_file};

/// Longest wait for a connection.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(2);

// Codes of gRPC, which `etcd_client` does not name.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNAUTHENTICATED: i32 = 16;

/// How etcd is reached: its endpoints, and who this node is to it.
#[derive(Clone, Debug)]
pub struct EtcdAccess {
    /// URLs, at least one.
    pub endpoints: Vec<String>,
    /// Certificates and user.
    pub options: ConnectOptions,
}

impl EtcdAccess {
    /// What the settings say, with the files that they name.
    ///
    /// # Errors
    /// A file that cannot be read, that others may read, or that does not hold what it should.
    pub fn of(settings: &EtcdSettings) -> Result<EtcdAccess, SettingsError> {
        // A member of etcd that has lost its quorum shall say so and not hang.
        let mut options = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(true);
        if let Some(authority) = &settings.authority {
            let authority = Certificate::from_pem(read_file("--etcd-ca", authority, false)?);
            let mut tls = TlsOptions::new().ca_certificate(authority);
            if let Some((certificate, key)) = &settings.identity {
                let certificate = read_file("--etcd-cert", certificate, false)?;
                tls = tls.identity(Identity::from_pem(certificate, read_file("--etcd-key", key, true)?));
            }
            options = options.with_tls(tls);
        }
        if let Some((user, password)) = settings.user()? {
            options = options.with_user(user, password);
        }
        Ok(EtcdAccess { endpoints: settings.endpoints.clone(), options })
    }
}

/// What etcd was asked, and the bytes of keys and values that went each way.
#[derive(Debug, Default)]
pub struct Meter {
    requests: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

/// A reading of a [`Meter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests, renewals and signs of life included.
    pub requests: u64,
    /// Bytes of keys and values sent.
    pub sent_bytes: u64,
    /// Bytes of keys and values received.
    pub received_bytes: u64,
}

impl Meter {
    pub(super) fn count_request(&self, sent_bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(sent_bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn count_received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// What was counted so far.
    #[must_use]
    pub fn read(&self) -> Traffic {
        Traffic {
            requests: self.requests.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
        }
    }
}

/// The id of the etcd cluster that has answered first.
pub(super) type FirstAnswer = Arc<OnceLock<u64>>;

/// One task's way to etcd.
pub(super) struct Link {
    access: Arc<EtcdAccess>,
    first_answer: FirstAnswer,
    place: usize,
    client: Option<Client>,
    pub meter: Arc<Meter>,
}

impl Link {
    /// A link that begins with the endpoint of this number, counted around.
    pub fn new(access: Arc<EtcdAccess>, first_answer: FirstAnswer, place: u64, meter: Arc<Meter>) -> Link {
        let place = (place % access.endpoints.len() as u64) as usize;
        Link { access, first_answer, place, client: None, meter }
    }

    /// A client of the present endpoint.
    pub async fn client(&mut self) -> Result<Client, Failure> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let endpoint = self.access.endpoints[self.place].clone();
        let options = self.access.options.clone();
        let connect = Client::connect([&endpoint], Some(options));
        match tokio::time::timeout(CONNECT_WAIT_MAX, connect).await {
            Ok(Ok(client)) => Ok(self.client.insert(client).clone()),
            Ok(Err(error)) => Err(self.on_error(&error)),
            Err(_) => Err(self.on_silence()),
        }
    }

    /// What an error means. If it is about the connection, the next endpoint is next.
    pub fn on_error(&mut self, error: &Error) -> Failure {
        let failure = meaning(error, &self.access.endpoints[self.place]);
        if let Failure::Unanswered(_) | Failure::Denied(_) = failure {
            self.turn();
        }
        failure
    }

    /// Nothing came in time.
    pub fn on_silence(&mut self) -> Failure {
        let failure = Failure::Unanswered(format!("{} is silent", self.access.endpoints[self.place]));
        self.turn();
        failure
    }

    /// Looks at whose answer has come; whether it is another etcd's. Nobody believes that one, and the endpoint may be
    /// the only one of its kind: the next one is next.
    pub fn check(&mut self, header: Header) -> bool {
        let is_foreign = *self.first_answer.get_or_init(|| header.coordinator) != header.coordinator;
        if is_foreign {
            self.turn();
        }
        is_foreign
    }

    /// The present endpoint has failed. If that was an error, the next one is next already.
    pub fn leave(&mut self) {
        if self.client.is_some() {
            self.turn();
        }
    }

    /// The next endpoint is next.
    pub fn turn(&mut self) {
        self.client = None;
        self.place = (self.place + 1) % self.access.endpoints.len();
    }
}

fn meaning(error: &Error, endpoint: &str) -> Failure {
    let unanswered = || Failure::Unanswered(format!("{endpoint}: {error}"));
    let Error::GRpcStatus(status) = error else { return unanswered() };
    let text = status.message().to_owned();
    match i32::from(status.code()) {
        NOT_FOUND if text.contains("lease") => Failure::LeaseGone,
        RESOURCE_EXHAUSTED if text.contains("space") => Failure::NoSpace,
        PERMISSION_DENIED | UNAUTHENTICATED => Failure::Denied(text),
        // The user is unknown, or there is none where one is needed.
        INVALID_ARGUMENT if text.contains("user") || text.contains("auth") => Failure::Denied(text),
        INVALID_ARGUMENT | NOT_FOUND | FAILED_PRECONDITION | OUT_OF_RANGE => Failure::Refused(text),
        _ => unanswered(),
    }
}

/// What an answer carries besides itself.
pub(super) fn header_of(header: Option<&etcd_client::ResponseHeader>) -> Result<Header, Failure> {
    let header = header.ok_or_else(|| Failure::Unanswered("an answer without a header".to_owned()))?;
    Ok(Header { coordinator: header.cluster_id(), revision: unsigned(header.revision()) })
}

/// etcd's numbers are signed and never negative.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
