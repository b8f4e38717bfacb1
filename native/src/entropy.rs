//! Randomness from the kernel. Only boot code and tests call these; rooms take random values
//! as arguments.

/// Sixteen random bytes.
///
/// # Panics
/// If the kernel gives no randomness: nothing that needs an identity can run without it.
pub fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel's random source (getrandom) must be readable");
    bytes
}

/// A random 128-bit number; panics as [`random_bytes`] does.
pub fn random_u128() -> u128 {
    u128::from_le_bytes(random_bytes())
}

/// A random 64-bit number; panics as [`random_bytes`] does.
pub fn random_u64() -> u64 {
    random_u128() as u64
}

/// The bytes of a version 4 UUID in the order they are printed; panics as [`random_bytes`] does.
pub fn uuid_v4_bytes() -> [u8; 16] {
    let mut bytes = random_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn values_differ_and_every_bit_moves() {
        let values: HashSet<u64> = (0..1_000).map(|_| random_u64()).collect();
        assert_eq!(values.len(), 1_000);
        let (ones, zeros) = (0..1_000).fold((0u128, 0u128), |(ones, zeros), _| {
            let value = random_u128();
            (ones | value, zeros | !value)
        });
        assert_eq!((ones, zeros), (u128::MAX, u128::MAX));
    }

    #[test]
    fn uuid_carries_version_and_variant() {
        for _ in 0..100 {
            let bytes = uuid_v4_bytes();
            assert_eq!(bytes[6] >> 4, 4);
            assert_eq!(bytes[8] >> 6, 0b10);
        }
        assert_ne!(uuid_v4_bytes(), uuid_v4_bytes());
    }
}
