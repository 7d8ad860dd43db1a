//! The kubelets together: one watch for the pods of all nodes, a worker per pod, the nodes' heartbeats.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};

use crate::entry::{Order, PodHandle};
use crate::forward::Forwarder;
use crate::hardware::Hardware;
use crate::objects::{NodeView, PodView, ServiceView, SliceView};
use crate::pod::worker::{self, write::confirm_deletion};
use crate::pod_resources;
use crate::sandbox::Sandbox;
use crate::shared::Shared;

/// Changes of Services and endpoints are gathered for this long.
const GATHER: Duration = Duration::from_millis(100);
/// Registrations under way at one time.
const REGISTRATIONS: usize = 16;

impl Shared {
    /// Simulated GPUs and a PodResources socket for every node with GPUs, where containers are processes.
    pub fn start_hardware(self: &Arc<Self>) -> anyhow::Result<()> {
        let Some(library) = self.config.nvml_library.as_ref().filter(|_| self.sandbox.is_some()) else {
            return Ok(());
        };
        for node in self.nodes.values().filter(|node| node.group.gpus > 0) {
            let host = self.host(&node.name);
            let uuids: Vec<String> = node.devices.lock().gpus().iter().map(|gpu| gpu.uuid.clone()).collect();
            let _ = node.hardware.set(Hardware::new(&node.group, &uuids, &host, library)?);
            tokio::spawn(pod_resources::serve(Arc::downgrade(self), Arc::clone(node), host));
        }
        Ok(())
    }

    /// Registers every node and starts its heartbeat.
    pub async fn register_nodes(self: &Arc<Self>) -> kube::Result<()> {
        let all = futures::stream::iter(self.nodes.values().cloned().map(Ok));
        all.try_for_each_concurrent(REGISTRATIONS, |node| async move { node.register(&self.client).await })
            .await?;
        let writes = Arc::new(Semaphore::new(self.config.writes_in_flight.max(1)));
        for node in self.nodes.values() {
            let beat = Arc::clone(node).heartbeat(
                self.client.clone(),
                Arc::clone(&self.config),
                Arc::clone(&writes),
            );
            tokio::spawn(beat);
        }
        Ok(())
    }

    /// Follows pods, and with processes Services and endpoints too, for ever.
    pub async fn follow(self: Arc<Self>) {
        if let Some(sandbox) = self.sandbox.clone() {
            tokio::spawn(Arc::clone(&self).follow_services());
            tokio::spawn(Arc::clone(&self).follow_slices());
            tokio::spawn(Arc::clone(&self).keep_inside(sandbox));
        }
        tokio::spawn(Arc::clone(&self).follow_nodes());
        let pods: Api<PodView> = Api::all(self.client.clone());
        let bound = watcher::Config::default().fields("spec.nodeName!=");
        let mut events = pin!(watcher(pods, bound).default_backoff());
        let mut seen = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => seen.clear(),
                Ok(watcher::Event::InitApply(pod)) => {
                    seen.insert(pod.uid().to_owned());
                    self.apply(pod);
                }
                Ok(watcher::Event::InitDone) => {
                    let entries: Vec<Arc<PodHandle>> = self.pods.lock().values().cloned().collect();
                    for entry in entries {
                        let pod = Arc::clone(&entry.pod.lock());
                        if !seen.contains(pod.uid()) {
                            let _ = entry.orders.send(Order::Gone(pod));
                        }
                    }
                }
                Ok(watcher::Event::Apply(pod)) => self.apply(pod),
                Ok(watcher::Event::Delete(pod)) => {
                    let entry = self.pods.lock().get(pod.uid()).cloned();
                    if let Some(entry) = entry {
                        let _ = entry.orders.send(Order::Gone(Arc::new(pod)));
                    }
                }
                Err(error) => tracing::warn!(%error, "watch of pods"),
            }
        }
    }

    /// A kubelet that was too slow for the node controller takes its `Ready=Unknown` back with the next report.
    async fn follow_nodes(self: Arc<Self>) {
        let nodes: Api<NodeView> = Api::all(self.client.clone());
        let mut events = pin!(watcher(nodes, watcher::Config::default()).default_backoff().applied_objects());
        while let Some(event) = events.next().await {
            match event {
                Ok(seen) => {
                    let ours = seen.metadata.name.as_ref().and_then(|name| self.nodes.get(name));
                    if let Some(node) = ours.filter(|node| node.is_online() && !seen.is_ready()) {
                        node.status_changed();
                    }
                }
                Err(error) => tracing::warn!(%error, "watch of nodes"),
            }
        }
    }

    fn apply(self: &Arc<Self>, pod: PodView) {
        let Some(node) = self.nodes.get(&pod.spec.node_name) else { return };
        let pod = Arc::new(pod);
        let mut pods = self.pods.lock();
        if let Some(entry) = pods.get(pod.uid()) {
            *entry.pod.lock() = Arc::clone(&pod);
            let _ = entry.orders.send(Order::Update(pod));
            return;
        }
        if pod.is_terminal() {
            // It ended under an earlier kubelet process.
            if pod.is_deleting() {
                let shared = Arc::clone(self);
                tokio::spawn(async move { confirm_deletion(&shared, &pod).await });
            }
            return;
        }
        let (orders, ordered) = mpsc::unbounded_channel();
        let (lose, lost) = mpsc::unbounded_channel();
        let pod_cell = Mutex::new(Arc::clone(&pod));
        let entry = Arc::new(PodHandle { pod: pod_cell, orders, lose, facts: Mutex::default() });
        pods.insert(pod.uid().to_owned(), Arc::clone(&entry));
        tokio::spawn(worker::run(Arc::clone(self), Arc::clone(node), pod, entry, ordered, lost));
    }

    async fn follow_services(self: Arc<Self>) {
        let services: Api<ServiceView> = Api::all(self.client.clone());
        let mut events = pin!(watcher(services, watcher::Config::default()).default_backoff());
        let mut seen = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => seen.clear(),
                Ok(watcher::Event::InitApply(service)) => {
                    seen.push(service.clone());
                    self.cluster.lock().apply_service(service);
                }
                Ok(watcher::Event::InitDone) => {
                    self.cluster.lock().retain_services(&std::mem::take(&mut seen))
                }
                Ok(watcher::Event::Apply(service)) => self.cluster.lock().apply_service(service),
                Ok(watcher::Event::Delete(service)) => self.cluster.lock().delete_service(&service),
                Err(error) => tracing::warn!(%error, "watch of services"),
            }
            self.cluster_changed.notify_one();
        }
    }

    async fn follow_slices(self: Arc<Self>) {
        let slices: Api<SliceView> = Api::all(self.client.clone());
        let mut events = pin!(watcher(slices, watcher::Config::default()).default_backoff());
        let mut seen = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => seen.clear(),
                Ok(watcher::Event::InitApply(slice)) => {
                    seen.push(slice.clone());
                    self.cluster.lock().apply_slice(slice);
                }
                Ok(watcher::Event::InitDone) => self.cluster.lock().retain_slices(&std::mem::take(&mut seen)),
                Ok(watcher::Event::Apply(slice)) => self.cluster.lock().apply_slice(slice),
                Ok(watcher::Event::Delete(slice)) => self.cluster.lock().delete_slice(&slice),
                Err(error) => tracing::warn!(%error, "watch of endpoint slices"),
            }
            self.cluster_changed.notify_one();
        }
    }

    /// Keeps listeners and `/etc/hosts` files what the cluster says.
    async fn keep_inside(self: Arc<Self>, sandbox: Arc<Sandbox>) {
        let mut forwarder = Forwarder::default();
        loop {
            forwarder.reconcile(&self, &sandbox).await;
            self.refresh_hosts();
            // Now and then even without news: a listener that could not be opened is tried again.
            let _ = tokio::time::timeout(Duration::from_secs(5), self.cluster_changed.notified()).await;
            tokio::time::sleep(GATHER).await;
        }
    }
}
