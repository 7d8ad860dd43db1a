//! A control plane for one scenario after another: what a scenario leaves is removed before the next begins.
//!
//! Starting the control plane's programs costs more than most scenarios do on it. [`Testbed::inventory`] notes what a fresh one
//! holds, [`Testbed::restore`] brings it back there: processes of the scenario end, objects and files beside the noted ones go,
//! and the audit log begins anew. A noted object that is gone or changed makes `restore` fail: such a control plane is not
//! used again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::discovery::{ApiResource, Discovery, Scope, verbs};
use kube::{Client, ResourceExt as _};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::components::Component;
use crate::kubeconfig;
use crate::process::ProcessState;
use crate::testbed::Testbed;

/// How long the controllers may take to end what was deleted.
const GONE_LIMIT: Duration = Duration::from_secs(30);
/// Kinds that come and go by themselves, or that nobody can delete.
const BY_THEMSELVES: [&str; 4] = ["events", "componentstatuses", "endpoints", "endpointslices"];

/// A control plane cannot be used again.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// One of its programs does not run, or was started anew.
    #[error("{0} is not as it was started")]
    Component(Component),
    /// An object that was there from the beginning is gone or was changed.
    #[error("{0} is not as it was")]
    Changed(String),
    /// Something could not be removed in time.
    #[error("{0} stays")]
    Stays(String),
    /// The API server.
    #[error("asking the API server")]
    Api(#[source] Box<kube::Error>),
    /// A file or folder.
    #[error("removing {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl From<kube::Error> for RestoreError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

/// An object's place: plural and group, namespace (empty for none), name.
type Key = (String, String, String);

fn shown((kind, namespace, name): &Key) -> String {
    format!("{kind} {namespace}/{name}")
}

/// What a control plane holds.
#[derive(Debug)]
pub struct Inventory {
    kinds: Vec<ApiResource>,
    /// Objects, each with what changes when somebody changes it.
    objects: BTreeMap<Key, String>,
    files: BTreeSet<PathBuf>,
}

struct ListedObject {
    kind: ApiResource,
    object: PartialObjectMeta<DynamicObject>,
}

impl ListedObject {
    fn key(&self) -> Key {
        let kind = format!("{}.{}", self.kind.plural, self.kind.group);
        (kind, self.object.namespace().unwrap_or_default(), self.object.name_any())
    }

    /// UID and generation; the resource version where there is no generation and only people write.
    fn version(&self) -> String {
        let metadata = &self.object.metadata;
        // The controller manager adds the rules of others to these.
        let aggregated = ["admin", "edit", "view"].contains(&self.object.name_any().as_str());
        let by_people = self.kind.group == "rbac.authorization.k8s.io" && !aggregated
            || ["namespaces", "secrets"].contains(&self.kind.plural.as_str());
        let written = match metadata.generation {
            Some(generation) => generation.to_string(),
            None if by_people => metadata.resource_version.clone().unwrap_or_default(),
            None => String::new(),
        };
        format!("{} {written}", metadata.uid.as_deref().unwrap_or_default())
    }

    fn api(&self, client: &Client) -> Api<DynamicObject> {
        match self.object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &self.kind),
            None => Api::all_with(client.clone(), &self.kind),
        }
    }

    fn is_namespace(&self) -> bool {
        self.kind.group.is_empty() && self.kind.plural == "namespaces"
    }

    /// Deletes it at once, whatever would hold it.
    async fn remove(&self, client: &Client) -> Result<(), kube::Error> {
        let (api, name) = (self.api(client), self.object.name_any());
        let gone = |result: Result<(), kube::Error>| match result {
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
            other => other,
        };
        if self.object.metadata.deletion_timestamp.is_none() || self.kind.plural == "pods" {
            gone(api.delete(&name, &DeleteParams::background().grace_period(0)).await.map(drop))?;
        }
        if !self.is_namespace() && !self.object.finalizers().is_empty() {
            let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            gone(api.patch_metadata(&name, &PatchParams::default(), &free).await.map(drop))?;
        }
        Ok(())
    }
}

async fn removable_resources(client: &Client) -> Result<Vec<ApiResource>, kube::Error> {
    let discovered = Discovery::new(client.clone()).run_aggregated().await?;
    let all = discovered.groups().flat_map(|group| group.recommended_resources());
    let removable = all.filter(|(kind, can)| {
        can.supports_operation(verbs::LIST)
            && can.supports_operation(verbs::DELETE)
            && matches!(can.scope, Scope::Cluster | Scope::Namespaced)
            && !BY_THEMSELVES.contains(&kind.plural.as_str())
    });
    Ok(removable.map(|(kind, _)| kind).collect())
}

async fn list(client: &Client, kinds: &[ApiResource]) -> Result<Vec<ListedObject>, kube::Error> {
    let lists = kinds.iter().map(async |kind| {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), kind);
        let list = api.list_metadata(&ListParams::default()).await?;
        let found = list.items.into_iter().map(|object| ListedObject { kind: kind.clone(), object });
        Ok::<_, kube::Error>(found.collect::<Vec<_>>())
    });
    Ok(futures::future::try_join_all(lists).await?.into_iter().flatten().collect())
}

/// Files and folders of a data folder, two levels deep.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let within = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let first = within(folder);
    let second = first.iter().flat_map(|path| within(path)).collect::<Vec<_>>();
    first.into_iter().chain(second).collect()
}

impl Testbed {
    /// What the control plane holds now, for [`Testbed::restore`].
    ///
    /// # Errors
    /// What the API server says.
    pub async fn inventory(&self) -> Result<Inventory, RestoreError> {
        let client = self.client();
        let kinds = removable_resources(&client).await?;
        let objects =
            list(&client, &kinds).await?.iter().map(|found| (found.key(), found.version())).collect();
        Ok(Inventory { kinds, objects, files: files(self.data_dir()) })
    }

    /// Brings the control plane back to what it held then. Processes that were spawned besides must have been dropped.
    ///
    /// # Errors
    /// When it cannot be used again.
    pub async fn restore(&mut self, before: &Inventory) -> Result<(), RestoreError> {
        self.end_others();
        for status in self.status() {
            // The controller manager is restarted to make it look for kinds; it has no state.
            let anew = status.starts > 1 && status.component != Component::ControllerManager;
            if status.state != ProcessState::Running || anew {
                return Err(RestoreError::Component(status.component));
            }
        }
        self.remove_objects(before).await?;
        for path in files(self.data_dir()).difference(&before.files) {
            let removed =
                if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            match removed {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                result => {
                    result.map_err(|source| RestoreError::File { path: path.clone(), source })?;
                }
            }
        }
        self.forget_audit();
        Ok(())
    }

    /// A client that belongs to the present runtime: an earlier one ends with the runtime it was made in.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn renew_client(&mut self) -> Result<(), kubeconfig::IdentityError> {
        self.admin = kubeconfig::client(&self.kubeconfig()).await?;
        Ok(())
    }

    /// Kills every process of the sandbox but the control plane's.
    fn end_others(&self) {
        self.forget(Component::Kubelets);
        let kept: BTreeSet<u32> = self.status().iter().filter_map(|status| status.pid).collect();
        let (name, value) = self.sandbox.mark();
        let mark = format!("{name}={}", value.to_string_lossy());
        let others = || {
            let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
            let marked = pids.filter(|pid| !kept.contains(pid)).filter(|pid| {
                let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
            });
            marked.filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).collect::<Vec<_>>()
        };
        // A process that is ending may just have made another one.
        for _ in 0..50 {
            let others = others();
            if others.is_empty() {
                return;
            }
            for pid in others {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    async fn remove_objects(&self, before: &Inventory) -> Result<(), RestoreError> {
        let client = self.client();
        let until = Instant::now() + GONE_LIMIT;
        let now = loop {
            let now = list(&client, &before.kinds).await?;
            let extra: Vec<&ListedObject> =
                now.iter().filter(|found| !before.objects.contains_key(&found.key())).collect();
            let Some(first) = extra.first() else { break now };
            if Instant::now() > until {
                return Err(RestoreError::Stays(shown(&first.key())));
            }
            futures::future::try_join_all(extra.iter().map(|found| found.remove(&client))).await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        let now: BTreeMap<Key, String> = now.iter().map(|found| (found.key(), found.version())).collect();
        if let Some((key, _)) = before.objects.iter().find(|(key, version)| now.get(*key) != Some(*version)) {
            return Err(RestoreError::Changed(shown(key)));
        }
        let events: Api<Event> = Api::namespaced(client, "default");
        events.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        Ok(())
    }
}
