//! What the processes do when the driver is exchanged under them, or a GPU is lost.

use std::time::Duration;

use crate::support::{Process, SLACK, TestNode, stays, until};
use nvidia_ml::Fault;

const FREE: &str = "GPU-free";
const HELD: &str = "GPU-held";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_and_setters_end_when_another_driver_is_loaded_and_leave_nothing_set() {
    let node = TestNode::new(&[FREE]).await;
    let file = node.folder.path().join("version");
    std::fs::write(&file, "550.54.15\n").unwrap();
    let flags = ["--module-version", file.to_str().unwrap()];
    let mut all = [node.setter_with(&flags), node.setter_with(&flags), node.agent_with(&flags)];
    until("it rests", SLACK, || !node.is_default(FREE)).await;
    until("one setter stands by", SLACK, || all.iter().any(Process::stands_by)).await;
    std::fs::write(&file, "570.86.10\n").unwrap();
    // The file is read every ten seconds.
    until("all have ended", Duration::from_secs(10) + SLACK, || {
        all.iter_mut().all(|process| process.0.try_wait().unwrap().is_some())
    })
    .await;
    assert!(all.iter_mut().all(|process| !process.0.wait().unwrap().success()), "to be started again");
    assert!(node.is_default(FREE));
    let _next = [node.setter_with(&flags), node.agent_with(&flags)];
    until("it rests again", SLACK, || !node.is_default(FREE)).await;
}

/// As GKE's device plug-in names devices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_gpu_that_is_named_by_its_device_file_keeps_its_holder_and_leaves_others_at_rest() {
    let node = TestNode::new(&[FREE, HELD]).await;
    node.hold("job-1-0", &["nvidia1"]);
    let (_setter, _agent) = (node.setter(), node.agent());
    let held = |state: &str| node.api.gpu(HELD) == (state.to_owned(), Some("team/job-1-0".to_owned()));
    let rests = || node.api.gpu(FREE).0 == "Resting";
    until("one is held, one rests", SLACK, || held("Held") && rests()).await;
    node.sim.set_fault(HELD, Fault::Lost).unwrap();
    until("it is lost", SLACK, || node.api.gpu(HELD).0 == "Unhealthy").await;
    stays("its pod has it", Duration::from_secs(2), || held("Unhealthy") && rests()).await;
}
