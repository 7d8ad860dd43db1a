//! Certificates of the progress endpoint: one Secret, maintained by the leader, served by every replica.
//!
//! **In**: the Secret, certificate files from outside if given, and the authorities given to running pods (an
//! annotation on each member). **Out**: the endpoint's certificate, the CA bundle for new pods, the next
//! state of the Secret.
//!
//! The rule is [`andreas_runtime::certificates::renew`]. Programs that do not know the authority of a new
//! certificate cannot report, and are not blamed for it. Without the flag for the Secret, the state is in memory.
//!
//! **Never here**: handling of reports (see progress).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use andreas_cluster::index::ClusterIndex;
use andreas_lifecycle::{ProgressEndpoint, Settings};
use andreas_runtime::certificates::{
    AuthorityPem, CertificateLifetime, CertificateMetrics, CertificatesError, RenewalInput,
    ServingCertificate, Subject, renew, validity,
};
use andreas_runtime::clock;
use andreas_runtime::health::ReadyHandle;
use andreas_runtime::tls::{RELOAD_EVERY, Tls, TlsError, TlsPem};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Client, Resource as _};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::authorities::{bundles, untrusting_jobs};
use crate::args::ProgressArgs;
use crate::progress::RejectedReports;
use crate::shared::Shared;
use crate::writes::writer::{WriteError, Writer, get};

/// Name of the endpoint's certificate in metrics.
const SERVING: &str = "progress";
/// Name of its authority in metrics.
const AUTHORITY: &str = "progress-authority";
/// How long a new leader waits for certificates before it creates pods without a progress address.
const CERTIFICATES_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failure during that time.
const PAUSE: Duration = Duration::from_secs(1);

/// Keys of a TLS Secret as cert-manager and others write it; then our own authority's.
const KEYS: [&str; 5] = ["tls.crt", "tls.key", "ca.crt", "authority.crt", "authority.key"];

/// Why the certificates were not updated.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file could not be read.
    #[error("{path} cannot be read")]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The Secret could not be read.
    #[error("the Secret cannot be read")]
    Read(#[from] kube::Error),
    /// The Secret could not be written.
    #[error("the Secret cannot be written")]
    Write(#[from] WriteError),
    /// A certificate is invalid or could not be created.
    #[error(transparent)]
    Certificates(#[from] CertificatesError),
    /// The endpoint cannot serve with it.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Storage of the state.
enum Store {
    Secret { namespace: String, name: String },
    Memory(Mutex<ServingCertificate>),
}

/// Certificate files from outside.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    authority: Option<PathBuf>,
}

/// The certificates of the progress endpoint.
pub struct Certificates {
    store: Store,
    files: Option<Files>,
    subject: Subject,
    url: Option<String>,
    lifetime: CertificateLifetime,
    client: Client,
    index: Arc<Mutex<ClusterIndex>>,
    serving: Serving,
    leads: AtomicBool,
    rejected_reports: Arc<RejectedReports>,
}

/// What the endpoint serves now.
struct Serving {
    last: Mutex<ServingCertificate>,
    tls: watch::Sender<Option<Tls>>,
    metrics: CertificateMetrics,
    /// Set once there is a certificate.
    ready: ReadyHandle,
}

impl Certificates {
    /// From the endpoint's flags; `ready` is set once there is a certificate to serve.
    pub fn new(
        flags: &ProgressArgs,
        namespace: &str,
        client: Client,
        index: Arc<Mutex<ClusterIndex>>,
        metrics: CertificateMetrics,
        ready: ReadyHandle,
        rejected_reports: Arc<RejectedReports>,
    ) -> Arc<Self> {
        let files = flags.tls_cert.clone().zip(flags.tls_key.clone()).map(|(certificate, key)| Files {
            certificate,
            key,
            authority: flags.progress_ca.clone(),
        });
        let store = match &flags.certificates_secret {
            Some(name) => Store::Secret { namespace: namespace.to_owned(), name: name.clone() },
            None => Store::Memory(Mutex::default()),
        };
        Arc::new(Self {
            store,
            files,
            subject: subject(flags.progress_url.as_deref()),
            url: flags.progress_url.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
            lifetime: flags.lifetime.into(),
            client,
            index,
            serving: Serving::new(metrics, ready),
            leads: AtomicBool::new(false),
            rejected_reports,
        })
    }

    /// The certificate to serve, once there is one.
    pub async fn tls(&self) -> Option<Tls> {
        self.serving.tls().await
    }

    /// The endpoint as given to pods; `None` while its CA is unknown.
    pub fn endpoint(&self) -> Option<ProgressEndpoint> {
        let ca_pem = self.serving.last().bundle;
        let base_url = self.url.clone()?;
        (!ca_pem.is_empty()).then_some(ProgressEndpoint { base_url, ca_pem })
    }

    /// Serves the Secret's or the files' certificate until `shutdown`. The leader uses
    /// [`Certificates::lead`].
    pub async fn follow(self: Arc<Self>, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            if !self.leads.load(Ordering::Relaxed) {
                self.refresh(None).await;
            }
            tokio::select! {
                () = tokio::time::sleep(self.every()) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }

    /// A new leader's first update: retries for a while, because pods keep their address and CA for life.
    pub async fn begin(&self, writer: &Writer) {
        self.leads.store(true, Ordering::Relaxed);
        let tried = async {
            while !self.refresh(Some(writer)).await {
                tokio::time::sleep(PAUSE).await;
            }
        };
        if tokio::time::timeout(CERTIFICATES_TIMEOUT, tried).await.is_err() {
            tracing::error!("no certificates: pods are made without a progress address");
        }
        self.note_lost_reports();
    }

    /// Notes that reports of members which do not trust the served certificate are lost.
    fn note_lost_reports(&self) {
        let chain = self.serving.last().chain;
        let Some(name) = self.subject.names.first().filter(|_| !chain.is_empty()) else { return };
        let now = clock::now();
        let given = bundles(&self.index.lock());
        for uid in untrusting_jobs(given, &chain, name, now) {
            self.rejected_reports.note(&uid, now);
        }
    }

    /// Renews certificates and updates the bundle for new pods, until `shutdown`.
    pub async fn lead(self: Arc<Self>, shared: Arc<Shared>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.every()) => {}
                () = shutdown.cancelled() => return,
            }
            self.refresh(Some(&shared.writer)).await;
            self.note_lost_reports();
            let progress = self.endpoint();
            let mut settings = shared.settings.lock();
            if progress.is_some() && settings.progress != progress {
                *settings = Arc::new(Settings { progress, ..(**settings).clone() });
            }
        }
    }

    fn every(&self) -> Duration {
        self.lifetime.check_every(RELOAD_EVERY)
    }

    /// One update; `true` if there is a certificate to serve and no error.
    async fn refresh(&self, writer: Option<&Writer>) -> bool {
        match self.try_refresh(writer).await {
            Ok(()) => self.serving.begun(),
            Err(error) => {
                self.serving.metrics.record_failure(SERVING);
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "certificates not renewed, the old ones stay");
                false
            }
        }
    }

    /// One update. Leader (`writer` set): renews and stores. Others: serve the stored certificate, or the files' one
    /// before any leader.
    async fn try_refresh(&self, writer: Option<&Writer>) -> Result<(), CertificateError> {
        let from_files = self.files.as_ref().map(Files::read);
        let (namespace, name) = match &self.store {
            Store::Secret { namespace, name } => (namespace, name),
            Store::Memory(current) => {
                let from_files = from_files.transpose()?;
                let mut current = current.lock();
                *current = self.next(&current, from_files.as_ref())?;
                return self.serving.replace(&current);
            }
        };
        let url = Secret::url_path(&(), Some(namespace));
        let found: Option<Secret> = get(&self.client, &url, name).await?;
        let version = found.as_ref().and_then(|secret| secret.metadata.resource_version.clone());
        let stored = found.map(read).unwrap_or_default();
        if !stored.chain.is_empty() {
            self.serving.replace(&stored)?;
        }
        let Some(writer) = writer else {
            // There was no leader yet.
            return match from_files.transpose()? {
                Some(from_files) if !self.serving.begun() => self.serving.replace(&from_files),
                _ => Ok(()),
            };
        };
        // The Secret may have been deleted; running pods still trust its contents.
        let current = if stored.chain.is_empty() { self.serving.last() } else { stored.clone() };
        let renewed = self.next(&current, from_files.transpose()?.as_ref())?;
        if renewed != stored {
            writer.apply("secret", &url, name, &secret(&renewed, namespace, name, version)).await?;
            self.serving.replace(&renewed)?;
        }
        Ok(())
    }

    fn next(
        &self,
        stored: &ServingCertificate,
        given: Option<&ServingCertificate>,
    ) -> Result<ServingCertificate, CertificatesError> {
        let (subject, lifetime) = (&self.subject, self.lifetime);
        renew(stored, &RenewalInput { subject, lifetime, now: clock::now(), given })
    }
}

impl Serving {
    fn new(metrics: CertificateMetrics, ready: ReadyHandle) -> Self {
        Self { last: Mutex::default(), tls: watch::Sender::new(None), metrics, ready }
    }

    /// The certificate, once there is one.
    async fn tls(&self) -> Option<Tls> {
        let mut served = self.tls.subscribe();
        served.wait_for(Option::is_some).await.ok().and_then(|tls| tls.clone())
    }

    fn begun(&self) -> bool {
        self.tls.borrow().is_some()
    }

    fn last(&self) -> ServingCertificate {
        self.last.lock().clone()
    }

    /// Serves a certificate from now on.
    fn replace(&self, kept: &ServingCertificate) -> Result<(), CertificateError> {
        let pem = TlsPem { certificate: kept.chain.clone().into_bytes(), key: kept.key.clone().into_bytes() };
        let served = self.tls.borrow().clone();
        match served {
            Some(tls) => drop(tls.replace(pem)?),
            None => {
                let tls = Tls::from_pem(pem)?;
                self.tls.send_if_modified(|served| {
                    served.get_or_insert(tls);
                    true
                });
            }
        }
        self.last.lock().clone_from(kept);
        self.ready.set();
        for (name, pem) in [(SERVING, &kept.chain), (AUTHORITY, &kept.bundle)] {
            if let Some(validity) = validity(pem) {
                self.metrics.record_validity(name, validity);
            }
        }
        Ok(())
    }
}

impl Files {
    fn read(&self) -> Result<ServingCertificate, CertificateError> {
        let text = |path: &PathBuf| {
            std::fs::read_to_string(path)
                .map_err(|source| CertificateError::File { path: path.clone(), source })
        };
        Ok(ServingCertificate {
            chain: text(&self.certificate)?,
            key: text(&self.key)?,
            bundle: self.authority.as_ref().map(text).transpose()?.unwrap_or_default(),
            authority: None,
        })
    }
}

/// The endpoint's DNS names: those of its Service from the longest to the shortest, and loopback.
fn subject(url: Option<&str>) -> Subject {
    let rest = url.unwrap_or_default().trim_start_matches("https://");
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let host = if host.is_empty() { "localhost" } else { host };
    let mut names = vec![host.to_owned()];
    if let Some(service) = host.strip_suffix(".svc") {
        names.push(service.to_owned());
        names.extend(service.split('.').next().map(str::to_owned));
    }
    names.push("127.0.0.1".into());
    names.dedup();
    Subject { names }
}

fn read(secret: Secret) -> ServingCertificate {
    let data = secret.data.unwrap_or_default();
    let [chain, key, bundle, certificate, authority_key] = KEYS.map(|name| {
        data.get(name).map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
    });
    let authority = (!certificate.is_empty()).then_some(AuthorityPem { certificate, key: authority_key });
    ServingCertificate { chain, key, bundle, authority }
}

/// The Secret for server-side apply; refused if its version has changed.
fn secret(kept: &ServingCertificate, namespace: &str, name: &str, version: Option<String>) -> Secret {
    let (certificate, authority_key) =
        kept.authority.as_ref().map(|a| (a.certificate.as_str(), a.key.as_str())).unwrap_or_default();
    let texts = [kept.chain.as_str(), &kept.key, &kept.bundle, certificate, authority_key];
    let data = KEYS.into_iter().zip(texts).filter(|(_, text)| !text.is_empty());
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            resource_version: version,
            labels: Some(BTreeMap::from([
                ("app.kubernetes.io/part-of".to_owned(), "andreas".to_owned()),
                ("app.kubernetes.io/component".to_owned(), "operator".to_owned()),
            ])),
            ..ObjectMeta::default()
        },
        data: Some(data.map(|(key, text)| (key.to_owned(), ByteString(text.into()))).collect()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_names_are_those_of_the_service() {
        let names = |url| subject(Some(url)).names;
        let service =
            ["andreas-operator.andreas-system.svc", "andreas-operator.andreas-system", "andreas-operator"];
        let all: Vec<String> = service.iter().chain(&["127.0.0.1"]).map(|name| (*name).to_owned()).collect();
        assert_eq!(names("https://andreas-operator.andreas-system.svc:8443"), all);
        assert_eq!(names("https://progress.example.com/path"), ["progress.example.com", "127.0.0.1"]);
        assert_eq!(names("https://127.0.0.1:8443"), ["127.0.0.1"]);
        assert_eq!(subject(None).names, ["localhost", "127.0.0.1"]);
    }

    #[test]
    fn a_secret_keeps_what_is_put_into_it() {
        let authority = AuthorityPem { certificate: "root".into(), key: "its key".into() };
        for authority in [None, Some(authority)] {
            let kept = ServingCertificate {
                chain: "chain".into(),
                key: "key".into(),
                bundle: "bundle".into(),
                authority,
            };
            let made = secret(&kept, "system", "tls", Some("7".into()));
            assert_eq!(made.metadata.resource_version.as_deref(), Some("7"));
            assert_eq!(read(made), kept);
        }
        // As cert-manager writes it; additional foreign keys are ignored.
        let theirs = json!({"metadata": {"name": "tls"}, "type": "kubernetes.io/tls",
            "data": {"tls.crt": "Yw==", "tls.key": "aw==", "ca.crt": "YQ==", "tls-combined.pem": "eA=="}});
        let kept = read(serde_json::from_value(theirs).unwrap());
        assert_eq!((kept.chain.as_str(), kept.key.as_str(), kept.bundle.as_str()), ("c", "k", "a"));
        assert_eq!(kept.authority, None);
    }
}
