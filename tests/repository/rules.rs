//! House rules that can be read off a file's text.

use crate::code::{code_of, words};

/// Lines of a room. Tests may be longer: they hold tables.
const ROOM_LINES_MAX: usize = 600;
const TEST_LINES_MAX: usize = 700;

/// Where `unsafe` may stand besides `native/`.
const UNSAFE_ALLOWED: &[&str] = &["native/", "wire/src/layout.rs"];

/// Crates that only one part of the tree may name.
const CONFINED: &[(&str, &[&str])] = &[
    ("monoio", &["src/core/"]),
    (
        "tokio",
        &[
            "src/control",
            "src/main.rs",
            "native/examples/quic_bulk.rs",
            "bench/src/peer/stock.rs",
            "bench/src/ablation/etcd/publisher.rs",
            "bench/rivals/",
        ],
    ),
    // Beside membership, the design with blocks in etcd, which is measured and never built.
    ("etcd_client", &["src/control", "src/main.rs", "bench/src/ablation/etcd/publisher.rs"]),
    ("glommio", &["bench/src/ablation/device/glommio_rival.rs"]),
];

/// Words that take a room's time and randomness from outside its arguments.
const NOT_IN_ROOMS: &[&str] =
    &["SystemTime", "async", "await", "getrandom", "rand", "thread_rng", "RandomState"];

/// Parts of type names that say nothing.
const EMPTY_NAMES: &[&str] = &["Manager", "Helper", "Helpers", "Util", "Utils", "Common"];

/// Parts of texts that name a package registry. `Cargo.lock` names the public one by nature.
const REGISTRIES: &[&str] = &["crates.io", "sparse+", "pypi.org", "npmjs", "artifactory", "registry+"];
const REGISTRY_IN_LOCK: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn is_test(path: &str) -> bool {
    let stem = path.rsplit('/').next().and_then(|name| name.strip_suffix(".rs")).unwrap_or_default();
    path.split('/').any(|part| part == "tests") || stem == "tests" || stem.ends_with("_tests")
}

/// Every rule about Rust source.
pub fn source(path: &str, text: &str) -> Vec<String> {
    let code = code_of(text);
    let mut findings = shape(path, text);
    findings.extend(unfinished(&code));
    findings.extend(type_names(&code));
    findings.extend(confined(path, &code));
    findings.extend(determinism(path, &code));
    findings
}

fn shape(path: &str, text: &str) -> Vec<String> {
    let (lines, limit) = (text.lines().count(), if is_test(path) { TEST_LINES_MAX } else { ROOM_LINES_MAX });
    let mut findings = Vec::new();
    if lines > limit {
        findings.push(format!("{lines} lines: a file has at most {limit}"));
    }
    if !is_test(path) && !text.starts_with("//!") {
        findings.push("no header: a file starts with `//!` and says why it exists".into());
    }
    findings
}

fn unfinished(code: &str) -> Vec<String> {
    let squeezed = code.lines().map(|line| line.split_whitespace().collect::<String>());
    let marks = ["todo!", "unimplemented!", "#[ignore"];
    squeezed
        .enumerate()
        .flat_map(|(index, line)| {
            marks.iter().filter(move |mark| line.contains(**mark)).map(move |mark| (index, mark))
        })
        .map(|(index, mark)| format!("line {}: {mark}", index + 1))
        .collect()
}

fn type_names(code: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let mut before = "";
    for (line, word) in words(code) {
        let declared = matches!(before, "struct" | "enum" | "trait" | "type" | "union");
        if declared && camel_parts(word).any(|part| EMPTY_NAMES.contains(&part)) {
            findings.push(format!("line {line}: the name {word} says nothing"));
        }
        before = word;
    }
    findings
}

/// `BlockManager` has the parts `Block` and `Manager`.
fn camel_parts(name: &str) -> impl Iterator<Item = &str> {
    let starts: Vec<usize> =
        name.char_indices().filter(|(_, c)| c.is_uppercase()).map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([name.len()]).collect::<Vec<_>>();
    starts.into_iter().zip(ends).map(|(start, end)| &name[start..end])
}

fn confined(path: &str, code: &str) -> Vec<String> {
    let within = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
    let mut findings = Vec::new();
    for (line, word) in words(code) {
        if word == "unsafe" && !within(UNSAFE_ALLOWED) {
            findings.push(format!("line {line}: unsafe outside {UNSAFE_ALLOWED:?}"));
        }
        for (name, places) in CONFINED {
            if word == *name && !within(places) {
                findings.push(format!("line {line}: {name} outside {places:?}"));
            }
        }
    }
    findings
}

fn determinism(path: &str, code: &str) -> Vec<String> {
    if !path.starts_with("shards/src/") || is_test(path) {
        return Vec::new();
    }
    let named = words(code).filter(|(_, word)| NOT_IN_ROOMS.contains(word));
    let mut findings: Vec<_> =
        named.map(|(line, word)| format!("line {line}: {word} in a room; it is an argument")).collect();
    if code.contains("Instant::now") {
        findings.push("Instant::now in a room; it is an argument".into());
    }
    findings
}

/// Machine paths and registries in any text file.
pub fn places(path: &str, text: &str, machine_paths: &[String]) -> Vec<String> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line =
            if path.ends_with("Cargo.lock") { line.replace(REGISTRY_IN_LOCK, "") } else { line.into() };
        for place in machine_paths.iter().filter(|place| names_path(&line, place)) {
            findings.push(format!("line {}: the path {place} exists on one machine only", index + 1));
        }
        if path == file!() {
            continue;
        }
        for registry in REGISTRIES.iter().filter(|registry| line.contains(**registry)) {
            findings.push(format!("line {}: names a registry, {registry}", index + 1));
        }
    }
    findings
}

/// Whether `place` stands in `line` as a path of its own and not as a part of another word.
fn names_path(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + place.len()..].chars().next();
        let joins = |c: char| c.is_alphanumeric() || "_-.~$})".contains(c);
        !before.is_some_and(joins) && !after.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-')
    })
}

#[cfg(test)]
mod planted {
    use super::*;

    fn finds(path: &str, text: &str, what: &str) {
        let findings = source(path, text);
        assert!(findings.iter().any(|finding| finding.contains(what)), "{what} not in {findings:?}");
    }

    fn accepts(path: &str, text: &str) {
        assert_eq!(source(path, text), Vec::<String>::new());
    }

    #[test]
    fn long_files_and_missing_headers() {
        let long = |lines: usize| format!("//! Why.\n{}", "\n".repeat(lines - 1));
        accepts("src/a.rs", &long(600));
        finds("src/a.rs", &long(601), "601 lines");
        accepts("src/tests.rs", &long(700));
        finds("src/a/tests.rs", &long(701), "701 lines");
        finds("src/a.rs", "use b;\n", "no header");
        finds("src/a.rs", "", "no header");
        accepts("src/a/b_tests.rs", "use b;\n");
    }

    #[test]
    fn unfinished_code() {
        finds("src/a.rs", "//! Why.\nfn f() { todo!() }", "line 2: todo!");
        finds("src/a.rs", "//! Why.\nfn f() { unimplemented ! () }", "unimplemented!");
        finds("src/tests.rs", "#[ ignore = \"slow\" ]\nfn f() {}", "#[ignore");
        accepts("src/a.rs", "//! Why: todo!() is not allowed.\nconst A: &str = \"todo!\";");
    }

    #[test]
    fn empty_names() {
        for name in ["Manager", "SlotManager", "HelperOfSlots", "SlotUtil", "SlotUtils", "CommonSlot"] {
            for keyword in ["struct", "enum", "trait", "type"] {
                finds("src/a.rs", &format!("//! Why.\npub {keyword} {name} {{}}"), "says nothing");
            }
        }
        accepts("src/a.rs", "//! Why.\npub struct Utility; struct Managers; fn f(x: HelperOf) {}");
    }

    #[test]
    fn confined_names() {
        finds("src/a.rs", "//! Why.\nunsafe { f() }", "line 2: unsafe");
        finds("shards/src/a.rs", "//! Why.\nunsafe fn f() {}", "unsafe outside");
        accepts("native/src/a.rs", "//! Why.\nunsafe { f() }");
        accepts("wire/src/layout.rs", "//! Why.\nunsafe { f() }");
        finds("wire/src/engine/mod.rs", "//! Why.\nunsafe { f() }", "unsafe outside");
        accepts("src/a.rs", "//! Nothing unsafe.\n#[deny(unsafe_code)] fn f() {}");
        finds("src/main.rs", "//! Why.\nuse monoio::io;", "monoio outside");
        accepts("src/core/a.rs", "//! Why.\nuse monoio::io;");
        finds("src/core/a.rs", "//! Why.\nuse tokio::io;", "tokio outside");
        finds("native/src/a.rs", "//! Why.\nuse etcd_client::Client;", "etcd_client outside");
        finds("bench/src/ablation/etcd/mod.rs", "//! Why.\nuse etcd_client::Client;", "etcd_client outside");
        finds("src/core/a.rs", "//! Why.\nuse glommio::io;", "glommio outside");
        accepts("src/control/a.rs", "//! Why.\nuse tokio::io; use etcd_client::Client;");
    }

    #[test]
    fn rooms_that_look_at_the_world() {
        for code in
            ["Instant::now()", "SystemTime", "rand::random()", "async fn f() {}", "getrandom::fill(x)"]
        {
            finds("shards/src/a.rs", &format!("//! Why.\n{code}"), "it is an argument");
            accepts("src/a.rs", &format!("//! Why.\n{code}"));
            accepts("shards/src/a/tests.rs", code);
        }
    }

    #[test]
    fn machines_and_registries() {
        let found = |path: &str, text: &str| places(path, text, &["/build/here".to_string()]).len();
        assert_eq!(found("a.md", "see /build/here/b"), 1);
        assert_eq!(found("a.md", "see \"/build/here\""), 1);
        assert_eq!(found("a.md", "see my/build/here, /build/hereafter"), 0);
        assert_eq!(found("a.toml", "index = \"sparse+https://x\""), 1);
        assert_eq!(found("a.md", "on crates.io"), 1);
        let lock = format!("source = \"{REGISTRY_IN_LOCK}\"\n");
        assert_eq!(found("Cargo.lock", &lock), 0);
        assert_eq!(found("tests/fuzz/Cargo.lock", &lock), 0);
        assert_eq!(found("a.md", &lock), 2);
        assert_eq!(found("Cargo.lock", "source = \"registry+https://other\"\n"), 1);
    }
}
