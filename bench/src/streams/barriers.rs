//! Barriers over HTTP: a source's fence, and the proof of each observer that it has all of it.

use std::sync::atomic::{AtomicUsize, Ordering};

use orbitkv::cli::http_client::{ClientError, HttpClient};
use serde_json::{Value, json};

/// Longest wait of an observer, in milliseconds.
const TIMEOUT_MS: u64 = 10_000;
/// Awaits that are asked for at once.
pub const CONCURRENT_MAX: usize = 8;

/// Takes a fence.
///
/// # Errors
/// If the node gives none.
pub fn sync(source: &HttpClient) -> Result<Value, ClientError> {
    source.post("/cache/sync", &json!({}))
}

/// Awaits a fence at one observer.
///
/// # Errors
/// If it is not met.
pub fn await_fence(observer: &HttpClient, fence: &Value) -> Result<(), ClientError> {
    let body = json!({ "fence": fence, "timeout_ms": TIMEOUT_MS });
    observer.post("/cache/metadata/await", &body).map(|_| ())
}

/// One observer after the other.
///
/// # Errors
/// If one of them does not have it in time.
pub fn serial<'a>(
    source: &HttpClient,
    observers: impl Iterator<Item = &'a HttpClient>,
) -> Result<(), ClientError> {
    let fence = sync(source)?;
    observers.into_iter().try_for_each(|observer| await_fence(observer, &fence))
}

/// A bounded number of observers at a time.
///
/// # Errors
/// If one of them does not have it in time.
pub fn concurrent(source: &HttpClient, observers: &[&HttpClient]) -> Result<(), ClientError> {
    let fence = sync(source)?;
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(observer) = observers.get(next.fetch_add(1, Ordering::Relaxed)) {
            await_fence(observer, &fence)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONCURRENT_MAX.min(observers.len())).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("an await does not panic"))
    })
}
