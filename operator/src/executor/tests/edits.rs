//! Given a job whose `spec` was edited; when it is stepped; then a plan is asked for.

use futures::FutureExt;

use super::*;
use crate::lifecycle::{Claim, DecisionFor, Planned};

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
            memory.claim = Some(claim);
            let at = Timestamp::now();
            memory.admission.dry_run = Some(DryRunResult { gpus: 1, at, refusal: None, admitted: None });
            // Another job waits for its GPUs.
            ledger.entry(&key("other"), "j2");
            let planned = Planned::Wait { reason: Reason::WaitingForCapacity, message: String::new() };
            let decision = DecisionFor { basis: 0, planned };
            ledger.decide(&key("other"), decision, vec![(key("bert"), 1)]);
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
