//! Responses to our own writes and live reads: the index is never older than these.

use std::time::Duration;

use andreas_api::key_of;
use andreas_api::shared_template::MAX_TEMPLATE;
use andreas_api::slim::{
    SlimEnergyPolicy, SlimGpuNode, SlimNode, SlimNodePower, SlimPod, SlimTrainingJob, SlimTrainingProfile,
};
use andreas_model::ObjectKey;

use super::ClusterIndex;
use super::store::{Change, Origin, version};

impl ClusterIndex {
    /// Stores the response to our own write or live read.
    pub fn wrote_job(&mut self, job: SlimTrainingJob) {
        self.apply_job(job, Origin::Written);
    }

    /// Stores a live read of a job that had version `before` when the read began. `false`: the response is
    /// older, so the server went back to an older state and cached data is invalid.
    pub fn read_job(&mut self, job: SlimTrainingJob, before: u64) -> bool {
        let key = key_of(&job);
        let same = self.jobs.get(&key).is_some_and(|held| held.metadata.uid == job.metadata.uid);
        let version = version(&job.metadata);
        let rewound = same && version != 0 && version < before;
        if rewound {
            self.jobs.rewound();
        }
        self.apply_job(job, Origin::Written);
        !rewound
    }

    /// Waiting jobs whose templates were left out for want of room, where there is some by now: the oldest of each namespace
    /// first, so many at most.
    pub fn templates_with_room(&mut self, most: usize) -> Vec<ObjectKey> {
        let left_out = self.jobs.iter().filter(|(_, job)| job.spec.template.has_no_room());
        let mut left_out: Vec<_> =
            left_out.map(|(key, job)| (job.metadata.creation_timestamp.clone(), key.clone())).collect();
        if left_out.is_empty() {
            return Vec::new();
        }
        self.gangs.templates.clean_up();
        left_out.retain(|(_, key)| self.gangs.templates.has_room(&key.namespace, MAX_TEMPLATE));
        left_out.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        left_out.into_iter().take(most).map(|(_, key)| key).collect()
    }

    /// A live read of a job whose template was left out: it is kept now, if there is room.
    pub fn read_template(&mut self, job: SlimTrainingJob) {
        let key = key_of(&job);
        let Some(known) = self.jobs.get(&key) else { return };
        if known.metadata.uid != job.metadata.uid || !known.spec.template.has_no_room() {
            return;
        }
        let mut template = job.spec.template;
        self.gangs.templates.share(&key.namespace, &mut template, true);
        if template.has_no_room() {
            return;
        }
        self.jobs.change(&key, |job| job.spec.template = template);
        self.mark(key);
        self.replan();
    }

    /// Stores the response to our own write or live read.
    pub fn wrote_pod(&mut self, pod: SlimPod) {
        self.apply_pod(pod, Origin::Written);
    }

    /// Stores a live read of a node; `true`: it is newer than the known state.
    pub fn wrote_node(&mut self, node: SlimNode) -> bool {
        let key = key_of(&node);
        let newer = !matches!(self.nodes.apply(node, Origin::Written), Change::Nothing);
        self.node_seen(&key);
        newer
    }

    /// Stores the response to our own write.
    pub fn wrote_gpu_node(&mut self, node: SlimGpuNode) {
        self.apply_gpu_node(node, Origin::Written);
    }

    /// Stores the response to our own write.
    pub fn wrote_node_power(&mut self, power: SlimNodePower) {
        self.node_powers.apply(power, Origin::Written);
    }

    /// Marks the job dirty when an agent reports the energy of one of these pods, named by [`super::name_of`].
    pub fn await_energy_report(&mut self, job: &ObjectKey, pods: impl Iterator<Item = String>) {
        self.gangs.pending_energy.retain(|_, owner| owner != job);
        self.gangs.pending_energy.extend(pods.map(|pod| (pod, job.clone())));
    }

    /// Marks jobs dirty when their pods' energy appears in `status.released`.
    pub(super) fn mark_jobs_with_energy_report(&mut self, node: &ObjectKey) {
        if self.gangs.pending_energy.is_empty() {
            return;
        }
        let Some(status) = self.gpu_nodes.get(node).and_then(|node| node.status.as_ref()) else { return };
        let waiting: Vec<ObjectKey> = status
            .released
            .iter()
            .filter_map(|entry| self.gangs.pending_energy.get(&entry.pod).cloned())
            .collect();
        for job in waiting {
            self.mark(job);
        }
    }

    /// Stores the response to our own write.
    pub fn wrote_profile(&mut self, profile: SlimTrainingProfile) {
        self.profiles.apply(profile, Origin::Written);
        self.replan();
    }

    /// Stores the response to our own write.
    pub fn wrote_policy(&mut self, policy: SlimEnergyPolicy) {
        self.rules.policies.apply(policy, Origin::Written);
    }

    /// A live read found no such object.
    pub fn pod_not_found(&mut self, key: &ObjectKey) {
        self.delete_pod(key, None);
    }

    /// A live read found the pod: it is known not from our own creation alone.
    pub fn confirm_pod(&mut self, pod: SlimPod) {
        let key = key_of(&pod);
        self.wrote_pod(pod);
        self.pods.confirm(&key);
    }

    /// Pods shown only by our own creation for longer than `age`.
    pub fn unconfirmed_pods(&self, age: Duration) -> Vec<ObjectKey> {
        self.pods.unconfirmed(age)
    }
}
