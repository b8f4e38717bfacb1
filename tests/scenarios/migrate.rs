//! `orbitkv migrate` on real etcd, which is read by `etcdctl` alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::faults::{Said, orbitkv};
use crate::harness::etcd::free_port;
use crate::harness::{Etcd, NodeOrder, eventually};

const PREFIX: &str = "/orbitkv/v2/test/";
const UUID: &str = "11111111-1111-4111-8111-111111111111";

/// Names, values and revisions, as `etcdctl` shows them in its own encoding.
type Dump = BTreeMap<String, (String, u64)>;

/// Base64, as `etcdctl` has keys and values in its JSON.
fn text_of(base64: &str) -> String {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("no digit of base64: {byte}"),
    };
    let digits: Vec<u32> = base64.trim_end_matches('=').bytes().map(|byte| u32::from(digit(byte))).collect();
    let bytes = digits.chunks(4).flat_map(|group| {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - group.len()));
        bits.to_be_bytes()[1..group.len()].to_vec()
    });
    String::from_utf8(bytes.collect()).expect("text")
}

/// Everything below the prefix.
fn dump(etcd: &Etcd) -> Dump {
    let answer: Value =
        serde_json::from_str(&etcd.ctl(&["get", "--prefix", PREFIX, "--write-out=json"])).expect("JSON");
    let pairs = answer["kvs"].as_array().cloned().unwrap_or_default();
    let words = |pair: &Value, name: &str| pair[name].as_str().unwrap_or_default().to_owned();
    let pair = |pair: &Value| {
        let revision = pair["mod_revision"].as_u64().expect("a revision");
        (words(pair, "key"), (words(pair, "value"), revision))
    };
    pairs.iter().map(pair).collect()
}

/// The same as text below the prefix, without revisions.
fn values(etcd: &Etcd) -> BTreeMap<String, String> {
    let below = |key: &str| text_of(key).strip_prefix(PREFIX).expect("of the cluster").to_owned();
    dump(etcd).iter().map(|(key, (value, _))| (below(key), text_of(value))).collect()
}

fn old_format() -> String {
    format!("protocol orbitkv/inventory-stream/v3\ncarrier tcp/1\ncluster {UUID}\n")
}

fn put(etcd: &Etcd, name: &str, value: &str) {
    etcd.ctl(&["put", &format!("{PREFIX}{name}"), value]);
}

/// Many keys in few transactions.
fn put_all(etcd: &Etcd, names: &[String]) {
    for names in names.chunks(100) {
        let puts: String = names.iter().map(|name| format!("put {PREFIX}{name} of-{name}\n")).collect();
        let mut child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &etcd.url(0), "txn"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("etcdctl (Debian: etcd-client) is installed");
        let words = format!("\n{puts}\n\n");
        child.stdin.take().expect("piped").write_all(words.as_bytes()).expect("it reads");
        assert!(child.wait().expect("it ends").success());
    }
}

/// An etcd with a cluster of another format.
fn old_cluster(placements: usize) -> Etcd {
    let etcd = Etcd::start();
    put(&etcd, "format", &old_format());
    put(&etcd, "epochs/a", "5");
    put(&etcd, "epochs/gone", "2");
    put(&etcd, "epoch_floor", "3");
    put(&etcd, "config/policy", "x");
    put_all(&etcd, &(0..placements).map(|number| format!("placements/{number:04}")).collect::<Vec<_>>());
    // Of another cluster.
    etcd.ctl(&["put", "/orbitkv/v2/test-2/format", "theirs"]);
    etcd
}

fn arguments<'a>(action: &'a str, url: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["migrate", action, "--etcd", url, "--cluster", "test"], rest].concat()
}

fn migrate(etcd: &Etcd, action: &str, rest: &[&str]) -> Said {
    orbitkv(&arguments(action, &etcd.url(0), rest))
}

struct ArchiveFile {
    directory: TempDir,
}

impl ArchiveFile {
    fn new() -> ArchiveFile {
        ArchiveFile { directory: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("archive.json")
    }

    fn flags(&self) -> [String; 2] {
        ["--archive".to_owned(), self.path().display().to_string()]
    }
}

fn archived(etcd: &Etcd, action: &str, file: &ArchiveFile, rest: &[&str]) -> Said {
    let flags = file.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(rest.iter().copied()).collect();
    migrate(etcd, action, &flags)
}

#[track_caller]
fn done(said: &Said) {
    assert_eq!(said.code, Some(0), "{said:#?}");
}

#[track_caller]
fn document(said: &Said) -> Value {
    serde_json::from_str(said.stdout.trim()).unwrap_or_else(|error| panic!("{error}: {said:#?}"))
}

fn node(name: &str, etcd: &Etcd) -> NodeOrder {
    let peer = format!("127.0.0.1:{}", free_port());
    let arguments = ["--cluster", "test", "--peer-addr", &peer, "--etcd", &etcd.url(0)];
    arguments.iter().fold(NodeOrder::default().named(name).in_data_directory(), |order, argument| {
        order.argument(*argument)
    })
}

/// What the keys are after the cutover, written down by hand.
fn cut_over() -> BTreeMap<String, String> {
    let format = format!("protocol orbitkv/inventory-stream/v4\ncarrier quic-rkyv/1\ncluster {UUID}\n");
    [
        ("config/policy", "x"),
        ("epoch_floor", "3"),
        ("epochs/a", "5"),
        ("epochs/gone", "2"),
        ("format", &format),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

#[test]
fn a_cluster_moves_and_comes_back_and_no_epoch_is_lowered() {
    let (etcd, file) = (old_cluster(3), ArchiveFile::new());
    let (before, values_before) = (dump(&etcd), values(&etcd));
    let first = node("a", &etcd).start();
    first.await_metadata("it refuses the format", |page| page.membership.detail.contains("or migrate it"));
    drop(first);
    let said = migrate(&etcd, "dry-run", &["--json"]);
    done(&said);
    let listed = document(&said);
    assert_eq!(listed["done"], false);
    let fates: BTreeMap<&str, &str> = listed["keys"]
        .as_array()
        .expect("keys")
        .iter()
        .map(|row| (row["key"].as_str().expect("a name"), row["becomes"].as_str().expect("a word")))
        .collect();
    assert_eq!(fates.keys().copied().collect::<Vec<_>>(), values_before.keys().collect::<Vec<_>>());
    let touched: Vec<&str> =
        fates.iter().filter(|(_, fate)| **fate != "stays").map(|(key, _)| *key).collect();
    assert_eq!(touched, ["format", "placements/0000", "placements/0001", "placements/0002"]);
    assert_eq!(dump(&etcd), before, "a dry run changes nothing");

    let said = archived(&etcd, "apply", &file, &["--json"]);
    done(&said);
    assert_eq!(document(&said)["done"], true);
    let again = migrate(&etcd, "dry-run", &["--json"]);
    done(&again);
    assert_eq!(document(&again)["done"], false, "nothing to migrate, and nothing done");
    assert_eq!(values(&etcd), cut_over());
    let mode = fs::metadata(file.path()).expect("an archive").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let mut first = node("a", &etcd).start();
    let page = first.await_metadata("it registers", |page| page.epoch == Some(6));
    assert_eq!(page.cluster.as_deref(), Some(UUID));

    let standing = dump(&etcd);
    archived(&etcd, "rollback", &file, &[]).refused(4, &["a node is registered: a", "stop every node first"]);
    archived(&etcd, "rollback", &file, &["--dry-run"]).refused(4, &["a node is registered"]);
    assert_eq!(dump(&etcd), standing, "a refusal changes nothing");
    done(&archived(&etcd, "apply", &file, &[]));
    assert_eq!(dump(&etcd), standing, "it was done before");
    assert!(first.terminate().success());

    let standing = dump(&etcd);
    let said = archived(&etcd, "rollback", &file, &["--dry-run"]);
    done(&said);
    assert!(said.stdout.contains("placements/0002  put back"), "{said:#?}");
    let said = archived(&etcd, "rollback", &file, &["--dry-run", "--json"]);
    assert_eq!(document(&said)["done"], false);
    assert_eq!(dump(&etcd), standing);
    let said = archived(&etcd, "rollback", &file, &["--json"]);
    done(&said);
    assert_eq!(document(&said)["done"], true);
    let mut expected = values_before;
    expected.insert("epochs/a".to_owned(), "6".to_owned());
    assert_eq!(values(&etcd), expected);
    let standing = dump(&etcd);
    done(&archived(&etcd, "rollback", &file, &[]));
    assert_eq!(dump(&etcd), standing);
    // That archive is of other epochs: another migration needs another one.
    archived(&etcd, "apply", &file, &[]).refused(4, &["epochs/a", "make a new archive"]);
    assert_eq!(etcd.value("/orbitkv/v2/test-2/format"), "theirs\n");
}

/// Begins and kills it between two of its transactions.
fn interrupt(etcd: &Etcd, action: &str, file: &Path) {
    let url = etcd.url(0);
    let mut child = Command::new(env!("CARGO_BIN_EXE_orbitkv"))
        .args(arguments(action, &url, &["--archive", &file.display().to_string()]))
        .stdout(Stdio::null())
        .spawn()
        .expect("the program starts");
    eventually("it is under way", || {
        let marked = etcd.value(&format!("{PREFIX}format")).starts_with("migration ");
        marked.then_some(())
    });
    etcd.pause(0);
    child.kill().expect("it runs");
    let status = child.wait().expect("our child");
    etcd.resume(0);
    assert!(!status.success(), "it was too fast to be interrupted");
}

#[test]
fn interrupted_half_way_it_goes_on_or_back() {
    let (etcd, file) = (old_cluster(2_000), ArchiveFile::new());
    let before = values(&etcd);
    interrupt(&etcd, "apply", &file.path());
    let half = dump(&etcd).len();
    assert!(half > cut_over().len(), "some keys are still there: {half}");
    // Nobody registers meanwhile, of either format.
    let waiting = node("a", &etcd).start();
    waiting.await_metadata("it is refused", |page| page.membership.detail.contains("`migration "));
    drop(waiting);
    migrate(&etcd, "dry-run", &[]).refused(4, &["a migration with another archive is under way"]);
    let another = ArchiveFile::new();
    archived(&etcd, "apply", &another, &[]).refused(4, &["is under way"]);
    assert!(!another.path().exists());

    done(&archived(&etcd, "rollback", &file, &[]));
    assert_eq!(values(&etcd), before);
    done(&archived(&etcd, "apply", &another, &[]));
    assert_eq!(values(&etcd), cut_over());
    interrupt(&etcd, "rollback", &another.path());
    done(&archived(&etcd, "apply", &another, &[]));
    assert_eq!(values(&etcd), cut_over());
    interrupt(&etcd, "rollback", &another.path());
    done(&archived(&etcd, "rollback", &another, &[]));
    assert_eq!(values(&etcd), before);
}

#[test]
fn it_refuses_while_somebody_lives_or_a_key_was_changed() {
    let (mut etcd, file) = (old_cluster(1), ArchiveFile::new());
    let lease = etcd.ctl(&["lease", "grant", "600"]);
    let lease = lease.split_whitespace().nth(1).expect("its number").to_owned();
    for (name, parts) in [
        ("members/old-1", ["a node is registered: old-1", "stop every node first"]),
        ("sessions/7", ["`sessions/7` hangs on a lease", "stop it first"]),
    ] {
        etcd.ctl(&["put", "--lease", &lease, &format!("{PREFIX}{name}"), "whatever"]);
        let standing = dump(&etcd);
        migrate(&etcd, "dry-run", &[]).refused(4, &parts);
        archived(&etcd, "apply", &file, &[]).refused(4, &parts);
        assert_eq!(dump(&etcd), standing, "a refusal changes nothing");
        assert!(!file.path().exists(), "and archives nothing");
        etcd.ctl(&["del", &format!("{PREFIX}{name}")]);
    }
    // Somebody comes once it is archived: as if `apply` had been interrupted before its first transaction.
    let values_before = values(&etcd);
    done(&archived(&etcd, "apply", &file, &[]));
    done(&archived(&etcd, "rollback", &file, &[]));
    put(&etcd, "placements/0000", "elsewhere");
    archived(&etcd, "apply", &file, &[]).refused(4, &["is not as the archive has it"]);
    let mut expected = values_before;
    expected.insert("placements/0000".to_owned(), "elsewhere".to_owned());
    assert_eq!(values(&etcd), expected);

    let url = etcd.url(0);
    let other = |cluster: &str| orbitkv(&["migrate", "dry-run", "--etcd", &url, "--cluster", cluster]);
    other("nobody").refused(4, &["there is nothing to migrate", "cluster's name"]);
    other("No Name").refused(2, &["--cluster", "No Name"]);
    let flags = ["--archive", &file.path().display().to_string()];
    let words = [&["migrate", "rollback", "--etcd", &url, "--cluster", "test-2"][..], &flags[..]].concat();
    orbitkv(&words).refused(2, &["it is of the cluster \"test\""]);
    let said = migrate(&etcd, "rollback", &["--archive", "/nowhere/archive.json"]);
    said.refused(3, &["--archive /nowhere/archive.json"]);
    etcd.kill(0);
    orbitkv(&arguments("dry-run", &url, &[])).refused(5, &["does not answer"]);
}

/// Two operations that share state, in the layout of a plan.
const OPERATIONS: &str = "
[[operation]]
name = \"query\"
requests_per_day = 900
touches = [\"blocks\"]

[[operation]]
name = \"save\"
requests_per_day = 100
touches = [\"blocks\", \"journal\"]

[writes_per_day]
blocks = 86400
journal = 172800
";

#[test]
fn a_plan_of_moves_is_made_of_a_file_and_what_is_no_plan_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("operations.toml");
    let path = file.display().to_string();
    let plan = |text: &str| {
        fs::write(&file, text).expect("a file");
        orbitkv(&["migrate", "plan", &path, "--revert-after", "60s", "--scan-per-s", "10", "--json"])
    };
    let said = plan(OPERATIONS);
    done(&said);
    let steps = document(&said)["steps"].clone();
    let column =
        |name: &str| steps.as_array().expect("moves").iter().map(|step| step[name].clone()).collect();
    let columns: [Vec<Value>; 3] = ["operation", "dual_writes_per_s", "revert_s"].map(column);
    let expected = [json!(["query", "save"]), json!([1.0, 0.0]), json!([0.0, 18.0])];
    assert_eq!(columns.map(Value::from), expected);
    plan(&OPERATIONS.replace("journal =", "jurnal =")).refused(2, &[&path, "`journal`", "[writes_per_day]"]);
    let idle = OPERATIONS.replace("= 900", "= 0").replace("= 100", "= 0");
    plan(&idle).refused(2, &[&path, "no operation has any requests_per_day"]);
}
