//! Asking the processor for memory that will be needed: what a table far larger than the caches spends
//! its time on otherwise is waiting.

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Brings the first and the last line of `bytes` bytes from `address` near, on processors on which we
/// know how. A hint: it changes nothing that can be seen, and any address may be given.
pub fn prefetch(address: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let last = address.wrapping_add(bytes.saturating_sub(1));
        // SAFETY: a prefetch does not fault and yields nothing, whatever the address. Safe code has no
        // such instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        if (address.addr() ^ last.addr()) >= LINE_BYTES {
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(last.cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_may_be_given() {
        let value = [1u8; 256];
        prefetch(value.as_ptr(), value.len());
        prefetch(std::ptr::null(), 0);
        prefetch(std::ptr::without_provenance(usize::MAX), usize::MAX);
        assert_eq!(value, [1; 256]);
    }
}
