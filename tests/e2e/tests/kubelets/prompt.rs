//! `testbed --kubelets`: real nodes at the prompt.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use andreas_testbed::workspace_binary;
use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

/// Until three nodes are Ready, or gone.
const LIMIT: Duration = Duration::from_secs(180);

/// Programs of nodes and control planes that run here; the test has processes of its own alone.
fn left() -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = processes.filter_map(|process| std::fs::read_to_string(process.path().join("comm")).ok());
    const THEIRS: [&str; 5] = ["kubelet", "kube-proxy", "kube-apiserver", "containerd", "etcd"];
    names.map(|name| name.trim().to_owned()).filter(|name| THEIRS.contains(&name.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_at_the_prompt_offer_gpus_and_leave_nothing() -> Result<()> {
    let program = workspace_binary("testbed")?;
    // Given a test bed with three real nodes, as a person starts it
    let mut up = Command::new(&program)
        .args(["--kubelets", "3", "--name", "prompt"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(up.stdout.take().context("its output")?).lines();
    let said = async {
        let mut said = Vec::new();
        while let Some(line) = lines.next_line().await? {
            let last = line.starts_with("in another terminal");
            said.push(line);
            if last {
                return Ok(said);
            }
        }
        anyhow::bail!("it ended before its nodes were ready")
    };
    let said = tokio::time::timeout(LIMIT, said).await.context("three nodes in time")??;
    let last_word = |line: &str| line.rsplit([' ', '=']).next().map(PathBuf::from);
    let data = said.first().and_then(|line| last_word(line)).context("its folder")?;
    let kubeconfig = said.get(1).and_then(|line| last_word(line)).context("its kubeconfig")?;
    let kubectl = said.get(2).and_then(|line| line.split_whitespace().next()).context("its kubectl")?;
    // When it says so, then the nodes are Ready and offer their GPUs
    let mut get = Command::new(kubectl);
    let output = get.args(["get", "nodes", "-o", "json"]).env("KUBECONFIG", kubeconfig).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let nodes: Value = serde_json::from_slice(&output.stdout)?;
    let nodes = nodes["items"].as_array().context("a list")?;
    ensure!(nodes.len() == 3, "{nodes:#?}");
    for node in nodes {
        let conditions = node["status"]["conditions"].as_array().context("conditions")?;
        let ready = conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
        ensure!(ready && node["status"]["allocatable"]["nvidia.com/gpu"] == "4", "{node:#}");
        ensure!(node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB", "{node:#}");
    }
    let cgroup = Path::new("/sys/fs/cgroup");
    let name = data.file_name().context("a name")?;
    // Version 1 has a folder for each controller.
    let folders = [cgroup.join(name), cgroup.join("memory").join(name)];
    ensure!(folders.iter().any(|folder| folder.exists()), "{folders:?}");
    ensure!(data.is_dir() && left().iter().any(|name| name == "kubelet"), "{said:?}: {:?}", left());
    // When Ctrl-C ends it, then nothing stays
    let pid = up.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).context("it runs")?;
    kill_process(pid, Signal::INT)?;
    let ended = tokio::time::timeout(LIMIT, up.wait()).await.context("its end in time")??;
    ensure!(ended.success(), "{ended}");
    ensure!(!data.exists() && left().is_empty(), "{} stays, or {:?}", data.display(), left());
    let stays: Vec<_> = folders.iter().filter(|folder| folder.exists()).collect();
    ensure!(stays.is_empty(), "{stays:?}");
    Ok(())
}
