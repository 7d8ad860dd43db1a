//! Deleted pods and the GPUs that they hold without an object, and pods that can no longer run because their node rebooted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::gpu_node::namespaced_pod_name;
use andreas_api::slim::SlimPod;
use andreas_model::ObjectKey;
use jiff::{SignedDuration, Timestamp};
use kube::api::ObjectMeta;

use super::foreign::ForeignPod;
use super::nodes::claimed_gpus;
use super::{Amounts, ClusterIndex, DeletedPod, amounts, containers_seen_ended, name_of, owner, takes};

/// Grace period of a pod without one, s.
const GRACE: i64 = 30;
/// A pod seen started this long before its node's reboot was seen ran before the boot. A shorter time is no
/// proof. Watches of pods and nodes are not synchronized, and a pod bound before a boot may start after it.
const BEFORE_BOOT: Duration = Duration::from_secs(60);
/// Maximum remembered deleted pods per job.
const MAX_DELETED: usize = 2_048;
/// Fewest jobs that are gone with deleted pods at which a deletion drops those whose time is over.
const EXPIRE_FROM: usize = 64;

fn cluster_key(name: &str) -> ObjectKey {
    ObjectKey { namespace: String::new(), name: name.to_owned() }
}

impl ClusterIndex {
    /// A node's use by all pods, with an object and without, except ours for which `accounted` is true; and GPUs that claims give away.
    pub fn taken(&self, node: &str, accounted: impl Fn(&SlimPod) -> bool) -> Amounts {
        let now = Instant::now();
        let vanished = self.by_node.vanished.on(node);
        let vanished = vanished.filter(|pod| !pod.of.ours.as_ref().is_some_and(|ours| accounted(ours)));
        // Foreign use includes orphans.
        let ours = self.pods_on(node).filter(|pod| owner(&pod.metadata).is_some() && !accounted(pod));
        let ours = ours.filter_map(|pod| Some(takes(pod)?.1));
        let taken = vanished.filter_map(|pod| pod.takes(now)).chain(ours);
        let claimed = Amounts { gpus: claimed_gpus(self, &cluster_key(node)), ..Amounts::default() };
        taken.fold(self.foreign_use(node).plus(claimed), Amounts::plus)
    }

    /// Whether a pod that a node's agent may still name as a holder has ended: agents report that a moment later.
    pub fn has_ended(&self, node: &str, pod: &str) -> bool {
        let key = pod
            .split_once('/')
            .map(|(namespace, name)| ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() });
        match key.and_then(|key| self.pods.get(&key)) {
            Some(pod) => pod.has_ended(),
            None => self.by_node.vanished.just_ended(node, pod, Instant::now()),
        }
    }

    /// The last `holdersGeneration` of the node.
    pub(super) fn holders_requested(&self, node: &str) -> i64 {
        self.gpu_nodes.get(&cluster_key(node)).map_or(0, |node| node.spec.holders_generation)
    }

    /// Deleted pods with the name of that job, latest last: its own, and those of older jobs that may still run.
    pub fn deleted(&self, job: &ObjectKey) -> &[DeletedPod] {
        self.gangs.deleted.get(job).map(Vec::as_slice).unwrap_or_default()
    }

    /// Drops the deleted pods of that job except those for which `keep` is true, and those of older jobs of its name
    /// that can run no more.
    pub fn forget_deleted(&mut self, job: &ObjectKey, mut keep: impl FnMut(&DeletedPod) -> bool) {
        let present = self.jobs.get(job).and_then(|job| job.metadata.uid.clone());
        let own =
            |pod: &SlimPod| owner(&pod.metadata).is_some_and(|(_, uid)| present.as_deref() == Some(uid));
        let now = Instant::now();
        let Some(deleted) = self.gangs.deleted.get_mut(job) else { return };
        deleted.retain(|pod| if own(&pod.last) { keep(pod) } else { may_run(pod, now) });
        if deleted.iter().all(|pod| own(&pod.last)) {
            self.gangs.outlived.remove(job);
        } else {
            self.gangs.outlived.insert(job.clone());
        }
        if deleted.is_empty() {
            self.gangs.deleted.remove(job);
        }
    }

    /// A pod with our label is gone. One whose job is gone too is kept only while it may run: a job that is made again under the
    /// name must not write its checkpoint meanwhile.
    pub(super) fn record_deleted_pod(&mut self, pod: &Arc<SlimPod>) {
        self.hold_deleted_pod(pod);
        let started = pod.metadata.uid.as_ref().and_then(|uid| self.gangs.started.remove(uid));
        let Some((job, uid)) = owner(&pod.metadata) else { return };
        let holders_requested = pod.spec.node_name.as_ref().map_or(0, |node| self.holders_requested(node));
        let at = Instant::now();
        let deleted = DeletedPod { last: Arc::clone(pod), at, holders_requested, started };
        let present = self.jobs.get(&job).is_some_and(|job| job.metadata.uid.as_deref() == Some(uid));
        if !present {
            if !may_run(&deleted, at) {
                return;
            }
            self.gangs.outlived.insert(job.clone());
        }
        let of_name = self.gangs.deleted.entry(job).or_default();
        of_name.push(deleted);
        if of_name.len() > MAX_DELETED {
            of_name.remove(0);
        }
        // Replicas that do not lead have no loop for it. Only when the jobs have doubled, so that a deletion costs little.
        if self.gangs.outlived.len() >= self.gangs.expire_at.max(EXPIRE_FROM) {
            self.expire_deleted();
        }
    }

    /// Drops deleted pods whose job is gone and that can run no more.
    fn expire_deleted(&mut self) {
        for job in self.gangs.outlived.iter().cloned().collect::<Vec<_>>() {
            self.forget_deleted(&job, |_| true);
        }
        self.gangs.expire_at = self.gangs.outlived.len().saturating_mul(2);
    }

    /// Names of jobs that are gone with deleted pods on that node: a job of the name waits for them. A job needs no mark for its own
    /// deleted pods: it has an allocation there, or they are judged.
    pub(super) fn outlived_on(&self, node: &str) -> impl Iterator<Item = ObjectKey> {
        let there = move |pod: &DeletedPod| pod.last.spec.node_name.as_deref() == Some(node);
        let jobs = self.gangs.outlived.iter().filter(move |job| self.deleted(job).iter().any(there));
        jobs.cloned()
    }

    /// What a deleted pod with our label still holds.
    fn hold_deleted_pod(&mut self, pod: &Arc<SlimPod>) {
        let ended = seen_ended(pod);
        let ours = owner(&pod.metadata).is_some().then(|| Arc::clone(pod));
        let node = pod.spec.node_name.clone();
        let grace = grace(&pod.metadata, pod.spec.termination_grace_period_seconds, (self.clock.0)());
        self.vanish(node, &pod.metadata, ours, amounts::pod(&pod.spec), grace, ended);
    }

    /// A foreign pod left the watch: it has ended or was deleted.
    pub(super) fn hold_deleted_foreign(&mut self, pod: &ForeignPod) {
        let Some((node, amounts)) = pod.takes.clone() else { return };
        let grace = grace(&pod.metadata, pod.grace, (self.clock.0)());
        self.vanish(Some(node), &pod.metadata, None, amounts, grace, false);
    }

    fn vanish(
        &mut self,
        node: Option<String>,
        meta: &ObjectMeta,
        ours: Option<Arc<SlimPod>>,
        amounts: Amounts,
        grace: Duration,
        ended: bool,
    ) {
        let (Some(node), now) = (node, Instant::now()) else { return };
        let pod = name_of(meta);
        let lives = self.nodes.get(&cluster_key(&node)).is_some_and(|node| {
            !node.spec.taints.iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service")
        });
        if ended || !lives {
            self.by_node.vanished.ended(&node, &pod, now);
            return;
        }
        let request = self.holders_requested(&node);
        let uid = meta.uid.clone().unwrap_or_default();
        self.by_node.vanished.deleted(
            &node,
            super::vanished::VanishedPod { pod, uid, ours, amounts, grace, request },
            now,
        );
        self.changes.signals.holders.notify_one();
    }

    /// An agent has reported the holders of its node's GPUs.
    pub(super) fn agent_reported(&mut self, key: &ObjectKey) {
        let Some(gpu_node) = self.gpu_nodes.get(key).cloned() else { return };
        let Some(status) = gpu_node.status.as_ref().filter(|status| status.agent_version.is_some()) else {
            return;
        };
        let present = |pod: &str| {
            let Some((namespace, name)) = pod.split_once('/') else { return true };
            let key = ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() };
            self.pods.get(&key).is_some() || self.by_node.foreign.get(&key).is_some()
        };
        let now = Instant::now();
        let mut vanished = std::mem::take(&mut self.by_node.vanished);
        let changed = vanished.reported(&key.name, status, gpu_node.spec.holders_generation, present, now);
        self.by_node.vanished = vanished;
        if !self.holder_requests().is_empty() {
            self.changes.signals.holders.notify_one();
        }
        if changed {
            self.freed(&key.name);
        }
    }

    fn freed(&mut self, node: &str) {
        self.mark_jobs_on(node);
        self.replan();
    }

    /// Drops expired pods without an object.
    pub fn expire_vanished(&mut self) {
        self.expire_deleted();
        let mut vanished = std::mem::take(&mut self.by_node.vanished);
        let cut_off = |node: &str| {
            let node = self.nodes.get(&cluster_key(node));
            node.is_some_and(|node| {
                !node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
            })
        };
        let changed = vanished.expire(cut_off, Instant::now());
        self.by_node.vanished = vanished;
        for node in changed {
            self.freed(&node);
        }
    }

    /// Nodes whose agents must be asked for GPU holders, with the request to send.
    pub fn holder_requests(&self) -> Vec<(String, i64)> {
        let last = |node: &str| Some(self.gpu_nodes.get(&cluster_key(node))?.spec.holders_generation);
        self.by_node.vanished.requests(last, Instant::now())
    }

    /// Foreign pods that left the watch and may or may not have ended: node, name and UID. A live read must
    /// tell.
    pub fn take_unconfirmed(&mut self) -> Vec<(String, ObjectKey, String)> {
        let unconfirmed = self.by_node.vanished.take_unconfirmed().into_iter();
        let key = |(node, pod, uid): (String, String, String)| {
            let (namespace, name) = pod.split_once('/')?;
            Some((node, ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }, uid))
        };
        unconfirmed.filter_map(key).collect()
    }

    /// A pod that left the watch has ended, or still exists.
    pub fn confirm_ended(&mut self, node: &str, pod: &ObjectKey) {
        if self.by_node.vanished.ended(node, &namespaced_pod_name(&pod.namespace, &pod.name), Instant::now())
        {
            self.freed(node);
        }
    }

    /// A pod exists in this state.
    pub(super) fn pod_seen(&mut self, pod: &SlimPod) {
        self.by_node.vanished.appeared(&name_of(&pod.metadata));
        let mut containers = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
        let started = containers.any(|one| one.state.running.is_some() || one.state.terminated.is_some());
        if let Some(uid) = pod.metadata.uid.clone().filter(|_| started) {
            self.gangs.started.entry(uid).or_insert_with(Instant::now);
        }
    }

    /// A node exists: records a change of its boot ID.
    pub(super) fn node_seen(&mut self, key: &ObjectKey) {
        let Some(boot) = self.nodes.get(key).map(|node| node.status.node_info.boot_id.clone()) else {
            return;
        };
        if boot.is_empty() {
            return;
        }
        let known = self.by_node.boots.entry(key.name.clone()).or_insert_with(|| (boot.clone(), None));
        if known.0 != boot {
            *known = (boot, Some(Instant::now()));
            // A pod without an object is never restarted.
            if self.by_node.vanished.node_died(&key.name) {
                self.freed(&key.name);
            }
        }
    }

    /// A node was deleted.
    pub(super) fn node_deleted(&mut self, key: &ObjectKey) {
        self.by_node.boots.remove(&key.name);
        self.by_node.vanished.node_died(&key.name);
    }

    /// UIDs of those of these pods that ran on the node before its reboot and cannot run any more.
    pub fn lost_in_boot<'a>(
        &self,
        node: &str,
        pods: impl Iterator<Item = &'a SlimPod>,
        deleted: &[DeletedPod],
    ) -> BTreeSet<String> {
        let Some((_, Some(booted))) = self.by_node.boots.get(node) else { return BTreeSet::new() };
        let before = |started: &Instant| *started + BEFORE_BOOT <= *booted;
        let there = |pod: &SlimPod| pod.spec.node_name.as_deref() == Some(node);
        let uid = |pod: &SlimPod| pod.metadata.uid.clone();
        let live = pods.filter(|pod| there(pod)).filter_map(uid);
        let live = live.filter(|uid| self.gangs.started.get(uid).is_some_and(before));
        let deleted = deleted.iter().filter(|pod| there(&pod.last));
        let deleted = deleted.filter(|pod| pod.at <= *booted || pod.started.as_ref().is_some_and(before));
        live.chain(deleted.filter_map(|pod| uid(&pod.last))).collect()
    }
}

/// The pod, or every started container of it, was seen to have ended.
fn seen_ended(pod: &SlimPod) -> bool {
    pod.has_ended() || containers_seen_ended(pod)
}

/// Containers of a deleted pod may still run: nothing has shown their end, and its grace period is not over.
fn may_run(deleted: &DeletedPod, now: Instant) -> bool {
    let spec = &deleted.last.spec;
    let grace = spec.termination_grace_period_seconds.unwrap_or(GRACE).max(0);
    let over = now.saturating_duration_since(deleted.at) >= Duration::from_secs(grace.unsigned_abs());
    spec.node_name.is_some() && !seen_ended(&deleted.last) && !over
}

/// Remaining grace period of a pod: of its requested deletion, else all of it.
fn grace(meta: &ObjectMeta, of_pod: Option<i64>, now: Timestamp) -> Duration {
    let whole = of_pod.unwrap_or(GRACE).max(0);
    let asked = meta.deletion_timestamp.as_ref().filter(|_| meta.deletion_grace_period_seconds != Some(0));
    let left = asked.map_or(whole, |until| seconds_until(until.0, now).clamp(0, whole));
    Duration::from_secs(left.unsigned_abs())
}

fn seconds_until(at: Timestamp, now: Timestamp) -> i64 {
    at.duration_since(now).max(SignedDuration::ZERO).as_secs()
}
