//! Given a job whose `spec` was edited; when it is stepped; then a plan is asked for, and the end of a run is not late.

use andreas_api::slim::{SlimNode, SlimPod};
use andreas_lifecycle::{Claim, DecisionFor, Planned};
use futures::FutureExt;

use super::*;
use crate::executor::rate_limits::Edit;

#[tokio::test]
async fn an_edit_asks_for_a_plan_and_other_writes_of_a_waiting_job_do_not() {
    let waits = || Claim::Waiting { not_before: None };
    for (phase, observed, generation, claim, asked) in [
        ("Pending", json!(1), 2, waits(), true),
        // No plan has a job that is held.
        ("Suspended", json!(1), 2, Claim::Nothing, false),
        ("Pending", json!(2), 2, waits(), false),
        // A new job is no edit; one that was edited before anything was written of it is.
        ("Pending", json!(null), 1, waits(), false),
        ("Pending", json!(null), 2, waits(), true),
        ("Succeeded", json!(1), 2, Claim::Nothing, false),
    ] {
        let status = json!({"phase": phase, "reason": "NotPlannedYet", "observedGeneration": observed});
        let job = |version: u64| {
            let mut job = testing::job(version, &status);
            job["metadata"]["generation"] = json!(generation);
            // Its time in the status is one more reason for a write.
            job["spec"]["deadline"] = "2030-01-01T00:00:00Z".into();
            job["spec"]["suspend"] = (phase == "Suspended").into();
            job
        };
        let world = World::new(vec![(Method::PATCH, "/bert/status", 200, job(20))]);
        world.shared.index.lock().apply(serde_json::from_value::<SlimTrainingJob>(job(10)).expect("a job"));
        {
            let mut ledger = world.shared.ledger.lock();
            let memory = ledger.entry(&key("bert"), "j1");
            memory.set_claim(claim);
            let at = Timestamp::now();
            memory.record_dry_run(DryRunResult { gpus: 1, smaller: None, at, refusal: None, admitted: None });
            // Another job waits for its GPUs.
            ledger.entry(&key("other"), "j2");
            let planned = Planned::Wait { reason: Reason::WaitingForCapacity, message: String::new() };
            let decision = DecisionFor { basis: 0, planned };
            ledger.decide(&key("other"), "j2", decision, vec![(key("bert"), 1)]);
        }
        world.shared.index.lock().take_dirty();
        let signals = world.shared.index.lock().signals();
        assert!(signals.plan.notified().now_or_never().is_none());
        work::step(&world.executor, &key("bert")).await;
        let case = format!("{phase} {observed} {generation}");
        assert_eq!(world.sent(Method::PATCH).len(), 1, "{case}");
        assert_eq!(signals.plan.notified().now_or_never().is_some(), asked, "{case}");
        // An edit gives nothing to those that wait for the job.
        assert!(!world.shared.index.lock().take_dirty().contains(&key("other")), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_ends_at_once_while_its_namespace_edits_more_jobs_than_are_stepped() {
    let job = |version: u64, status: Value| {
        let mut job = testing::job(version, &status);
        job["metadata"]["generation"] = json!(2);
        job
    };
    let allocation = json!({"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "nodes": ["n1"],
        "since": "2026-01-01T00:00:00Z", "runningTime": "2026-01-01T00:00:00Z", "watts": 0});
    let running =
        json!({"phase": "Running", "decisions": 1, "observedGeneration": 1, "allocation": allocation});
    let world =
        World::new(vec![(Method::PATCH, "/bert/status", 200, job(20, json!({"phase": "Succeeded"})))]);
    let mut ended = pod(0, 11, "j1");
    ended["metadata"]["labels"]["andreas.dev/index"] = "0".into();
    ended["spec"]["nodeName"] = "n1".into();
    ended["status"]["phase"] = "Succeeded".into();
    {
        let mut index = world.shared.index.lock();
        index.apply(serde_json::from_value::<SlimTrainingJob>(job(10, running)).expect("a job"));
        index.apply(serde_json::from_value::<SlimPod>(ended).expect("a pod"));
        let node = json!({"metadata": {"name": "n1", "resourceVersion": "1"}});
        index.apply(serde_json::from_value::<SlimNode>(node).expect("a node"));
    }
    let edit = Some(Edit { generation: 2, holds_gpus: false });
    let waits = |n: i32| world.executor.rate_limits.delay(&key(&format!("other-{n}")), edit).is_some();
    assert!((0..1_000).any(waits), "the others' edits are more than are taken in");
    work::step(&world.executor, &key("bert")).await;
    let written = world.sent(Method::PATCH);
    assert_eq!(written.len(), 1, "{written:?}");
    assert_eq!(written[0].body["status"]["phase"], "Succeeded");
}
