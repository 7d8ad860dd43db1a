//! Watches of jobs of other kinds that ask for adoption.
//!
//! A kind that the cluster does not have is looked for again and again; its watch begins when its definition is there.

use std::sync::Arc;
use std::time::Duration;

use andreas_api::names::LABEL_ADOPT;
use andreas_cluster::index::ClusterIndex;
use andreas_runtime::health::Health;
use andreas_runtime::watch::{WatchConfig, WatchMetrics, Watcher, feed};
use andreas_workloads::adopt::Kind;
use andreas_workloads::adopt::workload::{Job, JobSet, PyTorchJob, RayJob, Tag, TrainJob, Watched};
use kube::Client;
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Interval of checking for kinds that are not there.
const CHECK_EVERY: Duration = Duration::from_secs(15);

/// Watches the workloads of these kinds until `end`.
pub async fn watch(
    kinds: Vec<Kind>,
    client: Client,
    index: Arc<Mutex<ClusterIndex>>,
    metrics: WatchMetrics,
    end: CancellationToken,
) {
    let tasks = TaskTracker::new();
    let mut missing = kinds;
    missing.sort_unstable();
    missing.dedup();
    let start = |kind: Kind| match kind {
        Kind::Job => begin::<Job>(&client, &index, &metrics, &tasks, &end),
        Kind::JobSet => begin::<JobSet>(&client, &index, &metrics, &tasks, &end),
        Kind::TrainJob => begin::<TrainJob>(&client, &index, &metrics, &tasks, &end),
        Kind::PyTorchJob => begin::<PyTorchJob>(&client, &index, &metrics, &tasks, &end),
        Kind::RayJob => begin::<RayJob>(&client, &index, &metrics, &tasks, &end),
    };
    while !missing.is_empty() {
        let mut still = Vec::new();
        for kind in missing {
            if is_served(&client, kind).await { start(kind) } else { still.push(kind) }
        }
        missing = still;
        tokio::select! {
            () = tokio::time::sleep(CHECK_EVERY) => {}
            () = end.cancelled() => break,
        }
    }
    tasks.close();
    tasks.wait().await;
}

/// Whether the API server has that kind.
async fn is_served(client: &Client, kind: Kind) -> bool {
    let url = format!("/apis/{}", kind.api_version());
    let Ok(request) = http::Request::get(url).body(Vec::new()) else { return false };
    let Ok(list) = client.request::<Value>(request).await else { return false };
    list["resources"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == kind.plural()))
}

fn begin<T: Tag>(
    client: &Client,
    index: &Arc<Mutex<ClusterIndex>>,
    metrics: &WatchMetrics,
    tasks: &TaskTracker,
    end: &CancellationToken,
) {
    tracing::info!(kind = T::KIND.name(), "jobs of this kind can be adopted");
    // The operator is ready without them: a kind may be removed while it runs.
    let ready = Health::new().register("adopted jobs");
    let config = WatchConfig::default().labels(format!("{LABEL_ADOPT}=true"));
    let watcher = Watcher::<Watched<T>>::new(client.clone(), config, metrics);
    tasks.spawn(feed(watcher, Arc::clone(index), ready, end.clone()));
}
