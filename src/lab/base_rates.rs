//! Rates that all models share ("K01"): the load of the system that the models were made for.

/// Reads at peak, a second.
pub const READ_PEAK: f64 = 416.67;
/// Writes at peak, a second.
pub const WRITE_PEAK: f64 = 97.22;
/// Requests at the edge at peak, a second.
pub const EDGE_PEAK: f64 = 513.89;
/// Bytes of a response.
pub const RESPONSE_BYTES: u32 = 480;
/// Minutes of a month that failures may take of the 43.2 that it may be down.
pub const FAILURE_SHARE_MIN: f64 = 28.2;
