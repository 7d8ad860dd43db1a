//! What the processes, and their use of NVML, do when the driver is exchanged under them, or a GPU is lost.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::{Process, SLACK, TestNode, stays, until};
use andreas_node_agent::gpu::nvml::NvmlLibrary;
use andreas_node_agent::gpu::{ErrorEvent, GpuError, Library};
use nvidia_ml::{ENV_SPEC, Fault, Sim, Spec};

const FREE: &str = "GPU-free";
const HELD: &str = "GPU-held";

/// Runs a test of this program again, in a process that loads the simulated NVML: a process finds its node by its environment.
fn again_on_a_node(test: &str, uuids: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = folder.path().join("node.json");
    Spec::of(uuids).write(&spec).expect("the spec is right");
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    let output = command.args(["--exact", test]).env(ENV_SPEC, &spec).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

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

#[test]
fn a_subscription_to_errors_leaves_a_lost_gpu_out_and_the_next_one_has_it() {
    let Some(spec) = std::env::var_os(ENV_SPEC) else {
        let name = "driver::a_subscription_to_errors_leaves_a_lost_gpu_out_and_the_next_one_has_it";
        return again_on_a_node(name, &[FREE, HELD]);
    };
    let sim = Sim::open(Path::new(&spec)).unwrap();
    let library = NvmlLibrary::new(std::env::current_exe().unwrap().with_file_name("libnvidia_ml.so"));
    let both = [FREE, HELD].map(str::to_owned);
    let error_of = |uuid: &str| Some(ErrorEvent { uuid: uuid.to_owned(), xid: 48 });
    sim.set_fault(FREE, Fault::Lost).unwrap();
    let mut events = library.error_events(&both).unwrap();
    assert_eq!(events.left_out(), &BTreeMap::from([(FREE.to_owned(), GpuError::Lost)]));
    sim.raise_xid(HELD, 48).unwrap();
    assert_eq!(events.wait(SLACK).unwrap(), error_of(HELD));
    sim.set_fault(FREE, Fault::None).unwrap();
    let mut events = library.error_events(&both).unwrap();
    assert!(events.left_out().is_empty());
    sim.raise_xid(FREE, 48).unwrap();
    assert_eq!(events.wait(SLACK).unwrap(), error_of(FREE));
}
