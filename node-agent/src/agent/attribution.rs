//! Energy attribution: what each pod used of the node's GPUs, from the GPUs' energy counters. Pure.
//!
//! A share begins when a pod takes a GPU and ends when it releases it. Both counter readings are taken in the
//! reconcile that sees the change. The begin is in the status while the share lasts, so a restarted agent
//! continues it. Totals of the last [`KEPT`] pods that released their GPUs stay in the status for the
//! operator.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::GpuNodeStatus;
use andreas_api::gpu_node::{ReleasedEnergy, namespaced_pod_name};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::holders::PodKey;
use crate::setting::Uuid;

/// Number of released pods whose energy is kept.
const KEPT: usize = 32;

/// Begin of a share.
#[derive(Clone, Debug, PartialEq)]
pub struct Begin {
    /// Counter of the GPU at the begin, J.
    pub joules: i64,
    /// Time of the begin.
    pub at: Timestamp,
}

/// One observation of a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuReading {
    /// The pod that holds it.
    pub holder: Option<PodKey>,
    /// Energy counter of the GPU, J; `None` if it cannot be told now.
    pub joules: Option<i64>,
    /// Whether a part of the energy since the last observation is an estimate.
    pub estimated: bool,
    /// Whether energy drawn since the last observation is missing in it.
    pub lost: bool,
}

#[derive(Clone, Debug)]
struct Share {
    key: PodKey,
    begin: Begin,
    /// The last counter reading.
    joules: i64,
    /// Whether no energy was lost.
    whole: bool,
    /// Whether a part of it is an estimate.
    estimated: bool,
}

/// All shares of a node.
#[derive(Clone, Debug, Default)]
pub struct EnergyAttribution {
    open: BTreeMap<Uuid, Share>,
    /// Begins of shares and their pods, from the status of an earlier run.
    earlier: BTreeMap<Uuid, (String, Begin)>,
    released: Vec<ReleasedEnergy>,
}

impl EnergyAttribution {
    /// Resumes from the status of an earlier run.
    pub fn resume(&mut self, status: &GpuNodeStatus) {
        for gpu in &status.gpus {
            if let (Some(pod), Some(joules), Some(at)) = (&gpu.holder, gpu.held_from, &gpu.held_since) {
                self.earlier.insert(gpu.uuid.clone(), (pod.clone(), Begin { joules, at: at.0 }));
            }
        }
        let mut released = status.released.clone();
        released.append(&mut self.released);
        self.released = released;
        self.trim();
    }

    /// Raises the reading and the begin of a GPU's open share by what an earlier agent counted: the counter now
    /// includes it.
    pub fn shift_counter(&mut self, uuid: &str, joules: i64) {
        if let Some(share) = self.open.get_mut(uuid) {
            share.joules += joules;
            share.begin.joules += joules;
        }
    }

    /// Gives up the share of an earlier agent: energy was drawn that no agent has seen.
    pub fn forget(&mut self, uuid: &str) {
        self.earlier.remove(uuid);
    }

    /// Updates the shares from all GPUs with a known holder.
    pub fn update(&mut self, gpus: &BTreeMap<Uuid, GpuReading>, now: Timestamp) {
        // GPUs that a pod releases together make one entry.
        let mut ended: Vec<Share> = Vec::new();
        for (uuid, reading) in gpus {
            if reading.joules.is_none() && !self.open.contains_key(uuid) && self.earlier.contains_key(uuid) {
                continue;
            }
            if let Some(share) = self.open.get_mut(uuid) {
                let joules = reading.joules.unwrap_or(share.joules);
                share.whole &= share.joules <= joules && !reading.lost;
                share.estimated |= reading.estimated;
                share.joules = joules;
            }
            let same = |share: &Share| reading.holder.as_ref() == Some(&share.key);
            if !self.open.get(uuid).is_some_and(same) {
                // Without a reading nobody knows what the one used and where the other begins.
                let whole = reading.joules.is_some();
                ended.extend(self.open.remove(uuid).filter(|share| share.whole && whole));
                if let Some(key) = reading.holder.clone() {
                    let joules = reading.joules.unwrap_or(0);
                    let begin = Begin { joules, at: now };
                    let share = Share { key, begin, joules, whole, estimated: false };
                    self.open.insert(uuid.clone(), share);
                }
            }
            self.resume_share(uuid);
        }
        self.release(ended, now);
    }

    /// The begin from an earlier run, if the pod is the same. A recreated pod of the same name looks the
    /// same; the operator distinguishes them by the begin time.
    fn resume_share(&mut self, uuid: &Uuid) {
        let Some((pod, begin)) = self.earlier.remove(uuid) else { return };
        // Otherwise the share ended between the runs, and its energy is unknown.
        if let Some(share) = self.open.get_mut(uuid)
            && namespaced_pod_name(&share.key.0, &share.key.1) == pod
            && begin.joules <= share.begin.joules
        {
            share.begin = begin;
        }
    }

    fn release(&mut self, ended: Vec<Share>, now: Timestamp) {
        let pods: BTreeSet<PodKey> = ended.iter().map(|share| share.key.clone()).collect();
        for key in pods {
            let own: Vec<&Share> = ended.iter().filter(|share| share.key == key).collect();
            let joules = own.iter().map(|share| share.joules - share.begin.joules).sum();
            let since = own.iter().map(|share| share.begin.at).min().unwrap_or(now);
            self.released.push(ReleasedEnergy {
                pod: namespaced_pod_name(&key.0, &key.1),
                since: Some(Time(since)),
                joules,
                seconds: now.duration_since(since).as_secs().max(0),
                gpus: i32::try_from(own.len()).unwrap_or(i32::MAX),
                estimated: own.iter().any(|share| share.estimated),
            });
        }
        self.trim();
    }

    fn trim(&mut self) {
        let surplus = self.released.len().saturating_sub(KEPT);
        self.released.drain(..surplus);
    }

    /// Begin of the share of a GPU's holder.
    #[must_use]
    pub fn begin(&self, uuid: &str) -> Option<&Begin> {
        // Until the holder is observed, the begin from the status is reported again.
        if self.earlier.contains_key(uuid) {
            return self.earlier.get(uuid).map(|(_, begin)| begin);
        }
        self.open.get(uuid).filter(|share| share.whole).map(|share| &share.begin)
    }

    /// Energy of pods that hold no GPU any more, latest last.
    #[must_use]
    pub fn released(&self) -> &[ReleasedEnergy] {
        &self.released
    }
}

#[cfg(test)]
mod tests;
