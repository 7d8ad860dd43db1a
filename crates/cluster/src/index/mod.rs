//! In-memory state of the cluster: synchronous, rebuilt from the API server at every start.
//!
//! **In**: lists and watches, one feed per kind, and responses to our own writes.
//! **Out**: the objects by name ([`store::Store`]), each job's members, foreign use per node, the set of
//! dirty jobs ([`ClusterIndex::take_dirty`]), and [`Signals`] such as "a job is dirty" and "plan again".
//!
//! A pod is ours by label **and** controller reference ([`pod_owner`](andreas_api::pod_owner::pod_owner)). All
//! others, our orphans included, are foreign and count as use of their node. A pod of an adopted workload is read
//! as a member of the TrainingJob that stands for it (`adopted`).
//!
//! What single objects say is read here too ([`usable`], [`takes`], [`is_member`]...), without the policy.
//!
//! Deleted pods are kept with their last observed state ([`ClusterIndex::deleted`]) until the operator has
//! judged their attempt, and those of a job that is gone while they may run. A deletion often arrives before the final
//! container states.
//!
//! **Never here**: I/O, decisions. The clock only records when something was seen.

mod adopted;
mod agents;
pub mod amounts;
mod capacity;
pub mod foreign;
mod holding;
pub mod machines;
mod nodes;
mod pods;
mod profiles;
mod program;
mod read;
pub mod store;
mod templates;
mod vanished;
mod watched;
mod workloads;
mod written;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use andreas_api::energy_policy::Limits;
use andreas_api::slim::{
    SlimEnergyPolicy, SlimGpuNode, SlimNode, SlimNodePower, SlimPersistentVolume, SlimPersistentVolumeClaim,
    SlimPod, SlimQuota, SlimTrainingJob, SlimTrainingProfile,
};
use andreas_api::{TrainingJobStatus, key_of, names};
use andreas_model::ObjectKey;
use jiff::Timestamp;
use kube::api::ObjectMeta;
use tokio::sync::Notify;

pub use adopted::{adopted_job, is_adopted};
use agents::Agents;
pub use agents::reporting_agent;
pub use amounts::Amounts;
use capacity::Capacity;
pub use foreign::{ForeignPod, SlimNamespace, WaitingPod};
pub use nodes::{MOST_GPUS, agent_status, broken_gpus, gpu_memory, offered, ready, usable, whole_gpus};
pub use pods::{
    beyond, containers_seen_ended, is_member, is_worker, job_label, name_of, number, owner, pods_of, takes,
};
pub use store::Origin;
use store::{Change, Store};
use templates::Templates;
use vanished::VanishedPods;
pub use workloads::Workloads;

/// Signals to the waiting loops.
#[derive(Debug, Default)]
pub struct Signals {
    /// There are dirty jobs.
    pub dirty: Notify,
    /// An input of the plan changed that frees or takes GPUs.
    pub plan: Notify,
    /// Another input of the plan changed: more like it may follow, and one plan is enough for all.
    pub soon: Notify,
    /// Steps have read every decision, or no job waits for its step.
    pub stepped: Notify,
    /// The API server went back to an older state: cached data is invalid.
    pub rewound: Notify,
    /// Agents must be asked for GPU holders.
    pub holders: Notify,
    /// A job of another kind that asks for adoption changed, or one that stands for it.
    pub adoption: Notify,
    /// Other machines are wanted on or off.
    pub power: Notify,
}

/// The cluster's state.
#[derive(Default)]
pub struct ClusterIndex {
    jobs: Store<SlimTrainingJob>,
    /// Pods with our label, orphans included.
    pods: Store<SlimPod>,
    nodes: Store<SlimNode>,
    profiles: Store<SlimTrainingProfile>,
    gpu_nodes: Store<SlimGpuNode>,
    node_powers: Store<SlimNodePower>,
    capacity: Capacity,
    rules: Rules,
    storage: Storage,
    workloads: Workloads,
    gangs: Gangs,
    by_node: ByNode,
    changes: Changes,
    clock: Clock,
}

/// Where the present comes from.
#[derive(Clone, Copy)]
struct Clock(fn() -> Timestamp);

impl Default for Clock {
    fn default() -> Self {
        Self(Timestamp::now)
    }
}

/// Objects by which administrators set rules.
#[derive(Clone, Default)]
pub struct Rules {
    /// EnergyPolicies; the one named `default` is used.
    pub policies: Store<SlimEnergyPolicy>,
    /// ResourceQuotas.
    pub quotas: Store<SlimQuota>,
    /// Namespaces.
    pub namespaces: Store<SlimNamespace>,
    /// The largest weight that counts in a namespace that says nothing of it.
    pub max_weight: Option<i32>,
}

/// Volumes and claims on them.
#[derive(Clone, Default)]
pub struct Storage {
    /// PersistentVolumeClaims.
    pub claims: Store<SlimPersistentVolumeClaim>,
    /// PersistentVolumes.
    pub volumes: Store<SlimPersistentVolume>,
}

/// What is known of each job's pods.
#[derive(Default)]
struct Gangs {
    templates: Templates,
    members: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    deleted: BTreeMap<ObjectKey, Vec<DeletedPod>>,
    /// Those of `deleted` with pods of jobs that are gone.
    outlived: BTreeSet<ObjectKey>,
    /// Number of jobs in `outlived` at which pods whose time is over are dropped.
    expire_at: usize,
    /// Jobs by pod whose energy the agents have not reported yet.
    pending_energy: BTreeMap<String, ObjectKey>,
    /// When each pod, by UID, was first seen with a started container.
    started: HashMap<String, Instant>,
}

/// What is known of each node.
#[derive(Default)]
struct ByNode {
    pods: BTreeMap<String, BTreeSet<ObjectKey>>,
    allocated: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// All other pods that have not ended.
    foreign: Store<ForeignPod>,
    foreign_use: BTreeMap<String, Amounts>,
    agents: Agents,
    unreadable: BTreeSet<String>,
    vanished: VanishedPods,
    /// Boot ID of each node, and when a change was seen.
    boots: HashMap<String, (String, Option<Instant>)>,
}

/// What changed since the loops last looked.
#[derive(Default)]
struct Changes {
    dirty: BTreeSet<ObjectKey>,
    namespaces: BTreeSet<String>,
    signals: Arc<Signals>,
}

/// A deleted pod of ours.
#[derive(Clone, Debug)]
pub struct DeletedPod {
    /// Its last observed state.
    pub last: Arc<SlimPod>,
    /// When its deletion was seen.
    pub at: Instant,
    /// The last `holdersGeneration` of its node by then.
    pub holders_requested: i64,
    /// When it was first seen started.
    pub started: Option<Instant>,
}

impl ClusterIndex {
    /// An empty index, by this machine's clock.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty index, by another clock: the API server's, which sets what objects say.
    pub fn with_clock(now: fn() -> Timestamp) -> Self {
        Self { clock: Clock(now), ..Self::default() }
    }

    /// The largest weight that counts in namespaces without the annotation that bounds it.
    #[must_use]
    pub fn with_max_weight(mut self, weight: i32) -> Self {
        self.rules.max_weight = Some(weight);
        self
    }

    /// A copy for planning: objects are shared, foreign pods are included as sums only, machines that are off are nodes, and it
    /// sends no signals.
    pub fn for_plan(&self) -> Self {
        let mut copy = self.with_jobs(self.jobs.clone());
        copy.add_machines((self.clock.0)());
        copy
    }

    /// A copy for planning with this job: new, or in the place of the one with its name.
    pub fn with_job(&self, job: SlimTrainingJob) -> Self {
        let mut jobs = self.jobs.clone();
        // It takes that place whatever its version.
        jobs.rewound();
        jobs.apply(job, Origin::Watched);
        self.with_jobs(jobs)
    }

    fn with_jobs(&self, jobs: Store<SlimTrainingJob>) -> Self {
        Self {
            jobs,
            pods: self.pods.clone(),
            nodes: self.nodes.clone(),
            profiles: self.profiles.clone(),
            gpu_nodes: self.gpu_nodes.clone(),
            node_powers: self.node_powers.clone(),
            capacity: self.capacity.clone(),
            rules: self.rules.clone(),
            storage: self.storage.clone(),
            by_node: ByNode {
                pods: self.by_node.pods.clone(),
                foreign_use: self.by_node.foreign_use.clone(),
                agents: self.by_node.agents.clone(),
                vanished: self.by_node.vanished.clone(),
                ..ByNode::default()
            },
            clock: self.clock,
            ..Self::default()
        }
    }

    /// The signals to wait on.
    pub fn signals(&self) -> Arc<Signals> {
        Arc::clone(&self.changes.signals)
    }

    /// Takes the dirty jobs, sorted by name; the set is empty afterwards.
    pub fn take_dirty(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.changes.dirty)
    }

    /// Namespaces whose rules (labels, quotas) changed since the last call: refused requests may succeed now.
    pub fn take_changed_namespaces(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changes.namespaces)
    }

    /// Marks this job dirty.
    pub fn mark(&mut self, job: ObjectKey) {
        self.changes.dirty.insert(job);
        self.changes.signals.dirty.notify_one();
    }

    /// Marks every job dirty: after taking over leadership or a change of policy.
    pub fn mark_all(&mut self) {
        self.changes.dirty.extend(self.jobs.iter().map(|(key, _)| key.clone()));
        self.changes.signals.dirty.notify_one();
    }

    /// Marks every job of a namespace dirty.
    pub fn mark_namespace(&mut self, namespace: &str) {
        let jobs = self.jobs.iter().filter(|(key, _)| key.namespace == namespace).map(|(key, _)| key.clone());
        self.changes.dirty.extend(jobs);
        self.changes.signals.dirty.notify_one();
    }

    /// Requests a new plan.
    pub fn replan(&self) {
        self.changes.signals.plan.notify_one();
    }

    /// Requests a new plan once nothing of the kind has come for a while: for what takes and frees no GPUs.
    pub fn replan_soon(&self) {
        self.changes.signals.soon.notify_one();
    }

    /// The pods with the job's name in our label, by name. Older UIDs and forged ones are included.
    pub fn members(&self, job: &ObjectKey) -> Vec<Arc<SlimPod>> {
        let keys = self.gangs.members.get(job).into_iter().flatten();
        keys.filter_map(|key| self.pods.get(key).cloned()).collect()
    }

    /// A Node of that name exists and was never parsed successfully.
    pub fn is_unreadable_node(&self, name: &str) -> bool {
        self.by_node.unreadable.contains(name)
    }

    /// Use of a node by foreign pods, our orphans included.
    pub fn foreign_use(&self, node: &str) -> Amounts {
        self.by_node.foreign_use.get(node).cloned().unwrap_or_default()
    }

    /// The policy in force; without an object all defaults apply.
    pub fn policy(&self) -> Option<&Arc<SlimEnergyPolicy>> {
        self.rules.policies.get(&ObjectKey { namespace: String::new(), name: names::DEFAULT_POLICY.into() })
    }

    /// The policy limits the power of the cluster or of GPUs.
    fn limits_power(&self) -> bool {
        self.policy().is_some_and(|policy| {
            let spec = &policy.spec;
            spec.power_budget.limits_power() || spec.limits == Limits::On
        })
    }

    /// Our pods bound to a node, ended ones included.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Arc<SlimPod>> {
        self.by_node.pods.get(node).into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    /// Jobs with an allocation on a node.
    pub fn allocated_on(&self, node: &str) -> impl Iterator<Item = (&ObjectKey, &Arc<SlimTrainingJob>)> {
        let keys = self.by_node.allocated.get(node).into_iter().flatten();
        keys.filter_map(|key| self.jobs.get(key).map(|job| (key, job)))
    }

    fn apply_job(&mut self, mut job: SlimTrainingJob, origin: Origin) {
        let key = key_of(&job);
        job.status = job.status.map(TrainingJobStatus::with_a_known_phase);
        let known = self.jobs.get(&key).map(|held| &held.spec.template);
        if !known.is_some_and(|known| job.spec.template.share(known)) {
            let may_wait = job.status.as_ref().is_none_or(|status| status.allocation.is_none());
            self.gangs.templates.share(&key.namespace, &mut job.spec.template, may_wait);
        }
        match self.jobs.apply(job, origin) {
            Change::Nothing => return,
            Change::New { replaced } => {
                if let Some(old) = replaced {
                    self.unindex_job(&key, &old);
                    self.forget_deleted(&key, |_| true);
                }
            }
            Change::Newer { old } => self.unindex_job(&key, &old),
        }
        for node in self.jobs.get(&key).map(|job| nodes_of(job).to_vec()).unwrap_or_default() {
            self.by_node.allocated.entry(node).or_default().insert(key.clone());
        }
        if self.jobs.get(&key).is_some_and(|job| job.spec.adopts.is_some()) {
            self.changes.signals.adoption.notify_one();
        }
        self.mark(key);
    }

    fn unindex_job(&mut self, key: &ObjectKey, old: &SlimTrainingJob) {
        for node in nodes_of(old) {
            remove(&mut self.by_node.allocated, node, key);
        }
    }

    fn delete_job(&mut self, key: &ObjectKey, last: Option<&ObjectMeta>) {
        if let Some(old) = self.jobs.delete(key, last) {
            self.drop_job_state(key, &old);
        }
    }

    fn drop_job_state(&mut self, key: &ObjectKey, old: &SlimTrainingJob) {
        self.unindex_job(key, old);
        if old.spec.adopts.is_some() {
            self.changes.signals.adoption.notify_one();
        }
        self.forget_deleted(key, |_| true);
        self.gangs.pending_energy.retain(|_, owner| owner != key);
        // State kept elsewhere is dropped when the marked job is not found.
        self.mark(key.clone());
        self.replan();
    }

    fn apply_pod(&mut self, mut pod: SlimPod, origin: Origin) {
        adopted::as_member(&mut pod);
        let key = key_of(&pod);
        let mut was_on = None;
        match self.pods.apply(pod, origin) {
            Change::Nothing => return,
            Change::New { replaced } => {
                if let Some(old) = replaced {
                    self.unindex_pod(&key, &old);
                    self.record_deleted_pod(&old);
                }
            }
            Change::Newer { old } => {
                self.unindex_pod(&key, &old);
                was_on = takes(&old).map(|(node, _)| node.to_owned());
            }
        }
        let Some(pod) = self.pods.get(&key).cloned() else { return };
        self.pod_seen(&pod);
        if was_on.is_some() && takes(&pod).is_none() {
            self.release_of(&pod);
        }
        if let Some(job) = job_label(&pod.metadata) {
            self.gangs.members.entry(job.clone()).or_default().insert(key.clone());
            self.mark(job);
        }
        if let Some(node) = &pod.spec.node_name {
            self.by_node.pods.entry(node.clone()).or_default().insert(key);
        }
        if owner(&pod.metadata).is_none()
            && let Some((node, amounts)) = takes(&pod)
        {
            self.add_use(node, name_of(&pod.metadata), amounts);
        }
    }

    fn delete_pod(&mut self, key: &ObjectKey, mut last: Option<SlimPod>) {
        if let Some(last) = &mut last {
            adopted::as_member(last);
        }
        let Some(old) = self.pods.delete(key, last.as_ref().map(|pod| &pod.metadata)) else { return };
        self.unindex_pod(key, &old);
        // The deletion event carries the last state, which may hold an end not seen before.
        match last.filter(|last| last.metadata.uid == old.metadata.uid) {
            Some(last) => self.record_deleted_pod(&Arc::new(last)),
            None => self.record_deleted_pod(&old),
        }
        self.release_of(&old);
    }

    /// GPUs of a pod became free; another job may wait for them.
    fn release_of(&mut self, pod: &SlimPod) {
        if let Some(node) = pod.spec.node_name.clone() {
            let waiting: Vec<ObjectKey> =
                self.by_node.allocated.get(&node).into_iter().flatten().cloned().collect();
            for job in waiting {
                self.mark(job);
            }
        }
        self.replan();
    }

    fn unindex_pod(&mut self, key: &ObjectKey, pod: &SlimPod) {
        if let Some(job) = job_label(&pod.metadata) {
            remove(&mut self.gangs.members, &job, key);
            self.mark(job);
        }
        if let Some(node) = &pod.spec.node_name {
            remove(&mut self.by_node.pods, node, key);
        }
        if owner(&pod.metadata).is_none()
            && let Some((node, amounts)) = takes(pod)
        {
            self.drop_use(node, &name_of(&pod.metadata), amounts);
        }
    }

    /// Marks jobs with an allocation or a pod on a node, and those that wait for a deleted one there.
    fn mark_jobs_on(&mut self, node: &str) {
        let allocated = self.by_node.allocated.get(node).into_iter().flatten().cloned();
        let holding = self.pods_on(node).filter_map(|pod| job_label(&pod.metadata));
        for job in allocated.chain(holding).chain(self.outlived_on(node)).collect::<Vec<_>>() {
            self.mark(job);
        }
    }
}

fn remove<K: Ord + Clone>(map: &mut BTreeMap<K, BTreeSet<ObjectKey>>, at: &K, key: &ObjectKey) {
    if let Some(set) = map.get_mut(at) {
        set.remove(key);
        if set.is_empty() {
            map.remove(at);
        }
    }
}

fn nodes_of(job: &SlimTrainingJob) -> &[String] {
    let allocation = job.status.as_ref().and_then(|status| status.allocation.as_ref());
    allocation.map(|allocation| allocation.nodes.as_slice()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
