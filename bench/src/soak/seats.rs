//! The nodes of a cell as all threads of it see them: where each is, whether it is struck, who owns blocks there, and what
//! has gone wrong.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use orbitkv::cluster::NodeProcess;

use crate::Failure;
use crate::payload::WrongBytes;
use crate::streams::keys::Keys;
use crate::streams::owner::Owner;

/// Where a node is: another place after each restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// Its process.
    pub process: u32,
    /// Its HTTP API.
    pub http: String,
    /// Its engine socket.
    pub socket: PathBuf,
    /// How often it was started again.
    pub life: u32,
}

impl Place {
    /// Of a node that runs.
    pub fn of(node: &NodeProcess, life: u32) -> Place {
        Place {
            name: node.name().to_owned(),
            process: node.process_id(),
            http: node.http_address().to_owned(),
            socket: node.socket().to_owned(),
            life,
        }
    }
}

/// A node of the cell.
pub struct Seat {
    place: Mutex<Place>,
    /// Whoever holds it has the engine for itself; none while there is none.
    pub owner: Mutex<Option<Owner>>,
    keys: Mutex<Option<Keys>>,
    /// Whether the node is not to be asked.
    dark: AtomicBool,
    /// Changes that its owner has made.
    changes: AtomicU64,
}

impl Seat {
    /// Of a node that runs, with an owner or without.
    pub fn new(node: &NodeProcess, owner: Option<Owner>) -> Seat {
        Seat {
            place: Mutex::new(Place::of(node, 0)),
            keys: Mutex::new(owner.as_ref().map(|owner| *owner.keys())),
            owner: Mutex::new(owner),
            dark: AtomicBool::new(false),
            changes: AtomicU64::new(0),
        }
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        self.place.lock().expect("nobody panics with it").clone()
    }

    /// It has moved.
    pub fn moved(&self, place: Place) {
        *self.place.lock().expect("nobody panics with it") = place;
    }

    /// The keys of its owner, as they were after its last burst.
    pub fn keys(&self) -> Option<Keys> {
        *self.keys.lock().expect("nobody panics with it")
    }

    /// Its owner has other keys, after so many changes.
    pub fn changed(&self, keys: Option<Keys>, changes: u64) {
        *self.keys.lock().expect("nobody panics with it") = keys;
        self.changes.fetch_add(changes, Ordering::Relaxed);
    }

    /// Changes so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Whether it is not to be asked.
    pub fn is_dark(&self) -> bool {
        self.dark.load(Ordering::Relaxed)
    }

    /// It is not to be asked from now on, or is again.
    pub fn set_dark(&self, dark: bool) {
        self.dark.store(dark, Ordering::Relaxed);
    }
}

/// What has gone wrong on any thread: the first word counts, and ends the cell.
#[derive(Default)]
pub struct Trouble {
    told: AtomicBool,
    first: Mutex<Option<Told>>,
}

/// What was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether a block had other bytes than were saved.
    pub wrong_bytes: bool,
    /// What it was.
    pub words: String,
}

impl Told {
    /// Of a failure of somebody.
    pub fn of(who: &str, failure: &Failure) -> Told {
        Told { wrong_bytes: failure.is::<WrongBytes>(), words: format!("{who}: {failure}") }
    }
}

impl Trouble {
    /// Tells, unless somebody has.
    pub fn tell(&self, told: Told) {
        self.first.lock().expect("nobody panics with it").get_or_insert(told);
        self.told.store(true, Ordering::Relaxed);
    }

    /// Whether somebody has told.
    pub fn is_there(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// The first word.
    pub fn take(&self) -> Option<Told> {
        self.first.lock().expect("nobody panics with it").take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_counts_and_wrong_bytes_are_told_apart() {
        let trouble = Trouble::default();
        assert!(!trouble.is_there() && trouble.take().is_none());
        trouble.tell(Told::of("reader", &WrongBytes::of(3, 4).into()));
        trouble.tell(Told::of("owner", &"gone".into()));
        let told = trouble.take().expect("two were told");
        assert!(trouble.is_there() && told.wrong_bytes, "{told:?}");
        assert_eq!(told.words, "reader: wrong bytes: block 4 of generation 3");
        assert!(!Told::of("owner", &"gone".into()).wrong_bytes);
    }
}
