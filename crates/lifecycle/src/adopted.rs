//! A job that stands for one of another kind (`spec.adopts`): its pods are made, retried and removed by the workload's own
//! controller. We start the workload on the nodes of the plan, and stop it, by its switch `suspend`.
//!
//! The workload's own end decides the outcome. What its pods do in between is its controller's affair: a failed pod that is
//! replaced is no failure here.

use andreas_api::names::{GATE_NODE, LABEL_ATTEMPT};
use andreas_api::phase::condition;
use andreas_api::slim::SlimPod;
use andreas_api::training_job::Allocation;
use andreas_api::{Outcome, Reason};
use andreas_cluster::index::is_member;
use andreas_cluster::instants::after;
use andreas_workloads::adopt::Workload;
use jiff::Timestamp;

use super::action::Action;
use super::draft::Draft;
use super::first_seen::TimedFact;
use super::judge::{Case, Judgement};
use super::late::{self, unbound_condition};
use super::member::{Member, Members, is_over, number};
use super::observed::Observed;
use super::readiness::{self, Readiness};
use super::status::ConditionValue;
use super::workload::{judged, suspended_by};
use super::{end, run, start, stop};

/// Seconds that the pods of a workload that ended usually need at most to end too.
const LAST_PODS: i64 = 10;

/// Seconds by which a Job's controller delays the pod that replaces a failed one: the first one, and at most. It doubles.
const REPLACEMENT: (i64, i64) = (10, 600);

/// Handles the phase Starting.
pub(super) fn starting(d: &mut Draft<'_>) {
    let Some(allocation) = d.allocation() else { return d.lose_allocation() };
    let Some(workload) = d.o.workload else { return };
    let members = Members::new(d.o, Some(&allocation));
    let released = workload.attempt() == Some(allocation.attempt);
    // Before its end: a run that ended before its start was written has lasted and used energy too.
    let started: Option<Vec<Timestamp>> = members.gang.iter().map(started_at).collect();
    // Parts without GPUs go on after pods of an earlier attempt, whose start is not this one's.
    let of_this =
        |m: &Member<'_>| m.live.and_then(|pod| number(pod, LABEL_ATTEMPT)) == Some(allocation.attempt);
    let goes_on = members.is_complete && !members.gang.iter().any(of_this);
    let started = if goes_on { Some(vec![d.o.now]) } else { started };
    if let Some(started) = started.filter(|_| released).and_then(|all| all.into_iter().max()) {
        let bound = members.gang.iter().filter_map(Member::bound_at).max();
        return run::begin(d, started, bound);
    }
    if stopped_otherwise(d, workload, &allocation) {
        return;
    }
    if !released {
        if stop::stop_for_user(d, &allocation) || stop::stop_for_plan(d, &allocation) {
            return;
        }
        if start::stop_if_refused(d, &allocation) {
            return;
        }
        if start::has_room(d, &allocation, &members) {
            d.actions.push(Action::Release {
                attempt: allocation.attempt,
                nodes: allocation.nodes.clone(),
                gpus: allocation.gpus,
            });
        }
        return;
    }
    if stop::stop_for_user(d, &allocation) || stop::stop_for_plan(d, &allocation) {
        return;
    }
    place(d, &allocation, &members);
    if readiness::check(d, &allocation, &members) == Readiness::AllReady {
        match late::unmade(d, &allocation, workload, &members) {
            Some(judgement) => d.stop_judged(&judgement),
            None => start::watch_start(d, &allocation, &members),
        }
    }
}

/// Handles the phase Running.
pub(super) fn running(d: &mut Draft<'_>) {
    let Some(allocation) = d.allocation() else { return d.lose_allocation() };
    let Some(workload) = d.o.workload else { return };
    let members = Members::new(d.o, Some(&allocation));
    if workload.end.is_some() && last_pods_end(d, &allocation, &members) {
        return;
    }
    if stopped_otherwise(d, workload, &allocation) {
        return;
    }
    if let Some(node) = allocation.nodes.iter().find(|node| !d.o.nodes.contains_key(*node)) {
        let message = format!("node {node} was deleted");
        let judgement = Judgement::new(Outcome::ClusterFailure, Reason::ClusterFailure, message);
        return d.stop_judged(&judgement.excluding(node).explained(true));
    }
    if stop::stop_for_user(d, &allocation) || stop::stop_for_plan(d, &allocation) {
        return;
    }
    if let Some(judgement) = run::doubled(d, &members) {
        return d.stop_judged(&judgement);
    }
    if stop_incomplete(d, workload, &allocation, &members) {
        return;
    }
    place(d, &allocation, &members);
    if readiness::check(d, &allocation, &members) == Readiness::GivenUp {
        return;
    }
    run::limit(d);
    run::progress_unknown(d, &allocation);
}

/// Handles the phase Stopping.
pub(super) fn stopping(d: &mut Draft<'_>) {
    let (Some(allocation), Some(stop)) = (d.allocation(), d.status.stop.clone()) else {
        return d.lose_allocation();
    };
    let members = Members::new(d.o, Some(&allocation));
    let deleted = d.o.job.metadata.deletion_timestamp.is_some();
    let end = d.o.workload.and_then(|workload| workload.end.as_ref());
    if let Some(workload) = d.o.workload
        && !workload.suspended
        && end.is_none()
        && !deleted
        && workload.attempt() == Some(allocation.attempt)
    {
        d.actions.push(Action::Hold);
        return;
    }
    let known_bound = allocation.bound_time.is_some() || allocation.running_time.is_some();
    for member in &members.gang {
        if let Some(until) = member.busy_until(d.o, known_bound, stop.since.0) {
            d.requeue_at(until);
        }
    }
    let case = Case { o: d.o, allocation: &allocation, members: &members, stop: Some(&stop), known_bound };
    if case.all_ended() {
        let decided = || {
            let mut decided = case.decided_before(&stop)?;
            // Only its own end counts. Until then it is started again, as its kind would do.
            if decided.outcome == Outcome::UserFailure {
                decided.outcome = Outcome::Withdrawn;
            }
            Some(decided)
        };
        let judgement = end.map(judged).or_else(decided).unwrap_or_else(|| case.stopped(&stop));
        return end::close_attempt(d, &allocation, &members, &judgement);
    }
    if let Some(workload) = d.o.workload {
        not_stopped(d, workload, &allocation, &members);
    }
    readiness::check(d, &allocation, &members);
}

/// Tells of pods that run on although their workload is suspended: its controller does not stop them, and their GPUs stay in use.
fn not_stopped(d: &mut Draft<'_>, workload: &Workload, allocation: &Allocation, members: &Members<'_>) {
    let runs_on = |pod: &SlimPod| !is_over(pod) && pod.metadata.deletion_timestamp.is_none();
    if !workload.suspended || !members.gang.iter().any(|member| member.live.is_some_and(runs_on)) {
        return;
    }
    let attempt = allocation.attempt;
    let due =
        after(d.first_seen(TimedFact::NotStopped { attempt, told: false }), d.o.policy.placement_timeout);
    if d.o.now < due {
        return d.requeue_at(due);
    }
    let message =
        format!("the {} is suspended, and its controller has not stopped its pods", workload.kind.name());
    // What the condition says may be written later, or be replaced by what is known of the node.
    let told = TimedFact::NotStopped { attempt, told: true };
    if !d.o.first_seen.contains_key(&told) {
        d.event(true, Reason::Stopping, message.clone());
    }
    d.first_seen(told);
    d.set_condition(condition::RUNNING, ConditionValue::False, Reason::Stopping, &message);
}

/// Whether the last pods of a workload that ended are still ending. For so long it stays in its phase: the end is then
/// written once, with theirs, and not before them as a stop that waits for them.
fn last_pods_end(d: &mut Draft<'_>, allocation: &Allocation, members: &Members<'_>) -> bool {
    let since = d.first_seen(TimedFact::WorkloadEnded { attempt: allocation.attempt });
    let until = after(since, LAST_PODS);
    let ends = until > d.o.now && !members.gang.iter().all(|member| member.has_ended(d.o, true, since));
    if ends {
        d.requeue_at(until);
    }
    ends
}

/// Stops a workload some of whose pods are missing for longer than its controller and the scheduler need for others. Its own
/// controller keeps it on its nodes for ever, also where they take no pods any more.
fn stop_incomplete(
    d: &mut Draft<'_>,
    workload: &Workload,
    allocation: &Allocation,
    members: &Members<'_>,
) -> bool {
    let attempt = allocation.attempt;
    let living = |m: &Member<'_>| m.bound() && m.live.is_some_and(|pod| !is_over(pod));
    // Where its controller counts those that have succeeded, the others are what it should have.
    let done = |m: &Member<'_>| {
        (workload.pods_left.is_none() || members.is_complete)
            && m.live.is_some_and(|pod| pod.status.phase == "Succeeded")
    };
    let missing: Vec<&Member<'_>> = members.gang.iter().filter(|m| !living(m) && !done(m)).collect();
    if missing.is_empty() {
        return stop_not_started(d, allocation, members);
    }
    let share = members.gang.len().div_ceil(allocation.nodes.len().max(1));
    let on = |node: &str| members.gang.iter().filter(|m| living(m) && m.node == node).count();
    let short: Vec<&String> = allocation.nodes.iter().filter(|node| on(node) < share).collect();
    let leaving = short.iter().find(|node| d.o.nodes.get(**node).is_some_and(|fact| fact.leaving));
    let patience = match leaving {
        // The end of a workload is written soon after that of its pods.
        Some(_) => LAST_PODS,
        None => d.o.policy.placement_timeout + replacement_delay(d.o, workload, attempt),
    };
    let due = after(d.first_seen(TimedFact::Incomplete { attempt, bound: false }), patience);
    if d.o.now < due {
        d.requeue_at(due);
        return false;
    }
    let unbound = missing.iter().find_map(|m| unbound_condition(m));
    let words = match (leaving, unbound) {
        (Some(node), _) => format!("node {node} is being taken out of use"),
        (None, Some(condition)) => condition.message.clone(),
        (None, None) => "its controller has made no others".to_owned(),
    };
    let message = format!("{} of {} pods are missing: {words}", missing.len(), members.gang.len());
    let mut judgement = Judgement::new(Outcome::ClusterFailure, Reason::ClusterFailure, message);
    if leaving.is_some() || unbound.is_some() {
        judgement.exclude = short.iter().map(|node| (*node).clone()).collect();
    }
    d.stop_judged(&judgement.explained(leaving.is_some()));
    true
}

/// Stops a workload with a pod that took the place of another one and does not start.
fn stop_not_started(d: &mut Draft<'_>, allocation: &Allocation, members: &Members<'_>) -> bool {
    if members.gang.iter().all(|member| started_at(member).is_some()) {
        return false;
    }
    let since = d.first_seen(TimedFact::Incomplete { attempt: allocation.attempt, bound: true });
    // A container that its kubelet starts again may wait for as long as a pod.
    let due = after(since, late::start_limit(d.o).max(REPLACEMENT.1));
    if d.o.now < due {
        d.requeue_at(due);
        return false;
    }
    late::start_timeout(d, members);
    true
}

/// For how long a Job's controller may wait before it replaces a pod, s.
fn replacement_delay(o: &Observed<'_>, workload: &Workload, attempt: i64) -> i64 {
    let failed = |pod: &&&SlimPod| {
        pod.status.phase == "Failed" && number(pod, LABEL_ATTEMPT) == Some(attempt) && is_member(pod, o.job)
    };
    let pods = i64::try_from(o.pods.iter().filter(failed).count()).unwrap_or(i64::MAX);
    match pods.max(workload.pods_failed) {
        ..=0 => 0,
        failures => REPLACEMENT.0.saturating_mul(1 << (failures - 1).min(10)).min(REPLACEMENT.1),
    }
}

/// The workload ended, or somebody else started or stopped it.
fn stopped_otherwise(d: &mut Draft<'_>, workload: &Workload, allocation: &Allocation) -> bool {
    let released = workload.attempt() == Some(allocation.attempt);
    let judgement = match &workload.end {
        Some(end) => judged(end),
        None if released && workload.suspended => {
            Judgement::new(Outcome::Withdrawn, Reason::NotAdopted, suspended_by(workload))
        }
        None if !released && !workload.suspended => {
            Judgement::new(Outcome::Withdrawn, Reason::NotAdopted, "it was started by somebody else")
        }
        None => return false,
    };
    d.stop_judged(&judgement);
    true
}

/// When a member's containers started: the last of those that run or ran.
fn started_at(member: &Member<'_>) -> Option<Timestamp> {
    let pod = member.pod()?;
    let states = pod.status.container_statuses.iter().map(|status| &status.state);
    let at = |state: &andreas_api::slim::SlimContainerState| {
        let running = state.running.as_ref().map(|running| running.started_at.clone());
        let ended = || state.terminated.as_ref().map(|ended| ended.started_at.clone());
        Some(running.or_else(ended)?.map_or(Timestamp::UNIX_EPOCH, |time| time.0))
    };
    let all: Option<Vec<Timestamp>> = states.map(at).collect();
    all?.into_iter().max()
}

/// Lets gated pods onto the nodes of the allocation, the same number onto each.
fn place(d: &mut Draft<'_>, allocation: &Allocation, members: &Members<'_>) {
    let gated = |pod: &&SlimPod| pod.spec.scheduling_gates.iter().any(|gate| gate.name == GATE_NODE);
    let live = || members.gang.iter().filter_map(|member| member.live).filter(|pod| !is_over(pod));
    let mut on: Vec<(usize, &String)> = allocation
        .nodes
        .iter()
        .map(|node| (live().filter(|pod| assigned(pod) == Some(node.as_str())).count(), node))
        .collect();
    for pod in live().filter(gated) {
        let Some(least) = on.iter_mut().min_by_key(|(count, _)| *count) else { return };
        least.0 += 1;
        if let (Some(name), Some(uid)) = (&pod.metadata.name, &pod.metadata.uid) {
            d.actions.push(Action::Place { name: name.clone(), uid: uid.clone(), node: least.1.clone() });
        }
    }
}

/// The node of a pod: bound to it, or let onto it.
fn assigned(pod: &SlimPod) -> Option<&str> {
    let chosen = || pod.metadata.annotations.as_ref()?.get(GATE_NODE).map(String::as_str);
    pod.spec.node_name.as_deref().or_else(chosen)
}
