//! The agent's two processes on a simulated node: what they do, and what is left when they die.

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
use support::{SLACK, Stage, TTL, until};

const FREE: &str = "GPU-free";
const HELD: &str = "GPU-held";

/// A node whose one GPU trains under a limit and whose other one rests.
async fn settled() -> (Stage, support::Process, support::Process) {
    let stage = Stage::new(&[FREE, HELD]).await;
    stage.hold("job-1-0", &[HELD]);
    stage.run(HELD, Some(77));
    stage.api.order(json!({"wake": 0, "limits": [{"pod": "team/job-1-0", "watts": 250}]}));
    let (setter, brain) = (stage.setter(), stage.brain());
    until("one rests, one is limited", SLACK, || {
        stage.gpu(FREE).locked_mhz == Some(210) && stage.gpu(HELD).limit_watts == 250.0
    })
    .await;
    (stage, setter, brain)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpus_rest_are_limited_and_are_awake_before_they_are_needed() {
    let (stage, _setter, _brain) = settled().await;
    until("the status says so", SLACK, || {
        stage.api.gpu(FREE) == ("Resting".into(), None)
            && stage.api.gpu(HELD) == ("Held".into(), Some("team/job-1-0".into()))
            && stage.api.status()["observedGeneration"] == 2
    })
    .await;
    let ready = &stage.api.status()["conditions"][0];
    assert_eq!((&ready["type"], &ready["status"]), (&json!("Ready"), &json!("True")), "{ready}");
    assert!(stage.api.status()["emptySince"].is_null());

    // Nothing changes: nothing is written, whatever the meters show, and no driver is called to set anything.
    let (writes, commands) = (stage.api.writes(), stage.gpu(FREE).commands);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(stage.api.writes(), writes);
    assert_eq!(stage.gpu(FREE).commands, commands);

    // A wake is acknowledged only once the GPU is awake, and it stays so for a while.
    let at_write: Arc<Mutex<Vec<bool>>> = Arc::default();
    let (seen, sim) = (Arc::clone(&at_write), Arc::clone(&stage.sim));
    stage.api.on_write(move |status| {
        if status["awake"] == 1 {
            seen.lock().push(sim.gpu(FREE).is_ok_and(|gpu| gpu.is_default()));
        }
    });
    stage.api.order(json!({"wake": 1, "limits": [{"pod": "team/job-1-0", "watts": 250}]}));
    let took = until("the wake is acknowledged", SLACK, || stage.api.status()["awake"] == 1).await;
    println!("awake after {took:?}");
    assert_eq!(at_write.lock().first(), Some(&true), "acknowledged before it was true");
    assert_eq!(stage.api.status()["observedGeneration"], 3);

    // It rests again; then a pod of others comes unannounced, and it wakes.
    until("it rests again", SLACK, || !stage.is_default(FREE)).await;
    stage.hold("foreign", &[FREE]);
    let took = until("a GPU that is taken wakes", SLACK, || stage.is_default(FREE)).await;
    println!("woken by a foreign pod after {took:?}");
    until("its holder is told", SLACK, || stage.api.gpu(FREE).1.as_deref() == Some("team/foreign")).await;
    stage.hold("foreign", &[]);
    stage.hold("job-1-0", &[]);
    stage.run(HELD, None);
    until("an empty node says since when", SLACK, || stage.api.status()["emptySince"].is_string()).await;
    until("both rest", SLACK, || !stage.is_default(FREE) && !stage.is_default(HELD)).await;

    let (code, metrics) = stage.ask("/metrics").await;
    assert_eq!(code, 200);
    for line in [
        "andreas_gpu_power_watts{uuid=\"GPU-free\",gpu_type=\"NVIDIA-A100-SXM4-80GB\"} 53.7",
        "andreas_gpu_state{uuid=\"GPU-free\",gpu_type=\"NVIDIA-A100-SXM4-80GB\",state=\"resting\"} 1",
        "andreas_gpu_held_energy_joules_total{job_namespace=\"team\"",
        "andreas_gpu_rest_seconds_total",
        "andreas_gpu_rest_saved_joules_total",
        "andreas_agent_setter_up 1",
        "andreas_agent_wake_duration_seconds_count 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    assert_eq!(stage.ask("/readyz").await.0, 200);

    // Nobody leads any more: everything is as it was found.
    stage.api.stop_leading();
    until("the Lease stands still", TTL + SLACK, || stage.is_default(FREE) && stage.is_default(HELD)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_for_holders_is_answered_by_what_the_kubelet_and_the_driver_say_after_it() {
    let (stage, _setter, brain) = settled().await;
    let held_by = || stage.api.gpu(HELD).1;
    until("the holder is told", SLACK, || held_by().as_deref() == Some("team/job-1-0")).await;
    // when the pod is deleted by force: the kubelet drops it, and its process goes on
    stage.hold("job-1-0", &[]);
    stage.api.order(json!({"wake": 0, "look": 1}));
    until("the question is answered", SLACK, || stage.api.status()["looked"] == 1).await;
    assert_eq!(held_by().as_deref(), Some("team/job-1-0"));
    // also by an agent that was started again
    brain.kill();
    let _brain = stage.brain();
    stage.api.order(json!({"wake": 0, "look": 2}));
    until("the next is answered", SLACK, || stage.api.status()["looked"] == 2).await;
    assert_eq!(held_by().as_deref(), Some("team/job-1-0"));
    // then the GPU is free once the process has ended
    stage.run(HELD, None);
    until("nobody holds it", SLACK, || held_by().is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_killed_gpus_get_back_what_they_had() {
    let (stage, setter, brain) = settled().await;
    let restored = || stage.is_default(FREE) && stage.is_default(HELD);
    let settled_again = || !stage.is_default(FREE) && !stage.is_default(HELD);

    // The brain: the setter hears nothing for its time to live.
    brain.kill();
    let took = until("without a brain", TTL + SLACK, restored).await;
    println!("restored {took:?} after the brain was killed");
    let brain = stage.brain();
    until("settled again", SLACK, settled_again).await;

    // The setter: its next life restores first of all; with the brain dead too nothing is set again.
    brain.kill();
    setter.kill();
    assert!(settled_again(), "nobody could restore: none stood by");
    let setter = stage.setter();
    let took = until("a new setter", SLACK, restored).await;
    println!("restored {took:?} after both were killed and the setter was started again");
    let brain = stage.brain();
    until("settled again", SLACK, settled_again).await;

    // The setter alone: started again it restores, and goes on with the brain's next word.
    setter.kill();
    let commands = stage.gpu(HELD).commands;
    let setter = stage.setter();
    until("restored and set again", SLACK, || stage.gpu(HELD).commands >= commands + 2 && settled_again())
        .await;

    // An orderly end of either leaves nothing, and a brain says that it has gone.
    brain.signal(Signal::TERM);
    until("the brain's last word", SLACK, restored).await;
    until("nobody waits for it", SLACK, || stage.api.status()["agentVersion"].is_null()).await;
    assert_eq!(stage.api.status()["conditions"][0]["reason"], "AgentEnded");
    drop(brain);
    let _brain = stage.brain();
    until("settled again", SLACK, settled_again).await;
    let mut setter = setter;
    setter.signal(Signal::TERM);
    assert!(setter.0.wait().unwrap().success());
    assert!(restored(), "the setter ends only when everything is restored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setter_that_is_killed_is_followed_at_once_by_the_one_that_stands_by() {
    let (stage, setter, brain) = settled().await;
    let restored = || stage.is_default(FREE) && stage.is_default(HELD);
    let standby = stage.setter();
    // Nothing that it does is seen: the first one works.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!restored());

    // With the brain dead too nobody asks for anything any more; nobody starts anything again either.
    brain.kill();
    setter.kill();
    let took = until("restored by the one that stood by", SLACK, restored).await;
    println!("restored {took:?} after setter and brain were killed, with a standby");

    // It serves the next brain; and the next standby follows it when it is killed alone.
    let next = stage.setter();
    let _brain = stage.brain();
    until("settled again", SLACK, || !stage.is_default(FREE) && !stage.is_default(HELD)).await;
    let commands = stage.gpu(HELD).commands;
    standby.kill();
    until("restored and set again", SLACK, || stage.gpu(HELD).commands >= commands + 2 && !restored()).await;

    // Standing by ends in order too.
    let mut waits = stage.setter();
    tokio::time::sleep(Duration::from_millis(500)).await;
    waits.signal(Signal::TERM);
    assert!(waits.0.wait().unwrap().success());
    drop(next);
}

/// Kills between two checks that everything is restored.
const KILLS_A_ROUND: usize = 25;
/// Longest life of a process that is about to be killed, ms: at the longest it has set everything, at the shortest it
/// was not up yet, between them it is recording, restoring or setting.
const LONGEST_LIFE: u32 = 700;

/// With `ANDREAS_LONG=1` (`make kills`) a thousand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_any_number_of_times_gpus_get_back_what_they_had() {
    let full = std::env::var_os("ANDREAS_LONG").is_some_and(|value| value == "1");
    let kills = if full { 1_000 } else { 2 * KILLS_A_ROUND };
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut number = |below: u32| random.next_u32() % below;
    let (stage, mut setter, mut brain) = settled().await;
    let settled_again = || stage.gpu(FREE).locked_mhz == Some(210) && stage.gpu(HELD).limit_watts == 250.0;
    let (mut killed, mut slowest) = ([0, 0, 0], Duration::ZERO);
    while killed.iter().sum::<usize>() < kills {
        for _ in 0..KILLS_A_ROUND {
            tokio::time::sleep(Duration::from_millis(number(LONGEST_LIFE).into())).await;
            let who = number(3) as usize;
            if who != 1 {
                setter.kill();
                setter = stage.setter();
            }
            if who != 0 {
                brain.kill();
                brain = stage.brain();
            }
            killed[who] += 1;
            let (free, held) = (stage.gpu(FREE), stage.gpu(HELD));
            let as_found_or_set = (free.is_default() || free.locked_mhz == Some(210))
                && (held.is_default() || held.limit_watts == 250.0);
            assert!(as_found_or_set, "a setting that nobody asked for after {killed:?}: {free:?} {held:?}");
        }
        // They go on with their work, ...
        loop {
            until("set again by the last ones started", SLACK, settled_again).await;
            brain.kill();
            setter.kill();
            if settled_again() {
                break;
            }
            // What was set before them had just been restored.
            (setter, brain) = (stage.setter(), stage.brain());
        }
        // ... and what they remember of before is right, however often it was written and read.
        setter = stage.setter();
        let restored = || stage.is_default(FREE) && stage.is_default(HELD);
        slowest = slowest.max(until("restored by the next setter", SLACK, restored).await);
        brain = stage.brain();
        until("settled again", SLACK, settled_again).await;
    }
    println!("killed setter, agent, both: {killed:?}; restored within {slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_pod_used_is_told_when_it_lets_go_also_by_an_agent_that_was_started_again() {
    let stage = Stage::new(&[FREE, HELD]).await;
    let (_setter, brain) = (stage.setter(), stage.brain());
    until("a status", SLACK, || stage.api.gpu(HELD).0 == "Free" || stage.api.gpu(HELD).0 == "Resting").await;
    let before = stage.gpu(HELD).joules;
    stage.hold("job-1-0", &[HELD]);
    stage.run(HELD, Some(77));
    let begin = || {
        let gpus = stage.api.status()["gpus"].as_array().cloned().unwrap_or_default();
        let gpu = gpus.into_iter().find(|gpu| gpu["uuid"] == HELD).unwrap_or_default();
        gpu["heldFrom"].as_i64().filter(|_| gpu["holder"] == "team/job-1-0")
    };
    until("its share has begun", SLACK, || begin().is_some()).await;
    let from = begin();
    tokio::time::sleep(Duration::from_secs(2)).await;
    brain.kill();
    let _brain = stage.brain();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(begin(), from, "it goes on");
    stage.hold("job-1-0", &[]);
    stage.run(HELD, None);
    until("what it used is told", SLACK, || stage.api.status()["released"].is_array()).await;
    let used = stage.gpu(HELD).joules - before;
    let told = stage.api.status()["released"][0].clone();
    assert_eq!((&told["pod"], &told["gpus"]), (&json!("team/job-1-0"), &json!(1)));
    let joules = told["joules"].as_f64().unwrap();
    assert!(joules > 1_000.0 && joules <= used + 1.0, "{joules} of {used} J");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_or_lost_gpu_stops_no_other() {
    let stage = Stage::new(&[FREE, "GPU-hangs", "GPU-lost"]).await;
    let (_setter, _brain) = (stage.setter(), stage.brain());
    until("all rest", SLACK, || stage.sim.gpus().iter().all(|gpu| !gpu.is_default())).await;
    stage.sim.set_fault("GPU-hangs", Fault::Hang).unwrap();
    stage.sim.set_fault("GPU-lost", Fault::Lost).unwrap();
    until("the lost one is told", SLACK, || stage.api.gpu("GPU-lost").0 == "Unhealthy").await;
    stage.hold("job-1-0", &[FREE]);
    let took = until("the healthy one wakes", SLACK, || stage.is_default(FREE)).await;
    println!("woken after {took:?} beside a hanging GPU");
    until("the hanging one is told", Duration::from_secs(15) + SLACK, || {
        stage.api.gpu("GPU-hangs").0 == "Unhealthy"
    })
    .await;
    let unhealthy = stage.api.status()["conditions"][1].clone();
    assert_eq!((&unhealthy["type"], &unhealthy["status"]), (&json!("Unhealthy"), &json!("True")));
    assert_eq!(stage.ask("/livez").await.0, 200, "no restart helps");

    // The GPU comes back: it is used again, and what was asked of it in the meantime is done.
    stage.sim.set_fault("GPU-hangs", Fault::None).unwrap();
    stage.hold("job-1-1", &["GPU-hangs"]);
    until("it is well and awake", SLACK, || {
        stage.api.gpu("GPU-hangs").0 == "Held" && stage.is_default("GPU-hangs")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_setter_gives_up_what_it_does_not_need() {
    let stage = Stage::new(&[FREE]).await;
    let (setter, brain) = (stage.setter(), stage.brain());
    until("it rests", SLACK, || !stage.is_default(FREE)).await;
    let of = |pid: u32, file: &str| format!("/proc/{pid}/{file}");
    let caps = |pid: u32| {
        let status = std::fs::read_to_string(of(pid, "status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("CapEff:\t").map(str::to_owned))
    };
    let net = |pid: u32| std::fs::read_link(of(pid, "ns/net")).ok();
    assert_eq!(caps(brain.0.id()).as_deref(), Some("0000000000000000"), "the brain has no capability");
    if rustix::process::geteuid().is_root() {
        assert_eq!(caps(setter.0.id()).as_deref(), Some("0000000000200000"), "CAP_SYS_ADMIN alone");
        if std::process::Command::new("unshare")
            .args(["-n", "true"])
            .status()
            .is_ok_and(|ended| ended.success())
        {
            assert_ne!(net(setter.0.id()), net(std::process::id()), "a network of its own, an empty one");
        }
    }
    let state = std::fs::metadata(stage.folder.path().join("state")).unwrap();
    let socket = std::fs::metadata(stage.folder.path().join("setter.sock")).unwrap();
    assert_eq!((state.mode() & 0o777, socket.mode() & 0o777), (0o700, 0o600));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_only_observes_sets_nothing_and_keeps_nobody_waiting() {
    let stage = Stage::new(&[FREE]).await;
    let _brain = stage.brain_with(&["--observe"]);
    stage.api.order(json!({"wake": 5}));
    until("the wake is acknowledged", SLACK, || stage.api.status()["awake"] == 5).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(stage.gpu(FREE).commands, 0);
    assert_eq!(stage.api.gpu(FREE).0, "Free");
}
