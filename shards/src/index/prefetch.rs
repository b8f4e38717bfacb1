//! Asking for memory before it is needed. How a processor is asked is the driver's to know: it takes an
//! instruction that safe code does not have.

/// Brings the first and the last line of so many bytes from an address near. A hint: it changes nothing
/// that can be seen, whatever the address.
pub type PrefetchBytes = fn(address: *const u8, bytes: usize);

/// How to ask, if at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefetch(PrefetchBytes);

impl Prefetch {
    pub fn new(prefetch: PrefetchBytes) -> Prefetch {
        Prefetch(prefetch)
    }

    /// Asks for what holds `value`, which is at most two lines.
    pub fn ask<T>(self, value: &T) {
        const { assert!(size_of::<T>() <= 64) };
        (self.0)(std::ptr::from_ref(value).cast(), size_of::<T>());
    }
}

impl Default for Prefetch {
    /// Asks for nothing.
    fn default() -> Prefetch {
        Prefetch(|_, _| {})
    }
}
