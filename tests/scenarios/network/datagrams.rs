//! Single datagrams at the wrong time or from nobody: an Open that comes after its successor, and noise.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{A, B, Cluster, Draws, PORT};
use crate::harness::gate::{Datagram, Verdict};
use crate::harness::{Network, soak_or};
use crate::peers::{await_installed, keys, peers, query};

/// Bytes of the name that a node gives to its end of a connection.
const NAME_BYTES: usize = 12;

/// A datagram that carries nothing but acknowledgements or a sign of life has less than this, one with an Open more.
const SMALL_BYTES: usize = 80;

/// How much later than its requester the source believes that the handshake is done. So much later it gives the
/// connection up; within 3 s it would give up the handshake.
const LATE: Duration = Duration::from_millis(1_800);

/// Tries to bring the Open back within that time. A machine may be too slow for one.
const TRIES: usize = 3;

/// The two names in a long header: whose it is for, and who it is from.
fn names(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_long = payload.first()? & 0x80 != 0;
    let to = payload.get(6..6 + usize::from(*payload.get(5)?))?;
    let rest = payload.get(6 + to.len()..)?;
    let from = rest.get(1..1 + usize::from(*rest.first()?))?;
    is_long.then_some((to, from))
}

/// A number of one, two, four or eight bytes, and what comes after it.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let length = 1 << (bytes.first()? >> 6);
    let (number, rest) = bytes.split_at_checked(length)?;
    let first = u64::from(number[0] & 0x3f);
    let value = number[1..].iter().fold(first, |sum, &byte| sum << 8 | u64::from(byte));
    Some((usize::try_from(value).ok()?, rest))
}

/// Where the packets with long headers end that a datagram begins with, if the last of them is of the handshake
/// proper, which is what a client says last before it says what it wants.
fn end_of_handshake(payload: &[u8]) -> Option<usize> {
    let (mut left, mut ends_it) = (payload, false);
    while let Some((to, from)) = names(left) {
        let kind = left[0] & 0x30;
        let mut rest = &left[7 + to.len() + from.len()..];
        if kind == 0 {
            let (token_bytes, after) = number(rest)?;
            rest = after.get(token_bytes..)?;
        }
        let (bytes, after) = number(rest)?;
        (left, ends_it) = (after.get(bytes..)?, kind == 0x20);
    }
    ends_it.then_some(payload.len() - left.len())
}

/// Keeps the Open of A's first connection to B back, and lets A believe that the connection is dead before B does.
#[derive(Default)]
struct LateOpen {
    /// A's name and B's name of the connection.
    requester: Option<Vec<u8>>,
    source: Option<Vec<u8>>,
    /// Names of B's own dials, whose answers are no dials.
    others: Vec<Vec<u8>>,
    has_held: bool,
}

impl LateOpen {
    fn judge(&mut self, datagram: &Datagram<'_>) -> Verdict {
        let payload = datagram.payload;
        let short_to = |name: &Option<Vec<u8>>| {
            let named = payload.get(1..=NAME_BYTES).filter(|_| payload[0] & 0x80 == 0);
            named.is_some() && named == name.as_deref()
        };
        match (datagram.from, datagram.to) {
            (A, B) => {
                if let Some((to, from)) = names(payload) {
                    // A dial that B did not hear, since it did not know A yet, is not the one.
                    if !self.has_held && !self.others.iter().any(|other| other == to) {
                        self.requester = Some(from.to_vec());
                    }
                    return match end_of_handshake(payload) {
                        Some(end) if self.requester.as_deref() == Some(from) => {
                            self.has_held |= end < payload.len();
                            if end < payload.len() { Verdict::Split(end, LATE) } else { Verdict::Delay(LATE) }
                        }
                        _ => Verdict::Pass,
                    };
                }
                if !short_to(&self.source) {
                    return Verdict::Pass;
                }
                self.has_held |= payload.len() >= SMALL_BYTES;
                if payload.len() >= SMALL_BYTES { Verdict::Hold } else { Verdict::Delay(LATE) }
            }
            (B, A) => {
                let is_its = match names(payload) {
                    Some((to, from)) if self.requester.as_deref() == Some(to) => {
                        self.source = Some(from.to_vec());
                        true
                    }
                    Some((_, from)) => {
                        self.others.push(from.to_vec());
                        false
                    }
                    None => short_to(&self.requester),
                };
                if is_its && self.has_held { Verdict::Drop } else { Verdict::Pass }
            }
            _ => Verdict::Pass,
        }
    }
}

#[test]
fn an_open_that_comes_after_its_successor_is_refused() {
    for _ in 0..TRIES {
        let Some(network) = Network::of(3) else { return };
        if is_refused_after_its_successor(network) {
            return;
        }
    }
    panic!("in {TRIES} tries the old connection was never there any more");
}

/// False if the source had given up the old connection before its Open could come.
fn is_refused_after_its_successor(network: Network) -> bool {
    let mut late = LateOpen::default();
    network.rule(move |datagram| late.judge(datagram));
    let cluster = Cluster::on(network, |order| order);
    let (network, first, second) = (&cluster.network, cluster.a(), cluster.b());
    let [saver, other] = &mut cluster.savers()[..] else { unreachable!("two nodes") };
    // Only a second attempt can have led to that.
    cluster.is_whole();
    let before = peers(first);
    assert!(before.sessions_lost > 0, "{before:#?}");
    assert!(network.release() > 0, "the Open was held");
    let refused = || peers(second).sessions_refused.get("StaleAttempt").copied();
    let begun = Instant::now();
    while refused().is_none() {
        if begun.elapsed() > LATE * 2 {
            return false;
        }
    }
    assert_eq!(refused(), Some(1));
    // The newer session is the one it was, and goes on.
    let saved = keys(20);
    other.save(&saved);
    await_installed(second, first);
    assert_eq!(query(saver, &saved).boundary_blocks, 20);
    saver.check_ready(&saved);
    let after = peers(first);
    assert_eq!((after.sessions_opened, after.sessions_lost), (before.sessions_opened, before.sessions_lost));
    assert_eq!(after.snapshots_installed, before.snapshots_installed);
    cluster.has_kept_its_bounds();
    true
}

#[test]
fn noise_in_a_peers_name_changes_nothing() {
    let Some(cluster) = Cluster::of(2, |order| order) else { return };
    let (network, first, second) = (&cluster.network, cluster.a(), cluster.b());
    let [saver, other] = &mut cluster.savers()[..] else { unreachable!("two nodes") };
    // Some of what B says, to be said again, cut and changed.
    let heard = Arc::new(Mutex::new(Vec::<Vec<u8>>::new()));
    let ears = heard.clone();
    network.rule(move |datagram| {
        let mut heard = ears.lock().expect("no panics");
        if datagram.from == B && heard.len() < 200 {
            heard.push(datagram.payload.to_vec());
        }
        Verdict::Pass
    });
    let early = keys(40);
    other.save(&early);
    await_installed(second, first);
    saver.check_ready(&early);
    let opened = peers(first).sessions_opened;
    let mut draws = Draws(7);
    let begun = Instant::now();
    let mut forged = 0;
    while begun.elapsed() < soak_or(Duration::from_secs(3)) {
        let mut bytes: Vec<u8> = match draws.next() % 2 {
            0 => (0..draws.next() % 1_452).map(|_| draws.next() as u8).collect(),
            _ => {
                let heard = heard.lock().expect("no panics");
                heard[draws.next() as usize % heard.len()].clone()
            }
        };
        for _ in 0..draws.next() % 4 {
            if let Some(byte) = (draws.next() as usize).checked_rem(bytes.len()).map(|at| &mut bytes[at]) {
                *byte = draws.next() as u8;
            }
        }
        network.forge((B, PORT), (A, PORT), &bytes);
        forged += 1;
        // What a node can work off, so that its peer's datagrams find room beside them.
        if forged % 10 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if forged % 2_000 == 0 {
            let late = keys(5);
            other.save(&late);
            await_installed(second, first);
            saver.check_ready(&late);
        }
    }
    assert!(forged > 200);
    cluster.is_whole();
    let late = keys(40);
    other.save(&late);
    await_installed(second, first);
    saver.check_ready(&late);
    assert_eq!(peers(first).sessions_opened, opened, "sessions live on");
    first.assert_serves();
    cluster.has_kept_its_bounds();
}
