//! What this program says on its standard output.

use std::io::Write;

/// Writes a line to standard output. A reader that has gone away (`| head`) is no error of ours.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
}
