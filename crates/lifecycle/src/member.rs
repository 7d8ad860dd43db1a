//! Which pods belong to an attempt, and whether they can still run.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use andreas_api::names;
use andreas_api::pod_owner::controlling_job;
use andreas_api::slim::{SlimContainerState, SlimPod, SlimTerminated, SlimTrainingJob};
use andreas_api::training_job::Allocation;
use andreas_cluster::index::{containers_seen_ended, is_adopted, is_member, name_of};
use andreas_cluster::instants::{CLOCK_SKEW, after, seconds_between};
use jiff::Timestamp;

use super::observed::{DeletedPodView, NodeFact, Observed};
use super::pods::ANNOTATION_BOOT_ID;

/// A pod of an older object of the same name. It may still write the checkpoint and hold GPUs.
fn is_of_older(pod: &SlimPod, job: &SlimTrainingJob) -> bool {
    let (Some(uid), Some(name)) = (&job.metadata.uid, &job.metadata.name) else { return false };
    let owner = controlling_job(&pod.metadata);
    is_adopted(pod) == job.spec.adopts.is_some()
        && owner.is_some_and(|owner| owner.name == name && owner.uid != uid)
        && label(pod, names::LABEL_JOB) == Some(name)
}

pub(super) fn label<'a>(pod: &'a SlimPod, key: &str) -> Option<&'a String> {
    pod.metadata.labels.as_ref()?.get(key)
}

pub(super) fn number(pod: &SlimPod, key: &str) -> Option<i64> {
    label(pod, key)?.parse().ok()
}

/// No container of the pod runs or will run: by its phase, or because it is being deleted and was never
/// bound. The API server refuses to bind such a pod. A finalizer may keep its object.
pub(super) fn is_over(pod: &SlimPod) -> bool {
    let never_bound = pod.spec.node_name.is_none() && pod.metadata.deletion_timestamp.is_some();
    never_bound || pod.has_ended()
}

/// Proof that a pod's node no longer runs it: the Node was deleted, is declared out of service, or rebooted
/// after the pod started. A new boot ID alone is no proof: a pod bound before a boot may start after it.
pub(super) fn proof_of_death(pod: &SlimPod, nodes: &BTreeMap<String, NodeFact>) -> Option<&'static str> {
    let node = pod.spec.node_name.as_ref()?;
    let Some(fact) = nodes.get(node) else { return Some("was deleted") };
    if fact.out_of_service {
        return Some("is out of service");
    }
    let lost = pod.metadata.uid.as_ref().is_some_and(|uid| fact.lost.contains(uid));
    lost.then_some("was booted again")
}

/// The pod's node rebooted after the pod was created, so the failure is not the program's.
pub(super) fn booted_since(pod: &SlimPod, fact: &NodeFact) -> bool {
    let made_under = pod.metadata.annotations.as_ref().and_then(|a| a.get(ANNOTATION_BOOT_ID));
    made_under.is_some_and(|boot| !boot.is_empty() && !fact.boot_id.is_empty() && *boot != fact.boot_id)
}

/// The pod holds the GPUs it requests: it is bound, and nothing shows that its containers are gone.
pub fn pod_in_use(pod: &SlimPod, nodes: &BTreeMap<String, NodeFact>) -> bool {
    pod.spec.node_name.is_some() && !is_over(pod) && proof_of_death(pod, nodes).is_none()
}

/// A job on an unreachable node may restart elsewhere: the policy allows it, and two concurrent attempts
/// would not corrupt its checkpoint.
pub(super) fn may_restart(o: &Observed<'_>) -> bool {
    o.policy.node_loss_restart && !exclusive(o)
}

/// When a pod on an unreachable node is given up so that its job can continue. Its GPUs stay in use. `None`:
/// never.
pub(super) fn given_up_at(o: &Observed<'_>, pod: &SlimPod) -> Option<Timestamp> {
    let node = pod.spec.node_name.as_ref().filter(|n| o.nodes.get(*n).is_some_and(|fact| !fact.ready));
    let node = node.filter(|_| may_restart(o))?;
    Some(after(o.readiness_seen(node), o.policy.node_loss_after))
}

/// The pod has been given up: see [`given_up_at`].
pub(super) fn given_up(o: &Observed<'_>, pod: &SlimPod) -> bool {
    given_up_at(o, pod).is_some_and(|at| at <= o.now)
}

/// The pod can still run, and has not been given up.
pub(super) fn may_run(o: &Observed<'_>, pod: &SlimPod) -> bool {
    !is_over(pod) && proof_of_death(pod, o.nodes).is_none() && !given_up(o, pod)
}

/// Seconds that a busy kubelet may need to accept a bound pod. A clock may be behind by this much more than
/// [`clock_behind`] returns.
const TAKEN: i64 = 60;

/// Seconds by which the node's clock is behind the API server's; 0 if they agree. Visible when the kubelet
/// accepted the pod before the API server bound it.
pub(super) fn clock_behind(pod: &SlimPod) -> i64 {
    let bound = scheduled_at(pod);
    let taken = pod.status.start_time.as_ref();
    let behind = bound.zip(taken).map_or(0, |(bound, taken)| seconds_between(taken.0, bound));
    if behind > CLOCK_SKEW { behind } else { 0 }
}

/// Latest end of a container in the API server's time. `None` if the node's clock was set back since its kubelet accepted the
/// pod.
fn ended_at(pod: &SlimPod, terminated: &SlimTerminated) -> Option<Timestamp> {
    let finished = terminated.finished_at.as_ref()?.0;
    let mut earlier = pod.status.start_time.iter().chain(&terminated.started_at);
    if earlier.any(|stamp| stamp.0 > finished) {
        return None;
    }
    let behind = clock_behind(pod);
    Some(after(finished, if behind > 0 { behind + TAKEN } else { 0 }))
}

/// When the API server bound a pod, by its own clock.
fn scheduled_at(pod: &SlimPod) -> Option<Timestamp> {
    let mut conditions = pod.status.conditions.iter();
    let bound = conditions.find(|c| c.type_ == "PodScheduled" && c.status == "True")?;
    bound.last_transition_time.as_ref().map(|t| t.0)
}

/// One member of the gang.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    pub index: usize,
    /// Its node in the allocation.
    pub node: &'a str,
    /// Its pod, if it exists.
    pub live: Option<&'a SlimPod>,
    /// Its last observed state, if the pod was deleted.
    pub deleted: Option<DeletedPodView<'a>>,
}

impl<'a> Member<'a> {
    /// The pod, existing or deleted.
    pub fn pod(&self) -> Option<&'a SlimPod> {
        self.live.or(self.deleted.map(|g| g.last))
    }

    pub fn bound(&self) -> bool {
        self.pod().is_some_and(|p| p.spec.node_name.is_some())
    }

    /// When the scheduler bound it.
    pub fn bound_at(&self) -> Option<Timestamp> {
        let pod = self.pod()?;
        pod.spec.node_name.as_ref()?;
        scheduled_at(pod).or(pod.metadata.creation_timestamp.as_ref().map(|t| t.0))
    }

    /// State of the training container, found by name: admission may have put others before it.
    pub fn training(&self, container: Option<&str>) -> Option<&'a SlimContainerState> {
        let name = container?;
        self.pod()?.status.container_statuses.iter().find(|s| s.name == name).map(|s| &s.state)
    }

    /// When its training container started.
    pub fn started_at(&self, container: Option<&str>) -> Option<Timestamp> {
        let state = self.training(container)?;
        if let Some(running) = &state.running {
            let pod = self.pod()?;
            let seen = running.started_at.as_ref().or(pod.status.start_time.as_ref());
            return Some(
                seen.or(pod.metadata.creation_timestamp.as_ref()).map_or(Timestamp::UNIX_EPOCH, |t| t.0),
            );
        }
        state.terminated.as_ref()?.started_at.as_ref().map(|t| t.0)
    }

    /// How its training container ended. A finished pod without container statuses counts by its phase.
    pub fn ending(&self, container: Option<&str>) -> Option<Ending<'a>> {
        let pod = self.pod()?;
        if let Some(terminated) = self.training(container).and_then(|s| s.terminated.as_ref()) {
            return Some(Ending {
                exit_code: terminated.exit_code,
                at: ended_at(pod, terminated),
                terminated: Some(terminated),
            });
        }
        (pod.status.phase == "Succeeded").then_some(Ending { exit_code: 0, at: None, terminated: None })
    }

    /// No container was ever started, init containers included.
    pub fn never_started(&self) -> bool {
        self.pod().is_some_and(|pod| {
            pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses).all(|s| {
                s.state.running.is_none()
                    && s.state
                        .terminated
                        .as_ref()
                        .is_none_or(|t| t.started_at.is_none() && t.finished_at.is_none())
            })
        })
    }

    /// Every container of its existing pod has ended. The kubelet gives such a pod its last phase within seconds, once its
    /// volumes are unmounted.
    pub fn containers_ended(&self) -> bool {
        self.live.is_some_and(|pod| {
            let ended = &pod.status.container_statuses;
            containers_seen_ended(pod)
                && ended.len() == pod.spec.containers.len()
                && ended.iter().all(|s| s.state.terminated.is_some())
        })
    }

    /// Whether it can no longer run and holds nothing. `known_bound`: the attempt was bound, so a member
    /// without a pod counts as running for its grace period from `since`.
    pub fn has_ended(&self, o: &Observed<'_>, known_bound: bool, since: Timestamp) -> bool {
        self.busy_until(o, known_bound, since).is_none()
    }

    /// Until when it counts as running. `None` if it has ended; the maximum timestamp if only an event can
    /// tell.
    pub fn busy_until(&self, o: &Observed<'_>, known_bound: bool, since: Timestamp) -> Option<Timestamp> {
        if let Some(pod) = self.live {
            return (!is_over(pod) && proof_of_death(pod, o.nodes).is_none()).then_some(Timestamp::MAX);
        }
        if let Some(deleted) = &self.deleted {
            return deleted_busy_until(deleted, o);
        }
        let until = after(since, super::pods::grace_seconds(&o.job.spec));
        (known_bound && o.nodes.contains_key(self.node) && until > o.now).then_some(until)
    }
}

/// Until when a deleted pod counts as running: for its grace period, unless something shows that it has ended. `None`: it has.
fn deleted_busy_until(deleted: &DeletedPodView<'_>, o: &Observed<'_>) -> Option<Timestamp> {
    let pod = deleted.last;
    if pod.spec.node_name.is_none()
        || is_over(pod)
        || proof_of_death(pod, o.nodes).is_some()
        || containers_seen_ended(pod)
        || !exclusive(o) && agent_sees_unheld(deleted, o)
    {
        return None;
    }
    let grace = pod.spec.termination_grace_period_seconds;
    let until = after(deleted.at, grace.unwrap_or_else(|| super::pods::grace_seconds(&o.job.spec)));
    (until > o.now).then_some(until)
}

/// The failed init container of a pod that never started its training container.
pub(super) fn failed_before_training(pod: &SlimPod) -> Option<&SlimTerminated> {
    if pod.status.phase != "Failed" {
        return None;
    }
    pod.status
        .init_container_statuses
        .iter()
        .filter_map(|s| s.state.terminated.as_ref())
        .find(|t| t.exit_code != 0)
}

/// How a training container ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending<'a> {
    pub exit_code: i32,
    /// By the node's clock.
    pub at: Option<Timestamp>,
    pub terminated: Option<&'a SlimTerminated>,
}

/// Two attempts at once would corrupt the checkpoint. The agent sees only processes with a GPU; another may still
/// write.
fn exclusive(o: &Observed<'_>) -> bool {
    o.job.spec.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.exclusive)
}

/// The node's agent, asked after the deletion was seen, reports no GPU held by the pod.
fn agent_sees_unheld(deleted: &DeletedPodView<'_>, o: &Observed<'_>) -> bool {
    let pod = deleted.last;
    let agent = pod.spec.node_name.as_ref().and_then(|n| o.nodes.get(n)).and_then(|f| f.agent.as_ref());
    agent.is_some_and(|agent| {
        agent.holders_observed > deleted.holders_requested && !agent.holders.contains(&name_of(&pod.metadata))
    })
}

/// Whether a pod has ended well and stays. One that was deleted, as a stop does, may have ended so and is made again.
fn has_succeeded(pod: &SlimPod) -> bool {
    pod.status.phase == "Succeeded" && pod.metadata.deletion_timestamp.is_none()
}

/// The pods of a job, by their relation to it.
#[derive(Clone, Debug)]
pub(super) struct Members<'a> {
    /// Members of the current attempt, one per node of the allocation, in order.
    pub gang: Vec<Member<'a>>,
    /// Ours, from other attempts (usually earlier ones).
    pub other: Vec<&'a SlimPod>,
    /// From an older object of the same name.
    pub older: Vec<&'a SlimPod>,
    /// The same, deleted.
    pub older_deleted: Vec<DeletedPodView<'a>>,
    /// All pods of an adopted workload have succeeded, each for good. Parts of it without GPUs may go on.
    pub is_complete: bool,
}

impl<'a> Members<'a> {
    pub fn new(o: &Observed<'a>, allocation: Option<&'a Allocation>) -> Self {
        if let Some(adopts) = &o.job.spec.adopts {
            let pods = allocation.map_or(adopts.pods, |held| adopts.pods_on(held.gpus));
            let all = usize::try_from(pods).unwrap_or(1);
            let left = o.workload.and_then(|workload| usize::try_from(workload.pods_left?).ok());
            let left = all.min(left.unwrap_or(usize::MAX));
            let once = o.workload.is_some_and(|workload| workload.pods_succeed_once);
            let done = |pod: &&&SlimPod| once && has_succeeded(pod) && is_member(pod, o.job);
            let done = o.pods.iter().filter(done).count();
            // Those that its controller has counted are among them.
            let pods = left.saturating_sub(done.saturating_sub(all - left));
            return Self::of_adopted(o, allocation, pods, once);
        }
        let nodes = allocation.map(|a| a.nodes.as_slice()).unwrap_or_default();
        let mut gang: Vec<Member<'a>> = nodes
            .iter()
            .enumerate()
            .map(|(index, node)| Member { index, node, live: None, deleted: None })
            .collect();
        let place = |pod: &SlimPod| -> Option<usize> {
            let allocation = allocation?;
            let index = usize::try_from(number(pod, names::LABEL_INDEX)?).ok()?;
            (number(pod, names::LABEL_ATTEMPT)? == allocation.attempt && index < nodes.len()).then_some(index)
        };
        let (mut other, mut older) = (Vec::new(), Vec::new());
        for pod in o.pods.iter().copied() {
            if is_member(pod, o.job) {
                match place(pod) {
                    Some(index) => gang[index].live = Some(pod),
                    None => other.push(pod),
                }
            } else if is_of_older(pod, o.job) {
                older.push(pod);
            }
        }
        let mut older_deleted = Vec::new();
        for deleted in o.deleted.iter().copied() {
            if is_member(deleted.last, o.job) {
                if let Some(index) = place(deleted.last) {
                    gang[index].deleted = Some(deleted);
                }
            } else if is_of_older(deleted.last, o.job) {
                older_deleted.push(deleted);
            }
        }
        Self { gang, other, older, older_deleted, is_complete: false }
    }

    /// Of an adopted workload: one per pod, without an index of their own. A pod that ended makes room for the one that replaces
    /// it. `once`: one that has succeeded has no place any more, but that of the whole gang when no other is to come.
    fn of_adopted(o: &Observed<'a>, allocation: Option<&'a Allocation>, pods: usize, once: bool) -> Self {
        let nodes = allocation.map(|a| a.nodes.as_slice()).unwrap_or_default();
        let attempt = allocation.map(|a| a.attempt);
        let count = if nodes.is_empty() { 0 } else { pods.max(1) };
        let (mut own, mut other) = (Vec::new(), Vec::new());
        for pod in o.pods.iter().copied().filter(|pod| is_member(pod, o.job)) {
            let is_of_attempt = attempt.is_some() && number(pod, names::LABEL_ATTEMPT) == attempt;
            let has_place = if once && has_succeeded(pod) { pods == 0 } else { is_of_attempt };
            if has_place { own.push(pod) } else { other.push(pod) }
        }
        let order = |pod: &&SlimPod| {
            let state = match pod.status.phase.as_str() {
                "Succeeded" => 2,
                "Failed" => 3,
                _ => i32::from(pod.spec.node_name.is_none()),
            };
            let terminated = pod.status.container_statuses.iter().filter_map(|s| s.state.terminated.as_ref());
            let ended = terminated.filter_map(|t| t.finished_at.as_ref().map(|at| at.0)).max();
            (state, number(pod, names::LABEL_ATTEMPT) != attempt, Reverse(ended))
        };
        own.sort_by_key(order);
        other.extend(own.split_off(own.len().min(count)));
        let of_attempt = |pod: &SlimPod| number(pod, names::LABEL_ATTEMPT) == attempt;
        let deleted = o.deleted.iter().copied();
        let mut deleted = deleted.filter(|gone| is_member(gone.last, o.job) && of_attempt(gone.last));
        let mut own = own.into_iter();
        let gang = (0..count).map(|index| {
            let live = own.next();
            // The latest deletions are what still holds GPUs.
            let deleted = if live.is_none() { deleted.next_back() } else { None };
            let bound = live.or(deleted.map(|gone| gone.last)).and_then(|pod| pod.spec.node_name.as_deref());
            Member { index, node: bound.unwrap_or(nodes[index % nodes.len()].as_str()), live, deleted }
        });
        let gang: Vec<Member<'a>> = gang.collect();
        let is_complete = once && gang.iter().all(|m| m.live.is_some_and(has_succeeded)) && !gang.is_empty();
        Self { gang, other, older: Vec::new(), older_deleted: Vec::new(), is_complete }
    }

    /// Pods of earlier attempts and older objects that can still run, except those that were given up.
    pub fn still_alive(&self, o: &Observed<'a>) -> Vec<&'a SlimPod> {
        self.other.iter().chain(&self.older).copied().filter(|p| may_run(o, p)).collect()
    }

    /// The pod of an older object that may run longest without its object, and until when.
    pub fn older_busy_until(&self, o: &Observed<'a>) -> Option<(&'a SlimPod, Timestamp)> {
        let busy = self.older_deleted.iter().filter_map(|d| Some((d.last, deleted_busy_until(d, o)?)));
        busy.max_by_key(|(_, until)| *until)
    }
}
