//! The agent's two processes on a simulated node: what they do, and what is left when they die.

#[path = "processes/driver.rs"]
mod driver;
#[path = "processes/faults.rs"]
mod faults;
#[path = "processes/owners.rs"]
mod owners;
#[path = "processes/reports.rs"]
mod reports;
mod support;

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use nvidia_ml::Fault;
use parking_lot::Mutex;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use rustix::process::Signal;
use serde_json::json;
use support::{SLACK, TTL, TestNode, stays, until};

const FREE: &str = "GPU-free";
const HELD: &str = "GPU-held";

/// A node whose one GPU trains under a limit and whose other one rests.
async fn settled() -> (TestNode, support::Process, support::Process) {
    let node = TestNode::new(&[FREE, HELD]).await;
    node.hold("job-1-0", &[HELD]);
    node.run(HELD, Some(77));
    node.api.order(json!({"wakeGeneration": 0, "limits": [{"pod": "team/job-1-0", "watts": 250}]}));
    let (setter, agent) = (node.setter(), node.agent());
    until("one rests, one is limited", SLACK, || {
        node.gpu(FREE).locked_mhz == Some(210) && node.gpu(HELD).limit_watts == 250.0
    })
    .await;
    (node, setter, agent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpus_rest_are_limited_and_are_awake_before_they_are_needed() {
    let (node, _setter, _agent) = settled().await;
    until("the status says so", SLACK, || {
        node.api.gpu(FREE) == ("Resting".into(), None)
            && node.api.gpu(HELD) == ("Held".into(), Some("team/job-1-0".into()))
            && node.api.status()["observedGeneration"] == 2
    })
    .await;
    let ready = &node.api.status()["conditions"][0];
    assert_eq!((&ready["type"], &ready["status"]), (&json!("Ready"), &json!("True")), "{ready}");
    assert!(node.api.status()["emptySince"].is_null());

    // Nothing changes: nothing is written, whatever the meters show, and no driver is called to set anything.
    let (writes, commands) = (node.api.writes(), node.gpu(FREE).commands);
    stays("nothing is written or set", Duration::from_secs(3), || {
        node.api.writes() == writes && node.gpu(FREE).commands == commands
    })
    .await;

    // A wake is acknowledged only once the GPU is awake, and it stays so for a while.
    let at_write: Arc<Mutex<Vec<bool>>> = Arc::default();
    let (seen, sim) = (Arc::clone(&at_write), Arc::clone(&node.sim));
    node.api.on_write(move |status| {
        if status["observedWakeGeneration"] == 1 {
            seen.lock().push(sim.gpu(FREE).is_ok_and(|gpu| gpu.is_default()));
        }
    });
    node.api.order(json!({"wakeGeneration": 1, "limits": [{"pod": "team/job-1-0", "watts": 250}]}));
    let took =
        until("the wake is acknowledged", SLACK, || node.api.status()["observedWakeGeneration"] == 1).await;
    println!("awake after {took:?}");
    assert_eq!(at_write.lock().first(), Some(&true), "acknowledged before it was true");
    assert_eq!(node.api.status()["observedGeneration"], 3);

    // It rests again; then a pod of others comes unannounced, and it wakes.
    until("it rests again", SLACK, || !node.is_default(FREE)).await;
    node.hold("foreign", &[FREE]);
    let took = until("a GPU that is taken wakes", SLACK, || node.is_default(FREE)).await;
    println!("woken by a foreign pod after {took:?}");
    until("its holder is reported", SLACK, || node.api.gpu(FREE).1.as_deref() == Some("team/foreign")).await;
    node.hold("foreign", &[]);
    node.hold("job-1-0", &[]);
    node.run(HELD, None);
    until("an empty node says since when", SLACK, || node.api.status()["emptySince"].is_string()).await;
    until("both rest", SLACK, || !node.is_default(FREE) && !node.is_default(HELD)).await;

    let draw = "andreas_gpu_power_watts{uuid=\"GPU-free\",gpu_type=\"NVIDIA-A100-SXM4-80GB\"} 53.7";
    let metrics = node.metrics_once("its bare idle", |metrics| metrics.contains(draw)).await;
    for line in [
        "andreas_gpu_state{uuid=\"GPU-free\",gpu_type=\"NVIDIA-A100-SXM4-80GB\",state=\"resting\"} 1",
        "andreas_gpu_held_energy_joules_total{job_namespace=\"team\"",
        "andreas_gpu_rest_saved_joules_total",
        "andreas_agent_setter_up 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    assert_eq!(node.ask("/readyz").await.0, 200);

    // Nobody leads any more: everything is as it was found.
    node.api.stop_leading();
    until("the Lease stands still", TTL + SLACK, || node.is_default(FREE) && node.is_default(HELD)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_for_holders_is_answered_by_what_the_kubelet_and_the_driver_say_after_it() {
    let (node, _setter, agent) = settled().await;
    let held_by = || node.api.gpu(HELD).1;
    until("the holder is told", SLACK, || held_by().as_deref() == Some("team/job-1-0")).await;
    // when the pod is deleted by force: the kubelet drops it, and its process goes on
    node.hold("job-1-0", &[]);
    node.api.order(json!({"wakeGeneration": 0, "holdersGeneration": 1}));
    until("the question is answered", SLACK, || node.api.status()["observedHoldersGeneration"] == 1).await;
    assert_eq!(held_by().as_deref(), Some("team/job-1-0"));
    // also by an agent that was started again
    agent.kill();
    let _agent = node.agent();
    node.api.order(json!({"wakeGeneration": 0, "holdersGeneration": 2}));
    until("the next is answered", SLACK, || node.api.status()["observedHoldersGeneration"] == 2).await;
    assert_eq!(held_by().as_deref(), Some("team/job-1-0"));
    // then the GPU is free once the process has ended
    node.run(HELD, None);
    until("nobody holds it", SLACK, || held_by().is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_for_holders_is_not_answered_while_nobody_knows_who_holds_what() {
    let (node, _setter, _agent) = settled().await;
    let observed = || node.api.status()["observedHoldersGeneration"].as_i64().unwrap_or(0);
    // given a pod with a device that is none of the node's GPUs
    node.hold("strange", &["GPU-of-nobody"]);
    until("the free GPU is no longer at rest", SLACK, || node.is_default(FREE)).await;
    // then no answer says that a GPU is free, which it may be
    node.api.order(json!({"wakeGeneration": 0, "holdersGeneration": 1}));
    stays("the question is open", Duration::from_secs(3), || observed() == 0).await;
    // until the pod has gone
    node.hold("strange", &[]);
    until("the question is answered", SLACK, || observed() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_driver_names_no_process_of_a_pod_nothing_rests_and_no_gpu_is_said_to_be_free() {
    let node = TestNode::new(&[FREE, HELD]).await;
    node.hold("job-1-0", &[HELD]);
    node.run(HELD, Some(77));
    node.api.order(json!({"wakeGeneration": 0, "limits": [{"pod": "team/job-1-0", "watts": 250}]}));
    let (_setter, _agent) = (node.setter(), node.agent_with(&["--own-processes-only"]));
    until("one is limited", SLACK, || node.gpu(HELD).limit_watts == 250.0).await;
    // when the pod is deleted by force, and its process goes on unseen
    node.hold("job-1-0", &[]);
    node.api.order(json!({"wakeGeneration": 0, "holdersGeneration": 1}));
    stays("the question is open, and nothing rests", Duration::from_secs(4), || {
        node.api.status()["observedHoldersGeneration"].as_i64().unwrap_or(0) == 0 && node.is_default(FREE)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_on_a_broken_gpu_keeps_its_power_limit() {
    let (node, _setter, _agent) = settled().await;
    // The subscription to errors is made in the background.
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.sim.raise_xid(HELD, 48).expect("an error");
    until("it is unhealthy", SLACK, || node.api.gpu(HELD).0 == "Unhealthy").await;
    stays("its limit", Duration::from_secs(2), || node.gpu(HELD).limit_watts == 250.0).await;
    node.hold("job-1-0", &[]);
    node.run(HELD, None);
    until("nobody holds it", SLACK, || node.is_default(HELD)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_limit_is_acknowledged_only_while_a_leader_is_seen() {
    let (node, _setter, _agent) = settled().await;
    let acknowledged = || node.api.status()["observedGeneration"].as_i64().unwrap_or(0);
    until("the limit is acknowledged", SLACK, || acknowledged() == 2).await;
    node.api.stop_leading();
    until("without its limit", TTL + SLACK, || node.is_default(HELD)).await;
    until("it counts for nothing", SLACK, || acknowledged() < 2).await;
    node.api.order(json!({"wakeGeneration": 1, "limits": [{"pod": "team/job-1-0", "watts": 300}]}));
    until("the wake is acknowledged", SLACK, || node.api.status()["observedWakeGeneration"] == 1).await;
    stays("nor does another one", Duration::from_secs(2), || acknowledged() < 3).await;
    node.api.lead();
    until("limited", SLACK, || node.gpu(HELD).limit_watts == 300.0 && acknowledged() == 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_kubelet_does_not_answer_pods_keep_their_power_limits_and_free_gpus_are_awake() {
    let (node, _setter, agent) = settled().await;
    until("the holder is told", SLACK, || node.api.gpu(HELD).1.as_deref() == Some("team/job-1-0")).await;
    node.stop_kubelet();
    until("the free one wakes", SLACK, || node.is_default(FREE)).await;
    // The operator counts on the limit as long as it is said to be carried out.
    let limits = json!([{"pod": "team/job-1-0", "watts": 250}]);
    node.api.order(json!({"wakeGeneration": 1, "limits": limits, "holdersGeneration": 1}));
    until("the wake is acknowledged", SLACK, || node.api.status()["observedWakeGeneration"] == 1).await;
    stays("limited, awake, and nobody says who holds what now", Duration::from_secs(3), || {
        node.gpu(HELD).limit_watts == 250.0
            && node.is_default(FREE)
            && node.api.gpu(HELD).1.as_deref() == Some("team/job-1-0")
            && node.api.status()["observedHoldersGeneration"].as_i64().unwrap_or(0) == 0
    })
    .await;
    // The operator goes on to take limits back.
    node.api.order(json!({"wakeGeneration": 1}));
    until("without its limit", SLACK, || node.is_default(HELD)).await;
    node.api.order(json!({"wakeGeneration": 1, "limits": limits}));
    until("limited again", SLACK, || node.gpu(HELD).limit_watts == 250.0).await;
    // An agent that never had an answer knows no holder.
    agent.kill();
    let _agent = node.agent();
    until("no limit for an unknown pod", SLACK, || node.is_default(HELD)).await;
    node.start_kubelet();
    until("as before", SLACK, || node.gpu(HELD).limit_watts == 250.0 && !node.is_default(FREE)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_killed_gpus_get_back_what_they_had() {
    let (node, setter, agent) = settled().await;
    let restored = || node.is_default(FREE) && node.is_default(HELD);
    let settled_again = || !node.is_default(FREE) && !node.is_default(HELD);

    // The agent: the setter gets no request for its time to live.
    agent.kill();
    let took = until("without an agent", TTL + SLACK, restored).await;
    println!("restored {took:?} after the agent was killed");
    let agent = node.agent();
    until("settled again", SLACK, settled_again).await;

    // The setter: its next life restores first of all; with the agent dead too nothing is set again.
    agent.kill();
    setter.kill();
    assert!(settled_again(), "nobody could restore: none stood by");
    let setter = node.setter();
    let took = until("a new setter", SLACK, restored).await;
    println!("restored {took:?} after both were killed and the setter was started again");
    let agent = node.agent();
    until("settled again", SLACK, settled_again).await;

    // The setter alone: started again it restores, and goes on with the agent's next request.
    setter.kill();
    let commands = node.gpu(HELD).commands;
    let setter = node.setter();
    until("restored and set again", SLACK, || node.gpu(HELD).commands >= commands + 2 && settled_again())
        .await;

    // An orderly end of either leaves nothing, and an agent says that it has gone.
    assert_eq!(node.api.status()["reportSeconds"], 60);
    agent.signal(Signal::TERM);
    until("the agent's last request", SLACK, restored).await;
    until("nobody waits for it", SLACK, || node.api.status()["agentVersion"].is_null()).await;
    assert!(node.api.status()["reportSeconds"].is_null(), "the next one may be of an earlier build");
    assert_eq!(node.api.status()["conditions"][0]["reason"], "AgentEnded");
    drop(agent);
    let _agent = node.agent();
    until("settled again", SLACK, settled_again).await;
    let mut setter = setter;
    setter.signal(Signal::TERM);
    assert!(setter.0.wait().unwrap().success());
    assert!(restored(), "the setter ends only when everything is restored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setter_that_is_killed_is_followed_at_once_by_the_one_that_stands_by() {
    let (node, setter, agent) = settled().await;
    let restored = || node.is_default(FREE) && node.is_default(HELD);
    let standby = node.setter();
    until("another stands by", SLACK, || standby.stands_by()).await;
    // Nothing that it does is seen: the first one works.
    stays("set by the first one", Duration::from_secs(1), || !restored()).await;

    // With the agent dead too nobody asks for anything any more; nobody starts anything again either.
    agent.kill();
    setter.kill();
    let took = until("restored by the one that stood by", SLACK, restored).await;
    println!("restored {took:?} after setter and agent were killed, with a standby");

    // It serves the next agent; and the next standby follows it when it is killed alone.
    let next = node.setter();
    let _agent = node.agent();
    until("settled again", SLACK, || !node.is_default(FREE) && !node.is_default(HELD)).await;
    let commands = node.gpu(HELD).commands;
    standby.kill();
    until("restored and set again", SLACK, || node.gpu(HELD).commands >= commands + 2 && !restored()).await;

    // Standing by ends in order too.
    let mut waits = node.setter();
    until("one more stands by", SLACK, || waits.stands_by()).await;
    waits.signal(Signal::TERM);
    assert!(waits.0.wait().unwrap().success());
    drop(next);
}

/// Kills between two checks that everything is restored.
const KILLS_A_ROUND: usize = 25;
/// Longest life of a process that is about to be killed, ms: at the longest it has set everything, at the shortest it
/// was not up yet, between them it is recording, restoring or setting.
const MAX_LIFE: u32 = 700;

/// With `ANDREAS_LONG=1` (`make long WHAT=kills`) a thousand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_any_number_of_times_gpus_get_back_what_they_had() {
    let full = std::env::var_os("ANDREAS_LONG").is_some_and(|value| value == "1");
    let kills = if full { 1_000 } else { 2 * KILLS_A_ROUND };
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut number = |below: u32| random.next_u32() % below;
    let (node, mut setter, mut agent) = settled().await;
    let settled_again = || node.gpu(FREE).locked_mhz == Some(210) && node.gpu(HELD).limit_watts == 250.0;
    let (mut killed, mut slowest) = ([0, 0, 0], Duration::ZERO);
    while killed.iter().sum::<usize>() < kills {
        for _ in 0..KILLS_A_ROUND {
            // A life of any length: that is what makes the moment any moment.
            tokio::time::sleep(Duration::from_millis(number(MAX_LIFE).into())).await;
            let who = number(3) as usize;
            if who != 1 {
                setter.kill();
                setter = node.setter();
            }
            if who != 0 {
                agent.kill();
                agent = node.agent();
            }
            killed[who] += 1;
            let (free, held) = (node.gpu(FREE), node.gpu(HELD));
            let as_found_or_set = (free.is_default() || free.locked_mhz == Some(210))
                && (held.is_default() || held.limit_watts == 250.0);
            assert!(as_found_or_set, "a setting that nobody asked for after {killed:?}: {free:?} {held:?}");
        }
        // They go on with their work, ...
        loop {
            until("set again by the last ones started", SLACK, settled_again).await;
            agent.kill();
            setter.kill();
            if settled_again() {
                break;
            }
            // What was set before them had just been restored.
            (setter, agent) = (node.setter(), node.agent());
        }
        // ... and what they remember of before is right, however often it was written and read.
        setter = node.setter();
        let restored = || node.is_default(FREE) && node.is_default(HELD);
        slowest = slowest.max(until("restored by the next setter", SLACK, restored).await);
        agent = node.agent();
        until("settled again", SLACK, settled_again).await;
    }
    println!("killed setter, agent, both: {killed:?}; restored within {slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_pod_used_is_reported_when_it_lets_go_also_by_an_agent_that_was_started_again() {
    let node = TestNode::new(&[FREE, HELD]).await;
    let (_setter, agent) = (node.setter(), node.agent());
    until("a status", SLACK, || node.api.gpu(HELD).0 == "Free" || node.api.gpu(HELD).0 == "Resting").await;
    let before = node.gpu(HELD).joules;
    node.hold("job-1-0", &[HELD]);
    node.run(HELD, Some(77));
    let begin = || {
        let gpus = node.api.status()["gpus"].as_array().cloned().unwrap_or_default();
        let gpu = gpus.into_iter().find(|gpu| gpu["uuid"] == HELD).unwrap_or_default();
        gpu["heldFrom"].as_i64().filter(|_| gpu["holder"] == "team/job-1-0")
    };
    until("its share has begun", SLACK, || begin().is_some()).await;
    let from = begin();
    // At full work, 400 W, each of the two agents is there for two seconds.
    let drawn = |joules: f64| node.gpu(HELD).joules >= before + joules;
    until("it works beside the first agent", SLACK, || drawn(800.0)).await;
    agent.kill();
    let _agent = node.agent();
    until("it works beside the next one", SLACK, || drawn(1_600.0)).await;
    assert_eq!(begin(), from, "it goes on");
    node.hold("job-1-0", &[]);
    node.run(HELD, None);
    until("its energy is reported", SLACK, || node.api.status()["released"].is_array()).await;
    let used = node.gpu(HELD).joules - before;
    let released = node.api.status()["released"][0].clone();
    assert_eq!((&released["pod"], &released["gpus"]), (&json!("team/job-1-0"), &json!(1)));
    let joules = released["joules"].as_f64().unwrap();
    assert!(joules > 1_000.0 && joules <= used + 1.0, "{joules} of {used} J");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_or_lost_gpu_stops_no_other() {
    let node = TestNode::new(&[FREE, "GPU-hangs", "GPU-lost"]).await;
    let (_setter, _agent) = (node.setter(), node.agent());
    until("all rest", SLACK, || node.sim.gpus().iter().all(|gpu| !gpu.is_default())).await;
    node.sim.set_fault("GPU-hangs", Fault::Hang).unwrap();
    node.sim.set_fault("GPU-lost", Fault::Lost).unwrap();
    until("the lost one is reported", SLACK, || node.api.gpu("GPU-lost").0 == "Unhealthy").await;
    node.hold("job-1-0", &[FREE]);
    let took = until("the healthy one wakes", SLACK, || node.is_default(FREE)).await;
    println!("woken after {took:?} beside a hanging GPU");
    until("the hanging one is reported", Duration::from_secs(15) + SLACK, || {
        node.api.gpu("GPU-hangs").0 == "Unhealthy"
    })
    .await;
    let unhealthy = node.api.status()["conditions"][1].clone();
    assert_eq!((&unhealthy["type"], &unhealthy["status"]), (&json!("Unhealthy"), &json!("True")));
    assert_eq!(node.ask("/livez").await.0, 200, "no restart helps");
    let of_lost = async |start: &str| -> Vec<String> {
        let (_, metrics) = node.ask("/metrics").await;
        let start = format!("{start}{{uuid=\"GPU-lost\",");
        metrics.lines().filter(|line| line.starts_with(&start)).map(str::to_owned).collect()
    };
    assert!(of_lost("andreas_gpu_power_watts").await.is_empty(), "no reading of a GPU that is lost");
    let broken = of_lost("andreas_gpu_state").await;
    assert!(broken.len() == 4 && broken.iter().all(|line| line.contains("NVIDIA-A100")), "{broken:?}");

    // The GPUs come back: they are used again, and what was asked of them in the meantime is done.
    node.sim.set_fault("GPU-lost", Fault::None).unwrap();
    until("it is well", SLACK, || node.api.gpu("GPU-lost").0 != "Unhealthy").await;
    node.sim.set_fault("GPU-hangs", Fault::None).unwrap();
    node.hold("job-1-1", &["GPU-hangs"]);
    until("it is well and awake", SLACK, || {
        node.api.gpu("GPU-hangs").0 == "Held" && node.is_default("GPU-hangs")
    })
    .await;
    node.metrics_once("none is unhealthy", |metrics| {
        !metrics.contains("gpu_type=\"\"") && !metrics.contains("state=\"unhealthy\"} 1")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_that_is_lost_before_the_agent_starts_is_seen_and_forgotten_when_its_type_is_known() {
    let node = TestNode::new(&["GPU-lost"]).await;
    node.sim.set_fault("GPU-lost", Fault::Lost).unwrap();
    let _agent = node.agent_with(&["--observe"]);
    until("it is reported", SLACK, || node.api.gpu("GPU-lost").0 == "Unhealthy").await;
    let unhealthy = "andreas_gpu_state{uuid=\"GPU-lost\",gpu_type=\"\",state=\"unhealthy\"} 1";
    let (_, metrics) = node.ask("/metrics").await;
    assert!(metrics.contains(unhealthy), "the alert needs it:\n{metrics}");
    node.sim.set_fault("GPU-lost", Fault::None).unwrap();
    until("it is well", SLACK, || node.api.gpu("GPU-lost").0 == "Free").await;
    node.metrics_once("its type is known", |metrics| {
        !metrics.contains("gpu_type=\"\"") && metrics.contains("NVIDIA-A100")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_setter_gives_up_what_it_does_not_need() {
    let node = TestNode::new(&[FREE]).await;
    let (setter, agent) = (node.setter(), node.agent());
    until("it rests", SLACK, || !node.is_default(FREE)).await;
    let of = |pid: u32, file: &str| format!("/proc/{pid}/{file}");
    let caps = |pid: u32| {
        let status = std::fs::read_to_string(of(pid, "status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("CapEff:\t").map(str::to_owned))
    };
    let net = |pid: u32| std::fs::read_link(of(pid, "ns/net")).ok();
    assert_eq!(caps(agent.0.id()).as_deref(), Some("0000000000000000"), "the agent has no capability");
    if rustix::process::geteuid().is_root() {
        assert_eq!(caps(setter.0.id()).as_deref(), Some("0000000000200000"), "CAP_SYS_ADMIN alone");
        if std::process::Command::new("unshare")
            .args(["-n", "true"])
            .status()
            .is_ok_and(|ended| ended.success())
        {
            assert_ne!(net(setter.0.id()), net(std::process::id()), "a network of its own, an empty one");
        } else {
            println!("no network can be made here: that of the setter was not compared");
        }
    } else {
        println!("not root: capabilities and network of the setter were not compared");
    }
    let state = std::fs::metadata(node.folder.path().join("state")).unwrap();
    let socket = std::fs::metadata(node.folder.path().join("setter.sock")).unwrap();
    assert_eq!((state.mode() & 0o777, socket.mode() & 0o777), (0o700, 0o600));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_only_observes_sets_nothing_and_keeps_nobody_waiting() {
    let node = TestNode::new(&[FREE]).await;
    let _agent = node.agent_with(&["--observe"]);
    node.api.order(json!({"wakeGeneration": 5}));
    until("the wake is acknowledged", SLACK, || node.api.status()["observedWakeGeneration"] == 5).await;
    stays("nothing is set", Duration::from_secs(2), || node.gpu(FREE).commands == 0).await;
    assert_eq!(node.api.gpu(FREE).0, "Free");
    let (_, metrics) = node.ask("/metrics").await;
    assert!(metrics.contains("andreas_gpu_state"), "{metrics}");
    assert!(
        !metrics.contains("andreas_agent_setter_up"),
        "no setter is down where there is none:\n{metrics}"
    );
}
