//! `orbitkv lab`: runs a model of a resilience policy and prints its table, with parameters and a seed of
//! the operator's choice. It asks no node.

use std::process::ExitCode;

use clap::Args;

use super::table::Table;
use super::{fail, say};
use crate::exit::Exit;
use crate::lab::parameters::Assignment;
use crate::lab::report::{Document, Row};
use crate::lab::{self, refusal::Refusal};

/// Arguments of `orbitkv lab`.
#[derive(Clone, Debug, Args)]
pub struct LabArgs {
    /// Lesson; left out, the models are listed
    #[arg(value_name = "NUMBER")]
    lesson: Option<u8>,
    /// Model of the lesson, if it has more than one
    #[arg(long, value_name = "NAME", requires = "lesson")]
    model: Option<String>,
    /// Seed of the model's generator instead of the published one
    #[arg(long, value_name = "N", requires = "lesson")]
    seed: Option<u64>,
    /// Put a parameter in place of the published one (repeatable): rounds=2400, modes.partial.p_fail=0.2
    #[arg(long, value_name = "NAME=VALUE", requires = "lesson")]
    set: Vec<Assignment>,
    /// Print the rows, parameters and generator checkpoints as JSON, in the shape of the vector files
    #[arg(long)]
    json: bool,
}

/// Lists the models, or runs one.
#[must_use]
pub fn run(args: &LabArgs) -> ExitCode {
    let Some(lesson) = args.lesson else {
        list(args.json);
        return Exit::Done.into();
    };
    let run = || -> Result<Document, Refusal> {
        lab::find(lesson, args.model.as_deref())?.run(args.seed, &args.set)
    };
    match run() {
        Ok(document) if args.json => {
            say(&serde_json::to_string_pretty(&document).expect("a report is plain data"));
            Exit::Done.into()
        }
        Ok(document) => {
            say(&text(&document));
            Exit::Done.into()
        }
        Err(refusal) => fail(Exit::Usage, &refusal.to_string()),
    }
}

fn list(json: bool) {
    if json {
        let entries: Vec<_> = lab::models()
            .map(|entry| serde_json::json!({"lesson": entry.lesson, "model": entry.name, "title": entry.title}))
            .collect();
        say(&serde_json::to_string_pretty(&entries).expect("names are plain data"));
        return;
    }
    let mut table = Table::new(["lesson", "model", "title"]);
    for entry in lab::models() {
        table.row([entry.lesson.to_string(), entry.name.to_owned(), entry.title.to_owned()]);
    }
    say(&table.to_string());
}

/// A run as people read it: every table under its name, a column for each name its rows have.
fn text(document: &Document) -> String {
    let mut out = format!("lesson {}: {}, model {}", document.lesson, document.title, document.model);
    if let Some((seeding, seed, _)) = &document.generator {
        out += &format!("\n{} generator, seed {seed}", seeding.kind.words()[0].1);
    }
    for (name, rows) in document.tables() {
        out += &format!("\n\n{name}\n{}", table(&rows));
    }
    out
}

fn table(rows: &[&Row]) -> Table {
    let mut columns: Vec<String> = Vec::new();
    let texts: Vec<Vec<(String, String)>> = rows.iter().map(|row| row.texts()).collect();
    for (column, _) in texts.iter().flatten() {
        if !columns.contains(column) {
            columns.push(column.clone());
        }
    }
    let mut table = Table::with_heading(columns.clone());
    for row in texts {
        let cell = |column: &String| {
            row.iter().find(|(name, _)| name == column).map_or(String::new(), |(_, text)| text.clone())
        };
        table.row(columns.iter().map(cell));
    }
    table
}
