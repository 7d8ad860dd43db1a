//! One watch per kind, all into one index.

use std::sync::Arc;

use andreas_api::names::LABEL_JOB;
use andreas_api::slim::{
    SlimEnergyPolicy, SlimGpuNode, SlimNode, SlimNodePower, SlimPersistentVolume, SlimPersistentVolumeClaim,
    SlimPod, SlimQuota, SlimTrainingJob, SlimTrainingProfile,
};
use andreas_cluster::index::{ClusterIndex, ForeignPod, SlimNamespace};
use andreas_runtime::health::{Health, ReadyHandle};
use andreas_runtime::watch::{Event, Index, WatchConfig, WatchMetrics, Watcher, feed};
use kube::{Client, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Caches that are being filled.
pub struct Cached {
    ready: Vec<ReadyHandle>,
}

impl Cached {
    /// Waits until every first list is in.
    pub async fn wait(&self) {
        for cache in &self.ready {
            cache.wait().await;
        }
    }
}

/// Starts all watches.
pub fn start_watches(
    client: &Client,
    index: &Arc<Mutex<ClusterIndex>>,
    metrics: &WatchMetrics,
    health: &Health,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> Cached {
    let mut with = WatchStarter { client, index, metrics, health, tasks, end, ready: Vec::new() };
    with.feed::<SlimNode>("nodes", WatchConfig::default());
    with.feed::<SlimGpuNode>("gpunodes", WatchConfig::default());
    with.feed::<SlimNodePower>("nodepowers", WatchConfig::default());
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

struct WatchStarter<'a> {
    client: &'a Client,
    index: &'a Arc<Mutex<ClusterIndex>>,
    metrics: &'a WatchMetrics,
    health: &'a Health,
    tasks: &'a TaskTracker,
    end: &'a CancellationToken,
    ready: Vec<ReadyHandle>,
}

impl WatchStarter<'_> {
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

/// One consistent list of jobs and their pods, so that a new leader sees all of the previous leader's writes.
/// Read in pages, object by object. Unparsable objects are skipped; a failed list is retried until it
/// succeeds.
pub async fn catch_up(client: &Client, index: &Arc<Mutex<ClusterIndex>>) {
    let jobs = list::<SlimTrainingJob>(client, WatchConfig::default(), |job| index.lock().wrote_job(job));
    let pods =
        list::<SlimPod>(client, WatchConfig::default().labels(LABEL_JOB), |pod| index.lock().wrote_pod(pod));
    tokio::join!(jobs, pods);
}

/// Lists once, object by object.
async fn list<T>(client: &Client, config: WatchConfig, mut each: impl FnMut(T))
where
    T: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    let mut watcher = Watcher::<T>::new(client.clone(), config, &WatchMetrics::default());
    loop {
        match watcher.next().await {
            Event::Applied(object) => each(object),
            Event::Reset(_) => return,
            Event::Deleted { .. } | Event::Undecodable { .. } | Event::Rewound => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{self, ApiServer, failure};

    fn page(items: &[Value], next: &str) -> Value {
        json!({"metadata": {"resourceVersion": "50", "continue": next}, "items": items})
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_takes_over_reads_everything_whatever_one_object_or_one_answer_is_like() {
        // given an unparsable job among others, over two pages, and an API server that fails first
        let mut unreadable = testing::job(40, &json!(null));
        unreadable["metadata"]["name"] = json!("unreadable");
        unreadable["spec"] = json!("text");
        let mut other = testing::job(41, &json!(null));
        other["metadata"]["name"] = json!("other");
        let server = ApiServer::new(vec![
            (Method::GET, "/trainingjobs", 500, failure(500, "etcd")),
            (Method::GET, "/trainingjobs", 200, page(&[unreadable, testing::job(42, &json!(null))], "more")),
            (Method::GET, "/trainingjobs", 200, page(&[other], "")),
            (Method::GET, "/pods", 500, failure(500, "etcd")),
            (Method::GET, "/pods", 200, page(&[testing::pod(0, 43, "j1")], "")),
        ]);
        let index: Arc<Mutex<ClusterIndex>> = Arc::default();
        // when a replica becomes the leader
        catch_up(&server.client(), &index).await;
        // then it has all the others
        let index = index.lock();
        let mut names: Vec<&str> = index.jobs().iter().map(|(key, _)| key.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["bert", "other"]);
        assert_eq!(index.pods().iter().count(), 1);
    }
}
