//! TLS of the stock side: the suite that nodes use, a key made for the run, and nobody's identity checked.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme, SupportedCipherSuite,
};

use crate::Failure;

/// AES-128-GCM, as between nodes: the cipher is not what is compared.
const SUITE: SupportedCipherSuite = provider::cipher_suite::TLS13_AES_128_GCM_SHA256;

fn suites() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { cipher_suites: vec![SUITE], ..provider::default_provider() })
}

/// For the source, with a raw public key made now.
pub fn server() -> Result<ServerConfig, Failure> {
    let random = ring::rand::SystemRandom::new();
    let document = ring::signature::Ed25519KeyPair::generate_pkcs8(&random)
        .map_err(|error| format!("making a key: {error}"))?;
    let key = provider::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(document.as_ref()))?;
    let public = key.public_key().ok_or("a key without its public half")?.to_vec();
    let certified = CertifiedKey::new(vec![CertificateDer::from(public)], key);
    Ok(ServerConfig::builder_with_provider(suites())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(certified)))))
}

/// For the reader.
pub fn client() -> Result<ClientConfig, Failure> {
    Ok(ClientConfig::builder_with_provider(suites())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth())
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
