//! A gang over two nodes, from apply to the end, and the rights of our own containers.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::names::GPU_RESOURCE;
use andreas_api::phase::Phase;
use andreas_e2e::cluster::Cluster;
use andreas_e2e::install;
use andreas_e2e::job::job;
use andreas_e2e::release::bash;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::seen::ClusterHistory;
use andreas_kubelets::{DRIVER, ENV_SPEC, Node};
use andreas_test_nodes::Recorded;
use andreas_testbed::wait::until;
use andreas_testbed::{workspace_binary, workspace_library};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::gangs::{ended_well, small};
use crate::{nodes, real};

#[tokio::test(flavor = "multi_thread")]
async fn a_gangs_members_find_each_other_on_nodes_that_nvidias_programs_labelled() -> Result<()> {
    scenario(real(2), async |c| {
        // given nodes that NVIDIA's own programs labelled, and whose GPUs NVIDIA's device plug-in offers
        let api: Api<NodeObject> = Api::all(c.testbed.client());
        for node in nodes(c)?.nodes() {
            let object = api.get(node.name()).await?;
            let labels = object.labels().clone();
            let status = object.status.context("a status")?;
            let offered =
                status.allocatable.unwrap_or_default().get(GPU_RESOURCE).map(|count| count.0.clone());
            let info = status.node_info.context("what the node is")?;
            println!("{}: kubelet {}, {}", node.name(), info.kubelet_version, info.container_runtime_version);
            // As `make long WHAT=versions` asks for it.
            let wanted = std::env::var("ANDREAS_KUBERNETES").unwrap_or_default();
            ensure!(info.kubelet_version.starts_with(&format!("v{wanted}")), "{}", info.kubelet_version);
            let says = |key: &str| labels.get(&format!("nvidia.com/{key}")).map(String::as_str);
            ensure!(says("gpu.product") == Some("NVIDIA-A100-SXM4-80GB"), "{labels:?}");
            ensure!(says("gpu.count") == Some("4") && says("mig.strategy") == Some("single"), "{labels:?}");
            // They are those that were recorded of the GPU operator with its default values, and when they were written.
            let of_nvidia = |labels: &BTreeMap<String, String>| -> BTreeSet<String> {
                let keys = labels.keys().filter(|key| key.starts_with("nvidia.com/"));
                keys.filter(|key| *key != "nvidia.com/gfd.timestamp").cloned().collect()
            };
            let recorded = Recorded::named("gpu-operator-a100")?.labels;
            ensure!(
                of_nvidia(&labels) == of_nvidia(&recorded),
                "{:?}",
                of_nvidia(&labels).symmetric_difference(&of_nvidia(&recorded)).collect::<Vec<_>>()
            );
            let lines = labels.iter().filter(|(key, _)| key.starts_with("nvidia.com/"));
            println!(
                "{}",
                lines.map(|(key, value)| format!("  {key}={value}")).collect::<Vec<_>>().join("\n")
            );
            println!("  {GPU_RESOURCE}: {offered:?} allocatable");
            ensure!(offered.as_deref() == Some("4"), "{offered:?}");
        }
        // when a gang takes all eight GPUs, its members find each other by the cluster's DNS
        let gang = small(job("gang").gpus(8, 2).epochs(20, 0.5));
        c.submit(&gang).await?;
        c.wait_for_percent(&gang, 10).await?;
        let said = c.kubectl("logs gang-1-0").await?;
        ensure!(said.contains("rank 0"), "{said}");
        for node in nodes(c)?.nodes() {
            let gpus = c.kubectl(&format!("get gpunode {} -o json", node.name())).await?;
            let gpus: serde_json::Value = serde_json::from_str(&gpus)?;
            let states = gpus["status"]["gpus"].as_array().context("GPUs in the status")?;
            ensure!(states.len() == 4, "{gpus:#}");
        }
        c.wait_for_phase(&gang, Phase::Succeeded).await?;
        ended_well(c, &gang)
    })
    .await
}

/// The bit of CAP_SYS_ADMIN in the kernel's sets of capabilities.
const SYS_ADMIN: u64 = 1 << 21;

/// What the kernel says of a process: a line of `/proc/PID/status`, by the program's name.
pub async fn of_process(node: &Node, program: &str, field: &str) -> Result<String> {
    // The kernel keeps 15 characters of a name.
    let short = &program[..program.len().min(15)];
    let script = format!(
        "for p in /proc/[0-9]*; do [ \"$(cat $p/comm 2>/dev/null)\" != {short} ] || sed -n 's/^{field}:\\s*//p' $p/status; done"
    );
    let found = node.run(&["sh", "-c", &script]).await?;
    let mut lines: Vec<&str> = found.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    ensure!(lines.len() == 1, "{field} of {program} on {}: {found:?}", node.name());
    Ok(lines[0].to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn our_containers_have_the_rights_that_the_chart_says_and_no_others() -> Result<()> {
    scenario(real(1), async |c| {
        let node = nodes(c)?.node("node-1")?;
        let programs =
            [("andreas-node-agent", 0), ("andreas-node-setter", SYS_ADMIN), ("andreas-operator", 0), ("andreas-extender", 0)];
        for (program, capabilities) in programs {
            // What it has, could take, could ever have, and would hand down.
            for (set, wanted) in
                [("CapEff", capabilities), ("CapPrm", capabilities), ("CapBnd", capabilities), ("CapAmb", 0)]
            {
                let found = u64::from_str_radix(&of_process(node, program, set).await?, 16)?;
                ensure!(found == wanted, "{set} of {program} is {found:x}");
            }
            ensure!(of_process(node, program, "NoNewPrivs").await? == "1", "{program} may gain privileges");
            // 2: a filter of system calls is in force.
            ensure!(of_process(node, program, "Seccomp").await? == "2", "{program} has no seccomp profile");
        }
        let users = [
            ("andreas-operator", "65532"),
            ("andreas-extender", "65532"),
            ("andreas-node-agent", "0"),
            ("andreas-node-setter", "0"),
        ];
        for (program, user) in users {
            let uid = of_process(node, program, "Uid").await?;
            ensure!(uid.split_whitespace().all(|uid| uid == user), "{program} runs as {uid}");
        }
        // no root file system can be written
        let script = "for p in /proc/[0-9]*; do case $(cat $p/comm 2>/dev/null) in andreas-*) awk '$2 == \"/\" {print $4}' $p/mounts;; esac; done";
        let mounts = node.run(&["sh", "-c", script]).await?;
        let read_only = mounts.lines().all(|options| options.split(',').any(|option| option == "ro"));
        ensure!(mounts.lines().count() >= 4 && read_only, "{mounts}");
        privileged_agents_measure_without_nvidias_runtime(c).await?;
        queries_use_port_forward_without_the_service_proxy(c).await?;
        // and a release is installed without a registry, from images that the node's containerd has taken
        let release = crate::release::files().canonicalize()?;
        let script = release.join("install").display().to_string();
        nodes(c)?.node("node-1")?.run(&[&script, "--import"]).await?;
        bash(&c.testbed, &release, &script).await?;
        install::rolled_out(&c.testbed).await
    })
    .await
}

/// Values of the chart's agents for nodes whose runtime hands out no driver: they are privileged, in the nodes' process namespace, and have
/// the simulated driver from the node's folders, as `values-gke.yaml` has GKE's.
fn driver_by_host_path(node: &Node) -> Result<Value> {
    let (library, seen_as) = (workspace_library("libnvidia_ml.so")?, "/usr/local/nvidia/libnvidia-ml.so.1");
    let driver = node.driver();
    let folder = driver.parent().context("the driver has a folder")?;
    Ok(json!({
        "runtimeClassName": "plain",
        "privileged": true,
        "hostPID": true,
        "nvmlLibrary": seen_as,
        "extraEnv": [{"name": ENV_SPEC, "value": format!("{DRIVER}/node.json")}],
        "extraVolumes": [
            {"name": "library", "hostPath": {"path": library, "type": "File"}},
            {"name": "driver", "hostPath": {"path": folder, "type": "Directory"}},
        ],
        "extraVolumeMounts": [
            {"name": "library", "mountPath": seen_as, "readOnly": true},
            {"name": "driver", "mountPath": DRIVER},
        ],
    }))
}

/// Where no runtime hands out the driver, agents with all rights and the node's own driver read GPUs and energy.
async fn privileged_agents_measure_without_nvidias_runtime(c: &mut Cluster) -> Result<()> {
    let plain = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "plain"}, "handler": "runc",
    });
    c.apply(&plain).await?;
    let agent = driver_by_host_path(nodes(c)?.node("node-1")?)?;
    let without_proxy = json!({"query": {"proxyFor": []}});
    install::upgrade(&c.testbed, &json!({ "agent": agent, "operator": without_proxy })).await?;
    let node = nodes(c)?.node("node-1")?;
    // The container may do everything; the program gave it up.
    let bounded = u64::from_str_radix(&of_process(node, "andreas-node-agent", "CapBnd").await?, 16)?;
    let effective = u64::from_str_radix(&of_process(node, "andreas-node-agent", "CapEff").await?, 16)?;
    ensure!(bounded & SYS_ADMIN != 0 && effective == 0, "{bounded:x} {effective:x}");
    let tj = small(job("measured").gpus(2, 1).epochs(80, 0.3));
    c.submit(&tj).await?;
    c.wait_for_percent(&tj, 1).await?;
    let uid = of_process(nodes(c)?.node("node-1")?, "andreas-trainer", "Uid").await?;
    ensure!(uid.split_whitespace().all(|uid| uid == "65532"), "the trainer runs as {uid}");
    c.wait_for_phase(&tj, Phase::Succeeded).await?;
    let key = tj.key();
    let measured =
        |seen: &ClusterHistory| seen.status(&key).consumption.is_some_and(|total| total.source == "Measured");
    c.observer.until("measured energy", DEFAULT_TIMEOUT, measured).await
}

/// An account that may not use the API server's service proxy, and may forward ports of the operator's pods.
async fn queries_use_port_forward_without_the_service_proxy(c: &Cluster) -> Result<()> {
    for line in [
        "create serviceaccount asker",
        "create rolebinding asker --clusterrole=view --serviceaccount=default:asker",
    ] {
        c.kubectl(line).await?;
    }
    let kubeconfig = c.testbed.kubeconfig_for_service_account("default", "asker").await?;
    let ask = async || {
        let mut command = Command::new(workspace_binary("kubectl-andreas")?);
        let output = command.args(["queue", "--kubeconfig"]).arg(&kubeconfig).output().await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::Ok((output.status.success(), said))
    };
    let (answered, said) = ask().await?;
    ensure!(!answered && said.contains("services/proxy"), "{said}");
    for line in [
        "create role forward -n andreas-system --verb=get,list,create --resource=pods,pods/portforward",
        "create rolebinding forward -n andreas-system --role=forward --serviceaccount=default:asker",
    ] {
        c.kubectl(line).await?;
    }
    until("the queue is answered", DEFAULT_TIMEOUT, async || Ok(ask().await?.0)).await?;
    let mut command = Command::new(workspace_binary("kubectl-andreas")?);
    let saved = command.args(["snapshot", "--kubeconfig"]).arg(c.testbed.kubeconfig()).output().await?;
    let snapshot = serde_json::from_slice::<serde_json::Value>(&saved.stdout);
    let has_jobs = snapshot.is_ok_and(|snapshot| snapshot["jobs"].is_array());
    ensure!(has_jobs, "{}", String::from_utf8_lossy(&saved.stderr));
    Ok(())
}
