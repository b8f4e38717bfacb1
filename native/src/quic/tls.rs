//! TLS of node connections: both ends show a raw public key (RFC 7250) and must hold its private half.
//!
//! What a certificate would add to the key (names, validity, issuers) has no reader here: the member
//! record names the key, and nothing else decides. So the key itself travels. Two things are checked
//! on either end, and both must hold: the key is one that the caller expects at that address, and the
//! handshake is signed with it. Nothing survives a connection: no tickets, no resumption, no early data.

use super::identity::{Fingerprint, NodeKey};
use super::{ALPN_INVENTORY, ALPN_PAYLOAD, Purpose};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, SignatureScheme,
};
use std::sync::Arc;

/// The name that a dialler gives to TLS. Nothing is sent of it and nothing reads it.
pub(super) const SERVER_NAME: &str = "orbitkv";

/// Makes the configurations of one endpoint's handshakes.
pub(super) struct Handshakes {
    provider: Arc<CryptoProvider>,
    client_key: Arc<AlwaysResolvesClientRawPublicKeys>,
    server_key: Arc<AlwaysResolvesServerRawPublicKeys>,
}

impl Handshakes {
    pub(super) fn new(key: &NodeKey) -> Self {
        let mut provider = ring::default_provider();
        // One suite and one group: both ends are this program, and AES is in every CPU we run on.
        provider.cipher_suites = vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256];
        provider.kx_groups = vec![ring::kx_group::X25519];
        Self {
            provider: Arc::new(provider),
            client_key: Arc::new(AlwaysResolvesClientRawPublicKeys::new(key.certified.clone())),
            server_key: Arc::new(AlwaysResolvesServerRawPublicKeys::new(key.certified.clone())),
        }
    }

    /// For a dial to a node whose key has this fingerprint.
    pub(super) fn client(&self, expected: Fingerprint, purpose: Purpose) -> Arc<QuicClientConfig> {
        let mut config = rustls::ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has a TLS 1.3 suite")
            .dangerous()
            .with_custom_certificate_verifier(self.verifier(vec![expected]))
            .with_client_cert_resolver(self.client_key.clone());
        config.alpn_protocols = vec![purpose.alpn().to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        config.enable_early_data = false;
        Arc::new(QuicClientConfig::try_from(config).expect("the provider has the suite of Initial packets"))
    }

    /// For a connection from an address that the holders of these keys publish.
    pub(super) fn server(&self, expected: Vec<Fingerprint>) -> Arc<QuicServerConfig> {
        let mut config = rustls::ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has a TLS 1.3 suite")
            .with_client_cert_verifier(self.verifier(expected))
            .with_cert_resolver(self.server_key.clone());
        config.alpn_protocols = vec![ALPN_INVENTORY.to_vec(), ALPN_PAYLOAD.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Arc::new(QuicServerConfig::try_from(config).expect("the provider has the suite of Initial packets"))
    }

    fn verifier(&self, expected: Vec<Fingerprint>) -> Arc<PinnedKey> {
        Arc::new(PinnedKey { expected, algorithms: self.provider.signature_verification_algorithms })
    }
}

/// Accepts exactly the holders of the expected keys.
#[derive(Debug)]
struct PinnedKey {
    expected: Vec<Fingerprint>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedKey {
    fn check_key(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        match self.expected.contains(&Fingerprint::of(shown)) {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let public_key_info = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &public_key_info, signature, &self.algorithms)
    }
}

/// TLS 1.2 is not offered; a peer that speaks it anyway is told so.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_key(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for PinnedKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_key(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
