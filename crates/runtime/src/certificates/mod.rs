//! Certificates that the programs make and renew themselves, or take from files, without breaking clients.
//!
//! [`renew`] is a pure function of the stored state, the given files and the time; it returns the state to
//! store. The caller stores it (in a Secret or a folder) and distributes it.
//!
//! * **Self-made**: our own authority signs a leaf. Leaf and authority are replaced when a third of their
//!   life is left. The old authority cross-signs the new one's key ([`authority`]). This certificate is sent
//!   with the leaf, so clients that know only the old authority can build a chain.
//! * **Given**: files of cert-manager or an administrator.
//! * **Overlap**: the client bundle keeps former authorities until they expire. A new leaf is held back if
//!   some client could verify the present leaf but not the new one. This ends when the present leaf expires.
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
use serde::{Deserialize, Serialize};

pub use authority::{Authority, AuthorityPem, Subject};
pub use expiry::{CERTIFICATES, CertificateMetrics};
pub use pem::{Validity, bundle, usable, validity, verifies};

/// Maximum authorities in a client bundle, the newest first.
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

/// Lifetime of a certificate and the time of its renewal.
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
}

/// Lifetimes of self-made certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateLifetimes {
    /// Lifetime of the authority; default ten years.
    pub authority: CertificateLifetime,
    /// Lifetime of leaf certificates; default ninety days.
    pub leaf: CertificateLifetime,
}

const DAY: u64 = 24 * 3600;

impl Default for CertificateLifetimes {
    fn default() -> Self {
        Self {
            authority: CertificateLifetime::new(Duration::from_secs(3650 * DAY)),
            leaf: CertificateLifetime::new(Duration::from_secs(90 * DAY)),
        }
    }
}

/// Flags for tests of renewal; flatten them into a server's own flags. By default certificates live for
/// months.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct CertificateLifetimeArgs {
    /// Renew leaf certificates after this many seconds; they live three times as long. For tests.
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(1..=3_000_000), value_name = "SECONDS")]
    pub renew_certificates_every: Option<u64>,
    /// Renew the authority after this many seconds. For tests.
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(1..=3_000_000), value_name = "SECONDS")]
    pub renew_authority_every: Option<u64>,
}

impl From<CertificateLifetimeArgs> for CertificateLifetimes {
    fn from(args: CertificateLifetimeArgs) -> Self {
        let mut lifetimes = Self::default();
        if let Some(every) = args.renew_certificates_every {
            lifetimes.leaf = CertificateLifetime {
                total: Duration::from_secs(every * 3),
                renew_when_left: Duration::from_secs(every * 2),
            };
        }
        if let Some(every) = args.renew_authority_every {
            lifetimes.authority.renew_when_left =
                lifetimes.authority.total.saturating_sub(Duration::from_secs(every));
        }
        lifetimes
    }
}

impl CertificateLifetimes {
    /// Interval between checks for renewal: `usual`, or less with short lifetimes.
    #[must_use]
    pub fn check_every(&self, usual: Duration) -> Duration {
        let soonest = [self.leaf, self.authority]
            .map(|lifetime| lifetime.total.saturating_sub(lifetime.renew_when_left));
        soonest
            .into_iter()
            .fold(usual, |every, lifetime| every.min(lifetime / 4))
            .max(Duration::from_millis(250))
    }
}

/// A certificate, its key and the bundle for clients.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServingCertificate {
    /// Certificate chain, leaf first (`tls.crt`).
    pub chain: String,
    /// Private key of the leaf (`tls.key`).
    pub key: String,
    /// Authorities for clients (`ca.crt`), the newest first.
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
    /// Lifetimes of self-made certificates.
    pub lifetimes: CertificateLifetimes,
    /// The present time.
    pub now: Timestamp,
    /// External certificate, key and authorities; `None`: self-made.
    pub given: Option<&'a ServingCertificate>,
    /// Bundles that running clients use.
    pub clients: &'a dyn Fn() -> Vec<String>,
}

/// Result of [`renew`].
#[derive(Debug)]
pub struct Renewal {
    /// The state to store; unchanged if nothing is due.
    pub kept: ServingCertificate,
    /// The leaf changed.
    pub leaf: bool,
    /// The authority changed.
    pub authority: bool,
    /// A new leaf exists, but is held back for some client.
    pub held: bool,
}

/// Computes the state to store next.
///
/// # Errors
/// When a given pair is unusable or a key cannot be made; the stored state stays.
pub fn renew(kept: &ServingCertificate, ask: &RenewalInput<'_>) -> Result<Renewal, CertificatesError> {
    let (offered, new_authority) = match ask.given {
        Some(given) => {
            usable(&given.chain, &given.key)?;
            let roots = [given.bundle.as_str(), kept.bundle.as_str()];
            let bundle = bundle(&roots, ask.now, MAX_AUTHORITIES);
            (ServingCertificate { bundle, authority: None, ..given.clone() }, false)
        }
        None => {
            let next = offer(kept, ask, true)?;
            // A client of a much older authority may not trust the next one. The present authority stays while
            // that client runs, also when the leaf expired because nobody renewed it.
            let present = if next.1 { Some(offer(kept, ask, false)?) } else { None };
            present.filter(|present| loses_client(&present.0, &next.0, ask)).unwrap_or(next)
        }
    };
    let leaf = (&offered.chain, &offered.key) != (&kept.chain, &kept.key);
    if leaf && holds_back(kept, &offered, ask) {
        let kept = ServingCertificate { chain: kept.chain.clone(), key: kept.key.clone(), ..offered };
        return Ok(Renewal { kept, leaf: false, authority: new_authority, held: true });
    }
    Ok(Renewal { kept: offered, leaf, authority: new_authority, held: false })
}

/// A leaf by our own authority, and whether that authority is new. `succeeds` allows a successor if one is
/// due.
fn offer(
    kept: &ServingCertificate,
    ask: &RenewalInput<'_>,
    succeeds: bool,
) -> Result<(ServingCertificate, bool), CertificatesError> {
    let lifetime = ask.lifetimes.authority;
    let known = kept.authority.as_ref().and_then(|pem| Authority::read(pem).ok());
    let (authority, new) = match known {
        Some(authority) if !succeeds || !lifetime.is_due(&authority.validity(), ask.now) => {
            (authority, false)
        }
        Some(authority) => (authority.succeed(ask.now, lifetime)?, true),
        None => (Authority::make(ask.now, lifetime)?, true),
    };
    let mut next = ServingCertificate {
        bundle: bundle(&[authority.root(), &kept.bundle], ask.now, MAX_AUTHORITIES),
        authority: Some(authority.pem()),
        ..kept.clone()
    };
    let due = validity(&kept.chain).is_none_or(|validity| ask.lifetimes.leaf.is_due(&validity, ask.now));
    if due || !authority.issued(&kept.chain, ask.subject) || usable(&kept.chain, &kept.key).is_err() {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        next.chain = authority.issue(ask.subject, &key, ask.now, ask.lifetimes.leaf)?;
        next.key = key.serialize_pem();
    }
    Ok((next, new))
}

/// Whether a client trusts the present, still valid leaf but would not trust the next.
fn holds_back(kept: &ServingCertificate, offered: &ServingCertificate, ask: &RenewalInput<'_>) -> bool {
    let good = validity(&kept.chain).is_some_and(|validity| !validity.left(ask.now).is_zero());
    good && usable(&kept.chain, &kept.key).is_ok() && loses_client(kept, offered, ask)
}

/// Whether a client trusts one leaf but not the other.
fn loses_client(trusted: &ServingCertificate, offered: &ServingCertificate, ask: &RenewalInput<'_>) -> bool {
    let Some(name) = ask.subject.names.first() else { return false };
    (ask.clients)().iter().any(|bundle| {
        verifies(&trusted.chain, bundle, name, ask.now) && !verifies(&offered.chain, bundle, name, ask.now)
    })
}
