//! A start that waits for others, from plan to plan.

use andreas_api::Reason;
use andreas_planner::{Options, Plan};

use super::*;
use crate::ledger::JobMemory;
use crate::planning::record;

/// Plans, and records the decisions.
fn plan(world: &mut World) -> Plan {
    let mut ledger = world.ledger.take().expect("a ledger");
    let built = build(&world.index, &ledger, &mut Caches::default(), None, at(100));
    let plan = andreas_planner::plan(&built.snapshot, &Options::default()).expect("a plan");
    record(&world.index, &mut ledger, &built, &plan);
    world.ledger = Some(ledger);
    plan
}

fn memory<'a>(world: &'a mut World, job: &str) -> &'a mut JobMemory {
    world.ledger.as_mut().expect("a ledger").entry(&key(job), job)
}

fn after(world: &mut World) -> Vec<(ObjectKey, i64)> {
    memory(world, "heavy").plan().after.clone()
}

fn heavy_goes_to(world: &mut World) -> Option<Vec<String>> {
    memory(world, "heavy").target().map(|target| target.nodes.clone())
}

/// `light` runs on n1. `heavy` is to run on n2, whose GPUs are free; the budget is enough for one of the two.
fn two() -> World {
    let mut world = World::default();
    let checkpoint = json!({"path": "/c", "graceSeconds": 3_600});
    let light = json!({"profileRef": {"name": "known"}, "epochs": 100_000, "weight": 1, "gpus": {"min": 8}, "checkpoint": checkpoint});
    let on_n2 = json!({"spec": {"nodeSelector": {"zone": "b"}}});
    let heavy = json!({"profileRef": {"name": "known"}, "epochs": 100, "weight": 1_000, "gpus": {"min": 8}, "deadlineAfter": "1m", "template": on_n2});
    let board =
        json!({"name": GPU, "idleWatts": 50, "maxWatts": 400, "hostIdleWatts": 100, "hostBusyWatts": 200});
    world
        .policy(json!({"preemption": {"minRunTime": "1s", "restartTime": "60s"}, "powerBudget": {"watts": 5_500, "marginPercent": 0}, "gpuTypes": [board]}))
        .node("n1", json!({}), json!({}))
        .node("n2", json!({"zone": "b"}), json!({}))
        .profile("known", json!(null))
        .job("light", light, holds(1, "n1", 8), Claim::Running { since: at(20) })
        .pod("light", 1, "n1", 8, "Running")
        .job("heavy", heavy, json!(null), waiting());
    world
}

fn stopping(gone_by: Option<Timestamp>) -> Claim {
    Claim::Stopping { gone_by, goes_on: true }
}

#[test]
fn a_start_waits_for_watts_until_the_other_has_left() {
    let mut world = two();
    let light = [(key("light"), 1)];
    plan(&mut world);
    assert_eq!(after(&mut world), light);
    // The other one is not told yet, and then it is told and has an hour to save its state.
    plan(&mut world);
    assert_eq!(after(&mut world), light);
    memory(&mut world, "light").set_claim(stopping(Some(at(3_700))));
    for _ in 0..2 {
        let plan = plan(&mut world);
        assert_eq!(after(&mut world), light);
        assert_eq!(heavy_goes_to(&mut world), Some(vec!["n2".to_owned()]));
        let allowed = plan.allowed_power.expect("a budget");
        assert!(plan.budgeted_power <= allowed, "{} of {allowed}", plan.budgeted_power);
    }
    // When it has left, nobody is in the way.
    let status = json!({"phase": "Pending", "decisions": 5});
    world.job(
        "light",
        json!({"profileRef": {"name": "known"}, "gpus": {"min": 8}, "weight": 1}),
        status,
        waiting(),
    );
    world.pod("light", 1, "n1", 8, "Succeeded");
    plan(&mut world);
    assert!(after(&mut world).is_empty());
}

#[test]
fn a_job_whose_allocation_is_being_written_is_waited_for() {
    let mut world = two();
    // The API server has not answered yet: no object says that it holds its GPUs.
    let status = holds(1, "n1", 8);
    let light = Claim::Running { since: at(20) };
    world.job(
        "light",
        json!({"profileRef": {"name": "known"}, "epochs": 100_000, "weight": 1, "gpus": {"min": 8}}),
        json!(null),
        light,
    );
    memory(&mut world, "light").begin_write(serde_json::from_value(status).expect("a status"));
    plan(&mut world);
    assert_eq!(after(&mut world), [(key("light"), 1)]);
}

#[test]
fn a_target_is_given_up_when_the_job_in_its_way_falls_silent() {
    for gone_by in [None, Some(at(30))] {
        let mut world = two();
        plan(&mut world);
        assert!(heavy_goes_to(&mut world).is_some());
        // Its node does not answer, or its end is overdue.
        memory(&mut world, "light").set_claim(stopping(gone_by));
        for _ in 0..2 {
            plan(&mut world);
            assert_eq!((heavy_goes_to(&mut world), after(&mut world)), (None, Vec::new()), "{gone_by:?}");
        }
        let decision = memory(&mut world, "heavy").plan().decision.clone();
        let waits = matches!(
            decision.map(|d| d.planned),
            Some(andreas_lifecycle::Planned::Wait { reason: Reason::PowerBudget, .. })
        );
        assert!(waits, "{gone_by:?}");
    }
}

#[test]
fn a_new_leader_starts_nobody_beside_a_job_that_leaves() {
    let mut world = two();
    plan(&mut world);
    // It knows the objects only: one job stops, and one waits.
    let mut status = holds(1, "n1", 8);
    status["phase"] = "Stopping".into();
    let light = json!({"profileRef": {"name": "known"}, "epochs": 100_000, "weight": 1, "gpus": {"min": 8}});
    world.ledger = None;
    world.job("light", light, status, stopping(Some(at(3_700))));
    memory(&mut world, "heavy").set_claim(waiting());
    plan(&mut world);
    let starts = matches!(
        memory(&mut world, "heavy").plan().decision.clone().map(|d| d.planned),
        Some(andreas_lifecycle::Planned::Run { .. })
    );
    assert!(!starts || !after(&mut world).is_empty());
}

#[test]
fn a_step_that_starts_a_job_counts_as_a_start_in_the_next_plan() {
    let mut world = two();
    plan(&mut world);
    memory(&mut world, "light").set_claim(waiting());
    let promised = |world: &mut World| {
        world.snapshot().jobs.iter().find(|job| job.id.as_str() == "team/heavy").map(|job| job.promised)
    };
    assert_eq!(promised(&mut world), Some(true));
    let decision = memory(&mut world, "heavy").plan().decision.clone();
    memory(&mut world, "heavy").reserve(decision.as_ref(), at(100));
    assert_eq!(promised(&mut world), Some(false), "its allocation may be written already");
    memory(&mut world, "heavy").release_unused();
    assert_eq!(promised(&mut world), Some(true), "the step did not use it");
    assert!(heavy_goes_to(&mut world).is_some());
}
