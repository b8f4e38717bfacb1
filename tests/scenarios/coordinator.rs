//! etcd fails whole nodes: it loses members, its quorum, its past, its history, its space, or is another one. Local
//! service never stops, cached members last until the deadline, the operator reads what is wrong, and everything
//! heals without a hand on the nodes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use orbitkv::client::{Coverage, Media};
use orbitkv::control::metadata::MetadataPage;

use crate::faults::orbitkv;
use crate::harness::etcd::{Relay, free_port};
use crate::harness::{Etcd, Node, Saver};
use crate::peers::{await_installed, evict, keys, knows_all, order, order_by, pair, query, savers};

/// Longer than half a lease: whoever could not renew meanwhile is fenced, and whoever is not did renew.
const DEADLINE: Duration = Duration::from_secs(5);

fn is_member(page: &MetadataPage) -> bool {
    page.membership.validity == "member"
}

/// Blocks are read from the peer, byte for byte; what was saved before is read again.
fn assert_reads(first: &Node, second: &Node, [saver, other]: &mut [Saver; 2], saved: &[u64]) {
    let fresh = keys(5);
    saver.save(&fresh);
    await_installed(first, second);
    other.check_ready(&fresh);
    evict(other, saved, Media::ALL);
    other.check_ready(saved);
}

/// Both are members of a later epoch than 1, and blocks go from one to the other.
fn assert_healed(first: &Node, second: &Node, savers: &mut [Saver; 2], saved: &[u64]) {
    for node in [first, second] {
        assert!(knows_all(node, 2).epoch > Some(1), "a life that was fenced does not come back");
    }
    // What the first one kept through it all is put again in its new life.
    await_installed(first, second);
    assert_reads(first, second, savers, saved);
}

/// Waits until a node has said something on standard error.
fn await_word(node: &Node, word: &str) {
    node.await_metadata(&format!("it says `{word}`: {}", node.stderr()), |_| node.stderr().contains(word));
}

/// What `status` says first.
fn status(node: &Node) -> String {
    let said = orbitkv(&["status", "--http", node.http()]);
    assert_eq!(said.code, Some(0), "{said:#?}");
    said.stdout
}

#[test]
fn a_leader_may_die_and_a_quorum_that_is_lost_fences_at_the_deadline() {
    let mut etcd = Etcd::of(3, &[]);
    let (first, second) = pair(&etcd, |order| order);
    let mut savers = savers([&first, &second]);
    let saved = keys(50);
    savers[0].save(&saved);
    await_installed(&first, &second);
    savers[1].check_ready(&saved);
    // Another leader is elected before anybody's deadline: nothing ends.
    etcd.kill(etcd.leader());
    let killed = Instant::now();
    let renewals = first.metadata().membership.renewals;
    assert_reads(&first, &second, &mut savers, &saved);
    first.await_metadata("it renews with the others", |page| {
        page.membership.renewals >= renewals + 3 && killed.elapsed() > DEADLINE
    });
    for node in [&first, &second] {
        assert_eq!((node.metadata().membership.fences, node.metadata().epoch), (0, Some(1)));
    }
    // One of three is left.
    let dead = (0..3).find(|&server| !etcd.runs(server)).expect("killed above");
    let next = (0..3).find(|&server| etcd.runs(server)).expect("two are left");
    etcd.kill(next);
    // Whom they know, they know: blocks go on coming until the deadline.
    evict(&mut savers[1], &saved, Media::ALL);
    savers[1].check_ready(&saved);
    assert_eq!(second.metadata().membership.fences, 0, "that was well before any deadline");
    for node in [&first, &second] {
        node.await_metadata("its life is over", |page| page.membership.fences == 1);
        assert_eq!(node.metadata().coverage, "Unavailable");
    }
    evict(&mut savers[1], &saved, Media::ALL);
    assert!(savers[1].check_never_wrong(&saved).iter().all(Option::is_some), "nothing is brought");
    assert_eq!(query(&mut savers[1], &saved).coverage, Coverage::Unavailable);
    assert!(status(&first).contains("joining"), "{}", status(&first));
    first.assert_serves();
    savers[0].check_ready(&saved);
    etcd.launch(dead);
    etcd.wait_ready();
    assert_healed(&first, &second, &mut savers, &saved);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn a_gap_in_the_watch_suspends_until_it_is_read_anew() {
    let etcd = Etcd::start();
    let relay = Relay::to(etcd.address(0));
    let first = order_by("a", free_port(), &relay.url()).start();
    knows_all(&first, 1);
    relay.point(None);
    // What it does not hear: another member, and that history before it is gone.
    let second = order("b", free_port(), &etcd).start();
    second.await_metadata("it is a member", is_member);
    etcd.ctl(&["put", "/orbitkv/v2/test/config/x", "1"]);
    etcd.ctl(&["compact", &etcd.revision().to_string()]);
    relay.point(Some(etcd.address(0)));
    let page = first.await_metadata("it has noticed the gap", |page| page.membership.suspensions > 0);
    assert!(page.membership.watches_ended > 0);
    await_word(&first, "compacted");
    knows_all(&first, 2);
    knows_all(&second, 2);
    // Its lease was renewed in time: the gap cost no life.
    let page = first.metadata();
    assert_eq!((page.membership.fences, page.epoch), (0, Some(1)));
    let mut savers = savers([&first, &second]);
    let saved = keys(20);
    savers[0].save(&saved);
    await_installed(&first, &second);
    assert_reads(&first, &second, &mut savers, &saved);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn an_etcd_from_an_old_copy_is_refused_by_name_until_all_have_new_lives() {
    let mut etcd = Etcd::start();
    let (mut first, second) = pair(&etcd, |order| order);
    let copy = etcd.save_copy();
    // What the copy does not know.
    assert!(first.terminate().success());
    first.restart();
    assert_eq!(knows_all(&first, 2).epoch, Some(2));
    (0..20).for_each(|number| {
        etcd.ctl(&["put", "/orbitkv/v2/test/config/x", &number.to_string()]);
    });
    let mut savers = savers([&first, &second]);
    let saved = keys(50);
    savers[0].save(&saved);
    await_installed(&first, &second);
    let before = [first.metadata(), second.metadata()];
    etcd.restore(&copy);
    for (node, before) in [&first, &second].into_iter().zip(&before) {
        await_word(node, "restored from an old copy");
        node.assert_serves();
        let page = node.await_metadata("it has another life", |page| {
            is_member(page) && page.incarnation != before.incarnation
        });
        assert!(page.epoch > before.epoch, "no epoch is given twice: {page:#?}");
        assert!(page.membership.fences >= 1 && page.membership.alarms >= 1);
        assert_eq!(page.cluster, before.cluster);
    }
    savers[0].check_ready(&saved);
    assert_healed(&first, &second, &mut savers, &saved);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn endpoints_that_are_gone_are_passed_over_and_another_etcd_is_not_believed() {
    let (etcd, foreign) = (Etcd::start(), Etcd::start());
    let relay = Relay::to(etcd.address(0));
    // Nobody listens at the first one.
    let urls = format!("http://127.0.0.1:{},{}", free_port(), relay.url());
    let first = order_by("a", free_port(), &urls).start();
    let second = order("b", free_port(), &etcd).start();
    knows_all(&first, 2);
    knows_all(&second, 2);
    let mut savers = savers([&first, &second]);
    let saved = keys(20);
    savers[0].save(&saved);
    await_installed(&first, &second);
    // Behind the same address is another etcd from now on.
    relay.point(Some(foreign.address(0)));
    await_word(&first, "belongs to another cluster");
    first.await_metadata("its life is over", |page| page.membership.fences == 1);
    assert_eq!(foreign.ctl(&["get", "--prefix", "/orbitkv/"]), "", "nothing is written there");
    first.assert_serves();
    savers[0].check_ready(&saved);
    // In turns with what is wrong with the other endpoint.
    first.await_metadata("it says whom it does not believe", |page| {
        page.membership.detail.contains("another etcd cluster")
    });
    let said = first.stderr();
    assert!(said.contains("could not be renewed in time") && !said.contains("old copy"), "{said}");
    relay.point(Some(etcd.address(0)));
    let page = knows_all(&first, 2);
    assert_eq!(page.epoch, Some(2));
    knows_all(&second, 2);
    await_installed(&first, &second);
    assert_reads(&first, &second, &mut savers, &saved);
    assert_eq!(second.metadata().membership.fences, 0);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn an_etcd_without_space_costs_members_nothing_and_says_so_to_whoever_joins() {
    let etcd = Etcd::of(1, &["--quota-backend-bytes=4194304"]);
    let (first, second) = pair(&etcd, |order| order);
    let mut savers = savers([&first, &second]);
    let saved = keys(20);
    savers[0].save(&saved);
    await_installed(&first, &second);
    let filling = "x".repeat(100_000);
    let full =
        (0..200).find(|number| etcd.ctl_result(&["put", &format!("/other/{number}"), &filling]).is_none());
    assert!(full.is_some(), "the quota is small");
    let late = order("c", free_port(), &etcd).start();
    late.await_metadata("it says why it cannot join", |page| {
        page.membership.detail.contains("no space left")
    });
    assert!(status(&late).contains("no space left"), "{}", status(&late));
    late.assert_serves();
    let renewals = first.metadata().membership.renewals;
    first.await_metadata("it renews", |page| page.membership.renewals >= renewals + 3);
    assert_reads(&first, &second, &mut savers, &saved);
    etcd.ctl(&["del", "--prefix", "/other/"]);
    etcd.ctl(&["compact", &etcd.revision().to_string()]);
    etcd.ctl(&["--command-timeout=30s", "defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
    for node in [&first, &second, &late] {
        let page = knows_all(node, 3);
        assert_eq!((page.membership.fences, page.epoch), (0, Some(1)));
        node.assert_within_bill();
    }
}

#[test]
fn a_foreign_format_is_refused_by_name_and_nothing_is_written() {
    let etcd = Etcd::start();
    let old = "protocol orbitkv/inventory-stream/v3\ncarrier tcp-bincode/2\ncluster x\n";
    etcd.ctl(&["put", "/orbitkv/v2/test/format", old]);
    let revision = etcd.revision();
    let node = order("a", free_port(), &etcd).start();
    let page = node.await_metadata("it is refused", |page| page.membership.validity == "refused");
    assert!(page.membership.detail.contains("orbitkv/inventory-stream/v3"), "{page:#?}");
    assert!(status(&node).contains("orbitkv/inventory-stream/v3"), "{}", status(&node));
    assert_eq!(page.coverage, "Unavailable");
    node.assert_serves();
    assert_eq!(etcd.revision(), revision, "nothing is written");
    // Once the old cluster is gone, the node founds its own.
    etcd.ctl(&["del", "/orbitkv/v2/test/format"]);
    assert_eq!(knows_all(&node, 1).epoch, Some(1));
    node.assert_within_bill();
}

/// Certificates of an authority of the test's own.
struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    fn make(directory: &Path) -> Certificates {
        let certificates = Certificates { directory: directory.to_owned() };
        for authority in ["ca", "other-ca"] {
            certificates.issue(authority, None);
        }
        // The names that etcd is asked under, its administrator's, and one that is no user's.
        for name in ["etcd", "root", "client"] {
            certificates.issue(name, Some("ca"));
        }
        certificates
    }

    /// A key and a certificate of this name for this host, by that authority or by itself.
    fn issue(&self, name: &str, authority: Option<&str>) {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        command.args(["-nodes", "-days", "2", "-subj", &format!("/CN={name}")]);
        command.arg("-keyout").arg(self.file(name, "key")).arg("-out").arg(self.file(name, "crt"));
        if let Some(authority) = authority {
            command
                .arg("-CA")
                .arg(self.file(authority, "crt"))
                .arg("-CAkey")
                .arg(self.file(authority, "key"));
            command.args(["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]);
        }
        let said = command.stdin(Stdio::null()).output().expect("openssl is installed");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }

    fn file(&self, name: &str, kind: &str) -> PathBuf {
        self.directory.join(format!("{name}.{kind}"))
    }

    /// A file that only its owner may read.
    fn secret(&self, name: &str, content: &str) -> PathBuf {
        let file = self.file(name, "secret");
        fs::write(&file, content).expect("room");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
        file
    }
}

#[test]
fn an_etcd_with_certificates_and_users_admits_whoever_has_both() {
    let place = tempfile::tempdir().expect("a directory");
    let certificates = Certificates::make(place.path());
    let etcd = Etcd::secured(place.path());
    etcd.ctl(&["user", "add", "root:secret"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    // As the guide says it: a node reads everything and writes what is its own, an operator all of it.
    let grant = |role: &str, may: &str, key: &str, more: &[&str]| {
        let key = format!("/orbitkv/v2/test/{key}");
        etcd.ctl(&[&["role", "grant-permission"], more, &[role, may, &key]].concat());
    };
    for role in ["a", "b", "operator"] {
        etcd.ctl(&["role", "add", role]);
        etcd.ctl(&["user", "add", &format!("{role}:word")]);
        etcd.ctl(&["user", "grant-role", role, role]);
    }
    for role in ["a", "b"] {
        grant(role, "read", "", &["--prefix=true"]);
        for key in ["format".to_owned(), format!("epochs/{role}"), format!("members/{role}")] {
            grant(role, "readwrite", &key, &[]);
        }
    }
    grant("operator", "readwrite", "", &["--prefix=true"]);
    // From here on etcdctl is the administrator by its certificate's name.
    etcd.ctl(&["auth", "enable"]);
    let with = |name: &str, authority: &str, certificate: Option<&str>, user: Option<&str>| {
        let mut order = order(name, free_port(), &etcd);
        order = order.argument("--etcd-ca").argument(certificates.file(authority, "crt"));
        if let Some(certificate) = certificate {
            order = order.argument("--etcd-cert").argument(certificates.file(certificate, "crt"));
            order = order.argument("--etcd-key").argument(certificates.file(certificate, "key"));
        }
        if let Some(user) = user {
            order = order.argument("--etcd-user-file").argument(certificates.secret(name, user));
        }
        order.start()
    };
    let revision = etcd.revision();
    let unlucky = [
        (with("no-user", "ca", Some("client"), None), "permission denied"),
        (with("wrong-word", "ca", Some("client"), Some("a:wrong\n")), "authentication failed"),
        (with("no-certificate", "ca", None, Some("a:word\n")), "BadCertificate"),
        (with("other-authority", "other-ca", Some("client"), Some("a:word\n")), "UnknownIssuer"),
    ];
    for (node, words) in &unlucky {
        // Now and then the connection ends before it says why.
        let page = node.await_metadata(words, |page| page.membership.detail.contains(words));
        assert!(page.membership.members.is_empty() && page.epoch.is_none(), "{page:#?}");
        node.assert_serves();
    }
    assert_eq!(etcd.revision(), revision, "nobody of them has written anything");
    let first = with("a", "ca", Some("client"), Some("a:word\n"));
    let second = with("b", "ca", Some("client"), Some("b:word\n"));
    knows_all(&first, 2);
    knows_all(&second, 2);
    let mut savers = savers([&first, &second]);
    let saved = keys(20);
    savers[0].save(&saved);
    await_installed(&first, &second);
    assert_reads(&first, &second, &mut savers, &saved);
    // Whoever is another node writes no record with this one's user.
    let third = with("another", "ca", Some("client"), Some("a:word\n"));
    third.await_metadata("it is refused", |page| page.membership.detail.contains("permission denied"));
    for key in ["epochs/another", "members/another"] {
        assert_eq!(etcd.value(&format!("/orbitkv/v2/test/{key}")), "", "{key}");
    }
    // Settings are changed by the operator, and by no node.
    let change = |user: &str| {
        let text = |file: PathBuf| file.to_str().expect("UTF-8").to_owned();
        let (authority, url) = (text(certificates.file("ca", "crt")), etcd.url(0));
        let (certificate, key) =
            (text(certificates.file("client", "crt")), text(certificates.file("client", "key")));
        let secret = text(certificates.secret("operator", &format!("{user}:word\n")));
        orbitkv(&[
            "config",
            "set",
            "coalesce=1ms",
            "--cluster",
            "test",
            "--etcd",
            &url,
            "--etcd-ca",
            &authority,
            "--etcd-cert",
            &certificate,
            "--etcd-key",
            &key,
            "--etcd-user-file",
            &secret,
        ])
    };
    change("a").refused(3, &["permission denied"]);
    assert_eq!(first.metadata().config.record, 0);
    let said = change("operator");
    assert_eq!(said.code, Some(0), "{said:#?}");
    for node in [&first, &second] {
        node.await_metadata("it has the settings", |page| page.config.version > 0);
    }
    let refused = unlucky.iter().map(|(node, _)| node);
    refused.chain([&first, &second, &third]).for_each(Node::assert_within_bill);
}
