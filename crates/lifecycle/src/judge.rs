//! The outcome of an attempt. Order of precedence: cluster failure, stopped, finished, vanished, user
//! failure. What counts is when containers ended, not when the operator saw it.
//!
//! Container ends use the node's clock; stops and disruptions use the operator's or the API server's. If they
//! differ by less than [`CLOCK_SKEW`], the reading that loses no work wins. An exit 0 that close to a stop or drain
//! counts as caused by it. Continuing from a checkpoint is cheap; a run wrongly taken as finished is lost.
//!
//! A node that was not Ready, rebooted or has a broken GPU explains a *failure*. It does not override an exit
//! 0 reported by the kubelet. What the kubelet says of a limit or a probe does: its SIGTERM may end in an exit 0.

use andreas_api::slim::{SlimPod, SlimTerminated};
use andreas_api::training_job::{Allocation, Progress, StopRequest};
use andreas_api::training_profile::Barred;
use andreas_api::{Outcome, Reason};
use andreas_cluster::index::containers_seen_ended;
use andreas_cluster::instants::{CLOCK_SKEW, after};
use jiff::Timestamp;

use super::choices::{FailedChoice, failed_choice};
use super::first_seen::TimedFact;
use super::kubelet::{Cause, CauseKind};
use super::member::{
    Member, Members, booted_since, failed_before_training, given_up, is_over, proof_of_death,
};
use super::observed::Observed;
use super::status::{self, last_line, percent_text};
use super::words::{lost_by_runtime, mentions_gpu_fault, not_started_by_its_node};

/// Progress at which a run counts as done, thousandths of a percent.
pub const NEARLY_DONE: i32 = 99_000;

/// Seconds for which a member never seen by this process may still appear: after a start, caches of jobs and pods may differ in age.
const MISSING_TIMEOUT: i64 = 10;

/// The outcome of an attempt and its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The outcome.
    pub outcome: Outcome,
    /// Machine-readable reason.
    pub reason: Reason,
    /// Human-readable text.
    pub message: String,
    /// Exit code of the member that failed first.
    pub exit_code: Option<i32>,
    /// Nodes to exclude for a while.
    pub exclude: Vec<String>,
    /// The choice of the plan that failed.
    pub barred: Option<Barred>,
    /// A fault of a node, GPU or kubelet explains the failure. It was reported independently of the program
    /// and its user.
    pub fault_reported: bool,
}

impl Judgement {
    pub(super) fn new(outcome: Outcome, reason: Reason, message: impl Into<String>) -> Self {
        let message = super::status::bounded(&message.into());
        Self {
            outcome,
            reason,
            message,
            exit_code: None,
            exclude: Vec::new(),
            barred: None,
            fault_reported: false,
        }
    }

    pub(super) fn excluding(mut self, node: &str) -> Self {
        self.exclude.push(node.to_owned());
        self
    }

    pub(super) fn explained(mut self, fault_reported: bool) -> Self {
        self.fault_reported = fault_reported;
        self
    }
}

/// One attempt to judge.
pub(super) struct Case<'a> {
    pub o: &'a Observed<'a>,
    pub allocation: &'a Allocation,
    pub members: &'a Members<'a>,
    /// The stop in the status, if any.
    pub stop: Option<&'a StopRequest>,
    /// The attempt was bound for certain, so a member without any pod has vanished.
    pub known_bound: bool,
}

/// A training container that ended with an error, or by its kubelet.
struct FailedContainer<'a> {
    member: Member<'a>,
    terminated: Option<&'a SlimTerminated>,
    /// `None`: the kubelet no longer knows of the container.
    exit_code: Option<i32>,
    at: Option<Timestamp>,
    /// Why the kubelet ended it.
    cause: Option<Cause>,
}

impl<'a> Case<'a> {
    /// The outcome, once decided: all members finished, or one failed, vanished or was taken by the cluster.
    /// `None` while all run, or while a stop is in progress.
    pub fn judge(&self) -> Option<Judgement> {
        let decided = self.stop.and_then(|s| self.decided_before(s));
        // A cluster failure that was counted as the user's stays so.
        let final_reasons = [Reason::MaxRunTime, Reason::ClusterFailure, Reason::Vanished];
        if let Some(kept) = &decided
            && (kept.outcome != Outcome::UserFailure || final_reasons.contains(&kept.reason))
        {
            return decided;
        }
        if let Some(cluster) = self.cluster_failure() {
            return Some(cluster);
        }
        if let Some(kept) = decided {
            // Other members may have reported the cause more precisely since.
            return Some(
                self.user_failure()
                    .filter(|u| u.barred.is_some() && is_own_exit(kept.reason))
                    .unwrap_or(kept),
            );
        }
        if let Some(stop) = self.stop
            && !self.ended_before(stop)
        {
            let done = self.counted_to_its_end().then(|| self.finished()).flatten();
            return self.all_ended().then(|| done.unwrap_or_else(|| self.stopped(stop)));
        }
        if self.events_until().is_some() {
            return None;
        }
        if let Some(done) = self.unexplained_end().or_else(|| self.finished()).or_else(|| self.vanished()) {
            return Some(done);
        }
        // What took a member that may have vanished also explains why the others failed.
        let waits = self.known_bound && self.members.gang.iter().any(|member| member.pod().is_none());
        if waits { None } else { self.user_failure() }
    }

    /// The outcome recorded in the status when the stop was requested.
    pub(super) fn decided_before(&self, stop: &StopRequest) -> Option<Judgement> {
        let reason = Reason::parse(&stop.reason).unwrap_or(Reason::ContainerFailed);
        let mut judgement = Judgement::new(stop.outcome?, reason, stop.message.clone());
        // The excluded nodes were written with the stop.
        judgement.exit_code = stop.exit_code;
        let platform = failed_choice(&stop.message).filter(|_| reason == Reason::UnsupportedHardware);
        let platform = platform.and_then(|(choice, _)| self.barred(choice, self.members.gang.first()?.node));
        let refused =
            || self.members.gang.iter().find_map(|member| self.refused_size(member.pod()?, member.node));
        judgement.barred = platform.or_else(refused);
        Some(judgement)
    }

    pub fn stopped(&self, stop: &StopRequest) -> Judgement {
        let reason = Reason::parse(&stop.reason).unwrap_or(Reason::Stopping);
        Judgement::new(Outcome::Stopped, reason, stop.message.clone())
    }

    pub(super) fn container(&self) -> Option<&'a str> {
        self.o.training_container()
    }

    pub fn all_ended(&self) -> bool {
        let since = self.stop.map_or(self.o.now, |s| s.since.0);
        let abandoned = |m: &Member<'_>| m.live.is_some_and(|p| given_up(self.o, p));
        self.members.gang.iter().all(|m| abandoned(m) || m.has_ended(self.o, self.known_bound, since))
    }

    /// `Some` if every training container exited 0 by itself; inside, the last end if known.
    pub(super) fn all_zero(&self) -> Option<Option<Timestamp>> {
        let mut last = None;
        for member in &self.members.gang {
            let ending = member.ending(self.container()).filter(|e| e.exit_code == 0)?;
            if self.cause(member).is_some() {
                return None;
            }
            last = last.max(ending.at);
        }
        Some(last)
    }

    /// Training containers that failed by themselves, earliest first.
    fn failed_containers(&self) -> Vec<FailedContainer<'a>> {
        let mut all: Vec<FailedContainer<'a>> = self
            .members
            .gang
            .iter()
            .filter_map(|member| {
                let cause = self.cause(member);
                let (exit_code, at, terminated) = match member.ending(self.container()) {
                    Some(e) if e.exit_code != 0 || cause.is_some() => (Some(e.exit_code), e.at, e.terminated),
                    Some(_) => return None,
                    // An init container failed, so the training container never started.
                    None => match failed_before_training(member.pod()?) {
                        Some(failed) => {
                            let at = failed.finished_at.as_ref().map(|t| t.0);
                            (Some(failed.exit_code), at, Some(failed))
                        }
                        None if cause.is_some() => (None, None, None),
                        None => return None,
                    },
                };
                let unknown =
                    terminated.is_some_and(|t| t.reason == "ContainerStatusUnknown" || lost_by_runtime(t));
                let failed = FailedContainer { member: *member, terminated, exit_code, at, cause };
                (!unknown || failed.cause.is_some()).then_some(failed)
            })
            .collect();
        all.sort_by_key(|b| (b.at.unwrap_or(Timestamp::MAX), b.member.index));
        all
    }

    /// All training containers ended, or one failed, before the stop was requested.
    pub(super) fn ended_before(&self, stop: &StopRequest) -> bool {
        // A pod without a deletion timestamp ended by itself. In a gang, one deleted pod takes the others
        // with it.
        let asked = |m: &Member<'_>| m.pod().is_none_or(|p| p.metadata.deletion_timestamp.is_some());
        let untouched = !self.members.gang.iter().any(asked);
        let before =
            |at: Option<Timestamp>| untouched || at.is_some_and(|at| after(at, CLOCK_SKEW) <= stop.since.0);
        match self.all_zero() {
            Some(at) => before(at),
            None => self.failed_containers().first().is_some_and(|b| before(b.at)),
        }
    }

    /// The attempt's last report, if any.
    pub(super) fn progress(&self) -> Option<&'a Progress> {
        let progress = self.o.job.status.as_ref()?.progress.as_ref()?;
        (progress.attempt == self.allocation.attempt).then_some(progress)
    }

    /// The attempt reported at least this progress, thousandths of a percent.
    pub(super) fn is_at(&self, milli_percent: i32) -> bool {
        self.progress().is_some_and(|p| p.milli_percent >= milli_percent)
    }

    /// The attempt reported its last step. A bare 100 % may be sent on termination; counted steps are
    /// reliable.
    fn counted_to_its_end(&self) -> bool {
        self.progress().is_some_and(|p| p.stepwise && p.milli_percent >= 100_000)
    }

    /// The attempt reported 100 %, by counted steps or by its final report.
    fn reported_done(&self) -> bool {
        self.is_at(NEARLY_DONE) || self.progress().is_some_and(|p| p.ended)
    }

    /// The cluster failure, if any.
    fn cluster_failure(&self) -> Option<Judgement> {
        let bad = self.failed_containers();
        let finished = self.all_zero();
        // An event at `at` explains the end unless the end clearly came first.
        let came_before = |at: Option<Timestamp>, end: Option<Timestamp>| {
            at.is_some_and(|at| end.is_some_and(|end| after(end, CLOCK_SKEW) <= at))
        };
        // A terminating program may post 100 %; only counted steps show that it was done.
        let all_were_done = |at: Option<Timestamp>| {
            finished.is_some_and(|end| came_before(at, end) || self.is_at(NEARLY_DONE))
        };
        let too_late =
            |at: Option<Timestamp>| all_were_done(at) || bad.first().is_some_and(|b| came_before(at, b.at));
        // A kubelet ends only what runs, and dates it anew where that takes it several tries.
        let ended_by_kubelet =
            |reason: &str| reason == "TerminationByKubelet" && finished.is_some() && !self.is_at(NEARLY_DONE);
        let failure = |message: String, node: &str| {
            Judgement::new(Outcome::ClusterFailure, Reason::ClusterFailure, message).excluding(node)
        };
        for member in &self.members.gang {
            let Some(pod) = member.pod() else { continue };
            let worker = format!("worker {} on {}", member.index, member.node);
            if let Some(c) =
                pod.status.conditions.iter().find(|c| c.type_ == "DisruptionTarget" && c.status == "True")
                && (ended_by_kubelet(&c.reason) || !too_late(c.last_transition_time.as_ref().map(|t| t.0)))
            {
                let words = if c.message.is_empty() { &c.reason } else { &c.message };
                // Every user who may delete a pod may evict it, and a worker that takes a node's memory has itself evicted. A real drain
                // cordons the node first, and a node that shuts down is not ready.
                let of_users = ["EvictionByEvictionAPI", "TerminationByKubelet"].contains(&c.reason.as_str());
                let seen = !of_users || self.leaves_use(member.node);
                return Some(
                    failure(format!("{worker} was disrupted: {words}"), member.node).explained(seen),
                );
            }
            let cause = self.cause(member);
            if cause.as_ref().is_some_and(|cause| cause.kind != CauseKind::Node) {
                continue;
            }
            if let Some(at) = foreign_deletion(pod, self.stop)
                && !too_late(Some(at))
            {
                // The node itself is healthy.
                let message = format!("{worker} was deleted by somebody else");
                let judgement = Judgement::new(Outcome::ClusterFailure, Reason::ClusterFailure, message);
                return Some(judgement.explained(self.leaves_use(member.node)));
            }
            // It is dated by when its node came back. What a power cut ended on one node made the others fail long before that.
            if let Some(t) = self.unknown_status(pod)
                && !all_were_done(t.finished_at.as_ref().map(|t| t.0))
            {
                let message = format!("{worker} was lost: {}", last_line(&t.message));
                return Some(failure(message, member.node).explained(true));
            }
            // A pod we deleted before it started is also reported Failed, without a reason.
            let asked = self.stop.is_some() && pod.status.reason.is_empty();
            if pod.status.phase == "Failed" && member.never_started() && !asked {
                let words = last_line(&pod.status.message);
                let message = format!("{worker} was refused by its node: {} {words}", pod.status.reason);
                let mut refused = failure(message.trim_end().to_owned(), member.node);
                refused.barred = self.refused_size(pod, member.node);
                if refused.barred.is_some() {
                    refused.exclude.clear();
                    refused.message = status::bounded(&format!(
                        "{}; smaller workers are tried for an hour",
                        refused.message
                    ));
                }
                return Some(refused);
            }
            if let Some(cause) = cause
                && !too_late(member.ending(self.container()).and_then(|ending| ending.at))
            {
                let message = format!("{worker} was ended by its kubelet: {}", cause.words);
                return Some(failure(message, member.node).explained(self.leaves_use(member.node)));
            }
            if let Some(t) = not_started_by_its_node(pod) {
                let message = format!("{worker} could not be started by its node: {}", last_line(&t.message));
                return Some(failure(message, member.node));
            }
            let clean = member.ending(self.container()).is_some_and(|e| e.exit_code == 0);
            if let Some(how) = proof_of_death(pod, self.o.nodes)
                && !clean
                && !too_late(self.o.ready_changed(member.node))
            {
                return Some(failure(format!("the node of {worker} {how}"), member.node).explained(true));
            }
        }
        // No fault of a node makes a pod exceed its limits.
        let limit = |b: &FailedContainer<'_>| b.cause.as_ref().is_some_and(|c| c.kind == CauseKind::Limit);
        if bad.is_empty() || bad.iter().any(limit) {
            return None;
        }
        for member in &self.members.gang {
            let container = self.container();
            let ran = container.is_some() && self.allocation.running_time.is_some() && member.bound();
            if ran && member.started_at(container).is_none() && member.ending(container).is_none() {
                // Its training container ran, and the kubelet no longer knows of it: it lost its power meanwhile. The
                // node's new boot ID may be seen later.
                let message = format!("the container of worker {} was lost on {}", member.index, member.node);
                return Some(failure(message, member.node).explained(true));
            }
            let Some(fact) = self.o.nodes.get(member.node) else { continue };
            if member.pod().is_some_and(|pod| booted_since(pod, fact)) {
                let message = format!("node {} was booted again during the attempt", member.node);
                return Some(failure(message, member.node));
            }
            let changed = self.o.ready_changed_during(member.node, self.allocation);
            if changed.is_some_and(|at| !self.changed_before_binding(at)) && member.bound() {
                let message = format!("node {} was not Ready during the attempt", member.node);
                return Some(failure(message, member.node).explained(true));
            }
            let broken = fact.agent.as_ref().and_then(|a| a.unhealthy_since);
            if broken.is_some_and(|at| at >= self.allocation.since.0) {
                let message = format!("a GPU of node {} is unhealthy", member.node);
                return Some(failure(message, member.node).explained(true));
            }
        }
        let ends = || bad.iter().filter_map(|b| Some((&b.member, b.terminated?.message.as_str())));
        if let Some((node, words)) = self.memory_of_parked(ends()) {
            let message = format!("processes of no pod have memory on GPUs of {node}: {words}");
            return Some(failure(message, node));
        }
        let broken = bad.iter().find(|b| b.terminated.is_some_and(|t| mentions_gpu_fault(&t.message)));
        broken.map(|b| {
            let words = b.terminated.map(|t| last_line(&t.message)).unwrap_or_default();
            failure(format!("GPU error on {}: {words}", b.member.node), b.member.node)
        })
    }

    /// The node is not Ready or is being taken out of use, so its pods are moved away.
    fn leaves_use(&self, node: &str) -> bool {
        self.o.nodes.get(node).is_none_or(|fact| fact.leaving || !fact.ready)
    }

    /// A container that the kubelet lost. The same status for a container that never started before we
    /// deleted its pod is not evidence.
    fn unknown_status(&self, pod: &'a SlimPod) -> Option<&'a SlimTerminated> {
        if self.stop.is_some() && self.allocation.running_time.is_none() {
            return None;
        }
        let mut ended = pod.status.container_statuses.iter().filter_map(|s| s.state.terminated.as_ref());
        ended.find(|t| t.reason == "ContainerStatusUnknown" || lost_by_runtime(t))
    }

    /// Whether a node's condition `Ready` changed before the members were bound, or none is. It is irrelevant then: the
    /// node had recovered.
    fn changed_before_binding(&self, ready_changed: Timestamp) -> bool {
        let bound = self.members.gang.iter().filter_map(Member::bound_at).min();
        bound.is_none_or(|bound| ready_changed <= bound)
    }

    fn finished(&self) -> Option<Judgement> {
        self.all_zero()?;
        let progress = self.o.job.status.as_ref().and_then(|s| s.progress.as_ref());
        // Without counted steps, a program that reports its end is not known to have stopped early.
        let early = progress.filter(|p| p.milli_percent < NEARLY_DONE && (p.stepwise || !p.ended));
        Some(match early {
            Some(p) => {
                let figure = percent_text(p.milli_percent);
                let message = format!("all workers exited 0 at {figure} of the run");
                Judgement::new(Outcome::Finished, Reason::CompletedEarly, message)
            }
            None => Judgement::new(Outcome::Finished, Reason::Completed, "all workers exited 0"),
        })
    }

    /// Until when a member never seen by this process may still appear.
    pub fn missing_until(&self, member: &Member<'_>) -> Timestamp {
        let fact = TimedFact::Missing { attempt: self.allocation.attempt, index: member.index };
        after(self.o.first_seen.get(&fact).copied().unwrap_or(self.o.now), MISSING_TIMEOUT)
    }

    /// A pod is gone and its end was not observed.
    fn vanished(&self) -> Option<Judgement> {
        let first_bad = self.failed_containers().first().and_then(|b| b.at);
        let member = self.members.gang.iter().find(|m| {
            if m.live.is_some() {
                return false;
            }
            match m.deleted {
                Some(deleted) => {
                    let unseen = !is_over(deleted.last) && !containers_seen_ended(deleted.last);
                    unseen && first_bad.is_none_or(|bad| after(bad, CLOCK_SKEW) > deleted.at)
                }
                None => self.known_bound && (self.stop.is_some() || self.missing_until(m) <= self.o.now),
            }
        })?;
        let what = format!("worker {} on {} vanished", member.index, member.node);
        let others_well = self.failed_containers().is_empty();
        Some(if self.reported_done() && others_well {
            Judgement::new(
                Outcome::Finished,
                Reason::Completed,
                format!("{what} with at least 99 % reported"),
            )
        } else {
            Judgement::new(Outcome::ClusterFailure, Reason::Vanished, what).excluding(member.node)
        })
    }

    fn user_failure(&self) -> Option<Judgement> {
        let bad = self.failed_containers();
        let first = bad.first()?;
        let chosen = bad.iter().find_map(|b| Some((b, failed_choice(&b.terminated?.message)?)));
        let by_kubelet = bad.iter().find(|b| b.cause.is_some());
        let shown = chosen.map(|(b, _)| b).or(by_kubelet).unwrap_or(first);
        let words = match chosen {
            Some((_, (_, line))) => last_line(line),
            None => shown.terminated.map(|t| last_line(&t.message)).unwrap_or_default(),
        };
        let killed = shown.terminated.is_some_and(|t| t.reason == "OOMKilled");
        let reason = match chosen {
            Some((_, (FailedChoice::GpuMemory, _))) => Reason::OutOfMemory,
            Some(_) => Reason::UnsupportedHardware,
            None if killed => Reason::OutOfMemory,
            None => Reason::ContainerFailed,
        };
        let worker = format!("worker {}", shown.member.index);
        let message = match (&shown.cause, shown.exit_code) {
            _ if killed => format!("{worker} ran out of memory and was killed"),
            (Some(cause), _) if chosen.is_none() => {
                format!("{worker} was ended by its kubelet: {}", cause.words)
            }
            (_, Some(code)) => format!("{worker} exited with {code}"),
            (_, None) => format!("{worker} has failed"),
        };
        let barred = chosen.and_then(|(b, (choice, _))| self.barred(choice, b.member.node));
        let learned = barred.as_ref().map(|barred| format!(" ({})", self.barred_text(barred)));
        let message = message + learned.as_deref().unwrap_or_default();
        let message = if words.is_empty() { message } else { format!("{message}: {words}") };
        let mut judgement = Judgement::new(Outcome::UserFailure, reason, message);
        (judgement.exit_code, judgement.barred) = (shown.exit_code, barred);
        Some(judgement)
    }
}

/// Reasons from a container's own exit; its message may be re-read at the end.
fn is_own_exit(reason: Reason) -> bool {
    matches!(reason, Reason::ContainerFailed | Reason::OutOfMemory | Reason::UnsupportedHardware)
}

/// When the deletion of a pod by somebody else was requested. A deletion that comes with or after the stop in the status is ours; what was
/// deleted well before it had only not been seen yet.
fn foreign_deletion(pod: &SlimPod, stop: Option<&StopRequest>) -> Option<Timestamp> {
    let deletion = pod.metadata.deletion_timestamp.as_ref()?;
    let requested = after(deletion.0, -pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
    stop.is_none_or(|stop| after(requested, CLOCK_SKEW) <= stop.since.0).then_some(requested)
}
