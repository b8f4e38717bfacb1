//! The reactor of a shard core: the only file that names monoio.
//!
//! It knows one thing: telling the core which of its descriptors has become readable or writable.
//! Everything else happens synchronously inside the core. No task ever wakes itself (a task that
//! does starves every other one in this runtime), so work that is left over is re-armed through an
//! eventfd of the core.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use monoio::net::udp::UdpSocket;
use monoio::{IoUringDriver, RuntimeBuilder};

use super::{Core, Interest, Next, Ready, Watch};

/// Ring entries of the reactor: one poll per watched descriptor is outstanding at most.
const RING_ENTRIES: u32 = 1_024;

/// Runs the core that `build` makes on this thread until it says that it has ended.
///
/// # Errors
/// If the runtime's ring cannot be made (io_uring is missing or forbidden), or `build` fails.
pub fn run(build: impl FnOnce() -> io::Result<Core>) -> io::Result<()> {
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new().with_entries(RING_ENTRIES).build()?;
    let core = build()?;
    let mail = pollable(core.mail_watch()?)?;
    let core = Rc::new(RefCell::new(core));
    runtime.block_on(async move {
        spawn_new(&core);
        // The mail watch is the main task: whatever ends the core rings its own doorbell.
        while !core.borrow().has_ended() {
            mail.readable(false).await?;
            core.borrow_mut().on_ready(Ready::Mail);
            spawn_new(&core);
        }
        Ok(())
    })
}

/// Any descriptor that poll accepts; the type is only a way to poll it.
fn pollable(watch: Watch) -> io::Result<UdpSocket> {
    UdpSocket::from_std(std::net::UdpSocket::from(watch.fd))
}

fn spawn_new(core: &Rc<RefCell<Core>>) {
    let watches = core.borrow_mut().take_watches();
    for watch in watches {
        let core = Rc::clone(core);
        monoio::spawn(async move {
            let (ready, interest) = (watch.ready, watch.interest);
            // A core that cannot watch one of its descriptors would be half alive: see `node`.
            let socket = pollable(watch).expect("a reactor takes any descriptor that its core opened");
            loop {
                let polled = match interest {
                    Interest::Read => socket.readable(false).await,
                    Interest::Write => socket.writable(false).await,
                };
                // A failed poll is reported like readiness: the core's own call then sees the error.
                drop(polled);
                let next = core.borrow_mut().on_ready(ready);
                spawn_new(&core);
                if next == Next::Stop {
                    return;
                }
            }
        });
    }
}
