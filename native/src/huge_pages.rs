//! Huge pages for tables that are far larger than what the processor's own tables of pages reach.

use crate::arena_map::HUGE_PAGE_BYTES;

/// Has the kernel map what is whole huge pages of so many bytes from `address` that way once it is touched, where it
/// gives them to whoever asks. A hint: it changes nothing that can be seen, and any address may be given.
pub fn advise(address: *const u8, bytes: usize) {
    let Some(start) = address.addr().checked_next_multiple_of(HUGE_PAGE_BYTES) else { return };
    let end = address.addr().saturating_add(bytes) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if start < end {
        // SAFETY: this advice changes neither the contents nor the protection of a mapping, and of what is no
        // mapping the kernel says so. A safe way would need the owner of the memory, which is a `Vec`.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs;

    #[test]
    fn what_is_touched_after_the_advice_is_mapped_by_huge_pages_and_is_what_it_was() {
        let bytes = 8 * HUGE_PAGE_BYTES;
        let mut table: Vec<u8> = Vec::with_capacity(bytes);
        advise(table.as_ptr(), table.capacity());
        table.resize(bytes, 7);
        assert!(table.iter().all(|&byte| byte == 7));
        let setting =
            std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        if setting.contains("[madvise]") || setting.contains("[always]") {
            let huge = procfs::anonymous_huge_bytes(table.as_ptr().addr(), bytes);
            assert!(huge >= 4 * HUGE_PAGE_BYTES as u64, "{huge} bytes of {bytes}");
        }
    }

    #[test]
    fn any_address_may_be_given() {
        advise(std::ptr::null(), 0);
        advise(std::ptr::without_provenance(usize::MAX), usize::MAX);
        let small = [1u8; 64];
        advise(small.as_ptr(), small.len());
        assert_eq!(small, [1; 64]);
    }
}
