//! The header of a saved session of arbitrary bytes: refused, or read back to the byte, with a size that a file can have.
#![no_main]

use kimi_model::state::{HEADER_BYTES, Header, MAGIC, VERSION};
use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;

fuzz_target!(|data: &[u8]| {
    let mut bytes = [0; HEADER_BYTES];
    let len = data.len().min(HEADER_BYTES);
    bytes[..len].copy_from_slice(&data[..len]);
    check(&bytes);
    // The same behind the checks that chance does not pass.
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let sum = XxHash3_64::oneshot(&bytes[..HEADER_BYTES - 8]);
    bytes[HEADER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
    check(&bytes);
});

fn check(bytes: &[u8; HEADER_BYTES]) {
    if let Ok(header) = Header::parse(bytes) {
        assert!(header.tokens() >= header.position());
        assert!(header.file_bytes().expect("checked") >= HEADER_BYTES as u64 + 4 * header.tokens());
        // What lies in fields that are not used is not kept.
        let again = header.to_bytes();
        assert_eq!(Header::parse(&again), Ok(header));
        if header.seed().is_some() {
            assert_eq!(&again, bytes);
        }
    }
}
