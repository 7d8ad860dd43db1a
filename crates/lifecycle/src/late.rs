//! Start time-outs: pods not created, not bound, or containers not started.

use andreas_api::slim::{SlimContainerStatus, SlimPodCondition};
use andreas_api::training_job::Allocation;
use andreas_api::{Outcome, Reason};
use andreas_cluster::instants::after;
use andreas_workloads::adopt::Workload;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;

use super::action::Action;
use super::choices::{FailedChoice, failed_choice};
use super::draft::Draft;
use super::first_seen::TimedFact;
use super::judge::{Case, Judgement};
use super::kubelet::{self, Missing};
use super::member::{Member, Members};
use super::observed::Observed;
use super::pods::MAX_GRACE_SECONDS;
use super::status::{self, duration_text, last_line};
use super::words::waits_for_its_user;

/// Maximum `startTimeout`, s; the schema has the same limit.
const MAX_START: i64 = 4 * 3600;
/// Part of `placementTimeout` for which the scheduler may say that no node can take a member: 45 s by default. The gang is pinned, so it
/// is its template that does not fit, and the GPUs are of use to others. A device plug-in that restarts needs half a minute.
const UNSCHEDULABLE: (i64, i64) = (3, 8);

/// When this process first saw room for the allocation. The gang must be bound within the policy's
/// `placementTimeout` of it, even if its pods could not be created. Only this process's clock is used.
pub(super) fn released_since(d: &Draft<'_>, allocation: &Allocation) -> Option<Timestamp> {
    d.o.creation.room_since(allocation.generation)
}

/// Whether `placementTimeout` is over; if not, requeues the job for that instant.
pub(super) fn is_late(d: &mut Draft<'_>, allocation: &Allocation) -> bool {
    let since = released_since(d, allocation).unwrap_or(d.o.now);
    is_over_since(d, since, d.o.policy.placement_timeout)
}

/// Whether so many seconds are over; if not, requeues the job for that instant.
fn is_over_since(d: &mut Draft<'_>, since: Timestamp, seconds: i64) -> bool {
    let due = after(since, seconds);
    d.requeue_at(due);
    due <= d.o.now
}

/// What becomes of a released workload whose controller makes no pods for too long. No node is at fault. Parts that start after others may
/// take as long as a start.
pub(super) fn unmade(
    d: &mut Draft<'_>,
    allocation: &Allocation,
    workload: &Workload,
    members: &Members<'_>,
) -> Option<Judgement> {
    let unmade = unmade_pods(members);
    let seconds = if workload.parts_in_order { start_limit(d.o) } else { d.o.policy.placement_timeout };
    let since = released_since(d, allocation).unwrap_or(d.o.now);
    if unmade == 0 || !is_over_since(d, since, seconds) {
        return None;
    }
    let (all, time) = (members.gang.len(), duration_text(seconds));
    let message = format!("its controller has not made {unmade} of {all} pods within {time}");
    Some(Judgement::new(Outcome::Withdrawn, Reason::PlacementTimeout, message))
}

/// Whether the pods of a released workload, all made, are not bound within `placementTimeout`; if not yet, requeues the job for that
/// instant.
pub(super) fn made_is_late(d: &mut Draft<'_>, allocation: &Allocation, members: &Members<'_>) -> bool {
    if unmade_pods(members) > 0 {
        return false;
    }
    let made = d.first_seen(TimedFact::Made { attempt: allocation.attempt });
    is_over_since(d, made, d.o.policy.placement_timeout)
}

fn unmade_pods(members: &Members<'_>) -> usize {
    members.gang.iter().filter(|member| member.pod().is_none()).count()
}

/// Whether what an attempt waits for, pods of others or earlier ones of the job, has gone on for longer than any grace period lasts: a
/// pod that its kubelet cannot end. If not, requeues the job for that instant.
pub(super) fn is_never_released(d: &mut Draft<'_>, fact: TimedFact) -> bool {
    let since = d.first_seen(fact);
    let due = after(since, MAX_GRACE_SECONDS + d.o.policy.placement_timeout);
    d.requeue_at(due);
    due <= d.o.now
}

/// Withdraws an allocation whose GPUs are not released. The node is excluded for a while.
pub(super) fn withdraw_unreleased(d: &mut Draft<'_>, node: &str) {
    let message = format!("GPUs of {node} were not released in more than an hour");
    d.stop_judged(&Judgement::new(Outcome::Withdrawn, Reason::PlacementTimeout, message).excluding(node));
}

/// What the scheduler says of a member whose pod it has not bound.
pub(super) fn unbound_condition<'a>(member: &Member<'a>) -> Option<&'a SlimPodCondition> {
    let conditions = &member.pod().filter(|_| !member.bound())?.status.conditions;
    conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status != "True")
}

/// Seconds for which the scheduler may say that no node can take a pod.
pub(super) fn patience_with_scheduler(d: &Draft<'_>) -> i64 {
    d.o.policy.placement_timeout * UNSCHEDULABLE.0 / UNSCHEDULABLE.1
}

/// Whether the scheduler has said for long enough that no node can take a member; if not, requeues the job for that instant.
pub(super) fn is_unschedulable(d: &mut Draft<'_>, allocation: &Allocation, members: &Members<'_>) -> bool {
    let mut unschedulable = false;
    for member in &members.gang {
        if unbound_condition(member).is_some_and(|condition| condition.reason == "Unschedulable") {
            let fact = TimedFact::Unschedulable { attempt: allocation.attempt, index: member.index };
            let due = after(d.first_seen(fact), patience_with_scheduler(d));
            d.requeue_at(due);
            unschedulable |= due <= d.o.now;
        }
    }
    unschedulable
}

/// Withdraws a gang whose pods were not all created in time. No node is excluded; the next job of this
/// namespace would fail the same way.
pub(super) fn withdraw_uncreated(d: &mut Draft<'_>, members: &Members<'_>) {
    let missing = members.gang.iter().filter(|m| m.pod().is_none()).count();
    let words = d.o.creation.error_message().map(status::bounded);
    let message = format!(
        "{missing} of {} pods could not be made within {}: {}",
        members.gang.len(),
        duration_text(d.o.policy.placement_timeout),
        words.as_deref().unwrap_or("their GPUs were in use"),
    );
    d.stop_judged(&Judgement::new(Outcome::Withdrawn, Reason::PlacementTimeout, message));
    d.actions.extend(words.map(|words| Action::BackOff { message: words }));
}

/// Withdraws a gang that was not fully bound in time, or whose member no node can take. Nodes without a bound member are excluded for a
/// while.
pub(super) fn withdraw_unbound(d: &mut Draft<'_>, members: &Members<'_>, seconds: i64) {
    let unbound: Vec<&Member<'_>> = members.gang.iter().filter(|m| !m.bound()).collect();
    let conditions =
        unbound.iter().filter_map(|m| unbound_condition(m)).filter(|condition| !condition.message.is_empty());
    let shown = conditions.max_by_key(|condition| condition.reason == "Unschedulable");
    // Who refuses the binding refuses it on every node.
    let refused = shown.is_some_and(|condition| {
        let says = |words: &&str| condition.message.contains(words);
        condition.reason == "SchedulerError" && ["denied", "forbidden"].iter().any(says)
    });
    let words = shown.map(|condition| condition.message.clone());
    let message = format!(
        "{} of {} workers not bound within {}: {}",
        unbound.len(),
        members.gang.len(),
        duration_text(seconds),
        words.as_deref().unwrap_or("the scheduler has said nothing"),
    );
    let mut judgement = Judgement::new(Outcome::Withdrawn, Reason::PlacementTimeout, message);
    if refused {
        d.actions.extend(words.map(|words| Action::BackOff { message: status::bounded(&words) }));
    } else {
        judgement.exclude = unbound.iter().map(|m| m.node.to_owned()).collect();
    }
    d.stop_judged(&judgement);
    d.actions.push(Action::ForgetDryRuns);
}

/// Seconds after which a kubelet that starts a pod has said what it cannot mount.
const FIRST_MINUTE: i64 = 60;

/// When the kubelets of a bound attempt are asked what they cannot mount.
pub(super) fn first_minute(o: &Observed<'_>, attempt: i64) -> Option<Timestamp> {
    Some(after(*o.first_seen.get(&TimedFact::Bound { attempt })?, FIRST_MINUTE.min(start_limit(o))))
}

/// What a member that does not start needs and its user has not made: the user's mistake, which no time mends.
pub(super) fn never_starts(
    d: &mut Draft<'_>,
    allocation: &Allocation,
    members: &Members<'_>,
) -> Option<Judgement> {
    if let Some(at) = first_minute(d.o, allocation.attempt) {
        d.requeue_at(at);
    }
    let case = Case { o: d.o, allocation, members, stop: None, known_bound: true };
    let other_platform = members.gang.iter().find_map(|member| {
        let says = |(_, message): (String, String)| Some(failed_choice(&message)?.1.to_owned());
        Some((
            waiting(member).into_iter().find_map(says)?,
            case.barred(FailedChoice::Architecture, member.node),
        ))
    });
    if let Some((words, barred)) = other_platform {
        let learned =
            barred.as_ref().map(|barred| format!(" ({})", case.barred_text(barred))).unwrap_or_default();
        let message = format!("bound but not running{learned}: {words}");
        let mut judgement = Judgement::new(Outcome::UserFailure, Reason::UnsupportedHardware, message);
        judgement.barred = barred;
        return Some(judgement);
    }
    let volumes = d.o.job.spec.template.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let drivers: Vec<&str> =
        volumes.filter_map(|volume| Some(volume.csi.as_ref()?.driver.as_str())).collect();
    let missing = |member: &Member<'_>| {
        Some((kubelet::missing(kubelet::events(d.o, member), &drivers)?, member.node.to_owned()))
    };
    let (missing, node) = members.gang.iter().find_map(missing)?;
    let message = |words: &str| format!("bound but not running: {words}");
    Some(match missing {
        Missing::Object(words) => Judgement::new(Outcome::UserFailure, Reason::StartTimeout, message(&words)),
        // On every node it is the user's in the end: a failure of the cluster's without a reported fault counts so after some.
        Missing::OnNode(words) => {
            Judgement::new(Outcome::ClusterFailure, Reason::StartTimeout, message(&words)).excluding(&node)
        }
    })
}

/// Reasons and messages of a member's containers that wait.
fn waiting(member: &Member<'_>) -> Vec<(String, String)> {
    let statuses = member.pod().map(|pod| &pod.status);
    let statuses =
        statuses.into_iter().flat_map(|s| s.init_container_statuses.iter().chain(&s.container_statuses));
    statuses.filter_map(|s| s.state.waiting.as_ref()).map(|w| (w.reason.clone(), w.message.clone())).collect()
}

/// Seconds that an attempt may take from bound to running.
pub(super) fn start_limit(o: &Observed<'_>) -> i64 {
    o.job.spec.start_timeout.seconds_or(900).min(MAX_START)
}

/// A template container that the kubelet started and that blocks the training: an init container that does
/// not end, or one that keeps restarting.
fn own_container_in_the_way(d: &Draft<'_>, member: &Member<'_>) -> Option<String> {
    let template = d.o.job.spec.template.spec.as_ref()?;
    let inits = template.init_containers.as_deref().unwrap_or_default();
    let status = &member.pod()?.status;
    for s in &status.init_container_statuses {
        let Some(container) = inits.iter().find(|c| c.name == s.name) else { continue };
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        if !sidecar && s.state.running.is_some() {
            return Some(format!("init container {} has not ended", s.name));
        }
        // One that waits as a matter of course has not had its turn.
        let ran = s.state.running.is_some() || s.state.terminated.is_some();
        if sidecar && ran && s.started == Some(false) {
            return Some(format!("sidecar {} has not started", s.name));
        }
    }
    let own = |name: &str| template.containers.iter().chain(inits).any(|c| c.name == name);
    let crashing = |s: &&SlimContainerStatus| {
        s.state.waiting.as_ref().is_some_and(|w| w.reason == "CrashLoopBackOff") && own(&s.name)
    };
    if let Some(crashes) =
        status.init_container_statuses.iter().chain(&status.container_statuses).find(crashing)
    {
        let message = crashes.state.waiting.as_ref().map(|w| last_line(&w.message)).unwrap_or_default();
        return Some(format!("container {} ends again and again: CrashLoopBackOff: {message}", crashes.name));
    }
    // A kubelet shows a container as running once its hook has ended.
    let hook = |c: &&Container| c.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.post_start.is_some());
    let events = kubelet::events(d.o, member);
    let started = |c: &&Container| {
        events.iter().any(|e| e.reason == "Started" && e.container.as_ref() == Some(&c.name))
    };
    let hanging = template.containers.iter().filter(hook).find(started)?;
    Some(format!("the postStart hook of container {} has not ended", hanging.name))
}

/// Image, configuration and the pod's own containers count as user failures. Any other reason for not
/// starting is a cluster failure.
pub(super) fn start_timeout(d: &mut Draft<'_>, members: &Members<'_>) {
    let container = d.o.training_container();
    let late: Vec<&Member<'_>> = members.gang.iter().filter(|m| m.started_at(container).is_none()).collect();
    let all: Vec<_> = late.iter().flat_map(|m| waiting(m)).collect();
    let users = all.iter().find(|(reason, message)| waits_for_its_user(reason, message));
    let hanging = late.iter().find_map(|m| own_container_in_the_way(d, m));
    // Containers say why in full or in a word; Events of kubelets are for what has no container yet.
    let in_full = |(reason, message): &(String, String)| {
        (!message.is_empty()).then(|| format!("{reason}: {}", last_line(message)))
    };
    let in_a_word = |(reason, _): &(String, String)| reason.clone();
    let words = match users {
        Some(users) => in_full(users).or_else(|| Some(in_a_word(users))),
        None => hanging
            .clone()
            .or_else(|| all.iter().find_map(in_full))
            .or_else(|| late.iter().find_map(|m| kubelet::last_warning(kubelet::events(d.o, m))))
            .or_else(|| all.first().map(in_a_word)),
    };
    let words = words.map_or_else(String::new, |words| format!(": {words}"));
    let limit = duration_text(start_limit(d.o));
    let message = format!("bound but not running within {limit}{words}");
    let of_the_user = users.is_some() || hanging.is_some();
    let outcome = if of_the_user { Outcome::UserFailure } else { Outcome::ClusterFailure };
    let mut judgement = Judgement::new(outcome, Reason::StartTimeout, message);
    if outcome == Outcome::ClusterFailure {
        judgement.exclude = late.iter().map(|m| m.node.to_owned()).collect();
    }
    d.stop_judged(&judgement);
}
