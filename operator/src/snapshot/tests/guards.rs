//! Given agents that set power limits; when jobs are planned; then a run counts for its guard until it is measured.

use andreas_lifecycle::{Guard, Planned};
use andreas_planner::Options;

use super::*;
use crate::planning::record;

/// A program that drew `watts` per GPU in a short run, and a job of it on all GPUs of a node. `budget`: for GPUs and node, W.
fn world(status: Value, watts: i64, budget: i64) -> World {
    let mut world = World::default();
    let board =
        json!({"name": GPU, "idleWatts": 50, "maxWatts": 400, "hostIdleWatts": 100, "hostBusyWatts": 200});
    world
        .node("n1", json!({}), json!({}))
        .policy(json!({"powerBudget": {"watts": budget}, "gpuTypes": [board]}));
    let seen = json!({"observations": [{"run": "x-1", "gpuType": GPU, "gpus": 8, "nodes": 1, "millisPerEpoch": 60_000,
        "milliEpochs": 3_000, "watts": 8 * watts, "at": at(0)}]});
    let profile: SlimTrainingProfile = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "team", "resourceVersion": world.version()}, "spec": {}, "status": seen}))
    .expect("a profile");
    world.index.apply(profile);
    let claim = if status.is_null() { waiting() } else { Claim::Running { since: at(20) } };
    world.job("a", json!({"gpus": {"min": 8, "max": 8}, "profileRef": {"name": "a"}}), status, claim);
    world.drawing(60);
    world
}

/// It runs on all GPUs, and its first step was reported at `first`.
fn runs(guard: i32, first: i64) -> Value {
    let mut status = holds(1, "n1", 8);
    status["allocation"]["guardWatts"] = guard.into();
    status["progress"] = json!({"milliPercent": 2_000, "attempt": 1, "at": at(first), "first": {"at": at(first), "milliPercent": 1_000}});
    status
}

impl World {
    /// The agent reports that draw of each GPU.
    fn drawing(&mut self, watts: i64) -> &mut Self {
        let holds = self
            .index
            .jobs()
            .iter()
            .any(|(_, job)| job.status.as_ref().is_some_and(|s| s.allocation.is_some()));
        if holds {
            self.pod("a", 1, "n1", 8, "Running");
        }
        let gpu = |n: i32| {
            let mut gpu = json!({"uuid": format!("GPU-{n}"), "state": "Free", "watts": watts, "minLimitWatts": 100, "maxLimitWatts": 400});
            if holds {
                (gpu["state"], gpu["holder"]) = (json!("Held"), json!("team/a-1-0"));
            }
            gpu
        };
        self.agent("n1", (0..8).map(gpu).collect());
        self
    }

    /// What all its GPUs count for, and the guard that the plan gives it.
    fn planned(&mut self) -> (f64, Option<Guard>) {
        let mut ledger = self.ledger.take().expect("a ledger");
        let built = build(&self.index, &ledger, &mut Caches::default(), None, at(200));
        let plan = andreas_planner::plan(&built.snapshot, &Options::default()).expect("a plan");
        record(&self.index, &mut ledger, &built, &plan);
        let decision = ledger.get(&key("a")).and_then(|memory| memory.plan().decision.clone());
        self.ledger = Some(ledger);
        let counts =
            built.snapshot.jobs[0].estimates.iter().find(|row| row.gpus.0 == 8).and_then(|row| row.draw);
        let guard = decision.and_then(|decision| match decision.planned {
            Planned::Run { guard, .. } => Some(guard),
            Planned::Wait { .. } => None,
        });
        (counts.expect("a bound").0, guard)
    }
}

/// A budget that allows these watts: it has a margin of 5 %.
fn budget(watts: i64) -> i64 {
    watts * 100 / 95 + 1
}

fn guard(watts: i32) -> Option<Guard> {
    Some(Guard { watts: Some(watts), reached: false })
}

#[test]
fn a_start_counts_for_its_guard_where_agents_set_limits_and_power_is_limited() {
    let (counts, first) = world(json!(null), 220, 100_000).planned();
    let watts = first.and_then(|guard| guard.watts).expect("a guard");
    assert!((225..=300).contains(&watts) && watts % 5 == 0, "{watts}");
    assert_eq!(counts, 8.0 * f64::from(watts));
    // The boards' maximum does not fit, and this does.
    let (_, fits) = world(json!(null), 220, budget(8 * i64::from(watts) + 200)).planned();
    assert_eq!(fits, first);
    let none = Some(Guard::default());
    let mut world = world(json!(null), 220, 100_000);
    world.policy(json!({"powerBudget": {"watts": 100_000}, "limits": "Off"}));
    assert_eq!(world.planned(), (3_200.0, none), "the administrator wants none");
    world.policy(json!({}));
    assert_eq!(world.planned().1, none, "nothing is limited");
    world.policy(json!({"powerBudget": {"watts": 100_000}}));
    world.node("n2", json!({}), json!({}));
    assert_eq!(world.planned(), (3_200.0, none), "no agent on the other node of that type");
}

#[test]
fn a_guard_that_holds_a_run_back_is_raised_as_far_as_the_budget_has_room() {
    let reached = |watts: Option<i32>| Some(Guard { watts, reached: true });
    let mut held_back = world(runs(240, 150), 220, 100_000);
    assert_eq!(held_back.drawing(200).planned(), (1_920.0, guard(240)), "it draws less");
    assert_eq!(held_back.drawing(236).planned(), (1_920.0, reached(Some(300))));
    let mut full = world(runs(240, 150), 220, budget(1_920 + 200 + 400));
    assert_eq!(full.drawing(236).planned(), (1_920.0, reached(Some(240))), "400 W are left");
    full.policy(json!({"powerBudget": {"watts": 100_000}, "limits": "Off"}));
    assert_eq!(full.planned().1.and_then(|guard| guard.watts), None, "the administrator wants none any more");
    let mut last = world(runs(340, 150), 220, 100_000);
    assert_eq!(last.drawing(339).planned(), (2_720.0, reached(None)));
    // Measured profiles draw little, and it may draw the boards' maximum until it is measured.
    let mut status = runs(340, 150);
    status["allocation"].as_object_mut().expect("an object").remove("guardWatts");
    status["allocation"]["guardReached"] = true.into();
    let mut lifted = world(status, 220, 100_000);
    for name in ["f1", "f2", "f3"] {
        lifted.profile(name, json!({"observations": [{"run": "x-1", "gpuType": GPU, "gpus": 4, "nodes": 1, "millisPerEpoch": 60_000,
            "milliEpochs": 20_000, "watts": 800, "at": at(0)}]}));
    }
    assert_eq!(lifted.drawing(390).planned().0, 3_200.0);
}

#[test]
fn a_guard_is_lifted_once_the_run_is_measured_and_draws_less() {
    assert_eq!(world(runs(240, 81), 220, 100_000).drawing(200).planned().1, guard(240), "too young");
    let mut settled = world(runs(240, 80), 220, 100_000);
    let (counts, lifted) = settled.drawing(200).planned();
    assert!((counts - 8.0 * 200.0 * 1.1).abs() < 1e-6 && lifted == Some(Guard::default()));
    // Its measurement with the margin is above its guard: it counts for that while nobody has the watts to lift it.
    let mut close = world(runs(240, 80), 220, budget(1_920 + 200 + 50));
    assert_eq!(close.drawing(226).planned(), (1_920.0, guard(240)));
    let mut room = world(runs(240, 80), 220, budget(1_920 + 200 + 100));
    assert_eq!(room.drawing(226).planned(), (1_920.0, Some(Guard::default())));
}
