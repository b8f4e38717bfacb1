//! The questions of membership, as etcd is asked them.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, Error, GetOptions, KeyValue, LeaseTimeToLiveOptions, PutOptions, Txn, TxnOp,
};
use orbitkv_shards::membership::coordinator::{
    self as words, Answer, Entry, Failure, Header, LeaseId, Request, Snapshot, Transaction, Write,
};
use orbitkv_wire::bounds::{MEMBER_RECORD_BYTES_MAX, MEMBERS_MAX};
use orbitkv_wire::membership::{Key, Keyspace};

use super::link::{Link, Meter, header_of, unsigned};

/// Largest answer to a read: all members with their epochs, keys included, twice over.
const READ_BYTES_MAX: usize = 4 * MEMBERS_MAX * MEMBER_RECORD_BYTES_MAX;

type Outcome = Result<(Header, Answer), Failure>;

/// Asks, and waits for the answer for at most `wait`.
pub(super) async fn ask(link: &mut Link, space: &Keyspace, request: &Request, wait: Duration) -> Outcome {
    let asked = async {
        let client = link.client().await?;
        carry(client, space, request, &link.meter).await.map_err(Refused::Later)
    };
    match tokio::time::timeout(wait, asked).await {
        Ok(Ok((header, answer))) => {
            link.check(header);
            Ok((header, answer))
        }
        Ok(Err(Refused::Now(failure))) => Err(failure),
        Ok(Err(Refused::Later(error))) => Err(link.on_error(&error)),
        Err(_) => Err(link.on_silence()),
    }
}

/// An error whose meaning is known, or not yet.
enum Refused {
    Now(Failure),
    Later(Error),
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Refused {
        Refused::Now(failure)
    }
}

async fn carry(
    mut client: Client,
    space: &Keyspace,
    request: &Request,
    meter: &Meter,
) -> Result<(Header, Answer), Error> {
    let header = |header| header_of(header).map_err(|failure| Error::WatchError(failure.to_string()));
    match request {
        Request::Read => {
            meter.count_request(space.prefix().len());
            let mut reader = client.kv_client().max_decoding_message_size(READ_BYTES_MAX);
            let options = GetOptions::new().with_prefix();
            let response = reader.get(space.prefix(), Some(options)).await?;
            let header = header(response.header())?;
            let mut entries: Vec<Entry> =
                response.kvs().iter().filter_map(|pair| entry(space, pair, meter)).collect();
            entries.sort_by_key(|entry| entry.key);
            Ok((header, Answer::Read(Snapshot { revision: header.revision, entries })))
        }
        Request::Lookup(node) => {
            let path = space.path(Key::Member(*node));
            meter.count_request(path.len());
            let response = client.get(path, None).await?;
            let found = response.kvs().iter().find_map(|pair| entry(space, pair, meter));
            Ok((header(response.header())?, Answer::LookedUp(found)))
        }
        Request::Grant(length) => {
            meter.count_request(0);
            let response = client.lease_grant(length.as_secs().max(1) as i64, None).await?;
            let granted = Duration::from_secs(unsigned(response.ttl()));
            Ok((header(response.header())?, Answer::Granted(LeaseId(response.id()), granted)))
        }
        Request::Transact(transaction) => {
            let (transaction, bytes) = translate(space, transaction);
            meter.count_request(bytes);
            let response = client.txn(transaction).await?;
            Ok((header(response.header())?, Answer::Transacted(response.succeeded())))
        }
        Request::TimeToLive(lease) => {
            meter.count_request(0);
            let response = client.lease_time_to_live(lease.0, None::<LeaseTimeToLiveOptions>).await?;
            let left = (response.ttl() > 0).then(|| Duration::from_secs(unsigned(response.ttl())));
            Ok((header(response.header())?, Answer::TimeToLive(left)))
        }
        Request::Revoke(lease) => {
            meter.count_request(0);
            let response = client.lease_revoke(lease.0).await?;
            Ok((header(response.header())?, Answer::Revoked))
        }
    }
}

fn entry(space: &Keyspace, pair: &KeyValue, meter: &Meter) -> Option<Entry> {
    meter.count_received(pair.key().len() + pair.value().len());
    Some(Entry {
        key: space.parse(pair.key())?,
        value: pair.value().to_vec(),
        revision: unsigned(pair.mod_revision()),
        version: unsigned(pair.version()),
        lease: (pair.lease() != 0).then(|| LeaseId(pair.lease())),
    })
}

/// The transaction in etcd's words, and the bytes of its keys and values.
fn translate(space: &Keyspace, transaction: &Transaction) -> (Txn, usize) {
    let mut bytes = 0;
    let mut path = |key: Key| {
        let path = space.path(key);
        bytes += path.len();
        path
    };
    let compares: Vec<Compare> = transaction
        .compares
        .iter()
        .map(|compare| match compare {
            words::Compare::Revision(key, revision) => {
                let revision = i64::try_from(*revision).unwrap_or(i64::MAX);
                Compare::mod_revision(path(*key), CompareOp::Equal, revision)
            }
            words::Compare::Value(key, value) => {
                Compare::value(path(*key), CompareOp::Equal, value.as_slice())
            }
            words::Compare::NoMembers => {
                Compare::create_revision(space.members(), CompareOp::Equal, 0).with_prefix()
            }
        })
        .collect();
    let writes: Vec<TxnOp> = transaction
        .writes
        .iter()
        .map(|write| match write {
            Write::Put(key, value, lease) => {
                let options = lease.map(|lease| PutOptions::new().with_lease(lease.0));
                TxnOp::put(path(*key), value.as_slice(), options)
            }
            Write::Delete(key) => TxnOp::delete(path(*key), None),
        })
        .collect();
    let values = transaction.writes.iter().map(|write| match write {
        Write::Put(_, value, _) => value.len(),
        Write::Delete(_) => 0,
    });
    bytes += values.sum::<usize>();
    (Txn::new().when(compares).and_then(writes), bytes)
}
