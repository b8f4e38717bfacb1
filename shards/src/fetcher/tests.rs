mod answers;
mod guard;
mod lines;
mod model;
mod payload;
mod queue;
mod rig;
mod shared;
