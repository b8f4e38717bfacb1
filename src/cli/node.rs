//! `orbitkv node`: the daemon.

use std::net::TcpListener;
use std::process::ExitCode;

use orbitkv_native::arena::PageKind;

use super::{fail, say};
use crate::control::log::LogFilter;
use crate::control::membership::ApplyError;
use crate::control::metadata::NodeIdentity;
use crate::control::run;
use crate::exit::Exit;
use crate::node::{self, BootError, Node};
use crate::settings::{HttpBind, NodeArgs, NodeSettings, Token};

/// Runs the daemon until a signal or a drain ends it.
#[must_use]
pub fn run(args: NodeArgs) -> ExitCode {
    let log = match LogFilter::install() {
        Ok(log) => log,
        Err(error) => return fail(Exit::Usage, &error.to_string()),
    };
    let (settings, machine) = match NodeSettings::of(args) {
        Ok(resolved) => resolved,
        Err(error) => return fail(Exit::Usage, &error.to_string()),
    };
    let token = match settings.http_token_file.as_deref().map(Token::read).transpose() {
        Ok(token) => token,
        Err(error) => return fail(Exit::Usage, &error.to_string()),
    };
    let bill = node::bill(&settings);
    say(&format!("node {}: {}", settings.node_id, settings.placement));
    say(&format!("{bill}"));
    settings.notices.iter().for_each(|notice| say(&format!("note: {notice}")));
    let listener = match settings.http {
        HttpBind::Off => None,
        HttpBind::At(address) => match TcpListener::bind(address) {
            Ok(listener) => Some(listener),
            Err(error) => {
                let text = format!("--http {address}: {error}; choose another port, or --http off");
                return fail(Exit::Environment, &text);
            }
        },
    };
    let node = match Node::start(&settings, &machine, &bill) {
        Ok(node) => node,
        Err(error @ BootError::Apply(ApplyError::Settings(_) | ApplyError::Shards(_))) => {
            return fail(Exit::Usage, &error.to_string());
        }
        Err(error) => return fail(Exit::Environment, &error.to_string()),
    };
    node.notes.iter().for_each(|note| say(&format!("note: {note}")));
    let pages = match node.page_kind {
        PageKind::Small => "small",
        PageKind::Thp => "thp",
        PageKind::HugeTlb => "hugetlb",
    };
    let identity = NodeIdentity::of(&settings, &bill, pages);
    match run::serve(node, identity, &settings, &machine, token, listener, log) {
        Ok(()) => Exit::Done.into(),
        Err(error) => fail(Exit::Environment, &format!("the control thread: {error}")),
    }
}
