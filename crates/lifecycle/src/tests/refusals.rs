use andreas_api::{Outcome, Phase, Reason};
use serde_json::json;

use super::world::*;
use crate::*;

#[test]
fn the_template_is_tried_once_with_the_largest_worker() {
    let mut world = World::new(json!({"gpus": {"max": 16}}));
    world.settings.largest_node_gpus = Some(8);
    world.wait(10).wait(1000);
    assert_eq!((world.dry_runs, world.dry_run.as_ref().unwrap().gpus), (1, 8));
    // Acceptance goes out with the next write.
    world.plan_wait(Reason::WaitingForCapacity, "");
    assert_eq!(world.condition("TemplateAccepted").message, "the API server admits a worker with 8 GPUs");
    // After a restart it is tested once more: what admission adds is kept in memory only.
    // Until then it is not planned.
    world.dry_run = None;
    let step = world.preview();
    assert!(matches!(step.actions[..], [Action::DryRun { gpus: 8, .. }]));
    assert_eq!(step.claim, Claim::Nothing);
    world.restart_operator().wait(10).wait(1000);
    assert_eq!(world.dry_runs, 2);
    assert_eq!(world.claim, Some(Claim::Waiting { not_before: None }));
    // An edit that needs another worker triggers another dry run.
    world.edit(json!({"gpus": {"max": 4}}));
    assert_eq!(world.dry_runs, 3);
}

#[test]
fn an_accepted_template_is_not_tried_again_while_the_largest_nodes_offer_no_gpus() {
    let mut world = World::new(json!({"gpus": {"max": 16}}));
    world.settings.largest_node_gpus = Some(8);
    world.wait(10);
    world.plan_wait(Reason::WaitingForCapacity, "");
    let said = world.condition("TemplateAccepted").message.clone();
    for largest in [2, 0, 8] {
        world.settings.largest_node_gpus = Some(largest);
        world.wait(10);
        assert_eq!(world.dry_runs, 1, "{largest}");
    }
    assert_eq!(world.condition("TemplateAccepted").message, said);
    // A larger node triggers one too.
    world.settings.largest_node_gpus = Some(16);
    world.wait(10);
    assert_eq!(world.dry_runs, 2);
}

#[test]
fn a_refused_template_waits_with_the_servers_words_and_is_tried_ever_more_seldom() {
    let mut world = World::new(json!({}));
    let words =
        "pods \"bert-1-0\" is forbidden: violates PodSecurity \"restricted:latest\": hostPath volumes";
    world.server_refuses = Some((Reason::TemplateRejected, words.into()));
    world.step_until_stable();
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "TemplateRejected"));
    assert_eq!(world.condition("TemplateAccepted").status, "False");
    assert_eq!(
        (world.condition("Scheduled").message.as_str(), world.claim.clone()),
        (format!("{words}; it is tried again within 5 minutes").as_str(), Some(Claim::Nothing))
    );
    // The plan's decision is ignored meanwhile.
    world.plan_run(&["n1"], 1);
    assert_eq!(world.phase(), Phase::Pending);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let due = world.next.unwrap().as_second() - at(world.now).as_second();
        pauses.push(due);
        world.wait(due);
    }
    assert_eq!(pauses[..5], [1, 1, 2, 4, 8]);
    assert_eq!(pauses[10..], [300, 300]);
    assert_eq!(world.events.iter().filter(|e| e.reason == Reason::TemplateRejected).count(), 1);
    // When the missing object exists, then it continues.
    world.server_refuses = None;
    let due = world.next.unwrap().as_second() - at(world.now).as_second();
    world.wait(due);
    assert_eq!(
        (world.condition("TemplateAccepted").status.as_str(), world.phase()),
        ("True", Phase::Starting)
    );
}

#[test]
fn a_refused_template_stays_refused_over_a_restart_until_it_has_been_tried() {
    let mut world = World::new(json!({}));
    world.server_refuses = Some((Reason::TemplateRejected, "no".into()));
    world.step_until_stable();
    world.dry_run = None;
    let step = world.preview();
    assert_eq!(step.claim, Claim::Nothing);
    assert!(matches!(step.actions[..], [Action::DryRun { .. }]));
}

#[test]
fn a_worker_beyond_the_quota_is_said_and_still_planned() {
    let mut world = World::new(json!({"gpus": {"max": 8}}));
    let words = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: 0, limited: 4";
    world.server_refuses = Some((Reason::QuotaExceeded, words.into()));
    world.step_until_stable();
    assert_eq!(
        (world.reason().as_str(), world.condition("Scheduled").message.as_str()),
        ("QuotaExceeded", words)
    );
    assert_eq!(world.claim, Some(Claim::Waiting { not_before: None }));
    world.plan_run(&["n1"], 4);
    assert_eq!(world.phase(), Phase::Starting);
}

#[test]
fn a_refused_pod_withdraws_the_allocation_without_using_a_retry() {
    for reason in [Reason::QuotaExceeded, Reason::TemplateRejected] {
        let mut world = World::new(json!({"retries": 0}));
        world.create = Some(CreationOutcome::Refused { reason, message: "the server's words".into() });
        for pause in [10, 20, 40, 80, 160, 300, 300, 300] {
            world.plan_run(&["n1"], 1);
            assert_eq!((world.phase(), world.reason()), (Phase::Pending, reason.as_str().to_owned()));
            assert_eq!(world.status().not_before.unwrap().0, at(world.now + pause));
            // The same plan again does not shorten the wait.
            world.plan_run(&["n1"], 1).wait(1);
            assert_eq!(world.phase(), Phase::Pending);
            assert!(matches!(world.claim, Some(Claim::Waiting { not_before: Some(_) })));
            world.decision = None;
            world.wait(pause);
        }
        let status = world.status();
        assert_eq!((status.user_failures, status.cluster_failures), (0, 0));
        assert!(status.history.iter().all(|r| r.outcome == Outcome::Withdrawn) && status.history.len() <= 6);
        assert!(status.excluded_nodes.is_empty());
        world.create = None;
        world.plan_run(&["n1"], 1).bind_all().run_all();
        assert_eq!(world.phase(), Phase::Running);
    }
}

#[test]
fn a_refused_pod_is_tried_again_at_once_when_the_rules_of_its_namespace_change() {
    for reason in [Reason::QuotaExceeded, Reason::TemplateRejected] {
        let mut world = World::new(json!({}));
        world.create = Some(CreationOutcome::Refused { reason, message: "the server's words".into() });
        world.wait(100).plan_run(&["n1"], 1);
        // The server knew a change from before the refusal.
        world.rules_changed = Some(world.now - 1);
        world.decision = None;
        world.wait(1);
        assert!(matches!(world.claim, Some(Claim::Waiting { not_before: Some(_) })));
        // A larger quota or other labels: planned again at once, long before the backoff ends.
        world.rules_changed = Some(world.now);
        world.step_until_stable();
        assert_eq!(world.claim, Some(Claim::Waiting { not_before: None }));
        world.create = None;
        world.plan_run(&["n1"], 1);
        assert_eq!(world.members(), ["bert-2-0"]);
    }
    // That does not free the name of a foreign pod.
    let mut world = World::new(json!({}));
    world.create = Some(CreationOutcome::NameInUse { name: "bert-1-0".into() });
    world.plan_run(&["n1"], 1);
    world.rules_changed = Some(world.now + 1);
    world.decision = None;
    world.wait(1);
    assert!(matches!(world.claim, Some(Claim::Waiting { not_before: Some(_) })));
}

#[test]
fn pods_that_were_made_are_not_asked_for_again() {
    let mut world = World::new(json!({}));
    world.plan_run(&["n1"], 1);
    // A cache that does not show them yet.
    world.pods.clear();
    let step = world.preview();
    assert!(step.actions.is_empty(), "{:?}", step.actions);
}

#[test]
fn a_node_that_is_deleted_before_the_pods_are_made_gives_the_allocation_back() {
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().free_gpus = 0;
    world.plan_run(&["n1"], 1);
    world.nodes.remove("n1");
    world.step_until_stable();
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::Withdrawn));
}

#[test]
fn gpus_that_a_foreign_pod_took_first_are_given_up_at_once() {
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().free_gpus = 0;
    world.plan_run(&["n1"], 1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Starting, "WaitingForRelease"));
    world.nodes.get_mut("n1").unwrap().open_gpus = 0;
    world.step_until_stable();
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "WaitingForCapacity"));
    assert_eq!((world.last().0, world.status().not_before), (Outcome::Withdrawn, None));
    world.plan_run(&["n2"], 1);
    assert_eq!(world.members(), ["bert-2-0"]);
}

#[test]
fn a_training_container_that_the_template_does_not_have_is_named() {
    let mut world = World::new(json!({"container": "trian"}));
    world.step_until_stable();
    assert_eq!((world.reason().as_str(), world.dry_runs), ("TemplateRejected", 0));
    assert_eq!(
        world.condition("Scheduled").message,
        "spec.container: the template has no container named trian"
    );
    world.edit(json!({"container": "train"}));
    assert_eq!((world.phase(), world.dry_runs), (Phase::Pending, 1));
    assert_eq!(world.condition("TemplateAccepted").status, "True");
}

#[test]
fn a_gang_whose_claim_one_node_can_mount_waits_without_gpus_and_says_which() {
    let mut world = World::new(json!({"gpus": {"max": 8, "maxNodes": 2}}));
    world.single_node_claim = Some("checkpoint.claimName: claim ckpt is ReadWriteOnce");
    world.plan_run(&["n1", "n2"], 1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "TemplateRejected"));
    assert_eq!(
        world.condition("TemplateAccepted").message,
        "checkpoint.claimName: claim ckpt is ReadWriteOnce; use a ReadWriteMany claim, or set gpus.maxNodes to 1"
    );
    assert_eq!((world.claim.clone(), world.dry_runs), (Some(Claim::Nothing), 0));
    // Another claim of the name, or one node: it continues by itself.
    world.single_node_claim = None;
    world.wait(60);
    assert_eq!(
        (world.condition("TemplateAccepted").status.as_str(), world.phase()),
        ("True", Phase::Starting)
    );
}

#[test]
fn a_template_that_asks_for_too_many_resources_or_ports_by_name_is_refused_with_the_number() {
    let limits = |count: usize| {
        let limits: serde_json::Map<String, serde_json::Value> =
            (0..count).map(|name| (format!("a.b/{name}"), json!("1"))).collect();
        json!({"template": {"spec": {"containers": [{"name": "t", "image": "x", "resources": {"limits": limits}}]}}})
    };
    let mut world = World::new(limits(33));
    world.step_until_stable();
    assert_eq!((world.reason().as_str(), world.claim.clone()), ("TemplateRejected", Some(Claim::Nothing)));
    assert_eq!(
        world.condition("TemplateAccepted").message,
        "spec.template.spec: its containers ask for 33 resources by name, of which 32 are allowed"
    );
    assert_eq!(world.dry_runs, 0);
    let ports: Vec<_> = (1..34).map(|port| json!({"containerPort": port})).collect();
    let containers = json!([{"name": "t", "image": "x", "ports": ports}]);
    let mut world =
        World::new(json!({"template": {"spec": {"hostNetwork": true, "containers": containers}}}));
    world.step_until_stable();
    assert!(world.condition("TemplateAccepted").message.contains("33 ports of their node"));
    // As many as allowed, and ports that are not the node's.
    let mut world = World::new(json!({"template": {"spec": {"containers": containers}}}));
    world.step_until_stable();
    assert_ne!(world.reason(), "TemplateRejected");
    let mut world = World::new(limits(32));
    world.step_until_stable();
    assert_ne!(world.reason(), "TemplateRejected");
}

#[test]
fn a_template_for_which_there_is_no_room_waits_and_is_not_planned() {
    let mut world = World::new(json!({}));
    let template = world.job.spec.template.clone();
    world.job.spec.template.leave_out();
    world.step_until_stable();
    assert_eq!((world.reason().as_str(), world.claim.clone()), ("QueueFull", Some(Claim::Nothing)));
    world.job.spec.template = template;
    world.step_until_stable();
    assert_eq!(world.claim, Some(Claim::Waiting { not_before: None }));
}

#[test]
fn where_larger_workers_are_refused_smaller_ones_are_planned_and_the_status_says_so_over_a_restart() {
    let words = "maximum nvidia.com/gpu usage per Container is 4, but limit is 8";
    let mut world = World::new(json!({"gpus": {"min": 1, "max": 8}}));
    let step = world.preview();
    assert!(matches!(&step.actions[..], [Action::DryRun { gpus: 8, smaller, .. }] if *smaller == [4, 2, 1]));
    let accepted =
        DryRunResult { gpus: 8, smaller: Some((4, words.into())), at: at(0), refusal: None, admitted: None };
    world.dry_run = Some(accepted);
    world.step_until_stable();
    let accepted = world.condition("TemplateAccepted");
    assert_eq!(accepted.status, "True");
    assert!(
        accepted.message.starts_with("the API server admits a worker with 4 GPUs; larger"),
        "{accepted:?}"
    );
    assert!(accepted.message.ends_with(words) && world.dry_runs == 0, "{accepted:?}");
    assert_eq!(largest_admitted(&world.status()), Some(4));
    // Larger ones stay refused while the smaller one finds its quota used up.
    let refusal = Some((Reason::QuotaExceeded, "exceeded quota".to_owned()));
    world.dry_run = world.dry_run.take().map(|run| DryRunResult { refusal, ..run });
    world.step_until_stable();
    assert_eq!(largest_admitted(&world.status()), Some(4));
    // A new leader asks, and it is asked again now and then: the rule may be gone.
    world.dry_run = None;
    world.now = 100;
    world.restart_operator();
    assert_eq!(world.dry_runs, 1);
    assert_eq!(largest_admitted(&world.status()), None, "all sizes are admitted now");
}
