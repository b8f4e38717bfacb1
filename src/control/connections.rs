//! The HTTP API's own bounds: how many connections there may be and how long one may be silent.
//!
//! The API serves operators on the control thread; a port scanner or a stuck client must not be able to
//! collect file descriptors there until engines find none left.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Connections served at once; further ones wait in the kernel's accept queue.
pub const CONNECTIONS_MAX: usize = 128;
/// Silence after which a connection is closed: twice the longest answer (`await`, 30 s).
pub const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Pause after `accept` fails for want of file descriptors or memory.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A listener that hands out at most [`CONNECTIONS_MAX`] connections.
pub struct BoundedListener {
    listener: TcpListener,
    seats: Arc<Semaphore>,
    silence_max: Duration,
}

/// A connection that holds its seat and ends when it is silent for too long.
pub struct SeatedStream {
    stream: TcpStream,
    silence: Pin<Box<Sleep>>,
    silence_max: Duration,
    _seat: OwnedSemaphorePermit,
}

impl BoundedListener {
    /// Bounds `listener` with the defaults of this module.
    #[must_use]
    pub fn new(listener: TcpListener) -> BoundedListener {
        BoundedListener::with_bounds(listener, CONNECTIONS_MAX, SILENCE_MAX)
    }

    /// Bounds `listener` with other figures, so that tests can reach them.
    #[must_use]
    pub fn with_bounds(
        listener: TcpListener,
        connections_max: usize,
        silence_max: Duration,
    ) -> BoundedListener {
        BoundedListener { listener, seats: Arc::new(Semaphore::new(connections_max)), silence_max }
    }
}

impl Listener for BoundedListener {
    type Io = SeatedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (SeatedStream, SocketAddr) {
        loop {
            let seats = Arc::clone(&self.seats);
            let seat = seats.acquire_owned().await.expect("the semaphore lives as long as the listener");
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let silence = Box::pin(tokio::time::sleep(self.silence_max));
                    let silence_max = self.silence_max;
                    return (SeatedStream { stream, silence, silence_max, _seat: seat }, peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "the HTTP API cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl SeatedStream {
    fn heard(&mut self) {
        let until = Instant::now() + self.silence_max;
        self.silence.as_mut().reset(until);
    }

    /// `pending`, or the end if nothing has moved for too long.
    fn or_silent<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        ready!(self.silence.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for SeatedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending => self.or_silent(context),
            done => {
                self.heard();
                done
            }
        }
    }
}

impl AsyncWrite for SeatedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Pending => self.or_silent(context),
            done => {
                self.heard();
                done
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
