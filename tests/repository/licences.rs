//! Licences of all dependencies against an allow-list.
//!
//! A licence expression is SPDX: identifiers joined by `OR`, `AND` and `WITH`, with brackets.
//! Older packages write `/` for `OR`.

use crate::packages::Package;

const ALLOWED: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "CC0-1.0",
    "0BSD",
    "Unlicense",
    "BSL-1.0",
    "MPL-2.0",
];

/// Exceptions only ever permit more.
const EXCEPTIONS: &[&str] = &["LLVM-exception"];

/// Packages that may not be used.
pub fn findings(packages: &[Package]) -> Vec<String> {
    let mut findings = Vec::new();
    for package in packages {
        match package.licence.as_deref().map(|text| (text, allows(text))) {
            Some((_, Ok(true))) => {}
            Some((text, Ok(false))) => findings.push(format!("{}: {text} is not allowed", package.name)),
            Some((text, Err(why))) => findings.push(format!("{}: {text}: {why}", package.name)),
            None => findings.push(format!("{}: no licence", package.name)),
        }
    }
    findings
}

/// Whether the expression can be satisfied with allowed licences alone.
fn allows(text: &str) -> Result<bool, String> {
    let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words: Vec<&str> = spaced.split_whitespace().rev().collect();
    let allowed = any(&mut words)?;
    words
        .is_empty()
        .then_some(allowed)
        .ok_or_else(|| format!("{} stands where nothing should", words[words.len() - 1]))
}

/// Takes the next word if it is `word`. Words lie in reverse order.
fn take(words: &mut Vec<&str>, word: &str) -> bool {
    let is_next = words.last() == Some(&word);
    if is_next {
        words.pop();
    }
    is_next
}

/// Alternatives joined by `OR`, which binds weakest.
fn any(words: &mut Vec<&str>) -> Result<bool, String> {
    let mut allowed = all(words)?;
    while take(words, "OR") {
        allowed |= all(words)?;
    }
    Ok(allowed)
}

fn all(words: &mut Vec<&str>) -> Result<bool, String> {
    let mut allowed = one(words)?;
    while take(words, "AND") {
        allowed &= one(words)?;
    }
    Ok(allowed)
}

fn one(words: &mut Vec<&str>) -> Result<bool, String> {
    if take(words, "(") {
        let allowed = any(words)?;
        return if take(words, ")") { Ok(allowed) } else { Err("a bracket is not closed".into()) };
    }
    let licence = words.pop().filter(|word| !["OR", "AND", "WITH", ")"].contains(word));
    let licence = licence.ok_or("a licence is missing")?;
    // Its later versions may be chosen, and need not.
    let mut allowed = ALLOWED.contains(&licence.strip_suffix('+').unwrap_or(licence));
    if take(words, "WITH") {
        allowed &= EXCEPTIONS.contains(&words.pop().ok_or("an exception is missing")?);
    }
    Ok(allowed)
}

#[test]
fn expressions_are_evaluated() {
    for (text, expected) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("MIT OR GPL-3.0-only", true),
        ("MIT AND GPL-3.0-only", false),
        ("MPL-2.0+", true),
        ("GPL-2.0+", false),
        ("MIT AND GPL-2.0+", false),
        ("GPL-3.0-only/MIT", true),
        ("GPL-3.0-only OR MIT AND AGPL-3.0-only", false),
        ("(GPL-3.0-only OR MIT) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND OpenSSL", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0 WITH Other-exception", false),
        ("GPL-2.0-only WITH LLVM-exception", false),
    ] {
        assert_eq!(allows(text), Ok(expected), "{text}");
    }
    for broken in ["", "MIT OR", "(MIT", "MIT)", "MIT MIT", "AND MIT", "MIT WITH"] {
        assert!(allows(broken).is_err(), "{broken}");
    }
}

#[test]
fn a_package_with_a_wrong_licence_or_none_is_found() {
    let package = |name: &str, licence: Option<&str>| Package {
        name: name.into(),
        licence: licence.map(str::to_string),
        dependencies: Vec::new(),
    };
    let packages = [
        package("a", Some("MIT")),
        package("b", Some("SSPL-1.0")),
        package("c", None),
        package("d", Some("MIT OR")),
    ];
    let found = findings(&packages);
    assert_eq!(found, ["b: SSPL-1.0 is not allowed", "c: no licence", "d: MIT OR: a licence is missing"]);
}
