//! What the tests of several rooms share: a directory on a real filesystem and seeded bytes.

use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A directory that goes with the value, on the filesystem of the build output: `/tmp` is
/// memory on some machines, and memory has no direct I/O.
pub(crate) fn directory_on_disk() -> TempDir {
    let executable = std::env::current_exe().expect("a test knows its own path");
    let root = executable.parent().map(Path::to_path_buf).unwrap_or_else(|| PathBuf::from("."));
    tempfile::Builder::new().prefix("orbitkv-test-").tempdir_in(root).expect("the build output is writable")
}

/// A small deterministic generator (splitmix64) for contents and choices.
pub(crate) struct Seeded(pub(crate) u64);

impl Seeded {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}
