//! The same blocks moved by glommio: an executor on one core, a task for each transfer in flight, `DmaFile` for the rest.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use glommio::io::{DmaFile, OpenOptions};
use glommio::{LocalExecutorBuilder, Placement};
use orbitkv_native::arena::Arena;
use orbitkv_native::bare_ring::Sweep;
use orbitkv_native::clock::monotonic_ns;
use orbitkv_native::ssd_transfer::TransferKind;

use crate::Failure;
use crate::payload::STAMP_BYTES;

/// Buffers that glommio registers, in multiples of what is in flight: its allocator halves what it has.
const BUFFERS_OF_FLIGHT: u64 = 2;
/// What it takes at least.
const BUFFER_BYTES_MIN: u64 = 16 << 20;

/// Moves all blocks; how long that took, from the first request to the last answer. With `copies`, blocks are copied from
/// and to the arena; without, their stamps alone, and the rest of a block is whatever its buffer held.
///
/// # Errors
/// If there is no executor, or a request fails or is short.
pub fn sweep(
    path: &Path,
    arena: &Arena,
    pass: Sweep,
    core: usize,
    copies: bool,
) -> Result<Duration, Failure> {
    let buffers = BUFFERS_OF_FLIGHT * u64::from(pass.depth) * pass.block_bytes;
    let (path, arena) = (path.to_owned(), arena.clone());
    let executor = LocalExecutorBuilder::new(Placement::Fixed(core))
        .name("glommio")
        .io_memory(buffers.max(BUFFER_BYTES_MIN) as usize)
        .spawn(
            move || async move { carry(&path, arena, pass, copies).await.map_err(|error| error.to_string()) },
        )
        .map_err(|error| {
            format!(
                "glommio does not start: {error}; it takes locked memory (`ulimit -l unlimited`) and io_uring"
            )
        })?;
    let carried = executor.join().map_err(|error| format!("glommio has ended: {error}"))?;
    carried.map_err(|error| format!("glommio: {error}").into())
}

async fn carry(path: &Path, arena: Arena, pass: Sweep, copies: bool) -> io::Result<Duration> {
    let file = Rc::new(OpenOptions::new().read(true).write(true).dma_open(path).await?);
    let next = Rc::new(Cell::new(0));
    let started = monotonic_ns();
    let tasks: Vec<_> = (0..pass.depth)
        .map(|_| {
            let (file, next, arena) = (Rc::clone(&file), Rc::clone(&next), arena.clone());
            glommio::spawn_local(async move {
                while let Some(index) = taken(&next, pass.count) {
                    transfer(&file, &arena, &pass, index, copies).await?;
                }
                io::Result::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    let took = Duration::from_nanos(monotonic_ns() - started);
    if let Ok(file) = Rc::try_unwrap(file) {
        file.close().await?;
    }
    Ok(took)
}

fn taken(next: &Cell<u64>, count: u64) -> Option<u64> {
    let index = next.get();
    next.set(index + 1);
    (index < count).then_some(index)
}

async fn transfer(file: &DmaFile, arena: &Arena, pass: &Sweep, index: u64, copies: bool) -> io::Result<()> {
    let (offset, bytes) = (index * pass.block_bytes, pass.block_bytes as usize);
    let copied = if copies { bytes } else { STAMP_BYTES };
    let moved = match pass.kind {
        TransferKind::Write => {
            let mut buffer = file.alloc_dma_buffer(bytes);
            arena.copy_out(offset, &mut buffer.as_bytes_mut()[..copied]);
            file.write_at(buffer, offset).await?
        }
        TransferKind::Read => {
            let read = file.read_at_aligned(offset, bytes).await?;
            arena.copy_in(offset, &read[..copied.min(read.len())]);
            read.len()
        }
    };
    match moved == bytes {
        true => Ok(()),
        false => Err(io::Error::other(format!("a transfer moved {moved} of {bytes} bytes"))),
    }
}
