//! `orbitkv-bench report`: one page, and its drawings as files, from the raw results that lie in a directory.

mod collection;
mod courses;
mod figures;
mod gates;
mod html;
mod svg;
#[cfg(test)]
mod tests;
mod words;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use orbitkv::exit::Exit;

use crate::{Failure, fail, progress};
use collection::Collection;
use html::Page;

/// Browsers that can draw without a window.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Width of a picture of the page, in pixels.
const PICTURE_WIDTH: usize = 1_040;

/// What to report.
#[derive(Args)]
pub struct ReportArgs {
    /// Directory with the results: the `--out` of other commands, or a directory above several of them.
    directory: PathBuf,
    /// The page [default: report.html in the directory]. Its drawings lie beside it in a directory of the same name.
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
    /// Make a picture of the page as well, with a browser if one is installed.
    #[arg(long)]
    png: bool,
}

/// Writes the page and says where it lies.
pub fn run(args: &ReportArgs) -> ExitCode {
    let collection = match results(&args.directory) {
        Ok(collection) => collection,
        Err(error) => return fail(Exit::Usage, &*error),
    };
    match write(args, &collection) {
        Ok(()) => Exit::Done.into(),
        Err(error) => fail(Exit::Environment, &*error),
    }
}

/// What lies in a directory, if there is anything to report.
fn results(directory: &Path) -> Result<Collection, Failure> {
    let collection = Collection::read(directory)?;
    match collection.has_results() {
        true => Ok(collection),
        false => Err(format!(
            "{}: no results here: {}. Name the --out of `orbitkv-bench isolation`, or a directory in which what other commands \
             print with --json was kept in files that end in .json",
            directory.display(),
            collection.instead()
        )
        .into()),
    }
}

fn write(args: &ReportArgs, collection: &Collection) -> Result<(), Failure> {
    let directory = args.directory.canonicalize()?;
    let out = args.out.clone().unwrap_or_else(|| directory.join("report.html"));
    let Page { html, figures } = html::page(&directory, collection);
    let named = |error: std::io::Error| format!("--out {}: {error}", out.display());
    if let Some(parent) = out.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(named)?;
    }
    fs::write(&out, html).map_err(named)?;
    let drawings = out.with_extension("");
    fs::create_dir_all(&drawings).map_err(named)?;
    for figure in &figures {
        fs::write(drawings.join(format!("{}.svg", figure.file)), &figure.svg)?;
    }
    println!("{}", out.display());
    progress(&format!("{} drawings in {}", figures.len(), drawings.display()));
    if args.png {
        picture(&out, figures.len(), collection)?;
    }
    Ok(())
}

/// Lets a browser draw the page; a machine without one has none.
fn picture(page: &Path, figures: usize, collection: &Collection) -> Result<(), Failure> {
    let out = page.with_extension("png");
    // A browser without a window has to be told how high one would be.
    let rows = collection.runs.len() * 2 + collection.reports.len() * 12 + collection.broken.len();
    let height = 2_600 + figures * 560 + rows * 40;
    let page = page.canonicalize()?;
    for browser in BROWSERS {
        let mut command = Command::new(browser);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
        command.arg(format!("--screenshot={}", out.display()));
        command.arg(format!("--window-size={PICTURE_WIDTH},{height}"));
        command.arg(format!("file://{}", page.display()));
        let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if ended.is_ok_and(|status| status.success()) && out.is_file() {
            println!("{}", out.display());
            return Ok(());
        }
    }
    progress(&format!("no picture: none of {} is installed, or none of them can draw", BROWSERS.join(", ")));
    Ok(())
}
