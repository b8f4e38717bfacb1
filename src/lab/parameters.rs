//! Parameters of a model: the defaults it was published with, and what `--set` puts in their place. A name
//! is the path to a value (`modes.healthy.p_fail`, `flows.batch.unit`, `other_rules.0.threshold`); a
//! value is written as in JSON, and a word or a list of numbers may be written plainly.

use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Number, Value};

use super::refusal::Refusal;

/// One `name=value` of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    path: Vec<String>,
    value: String,
}

/// The parameters a model is run with, and which of them were given.
#[derive(Clone, Debug)]
pub struct Given<'a>(&'a [Assignment]);

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Assignment, String> {
        let refuse = || format!("`{text}` is not NAME=VALUE; write it like rounds=2400");
        let (name, value) = text.split_once('=').ok_or_else(refuse)?;
        let dotted = name.trim().replace('[', ".").replace(']', "");
        let path: Vec<String> = dotted.split('.').map(str::to_owned).collect();
        match path.iter().any(String::is_empty) {
            true => Err(refuse()),
            false => Ok(Assignment { path, value: value.trim().to_owned() }),
        }
    }
}

impl Assignment {
    fn name(&self) -> String {
        self.path.join(".")
    }

    fn input(&self) -> String {
        format!("--set {}={}", self.name(), self.value)
    }

    /// Puts the value into the tree of defaults.
    fn put(&self, tree: &mut Value) -> Result<(), Refusal> {
        let (last, ways) = self.path.split_last().ok_or_else(|| self.unknown(tree))?;
        let mut at = tree;
        for (depth, step) in ways.iter().enumerate() {
            if child(at, step).is_none() {
                return Err(self.unknown_at(depth, at));
            }
            at = child(at, step).ok_or_else(|| Refusal::new(self.input(), "no such name", "leave it out"))?;
        }
        if let Some(place) = child(at, last) {
            *place = parse(&self.value, place);
            return Ok(());
        }
        match at {
            // What an entry may have and has not by default; the model says whether it knows the name.
            Value::Object(fields) if !ways.is_empty() => {
                fields.insert(last.clone(), parse(&self.value, &Value::Null));
                Ok(())
            }
            other => Err(self.unknown_at(ways.len(), other)),
        }
    }

    fn unknown(&self, tree: &Value) -> Refusal {
        self.unknown_at(0, tree)
    }

    fn unknown_at(&self, depth: usize, at: &Value) -> Refusal {
        let within = match depth {
            0 => "the model".to_owned(),
            _ => format!("`{}`", self.path[..depth].join(".")),
        };
        let names = match at {
            Value::Object(fields) => fields.keys().cloned().collect::<Vec<_>>().join(", "),
            Value::Array(items) => match items.len() {
                0 => "nothing".to_owned(),
                count => format!("0 to {}", count - 1),
            },
            _ => "no parts: it is one value".to_owned(),
        };
        Refusal::new(
            self.input(),
            format!("{within} has no parameter `{}`", self.path[depth]),
            format!("known there: {names}"),
        )
    }
}

/// The part of a value that a step of a path names: a field, a place in a list, or the entry of that name.
fn child<'a>(at: &'a mut Value, step: &str) -> Option<&'a mut Value> {
    match at {
        Value::Object(fields) => fields.get_mut(step),
        Value::Array(items) => {
            let place = step.parse().ok().or_else(|| {
                items.iter().position(|item| item.get("name").and_then(Value::as_str) == Some(step))
            })?;
            items.get_mut(place)
        }
        _ => None,
    }
}

/// Reads a value as JSON, or plainly if what stands in its place is a word or a list.
fn parse(text: &str, in_place_of: &Value) -> Value {
    let json = serde_json::from_str::<Value>(text).ok();
    match (in_place_of, json) {
        (Value::String(_), Some(Value::String(word))) => Value::String(word),
        (Value::String(_), _) => Value::String(text.to_owned()),
        (_, Some(json)) if json.is_array() || !in_place_of.is_array() => json,
        (Value::Array(items), _) => {
            let of = items.first().cloned().unwrap_or(Value::Null);
            Value::Array(text.split(',').map(|item| parse(item.trim(), &of)).collect())
        }
        _ => Value::String(text.to_owned()),
    }
}

impl<'a> Given<'a> {
    /// What the command line gave.
    #[must_use]
    pub fn new(assignments: &'a [Assignment]) -> Given<'a> {
        Given(assignments)
    }

    /// Whether the parameter of this path, or a part of it, was given. What follows from other
    /// parameters is worked out again only if it was not.
    #[must_use]
    pub fn names(&self, path: &str) -> bool {
        self.0.iter().any(|assignment| {
            let name = assignment.name();
            name == path || name.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// The defaults with what was given in their place.
    ///
    /// # Errors
    /// A name that the model does not have; a value of another kind than the parameter's.
    ///
    /// # Panics
    /// If the defaults are not what the model's type describes: our bug, which the tests of every model show.
    pub fn over<P: DeserializeOwned>(&self, defaults: &str) -> Result<P, Refusal> {
        let mut tree: Value = serde_json::from_str(defaults).expect("defaults are JSON");
        let mut parameters = serde_json::from_value(tree.clone()).expect("defaults fit the model's type");
        for assignment in self.0 {
            assignment.put(&mut tree)?;
            parameters = serde_json::from_value(tree.clone()).map_err(|error| {
                Refusal::new(assignment.input(), error.to_string(), "write it like its default (see --json)")
            })?;
        }
        Ok(parameters)
    }
}

/// exp(−mean) of a Poisson draw as a bit pattern, so that another libm cannot shift a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpBits(pub f64);

impl ExpBits {
    /// Of a rate a second, at `rounds_per_s` rounds a second.
    #[must_use]
    pub fn of_rate(rate_per_s: f64, rounds_per_s: f64) -> ExpBits {
        ExpBits((-(rate_per_s / rounds_per_s)).exp())
    }
}

impl Serialize for ExpBits {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#018x}", self.0.to_bits()))
    }
}

impl<'de> serde::Deserialize<'de> for ExpBits {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ExpBits, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.strip_prefix("0x")
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .map(f64::from_bits)
            .filter(|value| *value > 0.0 && *value <= 1.0)
            .map(ExpBits)
            .ok_or_else(|| {
                serde::de::Error::custom(format!(
                    "`{text}` is not the bit pattern of a number above 0 and at most 1, like 0x3fd8353f5f003624"
                ))
            })
    }
}

/// A number as JSON.
///
/// # Panics
/// If it is not finite: a model divided by a parameter that it did not check.
#[must_use]
pub fn finite(value: f64) -> Value {
    Value::Number(Number::from_f64(value).expect("parameters are checked before anything is divided by them"))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Shape {
        rounds: u32,
        rate: f64,
        kind: String,
        list: Vec<f64>,
        flows: Vec<Flow>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Flow {
        name: String,
        unit: u32,
        #[serde(default)]
        budget: Option<f64>,
    }

    const DEFAULTS: &str = r#"{"rounds":10,"rate":1.5,"kind":"a","list":[1,2],"flows":[{"name":"x","unit":1},{"name":"y","unit":2}]}"#;

    fn set(assignments: &[&str]) -> Result<Shape, String> {
        let assignments: Vec<Assignment> =
            assignments.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        Given::new(&assignments).over(DEFAULTS).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn every_part_can_be_set() {
        let shape = set(&[
            "rounds=20",
            "rate=2",
            "kind=7 x 7",
            "list=3, 4.5,5",
            "flows.y.unit=9",
            "flows[0].name=z",
            "flows.0.budget=0.5",
        ])
        .expect("all known");
        let flow = |name: &str, unit, budget| Flow { name: name.to_owned(), unit, budget };
        assert_eq!(shape.flows, [flow("z", 1, Some(0.5)), flow("y", 9, None)]);
        assert_eq!((shape.rounds, shape.rate, shape.kind.as_str()), (20, 2.0, "7 x 7"));
        assert_eq!(shape.list, [3.0, 4.5, 5.0]);
        assert_eq!(set(&["list=7"]).expect("one").list, [7.0]);
        assert_eq!(set(&["list=[8]", "list.0=9"]).expect("in order").list, [9.0]);
        assert_eq!(set(&["kind=\"b c\""]).expect("quoted").kind, "b c");
    }

    #[test]
    fn what_is_not_there_is_named() {
        for (assignment, says) in [
            ("round=1", "the model has no parameter `round`; known there: flows, kind, list, rate, rounds"),
            ("flows.q.unit=1", "`flows` has no parameter `q`; known there: 0 to 1"),
            ("flows.7.unit=1", "`flows` has no parameter `7`"),
            ("flows.x.units=1", "unknown field `units`, expected one of `name`, `unit`, `budget`"),
            ("rounds.x=1", "`rounds` has no parameter `x`; known there: no parts"),
            ("rounds=1.5", "--set rounds=1.5: invalid type"),
            ("rounds=-1", "--set rounds=-1: invalid value"),
            ("rate=fast", "--set rate=fast: invalid type"),
            ("rounds", "is not NAME=VALUE"),
            ("a..b=1", "is not NAME=VALUE"),
        ] {
            let error = set(&[assignment]).expect_err(assignment);
            assert!(error.contains(says), "{error} lacks {says}");
        }
    }

    #[test]
    fn what_was_given_is_known() {
        let assignments = ["flows.x.unit=1".parse().expect("an assignment")];
        let given = Given::new(&assignments);
        assert!(given.names("flows") && given.names("flows.x.unit"));
        assert!(!given.names("flow") && !given.names("flows.x.unit.y"));
    }

    #[test]
    fn bit_patterns_are_exact() {
        let bits = ExpBits::of_rate(97.22, 100.0);
        assert_eq!(serde_json::to_string(&bits).expect("text"), "\"0x3fd8353f5f003624\"");
        assert_eq!(serde_json::from_str::<ExpBits>("\"0x3fd8353f5f003624\"").expect("bits"), bits);
        for text in ["\"3f\"", "\"0x0\"", "\"0x7ff0000000000000\"", "\"0xzz\""] {
            assert!(serde_json::from_str::<ExpBits>(text).is_err(), "{text}");
        }
    }
}
