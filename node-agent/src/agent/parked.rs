//! Idle contexts by pod: which processes keep a GPU above its lowest draw and do nothing.
//!
//! A process belongs to the pod that its control group names (`/proc/PID/cgroup`). The group has the pod's UID; its name is
//! in the kubelet's folder of logs (`/var/log/pods/NAMESPACE_NAME_UID`). Both need the host's view: without the host's process
//! namespace a process has no pod here, without that folder a pod has its UID only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use andreas_api::gpu_node::{ParkedContext, namespaced_pod_name};

use crate::setting::Uuid;

/// Time without any work after which contexts count as idle.
const IDLE: Duration = Duration::from_secs(60);
/// Interval of looking up processes of a GPU again.
const REFRESH: Duration = Duration::from_secs(30);
/// Most entries of a GPU.
const MAX_PODS: usize = 16;
/// Most bytes of a file about a process.
const MAX_FILE: u64 = 16 * 1024;
/// Most folders of logs that are read: a node runs a few hundred pods.
const MAX_FOLDERS: usize = 10_000;

#[derive(Clone, Debug)]
struct Idle {
    since: Duration,
    processes: Vec<u32>,
    /// When the pods were looked up, and what was found.
    found: Option<(Duration, Vec<ParkedContext>)>,
}

/// Idle contexts of the node's GPUs.
#[derive(Debug)]
pub struct ParkedContexts {
    proc: PathBuf,
    logs: PathBuf,
    gpus: BTreeMap<Uuid, Idle>,
}

impl ParkedContexts {
    /// Reads processes below `proc` (`/proc`) and pods' names below `logs` (`/var/log/pods`).
    #[must_use]
    pub fn new(proc: &Path, logs: &Path) -> Self {
        Self { proc: proc.to_owned(), logs: logs.to_owned(), gpus: BTreeMap::new() }
    }

    /// Adds an observation of a GPU, and returns its idle contexts. `now`: a monotonic clock.
    pub fn update(
        &mut self,
        uuid: &str,
        processes: &[u32],
        util_percent: Option<u32>,
        now: Duration,
    ) -> Vec<ParkedContext> {
        // In MIG mode nobody knows whether they are idle.
        if processes.is_empty() || util_percent != Some(0) {
            self.gpus.remove(uuid);
            return Vec::new();
        }
        let begin = || Idle { since: now, processes: processes.to_vec(), found: None };
        let idle = self.gpus.entry(uuid.to_owned()).or_insert_with(begin);
        if idle.processes != processes {
            (idle.processes, idle.found) = (processes.to_vec(), None);
        }
        if now.saturating_sub(idle.since) < IDLE {
            return Vec::new();
        }
        if let Some((_, found)) = idle.found.as_ref().filter(|(at, _)| now.saturating_sub(*at) < REFRESH) {
            return found.clone();
        }
        let mut pods: BTreeMap<Option<String>, i32> = BTreeMap::new();
        for process in &idle.processes {
            *pods.entry(pod_of(&self.proc, &self.logs, *process)).or_default() += 1;
        }
        let found: Vec<ParkedContext> = pods
            .into_iter()
            .take(MAX_PODS)
            .map(|(pod, processes)| ParkedContext { pod, processes })
            .collect();
        idle.found = Some((now, found.clone()));
        found
    }
}

/// The pod of a process: `namespace/name`, else its UID.
fn pod_of(proc: &Path, logs: &Path, process: u32) -> Option<String> {
    // In a process namespace of its own the agent would take its own process for the driver's.
    if process == std::process::id() {
        return None;
    }
    let text = read_bounded(&proc.join(process.to_string()).join("cgroup"))?;
    let uid = text.lines().find_map(pod_uid)?;
    Some(name_of(logs, &uid).unwrap_or(uid))
}

fn read_bounded(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The pod's UID in a line of `/proc/PID/cgroup`, as the kubelet's two cgroup drivers write it: `/kubepods/burstable/pod<uid>/...`
/// and `/kubepods.slice/.../kubepods-burstable-pod<uid, with _>.slice/...`.
fn pod_uid(line: &str) -> Option<String> {
    line.split('/').find_map(|part| {
        let part = part.strip_suffix(".slice").unwrap_or(part);
        let (before, uid) = part.rsplit_once("pod")?;
        let uid = uid.replace('_', "-");
        let plausible = uid.len() >= 32
            && uid.len() <= 36
            && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        (plausible && (before.is_empty() || before.ends_with('-'))).then_some(uid)
    })
}

/// The pod with this UID, by the kubelet's folders of logs.
fn name_of(logs: &Path, uid: &str) -> Option<String> {
    let folders = std::fs::read_dir(logs).ok()?.flatten().take(MAX_FOLDERS);
    folders.into_iter().find_map(|folder| {
        let name = folder.file_name();
        let mut parts = name.to_str()?.rsplitn(2, '_');
        let (of, rest) = (parts.next()?, parts.next()?);
        let (namespace, pod) = rest.split_once('_')?;
        (of == uid).then(|| namespaced_pod_name(namespace, pod))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0aab1f5c-8c1d-4b6f-9f3e-2f0e6a1b7c4d";

    #[test]
    fn control_groups_of_both_drivers_name_the_pod() {
        for line in [
            format!("0::/kubepods/besteffort/pod{UID}/9f86d081884c7d659a2feaa0c55ad015"),
            format!("0::/../../pod{UID}/9f86d081884c7d659a2feaa0c55ad015"),
            format!(
                "12:devices:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-1.scope",
                UID.replace('-', "_")
            ),
        ] {
            assert_eq!(pod_uid(&line).as_deref(), Some(UID), "{line}");
        }
        for other in ["0::/system.slice/podman.service", "0::/user.slice", "0::/kubepods/pod1", ""] {
            assert_eq!(pod_uid(other), None, "{other}");
        }
    }

    #[test]
    fn contexts_count_once_they_have_been_idle_for_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, logs) = (folder.path().join("proc"), folder.path().join("logs"));
        for (process, group) in [("7", format!("0::/kubepods/pod{UID}/c")), ("8", "0::/system.slice".into())]
        {
            std::fs::create_dir_all(proc.join(process)).unwrap();
            std::fs::write(proc.join(process).join("cgroup"), group).unwrap();
        }
        std::fs::create_dir_all(logs.join(format!("team_idle-pod_{UID}"))).unwrap();
        let mut parked = ParkedContexts::new(&proc, &logs);
        let at = Duration::from_secs;
        assert!(parked.update("GPU-a", &[7, 8, 9], Some(0), at(0)).is_empty());
        assert!(parked.update("GPU-a", &[7, 8, 9], Some(0), at(59)).is_empty());
        let context = |pod: Option<&str>, processes| ParkedContext { pod: pod.map(str::to_owned), processes };
        let found = parked.update("GPU-a", &[7, 8, 9], Some(0), at(60));
        assert_eq!(found, [context(None, 2), context(Some("team/idle-pod"), 1)]);
        assert!(parked.update("GPU-a", &[7, 8, 9], None, at(60)).is_empty(), "in MIG mode");
        assert!(parked.update("GPU-a", &[7], Some(3), at(61)).is_empty(), "it works");
        assert!(parked.update("GPU-a", &[7], Some(0), at(100)).is_empty(), "the minute begins anew");
        std::fs::remove_dir_all(&logs).unwrap();
        assert_eq!(parked.update("GPU-a", &[7], Some(0), at(160)), [context(Some(UID), 1)]);
    }
}
