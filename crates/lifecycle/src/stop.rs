//! Stopping: its causes, and its course until the pods have ended.

use andreas_api::training_job::Allocation;
use andreas_api::{Outcome, Reason};
use andreas_cluster::instants::after;
use jiff::Timestamp;

use super::action::DeleteReason;
use super::draft::Draft;
use super::first_seen::TimedFact;
use super::judge::Case;
use super::member::{Member, Members, is_over};
use super::observed::Planned;
use super::{end, readiness};

/// Seconds that the kubelet has for the last phase of a pod whose containers have ended.
const LAST_PHASE_TIMEOUT: i64 = 10;

/// Stops the attempt if the user suspended the job or no longer allows its allocation.
pub(super) fn stop_for_user(d: &mut Draft<'_>, allocation: &Allocation) -> bool {
    if d.o.job.spec.suspend {
        d.ask_to_stop(Reason::Suspended, "held by spec.suspend");
        return true;
    }
    if let Err(why) = d.o.allows(allocation.gpus, &allocation.gpu_type, &allocation.nodes) {
        d.ask_to_stop(Reason::Stopping, format!("{why} any more; will be planned again"));
        return true;
    }
    false
}

/// Stops the attempt if the plan withdraws the GPUs or has a better placement.
pub(super) fn stop_for_plan(d: &mut Draft<'_>, allocation: &Allocation) -> bool {
    match d.decision().cloned() {
        None => false,
        Some(planned) if planned.runs_on(&allocation.nodes, allocation.gpus_per_worker) => false,
        Some(Planned::Run { gpu_type, nodes, gpus_per_worker, .. }) => {
            let to = nodes.join(", ");
            d.ask_to_stop_for_plan(
                Reason::Stopping,
                if nodes.len() == 1 {
                    format!("moves to {gpus_per_worker} x {gpu_type} on {to}")
                } else {
                    format!("moves to {gpus_per_worker} x {gpu_type} on each of {to}")
                },
            );
            true
        }
        Some(Planned::Wait { reason, message }) => {
            // Capacity is never the reason to stop: another job got the GPUs.
            let reason = match reason {
                Reason::PowerBudget | Reason::BudgetInfeasible | Reason::DeferredForEnergy => reason,
                _ => Reason::Preempted,
            };
            d.ask_to_stop_for_plan(reason, message);
            true
        }
    }
}

/// Until when a pod whose containers have all ended is left alone: its last phase comes by itself, and a deletion would take
/// its logs. `None` if a container of it may still run.
fn kept_until(d: &mut Draft<'_>, member: &Member<'_>, attempt: i64) -> Option<Timestamp> {
    let fact = TimedFact::ContainersEnded { attempt, index: member.index };
    member.containers_ended().then(|| after(d.first_seen(fact), LAST_PHASE_TIMEOUT))
}

/// Handles the phase Stopping.
pub(super) fn stopping(d: &mut Draft<'_>) {
    let (Some(allocation), Some(stop)) = (d.allocation(), d.status.stop.clone()) else {
        return d.lose_allocation();
    };
    let members = Members::new(d.o, Some(&allocation));
    let known_bound = allocation.bound_time.is_some() || allocation.running_time.is_some();
    let case = Case { o: d.o, allocation: &allocation, members: &members, stop: Some(&stop), known_bound };
    let container = d.o.training_container();
    for member in &members.gang {
        if let Some(pod) = member.live.filter(|p| !is_over(p)) {
            if let Some(until) = kept_until(d, member, allocation.attempt).filter(|until| *until > d.o.now) {
                d.requeue_at(until);
                continue;
            }
            let left_over = member.ending(container).is_some();
            d.delete(pod, if left_over { DeleteReason::Leftover } else { DeleteReason::Stop });
        }
        if let Some(until) = member.busy_until(d.o, known_bound, stop.since.0) {
            d.requeue_at(until);
        }
    }
    if case.all_ended() {
        let mut judgement = case.judge().unwrap_or_else(|| case.stopped(&stop));
        if stop.outcome == Some(Outcome::UserFailure) {
            // If it is the cluster's after all, it has not been counted.
            judgement = d.limit_unexplained(judgement);
        }
        return end::close_attempt(d, &allocation, &members, &judgement);
    }
    readiness::check(d, &allocation, &members);
}
