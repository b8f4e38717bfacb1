//! Checks over the tree itself: what the architecture promises and no compiler enforces.
//!
//! Each rule is a plain function from text to findings, tested on planted input beside it; the
//! tests here run the rules over the real tree and print every finding.

mod code;
mod licences;
mod links;
mod named;
mod packages;
mod rules;
mod tree;

use clap::CommandFactory;
use orbitkv_wire::engine::Operation;
use packages::Metadata;

fn none(what: &str, findings: Vec<String>) {
    assert!(findings.is_empty(), "{what}:\n{}", findings.join("\n"));
}

/// Applies a rule to every file whose name ends in `ending`.
fn over_files(ending: &str, rule: impl Fn(&str, &str) -> Vec<String>) -> Vec<String> {
    let files = tree::files();
    let matching: Vec<_> = files.iter().filter(|file| file.path.ends_with(ending)).collect();
    assert!(!matching.is_empty(), "no file ends in {ending}");
    matching
        .iter()
        .flat_map(|file| {
            rule(&file.path, &file.text).into_iter().map(|finding| format!("{}: {finding}", file.path))
        })
        .collect()
}

#[test]
fn packages_depend_in_one_direction() {
    none("dependencies against the direction", packages::direction(&Metadata::read().workspace()));
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let packages = Metadata::read().packages();
    assert!(packages.len() > 50, "the whole tree is looked at");
    none("licences", licences::findings(&packages));
}

#[test]
fn what_is_measured_beside_has_an_allowed_licence() {
    let packages = Metadata::read_apart("bench/rivals/Cargo.toml").packages();
    assert!(packages.len() > 50, "the whole tree is looked at");
    none("licences", licences::findings(&packages));
}

#[test]
fn source_files_keep_the_house_rules() {
    none("house rules", over_files(".rs", rules::source));
}

#[test]
fn files_name_no_machine_and_no_registry() {
    none(
        "names of machines or registries",
        over_files("", |path, text| rules::places(path, text, &tree::machine_paths())),
    );
}

#[test]
fn relative_links_lead_somewhere() {
    none(
        "links",
        over_files(".md", |path, text| {
            links::broken(path, text, |target| tree::root().join(target).exists())
        }),
    );
}

#[test]
fn the_readme_names_every_command_and_every_operation() {
    let files = tree::files();
    let readme = &files.iter().find(|file| file.path == "README.md").expect("it is there").text;
    let program = orbitkv::cli::Cli::command();
    let commands: Vec<String> =
        program.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    assert!(commands.len() > 10, "the whole program is looked at");
    none("commands that README.md leaves out", named::commands_left_out(readme, &commands));
    let operations: Vec<String> = Operation::ALL.iter().map(|operation| format!("{operation:?}")).collect();
    none("operations that README.md leaves out", named::operations_left_out(readme, &operations));
}
