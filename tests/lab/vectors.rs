//! A vector file and a run of its model, compared: checkpoints of the generator first, because a draw too
//! many shifts everything after it; then every row with its rounded, raw and further figures.

use std::fs;
use std::path::PathBuf;

use orbitkv::lab;
use serde_json::Value;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/lab/vectors")
}

/// A vector file, by its name without the ending.
pub fn read(name: &str) -> Value {
    let text = fs::read_to_string(directory().join(format!("{name}.json"))).expect("a vector file");
    serde_json::from_str(&text).expect("JSON")
}

/// A run of a model, as `--json` prints it.
pub fn run(lesson: u8, model: &str, seed: Option<u64>, assignments: &[&str]) -> Value {
    let assignments: Vec<_> = assignments.iter().map(|text| text.parse().expect("an assignment")).collect();
    let entry = lab::find(lesson, Some(model)).unwrap_or_else(|refusal| panic!("{refusal}"));
    let document = entry.run(seed, &assignments).unwrap_or_else(|refusal| panic!("{refusal}"));
    let text = serde_json::to_string(&document).expect("JSON");
    serde_json::from_str(&text).expect("JSON")
}

/// Why a model refuses to run.
pub fn refusal(lesson: u8, model: &str, assignments: &[&str]) -> String {
    let assignments: Vec<_> = assignments.iter().map(|text| text.parse().expect("an assignment")).collect();
    let entry = lab::find(lesson, Some(model)).unwrap_or_else(|refusal| panic!("{refusal}"));
    entry.run(None, &assignments).expect_err("it is refused").to_string()
}

/// The rows of a table.
pub fn rows<'a>(run: &'a Value, table: &str) -> Vec<&'a Value> {
    let rows = run["expected"].as_array().expect("rows");
    rows.iter().filter(|row| row["table"] == table).collect()
}

/// Where two values differ, by path; numbers are equal if they are the same number, written as whole or not.
fn differences(path: &str, expected: &Value, found: &Value, out: &mut Vec<String>) {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            for key in expected.keys().chain(found.keys().filter(|key| !expected.contains_key(*key))) {
                let (expected, found) = (expected.get(key), found.get(key));
                match (expected, found) {
                    (Some(expected), Some(found)) => {
                        differences(&format!("{path}.{key}"), expected, found, out);
                    }
                    _ => out.push(format!("{path}.{key}: expected {expected:?}, found {found:?}")),
                }
            }
        }
        (Value::Array(expected), Value::Array(found)) => {
            if expected.len() != found.len() {
                out.push(format!("{path}: expected {} entries, found {}", expected.len(), found.len()));
            }
            for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
                differences(&format!("{path}[{index}]"), expected, found, out);
            }
        }
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => {}
        _ if expected == found => {}
        _ => out.push(format!("{path}: expected {expected}, found {found}")),
    }
}

/// Runs the model of a vector file with the published parameters and compares all of it.
pub fn compare(name: &str) {
    let expected = read(name);
    let lesson = u8::try_from(expected["lesson"].as_u64().expect("a lesson")).expect("a small number");
    let found = run(lesson, expected["model"].as_str().expect("a model"), None, &[]);
    for part in ["parameters", "prng", "decimals", "expected"] {
        let mut out = Vec::new();
        differences(part, &expected[part], &found[part], &mut out);
        assert!(out.is_empty(), "{name}:\n{}", out.join("\n"));
    }
    let mut out = Vec::new();
    differences("", &expected, &found, &mut out);
    assert!(out.is_empty(), "{name}:\n{}", out.join("\n"));
}

/// Every parameter of the vector file is one that `--set` takes, down to its parts: setting each to what it
/// is changes nothing.
pub fn sets_every_parameter(name: &str) {
    let expected = read(name);
    let lesson = u8::try_from(expected["lesson"].as_u64().expect("a lesson")).expect("a small number");
    let mut assignments = Vec::new();
    leaves("", &expected["parameters"], &mut assignments);
    let assignments: Vec<&str> = assignments.iter().map(String::as_str).collect();
    let found = run(lesson, expected["model"].as_str().expect("a model"), None, &assignments);
    let mut out = Vec::new();
    differences("", &expected, &found, &mut out);
    assert!(out.is_empty(), "{name}:\n{}", out.join("\n"));
}

/// Numbers among the parameters that may be doubled and halved without an effect on any row and without being
/// refused: they are there for show, or the published load never reaches them. Lists of a load and zeros are
/// left out. `shorter` makes the runs shorter.
pub fn without_effect(name: &str, shorter: &[&str]) -> Vec<String> {
    let expected = read(name);
    let lesson = u8::try_from(expected["lesson"].as_u64().expect("a lesson")).expect("a small number");
    let entry = lab::find(lesson, expected["model"].as_str()).unwrap_or_else(|refusal| panic!("{refusal}"));
    let mut numbers = Vec::new();
    leaves("", &expected["parameters"], &mut numbers);
    let usual = run(lesson, entry.name, None, shorter);
    let mut without_effect = Vec::new();
    for (path, value) in numbers.iter().filter_map(|leaf| leaf.split_once('=')) {
        let Ok(value) = value.parse::<f64>() else { continue };
        if path.starts_with("cycles.") || value == 0.0 || shorter.iter().any(|set| set.starts_with(path)) {
            continue;
        }
        let half = if value.fract() == 0.0 { (value / 2.0).floor() } else { value / 2.0 };
        let changes = [value * 2.0, half].iter().any(|other| {
            let changed = format!("{path}={other}");
            let assignments = shorter.iter().copied().chain([changed.as_str()]);
            let assignments: Vec<_> = assignments.map(|text| text.parse().expect("an assignment")).collect();
            // A refusal is an effect, too.
            entry.run(None, &assignments).map_or(true, |document| {
                let text = serde_json::to_string(&document).expect("JSON");
                serde_json::from_str::<Value>(&text).expect("JSON")["expected"] != usual["expected"]
            })
        });
        if !changes {
            without_effect.push(path.to_owned());
        }
    }
    without_effect.sort_unstable();
    without_effect
}

fn leaves(path: &str, value: &Value, out: &mut Vec<String>) {
    let below = |step: &str| if path.is_empty() { step.to_owned() } else { format!("{path}.{step}") };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| leaves(&below(name), value, out)),
        Value::Array(items) if !items.is_empty() => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, value)| leaves(&below(&index.to_string()), value, out));
            out.push(format!("{path}={value}"));
        }
        Value::String(text) => out.push(format!("{path}={text}")),
        other => out.push(format!("{path}={other}")),
    }
}

/// The tests every vector file has: `vectors! { breaker: "02-breaker", … }`.
macro_rules! vectors {
    ($($test:ident: $name:literal,)*) => {
        $(mod $test {
            #[test]
            fn figures_are_the_published_ones() {
                crate::vectors::compare($name);
            }

            #[test]
            fn every_parameter_can_be_set() {
                crate::vectors::sets_every_parameter($name);
            }
        })*
    };
}
pub(crate) use vectors;

#[test]
fn every_vector_file_has_a_model_and_every_model_a_file() {
    let mut of_files: Vec<(u64, String)> = fs::read_dir(directory())
        .expect("the vectors")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| read(path.file_stem().and_then(|stem| stem.to_str()).expect("a name")))
        .map(|file| {
            (file["lesson"].as_u64().expect("a lesson"), file["model"].as_str().expect("a name").to_owned())
        })
        .collect();
    let mut of_models: Vec<(u64, String)> =
        lab::models().map(|entry| (u64::from(entry.lesson), entry.name.to_owned())).collect();
    of_files.sort();
    of_models.sort();
    assert_eq!(of_models, of_files);
}
