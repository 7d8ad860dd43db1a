//! What the agent says of a node's GPUs, with its real processes: energy, health, rest that saves or does not, and what a
//! person at the node sees.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::{SLACK, TestNode, own_address, stays, until};
use nvidia_ml::{Curve, Fault, GpuSpec, MemoryErrors, Spec};
use rustix::process::Signal;
use serde_json::{Value, json};

const A: &str = "GPU-a";
const B: &str = "GPU-b";

fn gpu(node: &TestNode, uuid: &str) -> Value {
    let gpus = node.api.status()["gpus"].as_array().cloned().unwrap_or_default();
    gpus.into_iter().find(|gpu| gpu["uuid"] == uuid).unwrap_or_default()
}

/// Reasons of a GPU's problems, in the status.
fn problems(node: &TestNode, uuid: &str) -> Vec<String> {
    let problems = gpu(node, uuid)["problems"].as_array().cloned().unwrap_or_default();
    problems.iter().filter_map(|problem| problem["reason"].as_str().map(str::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_with_a_fatal_xid_error_is_unhealthy_until_it_is_reset_also_for_the_next_agent() {
    let node = TestNode::new(&[A, B]).await;
    let agent = node.agent_with(&["--observe"]);
    until("both are free", SLACK, || [A, B].iter().all(|uuid| node.api.gpu(uuid).0 == "Free")).await;
    // The subscription to errors is made in the background.
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.sim.raise_xid(A, 31).unwrap();
    // Both would have the later one's number before the first is taken.
    let first = "andreas_gpu_xid_errors_total{uuid=\"GPU-a\"";
    node.metrics_once("the first is counted", |metrics| metrics.contains(first)).await;
    node.sim.raise_xid(B, 48).unwrap();
    until("the one is unhealthy", SLACK, || node.api.gpu(B).0 == "Unhealthy").await;
    assert_eq!((problems(&node, B), problems(&node, A)), (vec!["Xid".to_owned()], vec![]));
    assert_eq!(node.api.gpu(A).0, "Free", "31 is an error of an application");
    let condition = node.api.status()["conditions"][1].clone();
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("Xid")), "{condition}");
    let problem = "andreas_gpu_problem{uuid=\"GPU-b\"";
    node.metrics_once("both are there", |metrics| metrics.contains(problem) && metrics.contains(first)).await;
    // The error is older than the next agent, which knows of it from the status alone.
    agent.kill();
    let _agent = node.agent_with(&["--observe"]);
    stays("it is still unhealthy", Duration::from_secs(2), || node.api.gpu(B).0 == "Unhealthy").await;
    node.sim.reset(B).unwrap();
    until("it is well after a reset", SLACK, || node.api.gpu(B).0 == "Free" && problems(&node, B).is_empty())
        .await;
    // NVML's number of an error that it does not know.
    node.sim.raise_xid(B, 999).unwrap();
    until("it is unhealthy again", SLACK, || node.api.gpu(B).0 == "Unhealthy").await;
    assert_eq!(gpu(&node, B)["problems"][0]["xid"], 999);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fatal_xid_error_from_before_the_machines_start_is_over_also_where_no_counter_shows_it() {
    let board = GpuSpec { uuid: A.into(), energy_counter: false, ..GpuSpec::default() };
    let node = TestNode::of(Spec { gpus: vec![board], ..Spec::of(&[]) }).await;
    let problem = json!({"reason": "Xid", "fatal": true, "xid": 79});
    let gpu = json!({
        "uuid": A, "state": "Unhealthy", "unhealthySince": "2020-01-01T00:00:00Z", "problems": [problem],
    });
    node.api.put(
        "gpunodes",
        json!({
            "apiVersion": "andreas.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "node-0", "uid": "node-uid", "generation": 1}, "spec": {"wakeGeneration": 0},
            "status": {"agentVersion": "0.0.1", "gpus": [gpu]},
        }),
    );
    let _agent = node.agent_with(&["--observe"]);
    until("it is well", SLACK, || node.api.gpu(A).0 == "Free" && problems(&node, A).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_heat_are_reported_and_a_failed_remapping_takes_the_gpu_out() {
    let node = TestNode::new(&[A, B]).await;
    let pending = MemoryErrors { uncorrected: 2, remap_pending: true, ..MemoryErrors::default() };
    node.sim.set_memory_errors(A, pending).unwrap();
    node.sim.set_memory_errors(B, MemoryErrors { remap_failed: true, ..pending }).unwrap();
    let _agent = node.agent_with(&["--observe"]);
    until("warnings", SLACK, || problems(&node, A) == ["RowRemapPending", "UncorrectedEcc"]).await;
    assert_eq!(node.api.gpu(A).0, "Free", "new work may start there");
    assert_eq!((node.api.gpu(B).0.as_str(), problems(&node, B)[0].as_str()), ("Unhealthy", "RowRemapFailed"));
    // NVML's bits: software thermal slowdown 0x20, power brake 0x80.
    node.sim.set_heat(A, 91, 0x20 | 0x80).unwrap();
    let since = Instant::now();
    loop {
        let (_, metrics) = node.ask("/metrics").await;
        if metrics.contains("reason=\"ThermalSlowdown\"") && metrics.contains("reason=\"PowerBrake\"") {
            break;
        }
        assert!(since.elapsed() < SLACK, "it is hot:\n{metrics}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(problems(&node, A).len(), 2, "heat alone writes no status at once");
}

/// With `ANDREAS_LONG=1` a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn energy_of_a_replayed_training_is_right_over_a_restart_and_a_counter_that_begins_anew() {
    let long = std::env::var_os("ANDREAS_LONG").is_some_and(|value| value == "1");
    let window = Duration::from_secs(if long { 60 } else { 12 });
    let node = TestNode::new(&[A, B]).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nvml-sim/curves");
    node.sim.replay(A, Some(&Curve::read_windows(&folder.join("zeus-a40-bert.csv")).unwrap())).unwrap();
    node.sim.replay(B, Some(&Curve::read_windows(&folder.join("zeus-v100-resnet50.csv")).unwrap())).unwrap();
    let agent = node.agent_with(&["--observe"]);
    until("both are free", SLACK, || [A, B].iter().all(|uuid| node.api.gpu(uuid).0 == "Free")).await;
    let drawn = || node.gpu(A).joules + node.gpu(B).joules;
    node.hold("job-1-0", &[A, B]);
    let (before, since) = (drawn(), Instant::now());
    until("its share has begun", SLACK, || gpu(&node, B)["heldFrom"].is_i64()).await;
    tokio::time::sleep(window / 3).await;
    agent.kill();
    let _agent = node.agent_with(&["--observe"]);
    until("the next agent goes on", SLACK, || gpu(&node, A)["heldFrom"].is_i64()).await;
    tokio::time::sleep(window / 3).await;
    node.sim.reset(A).unwrap();
    tokio::time::sleep(window.saturating_sub(since.elapsed())).await;
    node.hold("job-1-0", &[]);
    let real = drawn() - before;
    until("its energy is reported", SLACK, || node.api.status()["released"].is_array()).await;
    let released = node.api.status()["released"][0].clone();
    assert_eq!((&released["gpus"], &released["estimated"]), (&json!(2), &json!(true)), "{released}");
    let joules = released["joules"].as_f64().unwrap();
    let error = (joules - real).abs() / real;
    println!(
        "{:.0} s: {joules} J reported of {real:.0} J, {:.2} % off",
        since.elapsed().as_secs_f64(),
        100.0 * error
    );
    // Both ends of a share are seen within a reading, which weighs more in a short window.
    let allowed = if long { 0.02 } else { 0.08 };
    assert!(error < allowed, "{joules} of {real} J");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_energy_of_a_gpu_that_does_not_answer_the_next_agent_stays_as_it_was_reported() {
    let node = TestNode::new(&[A]).await;
    let agent = node.agent_with(&["--observe"]);
    until("it has drawn something", SLACK, || node.gpu(A).joules > 100.0).await;
    node.hold("job-1-0", &[A]);
    until("that is reported", SLACK, || node.api.gpu(A).0 == "Held").await;
    let joules = || gpu(&node, A)["joules"].as_i64().unwrap_or(0);
    let before = joules();
    assert!(before > 0, "{before}");
    agent.kill();
    node.sim.set_fault(A, Fault::Lost).unwrap();
    let _agent = node.agent_with(&["--observe"]);
    until("it does not answer", SLACK, || node.api.gpu(A).0 == "Unhealthy").await;
    assert_eq!(joules(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_share_a_gpu_have_estimates_that_add_up_to_what_it_draws() {
    let node = TestNode::new(&[A, B]).await;
    node.run(A, Some(77));
    // As NVIDIA's device plug-in names time slices.
    node.hold("job-1-0", &["GPU-a::0", "GPU-a::2"]);
    node.hold("job-2-0", &["GPU-a::1"]);
    let _agent = node.agent_with(&["--observe"]);
    let of = |pod: &str, field: &str| -> f64 {
        let shares = gpu(&node, A)["shares"].as_array().cloned().unwrap_or_default();
        let its = shares.into_iter().find(|share| share["pod"] == pod).unwrap_or_default();
        its[field].as_f64().unwrap_or(-1.0)
    };
    let estimates = || (of("team/job-1-0", "estimatedJoules"), of("team/job-2-0", "estimatedJoules"));
    until("both are seen", SLACK, || estimates().1 >= 0.0).await;
    let parts = ["team/job-1-0", "team/job-2-0"].map(|pod| of(pod, "thousandths"));
    assert_eq!(parts, [666.0, 333.0]);
    let (first, drawn) = (estimates(), gpu(&node, A)["joules"].as_f64().unwrap());
    tokio::time::sleep(Duration::from_secs(3)).await;
    // What changes on another GPU has the status written.
    node.hold("job-3-0", &[B]);
    until("the status is written", SLACK, || gpu(&node, B)["state"] == "Held").await;
    let (last, drawn) = (estimates(), gpu(&node, A)["joules"].as_f64().unwrap() - drawn);
    let (two, one) = (last.0 - first.0, last.1 - first.1);
    println!("{two} J and {one} J of {drawn} J");
    assert!(drawn > 600.0 && (two + one - drawn).abs() <= 4.0, "{two} and {one} of {drawn} J");
    assert!((two - 2.0 * one).abs() <= 4.0, "two slices of three draw twice as much: {two} and {one} J");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_is_kept_where_it_saves_and_ended_where_it_does_not() {
    let board = |uuid: &str, product: &str, parked_follows_clock| GpuSpec {
        uuid: uuid.into(),
        product: product.into(),
        parked_follows_clock,
        ..GpuSpec::default()
    };
    let gpus = vec![board(A, "NVIDIA Saves", true), board(B, "NVIDIA Stays", false)];
    let node = TestNode::of(Spec { gpus, ..Spec::of(&[]) }).await;
    for uuid in [A, B] {
        let idle = nvidia_ml::Process { pid: 77, util: 0.0, memory_mib: 100 };
        node.sim.set_processes(uuid, &[idle]).unwrap();
    }
    let (_setter, _agent) = (node.setter(), node.agent_with(&["--rest-parked", "--rest-trial", "2"]));
    let locked = |uuid: &str| node.gpu(uuid).locked_mhz.is_some();
    until("both are tried", SLACK, || locked(A) && locked(B)).await;
    until("the one is awake again", SLACK, || !locked(B) && node.api.gpu(B).0 == "Free").await;
    stays("the other one rests", Duration::from_secs(3), || locked(A) && !locked(B)).await;
    assert_eq!(node.api.gpu(A).0, "Resting");
    let (_, metrics) = node.ask("/metrics").await;
    let effect = |gpu_type: &str| -> f64 {
        let start = format!("andreas_gpu_rest_effect_watts{{gpu_type=\"{gpu_type}\",context=\"true\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).expect(gpu_type)
    };
    println!("rest saves {} W and {} W", effect("NVIDIA-Saves"), effect("NVIDIA-Stays"));
    assert!(effect("NVIDIA-Saves") > 20.0 && effect("NVIDIA-Stays").abs() < 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_that_lists_clocks_and_cannot_lock_them_rests_by_its_power_limit() {
    let old = GpuSpec {
        uuid: A.into(),
        lockable: false,
        kept_busy: true,
        parked_watts: 150.0,
        ..GpuSpec::default()
    };
    let node = TestNode::of(Spec { gpus: vec![old.clone()], ..Spec::of(&[]) }).await;
    let (_setter, _agent) = (node.setter(), node.agent());
    let rests = || node.gpu(A).limit_watts == old.limit_min_watts && node.api.gpu(A).0 == "Resting";
    until("it rests", SLACK, rests).await;
    // Its pod gets the operator's limit, and gives it back.
    node.hold("job-1-0", &[A]);
    node.api.order(json!({"wakeGeneration": 0, "limits": [{"pod": "team/job-1-0", "watts": 250}]}));
    until("the pod's limit is set", SLACK, || node.gpu(A).limit_watts == 250.0).await;
    node.hold("job-1-0", &[]);
    until("it rests again", SLACK, rests).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_ends_without_a_driver_and_not_for_a_lost_gpu() {
    let node = TestNode::new(&[A]).await;
    node.sim.set_fault(A, Fault::Lost).unwrap();
    let mut agent = node.agent_with(&["--observe", "--driver-patience", "2"]);
    until("it is lost", SLACK, || node.api.gpu(A).0 == "Unhealthy").await;
    stays("the driver is there", Duration::from_secs(4), || agent.0.try_wait().unwrap().is_none()).await;
    assert_eq!(node.ask("/livez").await.0, 200);
    let since = Instant::now();
    node.sim.set_driver_loaded(false);
    until("it ends, to be started again", SLACK, || agent.0.try_wait().unwrap().is_some()).await;
    assert!(since.elapsed() >= Duration::from_secs(2) && !agent.0.wait().unwrap().success());
    assert_eq!(node.api.status()["conditions"][0]["reason"], "AgentEnded");
    // One that has never seen a driver ends too.
    let mut next = node.agent_with(&["--observe", "--driver-patience", "2"]);
    until("it ends as well", SLACK, || next.0.try_wait().unwrap().is_some()).await;
}

/// As in an update with surge: the next agent works before the former one has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_ends_beside_another_one_takes_no_registration_away() {
    let node = TestNode::new(&[A]).await;
    let registered = || node.api.status()["agentVersion"].is_string();
    let mut former = node.agent_with(&["--observe"]);
    until("the former one is registered", SLACK, registered).await;
    let _next = node.agent_with(&["--observe", "--admin-listen", &own_address().to_string()]);
    // What is written while the former one stands still is the next one's.
    former.signal(Signal::STOP);
    node.hold("job-1-0", &[A]);
    until("the next one has written", SLACK, || node.api.gpu(A).0 == "Held").await;
    let erased = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&erased);
    node.api.on_write(move |status| {
        seen.fetch_or(status["agentVersion"].is_null(), Ordering::Relaxed);
    });
    former.signal(Signal::TERM);
    former.signal(Signal::CONT);
    assert!(former.0.wait().unwrap().success());
    assert!(erased.load(Ordering::Relaxed), "it has said that it ends");
    until("the next one is registered again", SLACK, registered).await;
    let ready = || node.api.status()["conditions"][0]["reason"] == "Working";
    until("and ready", SLACK, ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_board_with_more_clocks_than_the_wrapper_lists_rests_at_its_lowest_one() {
    let board = GpuSpec { kept_busy: true, ..GpuSpec::of_product("Tesla-V100-SXM2-16GB", A, 16_384) };
    assert!((board.clock_max_mhz - board.clock_min_mhz) / board.clock_step_mhz > 128);
    let lowest = board.clock_min_mhz;
    let node = TestNode::of(Spec { gpus: vec![board], ..Spec::of(&[]) }).await;
    let (_setter, _agent) = (node.setter(), node.agent());
    until("it rests", SLACK, || !node.is_default(A)).await;
    assert_eq!(node.gpu(A).locked_mhz, Some(lowest));
    until("it is said", SLACK, || node.api.gpu(A).0 == "Resting").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpus_rest_at_the_administrators_floor_and_take_limits_from_there_on() {
    let board = |uuid: &str, lockable| GpuSpec {
        uuid: uuid.into(),
        lockable,
        kept_busy: true,
        parked_watts: 200.0,
        ..GpuSpec::default()
    };
    let gpus = vec![board(A, true), board(B, false)];
    let node = TestNode::of(Spec { gpus, ..Spec::of(&[]) }).await;
    let _setter = node.setter_with(&["--floor-watts", "150", "--floor-clock", "600"]);
    let _agent = node.agent();
    until("both rest", SLACK, || node.gpu(A).locked_mhz == Some(600) && node.gpu(B).limit_watts == 150.0)
        .await;
    let ranges = || [A, B].map(|uuid| gpu(&node, uuid)["minLimitWatts"].as_i64());
    until("limits can be set on both", SLACK, || ranges() == [Some(150); 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_a_broken_gpu_refused_is_possible_again_once_it_is_well() {
    let node = TestNode::new(&[A]).await;
    node.hold("job-1-0", &[A]);
    let order = |watts| {
        node.api.order(json!({"wakeGeneration": 0, "limits": [{"pod": "team/job-1-0", "watts": watts}]}))
    };
    order(250);
    let (_setter, _agent) = (node.setter(), node.agent());
    let ranged = || gpu(&node, A)["minLimitWatts"].is_i64();
    until("it is limited", SLACK, || node.gpu(A).limit_watts == 250.0 && ranged()).await;
    node.sim.set_fault(A, Fault::ResetRequired).unwrap();
    until("it is broken", SLACK, || node.api.gpu(A).0 == "Unhealthy").await;
    order(300);
    let since = Instant::now();
    while !node
        .ask("/metrics")
        .await
        .1
        .contains("andreas_agent_setter_refusals_total{reason=\"reset_required\"}")
    {
        assert!(since.elapsed() < SLACK, "no refusal");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stays("its range is known", Duration::from_secs(1), ranged).await;
    // As the operator does with a broken GPU.
    node.api.order(json!({"wakeGeneration": 0}));
    node.sim.set_fault(A, Fault::None).unwrap();
    until("limits can be set", SLACK, || node.api.gpu(A).0 == "Held" && ranged()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_the_driver_are_few() {
    let node = TestNode::new(&[A, B]).await;
    let _agent = node.agent_with(&["--observe", "--interval", "1000"]);
    until("both are free", SLACK, || [A, B].iter().all(|uuid| node.api.gpu(uuid).0 == "Free")).await;
    let (since, calls) = (Instant::now(), node.sim.calls());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let for_each_gpu = (node.sim.calls() - calls) as f64 / since.elapsed().as_secs_f64() / 2.0;
    println!("{for_each_gpu:.2} calls a second for each GPU");
    assert!((1.0..=4.5).contains(&for_each_gpu), "{for_each_gpu}");
}
