//! Who may connect: the node's own user, and those it was told to admit.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::harness::{EngineProcess, Node, NodeOrder, Raw, eventually};

/// A user that is not ours and owns nothing.
pub const OTHER_UID: u32 = 65_534;

/// Lets every user reach the socket, so that only the node's own check is left.
pub fn open_directories(node: &Node) {
    for directory in [node.run_dir(), &node.socket_dir()] {
        fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("our own directory");
    }
    fs::set_permissions(node.socket(), Permissions::from_mode(0o666)).expect("our own socket");
}

pub fn may_become_others() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("only root can act as another user: nothing to show here");
    }
    root
}

#[test]
fn another_users_engine_is_turned_away_and_logged() {
    if !may_become_others() {
        return;
    }
    let node = Node::start();
    open_directories(&node);
    let process = EngineProcess::start_as(&node, OTHER_UID);
    let mut raw = Raw::connect(&process.socket());
    raw.expect_end();
    assert!(raw.fds.is_empty(), "another user got the arena");
    eventually("the refusal is logged", || {
        let said = node.stderr();
        (said.contains("turned away") && said.contains("65534") && said.contains("--engine-uid"))
            .then_some(())
    });
    assert_eq!(node.held().connections, 0);
    node.assert_serves();
}

#[test]
fn an_admitted_users_engine_is_served() {
    if !may_become_others() {
        return;
    }
    let node = NodeOrder::default().argument("--engine-uid").argument(OTHER_UID.to_string()).start();
    open_directories(&node);
    let process = EngineProcess::start_as(&node, OTHER_UID);
    let mut raw = process.raw();
    raw.ping();
    assert_eq!(raw.fds.len(), 1);
    // Our own user is admitted as before.
    node.assert_serves();
}

#[test]
fn the_socket_and_its_directory_are_for_the_owner_alone() {
    let node = Node::start();
    let mode = |path: &std::path::Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&node.socket()), 0o600);
    assert_eq!(mode(&node.socket_dir()), 0o700);
}
