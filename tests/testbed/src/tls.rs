//! Certificates and TLS clients for tests of servers, in memory.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio_rustls::TlsConnector;

/// A certificate authority with its key.
pub type Authority = CertifiedIssuer<'static, KeyPair>;

/// A certificate and its key, PEM.
pub type CertificateAndKey = (String, String);

/// A new authority.
pub fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// A certificate with a common name and DNS names.
pub fn issue(by: &Authority, common_name: &str, dns: &[&str]) -> CertificateAndKey {
    let key = KeyPair::generate().expect("a key");
    let names: Vec<String> = dns.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).expect("DNS names");
    params.distinguished_name.push(DnType::CommonName, common_name);
    (params.signed_by(&key, by).expect("a certificate").pem(), key.serialize_pem())
}

/// A client that trusts the authority and speaks `protocol` (ALPN).
pub fn connector(trusted: &Authority, protocol: &str) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.der().clone()).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    TlsConnector::from(Arc::new(config))
}
