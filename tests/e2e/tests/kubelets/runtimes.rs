//! A node as the GPU operator leaves it since 25.10: runc is containerd's default runtime, and NVIDIA's is that of the RuntimeClass
//! `nvidia`. The device plug-in hands out GPUs by the operator's strategies there, `cdi-annotations` and `cdi-cri`: it describes them as CDI
//! devices, and containerd adds those to the containers of pods that name no class.

use std::collections::BTreeSet;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options};
use andreas_e2e::job::job;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::seen::ClusterHistory;
use andreas_e2e::{chart, install};
use andreas_kubelets::DefaultRuntime;
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::gangs::{ended_well, small};
use crate::real;

/// What the agent says of its node: the condition `Ready`, how many GPUs there are.
async fn reported(c: &Cluster) -> Result<(Value, usize)> {
    let node: Value = serde_json::from_str(&c.kubectl("get gpunode node-1 --output=json").await?)?;
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready");
    Ok((ready.unwrap_or_default(), node["status"]["gpus"].as_array().map_or(0, Vec::len)))
}

/// Waits until the condition `Ready` has this reason; the condition.
async fn until_reported(c: &Cluster, reason: &str) -> Result<Value> {
    let mut last = Value::Null;
    let reached = async || {
        last = reported(c).await?.0;
        Ok(last["reason"] == reason)
    };
    let waited = until(&format!("the agent reports {reason}"), DEFAULT_TIMEOUT, reached).await;
    waited.with_context(|| last.to_string())?;
    Ok(last)
}

/// Files of GPUs that a pod's training container has, and those of the GPUs that its kubelet gave it.
async fn device_files(c: &Cluster, pod: &str) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let nodes = c.machines.nodes().await?;
    let pods = c.machines.pods().await?;
    let pod = pods.iter().find(|one| one.name == pod).context("its pod")?;
    let process = pod.pids.get("train").context("its process")?;
    let mut has = BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{process}/root/dev"))? {
        has.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    has.retain(|name| name.starts_with("nvidia"));
    // The driver numbers them in its order.
    let numbered = nodes.iter().flat_map(|node| node.gpus.iter().enumerate());
    let given = numbered.filter(|(_, gpu)| pod.gpus.contains(&gpu.uuid));
    Ok((has, given.map(|(minor, _)| format!("nvidia{minor}")).collect()))
}

#[tokio::test(flavor = "multi_thread")]
async fn where_runc_is_the_default_runtime_agents_need_the_class_nvidia_and_jobs_need_none() -> Result<()> {
    // given the chart as the installation's page says for such nodes
    let options = Options {
        default_runtime: DefaultRuntime::Runc,
        install: Some(json!({"agent": {"runtimeClassName": "nvidia"}})),
        ..real(1)
    };
    scenario(options, async |c| {
        // when a job whose pod names no class runs there
        let tj = small(job("plain").gpus(2, 1).epochs(60, 0.3));
        c.submit(&tj).await?;
        c.wait_for_percent(&tj, 10).await?;
        let class = c.kubectl("get pod plain-1-0 --output=jsonpath={.spec.runtimeClassName}").await?;
        ensure!(class.is_empty(), "its pod has the class {class}");
        // then its container has the files of the GPUs that it was given, and no others
        let (has, given) = device_files(c, "plain-1-0").await?;
        println!("the job's container has {has:?}");
        ensure!(given.len() == 2 && has == given, "{has:?} instead of {given:?}");
        // and the agent, which has the class, lists all GPUs and measures the job's energy
        until_reported(c, "Working").await?;
        let (_, listed) = reported(c).await?;
        ensure!(listed == 4, "{listed} GPUs");
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        ended_well(c, &tj)?;
        let key = tj.key();
        let measured = |seen: &ClusterHistory| {
            seen.status(&key).consumption.is_some_and(|total| total.source == "Measured" && total.joules > 0)
        };
        c.observer.until("measured energy", DEFAULT_TIMEOUT, measured).await?;

        // when the chart is installed without the class, then the agent says why it reads no GPU. Its pod is not ready, so that nobody waits.
        let values = json!({"agent": {"runtimeClassName": ""}});
        let args = install::upgrade_args(&c.testbed, &chart::folder(), &values)?;
        c.testbed.helm(args).await?.checked()?;
        let ready = until_reported(c, "NoDriver").await?;
        println!("without the class: {ready}");
        ensure!(ready["status"] == "False", "{ready}");
        Ok(())
    })
    .await
}
