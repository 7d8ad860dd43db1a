//! What this node's agent sees, for a person at the node: one pass of reading, nothing is set, no API server is asked.
//!
//! The agent that runs knows more, and only its GpuNode tells it: Xid errors of the past, and ranges of power limits. What its
//! setter changed is read from the setter's record.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use andreas_api::GpuNodeStatus;
use andreas_api::gpu_node::GpuCondition;
use andreas_runtime::clock;
use anyhow::Context as _;
use clap::Args;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use super::AgentArgs;
use super::cache::ObjectCache;
use super::metrics::Metrics;
use super::reconcile::ReconcileLoop;
use super::status::{ConditionUpdate, Report, next};
use crate::gpu::Library;
use crate::setter::record::{self, OriginalSettings};

/// Flags of `status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Path of the kubelet's PodResources socket.
    #[arg(long, env = "ANDREAS_POD_RESOURCES", default_value = andreas_podresources::SOCKET, value_name = "PATH")]
    pub pod_resources: PathBuf,
    /// Path or name of the NVML library.
    #[arg(long, env = "ANDREAS_NVML_LIBRARY", default_value = "libnvidia-ml.so.1", value_name = "PATH")]
    pub nvml_library: PathBuf,
    /// Directory of the setter's record: it says what was set here.
    #[arg(long, env = "ANDREAS_SETTER_STATE", default_value = "/var/lib/andreas", value_name = "DIR")]
    pub state: PathBuf,
}

/// Reads the node once; what was read, as JSON in the form of `GpuNode.status`.
///
/// # Errors
/// When the driver cannot be asked, or no thread can be started. A kubelet that does not answer is a condition in the
/// status: holders are unknown then.
pub async fn once(args: &AgentArgs, library: Arc<dyn Library>) -> anyhow::Result<String> {
    let (reconciler, status) = read(args, library).await?;
    if let Err(error) = reconciler.monitor().list_result() {
        anyhow::bail!("the GPUs cannot be listed: {error}");
    }
    Ok(serde_json::to_string_pretty(&status)?)
}

/// Reads the node once; a table for people.
///
/// # Errors
/// As [`once`].
pub async fn table(
    status_args: &StatusArgs,
    args: &AgentArgs,
    library: Arc<dyn Library>,
) -> anyhow::Result<String> {
    let (reconciler, status) = read(args, library).await?;
    let monitor = reconciler.monitor();
    if let Err(error) = monitor.list_result() {
        anyhow::bail!("the GPUs cannot be listed: {error}");
    }
    let record = record::peek(&status_args.state);
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    for gpu in &status.gpus {
        let handle = monitor.gpus().get(&gpu.uuid).context("a GPU without readings")?;
        let (facts, sample) = (handle.facts(), handle.sample());
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let original = record.as_ref().and_then(|record| record.get(&gpu.uuid));
        let state = match gpu.state {
            GpuCondition::Unhealthy => "unhealthy",
            _ if !reconciler.kubelet_answers() => "?",
            GpuCondition::Held => "held",
            // Nothing else is set on a GPU without a pod.
            GpuCondition::Free if original.is_some_and(is_changed) => "resting",
            GpuCondition::Free => "free",
            GpuCondition::Resting => "resting",
        };
        let shared: Vec<&str> = gpu.shares.iter().map(|share| share.pod.as_str()).collect();
        let holder = gpu.holder.clone().or((!shared.is_empty()).then(|| shared.join(",")));
        let limit = sample.filter(|sample| sample.limit_mw > 0).map(|sample| {
            match facts.and_then(|facts| facts.default_limit_mw).filter(|default| *default != sample.limit_mw)
            {
                Some(default) => format!("{} of {}", sample.limit_mw / 1000, default / 1000),
                None => (sample.limit_mw / 1000).to_string(),
            }
        });
        let power = sample.map(|sample| sample.power_mw).filter(|milliwatts| *milliwatts > 0);
        let problems: Vec<&str> = gpu.problems.iter().map(|problem| problem.reason.as_str()).collect();
        rows.push(vec![
            gpu.uuid.clone(),
            or_dash(facts.map(|facts| facts.product.clone())),
            state.to_owned(),
            or_dash(holder),
            or_dash(power.map(|milliwatts| format!("{:.1}", f64::from(milliwatts) / 1000.0))),
            or_dash(limit),
            or_dash(sample.map(|sample| sample.clock_mhz.to_string())),
            or_dash(sample.and_then(|sample| sample.temperature).map(|degrees| degrees.to_string())),
            or_dash(sample.and_then(|sample| sample.contexts()).map(|contexts| contexts.to_string())),
            or_dash(record.as_ref().map(|_| setting(original))),
            if problems.is_empty() { "ok".to_owned() } else { problems.join(",") },
        ]);
    }
    let mut text = render(&rows);
    for gpu in &status.gpus {
        for problem in &gpu.problems {
            let _ = writeln!(text, "{}: {}", gpu.uuid, problem.message);
        }
    }
    if status.gpus.is_empty() {
        text.push_str("The driver lists no GPU.\n");
    }
    if !reconciler.kubelet_answers() {
        text.push_str("The kubelet's PodResources socket does not answer: states and holders are unknown.\n");
    }
    Ok(text)
}

const HEADINGS: [&str; 11] = [
    "GPU", "PRODUCT", "STATE", "HOLDER", "DRAW W", "LIMIT W", "SM MHZ", "TEMP C", "CONTEXTS", "SET", "HEALTH",
];

/// Whether the setter changed anything on a GPU.
fn is_changed(original: &OriginalSettings) -> bool {
    original.clocks || original.limit_mw.is_some()
}

/// What the setter changed on a GPU.
fn setting(original: Option<&OriginalSettings>) -> String {
    let Some(original) = original else { return "nothing".to_owned() };
    let limit = original.limit_mw.map(|limit| format!("limit (was {})", limit / 1000));
    let clocks = original.clocks.then(|| "clocks".to_owned());
    let all: Vec<String> = limit.into_iter().chain(clocks).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join(",") }
}

/// Columns of equal width, two spaces between them.
fn render(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

async fn read(args: &AgentArgs, library: Arc<dyn Library>) -> anyhow::Result<(ReconcileLoop, GpuNodeStatus)> {
    let metrics = Metrics::register(&mut Registry::default(), true);
    let cache = Arc::new(Mutex::new(ObjectCache::default()));
    let mut reconciler = ReconcileLoop::new(args.dependencies(library, None, cache, metrics)?);
    let mut report: Report = reconciler.reconcile().await;
    if !reconciler.kubelet_answers() {
        for condition in report.conditions.iter_mut().filter(|condition| condition.kind == "Ready") {
            let message = "the PodResources socket does not answer".to_owned();
            *condition =
                ConditionUpdate { kind: "Ready", status: false, reason: "KubeletNotResponding", message };
        }
    }
    let status = next(&GpuNodeStatus::default(), report, clock::now());
    Ok((reconciler, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [vec!["GPU".to_owned(), "STATE".to_owned()], vec!["GPU-a".to_owned(), "free".to_owned()]];
        assert_eq!(render(&rows), "GPU    STATE\nGPU-a  free\n");
        let original = OriginalSettings { limit_mw: Some(400_000), clocks: true };
        assert_eq!(setting(Some(&original)), "limit (was 400),clocks");
    }
}
