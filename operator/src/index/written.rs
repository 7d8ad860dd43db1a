//! Answers to our own writes and live reads: the index is never older than these.

use std::time::Duration;

use andreas_api::slim::{SlimGpuNode, SlimNode, SlimPod, SlimTrainingJob, SlimTrainingProfile};
use andreas_runtime::watch::ObjectKey;
use kube::ResourceExt;

use super::ClusterIndex;
use super::store::{Change, Seen, version};

impl ClusterIndex {
    /// The answer to a write of ours, or a live read: the index is never older than that.
    pub fn wrote_job(&mut self, job: SlimTrainingJob) {
        self.apply_job(job, Seen::Written);
    }

    /// A live read of a job that was held at version `before` when it was asked for. `false`: the answer is older than that, so the
    /// server itself went back to an older state; what is known of it counts for nothing.
    pub fn read_job(&mut self, job: SlimTrainingJob, before: u64) -> bool {
        let key = ObjectKey::of(&job);
        let same = self.jobs.get(&key).is_some_and(|held| held.metadata.uid == job.metadata.uid);
        let version = version(&job.metadata);
        let rewound = same && version != 0 && version < before;
        if rewound {
            self.jobs.rewound();
        }
        self.apply_job(job, Seen::Written);
        !rewound
    }

    /// The answer to a write of ours, or a live read: the index is never older than that.
    pub fn wrote_pod(&mut self, pod: SlimPod) {
        self.apply_pod(pod, Seen::Written);
    }

    /// A live read of a node; `true`: it is newer than what was known.
    pub fn wrote_node(&mut self, node: SlimNode) -> bool {
        let key = ObjectKey::of(&node);
        let newer = !matches!(self.nodes.apply(node, Seen::Written), Change::Nothing);
        self.node_seen(&key);
        newer
    }

    /// The answer to a write of ours.
    pub fn wrote_gpu_node(&mut self, node: SlimGpuNode) {
        let name = node.name_any();
        if !matches!(self.gpu_nodes.apply(node, Seen::Written), Change::Nothing) {
            self.mark_jobs_on(&name);
            let key = ObjectKey { namespace: String::new(), name };
            self.mark_reported(&key);
            self.agent_reported(&key);
        }
    }

    /// Exploration at the job again when a node's agent tells what one of these pods, by [`name_of`], has used.
    pub fn await_energy_report(&mut self, job: &ObjectKey, pods: impl Iterator<Item = String>) {
        self.pending_energy.retain(|_, owner| owner != job);
        self.pending_energy.extend(pods.map(|pod| (pod, job.clone())));
    }

    pub(super) fn mark_reported(&mut self, node: &ObjectKey) {
        if self.pending_energy.is_empty() {
            return;
        }
        let Some(status) = self.gpu_nodes.get(node).and_then(|node| node.status.as_ref()) else { return };
        let told: Vec<ObjectKey> =
            status.released.iter().filter_map(|entry| self.pending_energy.get(&entry.pod).cloned()).collect();
        for job in told {
            self.mark(job);
        }
    }

    /// The answer to a write of ours.
    pub fn wrote_profile(&mut self, profile: SlimTrainingProfile) {
        self.profiles.apply(profile, Seen::Written);
        self.replan();
    }

    /// A live read found no such object any more.
    pub fn gone_pod(&mut self, key: &ObjectKey) {
        self.delete_pod(key, None);
    }

    /// Pods that only our own creation has shown for longer than `age`.
    pub fn unconfirmed_pods(&self, age: Duration) -> Vec<ObjectKey> {
        self.pods.unconfirmed(age)
    }
}
