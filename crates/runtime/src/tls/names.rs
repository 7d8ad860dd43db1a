//! Checks the names of client certificates, beside the signature of the authority.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Verifies the chain with another verifier, then compares the leaf's names.
#[derive(Debug)]
pub(super) struct NamedClients {
    inner: Arc<dyn ClientCertVerifier>,
    expected: BTreeSet<String>,
}

impl NamedClients {
    pub(super) fn new(inner: Arc<dyn ClientCertVerifier>, expected: &[String]) -> Arc<Self> {
        Arc::new(Self { inner, expected: expected.iter().cloned().collect() })
    }

    fn expects(&self, leaf: &CertificateDer<'_>) -> Result<(), Error> {
        if self.expected.is_empty() {
            return Ok(());
        }
        let names = names_of(leaf).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
        if names.iter().any(|name| self.expected.contains(name)) {
            return Ok(());
        }
        tracing::warn!(
            ?names,
            "refused a client whose certificate is genuine but whose name is not expected"
        );
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }
}

/// Common names of the subject, DNS and URI alternative names of a certificate in DER; `None` when it does not parse.
pub fn names_of(leaf: &[u8]) -> Option<Vec<String>> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let mut names: Vec<String> = common.map(str::to_owned).collect();
    if let Some(alternative) = certificate.subject_alternative_name().ok()? {
        names.extend(alternative.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
            _ => None,
        }));
    }
    Some(names)
}

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(leaf, intermediates, now)?;
        self.expects(leaf)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
