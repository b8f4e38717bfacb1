//! Frames as the files of golden bytes spell them.

/// Reads a `golden.txt`: a name, a colon, then hexadecimal bytes; `xx*n` stands for a byte n times.
pub fn frames(golden: &str) -> Vec<(&str, Vec<u8>)> {
    let mut frames: Vec<(&str, Vec<u8>)> = Vec::new();
    for line in golden.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some(words) = line.strip_prefix(' ') else {
            frames.push((line.strip_suffix(':').expect("a name ends in a colon"), Vec::new()));
            continue;
        };
        let bytes = &mut frames.last_mut().expect("bytes follow a name").1;
        for word in words.split_whitespace() {
            let (byte, times) = word.split_once('*').unwrap_or((word, "1"));
            let byte = u8::from_str_radix(byte, 16).unwrap();
            bytes.extend(std::iter::repeat_n(byte, times.parse().unwrap()));
        }
    }
    frames
}

/// Spells one frame as `golden.txt` does, for the message of a failing test.
pub fn spell(name: &str, bytes: &[u8]) -> String {
    let words: Vec<String> = bytes
        .chunk_by(|a, b| a == b)
        .flat_map(|run| match run.len() {
            0..8 => vec![format!("{:02x}", run[0]); run.len()],
            times => vec![format!("{:02x}*{times}", run[0])],
        })
        .collect();
    let lines: String = words.chunks(24).map(|words| format!(" {}\n", words.join(" "))).collect();
    format!("{name}:\n{lines}")
}
