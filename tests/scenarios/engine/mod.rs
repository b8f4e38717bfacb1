//! The engine channel: bad input, contention and death of engines.
