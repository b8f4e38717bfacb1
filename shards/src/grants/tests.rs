//! Grants over a real shard whose arena and device the tests play: `rig` for the driver's part, and the rows
//! of chapters 3.2 and 3.3, one by one and in random lives.

mod answers_tests;
mod ends_tests;
mod random_tests;
mod rig;
