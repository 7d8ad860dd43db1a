//! A real installation: `helm upgrade --install` of the chart, whose pods the pretend kubelets run as processes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use andreas_testbed::wait::until;
use andreas_testbed::{Testbed, workspace_binary, workspace_library};
use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::chart::{self, SYSTEM};
use crate::machines::Machines;

/// Name of the release.
pub const RELEASE: &str = "andreas";
/// How long the chart's pods may take to be ready on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(180);

/// Programs that stand for the chart's images, for the pretend kubelets.
///
/// # Errors
/// When a program of the workspace is not built.
pub fn images(testbed: &Testbed) -> Result<Vec<Value>> {
    let image = |image: &str, program: PathBuf| json!({"image": image, "program": program});
    Ok(vec![
        image("andreas/andreas-operator", workspace_binary("andreas-operator")?),
        image("andreas/andreas-extender", workspace_binary("andreas-extender")?),
        image("andreas/andreas-node-agent", workspace_binary("andreas-node-agent")?),
        // The other program of that image; containers name it, and find what stands for any image on their search path.
        image("andreas/andreas-node-agent/setter", workspace_binary("andreas-node-setter")?),
        image("registry.k8s.io/kube-scheduler", testbed.programs().path("kube-scheduler")),
    ])
}

/// The simulated driver of the nodes.
///
/// # Errors
/// When it is not built.
pub fn nvml_library() -> Result<PathBuf> {
    Ok(workspace_library("libnvidia_ml.so")?)
}

/// `helm upgrade --install` with these values, whatever was there before; returns when every pod of the release is ready.
///
/// # Errors
/// When helm fails, or a pod is not ready in time: then with what the pods said last.
pub async fn upgrade(testbed: &Testbed, values: &Value) -> Result<()> {
    upgrade_to(testbed, &chart::folder(), values).await
}

/// [`upgrade`] to this chart.
///
/// # Errors
/// As [`upgrade`].
pub async fn upgrade_to(testbed: &Testbed, chart: &Path, values: &Value) -> Result<()> {
    let args = upgrade_args(testbed, chart, values)?;
    testbed.helm(args).await?.checked().context("helm upgrade --install")?;
    rolled_out(testbed).await?;
    kinds_known(testbed).await
}

/// The command line of that upgrade.
///
/// # Errors
/// When the file of values cannot be written.
pub fn upgrade_args(testbed: &Testbed, chart: &Path, values: &Value) -> Result<Vec<String>> {
    let file = testbed.data_dir().join("values.json");
    // The tests read metrics without a token, but for the one of who may.
    let mut given = json!({"monitoring": {"authentication": false}});
    // An older chart does not know it.
    if chart == crate::chart::folder() {
        given["policies"] = json!({"maxWeight": crate::chart::MAX_WEIGHT});
    }
    crate::api::merge(&mut given, values);
    std::fs::write(&file, serde_json::to_vec_pretty(&given)?)?;
    let (chart, file) = (chart.display().to_string(), file.display().to_string());
    let args = ["upgrade", "--install", RELEASE, &chart, "--namespace", SYSTEM, "--create-namespace"];
    Ok(args.into_iter().chain(["--values", &file]).map(str::to_owned).collect())
}

/// `helm rollback` to the revision before.
///
/// # Errors
/// As [`upgrade`].
pub async fn rollback(testbed: &Testbed) -> Result<()> {
    testbed.helm(["rollback", RELEASE, "--namespace", SYSTEM]).await?.checked().context("helm rollback")?;
    rolled_out(testbed).await
}

/// `helm uninstall`, until the last pod of the release has gone.
///
/// # Errors
/// When helm fails or a pod stays.
pub async fn uninstall(testbed: &Testbed) -> Result<()> {
    let args = ["uninstall", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout", "120s"];
    testbed.helm(args).await?.checked().context("helm uninstall")?;
    no_pods(testbed).await
}

/// Waits until the last pod of the release has gone.
///
/// # Errors
/// When one stays.
pub async fn no_pods(testbed: &Testbed) -> Result<()> {
    let mut left = Vec::new();
    let gone = async || {
        left = pods(testbed).await?;
        Ok(left.is_empty())
    };
    let waited = until("the pods of the release go", READY_LIMIT, gone).await;
    waited.with_context(|| left.join(", "))?;
    Ok(())
}

/// `namespace/name` of every pod of the release.
///
/// # Errors
/// When the API server does not answer.
pub async fn pods(testbed: &Testbed) -> Result<Vec<String>> {
    let select = format!("app.kubernetes.io/instance={RELEASE}");
    let columns = "--output=jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{'\\n'}{end}";
    let output = testbed.kubectl(["get", "pods", "--all-namespaces", "--selector", &select, columns]).await?;
    Ok(output.checked()?.stdout.lines().map(str::to_owned).collect())
}

/// Waits until admission has learnt of our kinds, which takes it up to half a minute after their definition: until it no longer
/// says to the operator that it has not. An administrator is not asked.
///
/// # Errors
/// When that takes longer, with what was said last.
pub(crate) async fn kinds_known(testbed: &Testbed) -> Result<()> {
    let owned = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "owned", "namespace": "default", "ownerReferences": [{
            "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": "none", "uid": "none", "blockOwnerDeletion": true,
        }]},
        "spec": {"containers": [{"name": "none", "image": "none"}]},
    });
    let file = testbed.data_dir().join("owned.json");
    std::fs::write(&file, serde_json::to_vec(&owned)?)?;
    let file = file.display().to_string();
    let operator = format!("--as=system:serviceaccount:{SYSTEM}:{}", chart::operator_account());
    let mut said = String::new();
    let known = async || {
        let args = ["create", "--dry-run=server", &operator, "--filename", &file];
        said = testbed.kubectl(args).await?.stderr;
        Ok(!said.contains("cannot find RESTMapping"))
    };
    let waited = until("admission knows our kinds", READY_LIMIT, known).await;
    waited.with_context(|| said)?;
    Ok(())
}

/// Waits until every pod of the release is ready and as its manifests say.
///
/// # Errors
/// When one is not ready in time: then with what the pods said last.
pub async fn rolled_out(testbed: &Testbed) -> Result<()> {
    let select = format!("app.kubernetes.io/instance={RELEASE}");
    let kinds = "deployments,daemonsets";
    let columns =
        "--output=jsonpath={range .items[*]}{.metadata.namespace} {.kind} {.metadata.name}{'\\n'}{end}";
    let listed = testbed.kubectl(["get", kinds, "--all-namespaces", "--selector", &select, columns]).await?;
    let limit = format!("--timeout={}s", READY_LIMIT.as_secs());
    for line in listed.checked()?.stdout.lines() {
        let mut words = line.split(' ');
        let (Some(namespace), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let object = format!("{kind}/{name}");
        let waited =
            testbed.kubectl(["rollout", "status", &object, "--namespace", namespace, &limit]).await?;
        if let Err(error) = waited.checked() {
            let seen = ["get", "pods,events", "--all-namespaces", "--output=wide"];
            let seen = testbed.kubectl(seen).await?.stdout;
            bail!("{object} is not ready: {error}\n{seen}\n{}", logs(testbed));
        }
    }
    Ok(())
}

/// SIGKILL for the processes of a container, in every pod whose name begins so; how many there were. One that is just being
/// started again is waited for.
///
/// # Errors
/// When the nodes do not answer, or a container does not run within a minute.
pub async fn kill(nodes: &dyn Machines, pod_prefix: &str, container: &str) -> Result<usize> {
    let mut killed = BTreeSet::new();
    let all_killed = async || {
        let pods = nodes.pods().await?;
        let ours: Vec<_> = pods.iter().filter(|pod| pod.name.starts_with(pod_prefix) && !pod.ended).collect();
        for pod in &ours {
            let pid = pod.pids.get(container).and_then(|pid| Pid::from_raw(*pid));
            // A process that has just gone is no error: its successor is the one to be killed.
            if !killed.contains(&pod.uid) && pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok()) {
                killed.insert(pod.uid.clone());
            }
        }
        Ok(ours.iter().all(|pod| killed.contains(&pod.uid)))
    };
    let what = format!("{container} of {pod_prefix}... runs");
    until(&what, Duration::from_secs(60), all_killed).await?;
    Ok(killed.len())
}

/// The log of every container of the chart's pods.
pub fn log_files(testbed: &Testbed) -> Vec<PathBuf> {
    let root = testbed.data_dir();
    let namespaces = [SYSTEM, "andreas-node"];
    let mut folders = Vec::from(namespaces.map(|namespace| root.join("kubelets/logs").join(namespace)));
    // Of a real node these alone are read: below it lie the file systems of all its containers.
    for node in entries(&root.join("nodes")) {
        let of_namespace = |pod: &PathBuf| {
            let name = pod.file_name().unwrap_or_default().to_string_lossy();
            name.split_once('_').is_some_and(|(namespace, _)| namespaces.contains(&namespace))
        };
        folders.extend(entries(&node.join("log/pods")).into_iter().filter(of_namespace));
    }
    folders.iter().flat_map(|folder| files_below(folder)).collect()
}

/// The end of each of [`log_files`].
pub fn logs(testbed: &Testbed) -> String {
    let (mut text, root) = (String::new(), testbed.data_dir());
    for file in log_files(testbed) {
        let log = std::fs::read_to_string(&file).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(25)..].join("\n");
        text += &format!("--- {} ---\n{last}\n", file.strip_prefix(root).unwrap_or(&file).display());
    }
    text
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in entries(folder) {
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}
