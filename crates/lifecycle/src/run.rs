//! A running attempt: its start, and what ends it early.

use andreas_api::gpu_node::namespaced_pod_name;
use andreas_api::phase::condition;
use andreas_api::training_job::Allocation;
use andreas_api::{Outcome, Phase, Reason};
use andreas_cluster::instants::{self, CLOCK_SKEW, after};
use jiff::Timestamp;

use super::draft::Draft;
use super::first_seen::TimedFact;
use super::judge::{Case, Judgement};
use super::kubelet;
use super::member::{Member, Members};
use super::observed::Planned;
use super::readiness::{self, Readiness};
use super::status::{self, ConditionValue, allocation_text, duration_text};
use super::stop;

/// Seconds that members may run after the first of their gang has finished.
const FINISHED_APART: i64 = 600;
/// Seconds between two questions for the Events of pods that have ended.
const ASK_AGAIN: i64 = 2;
/// Seconds without a report before the status says so.
const FIRST_REPORT: i64 = 600;

/// Marks the attempt running: all members run.
pub(super) fn begin(d: &mut Draft<'_>, started: Timestamp, bound: Option<Timestamp>) {
    let now = d.o.now;
    let Some(allocation) = &mut d.status.allocation else { return };
    // Container starts use the node's clock. Bound it: after the pods were bound and not later than now.
    let earliest = bound.map_or(allocation.since.0, |bound| bound.max(allocation.since.0));
    let can_be = (after(earliest, -CLOCK_SKEW)..=after(now, CLOCK_SKEW)).contains(&started);
    let started = if can_be { started.clamp(earliest.min(now), now) } else { now };
    let started = instants::time(started.max(allocation.since.0));
    allocation.running_time = Some(started.clone());
    if allocation.bound_time.is_none() {
        allocation.bound_time = bound.map(instants::time);
    }
    let text = allocation_text(allocation);
    let nodes = allocation.nodes.clone();
    d.status.excluded_nodes.retain(|a| !nodes.contains(&a.node));
    d.status.start_time.get_or_insert(started);
    d.status.phase = Phase::Running;
    d.status.reason = None;
    d.set_condition(condition::SCHEDULED, ConditionValue::True, Reason::AsExpected, &text);
    d.set_condition(
        condition::RUNNING,
        ConditionValue::True,
        Reason::Running,
        &format!("all workers run: {text}"),
    );
    d.event(false, Reason::Running, format!("runs: {text}"));
}

/// Handles the phase Running.
pub(super) fn running(d: &mut Draft<'_>) {
    let Some(allocation) = d.allocation() else { return d.lose_allocation() };
    let members = Members::new(d.o, Some(&allocation));
    let case = Case { o: d.o, allocation: &allocation, members: &members, stop: None, known_bound: true };
    if let Some(judgement) = case.judge() {
        return d.stop_judged(&judgement);
    }
    if let Some(until) = case.events_until() {
        d.requeue_at(until.min(after(d.o.now, ASK_AGAIN)));
        return;
    }
    for member in members.gang.iter().filter(|member| member.pod().is_none()) {
        d.requeue_at(case.missing_until(member));
    }
    if stop::stop_for_user(d, &allocation) || stop::stop_for_plan(d, &allocation) {
        return;
    }
    let timed_out = doubled(d, &members)
        .or_else(|| max_run_time(d, &allocation))
        .or_else(|| progress_timeout(d, &allocation, &members))
        .or_else(|| finished_apart(d, &members));
    if let Some(judgement) = timed_out {
        return d.stop_judged(&judgement);
    }
    if readiness::check(d, &allocation, &members) == Readiness::GivenUp {
        return;
    }
    limit(d);
    progress_unknown(d, &allocation);
}

/// The end of a gang with a GPU that its kubelet gave to another pod too: each takes the other one's memory and time.
pub(super) fn doubled(d: &Draft<'_>, members: &Members<'_>) -> Option<Judgement> {
    let gives_way = |member: &&Member<'_>| {
        let metadata = member.pod().map(|pod| &pod.metadata);
        let name = metadata.and_then(|of| Some((of.namespace.as_deref()?, of.name.as_deref()?)));
        let agent = d.o.nodes.get(member.node).and_then(|fact| fact.agent.as_ref());
        name.zip(agent).is_some_and(|((namespace, name), agent)| {
            agent.doubled.contains(&namespaced_pod_name(namespace, name))
        })
    };
    let member = members.gang.iter().find(gives_way)?;
    let message =
        format!("the kubelet of {} gave a GPU of worker {} to another pod too", member.node, member.index);
    let judgement = Judgement::new(Outcome::ClusterFailure, Reason::ClusterFailure, message);
    Some(judgement.explained(true).excluding(member.node))
}

/// The plan keeps the GPUs and changes their power limit: no restart, no new generation.
pub(super) fn limit(d: &mut Draft<'_>) {
    let Some(Planned::Run { limit_watts, watts, guard, .. }) = d.decision().cloned() else { return };
    let Some(allocation) = &mut d.status.allocation else { return };
    let limit = limit_watts.filter(|w| *w >= 1);
    if limit != allocation.power_limit_watts {
        allocation.power_limit_watts = limit;
        allocation.limit_changed |= allocation.running_time.is_some();
        allocation.watts = watts.max(0);
    }
    // A guard is raised or lifted; what started without one has none.
    let before = (allocation.guard_watts, allocation.guard_reached);
    allocation.guard_watts = allocation.guard_watts.zip(guard.watts).map(|(old, new)| old.max(new));
    allocation.guard_reached |= guard.reached;
    if before == (allocation.guard_watts, allocation.guard_reached) || !allocation.guard_reached {
        return;
    }
    let text = match allocation.guard_watts {
        Some(watts) => {
            format!("all workers run, held back by a power limit of {watts} W until the budget has more")
        }
        None => "all workers run, no longer held back by a power limit".to_owned(),
    };
    d.set_condition(condition::RUNNING, ConditionValue::True, Reason::Running, &text);
}

fn running_since(allocation: &Allocation) -> Timestamp {
    allocation.running_time.as_ref().unwrap_or(&allocation.since).0
}

fn max_run_time(d: &mut Draft<'_>, allocation: &Allocation) -> Option<Judgement> {
    let seconds = d.o.job.spec.max_run_time.as_ref()?.seconds()?;
    let due = after(running_since(allocation), seconds);
    if d.o.now < due {
        d.requeue_at(due);
        return None;
    }
    let message = format!("ran longer than maxRunTime {}", duration_text(seconds));
    Some(Judgement::new(Outcome::UserFailure, Reason::MaxRunTime, message))
}

fn progress_timeout(d: &mut Draft<'_>, allocation: &Allocation, members: &Members<'_>) -> Option<Judgement> {
    let seconds = d.o.job.spec.progress_timeout.as_ref()?.seconds()?;
    // Reports from an unreachable node cannot arrive.
    if members.gang.iter().any(|m| d.o.nodes.get(m.node).is_none_or(|f| !f.ready)) {
        return None;
    }
    let reported = d.status.progress.as_ref().filter(|p| p.attempt == allocation.attempt).map(|p| p.at.0);
    // Reports that may have been rejected do not count against a program.
    let reported = reported.map(|at| at.min(d.o.now));
    let running = d.first_seen(TimedFact::Running { attempt: allocation.attempt });
    // What was sent while a node was cut off is lost, and the next report may take a whole time-out.
    let ready = members.gang.iter().map(|m| d.o.readiness_seen(m.node)).max();
    let last = [Some(running), reported, d.o.last_progress, d.o.reports_lost, ready];
    let last = last.into_iter().flatten().max()?;
    let due = after(last, seconds);
    if d.o.now < due {
        d.requeue_at(due);
        return None;
    }
    let message = format!("no progress for {}", duration_text(seconds));
    Some(Judgement::new(Outcome::UserFailure, Reason::ProgressTimeout, message))
}

/// One member has finished while others wait for it forever.
fn finished_apart(d: &mut Draft<'_>, members: &Members<'_>) -> Option<Judgement> {
    let container = d.o.training_container();
    let ending =
        |m: &Member<'_>| m.ending(container).map(|e| (m.index, e.at.unwrap_or(Timestamp::UNIX_EPOCH)));
    let (index, _) = members.gang.iter().filter_map(ending).min_by_key(|(_, at)| *at)?;
    let others: Vec<&Member<'_>> = members.gang.iter().filter(|m| m.ending(container).is_none()).collect();
    // An end on a node that is cut off cannot be seen.
    if others.is_empty() || others.iter().any(|m| d.o.nodes.get(m.node).is_none_or(|f| !f.ready)) {
        return None;
    }
    let ended = members.gang.iter().filter(|m| m.ending(container).is_some());
    let first = ended.map(|m| kubelet::end_seen(d.o, d.status.attempts, m)).min()?;
    let ready = others.iter().map(|m| d.o.readiness_seen(m.node)).max();
    let due = after(ready.map_or(first, |ready| ready.max(first)), FINISHED_APART);
    if d.o.now < due {
        d.requeue_at(due);
        return None;
    }
    let message = format!(
        "worker {index} finished, {} of {} still ran {} later",
        others.len(),
        members.gang.len(),
        duration_text(FINISHED_APART)
    );
    Some(Judgement::new(Outcome::UserFailure, Reason::ContainerFailed, message))
}

/// Sets the condition for an attempt without reports. Until then it is `True` from the start of the attempt on: another write for the
/// first report would be one more for each attempt.
pub(super) fn progress_unknown(d: &mut Draft<'_>, allocation: &Allocation) {
    let reported = d.status.progress.as_ref().is_some_and(|p| p.attempt == allocation.attempt);
    let shown = status::condition(&d.status.conditions, condition::PROGRESSING)
        .is_some_and(|c| c.reason == Reason::ProgressUnknown.as_str());
    if reported {
        if shown {
            d.set_condition(
                condition::PROGRESSING,
                ConditionValue::True,
                Reason::AsExpected,
                "progress is reported",
            );
        }
        return;
    }
    let due = after(running_since(allocation), FIRST_REPORT);
    if d.o.now < due {
        return d.requeue_at(due);
    }
    let message = format!(
        "no progress reported {} after the start; time elapsed over time predicted is taken instead",
        duration_text(FIRST_REPORT)
    );
    d.set_condition(condition::PROGRESSING, ConditionValue::Unknown, Reason::ProgressUnknown, &message);
}
