//! The publisher of a core, and when it has a turn. A turn of it goes over all of its sessions, and most turns of a core
//! are about something else: of a node at rest, all but one a second.

use orbitkv_shards::inventory::publisher::{Figures, Publisher, PublisherEffect, Residences, Standing};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::Sequence;

/// The source's end of a core's inventory streams.
pub(super) struct Source {
    room: Publisher,
    /// It was told something, or has more to do.
    due: bool,
    /// Of the journal at its last turn.
    head: Sequence,
    deadline: Option<Moment>,
}

impl Source {
    pub fn new(room: Publisher) -> Source {
        Source { room, due: true, head: Sequence(0), deadline: None }
    }

    /// The room, to be told something. Whatever that is, its next turn takes place.
    pub fn tell(&mut self) -> &mut Publisher {
        self.due = true;
        &mut self.room
    }

    /// Its turn, if there is anything that it could do; true if more is to be done at once.
    pub fn turn<R: Residences>(
        &mut self,
        source: &orbitkv_shards::inventory::publisher::Source<'_, R>,
        draw: u128,
        now: Moment,
    ) -> bool {
        let head = source.journal.head();
        if !self.due && head == self.head && self.deadline.is_none_or(|deadline| now < deadline) {
            return false;
        }
        self.head = head;
        self.due = self.room.turn(source, draw, now);
        self.deadline = self.room.next_deadline();
        self.due
    }

    /// When it wants its next turn, as far as time alone decides.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadline
    }

    pub fn poll_effect(&mut self) -> Option<PublisherEffect> {
        self.room.poll_effect()
    }

    pub fn figures(&self) -> &Figures {
        self.room.figures()
    }

    pub fn standing(&self, head: Sequence) -> Standing {
        self.room.standing(head)
    }
}
