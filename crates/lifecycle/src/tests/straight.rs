use andreas_api::training_profile::FinishedRun;
use andreas_api::{Outcome, Phase, Reason};
use andreas_cluster::energy::LateEnergy;
use andreas_cluster::energy::bill::Bill;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::world::*;
use crate::*;

#[test]
fn from_apply_to_succeeded_in_three_writes() {
    // Given an unplanned job: nothing is written, since a plan follows soon.
    let mut world = World::new(json!({}));
    world.step_until_stable();
    assert_eq!((world.writes, world.next), (0, Some(at(3))));
    // When the plan gives it GPUs, then the allocation is written and the pod created.
    world.now = 1;
    world.plan_run(&["n1"], 1);
    assert_eq!((world.phase(), world.writes), (Phase::Starting, 1));
    assert_eq!(world.members(), ["bert-1-0"]);
    let allocation = world.status().allocation.unwrap();
    assert_eq!((allocation.attempt, allocation.generation, allocation.gpus), (1, 1, 1));
    // When it is bound and runs, then one more write.
    world.bind_all();
    assert_eq!(world.writes, 1);
    world.wait(4).run_all();
    assert_eq!((world.phase(), world.writes), (Phase::Running, 2));
    assert_eq!(world.status().start_time.unwrap().0, at(5));
    // When it succeeds, then the third and last write.
    world.now = 105;
    world.exit("bert-1-0", 0, "");
    assert_eq!((world.phase(), world.writes), (Phase::Succeeded, 3));
    assert_eq!(world.last(), (Outcome::Finished, "Completed".into()));
    assert_eq!(world.status().completion_time.unwrap().0, at(105));
    assert_eq!(world.claim, Some(Claim::Nothing));
    let finished = FinishedRun { run: "bert-1".into(), seconds: 100, at: Time(at(105)) };
    assert!(world.learned.contains(&ProfileUpdate::Finished(finished)));
    // And its pod stays for `kubectl logs`.
    assert!(world.pods.contains_key("bert-1-0") && world.deleted.is_empty());
}

#[test]
fn the_intent_comes_before_the_pod() {
    let mut world = World::new(json!({}));
    world.step_until_stable();
    world.decision = Some(DecisionFor {
        basis: 0,
        planned: Planned::Run {
            gpu_type: "A100".into(),
            nodes: vec!["n1".into()],
            gpus_per_worker: 1,
            limit_watts: None,
            watts: 0,
            guard: Guard::default(),
        },
    });
    let step = world.preview();
    let Some(Action::CreatePods { generation, pods }) = step.actions.last() else { panic!("{step:#?}") };
    let allocation = step.status.allocation.unwrap();
    assert_eq!((*generation, pods.len()), (allocation.generation, 1));
    let labels = pods[0].metadata.labels.as_ref().unwrap();
    assert_eq!(labels["andreas.dev/allocation"], allocation.generation.to_string());
}

#[test]
fn a_decision_made_for_another_state_is_not_carried_out() {
    let mut world = World::new(json!({}));
    world.plan_run(&["n1"], 1).bind_all().run_all();
    // The plan that started it is still the newest when the job fails: it must not start it again.
    world.exit("bert-1-0", 1, "boom");
    assert_eq!(world.phase(), Phase::Pending);
    assert_eq!(world.status().attempts, 1);
    // A plan without changes for a running job changes nothing.
    world.plan_run(&["n1"], 1).bind_all().run_all();
    let writes = world.writes;
    world.plan_run(&["n1"], 1).wait(30);
    assert_eq!((world.phase(), world.writes), (Phase::Running, writes));
}

#[test]
fn gpus_are_awake_and_free_before_the_pod_is_made() {
    let mut world = World::new(json!({"gpus": {"max": 2}}));
    world.nodes.get_mut("n1").unwrap().agent = Some(AgentFact { wake: 7, awake: 7, ..AgentFact::default() });
    world.nodes.get_mut("n1").unwrap().free_gpus = 1;
    world.now = 10;
    world.plan_run(&["n1"], 2);
    // While GPUs are in use none is woken: it would rest again meanwhile.
    assert_eq!((world.reason().as_str(), agent(&world).wake), ("WaitingForRelease", 7));
    assert_eq!(world.condition("Running").message, "GPUs of n1 are still in use");
    // Free: asked once.
    world.nodes.get_mut("n1").unwrap().free_gpus = 8;
    world.wait(20);
    let asked = 8;
    world.wait(1);
    assert_eq!((agent(&world).wake, world.members().len()), (asked, 0));
    // Awake.
    world.nodes.get_mut("n1").unwrap().agent.as_mut().unwrap().awake = asked;
    world.wait(1);
    assert_eq!((world.members().len(), world.reason().as_str()), (1, "PodsStarting"));
}

/// Given a start with a guard; then no pod is made before the agent has it in force, and none at all where it does not come.
#[test]
fn a_pod_is_made_once_the_guard_of_its_gpus_is_in_force() {
    let world = |agent: Option<AgentFact>| {
        let mut world = World::new(json!({"gpus": {"max": 2}}));
        world.nodes.get_mut("n1").unwrap().agent = agent;
        world.plan_guarded(&["n1"], 2, Guard { watts: Some(250), reached: false });
        world
    };
    let mut guarded = world(Some(AgentFact { sets_limits: true, ..AgentFact::default() }));
    guarded.wait(1);
    assert_eq!(guarded.members().len(), 0);
    let fact = |world: &mut World, change: fn(&mut AgentFact)| {
        let agent = world.nodes.get_mut("n1").and_then(|node| node.agent.as_mut()).unwrap();
        agent.awake = agent.wake;
        change(agent);
        world.wait(1);
        world.members().len()
    };
    assert_eq!(fact(&mut guarded, |_| ()), 0, "awake, and not limited");
    assert_eq!(
        fact(&mut guarded, |agent| agent.limits = [("team/bert-1-0".into(), 300)].into()),
        0,
        "to more"
    );
    assert_eq!(fact(&mut guarded, |agent| agent.limits = [("team/bert-1-0".into(), 250)].into()), 1);
    // It would draw more than the budget counts.
    let mut silent = world(Some(AgentFact::default()));
    silent.wait(60);
    assert_eq!((silent.phase(), silent.members().len()), (Phase::Pending, 0));
    assert_eq!(silent.status().excluded_nodes[0].node, "n1");
    assert_eq!(world(None).wait(1).phase(), Phase::Pending, "nobody there to set it");
}

/// Given a run with a guard; then plans raise and lift it, and an older plan's figure does neither.
#[test]
fn a_guard_is_raised_and_lifted_and_never_lowered() {
    let mut world = World::new(json!({"gpus": {"max": 2}}));
    let limits = [("team/bert-1-0".to_owned(), 250)].into();
    world.nodes.get_mut("n1").unwrap().agent =
        Some(AgentFact { sets_limits: true, limits, ..AgentFact::default() });
    world.plan_guarded(&["n1"], 2, Guard { watts: Some(250), reached: false });
    let agent = world.nodes.get_mut("n1").and_then(|node| node.agent.as_mut()).unwrap();
    agent.awake = agent.wake;
    world.wait(1).bind_all().run_all();
    let guard = |world: &mut World, watts: Option<i32>, reached: bool| {
        world.plan_guarded(&["n1"], 2, Guard { watts, reached });
        let held = world.status().allocation.unwrap();
        (held.guard_watts, held.guard_reached)
    };
    assert_eq!(guard(&mut world, Some(250), false), (Some(250), false));
    assert_eq!(guard(&mut world, Some(310), true), (Some(310), true));
    assert_eq!(guard(&mut world, Some(250), false), (Some(310), true));
    let words = "all workers run, held back by a power limit of 310 W until the budget has more";
    assert_eq!(world.condition("Running").message, words);
    assert_eq!(guard(&mut world, None, false), (None, true));
    assert_eq!(guard(&mut world, Some(250), false), (None, true));
}

/// Given a node with an agent whose GPUs rest; when a job is started there; then its three writes are those of a node without one.
#[test]
fn the_status_is_not_written_while_gpus_leave_low_power() {
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().agent = Some(AgentFact { wake: 7, awake: 7, ..AgentFact::default() });
    world.step_until_stable();
    world.now = 1;
    world.plan_run(&["n1"], 1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Starting, "PodsStarting"));
    let text = world.condition("Running").message;
    assert_eq!((world.members().len(), world.writes), (0, 1));
    let asked = agent(&world).wake;
    world.nodes.get_mut("n1").unwrap().agent.as_mut().unwrap().awake = asked;
    world.wait(1);
    assert_eq!((world.members().len(), world.writes), (1, 1));
    // An image that is pulled for minutes takes none either: the text was true from the first second on.
    world.bind_all().wait(120);
    assert_eq!((world.condition("Running").message, world.writes), (text, 1));
    world.run_all();
    assert_eq!((world.phase(), world.writes), (Phase::Running, 2));
    world.exit("bert-1-0", 0, "");
    assert_eq!((world.phase(), world.writes), (Phase::Succeeded, 3));
}

#[test]
fn an_agent_that_is_silent_for_a_minute_is_not_waited_for_and_not_asked_in_vain_again() {
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().agent = Some(AgentFact::default());
    world.plan_run(&["n1"], 1).wait(59);
    assert_eq!((world.members().len(), world.next), (0, Some(at(60))));
    // By now its setter has restored the GPUs' settings.
    world.wait(1);
    assert_eq!((world.phase(), world.members().len()), (Phase::Starting, 1));

    // The next attempt asks again, in case the agent lives, and does not wait.
    world.bind_all().run_all().exit("bert-1-0", 1, "boom");
    let asked = agent(&world).wake;
    world.wait(30).plan_run(&["n1"], 1);
    assert_eq!((world.status().attempts, world.members().len()), (2, 1));
    assert!(agent(&world).wake > asked);
    // If it had answered meanwhile, the job would wait for it.
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().agent = Some(AgentFact { wake: 7, awake: 7, ..AgentFact::default() });
    world.plan_run(&["n1"], 1);
    assert_eq!(world.members().len(), 0);
}

#[test]
fn what_agents_tell_after_the_end_takes_the_place_of_what_was_predicted() {
    let mut world = World::running(json!({}), &["n1"], 1);
    let attempt = Bill { joules: 1_000_000, micros: 100_000, host_joules: 400_000, host_micros: 40_000 };
    world.energy = EnergyView { attempt, ..EnergyView::default() };
    world.exit("bert-1-0", 0, "");
    let consumption = |world: &World| world.status().consumption.unwrap();
    assert_eq!(consumption(&world).source, "Predicted");
    let writes = world.writes;
    let late = LateEnergy { attempt: 1, joules: 700_000, micros_more: -30_000, watts: Some(70) };
    world.energy = EnergyView { late: Some(late), ..EnergyView::default() };
    world.wait(1).wait(1);
    let total = consumption(&world);
    assert_eq!(
        (total.joules, total.energy_cost_micros, total.source.as_str()),
        (700_000, 70_000, "Measured")
    );
    let record = &world.status().history[0];
    assert_eq!((record.joules, record.measured, world.writes), (700_000, true, writes + 1));
    // Its share of its hosts is no counter's.
    assert_eq!((record.host_joules, total.host_joules, total.host_cost_micros), (400_000, 400_000, 40_000));
    let display = world.status().display;
    assert_eq!([display.energy, display.energy_cost].map(Option::unwrap), ["306 Wh", "0.11 EUR"]);
}

/// Given a job that is moved from a node to another; when both attempts have ended; then each has its own share of its
/// host, and the job's cost has both.
#[test]
fn an_attempt_that_moved_is_billed_for_each_of_its_hosts() {
    let mut world = World::new(json!({}));
    world.host_watts = 1_600;
    world.plan_run(&["n1"], 1).bind_all().run_all();
    let held = |world: &World| world.status().allocation.map(|a| (a.nodes, a.host_watts));
    assert_eq!(held(&world), Some((vec!["n1".to_owned()], 1_600)));
    // What is read of a host later does not change what the attempt is billed for.
    world.host_watts = 75;
    world.wait(60);
    assert_eq!(held(&world), Some((vec!["n1".to_owned()], 1_600)));
    let bill = |host_joules, host_micros| {
        let attempt = Bill { joules: 360_000, micros: 20_000, host_joules, host_micros };
        EnergyView { attempt, ..EnergyView::default() }
    };
    world.energy = bill(720_000, 40_000);
    // It is asked to stop, and the next plan sends it there still.
    world.plan_run(&["n2"], 1).plan_run(&["n2"], 1).leave(0);
    assert_eq!(world.status().history[0].host_joules, 720_000);
    world.bind_all().run_all();
    assert_eq!(held(&world), Some((vec!["n2".to_owned()], 75)));
    world.energy = bill(36_000, 2_000);
    world.exit("bert-2-0", 0, "");
    let status = world.status();
    assert_eq!(status.history.iter().map(|record| record.host_joules).collect::<Vec<_>>(), [720_000, 36_000]);
    let total = status.consumption.unwrap();
    assert_eq!((total.joules, total.energy_cost_micros), (720_000, 40_000));
    assert_eq!((total.host_joules, total.host_cost_micros), (756_000, 42_000));
    let shown = [status.display.energy, status.display.energy_cost].map(Option::unwrap);
    assert_eq!(shown, ["410 Wh", "0.08 EUR"]);
}

fn agent(world: &World) -> &AgentFact {
    world.nodes["n1"].agent.as_ref().unwrap()
}

#[test]
fn a_run_that_is_over_before_anybody_looked_is_recorded_as_a_run() {
    let mut world = World::new(json!({}));
    world.plan_run(&["n1"], 1);
    world.bind("bert-1-0");
    world.now = 9;
    world.exit("bert-1-0", 0, "");
    assert_eq!(world.phase(), Phase::Succeeded);
    assert!(world.status().start_time.is_some());
    assert_eq!(world.status().history[0].started.as_ref().unwrap().0, at(9));
}

#[test]
fn waiting_names_the_jobs_in_the_way_and_rewrites_the_text_seldom() {
    let mut world = World::new(json!({}));
    world.now = 100;
    world.plan_wait(Reason::WaitingForCapacity, "behind team/a");
    assert_eq!((world.reason().as_str(), world.writes), ("WaitingForCapacity", 1));
    assert_eq!(world.condition("Scheduled").message, "behind team/a");
    world.now += 10;
    world.plan_wait(Reason::WaitingForCapacity, "behind team/b");
    assert_eq!((world.condition("Scheduled").message.as_str(), world.writes), ("behind team/a", 1));
    world.wait(60);
    assert_eq!((world.condition("Scheduled").message.as_str(), world.writes), ("behind team/b", 2));
    world.plan_wait(Reason::PowerBudget, "no watts");
    assert_eq!((world.reason().as_str(), world.writes), ("PowerBudget", 3));
}

#[test]
fn energy_and_cost_are_written_at_the_edge_of_an_attempt() {
    let mut world = World::running(json!({}), &["n1"], 1);
    let writes = world.writes;
    world.energy = EnergyView {
        attempt: Bill { joules: 4_464_000, micros: 322_400, ..Bill::default() },
        measured: true,
        lateness_micros: 100_000,
        measured_watts: Some(250),
        late: None,
    };
    world.wait(30);
    assert_eq!(world.writes, writes);
    world.exit("bert-1-0", 0, "");
    let display = world.status().display;
    let shown = [display.energy, display.energy_cost, display.lateness_cost].map(Option::unwrap);
    assert_eq!(shown, ["1.24 kWh", "0.32 EUR", "0.10 EUR"]);
    let consumption = world.status().consumption.unwrap();
    assert_eq!(consumption.source, "Measured");
    assert_eq!(world.status().history[0].joules, 4_464_000);
}

#[test]
fn the_end_shows_what_kubectl_wait_and_its_columns_read() {
    // It never reported, and is done all the same.
    let mut world = World::running(json!({"deadlineAfter": "1h"}), &["n1"], 1);
    world.wait(125).exit("bert-1-0", 0, "");
    assert_eq!((world.condition("Complete").status.as_str(), world.has_condition("Failed")), ("True", false));
    let status = world.status();
    assert_eq!(
        (status.display.progress.as_deref(), status.display.duration.as_deref()),
        (Some("100%"), Some("2m5s"))
    );
    assert_eq!(status.display.on_time.as_deref(), Some("Met"));

    let mut world = World::running(json!({"retries": 0, "deadlineAfter": "1m"}), &["n1"], 1);
    world.wait(61).exit("bert-1-0", 1, "boom");
    assert_eq!((world.condition("Failed").status.as_str(), world.has_condition("Complete")), ("True", false));
    assert_eq!(world.condition("Failed").reason, "RetriesExhausted");
    let status = world.status();
    assert_eq!((status.display.on_time.as_deref(), status.progress), (Some("Missed"), None));
}

#[test]
fn a_job_that_failed_has_missed_its_deadline() {
    let mut world = World::running(json!({"retries": 0, "deadlineAfter": "1h"}), &["n1"], 1);
    world.wait(10).exit("bert-1-0", 1, "boom");
    assert_eq!((world.phase(), world.status().display.on_time.as_deref()), (Phase::Failed, Some("Missed")));
    let condition = world.condition("OnTime");
    assert_eq!((condition.status.as_str(), condition.message.as_str()), ("False", "failed"));
}
