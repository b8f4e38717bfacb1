//! Bulk over loopback: a node's endpoint against stock `quinn`, in turns, in the same run.
//!
//! `cargo run --release -p orbitkv-native --example quic_bulk [MIB] [ROUNDS]` sends MIB messages of 1 MiB on one
//! stream from one thread to another, which copies them into a buffer; prints GB/s of both and their ratio.

use bytes::Bytes;
use orbitkv_native::clock::monotonic_ns;
use orbitkv_native::quic::{
    Endpoint, EndpointSettings, Event, Member, NodeKey, Priority, Purpose, ReadState, Turn, WriteRefusal,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc;
use std::time::Instant;

const MESSAGE_BYTES: usize = 1 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let messages: usize = arguments.next().unwrap_or(1_024);
    let rounds: usize = arguments.next().unwrap_or(3);
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let own = own(messages);
        let stock = stock::bulk(messages);
        println!("own {own:.3} GB/s   stock quinn {stock:.3} GB/s   ratio {:.2}", own / stock);
        ratios.push(own / stock);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2}", ratios[ratios.len() / 2]);
}

/// Copies what is received to where it belongs, as a node does.
struct Target {
    buffer: Vec<u8>,
    received: usize,
}

impl Target {
    fn new() -> Self {
        Self { buffer: vec![0; MESSAGE_BYTES], received: 0 }
    }

    fn take(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            let at = self.received % MESSAGE_BYTES;
            let length = chunk.len().min(MESSAGE_BYTES - at);
            self.buffer[at..][..length].copy_from_slice(&chunk[..length]);
            self.received += length;
            chunk = &chunk[length..];
        }
    }
}

fn gigabytes_per_second(messages: usize, started: Instant) -> f64 {
    (messages * MESSAGE_BYTES) as f64 / started.elapsed().as_secs_f64() / 1e9
}

fn message() -> Bytes {
    (0..MESSAGE_BYTES).map(|at| at as u8).collect()
}

/// Sleeps until there are datagrams or the deadline passes, unless there is work.
fn rest(endpoint: &Endpoint, turn: Turn) {
    if turn.more {
        return;
    }
    let now = monotonic_ns();
    let wait_ns = turn.deadline_ns.map_or(1_000_000_000, |at| at.saturating_sub(now));
    let wait =
        Timespec { tv_sec: (wait_ns / 1_000_000_000) as i64, tv_nsec: (wait_ns % 1_000_000_000) as i64 };
    let fd = endpoint.fd();
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait));
}

fn own(messages: usize) -> f64 {
    let bind = || {
        let (socket, key) = (UdpSocket::bind("127.0.0.1:0").expect("loopback"), NodeKey::ephemeral());
        let address = socket.local_addr().expect("bound");
        let member = Member {
            fingerprint: key.fingerprint(),
            address: address.ip(),
            base_port: address.port(),
            shards: 1,
        };
        (socket, key, member, address)
    };
    let (near_socket, near_key, near_member, _) = bind();
    let (far_socket, far_key, far_member, far_address) = bind();
    // The receiver dials, as a requester does.
    let sender = std::thread::spawn(move || {
        let mut endpoint = endpoint(far_socket, &far_key, near_member);
        let (message, mut left, mut at) = (message(), messages, None);
        loop {
            let turn = endpoint.turn(monotonic_ns());
            while let Some(event) = endpoint.poll_event() {
                match event {
                    Event::StreamOpened { connection, stream } => at = Some((connection, stream)),
                    Event::Lost { .. } => return,
                    _ => {}
                }
            }
            while let Some((connection, stream)) = at
                && left > 0
            {
                match endpoint.write(connection, stream, message.clone()) {
                    Ok(()) => left -= 1,
                    Err(WriteRefusal::Blocked(_)) => break,
                    Err(error) => panic!("{error}"),
                }
                if left == 0 {
                    endpoint.finish(connection, stream);
                }
            }
            let flushed = endpoint.flush(monotonic_ns());
            rest(&endpoint, Turn { more: turn.more || flushed.more, ..flushed });
        }
    });
    let mut endpoint = endpoint(near_socket, &near_key, far_member);
    let expected = far_member.fingerprint;
    let dialled = endpoint.dial(far_address, expected, Purpose::Payload, monotonic_ns()).expect("a member");
    let (mut target, mut stream, mut started) = (Target::new(), None, Instant::now());
    loop {
        let turn = endpoint.turn(monotonic_ns());
        while let Some(event) = endpoint.poll_event() {
            match event {
                Event::Connected { .. } => {
                    let opened = endpoint.open(dialled, Priority::Ordinary).expect("the first stream");
                    endpoint.write(dialled, opened, &b"go"[..]).expect("an empty stream");
                    started = Instant::now();
                    stream = Some(opened);
                }
                Event::Lost { loss, .. } => panic!("{loss:?}"),
                _ => {}
            }
        }
        if let Some(stream) = stream {
            let state = endpoint.read(dialled, stream, usize::MAX, |chunk| {
                target.take(chunk);
                Ok::<(), ()>(())
            });
            if state.expect("the sender does not break off") == ReadState::Ended {
                break;
            }
        }
        let flushed = endpoint.flush(monotonic_ns());
        rest(&endpoint, Turn { more: turn.more || flushed.more, ..flushed });
    }
    assert_eq!(target.received, messages * MESSAGE_BYTES);
    let speed = gigabytes_per_second(messages, started);
    endpoint.close(dialled, 0, monotonic_ns());
    endpoint.flush(monotonic_ns());
    sender.join().expect("the sender ends with the connection");
    speed
}

fn endpoint(socket: UdpSocket, key: &NodeKey, peer: Member) -> Endpoint {
    let mut endpoint =
        Endpoint::new(EndpointSettings::default(), socket, key, monotonic_ns()).expect("a UDP socket");
    endpoint.set_members([peer]);
    endpoint
}

/// Stock `quinn` with its defaults, each end on a runtime of its own.
mod stock {
    use super::*;
    use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
    use quinn::{ClientConfig, ServerConfig};
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{CryptoProvider, ring};
    use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
    use rustls::server::AlwaysResolvesServerRawPublicKeys;
    use rustls::sign::CertifiedKey;
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};
    use std::sync::Arc;

    pub fn bulk(messages: usize) -> f64 {
        let (tell, told) = mpsc::channel();
        let sender = std::thread::spawn(move || {
            runtime().block_on(async {
                let endpoint = quinn::Endpoint::server(server(), "127.0.0.1:0".parse().expect("an address"))
                    .expect("loopback");
                tell.send(endpoint.local_addr().expect("bound")).expect("the receiver waits");
                let connection = endpoint.accept().await.expect("open").await.expect("a handshake");
                let (mut sending, _receiving) = connection.accept_bi().await.expect("a stream");
                let message = message();
                for _ in 0..messages {
                    sending.write_chunk(message.clone()).await.expect("a reader");
                }
                sending.finish().expect("open");
                connection.closed().await;
            });
        });
        let address: SocketAddr = told.recv().expect("the sender binds");
        let speed = runtime().block_on(async {
            let endpoint =
                quinn::Endpoint::client("127.0.0.1:0".parse().expect("an address")).expect("loopback");
            let connecting = endpoint.connect_with(client(), address, "localhost").expect("an address");
            let connection = connecting.await.expect("a handshake");
            let (mut sending, mut receiving) = connection.open_bi().await.expect("the first stream");
            sending.write_all(b"go").await.expect("open");
            let (started, mut target) = (Instant::now(), Target::new());
            while let Some(chunk) = receiving.read_chunk(usize::MAX, true).await.expect("a sender") {
                target.take(&chunk.bytes);
            }
            assert_eq!(target.received, messages * MESSAGE_BYTES);
            let speed = gigabytes_per_second(messages, started);
            connection.close(0u32.into(), b"");
            endpoint.wait_idle().await;
            speed
        });
        sender.join().expect("the sender ends with the connection");
        speed
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    fn provider() -> Arc<CryptoProvider> {
        let mut provider = ring::default_provider();
        provider.cipher_suites = vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256];
        Arc::new(provider)
    }

    fn server() -> ServerConfig {
        let random = ::ring::rand::SystemRandom::new();
        let document = ::ring::signature::Ed25519KeyPair::generate_pkcs8(&random).expect("randomness");
        let key = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(document.as_ref())).expect("a key");
        let public = key.public_key().expect("a key has its public half").to_vec();
        let certified = CertifiedKey::new(vec![CertificateDer::from(public)], key);
        let config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(certified))));
        ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(config).expect("an initial suite")))
    }

    fn client() -> ClientConfig {
        let config = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).expect("an initial suite")))
    }

    /// Speed is measured here, not identity.
    #[derive(Debug)]
    struct Anybody;

    impl ServerCertVerifier for Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    }
}
