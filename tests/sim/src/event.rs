//! What can happen in the world.

use std::rc::Rc;

use orbitkv_shards::members::MemberMap;

use crate::control::{Reminder, Reply, Request};
use crate::mail::{Mail, Reader};
use crate::network::NetworkEvent;

/// A process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// The node.
    pub node: u16,
    /// Which of its processes, counted.
    pub number: u32,
}

/// Something that happens at a moment.
#[derive(Clone, Debug)]
pub enum Event {
    /// Something arrives, or does not.
    Network(NetworkEvent),
    /// A letter arrives.
    Mail(Process, Reader, Box<Mail>),
    /// A core has something to do.
    Turn(Process, u16),
    /// A request arrives at the membership service.
    Request(Process, Request),
    /// An answer of the service arrives.
    Reply(Process, Reply),
    /// The service tells of a revision.
    Watch(Process, Rc<MemberMap>),
    /// Control has reminded itself.
    Remind(Process, Reminder),
    /// A lease may have ended.
    Expire,
    /// Engines of a node do something.
    Load(u16),
    /// Something goes wrong.
    Fault,
    /// A process starts.
    Start(u16),
    /// A process ends, having left.
    Exit(Process),
    /// A paused process goes on.
    Resume(Process),
    /// A node reaches the membership service again.
    ReachService(u16),
    /// Two hosts hear each other again.
    Mend(u16, u16),
    /// An engine looks something up.
    Query,
    /// Somebody wants a barrier.
    Barrier,
    /// A table of barriers has something to do.
    Awaits(Process),
    /// A fence reaches the node that awaits it.
    Fence(Process, Box<orbitkv_shards::fence::Fence>),
}

impl From<NetworkEvent> for Event {
    fn from(event: NetworkEvent) -> Event {
        Event::Network(event)
    }
}
