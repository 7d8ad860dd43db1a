//! From Pending to Running: validate the template, write the allocation, wait for room, create the pods,
//! watch them bind and start.

use andreas_api::gpu_node::namespaced_pod_name;
use andreas_api::names;
use andreas_api::phase::condition;
use andreas_api::slim::SlimPod;
use andreas_api::training_job::Allocation;
use andreas_api::{Outcome, Phase, Reason};
use andreas_cluster::instants::after;

use super::action::Action;
use super::draft::Draft;
use super::first_seen::TimedFact;
use super::judge::{Case, Judgement};
use super::member::{Member, Members, given_up_at, may_run, number};
use super::observed::{CreationOutcome, Planned};
use super::readiness::{self, Readiness};
use super::status::{self, ConditionValue, allocation_text};
use super::{late, pods, run, stop, template, workload};

/// An agent without an answer for this long, s, is dead and its settings are restored. Its setter restores
/// them after half a minute without a heartbeat.
const AGENT_TIMEOUT: i64 = 60;

/// Handles the phases Pending and Suspended.
pub(super) fn waiting(d: &mut Draft<'_>) {
    let spec = &d.o.job.spec;
    d.status.allocation = None;
    d.status.display.nodes = None;
    d.status.stop = None;
    if spec.suspend {
        if d.status.phase != Phase::Suspended {
            d.status.phase = Phase::Suspended;
            d.event(false, Reason::Suspended, "held by spec.suspend");
        }
        d.status.not_before = None;
        return d.wait_for(Reason::Suspended, "held by spec.suspend");
    }
    if d.status.phase == Phase::Suspended {
        d.status.phase = Phase::Pending;
        d.wait_for(Reason::NotPlannedYet, "no longer suspended");
    }
    if let Some(backoff) = d.o.backoff.filter(|backoff| backoff.until > d.o.now) {
        if matches!(d.reason(), None | Some(Reason::NotPlannedYet)) {
            d.wait_for(Reason::NotPlannedYet, &backoff_text(&backoff.message));
        }
        return d.requeue_at(backoff.until);
    }
    let fits = if spec.adopts.is_some() { workload::may_wait(d) } else { template::fits(d) };
    if !fits || d.status.phase.is_terminal() {
        return;
    }
    if refused_under_older_rules(d) {
        d.status.not_before = None;
    }
    if waits_for_older(d) {
        return;
    }
    let until = d.status.not_before.clone().filter(|t| t.0 > d.o.now);
    if let Some(until) = until {
        return d.requeue_at(until.0);
    }
    let plans_must_know = template::largest_admitted(&d.status).is_some();
    if d.o.job.status.is_none() && d.status.reason.is_none() && d.decision().is_none() && !plans_must_know {
        // A plan usually follows soon; a write that users hardly see is not worth it.
        let created = d.o.job.metadata.creation_timestamp.as_ref().map_or(d.o.now, |t| t.0);
        let patience = after(created, d.o.settings.first_plan_seconds);
        if d.o.now < patience {
            d.status = Default::default();
            return d.requeue_at(patience);
        }
    }
    match d.decision().cloned() {
        Some(Planned::Run { .. }) => allocate(d),
        Some(Planned::Wait { reason, message }) => {
            // The largest worker exceeds the quota. The server's message is more exact than the planner's.
            match d.o.dry_run.and_then(|v| v.refusal.as_ref()) {
                Some((Reason::QuotaExceeded, words)) if reason == Reason::QuotaExceeded => {
                    d.wait_for(Reason::QuotaExceeded, words);
                }
                _ => d.wait_for(reason, &message),
            }
        }
        None if d.status.reason.is_none() => d.wait_for(Reason::NotPlannedYet, "waits for the next plan"),
        None => {}
    }
}

/// Live pods of an attempt that was given up, or of a deleted job of this name, may write its checkpoint or hold the pod names. Nothing is
/// planned meanwhile; on an unreachable node that may take forever. Whether a pod is given up is seen anew by each leader and each time
/// its node falls silent: an attempt that is allocated before would hold its GPUs until then.
fn waits_for_older(d: &mut Draft<'_>) -> bool {
    let o = d.o;
    let members = Members::new(o, None);
    let next = d.status.attempts.saturating_add(1);
    let earlier = members.other.iter().find(|p| may_run(o, p)).map(|p| (*p, "an earlier attempt"));
    let blocks = |p: &&&SlimPod| may_run(o, p) || number(p, names::LABEL_ATTEMPT) == Some(next);
    let older = || members.older.iter().find(blocks).map(|p| (*p, "a deleted job of this name"));
    let Some((pod, of_whom)) = earlier.or_else(older) else {
        let Some(why) = older_deleted(d, &members) else { return false };
        d.not_plannable = true;
        d.wait_for(Reason::WaitingForRelease, &why);
        return true;
    };
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let alive = may_run(o, pod);
    let node = pod.spec.node_name.as_ref().filter(|_| alive);
    let not_ready = node.filter(|node| o.nodes.get(*node).is_some_and(|fact| !fact.ready));
    let (reason, message) = match not_ready {
        Some(node) => {
            if let Some(at) = given_up_at(o, pod) {
                d.requeue_at(at);
            }
            (Reason::NodeNotReady, format!("{name} of {of_whom} is on node {node}, which is not ready"))
        }
        None if alive => (Reason::WaitingForRelease, format!("{name} of {of_whom} has not ended")),
        None => (Reason::WaitingForRelease, format!("{name} of {of_whom} is still there")),
    };
    d.not_plannable = true;
    d.wait_for(reason, &message);
    true
}

/// Why a pod of a deleted job of this name is waited for although its object is gone. Requeues the job for when that ends.
fn older_deleted(d: &mut Draft<'_>, members: &Members<'_>) -> Option<String> {
    let (pod, until) = members.older_busy_until(d.o)?;
    d.requeue_at(until);
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Some(format!("{name} of a deleted job of this name is gone, and nobody saw it end: it may still run"))
}

/// The pods were refused, but the namespace's rules have changed since: no need to wait.
fn refused_under_older_rules(d: &Draft<'_>) -> bool {
    let refusal = [Reason::QuotaExceeded, Reason::TemplateRejected].map(Reason::as_str);
    let last = d.status.history.last();
    let refused = last
        .filter(|r| r.outcome == Outcome::Withdrawn && refusal.contains(&r.reason.as_str()))
        .map(|r| r.ended.0);
    d.o.rules_changed.zip(refused).is_some_and(|(changed, refused)| changed >= refused)
}

/// Writes the plan's decision as allocation, if it is still valid for the job.
fn allocate(d: &mut Draft<'_>) {
    let Some(Planned::Run { gpu_type, nodes, gpus_per_worker, limit_watts, watts, guard }) =
        d.decision().cloned()
    else {
        return;
    };
    let workers = i32::try_from(nodes.len()).unwrap_or(i32::MAX);
    let gpus = gpus_per_worker.saturating_mul(workers);
    let excluded = d.status.excluded_nodes.iter().filter(|a| a.until.0 > d.o.now && nodes.contains(&a.node));
    let excluded_until = excluded.map(|a| a.until.0).max();
    if let Some(until) = excluded_until {
        d.requeue_at(until);
    }
    let sensible = workers >= 1
        && gpus_per_worker >= 1
        && (1..nodes.len()).all(|i| !nodes[..i].contains(&nodes[i]))
        && nodes.iter().all(|n| d.o.nodes.contains_key(n))
        && excluded_until.is_none()
        && d.o.allows(gpus, &gpu_type, &nodes).is_ok();
    if !sensible {
        if d.status.reason.is_none() {
            d.wait_for(Reason::NotPlannedYet, "waits for the next plan");
        }
        return;
    }
    let attempt = d.status.attempts.saturating_add(1);
    let generation = d.count_decision();
    let allocation = Allocation {
        attempt,
        generation,
        gpu_type,
        gpus,
        gpus_per_worker,
        nodes,
        power_limit_watts: limit_watts.filter(|w| *w >= 1),
        limit_changed: false,
        guard_watts: guard.watts,
        guard_reached: false,
        since: d.now(),
        bound_time: None,
        running_time: None,
        watts: watts.max(0),
        host_watts: d.o.host_watts.max(0),
    };
    let text = allocation_text(&allocation);
    d.set_condition(condition::SCHEDULED, ConditionValue::True, Reason::AsExpected, &text);
    d.status.attempts = attempt;
    d.status.not_before = None;
    d.status.phase = Phase::Starting;
    d.status.reason = None;
    d.status.display.nodes = Some(status::placement_text(&allocation.nodes));
    d.status.allocation = Some(allocation);
}

/// Handles the phase Starting.
pub(super) fn starting(d: &mut Draft<'_>) {
    let Some(allocation) = d.allocation() else { return d.lose_allocation() };
    let members = Members::new(d.o, Some(&allocation));
    let container = d.o.training_container();
    let started: Option<Vec<_>> = members.gang.iter().map(|m| m.started_at(container)).collect();
    if let Some(started) = started.and_then(|s| s.into_iter().max()) {
        let bound = members.gang.iter().filter_map(Member::bound_at).max();
        return run::begin(d, started, bound);
    }
    // Before judging: pods of a partial gang that the executor deleted have not vanished.
    if stop_if_refused(d, &allocation) {
        return;
    }
    let case = Case { o: d.o, allocation: &allocation, members: &members, stop: None, known_bound: false };
    if let Some(judgement) = case.judge().or_else(|| run::doubled(d, &members)) {
        return d.stop_judged(&judgement);
    }
    if stop::stop_for_user(d, &allocation) || stop::stop_for_plan(d, &allocation) {
        return;
    }
    if members.gang.iter().any(|m| m.pod().is_none()) {
        return create_pods(d, &allocation, &members);
    }
    if readiness::check(d, &allocation, &members) == Readiness::AllReady {
        watch_start(d, &allocation, &members);
    }
}

fn backoff_text(words: &str) -> String {
    format!("the API server does not make or bind pods of this namespace; tried again later: {words}")
}

/// Stops the attempt if the server refused a pod or a name is taken. The executor has deleted the created pods.
pub(super) fn stop_if_refused(d: &mut Draft<'_>, allocation: &Allocation) -> bool {
    if !d.o.creation.is_for(allocation.generation) {
        return false;
    }
    let (reason, message) = match d.o.creation.outcome() {
        CreationOutcome::Refused { reason, message } => (*reason, message.clone()),
        CreationOutcome::NameInUse { name } => {
            (Reason::NameInUse, format!("{name} belongs to somebody else; delete it or rename the job"))
        }
        CreationOutcome::NotTried | CreationOutcome::Made => return false,
    };
    d.stop_judged(&Judgement::new(Outcome::Withdrawn, reason, message));
    true
}

/// Creates the missing pods once there is room.
fn create_pods(d: &mut Draft<'_>, allocation: &Allocation, members: &Members<'_>) {
    if !has_room(d, allocation, members) {
        return;
    }
    if d.o.creation.is_for(allocation.generation) && *d.o.creation.outcome() == CreationOutcome::Made {
        return;
    }
    if let Some(service) = pods::gang_service(d.o.job, allocation) {
        d.actions.push(Action::CreateService(Box::new(service)));
    }
    let missing = members.gang.iter().filter(|m| m.pod().is_none());
    let pods = missing.map(|m| pods::member(d.o.job, allocation, m.index, d.o.nodes, d.o.settings)).collect();
    d.actions.push(Action::CreatePods { generation: allocation.generation, pods });
}

/// Whether pods may be created now: no earlier one can run, and the GPUs are free and awake. Withdraws an allocation that
/// cannot be had any more.
pub(super) fn has_room(d: &mut Draft<'_>, allocation: &Allocation, members: &Members<'_>) -> bool {
    if let Some(node) = allocation.nodes.iter().find(|n| !d.o.nodes.contains_key(*n)) {
        let message = format!("node {node} was deleted");
        let judgement = Judgement::new(Outcome::Withdrawn, Reason::ClusterFailure, message).excluding(node);
        d.stop_judged(&judgement);
        return false;
    }
    if late::released_since(d, allocation).is_some() && late::is_late(d, allocation) {
        late::withdraw_uncreated(d, members);
        return false;
    }
    let taken = |n: &&String| d.o.nodes.get(*n).is_some_and(|f| f.open_gpus < allocation.gpus_per_worker);
    if let Some(node) = allocation.nodes.iter().find(taken) {
        // No pod of ours could leave to make room; only a new plan helps.
        let message = format!("GPUs of {node} were taken by other pods or have failed");
        d.stop_judged(&Judgement::new(Outcome::Withdrawn, Reason::WaitingForCapacity, message));
        return false;
    }
    if let Some((node, text)) = readiness::unready_node(d, allocation) {
        // Whoever is on it cannot be proven to have ended, and there may be GPUs elsewhere.
        let judgement = Judgement::new(Outcome::Withdrawn, Reason::NodeNotReady, text).excluding(&node);
        d.stop_judged(&judgement);
        return false;
    }
    let attempt = allocation.attempt;
    let (reason, why) = match earlier_pods(d, allocation, members) {
        Some(why) if late::is_never_released(d, TimedFact::EarlierPods { attempt }) => {
            // Others can use these GPUs meanwhile. No node is excluded: the pod may be on another one.
            let message = format!("{why} after more than an hour");
            d.stop_judged(&Judgement::new(Outcome::Withdrawn, Reason::WaitingForRelease, message));
            return false;
        }
        Some(why) => (Reason::WaitingForRelease, why),
        None => match in_use(d, allocation) {
            Some(node) if late::is_never_released(d, TimedFact::InUse { attempt }) => {
                late::withdraw_unreleased(d, &node);
                return false;
            }
            Some(node) => (Reason::WaitingForRelease, format!("GPUs of {node} are still in use")),
            None => {
                // The second that waking takes has no text of its own: it would be written, and the true one again later.
                set_starting(d);
                d.waking = wake_gpus(d, allocation);
                if d.waking {
                    return false;
                }
                if let Some(node) = unguarded(d, allocation) {
                    let message =
                        format!("the agent of {node} has not set the power limit that the budget needs");
                    let judgement = Judgement::new(Outcome::Withdrawn, Reason::ClusterFailure, message);
                    d.stop_judged(&judgement.excluding(&node));
                    return false;
                }
                late::is_late(d, allocation);
                return true;
            }
        },
    };
    d.status.reason = Some(reason.as_str().into());
    d.set_condition(condition::RUNNING, ConditionValue::False, reason, &why);
    false
}

pub(super) fn set_starting(d: &mut Draft<'_>) {
    d.status.reason = Some(Reason::PodsStarting.as_str().into());
    d.set_condition(
        condition::RUNNING,
        ConditionValue::False,
        Reason::PodsStarting,
        "the pods are being made, bound and started",
    );
}

/// Why the pods cannot be created yet: earlier pods that can still run, names taken.
fn earlier_pods(d: &mut Draft<'_>, allocation: &Allocation, members: &Members<'_>) -> Option<String> {
    let name = |pod: &SlimPod| pod.metadata.name.clone().unwrap_or_default();
    let alive = members.still_alive(d.o);
    if let Some(pod) = alive.first() {
        if let Some(at) = alive.iter().filter_map(|pod| given_up_at(d.o, pod)).min() {
            d.requeue_at(at);
        }
        return Some(format!("{} of an earlier attempt has not ended", name(pod)));
    }
    if let Some(why) = older_deleted(d, members) {
        return Some(why);
    }
    // Names are taken until the garbage collector has removed an older object's pods.
    let taken = |p: &&&SlimPod| number(p, names::LABEL_ATTEMPT) == Some(allocation.attempt);
    let pod = members.older.iter().find(taken)?;
    Some(format!("{} of a deleted job of this name is still there", name(pod)))
}

/// A node whose GPUs others of our jobs still use.
fn in_use(d: &Draft<'_>, allocation: &Allocation) -> Option<String> {
    let full = |n: &&String| d.o.nodes.get(*n).is_none_or(|f| f.free_gpus < allocation.gpus_per_worker);
    allocation.nodes.iter().find(full).cloned()
}

/// Asks the agents to wake their GPUs and to set the guard, once per allocation. Whether some have not acknowledged. This
/// is the last step before pods are created: awake, unheld GPUs soon rest again.
///
/// An agent without an answer for [`AGENT_TIMEOUT`] is not waited for: no setting outlives it that long, and a live one answers in
/// seconds. An operator that is started meanwhile asks again.
fn wake_gpus(d: &mut Draft<'_>, allocation: &Allocation) -> bool {
    let attempt = allocation.attempt;
    let mut asleep = false;
    for node in &allocation.nodes {
        let Some(agent) = d.o.nodes.get(node).and_then(|f| f.agent.as_ref()) else { continue };
        let asked = d.o.first_seen.keys().find_map(|fact| match fact {
            TimedFact::Waking { attempt: of, node: on, request } if *of == attempt && on == node => {
                Some(*request)
            }
            _ => None,
        });
        let silent = agent.unanswered_since.is_some_and(|since| after(since, AGENT_TIMEOUT) <= d.o.now);
        // What is not answered yet is answered later than now; one that does not answer may have missed it.
        let open = agent.wake > agent.awake && !silent;
        let request = asked.unwrap_or(agent.wake.saturating_add(i64::from(!open)));
        let since = d.first_seen(TimedFact::Waking { attempt, node: node.clone(), request });
        if agent.awake >= request && is_guarded(d, allocation, node) {
            continue;
        }
        if agent.wake < request {
            d.actions.push(Action::Wake { node: node.clone(), value: request });
        }
        let until = after(agent.unanswered_since.unwrap_or(since), AGENT_TIMEOUT);
        if until > d.o.now {
            asleep = true;
            d.requeue_at(until);
        }
    }
    asleep
}

/// Whether the agent of a node has set the guard of its workers: before they have their GPUs, on all GPUs that nobody has.
fn is_guarded(d: &Draft<'_>, allocation: &Allocation, node: &str) -> bool {
    let Some(guard) = allocation.guard_watts else { return true };
    let Some(agent) = d.o.nodes.get(node).and_then(|fact| fact.agent.as_ref()) else { return false };
    let metadata = &d.o.job.metadata;
    let (namespace, job) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    let limited = |index: usize| {
        let pod = names::pod_name(job.unwrap_or_default(), allocation.attempt, index);
        let limit = agent.limits.get(&namespaced_pod_name(namespace.unwrap_or_default(), &pod));
        limit.is_some_and(|watts| *watts <= guard)
    };
    let mut here = (0..allocation.nodes.len()).filter(|index| allocation.nodes[*index] == node);
    agent.sets_limits && here.all(limited)
}

/// A node that has not set the allocation's guard.
fn unguarded(d: &Draft<'_>, allocation: &Allocation) -> Option<String> {
    allocation.nodes.iter().find(|node| !is_guarded(d, allocation, node)).cloned()
}

/// Watches binding and start of the pods.
pub(super) fn watch_start(d: &mut Draft<'_>, allocation: &Allocation, members: &Members<'_>) {
    set_starting(d);
    let now = d.o.now;
    if !members.gang.iter().all(Member::bound) {
        let late = match d.o.workload {
            Some(_) => late::made_is_late(d, allocation, members),
            None => late::is_late(d, allocation),
        };
        if late {
            late::withdraw_unbound(d, members, d.o.policy.placement_timeout);
        } else if late::is_unschedulable(d, allocation, members) {
            late::withdraw_unbound(d, members, late::patience_with_scheduler(d));
        }
        return;
    }
    if let Some(judgement) = late::never_starts(d, allocation, members) {
        return d.stop_judged(&judgement);
    }
    let bound = d.first_seen(TimedFact::Bound { attempt: allocation.attempt });
    let due = after(bound, late::start_limit(d.o));
    if now < due { d.requeue_at(due) } else { late::start_timeout(d, members) }
}
