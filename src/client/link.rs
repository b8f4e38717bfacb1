//! Connecting: Hello, the arena, the namespaces again; once, and again after a loss.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orbitkv_wire::bounds::REQUESTS_IN_FLIGHT_MAX;
use orbitkv_wire::engine::answers::{Answer, HelloAnswer, PageKindNumber, decode_answer};
use orbitkv_wire::engine::requests::{HelloBody, append_request};
use orbitkv_wire::engine::{FrameError, MAGIC, Operation, Status, VERSION, VERSION_MIN, layout_hash};
use orbitkv_wire::identity::{Incarnation, NamespaceDigest};
use rustix::io::Errno;

use super::ClientSettings;
use super::channel::{Channel, Lost};
use super::error::ClientError;
use super::requests::Registration;
use super::session::{MappedArena, Session};

/// Request id of everything before the client's own numbering begins.
const HANDSHAKE_REQUEST: u64 = 0;

/// What the node said about itself when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Protocol version that both sides speak.
    pub version: u16,
    /// Incarnation of the node.
    pub incarnation: Incarnation,
    /// Changes with every daemon process.
    pub arena_generation: u64,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Pages behind the arena.
    pub page_kind: PageKindNumber,
    /// Shards of the node.
    pub shards: u16,
    /// Requests this connection may have unanswered, Cancel included.
    pub in_flight: u16,
    /// The node's number for this connection.
    pub connection: u64,
}

/// A namespace this client has registered.
pub(super) struct Known {
    pub(super) registration: Registration,
    /// The node's handle on the present connection.
    pub(super) handle: u32,
    pub(super) digest: NamespaceDigest,
}

pub(super) struct Link {
    pub(super) channel: Channel,
    pub(super) session: Arc<Session>,
    pub(super) node: NodeInfo,
}

/// Why an attempt failed: try again, or never mind.
enum Failed {
    Again(String),
    Hopeless(ClientError),
}

impl From<Lost> for Failed {
    fn from(lost: Lost) -> Failed {
        Failed::Again(lost.0)
    }
}

impl From<FrameError> for Failed {
    fn from(error: FrameError) -> Failed {
        Failed::Hopeless(error.into())
    }
}

impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Failed {
        match error {
            ClientError::Refused { status: Status::Busy, text, .. } => Failed::Again(text),
            error => Failed::Hopeless(error),
        }
    }
}

/// Connects within `wait`, with backoff; `last` is the session that was lost, if there was one.
pub(super) fn establish(
    settings: &ClientSettings,
    namespaces: &mut [Known],
    last: Option<&Arc<Session>>,
    wait: Duration,
) -> Result<Link, ClientError> {
    let until = Instant::now() + wait;
    let mut pause = settings.backoff_min.max(Duration::from_millis(1));
    let random = RandomState::new();
    loop {
        let reason = match attempt(settings, namespaces, last, until) {
            Ok(link) => return Ok(link),
            Err(Failed::Hopeless(error)) => return Err(error),
            Err(Failed::Again(reason)) => reason,
        };
        let mut hasher = random.build_hasher();
        hasher.write_u128(pause.as_nanos());
        let jittered = pause.mul_f64(0.5 + (hasher.finish() >> 11) as f64 / (1u64 << 54) as f64);
        let left = until.saturating_duration_since(Instant::now());
        if left <= jittered {
            return Err(ClientError::Unreachable { socket: settings.socket.clone(), waited: wait, reason });
        }
        std::thread::sleep(jittered);
        pause = (pause * 2).min(settings.backoff_max.max(pause));
    }
}

fn attempt(
    settings: &ClientSettings,
    namespaces: &mut [Known],
    last: Option<&Arc<Session>>,
    until: Instant,
) -> Result<Link, Failed> {
    let (mut channel, mut answer, mut fd) = hello(settings, 0, until)?;
    if let Some(last) = last {
        // Numbers of connections mean something to one daemon process only, so which one
        // answers must be known before one is named.
        if answer.arena_generation == last.arena.generation {
            drop(channel);
            last.end(answer.arena_generation);
            (channel, answer, fd) = hello(settings, last.connection, until)?;
        }
        last.end(answer.arena_generation);
    }
    let arena = match last {
        Some(last) if last.arena.generation == answer.arena_generation => last.arena.clone(),
        _ => {
            let fd = fd.ok_or_else(|| ClientError::protocol("no arena descriptor came with Hello"))?;
            let (bytes, generation) = (answer.arena_bytes, answer.arena_generation);
            Arc::new(MappedArena::map(fd, bytes, generation, settings.populate)?)
        }
    };
    for known in namespaces {
        register_again(&mut channel, known, until)?;
    }
    let page_kind = PageKindNumber::from_wire(answer.page_kind)
        .ok_or_else(|| ClientError::protocol("an unknown page kind in Hello"))?;
    if answer.in_flight == 0 {
        return Err(ClientError::protocol("Hello grants no request in flight").into());
    }
    if !(VERSION_MIN..=VERSION).contains(&answer.version) {
        return Err(ClientError::protocol("Hello agrees on a version that was not offered").into());
    }
    let node = NodeInfo {
        version: answer.version,
        incarnation: Incarnation(answer.incarnation),
        arena_generation: answer.arena_generation,
        arena_bytes: answer.arena_bytes,
        page_kind,
        shards: answer.shards,
        in_flight: answer.in_flight,
        connection: answer.connection,
    };
    Ok(Link { channel, session: Session::new(arena, answer.connection), node })
}

fn hello(
    settings: &ClientSettings,
    previous_connection: u64,
    until: Instant,
) -> Result<(Channel, HelloAnswer, Option<OwnedFd>), Failed> {
    let mut channel = Channel::connect(&settings.socket).map_err(|errno| match errno {
        Errno::NAMETOOLONG | Errno::INVAL | Errno::ACCESS | Errno::PERM | Errno::MFILE | Errno::NFILE => {
            Failed::Hopeless(ClientError::Unreachable {
                socket: settings.socket.clone(),
                waited: Duration::ZERO,
                reason: errno.to_string(),
            })
        }
        // No listener yet, none any more, or a full backlog.
        errno => Failed::Again(errno.to_string()),
    })?;
    let uid = channel.peer_uid()?;
    let own = rustix::process::geteuid().as_raw();
    if !is_trusted(uid, own, settings.node_uid) {
        return Err(ClientError::UntrustedNode { socket: settings.socket.clone(), uid, own }.into());
    }
    let in_flight = settings.in_flight.max(1).saturating_add(1).min(REQUESTS_IN_FLIGHT_MAX as u16);
    let body = HelloBody {
        magic: MAGIC,
        version_min: VERSION_MIN,
        version_max: VERSION,
        layout_hash: layout_hash(),
        in_flight,
        previous_connection,
    };
    append_request::<_, HelloBody>(
        channel.outgoing(),
        Operation::Hello,
        HANDSHAKE_REQUEST,
        millis(until),
        &body,
        &[],
    );
    let mut fds = Vec::new();
    let answer = exchange(&mut channel, Operation::Hello, &mut fds, until, |answer| match answer {
        Answer::Hello(answer) => Some(answer),
        _ => None,
    })?;
    Ok((channel, answer, fds.into_iter().next()))
}

/// Whether a node of user `uid` may serve a process of user `own`.
pub(super) fn is_trusted(uid: u32, own: u32, node_uid: Option<u32>) -> bool {
    uid == own || uid == 0 || Some(uid) == node_uid
}

fn register_again(channel: &mut Channel, known: &mut Known, until: Instant) -> Result<(), Failed> {
    let (body, groups) = (known.registration.body()?, known.registration.records());
    append_request(channel.outgoing(), Operation::Register, HANDSHAKE_REQUEST, millis(until), &body, &groups);
    let answer = exchange(channel, Operation::Register, &mut Vec::new(), until, |answer| match answer {
        Answer::Register(answer) => Some(answer),
        _ => None,
    })?;
    if answer.digest != known.digest.0 {
        let text = "the node derives another namespace from the same registration than the one before it";
        return Err(ClientError::protocol(text).into());
    }
    known.handle = answer.namespace;
    Ok(())
}

/// Sends what is queued and takes the one frame that answers it.
fn exchange<T>(
    channel: &mut Channel,
    operation: Operation,
    fds: &mut Vec<OwnedFd>,
    until: Instant,
    take: fn(Answer<'_>) -> Option<T>,
) -> Result<T, Failed> {
    loop {
        // The node may have refused and closed: its words are worth more than our EPIPE.
        let flushed = channel.flush();
        while channel.receive_with_fds(fds)? {
            if let Some((header, body)) = channel.next_frame()? {
                return match decode_answer(&header, channel.body(body))? {
                    Answer::Refused(status, refusal) => Err(ClientError::Refused {
                        operation,
                        status,
                        detail: refusal.detail,
                        text: refusal.text.as_str().unwrap_or("(its explanation is not text)").to_owned(),
                    }
                    .into()),
                    answer => take(answer).ok_or_else(|| {
                        ClientError::protocol("another answer than to Hello or Register").into()
                    }),
                };
            }
        }
        flushed?;
        if Instant::now() >= until {
            return Err(Failed::Again(format!("{operation:?} was not answered")));
        }
        channel.wait(until)?;
    }
}

/// Milliseconds left, at least one: zero would mean the operation's default.
fn millis(until: Instant) -> u32 {
    let left = until.saturating_duration_since(Instant::now()).as_millis();
    left.clamp(1, u128::from(orbitkv_wire::bounds::DEADLINE_MS_MAX)) as u32
}
