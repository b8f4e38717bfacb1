//! What drives the SSD: a raw io_uring, barely and as the node has it, against glommio, which has a ring of its own below
//! futures and buffers. All of them move the same blocks of one file at one depth, on one core, in turns.
//!
//! glommio's buffers are its own: what is to lie in the arena has to be copied there. It is measured without that copy,
//! too, which no node could do without; the node's ring checksums what it moves, which the others do not.

mod glommio_rival;
mod ring;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use orbitkv::control::signals::StopSignals;
use orbitkv_native::arena::{Arena, PagePreference};
use orbitkv_native::bare_ring::{Sweep, sweep};
use orbitkv_native::ssd_file::{DataDirLock, SsdFile};
use orbitkv_native::ssd_transfer::TransferKind;
use serde_json::{Value, json};

use super::judgement::{Question, Sense, Trial, UNLESS_BETTER, order};
use super::plan::{DEVICE_BLOCKS, DEVICE_DEPTH, Plan};
use super::{Ablation, AblationArgs, Column};
use crate::cores::two_cores;
use crate::local::directory::Workplace;
use crate::payload::{STAMP_BYTES, Source, require_stamp, stamp};
use crate::statistics::gigabytes_per_second;
use crate::streams::pause;
use crate::{Failure, machine, progress};

const SIDES: [&str; 4] = ["bare ring", "node's ring", "glommio", "glommio, copied"];
const BARE: usize = 0;
const NODE: usize = 1;
const GLOMMIO: usize = 2;
const COPIED: usize = 3;

const COLUMNS: [Column; 4] = [
    Column { figure: "write_gbps", title: "write GB/s, 1 MiB", digits: 3 },
    Column { figure: "read_gbps", title: "read", digits: 3 },
    Column { figure: "small_write_gbps", title: "write GB/s, 64 KiB", digits: 3 },
    Column { figure: "small_read_gbps", title: "read", digits: 3 },
];
/// Names of the figures by block size, write then read.
const FIGURES: [[&str; 2]; 2] = [["write_gbps", "read_gbps"], ["small_write_gbps", "small_read_gbps"]];

/// The ablation.
pub struct Device {
    plan: Plan,
    core: usize,
    file: SsdFile,
    arena: Arena,
    /// Number of what was written last: a stamp is never used twice.
    generation: u64,
    _lock: DataDirLock,
    // Last: it is emptied then.
    workplace: Workplace,
}

impl Device {
    /// As it is asked for; writes the whole file once.
    ///
    /// # Errors
    /// If there is no disk, core or memory for it.
    pub fn new(args: &AblationArgs, plan: Plan) -> Result<Device, Failure> {
        let whose = "the one of other work and the device's";
        let [_, core] =
            two_cores(args.cores.as_deref(), |available| [available.first(), available.last()], whose)?;
        let workplace = Workplace::named(args.dir.clone(), "ablation")?;
        let lock = DataDirLock::acquire(&workplace.path().join("device"))?;
        let file = SsdFile::create(&lock, "device", plan.device_bytes)?;
        let (arena, _) = Arena::create(plan.device_bytes, PagePreference::Auto)?;
        let block_bytes = DEVICE_BLOCKS[0];
        let source = Source::seeded(args.seed, 1, block_bytes);
        (0..plan.device_bytes / block_bytes)
            .for_each(|index| arena.copy_in(index * block_bytes, source.block(0)));
        let device = Device { plan, core, workplace, file, arena, generation: 0, _lock: lock };
        progress("writing the whole file once");
        device.carry(BARE, &device.pass(TransferKind::Write, 0))?;
        Ok(device)
    }

    fn pass(&self, kind: TransferKind, size: usize) -> Sweep {
        let bytes = if size == 0 { self.plan.device_bytes } else { self.plan.device_small_bytes };
        let block_bytes = DEVICE_BLOCKS[size];
        Sweep { kind, block_bytes, count: bytes / block_bytes, depth: DEVICE_DEPTH }
    }

    /// Moves all blocks of a pass by the means of a side.
    fn carry(&self, side: usize, pass: &Sweep) -> Result<Duration, Failure> {
        let (file, arena): (BorrowedFd<'_>, &Arena) = (self.file.fd(), &self.arena);
        Ok(match side {
            BARE => ring::on_core(self.core, || sweep(file, arena, *pass))?,
            NODE => ring::on_core(self.core, || ring::sweep(file, arena, *pass))?,
            _ => {
                let path: &Path = self.file.path();
                glommio_rival::sweep(path, arena, *pass, self.core, side == COPIED)?
            }
        })
    }

    /// Gives all blocks a stamp that none has had.
    fn stamp(&mut self, pass: &Sweep) {
        self.generation += 1;
        for index in 0..pass.count {
            self.arena.copy_in(index * pass.block_bytes, &stamp(self.generation, index));
        }
    }

    /// Takes all stamps away, so that those that are there later have been read.
    fn wipe(&self, pass: &Sweep) {
        (0..pass.count).for_each(|index| self.arena.copy_in(index * pass.block_bytes, &[0; STAMP_BYTES]));
    }

    fn require(&self, pass: &Sweep) -> Result<(), Failure> {
        let mut bytes = [0; STAMP_BYTES];
        for index in 0..pass.count {
            self.arena.copy_out(index * pass.block_bytes, &mut bytes);
            require_stamp(&bytes, self.generation, index)?;
        }
        Ok(())
    }
}

impl Ablation for Device {
    fn sides(&self) -> &[&'static str] {
        &SIDES
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn questions(&self) -> Vec<Question> {
        let of = |gate, built, other, figure| Question {
            gate,
            built,
            other,
            figure,
            sense: Sense::Higher,
            least: 1.0 / UNLESS_BETTER,
        };
        vec![
            of("ablation_device_write", BARE, GLOMMIO, "write_gbps"),
            of("ablation_device_read", BARE, GLOMMIO, "read_gbps"),
            of("ablation_device_small_write", BARE, GLOMMIO, "small_write_gbps"),
            of("ablation_device_small_read", BARE, GLOMMIO, "small_read_gbps"),
            of("ablation_device_node_write", NODE, COPIED, "write_gbps"),
            of("ablation_device_node_read", NODE, COPIED, "read_gbps"),
        ]
    }

    fn settings(&self) -> Value {
        json!({
            "core": self.core,
            "depth": DEVICE_DEPTH,
            "block_bytes": DEVICE_BLOCKS,
            "arena_pages": self.arena.page_kind().to_string(),
            "disk": machine::disk_of(self.workplace.path()),
            "sizes": self.plan,
        })
    }

    fn run(&mut self, number: usize, signals: &StopSignals) -> Result<Vec<Trial>, Failure> {
        let mut trials = vec![Trial::default(); SIDES.len()];
        for (size, [write, read]) in FIGURES.into_iter().enumerate() {
            let (writing, reading) =
                (self.pass(TransferKind::Write, size), self.pass(TransferKind::Read, size));
            let bytes = writing.count * writing.block_bytes;
            for side in order(SIDES.len(), number) {
                pause(Duration::ZERO, signals)?;
                self.stamp(&writing);
                let time = self.carry(side, &writing)?;
                trials[side].figures.insert(write, gigabytes_per_second(bytes, time));
                self.wipe(&reading);
                self.carry(BARE, &reading)?;
                self.require(&reading)?;
            }
            for side in order(SIDES.len(), number) {
                pause(Duration::ZERO, signals)?;
                self.wipe(&reading);
                let time = self.carry(side, &reading)?;
                trials[side].figures.insert(read, gigabytes_per_second(bytes, time));
                self.require(&reading)?;
            }
            let rates = (0..SIDES.len()).map(|side| {
                let figures = &trials[side].figures;
                format!("{} {:.2} and {:.2}", SIDES[side], figures[write], figures[read])
            });
            let (kib, rates) = (writing.block_bytes >> 10, rates.collect::<Vec<_>>().join(", "));
            progress(&format!("{kib} KiB, write and read, GB/s: {rates}"));
        }
        Ok(trials)
    }
}
