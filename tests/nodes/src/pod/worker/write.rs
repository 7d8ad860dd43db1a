//! What a worker writes: its pod's status, and in the end the last deletion.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Worker;
use crate::entry::Order;
use crate::objects::PodView;
use crate::shared::Shared;

impl Worker {
    /// Writes the status when it has changed; a failure is tried again.
    pub(super) async fn write(&mut self) {
        if self.node.is_online() {
            self.tracker.date_lost(Timestamp::now());
        }
        let patch = self.tracker.patch(self.pod.uid());
        let quiet = self.shared.sandbox.is_none() && self.tracker.phase() == "Pending";
        let waits = self.retry_at.is_some_and(|at| at > Instant::now());
        if self.gone || patch == self.written || quiet || waits || !self.node.is_online() {
            return;
        }
        let pods: Api<PodView> = Api::namespaced(self.shared.client.clone(), self.pod.namespace());
        let shared = Arc::clone(&self.shared);
        let Ok(_permit) = shared.writes.acquire().await else { return };
        let params = PatchParams::default();
        let merge = Patch::Strategic(&patch);
        let write = pods.patch_status(self.pod.name(), &params, &merge);
        match tokio::time::timeout(Duration::from_secs(10), write).await {
            Ok(Ok(_)) => {
                self.written = patch;
                self.retry_at = None;
                self.failures = 0;
            }
            Ok(Err(kube::Error::Api(status))) if status.is_not_found() || status.is_conflict() => {
                // Gone or another pod of that name; the watch will say so.
                self.written = patch;
                self.retry_at = None;
            }
            Ok(Err(error)) => self.write_later(&error.to_string()),
            Err(_) => self.write_later("no answer"),
        }
    }

    fn write_later(&mut self, why: &str) {
        if self.failures == 0 {
            tracing::warn!(pod = self.pod.name(), why, "status not written; it will be tried again");
        }
        let wait = Duration::from_millis(500 << self.failures.min(4));
        self.failures += 1;
        self.retry_at = Some(Instant::now() + wait);
    }

    /// The last deletion, as a kubelet confirms that a pod has ended; then waits until the object is gone, which a
    /// finalizer may delay.
    pub(super) async fn leave(mut self, orders: &mut mpsc::UnboundedReceiver<Order>) {
        if !self.gone {
            let mut online = self.node.online();
            let _ = online.wait_for(|online| *online).await;
            confirm_deletion(&self.shared, &self.pod).await;
        }
        while !self.gone {
            match orders.recv().await {
                Some(Order::Update(_)) => {}
                Some(Order::Gone(_)) | None => self.gone = true,
            }
        }
        self.shared.forget(self.pod.uid());
        let dir = self.ctx.dir.clone();
        if self.shared.sandbox.is_some() {
            let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(dir)).await;
        }
    }
}

/// Deletes the object of a pod that has ended, with grace 0.
pub(crate) async fn confirm_deletion(shared: &Shared, pod: &PodView) {
    let pods: Api<PodView> = Api::namespaced(shared.client.clone(), pod.namespace());
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(pod.uid().to_owned()), resource_version: None }),
        ..DeleteParams::default()
    };
    loop {
        let Ok(permit) = shared.writes.acquire().await else { return };
        match tokio::time::timeout(Duration::from_secs(10), pods.delete(pod.name(), &params)).await {
            Ok(Ok(_)) => return,
            Ok(Err(kube::Error::Api(status))) if status.is_not_found() || status.is_conflict() => return,
            Ok(Err(error)) => tracing::warn!(pod = pod.name(), %error, "last deletion"),
            Err(_) => {}
        }
        drop(permit);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
