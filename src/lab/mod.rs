//! Twenty deterministic models of resilience policies, each driving the node's own types of
//! `orbitkv_shards::resilience` with a known load. An operator tries a threshold here before a node gets it;
//! the tests compare every figure with the published ones.
//!
//! A model owns arrivals, slots, faults, the generator and the counters. What is decided is decided by the
//! type that a node would ask, so that a table can only come out right if that type is.

pub mod base_rates;
pub mod calls;
pub mod generators;
pub mod parameters;
pub mod refusal;
pub mod report;
pub mod rounding;
pub mod survival;

use serde::Serialize;
use serde::de::DeserializeOwned;

use parameters::{Assignment, Given};
use refusal::Refusal;
use report::{Document, Fields, Outcome, Seeding};

/// A model: the workload of one lesson and the parameters it was published with.
pub trait Model {
    /// What it can be run with, with the names of the vector file. `deny_unknown_fields` refuses others.
    type Parameters: Serialize + DeserializeOwned;
    /// Number of the lesson.
    const LESSON: u8;
    /// Title of the lesson.
    const TITLE: &'static str;
    /// Name of the model.
    const NAME: &'static str;
    /// The published parameters, as JSON.
    const PARAMETERS: &'static str;
    /// How it draws; `None` if it draws nothing.
    const SEEDING: Option<Seeding>;

    /// Works out parameters that follow from others and were not given, and refuses what the model
    /// cannot be run with.
    ///
    /// # Errors
    /// The parameter, its range and the remedy.
    fn settle(parameters: &mut Self::Parameters, given: &Given<'_>) -> Result<(), Refusal>;

    /// Runs it; `seed` means something only to a model that draws.
    fn run(parameters: &Self::Parameters, seed: u64) -> Outcome;
}

/// Runs a model on what was given and a seed; its parameters and what came of them.
type Run = fn(&Given<'_>, u64) -> Result<(serde_json::Value, Outcome), Refusal>;

/// A model in the list of all.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Number of the lesson.
    pub lesson: u8,
    /// Title of the lesson.
    pub title: &'static str,
    /// Name of the model.
    pub name: &'static str,
    seeding: Option<Seeding>,
    run: Run,
}

/// Models by the part of the product they speak of, in the order of their lessons.
const PARTS: &[&[Entry]] = &[calls::MODELS, survival::MODELS];

/// Every model, in the order of the lessons.
pub fn models() -> impl Iterator<Item = &'static Entry> {
    PARTS.iter().copied().flatten()
}

/// The model of a lesson; a lesson that has only one need not be told which.
///
/// # Errors
/// A lesson or a model that there is not, with those that there are.
pub fn find(lesson: u8, name: Option<&str>) -> Result<&'static Entry, Refusal> {
    let of_lesson: Vec<&Entry> = models().filter(|entry| entry.lesson == lesson).collect();
    let names = of_lesson.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
    match (name, of_lesson.as_slice()) {
        (_, []) => {
            let mut lessons: Vec<String> = models().map(|entry| entry.lesson.to_string()).collect();
            lessons.dedup();
            let limit = format!("there are models for {}", lessons.join(", "));
            Err(Refusal::new(format!("lab {lesson}"), limit, "`orbitkv lab` lists them"))
        }
        (None, [only]) => Ok(only),
        (None, _) => {
            let limit = format!("lesson {lesson} has more than one model");
            Err(Refusal::new(format!("lab {lesson}"), limit, format!("say which with --model: {names}")))
        }
        (Some(name), _) => of_lesson.iter().find(|entry| entry.name == name).copied().ok_or_else(|| {
            let limit = format!("lesson {lesson} has no such model");
            Refusal::new(format!("--model {name}"), limit, format!("choose from {names}"))
        }),
    }
}

fn run_model<M: Model>(given: &Given<'_>, seed: u64) -> Result<(serde_json::Value, Outcome), Refusal> {
    let mut parameters = given.over::<M::Parameters>(M::PARAMETERS)?;
    M::settle(&mut parameters, given)?;
    let outcome = M::run(&parameters, seed);
    Ok((serde_json::to_value(&parameters).expect("parameters are plain data"), outcome))
}

impl Entry {
    /// The entry of a model.
    #[must_use]
    pub const fn of<M: Model>() -> Entry {
        Entry { lesson: M::LESSON, title: M::TITLE, name: M::NAME, seeding: M::SEEDING, run: run_model::<M> }
    }

    /// Runs the model with what was given in place of its parameters and of its seed.
    ///
    /// # Errors
    /// A name that it does not have, a value that it cannot be run with, a seed of a model that draws nothing.
    pub fn run(&self, seed: Option<u64>, assignments: &[Assignment]) -> Result<Document, Refusal> {
        let seed = match (self.seeding, seed) {
            (Some(seeding), seed) => {
                let seed = seed.unwrap_or(seeding.seed);
                seeding.kind.check(seed)?;
                seed
            }
            (None, None) => 0,
            (None, Some(seed)) => {
                let limit = format!("the model `{}` draws nothing", self.name);
                return Err(Refusal::new(format!("--seed {seed}"), limit, "leave it out"));
            }
        };
        let (parameters, outcome) = (self.run)(&Given::new(assignments), seed)?;
        let Outcome { rows, generator } = outcome;
        assert_eq!(self.seeding.is_none(), generator == Fields::new(), "who draws says how often");
        Ok(Document {
            lesson: self.lesson,
            title: self.title,
            model: self.name,
            parameters,
            generator: self.seeding.map(|seeding| (seeding, seed, generator)),
            rows,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lessons_are_found_by_number_and_name() {
        assert_eq!(find(2, None).expect("one model").name, "breaker");
        assert_eq!(find(2, Some("breaker")).expect("it").lesson, 2);
        for (lesson, name, says) in [
            (0, None, "there are models for "),
            (1, None, "say which with --model: signature, blast-radius"),
            (2, Some("fuse"), "--model fuse: lesson 2 has no such model; choose from breaker"),
        ] {
            let error = find(lesson, name).expect_err(says).to_string();
            assert!(error.contains(says), "{error} lacks {says}");
        }
    }

    #[test]
    fn lessons_are_in_order_and_names_differ() {
        let all: Vec<(u8, &str)> = models().map(|entry| (entry.lesson, entry.name)).collect();
        assert!(all.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{all:?}");
        for (index, entry) in all.iter().enumerate() {
            assert!(!all[..index].contains(entry), "{entry:?} is there twice");
        }
    }
}
