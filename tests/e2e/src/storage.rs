//! Volumes for claims: a default StorageClass and its provisioner.
//!
//! The real scheduler and the real persistent-volume controller bind claims; this makes the volumes they bind, one for
//! every claim of the class. What a claim holds is a folder that all nodes see.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::PostParams;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::task::JoinSet;

use crate::apply::apply;

const CLASS: &str = "folders";
/// Where pretend kubelets keep what claims hold; they make a folder when it is asked for.
const OF_PRETEND_NODES: &str = "/testbed/claims";

/// A running provisioner; dropped, it ends.
pub struct Storage {
    _tasks: JoinSet<()>,
}

impl Storage {
    /// Makes the default StorageClass and starts to serve claims, on real nodes by folders in this one.
    ///
    /// # Errors
    /// When the class cannot be made.
    pub async fn start(client: &Client, real: Option<PathBuf>) -> Result<Self> {
        apply(
            client,
            &json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
                "provisioner": "testbed.andreas.dev/folders",
                "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
            }),
        )
        .await
        .context("the StorageClass")?;
        let mut tasks = JoinSet::new();
        let client = client.clone();
        tasks.spawn(async move {
            let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
            let mut events = watcher(claims, Config::default()).boxed();
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Apply(claim) | Event::InitApply(claim)) => {
                        if let Err(error) = provision(&client, &claim, real.as_deref()).await {
                            eprintln!("no volume for claim {}: {error:#}", claim.name_any());
                        }
                    }
                    Ok(_) => {}
                    // The API server may be away; the watcher goes on where it was.
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(300)).await,
                }
            }
        });
        Ok(Self { _tasks: tasks })
    }
}

async fn provision(client: &Client, claim: &PersistentVolumeClaim, real: Option<&Path>) -> Result<()> {
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.volume_name.is_some() || spec.storage_class_name.as_deref() != Some(CLASS) {
        return Ok(());
    }
    let uid = claim.uid().context("a claim has a UID")?;
    let folder = match real {
        None => format!("{OF_PRETEND_NODES}/{uid}"),
        Some(real) => {
            let folder = real.join(&uid);
            std::fs::create_dir_all(&folder)?;
            // For whatever user the pod has.
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777))?;
            folder.display().to_string()
        }
    };
    let capacity: BTreeMap<_, _> = spec
        .resources
        .and_then(|r| r.requests)
        .into_iter()
        .flatten()
        .filter(|(k, _)| k == "storage")
        .collect();
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": format!("pvc-{uid}")},
        "spec": {
            "capacity": capacity,
            "accessModes": spec.access_modes,
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
            "hostPath": {"path": folder},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace(), "name": claim.name_any(), "uid": uid,
            },
        },
    }))?;
    match Api::<PersistentVolume>::all(client.clone()).create(&PostParams::default(), &volume).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
