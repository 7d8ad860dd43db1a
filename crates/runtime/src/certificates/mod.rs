//! Certificates that the programs make and renew by themselves, or take from somebody else, without breaking a client.
//!
//! [`renew`] is a pure rule: from what is kept, what is given and the time to what is to be kept next. Where it is kept (a Secret, a
//! folder) and who reads it is the caller's.
//!
//! * **Made here**: an authority of our own signs a leaf. The leaf is replaced when a third of its life is left, and so is the
//!   authority. The old authority signs the new one's key once more ([`authority`]): that certificate is sent with the leaf, so that
//!   a client that knows only the old authority still builds a chain.
//! * **Given**: files of cert-manager or an administrator.
//! * **Overlap**: the bundle for clients holds the former authorities until they expire. A leaf that some client could not verify,
//!   although it can verify the present one, is held back as long as the present one is valid.
//!
//! Everything is PEM text, in the form of a TLS Secret: `tls.crt`, `tls.key`, `ca.crt`.

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

pub use authority::{Authority, AuthorityPem, Subject, Usage};
pub use expiry::{CERTIFICATES, CertificateMetrics};
pub use pem::{Validity, bundle, usable, validity, verifies};

/// Most authorities in a bundle for clients: the newest.
pub const MOST_AUTHORITIES: usize = 4;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificatesError {
    /// Making a key or signing failed.
    #[error("a certificate cannot be made")]
    Make(#[from] rcgen::Error),
    /// What is kept of the authority is no certificate with its key.
    #[error("the authority cannot be used: {0}")]
    Authority(&'static str),
    /// A certificate and a key that do not belong together, or are none.
    #[error("certificate and key cannot be used: {0}")]
    Pair(String),
}

/// How long a certificate is valid, and when the next one is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// From its making to its end.
    pub total: Duration,
    /// It is replaced once less than this is left.
    pub renew_when_left: Duration,
}

impl Life {
    /// Replaced after two thirds.
    #[must_use]
    pub const fn of(total: Duration) -> Self {
        Self { total, renew_when_left: Duration::from_secs(total.as_secs() / 3) }
    }

    /// Whether it is time to replace a certificate.
    #[must_use]
    pub fn is_due(&self, validity: &Validity, now: Timestamp) -> bool {
        validity.left(now) < self.renew_when_left
    }
}

/// Lives of what is made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lives {
    /// Of the authority; ten years unless a test says otherwise.
    pub authority: Life,
    /// Of the certificates that it signs; ninety days.
    pub leaf: Life,
}

const DAY: u64 = 24 * 3600;

impl Default for Lives {
    fn default() -> Self {
        Self {
            authority: Life::of(Duration::from_secs(3650 * DAY)),
            leaf: Life::of(Duration::from_secs(90 * DAY)),
        }
    }
}

/// Flags for tests of renewal; flatten them into a server's own. Certificates live for months otherwise.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct LivesArgs {
    /// Renew leaf certificates after so many seconds; they live three times as long.
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(1..=3_000_000), value_name = "SECONDS")]
    pub renew_certificates_every: Option<u64>,
    /// Renew the authority after so many seconds.
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(1..=3_000_000), value_name = "SECONDS")]
    pub renew_authority_every: Option<u64>,
}

impl From<LivesArgs> for Lives {
    fn from(args: LivesArgs) -> Self {
        let mut lives = Self::default();
        if let Some(every) = args.renew_certificates_every {
            lives.leaf = Life {
                total: Duration::from_secs(every * 3),
                renew_when_left: Duration::from_secs(every * 2),
            };
        }
        if let Some(every) = args.renew_authority_every {
            lives.authority.renew_when_left =
                lives.authority.total.saturating_sub(Duration::from_secs(every));
        }
        lives
    }
}

impl Lives {
    /// How often to look whether something is due: `usual`, or more often where lives are short.
    #[must_use]
    pub fn look_every(&self, usual: Duration) -> Duration {
        let soonest = [self.leaf, self.authority].map(|life| life.total.saturating_sub(life.renew_when_left));
        soonest.into_iter().fold(usual, |every, life| every.min(life / 4)).max(Duration::from_millis(250))
    }
}

/// A certificate, its key and what clients are to trust.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Certificate chain, leaf first (`tls.crt`).
    pub chain: String,
    /// Private key of the leaf (`tls.key`).
    pub key: String,
    /// Authorities for clients (`ca.crt`), the newest first.
    pub bundle: String,
    /// The authority with its key, where it is our own.
    pub authority: Option<AuthorityPem>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept")
            .field("chain", &self.chain)
            .field("bundle", &self.bundle)
            .finish_non_exhaustive()
    }
}

/// What [`renew`] decides from, beside what is kept.
pub struct Ask<'a> {
    /// Whom the leaf is for.
    pub subject: &'a Subject,
    /// Lives of what is made here.
    pub lives: Lives,
    /// The time.
    pub now: Timestamp,
    /// Certificate, key and authorities of somebody else; `None`: made here.
    pub given: Option<&'a Kept>,
    /// Bundles that running clients have and keep.
    pub clients: &'a dyn Fn() -> Vec<String>,
}

/// What is to be kept from now on.
#[derive(Debug)]
pub struct Renewal {
    /// The next state; the same as before where nothing is to be done.
    pub kept: Kept,
    /// The leaf is another one.
    pub leaf: bool,
    /// The authority is another one.
    pub authority: bool,
    /// Another leaf is there, but some client could not verify it yet.
    pub held: bool,
}

/// What to keep next.
///
/// # Errors
/// When a given pair cannot be used, or a key cannot be made: what is kept stays.
pub fn renew(kept: &Kept, ask: &Ask<'_>) -> Result<Renewal, CertificatesError> {
    let (offered, new_authority) = match ask.given {
        Some(given) => {
            usable(&given.chain, &given.key)?;
            let roots = [given.bundle.as_str(), kept.bundle.as_str()];
            let bundle = bundle(&roots, ask.now, MOST_AUTHORITIES);
            (Kept { bundle, authority: None, ..given.clone() }, false)
        }
        None => {
            let first = offer(kept, ask, true)?;
            // A client of an authority long ago may not reach the next one: the present one goes on while that client runs.
            if first.1 && holds_back(kept, &first.0, ask) { offer(kept, ask, false)? } else { first }
        }
    };
    let leaf = (&offered.chain, &offered.key) != (&kept.chain, &kept.key);
    if leaf && holds_back(kept, &offered, ask) {
        let kept = Kept { chain: kept.chain.clone(), key: kept.key.clone(), ..offered };
        return Ok(Renewal { kept, leaf: false, authority: new_authority, held: true });
    }
    Ok(Renewal { kept: offered, leaf, authority: new_authority, held: false })
}

/// What our own authority signs, and whether that authority is a new one. `succeeds` lets another follow one that is due.
fn offer(kept: &Kept, ask: &Ask<'_>, succeeds: bool) -> Result<(Kept, bool), CertificatesError> {
    let life = ask.lives.authority;
    let known = kept.authority.as_ref().and_then(|pem| Authority::read(pem).ok());
    let (authority, new) = match known {
        Some(authority) if !succeeds || !life.is_due(&authority.validity(), ask.now) => (authority, false),
        Some(authority) => (authority.succeed(ask.now, life)?, true),
        None => (Authority::make(ask.now, life)?, true),
    };
    let mut next = Kept {
        bundle: bundle(&[authority.root(), &kept.bundle], ask.now, MOST_AUTHORITIES),
        authority: Some(authority.pem()),
        ..kept.clone()
    };
    let due = validity(&kept.chain).is_none_or(|validity| ask.lives.leaf.is_due(&validity, ask.now));
    if due || !authority.issued(&kept.chain, ask.subject) || usable(&kept.chain, &kept.key).is_err() {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        next.chain = authority.issue(ask.subject, &key, ask.now, ask.lives.leaf)?;
        next.key = key.serialize_pem();
    }
    Ok((next, new))
}

/// Whether a client trusts the present leaf, which is still good, and would not trust the next.
fn holds_back(kept: &Kept, offered: &Kept, ask: &Ask<'_>) -> bool {
    let good = validity(&kept.chain).is_some_and(|validity| !validity.left(ask.now).is_zero());
    if !good || usable(&kept.chain, &kept.key).is_err() {
        return false;
    }
    let Some(name) = ask.subject.names.first() else { return false };
    (ask.clients)().iter().any(|bundle| {
        verifies(&kept.chain, bundle, name, ask.now) && !verifies(&offered.chain, bundle, name, ask.now)
    })
}
