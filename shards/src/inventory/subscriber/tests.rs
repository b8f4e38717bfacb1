//! Tests of the room, each against frames as a source would build them.

mod bootstrap;
mod budget;
mod deltas;
mod known_bugs;
mod membership;
mod model;
mod rig;
mod sessions;
mod waiting;
