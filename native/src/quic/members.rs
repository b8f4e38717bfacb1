//! Who may speak to an endpoint: the socket addresses and keys that the member records publish.
//!
//! Asked for each batch of datagrams before anything is decrypted, so a lookup is a map of addresses
//! and a short scan of the nodes on that address.

use super::identity::Fingerprint;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// What an endpoint needs of a member record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The node's key.
    pub fingerprint: Fingerprint,
    /// The node's address.
    pub address: IpAddr,
    /// UDP port of the node's shard 0; the others follow.
    pub base_port: u16,
    /// Shards, hence ports.
    pub shards: u16,
}

impl Member {
    /// Whether a shard of this node has the port.
    fn has_port(&self, port: u16) -> bool {
        port.checked_sub(self.base_port).is_some_and(|shard| shard < self.shards)
    }
}

/// The members, by address.
#[derive(Debug, Default)]
pub(super) struct MemberMap {
    by_address: BTreeMap<IpAddr, Vec<Member>>,
}

impl MemberMap {
    pub(super) fn new(members: impl IntoIterator<Item = Member>) -> Self {
        let mut by_address: BTreeMap<IpAddr, Vec<Member>> = BTreeMap::new();
        for member in members {
            by_address.entry(member.address.to_canonical()).or_default().push(member);
        }
        Self { by_address }
    }

    fn at(&self, address: SocketAddr) -> impl Iterator<Item = &Member> {
        let nodes = self.by_address.get(&address.ip().to_canonical()).map(Vec::as_slice).unwrap_or_default();
        nodes.iter().filter(move |member| member.has_port(address.port()))
    }

    pub(super) fn contains(&self, address: SocketAddr) -> bool {
        self.at(address).next().is_some()
    }

    /// The keys published at an address. More than one while the record of a dead node has not expired and
    /// another node has its port.
    pub(super) fn fingerprints_at(&self, address: SocketAddr) -> Vec<Fingerprint> {
        self.at(address).map(|member| member.fingerprint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(key: u8, address: &str, base_port: u16, shards: u16) -> Member {
        Member { fingerprint: Fingerprint([key; 32]), address: address.parse().unwrap(), base_port, shards }
    }

    #[test]
    fn exactly_the_published_ports_are_known() {
        let map = MemberMap::new([
            member(1, "10.0.0.1", 7_400, 2),
            member(2, "10.0.0.1", 7_402, 1),
            member(3, "10.0.0.2", 65_535, u16::MAX),
            member(4, "10.0.0.1", 7_401, 1),
            member(5, "10.0.0.3", 0, 0),
            member(6, "::1", 9, 1),
        ]);
        let keys = |address: &str| -> Vec<u8> {
            map.fingerprints_at(address.parse().unwrap()).iter().map(|key| key.0[0]).collect()
        };
        assert_eq!(keys("10.0.0.1:7399"), []);
        assert_eq!(keys("10.0.0.1:7400"), [1]);
        assert_eq!(keys("10.0.0.1:7401"), [1, 4]);
        assert_eq!(keys("[::ffff:10.0.0.1]:7402"), [2]);
        assert_eq!(keys("10.0.0.1:7403"), []);
        assert_eq!(keys("10.0.0.2:65535"), [3]);
        assert_eq!(keys("10.0.0.2:0"), []);
        assert_eq!(keys("10.0.0.3:0"), []);
        assert_eq!(keys("[::1]:9"), [6]);
        assert!(!map.contains("127.0.0.1:9".parse().unwrap()));
    }
}
