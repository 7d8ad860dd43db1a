//! Nodes by the hundred, whose containers are simulated.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use std::time::{Duration, Instant};

use common::{Bed, pod};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_and_pods_live_by_the_clock() {
    // given 100 nodes and 200 pods that fill half of their GPUs
    let bed = Bed::start(
        "containers: simulated\nnodes: [{namePrefix: n-, count: 100, gpu: Tesla-T4, gpus: 4, gpuMemoryMiB: 15360}]",
    )
    .await;
    let pods: Vec<_> = (0..200)
        .map(|i| {
            let limits = json!({"nvidia.com/gpu": "1"});
            let container = json!({"name": "c", "image": "any/image", "resources": {"limits": limits}});
            let mut one = pod(&format!("p-{i}"), json!({"containers": [container]}));
            let (run, code) = if i < 100 { ("2", (i % 2).to_string()) } else { ("1000", "0".to_owned()) };
            one["metadata"]["annotations"] =
                json!({"testbed.andreas.dev/run-seconds": run, "testbed.andreas.dev/exit-code": code});
            one
        })
        .collect();
    bed.apply(json!({"apiVersion": "v1", "kind": "List", "items": pods})).await;

    // then the short ones end as they were told, the others run
    let phases = async |phase: &str| {
        let selector = format!("--field-selector=status.phase={phase}");
        bed.kubectl(["get", "pods", &selector, "-o", "name"]).await.lines().count()
    };
    bed.until("phases", async || {
        (phases("Succeeded").await, phases("Failed").await, phases("Running").await) == (50, 50, 100)
    })
    .await;
    let held = async || {
        let nodes = bed.nodes.nodes().await.unwrap();
        nodes.iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.holder.is_some()).count()
    };
    assert_eq!(held().await, 100);

    // and a deletion ends a running one within moments
    let began = Instant::now();
    bed.kubectl(["delete", "pod", "p-150"]).await;
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(held().await, 99);
    bed.stop().await;
}
