//! The publisher against a receiver that knows nothing but frames.

mod bounds_tests;
mod delta_tests;
mod open_tests;
mod random_tests;
mod receiver;
mod rig;
mod snapshot_tests;
