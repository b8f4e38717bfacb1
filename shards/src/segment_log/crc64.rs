//! CRC-64/XZ, for segment tables: every burst of up to 64 changed bits is found, and a table is
//! small and rare enough that one byte at a time is fast enough.

const POLYNOMIAL: u64 = 0xc96c_5795_d787_0f42;

const STEPS: [u64; 256] = {
    let mut steps = [0u64; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        steps[byte] = crc;
        byte += 1;
    }
    steps
};

/// The CRC of what `before` covered followed by `bytes`; `before` is 0 at the start.
pub(super) fn crc64(before: u64, bytes: &[u8]) -> u64 {
    !bytes.iter().fold(!before, |crc, byte| STEPS[((crc ^ u64::from(*byte)) & 0xff) as usize] ^ (crc >> 8))
}

#[cfg(test)]
mod tests {
    use super::crc64;

    #[test]
    fn matches_the_published_check_value() {
        assert_eq!(crc64(0, b"123456789"), 0x995d_c9bb_df19_39fa);
        assert_eq!(crc64(crc64(0, b"1234"), b"56789"), 0x995d_c9bb_df19_39fa);
    }
}
