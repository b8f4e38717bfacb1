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
    /// Values at percentiles, ascending.
    pub points: Vec<Point>,
    /// Its p99 in microseconds, if the report says it: exacter than the points.
    pub p99_us: Option<f64>,
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

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.reports.is_empty() && self.others.is_empty() && self.broken.is_empty()
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

/// All distributions below `histograms` anywhere in a report, each name once.
pub fn distributions(value: &Value) -> Vec<Distribution> {
    let mut found = Vec::new();
    walk(value, "histograms", &mut |histograms| {
        for (name, histogram) in histograms.as_object().into_iter().flatten() {
            let points = if histogram.is_array() { histogram } else { &histogram["percentiles"] };
            let points: Vec<Point> = serde_json::from_value(points.clone()).unwrap_or_default();
            let known = found.iter().any(|known: &Distribution| known.name == *name);
            if !points.is_empty() && !known {
                let p99_us = histogram["p99"].as_f64();
                found.push(Distribution { name: name.clone(), points, p99_us });
            }
        }
    });
    found
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
        assert!(Collection::read(&directory.path().join("nowhere")).is_err());
    }
}
