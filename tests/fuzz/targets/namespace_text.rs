//! Any bytes as a namespace's text form: no panic, and what parses has exactly one spelling.
#![no_main]

use orbitkv_wire::identity::NamespaceDigest;
use orbitkv_wire::namespace::PREFIX;

fn check(text: &str) {
    if let Ok(namespace) = text.parse::<NamespaceDigest>() {
        assert_eq!(namespace.to_string(), text);
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    check(text);
    // No feedback leads to the prefix: it is compared as one block of memory.
    check(&format!("{PREFIX}{text}"));
});
