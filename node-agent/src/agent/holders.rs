//! Which pod holds which GPU, from the kubelet.
//!
//! The kubelet identifies pods by namespace and name, and so does the agent, which has no right to read pods.
//! The operator maps the name to the object.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use andreas_podresources::messages::PodResources;

use crate::setting::Uuid;

/// Longest grace period of a pod: 1 hour. Processes that remain longer do not belong to the pod.
const MAX_GRACE: Duration = Duration::from_secs(3_600);

/// Namespace and name of a pod.
pub type PodKey = (String, String);

/// Holders from one response of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuHolders {
    /// Holder by GPU.
    pub gpus: BTreeMap<Uuid, PodKey>,
    /// Whether some allocated devices could not be mapped to a GPU.
    pub ambiguous: bool,
}

/// Parses the kubelet's response. `known`: UUIDs of the node's GPUs.
#[must_use]
pub fn holders_from_kubelet(pods: &[PodResources], known: &BTreeSet<Uuid>) -> GpuHolders {
    let mut holders = GpuHolders::default();
    for pod in pods {
        let key = || (pod.namespace.clone(), pod.name.clone());
        for container in &pod.containers {
            for device in container.devices.iter().flat_map(|devices| {
                devices.device_ids.iter().map(move |id| (devices.resource_name.as_str(), id))
            }) {
                let (resource, id) = device;
                // NVIDIA's plugin names time slices `<uuid>::<n>`.
                let uuid = id.split("::").next().unwrap_or_default();
                if known.contains(uuid) {
                    holders.gpus.insert(uuid.to_owned(), key());
                } else if resource.starts_with("nvidia.com/") {
                    holders.ambiguous = true;
                }
            }
            // A claimed device has its UUID in a ResourceSlice, which the agent does not read.
            let claims = container.dynamic_resources.iter().flat_map(|claim| &claim.claim_resources);
            holders.ambiguous |=
                claims.into_iter().any(|device| device.driver_name.ends_with("gpu.nvidia.com"));
        }
    }
    holders
}

/// Keeps a pod as holder of a GPU while its processes still run there.
///
/// After a forced deletion the kubelet omits the pod at once, but kills its containers only after the grace
/// period (kubelet, `GetActivePods`). The driver still lists their processes.
#[derive(Clone, Debug, Default)]
pub struct TerminatingHolders {
    gpus: BTreeMap<Uuid, Last>,
}

#[derive(Clone, Debug, Default)]
struct Last {
    /// The last holder, and until when it counts.
    holder: Option<(PodKey, Duration)>,
    /// Processes seen while the GPU was unheld: they belong to no pod.
    idle: u32,
}

impl TerminatingHolders {
    /// Starts from the holders reported before a restart of the agent.
    pub fn resume(&mut self, holders: impl Iterator<Item = (Uuid, PodKey)>, now: Duration) {
        for (uuid, key) in holders {
            let last = self.gpus.entry(uuid).or_default();
            last.holder.get_or_insert((key, now));
        }
    }

    /// Adds lingering holders to the kubelet's. `processes`: the processes on each GPU that responds. `now`:
    /// from any monotonic clock.
    pub fn add_to(&mut self, holders: &mut GpuHolders, processes: &BTreeMap<Uuid, u32>, now: Duration) {
        self.gpus.retain(|uuid, _| processes.contains_key(uuid));
        for (uuid, processes) in processes {
            let last = self.gpus.entry(uuid.clone()).or_default();
            if let Some(key) = holders.gpus.get(uuid) {
                last.holder = Some((key.clone(), now));
                continue;
            }
            let lingers = |(_, until): &&(PodKey, Duration)| {
                !holders.ambiguous && *processes > last.idle && now.saturating_sub(*until) < MAX_GRACE
            };
            match last.holder.as_ref().filter(lingers) {
                Some((key, _)) => drop(holders.gpus.insert(uuid.clone(), key.clone())),
                None => *last = Last { holder: None, idle: *processes },
            }
        }
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
    fn gpus_by_uuid_and_ambiguity_where_a_device_is_no_whole_gpu() {
        let known = BTreeSet::from(["GPU-a".to_owned(), "GPU-b".to_owned()]);
        let two = pod("x", "nvidia.com/gpu", &["GPU-a"]);
        let other = pod("y", "vendor.example/nic", &["nic-0"]);
        let whole = holders_from_kubelet(&[two.clone(), other], &known);
        assert_eq!(whole.gpus, BTreeMap::from([("GPU-a".to_owned(), ("team".to_owned(), "x".to_owned()))]));
        assert!(!whole.ambiguous);
        let slice = holders_from_kubelet(&[pod("x", "nvidia.com/gpu.shared", &["GPU-b::3"])], &known);
        assert!(slice.gpus.contains_key("GPU-b") && !slice.ambiguous);
        assert!(holders_from_kubelet(&[pod("x", "nvidia.com/mig-1g.10gb", &["MIG-1"])], &known).ambiguous);
        let mut claim = two;
        claim.containers[0].dynamic_resources.push(DynamicResource {
            claim_resources: vec![ClaimResource {
                driver_name: "gpu.nvidia.com".into(),
                ..ClaimResource::default()
            }],
            ..DynamicResource::default()
        });
        assert!(holders_from_kubelet(&[claim], &known).ambiguous);
    }

    #[test]
    fn a_pod_that_the_kubelet_drops_holds_its_gpus_until_its_processes_end() {
        let at = Duration::from_secs;
        let known = BTreeSet::from(["GPU-a".to_owned(), "GPU-b".to_owned()]);
        let on = |a: u32, b: u32| BTreeMap::from([("GPU-a".to_owned(), a), ("GPU-b".to_owned(), b)]);
        let mut lingering = TerminatingHolders::default();
        // A process outside any pod uses the second GPU before a pod takes it.
        lingering.add_to(&mut GpuHolders::default(), &on(0, 1), at(0));
        let mut both = holders_from_kubelet(&[pod("x", "nvidia.com/gpu", &["GPU-a", "GPU-b"])], &known);
        lingering.add_to(&mut both, &on(1, 2), at(1));
        let mut dropped = GpuHolders::default();
        lingering.add_to(&mut dropped, &on(1, 1), at(2));
        assert_eq!(dropped.gpus.keys().collect::<Vec<_>>(), ["GPU-a"]);
        let mut ended = GpuHolders::default();
        lingering.add_to(&mut ended, &on(0, 1), at(30));
        assert_eq!(ended, GpuHolders::default());
        // Holders reported before a restart are kept too, but not forever.
        let mut next = TerminatingHolders::default();
        next.resume([("GPU-a".to_owned(), ("team".to_owned(), "x".to_owned()))].into_iter(), at(0));
        let mut resumed = GpuHolders::default();
        next.add_to(&mut resumed, &on(1, 0), at(3_599));
        assert_eq!(resumed.gpus.len(), 1);
        let mut late = GpuHolders::default();
        next.add_to(&mut late, &on(1, 0), at(3_600));
        assert_eq!(late, GpuHolders::default());
    }
}
