//! Watches a run from outside, with an administrator's eyes, and notes whatever must never happen.
//!
//! It knows nothing of the operator's state: it sees TrainingJobs and pods as any client does, and checks after every
//! event what it has [`seen`](crate::seen), beside what the [`devices`](crate::devices) say.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use andreas_api::slim::{SlimNode, SlimPod, SlimTrainingJob};
use futures::StreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::devices;
use crate::machines::Machines;
use crate::seen::{ClusterHistory, describe, lock};

/// A running observer; dropped, it ends.
pub struct Observer {
    seen: Arc<Mutex<ClusterHistory>>,
    changes: watch::Receiver<u64>,
    _tasks: JoinSet<()>,
}

impl Observer {
    /// Sees nothing: for runs that measure, which a watcher more would slow down.
    pub fn idle() -> Self {
        Self { seen: Self::nothing(), changes: watch::channel(0).1, _tasks: JoinSet::new() }
    }

    fn nothing() -> Arc<Mutex<ClusterHistory>> {
        Arc::default()
    }

    /// Starts watching TrainingJobs, pods and nodes, and what the nodes say of devices.
    pub fn start(client: &kube::Client, machines: Arc<dyn Machines>) -> Self {
        let seen = Self::nothing();
        let (changed, changes) = watch::channel(0);
        let changed = Arc::new(changed);
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(
            Api::<SlimTrainingJob>::all(client.clone()),
            seen.clone(),
            changed.clone(),
            ClusterHistory::see_job,
        ));
        tasks.spawn(follow(
            Api::<SlimPod>::all(client.clone()),
            seen.clone(),
            changed.clone(),
            ClusterHistory::see_pod,
        ));
        tasks.spawn(follow(
            Api::<SlimNode>::all(client.clone()),
            seen.clone(),
            changed.clone(),
            ClusterHistory::see_node,
        ));
        tasks.spawn(devices::watch(machines, seen.clone()));
        let ticking = (seen.clone(), changed);
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                lock(&ticking.0).check();
                ticking.1.send_modify(|n| *n += 1);
            }
        });
        Self { seen, changes, _tasks: tasks }
    }

    /// Everything seen so far.
    pub fn seen(&self) -> MutexGuard<'_, ClusterHistory> {
        lock(&self.seen)
    }

    /// Waits until something changed or a second passed.
    pub async fn changed(&mut self) {
        // The sender lives in tasks that end only with self.
        let _ = self.changes.changed().await;
    }

    /// Waits until `ready` holds of what is seen.
    ///
    /// # Errors
    /// When the time is over; the message shows the jobs as last seen.
    pub async fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut(&ClusterHistory) -> bool,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + limit;
        loop {
            if ready(&self.seen()) {
                return Ok(());
            }
            if Instant::now() > end {
                anyhow::bail!(
                    "not {what} within {} s; seen last:\n{}",
                    limit.as_secs(),
                    describe(&self.seen())
                );
            }
            self.changed().await;
        }
    }
}

type Handler<K> = fn(&mut ClusterHistory, K, bool);

async fn follow<K>(
    api: Api<K>,
    seen: Arc<Mutex<ClusterHistory>>,
    changed: Arc<watch::Sender<u64>>,
    see: Handler<K>,
) where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut stream = watcher(api, watcher::Config::default()).boxed();
    // What is there, and what a list that has begun has named of it.
    let (mut known, mut listed) = (HashMap::new(), HashMap::new());
    while let Some(event) = stream.next().await {
        let (applied, gone) = match event {
            Ok(Event::Apply(object)) => {
                known.insert(object.uid(), object.clone());
                (Some(object), Vec::new())
            }
            Ok(Event::InitApply(object)) => {
                listed.insert(object.uid(), object.clone());
                (Some(object), Vec::new())
            }
            Ok(Event::Delete(object)) => {
                known.remove(&object.uid());
                (None, vec![object])
            }
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            // What a list no longer names went while nothing was watched.
            Ok(Event::InitDone) => {
                let before = std::mem::replace(&mut known, std::mem::take(&mut listed));
                let gone = before.into_iter().filter(|(uid, _)| !known.contains_key(uid));
                (None, gone.map(|(_, object)| object).collect())
            }
            // The API server may be killed under us; the watcher goes on where it was.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(300)).await;
                continue;
            }
        };
        {
            let mut seen = lock(&seen);
            if let Some(object) = applied {
                see(&mut seen, object, false);
            }
            for object in gone {
                see(&mut seen, object, true);
            }
            seen.check();
        }
        changed.send_modify(|n| *n += 1);
    }
}
