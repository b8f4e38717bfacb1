//! The watch, on a connection of its own. It asks for a sign of life now and then: a connection to an
//! etcd that hangs looks like one on which nothing happens.

use std::time::Duration;

use etcd_client::{WatchOptions, WatchResponse};
use orbitkv_shards::membership::coordinator::{Event, Failure, News, Put};
use orbitkv_wire::membership::{Key, Keyspace};

use super::Listener;
use super::link::{Link, Meter, header_of, unsigned};

/// Between signs of life that are asked for.
const PROGRESS_EVERY: Duration = Duration::from_millis(1_500);
/// Silence after which a watch is given up: three signs of life are missing.
const SILENCE_MAX: Duration = Duration::from_millis(4_500);

/// Watches everything after revision `after`, and tells until the watch ends. The last news is an end.
pub(super) async fn follow(link: &mut Link, space: &Keyspace, after: u64, listener: &Listener) {
    if let Err(failure) = watch(link, space, after, listener).await {
        link.leave();
        listener.tell(None, News::Ended(failure.to_string())).await;
    }
}

async fn watch(link: &mut Link, space: &Keyspace, after: u64, listener: &Listener) -> Result<(), Failure> {
    let mut client = link.client().await?;
    link.meter.count_request(space.prefix().len());
    let from = i64::try_from(after + 1).unwrap_or(i64::MAX);
    let options = WatchOptions::new().with_prefix().with_start_revision(from);
    let opening = client.watch(space.prefix(), Some(options));
    let mut stream = match tokio::time::timeout(SILENCE_MAX, opening).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(link.on_error(&error)),
        Err(_) => return Err(link.on_silence()),
    };
    let mut progress = tokio::time::interval(PROGRESS_EVERY);
    let mut heard = tokio::time::Instant::now();
    loop {
        let response = tokio::select! {
            response = stream.message() => response,
            () = tokio::time::sleep_until(heard + SILENCE_MAX) => return Err(link.on_silence()),
            _ = progress.tick() => {
                link.meter.count_request(0);
                // Whether it can be sent is seen by what comes back.
                let _ = stream.request_progress().await;
                continue;
            }
        };
        let response = response.map_err(|error| link.on_error(&error))?;
        let response = response.ok_or_else(|| Failure::Unanswered("the watch has ended".to_owned()))?;
        heard = tokio::time::Instant::now();
        let header = header_of(response.header())?;
        link.check(header);
        if response.compact_revision() > 0 {
            listener.tell(Some(header), News::Compacted).await;
            return Ok(());
        }
        if response.canceled() {
            return Err(Failure::Refused(response.cancel_reason().to_owned()));
        }
        if response.created() {
            // What it was before may have been missed.
            listener.policy.notify_one();
            listener.tell(Some(header), News::Created).await;
        }
        let events = events(space, &response, &link.meter);
        if events.iter().any(|event| event.key == Key::Config) {
            listener.policy.notify_one();
        }
        if !events.is_empty() {
            listener.tell(Some(header), News::Events(events)).await;
        }
    }
}

fn events(space: &Keyspace, response: &WatchResponse, meter: &Meter) -> Vec<Event> {
    let pairs = response.events().iter().filter_map(|event| event.kv());
    pairs
        .filter_map(|pair| {
            meter.count_received(pair.key().len() + pair.value().len());
            // A deletion is the one change after which a key has no version.
            let put = (pair.version() > 0)
                .then(|| Put { value: pair.value().to_vec(), version: unsigned(pair.version()) });
            Some(Event { key: space.parse(pair.key())?, revision: unsigned(pair.mod_revision()), put })
        })
        .collect()
}
