//! Properties for any sequence of events: no panic, the step settles, never two live attempts, no pods
//! created while older ones live. An operator restart at any point changes none of this. The test cluster
//! checks it after each step.

use andreas_api::{Phase, Reason};
use proptest::prelude::*;
use serde_json::json;

use super::world::*;
use crate::*;

/// An event.
#[derive(Clone, Debug)]
enum ClusterEvent {
    Wait(i64),
    PlanRun(usize, i32),
    PlanWait,
    StalePlan,
    Bind(usize),
    Run(usize),
    Exit(usize, i32),
    Leave(i32),
    Vanish(usize),
    Evict(usize),
    DeleteByOthers(usize),
    NodeNotReady(usize),
    Back(usize),
    Reboot(usize),
    DeleteNode(usize),
    Suspend(bool),
    EditGpus(i32),
    Restart,
    Refuse,
    Report(i32),
    Full(usize, i32),
    Stray(i64, bool),
    /// Pods from this index on get no verdict from the API server; earlier ones are created.
    Unmade(Option<usize>),
    /// A finalizer keeps the pod's object.
    Pin(usize),
    /// The job is deleted and a finalizer keeps its object; or its pods are orphaned.
    DeleteJob(bool),
    /// What a kubelet says of a pod to those who ask: an eviction, or nothing that can be read.
    KubeletReports(usize, bool),
}

fn event() -> impl Strategy<Value = ClusterEvent> {
    use ClusterEvent::*;
    prop_oneof![
        6 => (0i64..400).prop_map(Wait),
        6 => (0usize..6, 1i32..3).prop_map(|(n, g)| PlanRun(n, g)),
        2 => Just(PlanWait),
        1 => Just(StalePlan),
        6 => (0usize..3).prop_map(Bind),
        6 => (0usize..3).prop_map(Run),
        4 => (0usize..3, prop_oneof![Just(0), Just(1), Just(143)]).prop_map(|(n, c)| Exit(n, c)),
        5 => prop_oneof![Just(0), Just(143)].prop_map(Leave),
        1 => (0usize..3).prop_map(Vanish),
        1 => (0usize..3).prop_map(Evict),
        1 => (0usize..3).prop_map(DeleteByOthers),
        1 => (0usize..4).prop_map(NodeNotReady),
        1 => (0usize..4).prop_map(Back),
        1 => (0usize..4).prop_map(Reboot),
        1 => (0usize..4).prop_map(DeleteNode),
        1 => any::<bool>().prop_map(Suspend),
        1 => (1i32..4).prop_map(EditGpus),
        3 => Just(Restart),
        1 => Just(Refuse),
        2 => (0i32..100_000).prop_map(Report),
        1 => (0usize..4, 0i32..4).prop_map(|(n, g)| Full(n, g)),
        1 => (1i64..5, any::<bool>()).prop_map(|(a, older)| Stray(a, older)),
        1 => proptest::option::of(0usize..2).prop_map(Unmade),
        1 => (0usize..3).prop_map(Pin),
        1 => any::<bool>().prop_map(DeleteJob),
        2 => (0usize..3, any::<bool>()).prop_map(|(n, evicted)| KubeletReports(n, evicted)),
    ]
}

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const PLACES: [&[&str]; 6] = [&["n1"], &["n2"], &["n1", "n2"], &["n2", "n3"], &["n4"], &["n3", "n4"]];

fn apply_event(world: &mut World, event: &ClusterEvent) {
    use ClusterEvent::*;
    let names: Vec<String> = world.pods.keys().cloned().collect();
    let pick = |n: usize| (!names.is_empty()).then(|| names[n % names.len()].clone());
    let over =
        |world: &World, pod: &str| matches!(world.pods[pod].status.phase.as_str(), "Succeeded" | "Failed");
    match event {
        Wait(seconds) => world.now += seconds,
        PlanRun(place, gpus) => {
            world.plan_run(PLACES[*place], *gpus);
        }
        PlanWait => {
            world.plan_wait(Reason::Preempted, "others");
        }
        StalePlan => {
            if let Some(decision) = &mut world.decision {
                decision.basis -= 1;
            }
        }
        Bind(n) => {
            let members = world.members();
            let unbound = members.iter().filter(|m| world.pods[*m].spec.node_name.is_none()).nth(*n % 2);
            if let Some(pod) = unbound.cloned() {
                world.bind(&pod);
            }
        }
        Run(n) => {
            if let Some(pod) = pick(*n)
                .filter(|p| world.pods[p].status.phase == "Pending" && world.pods[p].spec.node_name.is_some())
            {
                let now = at(world.now).to_string();
                let pod = world.pods.get_mut(&pod).unwrap();
                *container(pod) = serde_json::from_value(json!({"running": {"startedAt": now}})).unwrap();
                pod.status.phase = "Running".into();
            }
        }
        Exit(n, code) => {
            if let Some(pod) = pick(*n).filter(|p| !over(world, p) && world.pods[p].spec.node_name.is_some())
            {
                world.exit_quietly(&pod, *code, "words");
            }
        }
        Leave(code) => {
            world.leave(*code);
        }
        Vanish(n) => {
            if let Some(pod) = pick(*n) {
                world.remove(&pod);
            }
        }
        Evict(n) => {
            if let Some(pod) = pick(*n).filter(|p| !over(world, p) && world.pods[p].spec.node_name.is_some())
            {
                world.evict(&pod);
            }
        }
        DeleteByOthers(n) => {
            if let Some(pod) = pick(*n).filter(|p| world.pods[p].spec.node_name.is_some()) {
                let due = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(world.now + 30));
                world.pods.get_mut(&pod).unwrap().metadata.deletion_timestamp.get_or_insert(due);
            }
        }
        NodeNotReady(n) => {
            if world.nodes.contains_key(NODES[*n]) {
                world.silence(NODES[*n]);
            }
        }
        Back(n) => {
            let now = at(world.now);
            let fact = world.nodes.entry(NODES[*n].to_owned()).or_insert_with(node);
            (fact.ready, fact.ready_changed) = (true, Some(now));
        }
        Reboot(n) => world.boot(NODES[*n], &format!("boot-{}", world.now)),
        DeleteNode(n) => drop(world.nodes.remove(NODES[*n])),
        Suspend(held) => {
            world.edit(json!({"suspend": held}));
        }
        EditGpus(max) => {
            world.edit(json!({"gpus": {"max": max}}));
        }
        Restart => {
            world.restart_operator();
        }
        Refuse => {
            world.create = match &world.create {
                None => {
                    Some(CreationOutcome::Refused { reason: Reason::QuotaExceeded, message: "quota".into() })
                }
                Some(_) => None,
            };
        }
        Unmade(from) => world.unmade = from.map(|from| (from, "failed calling webhook")),
        KubeletReports(n, evicted) => {
            let reported = if *evicted {
                let message = "Usage of EmptyDir volume \"a\" exceeds the limit \"1Mi\". ".to_owned();
                Ok(vec![PodEvent { reason: "Evicted".into(), message, ..PodEvent::default() }])
            } else {
                Err(EventsUnread { message: "not in time".into(), lasting: false })
            };
            if let Some(pod) = pick(*n) {
                world.kubelet_events.insert(pod, reported);
            }
        }
        Pin(n) => {
            if let Some(pod) = pick(*n) {
                world.pin(&pod);
            }
        }
        DeleteJob(orphan) => {
            world.delete_job(if *orphan { &["orphan"] } else { &["x.example/y"] });
        }
        Report(milli) => {
            if world.phase() == Phase::Running {
                world.report(*milli);
            }
        }
        Full(n, free) => {
            if let Some(fact) = world.nodes.get_mut(NODES[*n]) {
                fact.free_gpus = *free;
            }
        }
        Stray(attempt, older) => {
            let name = format!("bert-{attempt}-9");
            let uid = if *older { "older" } else { "12345678-job" };
            if !world.pods.contains_key(&name) {
                // A running pod of ours or of an older job, of any attempt, in a state that no valid history
                // reaches.
                world.admit(json!({"metadata": {"name": name, "namespace": "team",
                    "labels": {"andreas.dev/job": "bert", "andreas.dev/job-uid": uid,
                        "andreas.dev/attempt": attempt.to_string(), "andreas.dev/index": "9"},
                    "ownerReferences": [{"apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": "bert",
                        "uid": uid, "controller": true}]},
                    "spec": {"nodeName": "n4", "containers": [{"name": "train"}]}}));
                world.pods.get_mut(&name).unwrap().status.phase = "Running".into();
            }
        }
    }
    world.step_until_stable();
}

/// Sequences that are drawn; with `ANDREAS_LONG=1` (`make long WHAT=faults`) ten thousand.
fn cases() -> u32 {
    if std::env::var_os("ANDREAS_LONG").is_some_and(|value| value == "1") { 10_000 } else { 200 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_events_breaks_the_invariants(
        events in proptest::collection::vec(event(), 1..60),
        restart in any::<bool>(),
        exclusive in any::<bool>(),
        retries in 0i32..4,
    ) {
        let mut world = World::new(json!({
            "gpus": {"max": 4, "maxNodes": 2}, "retries": retries, "maxRunTime": "1h", "progressTimeout": "20m",
            "checkpoint": {"claimName": "ckpt", "exclusive": exclusive, "graceSeconds": 60}}));
        world.policy.node_loss_restart = restart;
        world.policy.node_loss_after = 120;
        for event in &events {
            let before = world.status();
            apply_event(&mut world, event);
            let after = world.status();
            prop_assert!(after.attempts >= before.attempts && after.decisions >= before.decisions);
            prop_assert!(!before.phase.is_terminal() || after.phase == before.phase);
            prop_assert!(after.history.len() + 1 >= before.history.len());
            // Settled: a step at any later instant before the next timer changes nothing.
            if let Some(next) = world.next.filter(|n| *n > at(world.now)) {
                let wait = (next.as_second() - at(world.now).as_second() - 1).max(0);
                world.now += wait / 2;
                let step = world.preview();
                // Requests without a verdict are retried.
                let tries = |a: &Action| matches!(a, Action::CreatePods { .. } | Action::CreateService(_));
                let new = step.actions.iter().filter(|a| world.unmade.is_none() || !tries(a)).count();
                prop_assert!(new == 0, "actions at {}: {:?}", world.now, step.actions.len());
                prop_assert_eq!(step.status, world.status());
            }
        }
        // In every case a deleted job holds nothing once its pods have ended, even if objects are kept.
        world.delete_job(&["x.example/y"]);
        world.nodes.values_mut().for_each(|fact| fact.ready = true);
        world.leave(143).wait(10_000);
        prop_assert_eq!(world.claim.clone(), Some(Claim::Nothing));
        prop_assert!(world.status().allocation.is_none());
    }
}
