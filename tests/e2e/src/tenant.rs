//! Somebody who means harm: an account with the cluster's role `edit` in one namespace, and no other right.
//!
//! In: a cluster. Out: what such an account can do in bulk. What must never be here: an administrator's right, once the account is
//! made.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use kube::core::Status;
use kube::{Client, ResourceExt as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::api;
use crate::cluster::Cluster;

/// Pause before a connection that was closed is opened again.
const REOPEN: Duration = Duration::from_millis(250);
/// Pause between two requests of a connection that asks.
const ASKS_EVERY: Duration = Duration::from_secs(5);
/// How long rights may take until they hold: the controller manager gathers aggregated roles.
const RIGHTS_WITHIN: Duration = Duration::from_secs(60);

/// The account.
pub struct Tenant {
    /// Its namespace, made for it.
    pub namespace: String,
    /// Its client.
    pub client: Client,
}

impl Tenant {
    /// Makes the namespace and the account; returns when its rights hold.
    ///
    /// # Errors
    /// When they do not within a minute.
    pub async fn new(c: &Cluster, namespace: &str) -> Result<Self> {
        c.make_namespace(namespace).await?;
        c.kubectl(&format!("create serviceaccount tenant -n {namespace}")).await?;
        let account = format!("--serviceaccount={namespace}:tenant");
        c.kubectl(&format!("create rolebinding tenant -n {namespace} --clusterrole=edit {account}")).await?;
        let kubeconfig = c.testbed.kubeconfig_for_service_account(namespace, "tenant").await?;
        let this = Self { namespace: namespace.into(), client: c.testbed.client_for(&kubeconfig).await? };
        let ask = format!(
            "auth can-i create trainingjobs.andreas.dev -n {namespace} --as=system:serviceaccount:{namespace}:tenant"
        );
        let may = async || Ok(c.kubectl(&ask).await.is_ok_and(|said| said.trim() == "yes"));
        until("the role edit holds our kinds", RIGHTS_WITHIN, may).await?;
        Ok(this)
    }

    /// Creates all of these, some at a time; the refusals, with the API server's words.
    ///
    /// # Errors
    /// When one is not answered.
    pub async fn create_all(&self, objects: impl Iterator<Item = Value>) -> Result<Vec<Status>> {
        api::create_all(&self.client, objects).await
    }

    /// A token of its namespace's default account for that audience, bound to a pod of its own.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn token_of_pod(&self, pod: &str, audience: &str) -> Result<String> {
        let pods: Api<k8s_openapi::api::core::v1::Pod> =
            Api::namespaced(self.client.clone(), &self.namespace);
        let uid = pods.get(pod).await?.uid();
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec![audience.into()]),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(pod.into()),
                    uid,
                }),
                expiration_seconds: None,
            }),
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let made = accounts.create_token_request("default", &PostParams::default(), &request).await?;
        made.status.and_then(|status| status.token).context("a token")
    }
}

/// Keeps `count` connections open on which nothing is said; one that is closed is opened again. `opened` counts all.
pub fn silent_connections(
    tasks: &mut JoinSet<()>,
    address: SocketAddr,
    count: usize,
    opened: &Arc<AtomicUsize>,
) {
    for _ in 0..count {
        let opened = Arc::clone(opened);
        tasks.spawn(async move {
            loop {
                if let Ok(mut stream) = TcpStream::connect(address).await {
                    opened.fetch_add(1, Ordering::Relaxed);
                    let _ = stream.read(&mut [0; 64]).await;
                }
                tokio::time::sleep(REOPEN).await;
            }
        });
    }
}

/// Waits until so many were counted.
///
/// # Errors
/// When they are not within the limit.
pub async fn at_least(counted: &AtomicUsize, count: usize, what: &str, limit: Duration) -> Result<()> {
    let enough = async || Ok(counted.load(Ordering::Relaxed) >= count);
    let waited = until(&format!("{count} {what}"), limit, enough).await;
    waited.with_context(|| format!("only {counted:?}"))?;
    Ok(())
}

/// Keeps `count` connections open that ask without a token, again and again; one that is closed is opened again after a pause.
/// `answered` counts the answers.
///
/// # Errors
/// When the authority is not to be read.
pub fn connections_without_token(
    tasks: &mut JoinSet<()>,
    address: SocketAddr,
    authority: &Path,
    count: usize,
    answered: &Arc<AtomicUsize>,
) -> Result<()> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority)? {
        roots.add(certificate?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    for _ in 0..count {
        let (connector, answered) = (connector.clone(), Arc::clone(answered));
        tasks.spawn(async move {
            loop {
                let _ = ask_without_token(&connector, address, &answered).await;
                tokio::time::sleep(ASKS_EVERY).await;
            }
        });
    }
    Ok(())
}

async fn ask_without_token(
    connector: &TlsConnector,
    address: SocketAddr,
    answered: &AtomicUsize,
) -> Result<()> {
    let name = ServerName::from(address.ip());
    let mut stream = connector.connect(name, TcpStream::connect(address).await?).await?;
    loop {
        let post = "POST /apis/trainer.kubeflow.org/v1alpha1/namespaces/a/trainjobs/b/status HTTP/1.1\r\n\
                    Host: a\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(post.as_bytes()).await?;
        let mut answer = [0; 1_024];
        ensure!(stream.read(&mut answer).await? > 0, "closed");
        ensure!(answer.starts_with(b"HTTP/1.1 401"), "answered");
        answered.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(ASKS_EVERY).await;
    }
}
