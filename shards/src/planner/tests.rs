//! The planner against brute force, and each of its rules.

mod bounds;
mod evidence;
mod oracle;
mod policy;
mod rig;
mod told;
