//! What a core was doing when: the stages of each request and the slices of each turn, for whoever looks for what a
//! slow request waited for (chapter 6.7). Off unless a node is started with `--trace-turns`.
//!
//! [`recorder`] is the core's side: bounded, and it never leaves the core but in pages that control asks for.
//! [`timeline`] is the reader's: pages of all cores joined to requests by (session, request id), and what a core did
//! in a stretch of time. [`screen`] tells that to a person.

pub mod recorder;
pub mod screen;
pub mod timeline;

/// Events that a node holds at most, over all its cores.
pub const EVENTS_MAX: u32 = 65_536;

/// Events of one page at most: as much as a core copies in a few microseconds.
pub const PAGE_EVENTS_MAX: usize = 2_048;

/// A part of a turn that took less than this is not told, in nanoseconds: it delays nobody, and clocks are not finer.
pub const SLICE_NS_MIN: u64 = 1_000;

/// Room of one of `shards` cores: together they hold exactly [`EVENTS_MAX`].
#[must_use]
pub fn share(shards: u16, core: u16) -> usize {
    let shards = u32::from(shards.max(1));
    (EVENTS_MAX / shards + u32::from(u32::from(core) < EVENTS_MAX % shards)) as usize
}

/// Names each code of an event, so that a page can be read by programs of another version.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[$of:meta])* $item:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$of])* $item,)* }

        impl $name {
            /// All of them, in the order of their codes.
            pub const ALL: &[$name] = &[$($name::$item,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($name::$item => $text,)* }
            }

            /// The one with this code.
            #[must_use]
            pub fn of_code(code: u16) -> Option<$name> {
                $name::ALL.get(usize::from(code)).copied()
            }
        }
    };
}

named! {
    /// What an event says.
    What {
        /// The core took the request's last byte in.
        Receive = "receive",
        /// Its frame was looked at: before, it waited for others of its connection.
        Start = "start",
        /// A shard, or the registry, began a command of it.
        Execute = "execute",
        /// The last byte of its answer went to the socket.
        Respond = "respond",
        /// A block it saved waits to be written back.
        WriteBackEnqueue = "write-back enqueue",
        /// Its write-back was taken up.
        WriteBackDequeue = "write-back dequeue",
        /// Its write-back has ended, whether or not it is on SSD then.
        WriteBackComplete = "write-back complete",
        /// A block it saved or wants waits for the device.
        SsdEnqueue = "ssd enqueue",
        /// The device was given it.
        SsdDequeue = "ssd dequeue",
        /// The device has done with it.
        SsdComplete = "ssd complete",
        /// A turn, whole.
        Turn = "turn",
        /// What woke the core was taken in: an engine's bytes, a timer, a process that is gone.
        Wake = "taking in",
        /// Letters of other cores and control.
        Mail = "mail",
        /// What is too long for one turn: a Clear, a new life, copies of a dead process.
        Steps = "long work",
        /// The SSD: completions, checksums, next orders.
        Device = "device",
        /// Commands of engines and their answers.
        Rounds = "commands",
        /// Answers to engines' sockets.
        Sockets = "answers out",
        /// Datagrams of peers in, and what they mean to connections.
        Datagrams = "datagrams in",
        /// Inventory frames to their rooms.
        Frames = "inventory frames",
        /// What subscribers are told.
        Publisher = "publisher",
        /// Changes into the index.
        Subscriber = "subscriber apply",
        /// Payload lent and fetched.
        Payload = "payload",
        /// What all of them send.
        Departures = "datagrams out",
        /// Mail out, doorbells, the timer.
        Close = "closing",
    }
}

named! {
    /// What woke a core for a turn.
    Woken {
        /// A doorbell of another core.
        Mail = "mail",
        /// An engine to be accepted.
        Listener = "a new engine",
        /// The device.
        Device = "device",
        /// A peer's datagrams.
        Datagrams = "datagrams",
        /// Something on a peer socket.
        PeerSockets = "a peer socket",
        /// Work that the turn before left over.
        LeftOver = "work left over",
        /// A deadline.
        Timer = "timer",
        /// A process that is gone.
        Processes = "a process's end",
        /// An engine's bytes.
        Engine = "an engine",
        /// Room in an engine's socket.
        Room = "room in a socket",
    }
}

impl What {
    /// Whether it is a part of a turn.
    #[must_use]
    pub fn is_slice(self) -> bool {
        self >= What::Wake
    }

    /// Whether it is told by core and job number, because a shard does not know requests.
    #[must_use]
    pub fn is_of_job(self) -> bool {
        matches!(
            self,
            What::Execute
                | What::WriteBackEnqueue
                | What::WriteBackDequeue
                | What::WriteBackComplete
                | What::SsdEnqueue
                | What::SsdDequeue
                | What::SsdComplete
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_all_cores_are_the_whole_and_nothing_more() {
        for shards in [1, 2, 3, 7, 64, 1_000] {
            let all: usize = (0..shards).map(|core| share(shards, core)).sum();
            assert_eq!(all, EVENTS_MAX as usize, "{shards} shards");
        }
    }

    #[test]
    fn codes_are_places_in_the_list() {
        for (code, &what) in (0u16..).zip(What::ALL) {
            assert_eq!((what as u16, What::of_code(code)), (code, Some(what)));
        }
        assert_eq!((What::of_code(What::ALL.len() as u16), Woken::of_code(99)), (None, None));
        assert!(What::Wake.is_slice() && What::Close.is_slice() && !What::Turn.is_slice());
    }
}
