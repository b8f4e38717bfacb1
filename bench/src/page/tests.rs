use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::collection::Collection;
use super::html::{Page, number, page};
use super::results;
use crate::isolation::record::Record;
use crate::isolation::tests::runs_with_one_failed;

fn gate(name: &str, value: f64, valid: bool) -> Value {
    json!({ "gate": name, "profile": "full", "valid": valid, "met": valid && value <= 2.0, "value": value, "target": 2,
        "sense": "at-most", "why_invalid": (!valid).then_some("<nobody> looked"),
        "against": { "name": "fio", "value": 12345.6 }, "details": { "ratios": { "raw": [value, value * 1.1] } } })
}

fn collection() -> Collection {
    let histogram = json!({ "percentiles": [{ "percentile": 0.0, "value_us": 1.0 }, { "percentile": 100.0, "value_us": 9.0 }] });
    let gates = [gate("visibility_16", 1.25, true), gate("b", 2.5, true), gate("c", 1.0, false)];
    Collection {
        reports: vec![(
            "v.json".to_owned(),
            json!({ "gate": "visibility", "valid": false, "why_invalid": "odd", "seed": 7, "commit": "abc", "machine": "<m>",
                "histograms": { "install": histogram }, "bytes_by_kind": { "pages": 5_000_000 }, "gates": gates }),
        )],
        others: vec![("other.json".to_owned(), json!({ "what": ["x", 1_234_567] }))],
        broken: vec![("broken.json".to_owned(), "no <JSON>".to_owned())],
        ..Collection::default()
    }
}

fn campaign() -> Collection {
    let file = |record: Record| (format!("below/{}.{}.json", record.name, record.attempt), record);
    Collection { runs: runs_with_one_failed().into_iter().map(file).collect(), ..Collection::default() }
}

/// The row of a gate in the page's table.
fn row<'a>(html: &'a str, gate: &str) -> &'a str {
    let name = html.find(&format!("<code>{gate}</code>")).expect("it has a row");
    let begins = html[..name].rfind("<tr>").expect("a row begins");
    &html[begins..][..html[begins..].find("</tr>").expect("and ends")]
}

#[test]
fn a_page_has_every_part_and_fetches_nothing() {
    let Page { html, figures } = page(Path::new("some/results"), &collection());
    let wanted = [
        "<b class=\"good\">1</b>gates met",
        "<b class=\"bad\">1</b>gates missed",
        "<b class=\"doubt\">1</b>gates not judged",
        "&lt;nobody&gt; looked",
        "12,346",
        "seed 7",
        "commit abc",
        "machine &lt;m&gt;",
        "broken.json",
        "no &lt;JSON&gt;",
        "1,234,567",
        "5,000,000 bytes",
        "How soon other nodes know",
    ];
    wanted.iter().for_each(|text| assert!(html.contains(text), "{text} is missing"));
    assert_eq!(figures.len(), 4, "limits, curve, histogram and bytes");
    assert_eq!(html.matches("<svg").count(), 4);
    assert!(figures.iter().all(|figure| html.contains(&figure.svg) && figure.sentence.ends_with('.')));
    let outside = html.replace("http://www.w3.org/2000/svg", "");
    for word in ["http:", "https:", "src=", "@import", "<script", "<link", "url("] {
        assert!(!outside.contains(word), "{word}");
    }
}

#[test]
fn a_gate_that_is_missed_is_said_to_be_missed() {
    let Page { html, .. } = page(Path::new("x"), &collection());
    let words = ["met", "missed", "not judged"];
    for (gate, word) in ["visibility_16", "b", "c"].into_iter().zip(words) {
        let row = row(&html, gate);
        for other in words {
            assert_eq!(row.contains(&format!(">{other}</span>")), other == word, "{gate} {other}");
        }
    }
    assert!(
        row(&html, "visibility_16").contains("1.250 ms") && row(&html, "visibility_16").contains("≤ 2 ms")
    );
}

#[test]
fn runs_of_a_campaign_are_drawn_and_those_that_do_not_count_are_named() {
    let Page { html, figures } = page(Path::new("x"), &campaign());
    let (before, failed) = html.split_once("id=\"failed\"").expect("there is a part for them");
    assert!(failed.contains("it rained") && !before.contains("it rained"));
    let unmade = campaign().runs.pop().expect("the last is the one that failed").0;
    assert!(failed.contains(&format!("<code>{unmade}</code>")), "{failed}");
    assert_eq!(failed.matches("<tr><td>").count(), 1, "nobody else is");
    assert!(before.contains("<b class=\"\">16</b>") && before.contains("has not been finished"));
    let files: Vec<_> = figures.iter().map(|figure| figure.file.as_str()).collect();
    let medium = |medium: &str| {
        ["pairs", "save", "query", "restore", "coverage"]
            .map(|name| format!("below-isolation-{medium}-{name}"))
    };
    assert_eq!(files, [medium("dram"), medium("ssd")].concat());
}

/// The same with markup behind every name and in every text.
fn hostile(value: Value, is_kept: &impl Fn(&str) -> bool) -> Value {
    const MARKUP: &str = "<img src=x onerror=alert(1)>\"'&</style></svg>";
    match value {
        Value::String(text) if is_kept(&text) => Value::String(text),
        Value::String(text) => Value::String(format!("{text}{MARKUP}")),
        Value::Array(items) => items.into_iter().map(|item| hostile(item, is_kept)).collect(),
        Value::Object(fields) => {
            let field = |(name, field): (String, Value)| {
                let name = if is_kept(&name) { name } else { format!("{name}{MARKUP}") };
                (name, hostile(field, is_kept))
            };
            fields.into_iter().map(field).collect()
        }
        other => other,
    }
}

#[test]
fn nothing_in_a_file_becomes_markup() {
    let mut collection = collection();
    // Words that the page looks for stay; once all others are hostile, and once all texts are.
    let known = "gate gates valid why_invalid met value target sense at-most profile against name details ratios raw percentiles \
        percentile value_us histograms bytes_by_kind seed commit machine settings findings verdict operation medium";
    let report = collection.reports[0].1.clone();
    let names_and_texts = hostile(report.clone(), &|word| known.split(' ').any(|kept| kept == word));
    collection.reports = vec![
        ("<img a>.json".to_owned(), names_and_texts.clone()),
        (
            "<img b>/report.json".to_owned(),
            json!({ "gate": "isolation", "gates": names_and_texts["gates"],
            "settings": { "findings": [{ "verdict": "<img c>", "operation": "<img d>", "medium": "<img e>" }] } }),
        ),
    ];
    collection.others = vec![("<img f>".to_owned(), hostile(report, &|_| false))];
    collection.broken = vec![("<img g>".to_owned(), "<img h>".to_owned())];
    let run = |record: Record| Record {
        name: format!("{}<img i>", record.name),
        why: record.why.map(|why| format!("{why}<img j>")),
        commit: "<img k>".to_owned(),
        machine: "<img l>".to_owned(),
        ..record
    };
    collection.runs = runs_with_one_failed()
        .into_iter()
        .map(|record| ("<img b>/run.json".to_owned(), run(record)))
        .collect();
    for record in &mut collection.runs {
        if let Some(measured) = &mut record.1.measured {
            measured.placement[0].process = "<img m>".to_owned();
            measured.bytes_by_kind.insert("<img n>".to_owned(), 5);
        }
    }
    let Page { html, figures } = page(Path::new("<img o>"), &collection);
    assert!(
        !html.contains("<img"),
        "{:?}",
        html.split_once("<img").map(|(before, _)| &before[before.len() - 200..])
    );
    for letter in "abcdfghijklmno".chars() {
        assert!(html.contains(&format!("&lt;img {letter}&gt;")), "{letter} is not shown at all");
    }
    assert_eq!(html.matches("</style>").count(), 1 + figures.len());
    assert_eq!(html.matches("</svg>").count(), figures.len());
    for figure in figures {
        assert!(!figure.svg.contains("<img"), "{}", figure.title);
        assert!(figure.file.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{}", figure.file);
    }
}

#[test]
fn a_directory_without_results_is_refused_with_what_lies_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let refusal = || results(directory.path()).expect_err("it is refused").to_string();
    let shown = directory.path().display().to_string();
    for words in [shown.as_str(), "no file there ends in .json", "--json", "isolation"] {
        assert!(refusal().contains(words), "{words}: {}", refusal());
    }
    fs::write(directory.path().join("a.json"), "{").expect("written");
    fs::write(directory.path().join("b.json"), "{}").expect("written");
    for words in ["a.json cannot be read", "b.json is neither"] {
        assert!(refusal().contains(words), "{words}: {}", refusal());
    }
    fs::write(directory.path().join("c.json"), r#"{"gate":"local","gates":[]}"#).expect("written");
    assert_eq!(results(directory.path()).expect("one result").reports.len(), 1);
    let missing = results(&directory.path().join("missing")).expect_err("it is not there").to_string();
    assert!(missing.contains("missing"), "{missing}");
}

#[test]
fn numbers_are_written_for_people() {
    let of = |value: Value| number(&value);
    assert_eq!(
        [of(json!(1234567)), of(json!(0.5)), of(json!(4081.7)), of(json!(0.011316))],
        ["1,234,567", "0.500", "4,082", "0.0113"]
    );
}
