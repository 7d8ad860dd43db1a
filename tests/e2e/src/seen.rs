//! What was seen of a run, and what of it must never be.
//!
//! Noted are a node with more GPUs in use than it has, a job with two attempts alive, and a gang that is partially placed for
//! longer than its limit. What the devices say beside that is checked in [`crate::devices`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use andreas_api::names;
use andreas_api::phase::Phase;
use andreas_api::slim::{SlimNode, SlimPod, SlimTrainingJob};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;

/// How long a gang may be partially placed: the placement time-out of short runs (20 s), the longest grace used (30 s), and
/// some seconds for a busy machine.
const PARTIAL_GANG_LIMIT: Duration = Duration::from_secs(60);

/// `namespace/name`.
pub type JobKey = String;

/// What was seen of one TrainingJob.
#[derive(Clone, Debug)]
pub struct JobView {
    /// As last seen.
    pub job: SlimTrainingJob,
    /// Phases in the order seen, with the time since the observer's start.
    pub phases: Vec<(Duration, Phase)>,
    /// Whether the object is gone.
    pub deleted: bool,
}

/// What was seen of one pod.
#[derive(Clone, Debug)]
pub struct PodView {
    /// As last seen.
    pub pod: SlimPod,
    /// Whether the object is gone.
    pub deleted: bool,
}

impl PodView {
    /// Bound to a node and not ended: its GPUs are in use.
    pub fn is_live(&self) -> bool {
        !self.deleted
            && self.pod.spec.node_name.is_some()
            && !matches!(self.pod.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// GPUs that it holds while it lives.
    pub fn gpus(&self) -> i64 {
        self.pod.spec.containers.iter().map(|c| whole(c.resources.limits.get(names::GPU_RESOURCE))).sum()
    }

    /// The value of one of our labels.
    pub fn label(&self, name: &str) -> String {
        self.pod.metadata.labels.as_ref().and_then(|l| l.get(name)).cloned().unwrap_or_default()
    }
}

fn whole(quantity: Option<&Quantity>) -> i64 {
    quantity.and_then(|q| q.0.parse().ok()).unwrap_or(0)
}

/// What was seen of the devices so far.
#[derive(Debug, Default)]
pub struct Devices {
    /// Snapshots that were answered.
    pub snapshots: usize,
    /// UIDs of pods that were seen to run containers after their objects were gone.
    pub ran_without_object: BTreeSet<String>,
    /// What all GPUs may draw together, W; none where it is not compared.
    pub budget_watts: Option<f64>,
    /// The most that they drew together, W.
    pub highest_watts: f64,
    /// Who drew what then.
    pub at_highest: String,
    /// Two attempts at once are wrong on nodes that are cut off too: where the policy waits for proof that they are
    /// dead.
    pub cut_off_nodes_count: bool,
    /// Since when nodes have an object; none of those that had one before a budget was told.
    pub(crate) nodes_since: BTreeMap<String, Option<Instant>>,
    /// Since when pods hold GPUs that have ended by their objects.
    pub(crate) left: BTreeMap<String, Instant>,
}

/// Everything seen so far.
#[derive(Debug)]
pub struct ClusterHistory {
    started: Instant,
    /// TrainingJobs by `namespace/name`; one made again under its name replaces the earlier one.
    pub jobs: BTreeMap<JobKey, JobView>,
    /// Pods by UID.
    pub pods: BTreeMap<String, PodView>,
    /// GPUs of each node.
    pub node_gpus: BTreeMap<String, i64>,
    /// What must never happen and did.
    pub violations: BTreeSet<String>,
    /// What the pretend kubelets say of containers and GPUs.
    pub devices: Devices,
    /// The longest that only a part of a gang was alive.
    pub longest_partial_gang: Duration,
    unreachable_nodes: BTreeSet<String>,
    /// UIDs of pods whose node was deleted under them: a machine without object is proven dead, and so are its
    /// containers.
    lost: BTreeSet<String>,
    partial_since: BTreeMap<(String, String), Instant>,
}

impl Default for ClusterHistory {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            jobs: BTreeMap::new(),
            pods: BTreeMap::new(),
            node_gpus: BTreeMap::new(),
            violations: BTreeSet::new(),
            devices: Devices::default(),
            longest_partial_gang: Duration::ZERO,
            unreachable_nodes: BTreeSet::new(),
            lost: BTreeSet::new(),
            partial_since: BTreeMap::new(),
        }
    }
}

impl ClusterHistory {
    /// Pods of a job, whatever became of them, by attempt and index.
    pub fn pods_of(&self, uid: &str) -> Vec<&PodView> {
        let mut pods: Vec<_> = self.pods.values().filter(|p| p.label(names::LABEL_JOB_UID) == uid).collect();
        pods.sort_by_key(|p| (number(&p.label(names::LABEL_ATTEMPT)), number(&p.label(names::LABEL_INDEX))));
        pods
    }

    /// Whether the second attempt of a job runs without `node`, or ran there: a short run may have ended before it was
    /// seen, for a node that falls silent trains on.
    pub fn runs_again_without(&self, key: &str, node: &str) -> bool {
        let status = self.status(key);
        status.attempts == 2
            && match status.phase {
                Phase::Running => status.allocation.is_some_and(|a| a.nodes.iter().all(|n| n != node)),
                Phase::Succeeded => status.history.last().is_some_and(|r| !r.placement.contains(node)),
                _ => false,
            }
    }

    /// Pods that hold GPUs, now.
    fn live(&self) -> impl Iterator<Item = &PodView> {
        self.pods.iter().filter(|(uid, pod)| pod.is_live() && !self.lost.contains(*uid)).map(|(_, pod)| pod)
    }

    /// GPUs in use on every node, now.
    pub fn gpus_in_use(&self) -> BTreeMap<String, i64> {
        let mut used = BTreeMap::new();
        for pod in self.live() {
            *used.entry(pod.pod.spec.node_name.clone().unwrap_or_default()).or_insert(0) += pod.gpus();
        }
        used
    }

    /// Notes what must never happen and is so now.
    pub(crate) fn check(&mut self) {
        for (node, used) in self.gpus_in_use() {
            if let Some(&has) = self.node_gpus.get(&node)
                && used > has
            {
                self.violations.insert(format!("node {node}: {used} GPUs in use of {has}"));
            }
        }
        let mut alive: BTreeMap<(String, String), usize> = BTreeMap::new();
        // A pod of an unreachable node may be dead or alive; whether a run starts elsewhere meanwhile is the policy's choice.
        let reachable =
            |p: &&PodView| !p.pod.spec.node_name.as_ref().is_some_and(|n| self.unreachable_nodes.contains(n));
        let ours = |p: &&PodView| !p.label(names::LABEL_JOB_UID).is_empty();
        for pod in self.live().filter(ours).filter(reachable) {
            *alive.entry((pod.label(names::LABEL_JOB_UID), pod.label(names::LABEL_ATTEMPT))).or_insert(0) +=
                1;
        }
        let attempts: Vec<_> = alive.keys().cloned().collect();
        for pair in attempts.windows(2) {
            if pair[0].0 == pair[1].0 {
                self.violations.insert(format!(
                    "job {}: attempts {} and {} alive at once",
                    pair[0].0, pair[0].1, pair[1].1
                ));
            }
        }
        self.check_gangs(&alive);
    }

    fn check_gangs(&mut self, alive: &BTreeMap<(String, String), usize>) {
        let now = Instant::now();
        let mut partial = BTreeMap::new();
        for view in self.jobs.values().filter(|v| !v.deleted) {
            let Some(allocation) = view.job.status.as_ref().and_then(|s| s.allocation.as_ref()) else {
                continue;
            };
            let key = (view.job.uid().unwrap_or_default(), allocation.attempt.to_string());
            let live = alive.get(&key).copied().unwrap_or(0);
            if live > 0 && live < allocation.nodes.len() {
                partial.insert(key.clone(), self.partial_since.get(&key).copied().unwrap_or(now));
            }
        }
        for ((uid, attempt), since) in &partial {
            let partial = now.duration_since(*since);
            self.longest_partial_gang = self.longest_partial_gang.max(partial);
            if partial > PARTIAL_GANG_LIMIT {
                self.violations.insert(format!("job {uid}, attempt {attempt}: half a gang for too long"));
            }
        }
        self.partial_since = partial;
    }

    /// Takes in what became of a job.
    pub(crate) fn see_job(&mut self, job: SlimTrainingJob, gone: bool) {
        let key = format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any());
        let phase = job.status.as_ref().map_or(Phase::Pending, |s| s.phase);
        let at = self.started.elapsed();
        let view = self.jobs.entry(key).or_insert_with(|| JobView {
            job: job.clone(),
            phases: vec![],
            deleted: gone,
        });
        if view.job.uid() != job.uid() {
            if gone {
                return;
            }
            view.phases.clear();
        }
        if view.phases.last().map(|(_, p)| *p) != Some(phase) {
            view.phases.push((at, phase));
        }
        view.job = job;
        view.deleted = gone;
    }

    /// Takes in what became of a pod.
    pub(crate) fn see_pod(&mut self, pod: SlimPod, gone: bool) {
        self.pods.insert(pod.uid().unwrap_or_default(), PodView { pod, deleted: gone });
    }

    /// Takes in what became of a node.
    pub(crate) fn see_node(&mut self, node: SlimNode, gone: bool) {
        let gpus = whole(node.status.allocatable.get(names::GPU_RESOURCE));
        if node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True") {
            self.unreachable_nodes.remove(&node.name_any());
        } else {
            self.unreachable_nodes.insert(node.name_any());
        }
        if gone {
            let here = |pod: &PodView| pod.pod.spec.node_name.as_ref() == Some(&node.name_any());
            let lost = self.pods.iter().filter(|(_, pod)| here(pod)).map(|(uid, _)| uid.clone());
            self.lost.extend(lost.collect::<Vec<_>>());
            self.node_gpus.remove(&node.name_any());
        } else if gpus > 0 {
            // A node whose device plug-in is away offers none for a while; what its pods hold they keep.
            self.node_gpus.insert(node.name_any(), gpus);
        }
    }
}

fn number(text: &str) -> i64 {
    text.parse().unwrap_or(0)
}

/// Also what a thread that panicked has left.
pub(crate) fn lock(seen: &Mutex<ClusterHistory>) -> MutexGuard<'_, ClusterHistory> {
    seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The jobs and live pods as lines, for messages.
pub fn describe(seen: &ClusterHistory) -> String {
    let mut lines = Vec::new();
    for (key, view) in &seen.jobs {
        let status = view.job.status.clone().unwrap_or_default();
        let phases: Vec<_> =
            view.phases.iter().map(|(at, p)| format!("{:.1}s {}", at.as_secs_f64(), p.as_str())).collect();
        lines.push(format!("  {key}{}: {}", if view.deleted { " (deleted)" } else { "" }, phases.join(", ")));
        for condition in &status.conditions {
            lines.push(format!(
                "      {}={} {}: {}",
                condition.type_, condition.status, condition.reason, condition.message
            ));
        }
        for attempt in &status.history {
            lines.push(format!(
                "      attempt {}: {:?} {} exit {:?} {}",
                attempt.attempt, attempt.outcome, attempt.reason, attempt.exit_code, attempt.message
            ));
        }
        for pod in seen.pods_of(&view.job.uid().unwrap_or_default()) {
            lines.push(format!(
                "      pod {} on {:?}: {}{} {}",
                pod.pod.name_any(),
                pod.pod.spec.node_name,
                pod.pod.status.phase,
                if pod.deleted { " (deleted)" } else { "" },
                pod.pod.status.reason,
            ));
            for status in &pod.pod.status.container_statuses {
                let Some(ended) = &status.state.terminated else { continue };
                let when = ended.finished_at.as_ref().map_or_else(|| "?".to_owned(), |at| at.0.to_string());
                lines.push(format!(
                    "        {} ended with {} at {when}: {} {}",
                    status.name, ended.exit_code, ended.reason, ended.message
                ));
            }
        }
    }
    lines.join("\n")
}
