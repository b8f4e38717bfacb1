//! What a model answers: rows of named tables, with the decimals they are printed with and the values
//! they were rounded from, and where its generator stood. Written as JSON it has the shape of the vector
//! files, so that a run can be compared with them.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::generators::{Generator, Kind};
use super::parameters::finite;
use super::rounding;

/// Named values in the order in which they are read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields(Vec<(String, Value)>);

/// One row of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    table: &'static str,
    cells: Fields,
    apart: Vec<(&'static str, Fields)>,
    raw: Vec<Rounded>,
}

/// A value that is printed rounded: where it stands in its row, what it was, and its decimals.
#[derive(Clone, Debug, PartialEq)]
struct Rounded {
    path: String,
    value: Exact,
    places: usize,
}

/// What a rounded value was.
#[derive(Clone, Debug, PartialEq)]
enum Exact {
    /// There is none.
    Absent,
    One(f64),
    Many(Vec<f64>),
}

/// What a run of a model gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The rows, table after table.
    pub rows: Vec<Row>,
    /// What is said of the generator besides its name and seed.
    pub generator: Fields,
}

/// How a model draws: from which generator, from which seed if no other is given, and when anew.
#[derive(Clone, Copy, Debug)]
pub struct Seeding {
    /// The generator.
    pub kind: Kind,
    /// The seed that the model was published with.
    pub seed: u64,
    /// How often it is reseeded and what it is drawn for.
    pub notes: &'static [(&'static str, &'static str)],
}

/// A run as it is printed.
#[derive(Clone, Debug)]
pub struct Document {
    /// Number of the lesson.
    pub lesson: u8,
    /// Title of the lesson.
    pub title: &'static str,
    /// Name of the model.
    pub model: &'static str,
    /// The parameters that it was run with.
    pub parameters: Value,
    /// Its generator, the seed that was used, and what is said of the generator after the run.
    pub generator: Option<(Seeding, u64, Fields)>,
    /// The rows.
    pub rows: Vec<Row>,
}

const ROUNDING: &str =
    "printed decimals: exact value of the f64, ties away from zero (Rust {:.n} is ties-to-even)";

impl Fields {
    /// No fields.
    #[must_use]
    pub fn new() -> Fields {
        Fields::default()
    }

    /// With one more.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Fields {
        self.0.push((name.into(), value.into()));
        self
    }

    /// With what a generator came to: how often it was drawn from, and its state.
    #[must_use]
    pub fn with_generator(self, generator: &Generator) -> Fields {
        self.with("draws", generator.draws()).with("final_state", generator.state())
    }

    /// The fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Fields> for Value {
    fn from(fields: Fields) -> Value {
        Value::Object(fields.0.into_iter().collect())
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl Row {
    /// A row of this table, without cells.
    #[must_use]
    pub fn of(table: &'static str) -> Row {
        Row { table, ..Row::default() }
    }

    /// With a cell: a name, a flag, a count, a list; null stands for what there is none of.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Row {
        self.cells = self.cells.with(name, value);
        self
    }

    /// With a number that is printed as it is.
    #[must_use]
    pub fn number(self, name: &str, value: f64) -> Row {
        self.with(name, finite(value))
    }

    /// With a number that is printed with so many decimals; what it was is kept beside it.
    #[must_use]
    pub fn rounded(mut self, name: &str, value: impl Into<Option<f64>>, places: usize) -> Row {
        let value = value.into();
        self.cells =
            self.cells.with(name, value.map_or(Value::Null, |value| rounding::number(value, places)));
        self.noting(name, value, places)
    }

    /// With a list of numbers that are printed with so many decimals.
    #[must_use]
    pub fn rounded_list(mut self, name: &str, values: Vec<f64>, places: usize) -> Row {
        let rounded: Vec<Value> = values.iter().map(|value| rounding::number(*value, places)).collect();
        self.cells = self.cells.with(name, rounded);
        self.raw.push(Rounded { path: name.to_owned(), value: Exact::Many(values), places });
        self
    }

    /// Notes what a number inside a nested cell was before it was rounded; `path` is dotted.
    #[must_use]
    pub fn noting(mut self, path: &str, value: impl Into<Option<f64>>, places: usize) -> Row {
        let value = value.into().map_or(Exact::Absent, Exact::One);
        self.raw.push(Rounded { path: path.to_owned(), value, places });
        self
    }

    /// With figures that the published table does not print, under a name of their own.
    #[must_use]
    pub fn apart(mut self, name: &'static str, fields: Fields) -> Row {
        self.apart.push((name, fields));
        self
    }

    /// Which table it is a row of.
    #[must_use]
    pub const fn table(&self) -> &'static str {
        self.table
    }

    /// What people read, in order: cells and the figures apart, nested ones under dotted names, numbers with
    /// their decimals.
    #[must_use]
    pub fn texts(&self) -> Vec<(String, String)> {
        let mut texts = Vec::new();
        for (name, value) in self.cells.iter().chain(self.apart.iter().flat_map(|(_, fields)| fields.iter()))
        {
            self.push_texts(name, value, &mut texts);
        }
        texts
    }

    fn push_texts(&self, path: &str, value: &Value, texts: &mut Vec<(String, String)>) {
        if let Value::Object(fields) = value {
            for (name, value) in fields {
                self.push_texts(&format!("{path}.{name}"), value, texts);
            }
            return;
        }
        let rounded = self.raw.iter().find(|rounded| rounded.path == path);
        let text = match rounded.map(|rounded| (&rounded.value, rounded.places)) {
            Some((Exact::One(value), places)) => rounding::text(*value, places),
            Some((Exact::Many(values), places)) => {
                let texts: Vec<String> = values.iter().map(|value| rounding::text(*value, places)).collect();
                texts.join(" / ")
            }
            Some((Exact::Absent, _)) | None => plain(value),
        };
        texts.push((path.to_owned(), text));
    }

    fn raw_fields(&self) -> Fields {
        let mut fields = Fields::new();
        for raw in &self.raw {
            fields = match &raw.value {
                Exact::Absent => fields,
                Exact::One(value) => fields.with(raw.path.as_str(), finite(*value)),
                Exact::Many(values) => fields
                    .with(raw.path.as_str(), values.iter().map(|value| finite(*value)).collect::<Vec<_>>()),
            };
        }
        fields
    }
}

/// A value as people read it.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(" / "),
        other => other.to_string(),
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("table", self.table)?;
        for (name, value) in self.cells.iter() {
            map.serialize_entry(name, value)?;
        }
        for (name, fields) in &self.apart {
            map.serialize_entry(name, fields)?;
        }
        let raw = self.raw_fields();
        if !raw.is_empty() {
            map.serialize_entry("_raw", &raw)?;
        }
        map.end()
    }
}

impl Document {
    /// The tables in order, each with its rows.
    #[must_use]
    pub fn tables(&self) -> Vec<(&'static str, Vec<&Row>)> {
        let mut tables: Vec<(&'static str, Vec<&Row>)> = Vec::new();
        for row in &self.rows {
            match tables.iter_mut().find(|(table, _)| *table == row.table) {
                Some((_, rows)) => rows.push(row),
                None => tables.push((row.table, vec![row])),
            }
        }
        tables
    }

    fn decimals(&self) -> Fields {
        let of = |rows: &[&Row]| {
            let mut decimals = Fields::new();
            for raw in rows.iter().flat_map(|row| &row.raw) {
                if !decimals.iter().any(|(path, _)| path == raw.path) {
                    decimals = decimals.with(raw.path.as_str(), raw.places);
                }
            }
            decimals
        };
        let tables = self.tables();
        let with_any = tables.iter().map(|(table, rows)| (*table, of(rows))).filter(|(_, of)| !of.is_empty());
        Fields(with_any.map(|(table, decimals)| (table.to_owned(), decimals.into())).collect())
    }
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("lesson", &self.lesson)?;
        map.serialize_entry("title", self.title)?;
        map.serialize_entry("model", self.model)?;
        map.serialize_entry("parameters", &self.parameters)?;
        if let Some((seeding, seed, after)) = &self.generator {
            let mut fields = Fields::new();
            for (name, text) in seeding.kind.words() {
                fields = fields.with(name, text);
            }
            fields = fields.with("seed", *seed).with("first_states", first_states(seeding.kind, *seed));
            for (name, text) in seeding.notes {
                fields = fields.with(*name, *text);
            }
            fields.0.extend(after.0.iter().cloned());
            map.serialize_entry("prng", &fields)?;
        }
        map.serialize_entry("decimals", &self.decimals())?;
        map.serialize_entry("rounding", ROUNDING)?;
        map.serialize_entry("expected", &self.rows)?;
        map.end()
    }
}

/// The states after each of the first five steps.
fn first_states(kind: Kind, seed: u64) -> Vec<u64> {
    let mut generator = Generator::new(kind, seed);
    let step = |_| {
        generator.draw();
        generator.state()
    };
    (0..5).map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_print_what_they_were_rounded_to() {
        let row = Row::of("runs")
            .with("day", "free")
            .rounded("share", 0.6666, 2)
            .rounded("calls", 7.0, 0)
            .rounded("fresh", None, 3)
            .with("lost", vec![1, 2])
            .apart("_extra", Fields::new().with("opens", 3));
        let json = serde_json::to_string(&row).expect("JSON");
        assert_eq!(
            json,
            r#"{"table":"runs","day":"free","share":0.67,"calls":7,"fresh":null,"lost":[1,2],"_extra":{"opens":3},"_raw":{"share":0.6666,"calls":7.0}}"#
        );
        let texts: Vec<String> = row.texts().into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["free", "0.67", "7", "-", "1 / 2", "3"]);
    }

    #[test]
    fn nested_cells_keep_their_decimals() {
        let nested = Fields::new().with("pct", rounding::number(90.909, 1)).with("shared", true);
        let row = Row::of("blast").with("single", nested).noting("single.pct", 90.909, 1);
        let texts = row.texts();
        assert!(texts.contains(&("single.pct".to_owned(), "90.9".to_owned())), "{texts:?}");
        assert!(texts.contains(&("single.shared".to_owned(), "yes".to_owned())), "{texts:?}");
        assert!(serde_json::to_string(&row).expect("JSON").contains(r#""_raw":{"single.pct":90.909}"#));
    }
}
