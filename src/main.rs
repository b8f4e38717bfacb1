//! `orbitkv`: the node daemon and its operator commands.

fn main() {}
