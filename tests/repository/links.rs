//! Relative links of Markdown files.

/// Links of `text` for whose target `exists`, asked with a path from the root, says no.
pub fn broken(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in targets(line) {
            let target = target.split('#').next().unwrap_or_default();
            let elsewhere = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
            if elsewhere || resolve(path, target).is_some_and(|target| exists(&target)) {
                continue;
            }
            findings.push(format!("line {}: {target} does not exist", index + 1));
        }
    }
    findings
}

/// What stands in the round brackets of `[text](target "title")`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let bracketed = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    bracketed.filter_map(|target| target.split_whitespace().next())
}

/// A link's path from the root, or nothing if it leaves the repository.
fn resolve(path: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[test]
fn only_links_that_lead_nowhere_are_found() {
    let exists = |target: &str| ["docs/a.md", "src/b.rs", "docs"].contains(&target);
    let text = "[a](a.md) and [b](../src/b.rs#L3), [c](#here) [d](https://x/y) [e](mailto:x@y)\n\
                [f](gone.md) [g](../../outside.md \"t\") [h](../docs/)\n```\n[i](gone.md)\n```\n";
    let found = broken("docs/c.md", text, exists);
    assert_eq!(found, ["line 2: gone.md does not exist", "line 2: ../../outside.md does not exist"]);
}
