//! Certificates that the programs make and renew themselves, or take from files.
//!
//! [`renew`] is a pure function of the stored state, the given files and the time; it returns the state to
//! store. The caller stores it (in a Secret or a folder) and distributes it.
//!
//! * **Self-made**: our own authority of ten years signs a leaf of ninety days. The leaf is replaced when a third
//!   of its life is left. The authority is replaced only after it has expired.
//! * **Given**: files of cert-manager or an administrator, taken at once.
//!
//! All data is PEM text, in the form of a TLS Secret: `tls.crt`, `tls.key`, `ca.crt`.

pub mod authority;
mod expiry;
mod pem;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use rcgen::KeyPair;

pub use authority::{Authority, AuthorityPem, Subject};
pub use expiry::{CERTIFICATES, CertificateMetrics};
pub use pem::{Validity, bundle, usable, validity, verifies};

/// Maximum authorities in a client bundle.
pub const MAX_AUTHORITIES: usize = 4;

/// Certificate errors.
#[derive(Debug, thiserror::Error)]
pub enum CertificatesError {
    /// Making a key or signing failed.
    #[error("a certificate cannot be made")]
    Make(#[from] rcgen::Error),
    /// The stored authority is not a certificate with its key.
    #[error("the authority cannot be used: {0}")]
    Authority(&'static str),
    /// Certificate and key do not match or are invalid.
    #[error("certificate and key cannot be used: {0}")]
    Pair(String),
}

/// Lifetime of a leaf certificate and the time of its renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateLifetime {
    /// Lifetime from issue to expiry.
    pub total: Duration,
    /// It is renewed once less than this is left.
    pub renew_when_left: Duration,
}

impl CertificateLifetime {
    /// Renewal after two thirds of the lifetime.
    #[must_use]
    pub const fn new(total: Duration) -> Self {
        Self { total, renew_when_left: Duration::from_secs(total.as_secs() / 3) }
    }

    /// Whether a certificate is due for renewal: little of its life is left, or it has not begun, because the clock
    /// was ahead when it was made.
    #[must_use]
    pub fn is_due(&self, validity: &Validity, now: Timestamp) -> bool {
        now < validity.from || validity.left(now) < self.renew_when_left
    }

    /// Interval between checks for renewal: `usual`, or less with short lifetimes.
    #[must_use]
    pub fn check_every(&self, usual: Duration) -> Duration {
        let renewed_after = self.total.saturating_sub(self.renew_when_left);
        usual.min(renewed_after / 4).max(Duration::from_millis(250))
    }
}

const DAY: u64 = 24 * 3600;

impl Default for CertificateLifetime {
    /// Ninety days.
    fn default() -> Self {
        Self::new(Duration::from_secs(90 * DAY))
    }
}

/// Flag for tests of renewal; flatten it into a server's own flags.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct CertificateLifetimeArgs {
    /// Renew leaf certificates after this many seconds; they live three times as long. For tests.
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(1..=3_000_000), value_name = "SECONDS")]
    pub renew_certificates_every: Option<u64>,
}

impl From<CertificateLifetimeArgs> for CertificateLifetime {
    fn from(args: CertificateLifetimeArgs) -> Self {
        args.renew_certificates_every.map_or_else(Self::default, |every| Self {
            total: Duration::from_secs(every * 3),
            renew_when_left: Duration::from_secs(every * 2),
        })
    }
}

/// A certificate, its key and the bundle for clients.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ServingCertificate {
    /// Certificate chain, leaf first (`tls.crt`).
    pub chain: String,
    /// Private key of the leaf (`tls.key`).
    pub key: String,
    /// Authorities for clients (`ca.crt`).
    pub bundle: String,
    /// The authority with its key, if it is our own.
    pub authority: Option<AuthorityPem>,
}

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingCertificate")
            .field("chain", &self.chain)
            .field("bundle", &self.bundle)
            .finish_non_exhaustive()
    }
}

/// Input of [`renew`] beside the stored state.
pub struct RenewalInput<'a> {
    /// Subject of the leaf.
    pub subject: &'a Subject,
    /// Lifetime of a self-made leaf.
    pub lifetime: CertificateLifetime,
    /// The present time.
    pub now: Timestamp,
    /// External certificate, key and authorities; `None`: self-made.
    pub given: Option<&'a ServingCertificate>,
}

/// Computes the state to store next; the stored one if nothing is due.
///
/// # Errors
/// When a given pair is unusable or a key cannot be made; the stored state stays.
pub fn renew(
    stored: &ServingCertificate,
    input: &RenewalInput<'_>,
) -> Result<ServingCertificate, CertificatesError> {
    if let Some(given) = input.given {
        usable(&given.chain, &given.key)?;
        return Ok(ServingCertificate { bundle: bundle(&given.bundle, input.now), ..given.clone() });
    }
    let present = stored.authority.as_ref().and_then(|pem| Authority::read(pem).ok());
    let authority = match present.filter(|authority| !authority.validity().left(input.now).is_zero()) {
        Some(authority) => authority,
        None => Authority::make(input.now)?,
    };
    let mut next = ServingCertificate {
        bundle: authority.root().to_owned(),
        authority: Some(authority.pem()),
        ..stored.clone()
    };
    let due = validity(&stored.chain).is_none_or(|validity| input.lifetime.is_due(&validity, input.now));
    if due || !authority.issued(&stored.chain, input.subject) || usable(&stored.chain, &stored.key).is_err() {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        next.chain = authority.issue(input.subject, &key, input.now, input.lifetime)?;
        next.key = key.serialize_pem();
    }
    Ok(next)
}
