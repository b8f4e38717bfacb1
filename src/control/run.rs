//! The control thread: one tokio runtime for HTTP, membership, signals and drains, from boot to the end.

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use orbitkv_native::clock::boottime_ns;
use orbitkv_shards::time::Moment;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::cluster::{Cluster, Teller};
use super::connections::BoundedListener;
use super::etcd;
use super::health::canary::EnginePath;
use super::http::{self, HttpSettings};
use super::log::LogFilter;
use super::metadata::NodeIdentity;
use super::policy::view::ConfigView;
use super::policy::{CoresAndLog, PolicyFollower};
use super::port::CorePort;
use crate::console::say;
use crate::node::Node;
use crate::quantity::ByteSize;
use crate::settings::{Machine, NodeSettings, Policy, Token};

/// How long requests in flight may take to be answered once the node ends; then they are cut off.
const HTTP_END: Duration = Duration::from_secs(1);

/// Control's work until the end: HTTP, drains, signals. Then the cores are stopped.
///
/// # Errors
/// If the runtime, a signal handler or the doorbell cannot be had.
pub fn serve(
    mut node: Node,
    identity: NodeIdentity,
    settings: &NodeSettings,
    machine: &Machine,
    token: Option<Token>,
    listener: Option<TcpListener>,
    log: LogFilter,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (seen, membership) = tokio::sync::watch::channel(None);
    let (config_seen, config) = tokio::sync::watch::channel(ConfigView::default());
    let application = node.application.as_ref();
    let (hears, heard) = mpsc::unbounded_channel();
    let cluster =
        application.map(|application| Cluster::new(application.local(), application.scope(), hears));
    let applicant = application
        .map(|application| (application.registrar(node.incarnation), application.epoch_file.clone()));
    let port = CorePort::new(node.take_mail(), identity, membership, config, cluster);
    let follower = node.application.as_ref().zip(Policy::of(settings)).map(|(application, flags)| {
        let sink = Box::new(CoresAndLog { port: port.clone(), log });
        let (name, file) = (application.local().node, application.policy_file.clone());
        PolicyFollower::begin(flags, name, file, sink, config_seen, Moment(boottime_ns()))
    });
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
                let own_path = EnginePath::new(settings.engine_socket.clone());
                Some(tokio::spawn(http::serve(listener, http, port.clone(), own_path, stop)))
            }
        };
        let registered = applicant.map(|(registrar, epoch_file)| {
            let mut stopped = stopped.clone();
            let stop = async move {
                let _ = stopped.wait_for(|stopped| *stopped).await;
            };
            let teller = Teller { port: port.clone(), epoch_file };
            tokio::spawn(etcd::run(registrar, teller, follower, heard, seen, stop))
        });
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
        if let Some(registered) = registered {
            // It takes no longer than a withdrawal may. Peers shall know before engines are cut off.
            tokio::select! {
                _ = registered => {}
                // Cores are told on the way, and answer.
                delivered = port.deliver() => return delivered,
            }
        }
        if let Some(mut served) = served {
            let answered = tokio::select! {
                _ = &mut served => true,
                // Their answers come from the cores.
                _ = port.deliver() => false,
                () = tokio::time::sleep(HTTP_END) => false,
            };
            if !answered {
                served.abort();
                let _ = served.await;
            }
        }
        Ok(())
    });
    drop(runtime);
    node.give_mail(port.into_mail());
    node.stop();
    say("stopped");
    ended
}
