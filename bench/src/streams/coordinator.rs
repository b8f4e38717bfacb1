//! etcd as it sees itself: its revision grows with every write, and with nothing else.

use orbitkv::cli::http_client::HttpClient;
use serde_json::json;

use crate::Failure;

/// The etcd of a run.
pub struct Coordinator {
    http: HttpClient,
}

impl Coordinator {
    /// By its URL.
    ///
    /// # Errors
    /// If it is no URL of etcd.
    pub fn at(url: &str) -> Result<Coordinator, Failure> {
        let address = url.strip_prefix("http://").ok_or("the URL of an etcd of this machine")?;
        Ok(Coordinator { http: HttpClient::new(address)? })
    }

    /// Its revision.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn revision(&self) -> Result<u64, Failure> {
        // A range of the one key "/", in base64.
        let answer = self.http.post("/v3/kv/range", &json!({ "key": "Lw==", "count_only": true }))?;
        let revision = answer["header"]["revision"].as_str().and_then(|text| text.parse().ok());
        Ok(revision.ok_or_else(|| format!("etcd names no revision: {answer}"))?)
    }
}
