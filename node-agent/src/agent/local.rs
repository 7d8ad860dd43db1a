//! What this node's agent sees, for a person at the node: one pass of reading, nothing is set, no API server is asked.
//!
//! The agent that runs knows more, and only its GpuNode tells it: Xid errors of the past, and ranges of power limits.

use std::sync::Arc;

use andreas_api::GpuNodeStatus;
use andreas_runtime::clock;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use super::AgentArgs;
use super::cache::ObjectCache;
use super::metrics::Metrics;
use super::reconcile::ReconcileLoop;
use super::status::{ConditionUpdate, Report, next};
use crate::gpu::Library;

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
