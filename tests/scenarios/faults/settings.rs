//! Settings that cannot be: exit code 2, the setting, its value, the bound and the remedy in words,
//! and nothing made.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Said, run};

/// A place where an attempt leaves traces if it makes anything.
struct Attempt {
    directory: TempDir,
}

impl Attempt {
    fn new() -> Attempt {
        Attempt { directory: TempDir::with_prefix("okv-").expect("a directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).expect("room for a file");
        self.path(name)
    }

    /// Tries to start a node; `{}` in an argument is this place.
    fn node(&self, arguments: &[&str]) -> Said {
        run(&mut self.command(arguments))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orbitkv"));
        command.arg("node");
        let mut given = |name: &str, value: &Path| {
            if !arguments.iter().any(|argument| argument.starts_with(name)) {
                command.arg(name).arg(value);
            }
        };
        given("--engine-socket", &self.path("run/engine.sock"));
        given("--data-dir", &self.path("data"));
        given("--http", Path::new("127.0.0.1:0"));
        let place = self.directory.path().to_str().expect("text");
        command.args(arguments.iter().map(|argument| argument.replace("{}", place)));
        command
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], parts: &[&str]) {
        let before = fs::read_dir(self.directory.path()).expect("our own").count();
        let said = self.node(arguments);
        said.refused(2, parts);
        let after = fs::read_dir(self.directory.path()).expect("our own").count();
        assert_eq!(before, after, "{arguments:?} made something");
        assert!(!said.stdout.contains("total"), "a refused setting has no bill: {said:#?}");
        assert!(!said.stderr.contains("panicked"), "{said:#?}");
    }
}

#[test]
fn a_level_of_the_log_that_is_none_is_refused() {
    for (value, part) in [
        ("debgu", "`debgu` is no level (off, error, warn, info, debug, trace)"),
        ("info,peers", "`peers` is no level"),
        ("info,orbitkv=debgu", "write it like ORBITKV_LOG=debug"),
    ] {
        let said = run(Attempt::new().command(&[]).env("ORBITKV_LOG", value));
        said.refused(2, &[&format!("ORBITKV_LOG={value:?}: "), part]);
        assert_eq!(said.stdout, "");
    }
}

#[test]
fn sizes_that_no_machine_has_are_refused_by_the_bill() {
    for setting in ["--dram", "--ssd", "--journal"] {
        let said = Attempt::new().node(&[setting, "18446744073709551615"]);
        said.refused(3, &["the memory bill is", "lower --"]);
        assert!(!said.stderr.contains("panicked"), "{said:#?}");
    }
}

#[test]
fn each_setting_out_of_its_bound_says_setting_value_bound_and_remedy() {
    let attempt = Attempt::new();
    let table: &[(&[&str], &[&str])] = &[
        (&["--node-id", "Rack_7"], &["--node-id", "Rack_7", "1 to 64 bytes of a-z, 0-9 and -", "rack-7"]),
        (&["--node-id", ""], &["--node-id", "1 to 64 bytes"]),
        (&["--dram", "1mib"], &["--dram 1mib", "at least 64mib", "raise --dram to 64mib"]),
        (&["--dram", "lots"], &["--dram", "lots", "8gb, 512kib or 65536"]),
        (&["--dram=-1"], &["--dram", "-1"]),
        (&["--dram", "99999999999tib"], &["--dram", "too large"]),
        (
            &["--dram", "64mib", "--ssd", "1mib"],
            &["--ssd 1mib", "at least 64mib", "turn the tier off with --ssd 0"],
        ),
        (&["--journal", "4kib"], &["--journal 4kib", "at least 1mib", "raise --journal to 1mib"]),
        (&["--shards", "0"], &["--shards 0", "1 to", "choose within that"]),
        (&["--shards", "9999"], &["--shards 9999", "1 to"]),
        (&["--shards", "two"], &["--shards", "two"]),
        (
            &["--shards", "2", "--cores", "0"],
            &["--shards and --cores", "2 and 0", "core of its own", "lower --shards"],
        ),
        (&["--cores", "0,0"], &["--cores 0,0", "core 0 is listed twice", "list each core once"]),
        (&["--cores", "4000"], &["--cores", "`4000`", "above 1023"]),
        (&["--cores", "1000"], &["--cores 1000", "not available to this process", "choose from"]),
        (&["--cores", "3-1"], &["--cores", "`3-1`", "0,2-5"]),
        (
            &["--cores", "0", "--device-cores", "0"],
            &["--cores and --device-cores", "0 and 0", "in both lists", "--layout shared"],
        ),
        (
            &["--device-cores", "0", "--layout", "shared"],
            &["--device-cores and --layout", "has no device cores", "drop one"],
        ),
        (&["--layout", "sideways"], &["--layout", "sideways", "dedicated"]),
        (&["--idle", "doze"], &["--idle", "doze", "park"]),
        (&["--arena-pages", "huge"], &["--arena-pages", "huge", "hugetlb"]),
        (&["--http", "example.com:80"], &["--http", "example.com:80", "127.0.0.1:7070"]),
        (&["--http", "7070"], &["--http", "`7070`", "off"]),
        (&["--engine-uid", "me"], &["--engine-uid", "me"]),
        (&["--engine-socket", "/"], &["--engine-socket /", "must name a file"]),
        (
            &["--http-token-file", "{}/none"],
            &["--http-token-file", "none", "cannot be read", "name a readable file"],
        ),
        (&["--config", "{}/none"], &["--config", "none", "No such file"]),
        (&["--frobnicate"], &["--frobnicate"]),
    ];
    for (arguments, parts) in table {
        attempt.refused(arguments, parts);
    }
}

#[test]
fn spinning_on_every_core_is_refused() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let attempt = Attempt::new();
    let shards = cores.to_string();
    attempt.refused(
        &["--idle", "spin", "--shards", &shards, "--dram", "8gib", "--layout", "shared"],
        &["--idle spin", "must leave one core", "--idle park"],
    );
}

#[test]
fn an_ssd_without_a_directory_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbitkv"));
    let place = Attempt::new();
    command.args(["node", "--ssd", "1gib", "--engine-socket"]).arg(place.path("s"));
    run(&mut command).refused(2, &["--ssd 1gib", "needs a directory", "add --data-dir"]);
    assert!(!place.path("s").exists());
}

#[test]
fn what_this_version_has_not_is_refused_by_name() {
    let attempt = Attempt::new();
    let setting = "--ssd-backend";
    attempt.refused(&[setting, "glommio"], &[setting, "not in this version", "remove it"]);
}

#[test]
fn a_socket_path_that_fits_no_address_is_refused_with_the_limit() {
    let attempt = Attempt::new();
    let name = "s".repeat(108);
    let path = format!("{{}}/{name}");
    attempt.refused(
        &["--engine-socket", &path],
        &["--engine-socket", &name, "at most 107 bytes", "choose a shorter directory"],
    );
}

#[test]
fn a_configuration_file_is_refused_by_file_key_and_remedy() {
    let attempt = Attempt::new();
    let file = |text: &str| attempt.file("node.toml", text);
    for (text, parts) in [
        ("dran = \"1gib\"\n", &["node.toml", "`dran` is not a setting", "did you mean `dram`?"][..]),
        ("dram = \"1mib\"\n", &["--dram 1mib", "at least 64mib", "raise --dram"]),
        ("dram = \"lots\"\n", &["node.toml", "lots", "8gb, 512kib or 65536"]),
        ("dram = [\n", &["--config", "node.toml", "line 1"]),
        ("config = \"other.toml\"\n", &["node.toml", "cannot name another file"]),
        ("etcd = \"http://127.0.0.1:2379\"\n", &["--etcd", "add --cluster NAME"]),
    ] {
        let file = file(text);
        attempt.refused(&["--config", file.to_str().expect("text")], parts);
    }
}

#[test]
fn an_environment_variable_is_refused_as_its_flag_is() {
    let attempt = Attempt::new();
    let mut command = Command::new("env");
    command.args(["ORBITKV_DRAM=1mib", env!("CARGO_BIN_EXE_orbitkv"), "node"]);
    command.arg("--engine-socket").arg(attempt.path("s"));
    run(&mut command).refused(2, &["--dram 1mib", "at least 64mib"]);
    assert!(!attempt.path("s").exists());
}

#[test]
fn a_token_that_others_can_read_or_guess_is_refused() {
    let attempt = Attempt::new();
    let token = attempt.file("token", "0123456789abcdef0123\n");
    let mode = |mode| fs::set_permissions(&token, PermissionsExt::from_mode(mode)).expect("our own file");
    mode(0o644);
    attempt.refused(
        &["--http-token-file", "{}/token"],
        &["--http-token-file", "mode 0600", "0644", "chmod 600"],
    );
    mode(0o600);
    attempt.file("token", "short\n");
    attempt.refused(&["--http-token-file", "{}/token"], &["--http-token-file", "16 to 1024", "it holds 5"]);
}
