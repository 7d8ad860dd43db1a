//! Which pod holds which GPU, by what the kubelet says.
//!
//! The kubelet tells pods by namespace and name; the operator speaks of UIDs, because names are used again. UIDs are read from
//! the API server once per pod, beside the loop, and again when the pod's GPUs change or some minutes have passed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_podresources::messages::PodResources;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::Request;
use parking_lot::Mutex;
use serde::Deserialize;

use crate::setting::Uuid;

/// A UID is read again after this time.
const TRUSTED: Duration = Duration::from_secs(300);
/// A failed look-up is tried again after this time.
const RETRY: Duration = Duration::from_secs(2);
/// Look-ups on their way at a time.
const AT_ONCE: usize = 8;

/// Namespace and name of a pod.
pub type PodKey = (String, String);

/// Who holds what, by one answer of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Holder by GPU.
    pub gpus: BTreeMap<Uuid, PodKey>,
    /// Devices are held of which it is not known which GPU they are part of.
    pub unclear: bool,
}

/// Reads the kubelet's answer. `known` are the UUIDs of the node's GPUs, `resource` the prefix of resources that are GPUs.
#[must_use]
pub fn held(pods: &[PodResources], known: &BTreeSet<Uuid>) -> Held {
    let mut held = Held::default();
    for pod in pods {
        let key = || (pod.namespace.clone(), pod.name.clone());
        for container in &pod.containers {
            for device in container.devices.iter().flat_map(|devices| {
                devices.device_ids.iter().map(move |id| (devices.resource_name.as_str(), id))
            }) {
                let (resource, id) = device;
                // Time slices are named `<uuid>::<n>` by NVIDIA's plug-in.
                let uuid = id.split("::").next().unwrap_or_default();
                if known.contains(uuid) {
                    held.gpus.insert(uuid.to_owned(), key());
                } else if resource.starts_with("nvidia.com/") {
                    held.unclear = true;
                }
            }
            // The UUID of a claimed device is in a ResourceSlice, which this agent does not read.
            let claims = container.dynamic_resources.iter().flat_map(|claim| &claim.claim_resources);
            held.unclear |= claims.into_iter().any(|device| device.driver_name.ends_with("gpu.nvidia.com"));
        }
    }
    held
}

/// UIDs of the pods that hold GPUs.
#[derive(Clone, Default)]
pub struct Uids {
    known: Arc<Mutex<BTreeMap<PodKey, Entry>>>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    gpus: BTreeSet<Uuid>,
    uid: Option<String>,
    asked: Option<Instant>,
    asking: bool,
}

#[derive(Deserialize)]
struct PodIdentity {
    #[serde(deserialize_with = "andreas_api::slim::metadata")]
    metadata: ObjectMeta,
}

impl Uids {
    /// Starts look-ups for what is not known yet, and forgets pods that hold nothing any more.
    pub fn refresh(&self, held: &Held, client: &kube::Client) {
        let mut pods: BTreeMap<&PodKey, BTreeSet<Uuid>> = BTreeMap::new();
        for (uuid, key) in &held.gpus {
            pods.entry(key).or_default().insert(uuid.clone());
        }
        let mut known = self.known.lock();
        known.retain(|key, _| pods.contains_key(key));
        let mut asking = known.values().filter(|entry| entry.asking).count();
        for (key, gpus) in pods {
            let entry = known.entry(key.clone()).or_default();
            if entry.gpus != gpus {
                // Other GPUs under the same name: it may be another pod.
                *entry = Entry { gpus, asking: entry.asking, ..Entry::default() };
            }
            let patience = if entry.uid.is_some() { TRUSTED } else { RETRY };
            if entry.asking || asking >= AT_ONCE || entry.asked.is_some_and(|at| at.elapsed() < patience) {
                continue;
            }
            (entry.asking, entry.asked) = (true, Some(Instant::now()));
            asking += 1;
            let (this, client, key) = (self.clone(), client.clone(), key.clone());
            tokio::spawn(async move {
                let uid = uid_of(&client, &key).await;
                let mut known = this.known.lock();
                let Some(entry) = known.get_mut(&key) else { return };
                entry.asking = false;
                match uid {
                    Ok(uid) => entry.uid = uid,
                    Err(error) => tracing::warn!(namespace = key.0, pod = key.1, %error, "no UID"),
                }
            });
        }
    }

    /// UID of a pod that holds GPUs, once it is known.
    #[must_use]
    pub fn get(&self, key: &PodKey) -> Option<String> {
        self.known.lock().get(key)?.uid.clone()
    }
}

async fn uid_of(client: &kube::Client, key: &PodKey) -> Result<Option<String>, kube::Error> {
    let request = Request::new(Pod::url_path(&(), Some(&key.0)))
        .get(&key.1, &kube::api::GetParams::default())
        .map_err(kube::Error::BuildRequest)?;
    match client.request::<PodIdentity>(request).await {
        Ok(pod) => Ok(pod.metadata.uid),
        // Gone already, or a static pod without its mirror.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_podresources::messages::{
        ClaimResource, ContainerDevices, ContainerResources, DynamicResource,
    };

    fn pod(name: &str, resource: &str, ids: &[&str]) -> PodResources {
        let devices = vec![ContainerDevices {
            resource_name: resource.into(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        }];
        let container = ContainerResources { devices, ..ContainerResources::default() };
        PodResources { name: name.into(), namespace: "team".into(), containers: vec![container] }
    }

    #[test]
    fn gpus_by_uuid_and_doubt_where_a_device_is_no_whole_gpu() {
        let known = BTreeSet::from(["GPU-a".to_owned(), "GPU-b".to_owned()]);
        let two = pod("x", "nvidia.com/gpu", &["GPU-a"]);
        let other = pod("y", "vendor.example/nic", &["nic-0"]);
        let clear = held(&[two.clone(), other], &known);
        assert_eq!(clear.gpus, BTreeMap::from([("GPU-a".to_owned(), ("team".to_owned(), "x".to_owned()))]));
        assert!(!clear.unclear);
        let slice = held(&[pod("x", "nvidia.com/gpu.shared", &["GPU-b::3"])], &known);
        assert!(slice.gpus.contains_key("GPU-b") && !slice.unclear);
        assert!(held(&[pod("x", "nvidia.com/mig-1g.10gb", &["MIG-1"])], &known).unclear);
        let mut claim = two;
        claim.containers[0].dynamic_resources.push(DynamicResource {
            claim_resources: vec![ClaimResource {
                driver_name: "gpu.nvidia.com".into(),
                ..ClaimResource::default()
            }],
            ..DynamicResource::default()
        });
        assert!(held(&[claim], &known).unclear);
    }
}
