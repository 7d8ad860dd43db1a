//! Which pod holds which GPU, from the kubelet.
//!
//! The kubelet identifies pods by namespace and name, and so does the agent, which has no right to read pods.
//! The operator maps the name to the object.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::podresources::messages::PodResources;
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
    /// GPUs that pods share, or hold a partition of, with the slices of each.
    pub shared: BTreeMap<Uuid, BTreeMap<PodKey, u32>>,
    /// Whole GPUs among them: the kubelet gave each to several pods at once.
    pub twice: BTreeSet<Uuid>,
    /// Whether some allocated devices could not be mapped to a GPU.
    pub ambiguous: bool,
    /// Whether processes on a GPU without a holder may be those of a pod that the kubelet dropped.
    pub unexplained: bool,
}

impl GpuHolders {
    /// Whether no pod holds any GPU or part of one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty() && self.shared.is_empty() && !self.ambiguous
    }
}

/// What the driver says of the processes on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// Their number.
    Number(u32),
    /// The GPU did not respond.
    Unread,
    /// The driver does not name processes of pods to this process.
    Hidden,
}

/// Prefix of the device IDs of partitions (MIG devices).
const PARTITION: &str = "MIG-";

/// IDs of partitions in the kubelet's response.
pub fn partitions(pods: &[PodResources]) -> impl Iterator<Item = &str> {
    let containers = pods.iter().flat_map(|pod| &pod.containers);
    let ids = containers.flat_map(|container| &container.devices).flat_map(|devices| &devices.device_ids);
    ids.map(|id| whole_id(id)).filter(|id| id.starts_with(PARTITION))
}

/// A device ID without the number of its time slice: NVIDIA's plug-in names those `<uuid>::<n>`.
fn whole_id(id: &str) -> &str {
    id.split("::").next().unwrap_or_default()
}

/// Compute slices of a partition by the name of its resource, as in `nvidia.com/mig-3g.40gb`. 1 where the name does not say
/// it: then all partitions have one size.
fn compute_slices(resource: &str) -> u32 {
    let size = resource.rsplit_once("mig-").and_then(|(_, profile)| profile.split_once('g'));
    size.and_then(|(slices, _)| slices.parse().ok()).filter(|slices| (1..=8).contains(slices)).unwrap_or(1)
}

/// GPU, and whether it is a part of one, by the device ID of GKE's device plug-in: the name of the device file,
/// followed by a partition (`nvidia0/gi1`) or a share (`nvidia0/vgpu1`).
fn by_device_file<'a>(id: &str, files: &'a BTreeMap<u32, Uuid>) -> Option<(&'a str, bool)> {
    let (file, part) = id.split_once('/').unwrap_or((id, ""));
    let uuid = files.get(&file.strip_prefix("nvidia")?.parse().ok()?)?;
    Some((uuid, part.starts_with("gi")))
}

/// Whether a device may be a GPU or a part of one. NVIDIA's plug-ins for networks use the same domain.
fn may_be_gpu(resource: &str, id: &str) -> bool {
    let named = ["nvidia.com/gpu", "nvidia.com/mig-"].iter().any(|prefix| resource.starts_with(prefix));
    named || ["GPU-", PARTITION].iter().any(|prefix| id.starts_with(prefix))
}

/// Parses the kubelet's response. `known`: UUIDs of the node's GPUs. `parents`: the GPU of each partition. `files`: the GPU of
/// each device file's number.
#[must_use]
pub fn holders_from_kubelet(
    pods: &[PodResources],
    known: &BTreeSet<Uuid>,
    parents: &BTreeMap<String, Uuid>,
    files: &BTreeMap<u32, Uuid>,
) -> GpuHolders {
    let mut holders = GpuHolders::default();
    let mut slices: BTreeMap<Uuid, BTreeMap<PodKey, u32>> = BTreeMap::new();
    let (mut partitioned, mut divided) = (BTreeSet::new(), BTreeSet::new());
    for pod in pods {
        let key = || (pod.namespace.clone(), pod.name.clone());
        for container in &pod.containers {
            for (resource, id) in container.devices.iter().flat_map(|devices| {
                devices.device_ids.iter().map(move |id| (devices.resource_name.as_str(), id))
            }) {
                let (named, id) = (id, whole_id(id));
                let file = by_device_file(id, files);
                let parent = parents.get(id).map(String::as_str);
                let parent = parent.or_else(|| file.filter(|(_, part)| *part).map(|(uuid, _)| uuid));
                let (uuid, own) = match parent {
                    Some(parent) => {
                        partitioned.insert(parent.to_owned());
                        (parent, compute_slices(resource))
                    }
                    None => (file.map_or(id, |(uuid, _)| uuid), 1),
                };
                // Time slices are `<uuid>::<n>` and `nvidia0/vgpu1`; what is renamed is divided too.
                if named != id || id.contains('/') || resource.ends_with(".shared") {
                    divided.insert(uuid.to_owned());
                }
                if known.contains(uuid) {
                    *slices.entry(uuid.to_owned()).or_default().entry(key()).or_default() += own;
                } else if may_be_gpu(resource, id) {
                    holders.ambiguous = true;
                }
            }
            // A claimed device has its UUID in a ResourceSlice, which the agent does not read.
            let claims = container.dynamic_resources.iter().flat_map(|claim| &claim.claim_resources);
            holders.ambiguous |=
                claims.into_iter().any(|device| device.driver_name.ends_with("gpu.nvidia.com"));
        }
    }
    for (uuid, pods) in slices {
        match pods.first_key_value() {
            Some((only, _)) if pods.len() == 1 && !partitioned.contains(&uuid) => {
                holders.gpus.insert(uuid, only.clone());
            }
            _ => {
                if !partitioned.contains(&uuid) && !divided.contains(&uuid) {
                    holders.twice.insert(uuid.clone());
                }
                holders.shared.insert(uuid, pods);
            }
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

#[derive(Clone, Debug)]
struct Last {
    /// The last pod that held it; `None` if unknown.
    holder: Option<PodKey>,
    /// When it was last held, or first seen.
    at: Duration,
    /// Processes that belong to no pod.
    idle: u32,
    /// Processes at the last look; where it did not respond, as many as there may be.
    seen: u32,
}

impl TerminatingHolders {
    /// Starts from the holders reported before a restart of the agent.
    pub fn resume(&mut self, holders: impl Iterator<Item = (Uuid, PodKey)>, now: Duration) {
        for (uuid, key) in holders {
            let last = Last { holder: Some(key), at: now, idle: 0, seen: 1 };
            self.gpus.entry(uuid).or_insert(last);
        }
    }

    /// Adds lingering holders to the kubelet's. `processes`: those on each of the node's GPUs. `now`: from any
    /// monotonic clock.
    ///
    /// A pod may have begun and been deleted by force while the agent was down. So processes on a GPU without a
    /// known holder are unexplained for as long as a pod could have kept them.
    pub fn add_to(&mut self, holders: &mut GpuHolders, processes: &BTreeMap<Uuid, Processes>, now: Duration) {
        self.gpus.retain(|uuid, _| processes.contains_key(uuid));
        for (uuid, processes) in processes {
            let processes = match processes {
                Processes::Number(number) => Some(*number),
                Processes::Unread => None,
                Processes::Hidden => {
                    // Nothing tells when the processes of a dropped pod end.
                    holders.unexplained |=
                        !holders.gpus.contains_key(uuid) && !holders.shared.contains_key(uuid);
                    continue;
                }
            };
            let first = Last { holder: None, at: now, idle: 0, seen: 1 };
            let last = self.gpus.entry(uuid.clone()).or_insert(first);
            let holder = holders.gpus.get(uuid);
            if holder.is_some() || holders.shared.contains_key(uuid) {
                let seen = processes.unwrap_or(last.idle + 1);
                *last = Last { holder: holder.cloned(), at: now, seen, ..*last };
                continue;
            }
            last.seen = processes.unwrap_or(last.seen);
            if holders.ambiguous {
                last.at = now;
            } else if last.seen <= last.idle || now.saturating_sub(last.at) >= MAX_GRACE {
                *last = Last { holder: None, at: now, idle: last.seen, seen: last.seen };
            } else if let Some(key) = &last.holder {
                holders.gpus.insert(uuid.clone(), key.clone());
            } else {
                holders.unexplained = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::podresources::messages::{
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
        let (none, files) = (BTreeMap::new(), BTreeMap::new());
        let whole = holders_from_kubelet(&[two.clone(), other], &known, &none, &files);
        assert_eq!(whole.gpus, BTreeMap::from([("GPU-a".to_owned(), ("team".to_owned(), "x".to_owned()))]));
        assert!(!whole.ambiguous);
        let slice =
            holders_from_kubelet(&[pod("x", "nvidia.com/gpu.shared", &["GPU-b::3"])], &known, &none, &files);
        assert!(slice.gpus.contains_key("GPU-b") && !slice.ambiguous);
        let partition = pod("x", "nvidia.com/mig-1g.10gb", &["MIG-1"]);
        assert!(holders_from_kubelet(std::slice::from_ref(&partition), &known, &none, &files).ambiguous);
        let mut claim = two;
        claim.containers[0].dynamic_resources.push(DynamicResource {
            claim_resources: vec![ClaimResource {
                driver_name: "gpu.nvidia.com".into(),
                ..ClaimResource::default()
            }],
            ..DynamicResource::default()
        });
        assert!(holders_from_kubelet(&[claim], &known, &none, &files).ambiguous);
    }

    #[test]
    fn pods_on_one_gpu_share_it_by_their_slices() {
        let known = BTreeSet::from(["GPU-a".to_owned(), "GPU-b".to_owned()]);
        let parents = BTreeMap::from(["MIG-1", "MIG-2"].map(|id| (id.to_owned(), "GPU-b".to_owned())));
        let key = |name: &str| ("team".to_owned(), name.to_owned());
        let pods = [
            pod("x", "nvidia.com/gpu.shared", &["GPU-a::0", "GPU-a::1"]),
            pod("y", "nvidia.com/gpu.shared", &["GPU-a::3"]),
            pod("z", "nvidia.com/mig-3g.40gb", &["MIG-2"]),
        ];
        let holders = holders_from_kubelet(&pods, &known, &parents, &BTreeMap::new());
        assert!(holders.gpus.is_empty() && !holders.ambiguous && !holders.is_empty());
        assert_eq!(holders.shared["GPU-a"], BTreeMap::from([(key("x"), 2), (key("y"), 1)]));
        assert_eq!(holders.shared["GPU-b"], BTreeMap::from([(key("z"), 3)]), "a partition is no GPU");
        assert!(holders.twice.is_empty());
        // A whole GPU in two pods is none that is divided.
        let twice = ["x", "y"].map(|name| pod(name, "nvidia.com/gpu", &["GPU-a"]));
        let twice = holders_from_kubelet(&twice, &known, &parents, &BTreeMap::new());
        assert_eq!((twice.twice.len(), twice.shared["GPU-a"].len(), twice.gpus.len()), (1, 2, 0));
        assert_eq!(partitions(&pods).collect::<Vec<_>>(), ["MIG-2"]);
        assert_eq!(["mig-7g.80gb", "mig-1g.10gb.me", "gpu", "mig-xg"].map(compute_slices), [7, 1, 1, 1]);
    }

    #[test]
    fn a_pod_that_the_kubelet_drops_holds_its_gpus_until_its_processes_end() {
        let at = Duration::from_secs;
        let known = BTreeSet::from(["GPU-a".to_owned(), "GPU-b".to_owned()]);
        let on = |a: u32, b: u32| {
            BTreeMap::from([
                ("GPU-a".to_owned(), Processes::Number(a)),
                ("GPU-b".to_owned(), Processes::Number(b)),
            ])
        };
        let mut lingering = TerminatingHolders::default();
        // A process outside any pod uses the second GPU before a pod takes it.
        let mut first = GpuHolders::default();
        lingering.add_to(&mut first, &on(0, 1), at(0));
        assert!(first.unexplained, "a pod may have begun it");
        let mut later = GpuHolders::default();
        lingering.add_to(&mut later, &on(0, 1), at(3_600));
        assert!(!later.unexplained);
        let at = |seconds: u64| Duration::from_secs(3_600 + seconds);
        let mut both = holders_from_kubelet(
            &[pod("x", "nvidia.com/gpu", &["GPU-a", "GPU-b"])],
            &known,
            &BTreeMap::new(),
            &BTreeMap::new(),
        );
        lingering.add_to(&mut both, &on(1, 2), at(1));
        let mut dropped = GpuHolders::default();
        lingering.add_to(&mut dropped, &on(1, 1), at(2));
        assert_eq!(dropped.gpus.keys().collect::<Vec<_>>(), ["GPU-a"]);
        let mut ended = GpuHolders::default();
        lingering.add_to(&mut ended, &on(0, 1), at(30));
        assert_eq!(ended, GpuHolders::default());
        // Holders reported before a restart are kept too, but not forever.
        let at = Duration::from_secs;
        let mut next = TerminatingHolders::default();
        next.resume([("GPU-a".to_owned(), ("team".to_owned(), "x".to_owned()))].into_iter(), at(0));
        let mut resumed = GpuHolders::default();
        next.add_to(&mut resumed, &on(1, 0), at(3_599));
        assert_eq!(resumed.gpus.len(), 1);
        let mut late = GpuHolders::default();
        next.add_to(&mut late, &on(1, 0), at(3_600));
        assert_eq!(late, GpuHolders::default());
    }

    #[test]
    fn a_gpu_is_not_said_to_be_unheld_while_it_may_be() {
        let at = Duration::from_secs;
        let on = |a: Option<u32>| {
            BTreeMap::from([("GPU-a".to_owned(), a.map_or(Processes::Unread, Processes::Number))])
        };
        let looked = |lingering: &mut TerminatingHolders, a, seconds| {
            let mut holders = GpuHolders::default();
            lingering.add_to(&mut holders, &on(a), at(seconds));
            (holders.gpus.len(), holders.unexplained)
        };
        let held = |lingering: &mut TerminatingHolders, shared: bool, ambiguous, seconds| {
            let key = || ("team".to_owned(), "x".to_owned());
            let mut holders = GpuHolders { ambiguous, ..GpuHolders::default() };
            if shared {
                holders.shared.insert("GPU-a".into(), BTreeMap::from([(key(), 1)]));
            } else if !ambiguous {
                holders.gpus.insert("GPU-a".into(), key());
            }
            lingering.add_to(&mut holders, &on(Some(1)), at(seconds));
        };
        // A pod that began and was deleted by force while the agent was down.
        let mut lingering = TerminatingHolders::default();
        assert_eq!(looked(&mut lingering, Some(1), 0), (0, true));
        assert_eq!(looked(&mut lingering, Some(0), 5), (0, false));
        // A GPU that does not respond for a moment, and a device that is not known for one.
        held(&mut lingering, false, false, 10);
        assert_eq!(looked(&mut lingering, None, 11), (1, false));
        held(&mut lingering, false, true, 12);
        assert_eq!(looked(&mut lingering, Some(1), 13), (1, false));
        assert_eq!(looked(&mut lingering, Some(0), 14), (0, false));
        // One that stopped responding when nobody held it.
        assert_eq!(looked(&mut lingering, None, 15), (0, false));
        // Of pods that shared it, nobody knows which remains.
        held(&mut lingering, true, false, 20);
        assert_eq!(looked(&mut lingering, Some(1), 21), (0, true));
        assert_eq!(looked(&mut lingering, Some(1), 20 + 3_600), (0, false));
        // A process that comes later without a pod is nobody's after an hour too.
        assert_eq!(looked(&mut lingering, Some(2), 4_000), (0, true));
        assert_eq!(looked(&mut lingering, Some(2), 3_620 + 3_600), (0, false));
    }

    #[test]
    fn processes_that_nobody_sees_free_nothing_and_hold_nothing() {
        let hidden = BTreeMap::from([("GPU-a".to_owned(), Processes::Hidden)]);
        let mut lingering = TerminatingHolders::default();
        let key = ("team".to_owned(), "x".to_owned());
        let mut held =
            GpuHolders { gpus: BTreeMap::from([("GPU-a".to_owned(), key)]), ..GpuHolders::default() };
        lingering.add_to(&mut held, &hidden, Duration::ZERO);
        assert!(!held.unexplained && held.gpus.len() == 1);
        let mut dropped = GpuHolders::default();
        lingering.add_to(&mut dropped, &hidden, Duration::from_secs(1));
        assert!(dropped.unexplained && dropped.gpus.is_empty());
    }

    #[test]
    fn devices_of_other_plug_ins_are_no_gpus_of_unknown_holders() {
        let known = BTreeSet::from(["GPU-a".to_owned(), "GPU-b".to_owned(), "GPU-c".to_owned()]);
        let files = (0..).zip(known.iter().cloned()).collect();
        let holders = |resource: &str, id: &str| {
            holders_from_kubelet(&[pod("x", resource, &[id])], &known, &BTreeMap::new(), &files)
        };
        // A network card of NVIDIA's plug-in is no GPU; a renamed GPU is one.
        assert!(holders("nvidia.com/hostdev", "0000:3b:00.0").is_empty());
        assert!(holders("example.com/large", "GPU-b").gpus.contains_key("GPU-b"));
        assert!(holders("example.com/large", "GPU-z").ambiguous && holders("nvidia.com/gpu", "7").ambiguous);
        // GKE names device files.
        assert!(holders("nvidia.com/gpu", "nvidia1").gpus.contains_key("GPU-b"));
        assert!(holders("nvidia.com/gpu", "nvidia2/vgpu0").gpus.contains_key("GPU-c"));
        let part = holders("nvidia.com/gpu", "nvidia0/gi2");
        assert!(part.gpus.is_empty() && part.shared.contains_key("GPU-a"));
        assert!(holders("nvidia.com/gpu", "nvidia9").ambiguous);
    }
}
