//! The operator's policy in etcd: read every half minute, and at once when the watch shows that it has changed or
//! may have missed something.

use std::sync::Arc;
use std::time::Duration;

use orbitkv_native::clock;
use orbitkv_shards::membership::coordinator::Failure;
use orbitkv_shards::time::Moment;
use orbitkv_wire::membership::{Key, Keyspace};
use tokio::sync::Notify;

use super::link::{Link, header_of};
use super::{ANSWER_WAIT_MAX, SLEEP_MAX};
use crate::control::policy::PolicyFollower;

/// Largest answer: more than etcd takes in for a value as a rule, so that a record that is too large is refused as one.
const ANSWER_BYTES_MAX: usize = 2 * 1024 * 1024;

fn now() -> Moment {
    Moment(clock::boottime_ns())
}

/// Lets the follower have what etcd has, for ever; `changed` says that it should look.
pub(super) async fn follow(
    mut link: Link,
    space: Arc<Keyspace>,
    mut follower: PolicyFollower,
    changed: Arc<Notify>,
) {
    loop {
        if follower.next_deadline() <= now() {
            let answer = read(&mut link, &space).await;
            follower.take(answer, now());
        }
        let sleep: Duration = follower.next_deadline().since(now()).min(SLEEP_MAX);
        tokio::select! {
            () = changed.notified() => follower.hasten(now()),
            () = tokio::time::sleep(sleep) => {}
        }
    }
}

/// What stands under the key.
async fn read(link: &mut Link, space: &Keyspace) -> Result<Option<Vec<u8>>, Failure> {
    let path = space.path(Key::Config);
    let asked = async {
        let client = link.client().await?;
        link.meter.count_request(path.len());
        let mut reader = client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX);
        reader.get(path.as_str(), None).await.map_err(|error| link.on_error(&error))
    };
    let response = match tokio::time::timeout(ANSWER_WAIT_MAX, asked).await {
        Ok(response) => response?,
        Err(_) => return Err(link.on_silence()),
    };
    if link.check(header_of(response.header())?) {
        return Err(Failure::Unanswered("another etcd has answered than the first".to_owned()));
    }
    let pair = response.kvs().first();
    if let Some(pair) = pair {
        link.meter.count_received(pair.key().len() + pair.value().len());
    }
    Ok(pair.map(|pair| pair.value().to_vec()))
}
