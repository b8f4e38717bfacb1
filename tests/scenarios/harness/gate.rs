//! The gate between namespaces: every packet from one to another goes through the hands of the test, with the
//! addresses its sender gave it.
//!
//! Each namespace has a TUN device ([`Place`]), whose other end is here. Datagrams of nodes are put before the
//! rule of the moment; everything else, which is TCP to etcd, passes, and so a cut between nodes leaves them their
//! coordinator. This kernel has no netem and need not have any: loss, delay and order are decided here.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tun_tap::Iface;

use super::place::Place;

/// Whoever sets it says that this machine lets nobody make a network namespace, and that the scenarios which need
/// one are to be left out. Without it they fail there.
const WITHOUT_VARIABLE: &str = "SCENARIO_WITHOUT_NAMESPACES";

const IP_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;
const UDP: u8 = 17;

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Drop,
    /// Passes so much later.
    Delay(Duration),
    /// Is kept until [`Network::release`].
    Hold,
    /// So many bytes of it pass so much later, and the rest is kept: as if its sender had made two of it.
    Split(usize, Duration),
}

/// A datagram between two places, by their numbers in the network.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    pub from: usize,
    pub to: usize,
    /// What UDP carries.
    pub payload: &'a [u8],
}

/// Decides about each datagram, in the order in which they come from one place.
pub type Rule = Box<dyn FnMut(&Datagram<'_>) -> Verdict + Send>;

/// What has become of datagrams since the rule was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passage {
    pub passed: u64,
    pub dropped: u64,
    pub delayed: u64,
    pub held: u64,
}

struct Gate {
    devices: Vec<Iface>,
    state: Mutex<State>,
    /// Packets on their way, by the moment they arrive.
    late: Mutex<BTreeMap<(Instant, u64), Vec<u8>>>,
    late_changed: Condvar,
    sent_late: AtomicU64,
    is_closed: AtomicBool,
}

struct State {
    rule: Rule,
    passage: Passage,
    held: Vec<Vec<u8>>,
}

/// Places and the gate between them. Number 0 is for etcd.
pub struct Network {
    gate: Arc<Gate>,
    threads: Vec<JoinHandle<()>>,
    places: Vec<Place>,
}

impl Network {
    /// That many places; `None` if the environment says that there can be none.
    ///
    /// # Panics
    /// If there can be none, and the environment does not say so: a fault that was not tried must not look like one
    /// that did no harm.
    pub fn of(count: usize) -> Option<Network> {
        if std::env::var_os(WITHOUT_VARIABLE).is_some() {
            eprintln!("{WITHOUT_VARIABLE} is set: nothing is tried here");
            return None;
        }
        // A network that is for documentation: no such address is anybody's.
        let made = (0..count).map(|number| Place::new(Ipv4Addr::new(192, 0, 2, number as u8 + 1)));
        let made: Result<Vec<_>, String> = made.collect();
        let (places, devices) = made
            .unwrap_or_else(|why| {
                panic!(
                    "{why}. Scenarios with a network of their own need root (CAP_SYS_ADMIN and CAP_NET_ADMIN), \
                     /dev/net/tun, and `ip` (Debian: iproute2); {WITHOUT_VARIABLE}=1 leaves them out"
                )
            })
            .into_iter()
            .unzip::<Place, Iface, Vec<_>, Vec<_>>();
        let gate = Arc::new(Gate {
            devices,
            state: Mutex::new(State {
                rule: Box::new(|_| Verdict::Pass),
                passage: Passage::default(),
                held: vec![],
            }),
            late: Mutex::default(),
            late_changed: Condvar::new(),
            sent_late: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        });
        let mut threads: Vec<_> = (0..count)
            .map(|number| {
                let gate = gate.clone();
                std::thread::spawn(move || gate.carry(number))
            })
            .collect();
        let late = gate.clone();
        threads.push(std::thread::spawn(move || late.carry_late()));
        Some(Network { gate, threads, places })
    }

    pub fn place(&self, number: usize) -> &Place {
        &self.places[number]
    }

    /// How many there are, that of etcd included.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// From now on this decides.
    pub fn rule(&self, rule: impl FnMut(&Datagram<'_>) -> Verdict + Send + 'static) {
        let mut state = self.gate.state.lock().expect("no panics");
        state.rule = Box::new(rule);
        state.passage = Passage::default();
    }

    /// From now on everything passes.
    pub fn heal(&self) {
        self.rule(|_| Verdict::Pass);
    }

    pub fn passage(&self) -> Passage {
        self.gate.state.lock().expect("no panics").passage
    }

    /// Lets what is held go on, in its order; how much that was.
    pub fn release(&self) -> usize {
        let held = std::mem::take(&mut self.gate.state.lock().expect("no panics").held);
        held.iter().for_each(|packet| self.gate.deliver(packet));
        held.len()
    }

    /// Sends a datagram that nobody sent, and that says it is from there. No rule is asked.
    pub fn forge(&self, from: (usize, u16), to: (usize, u16), payload: &[u8]) {
        let address = |number: usize| self.places[number].address;
        self.gate.deliver(&packet((address(from.0), from.1), (address(to.0), to.1), payload));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.gate.is_closed.store(true, Ordering::Release);
        self.gate.late_changed.notify_all();
        self.places.iter().for_each(Place::unplug);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Gate {
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Carries what comes from one place, until its device is gone.
    fn carry(&self, number: usize) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count) = self.devices[number].recv(&mut buffer) {
            if self.is_closed() {
                return;
            }
            self.judge(number, &buffer[..count]);
        }
    }

    fn judge(&self, from: usize, packet: &[u8]) {
        let Some(to) = self.destination(packet) else { return };
        let header_bytes = usize::from(packet[0] & 0xf) * 4;
        if packet[9] != UDP || packet.len() < header_bytes + UDP_HEADER_BYTES {
            return self.deliver(packet);
        }
        let (headers, payload) = packet.split_at(header_bytes + UDP_HEADER_BYTES);
        let mut state = self.state.lock().expect("no panics");
        let State { rule, passage, held } = &mut *state;
        let verdict = rule(&Datagram { from, to, payload });
        let counter = match verdict {
            Verdict::Pass => &mut passage.passed,
            Verdict::Drop => &mut passage.dropped,
            Verdict::Delay(_) => &mut passage.delayed,
            Verdict::Hold | Verdict::Split(..) => &mut passage.held,
        };
        *counter += 1;
        match verdict {
            Verdict::Pass => self.deliver(packet),
            Verdict::Drop => {}
            Verdict::Delay(wait) => self.delay(packet.to_vec(), wait),
            Verdict::Hold => held.push(packet.to_vec()),
            Verdict::Split(at, wait) => {
                self.delay(readdressed(headers, &payload[..at]), wait);
                held.push(readdressed(headers, &payload[at..]));
            }
        }
    }

    fn delay(&self, packet: Vec<u8>, wait: Duration) {
        let key = (Instant::now() + wait, self.sent_late.fetch_add(1, Ordering::Relaxed));
        self.late.lock().expect("no panics").insert(key, packet);
        self.late_changed.notify_one();
    }

    /// The place an IPv4 packet is for; the kernel says other things too, which nobody here listens to.
    fn destination(&self, packet: &[u8]) -> Option<usize> {
        if packet.len() < IP_HEADER_BYTES || packet[0] >> 4 != 4 || packet[16..19] != [192, 0, 2] {
            return None;
        }
        usize::from(packet[19]).checked_sub(1).filter(|&number| number < self.devices.len())
    }

    fn deliver(&self, packet: &[u8]) {
        if let Some(to) = self.destination(packet) {
            // A device that takes nothing is being unplugged.
            let _ = self.devices[to].send(packet);
        }
    }

    fn carry_late(&self) {
        let mut late = self.late.lock().expect("no panics");
        while !self.is_closed() {
            let now = Instant::now();
            late = match late.first_key_value().map(|((due, _), _)| *due) {
                Some(due) if due <= now => {
                    let (_, packet) = late.pop_first().expect("just seen");
                    self.deliver(&packet);
                    late
                }
                Some(due) => self.late_changed.wait_timeout(late, due - now).expect("no panics").0,
                None => self.late_changed.wait(late).expect("no panics"),
            };
        }
    }
}

/// A packet from and to where another one, whose headers these are, came from and went.
fn readdressed(headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let address = |at: usize| Ipv4Addr::from(*headers[at..].first_chunk::<4>().expect("an address"));
    let ports = &headers[headers.len() - UDP_HEADER_BYTES..];
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    packet((address(12), port(0)), (address(16), port(2)), payload)
}

/// An IPv4 packet with one UDP datagram. Without a checksum of UDP, which IPv4 allows.
fn packet(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let udp_bytes = (UDP_HEADER_BYTES + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend((IP_HEADER_BYTES as u16 + udp_bytes).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
    packet.extend(from.0.octets().into_iter().chain(to.0.octets()));
    let words = packet.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    for word in [from.1, to.1, udp_bytes, 0] {
        packet.extend(word.to_be_bytes());
    }
    packet.extend(payload);
    packet
}
