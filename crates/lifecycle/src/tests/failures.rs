use andreas_api::slim::SlimContainerStatus;
use andreas_api::{Outcome, Phase};
use serde_json::json;

use super::world::*;
use crate::*;

/// Restarts the job as soon as it may.
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
        assert!(world.status().excluded_nodes.is_empty(), "the same node is fine");
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
    // It stays failed, and its pods stay readable.
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
fn out_of_host_memory_says_nothing_of_the_gpu_type() {
    let mut world = World::running(json!({}), &["n1"], 1);
    let pod = world.pods.get_mut("bert-1-0").unwrap();
    end(pod, 137, "OOMKilled", "", at(5));
    world.step_until_stable();
    assert_eq!(world.last(), (Outcome::UserFailure, "OutOfMemory".into()));
    assert!(!world.learned.iter().any(|l| matches!(l, ProfileUpdate::Barred(_))));
}

#[test]
fn exit_0_below_99_percent_is_done_and_says_so() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.report(40_000).wait(60).exit("bert-1-0", 0, "").wait(5);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Succeeded, "CompletedEarly"));
    let condition = world.condition("Progressing");
    assert_eq!(
        (condition.status.as_str(), condition.message.as_str()),
        ("False", "all workers exited 0 at 40% of the run")
    );
    // At 99 % there is no warning.
    let mut world = World::running(json!({}), &["n1"], 1);
    world.report(99_000).wait(60).exit("bert-1-0", 0, "");
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Succeeded, ""));
    assert_eq!(world.condition("Progressing").reason, "NotRunning");
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
        world.exit("bert-1-0", 0, "").wait(5);
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
        // Given a job whose pod and node disappeared while the operator was down.
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
        world.step_until_stable();
        assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::ClusterFailure), "{reason}");
        assert_eq!((world.status().user_failures, world.status().excluded_nodes[0].node.as_str()), (0, "n1"));
    }
}

#[test]
fn a_container_that_its_nodes_runtime_cannot_start_is_the_clusters_failure_unless_its_program_is_missing() {
    for (message, expected) in [
        (
            "error running prestart hook #0: nvidia-container-cli: driver/library version mismatch",
            Outcome::ClusterFailure,
        ),
        ("unresolvable CDI device nvidia.com/gpu=GPU-1", Outcome::ClusterFailure),
        ("exec: \"trian\": executable file not found in $PATH", Outcome::UserFailure),
    ] {
        let mut world = World::new(json!({}));
        world.plan_run(&["n1"], 1).bind_all();
        let pod = world.pods.get_mut("bert-1-0").unwrap();
        end(pod, 128, "StartError", message, at(2));
        // containerd's time of a start that never was.
        let terminated = container(pod).terminated.as_mut().unwrap();
        terminated.started_at = serde_json::from_value(json!("1970-01-01T00:00:00Z")).unwrap();
        world.step_until_stable();
        assert_eq!(world.last().0, expected, "{message}");
        let cluster = expected == Outcome::ClusterFailure;
        assert_eq!(
            (world.status().user_failures == 0, world.status().excluded_nodes.len() == 1),
            (cluster, cluster)
        );
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
    world.step_until_stable();
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
    world.step_until_stable();
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
fn a_gang_gives_way_whose_gpu_its_kubelet_gave_to_another_pod_too() {
    for (doubled, phase) in [("team/bert-1-0", Phase::Stopping), ("team/other-1-0", Phase::Running)] {
        let mut world = World::running(json!({}), &["n1"], 1);
        let agent = AgentFact { doubled: [doubled.to_owned()].into(), ..AgentFact::default() };
        world.nodes.get_mut("n1").unwrap().agent = Some(agent);
        world.step_until_stable();
        assert_eq!(world.phase(), phase, "{doubled}");
        // Its kubelet would do it again.
        let excluded = world.status().excluded_nodes.iter().any(|away| away.node == "n1");
        assert_eq!(excluded, phase == Phase::Stopping, "{doubled}");
    }
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

/// Adds a container before the pod's first one, as admission may.
fn inject_before(world: &mut World, pod: &str) {
    let pod = world.pods.get_mut(pod).unwrap();
    let mut proxy = pod.spec.containers[0].clone();
    proxy.name = "proxy".into();
    pod.spec.containers.insert(0, proxy);
    let running = serde_json::from_value(json!({"running": {"startedAt": at(0).to_string()}})).unwrap();
    let status =
        SlimContainerStatus { name: "proxy".into(), state: running, ..SlimContainerStatus::default() };
    pod.status.container_statuses.insert(0, status);
    pod.status.phase = "Running".into();
}

#[test]
fn the_training_container_is_the_templates_first_whatever_admission_puts_before_it() {
    for (code, outcome) in [(0, Outcome::Finished), (3, Outcome::UserFailure)] {
        let mut world = World::new(json!({"retries": 0}));
        world.plan_run(&["n1"], 1).bind_all();
        inject_before(&mut world, "bert-1-0");
        // A running proxy does not count as running training.
        world.step_until_stable();
        assert_eq!(world.phase(), Phase::Starting);
        let started =
            |state| SlimContainerStatus { name: "train".into(), state, ..SlimContainerStatus::default() };
        let state = |text| serde_json::from_value(text).unwrap();
        let statuses = |world: &mut World, status| {
            let pod = world.pods.get_mut("bert-1-0").unwrap();
            pod.status.container_statuses.truncate(1);
            pod.status.container_statuses.push(status);
            world.step_until_stable();
        };
        statuses(&mut world, started(state(json!({"running": {"startedAt": at(0).to_string()}}))));
        assert_eq!(world.phase(), Phase::Running);
        // When the training ends and the proxy continues, then the attempt ends and its pod is deleted.
        let ended = json!({"terminated": {"exitCode": code, "reason": "x", "message": "last line",
            "startedAt": at(0).to_string(), "finishedAt": at(10).to_string()}});
        world.now = 10;
        statuses(&mut world, started(state(ended)));
        assert_eq!(world.deleted, [("bert-1-0".into(), DeleteReason::Leftover)]);
        world.leave(143);
        assert_eq!(world.last().0, outcome);
        let record = world.status().history.last().cloned().unwrap();
        assert_eq!(
            (record.exit_code, record.started.map(|t| t.0)),
            ((code != 0).then_some(code), Some(at(0)))
        );
    }
}

#[test]
fn a_failure_of_the_cluster_that_nobody_saw_becomes_the_users_after_ten_in_a_row() {
    // Given a program that reports a lost GPU in its last line each time, on healthy nodes.
    let mut world = World::new(json!({"retries": 0}));
    for attempt in 1..=10 {
        again(&mut world);
        world.exit(&format!("bert-{attempt}-0"), 1, "CUDA error: GPU is lost");
        assert_eq!(world.status().cluster_failures, attempt.min(9));
    }
    assert_eq!((world.phase(), world.status().user_failures), (Phase::Failed, 1));
    let message = world.status().history.last().cloned().unwrap().message;
    assert!(message.ends_with("failure 10 in a row without a fault of a node"), "{message}");
}

#[test]
fn a_failure_that_becomes_the_clusters_at_its_end_counts_as_unexplained_too() {
    // Given a gang whose first worker fails by itself, and whose second one then says that its GPU is lost.
    let mut world = World::new(json!({"retries": 0, "gpus": {"min": 2, "maxNodes": 2}}));
    for attempt in 1..=10 {
        world.wait(400).plan_run(&["n1", "n2"], 1).bind_all().run_all();
        assert_eq!(world.phase(), Phase::Running, "{attempt}");
        world.exit(&format!("bert-{attempt}-0"), 1, "");
        assert_eq!(world.phase(), Phase::Stopping);
        world.exit(&format!("bert-{attempt}-1"), 1, "CUDA error: GPU is lost");
        assert_eq!(world.status().cluster_failures, attempt.min(9));
    }
    assert_eq!((world.phase(), world.status().user_failures), (Phase::Failed, 1));
}

#[test]
fn a_job_that_has_no_attempt_left_asks_for_no_gpus_while_its_last_pods_end() {
    let asks = |world: &World| match world.claim {
        Some(Claim::Stopping { goes_on, .. }) => goes_on,
        _ => panic!("{:?}", world.claim),
    };
    for (retries, left) in [(0, false), (1, true)] {
        let spec = json!({"retries": retries, "gpus": {"min": 2, "maxNodes": 2}});
        let mut world = World::running(spec, &["n1", "n2"], 1);
        world.exit("bert-1-1", 3, "");
        assert_eq!(asks(&world), left, "{retries} retries");
    }
    let mut world = World::running(json!({"maxRunTime": "1h"}), &["n1"], 1);
    world.wait(3_600);
    assert!(!asks(&world));
}

#[test]
fn a_fault_that_was_seen_or_a_good_attempt_begins_the_count_of_unexplained_failures_anew() {
    let mut world = World::new(json!({"retries": 0}));
    let mut attempt = 0;
    let mut fails = |world: &mut World, times: i32| {
        for _ in 0..times {
            again(world);
            attempt += 1;
            world.exit(&format!("bert-{attempt}-0"), 1, "CUDA error: GPU is lost");
        }
        attempt
    };
    fails(&mut world, 9);
    assert_eq!(world.status().unexplained_failures, 9);
    // The node was not Ready during the run, which explains the failure.
    again(&mut world);
    world.now += 1;
    let fact = world.nodes.get_mut("n1").unwrap();
    fact.ready_changed = Some(at(world.now));
    let next = world.members().first().cloned().unwrap();
    world.exit(&next, 1, "CUDA error: GPU is lost");
    assert_eq!((world.status().cluster_failures, world.status().unexplained_failures), (10, 0));
    assert_eq!(world.phase(), Phase::Pending);
}

#[test]
fn a_stop_begins_the_count_of_unexplained_failures_anew_only_where_the_run_had_moved_on() {
    for (moved_on, counted) in [(true, 0), (false, 9)] {
        let mut world = World::new(json!({"retries": 0}));
        for attempt in 1..=9 {
            again(&mut world);
            world.exit(&format!("bert-{attempt}-0"), 1, "CUDA error: GPU is lost");
        }
        again(&mut world);
        world.report(0);
        if moved_on {
            world.report(2_000);
        }
        world.now += 10;
        world.edit(json!({"suspend": true}));
        world.leave(143);
        assert_eq!(world.last().0, Outcome::Stopped);
        assert_eq!(world.status().unexplained_failures, counted, "{moved_on}");
    }
}

#[test]
fn an_eviction_that_a_user_can_cause_counts_as_explained_only_where_its_node_is_taken_out_of_use() {
    let (by_api, by_kubelet) = ("EvictionByEvictionAPI", "TerminationByKubelet");
    let cases = [
        (by_api, true, 0),
        (by_api, false, 1),
        (by_kubelet, true, 0),
        (by_kubelet, false, 1),
        ("PreemptionByScheduler", false, 0),
    ];
    for (reason, cordoned, counted) in cases {
        let mut world = World::running(json!({}), &["n1"], 1);
        world.nodes.get_mut("n1").unwrap().leaving = cordoned;
        world.evict_for("bert-1-0", reason);
        world.leave(143);
        assert_eq!(world.last().0, Outcome::ClusterFailure, "{reason}");
        assert_eq!(world.status().unexplained_failures, counted, "{reason}, cordoned: {cordoned}");
    }
}

/// A kubelet that needs several tries to end a pod says each time that it began now.
#[test]
fn a_worker_that_a_kubelet_evicts_and_that_leaves_well_is_not_done_whenever_the_kubelet_says_it_began() {
    for (reason, reported, phase) in [
        ("TerminationByKubelet", 29_000, Phase::Pending),
        ("TerminationByKubelet", 99_600, Phase::Succeeded),
        ("EvictionByEvictionAPI", 29_000, Phase::Succeeded),
    ] {
        let mut world = World::running(json!({}), &["n1"], 1);
        world.report(0).report(reported);
        world.now = 130;
        world.evict_quietly("bert-1-0");
        let pod = world.pods.get_mut("bert-1-0").unwrap();
        pod.status.conditions.last_mut().unwrap().reason = reason.into();
        pod.metadata.deletion_timestamp = None;
        end(pod, 0, "Completed", "", at(100));
        world.restart_operator().wait(5);
        assert_eq!((world.phase(), world.status().user_failures), (phase, 0), "{reason} {reported}");
    }
}

#[test]
fn what_a_program_posts_when_it_is_drained_does_not_make_it_done() {
    // Given a run at 40 % that is drained without a leading operator. Its callback saves, posts 100 % and
    // exits 0.
    let mut world = World::running(json!({"checkpoint": {"claimName": "ckpt"}}), &["n1"], 1);
    world.report(0).report(40_000);
    let progress = world.job.status.as_mut().unwrap().progress.as_mut().unwrap();
    (progress.ended, progress.stepwise) = (true, false);
    world.now = 100;
    world.evict_quietly("bert-1-0");
    world.now = 103;
    end(world.pods.get_mut("bert-1-0").unwrap(), 0, "Completed", "", at(103));
    // When an operator steps it again.
    world.restart_operator();
    // Then it continues elsewhere without using a retry.
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::ClusterFailure));
    assert_eq!((world.status().user_failures, world.status().progress.unwrap().milli_percent), (0, 40_000));
}

#[test]
fn a_run_that_succeeds_shows_100_percent_unless_it_says_that_it_stopped_early() {
    for (reported, stepwise, shown, text) in
        [(99_600, true, 100_000, Some("100%")), (50_000, true, 50_000, None)]
    {
        let mut world = World::running(json!({}), &["n1"], 1);
        world.report(reported);
        world.job.status.as_mut().unwrap().progress.as_mut().unwrap().stepwise = stepwise;
        world.now += 10;
        world.exit("bert-1-0", 0, "").wait(5);
        let status = world.status();
        assert_eq!(world.phase(), Phase::Succeeded);
        let seen = (status.progress.unwrap().milli_percent, status.display.progress);
        assert_eq!(seen, (shown, text.map(str::to_owned)));
    }
}
