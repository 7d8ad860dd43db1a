//! What others have set on a node's GPUs, and what a container can lose.

use std::time::Duration;

use crate::support::{Process, SLACK, TestNode, stays, until};
use nvidia_ml::{Fault, GpuSpec, Spec};
use serde_json::json;

const GPU: &str = "GPU-a";

/// A node with one board whose owner has it at 250 of 400 W, held by a pod.
async fn owned() -> TestNode {
    let board = GpuSpec { uuid: GPU.into(), limit_default_watts: 250.0, ..GpuSpec::default() };
    let node = TestNode::of(Spec { gpus: vec![board], ..Spec::of(&[]) }).await;
    node.hold("job-1-0", &[GPU]);
    node.run(GPU, Some(77));
    node
}

fn order(node: &TestNode, watts: u32) {
    node.api.order(json!({"wakeGeneration": 0, "limits": [{"pod": "team/job-1-0", "watts": watts}]}));
}

fn highest_limit(node: &TestNode) -> Option<i64> {
    node.api.status()["gpus"][0]["maxLimitWatts"].as_i64()
}

fn limit(node: &TestNode) -> f64 {
    node.gpu(GPU).limit_watts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_of_ours_is_above_what_the_owner_of_a_board_has_in_force() {
    let node = owned().await;
    let (_setter, agent) = (node.setter(), node.agent());
    until("the ceiling is reported", SLACK, || highest_limit(&node) == Some(250)).await;
    // One above it is no limit: it is met without any command.
    order(&node, 280);
    until("it is acknowledged", SLACK, || node.api.status()["observedGeneration"] == 2).await;
    assert_eq!(node.gpu(GPU).commands, 0);
    order(&node, 200);
    until("it is set", SLACK, || limit(&node) == 200.0).await;
    until("the ceiling is what it was", SLACK, || highest_limit(&node) == Some(250)).await;
    agent.kill();
    until("the owner's is back", SLACK, || limit(&node) == 250.0).await;
    assert_eq!(node.gpu(GPU).highest_set_watts, Some(250.0));
    // A limiter out of band is lower.
    node.sim.set_outer_limit(GPU, Some(220.0)).unwrap();
    let _agent = node.agent();
    until("the ceiling is reported", SLACK, || highest_limit(&node) == Some(220)).await;
    until("limited again", SLACK, || limit(&node) == 200.0).await;
    node.api.order(json!({"wakeGeneration": 0}));
    until("the end", SLACK, || limit(&node) > 200.0).await;
    assert_eq!(limit(&node), 220.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_boot_unit_that_limits_boards_after_us_is_respected() {
    let node = TestNode::new(&[GPU]).await;
    node.hold("job-1-0", &[GPU]);
    node.run(GPU, Some(77));
    order(&node, 300);
    let (setter, agent) = (node.setter(), node.agent());
    until("limited", SLACK, || limit(&node) == 300.0 && highest_limit(&node) == Some(400)).await;
    node.sim.set_limit(GPU, 250.0).unwrap();
    until("it is the ceiling", SLACK, || highest_limit(&node) == Some(250)).await;
    stays("nobody lifts it", Duration::from_secs(2), || limit(&node) == 250.0).await;
    order(&node, 200);
    until("limited below it", SLACK, || limit(&node) == 200.0).await;
    // Neither do a setter that is started again, nor the end.
    setter.kill();
    let _setter = node.setter();
    until("restored and set again", SLACK, || {
        limit(&node) == 200.0 && node.api.status()["observedGeneration"] == 3
    })
    .await;
    agent.kill();
    until("the end", SLACK, || limit(&node) == 250.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_loses_the_devices_ends_and_the_next_container_restores() {
    let node = TestNode::new(&[GPU, "GPU-b"]).await;
    node.hold("job-1-0", &[GPU]);
    node.run(GPU, Some(77));
    order(&node, 200);
    let patience = ["--driver-patience", "2"];
    let mut all = [node.setter_with(&patience), node.setter_with(&patience), node.agent_with(&patience)];
    until("limited", SLACK, || limit(&node) == 200.0).await;
    until("one setter stands by", SLACK, || all.iter().any(Process::stands_by)).await;
    // As after `systemctl daemon-reload`.
    let hide = |fault| ["GPU-b", GPU].map(|uuid| node.sim.set_fault(uuid, fault).unwrap());
    hide(Fault::Unknown);
    node.hold("job-1-0", &[]);
    until("all have ended", SLACK, || all.iter_mut().all(|one| one.0.try_wait().unwrap().is_some())).await;
    assert!(all.iter_mut().all(|one| !one.0.wait().unwrap().success()), "to be started again");
    assert_eq!(limit(&node), 200.0, "nobody could restore it");
    // A container that begins without the devices ends too.
    let mut blind = node.setter_with(&patience);
    until("it ends", SLACK, || blind.0.try_wait().unwrap().is_some()).await;
    hide(Fault::None);
    let _setter = node.setter_with(&patience);
    until("restored", SLACK, || limit(&node) == 400.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_gpu_that_cannot_be_opened_ends_nobody() {
    let node = TestNode::new(&[GPU, "GPU-b"]).await;
    let patience = ["--driver-patience", "1"];
    node.sim.set_fault(GPU, Fault::Unknown).unwrap();
    let mut both = [node.setter_with(&patience), node.agent_with(&patience)];
    until("the other one rests", SLACK, || !node.is_default("GPU-b")).await;
    stays("they go on", Duration::from_secs(3), || {
        both.iter_mut().all(|one| one.0.try_wait().unwrap().is_none())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_others_locked_on_an_idle_board_are_left_alone() {
    let node = TestNode::of(Spec::of(&[GPU])).await;
    node.sim.lock_clocks(GPU, Some((210, 1200))).unwrap();
    let (_setter, agent) = (node.setter(), node.agent());
    until("it is free", SLACK, || node.api.gpu(GPU).0 == "Free").await;
    let untouched = || node.gpu(GPU).commands == 0 && node.gpu(GPU).locked_mhz == Some(1200);
    stays("it is at rest already", Duration::from_secs(4), untouched).await;
    // Nor when a pod has come and gone.
    node.hold("job-1-0", &[GPU]);
    node.run(GPU, Some(77));
    until("it is held", SLACK, || node.api.gpu(GPU).0 == "Held").await;
    node.hold("job-1-0", &[]);
    node.run(GPU, None);
    until("it is free again", SLACK, || node.api.gpu(GPU).0 == "Free").await;
    stays("it is at rest by itself", Duration::from_secs(4), untouched).await;
    drop(agent);
    stays("also without an agent", Duration::from_secs(4), untouched).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_board_that_rested_gets_back_the_administrators_locked_clocks() {
    let node = TestNode::new(&[GPU]).await;
    node.sim.lock_clocks(GPU, Some((300, 1200))).unwrap();
    let locked = || (node.gpu(GPU).locked_from_mhz, node.gpu(GPU).locked_mhz);
    let flags = ["--locked-clocks", "NVIDIA-A100-SXM4-80GB=300,1200"];
    let (setter, agent) = (node.setter_with(&flags), node.agent());
    until("it rests", SLACK, || locked().1 == Some(210)).await;
    node.hold("job-1-0", &[GPU]);
    until("it is woken", SLACK, || locked() == (Some(300), Some(1200))).await;
    node.hold("job-1-0", &[]);
    until("it rests", SLACK, || locked().1 == Some(210)).await;
    agent.kill();
    setter.kill();
    let _setter = node.setter_with(&flags);
    until("the next setter knows", SLACK, || locked() == (Some(300), Some(1200))).await;
}
