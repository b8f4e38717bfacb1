//! A long transfer cut into the parts that the device is given one by one.
//!
//! With 4 KiB pages these are equal and of at most 254 pages, because the block layer would otherwise cut them
//! unevenly at the device's segment limit.

use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;

/// Longest part over small pages: 254 segments of 4 KiB, the least segment limit among the
/// devices measured (virtio).
pub(crate) const PART_BYTES_SMALL_PAGES: u64 = 254 * 4_096;

/// One part of an operation: what a single SQE moves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// First byte, relative to the operation.
    pub start: u64,
    pub bytes: u64,
    pub done: u64,
    pub retries: u8,
}

/// Equal parts of at most `part_bytes_max`, whole pages each; the last may be shorter.
pub(crate) fn split(bytes: u64, part_bytes_max: u64) -> Vec<Part> {
    let count = bytes.div_ceil(part_bytes_max);
    let part_bytes = bytes.div_ceil(count).next_multiple_of(EXTENT_ALIGN_BYTES);
    (0..bytes)
        .step_by(part_bytes as usize)
        .map(|start| Part { start, bytes: part_bytes.min(bytes - start), done: 0, retries: 0 })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = EXTENT_ALIGN_BYTES;

    #[test]
    fn a_split_is_equal_whole_and_within_the_limit() {
        for pages in 1..2_000u64 {
            let parts = split(pages * PAGE, PART_BYTES_SMALL_PAGES);
            let mut next = 0;
            for part in &parts {
                assert_eq!(part.start, next);
                assert!(part.bytes > 0 && part.bytes <= PART_BYTES_SMALL_PAGES && part.bytes % PAGE == 0);
                next += part.bytes;
            }
            assert_eq!(next, pages * PAGE);
            assert_eq!(parts.len() as u64, pages.div_ceil(254));
            let (first, last) = (parts[0].bytes, parts[parts.len() - 1].bytes);
            assert!(first - last <= parts.len() as u64 * PAGE, "{pages} pages: {first} and {last}");
        }
    }
}
