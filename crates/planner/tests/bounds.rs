//! The bound of a step is never above the cost, whatever GPUs of a node a plan leaves unused.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod scenarios;

use std::collections::BTreeSet;

use andreas_model::{Joules, Seconds, StepFunction, Watts};
use andreas_planner::{MethodName, NodePower, NodeSleep, Options, Plan, PowerBudget, Snapshot, plan};
use scenarios::{bin_packing, budget, over_two_nodes};

fn decide(snapshot: &Snapshot, method: MethodName) -> Plan {
    let plan = plan(snapshot, &Options { method, ..Options::default() }).unwrap();
    assert!(!plan.bound_invalid, "the bound is above {}", plan.cost);
    plan
}

#[test]
fn numbers_of_gpus_that_leave_some_unused_have_a_bound() {
    // Given jobs of 3 GPUs on nodes of 4, of 5 on 8, and mixtures, then `decide` finds no bound above the cost,
    let cases =
        [(20, 4, 40, vec![3]), (10, 8, 30, vec![5]), (10, 8, 40, vec![3, 5, 6]), (10, 8, 20, vec![5, 8])];
    for (nodes, size, jobs, sizes) in cases {
        let plan = decide(&bin_packing(nodes, size, jobs, &sizes), MethodName::RandomizedGreedy);
        // and all nodes are used.
        let (gap, missed) = (plan.gap.unwrap(), plan.missed_saving.unwrap());
        let used: BTreeSet<_> =
            plan.jobs.values().filter_map(|job| job.decision.placement()).flat_map(|at| &at.nodes).collect();
        assert_eq!(used.len(), nodes, "{sizes:?} on {size}: gap {gap}, missed {missed}");
    }
}

#[test]
fn gangs_that_leave_some_gpus_of_their_nodes_unused_have_a_bound() {
    // Given gangs over two nodes with 6 of 8 GPUs on each, then `decide` finds no bound above the cost.
    let plan = decide(&over_two_nodes(bin_packing(10, 8, 20, &[6])), MethodName::RandomizedGreedy);
    let placed: Vec<_> = plan.jobs.values().filter_map(|job| job.decision.placement()).collect();
    assert!(plan.gap.is_some() && !placed.is_empty());
    assert!(placed.iter().all(|place| place.nodes.len() == 2 && place.gpus_per_node.0 == 6), "{placed:?}");
}

#[test]
fn hosts_that_a_plan_opens_are_in_the_bound_under_a_budget() {
    // Given a budget of a part of the peak on hosts that draw much themselves,
    for (part, overhead) in [(0.6, 300.0), (0.35, 1500.0)] {
        let mut snapshot = bin_packing(10, 8, 40, &[1, 2, 4, 8]);
        snapshot.nodes.iter_mut().for_each(|node| node.host_busy = Watts(overhead));
        let peak = 10.0 * (8.0 * 300.0 + overhead);
        snapshot.budget = Some(PowerBudget {
            watts: StepFunction::flat(Watts(part * peak)),
            margin: 0.0,
            scope_factor: 1.0,
        });
        // then `decide` finds no bound above the cost.
        let plan = decide(&snapshot, MethodName::RandomizedGreedy);
        assert!(plan.gap.is_some(), "{part} of the peak");
    }
}

#[test]
fn hosts_that_may_sleep_are_in_the_bound_for_what_a_job_adds_to_the_draw() {
    // Given nodes that may sleep: a job is billed for the whole host, and adds 600 W to what it draws already.
    let mut snapshot = bin_packing(10, 8, 40, &[1, 2, 4, 8]);
    for node in &mut snapshot.nodes {
        (node.host_idle, node.host_busy) = (Watts(1000.0), Watts(1600.0));
        let (wake, wake_energy) = (Seconds(600.0), Joules::ZERO);
        node.sleep = Some(NodeSleep { state: NodePower::On, wake, wake_energy });
    }
    // Under a budget of a part of what all jobs could add, then `decide` finds no bound above the cost.
    let floor = 10.0 * (1000.0 + 8.0 * 50.0);
    snapshot.budget = budget(floor + 0.35 * 10.0 * (8.0 * 250.0 + 600.0));
    assert!(decide(&snapshot, MethodName::RandomizedGreedy).gap.is_some());
}
