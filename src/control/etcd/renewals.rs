//! Renewals of the lease, on a connection of their own: nothing that is asked or watched delays them.

use std::time::Duration;

use etcd_client::{Error, LeaseKeepAliveStream, LeaseKeeper};
use orbitkv_shards::membership::coordinator::{Failure, Header, LeaseId};

use super::link::{Link, header_of, unsigned};

type Outcome = Result<(Header, Option<Duration>), Failure>;

/// The stream on which a lease is renewed.
struct Stream {
    lease: LeaseId,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

/// Renews one lease after the other.
pub(super) struct Renewer {
    link: Link,
    stream: Option<Stream>,
}

impl Renewer {
    pub fn new(link: Link) -> Renewer {
        Renewer { link, stream: None }
    }

    /// Asks for more time and waits for the answer for at most `wait`.
    pub async fn renew(&mut self, lease: LeaseId, wait: Duration) -> Outcome {
        let outcome = match tokio::time::timeout(wait, self.exchange(lease)).await {
            Ok(Ok((header, left))) if !self.link.check(header) => return Ok((header, left)),
            Ok(Ok(foreign)) => Ok(foreign),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(self.link.on_silence()),
        };
        // Whatever is wrong with the stream, or with whose it is, the next renewal takes a new one.
        self.stream = None;
        outcome
    }

    async fn exchange(&mut self, lease: LeaseId) -> Outcome {
        if self.stream.as_ref().is_none_or(|stream| stream.lease != lease) {
            self.stream = None;
            let mut client = self.link.client().await?;
            self.link.meter.count_request(0);
            match client.lease_keep_alive(lease.0).await {
                Ok((keeper, answers)) => self.stream = Some(Stream { lease, keeper, answers }),
                // The lease is unknown there; the client keeps to itself who said so.
                Err(Error::LeaseKeepAliveError(_)) => {
                    self.link.meter.count_request(0);
                    let asked = client.lease_time_to_live(lease.0, None).await;
                    let answer = asked.map_err(|error| self.link.on_error(&error))?;
                    let left = (answer.ttl() > 0).then(|| Duration::from_secs(unsigned(answer.ttl())));
                    return match left {
                        None => Ok((header_of(answer.header())?, None)),
                        Some(_) => Err(Failure::Unanswered("the lease was not renewed".to_owned())),
                    };
                }
                Err(error) => return Err(self.link.on_error(&error)),
            }
        }
        let stream = self.stream.as_mut().expect("it was just opened");
        self.link.meter.count_request(0);
        let sent = stream.keeper.keep_alive().await;
        let answer = match sent {
            Ok(()) => stream.answers.message().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(Some(answer)) => {
                let length = (answer.ttl() > 0).then(|| Duration::from_secs(unsigned(answer.ttl())));
                Ok((header_of(answer.header())?, length))
            }
            Ok(None) => {
                self.link.turn();
                Err(Failure::Unanswered("the stream of renewals has ended".to_owned()))
            }
            Err(error) => Err(self.link.on_error(&error)),
        }
    }
}
