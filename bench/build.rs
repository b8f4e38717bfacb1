//! Tells the program which commit it was built from: every report states it.

use std::process::Command;

fn main() {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    println!("cargo:rustc-env=ORBITKV_COMMIT={commit}{}", if changed { "+changes" } else { "" });
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    for sources in ["src", "../src", "../shards/src", "../native/src", "../wire/src"] {
        println!("cargo:rerun-if-changed={sources}");
    }
}
