//! The objects of the index, to read.

use andreas_api::slim::{SlimGpuNode, SlimNode, SlimPod, SlimTrainingJob, SlimTrainingProfile};

use super::store::Store;
use super::{ClusterIndex, Rules, Storage, Workloads};

impl ClusterIndex {
    /// TrainingJobs.
    pub fn jobs(&self) -> &Store<SlimTrainingJob> {
        &self.jobs
    }

    /// Pods with our label, orphans included.
    pub fn pods(&self) -> &Store<SlimPod> {
        &self.pods
    }

    /// Nodes.
    pub fn nodes(&self) -> &Store<SlimNode> {
        &self.nodes
    }

    /// TrainingProfiles.
    pub fn profiles(&self) -> &Store<SlimTrainingProfile> {
        &self.profiles
    }

    /// GpuNodes.
    pub fn gpu_nodes(&self) -> &Store<SlimGpuNode> {
        &self.gpu_nodes
    }

    /// What administrators set.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Volumes and claims on them.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Jobs of other kinds that ask for adoption.
    pub fn workloads(&self) -> &Workloads {
        &self.workloads
    }
}
