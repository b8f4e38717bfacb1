//! Block records as the design that streams replace keeps them in etcd: one key for each residence. Pure.

use orbitkv::client::BlockHash;

/// Before every key.
pub const PREFIX: &str = "orbitkv-bench/blocks/";
/// Bytes of a value: as many as a record of a stream takes.
const VALUE_BYTES: usize = 52;

/// Which block: its namespace and its hash.
pub type Key = (u8, [u8; 32]);

/// One change of what a source holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Of which block.
    pub key: Key,
    /// Whether it is there from now on.
    pub is_put: bool,
    /// Place in the order of all changes of the source.
    pub sequence: u64,
}

impl Change {
    /// The key as etcd has it.
    pub fn name(&self) -> String {
        let (namespace, hash) = self.key;
        format!("{PREFIX}{namespace}/{}", BlockHash(hash))
    }

    /// The record: the sequence, and what else a reader would want to know.
    pub fn value(&self) -> Vec<u8> {
        let mut value = vec![0; VALUE_BYTES];
        value[..8].copy_from_slice(&self.sequence.to_le_bytes());
        value
    }
}

/// What a name of etcd is of; nothing if it is no block record.
pub fn key_of(name: &[u8]) -> Option<Key> {
    let text = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
    let (namespace, hex) = text.split_once('/')?;
    if hex.len() != 64 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, digits) in hash.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).ok()?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some((namespace.parse().ok()?, hash))
}

/// A burst: what begins, then what ends, with consecutive sequences from `first` on.
pub fn changes(namespace: u8, first: u64, begun: &[BlockHash], ended: &[BlockHash]) -> Vec<Change> {
    let all = begun.iter().map(|hash| (hash, true)).chain(ended.iter().map(|hash| (hash, false)));
    all.zip(first..)
        .map(|((hash, is_put), sequence)| Change { key: (namespace, hash.0), is_put, sequence })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::block_hash;

    #[test]
    fn a_name_leads_back_to_its_block() {
        let hash = block_hash(7, 2, 0x1234);
        let change = Change { key: (3, hash.0), is_put: true, sequence: 258 };
        let name = change.name();
        // Little-endian words of seed, generation and index, by hand.
        let by_hand =
            "0700000000000000".to_owned() + "0200000000000000" + "3412000000000000" + &"0".repeat(16);
        assert_eq!(name, format!("orbitkv-bench/blocks/3/{by_hand}"));
        assert_eq!(key_of(name.as_bytes()), Some(change.key));
        assert_eq!((change.value().len(), &change.value()[..3]), (52, &[2, 1, 0][..]));
        for odd in ["", "orbitkv/members/a", PREFIX, "orbitkv-bench/blocks/3/07", &name[..name.len() - 1]] {
            assert_eq!(key_of(odd.as_bytes()), None, "{odd}");
        }
        assert_eq!(key_of(name.replace("34", "+4").as_bytes()).map(|_| ()), None, "a sign is no digit");
    }

    #[test]
    fn a_burst_is_puts_then_deletes_in_the_order_of_the_journal() {
        let [new, old] = [block_hash(1, 1, 9), block_hash(1, 1, 3)];
        let burst = changes(2, 41, &[new], &[old]);
        let right = [
            Change { key: (2, new.0), is_put: true, sequence: 41 },
            Change { key: (2, old.0), is_put: false, sequence: 42 },
        ];
        assert_eq!(burst, right);
    }
}
