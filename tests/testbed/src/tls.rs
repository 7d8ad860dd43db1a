//! Certificates and TLS clients for tests of servers, in memory.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
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

/// A certificate with a common name and DNS names, valid until 2100.
pub fn issue(by: &Authority, common_name: &str, dns: &[&str]) -> CertificateAndKey {
    issue_until(by, common_name, dns, 2100)
}

/// As [`issue`], valid until the first day of a year.
pub fn issue_until(by: &Authority, common_name: &str, dns: &[&str], year: i32) -> CertificateAndKey {
    let key = KeyPair::generate().expect("a key");
    let names: Vec<String> = dns.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).expect("DNS names");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    (params.signed_by(&key, by).expect("a certificate").pem(), key.serialize_pem())
}

/// A client that trusts the authority, shows a certificate if it has one, and speaks `protocol` (ALPN).
pub fn connector(trusted: &Authority, own: Option<&CertificateAndKey>, protocol: &str) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.der().clone()).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate")];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
            builder.with_client_auth_cert(chain, key).expect("a certificate with its key")
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    TlsConnector::from(Arc::new(config))
}
