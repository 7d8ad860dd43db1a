//! A plan's decision for one job, in the lifecycle's types.

use std::collections::BTreeMap;

use andreas_api::Reason;
use andreas_lifecycle::{Guard, Planned};
use andreas_model::{JobId, NodeName};
use andreas_planner::{Decision, Job, JobPlan, Node, Placement, WaitReason};

use crate::snapshot::job_key;

/// The plan's decision for one job in the lifecycle's types, without a guard. A job that waits for a GPU type gets the GPU nodes that are not
/// planned in its message, and one that waits for GPUs those that no autoscaler adds.
pub fn planned_of(
    job_plan: &JobPlan,
    job: &Job,
    (excluded, missing): (Option<&str>, &str),
) -> Option<Planned> {
    match &job_plan.decision {
        Decision::Run(placement) => Some(Planned::Run {
            gpu_type: placement.gpu_type.as_str().to_owned(),
            nodes: placement.nodes.iter().map(|node| node.as_str().to_owned()).collect(),
            gpus_per_worker: i32::try_from(placement.gpus_per_node.0).ok()?,
            limit_watts: placement.limit.map(|watts| watts.0.round() as i32),
            watts: draw(placement, job),
            guard: Guard::default(),
        }),
        Decision::Wait { reason, message, blockers } => {
            let reason = condition_reason(*reason);
            let message = with_blockers(message, blockers, job.namespace.as_str());
            let of_gpus = matches!(
                reason,
                Reason::NoFeasibleGpuType | Reason::NoFeasibleNode | Reason::WaitingForCapacity
            );
            let notes = [
                excluded.filter(|_| reason == Reason::NoFeasibleGpuType),
                Some(missing).filter(|missing| of_gpus && !missing.is_empty()),
            ];
            let said = [Some(message.as_str())].into_iter().chain(notes).flatten();
            Some(Planned::Wait { reason, message: said.collect::<Vec<_>>().join("; ") })
        }
    }
}

/// The condition reason of a planner's wait reason.
fn condition_reason(reason: WaitReason) -> Reason {
    match reason {
        WaitReason::WaitingForCapacity => Reason::WaitingForCapacity,
        WaitReason::DeferredForEnergy => Reason::DeferredForEnergy,
        WaitReason::PowerBudget => Reason::PowerBudget,
        WaitReason::BudgetInfeasible => Reason::BudgetInfeasible,
        WaitReason::NoFeasibleGpuType => Reason::NoFeasibleGpuType,
        WaitReason::NoFeasibleNode => Reason::NoFeasibleNode,
        WaitReason::QuotaExceeded => Reason::QuotaExceeded,
        WaitReason::Preempted => Reason::Preempted,
    }
}

/// Maximum number of blocking jobs that a status names.
const NAMED: usize = 3;

/// The plan's message and the blocking jobs. Jobs of the reader's own namespace are named; others are only
/// counted, because readers of a status may not have access to them.
fn with_blockers(message: &str, blockers: &[JobId], namespace: &str) -> String {
    let mut own = Vec::new();
    let mut others = 0_usize;
    for key in blockers.iter().map(job_key) {
        match key {
            Some(key) if key.namespace == namespace => own.push(key.name),
            _ => others += 1,
        }
    }
    // A longer list is nobody's help; `kubectl andreas explain` has it.
    let more = own.len().saturating_sub(NAMED);
    own.truncate(NAMED);
    if more > 0 {
        own.push(format!("{more} more"));
    }
    match others {
        0 => {}
        1 => own.push("1 job of another namespace".to_owned()),
        n => own.push(format!("{n} jobs of other namespaces")),
    }
    if own.is_empty() { message.to_owned() } else { format!("{message}: {}", own.join(", ")) }
}

/// Draw in the plan: the table's row, less a limit's reduction.
fn draw(placement: &Placement, job: &Job) -> i32 {
    let total = placement.total_gpus();
    let row = job.estimates.iter().find(|row| row.gpu_type == placement.gpu_type && row.gpus == total);
    let limit =
        job.limits.iter().find(|l| l.gpu_type == placement.gpu_type && Some(l.limit) == placement.limit);
    let power_factor = limit.map_or(1.0, |limit| limit.power_factor);
    row.map_or(0, |row| (row.power.0 * power_factor).round().clamp(0.0, f64::from(i32::MAX)) as i32)
}

/// A job's share of what its nodes draw besides their GPUs, W; 0 if it waits.
pub fn host_watts(decision: &Decision, nodes: &BTreeMap<&NodeName, &Node>) -> i32 {
    let Decision::Run(placement) = decision else { return 0 };
    let its = placement.nodes.iter().filter_map(|name| nodes.get(name));
    let watts: f64 = its.map(|node| node.host_share(placement.gpus_per_node).0).sum();
    watts.round().clamp(0.0, f64::from(i32::MAX)) as i32
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn jobs_are_billed_for_their_part_of_their_hosts_and_those_that_fill_one_for_all_of_it() {
        let node = |name: &str| {
            let node = json!({"name": name, "gpu_type": "A", "gpus": 8, "free_gpus": 8, "host_idle": 1_000.0, "host_busy": 1_600.0});
            serde_json::from_value::<Node>(node).expect("a node")
        };
        let nodes = ["n1", "n2"].map(node);
        let nodes: BTreeMap<&NodeName, &Node> = nodes.iter().map(|node| (&node.name, node)).collect();
        let share = |names: &[&str], gpus: u32| {
            let placement = json!({"gpu_type": "A", "nodes": names, "gpus_per_node": gpus});
            let placement: Placement = serde_json::from_value(placement).expect("a placement");
            host_watts(&Decision::Run(placement), &nodes)
        };
        assert_eq!(share(&["n1"], 8), 1_600, "alone on all GPUs");
        assert_eq!([1, 2, 5].map(|gpus| share(&["n1"], gpus)).iter().sum::<i32>(), 1_600, "three fill it");
        assert_eq!(share(&["n1"], 4), 800, "half of it is held");
        assert_eq!(share(&["n1", "n2"], 4), 1_600, "half of each of two");
        assert_eq!(share(&["gone"], 4), 0);
        // Six of eight are broken, and the device plug-in does not offer them: they are nobody's.
        let broken = json!({"name": "n3", "gpu_type": "A", "gpus": 2, "boards": 8, "free_gpus": 2, "host_busy": 1_600.0});
        let broken: Node = serde_json::from_value(broken).expect("a node");
        let placement = json!({"gpu_type": "A", "nodes": ["n3"], "gpus_per_node": 2});
        let placement: Placement = serde_json::from_value(placement).expect("a placement");
        let nodes = BTreeMap::from([(&broken.name, &broken)]);
        assert_eq!(host_watts(&Decision::Run(placement), &nodes), 400);
    }

    #[test]
    fn jobs_of_other_namespaces_are_counted_and_not_named() {
        let blockers: Vec<JobId> =
            ["team-a/one", "team-b/secret", "team-c/merger", "team-a/two"].map(JobId::new).into();
        assert_eq!(
            with_blockers("other jobs hold what it needs", &blockers, "team-a"),
            "other jobs hold what it needs: one, two, 2 jobs of other namespaces"
        );
        assert_eq!(with_blockers("wait", &blockers[1..2], "team-a"), "wait: 1 job of another namespace");
        assert_eq!(with_blockers("wait", &[], "team-a"), "wait");
        let many: Vec<JobId> = (0..8).map(|n| JobId::new(format!("team-a/{n}"))).collect();
        assert_eq!(with_blockers("wait", &many, "team-a"), "wait: 0, 1, 2, 5 more");
    }

    #[test]
    fn every_reason_of_the_planner_is_a_condition_reason_of_the_same_name() {
        for reason in WaitReason::ALL {
            assert_eq!(condition_reason(reason).as_str(), reason.as_str());
        }
    }
}
