//! Parsing and verification of certificates in PEM text.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{CertificatesError, MAX_AUTHORITIES};

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not before.
    pub from: Timestamp,
    /// Not after.
    pub until: Timestamp,
}

impl Validity {
    /// Time until its end; zero after it.
    #[must_use]
    pub fn left(&self, now: Timestamp) -> Duration {
        Duration::try_from(self.until.duration_since(now)).unwrap_or_default()
    }

    fn holds(&self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }
}

/// The certificates of a PEM text, each as PEM.
pub(super) fn pem_certificates(pem: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = pem;
    while let Some(start) = rest.find(BEGIN) {
        let Some(length) = rest[start..].find(END) else { break };
        let end = start + length + END.len();
        found.push(format!("{}\n", &rest[start..end]));
        rest = &rest[end..];
    }
    found
}

/// The certificates of a PEM text that can be decoded.
pub(super) fn decoded_certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect()
}

fn validity_of(der: &[u8]) -> Option<Validity> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let validity = certificate.validity();
    Some(Validity {
        from: Timestamp::from_second(validity.not_before.timestamp()).ok()?,
        until: Timestamp::from_second(validity.not_after.timestamp()).ok()?,
    })
}

/// Validity of the first certificate of a PEM text.
#[must_use]
pub fn validity(pem: &str) -> Option<Validity> {
    validity_of(decoded_certificates(pem).first()?)
}

/// The certificates of a bundle that have not expired, each once, the first [`MAX_AUTHORITIES`].
#[must_use]
pub fn bundle(pem: &str, now: Timestamp) -> String {
    let (mut text, mut seen) = (String::new(), Vec::new());
    for block in pem_certificates(pem) {
        let Some(der) = decoded_certificates(&block).pop() else { continue };
        let alive = validity_of(&der).is_some_and(|validity| now < validity.until);
        if alive && seen.len() < MAX_AUTHORITIES && !seen.contains(&der) {
            text += &block;
            seen.push(der);
        }
    }
    text
}

/// Checks that a certificate chain and a private key are readable and match.
///
/// # Errors
/// [`CertificatesError::Pair`] with the reason.
pub fn usable(chain: &str, key: &str) -> Result<(), CertificatesError> {
    let wrong = |what: &dyn std::fmt::Display| CertificatesError::Pair(what.to_string());
    let certificates = decoded_certificates(chain);
    let leaf = certificates.first().ok_or_else(|| wrong(&"no certificate"))?;
    if validity_of(leaf).is_none() {
        return Err(wrong(&"the certificate's validity cannot be read"));
    }
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| wrong(&"no private key"))?;
    CertifiedKey::from_der(certificates, key, &rustls::crypto::ring::default_provider())
        .map(drop)
        .map_err(|error| wrong(&error))
}

/// Whether a client that trusts `bundle` accepts `chain` from a server of this name.
#[must_use]
pub fn verifies(chain: &str, bundle: &str, name: &str, now: Timestamp) -> bool {
    let mut roots = RootCertStore::empty();
    for der in decoded_certificates(bundle) {
        // Clients other than rustls also check the expiry of the authority itself.
        if validity_of(&der).is_some_and(|validity| validity.holds(now)) {
            let _ = roots.add(der);
        }
    }
    let chain = decoded_certificates(chain);
    let (Some((leaf, rest)), Ok(name)) = (chain.split_first(), ServerName::try_from(name)) else {
        return false;
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let Ok(verifier) = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build() else {
        return false;
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().max(0).unsigned_abs()));
    verifier.verify_server_cert(leaf, rest, &name, &[], now).is_ok()
}
