use andreas_api::{Outcome, Phase};
use serde_json::{Value, json};

use super::world::*;
use crate::*;

#[test]
fn a_gang_not_wholly_bound_in_time_goes_back_and_the_node_is_left_out_ever_longer() {
    let spec = json!({"gpus": {"min": 2, "maxNodes": 2}});
    let mut world = World::new(spec);
    for (attempt, seconds) in [(1, 60), (2, 120), (3, 240)] {
        world.plan_run(&["n1", "n2"], 1);
        assert_eq!(world.phase(), Phase::Starting);
        let stuck = format!("bert-{attempt}-1");
        world.bind(&format!("bert-{attempt}-0"));
        condition(
            world.pods.get_mut(&stuck).unwrap(),
            "PodScheduled",
            "False",
            "0/4 nodes are available: insufficient memory",
            None,
        );
        world.wait(119);
        assert_eq!((world.phase(), world.next), (Phase::Starting, Some(at(world.now + 1))));
        world.wait(1);
        assert_eq!(world.phase(), Phase::Stopping);
        world.leave(143);
        assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "PlacementTimeout"));
        let words = world.condition("Scheduled").message;
        assert_eq!(words, "1 of 2 workers not bound within 2m: 0/4 nodes are available: insufficient memory");
        let avoid = world.status().excluded_nodes;
        assert_eq!((avoid.len(), avoid[0].node.as_str()), (1, "n2"));
        assert_eq!(avoid[0].until.0, at(world.now + seconds));
        // Meanwhile a plan that uses the node is not carried out.
        world.plan_run(&["n1", "n2"], 1);
        assert_eq!(world.phase(), Phase::Pending);
        world.wait(seconds);
    }
    let status = world.status();
    assert_eq!((status.user_failures, status.cluster_failures), (0, 0));
    assert!(status.history.iter().all(|r| r.outcome == Outcome::Withdrawn));
    // A run there clears the exclusion.
    world.plan_run(&["n1", "n2"], 1).bind_all().run_all();
    assert!(world.status().excluded_nodes.is_empty());
}

/// An affinity to a pod that is not there, for example.
#[test]
fn a_gang_that_the_scheduler_refuses_for_a_while_goes_back_before_its_time_to_bind_is_over() {
    let mut world = World::new(json!({}));
    world.plan_run(&["n1"], 1).wait(10);
    let refuse = |world: &mut World, reason: &str| {
        let pod = world.pods.get_mut("bert-1-0").unwrap();
        let words = "0/4 nodes are available: 1 node(s) didn't match pod affinity rules";
        condition(pod, "PodScheduled", "False", words, None);
        let conditions = &mut pod.status.conditions;
        conditions.iter_mut().find(|c| c.type_ == "PodScheduled").unwrap().reason = reason.into();
        world.step_until_stable();
    };
    // An extender or a scheduler that fails says nothing of the pod.
    refuse(&mut world, "SchedulerError");
    world.wait(60);
    assert_eq!((world.phase(), world.next), (Phase::Starting, Some(at(120))));
    refuse(&mut world, "Unschedulable");
    assert_eq!(world.next, Some(at(70 + 45)));
    world.wait(44);
    assert_eq!(world.phase(), Phase::Starting);
    world.wait(1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "PlacementTimeout"));
    assert!(world.condition("Scheduled").message.starts_with("1 of 1 workers not bound within 45s: 0/4"));
}

#[test]
fn a_binding_that_admission_refuses_backs_off_the_namespace_and_excludes_no_node() {
    for (words, refused) in [
        ("pods/binding: admission webhook \"x\" denied the request: no", true),
        ("extender: time-out", false),
    ] {
        let mut world = World::new(json!({}));
        world.plan_run(&["n1"], 1).wait(10);
        let pod = world.pods.get_mut("bert-1-0").unwrap();
        condition(pod, "PodScheduled", "False", words, None);
        let conditions = &mut pod.status.conditions;
        conditions.iter_mut().find(|c| c.type_ == "PodScheduled").unwrap().reason = "SchedulerError".into();
        world.wait(110);
        assert_eq!(world.last(), (Outcome::Withdrawn, "PlacementTimeout".into()));
        assert_eq!(
            (world.backoff.is_some(), world.status().excluded_nodes.is_empty()),
            (refused, refused),
            "{words}"
        );
    }
}

/// A LimitRange or a webhook that came since may be why the workers fit nowhere.
#[test]
fn after_a_run_that_found_no_place_admission_is_asked_again() {
    let mut world = World::new(json!({}));
    world.plan_run(&["n1"], 1);
    let asked = world.dry_runs;
    world.wait(120);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "PlacementTimeout"));
    assert_eq!(world.dry_runs, asked + 1);
}

#[test]
fn the_time_to_bind_counts_from_the_moment_there_is_room() {
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().free_gpus = 0;
    world.plan_run(&["n1"], 1).wait(1000);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Starting, "WaitingForRelease"));
    world.nodes.get_mut("n1").unwrap().free_gpus = 1;
    world.wait(1).wait(119);
    assert_eq!((world.phase(), world.members().len()), (Phase::Starting, 1));
    world.wait(1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "PlacementTimeout"));
}

#[test]
fn the_time_to_bind_counts_from_the_moment_the_gpus_are_awake() {
    // Also by an operator that is started while they wake: what it reads is a start like any other.
    for restart in [false, true] {
        let mut world = World::new(json!({}));
        world.nodes.get_mut("n1").unwrap().agent =
            Some(AgentFact { wake: 7, awake: 7, ..AgentFact::default() });
        world.plan_run(&["n1"], 1);
        if restart {
            world.restart_operator();
        }
        world.wait(50);
        let agent = world.nodes.get_mut("n1").unwrap().agent.as_mut().unwrap();
        agent.awake = agent.wake;
        world.wait(0).wait(119);
        assert_eq!((world.phase(), world.members().len()), (Phase::Starting, 1));
        world.wait(1);
        assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "PlacementTimeout"));
    }
}

#[test]
fn gpus_that_a_pod_never_releases_are_not_waited_for_longer_than_a_grace_period() {
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().free_gpus = 0;
    world.plan_run(&["n1"], 1).wait(3_600 + 119);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Starting, "WaitingForRelease"));
    world.wait(1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "PlacementTimeout"));
    assert_eq!((world.last().0, world.status().user_failures), (Outcome::Withdrawn, 0));
    assert_eq!(world.status().excluded_nodes[0].node, "n1");
    // Released in between: the time begins anew.
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().free_gpus = 0;
    world.plan_run(&["n1"], 1).wait(3_000);
    world.nodes.get_mut("n1").unwrap().free_gpus = 1;
    world.nodes.get_mut("n1").unwrap().agent = Some(AgentFact::default());
    world.wait(1);
    world.nodes.get_mut("n1").unwrap().free_gpus = 0;
    world.wait(3_000);
    assert_eq!(world.phase(), Phase::Starting);
}

#[test]
fn the_time_to_bind_is_counted_by_the_operators_own_clock() {
    // Given an API server whose clock is an hour behind, or ahead.
    for skew in [-3600, 3600] {
        let mut world = World::new(json!({}));
        world.plan_run(&["n1"], 1);
        let created = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(skew));
        world.pods.get_mut("bert-1-0").unwrap().metadata.creation_timestamp = Some(created);
        world.wait(119);
        assert_eq!(world.phase(), Phase::Starting);
        world.wait(1);
        assert_eq!(world.phase(), Phase::Pending);
    }
    // A process that takes over counts from when it first sees them.
    let mut world = World::new(json!({}));
    world.plan_run(&["n1"], 1).wait(100).restart_operator().wait(119);
    assert_eq!(world.phase(), Phase::Starting);
    world.wait(1);
    assert_eq!(world.phase(), Phase::Pending);
}

#[test]
fn a_gang_whose_pods_cannot_be_made_goes_back_as_a_whole_and_its_namespace_waits() {
    for made in [0, 1] {
        // Given a failing webhook: the API server answers 500 for pods from an index on.
        let words = "Internal error occurred: failed calling webhook \"w\": connection refused";
        let mut world = World::new(json!({"gpus": {"min": 2, "maxNodes": 2}, "retries": 0}));
        world.unmade = Some((made, words));
        world.plan_run(&["n1", "n2"], 1);
        if made == 1 {
            world.bind("bert-1-0");
        }
        world.wait(119);
        assert_eq!((world.phase(), world.pods.len()), (Phase::Starting, made));
        // When its time is over, then its pods are gone, its GPUs free and no retry used.
        world.wait(1);
        world.leave(143);
        assert_eq!((world.phase(), world.pods.len()), (Phase::Pending, 0));
        assert_eq!(world.last(), (Outcome::Withdrawn, "PlacementTimeout".into()));
        let status = world.status();
        assert_eq!((status.user_failures, status.cluster_failures, status.excluded_nodes.len()), (0, 0, 0));
        let message = world.condition("Scheduled").message;
        assert_eq!(message, format!("{} of 2 pods could not be made within 2m: {words}", 2 - made));
        // It is not planned before its namespace's backoff ends.
        let until = world.backoff.as_ref().unwrap().until;
        assert_eq!(world.claim, Some(Claim::Waiting { not_before: Some(until) }));
        world.plan_run(&["n1", "n2"], 1);
        assert_eq!((world.phase(), world.next), (Phase::Pending, Some(until)));
        world.unmade = None;
        world.wait(until.as_second() - at(world.now).as_second());
        world.plan_run(&["n1", "n2"], 1).bind_all().run_all();
        assert_eq!(world.phase(), Phase::Running);
    }
}

#[test]
fn a_creation_that_succeeds_in_time_goes_on() {
    let mut world = World::new(json!({"gpus": {"min": 2, "maxNodes": 2}}));
    world.unmade = Some((1, "timed out"));
    world.plan_run(&["n1", "n2"], 1).wait(60);
    world.unmade = None;
    world.step_until_stable();
    world.bind_all().run_all();
    assert_eq!((world.phase(), world.backoff.is_none()), (Phase::Running, true));
}

#[test]
fn a_namespace_whose_pods_are_not_made_says_so_in_jobs_that_no_plan_has_seen() {
    let mut world = World::new(json!({}));
    let held = Backoff { until: at(60), message: "webhook down".into(), untried: true };
    world.backoff = Some(held);
    world.wait(10);
    assert_eq!((world.phase(), world.dry_runs), (Phase::Pending, 0));
    assert_eq!(
        world.condition("Scheduled").message,
        "the API server does not make or bind pods of this namespace; tried again later: webhook down"
    );
    // Afterwards its worker is dry-run; before a verdict nothing is planned.
    world.now = 60;
    let step = world.preview();
    assert!(matches!(step.actions[..], [Action::DryRun { .. }]));
    assert_eq!(step.claim, Claim::Nothing);
    world.wait(0);
    assert_eq!(world.claim, Some(Claim::Waiting { not_before: None }));
}

#[test]
fn not_starting_is_the_users_failure_by_image_and_configuration_else_the_clusters() {
    for (waiting, outcome) in [
        ("ErrImagePull", Outcome::UserFailure),
        ("ImagePullBackOff", Outcome::UserFailure),
        ("InvalidImageName", Outcome::UserFailure),
        ("CreateContainerConfigError", Outcome::UserFailure),
        ("ContainerCreating", Outcome::ClusterFailure),
        ("CreateContainerError", Outcome::ClusterFailure),
    ] {
        let mut world = World::new(json!({"startTimeout": "5m"}));
        world.plan_run(&["n1"], 1).bind_all().waits_with("bert-1-0", waiting, "Back-off pulling image");
        world.wait(299);
        assert_eq!(world.phase(), Phase::Starting);
        world.wait(1);
        world.leave(137);
        assert_eq!(world.last(), (outcome, "StartTimeout".into()), "{waiting}");
        assert_eq!(world.status().user_failures, i32::from(outcome == Outcome::UserFailure));
        assert_eq!(world.status().excluded_nodes.is_empty(), outcome == Outcome::UserFailure);
        assert!(world.condition("Scheduled").message.contains(waiting));
    }
}

#[test]
fn an_image_that_is_not_there_is_the_users_failure_and_a_registry_that_is_away_the_clusters() {
    // what containerd 2.3 and CRI-O 1.34 say
    let head = "failed to do request: Head \"https://r.example/v2/team/train/manifests/1\":";
    for (message, outcome) in [
        (
            "failed to resolve reference \"r.example/team/train:1\": r.example/team/train:1: not found",
            Outcome::UserFailure,
        ),
        ("pull access denied, repository does not exist or may require authorization", Outcome::UserFailure),
        (
            "unexpected status from HEAD request to https://r.example/v2/: 401 Unauthorized",
            Outcome::UserFailure,
        ),
        ("reading manifest 1 in r.example/team/train: manifest unknown", Outcome::UserFailure),
        (&format!("{head} dial tcp: lookup r.example on 10.96.0.10:53: no such host"), Outcome::UserFailure),
        (&format!("{head} dial tcp 10.0.0.1:443: connect: connection refused"), Outcome::ClusterFailure),
        (&format!("{head} dial tcp 10.0.0.1:443: i/o timeout"), Outcome::ClusterFailure),
        (
            &format!("{head} dial tcp: lookup r.example on 10.96.0.10:53: server misbehaving"),
            Outcome::ClusterFailure,
        ),
        (&format!("{head} net/http: TLS handshake timeout"), Outcome::ClusterFailure),
        (&format!("{head} EOF"), Outcome::ClusterFailure),
        (
            "unexpected status from HEAD request to https://r.example/v2/: 503 Service Unavailable",
            Outcome::ClusterFailure,
        ),
        ("toomanyrequests: You have reached your unauthenticated pull rate limit", Outcome::ClusterFailure),
    ] {
        let mut world = World::new(json!({"startTimeout": "5m"}));
        let said = format!("Back-off pulling image \"r.example/team/train:1\": ErrImagePull: {message}");
        world.plan_run(&["n1"], 1).bind_all().waits_with("bert-1-0", "ImagePullBackOff", &said);
        world.wait(300);
        world.leave(137);
        assert_eq!(world.last(), (outcome, "StartTimeout".into()), "{message}");
        assert_eq!(world.status().user_failures, i32::from(outcome == Outcome::UserFailure), "{message}");
    }
}

#[test]
fn no_progress_in_time_uses_a_retry() {
    let mut world = World::running(json!({"progressTimeout": "10m", "retries": 0}), &["n1"], 1);
    world.wait(500).report(10_000);
    assert_eq!(world.next, Some(at(1100)));
    world.wait(599);
    assert_eq!(world.phase(), Phase::Running);
    world.wait(1);
    assert_eq!(world.status().stop.unwrap().reason, "ProgressTimeout");
    world.leave(0);
    assert_eq!(
        (world.phase(), world.last()),
        (Phase::Failed, (Outcome::UserFailure, "ProgressTimeout".into()))
    );
}

#[test]
fn a_program_is_not_blamed_for_reports_that_the_endpoint_may_have_turned_away() {
    // given a run without reports while the endpoint rejects clients until second 900
    let mut world = World::running(json!({"progressTimeout": "10m", "retries": 0}), &["n1"], 1);
    world.wait(100);
    world.reports_lost = Some(at(900));
    // when its time-out has passed, then it continues,
    world.wait(700);
    assert_eq!((world.phase(), world.next), (Phase::Running, Some(at(1500))));
    // and only a full time-out with a working endpoint counts against it
    world.wait(699);
    assert_eq!(world.phase(), Phase::Running);
    world.wait(1);
    assert_eq!(world.status().stop.unwrap().reason, "ProgressTimeout");
}

#[test]
fn max_run_time_fails_at_once_whatever_is_left_of_retries() {
    let mut world = World::running(json!({"maxRunTime": "1h", "retries": 3}), &["n1"], 1);
    world.wait(3600);
    assert_eq!(
        (world.phase(), world.status().stop.unwrap().reason.as_str()),
        (Phase::Stopping, "MaxRunTime")
    );
    world.leave(143);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Failed, "MaxRunTime"));
}

#[test]
fn a_finished_job_is_deleted_after_its_ttl() {
    let mut world = World::running(json!({"ttlSecondsAfterFinished": 100}), &["n1"], 1);
    world.now = 50;
    world.exit("bert-1-0", 0, "");
    assert_eq!((world.job_deleted, world.next), (false, Some(at(150))));
    world.wait(100);
    assert!(world.job_deleted);
}

#[test]
fn the_ttl_of_a_job_that_ended_while_nobody_looked_counts_from_the_record_of_its_end() {
    let mut world = World::running(json!({"ttlSecondsAfterFinished": 100}), &["n1"], 1);
    world.now = 50;
    world.exit_quietly("bert-1-0", 0, "");
    world.now = 1000;
    world.step_until_stable();
    assert_eq!(world.status().completion_time.unwrap().0, at(50));
    assert_eq!((world.job_deleted, world.next), (false, Some(at(1100))));
    world.wait(100);
    assert!(world.job_deleted);

    // A TTL of 0: the step that writes the end deletes nothing, the next one does.
    let mut world = World::running(json!({"ttlSecondsAfterFinished": 0}), &["n1"], 1);
    world.exit_quietly("bert-1-0", 0, "");
    let step = world.preview();
    assert_eq!((step.status.phase, step.actions), (Phase::Succeeded, Vec::new()));
    world.step_until_stable();
    assert!(world.job_deleted);
}

#[test]
fn what_the_kubelet_says_of_a_container_that_never_started_does_not_make_it_the_clusters_failure() {
    // given an attempt that cannot pull its image and is stopped for its start time-out
    let mut world = World::new(json!({"startTimeout": "5m", "retries": 0}));
    world.plan_run(&["n1"], 1).bind_all().waits_with(
        "bert-1-0",
        "ImagePullBackOff",
        "Back-off pulling image",
    );
    world.wait(300);
    assert_eq!(world.status().stop.map(|s| s.reason).as_deref(), Some("StartTimeout"));
    // when the kubelet reports the end of a container that never existed
    let now = at(world.now);
    end(world.pods.get_mut("bert-1-0").unwrap(), 137, "ContainerStatusUnknown", "", now);
    world.step_until_stable();
    // then it stays the user's failure
    assert_eq!(world.last(), (Outcome::UserFailure, "StartTimeout".into()));
}

#[test]
fn what_the_users_own_containers_do_before_the_training_starts_is_the_users_failure() {
    use andreas_api::slim::SlimContainerStatus;
    let status = |name: &str, state: Value| SlimContainerStatus {
        name: name.into(),
        started: state["started"].as_bool(),
        state: serde_json::from_value(state).unwrap(),
        ..SlimContainerStatus::default()
    };
    let unstarted = || json!({"running": {"startedAt": at(0).to_string()}, "started": false});
    let running = || json!({"running": {"startedAt": at(0).to_string()}});
    let crashing = || json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}});
    for (name, state, outcome, words) in [
        ("fetch", running(), Outcome::UserFailure, "init container fetch has not ended"),
        (
            "log",
            crashing(),
            Outcome::UserFailure,
            "container log ends again and again: CrashLoopBackOff: back-off 5m0s",
        ),
        // A running sidecar blocks no start, and containers added by admission are not the user's.
        ("log", running(), Outcome::ClusterFailure, "bound but not running within 5m"),
        ("log", unstarted(), Outcome::UserFailure, "sidecar log has not started"),
        ("mesh-init", running(), Outcome::ClusterFailure, "bound but not running within 5m"),
        ("mesh-proxy", crashing(), Outcome::ClusterFailure, "CrashLoopBackOff"),
    ] {
        let inits = json!([{"name": "fetch", "image": "x"}, {"name": "log", "image": "x", "restartPolicy": "Always"}]);
        let mut world =
            World::new(json!({"startTimeout": "5m", "template": {"spec": {"initContainers": inits}}}));
        world.plan_run(&["n1"], 1).bind_all();
        world.pods.get_mut("bert-1-0").unwrap().status.init_container_statuses.push(status(name, state));
        world.wait(300);
        world.leave(137);
        assert_eq!(world.last(), (outcome, "StartTimeout".into()), "{name}");
        let message = world.status().history.last().cloned().unwrap().message;
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_start_timeout_beyond_the_bound_of_the_schema_is_cut() {
    let mut world = World::new(json!({"startTimeout": "99h"}));
    world.plan_run(&["n1"], 1).bind_all().wait(4 * 3600);
    assert_eq!(world.status().stop.map(|s| s.reason).as_deref(), Some("StartTimeout"));
}
