//! A job that stands for one of another kind (`spec.adopts`): its pods are made, retried and removed by the workload's own
//! controller. We start the workload on the nodes of the plan, and stop it, by its switch `suspend`.
//!
//! The workload's own end decides the outcome. What its pods do in between is its controller's affair: a failed pod that is
//! replaced is no failure here.

use andreas_adopt::{End, Workload};
use andreas_api::names::{GATE_NODE, LABEL_ATTEMPT};
use andreas_api::slim::SlimPod;
use andreas_api::training_job::{Allocation, StopRequest};
use andreas_api::{Outcome, Reason};
use jiff::Timestamp;

use super::action::Action;
use super::draft::Draft;
use super::judge::{Case, Judgement};
use super::member::{Member, Members, is_over, number};
use super::observed::Observed;
use super::readiness::{self, Readiness};
use super::{end, run, start, stop};
use crate::index::is_member;

/// The members of an adopted workload: one per pod, without an index of their own. A pod that ended makes room for the one that
/// replaces it.
pub(super) fn members<'a>(o: &Observed<'a>, allocation: Option<&'a Allocation>, pods: usize) -> Members<'a> {
    let nodes = allocation.map(|a| a.nodes.as_slice()).unwrap_or_default();
    let attempt = allocation.map(|a| a.attempt);
    let count = if nodes.is_empty() { 0 } else { pods.max(1) };
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for pod in o.pods.iter().copied().filter(|pod| is_member(pod, o.job)) {
        if attempt.is_some() && number(pod, LABEL_ATTEMPT) == attempt {
            own.push(pod)
        } else {
            other.push(pod)
        }
    }
    let order = |pod: &&SlimPod| match pod.status.phase.as_str() {
        "Succeeded" => 1,
        "Failed" => 2,
        _ => 0,
    };
    own.sort_by_key(order);
    other.extend(own.split_off(own.len().min(count)));
    let deleted = o.deleted.iter().copied();
    let mut deleted =
        deleted.filter(|gone| is_member(gone.last, o.job) && number(gone.last, LABEL_ATTEMPT) == attempt);
    let mut own = own.into_iter();
    let gang = (0..count).map(|index| {
        let live = own.next();
        // The latest deletions are what still holds GPUs.
        let deleted = if live.is_none() { deleted.next_back() } else { None };
        let bound = live.or(deleted.map(|gone| gone.last)).and_then(|pod| pod.spec.node_name.as_deref());
        Member { index, node: bound.unwrap_or(nodes[index % nodes.len()].as_str()), live, deleted }
    });
    Members { gang: gang.collect(), other, older: Vec::new(), older_deleted: Vec::new() }
}

/// Whether the workload waits for GPUs. Ends the job with a workload that ended without us.
pub(super) fn may_wait(d: &mut Draft<'_>) -> bool {
    let Some(workload) = d.o.workload else {
        d.not_plannable = true;
        return false;
    };
    if let Some(end) = &workload.end {
        end::ended_unplanned(d, &judged(end));
        return false;
    }
    if workload.suspended {
        return true;
    }
    d.not_plannable = true;
    d.wait_for(Reason::NotAdopted, "it was started by somebody else; planned again when it is suspended");
    false
}

/// Handles the phase Starting.
pub(super) fn starting(d: &mut Draft<'_>) {
    let Some(allocation) = d.allocation() else { return d.lose_allocation() };
    let Some(workload) = d.o.workload else { return };
    let members = Members::of(d.o, Some(&allocation));
    let released = workload.attempt() == Some(allocation.attempt);
    // Before its end: a run that ended before its start was written has lasted and used energy too.
    let started: Option<Vec<Timestamp>> = members.gang.iter().map(started_at).collect();
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
        start::watch_start(d, &allocation, &members);
    }
}

/// Handles the phase Running.
pub(super) fn running(d: &mut Draft<'_>) {
    let Some(allocation) = d.allocation() else { return d.lose_allocation() };
    let Some(workload) = d.o.workload else { return };
    let members = Members::of(d.o, Some(&allocation));
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
    place(d, &allocation, &members);
    if readiness::check(d, &allocation, &members) == Readiness::GivenUp {
        return;
    }
    run::limit(d, &allocation);
    run::progress_unknown(d, &allocation);
}

/// Handles the phase Stopping.
pub(super) fn stopping(d: &mut Draft<'_>, allocation: &Allocation, stop: &StopRequest) {
    let members = Members::of(d.o, Some(allocation));
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
    let case = Case { o: d.o, allocation, members: &members, stop: Some(stop), known_bound };
    if case.all_ended() {
        let decided = || {
            let reason = Reason::parse(&stop.reason).unwrap_or(Reason::Stopping);
            let outcome = match stop.outcome? {
                // Only its own end counts. Until then it is started again, as its kind would do.
                Outcome::UserFailure => Outcome::Withdrawn,
                outcome => outcome,
            };
            Some(Judgement::new(outcome, reason, stop.message.clone()))
        };
        let judgement = end.map(judged).or_else(decided).unwrap_or_else(|| case.stopped(stop));
        return end::close_attempt(d, allocation, &members, &judgement);
    }
    readiness::check(d, allocation, &members);
}

/// The workload ended, or somebody else started or stopped it.
fn stopped_otherwise(d: &mut Draft<'_>, workload: &Workload, allocation: &Allocation) -> bool {
    let released = workload.attempt() == Some(allocation.attempt);
    let judgement = match &workload.end {
        Some(end) => judged(end),
        None if released && workload.suspended => {
            Judgement::new(Outcome::Withdrawn, Reason::NotAdopted, "it was suspended by somebody else")
        }
        None if !released && !workload.suspended => {
            Judgement::new(Outcome::Withdrawn, Reason::NotAdopted, "it was started by somebody else")
        }
        None => return false,
    };
    d.stop_judged(&judgement);
    true
}

fn judged(end: &End) -> Judgement {
    let message =
        |otherwise: &str| if end.message.is_empty() { otherwise.to_owned() } else { end.message.clone() };
    if end.succeeded {
        Judgement::new(Outcome::Finished, Reason::Completed, message("it is complete"))
    } else {
        Judgement::new(Outcome::UserFailure, Reason::ContainerFailed, message("it failed"))
    }
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
