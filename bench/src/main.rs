//! `orbitkv-bench`: measures OrbitKV against something named, in one run.

fn main() {}
