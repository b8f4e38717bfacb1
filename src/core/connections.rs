//! A core's engine connections: from the accepted socket to the forgotten process.

use std::os::fd::AsFd;

use orbitkv_shards::leases::ConnectionId;
use orbitkv_shards::time::Moment;
use tracing::{info, warn};

use super::mail::Letter;
use super::sockets::{Accepted, Sent, accept};
use super::wakes::watch;
use super::{ACCEPT_PAUSE, ACCEPTS_PER_TURN, Core, Interest, Life, Next, Ready, Watch};
use crate::engine::{Connection, EngineStream, Phase};

impl Core {
    pub(super) fn accept_some(&mut self, now: Moment) -> Next {
        let Some(listener) = &self.parts.listener else { return Next::Stop };
        let mut accepted = Vec::new();
        for _ in 0..ACCEPTS_PER_TURN {
            match accept(listener, &self.parts.engine_uids) {
                Accepted::Nobody => break,
                Accepted::Engine(stream) => accepted.push(stream),
                Accepted::OtherUser(uid) => {
                    warn!(uid, "engine of another user turned away: admit it with --engine-uid");
                }
                Accepted::Unknown(error) => warn!(%error, "engine turned away"),
                Accepted::Exhausted(error) => {
                    // Whoever waits stays readable: look again later, not at once for ever.
                    warn!(%error, "no engine can be accepted for now; raise `ulimit -n` if this stays");
                    self.accept_again_at = Some(now + ACCEPT_PAUSE);
                    break;
                }
            }
        }
        for stream in accepted {
            let cores = self.control();
            let core = self.next_core % cores;
            self.next_core = self.next_core.wrapping_add(1);
            if core == self.index() {
                self.serve(stream);
            } else if let Err(Letter::Connection(stream)) =
                self.parts.mail.send(core, Letter::Connection(Box::new(stream)))
            {
                // That core is swamped: serve it here.
                self.serve(*stream);
            }
        }
        if self.accept_again_at.is_some() { Next::Stop } else { Next::Again }
    }

    /// Accepts again after a pause.
    pub(super) fn resume_accepting(&mut self, now: Moment) {
        if self.accept_again_at.is_some_and(|at| at <= now) {
            self.accept_again_at = None;
            let Some(listener) = &self.parts.listener else { return };
            match watch(listener.listener().as_fd(), Ready::Listener) {
                Ok(watch) => self.watches.push(watch),
                Err(_) => self.accept_again_at = Some(now + ACCEPT_PAUSE),
            }
        }
    }

    pub(super) fn serve(&mut self, stream: EngineStream) {
        if self.life != Life::Serving {
            return;
        }
        let (process_id, uid) = (stream.process_id, stream.user_id);
        let Some(id) = self.parts.hub.open(process_id) else {
            warn!(process_id, "engine turned away: this core has as many connections as it may");
            return;
        };
        if let Err(error) = self.sockets.insert(id, stream) {
            warn!(process_id, %error, "engine turned away: its process cannot be watched");
            self.parts.hub.on_process_gone(id);
            return;
        }
        info!(connection = id.0, process_id, uid, "engine connected");
        self.watch_receive(id);
    }

    fn watch_receive(&mut self, id: ConnectionId) {
        self.watch_socket(id, Interest::Read, Ready::Receive(id));
    }

    /// Watches a connection's socket for this, unless it is watched for it already.
    fn watch_socket(&mut self, id: ConnectionId, interest: Interest, ready: Ready) {
        let Some(stream) = self.sockets.get_mut(id).filter(|stream| !stream.watched.has(interest)) else {
            return;
        };
        let Some(socket) = stream.socket() else { return };
        match watch(socket.as_fd(), ready) {
            Ok(watch) => {
                stream.watched = stream.watched.with(interest);
                self.watches.push(Watch { interest, ..watch });
            }
            Err(_) => self.close(id),
        }
    }

    pub(super) fn receive(&mut self, id: ConnectionId, now: Moment) -> Next {
        let pause = |core: &mut Core| {
            if let Some(stream) = core.sockets.get_mut(id) {
                stream.watched = stream.watched.without(Interest::Read);
            }
            Next::Stop
        };
        if !self.parts.hub.connection(id).is_some_and(Connection::may_read) {
            return pause(self);
        }
        match self.sockets.receive(id, &mut self.buffer) {
            Ok(None) => Next::Again,
            Ok(Some(0)) | Err(_) => {
                self.close(id);
                Next::Stop
            }
            Ok(Some(received)) => {
                self.parts.hub.on_bytes(id, &self.buffer[..received], now);
                Next::Again
            }
        }
    }

    pub(super) fn flush(&mut self, id: ConnectionId, now: Moment) {
        let Some(connection) = self.parts.hub.connection(id) else { return };
        let phase = connection.phase;
        let greeted = phase == Phase::Open;
        let Some(bytes) = self.parts.hub.outbound(id) else { return };
        let sent = self.sockets.send(id, bytes, self.parts.arena.fd(), greeted);
        if sent == Sent::All {
            self.parts.hub.trace.respond(id.0);
        }
        match sent {
            Sent::All if phase == Phase::Closing => self.close(id),
            Sent::All => {
                // Frames may have waited for room in the answers, whether or not reading was paused.
                let worked = self.parts.hub.work(id, now);
                let paused =
                    self.sockets.get_mut(id).is_some_and(|stream| !stream.watched.has(Interest::Read));
                if paused {
                    self.watch_receive(id);
                }
                if worked || paused {
                    self.ring_again();
                }
            }
            Sent::Blocked => self.watch_socket(id, Interest::Write, Ready::Send(id)),
            Sent::Broken => self.close(id),
        }
    }

    fn close(&mut self, id: ConnectionId) {
        self.sockets.close(id);
        self.parts.hub.on_closed(id);
        self.ring_again();
    }

    pub(super) fn on_abandoned(&mut self, connection: ConnectionId, process_id: u32) {
        if self.parts.hub.on_abandoned(connection, process_id) {
            self.sockets.remove(connection);
        }
    }
}
