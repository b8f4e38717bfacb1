//! The files of a directory, told apart: runs of an isolation campaign, reports of any benchmark, whatever else is
//! JSON, and what cannot be read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Failure;
use crate::isolation::record::{Outcome, Point, RUN, Record};

/// Directories deep that files are looked for.
const DEPTH_MAX: usize = 3;
/// Files that a refusal names before it counts the rest.
const NAMED_MAX: usize = 4;
/// Parts of a report that say nothing of what was measured.
const PARTS: [&str; 5] = ["gates", "details", "settings", "figures", "throughput"];
/// The percentiles of a summary, as reports call them.
const SUMMARY: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("max", 100.0)];

/// What a directory holds; names are paths below it.
#[derive(Debug, Default)]
pub struct Collection {
    /// Runs of an isolation campaign, in order of name.
    pub runs: Vec<(String, Record)>,
    /// Reports with gates.
    pub reports: Vec<(String, Value)>,
    /// Other JSON.
    pub others: Vec<(String, Value)>,
    /// What cannot be read, and why.
    pub broken: Vec<(String, String)>,
}

/// A distribution that a report holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Its name.
    pub name: String,
    /// What it is drawn together with: a number of owners, or nothing.
    pub group: String,
    /// Values at percentiles, ascending.
    pub points: Vec<Point>,
    /// Its p99 in microseconds, if the report says it: exacter than the points.
    pub p99_us: Option<f64>,
    /// Whether the points are a whole histogram and no summary of a few percentiles.
    pub is_whole: bool,
}

impl Collection {
    /// Reads all JSON files below a directory.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn read(directory: &Path) -> Result<Collection, Failure> {
        let mut files = Vec::new();
        find(directory, DEPTH_MAX, &mut files)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        files.sort();
        let mut collection = Collection::default();
        for file in files {
            let name = file.strip_prefix(directory).unwrap_or(&file).display().to_string();
            match fs::read(&file).map_err(|error| error.to_string()) {
                Ok(text) => collection.add(name, &text),
                Err(why) => collection.broken.push((name, why)),
            }
        }
        Ok(collection)
    }

    /// Adds the file of a name.
    fn add(&mut self, name: String, text: &[u8]) {
        let value: Value = match serde_json::from_slice(text) {
            Ok(value) => value,
            Err(error) => return self.broken.push((name, error.to_string())),
        };
        if value["kind"] == RUN {
            // A file of another build may lack something: then it is shown as what it is.
            match serde_json::from_slice::<Record>(text) {
                Ok(record) => return self.runs.push((name, judged(record))),
                Err(error) => self.broken.push((name.clone(), format!("not a run of this build: {error}"))),
            }
        }
        match value["gates"].is_array() && value["gate"].is_string() {
            true => self.reports.push((name, value)),
            false => self.others.push((name, value)),
        }
    }

    /// Whether there is anything to report: files that are no results, or that nobody can read, are none.
    pub fn has_results(&self) -> bool {
        !self.runs.is_empty() || !self.reports.is_empty()
    }

    /// What lies there instead of results, in words.
    pub fn instead(&self) -> String {
        let others = self.others.iter().map(|(name, _)| format!("{name} is neither a report nor a run"));
        let broken = self.broken.iter().map(|(name, why)| format!("{name} cannot be read: {why}"));
        let all: Vec<String> = broken.chain(others).collect();
        match all.len() {
            0 => "no file there ends in .json".to_owned(),
            count if count > NAMED_MAX => {
                format!("{}; and {} more", all[..NAMED_MAX].join("; "), count - NAMED_MAX)
            }
            _ => all.join("; "),
        }
    }
}

/// What a file says of its run is said again from its raw numbers.
fn judged(mut record: Record) -> Record {
    match record.measured.take() {
        Some(measured) => record.with_measured(measured),
        None => Record { outcome: Outcome::Failed, ..record },
    }
}

fn find(directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() && depth > 1 {
            find(&path, depth - 1, files)?;
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    Ok(())
}

/// All distributions of a report, each once: whole ones below any `histograms`, and summaries in microseconds, whose names end in `_us`.
pub fn distributions(report: &Value) -> Vec<Distribution> {
    let mut found = Vec::new();
    seek(report, &mut Vec::new(), "", &mut found);
    found
}

fn seek<'a>(value: &'a Value, path: &mut Vec<&'a str>, group: &str, found: &mut Vec<Distribution>) {
    let owners = value["owners"].as_u64().map(|owners| format!("{owners} owners"));
    let group = owners.as_deref().unwrap_or(group);
    match value {
        Value::Array(items) => items.iter().for_each(|item| seek(item, path, group, found)),
        Value::Object(fields) => {
            for (name, field) in fields {
                let one = match name.strip_suffix("_us") {
                    _ if name == "histograms" => {
                        field
                            .as_object()
                            .into_iter()
                            .flatten()
                            .for_each(|(name, one)| add(found, whole(name, group, one)));
                        continue;
                    }
                    Some(name) => summary([path.as_slice(), &[name]].concat().join(" "), group, field),
                    None => None,
                };
                if one.is_some() {
                    add(found, one);
                    continue;
                }
                let says_something = !PARTS.contains(&name.as_str());
                if says_something {
                    path.push(name);
                }
                seek(field, path, group, found);
                if says_something {
                    path.pop();
                }
            }
        }
        _ => {}
    }
}

/// Adds a distribution that is not known yet; gates of one report may all tell the same one.
fn add(found: &mut Vec<Distribution>, one: Option<Distribution>) {
    let is_known =
        |one: &Distribution| found.iter().any(|known| known.name == one.name && known.group == one.group);
    found.extend(
        one.filter(|one| !one.points.is_empty()).filter(|one| !is_known(one)).into_iter().collect::<Vec<_>>(),
    );
}

fn whole(name: &str, group: &str, histogram: &Value) -> Option<Distribution> {
    let points = if histogram.is_array() { histogram } else { &histogram["percentiles"] };
    Some(Distribution {
        name: name.to_owned(),
        group: group.to_owned(),
        points: serde_json::from_value(points.clone()).ok()?,
        p99_us: histogram["p99"].as_f64(),
        is_whole: true,
    })
}

fn summary(name: String, group: &str, value: &Value) -> Option<Distribution> {
    let point = |(key, percentile): (&str, f64)| Some(Point { percentile, value_us: value[key].as_f64()? });
    let points = SUMMARY.into_iter().map(point).collect::<Option<Vec<Point>>>()?;
    let (group, p99_us) = (group.to_owned(), value["p99"].as_f64());
    Some(Distribution { name, group, points, p99_us, is_whole: false })
}

/// Sums of bytes by kind, wherever a report has a `bytes_by_kind`.
pub fn bytes_by_kind(value: &Value) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    walk(value, "bytes_by_kind", &mut |kinds| {
        for (kind, bytes) in kinds.as_object().into_iter().flatten() {
            if let Some(bytes) = bytes.as_u64() {
                *sums.entry(kind.clone()).or_default() += bytes;
            }
        }
    });
    sums
}

fn walk(value: &Value, wanted: &str, visit: &mut impl FnMut(&Value)) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == wanted { visit(field) } else { walk(field, wanted, visit) }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| walk(item, wanted, visit)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn distributions_are_found_in_either_form_and_once() {
        let points =
            json!([{ "percentile": 50.0, "value_us": 2.0 }, { "percentile": 100.0, "value_us": 9.0 }]);
        let report = json!({
            "gates": [
                { "details": { "histograms": { "install": { "p99": 8.5, "percentiles": points } } } },
                { "details": { "histograms": { "install": { "count": 2, "percentiles": points }, "odd": "?" } } },
            ],
            "histograms": { "save": points },
        });
        let found = distributions(&report);
        assert_eq!(found.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["install", "save"]);
        assert_eq!((found[0].p99_us, found[1].p99_us), (Some(8.5), None));
        assert_eq!(found[0].points[1], Point { percentile: 100.0, value_us: 9.0 });
    }

    #[test]
    fn summaries_are_named_by_where_they_are_found() {
        let of = |p50: f64| json!({ "count": 9, "p50": p50, "p90": 2, "p99": 3.5, "p99.9": 4, "max": 5 });
        let report = json!({
            "gates": [{ "details": { "query": { "intended_us": of(1.0) }, "ping": { "intended_us": of(1.5) } } }],
            "settings": {
                "wait_us": 17,
                "figures": { "throughput": [
                    { "owners": 8, "index": { "lookup_us": of(0.5) } },
                    { "owners": 64, "index": { "lookup_us": of(0.6) } },
                ] },
            },
        });
        let found = distributions(&report);
        let named = |one: &Distribution| (one.name.clone(), one.group.clone(), one.points[0].value_us);
        let expected = [
            ("ping intended", "", 1.5),
            ("query intended", "", 1.0),
            ("index lookup", "8 owners", 0.5),
            ("index lookup", "64 owners", 0.6),
        ];
        assert_eq!(
            found.iter().map(named).collect::<Vec<_>>(),
            expected.map(|(name, group, us)| (name.to_owned(), group.to_owned(), us))
        );
        assert_eq!(found[0].points[4], Point { percentile: 100.0, value_us: 5.0 });
        assert!(found.iter().all(|one| !one.is_whole));
    }

    #[test]
    fn files_are_told_apart_and_none_is_lost() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("written");
        };
        write("a.json", r#"{"gate":"local","gates":[],"bytes_by_kind":{"x":3}}"#);
        write("below/b.json", r#"{"anything":[1,2]}"#);
        write("c.json", "{");
        write("d.json", r#"{"kind":"isolation-run","name":"of another build"}"#);
        write("e.txt", "no JSON");
        let collection = Collection::read(directory.path()).expect("it can be read");
        let names = |files: &[(String, Value)]| files.iter().map(|file| file.0.clone()).collect::<Vec<_>>();
        assert_eq!(names(&collection.reports), ["a.json"]);
        assert_eq!(names(&collection.others), ["below/b.json", "d.json"]);
        let broken: Vec<_> = collection.broken.iter().map(|file| file.0.as_str()).collect();
        assert_eq!(broken, ["c.json", "d.json"]);
        assert_eq!(bytes_by_kind(&collection.reports[0].1)["x"], 3);
        assert!(collection.has_results());
        assert!(Collection::read(&directory.path().join("nowhere")).is_err());
    }
}
