//! One watch per kind, all into the one index.

use std::sync::Arc;
use std::time::Duration;

use andreas_api::names::LABEL_JOB;
use andreas_api::slim::{
    SlimEnergyPolicy, SlimGpuNode, SlimNode, SlimPersistentVolume, SlimPersistentVolumeClaim, SlimPod,
    SlimQuota, SlimTrainingJob, SlimTrainingProfile,
};
use andreas_runtime::health::{Health, ReadyHandle};
use andreas_runtime::watch::{Index, WatchConfig, WatchMetrics, Watcher, feed};
use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::index::{ClusterIndex, ForeignPod, SlimNamespace};

/// Caches that are being filled.
pub struct Cached {
    ready: Vec<ReadyHandle>,
}

impl Cached {
    /// Waits until every first list is in.
    pub async fn wait(&self) -> bool {
        while !self.ready.iter().all(ReadyHandle::is_set) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        true
    }
}

/// Starts all watches.
pub fn feed_all(
    client: &Client,
    index: &Arc<Mutex<ClusterIndex>>,
    metrics: &WatchMetrics,
    health: &Health,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> Cached {
    let mut with = Feeding { client, index, metrics, health, tasks, end, ready: Vec::new() };
    with.feed::<SlimNode>("nodes", WatchConfig::default());
    with.feed::<SlimGpuNode>("gpunodes", WatchConfig::default());
    with.feed::<SlimEnergyPolicy>("energypolicies", WatchConfig::default());
    with.feed::<SlimTrainingProfile>("trainingprofiles", WatchConfig::default());
    with.feed::<SlimQuota>("resourcequotas", WatchConfig::default());
    with.feed::<SlimNamespace>("namespaces", WatchConfig::default());
    with.feed::<SlimPersistentVolumeClaim>("persistentvolumeclaims", WatchConfig::default());
    with.feed::<SlimPersistentVolume>("persistentvolumes", WatchConfig::default());
    with.feed::<SlimTrainingJob>("trainingjobs", WatchConfig::default());
    with.feed::<SlimPod>("pods of jobs", WatchConfig::default().labels(LABEL_JOB));
    let others = WatchConfig::default()
        .labels(format!("!{LABEL_JOB}"))
        .fields("status.phase!=Succeeded,status.phase!=Failed");
    with.feed::<ForeignPod>("other pods", others);
    Cached { ready: with.ready }
}

struct Feeding<'a> {
    client: &'a Client,
    index: &'a Arc<Mutex<ClusterIndex>>,
    metrics: &'a WatchMetrics,
    health: &'a Health,
    tasks: &'a TaskTracker,
    end: &'a CancellationToken,
    ready: Vec<ReadyHandle>,
}

impl Feeding<'_> {
    fn feed<T>(&mut self, name: &str, config: WatchConfig)
    where
        T: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
        ClusterIndex: Index<T>,
    {
        let ready = self.health.register(format!("{name} cache"));
        self.ready.push(ready.clone());
        let watcher = Watcher::<T>::new(self.client.clone(), config, self.metrics);
        self.tasks.spawn(feed(watcher, Arc::clone(self.index), ready, self.end.clone()));
    }
}

/// One consistent list of jobs and of their pods: whoever takes over sees all that the leader before wrote.
pub async fn catch_up(client: &Client, index: &Arc<Mutex<ClusterIndex>>) {
    let mut page = ListParams::default().limit(500);
    let jobs: Api<SlimTrainingJob> = Api::all(client.clone());
    loop {
        match jobs.list(&page).await {
            Ok(list) => {
                let mut index = index.lock();
                list.items.into_iter().for_each(|job| index.wrote_job(job));
                match list.metadata.continue_.filter(|next| !next.is_empty()) {
                    Some(next) => page.continue_token = Some(next),
                    None => break,
                }
            }
            Err(error) => {
                // The watches will show it; writes carry the version they were made from, so nothing is overwritten.
                tracing::warn!(%error, "jobs not listed at take-over");
                break;
            }
        }
    }
    let pods: Api<SlimPod> = Api::all(client.clone());
    match pods.list(&ListParams::default().labels(LABEL_JOB)).await {
        Ok(list) => {
            let mut index = index.lock();
            list.items.into_iter().for_each(|pod| index.wrote_pod(pod));
        }
        Err(error) => tracing::warn!(%error, "pods not listed at take-over"),
    }
}
