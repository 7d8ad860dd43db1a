//! Given nodes with different GPU memory; when a job is planned and stepped; then both allow the same nodes.

use andreas_api::slim::SlimNode;
use andreas_lifecycle::{Claim, DecisionFor, DryRunResult, Planned};

use super::*;
use crate::executor::observe::JobInput;
use crate::snapshot::{Caches, build};
use crate::testing::{at, gpu_node};

const T4: &str = "Tesla-T4";

fn node(name: &str, mib: &str) -> SlimNode {
    let mut node = gpu_node(name, T4, 8);
    node["metadata"]["labels"]["nvidia.com/gpu.memory"] = mib.into();
    serde_json::from_value(node).expect("a node")
}

#[test]
fn what_is_planned_for_its_gpu_memory_is_what_a_step_allows_node_by_node() {
    let (mut index, mut ledger) = (ClusterIndex::new(), Ledger::new(at(0)));
    index.apply(node("full", "15360"));
    index.apply(node("half", "7680"));
    let mut asks = testing::job(10, &json!(null));
    asks["spec"]["gpus"] = json!({"min": 1, "memoryGiB": 16});
    index.apply(serde_json::from_value::<SlimTrainingJob>(asks).expect("a job"));
    ledger.entry(&key("bert"), "j1").set_claim(Claim::Waiting { not_before: None });
    let snapshot = build(&index, &ledger, &mut Caches::default(), None, at(100)).snapshot;
    let job = &snapshot.jobs[0];
    assert!(!job.estimates.is_empty(), "16 GB boards report 15 GiB");
    let candidates = job.candidates.as_ref().expect("not every node");
    assert_eq!(candidates.iter().map(|n| n.as_str()).collect::<Vec<_>>(), ["full"]);

    // The step carries out the plan: a waiting job that is given "full" takes it.
    let planned = Planned::Run {
        gpu_type: T4.into(),
        nodes: vec!["full".into()],
        gpus_per_worker: 1,
        limit_watts: None,
        watts: 70,
        guard: andreas_lifecycle::Guard::default(),
    };
    let mut memory = ledger.entry(&key("bert"), "j1").clone();
    memory.decide(DecisionFor { basis: 0, planned }, Vec::new(), at(100));
    memory.record_dry_run(DryRunResult { gpus: 1, smaller: None, at: at(90), refusal: None, admitted: None });
    let seen = JobInput::gather(&index, |_| memory, &key("bert"), Arc::default(), at(100));
    let status = seen.expect("the job").step().status;
    assert_eq!(status.allocation.map(|a| a.nodes), Some(vec!["full".to_owned()]), "{:?}", status.reason);
}
