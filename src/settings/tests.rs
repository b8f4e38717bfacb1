//! Every refusal by name, the precedence of the sources, and the completeness of the flag list.

use std::path::Path;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser};
use orbitkv_shards::fetcher::GuardSettings;
use orbitkv_shards::planner::Mode;
use orbitkv_shards::retention::Retention;
use orbitkv_wire::scope::Scope;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    node: NodeArgs,
}

fn parse(flags: &[&str]) -> NodeArgs {
    Line::try_parse_from([&["node"], flags].concat()).unwrap_or_else(|error| panic!("{error}")).node
}

fn machine(cores: usize) -> Machine {
    Machine {
        cores: (0..cores).collect(),
        memory_available_bytes: 64 * GIB,
        hugetlb_free_bytes: 0,
        host_name: "host.example".to_owned(),
        uid: 1_000,
        runtime_dir: None,
    }
}

fn resolve(flags: &[&str], cores: usize) -> Result<NodeSettings, SettingsError> {
    NodeSettings::resolve(&parse(flags), &machine(cores))
}

fn refusal(flags: &[&str], cores: usize) -> String {
    match resolve(flags, cores) {
        Ok(settings) => panic!("{flags:?} on {cores} cores was taken: {settings:?}"),
        Err(error) => error.to_string(),
    }
}

/// Chapter 1.5, written down again on purpose: removing a flag must fail here.
const STABLE: [&str; 52] = [
    "node-id",
    "data-dir",
    "engine-socket",
    "http",
    "dram",
    "ssd",
    "shards",
    "cores",
    "device-cores",
    "layout",
    "idle",
    "etcd",
    "etcd-ca",
    "etcd-cert",
    "etcd-key",
    "etcd-user-file",
    "cluster",
    "peer-addr",
    "zone",
    "metadata-namespace",
    "metadata-empty-scope",
    "journal",
    "index-budget",
    "coalesce",
    "transports",
    "call-budget",
    "breaker",
    "breaker-calls",
    "breaker-pause",
    "retry-percent",
    "retry-burst",
    "failover-checks",
    "route-policy",
    "retention",
    "ssd-backend",
    "ssd-depth",
    "audit",
    "prefetch",
    "usual-load",
    "namespace-rate",
    "namespace-burst",
    "trace-turns",
    "ssd-breaker",
    "ssd-breaker-pause",
    "ssd-read-budget",
    "arena-pages",
    "http-token-file",
    "engine-uid",
    "receive-budget",
    "receive-rate",
    "egress-rate",
    "config",
];

#[test]
fn every_stable_flag_exists_with_its_variable_and_help() {
    let command = NodeArgs::augment_args(clap::Command::new("node"));
    for name in STABLE {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name));
        let argument = argument.unwrap_or_else(|| panic!("--{name} is missing"));
        let variable = format!("ORBITKV_{}", name.to_uppercase().replace('-', "_"));
        assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(variable.as_str()));
        assert!(argument.get_help().is_some(), "--{name} has no help");
    }
    assert_eq!(config_file::setting_names().len(), STABLE.len() - 1);
    Line::command().debug_assert();
}

#[test]
fn defaults_on_two_cores() {
    let settings = resolve(&[], 2).expect("defaults");
    assert_eq!((settings.shards, settings.dram_bytes(), settings.ssd_bytes()), (1, GIB, 0));
    assert_eq!(settings.placement.to_string(), "1 shard on core 1; device I/O shares the shards' cores");
    assert_eq!(settings.node_id, "host-example");
    assert_eq!(settings.engine_socket, Path::new("/tmp/orbitkv-1000/engine.sock"));
    assert_eq!((settings.http.to_string().as_str(), settings.idle), ("127.0.0.1:7070", Idle::Park));
    assert_eq!(settings.audit_interval, Some(Duration::from_secs(1)));
    assert_eq!(resolve(&["--audit", "0s"], 2).expect("none").audit_interval, None);
    let traces = |flags: &[&str]| resolve(flags, 2).expect("settings").trace_turns;
    assert_eq!(
        (traces(&[]), traces(&["--trace-turns"]), traces(&["--trace-turns", "false"])),
        (false, true, false)
    );
    assert_eq!(settings.device_guard, DeviceGuardSettings::default());
    assert_eq!((settings.engine_uids, settings.notices), (vec![1_000], Vec::<String>::new()));
    let at_run = Machine { runtime_dir: Some("/run/user/7".into()), ..machine(2) };
    let settings = NodeSettings::resolve(&NodeArgs::default(), &at_run).expect("defaults");
    assert_eq!(settings.engine_socket, Path::new("/run/user/7/orbitkv/engine.sock"));
}

#[test]
fn layouts_follow_the_cores() {
    for (flags, cores, shown) in [
        (&[][..], 16, "4 shards on cores 12-15; device I/O shares the shards' cores"),
        (
            &["--ssd", "1gib", "--data-dir", "d"],
            16,
            "4 shards on cores 12-15; device I/O dedicated on core 11",
        ),
        (&["--ssd", "1gib", "--data-dir", "d"], 2, "1 shard on core 1; device I/O shares the shards' cores"),
        (&["--layout", "dedicated"], 2, "1 shard on core 1; device I/O dedicated on core 0"),
        (&["--cores", "3,1"], 4, "2 shards on cores 3,1; device I/O shares the shards' cores"),
        (&["--device-cores", "3"], 4, "1 shard on core 2; device I/O dedicated on core 3"),
        (&[], 128, "8 shards on cores 120-127; device I/O shares the shards' cores"),
    ] {
        assert_eq!(
            resolve(flags, cores).expect("placed").placement.to_string(),
            shown,
            "{flags:?} on {cores}"
        );
    }
}

#[test]
fn refusals_name_setting_value_bound_and_remedy() {
    let long = format!("/{}", "x".repeat(107));
    let long = long.as_str();
    let table: [(&[&str], usize, &[&str]); 27] = [
        (&["--dram", "63mib"], 2, &["--dram 63mib", "at least 64mib", "raise --dram to 64mib"]),
        (
            &["--dram", "200mib", "--shards", "4"],
            4,
            &[
                "--dram and --shards 200mib and 4",
                "64mib a shard, 256mib for 4",
                "raise --dram to 256mib or lower --shards to 3",
            ],
        ),
        (&["--ssd", "1mib", "--data-dir", "d"], 2, &["--ssd 1mib", "at least 64mib", "--ssd 0"]),
        (&["--ssd", "1gib"], 2, &["--ssd 1gib", "directory", "--data-dir DIR"]),
        (&["--ssd-depth", "0"], 2, &["--ssd-depth 0", "1 to 1024 requests", "use --ssd-depth 1"]),
        (&["--ssd-breaker", "101"], 2, &["--ssd-breaker 101", "0 to 100 percent", "--ssd-breaker 50"]),
        (
            &["--ssd-breaker-pause", "61s"],
            2,
            &["--ssd-breaker-pause", "10ms to 60s", "--ssd-breaker-pause 1s"],
        ),
        (
            &["--ssd-read-budget", "9ms"],
            2,
            &["--ssd-read-budget 9ms", "10ms to 60s", "use --ssd-read-budget 2s"],
        ),
        (&["--audit", "9ms"], 2, &["--audit 9ms", "at least 10ms", "use --audit 1s"]),
        (&["--ssd-depth", "1025"], 2, &["--ssd-depth 1025", "1 to 1024", "use --ssd-depth 1024"]),
        (&["--journal", "1k"], 2, &["--journal 1kib", "at least 1mib", "raise --journal to 1mib"]),
        (
            &["--journal", "2mib", "--shards", "3"],
            4,
            &["--journal and --shards", "3mib", "lower --shards to 2"],
        ),
        (&["--shards", "0"], 2, &["--shards 0", "1 to 256"]),
        (&["--shards", "3"], 2, &["--shards 3", "there are 2", "lower --shards to 2"]),
        (&["--shards", "2", "--cores", "1"], 4, &["--shards and --cores 2 and 1", "there are 1"]),
        (&["--shards", "2", "--device-cores", "1"], 2, &["--shards 2", "there are 1", "--device-cores"]),
        (&["--cores", "1,1"], 2, &["--cores 1,1", "core 1 is listed twice", "once"]),
        (&["--cores", "0-2"], 2, &["--cores 0-2", "core 2 is not available", "choose from 0-1"]),
        (&["--device-cores", "7"], 2, &["--device-cores 7", "not available", "0-1"]),
        (&["--cores", "0,1", "--device-cores", "1"], 2, &["--cores and --device-cores", "core 1 is in both"]),
        (
            &["--layout", "dedicated", "--shards", "2"],
            2,
            &["--layout dedicated", "core of their own", "--layout shared"],
        ),
        (
            &["--layout", "shared", "--device-cores", "1"],
            2,
            &["--device-cores and --layout", "1 and shared", "drop one"],
        ),
        (&["--idle", "spin", "--shards", "2"], 2, &["--idle spin", "2 of 2", "--idle park"]),
        (
            &["--engine-socket", long],
            2,
            &["--engine-socket /xxx", "at most 107 bytes, this one has 108", "shorter"],
        ),
        (&["--node-id", "Node_7"], 2, &["--node-id \"Node_7\"", "a-z, 0-9 and -", "--node-id node-7"]),
        (&["--node-id", ""], 2, &["--node-id \"\"", "1 to 64"]),
        (&["--engine-socket", "/run/.."], 2, &["--engine-socket /run/..", "name a file"]),
    ];
    for (flags, cores, says) in table {
        let text = refusal(flags, cores);
        for part in says {
            assert!(text.contains(part), "{flags:?} on {cores}: `{text}` lacks `{part}`");
        }
    }
    assert!(resolve(&["--engine-socket", &long[..107]], 2).is_ok());
}

#[test]
fn what_this_version_has_not_is_refused_not_ignored() {
    let text = refusal(&["--ssd-backend", "glommio"], 2);
    assert!(text.starts_with("--ssd-backend") && text.contains("not in this version"), "{text}");
    assert!(resolve(&["--ssd-backend", "ring"], 2).is_ok());
}

#[test]
fn routes_are_chosen_in_shadow_unless_told_otherwise() {
    let with = |policy: &[&str]| resolve(&[&CLUSTER[..], policy].concat(), 2);
    let routing = |policy: &[&str]| with(policy).expect("legal").cluster.expect("a member").routing;
    assert_eq!(routing(&[]), Mode::Shadow);
    for (text, mode) in [("fixed", Mode::Fixed), ("shadow", Mode::Shadow), ("executed", Mode::Executed)] {
        assert_eq!(routing(&["--route-policy", text]), mode);
    }
    let alone = refusal(&["--route-policy", "executed"], 2);
    assert!(alone.contains("--route-policy executed") && alone.contains("standalone"), "{alone}");
}

#[test]
fn blocks_of_peers_are_weighed_unless_told_otherwise() {
    let with = |policy: &[&str]| resolve(&[&CLUSTER[..], policy].concat(), 2);
    let retention = |policy: &[&str]| with(policy).expect("legal").cluster.expect("a member").retention;
    assert_eq!(retention(&[]), Retention::Weigh);
    for (text, policy) in [("keep", Retention::Keep), ("weigh", Retention::Weigh), ("drop", Retention::Drop)]
    {
        assert_eq!(retention(&["--retention", text]), policy);
    }
    let alone = refusal(&["--retention", "keep"], 2);
    assert!(alone.contains("--retention keep") && alone.contains("standalone"), "{alone}");
}

#[test]
fn announcements_have_a_share_of_memory_that_leaves_most_of_it_to_others() {
    let percent = |flags: &[&str]| resolve(flags, 2).expect("legal").prefetch_percent;
    assert_eq!((percent(&[]), percent(&["--prefetch", "0"]), percent(&["--prefetch", "50"])), (25, 0, 50));
    let text = refusal(&["--prefetch", "51"], 2);
    assert!(text.contains("--prefetch 51") && text.contains("must be 0 to 50"), "{text}");
}

#[test]
fn a_namespace_has_a_rate_if_it_is_told_and_a_burst_of_a_second_of_it() {
    let of = |flags: &[&str]| {
        let rate = resolve(flags, 2).expect("legal").namespace_rate;
        rate.map(|of| (of.rate.bytes_a_second(), of.burst_bytes))
    };
    assert_eq!((of(&[]), of(&["--namespace-rate", "0"])), (None, None));
    assert_eq!(of(&["--namespace-rate", "8mib"]), Some((8 * MIB, 8 * MIB)));
    assert_eq!(of(&["--namespace-rate", "8mib", "--namespace-burst", "64kib"]), Some((8 * MIB, 64 * 1024)));
    for (flags, parts) in [
        (&["--namespace-rate", "10kib"][..], &["--namespace-rate 10kib", "at least 64kib"][..]),
        (&["--namespace-rate", "64kib", "--shards", "2"], &["--namespace-rate", "128kib for 2 shards"]),
        (
            &["--namespace-rate", "8mib", "--namespace-burst", "64kib", "--shards", "2"],
            &["--namespace-burst", "128kib for 2 shards"],
        ),
        (&["--namespace-burst", "8mib"], &["--namespace-burst 8mib", "--namespace-rate is 0", "add"]),
    ] {
        let text = refusal(flags, 2);
        parts.iter().for_each(|part| assert!(text.contains(part), "no {part} in {text}"));
    }
}

#[test]
fn transports_are_quic_with_or_without_shared_memory() {
    let with = |transports: &[&str]| resolve(&[&CLUSTER[..], transports].concat(), 2);
    let shares =
        |transports: &[&str]| with(transports).expect("legal").cluster.expect("a member").shares_memory;
    assert!(shares(&[]));
    for (text, expected) in [("quic", false), ("shm,quic", true), ("quic, shm", true)] {
        assert_eq!(shares(&["--transports", text]), expected, "{text}");
    }
    for (text, says) in [
        ("shm", "requests travel over quic"),
        ("tcp,quic", "not in this version"),
        ("", "must be shm,quic or quic"),
        ("quic,quic", "must be"),
    ] {
        let refused = with(&["--transports", text]).expect_err(text).to_string();
        assert!(refused.contains(says) && refused.contains("use --transports shm,quic"), "{refused}");
    }
}

#[test]
fn notices_tell_what_was_changed_or_has_no_effect() {
    for (flags, says) in [
        (&["--dram", "1gb"][..], "--dram 1000000000 rounded down to 952mib"),
        (&["--cores", "0,1", "--shards", "1"], "1 stay unused"),
        (&["--http", "0.0.0.0:0"], "POST will be refused"),
        (&["--http", "off", "--http-token-file", "t"], "no effect"),
    ] {
        let notices = resolve(flags, 2).expect("taken").notices;
        assert!(notices.len() == 1 && notices[0].contains(says), "{notices:?}");
    }
}

#[test]
fn a_file_lies_below_flags() {
    let file = Path::new("node.toml");
    let text = "node-id = \"from-file\"\ndram = \"2gib\"\nssd = 0\ncores = 1\nlayout = \"shared\"\nhttp = \"off\"\n\
                engine-uid = [7, 8]\ncoalesce = \"2ms\"\n";
    let below = config_file::parse(text, file).expect("a file");
    let args = parse(&["--dram", "1gib", "--engine-uid", "9"]).over(below);
    assert_eq!(args.node_id.as_deref(), Some("from-file"));
    assert_eq!((args.dram, args.ssd), (Some(ByteSize(GIB)), Some(ByteSize(0))));
    assert_eq!((args.cores, args.http), (Some(CoreList(vec![1])), Some(HttpBind::Off)));
    assert_eq!((args.layout, args.engine_uid), (Some(LayoutChoice::Shared), vec![9]));
    assert_eq!(args.coalesce.map(|span| span.to_string()).as_deref(), Some("2ms"));
    let one = config_file::parse("engine-uid = 7", file).expect("one value");
    assert_eq!(one.engine_uid, vec![7]);
}

#[test]
fn every_setting_can_come_from_a_file() {
    let file = Path::new("node.toml");
    for name in config_file::setting_names() {
        let value = match name.as_str() {
            "dram" | "ssd" | "journal" | "index-budget" | "receive-budget" => "\"64mib\"",
            "receive-rate" | "egress-rate" | "namespace-rate" | "namespace-burst" => "\"64mib\"",
            "coalesce" | "audit" | "call-budget" | "breaker-pause" | "ssd-breaker-pause"
            | "ssd-read-budget" => "\"1ms\"",
            "breaker" | "breaker-calls" | "retry-percent" | "retry-burst" | "ssd-breaker"
            | "failover-checks" => "1",
            "shards" | "cores" | "device-cores" | "engine-uid" | "ssd-depth" | "prefetch" => "1",
            "layout" => "\"auto\"",
            "idle" => "\"spin\"",
            "ssd-backend" => "\"glommio\"",
            "arena-pages" => "\"thp\"",
            "route-policy" => "\"shadow\"",
            "retention" => "\"keep\"",
            "metadata-empty-scope" | "trace-turns" => "true",
            "http" => "\"off\"",
            _ => "\"a\"",
        };
        let read = config_file::parse(&format!("{name} = {value}"), file)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_ne!(NodeArgs::default().over(read), NodeArgs::default(), "{name} was dropped");
    }
}

#[test]
fn bad_files_are_refused_by_name() {
    let file = Path::new("node.toml");
    for (text, says) in [
        ("node_id = \"a\"", "`node_id` is not a setting; did you mean `node-id`?"),
        ("drma = \"1gib\"", "did you mean `dram`?"),
        ("engine-sock = \"a\"", "did you mean `engine-socket`?"),
        ("config = \"other\"", "cannot name another file"),
        ("dram = \"8 bananas\"", "`8 bananas` is not a size"),
        ("dram = true", "a size such as"),
        ("layout = \"diagonal\"", "diagonal"),
        ("dram = ", "node.toml"),
    ] {
        let error = config_file::parse(text, file).expect_err(text).to_string();
        assert!(error.contains(says) && error.contains("node.toml"), "{error}");
    }
    assert!(matches!(config_file::read(Path::new("/nonexistent")), Err(SettingsError::ConfigFile { .. })));
}

/// Variables belong to a process, so the assertions run in a child that has them set.
#[test]
fn variables_lie_between_flags_and_file() {
    const NAME: &str = "settings::tests::variables_lie_between_flags_and_file";
    if std::env::var_os("ORBITKV_ZONE").is_none() {
        let own = std::env::current_exe().expect("this test binary");
        let child = std::process::Command::new(own)
            .args([NAME, "--exact"])
            .envs([
                ("ORBITKV_ZONE", "z"),
                ("ORBITKV_DRAM", "3gib"),
                ("ORBITKV_SSD", "5gib"),
                ("ORBITKV_ENGINE_UID", "1,2"),
            ])
            .output()
            .expect("the child runs");
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let below = config_file::parse("dram = 1\nssd = 1\njournal = \"7mib\"", Path::new("f")).expect("a file");
    let args = parse(&["--dram", "2gib"]).over(below);
    assert_eq!((args.dram, args.ssd), (Some(ByteSize(2 * GIB)), Some(ByteSize(5 * GIB))));
    assert_eq!((args.journal, args.engine_uid), (Some(ByteSize(7 * MIB)), vec![1, 2]));
}

const CLUSTER: [&str; 8] = [
    "--etcd",
    "http://10.0.0.1:2379,http://10.0.0.2:2379/",
    "--cluster",
    "prod",
    "--peer-addr",
    "10.0.0.7:7100",
    "--data-dir",
    "d",
];

#[test]
fn a_cluster_needs_etcd_a_name_and_an_address() {
    let cluster = resolve(&CLUSTER, 2).expect("legal").cluster.expect("a cluster");
    assert_eq!(cluster.etcd.endpoints, ["http://10.0.0.1:2379", "http://10.0.0.2:2379"]);
    assert_eq!((cluster.peer_address.port(), cluster.zone.as_str()), (7100, ""));
    assert_eq!(cluster.keyspace.prefix(), "/orbitkv/v2/prod/");
    let guard = cluster.guard;
    assert_eq!((guard.call_budget, guard.guard), (Duration::from_secs(1), GuardSettings::default()));
    assert_eq!(cluster.failover_checks, 3);
    assert_eq!((cluster.scope, cluster.coalesce), (Scope::All, Duration::from_millis(2)));
    assert_eq!((cluster.index_slice_bytes, cluster.receive_slice_bytes), (256 * MIB, 64 * MIB));
    assert_eq!(resolve(&[], 2).expect("legal").cluster, None);
    for (flags, parts) in [
        (&["--cluster", "prod"][..], &["--cluster prod", "standalone", "add --etcd URL"][..]),
        (&["--zone", "a"], &["--zone a", "standalone"]),
        (&["--etcd-key", "k"], &["--etcd-key k", "standalone"]),
        (&["--metadata-namespace", "a"], &["--metadata-namespace a", "standalone"]),
        (&["--metadata-empty-scope=false"], &["--metadata-empty-scope false", "standalone"]),
        (&["--index-budget", "1mib"], &["--index-budget 1mib", "standalone"]),
        (&["--coalesce", "0ms"], &["--coalesce", "standalone"]),
        (&["--transports", "quic"], &["--transports quic", "standalone"]),
        (&["--breaker", "0"], &["--breaker 0", "standalone"]),
        (&["--failover-checks", "3"], &["--failover-checks 3", "standalone"]),
        (&["--receive-budget", "8mib"], &["--receive-budget 8mib", "standalone"]),
        (&["--receive-rate", "8mib"], &["--receive-rate 8mib", "standalone"]),
        (&["--egress-rate", "0"], &["--egress-rate 0", "standalone"]),
        (&["--visibility-samples", "9"], &["--visibility-samples 9", "standalone"]),
        (&["--refresh-policy", "redirect"], &["--refresh-policy redirect", "standalone"]),
        (&["--watch-lag", "1s"], &["--watch-lag 1s", "standalone"]),
        (&["--etcd", "http://a:1"], &["--etcd", "add --cluster NAME"]),
        (&["--etcd", "http://a:1", "--cluster", "c"], &["--etcd", "add --peer-addr"]),
        (&CLUSTER[..6], &["--etcd", "its key and its last epoch", "add --data-dir DIR"]),
    ] {
        let text = refusal(flags, 2);
        parts.iter().for_each(|part| assert!(text.contains(part), "no {part} in {text}"));
    }
}

#[test]
fn settings_of_a_cluster_have_bounds() {
    for (flags, parts) in [
        (&["--etcd", "10.0.0.1:2379"][..], &["--etcd", "http://", "write it like"][..]),
        (&["--etcd", "http://a:1,https://b:1", "--etcd-ca", "f"], &["--etcd", "all with http://"]),
        (&["--etcd", "https://a:1"], &["--etcd", "add --etcd-ca FILE"]),
        (&["--etcd-ca", "f"], &["--etcd-ca f", "https"]),
        (
            &["--etcd", "https://a:1", "--etcd-ca", "f", "--etcd-cert", "c"],
            &["--etcd-cert c", "add --etcd-key"],
        ),
        (
            &["--etcd", "https://a:1", "--etcd-ca", "f", "--etcd-key", "k"],
            &["--etcd-key k", "add --etcd-cert"],
        ),
        (&["--cluster", "Prod/1"], &["--cluster \"Prod/1\"", "1 to 64 bytes"]),
        (&["--zone", "A"], &["--zone \"A\"", "1 to 64 bytes"]),
        (&["--peer-addr", "host:7100"], &["--peer-addr host:7100", "write it like"]),
        (&["--peer-addr", "0.0.0.0:7100"], &["--peer-addr 0.0.0.0:7100", "cannot send"]),
        (&["--peer-addr", "10.0.0.7:0"], &["--peer-addr", "lower port that is not 0"]),
        (&["--peer-addr", "10.0.0.7:65535", "--shards", "2"], &["--peer-addr", "2 shards", "lower port"]),
        (&["--coalesce", "6ms"], &["--coalesce 6ms", "at most 5ms"]),
        (&["--call-budget", "11s"], &["--call-budget 11s", "10ms to 10s", "use --call-budget 1s"]),
        (&["--breaker", "101"], &["--breaker 101", "0 to 100 percent", "use --breaker 50"]),
        (&["--breaker-calls", "0"], &["--breaker-calls 0", "1 to 10000 calls", "use --breaker-calls 20"]),
        (&["--breaker-pause", "1ms"], &["--breaker-pause 1ms", "10ms to 60s", "use --breaker-pause 1s"]),
        (&["--retry-burst", "1025"], &["--retry-burst 1025", "0 to 1024 blocks", "--retry-burst 64"]),
        (&["--failover-checks", "0"], &["--failover-checks 0", "1 to 300 checks", "--failover-checks 3"]),
        (&["--failover-checks", "301"], &["--failover-checks 301", "1 to 300", "use --failover-checks 3"]),
        (&["--retry-percent", "200"], &["--retry-percent 200", "0 to 100 percent", "--retry-percent 10"]),
        (&["--visibility-samples", "65537"], &["--visibility-samples 65537", "at most 65536"]),
        (&["--watch-lag", "601s"], &["--watch-lag 601s", "at most 600s"]),
        (&["--index-budget", "1kib"], &["--index-budget 1kib", "at least 1mib"]),
        (&["--receive-budget", "4mib", "--shards", "2"], &["--receive-budget", "16mib for 2 shards"]),
        (&["--egress-rate", "10kib"], &["--egress-rate 10kib", "at least 64kib", "raise --egress-rate"]),
        (&["--receive-rate", "64kib", "--shards", "2"], &["--receive-rate", "128kib for 2 shards"]),
        (&["--metadata-namespace", "llama"], &["--metadata-namespace llama", "64 lowercase hex"]),
        (
            &["--metadata-namespace", "llama", "--metadata-empty-scope"],
            &["--metadata-empty-scope and --metadata-namespace llama", "remove one"],
        ),
    ] {
        let laid = parse(flags).over(parse(&CLUSTER));
        let text = NodeSettings::resolve(&laid, &machine(2)).expect_err("refused").to_string();
        parts.iter().for_each(|part| assert!(text.contains(part), "no {part} in {text}"));
    }
}
