//! Certificates for the calls from kube-scheduler to the extender, which stay inside one pod.
//!
//! The extender creates and renews a CA for the pod, its own serving certificate, and kube-scheduler's client
//! certificate. Two in-memory folders hold them. Only the extender mounts the first (`state.json` with the
//! keys, `known.crt`). kube-scheduler mounts the second too (`ca.crt`, `client.crt`, `client.key`). An init
//! container fills both before kube-scheduler starts.
//!
//! kube-scheduler reads `ca.crt` once at start, and its client certificate at every handshake. `known.crt` is
//! the CA bundle that it has read. While the current serving certificate is valid, a new one is served only
//! if `known.crt` verifies it. `client.key` is kept for the pod's life, so that it always matches
//! `client.crt`.
//!
//! If Secrets provide the certificates, this module only handles the overlap between old and new.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use andreas_runtime::certificates::{
    Authority, CertificateLifetimes, CertificateMetrics, CertificatesError, RenewalInput, ServingCertificate,
    Subject, Usage, renew, usable, validity,
};
use andreas_runtime::tls::TlsPem;
use jiff::Timestamp;
use rcgen::KeyPair;

/// Name of the serving certificate in metrics.
pub const SERVING: &str = "extender";
/// Name of kube-scheduler's client certificate in metrics.
const CLIENT: &str = "scheduler";
/// Name of the CA in metrics.
const AUTHORITY: &str = "extender-authority";

/// Why no certificates are available.
#[derive(Debug, thiserror::Error)]
pub enum PodCertificatesError {
    /// A file could not be read or written.
    #[error("{path} cannot be read or written")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A certificate could not be parsed or created.
    #[error(transparent)]
    Certificates(#[from] CertificatesError),
}

/// Files of the Secret that provides the extender's certificate.
#[derive(Clone, Debug)]
pub struct SecretFiles {
    /// Certificate chain (`tls.crt`).
    pub certificate: PathBuf,
    /// Private key (`tls.key`).
    pub key: PathBuf,
    /// CAs (`ca.crt`), which also verify kube-scheduler's certificate.
    pub authority: PathBuf,
}

/// The certificates of one pod.
#[derive(Clone, Debug)]
pub struct PodCertificates {
    /// Folder that only the extender mounts.
    pub own: PathBuf,
    /// Folder that kube-scheduler mounts too.
    pub scheduler: PathBuf,
    /// Server name that kube-scheduler expects.
    pub server_name: String,
    /// Client name that the extender expects.
    pub client_name: String,
    /// Lifetimes of certificates created here.
    pub lifetimes: CertificateLifetimes,
    /// Files of a Secret; `None`: certificates are created here.
    pub given: Option<SecretFiles>,
}

impl PodCertificates {
    /// Creates or renews certificates that are due and returns those to serve with. `starting`:
    /// kube-scheduler has not started yet, so it will read all of `ca.crt`.
    ///
    /// # Errors
    /// When a file cannot be read or written, or the Secret's pair cannot be used. Then keep serving the
    /// current pair.
    pub fn renew(&self, now: Timestamp, starting: bool) -> Result<TlsPem, PodCertificatesError> {
        let state = self.own.join("state.json");
        let kept: ServingCertificate = match read(&state)? {
            Some(text) => serde_json::from_str(&text).unwrap_or_default(),
            None => ServingCertificate::default(),
        };
        let given = self.given.as_ref().map(read_secret_files).transpose()?;
        let known_file = self.own.join("known.crt");
        let known = if starting { None } else { read(&known_file)? };
        let subject = Subject {
            names: vec![self.server_name.clone(), "127.0.0.1".into(), "localhost".into()],
            usage: Usage::Server,
        };
        let clients = || known.iter().cloned().collect();
        let ask = RenewalInput {
            subject: &subject,
            lifetimes: self.lifetimes,
            now,
            given: given.as_ref(),
            clients: &clients,
        };
        let next = renew(&kept, &ask)?;
        if next.held {
            tracing::warn!(
                "kube-scheduler does not know the authority of the given certificate: restart its pod"
            );
        }
        if next.kept != kept {
            let text = serde_json::to_string(&next.kept).unwrap_or_default();
            write(&state, &text, 0o600)?;
        }
        write(&self.scheduler.join("ca.crt"), &next.kept.bundle, 0o644)?;
        if known.is_none() {
            write(&known_file, &next.kept.bundle, 0o600)?;
        }
        if let Some(authority) = &next.kept.authority {
            self.renew_client(&Authority::read(authority)?, now)?;
        }
        Ok(TlsPem {
            certificate: next.kept.chain.into_bytes(),
            key: next.kept.key.into_bytes(),
            authority: next.kept.bundle.into_bytes(),
        })
    }

    /// kube-scheduler's client certificate, signed by the pod's CA.
    fn renew_client(&self, authority: &Authority, now: Timestamp) -> Result<(), PodCertificatesError> {
        let (certificate, key) = (self.scheduler.join("client.crt"), self.scheduler.join("client.key"));
        let subject = Subject { names: vec![self.client_name.clone()], usage: Usage::Client };
        let chain = read(&certificate)?.unwrap_or_default();
        let kept_key = read(&key)?.unwrap_or_default();
        let due = validity(&chain).is_none_or(|validity| self.lifetimes.leaf.is_due(&validity, now));
        if !due && authority.issued(&chain, &subject) && usable(&chain, &kept_key).is_ok() {
            return Ok(());
        }
        let pair = match KeyPair::from_pem(&kept_key) {
            Ok(pair) => pair,
            Err(_) => {
                let pair =
                    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(CertificatesError::from)?;
                write(&key, &pair.serialize_pem(), 0o600)?;
                pair
            }
        };
        write(&certificate, &authority.issue(&subject, &pair, now, self.lifetimes.leaf)?, 0o600)
    }

    /// Records the certificates in use in the metrics.
    pub fn report(&self, serving: &TlsPem, metrics: &CertificateMetrics) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let client = fs::read_to_string(self.scheduler.join("client.crt")).unwrap_or_default();
        for (name, pem) in
            [(SERVING, text(&serving.certificate)), (AUTHORITY, text(&serving.authority)), (CLIENT, client)]
        {
            if let Some(validity) = validity(&pem) {
                metrics.record_validity(name, validity);
            }
        }
    }
}

/// Reads certificate, key and CA from these files.
///
/// # Errors
/// When one of them cannot be read or does not exist.
fn read_secret_files(files: &SecretFiles) -> Result<ServingCertificate, PodCertificatesError> {
    let text = |path: &Path| {
        let missing = || PodCertificatesError::File {
            path: path.to_owned(),
            source: io::Error::from(io::ErrorKind::NotFound),
        };
        read(path)?.ok_or_else(missing)
    };
    Ok(ServingCertificate {
        chain: text(&files.certificate)?,
        key: text(&files.key)?,
        bundle: text(&files.authority)?,
        authority: None,
    })
}

/// Reads a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<String>, PodCertificatesError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PodCertificatesError::File { path: path.to_owned(), source }),
    }
}

/// Replaces a file atomically. Does nothing if the content is the same.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), PodCertificatesError> {
    if read(path)?.is_some_and(|old| old == text) {
        return Ok(());
    }
    let beside = path.with_extension("new");
    let written = || {
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&beside)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&beside, path)
    };
    written().map_err(|source| PodCertificatesError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_runtime::certificates::{CertificateLifetimeArgs, verifies};
    use andreas_runtime::tls::{MinTlsVersion, Tls};

    fn pod(folder: &Path, given: Option<SecretFiles>) -> PodCertificates {
        let (own, scheduler) = (folder.join("own"), folder.join("scheduler"));
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(&scheduler).unwrap();
        PodCertificates {
            own,
            scheduler,
            server_name: "andreas-extender".into(),
            client_name: "andreas-scheduler".into(),
            lifetimes: CertificateLifetimes::default(),
            given,
        }
    }

    fn text(path: PathBuf) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_pod_makes_its_own_certificates_and_keeps_them_over_restarts() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let pod = pod(folder.path(), None);
        let now = Timestamp::now();
        let made = pod.renew(now, true).unwrap();
        let ca = text(pod.scheduler.join("ca.crt"));
        let chain = String::from_utf8(made.certificate.clone()).unwrap();
        assert!(verifies(&chain, &ca, "andreas-extender", now));
        usable(&text(pod.scheduler.join("client.crt")), &text(pod.scheduler.join("client.key"))).unwrap();
        for (file, mode) in [("scheduler/client.key", 0o600), ("own/state.json", 0o600)] {
            let seen = fs::metadata(folder.path().join(file)).unwrap().permissions().mode() & 0o777;
            assert_eq!(seen, mode, "{file}");
        }
        assert!(made == pod.renew(now, false).unwrap(), "a restart changes nothing");
        Tls::from_pem(made, Some(vec!["andreas-scheduler".into()]), MinTlsVersion::Tls13).unwrap();
    }

    #[test]
    fn kube_scheduler_goes_on_with_the_authority_that_it_has_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut pod = pod(folder.path(), None);
        pod.lifetimes =
            CertificateLifetimeArgs { renew_certificates_every: Some(60), renew_authority_every: Some(60) }
                .into();
        let mut now = Timestamp::now();
        let first = pod.renew(now, true).unwrap();
        let read_once = text(pod.scheduler.join("ca.crt"));
        let key = text(pod.scheduler.join("client.key"));
        for _ in 0..3 {
            now += jiff::SignedDuration::from_secs(61);
            let next = pod.renew(now, false).unwrap();
            let chain = String::from_utf8(next.certificate.clone()).unwrap();
            assert!(next != first && verifies(&chain, &read_once, "andreas-extender", now));
            usable(&text(pod.scheduler.join("client.crt")), &key).unwrap();
        }
    }

    #[test]
    fn certificates_of_a_clock_that_was_ahead_are_made_again_under_the_authority_that_was_read() {
        let folder = tempfile::tempdir().unwrap();
        let pod = pod(folder.path(), None);
        let now = Timestamp::now();
        pod.renew(now + jiff::SignedDuration::from_hours(48), true).unwrap();
        let read_once = text(pod.scheduler.join("ca.crt"));
        let begins = || validity(&text(pod.scheduler.join("client.crt"))).unwrap().from;
        assert!(begins() > now);
        let next = pod.renew(now, false).unwrap();
        let chain = String::from_utf8(next.certificate).unwrap();
        assert!(verifies(&chain, &read_once, "andreas-extender", now) && begins() < now);
    }

    #[test]
    fn a_given_certificate_of_another_authority_waits_for_a_restart_of_the_pod() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let give = |maker: &str| {
            let maker = pod(&folder.path().join(maker), None);
            let made = maker.renew(Timestamp::now(), true).unwrap();
            fs::write(file("tls.crt"), &made.certificate).unwrap();
            fs::write(file("tls.key"), &made.key).unwrap();
            fs::write(file("ca.crt"), &made.authority).unwrap();
            made
        };
        let first = give("former");
        let given =
            SecretFiles { certificate: file("tls.crt"), key: file("tls.key"), authority: file("ca.crt") };
        let pod = pod(&file("pod"), Some(given));
        let now = Timestamp::now();
        assert!(pod.renew(now, true).unwrap() == first);
        assert!(!pod.scheduler.join("client.key").exists(), "the Secret of kube-scheduler has it");

        let second = give("latter");
        let held = pod.renew(now, false).unwrap();
        assert!(held.certificate == first.certificate && held.key == first.key);
        // kube-scheduler's certificate may be from either CA.
        let bundle = String::from_utf8(held.authority).unwrap();
        assert_eq!(bundle.matches("BEGIN").count(), 2);
        // The pair is half replaced: it is rejected.
        fs::write(file("tls.key"), &first.key).unwrap();
        assert!(pod.renew(now, false).is_err());
        fs::write(file("tls.key"), &second.key).unwrap();
        // The pod is recreated.
        assert!(pod.renew(now, true).unwrap().certificate == second.certificate);
    }
}
