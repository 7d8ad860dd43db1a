//! Builds a step's input from index and ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use andreas_api::EnergyPolicySpec;
use andreas_api::gpu_node::{GpuCondition, GpuState, TWO_HOLDERS};
use andreas_api::names::{LABEL_ARCHITECTURE, LABEL_GPU_MEMORY};
use andreas_api::slim::{SlimGpuNode, SlimNode, SlimPod, SlimTrainingJob};
use andreas_api::training_job::{Allocation, Prediction, UsedProfile};
use andreas_cluster::energy::measured::{self, LateEnergy, PendingEnergy};
use andreas_cluster::energy::weight::bounded_weight;
use andreas_cluster::energy::{bill, limits};
use andreas_cluster::index::{
    ClusterIndex, DeletedPod, agent_status, broken_gpus, is_worker, name_of, offered, owner, pods_of,
};
use andreas_lifecycle::{
    AgentFact, AttemptEnds, Backoff, Claim, DecisionFor, DeletedPodView, EnergyView, FirstSeen,
    KubeletEvents, NodeFact, Observed, Planned, PolicyView, Settings, attempt_ends, questions,
};
use andreas_runtime::watch::ObjectKey;
use andreas_workloads::adopt::Workload;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::ledger::{JobMemory, Ledger};
use crate::predict::Outlook;
use crate::snapshot::single_node_claim;

/// Input of a reconcile, owned: the index is unlocked meanwhile.
pub struct JobInput {
    /// The job.
    pub job: Arc<SlimTrainingJob>,
    workload: Option<Arc<Workload>>,
    pods: Vec<Arc<SlimPod>>,
    deleted: Vec<DeletedPod>,
    nodes: BTreeMap<String, NodeFact>,
    policy: PolicyView,
    now: Timestamp,
    memory: JobMemory,
    energy: EnergyView,
    members: Vec<measured::Member>,
    outlook: Option<Outlook>,
    forecast: Option<Prediction>,
    profile: UsedProfile,
    backoff: Option<Backoff>,
    single_node_claim: Option<String>,
    settings: Arc<Settings>,
    first_seen: FirstSeen,
    kubelet_events: KubeletEvents,
}

impl JobInput {
    /// Collects the input; `None` if the job does not exist.
    pub fn gather(
        index: &ClusterIndex,
        memory: impl FnOnce(&str) -> JobMemory,
        key: &ObjectKey,
        settings: Arc<Settings>,
        now: Timestamp,
    ) -> Option<Self> {
        let job = Arc::clone(index.jobs().get(key)?);
        let uid = job.uid().unwrap_or_default();
        let pods = index.members(key);
        let deleted = index.deleted(key).to_vec();
        let spec = index.policy().map(|policy| policy.spec.clone()).unwrap_or_default();
        let memory = memory(&uid);
        let nodes = node_facts(index, key, &job, &pods, &deleted, memory.plan().decision.as_ref(), now);
        let members = own_pods(&job, &pods, &deleted);
        let outlook = memory.outlook(&job, now);
        let forecast = outlook.map(|outlook| memory.forecast(&job, &outlook, now));
        let profile = index.used_profile(&job);
        let over_nodes = job.spec.gpus.max_nodes > 1;
        let single_node_claim =
            over_nodes.then(|| single_node_claim(index, &key.namespace, &job.spec)).flatten();
        let mut input = Self {
            policy: PolicyView::from_spec(&spec),
            first_seen: memory.first_seen(now),
            workload: index.workload_of(&job).cloned(),
            job,
            pods,
            deleted,
            nodes,
            now,
            memory,
            energy: EnergyView::default(),
            members,
            outlook,
            forecast,
            profile,
            backoff: None,
            single_node_claim,
            settings,
            kubelet_events: KubeletEvents::new(),
        };
        let ends = input.observe(attempt_ends);
        let pending_energy = input.memory.pending_energy();
        input.energy = energy(index, &input.job, &spec, &input.members, pending_energy, ends, now);
        Some(input)
    }

    /// UIDs of the pods whose Events decide the step.
    pub fn questions(&self) -> BTreeSet<String> {
        self.observe(questions)
    }

    /// Adds what kubelets said of pods.
    #[must_use]
    pub fn with_events(mut self, events: KubeletEvents) -> Self {
        self.kubelet_events.extend(events);
        self
    }

    /// If the plan stops other jobs first, this job waits for their GPUs, quota or watts. What starts counts
    /// against the budget from its allocation on. Its placement stays a commitment meanwhile.
    ///
    /// It also waits while the API server does not create pods in its namespace.
    #[must_use]
    pub fn held_back(mut self, index: &ClusterIndex, ledger: &Ledger) -> Self {
        let namespace = self.job.metadata.namespace.as_deref().unwrap_or_default();
        self.backoff = ledger.backoff(namespace);
        let waits = matches!(self.memory.claim(), None | Some(Claim::Waiting { .. }));
        if waits
            && self
                .memory
                .plan()
                .after
                .iter()
                .any(|(other, attempt)| still_holds(index, ledger, other, *attempt))
        {
            self.memory.drop_decision();
        }
        self
    }

    /// The energy that agents still have to report if the current attempt ends by this step. `None` unless
    /// all of its nodes have a reporting agent.
    pub fn pending_energy(
        &self,
        index: &ClusterIndex,
        step: &andreas_lifecycle::Step,
    ) -> Option<PendingEnergy> {
        let allocation = self.job.status.as_ref()?.allocation.as_ref()?;
        let record = step.status.history.last().filter(|record| record.attempt == allocation.attempt)?;
        let (pods, gpus_per_pod) = pods_of(&self.job, allocation);
        let complete = record.measured || pods != self.members.len();
        let agents = self.members.iter().all(|member| {
            let node = ObjectKey { namespace: String::new(), name: member.node.clone() };
            agent_status(index, &node).is_some()
        });
        (!complete && agents).then(|| PendingEnergy {
            attempt: allocation.attempt,
            members: self.members.clone(),
            gpus_per_worker: gpus_per_pod,
            joules: record.joules,
            micros: self.energy.attempt.micros,
            observation: step.learned.iter().find_map(|update| match update {
                andreas_lifecycle::ProfileUpdate::Observation(observation) => Some(observation.clone()),
                _ => None,
            }),
        })
    }

    /// The job's TrainingProfile.
    pub fn profile_key(&self) -> ObjectKey {
        ObjectKey { namespace: self.job.namespace().unwrap_or_default(), name: self.profile.name.clone() }
    }

    /// Energy that agents reported late and that this step adds.
    pub fn late(&self) -> Option<&LateEnergy> {
        self.energy.late.as_ref()
    }

    /// The plan's decision used by this step.
    pub fn decision(&self) -> Option<&DecisionFor> {
        self.memory.plan().decision.as_ref()
    }

    /// Planned and observed outlook if the run deviates enough for a new plan.
    pub fn off_plan(&self) -> Option<(Outlook, Outlook)> {
        let (planned, seen) = (self.memory.plan().predictions.outlook?, self.outlook?);
        seen.deviates_from(&planned).then_some((planned, seen))
    }

    /// Runs the step.
    pub fn step(&self) -> andreas_lifecycle::Step {
        self.observe(andreas_lifecycle::step)
    }

    fn observe<T>(&self, see: impl FnOnce(&Observed<'_>) -> T) -> T {
        let pods: Vec<&SlimPod> = self.pods.iter().map(Arc::as_ref).collect();
        let deleted: Vec<DeletedPodView<'_>> = self
            .deleted
            .iter()
            .map(|deleted| DeletedPodView {
                last: &deleted.last,
                at: ago(self.now, deleted.at),
                holders_requested: deleted.holders_requested,
            })
            .collect();
        see(&Observed {
            job: &self.job,
            workload: self.workload.as_deref(),
            pods: &pods,
            deleted: &deleted,
            nodes: &self.nodes,
            policy: &self.policy,
            now: self.now,
            first_seen: &self.first_seen,
            decision: self.memory.plan().decision.as_ref(),
            host_watts: self.memory.plan().host_watts,
            creation: &self.memory.admission().creation,
            backoff: self.backoff.as_ref(),
            single_node_claim: self.single_node_claim.as_deref(),
            dry_run: self.memory.admission().dry_run.as_ref(),
            failing: self.memory.is_failing(),
            rules_changed: self.memory.admission().rules_changed,
            forecast: self.forecast.as_ref(),
            profile: &self.profile,
            energy: &self.energy,
            last_write: self.memory.seen().last_write,
            last_progress: self.memory.seen().last_progress,
            reports_lost: self.memory.seen().reports_lost,
            kubelet_events: &self.kubelet_events,
            settings: &self.settings,
        })
    }
}

/// The job still holds what it held in that attempt.
fn still_holds(index: &ClusterIndex, ledger: &Ledger, job: &ObjectKey, attempt: i64) -> bool {
    let memory = ledger.get(job);
    let holds = memory.and_then(|memory| memory.claim()).is_some_and(|claim| {
        matches!(claim, Claim::Starting { .. } | Claim::Running { .. } | Claim::Stopping { .. })
    });
    let allocation = ledger.status(index, job).and_then(|status| status.allocation.as_ref());
    holds && allocation.is_some_and(|allocation| allocation.attempt == attempt)
}

/// The instant this long before `now`, by the monotonic clock.
fn ago(now: Timestamp, then: Instant) -> Timestamp {
    let passed = SignedDuration::try_from(then.elapsed()).unwrap_or(SignedDuration::ZERO);
    now.checked_sub(passed).unwrap_or(now)
}

/// Bound pods of the current attempt, existing or deleted.
fn own_pods(job: &SlimTrainingJob, pods: &[Arc<SlimPod>], deleted: &[DeletedPod]) -> Vec<measured::Member> {
    let Some(allocation) = job.status.as_ref().and_then(|status| status.allocation.as_ref()) else {
        return Vec::new();
    };
    let all = pods.iter().chain(deleted.iter().map(|deleted| &deleted.last));
    let own = all.filter(|pod| is_worker(pod, job, allocation.attempt));
    own.filter_map(|pod| measured::Member::from_pod(pod)).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Energy and cost of the job so far. What has ended uses no energy, and does not become later, whenever the operator sees it.
fn energy(
    index: &ClusterIndex,
    job: &SlimTrainingJob,
    policy: &EnergyPolicySpec,
    members: &[measured::Member],
    pending_energy: Option<&PendingEnergy>,
    ends: Option<AttemptEnds>,
    now: Timestamp,
) -> EnergyView {
    let until = ends.as_ref().filter(|ends| ends.lasts).map_or(now, |ends| ends.at);
    let each = ends.map(|ends| ends.members).unwrap_or_default();
    let predicted = bill::attempt_energy(job, policy, &each);
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let weight = bounded_weight(index, namespace, job.spec.weight);
    let mut view = EnergyView {
        attempt: predicted,
        lateness_micros: bill::lateness_micros(job, weight, policy, until),
        ..EnergyView::default()
    };
    let allocation = job.status.as_ref().and_then(|status| status.allocation.as_ref());
    let pods =
        allocation.map(|allocation| pods_of(job, allocation)).filter(|(pods, _)| *pods == members.len());
    if let Some(used) = pods.and_then(|(_, gpus_per_pod)| measured::used_by(index, members, gpus_per_pod)) {
        let at = each.into_iter().max().unwrap_or(now);
        view.attempt.joules = used.joules;
        view.attempt.micros = measured::price(policy, predicted.micros, predicted.joules, used.joules, at);
        view.measured = true;
        view.measured_watts = used.watts();
    }
    view.late = pending_energy.and_then(|pending_energy| pending_energy.final_energy(index, policy, now));
    view
}

fn node_facts(
    index: &ClusterIndex,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    pods: &[Arc<SlimPod>],
    deleted: &[DeletedPod],
    decision: Option<&DecisionFor>,
    now: Timestamp,
) -> BTreeMap<String, NodeFact> {
    let decided = match decision.map(|decision| &decision.planned) {
        Some(Planned::Run { nodes, .. }) => nodes.as_slice(),
        _ => &[],
    };
    let allocated =
        job.status.iter().filter_map(|status| status.allocation.as_ref()).flat_map(|a| a.nodes.iter());
    let bound = pods
        .iter()
        .chain(deleted.iter().map(|deleted| &deleted.last))
        .filter_map(|pod| pod.spec.node_name.as_ref());
    let mut facts = BTreeMap::new();
    for name in allocated.chain(bound).chain(decided) {
        if facts.contains_key(name) {
            continue;
        }
        let node_key = ObjectKey { namespace: String::new(), name: name.clone() };
        match index.nodes().get(&node_key) {
            Some(node) => {
                let agent = index.gpu_nodes().get(&node_key).and_then(|gpu_node| agent(gpu_node, index, now));
                let free_gpus = free_gpus(index, node, key, job);
                let open_gpus = open_gpus(index, node, &node_key);
                let mut fact = fact(node, agent, free_gpus, open_gpus);
                fact.lost = index.lost_in_boot(name, pods.iter().map(Arc::as_ref), deleted);
                facts.insert(name.clone(), fact);
            }
            // The Node exists but cannot be parsed: no proof of death.
            None if index.is_unreadable_node(name) => {
                facts.insert(name.clone(), NodeFact { ready: false, free_gpus: 0, ..NodeFact::default() });
            }
            None => {}
        }
    }
    facts
}

fn fact(node: &SlimNode, agent: Option<AgentFact>, free_gpus: i32, open_gpus: i32) -> NodeFact {
    let ready = node.status.conditions.iter().find(|condition| condition.type_ == "Ready");
    NodeFact {
        ready: ready.is_some_and(|condition| condition.status == "True"),
        ready_changed: ready.and_then(|condition| condition.last_transition_time.as_ref()).map(|time| time.0),
        boot_id: node.status.node_info.boot_id.clone(),
        leaving: is_leaving(node),
        lost: BTreeSet::new(),
        out_of_service: node.spec.taints.iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service"),
        free_gpus,
        open_gpus,
        architecture: node.labels().get(LABEL_ARCHITECTURE).cloned().unwrap_or_default(),
        gpu_memory_mib: node.labels().get(LABEL_GPU_MEMORY).and_then(|text| text.parse().ok()),
        agent,
    }
}

/// Taints by which autoscalers take nodes out of use.
const LEAVING: [&str; 3] =
    ["karpenter.sh/disrupted", "karpenter.sh/disruption", "ToBeDeletedByClusterAutoscaler"];

fn is_leaving(node: &SlimNode) -> bool {
    let tainted = node.spec.taints.iter().any(|taint| LEAVING.contains(&taint.key.as_str()));
    tainted || node.spec.unschedulable || node.metadata.deletion_timestamp.is_some()
}

/// The agent's state; `None`: no live agent there.
fn agent(node: &SlimGpuNode, index: &ClusterIndex, now: Timestamp) -> Option<AgentFact> {
    let status = node.status.as_ref()?;
    status.agent_version.as_ref()?;
    let condition = status.conditions.iter().find(|c| c.type_ == "Unhealthy" && c.status == "True");
    let of_node = condition.map(|condition| condition.last_transition_time.0);
    let broken = status.gpus.iter().filter(|gpu| gpu.state == GpuCondition::Unhealthy);
    // A second GPU may break on a node that has been unhealthy for days.
    let since = broken.filter_map(|gpu| gpu.unhealthy_since.as_ref().map(|since| since.0).or(of_node));
    let unanswered_for = index.wake_unanswered_for(&node.name_any());
    let unanswered_since =
        unanswered_for.and_then(|ago| now.checked_sub(SignedDuration::try_from(ago).ok()?).ok());
    Some(AgentFact {
        wake: node.spec.wake_generation,
        awake: status.observed_wake_generation,
        unanswered_since,
        sets_limits: limits::of_node(Some(status)).is_some()
            && node
                .metadata
                .generation
                .is_some_and(|generation| status.observed_generation >= Some(generation)),
        limits: node.spec.limits.iter().map(|limit| (limit.pod.clone(), limit.watts)).collect(),
        holders: status.gpus.iter().filter_map(|gpu| gpu.holder.clone()).collect(),
        beside_parked: status
            .gpus
            .iter()
            .filter(|gpu| gpu.parked.iter().any(|context| context.pod.is_none()))
            .map(|gpu| gpu.holder.clone().unwrap_or_default())
            .collect(),
        holders_observed: status.observed_holders_generation,
        unhealthy_since: since.max(),
        doubled: status.gpus.iter().filter_map(|gpu| gives_way(gpu, index, &node.name_any())).collect(),
    })
}

/// Of the pods to which a kubelet gave a GPU at once, the younger one of ours. Of one of ours and a foreign one it is ours.
fn gives_way(gpu: &GpuState, index: &ClusterIndex, node: &str) -> Option<String> {
    gpu.problems.iter().find(|problem| problem.reason == TWO_HOLDERS)?;
    let has_it = |pod: &&Arc<SlimPod>| gpu.shares.iter().any(|share| share.pod == name_of(&pod.metadata));
    let ours = index.pods_on(node).filter(|pod| owner(&pod.metadata).is_some()).filter(has_it);
    let age = |pod: &&Arc<SlimPod>| {
        (pod.metadata.creation_timestamp.as_ref().map(|at| at.0), name_of(&pod.metadata))
    };
    ours.max_by_key(age).map(|pod| name_of(&pod.metadata))
}

/// GPUs of a node available to this job's current attempt. Not counted are foreign pods, our other bound
/// pods, and earlier commitments to other jobs without pods there yet.
fn free_gpus(index: &ClusterIndex, node: &SlimNode, key: &ObjectKey, job: &SlimTrainingJob) -> i32 {
    let name = node.name_any();
    let own = job.status.as_ref().and_then(|status| status.allocation.as_ref());
    let present = |pod: &SlimPod| own.is_some_and(|own| is_worker(pod, job, own.attempt));
    let mut used = index.taken(&name, present).gpus;
    for (_, their) in index.allocated_on(&name).filter(|(other, _)| *other != key) {
        // A job that is being deleted holds what its pods hold and gets nothing new.
        if their.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let Some(allocation) = their.status.as_ref().and_then(|status| status.allocation.as_ref()) else {
            continue;
        };
        let first = own.is_none_or(|own| rank(their, allocation) < rank(job, own));
        let carried_out = index.pods_on(&name).any(|pod| is_worker(pod, their, allocation.attempt));
        let starting =
            their.status.as_ref().is_some_and(|status| status.phase == andreas_api::Phase::Starting);
        if first && starting && !carried_out {
            used = used.saturating_add(u64::try_from(allocation.gpus_per_worker).unwrap_or(0));
        }
    }
    let has = offered(node).gpus;
    i32::try_from(has).unwrap_or(i32::MAX) - i32::try_from(used).unwrap_or(i32::MAX)
}

/// Order of two allocations. Timestamps are whole seconds; within one the older job comes first. The
/// user-chosen name never decides.
fn rank<'a>(
    job: &'a SlimTrainingJob,
    allocation: &Allocation,
) -> (Timestamp, Option<Timestamp>, Option<&'a str>) {
    let created = job.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (allocation.since.0, created, job.metadata.uid.as_deref())
}

/// GPUs of a node that are neither held by foreign pods nor broken.
fn open_gpus(index: &ClusterIndex, node: &SlimNode, key: &ObjectKey) -> i32 {
    let has = offered(node).gpus;
    // Orphans count as foreign.
    let of_jobs = |name: &str| {
        let mut pods = index.pods_on(&key.name).filter(|pod| owner(&pod.metadata).is_some());
        pods.any(|pod| name_of(&pod.metadata) == name)
    };
    let broken = broken_gpus(index, key, node, of_jobs);
    let lost = index.taken(&key.name, |_| true).gpus.saturating_add(broken);
    i32::try_from(has).unwrap_or(i32::MAX) - i32::try_from(lost).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
