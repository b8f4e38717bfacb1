//! The page: plain words, tables and drawings in one file that fetches nothing.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::collection::{Collection, bytes_by_kind, distributions};
use super::courses;
use super::figures::{self, Figure, capital, plain};
use super::gates::{self, Verdict};
use super::svg::{escape, group};
use super::words;
use crate::isolation::record::{Outcome, Record};

/// Items of a list that are shown before the rest is counted.
const SHOWN_MAX: usize = 16;
/// Characters of a text in a file before it is cut.
const TEXT_MAX: usize = 240;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1d2530;--soft:#5c6775;--line:#d9dee4;--paper:#fff;--card:#f5f7f9;--good:#2f7d32;--bad:#b3261e;--doubt:#8a6100}\
@media (prefers-color-scheme:dark){:root{--ink:#e7ebf0;--soft:#a3adba;--line:#343c47;--paper:#171b21;--card:#1f252d;--good:#86c987;--bad:#ff8a80;--doubt:#f0c060}}\
body{margin:0 auto;max-width:1060px;padding:28px 20px 60px;background:var(--paper);color:var(--ink);font:15px/1.55 system-ui,'Segoe UI','DejaVu Sans',sans-serif}\
h1{font-size:26px;margin:0 0 8px}h2{font-size:20px;margin:44px 0 8px;padding-top:12px;border-top:1px solid var(--line)}h3{font-size:16px;margin:26px 0 4px}\
p{margin:6px 0 12px;max-width:75ch}.soft,figcaption{color:var(--soft)}figure{margin:0 0 26px}figure svg{width:100%;height:auto;display:block}\
.wide{overflow-x:auto;margin:8px 0 16px}table{border-collapse:collapse;font-size:14px}th,td{padding:5px 12px 5px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}\
th{color:var(--soft);font-weight:600}td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}td.number{white-space:nowrap}\
.cards{display:flex;flex-wrap:wrap;gap:12px;margin:16px 0}.card{background:var(--card);border-radius:8px;padding:10px 16px;min-width:120px}.card b{display:block;font-size:24px}\
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}.doubt{color:var(--doubt);font-weight:600}\
code{font:13px ui-monospace,'DejaVu Sans Mono',monospace;color:var(--soft);overflow-wrap:anywhere}.runs{font-size:13px}.runs th,.runs td{padding-right:9px}.runs code{font-size:12px}.gates td,.gates th{padding-right:18px}details{margin:4px 0}summary{cursor:pointer;color:var(--soft)}\
nav a{margin-right:14px;color:inherit}dt{font-weight:600}dd{margin:0 0 8px;max-width:75ch}\
@media (max-width:640px){body{padding:18px 14px 40px}h1{font-size:22px}h2{font-size:18px}figure{overflow-x:auto}figure svg{width:580px}figcaption::after{content:' (Push the drawing to the left to see all of it.)'}figure h3,figcaption{position:sticky;left:0}.gates tbody,.gates tr,.gates td{display:block}.gates tr:first-child{display:none}.gates tr{border-bottom:1px solid var(--line);padding:8px 0}.gates td,.gates td.number{border:0;padding:1px 0;text-align:left;white-space:normal}.gates td[data-label]::before{content:attr(data-label) ': ';color:var(--soft)}.runs code{display:block;min-width:170px}.card{flex:1 1 96px;min-width:0;padding:8px 12px}}";

/// A page and its drawings.
pub struct Page {
    /// The whole page.
    pub html: String,
    /// All drawings, each for a file of its own.
    pub figures: Vec<Figure>,
}

/// Makes the page of what a directory holds.
pub fn page(directory: &Path, collection: &Collection) -> Page {
    let mut text = String::new();
    let mut figures = Vec::new();
    let name = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let _ = write!(
        text,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>OrbitKV measurements: {name}</title><style>{STYLE}</style></head><body>\n<h1>OrbitKV measurements: {name}</h1>\n{}",
        words::INTRODUCTION,
        name = escape(&name)
    );
    text.push_str(&cards(collection));
    text.push_str(
        "<nav><a href=\"#gates\">Gates</a><a href=\"#figures\">Figures</a><a href=\"#runs\">Runs</a>\
         <a href=\"#failed\">Failed runs</a><a href=\"#words\">Words</a></nav>\n",
    );
    gates::table(&mut text, &collection.reports);
    text.push_str("<h2 id=\"figures\">Figures</h2>\n");
    for (prefix, runs) in campaigns(collection) {
        figures.extend(isolation(&mut text, &prefix, &runs, collection));
    }
    for (file, report) in &collection.reports {
        let prefix = format!("{}-", stem(file));
        let whose = report["gate"].as_str().unwrap_or("report");
        let has_runs = |file: &str| campaigns(collection).iter().any(|campaign| campaign.0 == place_of(file));
        let mut own = Vec::new();
        if whose != "isolation" || !has_runs(file) {
            own.extend(gates::margins(&prefix, whose, report));
        }
        own.extend(courses::of_report(&prefix, whose, report));
        own.extend(figures::of_distributions(&prefix, whose, &distributions(report)));
        own.extend(figures::bytes(&prefix, whose, &bytes_by_kind(report)));
        let rows = courses::table(whose, report);
        if !own.is_empty() || !rows.is_empty() {
            let _ = writeln!(
                text,
                "<h3>{}</h3>\n<p>{} <span class=\"soft\">From <code>{}</code>.</span></p>",
                escape(&capital(whose)),
                words::benchmark(whose),
                escape(file)
            );
            text.push_str(&rows);
            own.iter().for_each(|figure| draw(&mut text, figure));
        }
        figures.extend(own);
    }
    if figures.is_empty() {
        text.push_str("<p>Nothing here can be drawn: the files have neither runs nor histograms.</p>\n");
    }
    runs(&mut text, collection);
    failed(&mut text, collection);
    let _ = write!(text, "<h2 id=\"words\">Words</h2>\n{}</body></html>\n", words::GLOSSARY);
    Page { html: text, figures }
}

/// Runs of one directory below belong together.
fn campaigns(collection: &Collection) -> Vec<(String, Vec<&Record>)> {
    let mut campaigns: Vec<(String, Vec<&Record>)> = Vec::new();
    for (file, record) in &collection.runs {
        let prefix = place_of(file);
        match campaigns.iter_mut().find(|campaign| campaign.0 == prefix) {
            Some(campaign) => campaign.1.push(record),
            None => campaigns.push((prefix, vec![record])),
        }
    }
    campaigns
}

/// The directory of a file as the beginning of its drawings' names.
fn place_of(file: &str) -> String {
    file.rsplit_once('/').map_or_else(String::new, |(place, _)| format!("{}-", stem(place)))
}

/// A path as part of a file's name.
fn stem(path: &str) -> String {
    path.trim_end_matches(".json").replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "-")
}

fn draw(text: &mut String, figure: &Figure) {
    let Figure { title, sentence, svg, .. } = figure;
    let _ = writeln!(
        text,
        "<figure><h3>{}</h3>\n{svg}<figcaption>{}</figcaption></figure>",
        escape(title),
        escape(sentence)
    );
}

fn cards(collection: &Collection) -> String {
    let gates = || collection.reports.iter().flat_map(|(_, report)| gates::of_report(report));
    let count = |word: &str| gates().filter(|gate| Verdict::of(gate).word() == word).count();
    let counting = collection.runs.iter().filter(|(_, record)| record.outcome == Outcome::Counts).count();
    let mut cards = vec![
        ("good", count("met"), "gates met"),
        ("bad", count("missed"), "gates missed"),
        ("doubt", count("not judged"), "gates not judged"),
    ];
    if !collection.runs.is_empty() {
        let rest = collection.runs.len() - counting;
        cards.extend([("", counting, "isolation runs that count"), ("", rest, "that do not")]);
    }
    if !collection.broken.is_empty() {
        cards.push(("doubt", collection.broken.len(), "files that cannot be read"));
    }
    let card = |(class, count, name): (&str, usize, &str)| {
        format!("<div class=\"card\"><b class=\"{class}\">{count}</b>{name}</div>")
    };
    let cards: String = cards.into_iter().map(card).collect();
    let caution = if gates::has_ci(&collection.reports) { gates::CI } else { "" };
    format!("<div class=\"cards\">{cards}</div>\n{caution}")
}

fn isolation(text: &mut String, prefix: &str, runs: &[&Record], collection: &Collection) -> Vec<Figure> {
    let plan = &runs[0].plan;
    let profile = crate::profile::Label::from(plan.profile);
    let _ = writeln!(text, "<h3>Isolation</h3>\n{}", words::ISOLATION);
    let _ = writeln!(
        text,
        "<p>{} profile: {} rounds a run, one each {} ms, {} blocks of {} KiB; {} pairs of each kind.{}</p>",
        capital(profile.name),
        group(&plan.rounds.to_string()),
        plan.cadence_ms,
        plan.blocks,
        plan.block_bytes >> 10,
        plan.pairs,
        if profile.qualifies { "" } else { " <span class=\"doubt\">This profile qualifies nothing.</span>" }
    );
    findings(text, prefix, collection);
    let mut figures = figures::isolation(prefix, runs);
    let mut kinds = std::collections::BTreeMap::new();
    for record in runs.iter().filter(|record| record.cell.is_under_pressure()) {
        for (kind, bytes) in record.measured.iter().flat_map(|measured| &measured.bytes_by_kind) {
            *kinds.entry(kind.clone()).or_default() += bytes;
        }
    }
    figures.extend(figures::bytes(&format!("{prefix}isolation-"), "pressure of all runs", &kinds));
    figures.iter().for_each(|figure| draw(text, figure));
    figures
}

/// The verdicts of the campaign's own report, if it was finished.
fn findings(text: &mut String, prefix: &str, collection: &Collection) {
    let report = collection
        .reports
        .iter()
        .find(|(file, report)| report["gate"] == "isolation" && place_of(file) == prefix);
    let Some((_, report)) = report else {
        text.push_str(
            "<p class=\"doubt\">The campaign has not been finished: there is no verdict yet.</p>\n",
        );
        return;
    };
    text.push_str("<ul>\n");
    for finding in report["settings"]["findings"].as_array().into_iter().flatten() {
        let word = finding["verdict"].as_str().unwrap_or_default();
        let class = match word {
            "passed" => "good",
            "failed" => "bad",
            _ => "doubt",
        };
        let _ = writeln!(
            text,
            "<li>{}, blocks {}: <span class=\"{class}\">{}</span>. {}</li>",
            escape(&capital(finding["operation"].as_str().unwrap_or_default())),
            if finding["medium"] == "ssd" { "on SSD" } else { "in memory (DRAM)" },
            escape(word),
            words::verdict(word)
        );
    }
    text.push_str("</ul>\n");
}

fn runs(text: &mut String, collection: &Collection) {
    text.push_str("<h2 id=\"runs\">Runs</h2>\n<p>Every file that was read, with what it was made of. In an isolation run p99 is the time in µs that one round in a hundred exceeds; \
        a look is what watching the node costs it, each 25 ms; a turn is what its core does without a pause.</p>\n");
    if !collection.runs.is_empty() {
        text.push_str("<div class=\"wide\"><table class=\"runs\"><tr><th>isolation run</th><th>counts</th><th class=\"number\">save p99</th>\
            <th class=\"number\">query p99</th><th class=\"number\">restore p99</th><th class=\"number\">changes a second</th>\
            <th class=\"number\">longest gap, ms</th><th class=\"number\">node CPU, s</th><th class=\"number\">a look, µs</th>\
            <th class=\"number\">longest turn, ms</th><th class=\"number\">stolen time</th></tr>\n");
    }
    for (file, record) in &collection.runs {
        let p99 =
            |name: &str| record.p99_us.get(name).map_or("-".to_owned(), |us| group(&format!("{us:.0}")));
        let of = |figure: Option<String>| figure.unwrap_or_else(|| "-".to_owned());
        let measured = record.measured.as_ref();
        let stolen = measured.and_then(|run| run.machine_load["stolen_share"].as_f64());
        let cells = [
            p99("save"),
            p99("query"),
            p99("restore"),
            of(record.exposure.map(|exposure| group(&format!("{:.0}", exposure.observer_per_second)))),
            of(record
                .exposure
                .filter(|_| record.cell.is_under_pressure())
                .map(|exposure| format!("{:.0}", exposure.observer_gap_ms_max))),
            of(measured.map(|run| format!("{:.2}", run.processor_seconds.foreground))),
            of(measured.map(|run| format!("{:.0}", run.sampler.foreground_cpu_us))),
            of(measured.map(|run| format!("{:.1}", run.core_turns.longest_ms))),
            of(stolen.map(|share| format!("{:.1} %", share * 100.0))),
        ];
        let cells = cells.map(|cell| format!("<td class=\"number\">{cell}</td>")).concat();
        let counts = if record.outcome == Outcome::Counts { "yes" } else { "no" };
        let _ = writeln!(text, "<tr><td><code>{}</code></td><td>{counts}</td>{cells}</tr>", escape(file));
    }
    if !collection.runs.is_empty() {
        text.push_str("</table></div>\n");
    }
    if let Some((_, record)) = collection.runs.first() {
        let settings = serde_json::json!({
            "commit": record.commit, "machine": record.machine, "seed": record.seed, "cores": record.cores, "sizes": record.plan,
            "placement": record.measured.as_ref().map(|run| &run.placement),
        });
        let _ = writeln!(
            text,
            "<details><summary>Machine, commit, seed and settings of the isolation runs</summary><div class=\"wide\">{}</div></details>",
            tree(&settings)
        );
    }
    for (file, report) in &collection.reports {
        let facts =
            ["profile", "commit", "machine", "seed"].map(|name| format!("{name} {}", text_of(&report[name])));
        let _ = writeln!(
            text,
            "<h3>{}</h3><p><code>{}</code>: {}</p><details><summary>Settings</summary><div class=\"wide\">{}</div></details>\
             <details><summary>Details of its gates</summary><div class=\"wide\">{}</div></details>",
            escape(&capital(report["gate"].as_str().unwrap_or("report"))),
            escape(file),
            facts.join(", "),
            tree(&report["settings"]),
            tree(&report["gates"])
        );
    }
    for (file, value) in &collection.others {
        let _ = writeln!(
            text,
            "<details><summary>Another file: <code>{}</code></summary><div class=\"wide\">{}</div></details>",
            escape(file),
            tree(value)
        );
    }
}

fn failed(text: &mut String, collection: &Collection) {
    text.push_str("<h2 id=\"failed\">Failed runs</h2>\n<p>Runs that do not count are kept, and named here with why, so that nobody can \
        choose the good ones.</p>\n");
    let runs = collection.runs.iter().filter(|(_, record)| record.outcome != Outcome::Counts);
    let runs =
        runs.map(|(file, record)| (file.as_str(), record.why.as_deref().unwrap_or("it has no reason")));
    let broken = collection.broken.iter().map(|(file, why)| (file.as_str(), why.as_str()));
    let reports = collection.reports.iter().filter(|(_, report)| report["valid"] == false);
    let reports = reports
        .map(|(file, report)| (file.as_str(), report["why_invalid"].as_str().unwrap_or("it is not valid")));
    let all: Vec<(&str, &str)> = runs.chain(broken).chain(reports).collect();
    if all.is_empty() {
        text.push_str("<p>None.</p>\n");
        return;
    }
    text.push_str("<div class=\"wide\"><table><tr><th>file</th><th>why</th></tr>\n");
    for (file, why) in all {
        let _ = writeln!(text, "<tr><td><code>{}</code></td><td>{}</td></tr>", escape(file), escape(why));
    }
    text.push_str("</table></div>\n");
}

/// Any JSON as tables.
fn tree(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let row = |(name, field): (&String, &Value)| {
                format!("<tr><th>{}</th><td>{}</td></tr>\n", escape(&plain(name)), tree(field))
            };
            format!("<table>{}</table>", fields.iter().map(row).collect::<String>())
        }
        Value::Array(items) => {
            let shown: Vec<String> = items.iter().take(SHOWN_MAX).map(tree).collect();
            let more = items.len().saturating_sub(SHOWN_MAX);
            let rest = if more > 0 {
                format!(" <span class=\"soft\">and {more} more</span>")
            } else {
                String::new()
            };
            let is_plain = items.iter().all(|item| !item.is_object() && !item.is_array());
            format!("{}{rest}", shown.join(if is_plain { ", " } else { "" }))
        }
        Value::Number(_) => number(value),
        // An encoded histogram is for programs.
        Value::String(text) if text.chars().count() > TEXT_MAX => {
            let shown: String = text.chars().take(TEXT_MAX / 2).collect();
            format!("{}… <span class=\"soft\">{} characters</span>", escape(&shown), text.chars().count())
        }
        other => text_of(other),
    }
}

/// A value as text for HTML.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => escape(text),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => escape(&other.to_string()),
    }
}

/// A number as people write it: whole ones with thousands set apart, others with as many digits as say something.
pub fn number(value: &Value) -> String {
    match (value.as_u64(), value.as_f64()) {
        (Some(whole), _) => group(&whole.to_string()),
        (None, Some(number)) if number.abs() >= 1_000.0 => group(&format!("{number:.0}")),
        (None, Some(number)) if number.abs() >= 0.1 || number == 0.0 => group(&format!("{number:.3}")),
        (None, Some(number)) => {
            let digits = (2.0 - number.abs().log10().floor()).min(12.0) as usize;
            format!("{number:.digits$}")
        }
        _ => "-".to_owned(),
    }
}
