//! What kubelets say of a pod: a pod that they end for its own limits or probes has not finished, whatever it exits with.

use andreas_api::{Outcome, Phase, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::world::*;
use crate::*;

const EMPTY_DIR: &str = "Usage of EmptyDir volume \"cache\" exceeds the limit \"50Mi\". ";
const NODE_LOW: &str = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. ";

/// An Event about the pod, or about its training container.
fn event(reason: &str, message: &str, seconds: i64) -> PodEvent {
    let of_container = ["Killing", "Unhealthy", "FailedPostStartHook", "Started"].contains(&reason);
    PodEvent {
        reason: reason.into(),
        message: message.into(),
        container: of_container.then(|| "train".into()),
        warning: !["Killing", "Started"].contains(&reason),
        first: Some(at(seconds)),
    }
}

/// A run at 10 % whose program exits 0 a minute later, of which its kubelet says this.
fn exits_0(reported: Result<Vec<PodEvent>, EventsUnread>) -> World {
    let mut world = World::running(json!({"retries": 3}), &["n1"], 1);
    world.wait(60).report(10_000);
    world.kubelet_events.insert("bert-1-0".into(), reported);
    world.exit("bert-1-0", 0, "");
    world
}

fn unread(lasting: bool) -> Result<Vec<PodEvent>, EventsUnread> {
    Err(EventsUnread { message: "events is forbidden".into(), lasting })
}

/// The record of the last attempt says so, and who pays.
fn ended(world: &World, outcome: Outcome, words: &str) {
    let status = world.status();
    let record = status.history.last().expect("an ended attempt");
    assert_eq!((world.phase(), record.outcome), (Phase::Pending, outcome), "{}", record.message);
    assert!(record.message.contains(words), "{}", record.message);
    let of_user = outcome == Outcome::UserFailure;
    assert_eq!((status.user_failures, status.cluster_failures), (i32::from(of_user), i32::from(!of_user)));
    assert!(status.excluded_nodes.is_empty() || !of_user, "the same node is fine");
}

#[test]
fn a_pod_that_exceeds_its_own_limits_has_not_finished_if_it_exits_0() {
    for words in [
        EMPTY_DIR,
        "Pod ephemeral local storage usage exceeds the total limit of containers 50Mi. ",
        "Container train exceeded its local ephemeral storage limit \"50Mi\". ",
    ] {
        let world =
            exits_0(Ok(vec![event("Evicted", words, 59), event("Killing", "Stopping container train", 59)]));
        ended(&world, Outcome::UserFailure, words.trim());
        assert_eq!(world.reason(), "ContainerFailed");
    }
    let late = event("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", 60);
    ended(&exits_0(Ok(vec![late])), Outcome::UserFailure, "longer than the specified deadline");
}

#[test]
fn a_container_that_its_kubelet_kills_for_a_probe_or_a_hook_has_not_finished() {
    let unhealthy = |probe: &str| event("Unhealthy", &format!("{probe} probe failed: cat: /tmp/ok"), 40);
    for (reported, words) in [
        (
            vec![unhealthy("Liveness"), event("Killing", "Container train failed liveness probe", 50)],
            "Container train failed liveness probe: Liveness probe failed: cat: /tmp/ok",
        ),
        (vec![event("Killing", "Container train failed startup probe", 50)], "failed startup probe"),
        // A real kubelet, where the pod restarts nothing.
        (
            vec![unhealthy("Liveness"), event("Killing", "Stopping container train", 50)],
            "Stopping container train: Liveness probe failed: cat: /tmp/ok",
        ),
        (vec![event("FailedPostStartHook", "PostStartHook failed", 50)], "PostStartHook failed"),
    ] {
        ended(&exits_0(Ok(reported)), Outcome::UserFailure, words);
    }
    // A probe that failed without an end, the end of another container, and what came after the end say nothing.
    let mut of_proxy = event("Killing", "Container proxy failed liveness probe", 50);
    of_proxy.container = Some("proxy".into());
    for reported in [
        unhealthy("Liveness"),
        unhealthy("Readiness"),
        of_proxy,
        event("Killing", "Stopping container train", 50),
        event("Evicted", EMPTY_DIR, 70),
    ] {
        let mut world = exits_0(Ok(vec![reported]));
        world.wait(10);
        assert_eq!((world.phase(), world.reason().as_str()), (Phase::Succeeded, "CompletedEarly"));
    }
    // Nor does a probe that failed once, where somebody deleted the pod.
    let mut world = World::running(json!({"retries": 3}), &["n1"], 1);
    world.wait(60).report(10_000);
    let asked = vec![unhealthy("Liveness"), event("Killing", "Stopping container train", 50)];
    world.kubelet_events.insert("bert-1-0".into(), Ok(asked));
    world.pods.get_mut("bert-1-0").unwrap().metadata.deletion_timestamp = Some(Time(at(59)));
    world.exit("bert-1-0", 0, "");
    assert!(
        world.status().history.iter().all(|record| record.outcome != Outcome::UserFailure),
        "{:?}",
        world.status()
    );
}

#[test]
fn the_words_of_a_kubelet_come_with_any_exit_code_and_a_retry_is_used() {
    let reported = vec![
        event("Unhealthy", "Startup probe failed: no", 40),
        event("Killing", "Container train failed startup probe", 50),
    ];
    let mut world = World::running(json!({"retries": 0}), &["n1"], 1);
    world.kubelet_events.insert("bert-1-0".into(), Ok(reported));
    world.wait(60).exit("bert-1-0", 143, "saved");
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Failed, "RetriesExhausted"));
    let record = world.status().history[0].clone();
    assert_eq!(record.exit_code, Some(143));
    assert!(record.message.contains("failed startup probe: Startup probe failed: no"), "{}", record.message);
    // Nobody waits for them.
    let mut world = World::running(json!({}), &["n1"], 1);
    world.kubelet_events.insert("bert-1-0".into(), unread(false));
    world.exit("bert-1-0", 1, "no data");
    ended(&world, Outcome::UserFailure, "worker 0 exited with 1: no data");
}

/// Its pod's status, as a kubelet writes it.
fn evicted(world: &mut World, container_reason: &str, message: &str, times: bool) {
    let pod = world.pods.get_mut("bert-1-0").unwrap();
    end(pod, 137, container_reason, "The container could not be located", at(60));
    if !times {
        let terminated = container(pod).terminated.as_mut().unwrap();
        (terminated.started_at, terminated.finished_at) = (None, None);
    }
    (pod.status.reason, pod.status.message) = ("Evicted".into(), message.into());
    world.now = 61;
    world.step_until_stable();
}

#[test]
fn an_eviction_for_the_pods_own_limits_is_the_users_failure_also_where_its_container_is_lost() {
    for reason in ["Error", "ContainerStatusUnknown"] {
        for times in [true, false] {
            let mut world = World::running(json!({}), &["n1"], 1);
            evicted(&mut world, reason, EMPTY_DIR, times);
            ended(&world, Outcome::UserFailure, EMPTY_DIR.trim());
        }
    }
    // For the node's sake, it is the cluster's, with and without the condition.
    for condition_too in [false, true] {
        let mut world = World::running(json!({}), &["n1"], 1);
        if condition_too {
            let now = serde_json::from_value(json!(at(59).to_string())).unwrap();
            condition(
                world.pods.get_mut("bert-1-0").unwrap(),
                "DisruptionTarget",
                "True",
                NODE_LOW,
                Some(now),
            );
        }
        evicted(&mut world, "ContainerStatusUnknown", NODE_LOW, false);
        ended(&world, Outcome::ClusterFailure, "");
    }
    ended(&exits_0(Ok(vec![event("Evicted", NODE_LOW, 59)])), Outcome::ClusterFailure, NODE_LOW.trim());
}

#[test]
fn a_pod_that_its_kubelet_ends_for_another_reason_is_the_clusters_failure() {
    for (reason, message) in [
        ("Terminated", "Pod was terminated in response to imminent node shutdown."),
        ("NodeAffinity", "no match"),
    ] {
        let mut world = World::running(json!({}), &["n1"], 1);
        let pod = world.pods.get_mut("bert-1-0").unwrap();
        end(pod, 143, "Error", "", at(60));
        (pod.status.reason, pod.status.message) = (reason.into(), message.into());
        world.now = 61;
        world.step_until_stable();
        ended(&world, Outcome::ClusterFailure, message);
    }
}

#[test]
fn an_event_makes_no_failure_of_the_users_into_the_clusters() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.kubelet_events.insert("bert-1-0".into(), Ok(vec![event("Evicted", NODE_LOW, 0)]));
    world.wait(60).exit("bert-1-0", 1, "no data");
    ended(&world, Outcome::UserFailure, "no data");
}

#[test]
fn a_run_at_its_end_has_finished_and_nobody_asks() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.wait(60).report(99_000);
    world.kubelet_events.insert("bert-1-0".into(), Ok(vec![event("Evicted", EMPTY_DIR, 59)]));
    world.exit_quietly("bert-1-0", 0, "");
    assert_eq!(world.asked(), 0);
    world.step_until_stable();
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Succeeded, ""));
}

#[test]
fn a_member_of_a_gang_that_its_kubelet_ends_ends_the_gang() {
    let spec = json!({"gpus": {"min": 2, "maxNodes": 2}});
    for others_run in [true, false] {
        let mut world = World::running(spec.clone(), &["n1", "n2"], 1);
        world.wait(60).report(10_000);
        world.kubelet_events.insert("bert-1-1".into(), Ok(vec![event("Evicted", EMPTY_DIR, 59)]));
        world.exit_quietly("bert-1-1", 0, "");
        if !others_run {
            world.exit_quietly("bert-1-0", 0, "");
        }
        world.step_until_stable();
        world.leave(0);
        ended(&world, Outcome::UserFailure, "worker 1 was ended by its kubelet: Evicted: Usage of EmptyDir");
    }
}

#[test]
fn an_early_end_waits_some_seconds_for_events_and_a_silent_program_not_at_all() {
    let mut world = exits_0(Ok(Vec::new()));
    assert_eq!((world.phase(), world.next), (Phase::Running, Some(at(62))));
    world.kubelet_events.insert("bert-1-0".into(), Ok(vec![event("Evicted", EMPTY_DIR, 59)]));
    world.wait(2);
    ended(&world, Outcome::UserFailure, EMPTY_DIR.trim());
    let mut world = exits_0(Ok(Vec::new()));
    world.wait(5);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Succeeded, "CompletedEarly"));
    let mut world = World::running(json!({}), &["n1"], 1);
    world.exit("bert-1-0", 0, "");
    assert_eq!(world.phase(), Phase::Succeeded);
}

#[test]
fn events_that_cannot_be_read_hold_up_an_end_for_half_a_minute_and_an_early_one_is_tried_again_once() {
    for (lasting, seconds) in [(false, 30), (true, 0)] {
        let mut world = exits_0(unread(lasting));
        if seconds > 0 {
            world.wait(seconds - 1);
            assert_eq!((world.phase(), world.next), (Phase::Running, Some(at(world.now + 1))));
            world.wait(1);
        }
        ended(&world, Outcome::ClusterFailure, "exited 0 at 10% of the run");
        // The second time it is taken at its word.
        world.wait(100).plan_run(&["n2"], 1).bind_all().run_all().report(10_000);
        world.kubelet_events.insert("bert-2-0".into(), unread(true));
        world.exit("bert-2-0", 0, "");
        assert_eq!((world.phase(), world.reason().as_str()), (Phase::Succeeded, "CompletedEarly"));
    }
    // Of a program that reports nothing, nothing speaks against its word.
    let mut world = World::running(json!({}), &["n1"], 1);
    world.kubelet_events.insert("bert-1-0".into(), unread(false));
    world.exit("bert-1-0", 0, "");
    assert_eq!(world.phase(), Phase::Running);
    world.wait(30);
    assert_eq!(world.phase(), Phase::Succeeded);
}

#[test]
fn what_we_stopped_ourselves_is_not_asked_about() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.wait(60).report(10_000).plan_wait(Reason::Preempted, "");
    world.kubelet_events.insert("bert-1-0".into(), Ok(vec![event("Evicted", EMPTY_DIR, 60)]));
    world.now += 5;
    world.leave(0);
    assert_eq!(world.last().0, Outcome::Stopped);
}

/// A bound attempt whose pod waits, of which its kubelet says this.
fn does_not_start(template: Value, reported: Vec<PodEvent>) -> World {
    let mut world = World::new(json!({"startTimeout": "15m", "template": {"spec": template}}));
    world.plan_run(&["n1"], 1).bind_all();
    world.kubelet_events.insert("bert-1-0".into(), Ok(reported));
    world.waits_with("bert-1-0", "ContainerCreating", "");
    world
}

#[test]
fn a_volume_that_its_user_forgot_to_make_ends_the_start_after_a_minute() {
    for missing in ["configmap \"data\" not found", "secret \"key\" not found"] {
        let words = format!("MountVolume.SetUp failed for volume \"v\" : {missing}");
        let mut world = does_not_start(json!({}), vec![event("FailedMount", &words, 1)]);
        assert_eq!((world.phase(), world.next), (Phase::Starting, Some(at(60))));
        world.wait(60).leave(137);
        ended(&world, Outcome::UserFailure, &words);
        assert_eq!(world.last().1, "StartTimeout");
    }
}

#[test]
fn what_a_template_names_and_no_node_has_ends_the_start_after_a_minute() {
    let driver = "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name no.such not found in the list of registered CSI drivers";
    let network = "plugin type=\"multus\" failed (add): cannot find a network-attachment-definition (ib) in namespace (team): network-attachment-definitions.k8s.cni.cncf.io \"ib\" not found";
    let host = "hostPath type check failed: /scratch is not a directory";
    let inline = json!({"volumes": [{"name": "v", "csi": {"driver": "no.such"}}]});
    for (template, reason, words, outcome) in [
        // Another node may have it.
        (inline, "FailedMount", driver, Some(Outcome::ClusterFailure)),
        (json!({}), "FailedMount", host, Some(Outcome::ClusterFailure)),
        // Of a claim: the driver was there when it was attached.
        (json!({}), "FailedMount", driver, None),
        (json!({}), "FailedCreatePodSandBox", network, Some(Outcome::UserFailure)),
    ] {
        let mut world = does_not_start(template, vec![event(reason, words, 1)]);
        world.wait(60);
        assert_eq!(world.phase() != Phase::Starting, outcome.is_some(), "{words}");
        if let Some(outcome) = outcome {
            world.leave(137);
            ended(&world, outcome, words);
            let away = world.status().excluded_nodes.iter().any(|away| away.node == "n1");
            assert_eq!(away, outcome == Outcome::ClusterFailure, "{words}");
        }
    }
}

#[test]
fn an_image_without_the_nodes_platform_ends_the_start_at_once_and_bars_its_architecture() {
    let words = "failed to resolve image: no match for platform in manifest: not found";
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().architecture = "arm64".into();
    world.plan_run(&["n1"], 1).bind_all().waits_with("bert-1-0", "ErrImagePull", words).leave(137);
    ended(&world, Outcome::UserFailure, words);
    assert_eq!(world.last().1, "UnsupportedHardware");
    let [ProfileUpdate::Barred(barred)] = world.learned.as_slice() else { panic!("{:?}", world.learned) };
    assert_eq!(barred.architecture.as_deref(), Some("arm64"));
}

#[test]
fn another_start_that_fails_says_what_the_kubelet_said_and_is_the_clusters() {
    for (reason, message) in [
        ("FailedMount", "MountVolume.SetUp failed for volume \"nfs\" : mount failed: exit status 32"),
        (
            "FailedMount",
            "MountVolume.SetUp failed for volume \"ca\" : configmap \"kube-root-ca.crt\" not found",
        ),
        ("FailedCreatePodSandBox", "Failed to create pod sandbox: no address left"),
    ] {
        let mut world = does_not_start(json!({}), vec![event(reason, message, 1)]);
        world.wait(899);
        assert_eq!(world.phase(), Phase::Starting);
        world.wait(1).leave(137);
        ended(&world, Outcome::ClusterFailure, &format!("{reason}: {message}"));
    }
}

#[test]
fn where_a_container_says_why_it_waits_its_kubelets_events_add_nothing() {
    // A kubelet's last word about an image is its first without the cause.
    let mut world = does_not_start(json!({}), vec![event("Failed", "Error: ErrImagePull", 1)]);
    let away = "failed to pull: dial tcp 10.0.0.1:443: connect: connection refused";
    world.waits_with("bert-1-0", "ErrImagePull", away).wait(900).leave(137);
    ended(&world, Outcome::ClusterFailure, &format!("ErrImagePull: {away}"));
}

#[test]
fn a_start_that_times_out_within_the_minute_is_asked_about_too() {
    let words = "MountVolume.SetUp failed for volume \"v\" : secret \"key\" not found";
    let mut world = does_not_start(json!({}), vec![event("FailedMount", words, 1)]);
    world.edit(json!({"startTimeout": "20s"})).wait(20).leave(137);
    ended(&world, Outcome::UserFailure, words);
}

#[test]
fn a_hook_that_never_ends_is_its_users() {
    let hook = json!({"containers": [{"name": "train", "image": "x", "lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}]});
    let mut world = does_not_start(hook, vec![event("Started", "Container started", 1)]);
    world.wait(900).leave(137);
    ended(&world, Outcome::UserFailure, "the postStart hook of container train has not ended");
}
