//! Stopping: its causes, and its course until the pods have ended.

use andreas_api::Reason;
use andreas_api::slim::SlimPod;
use andreas_api::training_job::Allocation;
use jiff::Timestamp;

use super::action::DeleteReason;
use super::draft::Draft;
use super::judge::Case;
use super::member::{Members, is_over};
use super::observed::{Observed, Planned};
use super::{end, run, start};
use crate::instants::after;

/// The user suspended the job or no longer allows its allocation.
pub(super) fn asked_by_user(d: &mut Draft<'_>, allocation: &Allocation) -> bool {
    let spec = &d.o.job.spec;
    if spec.suspend {
        d.ask_to_stop(Reason::Suspended, "held by spec.suspend");
        return true;
    }
    let fits = start::allowed(&spec.gpus, allocation.gpus, &allocation.gpu_type, &allocation.nodes, d.o);
    if let Err(why) = fits {
        d.ask_to_stop(Reason::Stopping, format!("{why} any more; will be planned again"));
        return true;
    }
    false
}

/// The plan withdraws the GPUs or has a better placement.
pub(super) fn asked_by_plan(d: &mut Draft<'_>, allocation: &Allocation) -> bool {
    match d.decision().cloned() {
        None => false,
        Some(planned) if planned.runs_on(&allocation.nodes, allocation.gpus_per_worker) => false,
        Some(Planned::Run { gpu_type, nodes, gpus_per_worker, .. }) => {
            let to = nodes.join(", ");
            d.ask_to_stop(
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
            d.ask_to_stop(reason, message);
            true
        }
    }
}

/// A job on an unreachable node may restart elsewhere: the policy allows it, and two concurrent attempts
/// would not corrupt its checkpoint.
pub(super) fn may_restart(o: &Observed<'_>) -> bool {
    o.policy.node_loss_restart && !o.job.spec.checkpoint.as_ref().is_some_and(|c| c.exclusive)
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

/// Handles the phase Stopping.
pub(super) fn stopping(d: &mut Draft<'_>) {
    let (Some(allocation), Some(stop)) = (d.allocation(), d.status.stop.clone()) else {
        return start::lost_allocation(d);
    };
    let members = Members::of(d.o, Some(&allocation));
    let known_bound = allocation.bound_time.is_some() || allocation.running_time.is_some();
    let case = Case { o: d.o, allocation: &allocation, members: &members, stop: Some(&stop), known_bound };
    let container = d.o.training_container();
    for member in &members.gang {
        if let Some(pod) = member.live.filter(|p| !is_over(p)) {
            let left_over = member.ending(container).is_some();
            d.delete(pod, if left_over { DeleteReason::Leftover } else { DeleteReason::Stop });
        }
        if let Some(until) = member.busy_until(d.o, known_bound, stop.since.0) {
            d.requeue_at(until);
        }
    }
    if case.all_ended() {
        let judgement = case.judge().unwrap_or_else(|| case.stopped(&stop));
        return end::conclude(d, &allocation, &members, &judgement);
    }
    run::check_readiness(d, &allocation, &members);
}
