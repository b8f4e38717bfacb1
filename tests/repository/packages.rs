//! What cargo knows about packages: who depends on whom, under which licence.

use std::process::Command;

use serde_json::Value;

use crate::tree;

/// A package, as far as the checks care.
#[derive(Clone, Debug)]
pub struct Package {
    pub name: String,
    pub licence: Option<String>,
    /// Names of its direct dependencies: ordinary, build and dev.
    pub dependencies: Vec<String>,
}

/// Answer of `cargo metadata`.
pub struct Metadata(Value);

impl Metadata {
    /// Of this workspace, whose packages are all here: the test itself was built from it.
    pub fn read() -> Metadata {
        metadata(&["--offline"]).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Of a workspace of its own. Its packages are fetched if they are not here.
    pub fn read_apart(manifest: &str) -> Metadata {
        let arguments = ["--locked", "--manifest-path", manifest];
        metadata(&[&arguments[..], &["--offline"]].concat())
            .or_else(|_| metadata(&arguments))
            .unwrap_or_else(|error| panic!("{manifest}: {error}"))
    }

    /// Every package of the dependency tree.
    pub fn packages(&self) -> Vec<Package> {
        self.0["packages"].as_array().expect("there are packages").iter().map(package).collect()
    }

    /// The packages of this workspace.
    pub fn workspace(&self) -> Vec<Package> {
        let members = self.0["workspace_members"].as_array().expect("there are members");
        let packages = self.0["packages"].as_array().expect("there are packages");
        packages.iter().filter(|value| members.contains(&value["id"])).map(package).collect()
    }
}

fn metadata(arguments: &[&str]) -> Result<Metadata, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Packages for other platforms are neither built nor, on a fresh machine, there to be read.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--filter-platform", &platform])
        .args(arguments)
        .current_dir(tree::root())
        .output()
        .expect("cargo runs");
    match output.status.success() {
        true => Ok(Metadata(serde_json::from_slice(&output.stdout).expect("cargo writes JSON"))),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn package(value: &Value) -> Package {
    let text = |value: &Value| value.as_str().map(str::to_string);
    let dependencies = value["dependencies"].as_array().expect("a list of dependencies");
    Package {
        name: text(&value["name"]).expect("a name"),
        licence: text(&value["license"]),
        dependencies: dependencies.iter().filter_map(|value| text(&value["name"])).collect(),
    }
}

/// Siblings that each package of the workspace may depend on. `orbitkv-shards` and
/// `orbitkv-native` never see each other, and nothing depends on `orbitkv-bench`.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("orbitkv-wire", &[]),
    ("orbitkv-shards", &["orbitkv-wire"]),
    ("orbitkv-native", &["orbitkv-wire"]),
    ("orbitkv", &["orbitkv-wire", "orbitkv-shards", "orbitkv-native"]),
    ("orbitkv-bench", &["orbitkv", "orbitkv-wire", "orbitkv-shards", "orbitkv-native"]),
    ("orbitkv-sim", &["orbitkv-wire", "orbitkv-shards"]),
];

/// Dependencies between siblings that the architecture does not have.
pub fn direction(workspace: &[Package]) -> Vec<String> {
    let siblings: Vec<&str> = workspace.iter().map(|package| package.name.as_str()).collect();
    let mut findings = Vec::new();
    for package in workspace {
        let rule = MAY_DEPEND_ON.iter().find(|(name, _)| *name == package.name);
        let Some((_, allowed)) = rule else {
            findings.push(format!("{} has no place in the architecture", package.name));
            continue;
        };
        let named = package.dependencies.iter().map(String::as_str);
        for sibling in named.filter(|name| siblings.contains(name) && !allowed.contains(name)) {
            findings.push(format!("{} depends on {sibling}", package.name));
        }
    }
    findings
}

#[cfg(test)]
mod planted {
    use super::*;

    fn workspace(changed: &str, dependencies: &[&str]) -> Vec<Package> {
        let package = |&(name, allowed): &(&str, &[&str])| Package {
            name: name.into(),
            licence: None,
            dependencies: if name == changed { dependencies } else { allowed }
                .iter()
                .map(|&name| name.into())
                .collect(),
        };
        MAY_DEPEND_ON.iter().map(package).collect()
    }

    #[test]
    fn wrong_directions_are_found() {
        assert_eq!(direction(&workspace("", &[])), Vec::<String>::new());
        for (from, to) in [
            ("orbitkv-wire", "orbitkv-shards"),
            ("orbitkv-wire", "orbitkv"),
            ("orbitkv-shards", "orbitkv-native"),
            ("orbitkv-native", "orbitkv-shards"),
            ("orbitkv-native", "orbitkv"),
            ("orbitkv", "orbitkv-bench"),
            ("orbitkv-shards", "orbitkv-sim"),
            ("orbitkv-sim", "orbitkv-native"),
        ] {
            let found = direction(&workspace(from, &["serde", to]));
            assert_eq!(found, [format!("{from} depends on {to}")]);
        }
    }

    #[test]
    fn a_package_without_a_place_is_found() {
        let stranger = Package { name: "orbitkv-extra".into(), licence: None, dependencies: vec![] };
        assert_eq!(direction(&[stranger]), ["orbitkv-extra has no place in the architecture"]);
    }

    #[test]
    fn every_package_of_the_architecture_is_in_the_workspace() {
        let mut names: Vec<_> =
            Metadata::read().workspace().into_iter().map(|package| package.name).collect();
        let mut expected: Vec<_> = MAY_DEPEND_ON.iter().map(|(name, _)| (*name).to_string()).collect();
        names.sort();
        expected.sort();
        assert_eq!(names, expected);
    }
}
