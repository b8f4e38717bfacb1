//! The engine channel: bad input, contention, limits and the death of engines and of the node.

mod claims;
mod deadlines;
mod death;
mod drain;
mod frames;
mod limits;
mod load;
mod races;
mod registrations;
mod repeats;
mod restart;
mod shards;
pub mod users;
