//! A network namespace of its own for a node or for etcd: an address, a loopback, and a TUN device whose other end
//! the test holds. Processes start in it, and threads of the test look into it.
//!
//! It lives as long as a process that reads a pipe of ours: however the test ends, nothing is left of it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tun_tap::{Iface, Mode};

/// Name of the device in each namespace.
const DEVICE: &str = "gate";

/// Packets that the kernel keeps for the gate: more than all connections of a scenario have on their way.
const QUEUE_PACKETS: &str = "20000";

/// A handle; the namespace goes with the last one.
#[derive(Clone, Debug)]
pub struct Place {
    namespace: Arc<Namespace>,
    pub address: Ipv4Addr,
}

#[derive(Debug)]
struct Namespace {
    keeper: Child,
    link: File,
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

impl Place {
    /// A namespace whose only way out is the device, which takes every packet to an address of the network of
    /// `address`.
    ///
    /// # Errors
    /// In words, if this machine or this user may not have one.
    pub fn new(address: Ipv4Addr) -> Result<(Place, Iface), String> {
        let script = "ip link set lo up && echo ready && exec cat";
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare (Debian: util-linux) does not start: {error}"))?;
        let mut said = String::new();
        let _ = BufReader::new(keeper.stdout.take().expect("piped")).read_line(&mut said);
        if said != "ready\n" {
            let why = std::io::read_to_string(keeper.stderr.take().expect("piped")).unwrap_or_default();
            let _ = keeper.wait();
            return Err(format!("no network namespace can be made: {}", why.trim()));
        }
        let link = File::open(format!("/proc/{}/ns/net", keeper.id())).expect("our child has a namespace");
        let place = Place { namespace: Arc::new(Namespace { keeper, link }), address };
        let device = place.within(|| Iface::without_packet_info(DEVICE, Mode::Tun));
        let device = device.map_err(|error| format!("/dev/net/tun gives no device: {error}"))?;
        let network = format!("{address}/24");
        place.configure(&["address", "add", &network, "dev", DEVICE]);
        place.configure(&["link", "set", DEVICE, "txqueuelen", QUEUE_PACKETS, "up"]);
        Ok((place, device))
    }

    /// Takes the device away: whoever reads its other end is told.
    pub fn unplug(&self) {
        self.configure(&["link", "delete", DEVICE]);
    }

    fn configure(&self, arguments: &[&str]) {
        let output = self.command("ip").args(arguments).output().expect("ip is there: it was used before");
        assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A command that runs in it, under the process id that it is started with.
    pub fn command(&self, program: &str) -> Command {
        let [enter, namespace] = self.entry();
        let mut command = Command::new(enter);
        command.args([&namespace, program]);
        command
    }

    /// What a program is started with to run in it.
    pub fn entry(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.namespace.keeper.id())]
    }

    /// Runs `action` on a thread whose sockets are of the namespace.
    pub fn within<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        let moved = || {
            move_into_link_name_space(self.namespace.link.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("who may make a namespace may enter it");
            action()
        };
        std::thread::scope(|scope| scope.spawn(moved).join().expect("no panic over there"))
    }
}
