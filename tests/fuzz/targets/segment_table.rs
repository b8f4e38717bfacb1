//! Any bytes as a segment's table: no panic, and whatever decodes lies in order inside its segment.
//! Magics, length and checksum are mended first, so that what lies behind them is reached.
#![no_main]

use orbitkv_shards::segment_log::decode_table;

const PAGE: usize = 4_096;

/// CRC-64/XZ, bit by bit: written apart from the decoder's own.
fn crc64(parts: &[&[u8]]) -> u64 {
    let mut crc = u64::MAX;
    for &byte in parts.iter().copied().flatten() {
        crc ^= u64::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xc96c_5795_d787_0f42 } else { crc >> 1 };
        }
    }
    !crc
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert!(decode_table(bytes).is_err(), "nobody guesses a checksum");
    // The fuzzer's bytes are the header and the entries; the rest makes a table of them.
    let mut table = vec![0; PAGE];
    let used = bytes.len().min(PAGE - 36);
    table[8..12].copy_from_slice(&1u32.to_le_bytes());
    table[12..12 + used].copy_from_slice(&bytes[..used]);
    table[..8].copy_from_slice(b"orbkvseg");
    table[PAGE - 24..PAGE - 20].copy_from_slice(&(PAGE as u32).to_le_bytes());
    table[PAGE - 20..PAGE - 16].fill(0);
    table[PAGE - 8..].copy_from_slice(b"orbkvend");
    let crc = crc64(&[&table[..PAGE - 16], &table[PAGE - 8..]]);
    table[PAGE - 16..PAGE - 8].copy_from_slice(&crc.to_le_bytes());
    if let Ok(table) = decode_table(&table) {
        let mut free_from = table.segment_offset;
        for block in &table.blocks {
            assert!(block.offset >= free_from && block.payload_bytes > 0);
            free_from = block.offset + u64::from(block.payload_bytes);
            assert!(free_from <= table.segment_offset + table.segment_bytes);
        }
    }
});
