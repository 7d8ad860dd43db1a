//! Kubeconfigs as files, and clients that speak with them.

use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::pki::{Pki, PkiError, write};

/// An identity could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Its certificate could not be made, or a file not be written.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The API server gave no token.
    #[error("no token for the service account {account}")]
    Token {
        /// `NAMESPACE/NAME`.
        account: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// The kubeconfig could not be used.
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<kube::config::KubeconfigError>,
    },
    /// No client could be made of the kubeconfig.
    #[error("cannot make a client of the kubeconfig {path}")]
    Client {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<kube::Error>,
    },
}

pub(crate) fn make_folder(folder: &Path) -> Result<(), PkiError> {
    std::fs::create_dir_all(folder).map_err(|source| PkiError::File { path: folder.to_owned(), source })
}

pub(crate) async fn client(kubeconfig: &Path) -> Result<kube::Client, IdentityError> {
    let failed = |source| IdentityError::Kubeconfig { path: kubeconfig.to_owned(), source: Box::new(source) };
    let read = Kubeconfig::read_from(kubeconfig).map_err(failed)?;
    let config =
        kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(failed)?;
    kube::Client::try_from(config)
        .map_err(|source| IdentityError::Client { path: kubeconfig.to_owned(), source: Box::new(source) })
}

pub(crate) fn user_kubeconfig(
    pki: &Pki,
    path: &Path,
    server: &str,
    user: &str,
    group: Option<&str>,
) -> Result<PathBuf, IdentityError> {
    let made = pki.client(user, group)?;
    let credentials = json!({
        "client-certificate-data": base64(&made.certificate),
        "client-key-data": base64(&made.key),
    });
    write_kubeconfig(path, server, pki.ca(), "default", &credentials)?;
    Ok(path.to_owned())
}

pub(crate) fn write_kubeconfig(
    path: &Path,
    server: &str,
    ca: &str,
    namespace: &str,
    credentials: &Value,
) -> Result<(), PkiError> {
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {"server": server, "certificate-authority-data": base64(ca)}}],
        "users": [{"name": "testbed", "user": credentials}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed", "namespace": namespace}}],
        "current-context": "testbed",
    });
    // JSON is YAML.
    write(path, &format!("{kubeconfig:#}\n"))
}

/// Kubernetes' byte strings travel as base64.
fn base64(text: &str) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(text.as_bytes().to_vec())).expect("bytes always serialise")
}
