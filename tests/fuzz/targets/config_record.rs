//! Any bytes as the record of settings in etcd, and as its copy on disk: no panic, and what is taken has exactly one
//! encoding.
#![no_main]

use orbitkv_wire::config::{ConfigRecord, CopyError, seal, unseal};
use orbitkv_wire::identity::NodeId;

fn check(bytes: &[u8], cluster: NodeId) {
    let Ok(record) = ConfigRecord::decode(bytes) else { return };
    assert_eq!(record.encode().as_bytes(), bytes);
    assert_eq!(unseal(seal(&record, cluster).as_bytes(), cluster), Ok(record));
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let cluster = NodeId::new("prod").expect("a legal name");
    check(bytes, cluster);
    // No feedback leads to the schema: it is compared as one block of memory.
    check(&[b"schema orbitkv/config/v1\nrecord ", bytes].concat(), cluster);
    assert_eq!(unseal(bytes, cluster), Err(CopyError::Damaged), "nobody guesses a sum");
});
