//! Which commands the work between DRAM and SSD is for, told as it goes on to whoever follows requests. Off unless asked
//! for, since a shard needs none of it.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::{Shard, Tag};

/// Write-backs that are followed at once at most: as many as anybody could tell events of.
const FOLLOWED_MAX: usize = 65_536;

/// How far the device work for one block of a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A block it committed waits to be written back.
    WriteBackQueued,
    /// Its write-back was taken up.
    WriteBackTaken,
    /// Its write-back has ended, one way or another.
    WriteBackEnded,
    /// A block waits for the device.
    DeviceQueued,
    /// The device is given it.
    DeviceTaken,
    /// The device has done with it.
    DeviceEnded,
    /// Its write-back is not followed: too many are.
    Unfollowed,
}

/// A command's block has come to a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageNote {
    /// The command.
    pub tag: Tag,
    /// Where its block is.
    pub stage: Stage,
}

/// What is told, if anything is.
#[derive(Default)]
pub(super) struct Stages(Option<Box<Followed>>);

#[derive(Default)]
struct Followed {
    notes: VecDeque<StageNote>,
    /// The command that is carried out, or was last.
    command: Option<Tag>,
    /// Who committed what waits to be written back, by ticket.
    savers: HashMap<u64, Tag>,
}

impl Stages {
    pub fn on_command(&mut self, tag: Tag) {
        if let Some(followed) = &mut self.0 {
            followed.command = Some(tag);
        }
    }

    pub fn on_write_back_queued(&mut self, ticket: u64) {
        let Some(followed) = &mut self.0 else { return };
        let Some(tag) = followed.command else { return };
        if followed.savers.len() == FOLLOWED_MAX {
            return followed.notes.push_back(StageNote { tag, stage: Stage::Unfollowed });
        }
        followed.savers.insert(ticket, tag);
        followed.notes.push_back(StageNote { tag, stage: Stage::WriteBackQueued });
    }

    /// Its write-back is an order for the device.
    pub fn on_write_back_taken(&mut self, ticket: u64) {
        for stage in [Stage::WriteBackTaken, Stage::DeviceQueued, Stage::DeviceTaken] {
            self.of_write_back(ticket, stage);
        }
    }

    pub fn on_write_back_done(&mut self, ticket: u64) {
        self.of_write_back(ticket, Stage::DeviceEnded);
    }

    pub fn on_write_back_ended(&mut self, ticket: u64) {
        self.of_write_back(ticket, Stage::WriteBackEnded);
        if let Some(followed) = &mut self.0 {
            followed.savers.remove(&ticket);
        }
    }

    fn of_write_back(&mut self, ticket: u64, stage: Stage) {
        if let Some(followed) = &mut self.0
            && let Some(&tag) = followed.savers.get(&ticket)
        {
            followed.notes.push_back(StageNote { tag, stage });
        }
    }

    /// A command waits for a read that the device has, or has not yet.
    pub fn on_read_awaited(&mut self, tag: Tag, is_taken: bool) {
        self.note([tag], Stage::DeviceQueued);
        if is_taken {
            self.note([tag], Stage::DeviceTaken);
        }
    }

    /// Blocks of these commands are at a stage.
    pub fn note(&mut self, tags: impl IntoIterator<Item = Tag>, stage: Stage) {
        if let Some(followed) = &mut self.0 {
            followed.notes.extend(tags.into_iter().map(|tag| StageNote { tag, stage }));
        }
    }
}

impl Shard {
    /// Tells from now on which commands device work is for; to be taken with [`Shard::poll_stage`] after each
    /// call that may have begun or ended any.
    pub fn watch_stages(&mut self) {
        self.stages.0.get_or_insert_default();
    }

    /// The next stage that a command's block has come to.
    pub fn poll_stage(&mut self) -> Option<StageNote> {
        self.stages.0.as_mut()?.notes.pop_front()
    }
}
