//! `orbitkv node`: the daemon.

use std::io::{self, IsTerminal};
use std::net::TcpListener;
use std::process::ExitCode;

use orbitkv_native::arena::PageKind;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::{fail, say};
use crate::control::connections::BoundedListener;
use crate::control::http::{self, HttpSettings};
use crate::control::metadata::NodeIdentity;
use crate::control::port::CorePort;
use crate::exit::Exit;
use crate::node::{self, Node};
use crate::quantity::ByteSize;
use crate::settings::{DeviceCores, HttpBind, Machine, NodeArgs, NodeSettings, Token};

/// Runs the daemon until a signal or a drain ends it.
#[must_use]
pub fn run(args: NodeArgs) -> ExitCode {
    let filter = EnvFilter::try_from_env("ORBITKV_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // A second subscriber in one process is no reason not to serve.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .try_init();
    let (settings, machine) = match NodeSettings::of(args) {
        Ok(resolved) => resolved,
        Err(error) => return fail(Exit::Usage, &error.to_string()),
    };
    let token = match settings.http_token_file.as_deref().map(Token::read).transpose() {
        Ok(token) => token,
        Err(error) => return fail(Exit::Usage, &error.to_string()),
    };
    let bill = node::bill(&settings);
    let placement = placement_words(&settings);
    say(&format!("node {}: {} shard(s), {placement}", settings.node_id, settings.shards));
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
        Err(error) => return fail(Exit::Environment, &error.to_string()),
    };
    if let Some(warning) = &node.arena_warning {
        say(&format!("note: {warning}"));
    }
    let pages = match node.page_kind {
        PageKind::Small => "small",
        PageKind::Thp => "thp",
        PageKind::HugeTlb => "hugetlb",
    };
    let identity = NodeIdentity::of(&settings, &bill, pages);
    match serve(node, identity, &settings, &machine, token, listener) {
        Ok(()) => Exit::Done.into(),
        Err(error) => fail(Exit::Environment, &format!("the control thread: {error}")),
    }
}

/// Control's work until the end: HTTP, drains, signals. Then the cores are stopped.
fn serve(
    mut node: Node,
    identity: NodeIdentity,
    settings: &NodeSettings,
    machine: &Machine,
    token: Option<Token>,
    listener: Option<TcpListener>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let port = CorePort::new(node.take_mail(), identity);
    let ended = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let served = match listener {
            None => None,
            Some(listener) => {
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                let listener = BoundedListener::new(tokio::net::TcpListener::from_std(listener)?);
                let http = HttpSettings { host_name: machine.host_name.clone(), token };
                let mut stopped = stopped.clone();
                let stop = async move {
                    let _ = stopped.wait_for(|stopped| *stopped).await;
                };
                say(&format!("http on {address}"));
                Some(tokio::spawn(http::serve(listener, http, port.clone(), stop)))
            }
        };
        say(&format!("engine socket {}", settings.engine_socket.display()));
        say(&format!(
            "ready: {} of DRAM, {} of SSD",
            ByteSize(settings.dram_slice_bytes * u64::from(settings.shards)),
            ByteSize(settings.ssd_slice_bytes * u64::from(settings.shards))
        ));
        let why = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            () = port.drained() => "drained",
            delivered = port.deliver() => return delivered,
        };
        say(&format!("stopping: {why}"));
        let _ = stop.send(true);
        if let Some(served) = served {
            served.abort();
            let _ = served.await;
        }
        Ok(())
    });
    drop(runtime);
    node.give_mail(port.into_mail());
    node.stop();
    say("stopped");
    ended
}

fn placement_words(settings: &NodeSettings) -> String {
    let list = |cores: &[usize]| orbitkv_native::affinity::format_core_list(cores);
    let cores = list(&settings.placement.shard_cores);
    match &settings.placement.device_cores {
        DeviceCores::Shared => format!("cores {cores}, device loops on the same cores"),
        DeviceCores::Dedicated(device) => format!("cores {cores}, device loops on cores {}", list(device)),
    }
}
