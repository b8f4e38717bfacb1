//! The requester's end of inventory streams: one room for all owner streams of a core.
