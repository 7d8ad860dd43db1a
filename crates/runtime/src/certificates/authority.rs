//! Our own certificate authority: ECDSA P-256, one self-signed certificate.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData as _,
};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::pem::{decoded_certificates, pem_certificates, validity};
use super::{CertificateLifetime, CertificatesError, DAY, Validity};

/// Leaf certificates are backdated by this much, since clocks of nodes differ.
const LEAF_BACKDATED: Duration = Duration::from_secs(DAY);
/// The same for authorities. Some clients read them once: one that was made by a clock that was ahead must be valid when that
/// is set right. A leaf is then made again.
const AUTHORITY_BACKDATED: Duration = Duration::from_secs(365 * DAY);
/// Lifetime of an authority.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(3650 * DAY);

/// An authority as PEM text.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityPem {
    /// Its self-signed certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl fmt::Debug for AuthorityPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorityPem").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// The subject of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// DNS names and addresses; the first is also the common name.
    pub names: Vec<String>,
}

/// An authority with its key.
pub struct Authority {
    root: String,
    issuer: Issuer<'static, KeyPair>,
    validity: Validity,
}

impl Authority {
    /// Makes a new authority.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn make(now: Timestamp) -> Result<Self, CertificatesError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let params = authority_params(&key, now);
        let root = params.self_signed(&key)?.pem();
        let validity = validity(&root).ok_or(CertificatesError::Authority("no validity"))?;
        Ok(Self { root, issuer: Issuer::new(params, key), validity })
    }

    /// Reads PEM text.
    ///
    /// # Errors
    /// When it is not an authority's certificate with its key.
    pub fn read(pem: &AuthorityPem) -> Result<Self, CertificatesError> {
        let wrong = CertificatesError::Authority;
        let root = pem_certificates(&pem.certificate).into_iter().next().ok_or(wrong("no certificate"))?;
        let der = decoded_certificates(&root).pop().ok_or(wrong("no certificate"))?;
        let key = KeyPair::from_pem(&pem.key).map_err(|_| wrong("no private key"))?;
        let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| wrong("no X.509 certificate"))?;
        if certificate.public_key().raw != key.subject_public_key_info() {
            return Err(wrong("the key is another one"));
        }
        let validity = validity(&root).ok_or(wrong("no validity"))?;
        let issuer = Issuer::new(named(&key), key);
        Ok(Self { root, issuer, validity })
    }

    /// Converts to PEM text.
    #[must_use]
    pub fn pem(&self) -> AuthorityPem {
        AuthorityPem { certificate: self.root.clone(), key: self.issuer.key().serialize_pem() }
    }

    /// The self-signed certificate, for clients.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Its validity period.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// Issues a certificate for a key. It ends with the authority at the latest.
    ///
    /// # Errors
    /// When a name is invalid or signing fails.
    pub fn issue(
        &self,
        subject: &Subject,
        key: &KeyPair,
        now: Timestamp,
        lifetime: CertificateLifetime,
    ) -> Result<String, CertificatesError> {
        let mut params = CertificateParams::new(subject.names.clone())?;
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = subject.names.first() {
            params.distinguished_name.push(DnType::CommonName, name.as_str());
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        set_validity(&mut params, now, lifetime.total, LEAF_BACKDATED);
        params.not_after = params.not_after.min(offset_date_time(self.validity.until.as_second()));
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }

    /// Whether this authority issued that chain to that subject with its present properties.
    #[must_use]
    pub fn issued(&self, chain: &str, subject: &Subject) -> bool {
        let issued = || {
            let leaf = decoded_certificates(chain).into_iter().next()?;
            let root = decoded_certificates(&self.root).pop()?;
            let (_, leaf) = X509Certificate::from_der(&leaf).ok()?;
            let (_, root) = X509Certificate::from_der(&root).ok()?;
            let wanted: BTreeSet<String> = subject.names.iter().cloned().collect();
            Some(leaf.issuer().as_raw() == root.subject().as_raw() && names(&leaf) == wanted)
        };
        issued().unwrap_or(false)
    }
}

/// DNS names and addresses of a certificate.
fn names(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
    let Ok(Some(alternative)) = certificate.subject_alternative_name() else { return BTreeSet::new() };
    let names = alternative.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    });
    names.collect()
}

/// The issuer's name. Each key has its own name, so clients cannot confuse two authorities.
fn named(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let raw = key.public_key_raw();
    let mark: String = raw[raw.len().saturating_sub(8)..].iter().map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("andreas-ca-{mark}"));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn authority_params(key: &KeyPair, now: Timestamp) -> CertificateParams {
    let mut params = named(key);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    set_validity(&mut params, now, AUTHORITY_LIFETIME, AUTHORITY_BACKDATED);
    params
}

fn set_validity(params: &mut CertificateParams, now: Timestamp, lifetime: Duration, backdated: Duration) {
    let now = offset_date_time(now.as_second());
    params.not_before = now - backdated;
    params.not_after = now + lifetime;
    // Python 3.13 and later verify strictly: every certificate must name its issuer's key.
    params.use_authority_key_identifier_extension = true;
}

/// Seconds since 1970 as rcgen's time.
fn offset_date_time(seconds: i64) -> time::OffsetDateTime {
    rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds.max(0).unsigned_abs())
}
