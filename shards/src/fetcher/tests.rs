mod answers;
mod lines;
mod model;
mod payload;
mod queue;
mod rig;
mod shared;
mod trials;
