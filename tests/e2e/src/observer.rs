//! Watches a run from outside, with an administrator's eyes, and notes whatever must never happen.
//!
//! It knows nothing of the operator's state: it sees TrainingJobs and pods as any client does, and checks after every
//! event that no node has more GPUs in use than it has, that a job never has two attempts alive, and that no gang is
//! half placed for longer than its limit. What the devices say beside that is in [`crate::devices`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use andreas_api::names;
use andreas_api::phase::Phase;
use andreas_api::slim::{SlimNode, SlimPod, SlimTrainingJob};
use futures::StreamExt as _;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::devices::{self, Devices};
use crate::nodes::NodesClient;

/// How long a gang may be half placed: the placement time-out of short runs (20 s), the longest grace used (30 s), and
/// some seconds for a busy machine.
const HALF_GANG_LIMIT: Duration = Duration::from_secs(60);

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

/// Everything seen so far.
#[derive(Debug)]
pub struct Seen {
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
    silent_nodes: BTreeSet<String>,
    /// UIDs of pods whose node was deleted under them: a machine without object is proven dead, and so are its containers.
    lost: BTreeSet<String>,
    half_since: BTreeMap<(String, String), Instant>,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            jobs: BTreeMap::new(),
            pods: BTreeMap::new(),
            node_gpus: BTreeMap::new(),
            violations: BTreeSet::new(),
            devices: Devices::default(),
            silent_nodes: BTreeSet::new(),
            lost: BTreeSet::new(),
            half_since: BTreeMap::new(),
        }
    }
}

impl Seen {
    /// Pods of a job, whatever became of them, by attempt and index.
    pub fn pods_of(&self, uid: &str) -> Vec<&PodView> {
        let mut pods: Vec<_> = self.pods.values().filter(|p| p.label(names::LABEL_JOB_UID) == uid).collect();
        pods.sort_by_key(|p| (number(&p.label(names::LABEL_ATTEMPT)), number(&p.label(names::LABEL_INDEX))));
        pods
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

    fn check(&mut self) {
        for (node, used) in self.gpus_in_use() {
            if let Some(&has) = self.node_gpus.get(&node)
                && used > has
            {
                self.violations.insert(format!("node {node}: {used} GPUs in use of {has}"));
            }
        }
        let mut alive: BTreeMap<(String, String), usize> = BTreeMap::new();
        // A silent node's pod may be dead or alive; whether a run starts elsewhere meanwhile is the policy's choice.
        let heard =
            |p: &&PodView| !p.pod.spec.node_name.as_ref().is_some_and(|n| self.silent_nodes.contains(n));
        let ours = |p: &&PodView| !p.label(names::LABEL_JOB_UID).is_empty();
        for pod in self.live().filter(ours).filter(heard) {
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
        let mut half = BTreeMap::new();
        for view in self.jobs.values().filter(|v| !v.deleted) {
            let Some(allocation) = view.job.status.as_ref().and_then(|s| s.allocation.as_ref()) else {
                continue;
            };
            let key = (view.job.uid().unwrap_or_default(), allocation.attempt.to_string());
            let live = alive.get(&key).copied().unwrap_or(0);
            if live > 0 && live < allocation.nodes.len() {
                half.insert(key.clone(), self.half_since.get(&key).copied().unwrap_or(now));
            }
        }
        for ((uid, attempt), since) in &half {
            if now.duration_since(*since) > HALF_GANG_LIMIT {
                self.violations.insert(format!("job {uid}, attempt {attempt}: half a gang for too long"));
            }
        }
        self.half_since = half;
    }
}

fn number(text: &str) -> i64 {
    text.parse().unwrap_or(0)
}

/// A running observer; dropped, it ends.
pub struct Observer {
    seen: Arc<Mutex<Seen>>,
    changes: watch::Receiver<u64>,
    _tasks: JoinSet<()>,
}

impl Observer {
    /// Sees nothing: for runs that measure, which a watcher more would slow down.
    pub fn idle() -> Self {
        Self { seen: Self::nothing(), changes: watch::channel(0).1, _tasks: JoinSet::new() }
    }

    fn nothing() -> Arc<Mutex<Seen>> {
        Arc::default()
    }

    /// Starts watching TrainingJobs, pods and nodes, and what the pretend kubelets say of devices.
    pub fn start(client: &kube::Client, kubelets: NodesClient) -> Self {
        let seen = Self::nothing();
        let (changed, changes) = watch::channel(0);
        let changed = Arc::new(changed);
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(
            Api::<SlimTrainingJob>::all(client.clone()),
            seen.clone(),
            changed.clone(),
            see_job,
        ));
        tasks.spawn(follow(Api::<SlimPod>::all(client.clone()), seen.clone(), changed.clone(), see_pod));
        tasks.spawn(follow(Api::<SlimNode>::all(client.clone()), seen.clone(), changed.clone(), see_node));
        tasks.spawn(devices::watch(kubelets, seen.clone()));
        let ticking = (seen.clone(), changed);
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                lock(&ticking.0).check();
                ticking.1.send_modify(|n| *n += 1);
            }
        });
        Self { seen, changes, _tasks: tasks }
    }

    /// Everything seen so far.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// Waits until something changed or a second passed.
    pub async fn changed(&mut self) {
        // The sender lives in tasks that end only with self.
        let _ = self.changes.changed().await;
    }

    /// Waits until `ready` holds of what is seen.
    ///
    /// # Errors
    /// When the time is over; the message shows the jobs as last seen.
    pub async fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut(&Seen) -> bool,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + limit;
        loop {
            if ready(&self.seen()) {
                return Ok(());
            }
            if Instant::now() > end {
                anyhow::bail!(
                    "not {what} within {} s; seen last:\n{}",
                    limit.as_secs(),
                    describe(&self.seen())
                );
            }
            self.changed().await;
        }
    }
}

pub(crate) fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The jobs and live pods as lines, for messages.
pub fn describe(seen: &Seen) -> String {
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
        }
    }
    lines.join("\n")
}

type See<K> = fn(&mut Seen, K, bool);

async fn follow<K>(api: Api<K>, seen: Arc<Mutex<Seen>>, changed: Arc<watch::Sender<u64>>, see: See<K>)
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut stream = watcher(api, watcher::Config::default()).boxed();
    while let Some(event) = stream.next().await {
        let (object, gone) = match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => (object, false),
            Ok(Event::Delete(object)) => (object, true),
            Ok(Event::Init | Event::InitDone) => continue,
            // The API server may be killed under us; the watcher goes on where it was.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(300)).await;
                continue;
            }
        };
        {
            let mut seen = lock(&seen);
            see(&mut seen, object, gone);
            seen.check();
        }
        changed.send_modify(|n| *n += 1);
    }
}

fn see_job(seen: &mut Seen, job: SlimTrainingJob, gone: bool) {
    let key = format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any());
    let phase = job.status.as_ref().map_or(Phase::Pending, |s| s.phase);
    let at = seen.started.elapsed();
    let view =
        seen.jobs.entry(key).or_insert_with(|| JobView { job: job.clone(), phases: vec![], deleted: gone });
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

fn see_pod(seen: &mut Seen, pod: SlimPod, gone: bool) {
    seen.pods.insert(pod.uid().unwrap_or_default(), PodView { pod, deleted: gone });
}

fn see_node(seen: &mut Seen, node: SlimNode, gone: bool) {
    let gpus = whole(node.status.allocatable.get(names::GPU_RESOURCE));
    if node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True") {
        seen.silent_nodes.remove(&node.name_any());
    } else {
        seen.silent_nodes.insert(node.name_any());
    }
    if gone {
        let here = |pod: &PodView| pod.pod.spec.node_name.as_ref() == Some(&node.name_any());
        let lost = seen.pods.iter().filter(|(_, pod)| here(pod)).map(|(uid, _)| uid.clone());
        seen.lost.extend(lost.collect::<Vec<_>>());
        seen.node_gpus.remove(&node.name_any());
    } else {
        seen.node_gpus.insert(node.name_any(), gpus);
    }
}
