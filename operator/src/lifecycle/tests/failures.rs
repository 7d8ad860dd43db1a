use andreas_api::{Outcome, Phase};
use serde_json::json;

use super::world::*;
use crate::lifecycle::*;

/// Starts the job again as soon as it may be.
fn again(world: &mut World) {
    world.wait(400);
    world.plan_run(&["n1"], 1).bind_all().run_all();
    assert_eq!(world.phase(), Phase::Running);
}

#[test]
fn retries_are_used_and_then_it_has_failed_with_code_and_last_line() {
    let mut world = World::running(json!({"retries": 2}), &["n1"], 1);
    for attempt in 1..=2 {
        world.exit(&format!("bert-{attempt}-0"), 1, "step 7\nRuntimeError: loss is NaN\n");
        assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "ContainerFailed"));
        assert_eq!(world.status().user_failures, attempt);
        assert!(world.status().avoid.is_empty(), "the same node is fine");
        again(&mut world);
    }
    world.exit("bert-3-0", 1, "RuntimeError: loss is NaN");
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Failed, "RetriesExhausted"));
    let finished = world.condition("Finished");
    assert_eq!(
        finished.message,
        "worker 0 exited with 1: RuntimeError: loss is NaN (all 2 retries are used)"
    );
    assert_eq!(world.status().history.iter().map(|r| r.exit_code).collect::<Vec<_>>(), [Some(1); 3]);
    // It stays failed, and its pods can be read.
    world.plan_run(&["n1"], 1).wait(10_000);
    assert_eq!((world.phase(), world.pods.len()), (Phase::Failed, 3));
}

#[test]
fn the_first_failure_is_tried_again_at_once_later_ones_are_not() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.exit("bert-1-0", 1, "");
    assert_eq!(world.status().not_before, None);
    again(&mut world);
    world.exit("bert-2-0", 1, "");
    assert_eq!(world.status().not_before.unwrap().0, at(world.now + 10));
}

#[test]
fn no_retries_means_one_attempt() {
    let mut world = World::running(json!({"retries": 0}), &["n1"], 1);
    world.exit("bert-1-0", 2, "");
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn out_of_gpu_memory_leaves_the_type_out_for_the_family() {
    for words in [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: out of memory",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
    ] {
        let mut world = World::running(json!({}), &["n1"], 1);
        world.exit("bert-1-0", 1, words);
        assert_eq!(world.last(), (Outcome::UserFailure, "OutOfMemory".into()), "{words}");
        assert!(world.learned.contains(&Learned::OutOfMemory { gpu_type: "A100".into() }));
    }
}

#[test]
fn out_of_host_memory_says_nothing_of_the_gpu_type() {
    let mut world = World::running(json!({}), &["n1"], 1);
    let pod = world.pods.get_mut("bert-1-0").unwrap();
    end(pod, 137, "OOMKilled", "", at(5));
    world.settle();
    assert_eq!(world.last(), (Outcome::UserFailure, "OutOfMemory".into()));
    assert!(!world.learned.iter().any(|l| matches!(l, Learned::OutOfMemory { .. })));
}

#[test]
fn exit_0_below_99_percent_is_done_and_says_so() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.report(40_000).wait(60).exit("bert-1-0", 0, "");
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Succeeded, "CompletedEarly"));
    let condition = world.condition("Progressing");
    assert_eq!(
        (condition.status.as_str(), condition.message.as_str()),
        ("False", "all workers exited 0 at 40% of the run")
    );
    // At 99 % nothing is said.
    let mut world = World::running(json!({}), &["n1"], 1);
    world.report(99_000).wait(60).exit("bert-1-0", 0, "");
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Succeeded, ""));
    assert!(!world.has_condition("Progressing"));
}

#[test]
fn only_what_a_program_counted_contradicts_its_word_that_it_is_at_its_end() {
    for (ended, stepwise, early) in
        [(true, false, false), (true, true, true), (false, false, true), (false, true, true)]
    {
        let mut world = World::running(json!({}), &["n1"], 1);
        world.report(66_000).wait(60);
        let progress = world.job.status.as_mut().unwrap().progress.as_mut().unwrap();
        (progress.ended, progress.stepwise) = (ended, stepwise);
        world.exit("bert-1-0", 0, "");
        assert_eq!(world.phase(), Phase::Succeeded);
        assert_eq!(world.reason() == "CompletedEarly", early, "{ended} {stepwise}");
    }
}

#[test]
fn vanished_with_99_percent_is_finished_else_the_clusters_failure() {
    for (milli_percent, ended, outcome) in [
        (99_000, false, Outcome::Finished),
        (98_900, false, Outcome::ClusterFailure),
        (40_000, true, Outcome::Finished),
        (40_000, false, Outcome::ClusterFailure),
    ] {
        // Given a job whose pod and node went while the operator was away.
        let mut world = World::running(json!({}), &["n1"], 1);
        world.report(milli_percent).wait(10);
        world.job.status.as_mut().unwrap().progress.as_mut().unwrap().ended = ended;
        world.pods.clear();
        world.nodes.remove("n1");
        world.restart_operator().wait(10);
        assert_eq!(world.last().0, outcome, "{milli_percent} {ended}");
    }
}

#[test]
fn what_the_kubelet_refuses_is_the_clusters_failure() {
    for reason in
        ["UnexpectedAdmissionError", "TopologyAffinityError", "OutOfcpu", "NodeAffinity", "NodeShutdown"]
    {
        let mut world = World::new(json!({}));
        world.plan_run(&["n1"], 1).bind_all();
        let pod = world.pods.get_mut("bert-1-0").unwrap();
        pod.status.phase = "Failed".into();
        pod.status.reason = reason.into();
        pod.status.message = "Pod was rejected: no GPUs".into();
        world.settle();
        assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::ClusterFailure), "{reason}");
        assert_eq!((world.status().user_failures, world.status().avoid[0].node.as_str()), (0, "n1"));
    }
}

#[test]
fn a_failed_init_container_is_the_users_failure() {
    let spec = json!({"template": {"spec": {"initContainers": [{"name": "data", "image": "data:1"}]}}});
    let mut world = World::new(spec);
    world.plan_run(&["n1"], 1).bind_all();
    let pod = world.pods.get_mut("bert-1-0").unwrap();
    pod.status.phase = "Failed".into();
    pod.status.init_container_statuses = serde_json::from_value(json!([{"name": "data", "state": {"terminated":
        {"exitCode": 4, "startedAt": at(1).to_string(), "finishedAt": at(2).to_string(), "message": "no data"}}}]))
    .unwrap();
    world.settle();
    let record = world.status().history[0].clone();
    assert_eq!(
        (record.outcome, record.exit_code, record.message.as_str()),
        (Outcome::UserFailure, Some(4), "worker 0 exited with 4: no data")
    );
}

#[test]
fn an_unknown_container_status_and_a_broken_gpu_are_the_clusters_failure() {
    let mut world = World::running(json!({}), &["n1"], 1);
    end(world.pods.get_mut("bert-1-0").unwrap(), 137, "ContainerStatusUnknown", "", at(50));
    world.settle();
    assert_eq!(world.last().0, Outcome::ClusterFailure);

    let mut world = World::running(json!({}), &["n1"], 1);
    world.exit("bert-1-0", 1, "CUDA error: uncorrectable ECC error encountered");
    assert_eq!(world.last().0, Outcome::ClusterFailure);

    let mut world = World::running(json!({}), &["n1"], 1);
    world.now = 60;
    let agent = AgentFact { unhealthy_since: Some(at(58)), ..AgentFact::default() };
    world.nodes.get_mut("n1").unwrap().agent = Some(agent);
    world.exit("bert-1-0", 1, "CUDA error: unspecified launch failure");
    assert_eq!(world.last().0, Outcome::ClusterFailure);
}

#[test]
fn only_so_many_ended_attempts_keep_their_pods() {
    let mut world = World::running(json!({"historyLimit": 1, "retries": 5}), &["n1"], 1);
    for attempt in 1..=3 {
        world.exit(&format!("bert-{attempt}-0"), 1, "");
        again(&mut world);
    }
    assert_eq!(world.pods.keys().collect::<Vec<_>>(), ["bert-3-0", "bert-4-0"]);
    assert!(world.deleted.iter().all(|(_, why)| *why == DeleteReason::History));
}
