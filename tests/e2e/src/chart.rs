//! The chart's objects on a test bed: definitions, RBAC, admission policies, PriorityClass, and the scheduler's
//! configuration, rendered by helm from `charts/andreas` exactly as an installation would get them.
//!
//! The chart's own pods are left out: operator, extender and scheduler run as plain processes here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use andreas_testbed::Testbed;
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::sync::Mutex;

/// Name of the release.
const RELEASE: &str = "andreas";
/// Namespace of our own programs.
pub const SYSTEM: &str = "andreas-system";
/// Namespace of the node agents.
pub const AGENTS: &str = "andreas-node";

/// Namespace of node-power.
pub const POWER: &str = "andreas-power";

/// The weights that scenarios may give their jobs, where they do not say otherwise: all.
pub const MAX_WEIGHT: u16 = 1_000;

/// ServiceAccount of the operator.
pub fn operator_account() -> &'static str {
    "andreas-operator"
}

/// ServiceAccount that scheduler and extender share.
pub fn scheduler_account() -> &'static str {
    "andreas-scheduler"
}

/// Folder of the chart.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/andreas")
}

/// What helm said, by its arguments: the chart does not change while a program runs.
static RENDERED: Mutex<BTreeMap<Vec<String>, String>> = Mutex::const_new(BTreeMap::new());

async fn render(testbed: &Testbed, templates: &[&str], values: &[(&str, &str)]) -> Result<String> {
    let mut args: Vec<String> = ["template", RELEASE]
        .into_iter()
        .map(str::to_owned)
        .chain([folder().display().to_string()])
        .collect();
    args.extend(["--namespace".to_owned(), SYSTEM.to_owned()]);
    for template in templates {
        args.extend(["--show-only".to_owned(), (*template).to_owned()]);
    }
    for (name, value) in values {
        args.extend(["--set".to_owned(), format!("{name}={value}")]);
    }
    let mut rendered = RENDERED.lock().await;
    if let Some(text) = rendered.get(&args) {
        return Ok(text.clone());
    }
    let text = testbed.helm(&args).await?.checked().context("rendering the chart")?.stdout;
    rendered.insert(args, text.clone());
    Ok(text)
}

/// Applies everything but the chart's own pods, with these values, and waits until the definitions are served.
///
/// # Errors
/// When the chart does not render or the API server refuses an object.
pub async fn install(testbed: &Testbed, values: &[(&str, &str)]) -> Result<()> {
    testbed.kubectl(["create", "namespace", SYSTEM]).await?.checked()?;
    if values.contains(&("nodePower.enabled", "true")) {
        testbed.kubectl(["create", "namespace", POWER]).await?.checked()?;
        testbed.kubectl(["create", "serviceaccount", "andreas-node-power", "-n", POWER]).await?.checked()?;
    }
    let definitions = render(testbed, &["templates/crds.yaml"], &[]).await?;
    testbed.kubectl_apply(&definitions).await?.checked()?;
    let rest = render(
        testbed,
        &["templates/rbac/*.yaml", "templates/policies/*.yaml", "templates/priorityclass.yaml"],
        values,
    )
    .await?;
    testbed.kubectl_apply(&rest).await?.checked()?;
    testbed
        .kubectl(["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"])
        .await?
        .checked()?;
    wait_until_served(testbed).await
}

/// A definition is Established a moment before its kind is served everywhere.
async fn wait_until_served(testbed: &Testbed) -> Result<()> {
    for kind in ["trainingjobs", "trainingprofiles", "energypolicies", "gpunodes", "nodepowers"] {
        let served = async || Ok(testbed.kubectl(["get", kind, "--all-namespaces"]).await?.success());
        until(&format!("{kind} are served"), Duration::from_secs(120), served).await?;
    }
    Ok(())
}

/// Starts the node agents of a chart that [`install`] applied, and waits until one runs on every GPU node.
///
/// # Errors
/// When the chart does not render or an agent is not ready in time.
pub async fn start_agents(testbed: &Testbed) -> Result<()> {
    let agents = render(testbed, &["templates/agent/daemonset.yaml"], &[]).await?;
    testbed.kubectl_apply(&agents).await?.checked()?;
    let namespace = format!("--namespace={AGENTS}");
    let waited = ["rollout", "status", "daemonset", &namespace, "--timeout=120s"];
    testbed.kubectl(waited).await?.checked()?;
    Ok(())
}

/// The chart's KubeSchedulerConfiguration, for a kube-scheduler that runs as a plain process and an extender at this address.
///
/// # Errors
/// When the chart does not render or holds no such configuration.
pub async fn scheduler_configuration(testbed: &Testbed, extender: &str) -> Result<Value> {
    // Rendered once: the address differs between control planes.
    let set = [("scheduler.config.leaderElect", "false")];
    let rendered = render(testbed, &["templates/scheduler/config.yaml"], &set).await?;
    let usual = "127.0.0.1:9080";
    ensure!(rendered.contains(usual), "the configuration does not name {usual}");
    let rendered = rendered.replace(usual, extender);
    let map: Value = serde_saphyr::from_str(&rendered).context("the rendered ConfigMap")?;
    let text = map["data"]["scheduler.yaml"].as_str().context("no scheduler.yaml in the ConfigMap")?;
    serde_saphyr::from_str(text).context("the KubeSchedulerConfiguration")
}
