//! The files of this repository, build outputs left out.

use std::fs;
use std::path::{Path, PathBuf};

/// A text file.
pub struct File {
    /// Path from the repository's root, with `/`.
    pub path: String,
    pub text: String,
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every text file, in order of path. Hidden folders other than `.ci`, `target`, and folders that a tool has tagged as
/// a cache are left out: with cargo's output elsewhere, `target` has what our own tools put there and no tag.
pub fn files() -> Vec<File> {
    let mut files = Vec::new();
    collect(root(), &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn collect(folder: &Path, files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).expect("the tree is readable") {
        let entry = entry.expect("the tree is readable");
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap_or_default());
        let kind = entry.file_type().expect("the tree is readable");
        let is_output = path == root().join("target") || path.join("CACHEDIR.TAG").exists();
        let left_out = (name.starts_with('.') && name != ".ci") || is_output;
        if kind.is_dir() && !left_out {
            collect(&path, files);
        } else if kind.is_file()
            && let Ok(text) = fs::read_to_string(&path)
        {
            let path = path.strip_prefix(root()).expect("found below the root");
            files.push(File { path: path.to_string_lossy().into_owned(), text });
        }
    }
}

/// Paths that exist on this machine only and have no business in a file.
pub fn machine_paths() -> Vec<String> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let paths = [Some(root().to_path_buf()), home].into_iter().flatten();
    paths.map(|path| path.to_string_lossy().into_owned()).filter(|path| path.len() > 3).collect()
}

#[test]
fn the_walk_finds_this_file_and_no_build_output() {
    let files = files();
    assert!(
        files.iter().any(|file| file.path == "tests/repository/tree.rs" && file.text.contains("fn collect"))
    );
    assert!(files.iter().all(|file| !file.path.starts_with("target/") && !file.path.starts_with(".git/")));
}
