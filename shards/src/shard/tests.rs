//! The shard against a device and engines that tests play: see `rig` for the device, `model` for
//! what a correct cache may answer, and the other files for the rows of the specification.

mod audit_tests;
mod backpressure_tests;
mod device_guard_tests;
mod device_tests;
mod engine_steps;
mod fetch_tests;
mod lease_tests;
mod life_tests;
mod model;
mod node_steps;
mod pools_tests;
mod prefetch_random_tests;
mod prefetch_tests;
mod random_tests;
mod retention_tests;
pub mod rig;
mod save_tests;
mod stage_tests;
mod throttle_tests;
