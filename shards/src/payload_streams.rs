//! Where payload travels at its source, as the driver numbers it: what is granted there and what is sent there have one
//! name for it.

/// A connection on which requests come. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PayloadConnection(pub u64);

/// Where an operation travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamAt {
    /// Its connection.
    pub connection: PayloadConnection,
    /// Its stream.
    pub stream: u64,
}
