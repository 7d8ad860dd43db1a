use andreas_api::{Outcome, Phase, Reason};
use serde_json::json;

use super::world::*;
use crate::*;

fn with_checkpoint() -> serde_json::Value {
    json!({"checkpoint": {"claimName": "ckpt", "graceSeconds": 120}})
}

#[test]
fn preempted_saves_ends_and_goes_on_later() {
    let mut world = World::running(with_checkpoint(), &["n1"], 1);
    world.wait(100).plan_wait(Reason::Preempted, "in favour of team/urgent");
    let stop = world.status().stop.unwrap();
    assert_eq!(
        (stop.attempt, stop.reason.as_str(), stop.message.as_str()),
        (1, "Preempted", "in favour of team/urgent")
    );
    assert_eq!(world.claim, Some(Claim::Stopping { gone_by: Some(at(220)), goes_on: true }));
    // An unbound pod cannot be bound any more: the generation has changed.
    assert_eq!(world.status().allocation.unwrap().generation, 2);
    // GPUs are in use until the pod has ended.
    world.plan_run(&["n2"], 1).wait(30);
    assert_eq!((world.phase(), world.status().attempts), (Phase::Stopping, 1));
    // Exit 0 after our stop is a stop; the plan made meanwhile is carried out at once.
    world.leave(0);
    assert_eq!((world.phase(), world.last()), (Phase::Starting, (Outcome::Stopped, "Preempted".into())));
    assert_eq!(world.members(), ["bert-2-0"]);
    assert_eq!((world.status().restarts, world.status().user_failures), (1, 0));
    world.bind_all().run_all();
    assert_eq!(world.phase(), Phase::Running);
}

#[test]
fn whatever_it_exits_with_after_a_stop_it_is_a_stop() {
    for code in [0, 1, 137, 143] {
        let mut world = World::running(with_checkpoint(), &["n1"], 1);
        world.wait(100).plan_wait(Reason::Preempted, "");
        world.now += 60;
        world.leave(code);
        assert_eq!(world.last().0, Outcome::Stopped, "{code}");
        assert_eq!(world.reason(), "Preempted");
    }
}

#[test]
fn a_run_that_ended_before_the_stop_reached_it_has_finished() {
    // The container ended at 100, not yet seen when the stop was requested at 110.
    let mut world = World::running(with_checkpoint(), &["n1"], 1);
    world.now = 110;
    world.plan_wait(Reason::Preempted, "");
    world.now = 100;
    let mut pod = world.pods["bert-1-0"].clone();
    end(&mut pod, 0, "Completed", "", at(100));
    world.pods.insert("bert-1-0".into(), pod);
    world.now = 112;
    world.step_until_stable();
    assert_eq!((world.phase(), world.last().0), (Phase::Succeeded, Outcome::Finished));
}

#[test]
fn a_run_that_counted_its_last_step_and_exits_0_has_finished_though_a_stop_was_asked_for() {
    for (counted, exit_code, outcome) in
        [(100_000, 0, Outcome::Finished), (99_900, 0, Outcome::Stopped), (100_000, 143, Outcome::Stopped)]
    {
        let mut world = World::running(with_checkpoint(), &["n1"], 1);
        world.wait(100).report(counted).plan_wait(Reason::Preempted, "");
        world.now += 1;
        world.leave(exit_code);
        assert_eq!(world.last().0, outcome, "{counted} {exit_code}");
    }
}

#[test]
fn an_exit_within_the_skew_of_clocks_is_taken_for_the_stops_doing() {
    let mut world = World::running(with_checkpoint(), &["n1"], 1);
    world.now = 110;
    world.plan_wait(Reason::Preempted, "");
    // The node's clock is 2 s behind.
    world.now = 108;
    world.exit_quietly("bert-1-0", 0, "");
    world.now = 112;
    world.step_until_stable();
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::Stopped));
}

#[test]
fn a_move_stops_and_starts_where_the_plan_says() {
    let mut world = World::running(json!({"gpus": {"max": 4}}), &["n1"], 1);
    world.plan_run(&["n2"], 4);
    assert_eq!(world.status().stop.unwrap().message, "moves to 4 x A100 on n2");
    world.leave(143);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "NotPlannedYet"));
    world.plan_run(&["n2"], 4);
    assert_eq!(world.status().allocation.unwrap().gpus, 4);
}

#[test]
fn a_plan_that_names_the_nodes_of_a_gang_in_another_order_moves_nothing() {
    let mut world = World::running(json!({"gpus": {"min": 2, "max": 2, "maxNodes": 2}}), &["n1", "n2"], 1);
    world.plan_run(&["n2", "n1"], 1);
    assert_eq!((world.phase(), world.status().stop), (Phase::Running, None));
    world.plan_run(&["n2", "n3"], 1);
    assert_eq!(world.phase(), Phase::Stopping);
}

#[test]
fn a_new_power_limit_needs_no_restart() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.plan(Planned::Run {
        gpu_type: "A100".into(),
        nodes: vec!["n1".into()],
        gpus_per_worker: 1,
        limit_watts: Some(250),
        watts: 240,
        guard: Guard::default(),
    });
    let allocation = world.status().allocation.unwrap();
    assert_eq!(
        (world.phase(), allocation.power_limit_watts, allocation.watts),
        (Phase::Running, Some(250), 240)
    );
    assert_eq!((allocation.generation, allocation.limit_changed), (1, true));
}

#[test]
fn a_commitment_is_taken_back_before_any_pod_exists() {
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().free_gpus = 0;
    world.plan_run(&["n1"], 1);
    assert_eq!(world.reason(), "WaitingForRelease");
    world.plan_wait(Reason::PowerBudget, "the budget fell");
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "PowerBudget"));
    assert_eq!((world.last().0, world.status().restarts), (Outcome::Stopped, 0));
}

#[test]
fn suspend_stops_with_a_checkpoint_and_resume_goes_on() {
    let mut world = World::running(with_checkpoint(), &["n1"], 1);
    world.report(40_000).wait(100).edit(json!({"suspend": true}));
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Stopping, "Suspended"));
    assert!(matches!(world.claim, Some(Claim::Stopping { goes_on: false, .. })));
    world.leave(0);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Suspended, "Suspended"));
    assert_eq!(world.claim, Some(Claim::Nothing));
    world.plan_run(&["n1"], 1);
    assert_eq!(world.phase(), Phase::Suspended);
    world.edit(json!({"suspend": false}));
    assert_eq!(
        (world.phase(), world.claim.clone()),
        (Phase::Starting, Some(Claim::Starting { since: at(100) }))
    );
    assert_eq!(world.status().progress.unwrap().milli_percent, 40_000);
}

#[test]
fn a_job_applied_suspended_waits_for_its_user() {
    let mut world = World::new(json!({"suspend": true}));
    world.step_until_stable();
    assert_eq!(
        (world.phase(), world.condition("Scheduled").reason.as_str()),
        (Phase::Suspended, "Suspended")
    );
    world.edit(json!({"suspend": false}));
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "NotPlannedYet"));
}

#[test]
fn forced_deletion_keeps_the_gpus_until_the_agent_sees_them_unheld_or_the_grace_is_over() {
    // Given a pod that disappears while its last status shows a running container.
    let mut world = World::running(with_checkpoint(), &["n1"], 1);
    world.now = 100;
    world.remove("bert-1-0");
    world.step_until_stable();
    assert_eq!((world.phase(), world.status().stop.unwrap().reason.as_str()), (Phase::Stopping, "Vanished"));
    assert_eq!(world.next, Some(at(220)));
    world.wait(119);
    assert_eq!(world.phase(), Phase::Stopping);
    world.wait(1);
    assert_eq!((world.phase(), world.last()), (Phase::Pending, (Outcome::ClusterFailure, "Vanished".into())));

    // With an agent: in use as long as the agent sees it hold a GPU, and no longer.
    let mut world = World::running(with_checkpoint(), &["n1"], 1);
    let agent = AgentFact {
        holders: ["team/bert-1-0".to_owned()].into(),
        holders_observed: 1,
        ..AgentFact::default()
    };
    world.nodes.get_mut("n1").unwrap().agent = Some(agent);
    world.remove("bert-1-0");
    world.wait(10);
    assert_eq!(world.phase(), Phase::Stopping);
    world.nodes.get_mut("n1").unwrap().agent.as_mut().unwrap().holders.clear();
    world.wait(1);
    assert_eq!(world.phase(), Phase::Pending);

    // A process without a GPU may still write a checkpoint that only one may write.
    let mut spec = with_checkpoint();
    spec["checkpoint"]["exclusive"] = json!(true);
    let mut world = World::running(spec, &["n1"], 1);
    world.nodes.get_mut("n1").unwrap().agent =
        Some(AgentFact { holders_observed: 1, ..AgentFact::default() });
    ends_after_its_grace(&mut world);
}

/// Its pod is deleted by force: the attempt ends when the grace of two minutes is over, not before.
fn ends_after_its_grace(world: &mut World) {
    world.now = 100;
    world.remove("bert-1-0");
    world.wait(119);
    assert_eq!(world.phase(), Phase::Stopping);
    world.wait(1);
    assert_eq!(world.phase(), Phase::Pending);
}

#[test]
fn a_report_that_is_older_than_the_deletion_does_not_end_the_attempt() {
    // The agent was killed before the pod started: it saw no holder and was not asked since.
    let mut world = World::running(with_checkpoint(), &["n1"], 1);
    world.nodes.get_mut("n1").unwrap().agent = Some(AgentFact::default());
    ends_after_its_grace(&mut world);
}

#[test]
fn a_member_deleted_by_somebody_else_is_the_clusters_failure_whatever_it_exits_with() {
    let mut world = World::running(with_checkpoint(), &["n1"], 1);
    world.now = 100;
    let pod = world.pods.get_mut("bert-1-0").unwrap();
    pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(220)));
    pod.metadata.deletion_grace_period_seconds = Some(120);
    world.step_until_stable();
    world.now = 130;
    world.leave(0);
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::ClusterFailure));
}

#[test]
fn a_member_deleted_by_somebody_else_before_the_stop_is_not_the_users_failure_though_it_is_seen_after_it() {
    // Given a pod that was deleted at 100 and ended at 102, while the watch of pods said nothing
    let running = World::running(with_checkpoint(), &["n1"], 1).pods["bert-1-0"].clone();
    // when a stop is asked for at 110, and the pod is seen then
    for (deleted, outcome) in [(100, Outcome::ClusterFailure), (110, Outcome::Stopped)] {
        let mut world = World::running(with_checkpoint(), &["n1"], 1);
        world.now = 110;
        world.plan_wait(Reason::Preempted, "");
        let mut pod = running.clone();
        pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(deleted + 120)));
        pod.metadata.deletion_grace_period_seconds = Some(120);
        end(&mut pod, 143, "Error", "", at(deleted + 2));
        world.pods.insert("bert-1-0".into(), pod);
        world.now = 115;
        world.step_until_stable();
        // then it is what took the run, and the stop only if nobody was before it
        assert_eq!((world.last().0, world.status().user_failures), (outcome, 0), "deleted at {deleted}");
    }
}
