//! The faults that `ring_faults.c` makes, as a setting of a node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::harness::NodeOrder;

/// What goes wrong from now on. All zero: nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Every how manieth read fails.
    pub read_every: u32,
    /// Every how manieth write fails.
    pub write_every: u32,
    /// Every how manieth transfer is cut short.
    pub short_every: u32,
    /// How much longer each entry into the kernel takes, in microseconds.
    pub slow_us: u32,
}

/// What went wrong so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub reads_failed: u64,
    pub writes_failed: u64,
    pub transfers_cut: u64,
}

/// The hand on a node's SSD ring.
pub struct FaultyRing {
    directory: TempDir,
}

impl FaultyRing {
    /// A ring without faults as yet.
    pub fn new() -> FaultyRing {
        FaultyRing { directory: TempDir::with_prefix("okv-faults-").expect("a directory") }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("faults")
    }

    /// The order of a node whose SSD ring obeys.
    pub fn under(&self, order: NodeOrder) -> NodeOrder {
        order.variable("LD_PRELOAD", preload()).variable("RING_FAULTS", self.file())
    }

    /// Makes faults from now on.
    pub fn make(&self, faults: Faults) {
        let Faults { read_every, write_every, short_every, slow_us } = faults;
        let next = self.directory.path().join("next");
        fs::write(&next, format!("{read_every} {write_every} {short_every} {slow_us}\n"))
            .expect("room for a line");
        fs::rename(&next, self.file()).expect("our own directory");
    }

    /// What was done so far.
    pub fn done(&self) -> Done {
        let text = fs::read_to_string(self.directory.path().join("faults.done")).unwrap_or_default();
        let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().expect("a number"));
        let mut next = || numbers.next().unwrap_or(0);
        Done { reads_failed: next(), writes_failed: next(), transfers_cut: next() }
    }
}

/// The compiled faults, to be preloaded.
pub fn preload() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios/faults/ring_faults.c");
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (built, own) =
            (directory.join("ring_faults.so"), format!("ring_faults.{}.so", std::process::id()));
        let own = directory.join(own);
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O1", "-o"]).arg(&own).arg(source);
        let output = compiler.output().expect("a C compiler, `cc`, is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // In one step: other test processes may be preloading it.
        fs::rename(&own, &built).expect("our own directory");
        built
    })
}
