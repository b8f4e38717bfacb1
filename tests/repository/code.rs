//! Rust source with its comments and literals blanked, so that a rule sees code only.

/// Replaces the inside of comments, strings and character literals by spaces; lines stay lines.
pub fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let after_word = code.chars().next_back().is_some_and(is_word);
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(hashes) = raw_string_hashes(rest).filter(|_| !after_word) {
            raw_string(rest, hashes)
        } else if first == '"' {
            quoted(rest, '"')
        } else if first == '\'' && is_character(rest) {
            quoted(rest, '\'')
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[length..];
    }
    code
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Bytes of the (nested) block comment that `rest` starts with.
fn block_comment(rest: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest[at..].starts_with("*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                break;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// Number of hashes if `rest` starts a raw string.
fn raw_string_hashes(rest: &str) -> Option<usize> {
    let opened = ["r", "br", "cr"].iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    let quote = opened.trim_start_matches('#');
    quote.starts_with('"').then(|| opened.len() - quote.len())
}

fn raw_string(rest: &str, hashes: usize) -> usize {
    let start = rest.find('"').expect("a raw string has a quote") + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len())
}

/// Bytes of a literal with escapes, both quotes included.
fn quoted(rest: &str, quote: char) -> usize {
    let mut characters = rest.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        if c == '\\' {
            characters.next();
        } else if c == quote {
            return at + 1;
        }
    }
    rest.len()
}

/// Whether the quote starts a character literal and not a lifetime.
fn is_character(rest: &str) -> bool {
    let mut characters = rest.chars().skip(1);
    characters.next() == Some('\\') || characters.next() == Some('\'')
}

/// The words of code: identifiers and keywords, with the number of their line.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.lines().enumerate().flat_map(|(index, line)| {
        let words = line.split(|c: char| !is_word(c)).filter(|word| !word.is_empty());
        words.map(move |word| (index + 1, word))
    })
}

#[test]
fn comments_and_literals_are_blanked_and_code_is_not() {
    let source = "a /* b /* c */ d */ e \"f \\\" g\" h r#\"i \" j\"# k '\\'' l '\"' m 'n o // p\n q b\"r\" é";
    assert_eq!(
        code_of(source).split_whitespace().collect::<Vec<_>>(),
        ["a", "e", "h", "k", "l", "m", "'n", "o", "q", "b", "é"]
    );
    assert_eq!(code_of(source).lines().count(), source.lines().count());
    assert_eq!(code_of("for\"x\""), "for   ");
    assert_eq!(code_of("\"never closed"), " ".repeat(13));
    let found: Vec<_> = words("fn a_b(c: D)\n\n e").collect();
    assert_eq!(found, [(1, "fn"), (1, "a_b"), (1, "c"), (1, "D"), (3, "e")]);
}
